//! Connections to servers made when requests need them, kept for a while, and closed; at the pace
//! of back-off; and a server that is down looked for every second (stage forward).
//! docs/connections.md, docs/retries.md.

use super::Upstreams;
use super::agenda::{Agenda, Ending};
use super::crash;
use super::doubts::doubt_everywhere;
use super::groups::Groups;
use super::judge::judge_of;
use super::lost::ABRUPT_US;
use super::orders::NEVER_US;
use super::pool::{Event, Pool};
use super::view::View;
use crate::action::Action;
use crate::base::keys::{ConnKey, Key, ServerIndex};
use crate::context::Context;
use crate::cross::doubt::Doubt;
use crate::ending::{ServerTlsFailure, UpstreamEnd};
use crate::observe::server_event::What;
use crate::upstream::connection::{ConnState, UpstreamConn};
use crate::upstream::server::{Reach, SURPLUS_US, Server};

/// While a worker has no connection to a server, it tries at least this often, whatever the
/// back-off says: a server that is there again gets requests within a second.
const SCOUT_US: u64 = 800_000;

/// How long an idle connection that is not needed and was never used is kept while it is unknown
/// whether its server allows that, or while its server is known to have few places: the server may
/// have no thread or process for the others meanwhile.
const UNUSED_US: u64 = 1_000_000;

impl Upstreams {
    /// A connect has begun; `socket` is the driver's name for it. False: not wanted any more, close
    /// it.
    pub(crate) fn upstream_started(&mut self, token: u64, socket: u64) -> bool {
        match self.pool.conn_of(token) {
            Some(index) => {
                self.pool.conns.at_mut(index).socket = Some(socket);
                true
            }
            None => self.health.probe_started(token, socket),
        }
    }

    /// A connect has ended, or failed; a reason says that it did so within its TLS handshake.
    pub(crate) fn upstream_connected(
        &mut self,
        token: u64,
        result: Result<(), Option<ServerTlsFailure>>,
        cx: &mut Context,
    ) {
        let Some(index) = self.pool.conn_of(token) else {
            let worse =
                self.health.probe_connected(token, result, &mut self.pool, &mut self.groups, cx);
            return self.act(worse, cx);
        };
        if let Err(tls) = result {
            self.connect_failed(index, tls, cx);
            return;
        }
        if self.pool.conns.at(index).owner.is_some() {
            return self.own_connected(index, cx);
        }
        let conn = self.pool.conns.at_mut(index);
        let Some(socket) = conn.socket else { return };
        conn.reading.receiving = true;
        let position = conn.server;
        cx.actions.push_back(Action::ReceiveUpstream { socket });
        let server = &mut self.pool.servers[position];
        // A connection that was closed and made again is not a server that was away.
        let revived = server.ready == 0 && server.contact.failures > 0;
        server.contact.on_connected();
        conn.gate.probation |= server.scouts();
        self.pool.transition(index, Event::Connected, cx);
        if revived {
            self.pool.server_recovered(position, cx);
            self.health.probe_soon(position, &self.pool.servers[position], cx);
        }
        if self.pool.servers[position].contact.take_told() {
            self.pool.events.note(position, What::Reachable, cx);
        }
        self.dispatch(position, cx);
        if let Some(ending) = watch_rest(index, &mut self.pool, &self.groups, cx) {
            self.end(index, ending, cx);
        }
    }

    pub(super) fn connect_failed(
        &mut self,
        index: ConnKey,
        tls: Option<ServerTlsFailure>,
        cx: &mut Context,
    ) {
        if self.pool.conns.at(index).owner.is_some() {
            return self.own_failed(index, tls, true, cx);
        }
        cx.counters.upstream_connect_failures.add(1);
        let why = tls.map_or(UpstreamEnd::ConnectFailed, UpstreamEnd::Tls);
        let conn = self.pool.conns.at_mut(index);
        conn.contact.note_close(why);
        let (server, begun_us) = (conn.server, conn.contact.since_us);
        let failures = conn.contact.backoff.failures(self.pool.servers[server].contact.connects);
        self.pool.servers[server].contact.reach = Reach::Doubtful;
        self.pool.disconnect(index, false, cx);
        let machine = &mut self.pool.servers[server];
        machine.stats.connect_failures.add(1);
        machine.stats.closes.count(why);
        machine.contact.on_failed(failures, machine.ready, begun_us, cx.now_us);
        if machine.contact.unreachable && self.groups.view(&self.pool, cx).should_evacuate(server) {
            self.placing().evacuate(server, cx);
        }
        tell_unreachable(server, tls, &mut self.pool, &self.groups, cx);
        if crash::on_refused(server, &mut self.pool, cx) {
            doubt_everywhere(server, Some(Doubt::DiesShared), &mut self.pool, cx);
        }
        self.pool.grow(server, cx);
        self.work_off(cx);
    }
}

