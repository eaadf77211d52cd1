//! Decides which password is compared next, and which requests wait: guessing delays only the
//! addresses that guess, whatever names they try. Names have no lanes: that would lock out their
//! owners, and a full lane would reveal that the name exists. Pure. Called by `verify`.
//!
//! The next turn goes to the address with the fewest recent failures, of the address and its
//! network. So a user from elsewhere waits for one comparison, not for those of all guessing
//! clients, however many addresses they have. Among equals, the address with the fewest comparisons
//! under way is first, then the comparison that has waited longest. When all places are taken, a
//! newcomer with a better claim replaces the comparison with the worst.
//!
//! Bounds: [`LANE_MAX`] comparisons under way or waiting for one client; [`ALL_MAX`] of all;
//! [`REMEMBERED_MAX`] addresses with failures, and as many networks.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use weir_proxy::forward::shares::Lane;

/// Largest number of comparisons of one client: about a second of one thread with the hashes of
/// `weir passwd`.
pub(crate) const LANE_MAX: u32 = 16;
/// Largest number of comparisons of all clients.
pub(crate) const ALL_MAX: usize = 256;
/// Largest number of addresses with remembered failures, and of networks.
const REMEMBERED_MAX: usize = 8192;
/// Time after which half of the failures are forgotten.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// Factor by which a network may fail more often than one of its addresses, as a logarithm.
const NETWORK_BITS: u32 = 3;

/// Failures of an address, as bits, up to which it may still replace a worse one.
const FORGIVEN_BITS: u32 = 2;

/// Names a comparison.
pub(crate) type Ticket = u64;

/// Ranks comparisons, the worst last: the failures of the address or its network, those of the
/// address, its comparisons under way, the order of arrival.
type Claim = (u32, u32, u32, Ticket);

/// Comparisons under way or waiting, and the failures of clients.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    waiting: HashMap<Ticket, Lane>,
    /// By lane: the comparisons, and how many of them are under way.
    counts: HashMap<Lane, (u32, u32)>,
    under_way: usize,
    failures: Failures,
    networks: Failures,
}

/// Whether a comparison may wait for its turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// It waits.
    Waits,
    /// It waits, and replaces this comparison.
    InPlaceOf(Ticket),
    /// It is rejected for lack of room.
    Refused,
}

impl Lanes {
    /// Adds a comparison, which is later than all others. `now` must not go back.
    pub(crate) fn enter(&mut self, ticket: Ticket, lane: Lane, now: Instant) -> Entered {
        let places = self.counts.get(&lane).map_or(0, |(all, _)| *all);
        if places >= LANE_MAX {
            return Entered::Refused;
        }
        let mut entered = Entered::Waits;
        if self.waiting.len() + self.under_way >= ALL_MAX {
            // A client that guesses, or has an even share already, does not make weir search all of
            // them.
            let is_served = places as usize >= ALL_MAX / self.counts.len().max(1);
            if is_served || self.failures.bits(lane, now) > FORGIVEN_BITS {
                return Entered::Refused;
            }
            let worst =
                self.waiting.iter().map(|(ticket, lane)| self.claim(*ticket, *lane, now)).max();
            let worst = worst.filter(|worst| self.is_better(ticket, lane, *worst, now));
            let Some((_, _, _, last)) = worst else { return Entered::Refused };
            self.withdraw(last);
            entered = Entered::InPlaceOf(last);
        }
        self.waiting.insert(ticket, lane);
        self.counts.entry(lane).or_default().0 += 1;
        entered
    }

    /// Gives the next turn, which ends with [`Lanes::leave`].
    pub(crate) fn next(&mut self, now: Instant) -> Option<Ticket> {
        let best = self.waiting.iter().map(|(ticket, lane)| self.claim(*ticket, *lane, now)).min();
        let (.., ticket) = best?;
        let lane = self.waiting.remove(&ticket)?;
        self.counts.entry(lane).or_default().1 += 1;
        self.under_way += 1;
        Some(ticket)
    }

    /// Removes a waiting comparison that no longer needs its turn.
    pub(crate) fn withdraw(&mut self, ticket: Ticket) {
        if let Some(lane) = self.waiting.remove(&ticket) {
            self.forget(lane, 0);
        }
    }

    /// Ends a turn.
    pub(crate) fn leave(&mut self, lane: Lane) {
        self.under_way -= 1;
        self.forget(lane, 1);
    }

    /// Notes the outcome of a comparison.
    pub(crate) fn learn(&mut self, lane: Lane, is_right: bool, now: Instant) {
        self.failures.learn(lane, is_right, now);
        self.networks.learn(lane.network(), is_right, now);
    }

