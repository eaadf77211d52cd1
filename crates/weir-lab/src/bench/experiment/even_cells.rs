//! The cells of the experiments `ladder`, `taken-core`, `reload`, `handshakes` and `even-cost`, the
//! ratios that their tables show, and their targets. Named by `catalogue.rs`.

use super::cells::{Axes, Cell, Closed, Load, Origin, RequestKind, SMALL};
use super::even::{Arrival, Ladder};
use super::handshakes::LOW_LATENCY;
use super::metric::{Compared, Metric};
use super::targets::{Bound, Target};
use super::tls;

/// weir without regard to the load of workers: the kernel's hash distributes connections, and
/// workers stay where they are.
const HASH_HARD: &str = "weir-hash-hard";

/// The contenders of a ladder: each program with a socket that all workers share, and with one for
/// each, where it has both.
const LADDER: &[&str] =
    &["nginx-shared", "nginx", "haproxy-shared", "haproxy", "weir-hash", "weir"];

const fn rung(title: &'static str, cell: &'static str, metric: Metric) -> Target {
    Target { title, cell, metric, subject: "weir", against: None, bound: Bound::AtMost(1.2) }
}

/// Targets of `ladder`.
pub(crate) const LADDER_TARGETS: &[Target] = &[
    rung(
        "one by one, a worker a core: connections, most / least",
        "steady",
        Metric::ConnectionsLadder,
    ),
    rung("the same: processor time", "steady", Metric::CpuLadder),
    rung(
        "in bursts, a worker a core: connections, most / least",
        "bursts",
        Metric::ConnectionsLadder,
    ),
    rung("the same: processor time", "bursts", Metric::CpuLadder),
    rung("one by one, 8 workers: connections, most / least", "steady-8", Metric::ConnectionsLadder),
    rung("the same: processor time", "steady-8", Metric::CpuLadder),
    rung("in bursts, 8 workers: connections, most / least", "bursts-8", Metric::ConnectionsLadder),
    rung("the same: processor time", "bursts-8", Metric::CpuLadder),
];

/// Returns the cells of `ladder`. More workers than cores show what the choice does on a machine
/// with more cores.
pub(crate) fn ladder_cells(axes: &Axes) -> Vec<Cell> {
    let cell = |arrival, workers: Option<usize>| {
        let (name, how) = match arrival {
            Arrival::Steady => ("steady", "one by one"),
            Arrival::Bursts => ("bursts", "100 at a time"),
        };
        let (name, who) = match workers {
            None => (name.to_owned(), "a worker a core".to_owned()),
            Some(workers) => (format!("{name}-{workers}"), format!("{workers} workers")),
        };
        let title = format!("2,000 clients that come {how} and ask twice a second, {who}");
        Cell::new(&name, &title, Load::Ladder(Ladder { arrival, workers }), LADDER)
            .from(Origin::None)
    };
    let workers: &[Option<usize>] =
        if axes.quick { &[None, Some(8)] } else { &[None, Some(4), Some(8)] };
    workers
        .iter()
        .flat_map(|workers| {
            [Arrival::Steady, Arrival::Bursts].map(|arrival| cell(arrival, *workers))
        })
        .collect()
}

/// The contenders while a core is taken: each program with a core for each worker, and without.
const TAKEN: &[&str] =
    &["direct", "nginx", "nginx-unpinned", "haproxy", "haproxy-unpinned", HASH_HARD, "weir"];

/// What the table of `taken-core` compares.
pub(crate) const TAKEN_RATIOS: &[Compared] = &[
    ("p99.9 / hash, hard", Metric::P999, HASH_HARD),
    ("p99 / hash, hard", Metric::P99, HASH_HARD),
];

/// Targets of `taken-core`.
pub(crate) const TAKEN_TARGETS: &[Target] = &[Target {
    title: "a core is taken for 25 ms, 14 times a second: p99.9, against workers that look at no \
        load and stay on their cores",
    cell: "taken",
    metric: Metric::P999,
    subject: "weir",
    against: Some(HASH_HARD),
    bound: Bound::AtMost(0.25),
}];

/// Returns the cell of `taken-core`.
pub(crate) fn taken_cells(_: &Axes) -> Vec<Cell> {
    let title = "64 kept connections, 2,000 requests a second by the clock, a core taken for 25 ms \
        14 times a second";
    vec![Cell::new("taken", title, Load::Taken, TAKEN).from(Origin::None)]
}

/// The contenders of reloads: nginx with a socket for each worker, and with one for all.
const RELOADED: &[&str] = &["nginx", "nginx-shared", "haproxy", "weir-hash", "weir"];

/// Targets of `reload`.
pub(crate) const RELOAD_TARGETS: &[Target] = &[Target {
    title: "connections refused, reset or not answered while the number of workers changes once a \
        second",
    cell: "reload",
    metric: Metric::CutOff,
    subject: "weir",
    against: None,
    bound: Bound::AtMost(0.0),
}];

/// Returns the cell of `reload`.
pub(crate) fn reload_cells(_: &Axes) -> Vec<Cell> {
    let title = "clients that come 16 at a time, 4 times over, while a worker more or less is \
        configured once a second";
    vec![Cell::new("reload", title, Load::Reload, RELOADED)]
}

/// What the tables of `even-cost` compare.
pub(crate) const COST: &[Compared] = &[
    ("CPU / hash, hard", Metric::Cpu, HASH_HARD),
    ("p50 / hash, hard", Metric::P50, HASH_HARD),
    ("rate / hash, hard", Metric::Rate, HASH_HARD),
];

const fn cost(title: &'static str, cell: &'static str, metric: Metric) -> Target {
    Target {
        title,
        cell,
        metric,
        subject: "weir",
        against: Some(HASH_HARD),
        bound: Bound::AtMost(1.01),
    }
}

/// Targets of `even-cost`.
pub(crate) const COST_TARGETS: &[Target] = &[
    cost("64 connections: CPU a request, against workers that look at no load", "c64", Metric::Cpu),
    cost("64 connections: p50, the same", "c64", Metric::P50),
    cost("4,000 connections: CPU a request, the same", "c4000", Metric::Cpu),
    cost("4,000 connections: p50, the same", "c4000", Metric::P50),
    cost("64 connections, 5,000 requests a second: CPU a request, the same", "r5000", Metric::Cpu),
];

/// Returns the cells of `even-cost`: nothing is wrong in them. By the clock each request costs a
/// separate turn, and so everything that is done in each turn.
pub(crate) fn cost_cells(_: &Axes) -> Vec<Cell> {
    let full =
        |connections| Load::Closed(Closed { connections, body: 3, kind: RequestKind::Minimal });
    let cell = |name: &str, title: &str, load| Cell::new(name, title, load, &["weir", HASH_HARD]);
    vec![
        cell("c64", "64 connections, 3 B", full(64)),
        cell("c4000", "4,000 connections, 3 B", full(4000)),
        cell(
            "r5000",
            "64 connections, 5,000 requests a second by the clock, 3 B",
            Load::Fixed { connections: 64, rate: 5000, path: SMALL },
        ),
    ]
}

/// Plain requests beside handshakes.
pub(super) fn handshake_cells(_: &Axes) -> Vec<Cell> {
    let contenders = &["nginx", "haproxy", LOW_LATENCY, "weir", "weir-epoll"];
    let title = "64 connections that ask 500 times a second without TLS, beside 1,000 clients that \
        handshake in loops";
    vec![Cell::new("handshakes", title, Load::Handshakes, contenders).over(tls::ECDSA)]
}
