//! All machines of one worker, and the order in which they are called: [`Clients`], [`Upstreams`],
//! and mail to other workers.
//!
//! Called by the worker's loop, which knows sockets; no code here does. One turn is, in this order:
//!
//! 1. [`Engine::begin_turn`] with the time, and [`Engine::set_wall`] when the wall clock has
//!    changed,
//! 2. any number of `client_*`, `upstream_*`, `relay_*`, [`on_flow`], [`Engine::accepted`],
//!    [`Engine::deliver`], [`Engine::order`] and [`Engine::on_news`] calls with what happened,
//! 3. [`Engine::settle`]: timers, and work that was put off to the end of the turn,
//! 4. [`Engine::poll_action`] until None: work to be done outside,
//! 5. [`Engine::take_lines`], [`Engine::take_errand`], [`Engine::take_event`] and
//!    [`Engine::take_offence`] until None,
//! 6. [`Engine::take_post`] for each other worker; [`Engine::return_post`] with mail that can't be
//!    delivered yet,
//! 7. wait until [`Engine::next_deadline`] or the next event.
//!
//! A machine is called with the path to the other side that is open then
//! ([`crate::cross::router`]). Messages against that path are mail of the worker to itself, which
//! is delivered as soon as the machine returns (`Engine::pass_on`): no machine is called while it
//! is at work.

mod audit;
mod flows;
mod lives;
mod mail;
mod moves;
mod report;

use std::net::SocketAddr;
use std::sync::Arc;

pub use self::flows::{FlowEvent, Over, divided, measured, on_flow, on_port_taken, stop_flows};
pub use self::moves::{arrive, lost, part};
pub use crate::action::{Action, MeasuredArm};
use crate::base::keys::{Key, ServerIndex};
pub use crate::base::output::{HIGH_BYTES, LOW_BYTES};
pub use crate::base::piece::Input;
use crate::base::token::Token;
use crate::client::cache::crowd;
use crate::client::room::make_room;
use crate::client::{self, Clients, accept, banned, input, pace};
pub use crate::client::{Door, MovedClient, Sight, Taken, Unwanted, Visit};
use crate::context::Context;
pub use crate::cross::hints::Hints;
use crate::cross::mail::Post;
use crate::cross::router::{Replies, Requests};
use crate::cross::standing::Order;
use crate::cross::verdict::Verdict;
use crate::ending::{Farewell, ServerTlsFailure, UpstreamEnd};
use crate::forward::lookup::{Errand, News};
use crate::observe::counters::Counters;
use crate::observe::histogram::Histogram;
use crate::observe::secured::Secured;
use crate::observe::server_event::Event;
use crate::observe::server_stats::ServerStats;
use crate::plan::{Entrance, Plan, Serves};
pub use crate::request::encoding::{Encoded, Job};
use crate::retry::poison::Suspect;
use crate::shield::bans::{BanSet, Offence};
use crate::tcp::Flows;
pub use crate::upstream::Delivery;
use crate::upstream::Upstreams;
use crate::upstream::doubts::restore;
use crate::upstream::server_state::ServerState;

/// The parts from outside that make an engine.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The configuration.
    pub plan: Arc<Plan>,
    /// This worker's number, below `workers`.
    pub worker: u16,
    /// Workers in all, at least 1.
    pub workers: u16,
    /// Makes jitter differ between runs and workers.
    pub seed: u64,
    /// Key of the identifiers for `echo`; unpredictable and different for each worker.
    pub secret: [u64; 2],
    /// Shared by all workers.
    pub hints: Arc<Hints>,
    /// Written by this worker only.
    pub counters: Arc<Counters>,
    /// Time from the receipt of a request to the end of its response, microseconds; written by this
    /// worker only.
    pub latency: Arc<Histogram>,
    /// The same for responses from the store, which are not in `latency`.
    pub hits: Arc<Histogram>,
    /// One for each server, upstream after upstream; written by this worker only. For missing
    /// entries nothing is counted.
    pub servers: Vec<Arc<ServerStats>>,
    /// Whether the driver can move the bytes of tunnels ([`Action::Relay`]).
    pub relays: bool,
}

