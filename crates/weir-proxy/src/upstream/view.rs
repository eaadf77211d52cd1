//! The input of a choice: all servers, the connections to them, and what other workers publish
//! about theirs.
//!
//! Nothing can be changed through it. [`super::choose`] uses it to decide which server gets a
//! request, and [`super::pick`] which of that server's connections. Both rely on one fact: how soon
//! a server could have a request, and by whom ([`Prospect`]). Made for one question
//! ([`Groups::view`](super::groups::Groups::view)), which costs nothing.

use super::choose::Way;
use super::groups::Group;
use crate::base::keys::{ConnKey, Key, ServerIndex};
use crate::base::slab::Slab;
use crate::base::table::Table;
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::hints::Hints;
use crate::plan::AllDown;
use crate::request::pending_request::{PendingRequest, RequestFlags};
use crate::upstream::connection::{ConnState, UpstreamConn};
use crate::upstream::server::Server;

/// A connect under way for less than this is waited for rather than using a backup.
const COMING_US: u64 = 50_000;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) conns: &'a Slab<ConnKey, UpstreamConn>,
    pub(super) servers: &'a Table<ServerIndex, Server>,
    pub(super) groups: &'a [Group],
    pub(super) hints: &'a Hints,
    pub(super) cx: &'a Context,
}

/// How soon a server could have a request, and by whom, whatever else speaks against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prospect {
    /// Now, on connections of this worker: one is up, or can be made as far as is known, and it has
    /// room.
    Here,
    /// Now, on connections of that worker.
    Elsewhere(u16),
    /// When this worker's next connect succeeds.
    Later,
    /// When a connect of that worker succeeds, which owns all connections.
    Owner(u16),
    /// Not as far as is known.
    Never,
}

impl Prospect {
    /// Whether it would be served now.
    pub(super) fn is_now(self) -> bool {
        matches!(self, Prospect::Here | Prospect::Elsewhere(_))
    }

    /// By whom.
    pub(super) fn way(self) -> Option<Way> {
        match self {
            Prospect::Here | Prospect::Later => Some(Way::Here),
            Prospect::Elsewhere(worker) | Prospect::Owner(worker) => Some(Way::Worker(worker)),
            Prospect::Never => None,
        }
    }
}

