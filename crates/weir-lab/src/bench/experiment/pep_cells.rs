//! The cells of the experiment `pep`, the ratios that its tables show, and its targets. Named by
//! `catalogue.rs`.

use super::cells::{Axes, Cell, Load, Origin};
use super::metric::{Compared, Metric};
use super::pep::{FAR_CLIENTS_MS, FAR_RATE, FAR_SERVER_MS, Pace, Pep, Way};
use super::targets::{Bound, Target};

/// The contender whose rate sets the clock, and with which all are compared.
pub(crate) const RIVAL: &str = "haproxy-through";
/// The same where requests are read.
const RIVAL_HTTP: &str = "haproxy-through-http";
/// The base line: no program in the middle.
pub(crate) const ROUTED: &str = "routed";

/// The contenders, the base line first.
const ALL: &[&str] = &[
    ROUTED,
    RIVAL,
    "haproxy-through-copy",
    "weir-through",
    "weir-through-epoll",
    "weir-intercept",
];
/// The same where connections count: they differ in what is done for each connection.
const MANY: &[&str] = &[
    ROUTED,
    RIVAL,
    "haproxy-through-copy",
    "weir-through",
    "weir-through-epoll",
    "weir-intercept",
    "weir-intercept-syn",
    "weir-intercept-first",
];
/// The same where the router has tables of nftables, whether rules lead connections by them or not.
const FILTERED: &[&str] = &[ROUTED, RIVAL, "weir-through"];
/// The same in the other family.
const OTHER_FAMILY: &[&str] = &[ROUTED, RIVAL, "weir-through", "weir-intercept"];
/// The same where it matters when the server is connected to.
const DISTANT: &[&str] =
    &[ROUTED, RIVAL, "weir-intercept", "weir-intercept-syn", "weir-intercept-first"];

/// The same where requests are read.
const ALL_HTTP: &[&str] = &[ROUTED, RIVAL_HTTP, "haproxy-through-http-copy", "weir-through-http"];

/// Returns the contender whose rate sets the clock of a cell, and with which all are compared
/// there.
pub(crate) fn rival(pep: Pep) -> &'static str {
    if pep.reads { RIVAL_HTTP } else { RIVAL }
}

/// What the table of a cell compares.
pub(crate) fn compared(pep: Pep) -> &'static [Compared] {
    match (pep.pace, pep.reads) {
        (Pace::Seldom, _) => SELDOM,
        (Pace::Closed, false) => CLOSED,
        (Pace::Closed, true) => CLOSED_HTTP,
        (Pace::Half, true) => HALF_HTTP,
        (Pace::Half, false) if pep.bytes < 1 << 20 => SMALL,
        (Pace::Half, false) => LARGE,
    }
}

/// Where requests are read: in a closed loop, and by the clock.
const CLOSED_HTTP: &[Compared] =
    &[("rate / routed", Metric::Rate, ROUTED), ("rate / HAProxy", Metric::Rate, RIVAL_HTTP)];
const HALF_HTTP: &[Compared] = &[
    ("added CPU / HAProxy", Metric::AddedCpu, RIVAL_HTTP),
    ("p99 / HAProxy", Metric::P99, RIVAL_HTTP),
];
/// What tables compare in a closed loop.
const CLOSED: &[Compared] =
    &[("rate / routed", Metric::Rate, ROUTED), ("rate / HAProxy", Metric::Rate, RIVAL)];
/// Where both sides are far away.
const SELDOM: &[Compared] =
    &[("p50 / routed", Metric::P50, ROUTED), ("p99 / routed", Metric::P99, ROUTED)];
/// By the clock, of small objects.
const SMALL: &[Compared] =
    &[("added CPU / HAProxy", Metric::AddedCpu, RIVAL), ("p99 / HAProxy", Metric::P99, RIVAL)];
/// By the clock, of large ones.
const LARGE: &[Compared] = &[
    ("added CPU / HAProxy", Metric::AddedCpuGigabyte, RIVAL),
    ("p99 / HAProxy", Metric::P99, RIVAL),
];

const fn target(
    title: &'static str,
    cell: &'static str,
    metric: Metric,
    (subject, against): (&'static str, &'static str),
    bound: Bound,
) -> Target {
    Target { title, cell, metric, subject, against: Some(against), bound }
}

/// The targets.
pub(crate) const TARGETS: &[Target] = &[
    target(
        "8 KB: CPU that a connection adds, against HAProxy with splice",
        "half-8k",
        Metric::AddedCpu,
        ("weir-through", RIVAL),
        Bound::AtMost(0.75),
    ),
    target(
        "8 KB: connections a second, against HAProxy with splice",
        "closed-8k",
        Metric::Rate,
        ("weir-through", RIVAL),
        Bound::AtLeast(1.15),
    ),
    target(
        "1 MB: CPU that a gigabyte adds, against HAProxy with splice",
        "half-1m",
        Metric::AddedCpuGigabyte,
        ("weir-through", RIVAL),
        Bound::AtMost(0.6),
    ),
    target(
        "8 KB: p99 from connect to the answer at half of HAProxy's rate",
        "half-8k",
        Metric::P99,
        ("weir-through", RIVAL),
        Bound::AtMost(0.8),
    ),
    target(
        "8 KB: CPU that a connection adds, `weir intercept` against routes",
        "half-8k",
        Metric::AddedCpu,
        ("weir-intercept", "weir-through"),
        Bound::AtMost(1.05),
    ),
];

