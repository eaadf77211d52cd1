//! Decides which first packets are held, and for how long. It has no sockets and clocks, so that
//! tests can check its bounds.
//!
//! Bounds: [`Limits`], which include the connections that wait for their clients; [`PATIENCE`] for
//! each.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use weir_worker::Pair;

use super::super::limits::Limits;

/// How long a server may be silent; then its client's next packet starts over.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A first packet, with the connection attempt for it.
#[derive(Debug)]
pub(super) struct Waiting<A> {
    pub(super) pair: Pair,
    pub(super) packet: Vec<u8>,
    pub(super) attempt: A,
}

/// The held packets. `A` is a connection attempt under way.
#[derive(Debug)]
pub(super) struct Ledger<A> {
    /// By name, with the end of the wait. Attempts that began first end first.
    held: BTreeMap<u64, (Instant, Waiting<A>)>,
    by_pair: HashMap<Pair, u64>,
    next: u64,
    limits: Limits,
}

impl<A> Ledger<A> {
    /// Holds at most this many packets.
    pub(super) fn new(max: usize, now: Instant) -> Ledger<A> {
        let (held, by_pair) = Default::default();
        Ledger { held, by_pair, next: 0, limits: Limits::new(max, now) }
    }

    /// Returns the number of held packets.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether another attempt may begin while this many connections wait for their clients.
    pub(super) fn may_begin(&mut self, waiting: usize, now: Instant) -> bool {
        self.has_room(waiting) && self.limits.may_begin(now)
    }

    /// Whether there is room for another packet then.
    pub(super) fn has_room(&mut self, waiting: usize) -> bool {
        self.limits.has_room(self.held.len() + waiting)
    }

    /// A client has repeated its first packet. False: none is held.
    pub(super) fn renew(&mut self, pair: &Pair, packet: &[u8]) -> bool {
        let name = self.by_pair.get(pair);
        let Some((_, waiting)) = name.and_then(|name| self.held.get_mut(name)) else {
            return false;
        };
        // A client that starts over uses another sequence number.
        packet.clone_into(&mut waiting.packet);
        true
    }

    /// Returns the name of the next packet.
    pub(super) fn next_name(&self) -> u64 {
        self.next
    }

    /// Holds a packet under that name; none is held for its pair yet.
    pub(super) fn hold(&mut self, waiting: Waiting<A>, now: Instant) {
        let name = self.next;
        self.next += 1;
        self.limits.begun();
        self.by_pair.insert(waiting.pair, name);
        self.held.insert(name, (now + PATIENCE, waiting));
    }

    /// Stops holding a packet.
    pub(super) fn take(&mut self, name: u64) -> Option<Waiting<A>> {
        let (_, waiting) = self.held.remove(&name)?;
        self.by_pair.remove(&waiting.pair);
        Some(waiting)
    }

    /// Returns the next packet whose time is over.
    pub(super) fn expired(&mut self, now: Instant) -> Option<Waiting<A>> {
        let (name, _) = self.held.first_key_value().filter(|(_, (until, _))| *until <= now)?;
        self.take(*name)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: the held packets are bounded, at a time and in a second, are found by their ends,
    //! and expire in time; nothing remains of those that were taken. How: numbers for connection
    //! attempts, and times of the test's choice.

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
        // There has to be clearly some room again.
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
        assert_eq!(
            ledger.take(3).map(|waiting| (waiting.attempt, waiting.packet)),
            Some((3, vec![2, 3]))
        );
        assert!(ledger.take(3).is_none() && !ledger.renew(&pair(3), &[2]));
        assert!(ledger.expired(now + PATIENCE - SECOND).is_none());
        let mut over = Vec::new();
        while let Some(waiting) = ledger.expired(now + PATIENCE + SECOND * 5) {
            over.push(waiting.attempt);
        }
        assert_eq!(over, [0, 1, 2, 4, 5]);
        assert_eq!(ledger.len(), 4);
        // The same pair may return.
        hold(&mut ledger, 0, now);
        assert!(ledger.renew(&pair(0), &[9]));
        let other: SocketAddr = "[fd00:1::2]:0".parse().expect("an address");
        assert!(!ledger.renew(&Pair::new(other, other), &[9]));
    }
}