/// Checks after a while whether a connection has been idle for too long. How it ends, if it does so
/// already.
pub(super) fn watch_rest(
    index: ConnKey,
    pool: &mut Pool,
    groups: &Groups,
    cx: &mut Context,
) -> Option<Ending> {
    if !pool.conns.is_occupied(index) || !pool.conns.at(index).is_ready() {
        return None;
    }
    let conn = pool.conns.at(index);
    let limit_us = groups.view(pool, cx).rest_limit_us(index);
    if limit_us == 0 && conn.entries.is_empty() {
        return Some(Ending::ours(UpstreamEnd::Unneeded));
    }
    let due_us = match conn.entries.is_empty() {
        true => (cx.now_us - conn.rest_us(cx.now_us)).saturating_add(limit_us),
        false => cx.now_us.saturating_add(limit_us.max(UNUSED_US)),
    };
    // One that is kept now may be one too many later.
    let due_us = due_us.min(cx.now_us + SURPLUS_US);
    if due_us < conn.rest.due_us {
        pool.conns.at_mut(index).rest.due_us = due_us;
        pool.arm_conn(index, due_us, cx);
    }
    None
}

/// The time of [`watch_rest`] is up.
pub(super) fn check_rest(
    index: ConnKey,
    pool: &mut Pool,
    groups: &Groups,
    cx: &mut Context,
) -> Option<Ending> {
    pool.conns.at_mut(index).rest.due_us = NEVER_US;
    let conn = pool.conns.at(index);
    let (server, rest_us) = (conn.server, conn.rest_us(cx.now_us));
    let rests = conn.entries.is_empty() && conn.owner.is_none();
    if rests && conn.is_ready() && conn.history.answers == 1 && rest_us >= ABRUPT_US {
        // It lives on behind its first answer.
        pool.servers[server].learned.lasting.on_kept();
    }
    if !rests || rest_us < groups.view(pool, cx).rest_limit_us(index) {
        return watch_rest(index, pool, groups, cx);
    }
    // Nothing is known against it.
    pool.servers[server].contact.reach = Reach::Proven;
    Some(Ending::ours(UpstreamEnd::Idle))
}

/// A server has closed a connection on which nothing was asked: when it does so after a while, weir
/// does it first.
pub(super) fn note_idle_end(
    server: ServerIndex,
    rest_us: u64,
    pool: &mut Pool,
    groups: &Groups,
    agenda: &mut Agenda,
    cx: &mut Context,
) {
    if !pool.servers[server].learned.idle_limit.on_end(cx.now_us, rest_us) {
        return;
    }
    for position in 0..pool.servers[server].conns.len() {
        let index = pool.servers[server].conns[position];
        if let Some(ending) = watch_rest(index, pool, groups, cx) {
            agenda.end(index, ending, pool);
        }
    }
}

/// Has the log say that a server can't be reached, once, by the worker that judges it.
pub(super) fn tell_unreachable(
    server: ServerIndex,
    tls: Option<ServerTlsFailure>,
    pool: &mut Pool,
    groups: &Groups,
    cx: &Context,
) {
    let judged = judge_of(server, cx) == cx.worker;
    let machine = &pool.servers[server];
    let news = judged && machine.contact.unreachable && !machine.contact.told;
    if news && groups.view(pool, cx).ready_elsewhere(server).is_none() {
        pool.servers[server].contact.told = true;
        pool.events.note(server, What::Unreachable(tls), cx);
    }
}

impl View<'_> {
    /// How long a connection may rest before it is closed.
    fn rest_limit_us(&self, index: ConnKey) -> u64 {
        let conn = self.conns.at(index);
        let server = conn.server;
        let machine = &self.servers[server];
        // One that was made for a trial waits for a request.
        let waits = machine.standing.suspension().is_some();
        let surplus_us = if machine.is_one_shot() && !waits {
            0
        } else if !waits && self.is_crowded(server) {
            UNUSED_US
        } else if machine.ready <= machine.limits.min && !machine.is_one_shot() {
            NEVER_US
        } else if conn.history.answers == 0 && !machine.learned.lasting.is_kept() && !waits {
            UNUSED_US
        } else {
            SURPLUS_US
        };
        surplus_us
            .min(machine.learned.idle_limit.close_after_us(self.cx.now_us).unwrap_or(NEVER_US))
    }
}

