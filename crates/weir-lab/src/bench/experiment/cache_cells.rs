//! The cells of the experiment `cache`, and the figures that have to be reached. Named by `catalogue.rs`.

use super::cache::{Herd, Zipf};
use super::cells::{Axes, Cell, Closed, Load, Origin, RequestKind};
use super::metric::{Compared, Metric};
use super::targets::{Bound, Target};

/// Who answers from memory, and weir that asks the origin each time.
pub(crate) const CACHES: &[&str] = &["nginx-cache", "varnish", "weir-cache", "weir"];
/// Whoever stores.
const STORES: &[&str] = &["nginx-cache", "varnish", "weir-cache"];

/// Ratios of tables.
pub(crate) const RATIOS: &[Compared] = &[
    ("CPU / nginx", Metric::Cpu, "nginx-cache"),
    ("CPU / Varnish", Metric::Cpu, "varnish"),
    ("CPU / proxying", Metric::Cpu, "weir"),
];

const fn against(title: &'static str, cell: &'static str, against: &'static str, bound: f64) -> Target {
    let bound = Bound::AtMost(bound);
    Target { title, cell, metric: Metric::Cpu, subject: "weir-cache", against: Some(against), bound }
}

/// The figures that have to be reached.
pub(crate) const TARGETS: &[Target] = &[
    against("CPU a hit of 16 B, 64 connections, against nginx", "hit-16", "nginx-cache", 0.5),
    against("CPU a hit of 16 B, 64 connections, against Varnish", "hit-16", "varnish", 0.35),
    against("CPU a hit of 16 B, 3,000 connections, against nginx", "hit-16-c3000", "nginx-cache", 0.5),
    against("CPU a hit of 4 KB, 64 connections, against nginx", "hit-4k", "nginx-cache", 0.5),
    Target {
        title: "requests that reach the origin of 1,000 clients for one answer",
        cell: "herd",
        metric: Metric::Fetches,
        subject: "weir-cache",
        against: None,
        bound: Bound::AtMost(1.0),
    },
];

const HERD: Herd = Herd { clients: 1000, answer_ms: 500 };
/// A quarter of what is asked for has room.
const ZIPF: Zipf = Zipf { keys: 16_000, body: 4096, room_mib: 16, alpha: 1.0 };

/// All of them.
pub(crate) fn cells(axes: &Axes) -> Vec<Cell> {
    let hit = |name: &str, title: &str, connections, body| {
        let load = Load::Closed(Closed { connections, body, kind: RequestKind::Minimal });
        Cell::new(name, title, load, CACHES)
    };
    let mut cells = vec![
        hit("hit-16", "one stored answer of 16 B, 64 connections", 64, 16),
        hit("hit-16-c3000", "one stored answer of 16 B, 3,000 connections", 3000, 16),
        hit("hit-4k", "one stored answer of 4 KB, 64 connections", 64, 4096),
    ];
    if !axes.quick {
        cells.push(hit("hit-4k-c3000", "one stored answer of 4 KB, 3,000 connections", 3000, 4096));
        cells.push(hit("hit-64k", "one stored answer of 64 KB, 64 connections", 64, 64 << 10));
        cells.push(hit("hit-1m", "one stored answer of 1 MB, 64 connections", 64, 1 << 20));
    }
    let own = |name: &str, title: &str, load| Cell::new(name, title, load, STORES).from(Origin::None);
    cells.push(own("herd", "1,000 clients at once for what nobody has; the origin takes 500 ms", Load::Herd(HERD)));
    let title = "16,000 answers of 4 KB by Zipf's law, room for a quarter, exponent";
    cells.push(own("zipf-1.0", &format!("{title} 1.0"), Load::Zipf(ZIPF)));
    if !axes.quick {
        cells.push(own("zipf-0.8", &format!("{title} 0.8"), Load::Zipf(Zipf { alpha: 0.8, ..ZIPF })));
    }
    cells
}
