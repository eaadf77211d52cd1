//! What must hold between any two turns, whatever happened: one pass over all machines of a worker.
//!
//! Called by simulations and tests after each turn; nothing else pays for it. A broken promise is found at the turn that broke
//! it, not when a client notices. Bounds are those of docs/buffers.md.

use super::{Engine, HIGH_BYTES};
use crate::base::keys::{ClientKey, ExchangeKey, Key};
use crate::client::connection::{ClientConn, Phase, Reading};
use crate::request::pending_request::ExchangeId;
use crate::upstream::connection::{LinkState, UpstreamConn};
use crate::upstream::server::STALLED_MAX;

/// What one receive may add to anything after its source was told to stop.
const RECEIVE_BYTES_MAX: usize = 64 * 1024;
/// Unparsed bytes of a client above which it is not read, and what one turn receives of it.
const STASH_BYTES_MAX: usize = 64 * 1024 + 256 * 4096;

impl Engine {
    /// Looks for states that can't be. Call when all actions of a turn were taken.
    ///
    /// # Errors
    /// A bug of weir's: the first promise that is broken, in words.
    pub fn audit(&self) -> Result<(), String> {
        self.audit_servers()?;
        for index in self.links.keys() {
            self.audit_link(self.links.at(index)).map_err(|text| format!("upstream connection {index}: {text}"))?;
        }
        let mut exchanges = 0;
        for index in self.sessions.keys() {
            let session = self.sessions.at(index);
            exchanges += session.queued as usize;
            self.audit_session(index, session).map_err(|text| format!("client {index}: {text}"))?;
        }
        equal("requests of all clients", exchanges, self.exchanges.len())?;
        self.audit_carriers()?;
        self.audit_own()?;
        self.audit_gauges()
    }

    /// Looks for queues that hold more bytes than docs/buffers.md allows, with receives of at most 64 KiB of a server and 1 MiB of
    /// a client in a turn. Call when all actions of a turn were taken.
    ///
    /// # Errors
    /// A bug of weir's: the first bound that is passed, in words.
    pub fn audit_bytes(&self) -> Result<(), String> {
        for link in self.links.keys().map(|index| self.links.at(index)) {
            at_most("bytes of a body for a server", link.body.len(), HIGH_BYTES + 4 * RECEIVE_BYTES_MAX)?;
        }
        // Each request of a client may be answered by another connection, which stops one receive late.
        let late = (self.plan.client.requests_queued_max as usize + 4) * RECEIVE_BYTES_MAX;
        for session in self.sessions.keys().map(|index| self.sessions.at(index)) {
            at_most("bytes unsent for a client", session.unsent(), HIGH_BYTES + late)?;
            let stashed = session.stash.as_ref().map_or(0, |stash| stash.bytes.len() - stash.start);
            at_most("bytes of a client unparsed", stashed, STASH_BYTES_MAX)?;
        }
        Ok(())
    }

    fn audit_servers(&self) -> Result<(), String> {
        for index in self.servers.keys().iter() {
            let server = &self.servers[index];
            let mine = || self.links.keys().map(|link| self.links.at(link)).filter(|link| link.server == index);
            let ready = mine().filter(|link| link.is_ready()).count();
            let asked: usize = mine().map(|link| link.entries.len()).sum();
            equal("connections that are up", ready, server.ready as usize)?;
            equal("requests on connections", asked, server.inflight as usize)?;
            let pooled = || mine().filter(|link| link.owner.is_none() && link.state != LinkState::Tunnel);
            equal("connections of the pool", pooled().count(), server.links.len())?;
            let made = pooled().filter(|link| link.is_ready() || link.is_coming()).count() as u32;
            at_most("connections", made as usize, (server.limits.all + STALLED_MAX) as usize)?;
            at_most("requests at a server", asked + server.waiting.len(), server.capacity as usize)?;
            let placed = |link: &&UpstreamConn| server.is_near(link.position).is_some() && !link.is_ready();
            equal("places of connections that are not up", pooled().filter(placed).count(), 0)?;
            let gone = server.links.iter().find(|link| !self.links.is_occupied(**link));
            gone.map_or(Ok(()), |link| Err(format!("server {index} has lost its connection {link}")))?;
        }
        Ok(())
    }