impl View<'_> {
    /// Returns the server that a request is for.
    pub(super) fn server_index(&self, ask: &PendingRequest) -> ServerIndex {
        self.groups[usize::from(ask.upstream)].server(ask.server)
    }

    /// Returns how soon a server could have a request that was received then. Another worker may
    /// serve it only if it may move (`cross`).
    #[inline]
    pub(super) fn prospect(&self, server: ServerIndex, cross: bool, received_us: u64) -> Prospect {
        let machine = &self.servers[server];
        let here = match machine.mode.private {
            true => self.cx.now_us >= machine.contact.away_until_us,
            false => (machine.ready > 0 || self.is_hopeful(server)) && !machine.is_full(),
        };
        if here {
            Prospect::Here
        } else if let Some(worker) = self.able_elsewhere(server).filter(|_| cross) {
            Prospect::Elsewhere(worker)
        } else if self.may_come_up_for(server, received_us) {
            Prospect::Later
        } else if let Some(worker) = self.owner_elsewhere(server).filter(|_| cross) {
            Prospect::Owner(worker)
        } else {
            Prospect::Never
        }
    }

    /// Whether a request for this server would be served now.
    pub(super) fn is_up(&self, server: ServerIndex) -> bool {
        self.servers[server].standing.takes_new() && self.prospect(server, true, 0).is_now()
    }

    /// Whether one of this worker's connections to another server of the upstream may take a
    /// request for this server.
    pub(super) fn has_other(&self, server: ServerIndex) -> bool {
        let group = &self.groups[usize::from(self.servers[server].upstream)].servers;
        let takes = |other: ServerIndex| {
            self.servers[other].standing.takes_new()
                && self.prospect(other, false, 0) == Prospect::Here
        };
        group.iter().any(|other| other != server && takes(other))
    }

    /// Whether requests are sent to this suspended server for want of a better one.
    pub(super) fn is_last_resort(&self, server: ServerIndex) -> bool {
        let machine = &self.servers[server];
        machine.standing.may_be_tried()
            && self.cx.plan.upstreams[usize::from(machine.upstream)].all_down == AllDown::TryAll
    }

    pub(super) fn is_backup(&self, server: ServerIndex) -> bool {
        let machine = &self.servers[server];
        self.cx.plan.upstreams[usize::from(machine.upstream)].servers[usize::from(machine.index)]
            .backup
    }

    /// Whether the server to which a session is bound can have its request. Where it may have no
    /// other, it may wait.
    pub(super) fn is_bound_usable(&self, ask: &PendingRequest) -> bool {
        let server = self.groups[usize::from(ask.upstream)].server(ask.bound);
        self.servers[server].standing.accepts_bound()
            && match self.prospect(server, true, ask.received_us) {
                Prospect::Here | Prospect::Elsewhere(_) => true,
                Prospect::Later | Prospect::Owner(_) => {
                    ask.traits.has(RequestFlags::BOUND) || self.is_coming(server)
                }
                Prospect::Never => false,
            }
    }

    /// Whether requests for this server may wait for its next connect: none has failed, or it was
    /// in use a moment ago and may be restarting.
    #[inline]
    pub(super) fn may_come_up(&self, server: ServerIndex) -> bool {
        self.may_come_up_for(server, 0)
    }

    /// The same for a request that was received then. It also waits for the first connect that ends
    /// after that, to find out whether the server is back.
    #[inline]
    pub(super) fn may_come_up_for(&self, server: ServerIndex, received_us: u64) -> bool {
        let machine = &self.servers[server];
        if machine.mode.private {
            return machine.standing.keeps_connections();
        }
        let contact = &machine.contact;
        let failures_max =
            self.cx.plan.upstreams[usize::from(machine.upstream)].connects_failed_max();
        let is_awaited = || contact.is_awaited(self.hints.awaited_until_us(server), failures_max);
        let may_wait = contact.failures == 0 || contact.is_untried(received_us) || is_awaited();
        machine.standing.keeps_connections() && !machine.is_full() && may_wait
    }

    /// Whether a server that has not failed is being connected to and can be expected at once.
    pub(super) fn is_coming(&self, server: ServerIndex) -> bool {
        let machine = &self.servers[server];
        let patience_us = self.cx.plan.upstreams[usize::from(machine.upstream)].connect_timeout_us;
        let young = |conn: &ConnKey| match self.conns.at(*conn).state() {
            ConnState::Connecting { deadline_us } => {
                self.cx.now_us + patience_us < deadline_us + COMING_US
            }
            ConnState::Down { retry_us } => retry_us <= self.cx.now_us,
            _ => false,
        };
        machine.contact.failures == 0 && !machine.is_full() && machine.conns.iter().any(young)
    }

    /// Whether a connection to a server can be made where none is up, as far as is known: no
    /// connect is overdue.
    #[inline]
    pub(super) fn is_hopeful(&self, server: ServerIndex) -> bool {
        let machine = &self.servers[server];
        let is_overdue = |conn: &ConnKey| {
            let conn = self.conns.at(*conn);
            matches!(conn.state(), ConnState::Connecting { .. })
                && self.cx.now_us >= conn.contact.since_us + COMING_US
        };
        machine.is_hopeful() && !machine.conns.iter().any(is_overdue)
    }

    /// Returns another worker that has a connection to a server, or can have one as far as it
    /// knows.
    pub(super) fn able_elsewhere(&self, server: ServerIndex) -> Option<u16> {
        let able = |worker: &u16| self.hints.is_able(server, usize::from(*worker));
        self.ready_elsewhere(server).or_else(|| self.other_workers().find(able))
    }

    /// Returns another worker that has connections to a server up.
    pub(super) fn ready_elsewhere(&self, server: ServerIndex) -> Option<u16> {
        self.other_workers().find(|worker| self.hints.ready(server, usize::from(*worker)) > 0)
    }

    /// Returns the other workers, from the next one on.
    fn other_workers(&self) -> impl Iterator<Item = u16> {
        (1..self.cx.workers).map(|step| (self.cx.worker + step) % self.cx.workers)
    }

    /// Returns a worker that owns connections to a server of which this worker owns none (they may
    /// still be coming up).
    pub(super) fn owner_elsewhere(&self, server: ServerIndex) -> Option<u16> {
        // Connection 0 of server s belongs to worker s mod workers.
        let owner = (server.index() % usize::from(self.cx.workers)) as u16;
        let machine = &self.servers[server];
        (machine.limits.shared == 0 && !machine.mode.private && owner != self.cx.worker)
            .then_some(owner)
    }

    /// Whether requests that wait for a server without connections have another place to go, or
    /// nothing to wait for.
    pub(super) fn should_evacuate(&self, server: ServerIndex) -> bool {
        let group = &self.groups[usize::from(self.servers[server].upstream)].servers;
        let is_up = |other: ServerIndex| match self.prospect(other, true, 0) {
            Prospect::Here => other != server,
            prospect => prospect.is_now(),
        };
        let takes = |other: &ServerIndex| self.servers[*other].standing.takes_new();
        !self.servers[server].waiting.is_calm()
            && (!self.may_come_up(server) || group.iter().filter(takes).any(is_up))
    }

    /// Returns why no server takes a request.
    pub(super) fn refusal(&self, ask: &PendingRequest) -> Cause {
        if !ask.traits.has(RequestFlags::BOUND) {
            return self.why_not(ask.upstream);
        }
        let server = self.groups[usize::from(ask.upstream)].server(ask.bound);
        let up = self.servers[server].ready > 0 || self.able_elsewhere(server).is_some();
        match self.servers[server].standing.accepts_bound() {
            false => Cause::NoHealthyServer,
            true if up => Cause::QueueFull,
            true => Cause::NoServer,
        }
    }

    /// Returns the reason when no server of an upstream takes a request: those that may are full;
    /// none that is up may; none is up.
    pub(super) fn why_not(&self, upstream: u16) -> Cause {
        let servers = &self.groups[usize::from(upstream)].servers;
        let takes = |server: ServerIndex| {
            self.servers[server].standing.takes_new() || self.is_last_resort(server)
        };
        let up = |server: ServerIndex| {
            let machine = &self.servers[server];
            machine.ready > 0 || self.is_hopeful(server) || self.able_elsewhere(server).is_some()
        };
        if servers.iter().any(|server| takes(server) && up(server)) {
            Cause::QueueFull
        } else if servers.iter().any(up) || !servers.iter().any(takes) {
            Cause::NoHealthyServer
        } else {
            Cause::NoServer
        }
    }
}
