//! The experiments: the question of each, its cells, and the targets that judge it.
//!
//! A row of [`EXPERIMENTS`] is all that a new experiment needs, unless its load is a new one.

use super::block_cells;
use super::block_targets;
use super::cache_cells;
use super::cells::{Axes, Axis, Cell, Closed, Load, Origin, RequestKind, SMALL, clients};
use super::even_cells;
use super::failover_cells;
use super::forward_cells;
use super::handshakes::LOW_LATENCY;
use super::keepalive_cells;
use super::metric::{Compared, Metric};
use super::mixed_cells;
use super::pep_cells;
use super::secure_cells;
use super::targets::{self, Target};
use super::tunnel::{TUNNEL_RATIOS, Tunnels};
use super::wan::{Object, Wan};
use super::wan_cells;
use crate::units::grouped;

/// One experiment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Experiment {
    /// Its name on the command line, and of its files.
    pub(crate) name: &'static str,
    /// The question that it answers, for people.
    pub(crate) title: &'static str,
    /// Its cells.
    pub(crate) cells: fn(&Axes) -> Vec<Cell>,
    /// Rounds, unless the user chooses otherwise.
    pub(crate) rounds: u32,
    /// Seconds of each run, likewise.
    pub(crate) seconds: u32,
    /// What users may choose: nothing, or some of the axes.
    pub(crate) axes: &'static [Axis],
    /// Ratios that its tables show.
    pub(crate) compared: &'static [Compared],
    /// Targets.
    pub(crate) targets: &'static [Target],
}

const PROXIES: &[Compared] = &[
    ("rate / direct", Metric::Rate, "direct"),
    ("rate / nginx", Metric::Rate, "nginx"),
    ("CPU / nginx", Metric::Cpu, "nginx"),
];
const RATES: &[Compared] = &[
    ("CPU / nginx", Metric::Cpu, "nginx"),
    ("CPU / HAProxy", Metric::Cpu, "haproxy"),
    ("p99 / nginx", Metric::P99, "nginx"),
];
const FORWARD: &[Compared] = &[
    ("rate / direct", Metric::Rate, "direct"),
    ("rate / nginx", Metric::Rate, "nginx-forward"),
    ("CPU / nginx", Metric::Cpu, "nginx-forward"),
];
const SECURE: &[Compared] = &[
    ("rate / nginx", Metric::Rate, "nginx"),
    ("CPU / nginx", Metric::Cpu, "nginx"),
    ("CPU / weir-plain", Metric::Cpu, "weir-plain"),
];
const BESIDE: &[Compared] = &[("p99 / HAProxy low-latency", Metric::P99, LOW_LATENCY)];
const HTTP2: &[Compared] = &[
    ("rate / nginx", Metric::Rate, "nginx"),
    ("CPU / nginx", Metric::Cpu, "nginx"),
    ("CPU / HAProxy", Metric::Cpu, "haproxy"),
    ("CPU / HTTP/1.1", Metric::Cpu, "weir-http1"),
];
const KEPT: &[Compared] = &[("p99.9 / nginx", Metric::P999, "nginx")];
const STALLED: &[Compared] = &[("p99 / alone", Metric::P99, "weir-alone")];
const LIMITED: &[Compared] =
    &[("CPU / weir", Metric::Cpu, "weir"), ("rate / weir", Metric::Rate, "weir")];
const GENERATORS: &[Compared] =
    &[("rate / wrk", Metric::Rate, "wrk"), ("CPU / wrk", Metric::GeneratorCpu, "wrk")];
const ORIGINS: &[Compared] = &[("rate / nginx", Metric::Rate, "nginx-file")];