    fn audit_link(&self, link: &UpstreamConn) -> Result<(), String> {
        let plan = &self.plan.upstreams[usize::from(self.servers[link.server].upstream)];
        at_most("unanswered requests", link.entries.len(), plan.queue_size as usize)?;
        if link.state == LinkState::Tunnel {
            return Ok(());
        }
        let unfollowed = |entry: &crate::upstream::entry::Entry| entry.ask.traits.is_unfollowed();
        if let Some(at) = link.entries.iter().position(unfollowed)
            && (at + 1 < link.entries.len() && !link.nudged || !link.hold)
        {
            return Err(format!("request {at} of {} must not be followed", link.entries.len()));
        }
        let alone = |entry: &crate::upstream::entry::Entry| entry.ask.traits.goes_alone();
        if let Some(at) = link.entries.iter().position(alone)
            && link.entries.len() > 1
        {
            return Err(format!("request {at} of {} must go alone", link.entries.len()));
        }
        let mut end = 0;
        for entry in &link.entries {
            if entry.start < end {
                return Err("two requests share bytes of the log".to_owned());
            }
            end = entry.start + u64::from(entry.len);
        }
        at_most("bytes of the last request", end as usize, link.log.end() as usize)?;
        if link.entries.is_empty() && link.is_ready() && !link.log.is_empty() {
            return Err(format!("{} bytes kept of requests that are answered", link.log.len()));
        }
        Ok(())
    }

    fn audit_session(&self, index: ClientKey, session: &ClientConn) -> Result<(), String> {
        let (mut slot, mut last, mut count, mut held) = (session.first, ExchangeKey::NONE, 0, 0);
        while slot != ExchangeKey::NONE && count <= session.queued {
            let exchange = self.exchanges.at(slot);
            equal("its request belongs to client", exchange.session.index(), index.index())?;
            if slot != session.first {
                held += exchange.held.len();
            }
            (last, slot, count) = (slot, exchange.next, count + 1);
        }
        equal("requests in the list", count as usize, session.queued as usize)?;
        equal("the last request", last.index(), session.last.index())?;
        equal("bytes of answers that wait", held, session.held_bytes as usize)?;
        // A refusal stands behind as many requests as there may be.
        at_most("unanswered requests", count as usize, self.plan.client.requests_queued_max as usize + 1)?;
        self.audit_patience(session)
    }

    /// Every wait has its timer. A small send has none of its own: the one that is set anyway covers it.
    fn audit_patience(&self, session: &ClientConn) -> Result<(), String> {
        let due_us = self.deadline(session);
        if due_us < session.armed_us && !session.flags.sending {
            return Err(format!("its patience ends at {due_us} us, its timer comes at {} us", session.armed_us));
        }
        Ok(())
    }

