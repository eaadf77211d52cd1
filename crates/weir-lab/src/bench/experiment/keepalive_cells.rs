//! The cells of the experiment `keepalive`. Named by `catalogue.rs`.

use super::cells::{Axes, Cell, Load, Origin};
use super::keepalive::{Blocked, Busy, Probing};

/// Returns all cells.
pub(crate) fn cells(axes: &Axes) -> Vec<Cell> {
    let blocked = blocked(axes.quick);
    // A quick run is for the figures that are promised.
    let usual = if axes.quick { Vec::new() } else { burned() };
    usual.into_iter().chain(blocked).collect()
}

/// Workers that sleep for a share of the time, on connections of TCP and of the unix domain.
fn blocked(quick: bool) -> Vec<Cell> {
    let contenders = &["direct", "nginx", "haproxy", "weir", "weir-per-request", "weir-fresh"];
    let cell = |(name, close_every, busy_percent, unix): (&str, Option<u32>, u32, bool)| {
        let every = match close_every {
            None => "one connection".to_owned(),
            Some(1) => "a connection for each request".to_owned(),
            Some(every) => format!("a connection for {every} requests"),
        };
        let socket = if unix { " behind a unix socket" } else { "" };
        let title =
            format!("{every}, 16 workers{socket}, each busy for {busy_percent} % of the time");
        let busy = Busy::Blocked(Blocked { busy_percent, unix });
        Cell::new(name, &title, Load::Probe(Probing { close_every, busy }), contenders)
            .from(Origin::None)
    };
    let promised = [("blocked-never", None, 35, false), ("unix-never", None, 35, true)];
    let others = [
        ("blocked-close-1", Some(1), 35, false),
        ("blocked-close-2", Some(2), 35, false),
        ("blocked-close-5", Some(5), 35, false),
        ("blocked-20-never", None, 20, false),
        ("unix-close-1", Some(1), 35, true),
        ("unix-20-never", None, 20, true),
    ];
    let others = if quick { &others[..0] } else { &others[..] };
    promised.iter().chain(others).copied().map(cell).collect()
}

/// Workers that compute.
fn burned() -> Vec<Cell> {
    let cell = |name: &str, title: &str, close_every, busy| {
        let load = Load::Probe(Probing { close_every, busy });
        Cell::new(name, title, load, &["direct", "nginx", "haproxy", "weir"]).from(Origin::None)
    };
    vec![
        cell(
            "idle",
            "a connection for each request, idle workers: the machine's own noise",
            Some(1),
            Busy::No,
        ),
        cell("close-1", "a connection for each request, busy workers", Some(1), Busy::Beside),
        cell("close-2", "a connection for two requests, busy workers", Some(2), Busy::Beside),
        cell("close-5", "a connection for five requests, busy workers", Some(5), Busy::Beside),
        cell("never", "one connection, busy workers", None, Busy::Beside),
        cell(
            "through",
            "a connection for two requests, workers busy with what comes the same way",
            Some(2),
            Busy::Through,
        ),
    ]
}