/// All of them.
pub(crate) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "targets",
        title: "the figures that weir promises, against no proxy, nginx and HAProxy",
        cells: targets,
        rounds: 5,
        seconds: 6,
        axes: &[],
        compared: PROXIES,
        targets: targets::PROXY,
    },
    Experiment {
        name: "proxying",
        title: "cost of a proxy, from one connection to as many as descriptors allow",
        cells: proxying,
        rounds: 3,
        seconds: 4,
        axes: &[Axis::Connections],
        compared: PROXIES,
        targets: &[],
    },
    Experiment {
        name: "rates",
        title: "cost of a request at usual load, by requests per second",
        cells: rates,
        rounds: 5,
        seconds: 4,
        axes: &[],
        compared: RATES,
        targets: targets::RATES,
    },
    Experiment {
        name: "sweep",
        title: "connections x requests (minimal, browser, close) x bodies",
        cells: |axes| sweep(axes, &["direct", "nginx", "haproxy", "weir"]),
        rounds: 3,
        seconds: 2,
        axes: &[Axis::Connections, Axis::Requests, Axis::Bodies],
        compared: PROXIES,
        targets: &[],
    },
    Experiment {
        name: "limits",
        title: "cost of client limits for clients below them",
        cells: limits,
        rounds: 9,
        seconds: 4,
        axes: &[],
        compared: LIMITED,
        targets: targets::LIMITS,
    },
    Experiment {
        name: "ladder",
        title: "how evenly clients that stay are shared among workers: connections and processor \
            time of each",
        cells: even_cells::ladder_cells,
        rounds: 3,
        seconds: 4,
        axes: &[],
        compared: &[],
        targets: even_cells::LADDER_TARGETS,
    },
    Experiment {
        name: "taken-core",
        title: "effect on clients when another program takes a core now and then",
        cells: even_cells::taken_cells,
        rounds: 5,
        seconds: 10,
        axes: &[],
        compared: even_cells::TAKEN_RATIOS,
        targets: even_cells::TAKEN_TARGETS,
    },
    Experiment {
        name: "reload",
        title: "effect on clients that connect during a reload",
        cells: even_cells::reload_cells,
        rounds: 3,
        seconds: 10,
        axes: &[],
        compared: &[],
        targets: even_cells::RELOAD_TARGETS,
    },
    Experiment {
        name: "even-cost",
        title: "cost of balancing workers in normal operation",
        cells: even_cells::cost_cells,
        rounds: 30,
        seconds: 2,
        axes: &[],
        compared: even_cells::COST,
        targets: even_cells::COST_TARGETS,
    },
    Experiment {
        name: "block",
        title: "cost of blocking clients, and its effect on other users",
        cells: block_cells::cells,
        rounds: 3,
        seconds: 2,
        axes: &[],
        compared: &[],
        targets: block_targets::BLOCK,
    },
    Experiment {
        name: "late",
        title: "one response in 100 takes 200 ms: effect on the others",
        cells: late,
        rounds: 5,
        seconds: 6,
        axes: &[],
        compared: PROXIES,
        targets: &[],
    },
    Experiment {
        name: "mixed",
        title: "fast and slow requests together: how long they wait, how many get a response, and \
            whether any is executed twice",
        cells: mixed_cells::cells,
        rounds: 3,
        seconds: 8,
        axes: &[],
        compared: mixed_cells::RATIOS,
        targets: mixed_cells::TARGETS,
    },
    Experiment {
        name: "keepalive",
        title: "slow requests that kept connections make: the probe against busy workers",
        cells: keepalive_cells::cells,
        rounds: 5,
        seconds: 10,
        axes: &[],
        compared: KEPT,
        targets: targets::KEEPALIVE,
    },
    Experiment {
        name: "failover",
        title: "effect on clients when servers die",
        cells: failover_cells::cells,
        rounds: 3,
        seconds: 8,
        axes: &[],
        compared: &[],
        targets: &[],
    },
    Experiment {
        name: "forward",
        title: "a forward proxy whose clients own their connections, its tunnels, and the pool \
            modes of a reverse proxy",
        cells: forward_cells::cells,
        rounds: 5,
        seconds: 6,
        axes: &[Axis::Connections],
        compared: FORWARD,
        targets: targets::FORWARD,
    },
    Experiment {
        name: "tls",
        title: "cost of TLS with clients: handshakes, requests, bodies, memory, and a flood of \
            handshakes",
        cells: secure_cells::tls,
        rounds: 5,
        seconds: 6,
        axes: &[],
        compared: SECURE,
        targets: targets::SECURE,
    },
    Experiment {
        name: "handshakes",
        title: "how long TLS handshakes of others keep plain requests waiting",
        cells: even_cells::handshake_cells,
        rounds: 5,
        seconds: 8,
        axes: &[],
        compared: BESIDE,
        targets: targets::HANDSHAKES,
    },
    Experiment {
        name: "http2",
        title: "cost of HTTP/2 with clients: requests, memory, and clients that let no response \
            arrive",
        cells: secure_cells::http2,
        rounds: 5,
        seconds: 6,
        axes: &[],
        compared: HTTP2,
        targets: targets::HTTP2,
    },
    Experiment {
        name: "pep",
        title: "cost of splitting the connections that pass a router",
        cells: pep_cells::cells,
        rounds: 5,
        seconds: 4,
        axes: &[],
        compared: &[],
        targets: pep_cells::TARGETS,
    },
    Experiment {
        name: "wan",
        title: "gain of a proxy with its own congestion control for clients behind a slow and \
            lossy link",
        cells: wan_cells::cells,
        rounds: 3,
        seconds: 8,
        axes: &[],
        compared: wan_cells::LARGE,
        targets: wan_cells::TARGETS,
    },
    Experiment {
        name: "cache",
        title: "cost of a stored response, requests that reach the origin, choice of entries to \
            keep without room for all, and effects of purges, dead origins and slow readers",
        cells: cache_cells::cells,
        rounds: 5,
        seconds: 6,
        axes: &[],
        compared: cache_cells::RATIOS,
        targets: cache_cells::TARGETS,
    },
    Experiment {
        name: "cache-sweep",
        title: "connections x requests x bodies of `sweep`, served from caches",
        cells: |axes| sweep(axes, cache_cells::CACHES),
        rounds: 3,
        seconds: 2,
        axes: &[Axis::Connections, Axis::Requests, Axis::Bodies],
        compared: cache_cells::RATIOS,
        targets: &[],
    },
    Experiment {
        name: "generator",
        title: "weir bomb against wrk: its cost, and the report of each when the server stops",
        cells: generator,
        rounds: 5,
        seconds: 6,
        axes: &[],
        compared: GENERATORS,
        targets: targets::GENERATOR,
    },
    Experiment {
        name: "origin",
        title: "weir origin against nginx with a file of three bytes",
        cells: origin,
        rounds: 5,
        seconds: 6,
        axes: &[],
        compared: ORIGINS,
        targets: targets::ORIGIN,
    },
];

