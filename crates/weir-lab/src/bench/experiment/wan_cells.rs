//! The cells of the experiment `wan`, the ratios that its tables show, and its targets. Named by
//! `catalogue.rs`.

use super::cells::{Axes, Cell, Load, Origin};
use super::metric::{Compared, Metric};
use super::targets::{Bound, Target};
use super::wan::{Object, Wan};

/// The contenders.
const ALL: &[&str] =
    &["direct-cubic", "direct-bbr", "haproxy-cubic", "haproxy-bbr", "weir-cubic", "weir-bbr"];
/// Round-trip times, milliseconds, and packets of 1,000 that are lost.
const LINKS: (&[u32], &[u32]) = (&[40, 150, 600], &[0, 1, 10, 20]);
const LINKS_QUICK: (&[u32], &[u32]) = (&[40], &[0, 10]);

/// What a table of large objects compares.
pub(crate) const LARGE: &[Compared] = &[
    ("rate / cubic end to end", Metric::Rate, "direct-cubic"),
    ("rate / bbr end to end", Metric::Rate, "direct-bbr"),
];
/// What a table of small objects compares.
pub(crate) const SMALL: &[Compared] = &[
    ("p50 / cubic end to end", Metric::P50, "direct-cubic"),
    ("p99 / cubic end to end", Metric::P99, "direct-cubic"),
];

/// The target, which is the purpose of a proxy between the two networks.
pub(crate) const TARGETS: &[Target] = &[Target {
    title: "20 Mbit/s, 40 ms, 1 % loss: rate with bbr towards clients alone, against cubic end \
        to end",
    cell: "large-40ms-1",
    metric: Metric::Rate,
    subject: "weir-bbr",
    against: Some("direct-cubic"),
    bound: Bound::AtLeast(4.0),
}];

/// Returns all cells: large objects on all links, then small ones.
pub(crate) fn cells(axes: &Axes) -> Vec<Cell> {
    let (rtts, losses) = if axes.quick { LINKS_QUICK } else { LINKS };
    let mut cells = Vec::new();
    for object in [Object::Large, Object::Small] {
        for &rtt_ms in rtts {
            cells.extend(
                losses.iter().map(|&lost_permille| cell(Wan { object, rtt_ms, lost_permille })),
            );
        }
    }
    cells
}

fn cell(wan: Wan) -> Cell {
    let Wan { rtt_ms, lost_permille, .. } = wan;
    let (word, object) = match wan.object {
        Object::Large => ("large", "4 MB objects"),
        Object::Small => ("small", "8 KB objects"),
    };
    let lost = f64::from(lost_permille) / 10.0;
    let title = format!(
        "{object}, a connection each, 20 Mbit/s, {rtt_ms} ms there and back, {lost} % loss each way"
    );
    let chart = format!("{object}, {rtt_ms} ms by loss");
    Cell::new(&format!("{word}-{rtt_ms}ms-{lost}"), &title, Load::Wan(wan), ALL)
        .from(Origin::None)
        .on(&chart, lost)
}

#[cfg(test)]
mod tests {
    use super::super::wan::RATE;
    use super::*;

    #[test]
    fn names_and_titles_say_what_the_link_is() {
        assert_eq!(RATE, 20_000_000, "titles say so");
        assert_eq!(
            (Object::Large.bytes(), Object::Small.bytes()),
            (4 << 20, 8 << 10),
            "titles say so"
        );
        let cell = cell(Wan { object: Object::Small, rtt_ms: 150, lost_permille: 1 });
        assert_eq!(
            (cell.name.as_str(), cell.point),
            ("small-150ms-0.1", Some(("8 KB objects, 150 ms by loss".to_owned(), 0.1)))
        );
        assert_eq!(
            cell.title,
            "8 KB objects, a connection each, 20 Mbit/s, 150 ms there and back, 0.1 % loss each way"
        );
        let names = |quick| cells(&Axes { quick, ..Axes::default() }).len();
        assert_eq!((names(false), names(true)), (24, 4));
    }
}
