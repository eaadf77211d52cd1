//! The cells of the experiment `mixed`, the ratios that its tables show, and its targets. Named by
//! `catalogue.rs`.

use super::cells::{Axes, Cell, Load, Origin};
use super::metric::{Compared, Metric};
use super::mixed::{Clients, Mixed, Pace};
use super::targets::{Bound, Target};

/// The contenders.
const ALL: &[&str] = &["direct", "nginx", "haproxy", "weir", "weir-off"];
/// Contenders in front of a server that has fewer places than there are clients: without a proxy
/// some clients would never be served.
const PROXIES: &[&str] = &["nginx", "haproxy", "weir", "weir-off"];
/// HAProxy that sends its server at most 32 requests at a time.
const HAPROXY_CAPPED: &str = "haproxy-32";

/// What the tables compare.
pub(crate) const RATIOS: &[Compared] = &[
    ("rate / nginx", Metric::Rate, "nginx"),
    ("p99 / nginx", Metric::P99, "nginx"),
    ("p99.9 / nginx", Metric::P999, "nginx"),
];

/// Fast requests: 1,000 a second.
const FAST: Clients = Clients { connections: 16, pace: Pace::Even(1000), path: "/fast" };

/// Returns clients whose responses take 25 ms and that pause for 25 ms on average.
const fn pausing(clients: u32) -> Clients {
    Clients { connections: clients, pace: Pace::Random(clients * 20), path: "/slow?delay=25ms" }
}

const BESIDE_8: &[Clients] = &[pausing(8)];
const BESIDE_32: &[Clients] = &[pausing(32)];
const BESIDE_100: &[Clients] = &[pausing(100)];
/// One request in 100 of `late`, of the same shape as the others.
const LATE: &[Clients] =
    &[Clients { connections: 16, pace: Pace::Random(40), path: "/item?delay=200ms" }];
/// Beside the numbered requests of `twice`: requests of which one in 20 is slow, and some that are
/// not numbered, so that weir can rehearse the server with their target.
const UNEVEN: &[Clients] = &[
    Clients {
        connections: 32,
        pace: Pace::Loop,
        path: "/item/{serial}?delay=100ms..600ms&every=20",
    },
    Clients { connections: 8, pace: Pace::Even(500), path: "/fast" },
];
/// Few clients with slow responses, so that a server with 16 places has some to spare.
const SOME_SLOW: &[Clients] =
    &[Clients { connections: 4, pace: Pace::Random(60), path: "/slow?delay=25ms" }];
/// Places of a server of processes that each serve one connection at a time.
const PLACES: usize = 16;

/// Returns all cells.
pub(crate) fn cells(_: &Axes) -> Vec<Cell> {
    let with = |name: &str, title: &str, measured, beside, places| {
        let load = Load::Mixed(Mixed { measured, beside, places });
        Cell::new(name, title, load, if places.is_some() { PROXIES } else { ALL })
            .from(Origin::None)
    };
    let cell =
        |name: &str, title: &str, measured, beside| with(name, title, measured, beside, None);
    let looping = |connections, path| Clients { connections, pace: Pace::Loop, path };
    // Many more connections than requests in progress, so that clients do not wait for each other.
    let clock = |rate, path| Clients { connections: 256, pace: Pace::Even(rate), path };
    let others = Clients { connections: 48, pace: Pace::Even(3960), path: "/item?delay=0" };
    let numbered = Clients { connections: 32, pace: Pace::Even(3000), path: "/page/{serial}" };
    vec![
        cell(
            "beside-8",
            "1,000 fast GETs a second beside 8 clients with 25 ms answers and pauses",
            FAST,
            BESIDE_8,
        ),
        cell("beside-32", "the same beside 32 clients", FAST, BESIDE_32),
        cell("beside-100", "the same beside 100 clients", FAST, BESIDE_100),
        cell(
            "late",
            "64 connections, 4,000 requests a second, 1 % of the answers take 200 ms: the others",
            others,
            LATE,
        ),
        cell(
            "lognormal",
            "64 clients in a loop, log-normal service times (median 2 ms, sigma 1.5)",
            looping(64, "/?delay=lognormal:2ms:1.5"),
            &[],
        ),
        cell(
            "rare",
            "32 clients in a loop, 5 % of the answers take 100 to 600 ms",
            looping(32, "/?delay=100ms..600ms&every=20"),
            &[],
        ),
        cell(
            "twice",
            "3,000 numbered GETs a second beside 32 clients of which 5 % wait 100 to 600 ms",
            numbered,
            UNEVEN,
        ),
        cell(
            "any-500",
            "100 requests a second that take 500 ms, any number at once",
            clock(100, "/?delay=500ms"),
            &[],
        ),
        cell(
            "any-100",
            "500 requests a second that take 100 ms, any number at once",
            clock(500, "/?delay=100ms"),
            &[],
        ),
        cell(
            "any-20",
            "2,000 requests a second that take 20 ms, any number at once",
            clock(2000, "/?delay=20ms"),
            &[],
        ),
        cell(
            "lock",
            "64 clients in a loop at a server that slows down beyond 32 requests at a time (20 ms \
                each)",
            looping(64, "/?delay=20ms&beyond=32"),
            &[],
        )
        .with(&[HAPROXY_CAPPED]),
        with(
            "prefork",
            "1,000 fast GETs a second beside 25 ms answers, a server of 16 processes with one \
                connection each",
            FAST,
            SOME_SLOW,
            Some(PLACES),
        ),
    ]
}

