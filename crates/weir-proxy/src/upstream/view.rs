//! What a choice looks at: all servers, the connections to them, and what other workers say of theirs.
//!
//! Nothing can be changed through it, so whoever has one only asks. Which server a request goes to is decided over it: the first time in
//! [`super::choose`], after a loss in [`super::again`]. Made for one question ([`Groups::view`](super::groups::Groups::view)), which costs nothing.

use super::groups::Group;
use super::lost::ABRUPT_US;
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

impl View<'_> {
    /// The server that a request is for.
    pub(super) fn server_index(&self, ask: &PendingRequest) -> ServerIndex {
        self.groups[usize::from(ask.upstream)].server(ask.server)
    }

    /// Whether a request for this server would be served now.
    #[inline]
    pub(super) fn is_up(&self, server: ServerIndex) -> bool {
        self.servers[server].standing.takes_new() && self.is_reachable(server)
    }

    /// Whether a connection to this server is up, or can be made as far as is known, and not all are full.
    #[inline]
    pub(super) fn is_reachable(&self, server: ServerIndex) -> bool {
        let here = &self.servers[server];
        if here.mode.private {
            return self.cx.now_us >= here.contact.away_until_us;
        }
        (here.ready > 0 || self.is_hopeful(server)) && !here.is_full() || self.able_elsewhere(server).is_some()
    }

    /// Whether one of this worker's own connections to a server may have a request of another server.
    pub(super) fn may_take(&self, server: ServerIndex) -> bool {
        let here = &self.servers[server];
        if here.mode.private {
            return here.standing.takes_new() && self.cx.now_us >= here.contact.away_until_us;
        }
        here.standing.takes_new() && (here.ready > 0 || self.is_hopeful(server)) && !here.is_full()
    }

    /// Whether one of this worker's connections to another server of the upstream may have a request of this one.
    pub(super) fn has_other(&self, server: ServerIndex) -> bool {
        let group = &self.groups[usize::from(self.servers[server].upstream)].servers;
        group.iter().any(|other| other != server && self.may_take(other))
    }

    /// Whether requests go to this suspended server for want of a better one.
    pub(super) fn is_last_resort(&self, server: ServerIndex) -> bool {
        let machine = &self.servers[server];
        machine.standing.may_be_tried()
            && self.cx.plan.upstreams[usize::from(machine.upstream)].all_down == AllDown::TryAll
    }

    pub(super) fn is_backup(&self, server: ServerIndex) -> bool {
        let machine = &self.servers[server];
        self.cx.plan.upstreams[usize::from(machine.upstream)].servers[usize::from(machine.index)].backup
    }

    /// Whether the server to which a session is bound can have its request. Where it may have no other, it may wait.
    pub(super) fn is_bound_usable(&self, ask: &PendingRequest) -> bool {
        let server = self.groups[usize::from(ask.upstream)].server(ask.bound);
        self.servers[server].standing.accepts_bound()
            && (self.is_reachable(server)
                || self.is_coming(server)
                || ask.traits.has(RequestFlags::BOUND) && self.may_be_awaited(server))
    }

    /// Whether a request may wait for this server's next connect.
    #[inline]
    pub(super) fn may_come_up(&self, server: ServerIndex) -> bool {
        let machine = &self.servers[server];
        if machine.mode.private {
            return machine.standing.keeps_connections();
        }
        let retries = self.cx.plan.upstreams[usize::from(machine.upstream)].connect_retries;
        machine.standing.keeps_connections() && !machine.is_full() && machine.contact.failures < retries.max(1)
    }

    /// Whether a request of anybody may wait for this server's next connect.
    pub(super) fn may_await(&self, server: ServerIndex) -> bool {
        self.servers[server].standing.takes_new() && self.may_come_up(server)
    }

    /// Whether a request may wait at the worker that owns the connections to this server, of which this one has none.
    pub(super) fn owner_may_await(&self, server: ServerIndex) -> bool {
        self.servers[server].standing.takes_new() && self.owner_elsewhere(server).is_some()
    }

    /// Whether a request may wait for this server's next connect, here or at the worker that owns its connections.
    pub(super) fn may_be_awaited(&self, server: ServerIndex) -> bool {
        self.may_come_up(server) || self.owner_elsewhere(server).is_some()
    }

    /// Whether a server that has not failed is being connected to and can be expected at once.
    pub(super) fn is_coming(&self, server: ServerIndex) -> bool {
        let machine = &self.servers[server];
        let patience_us = self.cx.plan.upstreams[usize::from(machine.upstream)].connect_timeout_us;
        let young = |conn: &ConnKey| match self.conns.at(*conn).state() {
            ConnState::Connecting { deadline_us } => self.cx.now_us + patience_us < deadline_us + COMING_US,
            ConnState::Down { retry_us } => retry_us <= self.cx.now_us,
            _ => false,
        };
        machine.contact.failures == 0 && !machine.is_full() && machine.conns.iter().any(young)
    }

    /// Whether a connection to a server can be made where none is up, as far as is known: no connect is overdue.
    #[inline]
    pub(super) fn is_hopeful(&self, server: ServerIndex) -> bool {
        let machine = &self.servers[server];
        let is_overdue = |conn: &ConnKey| {
            let conn = self.conns.at(*conn);
            matches!(conn.state(), ConnState::Connecting { .. }) && self.cx.now_us >= conn.contact.since_us + COMING_US
        };
        machine.is_hopeful() && !machine.conns.iter().any(is_overdue)
    }

    /// Another worker that has a connection to a server, or can have one as far as it knows.
    pub(super) fn able_elsewhere(&self, server: ServerIndex) -> Option<u16> {
        let able = |worker: &u16| self.hints.is_able(server, usize::from(*worker));
        self.ready_elsewhere(server).or_else(|| self.other_workers().find(able))
    }

    /// Connections to a server that other workers have up.
    pub(super) fn ready_elsewhere(&self, server: ServerIndex) -> Option<u16> {
        self.other_workers().find(|worker| self.hints.ready(server, usize::from(*worker)) > 0)
    }

    /// The other workers, from the next one on.
    fn other_workers(&self) -> impl Iterator<Item = u16> {
        (1..self.cx.workers).map(|step| (self.cx.worker + step) % self.cx.workers)
    }

    /// A worker that owns connections to a server of which this one owns none (they may still be coming up).
    pub(super) fn owner_elsewhere(&self, server: ServerIndex) -> Option<u16> {
        // Connection 0 of server s belongs to worker s mod workers.
        let owner = (server.index() % usize::from(self.cx.workers)) as u16;
        let machine = &self.servers[server];
        (machine.limits.shared == 0 && !machine.mode.private && owner != self.cx.worker).then_some(owner)
    }

    /// Whether a request may go onto this idle connection: what can't be sent again goes onto none that its server may be about to
    /// end.
    pub(super) fn is_fresh(&self, index: ConnKey, ask: &PendingRequest) -> bool {
        if ask.traits.has(RequestFlags::RETRIABLE) {
            return true;
        }
        let conn = self.conns.at(index);
        let machine = &self.servers[conn.server];
        let rest_us = conn.rest_us(self.cx.now_us);
        // Of late this server ended a connection behind an answer without a word.
        let abrupt = machine.learned.keepalive_limit.is_abrupt(self.cx.now_us);
        let lives = conn.history.answers == 0
            || !abrupt && (rest_us >= ABRUPT_US || machine.learned.keepalive_limit.is_outlived(conn.history.answers));
        lives && machine.learned.idle_limit.is_fresh(self.cx.now_us, rest_us)
    }

    /// Whether what waits for a server without connections has somewhere to go, or nothing to wait for.
    pub(super) fn should_evacuate(&self, server: ServerIndex) -> bool {
        let group = &self.groups[usize::from(self.servers[server].upstream)].servers;
        let is_up = |other: ServerIndex| {
            let elsewhere = self.servers[other].standing.takes_new() && self.able_elsewhere(other).is_some();
            other != server && self.may_take(other) || elsewhere
        };
        !self.servers[server].waiting.is_empty() && (!self.may_come_up(server) || group.iter().any(is_up))
    }

    /// Why no server takes a request.
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

    /// What is the matter when no server of an upstream takes a request: those that may are full; none that is up may; none is up.
    pub(super) fn why_not(&self, upstream: u16) -> Cause {
        let servers = &self.groups[usize::from(upstream)].servers;
        let takes = |server: ServerIndex| self.servers[server].standing.takes_new() || self.is_last_resort(server);
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
