//! Connections to servers that were made before their clients are accepted, for whichever worker accepts those (`weir intercept --connect first`,
//! docs/semantics.md §24).
//!
//! Who makes them puts them here; a worker that is to connect a client to where it wanted to asks here first. The lock is held for a look into a table.
//! Bound: the maker's, who counts what waits here among what it has; none waits for longer than it says.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weir_io::Outbound;
use weir_proxy::ending::Held;
use weir_proxy::observe::counters::Counters;

use crate::start::{ServerSeals, Setup};

/// Between whom a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pair {
    client: SocketAddr,
    server: SocketAddr,
}

impl Pair {
    /// From this client to this server.
    pub fn new(client: SocketAddr, server: SocketAddr) -> Pair {
        // Without what sockets may say of IPv6 besides.
        let plain = |address: SocketAddr| SocketAddr::new(address.ip(), address.port());
        Pair { client: plain(client), server: plain(server) }
    }

    /// Whose it is.
    pub fn client(&self) -> SocketAddr {
        self.client
    }

    /// Where it leads.
    pub fn server(&self) -> SocketAddr {
        self.server
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Prepared {
    ready: Mutex<HashMap<Pair, (Instant, OwnedFd)>>,
    /// No client is accepted any more.
    is_over: AtomicBool,
    /// First packets that are held.
    holding: AtomicU64,
    /// What came of first packets since a worker has counted them, by [`Held`].
    ends: [AtomicU64; Held::ALL.len()],
    /// Connections from another port than their client's, since then.
    changed_ports: AtomicU64,
}

impl Prepared {
    /// A connection is there, which is reset when nobody has wanted it until then.
    pub fn put(&self, pair: Pair, socket: OwnedFd, until: Instant) {
        let before = self.ready().insert(pair, (until, socket));
        drop(before);
    }

    /// Whether one waits between these.
    pub fn has(&self, pair: &Pair) -> bool {
        self.ready().contains_key(pair)
    }

    /// The one between these, if it waits.
    pub fn take(&self, pair: &Pair) -> Option<OwnedFd> {
        self.ready().remove(pair).map(|(_, socket)| socket)
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.ready().len()
    }

    /// Resets those whose time is over.
    pub fn expire(&self, now: Instant) {
        let mut over = Vec::new();
        let mut ready = self.ready();
        if ready.values().any(|(until, _)| *until <= now) {
            over.extend(ready.extract_if(|_, (until, _)| *until <= now));
        }
        drop(ready);
        over.iter().for_each(|_| self.count(Held::Abandoned));
    }

    /// No worker accepts clients any more: whoever makes connections has to stop.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Relaxed);
    }

    /// Whether that is so.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Something has come of a first packet.
    pub fn count(&self, what: Held) {
        self.ends[what as usize].fetch_add(1, Relaxed);
    }

    /// A connection is made from another port than its client's, which was taken.
    pub fn count_changed_port(&self) {
        self.changed_ports.fetch_add(1, Relaxed);
    }

    /// So many first packets are held.
    pub fn set_holding(&self, count: usize) {
        self.holding.store(count as u64, Relaxed);
    }

    /// Has a worker count what has happened since any has; the first one also says how many are held.
    pub(crate) fn tell(&self, counters: &Counters, worker: u16) {
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
            counters.tcp_holding.set(self.holding.load(Relaxed));
        }
    }

    fn ready(&self) -> MutexGuard<'_, HashMap<Pair, (Instant, OwnedFd)>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a worker has for connections to servers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dialing {
    /// What makes them speak TLS, by server over all upstreams; no entry, or None: nothing.
    pub(crate) seals: ServerSeals,
    /// Those that are there before they are asked for, if anybody makes some.
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

    /// A connection that was to be made in this way, if it is there already.
    pub(crate) fn ready(&self, way: Outbound<'_>, to: SocketAddr) -> Option<OwnedFd> {
        let prepared = self.prepared.as_ref().filter(|_| way.transparent)?;
        // From any port is one that was tried from that of its client.
        let client = way.from.filter(|from| from.port() != 0)?;
        let ready = prepared.take(&Pair::new(client, to));
        if ready.is_none() {
            prepared.count(Held::LetThrough);
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a connection is found by both of its ends alone, once, and not after its time; what happened is counted once, by whoever comes first.
    //! How: with any descriptors.

    use std::time::Duration;

    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn any() -> OwnedFd {
        std::fs::File::open("/dev/null").expect("a descriptor").into()
    }

    #[test]
    fn who_has_it_prepared_gets_it_once() {
        let (prepared, now) = (Arc::new(Prepared::default()), Instant::now());
        let dialing = Dialing { prepared: Some(Arc::clone(&prepared)), ..Dialing::default() };
        let (client, server) = (at("198.18.1.2:4000"), at("198.18.2.2:80"));
        let way = |from| Outbound { from: Some(from), transparent: true, ..Outbound::default() };
        prepared.put(Pair::new(client, server), any(), now + Duration::from_secs(10));
        for (from, to) in [(at("198.18.1.2:4001"), server), (client, at("198.18.2.2:81")), (at("198.18.1.2:0"), server)]
        {
            assert!(dialing.ready(way(from), to).is_none(), "{from} {to}");
        }
        assert!(dialing.ready(Outbound { transparent: false, ..way(client) }, server).is_none());
        assert!(Dialing::default().ready(way(client), server).is_none());
        assert!(prepared.has(&Pair::new(client, server)) && prepared.waiting() == 1);
        assert!(dialing.ready(way(client), server).is_some());
        assert!(dialing.ready(way(client), server).is_none() && prepared.waiting() == 0);
        let counters = Counters::default();
        prepared.tell(&counters, 1);
        assert_eq!(counters.tcp_held.get("let-through"), 3, "two others, and the one that came twice");
    }

    #[test]
    fn nobody_waits_for_ever() {
        let (prepared, now) = (Prepared::default(), Instant::now());
        let pair = |port| Pair::new(SocketAddr::new([198, 18, 1, 2].into(), port), at("[fd00:2::2]:80"));
        for port in 1..=10 {
            prepared.put(pair(port), any(), now + Duration::from_secs(port.into()));
        }
        prepared.expire(now);
        assert_eq!(prepared.waiting(), 10);
        prepared.expire(now + Duration::from_secs(4));
        assert_eq!(prepared.waiting(), 6);
        assert!(!prepared.has(&pair(4)) && prepared.has(&pair(5)));
        let counters = [Counters::default(), Counters::default()];
        prepared.count(Held::Refused);
        prepared.set_holding(7);
        for (worker, counters) in counters.iter().enumerate().rev() {
            prepared.tell(counters, worker as u16);
        }
        let told = |counters: &Counters| (counters.tcp_held.get("abandoned"), counters.tcp_held.get("refused"));
        assert_eq!(counters.each_ref().map(told), [(0, 0), (4, 1)]);
        prepared.count_changed_port();
        counters.iter().for_each(|counters| prepared.tell(counters, 1));
        assert_eq!(counters.each_ref().map(|counters| counters.tcp_ports_changed.get()), [1, 0]);
        assert_eq!(counters.each_ref().map(|counters| counters.tcp_holding.get()), [7, 0]);
    }
}
