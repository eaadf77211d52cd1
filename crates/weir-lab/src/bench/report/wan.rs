//! The tables of the experiment `wan`, its line of progress, and how it is measured.
//!
//! Called by `figures.rs` and `progress.rs`.

use super::limits::limit;
use super::numbers::{error_text, ms, number};
use crate::bench::experiment::wan::{Object, QUEUE_MS, RATE, SMALL_CLIENTS, Wan};
use crate::bench::record::answers::Errors;
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::{median, middle};
use crate::bench::record::wan::{Carried, Wayed};

/// A link that is later than this on average, microseconds, is not the link that the title names.
const LATE_MAX_US: f64 = 1000.0;

/// Heads of the table, without the first.
pub(super) fn columns(wan: Wan) -> &'static [&'static str] {
    match wan.object {
        Object::Large => &[
            "Mbit/s",
            "whole objects",
            "lost",
            "no place",
            "link late, ms",
            "CPU s/GB",
            "errors",
            "limit",
        ],
        Object::Small => &[
            "p50, ms",
            "p95",
            "p99",
            "longest",
            "objects",
            "lost",
            "no place",
            "link late, ms",
            "errors",
            "limit",
        ],
    }
}

/// A contender's row in it: medians of times and rates, sums of counts.
pub(super) fn row(wan: Wan, own: &[&Record]) -> Vec<String> {
    let of = |read: &dyn Fn(&Record) -> f64| middle(own, read);
    let objects = own.iter().map(|record| record.requests).sum::<u64>().to_string();
    let (lost, no_place) = (share(own, |way| way.lost), share(own, |way| way.dropped));
    let late = ms(median(carried(own).map(Carried::late_us).collect()));
    let mut errors = Errors::default();
    own.iter().flat_map(|record| &record.errors).for_each(|(kind, count)| {
        *errors.entry(kind.clone()).or_default() += count;
    });
    let (errors, limit) = (error_text(&errors), limits(own));
    match wan.object {
        Object::Large => {
            let cpu = number(of(&Record::proxy_s_per_gigabyte), 2);
            vec![
                number(of(&|record| megabits(record)), 2),
                objects,
                lost,
                no_place,
                late,
                cpu,
                errors,
                limit,
            ]
        }
        Object::Small => vec![
            ms(of(&|record| record.latency_us(|latency| latency.p50_us))),
            ms(of(&|record| record.latency_us(|latency| latency.p95_us))),
            ms(of(&|record| record.latency_us(|latency| latency.p99_us))),
            ms(own
                .iter()
                .map(|record| record.latency_us(|latency| latency.max_us))
                .fold(f64::NAN, f64::max)),
            objects,
            lost,
            no_place,
            late,
            errors,
            limit,
        ],
    }
}

/// Returns the content and heads that clients received, megabits a second.
pub(super) fn megabits(record: &Record) -> f64 {
    record.bytes as f64 * 8.0 / record.wall_us
}

fn carried<'a>(own: &'a [&Record]) -> impl Iterator<Item = &'a Carried> {
    own.iter().filter_map(|record| record.special.wan.as_ref())
}

/// Returns the share of all packets towards clients.
fn share(own: &[&Record], of: fn(&Wayed) -> u64) -> String {
    let sum =
        |of: fn(&Wayed) -> u64| carried(own).map(|link| of(&link.to_clients)).sum::<u64>() as f64;
    let percent = sum(of) / sum(|way| way.packets) * 100.0;
    if percent.is_finite() { format!("{percent:.2} %") } else { "-".to_owned() }
}

/// Returns the mean lateness of the link in each round in which it was not the link that the title
/// names, microseconds.
fn late(own: &[&Record]) -> impl Iterator<Item = f64> {
    carried(own).map(Carried::late_us).filter(|late_us| *late_us > LATE_MAX_US)
}

/// Whether the link was not the one that the title names in some round.
pub(super) fn is_disturbed(own: &[&Record]) -> bool {
    late(own).next().is_some()
}

