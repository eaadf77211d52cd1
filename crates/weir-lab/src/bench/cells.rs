//! What is measured: the cells, and the targets that they are compared with.
//!
//! Called by `mod.rs` (what to run) and `report.rs` (what to judge). One row here is all that a new measurement needs.

use super::load::Closed;
use super::record::Metric;
use super::stage::SMALL;

/// One situation in which contenders are compared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    /// Its name on the command line and in the raw data.
    pub(super) name: &'static str,
    /// For people.
    pub(super) title: &'static str,
    /// What is done to them.
    pub(super) load: Load,
    /// Who takes part.
    pub(super) contenders: &'static [&'static str],
    /// Not part of the default selection: only with `--only`.
    pub(super) extra: bool,
}

/// What is done to a contender.
#[derive(Debug, Clone, Copy)]
pub(super) enum Load {
    /// wrk: each connection asks again when it has its answer.
    Closed(Closed),
    /// Half of nginx's rate in the named cell, by the clock.
    HalfOfNginx(&'static str, u32),
    /// So many requests a second by the clock, to weir's own origin.
    Fixed { connections: u32, rate: u32, target: &'static str },
    /// Idle keep-alive connections.
    Idle(u32),
    /// Clients that each read a large reply slowly.
    Slow(u32, &'static str),
}

const fn closed(connections: u32, target: &'static str, words: &'static [&'static str]) -> Load {
    Load::Closed(Closed { connections, target, words })
}

const fn cell(name: &'static str, title: &'static str, load: Load, contenders: &'static [&'static str]) -> Cell {
    Cell { name, title, load, contenders, extra: false }
}

const fn extra(name: &'static str, title: &'static str, load: Load) -> Cell {
    Cell { name, title, load, contenders: ALL, extra: true }
}

const ALL: &[&str] = &["direct", "nginx", "haproxy", "weir", "weir-epoll"];

/// All cells: first those of the targets, then the rest of the matrix.
pub(super) const CELLS: &[Cell] = &[
    cell(
        "c4000",
        "4,000 connections, 3 B",
        closed(4000, SMALL, &[]),
        &["direct", "nginx", "haproxy", "weir", "weir-epoll", "weir-128", "weir-one"],
    ),
    cell(
        "c64",
        "64 connections, 3 B",
        closed(64, SMALL, &[]),
        &["direct", "nginx", "haproxy", "weir", "weir-epoll", "weir-128", "weir-closing"],
    ),
    cell("browser", "64 connections, browser's fields and 1.5 KB cookie", closed(64, SMALL, &["browser"]), ALL),
    cell("body-64k", "64 connections, 64 KB bodies", closed(64, "/64k", &[]), ALL),
    cell("body-1m", "64 connections, 1 MB bodies", closed(64, "/1m", &[]), ALL),
    cell("new-connection", "64 at a time, a new connection for each request", closed(64, SMALL, &["close"]), ALL),
    cell(
        "fixed-rate",
        "64 connections, half of nginx's rate, latency from the due time",
        Load::HalfOfNginx("c64", 64),
        ALL,
    ),
    cell("idle", "10,000 idle keep-alive connections", Load::Idle(10_000), &["nginx", "haproxy", "weir", "weir-epoll"]),
    cell("slow", "200 slow clients, a 100 MB reply each", Load::Slow(200, "/100m"), &["nginx", "haproxy", "weir-256"]),
    extra("c1", "1 connection, 3 B", closed(1, SMALL, &[])),
    extra("c8", "8 connections, 3 B", closed(8, SMALL, &[])),
    extra("c512", "512 connections, 3 B", closed(512, SMALL, &[])),
    extra("c2048", "2,048 connections, 3 B", closed(2048, SMALL, &[])),
    extra("c8192", "8,192 connections, 3 B", closed(8192, SMALL, &[])),
    extra("body-3k", "64 connections, 3 KB bodies", closed(64, "/3k", &[])),
    extra("body-8k", "64 connections, 8 KB bodies", closed(64, "/8k", &[])),
    extra("body-16k", "64 connections, 16 KB bodies", closed(64, "/16k", &[])),
    Cell {
        name: "late",
        title: "64 connections, 4,000 requests a second, one answer in 100 takes 200 ms (weir's origin)",
        load: Load::Fixed { connections: 64, rate: 4000, target: "/?delay=200&every=100" },
        contenders: &["direct", "nginx", "haproxy", "weir", "weir-stay", "weir-off"],
        extra: true,
    },
    extra("browser-4000", "4,000 connections, browser's fields", closed(4000, SMALL, &["browser"])),
];

/// A figure that has to be reached.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    /// For people.
    pub(super) title: &'static str,
    /// Where it is measured.
    pub(super) cell: &'static str,
    /// What is compared.
    pub(super) metric: Metric,
    /// Whose figure.
    pub(super) subject: &'static str,
    /// Divided by whose; None: the figure itself.
    pub(super) against: Option<&'static str>,
    /// What it has to be.
    pub(super) bound: Bound,
}

/// Which side of the bound is good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Bound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Bound {
    /// Whether a figure is good; NaN (not measured) never is.
    pub(super) fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(bound) => value >= bound,
            Bound::AtMost(bound) => value <= bound,
        }
    }
}