const fn against(
    title: &'static str,
    cell: &'static str,
    metric: Metric,
    against: &'static str,
    bound: Bound,
) -> Target {
    Target { title, cell, metric, subject: "weir", against: Some(against), bound }
}

const fn nginx(title: &'static str, cell: &'static str, metric: Metric, bound: Bound) -> Target {
    against(title, cell, metric, "nginx", bound)
}

/// The targets.
pub(crate) const TARGETS: &[Target] = &[
    nginx(
        "beside 8 slow clients: fast answers over 8 ms, %, more than nginx",
        "beside-8",
        Metric::LatePercent,
        Bound::ExceedsBy(0.1),
    ),
    nginx("the same: p99.9 against nginx", "beside-8", Metric::P999, Bound::AtMost(1.2)),
    nginx(
        "beside 32 slow clients: fast answers over 8 ms, %, more than nginx",
        "beside-32",
        Metric::LatePercent,
        Bound::ExceedsBy(0.1),
    ),
    nginx("the same: p99.9 against nginx", "beside-32", Metric::P999, Bound::AtMost(1.2)),
    nginx(
        "beside 100 slow clients: fast answers over 8 ms, %, more than nginx",
        "beside-100",
        Metric::LatePercent,
        Bound::ExceedsBy(0.1),
    ),
    nginx("the same: p99.9 against nginx", "beside-100", Metric::P999, Bound::AtMost(1.2)),
    nginx(
        "1 % of answers take 200 ms: p99 of the others against nginx",
        "late",
        Metric::P99,
        Bound::AtMost(1.1),
    ),
    nginx(
        "log-normal service times: rate against nginx",
        "lognormal",
        Metric::Rate,
        Bound::AtLeast(1.0),
    ),
    nginx("the same: p99 against nginx", "lognormal", Metric::P99, Bound::AtMost(1.0)),
    nginx(
        "5 % of answers take 100 to 600 ms: rate against nginx",
        "rare",
        Metric::Rate,
        Bound::AtLeast(1.0),
    ),
    against(
        "the same: rate against `pipeline off`",
        "rare",
        Metric::Rate,
        "weir-off",
        Bound::AtLeast(1.0),
    ),
    Target {
        title: "requests executed twice",
        cell: "twice",
        metric: Metric::Twice,
        subject: "weir",
        against: None,
        bound: Bound::AtMost(0.0),
    },
    nginx(
        "500 ms at 100 a second: rate against nginx",
        "any-500",
        Metric::Rate,
        Bound::AtLeast(0.97),
    ),
    nginx("the same: p50 against nginx", "any-500", Metric::P50, Bound::AtMost(1.03)),
    nginx("the same: p99 against nginx", "any-500", Metric::P99, Bound::AtMost(1.03)),
    nginx(
        "100 ms at 500 a second: rate against nginx",
        "any-100",
        Metric::Rate,
        Bound::AtLeast(0.97),
    ),
    nginx("the same: p50 against nginx", "any-100", Metric::P50, Bound::AtMost(1.03)),
    nginx("the same: p99 against nginx", "any-100", Metric::P99, Bound::AtMost(1.03)),
    nginx(
        "20 ms at 2,000 a second: rate against nginx",
        "any-20",
        Metric::Rate,
        Bound::AtLeast(0.97),
    ),
    nginx("the same: p50 against nginx", "any-20", Metric::P50, Bound::AtMost(1.03)),
    nginx("the same: p99 against nginx", "any-20", Metric::P99, Bound::AtMost(1.03)),
    nginx(
        "slower beyond 32 at a time, twice as many clients: goodput against nginx",
        "lock",
        Metric::Rate,
        Bound::AtLeast(1.2),
    ),
    against(
        "the same: goodput against HAProxy with maxconn 32",
        "lock",
        Metric::Rate,
        HAPROXY_CAPPED,
        Bound::AtLeast(1.0),
    ),
    nginx(
        "16 processes with one connection each: p99.9 against nginx",
        "prefork",
        Metric::P999,
        Bound::AtMost(1.2),
    ),
    nginx(
        "the same: connections made for 1,000 requests, more than nginx",
        "prefork",
        Metric::ConnectsPerThousand,
        Bound::ExceedsBy(1.0),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed(name: &str) -> Mixed {
        let cell = cells(&Axes::default()).into_iter().find(|cell| cell.name == name).unwrap();
        let Load::Mixed(mixed) = cell.load else { panic!("{cell:?}") };
        mixed
    }

    #[test]
    fn clients_that_pause_ask_as_often_as_their_answers_and_pauses_let_them() {
        for (name, clients) in [("beside-8", 8), ("beside-32", 32), ("beside-100", 100)] {
            let slow = mixed(name).beside[0];
            assert_eq!(
                (slow.connections, slow.pace),
                (clients, Pace::Random(clients * 1000 / (25 + 25)))
            );
        }
    }

    #[test]
    fn one_request_in_a_hundred_is_late_on_64_connections() {
        let late = mixed("late");
        assert_eq!(
            (late.connections(), late.measured.pace, late.beside[0].pace),
            (64, Pace::Even(3960), Pace::Random(40))
        );
        assert!(late.is_by_the_clock() && !late.is_numbered());
        assert!(mixed("twice").is_numbered() && !mixed("rare").is_by_the_clock());
    }

    #[test]
    fn a_locked_server_has_twice_as_many_clients_as_room() {
        let Clients { connections, path, .. } = mixed("lock").measured;
        assert!(connections == 2 * 32 && path.ends_with("beyond=32"), "{path}");
    }
}