const ALL: &[&str] = &["direct", "nginx", "haproxy", "weir", "weir-epoll"];

fn closed(connections: u32) -> Load {
    Load::Closed(Closed { connections, body: 3, kind: RequestKind::Minimal })
}

fn targets(_: &Axes) -> Vec<Cell> {
    let of = |body, kind| Load::Closed(Closed { connections: 64, body, kind });
    vec![
        Cell::new("c4000", "4,000 connections, 3 B", closed(4000), ALL)
            .with(&["weir-128", "weir-1"]),
        Cell::new("c64", "64 connections, 3 B", closed(64), ALL)
            .with(&["weir-128", "weir-closing"]),
        Cell::new(
            "browser",
            "64 connections, browser's fields and 1.5 KB cookie",
            of(3, RequestKind::Browser),
            ALL,
        ),
        Cell::new(
            "body-64k",
            "64 connections, 64 KB bodies",
            of(65_536, RequestKind::Minimal),
            ALL,
        ),
        Cell::new("body-1m", "64 connections, 1 MB bodies", of(1 << 20, RequestKind::Minimal), ALL),
        Cell::new(
            "new-connection",
            "64 at a time, a new connection for each request",
            of(3, RequestKind::Close),
            ALL,
        ),
        Cell::new(
            "fixed-rate",
            "64 connections, half of nginx's rate, latency from the due time",
            Load::HalfOfNginx { of: "c64", connections: 64 },
            ALL,
        ),
        Cell::new(
            "idle",
            "10,000 idle keep-alive connections",
            Load::Idle(10_000),
            &["nginx", "haproxy", "weir", "weir-epoll"],
        ),
        Cell::new(
            "slow",
            "200 slow clients, a 100 MB reply each",
            Load::Slow { clients: 200, body: 100_000_000 },
            &["nginx", "haproxy", "weir-256"],
        ),
    ]
}

