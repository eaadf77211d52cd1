//! Results of connections of `tcp` with one of several congestion controls, over all workers:
//! reports -> the part of the document, and metrics. Called by `status` and `metrics`; pure.

use weir_proxy::observe::arms::ArmReport;
use weir_worker::WorkerReport;

use super::document::Arm;
use super::exposition::{Exposition, Label, Type};
use super::metrics::histogram;
use super::reading::Reading;
use super::status::latency;

/// Adds up the reports of workers, one row for each side and name, in their order.
pub(super) fn merged(reading: &Reading) -> Vec<ArmReport> {
    let reports = reading.workers.iter().filter_map(|worker| worker.report.as_deref());
    let mut all: Vec<ArmReport> = Vec::new();
    for report in reports.flat_map(|WorkerReport { machines, .. }| &machines.arms) {
        match all.iter_mut().find(|arm| arm.side == report.side && arm.name == report.name) {
            Some(arm) => arm.merge(report),
            None => all.push(report.clone()),
        }
    }
    all.sort_by(|one, other| (one.side, &one.name).cmp(&(other.side, &other.name)));
    all
}

/// Returns the rows for the document.
pub(super) fn shown(all: &[ArmReport]) -> Vec<Arm> {
    let arm = |arm: &ArmReport| Arm {
        side: arm.side.word().to_owned(),
        name: arm.name.to_string(),
        connections: arm.flows,
        bytes_sent: arm.sent,
        bytes_sent_again: arm.sent_again,
        duration: latency(&arm.lasted),
        rtt: latency(&arm.rtt),
        min_rtt: latency(&arm.min_rtt),
        rate_p10: arm.rate.percentile(1000),
        rate_p50: arm.rate.percentile(5000),
        rate_p90: arm.rate.percentile(9000),
    };
    all.iter().map(arm).collect()
}

/// Adds the rows to metrics; nothing without a comparison.
pub(super) fn metrics(text: &mut Exposition, all: &[ArmReport]) {
    if all.is_empty() {
        return;
    }
    let labels: Vec<[Label<'_>; 2]> =
        all.iter().map(|arm| [("side", arm.side.word()), ("congestion", &*arm.name)]).collect();
    let rows = || all.iter().zip(&labels);
    let mut counted = |name, help, of: fn(&ArmReport) -> u64| {
        text.family(name, Type::Counter, help);
        rows().for_each(|(arm, labels)| text.sample(labels, of(arm)));
    };
    let help = "Ended connections of `tcp`, for each of several congestion controls.";
    counted("congestion_connections", help, |arm| arm.flows);
    counted(
        "congestion_sent_bytes",
        "Bytes that these connections sent, including retransmitted bytes.",
        |arm| arm.sent,
    );
    counted("congestion_sent_again_bytes", "Bytes that these connections retransmitted.", |arm| {
        arm.sent_again
    });
    text.family("congestion_duration_seconds", Type::Histogram, "Durations of these connections.");
    rows().for_each(|(arm, labels)| histogram(text, labels, &arm.lasted));
    text.family(
        "congestion_rtt_seconds",
        Type::Histogram,
        "Round trip times of these connections at their end.",
    );
    rows().for_each(|(arm, labels)| histogram(text, labels, &arm.rtt));
}

#[cfg(test)]
mod tests {
    //! Proves: equal arms of workers become one row, which is in the document and in metrics. How:
    //! made-up reports.

    use weir_proxy::observe::histogram::Histogram;
    use weir_proxy::plan::Side;

    use super::super::exposition::Format;
    use super::*;

    fn report(side: Side, name: &str, rtt_us: u64) -> ArmReport {
        let of = |value| {
            let histogram = Histogram::default();
            histogram.record(value);
            histogram.snapshot()
        };
        let (lasted, rtt, min_rtt, rate) =
            (of(1_000_000), of(rtt_us), of(rtt_us / 2), of(2_500_000));
        ArmReport {
            side,
            name: name.into(),
            flows: 1,
            sent: 1000,
            sent_again: 10,
            lasted,
            rtt,
            min_rtt,
            rate,
        }
    }

    #[test]
    fn rows_are_shown() {
        let mut one = report(Side::Client, "bbr", 40_000);
        one.merge(&report(Side::Client, "bbr", 40_000));
        let all = [one, report(Side::Server, "cubic", 1_000)];
        let rows = shown(&all);
        assert_eq!(
            (rows[0].side.as_str(), rows[0].name.as_str(), rows[0].connections),
            ("client", "bbr", 2)
        );
        assert_eq!(
            (rows[0].bytes_sent, rows[0].bytes_sent_again, rows[1].bytes_sent),
            (2000, 20, 1000)
        );
        assert!(rows[0].rtt.p50_us.is_some_and(|us| us.abs_diff(40_000) < 2_000), "{rows:?}");
        assert!(
            rows[0].rate_p50.is_some_and(|rate| rate.abs_diff(2_500_000) < 100_000),
            "{rows:?}"
        );
        let mut text = Exposition::new(Format::OpenMetrics);
        metrics(&mut text, &all);
        let text = text.finish();
        for line in [
            "weir_congestion_connections_total{side=\"client\",congestion=\"bbr\"} 2\n",
            "weir_congestion_sent_again_bytes_total{side=\"server\",congestion=\"cubic\"} 10\n",
            "weir_congestion_rtt_seconds_count{side=\"client\",congestion=\"bbr\"} 2\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        let mut text = Exposition::new(Format::OpenMetrics);
        metrics(&mut text, &[]);
        assert_eq!(text.finish(), "# EOF\n");
    }
}