/// Requests of a turn after which waiting input is left for the next turn. The requests of one
/// client at a time are bounded by its unanswered ones; the number of clients is not.
const REQUESTS_PER_TURN: u64 = 4096;

/// Ends a connection because weir took too long, as measured outside, to handle what its client
/// sent at a time.
pub fn end_costly(engine: &mut Engine, token: u64) {
    input::end_costly(&mut engine.clients, token, &mut engine.cx);
    engine.pass_on();
}

/// A turn is over at this time, and the driver has all its output. Only the latency of hits is
/// measured by it.
pub fn end_turn(engine: &mut Engine, now_us: u64) {
    let turn_us = now_us.saturating_sub(engine.cx.now_us);
    engine.clients.answers().hits.turn_ended(turn_us);
}

/// Restores verdicts on servers (named by their positions among those of all upstreams) from before
/// weir was started, or before a server left the plan. Call it on every worker before it serves any
/// client. Unknown servers are ignored.
pub fn restore_verdicts(engine: &mut Engine, verdicts: &[(u32, Verdict)]) {
    for (server, verdict) in verdicts {
        restore(ServerIndex::new(*server), *verdict, &mut engine.upstreams, &mut engine.cx);
    }
    engine.pass_on();
}

/// Takes the result of a check of a client ([`Action::SeeClient`]).
pub fn client_seen(engine: &mut Engine, token: u64, sight: Sight) {
    client::client_seen(&mut engine.clients, token, sight, &mut engine.cx);
    engine.pass_on();
}

/// As [`Engine::accepted`], for a client that speaks TLS: a [`Door`] admitted it before the
/// handshake, and returned this visit.
///
/// # Errors
/// It is not wanted: what to do with its connection.
pub fn accepted_by_door(
    engine: &mut Engine,
    socket: u64,
    peer: SocketAddr,
    entrance: Entrance,
    visit: Option<Visit>,
) -> Result<u64, Unwanted> {
    accept::accepted_by_door(&mut engine.clients, socket, peer, entrance, visit, &mut engine.cx)
}

/// Says by the number of each listener its index in the plan in force. Needed by plans whose routes
/// name listeners ([`RouteTable::reads_listeners`](crate::request::route::RouteTable)), before
/// clients of these listeners are accepted, and again after each change of either.
pub fn number_listeners(engine: &mut Engine, by_number: Vec<Option<usize>>) {
    engine.cx.listeners = by_number;
}

/// All machines of one worker.
#[derive(Debug)]
pub struct Engine {
    cx: Context,
    clients: Clients,
    upstreams: Upstreams,
    /// Connections of `tcp`.
    flows: Flows,
    /// Mail to itself that is being delivered; kept for its memory.
    own_post: Post,
    /// Timers that are due; kept for its memory.
    expired: Vec<u64>,
    /// The number of requests from which on this turn looks at no more waiting input.
    requests_max: u64,
    /// How often this worker has restarted.
    life: u32,
    /// By worker: it does not know of this life yet.
    strangers: Vec<bool>,
}

impl Engine {
    /// Creates an engine; its permanent upstream connections are due to be made. `now_us` is the
    /// time of the first turn.
    pub fn new(parts: Parts, now_us: u64) -> Engine {
        let mut cx = Context::new(parts.plan, parts.counters, parts.worker, parts.workers, now_us);
        cx.relays = parts.relays;
        let mut clients = Clients::new((parts.latency, parts.hits), parts.secret, &cx);
        cx.logs = clients.records().are_kept();
        let upstreams = Upstreams::new(parts.hints, &parts.servers, parts.seed, &mut cx);
        let strangers = vec![false; usize::from(parts.workers)];
        Engine {
            cx,
            clients,
            upstreams,
            flows: Flows::default(),
            own_post: Post::default(),
            expired: Vec::new(),
            requests_max: u64::MAX,
            life: 0,
            strangers,
        }
    }