/// Client connections of `proxying` by default.
const PROXYING: &[u32] = &[1, 8, 64, 512, 2048, 4096, 8192, 16_384, 32_768];
const PROXYING_QUICK: &[u32] = &[1, 64, 4096];

fn proxying(axes: &Axes) -> Vec<Cell> {
    let contenders =
        &["direct", "nginx", "haproxy", "envoy", "pingora", "weir-1", "weir-8", "weir-128", "weir"];
    let connections = axes.connections_or(if axes.quick { PROXYING_QUICK } else { PROXYING });
    let cell = |connections: u32| {
        let title = format!("{}, 3 B", clients(connections));
        Cell::new(&format!("c{connections}"), &title, closed(connections), contenders)
            .on("3 B by connections", f64::from(connections))
    };
    connections.into_iter().map(cell).collect()
}

/// Requests a second of `rates`, from those of a busy site to those that two cores can hardly
/// serve.
const RATES_OF: &[u32] = &[200, 1000, 5000, 20_000, 50_000];
const RATES_OF_QUICK: &[u32] = &[1000, 5000, 20_000];

fn rates(axes: &Axes) -> Vec<Cell> {
    let rates = if axes.quick { RATES_OF_QUICK } else { RATES_OF };
    let cell = |rate: &u32| {
        let load = Load::Fixed { connections: 64, rate: *rate, path: SMALL };
        let title = format!(
            "64 connections, {} requests a second by the clock, 3 B",
            grouped(u64::from(*rate))
        );
        Cell::new(&format!("r{rate}"), &title, load, ALL)
            .on("64 connections by requests a second", f64::from(*rate))
    };
    let full =
        Cell::new("full", "64 connections, as many requests as they can ask, 3 B", closed(64), ALL);
    rates.iter().map(cell).chain([full]).collect()
}

/// Connections and body lengths of `sweep` by default.
const SWEEP: (&[u32], &[u64]) = (&[1, 64, 1024, 4096, 32_768], &[3, 3 << 10, 64 << 10]);
const SWEEP_QUICK: (&[u32], &[u64]) = (&[64, 4096], &[3]);
/// Maximum bytes of responses under way at a time: more would measure the machine's memory.
const UNDER_WAY_MAX: u64 = 320 << 20;