/// Returns what distorts the figures of that link.
fn limits(own: &[&Record]) -> String {
    let late: Vec<f64> = late(own).collect();
    let most = late.iter().copied().fold(0.0, f64::max);
    let overrun: u64 = carried(own).map(Carried::overrun).sum();
    let causes = [
        (!late.is_empty()).then(|| {
            format!(
                "**the link was late in {} of {} rounds, by up to {} ms**",
                late.len(),
                own.len(),
                ms(most)
            )
        }),
        (overrun > 0).then(|| format!("**{overrun} packets that the link never saw**")),
        Some(limit(own)).filter(|cause| !cause.is_empty()),
    ];
    causes.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Returns the line of progress.
pub(super) fn progress(wan: Wan, record: &Record) -> String {
    let late = ms(record.special.wan.as_ref().map_or(f64::NAN, Carried::late_us));
    let errors: u64 = record.errors.values().sum();
    match wan.object {
        Object::Large => {
            format!(
                "{:>6.2} Mbit/s, {} objects, link {late} ms late, {errors} errors",
                megabits(record),
                record.requests
            )
        }
        Object::Small => format!(
            "p50 {:>6} ms, p99 {:>6} ms, {} objects, link {late} ms late, {errors} errors",
            ms(record.latency_us(|latency| latency.p50_us)),
            ms(record.latency_us(|latency| latency.p99_us)),
            record.requests
        ),
    }
}

/// Returns the text for the last section of the report.
pub(super) fn method() -> String {
    format!(
        "Contenders take turns within each round (A B C A B C ...), each freshly started. Clients
are in a network namespace, and proxy and origin (weir's) are in another one. `weir lab link`
joins them: {} Mbit/s each way, half of the round-trip time each way, a queue of {QUEUE_MS} ms,
and the loss in the title. The loss is independent for each packet and direction. In a round,
packets with the same numbers are lost for all contenders. Proxy and origin have no delay between
them. So a proxy gains only by its congestion control towards clients, and by retransmitting from
its place.

One client fetches large objects, one after the other, for the seconds of a run, each on its own
connection. The rate is that of all received bytes, including the slow start of each connection.
{SMALL_CLIENTS} clients fetch small objects, also one after the other. Their time counts from
connect(2) to the last byte. `lost` and `no place` are shares of the packets towards clients:
those that the link lost, and those that found no room in its queue. `link late` is the mean time
by which packets left the link too late. If the machine lacks time, the link differs from its
settings, and `limit` shows in how many rounds it was more than 1 ms late.

`direct` has no proxy, so the congestion control is that of the origin's sockets. `weir-bbr` has
bbr towards clients (`congestion` of `listen`) and cubic towards the server (`congestion` of the
upstream). `weir-cubic` has cubic on both sides. HAProxy is in mode tcp with splicing, as in
`forward`. Version 2.6 has no option for a congestion control (`cc`). Its congestion control,
like that of the origin in `direct`, is set by the route to the clients (`ip route add CLIENT dev
LINK congctl bbr`). In that way, HAProxy can also have one for each side. Without the queueing
discipline fq, bbr paces by the timers of the kernel. The kernel remembers between connections
what it learned about a path (tcp_no_metrics_save=0, its default).
",
        RATE / 1_000_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(late_mean_us: f64, overrun: u64) -> Record {
        let to_clients =
            Wayed { packets: 200, lost: 2, dropped: 1, overrun, late_mean_us, late_max_us: 9000.0 };
        let mut record =
            Record { bytes: 2_500_000, wall_us: 2e6, idle: 1.0, requests: 1, ..Record::default() };
        record.special.wan = Some(Carried { to_clients, ..Carried::default() });
        record
    }

    #[test]
    fn a_row_says_what_the_link_did_and_when_it_was_another_one() {
        let wan = Wan { object: Object::Large, rtt_ms: 40, lost_permille: 10 };
        let (good, late) = (record(30.0, 0), record(2500.0, 3));
        assert_eq!(row(wan, &[&good]), ["10.00", "1", "1.00 %", "0.50 %", "0.03", "-", "0", ""]);
        assert!(is_disturbed(&[&good, &late]) && !is_disturbed(&[&good]) && !is_disturbed(&[]));
        assert_eq!(
            row(wan, &[&good, &late, &late])[7],
            "**the link was late in 2 of 3 rounds, by up to 2.50 ms**; **6 packets that the link \
                never saw**"
        );
        for object in [Object::Large, Object::Small] {
            let wan = Wan { object, ..wan };
            assert_eq!(row(wan, &[&good]).len(), columns(wan).len());
        }
    }
}