    /// Begins a turn at this time (microseconds, monotonic, never less than before).
    pub fn begin_turn(&mut self, now_us: u64) {
        debug_assert!(now_us >= self.cx.now_us);
        self.cx.now_us = now_us;
        self.cx.counters.turns.add(1);
    }

    /// Sets the wall clock: its microseconds since 1970 minus the engine's time, and how many
    /// seconds the zone is east of Greenwich. For Date, the access log and rules with times; call
    /// it when it changes.
    pub fn set_wall(&mut self, offset_us: i64, zone_s: i32) {
        self.cx.set_wall(offset_us);
        self.clients.records().set_wall(offset_us, zone_s);
    }

    /// Call after all events of a turn were handled, before polling actions: timers, sync points.
    pub fn settle(&mut self) {
        flows::settle(self);
        self.run_timers();
        if banned::is_cutting(&self.clients) {
            banned::cut_off(&mut self.clients, &mut self.cx);
            self.pass_on();
        }
        crowd::tell_crowds(self.clients.answers(), &mut self.cx);
        if self.flows.is_cutting() {
            let (flows, mut sides) = flows::parts(self);
            flows.cut_off(&mut sides);
        }
        self.upstreams.settle(&mut self.cx);
        self.pass_on();
        // On top of the requests that receives have just brought: however many these are, waiting
        // input has its share of each turn.
        self.requests_max = self.cx.counters.requests.get() + REQUESTS_PER_TURN;
    }

    fn run_timers(&mut self) {
        let mut expired = std::mem::take(&mut self.expired);
        self.cx.wheel.advance(self.cx.now_us, &mut expired);
        for token in expired.drain(..) {
            match Token::unpack(token) {
                Some(Token::Client { .. }) => self.clients.on_timer(token, &mut self.cx),
                Some(
                    Token::Conn { .. }
                    | Token::Probe { .. }
                    | Token::Retry { .. }
                    | Token::Limit { .. },
                ) => {
                    self.upstreams.on_timer(
                        token,
                        &mut Replies::new(&mut self.clients),
                        &mut self.cx,
                    );
                }
                Some(Token::Flow { .. }) => {
                    let (flows, mut sides) = flows::parts(self);
                    flows.on_timer(token, &mut sides);
                }
                _ => {}
            }
            self.pass_on();
        }
        self.expired = expired;
    }

    /// The latest time for the next call.
    pub fn next_deadline(&self) -> Option<u64> {
        if crowd::has_crowds(self.clients.conns())
            || self.clients.conns().has_to_parse()
            || banned::is_cutting(&self.clients)
            || self.flows.is_cutting()
        {
            return Some(self.cx.now_us);
        }
        self.cx.wheel.next_due().into_iter().chain(self.upstreams.next_deadline(&self.cx)).min()
    }

    /// The next action to do outside, or None when all is done for now.
    pub fn poll_action(&mut self) -> Option<Action> {
        loop {
            if let Some(action) = self.cx.actions.pop_front() {
                return Some(action);
            }
            let Engine { clients, upstreams, cx, requests_max, .. } = self;
            let more = upstreams.end_cancelled(cx)
                || cx.counters.requests.get() < *requests_max
                    && clients.read_on(&mut Requests::new(upstreams), cx);
            if more {
                self.pass_on();
                continue;
            }
            if let Some(action) = upstreams.poll_send(cx) {
                return Some(action);
            }
            if clients.conns().has_marked() {
                let action = clients.answers().poll_send(cx);
                self.pass_on();
                if action.is_some() {
                    return action;
                }
            } else if !begin_relay(clients, upstreams, cx) {
                return None;
            }
        }
    }

    /// The next event for the log, oldest first. Call until None after each turn.
    pub fn take_event(&mut self) -> Option<Event> {
        self.upstreams.pool_mut().take_event()
    }

    /// The next client to be banned. Call until None after each turn.
    pub fn take_offence(&mut self) -> Option<Offence> {
        banned::take_offence(&mut self.clients)
    }