    fn forget(&mut self, lane: Lane, under_way: u32) {
        let Some((all, mine)) = self.counts.get_mut(&lane) else { return };
        (*all, *mine) = (*all - 1, *mine - under_way);
        if *all == 0 {
            self.counts.remove(&lane);
        }
    }

    fn claim(&self, ticket: Ticket, lane: Lane, now: Instant) -> Claim {
        let own = self.failures.bits(lane, now);
        let of_network = self.networks.bits(lane.network(), now).saturating_sub(NETWORK_BITS);
        let under_way = self.counts.get(&lane).map_or(0, |(_, under_way)| *under_way);
        (own.max(of_network), own, under_way, ticket)
    }

    /// Whether a newcomer should replace another comparison: it has failed less, or equally and its
    /// address has fewer places.
    fn is_better(&self, ticket: Ticket, lane: Lane, worst: Claim, now: Instant) -> bool {
        let claim = self.claim(ticket, lane, now);
        let places = |lane: &Lane| self.counts.get(lane).map_or(0, |(all, _)| *all);
        let of_worst = self.waiting.get(&worst.3).map_or(0, places);
        (claim.0, claim.1) < (worst.0, worst.1)
            || (claim.0, claim.1) == (worst.0, worst.1) && places(&lane) + 1 < of_worst
    }
}

/// Recent failures: by lane a count, and the start of its current half-life.
#[derive(Debug, Default)]
struct Failures(HashMap<Lane, (u32, Instant)>);

impl Failures {
    /// Returns the rest of a count now, and the start of its current half-life. Only whole
    /// half-lives count: a count that grows within each half-life would never be halved if a
    /// failure restarted it.
    fn left((count, since): (u32, Instant), now: Instant) -> (u32, Instant) {
        let lives = now.saturating_duration_since(since).as_secs() / HALF_LIFE.as_secs();
        let lives = lives.try_into().unwrap_or(u32::MAX);
        match count.checked_shr(lives) {
            None | Some(0) => (0, now),
            Some(left) => (left, since + HALF_LIFE * lives),
        }
    }

    fn count(known: (u32, Instant), now: Instant) -> u32 {
        Failures::left(known, now).0
    }

    /// Returns the bits of the count: a client with twice as many failures is worse.
    fn bits(&self, lane: Lane, now: Instant) -> u32 {
        self.0
            .get(&lane)
            .map_or(0, |known| u32::BITS - Failures::count(*known, now).leading_zeros())
    }

    fn learn(&mut self, lane: Lane, is_right: bool, now: Instant) {
        let (before, since) =
            self.0.get(&lane).map_or((0, now), |known| Failures::left(*known, now));
        // A client with a valid password does not gain many guesses by it.
        let count = if is_right { before.div_ceil(2) } else { before.saturating_add(1) };
        if count == 0 || is_right && before <= 1 {
            self.0.remove(&lane);
            return;
        }
        if self.0.len() >= REMEMBERED_MAX && !self.0.contains_key(&lane) {
            self.0.retain(|_, known| Failures::count(*known, now) > 0);
            let least =
                self.0.iter().map(|(lane, known)| (Failures::count(*known, now), *lane)).min();
            if self.0.len() >= REMEMBERED_MAX
                && let Some((_, least)) = least
            {
                self.0.remove(&least);
            }
        }
        self.0.insert(lane, (count, since));
    }
}

#[cfg(test)]
mod tests {
    //! Proves: one client takes no more than its share; all are bounded; a client that guesses
    //! waits behind others, and gives its place to them. How: counting, with a clock under the
    //! test's control.

    use super::*;
    use std::net::IpAddr;

    fn lane(address: &str) -> Lane {
        Lane::of(address.parse().unwrap())
    }

    fn of_number(n: u32) -> Lane {
        Lane::of(IpAddr::V4((0x0a00_0000 + n).into()))
    }

    /// Returns how many of a hundred comparisons of a client find room.
    fn fill(lanes: &mut Lanes, from: Ticket, lane: Lane, now: Instant) -> usize {
        (from..from + 100)
            .filter(|ticket| lanes.enter(*ticket, lane, now) != Entered::Refused)
            .count()
    }