impl Server {
    /// Whether one of its idle connections is one too many, after others were held for a while.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.made() > self.limits.all
    }
}

impl Pool {
    /// A further position of a server, with a connection that is due now.
    pub(super) fn add_position(&mut self, server: ServerIndex, cx: &Context) -> ConnKey {
        let (index, _) = self.conns.insert(UpstreamConn::new(server, 0, cx.now_us));
        self.conns.at_mut(index).position = self.servers[server].add_conn(index);
        self.transition(index, Event::Due { retry_us: cx.now_us }, cx);
        index
    }

    /// Makes connections while what waits needs more than there are.
    pub(super) fn grow(&mut self, server: ServerIndex, cx: &mut Context) {
        if self.servers[server].is_blocked() {
            self.yield_paused(server, cx);
        }
        hurry_scout(self, server, cx);
        while self.servers[server].wants_more() {
            self.make_connection(server, cx);
        }
        self.watch_busy(server, cx);
    }

    /// Makes the connections that are kept to a server.
    pub(super) fn keep_least(&mut self, server: ServerIndex, cx: &mut Context) {
        while self.servers[server].standing.keeps_connections()
            && self.servers[server].keeps(self.servers[server].made())
        {
            self.make_connection(server, cx);
        }
    }

    /// Begins to make one more connection, when its time has come: in the position without one that
    /// may be tried first.
    pub(super) fn make_connection(&mut self, server: ServerIndex, cx: &mut Context) -> ConnKey {
        let is_urgent = is_urgent(self, server, cx);
        let spares = self.servers[server]
            .conns
            .iter()
            .copied()
            .filter(|conn| self.conns.at(*conn).is_spare());
        let due_us = |conn: &ConnKey| self.conns.at(*conn).contact.due_us;
        let due = spares.clone().find(|conn| due_us(conn) <= cx.now_us);
        let index = due
            .or_else(|| spares.min_by_key(due_us))
            .unwrap_or_else(|| self.add_position(server, cx));
        let due_us = self.conns.at(index).contact.due_us;
        if due_us <= cx.now_us || is_urgent {
            self.connect(index, cx);
        } else {
            self.set_down(index, due_us, cx);
            self.look_out(server, cx);
        }
        index
    }

    /// A connection is due at this time, or never.
    fn set_down(&mut self, index: ConnKey, retry_us: u64, cx: &mut Context) {
        self.transition(index, Event::Due { retry_us }, cx);
        if retry_us != NEVER_US {
            self.arm_conn(index, retry_us, cx);
        }
    }

    pub(super) fn connect(&mut self, index: ConnKey, cx: &mut Context) {
        let conn = self.conns.at_mut(index);
        let server = &mut self.servers[conn.server];
        if !server.standing.keeps_connections() {
            return self.set_down(index, NEVER_US, cx);
        }
        // What requests need of a server that works is made at once.
        if server.contact.reach != Reach::Proven
            && let Err(retry_us) = server.contact.pacer.admit(cx.now_us)
        {
            return self.set_down(index, retry_us, cx);
        }
        server.stats.connects.add(1);
        let upstream = &cx.plan.upstreams[usize::from(server.upstream)];
        let address = upstream.servers[usize::from(server.index)].address.clone();
        let way = upstream.dial.way(None);
        let deadline_us = cx.now_us + upstream.connect_timeout_us;
        debug_assert!(
            upstream.dial.proxy_protocol.is_none(),
            "a connection that names a client is private"
        );
        let conn = self.conns.at_mut(index);
        conn.contact.begin(cx.now_us);
        let position = conn.server.number();
        self.transition(index, Event::Connects { deadline_us }, cx);
        self.arm_conn(index, deadline_us, cx);
        cx.counters.upstream_connects.add(1);
        let token = self.conn_token(index);
        cx.actions.push_back(Action::Connect {
            token,
            address,
            server: position,
            announcement: None,
            way,
        });
    }

