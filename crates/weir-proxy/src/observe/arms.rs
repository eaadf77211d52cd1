//! Results of connections by congestion control, if several share the connections: how one fares in
//! the network against another. A connection is counted once, at its end, for each of its sides
//! that has such a choice.
//!
//! Bound: [`ROWS_MAX`] rows of about 15 KB; the kernel has few congestion controls, and a
//! configuration names only existing ones.

use std::sync::Arc;

use crate::observe::histogram::{Histogram, Snapshot};
use crate::plan::Side;

/// Congestion controls that are told apart, both sides together. Any further one is not counted.
const ROWS_MAX: usize = 32;

/// The kernel's figures for a connection at its end (tcp(7), TCP_INFO), as far as they concern sent
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathFigures {
    /// Bytes sent, including those that were sent again.
    pub sent: u64,
    /// Bytes sent again.
    pub sent_again: u64,
    /// The smoothed round trip, microseconds; 0: not known.
    pub rtt_us: u32,
    /// The shortest recent round trip; 0: not known.
    pub min_rtt_us: u32,
    /// Bytes a second that were delivered while enough were waiting to be sent; 0: not known.
    pub rate: u64,
}

/// One congestion control on one side.
#[derive(Debug)]
struct Arm {
    side: Side,
    name: Arc<str>,
    flows: u64,
    sent: u64,
    sent_again: u64,
    lasted: Histogram,
    rtt: Histogram,
    min_rtt: Histogram,
    rate: Histogram,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Arms(Vec<Arm>);

/// The results of one, for reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArmReport {
    /// The side.
    pub side: Side,
    /// The congestion control.
    pub name: Arc<str>,
    /// Connections that have ended.
    pub flows: u64,
    /// Bytes sent, including those that were sent again.
    pub sent: u64,
    /// Bytes sent again.
    pub sent_again: u64,
    /// How long they lasted, microseconds.
    pub lasted: Snapshot,
    /// Their round trips at the end, microseconds.
    pub rtt: Snapshot,
    /// Their shortest round trips, microseconds.
    pub min_rtt: Snapshot,
    /// Their rates, bytes a second.
    pub rate: Snapshot,
}

impl ArmReport {
    /// Adds the counts of another worker for the same one.
    pub fn merge(&mut self, other: &ArmReport) {
        self.flows += other.flows;
        self.sent += other.sent;
        self.sent_again += other.sent_again;
        self.lasted.merge(&other.lasted);
        self.rtt.merge(&other.rtt);
        self.min_rtt.merge(&other.min_rtt);
        self.rate.merge(&other.rate);
    }
}

impl Arms {
    /// Counts a connection that ended after `lasted_us`.
    pub(crate) fn count(
        &mut self,
        side: Side,
        name: &Arc<str>,
        lasted_us: u64,
        figures: PathFigures,
    ) {
        let known = self.0.iter().position(|arm| arm.side == side && arm.name == *name);
        let at = known.unwrap_or_else(|| {
            if self.0.len() < ROWS_MAX {
                let [lasted, rtt, min_rtt, rate] = [(); 4].map(|()| Histogram::default());
                let name = Arc::clone(name);
                self.0.push(Arm {
                    side,
                    name,
                    flows: 0,
                    sent: 0,
                    sent_again: 0,
                    lasted,
                    rtt,
                    min_rtt,
                    rate,
                });
                self.0.len() - 1
            } else {
                ROWS_MAX
            }
        });
        let Some(arm) = self.0.get_mut(at) else { return };
        arm.flows += 1;
        arm.sent += figures.sent;
        arm.sent_again += figures.sent_again;
        arm.lasted.record(lasted_us);
        let known = [
            (&arm.rtt, u64::from(figures.rtt_us)),
            (&arm.min_rtt, u64::from(figures.min_rtt_us)),
            (&arm.rate, figures.rate),
        ];
        known
            .into_iter()
            .filter(|(_, value)| *value > 0)
            .for_each(|(histogram, value)| histogram.record(value));
    }

    /// Returns the results of all.
    pub(crate) fn report(&self) -> Vec<ArmReport> {
        let told = |arm: &Arm| ArmReport {
            side: arm.side,
            name: Arc::clone(&arm.name),
            flows: arm.flows,
            sent: arm.sent,
            sent_again: arm.sent_again,
            lasted: arm.lasted.snapshot(),
            rtt: arm.rtt.snapshot(),
            min_rtt: arm.min_rtt.snapshot(),
            rate: arm.rate.snapshot(),
        };
        self.0.iter().map(told).collect()
    }
}

#[cfg(test)]
mod tests {
    //! Proves: connections are counted by side and name, unknown figures are left out, rows are
    //! bounded, and workers add up. How: examples.

    use super::*;

    #[test]
    fn each_is_counted_where_it_belongs() {
        let mut arms = Arms::default();
        let (bbr, cubic): (Arc<str>, Arc<str>) = ("bbr".into(), "cubic".into());
        let figures = PathFigures {
            sent: 1000,
            sent_again: 10,
            rtt_us: 40_000,
            min_rtt_us: 20_000,
            rate: 2_500_000,
        };
        arms.count(Side::Client, &bbr, 1_000_000, figures);
        arms.count(
            Side::Client,
            &bbr,
            3_000_000,
            PathFigures { sent: 5, ..PathFigures::default() },
        );
        arms.count(Side::Server, &bbr, 1, figures);
        arms.count(Side::Client, &cubic, 1, figures);
        let told = arms.report();
        let shown: Vec<_> = told
            .iter()
            .map(|arm| (arm.side, &*arm.name, arm.flows, arm.sent, arm.sent_again))
            .collect();
        let wanted = [
            (Side::Client, "bbr", 2, 1005, 10),
            (Side::Server, "bbr", 1, 1000, 10),
            (Side::Client, "cubic", 1, 1000, 10),
        ];
        assert_eq!(shown, wanted);
        assert_eq!((told[0].lasted.count(), told[0].rtt.count(), told[0].rate.count()), (2, 1, 1));
        let mut sum = told[0].clone();
        sum.merge(&told[0]);
        assert_eq!((sum.flows, sum.sent, sum.sent_again, sum.min_rtt.count()), (4, 2010, 20, 2));
    }

    #[test]
    fn rows_are_bounded() {
        let mut arms = Arms::default();
        for number in 0..ROWS_MAX + 5 {
            arms.count(Side::Client, &format!("cc{number}").into(), 1, PathFigures::default());
        }
        arms.count(Side::Client, &"cc0".into(), 1, PathFigures::default());
        assert_eq!((arms.report().len(), arms.report()[0].flows), (ROWS_MAX, 2));
    }
}