fn sweep(axes: &Axes, contenders: &[&'static str]) -> Vec<Cell> {
    let (connections, bodies) = if axes.quick { SWEEP_QUICK } else { SWEEP };
    let mut cells = Vec::new();
    for kind in axes.kinds() {
        for body in axes.bodies_or(bodies) {
            for connections in axes.connections_or(connections) {
                if u64::from(connections) * body > UNDER_WAY_MAX {
                    continue;
                }
                let (size, word) = (size(body), kind.name());
                let title = format!("{}, {word}, {size}", clients(connections));
                let load = Load::Closed(Closed { connections, body, kind });
                let name =
                    format!("c{connections}-{word}-{}", size.replace(' ', "").to_lowercase());
                let cell = Cell::new(&name, &title, load, contenders);
                cells.push(
                    cell.on(&format!("{word}, {size} by connections"), f64::from(connections)),
                );
            }
        }
    }
    cells
}

fn limits(_: &Axes) -> Vec<Cell> {
    let of =
        |connections| Load::Closed(Closed { connections, body: 3, kind: RequestKind::Minimal });
    let cell = |name: &str, title: &str, connections| {
        Cell::new(name, title, of(connections), &["weir", "weir-limits"])
    };
    vec![cell("c64", "64 connections, 3 B", 64), cell("c4000", "4,000 connections, 3 B", 4000)]
}

fn late(_: &Axes) -> Vec<Cell> {
    let load = Load::Fixed { connections: 64, rate: 4000, path: "/?delay=200&every=100" };
    let contenders = &["direct", "nginx", "haproxy", "weir", "weir-stay", "weir-off"];
    let title =
        "64 connections, 4,000 requests a second, one answer in 100 takes 200 ms (weir's origin)";
    vec![Cell::new("late", title, load, contenders).from(Origin::Weir)]
}

/// Returns the ratios that the table of a cell shows, in an experiment that shows `usual`.
pub(crate) fn compared(load: Load, usual: &'static [Compared]) -> &'static [Compared] {
    match load {
        Load::Tunnel(Tunnels::Full(_)) => TUNNEL_RATIOS,
        Load::Stalled(_) => STALLED,
        Load::Cache(_) => &[],
        Load::Pep(pep) => pep_cells::compared(pep),
        Load::Wan(Wan { object: Object::Large, .. }) => wan_cells::LARGE,
        Load::Wan(Wan { object: Object::Small, .. }) => wan_cells::SMALL,
        load if load.is_memory() => &[],
        _ => usual,
    }
}

fn generator(_: &Axes) -> Vec<Cell> {
    let contenders = &["wrk", "bomb", "bomb-epoll"];
    vec![
        Cell::new("g64", "64 connections, 3 B, no proxy", closed(64), contenders),
        Cell::new("g4000", "4,000 connections, 3 B, no proxy", closed(4000), contenders),
        Cell::new(
            "stall",
            "1,000 requests a second to an origin that answers in 10 ms and stands still once for \
                1 s of 10",
            Load::Stall,
            &["wrk", "bomb"],
        )
        .from(Origin::None),
    ]
}

fn origin(_: &Axes) -> Vec<Cell> {
    let contenders = &["nginx-file", "weir-origin", "weir-origin-epoll"];
    vec![
        Cell::new("o64", "64 connections, 3 B", closed(64), contenders),
        Cell::new("o4000", "4,000 connections, 3 B", closed(4000), contenders),
    ]
}

/// `3 B`, `64 KB`, `1 MB`: binary where it is whole.
fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::contenders::CONTENDERS;
    use super::*;

    fn all_axes() -> [Axes; 2] {
        [false, true].map(|quick| Axes { quick, ..Axes::default() })
    }

    #[test]
    fn cells_have_names_of_their_own_and_contenders_that_exist() {
        for experiment in EXPERIMENTS {
            for axes in all_axes() {
                let cells = (experiment.cells)(&axes);
                let names: BTreeSet<&str> = cells.iter().map(|cell| cell.name.as_str()).collect();
                assert_eq!(names.len(), cells.len(), "{}", experiment.name);
                for name in cells.iter().flat_map(|cell| &cell.contenders) {
                    assert!(CONTENDERS.iter().any(|contender| contender.name == *name), "{name}");
                }
            }
        }
    }

    #[test]
    fn every_target_is_measured_by_its_experiment() {
        for experiment in EXPERIMENTS {
            let cells = (experiment.cells)(&Axes::default());
            for target in experiment.targets {
                let cell = cells.iter().find(|cell| cell.name == target.cell).unwrap();
                assert!(cell.contenders.contains(&target.subject), "{}", target.title);
                assert!(
                    target.against.is_none_or(|name| cell.contenders.contains(&name)),
                    "{}",
                    target.title
                );
            }
        }
    }

    #[test]
    fn a_sweep_has_the_rows_that_it_was_asked_for_and_none_that_measures_memory_only() {
        let axes = Axes {
            connections: vec![10, 32_768],
            kinds: vec![RequestKind::Browser],
            bodies: vec![3, 1 << 20],
            ..Axes::default()
        };
        let names: Vec<String> = sweep(&axes, ALL).into_iter().map(|cell| cell.name).collect();
        assert_eq!(names, ["c10-browser-3b", "c32768-browser-3b", "c10-browser-1mb"]);
        assert!(sweep(&Axes::default(), ALL).iter().any(|cell| cell.name == "c32768-minimal-3b"));
    }

    #[test]
    fn numbers_are_written_as_people_do() {
        assert_eq!([1, 1000].map(clients), ["1 connection", "1,000 connections"]);
        assert_eq!([3, 1000, 3072, 1 << 20].map(size), ["3 B", "1000 B", "3 KB", "1 MB"]);
    }
}