    /// Closes the socket, if any, and sets the time of the next try, if one is due before a request
    /// needs it. `useless`: nothing was asked on it before the server has ended it, or would have,
    /// or it makes room for others.
    pub(super) fn disconnect(&mut self, index: ConnKey, useless: bool, cx: &mut Context) {
        let conn = self.conns.at_mut(index);
        if let Some(socket) = conn.socket.take() {
            cx.actions.push_back(Action::CloseUpstream { socket });
        }
        let position = conn.server;
        let parked = !self.servers[position].standing.keeps_connections();
        let ahead_of_time = conn.contact.is_ahead(cx.now_us);
        let due_us = if parked {
            cx.now_us
        } else if ahead_of_time {
            conn.contact.due_us
        } else {
            cx.now_us + conn.contact.backoff.next_delay_us(self.seed ^ u64::from(index.number()))
        };
        self.transition(index, Event::Gone { due_us }, cx);
        self.conns.renew(index);
        let server = &self.servers[position];
        let others = server.made();
        let is_kept = server.keeps(others) && (!useless || server.limits.is_exact());
        // It must be noticed when the server is there again.
        let is_scout = others == 0
            && server.contact.reach == Reach::Doubtful
            && server.limits.shared > 0
            && !server.contact.retired;
        if parked || !is_kept && !is_scout {
            return;
        }
        let is_awaited = cx.now_us < self.hints.awaited_until_us(position);
        // What waits for it makes its own.
        let due_us = if is_kept || is_awaited { due_us } else { due_us.max(cx.now_us + SCOUT_US) };
        if due_us <= cx.now_us {
            self.connect(index, cx);
        } else {
            self.set_down(index, due_us, cx);
            self.look_out(position, cx);
        }
    }

    /// Makes sure that a server without connections is tried again soon, by the first of them, and
    /// once more before nothing waits for it any longer.
    fn look_out(&mut self, server: ServerIndex, cx: &mut Context) {
        let machine = &mut self.servers[server];
        if machine.ready > 0 {
            return;
        }
        machine.contact.was_down = true;
        let until_us =
            Some(self.hints.awaited_until_us(server)).filter(|until_us| *until_us > cx.now_us);
        let soon_us = until_us.unwrap_or(u64::MAX).min(cx.now_us + SCOUT_US);
        let mut coming =
            machine.conns.iter().copied().filter(|conn| self.conns.at(*conn).is_coming());
        let Some(first) = coming.next() else { return };
        if matches!(
            self.conns.at(first).state(),
            ConnState::Down { retry_us } if retry_us > soon_us
        ) {
            self.set_down(first, soon_us, cx);
        }
    }

    /// A server that was down has answered: all connections that are to be made are due now. Not
    /// earlier, because something in front of it may accept and close.
    pub(super) fn follow_scout(&mut self, server: ServerIndex, cx: &mut Context) {
        self.servers[server].contact.was_down = false;
        if !self.servers[server].standing.keeps_connections() {
            return;
        }
        for position in 0..self.servers[server].conns.len() {
            let index = self.servers[server].conns[position];
            match self.conns.at(index).state() {
                ConnState::Down { retry_us: NEVER_US } => {
                    self.conns.at_mut(index).contact.due_us = cx.now_us
                }
                ConnState::Down { .. } => self.connect(index, cx),
                _ => {}
            }
        }
        self.keep_least(server, cx);
    }
}

/// Whether what asks for a server waits for one connect and not for its back-off: no connection is
/// up, and the server need not be starting again.
fn is_urgent(pool: &Pool, server: ServerIndex, cx: &Context) -> bool {
    let machine = &pool.servers[server];
    let failures_max = cx.plan.upstreams[usize::from(machine.upstream)].connects_failed_max();
    machine.ready == 0
        && !machine.contact.is_awaited(pool.hints.awaited_until_us(server), failures_max)
}

/// What has come for a server without connections finds out at once whether it is back, by the
/// connection that would be tried next.
fn hurry_scout(pool: &mut Pool, server: ServerIndex, cx: &mut Context) {
    let machine = &pool.servers[server];
    if machine.waiting.is_calm() || !is_urgent(pool, server, cx) {
        return;
    }
    let conns = || machine.conns.iter().copied().map(|index| (index, pool.conns.at(index).state()));
    let is_under_way = conns().any(|(_, state)| matches!(state, ConnState::Connecting { .. }));
    let now_us = cx.now_us;
    let is_due = |(_, state): &(ConnKey, ConnState)| match *state {
        ConnState::Down { retry_us } => retry_us != NEVER_US && retry_us > now_us,
        _ => false,
    };
    if let Some((index, _)) = conns().find(is_due).filter(|_| !is_under_way) {
        pool.connect(index, cx);
    }
}