    /// Gives out the lines of the access log since the last call and their number, if there are
    /// any.
    pub fn take_lines(&mut self, to: impl FnOnce(&[u8], u64)) {
        self.clients.records().take_lines(to);
    }

    /// Lines of the access log could not be written.
    pub fn lines_lost(&mut self, count: u64) {
        self.cx.counters.log_lines_lost.add(count);
    }

    /// Mail for another worker, if there is any.
    pub fn take_post(&mut self, worker: u16) -> Option<Post> {
        let post = &mut self.cx.posts[usize::from(worker)];
        if post.is_empty() { None } else { Some(std::mem::take(post)) }
    }

    /// Takes back mail that could not be delivered; it is kept before newer mail.
    pub fn return_post(&mut self, worker: u16, mut post: Post) {
        self.cx.counters.mail_delayed.add(1);
        let newer = std::mem::take(&mut self.cx.posts[usize::from(worker)]);
        post.append(newer);
        self.cx.posts[usize::from(worker)] = post;
    }

    /// The next errand for the side thread, if any: call it until None at the end of a turn.
    pub fn take_errand(&mut self) -> Option<Errand> {
        self.clients.take_errand()
    }

    /// Takes the result of an errand, or of an [`Action::Encode`]. Results that are no longer
    /// awaited are ignored.
    pub fn on_news(&mut self, news: News) {
        self.clients.on_news(news, &mut self.cx);
        self.pass_on();
    }

    // ---- clients ----

    /// Client connections, those of `tcp` included.
    pub fn clients(&self) -> usize {
        self.clients.conns().len() + self.flows.len()
    }

    /// Requests without a complete response.
    pub fn exchanges(&self) -> usize {
        self.clients.conns().exchanges()
    }

    /// Drains clients. If all have to leave, clients that are accepted from now on, and had
    /// connected before, have to leave as well.
    pub fn drain(&mut self, who: Farewell) {
        self.clients.drain(who, &mut self.cx);
        self.pass_on();
    }

    /// Whether draining is complete.
    pub fn is_drained(&self) -> bool {
        self.clients.conns().is_draining() && self.clients.conns().len() + self.flows.len() == 0
    }

    /// A client connected. It speaks HTTP/1 alone, HTTP/2 alone, or either, depending on its first
    /// bytes. Returns the token that names it.
    ///
    /// # Errors
    /// It is not wanted: what to do with its connection.
    pub fn accepted(
        &mut self,
        socket: u64,
        peer: SocketAddr,
        entrance: Entrance,
    ) -> Result<u64, Unwanted> {
        if matches!(entrance.serves, Serves::Tcp(_)) {
            return flows::accepted(self, socket, peer, entrance);
        }
        self.clients.accepted(socket, peer, entrance, &mut self.cx)
    }

    /// A client that was just accepted speaks TLS: servers see `https`, and its tunnels remain
    /// here, because the driver can't move bytes that have to be decrypted.
    pub fn client_sealed(&mut self, token: u64, secured: Secured) {
        self.clients.client_sealed(token, secured);
    }

    /// A client could not be accepted (descriptors or memory ran out, or the share of clients in
    /// them): idle clients make room.
    pub fn accept_failed(&mut self) {
        self.cx.counters.accept_failures.add(1);
        make_room(&mut self.clients, &mut self.cx);
        self.pass_on();
    }

    /// A client sent bytes.
    pub fn client_received(&mut self, token: u64, input: &Input<'_>) {
        self.clients.client_received(
            token,
            input,
            &mut Requests::new(&mut self.upstreams),
            &mut self.cx,
        );
        self.pass_on();
    }

    /// A client closed its sending direction. Its earlier input that waits is still served while
    /// responses come, or until the end
    /// ([`ClientPlan::serves_half_closed`](crate::plan::ClientPlan::serves_half_closed)).
    pub fn client_ended(&mut self, token: u64) {
        self.clients.client_ended(token, &mut Requests::new(&mut self.upstreams), &mut self.cx);
        self.pass_on();
    }