    /// What this worker carries for its own clients is carried once; with one worker nothing is forgotten either.
    fn audit_carriers(&self) -> Result<(), String> {
        let mut carried = vec![0; self.exchanges.slots()];
        let mut carry = |id: ExchangeId| {
            if id.worker == self.worker && self.exchanges.holds(id.index, id.generation) {
                carried[id.index.index()] += 1;
            }
        };
        for link in self.links.keys().map(|index| self.links.at(index)) {
            link.entries.iter().filter(|entry| !entry.cancelled).for_each(|entry| carry(entry.ask.id));
            link.peer.into_iter().for_each(&mut carry);
        }
        self.servers.iter().flat_map(|server| server.waiting.iter()).for_each(|waiting| carry(waiting.ask.id));
        self.groups.iter().flat_map(|group| group.quarantine.waiting.iter()).for_each(|waiting| carry(waiting.ask.id));
        self.approaches().for_each(|approach| carry(approach.waiting.ask.id));
        for slot in self.exchanges.keys() {
            let (phase, count) = (self.exchanges.at(slot).phase, carried[slot.index()]);
            let exchange = self.exchanges.at(slot);
            let is_first = self.sessions.at(exchange.session).first == slot;
            let unseen = phase == Phase::Waiting || phase == Phase::Answering && !is_first;
            if exchange.kept.is_some() && !(unseen && exchange.asked != self.worker) {
                return Err(format!(
                    "request {slot} ({phase:?}) is kept although no other worker has it or its client has seen some of the answer"
                ));
            }
            let reading = self.sessions.at(self.exchanges.at(slot).session).reading;
            // A tunnel whose server has ended both directions goes on until its client has everything.
            let awaited = phase == Phase::Waiting || phase == Phase::Answering && reading != Reading::Tunnel;
            let least = usize::from(awaited && self.workers == 1);
            if count > 1 || count < least {
                return Err(format!("request {slot} ({phase:?}) is at {count} places"));
            }
        }
        Ok(())
    }

    /// Connections of clients are known to their clients, and only to those; a tunnel that the driver moves has no other
    /// connection.
    fn audit_own(&self) -> Result<(), String> {
        let mut relays = vec![0; self.servers.len()];
        for index in self.sessions.keys() {
            let Some(relay) = &self.sessions.at(index).relay else { continue };
            relays[relay.server.index()] += 1;
            if self.sessions.at(index).reading != Reading::Tunnel || self.tunnel_link(index).is_some() {
                return Err(format!("the tunnel of client {index} is the driver's and the engine's"));
            }
        }
        let counted: Vec<u32> = self.servers.iter().map(|server| server.relays).collect();
        if counted != relays {
            return Err(format!("tunnels of the driver by server: {counted:?}, should be {relays:?}"));
        }
        for index in self.links.keys() {
            let (link, name) = (self.links.at(index), (index, self.links.generation(index)));
            let Some(owner) = link.owner.filter(|_| link.state != LinkState::Tunnel) else { continue };
            if !self.sessions.holds(owner.session, owner.generation) {
                return Err(format!("upstream connection {index} has outlived its client"));
            }
            let own = self.sessions.at(owner.session).own.as_deref();
            let kept = own.is_some_and(|own| own.links.iter().any(|link| (link.index, link.generation) == name));
            let tried = own.and_then(|own| own.approach.as_ref()).is_some_and(|one| one.attempts.contains(&name));
            if !(kept || tried) {
                return Err(format!("upstream connection {index} is unknown to its client"));
            }
        }
        Ok(())
    }

    fn audit_gauges(&self) -> Result<(), String> {
        let quarantined: usize = self.groups.iter().map(|group| group.quarantine.waiting.len()).sum();
        let waiting = quarantined
            + self.approaches().count()
            + self.servers.iter().map(|server| server.waiting.len()).sum::<usize>();
        let parked = self.approaches().filter(|approach| approach.retry_us != u64::MAX).count();
        equal("requests that wait for another round of connects", self.parked as usize, parked)?;
        let asked: usize = self.servers.iter().map(|server| server.inflight as usize).sum();
        let ready: usize = self.servers.iter().map(|server| server.ready as usize).sum();
        equal("queue_waiting", self.counters.queue_waiting.get() as usize, waiting)?;
        equal("in_flight", self.counters.in_flight.get() as usize, asked)?;
        equal("upstream_connections", self.counters.upstream_connections.get() as usize, ready)?;
        equal("client_connections", self.counters.client_connections.get() as usize, self.sessions.len())
    }
}

fn equal(what: &str, seen: usize, expected: usize) -> Result<(), String> {
    if seen == expected { Ok(()) } else { Err(format!("{what}: {seen}, should be {expected}")) }
}

fn at_most(what: &str, seen: usize, most: usize) -> Result<(), String> {
    if seen <= most { Ok(()) } else { Err(format!("{what}: {seen}, at most {most}")) }
}