const fn target(
    title: &'static str,
    cell: &'static str,
    metric: Metric,
    subject: &'static str,
    against: &'static str,
    bound: Bound,
) -> Target {
    Target { title, cell, metric, subject, against: Some(against), bound }
}

use Bound::{AtLeast, AtMost};
use Metric::{Cpu, IdleBytes, MemoryMb, P99, Rate};

/// All targets.
pub(super) const TARGETS: &[Target] = &[
    target("rate, 4,000 connections, against direct", "c4000", Rate, "weir", "direct", AtLeast(0.90)),
    target("rate, 4,000 connections, against nginx", "c4000", Rate, "weir", "nginx", AtLeast(2.0)),
    target("rate, 4,000 connections, against HAProxy", "c4000", Rate, "weir", "haproxy", AtLeast(4.0)),
    target("CPU a request, 4,000 connections, against nginx", "c4000", Cpu, "weir", "nginx", AtMost(0.35)),
    target("CPU a request, 64 connections, against nginx", "c64", Cpu, "weir", "nginx", AtMost(0.50)),
    target(
        "servers that close after 100 requests: CPU a request, 64 connections, against such as never close",
        "c64",
        Cpu,
        "weir-closing",
        "weir",
        AtMost(1.25),
    ),
    target(
        "`connections=128`: CPU a request, 64 connections, against nginx",
        "c64",
        Cpu,
        "weir-128",
        "nginx",
        AtMost(0.60),
    ),
    target(
        "`connections=128`: CPU a request, 4,000 connections, against nginx",
        "c4000",
        Cpu,
        "weir-128",
        "nginx",
        AtMost(0.40),
    ),
    target(
        "`connections=1`: rate, 4,000 connections, against weir with 128",
        "c4000",
        Rate,
        "weir-one",
        "weir-128",
        AtLeast(0.95),
    ),
    target(
        "browser-sized requests: CPU a request, 64 connections, against nginx",
        "browser",
        Cpu,
        "weir",
        "nginx",
        AtMost(0.55),
    ),
    target("64 KB bodies: rate against nginx", "body-64k", Rate, "weir", "nginx", AtLeast(1.0)),
    target("1 MB bodies: rate against nginx", "body-1m", Rate, "weir", "nginx", AtLeast(1.0)),
    target(
        "new connection for each request: CPU a request, against nginx",
        "new-connection",
        Cpu,
        "weir",
        "nginx",
        AtMost(0.85),
    ),
    target("epoll: CPU a request, 64 connections, against nginx", "c64", Cpu, "weir-epoll", "nginx", AtMost(0.65)),
    target("epoll: CPU a request, 4,000 connections, against nginx", "c4000", Cpu, "weir-epoll", "nginx", AtMost(0.50)),
    target(
        "p99 at half of nginx's rate, 64 connections, against nginx",
        "fixed-rate",
        P99,
        "weir",
        "nginx",
        AtMost(1.0),
    ),
    Target {
        title: "user memory for an idle connection, bytes",
        cell: "idle",
        metric: IdleBytes,
        subject: "weir",
        against: None,
        bound: AtMost(512.0),
    },
    Target {
        title: "resident memory with 200 slow clients, MB above idle",
        cell: "slow",
        metric: MemoryMb,
        subject: "weir-256",
        against: None,
        bound: AtMost(64.0),
    },
];

/// Whether a target needs this contender's figure in this cell.
pub(super) fn is_target(cell: &Cell, contender: &str) -> bool {
    let needs = |target: &Target| target.subject == contender || target.against == Some(contender);
    TARGETS.iter().any(|target| target.cell == cell.name && needs(target))
}

#[cfg(test)]
mod tests {
    use super::super::stage::CONTENDERS;
    use super::*;

    #[test]
    fn every_target_is_measured_by_default_and_every_contender_exists() {
        for target in TARGETS {
            let cell = CELLS.iter().find(|cell| cell.name == target.cell && !cell.extra).unwrap();
            assert!(cell.contenders.contains(&target.subject), "{}", target.title);
            assert!(target.against.is_none_or(|name| cell.contenders.contains(&name)), "{}", target.title);
        }
        for cell in CELLS {
            for name in cell.contenders {
                assert!(CONTENDERS.iter().any(|contender| contender.name == *name), "{name}");
            }
        }
    }

    #[test]
    fn a_figure_that_was_not_measured_is_a_miss() {
        assert!(!AtLeast(0.0).holds(f64::NAN) && !AtMost(1.0).holds(f64::NAN));
        assert!(AtLeast(1.0).holds(1.0) && AtMost(1.0).holds(1.0));
    }
}