    /// A client's connection broke.
    pub fn client_failed(&mut self, token: u64) {
        self.clients.client_failed(token, &mut self.cx);
        self.pass_on();
    }

    /// The output of a client was taken (`ok`) or not. `spare` is the buffer, for reuse.
    pub fn client_sent(&mut self, token: u64, spare: Option<Vec<u8>>, ok: bool) {
        self.clients.answers().client_sent(token, spare, ok, &mut self.cx);
        self.pass_on();
    }

    /// A tunnel has moved this many bytes, from its client and to it, since the driver has it;
    /// `half_closed`: one side has closed. A tunnel that has moved nothing for too long ends.
    pub fn relay_looked(
        &mut self,
        token: u64,
        from_client: u64,
        to_client: u64,
        half_closed: bool,
    ) {
        if Token::is_flow(token) {
            let (flows, mut sides) = flows::parts(self);
            flows.looked(token, (from_client, to_client), half_closed, &mut sides);
            return self.pass_on();
        }
        self.clients.relay_looked(token, from_client, to_client, &mut self.cx);
        self.pass_on();
    }

    /// A tunnel is over. `by_client`: its client broke off; otherwise both sides have closed or the
    /// server broke off.
    pub fn relay_ended(&mut self, token: u64, from_client: u64, to_client: u64, by_client: bool) {
        self.clients.relay_ended(token, from_client, to_client, by_client, &mut self.cx);
        self.pass_on();
    }

    // ---- servers ----

    /// A connect has begun; `socket` is the driver's name for it. False: it is no longer wanted,
    /// close it.
    pub fn upstream_started(&mut self, token: u64, socket: u64) -> bool {
        if Token::is_flow(token) {
            self.flows.started(token, socket)
        } else {
            self.upstreams.upstream_started(token, socket)
        }
    }

    /// A connect has ended.
    pub fn upstream_connected(&mut self, token: u64, ok: bool) {
        if Token::is_flow(token) {
            let (flows, mut sides) = flows::parts(self);
            flows.connected(token, ok, &mut sides);
            return self.pass_on();
        }
        self.upstreams.upstream_connected(token, if ok { Ok(()) } else { Err(None) }, &mut self.cx);
        self.pass_on();
    }

    /// A connect has failed within its TLS handshake. No request was sent.
    pub fn upstream_tls_refused(&mut self, token: u64, why: ServerTlsFailure) {
        self.upstreams.upstream_connected(token, Err(Some(why)), &mut self.cx);
        self.pass_on();
    }

    /// A server sent bytes.
    pub fn upstream_received(&mut self, token: u64, input: &Input<'_>) {
        self.upstreams.upstream_received(
            token,
            input,
            &mut Replies::new(&mut self.clients),
            &mut self.cx,
        );
        self.pass_on();
    }

    /// The output to a server was taken (`ok`) or not.
    pub fn upstream_sent(&mut self, token: u64, ok: bool) {
        let tunnel = self.upstreams.upstream_sent(token, ok, &mut self.cx);
        if let Some(id) = tunnel {
            self.clients.want_relay_of(id, &self.cx);
        }
        self.pass_on();
    }

    /// A server closed its sending direction.
    pub fn upstream_ended(&mut self, token: u64) {
        self.upstreams.upstream_ended(
            token,
            false,
            &mut Replies::new(&mut self.clients),
            &mut self.cx,
        );
        self.pass_on();
    }

    /// A server closed its sending direction without saying so in TLS: its data may have been cut
    /// (RFC 9112 §9.8).
    pub fn upstream_cut(&mut self, token: u64) {
        self.upstreams.upstream_ended(
            token,
            true,
            &mut Replies::new(&mut self.clients),
            &mut self.cx,
        );
        self.pass_on();
    }

    /// A server's connection broke.
    pub fn upstream_failed(&mut self, token: u64) {
        self.upstreams.upstream_failed(
            token,
            UpstreamEnd::Reset,
            &mut Replies::new(&mut self.clients),
            &mut self.cx,
        );
        self.pass_on();
    }

