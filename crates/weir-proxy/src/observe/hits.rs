//! How long responses from the store take, apart from those of servers: one hit costs next to
//! nothing, and would hide the times of all others.
//!
//! The clients' side reports each complete response of this kind, and the engine the end of its
//! turn. A response in the turn of its request took until the end of the turn, when the driver has
//! it. Bound: one number a turn, and one histogram.

use std::sync::Arc;

use crate::observe::histogram::Histogram;

/// The times of a worker's hits.
#[derive(Debug)]
pub(crate) struct Hits {
    times: Arc<Histogram>,
    /// Responses that were requested and completed in this turn.
    of_turn: u64,
}

impl Hits {
    /// Returns times without values.
    pub(crate) fn new(times: Arc<Histogram>) -> Hits {
        Hits { times, of_turn: 0 }
    }

    /// A response is complete whose request arrived at this time. Both times are of the clock that
    /// does not advance within a turn.
    #[inline]
    pub(crate) fn ended(&mut self, received_us: u64, now_us: u64) {
        if received_us == now_us {
            self.of_turn += 1;
        } else {
            self.times.record(now_us.saturating_sub(received_us));
        }
    }

    /// The turn has taken `turn_us`.
    #[inline]
    pub(crate) fn turn_ended(&mut self, turn_us: u64) {
        if self.of_turn > 0 {
            self.times.record_many(turn_us, std::mem::take(&mut self.of_turn));
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each hit is counted once, with its turn or with the turns that it took. How: turns
    //! of known length.

    use super::*;

    #[test]
    fn hits_take_their_turn_or_several() {
        let times = Arc::new(Histogram::default());
        let mut hits = Hits::new(Arc::clone(&times));
        hits.ended(1000, 1000);
        hits.ended(1000, 1000);
        assert_eq!(times.snapshot().count(), 0, "the turn is not over");
        hits.turn_ended(50);
        hits.ended(1000, 5000);
        hits.turn_ended(70);
        hits.turn_ended(90);
        let seen = times.snapshot();
        assert_eq!((seen.count(), seen.sum_us(), seen.max_us()), (3, 50 + 50 + 4000, Some(4000)));
    }
}
