//! Connections to servers that were made, or begun, before their clients are accepted, for the
//! worker that accepts those (`weir intercept --connect first` and `syn`, docs/intercept.md).
//!
//! Their maker puts them here; a worker that is to connect a client to its original destination
//! asks here first. A lock is held for a look into a table. Where clients are accepted meanwhile,
//! it is also held for a non-blocking connect(2), so that a client is connected once. (With a mark
//! instead of the lock, a worker that comes meanwhile would find its client's port taken.) With
//! many locks a worker hardly ever waits for that of another client. Times are microseconds of the
//! clock of workers (`weir_io::clock_us`, except in the simulation). Bound: the maker's, which
//! counts the connections waiting here as its own; none waits longer than the maker says.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_io::{Driver, Outbound, is_over};
use weir_proxy::ending::Held;
use weir_proxy::observe::counters::Counters;

use crate::start::{ServerSeals, Setup};
use crate::worker::Worker;

/// The two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pair {
    client: SocketAddr,
    server: SocketAddr,
}

impl Pair {
    /// From this client to this server.
    pub fn new(client: SocketAddr, server: SocketAddr) -> Pair {
        // Without the additional fields of an IPv6 socket address.
        let plain = |address: SocketAddr| SocketAddr::new(address.ip(), address.port());
        Pair { client: plain(client), server: plain(server) }
    }

    /// The client's end.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// The server's end.
    pub fn server(&self) -> SocketAddr {
        self.server
    }
}

/// The number of locks: beginning a connect holds one of them.
const SHARDS: usize = 256;
/// How many clients are remembered that were accepted before their first packet was seen, by lock.
const PASSED_MAX: usize = 32;
/// For how long, microseconds.
const PASSED_US: u64 = 3_000_000;
/// The minimum age, in microseconds, at which an ended connection is not joined any more. Before
/// that, its end is the server's answer to this client: it refuses, or has said all that it had to
/// say. A first packet comes again after a second (RFC 6298 section 2). It may have been seen a
/// tenth late the first time, so no repeated one finds a connection that is younger.
const FRESH_US: u64 = 900_000;

/// A connection that waits for its client.
#[derive(Debug)]
struct Ready {
    since_us: u64,
    until_us: u64,
    socket: OwnedFd,
}

/// The outcome of a first packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// A connection was begun.
    Now,
    /// Nothing had to be done: a connection waits, or a worker has connected the client.
    Before,
    /// None could be begun.
    Not,
}

/// The connections under one lock.
#[derive(Debug, Default)]
struct Shard {
    ready: HashMap<Pair, Ready>,
    /// Clients that a worker connects, because no connection was here: until then no connection is
    /// begun for the first packet that is on its way here.
    passed: HashMap<Pair, u64>,
}

/// See the module.
#[derive(Debug)]
pub struct Prepared {
    shards: Box<[Mutex<Shard>]>,
    /// Maps each pair to its lock.
    hashes: RandomState,
    /// All that wait.
    waiting: AtomicUsize,
    /// Connections may be under way when they are put here, and clients may come before them.
    is_early: bool,
    /// First packets are sent to the listener alone: no connections are begun for them.
    lets_through: AtomicBool,
    /// No client is accepted any more.
    is_over: AtomicBool,
    /// First packets that are held.
    holding: AtomicU64,
    /// Outcomes of first packets since a worker last counted them, by [`Held`].
    ends: [AtomicU64; Held::ALL.len()],
    /// Connections from another port than their client's, since then.
    changed_ports: AtomicU64,
}

impl Default for Prepared {
    fn default() -> Prepared {
        Prepared {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hashes: RandomState::default(),
            waiting: AtomicUsize::default(),
            is_early: false,
            lets_through: AtomicBool::default(),
            is_over: AtomicBool::default(),
            holding: AtomicU64::default(),
            ends: Default::default(),
            changed_ports: AtomicU64::default(),
        }
    }
}

impl Prepared {
    /// For connections that are [begun](Prepared::begin) while clients are accepted.
    pub fn early() -> Prepared {
        Prepared { is_early: true, ..Prepared::default() }
    }

    /// Adds a connection that exists since `since_us`. It is reset if no worker has taken it by
    /// `until_us`.
    pub fn put(&self, pair: Pair, socket: OwnedFd, (since_us, until_us): (u64, u64)) {
        let mut shard = self.shard(&pair);
        if shard.ready.insert(pair, Ready { since_us, until_us, socket }).is_none() {
            self.waiting.fetch_add(1, Relaxed);
        }
    }

