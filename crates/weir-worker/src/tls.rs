//! What the worker passes on of TLS: reasons to the counters, what was agreed to the machines.

use weir_proxy::ending::TlsFailure;
use weir_proxy::observe::counters::Counters;
use weir_proxy::observe::secured::Secured;
use weir_tls::{Facts, Failure, Tally};

/// What has happened to handshakes, as the counters say it.
pub(crate) fn count(counters: &Counters, tally: &Tally) {
    counters.tls_handshakes.add(tally.completed);
    counters.tls_resumed.add(tally.resumed);
    for (why, count) in Failure::ALL.into_iter().zip(tally.failed) {
        (0..count).for_each(|_| counters.tls_failures.count(failure(why)));
    }
}

/// The same reason in the words of the counters.
fn failure(why: Failure) -> TlsFailure {
    match why {
        Failure::NotTls => TlsFailure::NotTls,
        Failure::NothingInCommon => TlsFailure::NothingInCommon,
        Failure::UnknownName => TlsFailure::UnknownName,
        Failure::Alert => TlsFailure::Alert,
        Failure::Misbehaved => TlsFailure::Misbehaved,
        Failure::Left => TlsFailure::Left,
        Failure::Timeout => TlsFailure::Timeout,
        Failure::TooMany => TlsFailure::TooMany,
        Failure::Internal => TlsFailure::Internal,
    }
}

/// What the machines are to know of a connection that speaks TLS.
pub(crate) fn secured(facts: Facts) -> Secured {
    Secured { version: facts.version, suite: facts.suite, name: facts.name, resumed: facts.resumed }
}

#[cfg(test)]
mod tests {
    //! Proves: what is counted has the same word here and there, and all of it is counted. How: each reason.

    use super::*;

    #[test]
    fn the_words_are_the_same() {
        let tally = Tally { completed: 7, resumed: 3, failed: std::array::from_fn(|at| at as u64) };
        let counters = Counters::default();
        count(&counters, &tally);
        assert_eq!((counters.tls_handshakes.get(), counters.tls_resumed.get()), (7, 3));
        for (at, why) in Failure::ALL.into_iter().enumerate() {
            assert_eq!(counters.tls_failures.get(why.word()), at as u64, "{why:?}");
        }
    }
}