    #[test]
    fn one_client_leaves_room_for_others() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        assert_eq!(fill(&mut lanes, 0, lane("192.0.2.1"), now), 16);
        assert_eq!(lanes.enter(200, lane("::ffff:192.0.2.1"), now), Entered::Refused);
        assert_eq!(lanes.enter(201, lane("192.0.2.2"), now), Entered::Waits);
        assert_eq!(
            (lanes.next(now), lanes.next(now)),
            (Some(0), Some(201)),
            "who has nothing under way is next"
        );
        lanes.leave(lane("192.0.2.1"));
        assert_eq!(lanes.enter(202, lane("192.0.2.1"), now), Entered::Waits);
        assert_eq!(fill(&mut lanes, 300, lane("2001:db8::1"), now), 16);
        assert_eq!(lanes.enter(500, lane("2001:db8::2"), now), Entered::Refused);
        assert_eq!(lanes.enter(501, lane("2001:db8:0:1::"), now), Entered::Waits);
    }

    #[test]
    fn there_is_room_for_so_many() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        let entered = |n: &u32| lanes.enter((*n).into(), of_number(*n), now) == Entered::Waits;
        assert_eq!((0..1000_u32).filter(entered).count(), ALL_MAX);
        while let Some(ticket) = lanes.next(now) {
            lanes.leave(of_number(ticket as u32));
        }
        assert!(lanes.counts.is_empty() && lanes.waiting.is_empty() && lanes.under_way == 0);
    }

    /// Sixty-four addresses have taken all places and keep trying for a long time.
    #[test]
    fn who_guesses_is_behind_who_does_not() {
        let (mut lanes, mut guesses, now) = (Lanes::default(), Vec::new(), Instant::now());
        let guess = |lanes: &mut Lanes, guesses: &mut Vec<Lane>, n: u32| {
            guesses.push(of_number(n));
            lanes.enter(guesses.len() as Ticket - 1, of_number(n), now)
        };
        for _ in 0..1000 {
            (0..64).for_each(|n| _ = guess(&mut lanes, &mut guesses, n));
            let next = guesses[lanes.next(now).expect("they wait") as usize];
            lanes.learn(next, false, now);
            lanes.leave(next);
        }
        for n in 0..64 {
            while guess(&mut lanes, &mut guesses, n) != Entered::Refused {}
        }
        let honest = 1_000_000;
        assert!(matches!(lanes.enter(honest, lane("192.0.2.1"), now), Entered::InPlaceOf(_)));
        assert_eq!(lanes.next(now), Some(honest), "at once");
        // The same from one network, if only the network has failed.
        assert!(matches!(lanes.enter(honest + 1, lane("10.0.0.200"), now), Entered::InPlaceOf(_)));
        assert_eq!(lanes.next(now), Some(honest + 1));
        // Another address of the guessing network is behind one from elsewhere.
        lanes.enter(honest + 2, lane("10.0.0.201"), now);
        lanes.enter(honest + 3, lane("192.0.2.77"), now);
        assert_eq!((lanes.next(now), lanes.next(now)), (Some(honest + 3), Some(honest + 2)));
    }

    #[test]
    fn what_has_failed_is_forgotten() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        let who = lane("192.0.2.1");
        (0..8).for_each(|_| lanes.learn(who, false, now));
        assert_eq!(
            (lanes.failures.bits(who, now), lanes.networks.bits(who.network(), now)),
            (4, 4)
        );
        assert_eq!(lanes.failures.bits(who, now + HALF_LIFE), 3);
        assert_eq!(lanes.failures.bits(who, now + 10 * HALF_LIFE), 0);
        lanes.learn(who, true, now);
        assert_eq!(lanes.failures.bits(who, now), 3);
        (0..3).for_each(|_| lanes.learn(who, true, now));
        assert_eq!(lanes.failures.bits(who, now), 0);
        for n in 0..REMEMBERED_MAX as u32 + 100 {
            lanes.learn(of_number(n * 256), false, now);
        }
        assert_eq!(
            (lanes.failures.0.len(), lanes.networks.0.len()),
            (REMEMBERED_MAX, REMEMBERED_MAX)
        );
    }

    /// Users behind one address fail now and then: that is forgotten as fast as it comes, whatever
    /// the gaps are.
    #[test]
    fn who_fails_now_and_then_is_forgiven() {
        let start = Instant::now();
        for (gap_s, most) in [(1, 128), (20, 8), (59, 4), (60, 2), (61, 2), (119, 2)] {
            let (mut lanes, who) = (Lanes::default(), lane("192.0.2.1"));
            for at_s in (0..24 * 3600).step_by(gap_s) {
                let now = start + Duration::from_secs(at_s);
                lanes.learn(who, false, now);
                let count = Failures::count(lanes.failures.0[&who], now);
                assert!(count <= most, "{count} failures are remembered of one each {gap_s} s");
            }
            let later = start + Duration::from_secs(26 * 3600);
            assert_eq!(lanes.failures.bits(who, later), 0);
        }
        let (mut lanes, who) = (Lanes::default(), lane("192.0.2.1"));
        lanes.failures.0.insert(who, (u32::MAX, start));
        lanes.learn(who, false, start);
        assert_eq!(lanes.failures.0[&who], (u32::MAX, start), "a count ends at its largest");
        lanes.learn(who, false, start + 31 * HALF_LIFE + Duration::from_secs(7));
        assert_eq!(lanes.failures.0[&who], (2, start + 31 * HALF_LIFE));
    }
}