    /// A server's connection broke because of its TLS.
    pub fn upstream_tls_failed(&mut self, token: u64, why: ServerTlsFailure) {
        self.upstreams.upstream_failed(
            token,
            UpstreamEnd::Tls(why),
            &mut Replies::new(&mut self.clients),
            &mut self.cx,
        );
        self.pass_on();
    }

    /// Which core receives a connection's packets: this worker's (near) or another; None: unknown.
    pub fn upstream_located(&mut self, token: u64, near: Option<bool>) {
        self.upstreams.upstream_located(token, near, &mut self.cx);
        self.pass_on();
    }

    /// The fate of the bytes sent on a connection.
    pub fn upstream_examined(&mut self, token: u64, delivery: Delivery) {
        self.upstreams.upstream_examined(token, delivery, &mut self.cx);
        self.pass_on();
    }

    // ---- operators ----

    /// Carries out an order for a server, named by its index over all upstreams of the plan; an
    /// unknown server is ignored. Idempotent. A worker that restarts later finds the order in its
    /// [`Hints`].
    pub fn order(&mut self, server: u32, order: Order) {
        self.upstreams.order(server, order, &mut self.cx);
        self.pass_on();
    }

    /// Forgets the surplus responses of a server (by its position among those of all upstreams),
    /// and that it could not handle pipelining: it may earn trust again.
    pub fn clear_surplus(&mut self, server: u32) {
        self.upstreams.clear_surplus(server, &mut self.cx);
        self.pass_on();
    }

    /// Adopts a plan: a successor of the present one ([`Plan::merged`], or the step before it,
    /// [`Plan::widened`]) that has its access log in the same place. `servers` has one for each of
    /// its slots, including those of before. Every worker has to adopt the step before any worker
    /// adopts the successor.
    pub fn adopt(&mut self, plan: Arc<Plan>, servers: &[Arc<ServerStats>]) {
        let old = std::mem::replace(&mut self.cx.plan, plan);
        self.cx.plan_changed();
        self.clients.adopt(&mut self.cx);
        self.upstreams.adopt(&old, servers, &mut self.cx);
        self.pass_on();
    }

    /// Sets the banned clients: none of them is accepted from now on, and their connections end
    /// within some turns.
    pub fn set_bans(&mut self, bans: Arc<BanSet>) {
        self.cx.bans = bans;
        banned::look_for_banned(&mut self.clients);
        self.flows.look_for_banned();
    }

    /// Whether a server takes new requests as far as this worker knows, and why not.
    pub fn standing(&self, server: u32) -> Option<&ServerState> {
        self.upstreams.pool().standing(server)
    }

    /// Requests that wait for a server or are in flight to it on this worker's connections: a
    /// server that drains is empty when this is 0 on all workers.
    pub fn load(&self, server: u32) -> usize {
        self.upstreams.pool().load(server)
    }

    /// Requests that were in flight when servers died, as far as this worker knows.
    pub fn suspects(&self) -> Vec<Suspect> {
        self.upstreams.isolation().suspects(&self.cx)
    }

    /// Forgets all accusations of requests. An operator's command; call it on every worker.
    pub fn forgive_suspects(&mut self) {
        self.upstreams.isolation_mut().forgive();
    }
}

/// Takes how a client takes its output. `over`: as in [`Action::LookClient`].
pub fn client_looked(engine: &mut Engine, token: u64, taken: Taken, over: bool) {
    pace::client_looked(&mut engine.clients, token, taken, over, &mut engine.cx);
    engine.pass_on();
}

/// Lets the driver move the bytes of a tunnel, if it has all other bytes of one. False: no tunnel
/// is ready.
fn begin_relay(clients: &mut Clients, upstreams: &mut Upstreams, cx: &mut Context) -> bool {
    let Some((client, conn)) = clients.next_to_relay(cx) else { return false };
    if let Some(relay) = upstreams.release_tunnel(client, conn, cx) {
        clients.begin_relay(client, relay, cx);
    }
    true
}