    /// Begins a connection, unless a live one waits for this pair, or a worker has connected it: a
    /// worker that comes at the same time finds it. The connection is reset if no worker has taken
    /// it by `until_us`. `make` makes a socket, without a lock; `connect` starts its connect
    /// without waiting.
    pub fn begin(
        &self,
        pair: Pair,
        (now_us, until_us): (u64, u64),
        make: impl FnOnce() -> io::Result<OwnedFd>,
        connect: impl FnOnce(OwnedFd) -> io::Result<OwnedFd>,
    ) -> Begun {
        if self.is_done(&mut self.shard(&pair), &pair, now_us) {
            return Begun::Before;
        }
        let made = make();
        let mut shard = self.shard(&pair);
        // A worker may have come meanwhile.
        if self.is_done(&mut shard, &pair, now_us) {
            return Begun::Before;
        }
        let Ok(socket) = made.and_then(connect) else { return Begun::Not };
        shard.ready.insert(pair, Ready { since_us: now_us, until_us, socket });
        self.waiting.fetch_add(1, Relaxed);
        Begun::Now
    }

    /// Whether a connection waits for this pair, or a worker has connected it. A connection that is
    /// over waits no more, and frees its port.
    fn is_done(&self, shard: &mut Shard, pair: &Pair, now_us: u64) -> bool {
        if let Some(ready) = shard.ready.get(pair) {
            if !is_over(&ready.socket) {
                return true;
            }
            shard.ready.remove(pair);
            self.waiting.fetch_sub(1, Relaxed);
            self.count(Held::Abandoned);
        }
        shard.passed.remove(pair).is_some_and(|until_us| now_us < until_us)
    }

    /// Whether a connection waits for this pair.
    pub fn has(&self, pair: &Pair) -> bool {
        self.shard(pair).ready.contains_key(pair)
    }

    /// Takes the connection for this pair, if one waits. Leaves out one that was begun if it was
    /// over some time ago.
    pub fn take(&self, pair: &Pair, now_us: u64) -> Option<OwnedFd> {
        let mut shard = self.shard(pair);
        let ready = shard.ready.remove(pair);
        if ready.is_some() {
            self.waiting.fetch_sub(1, Relaxed);
        } else if self.is_early
            && !self.lets_through.load(Relaxed)
            && shard.passed.len() < PASSED_MAX
        {
            shard.passed.insert(*pair, now_us + PASSED_US);
        }
        drop(shard);
        let is_current = |ready: &Ready| {
            !self.is_early
                || now_us.saturating_sub(ready.since_us) < FRESH_US
                || !is_over(&ready.socket)
        };
        ready.filter(is_current).map(|ready| ready.socket)
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Relaxed)
    }

    /// Resets those whose time is over.
    pub fn expire(&self, now_us: u64) {
        let mut over = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            if shard.ready.values().any(|ready| ready.until_us <= now_us) {
                over.extend(shard.ready.extract_if(|_, ready| ready.until_us <= now_us));
            }
            shard.passed.retain(|_, until_us| now_us < *until_us);
        }
        self.waiting.fetch_sub(over.len(), Relaxed);
        over.iter().for_each(|_| self.count(Held::Abandoned));
    }

    /// Sets whether first packets are sent to the listener alone from now on, so that none comes
    /// after its client.
    pub fn set_lets_through(&self, on: bool) {
        self.lets_through.store(on, Relaxed);
    }

    /// No worker accepts clients any more: the maker of connections has to stop.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    /// Whether that is so.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Counts the outcome of a first packet.
    pub fn count(&self, what: Held) {
        self.ends[what as usize].fetch_add(1, Relaxed);
    }

    /// A connection is made from another port than its client's, which was taken.
    pub fn count_changed_port(&self) {
        self.changed_ports.fetch_add(1, Relaxed);
    }

    /// Sets the number of first packets that are held.
    pub fn set_holding(&self, count: usize) {
        self.holding.store(count as u64, Relaxed);
    }

    /// Lets a worker count everything since the last count by any worker; the first worker also
    /// reports how many are held, or begun and wait.
    pub fn tell(&self, counters: &Counters, worker: u16) {
        for (what, since) in Held::ALL.into_iter().zip(&self.ends) {
            match since.swap(0, Relaxed) {
                0 => {}
                count => counters.tcp_held.count_many(what, count),
            }
        }
        match self.changed_ports.swap(0, Relaxed) {
            0 => {}
            count => counters.tcp_ports_changed.add(count),
        }
        if worker == 0 {
            let begun = if self.is_early { self.waiting() as u64 } else { 0 };
            counters.tcp_holding.set(begun + self.holding.load(Relaxed));
        }
    }

    fn shard(&self, pair: &Pair) -> MutexGuard<'_, Shard> {
        lock(&self.shards[self.hashes.hash_one(pair) as usize % SHARDS])
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A worker's means for connections to servers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dialing {
    /// Makes them speak TLS, by server over all upstreams; no entry, or None: they are plain.
    pub(crate) seals: ServerSeals,
    /// Connections that exist before they are requested, if a maker is configured.
    pub(crate) prepared: Option<Arc<Prepared>>,
}

