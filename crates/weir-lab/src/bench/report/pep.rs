//! The tables of the experiment `pep`, its line of progress, and how it is measured.
//!
//! Called by `figures.rs` and `progress.rs`.

use super::limits::{IDLE_MIN, generator_limit};
use super::numbers::{error_text, microseconds, ms, number};
use crate::bench::experiment::metric::Metric;
use crate::bench::experiment::pep::{FAR_CLIENTS_MS, FAR_SERVER_MS, Pace, Pep, SOURCES};
use crate::bench::record::answers::Errors;
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::middle;

/// Returns the heads of the table, without the first. In a closed loop the machine is full, and the
/// additional processor time says nothing.
pub(super) fn columns(pep: Pep) -> &'static [&'static str] {
    match pep.pace {
        Pace::Closed => &[
            "connections /s",
            "Gbit/s",
            "p50",
            "p99, ms",
            "proxy's own CPU µs",
            "idle",
            "errors",
            "limit",
        ],
        Pace::Half | Pace::Seldom => &[
            "connections /s",
            "added CPU µs a connection",
            "added CPU s/GB",
            "proxy's own CPU µs",
            "p50",
            "p99",
            "p99.9, ms",
            "idle",
            "errors",
            "limit",
        ],
    }
}

/// A contender's row in it.
pub(super) fn row(pep: Pep, own: &[&Record]) -> Vec<String> {
    let of = |read: &dyn Fn(&Record) -> f64| middle(own, read);
    let mut errors = Errors::default();
    own.iter().flat_map(|record| &record.errors).for_each(|(kind, count)| {
        *errors.entry(kind.clone()).or_default() += count;
    });
    let rate = number(of(&|record| record.rate), 0);
    let proxy = microseconds(of(&Record::proxy_us_per_request));
    let p50 = ms(of(&|record| record.latency_us(|latency| latency.p50_us)));
    let p99 = ms(of(&|record| record.latency_us(|latency| latency.p99_us)));
    let idle = format!("{} %", number(of(&|record| record.idle) * 100.0, 0));
    let (errors, limit) = (error_text(&errors), limit(own));
    match pep.pace {
        Pace::Closed => {
            let gigabits =
                number(of(&|record| record.bytes as f64 * 8.0 / record.wall_us / 1e3), 2);
            vec![rate, gigabits, p50, p99, proxy, idle, errors, limit]
        }
        Pace::Half | Pace::Seldom => vec![
            rate,
            number(of(&|record| record.figure(Metric::AddedCpu)), 1),
            number(of(&|record| record.figure(Metric::AddedCpuGigabyte)), 3),
            proxy,
            p50,
            p99,
            ms(of(&|record| record.latency_us(|latency| latency.p999_us))),
            idle,
            errors,
            limit,
        ],
    }
}

/// If other programs use more of the machine than this, busy time says little.
const OTHERS_MAX: f64 = 0.1;

/// Returns what distorts the contender's figures. The load of other programs is known only before
/// the run: most of the work is done where the kernel receives packets, in the context of whatever
/// process runs there.
fn limit(own: &[&Record]) -> String {
    let generator = generator_limit(own).map(|cause| format!("**the generator**: {cause}"));
    let is_full = middle(own, &|record| record.idle) <= IDLE_MIN;
    let others =
        middle(own, &|record| record.special.pep.as_ref().map_or(f64::NAN, |passed| passed.others));
    let not_quiet = (others > OTHERS_MAX).then(|| {
        format!("**not quiet: {:.0} % of the machine was busy before the load**", others * 100.0)
    });
    let causes = [is_full.then(|| "all cores, shared".to_owned()), generator, not_quiet];
    causes.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Returns the line of progress.
pub(super) fn progress(record: &Record) -> String {
    format!(
        "{:>7.0}/s, adds CPU {:>6} µs, p99 {:>6} ms, idle {:>3.0} %, {} errors",
        record.rate,
        number(record.figure(Metric::AddedCpu), 1),
        ms(record.latency_us(|latency| latency.p99_us)),
        record.idle * 100.0,
        record.errors.values().sum::<u64>()
    )
}

/// Returns the text for the last section of the report.
pub(super) fn method() -> String {
    format!(
        "Contenders take turns within each round (A B C A B C ...), each freshly started. Clients
(`weir bomb`), a router, and the server (`weir origin`) are in three network namespaces, with a
pair of virtual interfaces on each side of the router. No packets are filtered there, because
nftables has no table. Clients have {SOURCES} addresses, and a connection for each object.

`routed` has no proxy on the router, which only forwards. HAProxy is in mode tcp, with one thread
per core, pinned: `bind :8080 transparent`, `source 0.0.0.0 usesrc clientip`, `server s *`. It
has splicing and pipes of 1 MiB, or no splicing (`-copy`). `weir-through` is a `tcp` with
`transparent`, `original-destination` and `source \"client\"`, with as many workers as cores. If
the router reads HTTP (`-http`), HAProxy is in mode http with `http-reuse never`, and weir has a
`route` there. Rules of ip(8) lead packets to all of these. `weir-intercept` is `weir intercept`
with its programs of the kernel (tcx), which lead packets into a separate namespace. `-syn` and
`-first` are the same with that `--connect`.

In `hooks-` the kernel of the router tracks connections, and each hook of nftables has a chain
that changes nothing. In `tproxy-` nftables leads connections to another port, and rules of ip(8)
lead the packets that it has marked. In `v6-` everything uses IPv6. In `far-` two links of the
kind that `weir lab link` makes are on the way. They add {FAR_CLIENTS_MS} ms between clients and
the router and {FAR_SERVER_MS} ms between it and the server, both as round-trip times. There the
result is time. The figures of the machine include the links' own work.

On virtual interfaces, a packet is received in the context of its sender, so the CPU time of a
process misleads. The result is the time in which any core of the machine was busy at the same
rate by the clock. The report subtracts that of `routed` in the same round, and divides by
connections or gigabytes (10^9 bytes). It includes everything on the machine, which has to be
quiet, so the harness watches the machine for half a second before each load. The clock goes at
half of the rate that HAProxy with splicing reached in the closed loop before. Latency counts
from when a connection was due to the end of its response, because the connection is made then.
In a closed loop, generator, proxy and server share all cores, so a rate is a minimum.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::pep::Way;
    use crate::bench::record::pep::Passed;

    #[test]
    fn a_row_has_a_figure_for_each_column() {
        let mut record =
            Record { idle: 0.01, requests: 10, rate: 10.0, wall_us: 1e6, ..Record::default() };
        record.special.pep = Some(Passed { others: 0.3, ..Passed::default() });
        for pace in [Pace::Closed, Pace::Half, Pace::Seldom] {
            let pep = Pep { bytes: 8192, pace, reads: false, way: Way::Plain };
            let row = row(pep, &[&record]);
            assert_eq!(row.len(), columns(pep).len());
            assert_eq!(
                row.last().unwrap(),
                "all cores, shared; **not quiet: 30 % of the machine was busy before the load**"
            );
        }
    }
}
