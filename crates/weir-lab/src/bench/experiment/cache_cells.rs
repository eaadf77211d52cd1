//! The cells of the experiment `cache`, and the targets. Named by `catalogue.rs`.

use super::cache::{CacheLoad, Herd, Purge, Restart, SlowReaders, Stale, Zipf};
use super::cells::{Axes, Cell, Closed, Load, Origin, RequestKind};
use super::contenders::BEFORE;
use super::metric::{Compared, Metric};
use super::targets::{Bound, Target};
use crate::units::grouped;

/// Caches that respond from memory, and weir that forwards each request to the origin.
pub(crate) const CACHES: &[&str] = &["nginx-cache", "varnish", "weir-cache", "weir"];
/// The contenders that store responses.
const STORES: &[&str] = &["nginx-cache", "varnish", "weir-cache"];
/// The contenders that can purge by a tag: nginx can't without third-party modules.
const PURGES: &[&str] = &["varnish", "weir-cache"];

/// Ratios of tables.
pub(crate) const RATIOS: &[Compared] = &[
    ("rate / proxying", Metric::Rate, "weir"),
    ("CPU / nginx", Metric::Cpu, "nginx-cache"),
    ("CPU / Varnish", Metric::Cpu, "varnish"),
    ("CPU / proxying", Metric::Cpu, "weir"),
];

const fn against(
    title: &'static str,
    cell: &'static str,
    against: &'static str,
    bound: f64,
) -> Target {
    let bound = Bound::AtMost(bound);
    Target {
        title,
        cell,
        metric: Metric::Cpu,
        subject: "weir-cache",
        against: Some(against),
        bound,
    }
}

const fn own(title: &'static str, cell: &'static str, metric: Metric, bound: Bound) -> Target {
    Target { title, cell, metric, subject: "weir-cache", against: None, bound }
}

use Bound::{AtLeast, AtMost};

/// The targets.
pub(crate) const TARGETS: &[Target] = &[
    against("CPU a hit of 16 B, 64 connections, against nginx", "hit-16", "nginx-cache", 0.75),
    against("CPU a hit of 16 B, 64 connections, against Varnish", "hit-16", "varnish", 0.35),
    against(
        "CPU a hit of 16 B, 3,000 connections, against nginx",
        "hit-16-c3000",
        "nginx-cache",
        0.75,
    ),
    against(
        "CPU a hit of 16 B, 3,000 connections, against Varnish",
        "hit-16-c3000",
        "varnish",
        0.12,
    ),
    against("CPU a hit of 4 KB, 64 connections, against nginx", "hit-4k", "nginx-cache", 0.75),
    against("CPU a hit of 4 KB, 64 connections, against Varnish", "hit-4k", "varnish", 0.35),
    against(
        "CPU a hit of 4 KB, 3,000 connections, against nginx",
        "hit-4k-c3000",
        "nginx-cache",
        0.75,
    ),
    against(
        "CPU a hit of 4 KB, 3,000 connections, against Varnish",
        "hit-4k-c3000",
        "varnish",
        0.12,
    ),
    Target {
        title: "hits of 16 B a second, against proxying the same",
        cell: "hit-16",
        metric: Metric::Rate,
        subject: "weir-cache",
        against: Some("weir"),
        bound: AtLeast(1.5),
    },
    own(
        "requests that reach the origin of 1,000 clients for one answer",
        "herd",
        Metric::Fetches,
        AtMost(1.0),
    ),
    own(
        "the same: p99 beyond what the origin takes, ms",
        "herd",
        Metric::BeyondOriginMs,
        AtMost(50.0),
    ),
    own(
        "hits by Zipf's law, exponent 1.0, against LRU of as many answers",
        "zipf-1.0",
        Metric::HitsOfLru,
        AtLeast(1.03),
    ),
    own("the same: memory taken, of the room", "zipf-1.0", Metric::TakenOfRoom, AtMost(1.15)),
    own(
        "hits by Zipf's law, exponent 0.8, against LRU of as many answers",
        "zipf-0.8",
        Metric::HitsOfLru,
        AtLeast(1.03),
    ),
    Target {
        title: "no cache configured: CPU a request, against an earlier weir",
        cell: "none",
        metric: Metric::Cpu,
        subject: "weir",
        against: Some(BEFORE),
        bound: AtMost(1.01),
    },
    own(
        "purge of 1,000,000 answers by tag: the last is gone after, ms",
        "purge",
        Metric::GoneMs,
        AtMost(10.0),
    ),
    own("requests that fail while the origin is dead", "stale", Metric::Failures, AtMost(0.0)),
];

const HERD: Herd = Herd { clients: 1000, answer_ms: 500, is_private: false };
/// There is room for a quarter of what is requested.
const ZIPF: Zipf = Zipf { keys: 64_000, body: 4096, room_mib: 64, alpha: 1.0 };
const PURGE: Purge = Purge { objects: 1_000_000, room_mib: 2048 };
/// Quickly stored.
const PURGE_QUICK: Purge = Purge { objects: 100_000, room_mib: 256 };
const STALE: Stale = Stale { keys: 100, lifetime_s: 1 };
const SLOW: SlowReaders = SlowReaders { readers: 1000, body: 1 << 20, answer_ms: 300 };

const RESTART: Restart = Restart { objects: 10_000, body: 4096 };

/// Returns all cells.
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
    let own = |name: &str, title: &str, load| {
        Cell::new(name, title, Load::Cache(load), STORES).from(Origin::None)
    };
    cells.push(own(
        "herd",
        "1,000 clients at once for an unstored response; the origin takes 500 ms",
        CacheLoad::Herd(HERD),
    ));
    let private = CacheLoad::Herd(Herd { is_private: true, ..HERD });
    cells.push(own(
        "herd-private",
        "the same, and the origin says that each answer is for one client alone",
        private,
    ));
    let title = "64,000 answers of 4 KB by Zipf's law, room for a quarter, exponent";
    cells.push(own("zipf-1.0", &format!("{title} 1.0"), CacheLoad::Zipf(ZIPF)));
    if !axes.quick {
        cells.push(own(
            "zipf-0.8",
            &format!("{title} 0.8"),
            CacheLoad::Zipf(Zipf { alpha: 0.8, ..ZIPF }),
        ));
    }
    let purge = if axes.quick { PURGE_QUICK } else { PURGE };
    let title = format!(
        "{} answers purged by their tag, beside 5,000 hits a second",
        grouped(u64::from(purge.objects))
    );
    cells.push(
        Cell::new("purge", &title, Load::Cache(CacheLoad::Purge(purge)), PURGES).from(Origin::None),
    );
    let title = "100 answers that are fresh for a second, 2,000 requests a second, and the origin \
        dies in the middle";
    cells.push(own("stale", title, CacheLoad::Stale(STALE)));
    let title = "1,000 clients read 1 MB slowly that nobody had, beside 1,000 requests a second \
        that go to the origin";
    cells.push(own("slow", title, CacheLoad::Slow(SLOW)));
    let title = "10,000 answers of 4 KB that were stored before a restart";
    cells.push(own("restart", title, CacheLoad::Restart(RESTART)));
    let load = Load::Closed(Closed { connections: 64, body: 16, kind: RequestKind::Minimal });
    let title = "16 B from the origin through a weir without a cache, against an earlier weir \
        (--program weir-before=PATH)";
    cells.push(Cell::new("none", title, load, &["weir", BEFORE]));
    cells
}
