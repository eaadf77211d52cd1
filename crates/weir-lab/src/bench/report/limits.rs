//! What limited a contender's rate other than the contender itself.
//!
//! Called by everything that shows a row: a limited row says so in words, or is grey or hollow.

use crate::bench::experiment::contenders::{What, contender};
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::middle;

/// Below this share of idle time the cores are the limit, whatever uses them.
pub(super) const IDLE_MIN: f64 = 0.05;
/// If generator and origin together used more than this share of all cores, the rate says little
/// about the proxy.
pub(super) const OTHERS_MAX: f64 = 0.5;
/// If other programs used more than this share, they disturb the figures. The kernel's own threads
/// stay below it.
const FOREIGN_MAX: f64 = 0.1;

/// The contender that represents the usual origin where origins are measured.
const ORIGIN_OF_OTHERS: &str = "nginx-file";

/// Returns the processor time of the programs that serve the contender, and their names: an origin
/// or a generator may be a contender itself.
fn others(record: &Record) -> (f64, &'static str) {
    match contender(&record.contender).map(|contender| contender.what) {
        _ if record.contender == ORIGIN_OF_OTHERS => (record.generator_us, "the generator"),
        Some(What::Origin(_)) => (record.generator_us, "the generator"),
        Some(What::Wrk | What::Bomb(_)) => (record.origin_us, "the origin"),
        _ => (record.generator_us + record.origin_us, "generator and origin"),
    }
}

/// Returns the share of all cores' time that they used.
pub(super) fn others_share(record: &Record) -> f64 {
    share(record, others(record).0)
}

/// Returns the share of all cores' time that neither we nor idleness account for: other programs,
/// and other guests of the host.
fn foreign_share(record: &Record) -> f64 {
    let ours = share(record, record.generator_us + record.origin_us + record.proxy_us);
    (1.0 - record.idle - ours).max(0.0)
}

fn share(record: &Record, us: f64) -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    if record.wall_us == 0.0 { 0.0 } else { us / (record.wall_us * cores) }
}

/// Whether the rate says little about the contender, because generator and origin used most of the
/// cores, or the generator says that it was the limit.
pub(super) fn is_floor(own: &[&Record]) -> bool {
    is_full_of_others(own) || generator_limit(own).is_some()
}

/// Returns why the generator was the limit, in the first round in which it was.
pub(super) fn generator_limit<'a>(own: &[&'a Record]) -> Option<&'a str> {
    own.iter().find_map(|record| record.generator_limit.as_deref())
}

fn is_full_of_others(own: &[&Record]) -> bool {
    middle(own, &|record| record.idle) <= IDLE_MIN && middle(own, &others_share) > OTHERS_MAX
}

/// Returns what limited the rate.
pub(super) fn limit(own: &[&Record]) -> String {
    let (others, foreign) = (middle(own, &others_share), middle(own, &foreign_share));
    let percent = others * 100.0;
    let who = own.first().map_or("", |record| self::others(record).1);
    let mut causes = Vec::new();
    if is_full_of_others(own) {
        causes.push(format!("{who} ({percent:.0} % of the machine): the rate is a floor"));
    } else if middle(own, &|record| record.idle) <= IDLE_MIN {
        causes.push(format!("all cores, shared ({percent:.0} % by {who})"));
    }
    if let Some(cause) = generator_limit(own) {
        causes.push(format!("**the generator**: {cause}"));
    }
    if foreign > FOREIGN_MAX {
        causes.push(format!("**not quiet: {:.0} % went to other programs**", foreign * 100.0));
    }
    causes.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of one second in which the generator had all cores.
    fn record(contender: &str) -> Record {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        Record {
            contender: contender.to_owned(),
            requests: 1000,
            wall_us: 1e6,
            generator_us: 1e6 * cores,
            ..Record::default()
        }
    }

    #[test]
    fn a_generator_that_is_measured_is_no_limit_to_itself() {
        let floor = |contender: &str| is_floor(&[&record(contender)]);
        assert!(floor("direct") && floor("weir-origin") && floor("nginx-file"));
        assert!(!floor("bomb") && !floor("wrk"));
        let busy = Record { origin_us: 1e9, ..record("bomb") };
        assert!(is_floor(&[&busy]), "but the origin is");
    }
}