/// Returns the closed-loop cell whose rate sets the clock of this cell.
pub(crate) fn closed(pep: Pep) -> (String, Pep) {
    let pep = Pep { pace: Pace::Closed, ..pep };
    (name(pep), pep)
}

/// Returns all cells.
pub(crate) fn cells(_: &Axes) -> Vec<Cell> {
    let of = |bytes, reads, way| {
        [Pace::Closed, Pace::Half].map(|pace| cell(Pep { bytes, pace, reads, way }))
    };
    let all = [
        of(8 << 10, false, Way::Plain),
        of(1 << 20, false, Way::Plain),
        of(8 << 10, true, Way::Plain),
        of(8 << 10, false, Way::Hooks),
        of(8 << 10, false, Way::Tproxy),
        of(8 << 10, false, Way::Ipv6),
    ];
    let far = Pep { bytes: 8 << 10, pace: Pace::Seldom, reads: false, way: Way::Far };
    all.into_iter().flatten().chain([cell(far)]).collect()
}

fn name(Pep { bytes, pace, reads, way }: Pep) -> String {
    let size =
        if bytes < 1 << 20 { format!("{}k", bytes >> 10) } else { format!("{}m", bytes >> 20) };
    let pace = match pace {
        Pace::Closed => "closed-",
        Pace::Half => "half-",
        Pace::Seldom => "",
    };
    let way = match way {
        Way::Plain => "",
        Way::Hooks => "hooks-",
        Way::Tproxy => "tproxy-",
        Way::Ipv6 => "v6-",
        Way::Far => "far-",
    };
    format!("{way}{}{pace}{size}", if reads { "http-" } else { "" })
}

fn cell(pep: Pep) -> Cell {
    let size = if pep.bytes < 1 << 20 {
        format!("{} KB", pep.bytes >> 10)
    } else {
        format!("{} MB", pep.bytes >> 20)
    };
    let how = match pep.pace {
        Pace::Closed => format!("{} at a time", pep.connections()),
        Pace::Half => "by the clock, at half of HAProxy's rate".to_owned(),
        Pace::Seldom => format!("{FAR_RATE} a second"),
    };
    let (way, all) = match (pep.way, pep.reads, pep.bytes <= 64 << 10) {
        (Way::Plain, true, _) => (" that reads HTTP".to_owned(), ALL_HTTP),
        (Way::Plain, false, true) => (String::new(), MANY),
        (Way::Plain, false, false) => (String::new(), ALL),
        (Way::Hooks, ..) => (" that tracks connections".to_owned(), FILTERED),
        (Way::Tproxy, ..) => (" whose nftables leads them (TPROXY)".to_owned(), FILTERED),
        (Way::Ipv6, ..) => (" in IPv6".to_owned(), OTHER_FAMILY),
        (Way::Far, ..) => (
            format!(" {FAR_CLIENTS_MS} ms from clients and {FAR_SERVER_MS} ms from the server"),
            DISTANT,
        ),
    };
    let title = format!("objects of {size} through a router{way}, a connection each, {how}");
    Cell::new(&name(pep), &title, Load::Pep(pep), all).from(Origin::None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_clock_goes_by_a_cell_that_is_measured_before() {
        let cells = cells(&Axes::default());
        let names: Vec<&str> = cells.iter().map(|cell| cell.name.as_str()).collect();
        let plain =
            ["closed-8k", "half-8k", "closed-1m", "half-1m", "http-closed-8k", "http-half-8k"];
        let others = ["hooks-closed-8k", "hooks-half-8k", "tproxy-closed-8k", "tproxy-half-8k"];
        assert_eq!(
            names,
            [&plain[..], &others, &["v6-closed-8k", "v6-half-8k", "far-8k"]].concat()
        );
        for (at, cell) in cells.iter().enumerate() {
            let Load::Pep(pep) = cell.load else { panic!("{cell:?}") };
            let (before, closed) = closed(pep);
            let is_known = names[..=at].contains(&before.as_str()) && closed.pace == Pace::Closed;
            assert!(is_known || pep.pace == Pace::Seldom, "{before}");
            assert!(cell.contenders.contains(&rival(pep)) && cell.contenders[0] == ROUTED);
            assert!(compared(pep).iter().all(|(.., with)| cell.contenders.contains(with)));
        }
    }
}
