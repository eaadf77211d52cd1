//! The cells of the experiment `forward`. Named by `catalogue.rs`.

use super::cells::{Axes, Cell, Closed, Load, Origin, RequestKind, clients};
use super::tunnel::{Tunnels, Way};

/// Bytes of a response of `forward`: a small page.
const PAGE: u64 = 3600;

/// Returns all cells.
pub(crate) fn cells(axes: &Axes) -> Vec<Cell> {
    let load =
        |connections| Load::Closed(Closed { connections, body: PAGE, kind: RequestKind::Minimal });
    let proxies = &["direct", "nginx-forward", "weir-forward", "weir-forward-per-request"];
    let pools = &["direct", "nginx", "weir", "weir-shared", "weir-pinned", "weir-per-request"];
    let mut cells = Vec::new();
    for connections in axes.connections_or(&[100]) {
        let many = clients(connections);
        let title = format!("forward: {many}, {PAGE} B");
        cells.push(Cell::new(
            &format!("forward-{connections}"),
            &title,
            load(connections),
            proxies,
        ));
        let title = format!("reverse, by pool: {many}, {PAGE} B");
        cells.push(Cell::new(&format!("pools-{connections}"), &title, load(connections), pools));
    }
    cells.extend(tunnels(axes.quick));
    cells
}

/// Idle tunnels of the cell that counts their memory.
const IDLE_TUNNELS: u32 = 5000;

/// Returns the cells of tunnels, fewer with `quick`.
fn tunnels(quick: bool) -> Vec<Cell> {
    let full = &[
        "direct",
        "haproxy-splice",
        "haproxy-splice-64k",
        "haproxy-copy",
        "weir-forward",
        "weir-forward-epoll",
    ];
    let cell = |name: &str, title: &str, load, contenders: &[&'static str]| {
        Cell::new(name, title, Load::Tunnel(load), contenders).from(Origin::None)
    };
    let mut cells = vec![cell(
        "tunnel",
        "one tunnel, full on the way to the client",
        Tunnels::Full(Way::Down),
        full,
    )];
    if !quick {
        cells.push(cell(
            "tunnel-up",
            "one tunnel, full on the way to the server",
            Tunnels::Full(Way::Up),
            full,
        ));
    }
    let idle = &["haproxy-splice", "weir-forward", "weir-forward-epoll"];
    cells.push(cell("tunnel-idle", "5,000 idle tunnels", Tunnels::Idle(IDLE_TUNNELS), idle));
    cells
}
