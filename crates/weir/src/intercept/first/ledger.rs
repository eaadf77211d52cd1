//! Which first packets are held, and for how long: without sockets and clocks, so that what bounds them can be tested.
//!
//! Bounds: [`Limits`], with the connections that wait for their clients; [`PATIENCE`] for each.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use weir_worker::Pair;

use super::super::limits::Limits;

/// How long a server may be silent: then its client's next packet begins anew.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A first packet, with what is tried for it.
#[derive(Debug)]
pub(super) struct Waiting<A> {
    pub(super) pair: Pair,
    pub(super) packet: Vec<u8>,
    pub(super) attempt: A,
}

/// See the module. `A` is a connect that is under way.
#[derive(Debug)]
pub(super) struct Ledger<A> {
    /// By name, and until when. Those that were begun first are over first.
    held: BTreeMap<u64, (Instant, Waiting<A>)>,
    by_pair: HashMap<Pair, u64>,
    next: u64,
    limits: Limits,
}

impl<A> Ledger<A> {
    /// Holds so many at most.
    pub(super) fn new(max: usize, now: Instant) -> Ledger<A> {
        let (held, by_pair) = Default::default();
        Ledger { held, by_pair, next: 0, limits: Limits::new(max, now) }
    }

    /// How many are held.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether one more may be begun, when so many connections wait for their clients.
    pub(super) fn may_begin(&mut self, waiting: usize, now: Instant) -> bool {
        self.has_room(waiting) && self.limits.may_begin(now)
    }

    /// Whether there is room for one more then.
    pub(super) fn has_room(&mut self, waiting: usize) -> bool {
        self.limits.has_room(self.held.len() + waiting)
    }

    /// A client has sent its first packet again. False: none is held.
    pub(super) fn renew(&mut self, pair: &Pair, packet: &[u8]) -> bool {
        let name = self.by_pair.get(pair);
        let Some((_, waiting)) = name.and_then(|name| self.held.get_mut(name)) else { return false };
        // A client that begins anew has another number in it.
        packet.clone_into(&mut waiting.packet);
        true
    }

    /// The name of the next one.
    pub(super) fn next_name(&self) -> u64 {
        self.next
    }

    /// Holds one, whose pair has none, under that name.
    pub(super) fn hold(&mut self, waiting: Waiting<A>, now: Instant) {
        let name = self.next;
        self.next += 1;
        self.limits.begun();
        self.by_pair.insert(waiting.pair, name);
        self.held.insert(name, (now + PATIENCE, waiting));
    }

    /// Ends it.
    pub(super) fn take(&mut self, name: u64) -> Option<Waiting<A>> {
        let (_, waiting) = self.held.remove(&name)?;
        self.by_pair.remove(&waiting.pair);
        Some(waiting)
    }

    /// The next one whose time is over.
    pub(super) fn expired(&mut self, now: Instant) -> Option<Waiting<A>> {
        let (name, _) = self.held.first_key_value().filter(|(_, (until, _))| *until <= now)?;
        self.take(*name)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: what is held is bounded, at a time and in a second, found by its ends, and over in time; nothing is left of what was taken. How: with
    //! numbers for connects, and times of the test's choice.

    use std::net::SocketAddr;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pair(port: u16) -> Pair {
        Pair::new(([198, 18, 1, 2], port).into(), ([198, 18, 2, 2], 80).into())
    }

    fn hold(ledger: &mut Ledger<u16>, port: u16, now: Instant) {
        ledger.hold(Waiting { pair: pair(port), packet: vec![1], attempt: port }, now);
    }

    #[test]
    fn there_is_an_end_to_what_is_held() {
        let now = Instant::now();
        let mut ledger = Ledger::new(100, now);
        for port in 0..90 {
            assert!(ledger.may_begin(0, now));
            hold(&mut ledger, port, now);
        }
        assert!(ledger.may_begin(9, now) && !ledger.may_begin(10, now));
        // Clearly some has to be there again.
        assert!(!ledger.has_room(0));
        for name in 0..16 {
            assert!(ledger.take(name).is_some());
        }
        assert!(ledger.has_room(0) && ledger.len() == 74);
    }

    #[test]
    fn who_is_silent_for_too_long_is_given_up() {
        let now = Instant::now();
        let mut ledger = Ledger::new(100, now);
        for port in 0u16..10 {
            hold(&mut ledger, port, now + SECOND * port.into());
        }
        assert!(ledger.renew(&pair(3), &[2, 3]) && !ledger.renew(&pair(10), &[2]));
        assert_eq!(ledger.take(3).map(|waiting| (waiting.attempt, waiting.packet)), Some((3, vec![2, 3])));
        assert!(ledger.take(3).is_none() && !ledger.renew(&pair(3), &[2]));
        assert!(ledger.expired(now + PATIENCE - SECOND).is_none());
        let mut over = Vec::new();
        while let Some(waiting) = ledger.expired(now + PATIENCE + SECOND * 5) {
            over.push(waiting.attempt);
        }
        assert_eq!(over, [0, 1, 2, 4, 5]);
        assert_eq!(ledger.len(), 4);
        // The same ends may come again.
        hold(&mut ledger, 0, now);
        assert!(ledger.renew(&pair(0), &[9]));
        let other: SocketAddr = "[fd00:1::2]:0".parse().expect("an address");
        assert!(!ledger.renew(&Pair::new(other, other), &[9]));
    }
}