impl Dialing {
    /// As a set-up says.
    pub(crate) fn of(setup: &Setup) -> Dialing {
        Dialing { seals: setup.server_seals.clone(), prepared: setup.prepared.clone() }
    }

    /// No client is accepted any more.
    pub(crate) fn end(&self) {
        self.prepared.iter().for_each(|prepared| prepared.end());
    }

    /// A connection that was to be made in this way, if it is already there, or under way.
    pub(crate) fn ready(&self, way: Outbound<'_>, to: SocketAddr, now_us: u64) -> Option<OwnedFd> {
        let prepared = self.prepared.as_ref().filter(|_| way.transparent)?;
        // A connect from any port follows an attempt from the client's port.
        let client = way.from.filter(|from| from.port() != 0)?;
        let ready = prepared.take(&Pair::new(client, to), now_us);
        match ready {
            Some(_) if prepared.is_early => prepared.count(Held::Early),
            Some(_) => {}
            None => prepared.count(Held::LetThrough),
        }
        ready
    }
}

impl<D: Driver> Worker<D> {
    /// Sets where it finds connections to servers that are made before their clients are accepted.
    pub fn set_prepared(&mut self, prepared: Arc<Prepared>) {
        self.dialing.prepared = Some(prepared);
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a connection is found only by both of its ends, once, and not after its time, nor
    //! when it was over; events are counted once, by the first worker that comes. How: with any
    //! descriptors.

    use super::*;

    const SECOND_US: u64 = 1_000_000;
    /// When tests begin.
    const NOW_US: u64 = 1_000 * SECOND_US;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn any() -> OwnedFd {
        std::fs::File::open("/dev/null").expect("a descriptor").into()
    }

    #[test]
    fn who_has_it_prepared_gets_it_once() {
        let (prepared, now) = (Arc::new(Prepared::default()), NOW_US);
        let dialing = Dialing { prepared: Some(Arc::clone(&prepared)), ..Dialing::default() };
        let (client, server) = (at("198.18.1.2:4000"), at("198.18.2.2:80"));
        let way = |from| Outbound { from: Some(from), transparent: true, ..Outbound::default() };
        prepared.put(Pair::new(client, server), any(), (now, now + 10 * SECOND_US));
        for (from, to) in [
            (at("198.18.1.2:4001"), server),
            (client, at("198.18.2.2:81")),
            (at("198.18.1.2:0"), server),
        ] {
            assert!(dialing.ready(way(from), to, NOW_US).is_none(), "{from} {to}");
        }
        assert!(
            dialing.ready(Outbound { transparent: false, ..way(client) }, server, NOW_US).is_none()
        );
        assert!(Dialing::default().ready(way(client), server, NOW_US).is_none());
        assert!(prepared.has(&Pair::new(client, server)) && prepared.waiting() == 1);
        assert!(dialing.ready(way(client), server, NOW_US).is_some());
        assert!(dialing.ready(way(client), server, NOW_US).is_none() && prepared.waiting() == 0);
        let counters = Counters::default();
        prepared.tell(&counters, 1);
        assert_eq!(
            counters.tcp_held.get("let-through"),
            3,
            "two others, and the one that came twice"
        );
    }

    #[test]
    fn nobody_waits_for_ever() {
        let (prepared, now) = (Prepared::default(), NOW_US);
        let pair =
            |port| Pair::new(SocketAddr::new([198, 18, 1, 2].into(), port), at("[fd00:2::2]:80"));
        for port in 1..=10 {
            prepared.put(pair(port), any(), (now, now + SECOND_US * u64::from(port)));
        }
        prepared.expire(now);
        assert_eq!(prepared.waiting(), 10);
        prepared.expire(now + 4 * SECOND_US);
        assert_eq!(prepared.waiting(), 6);
        assert!(!prepared.has(&pair(4)) && prepared.has(&pair(5)));
        let counters = [Counters::default(), Counters::default()];
        prepared.count(Held::Refused);
        prepared.set_holding(7);
        for (worker, counters) in counters.iter().enumerate().rev() {
            prepared.tell(counters, worker as u16);
        }
        let told = |counters: &Counters| {
            (counters.tcp_held.get("abandoned"), counters.tcp_held.get("refused"))
        };
        assert_eq!(counters.each_ref().map(told), [(0, 0), (4, 1)]);
        prepared.count_changed_port();
        counters.iter().for_each(|counters| prepared.tell(counters, 1));
        assert_eq!(counters.each_ref().map(|counters| counters.tcp_ports_changed.get()), [1, 0]);
        assert_eq!(counters.each_ref().map(|counters| counters.tcp_holding.get()), [7, 0]);
    }

    /// A first packet has come; `begins`: it is the first known one.
    fn begin(prepared: &Prepared, pair: Pair, times: (u64, u64), begins: bool) -> Begun {
        let make = || if begins { Ok(any()) } else { panic!("it is there, or was") };
        prepared.begin(pair, times, make, Ok)
    }

    #[test]
    fn a_client_is_connected_once() {
        let (prepared, now) = (Arc::new(Prepared::early()), NOW_US);
        let dialing = Dialing { prepared: Some(Arc::clone(&prepared)), ..Dialing::default() };
        let (client, server) = (at("198.18.1.2:4000"), at("198.18.2.2:80"));
        let (pair, times) = (Pair::new(client, server), (now, now + 10 * SECOND_US));
        let take = || {
            dialing.ready(
                Outbound { from: Some(client), transparent: true, ..Outbound::default() },
                server,
                NOW_US,
            )
        };
        let begin = |begins| begin(&prepared, pair, times, begins);
        // The first packet comes before the worker.
        assert_eq!([begin(true), begin(false)], [Begun::Now, Begun::Before]);
        assert!(take().is_some() && prepared.waiting() == 0);
        // It comes late, once; one that comes after it belongs to another client.
        assert!(take().is_none());
        assert_eq!(begin(false), Begun::Before);
        let taken = || Err(io::ErrorKind::AddrNotAvailable.into());
        assert_eq!(prepared.begin(pair, times, taken, Ok), Begun::Not);
        assert_eq!(prepared.begin(pair, times, || Ok(any()), |_| taken()), Begun::Not);
        assert!(prepared.waiting() == 0 && begin(true) == Begun::Now);
        assert!(take().is_some() && take().is_none());
        // It was lost.
        prepared.expire(NOW_US + PASSED_US);
        assert!(begin(true) == Begun::Now && prepared.waiting() == 1);
        prepared.expire(times.1);
        // A worker comes while a socket is made.
        let made = || Ok(any()).inspect(|_| assert!(take().is_none()));
        assert_eq!(prepared.begin(pair, times, made, |_| panic!("a worker has it")), Begun::Before);
        let counters = Counters::default();
        prepared.tell(&counters, 1);
        let told = ["early", "let-through", "abandoned", "connected"]
            .map(|word| counters.tcp_held.get(word));
        assert_eq!((told, prepared.waiting()), ([2, 3, 1, 0], 0));
    }

    /// A connection that is over.
    fn over() -> OwnedFd {
        std::os::unix::net::UnixStream::pair().expect("two sockets").0.into()
    }

    #[test]
    fn what_is_over_is_begun_anew() {
        let (prepared, now) = (Prepared::early(), NOW_US);
        let pair = Pair::new(at("198.18.1.2:4000"), at("198.18.2.2:80"));
        let times = (now, now + 10 * SECOND_US);
        let begin_over = || prepared.begin(pair, times, || Ok(over()), Ok);
        assert_eq!(
            [begin_over(), begin_over(), begin(&prepared, pair, times, true)],
            [Begun::Now; 3]
        );
        assert_eq!((begin(&prepared, pair, times, false), prepared.waiting()), (Begun::Before, 1));
        assert!(prepared.take(&pair, now + FRESH_US).is_some(), "it is not over");
        // A new end is the server's answer, an old one is not.
        assert_eq!(begin_over(), Begun::Now);
        assert!(prepared.take(&pair, now + FRESH_US - 1).is_some());
        assert_eq!(begin_over(), Begun::Now);
        assert!(prepared.take(&pair, now + FRESH_US).is_none() && prepared.waiting() == 0);
        // Where a client gets its server's answer, whatever that is.
        let first = Prepared::default();
        first.put(pair, over(), times);
        assert!(first.take(&pair, now + FRESH_US).is_some());
    }

    #[test]
    fn who_is_let_through_is_not_remembered() {
        let (prepared, now) = (Prepared::early(), NOW_US);
        let pair = Pair::new(at("198.18.1.2:4000"), at("198.18.2.2:80"));
        for (lets_through, begun) in [(true, Begun::Now), (false, Begun::Before)] {
            prepared.set_lets_through(lets_through);
            assert!(prepared.take(&pair, now).is_none());
            assert_eq!(begin(&prepared, pair, (now, now + PASSED_US), lets_through), begun);
            prepared.expire(now + PASSED_US);
        }
    }

    #[test]
    fn there_is_an_end_to_what_is_remembered() {
        let prepared = Prepared::early();
        for port in 0..=u16::MAX {
            let pair =
                Pair::new(SocketAddr::new([198, 18, 1, 2].into(), port), at("[fd00:2::2]:80"));
            prepared.take(&pair, NOW_US);
        }
        let most = prepared.shards.iter().map(|shard| lock(shard).passed.len()).max();
        assert_eq!(most, Some(PASSED_MAX));
    }
}
