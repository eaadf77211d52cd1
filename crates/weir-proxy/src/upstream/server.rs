//! One server as one worker sees it: its connections, the requests that wait for them, and which
//! connection takes the next one.
//!
//! Fill first, then spread: requests go onto the lowest connection that has room, because requests
//! that share a send and responses that share a receive make pipelining cheap. There are as many
//! connections as requests need: one more is made when a request would otherwise wait, and a
//! surplus one is closed after an idle time ([`Server::wants_more`]). Bounds: `depth` unanswered
//! requests on a connection before the next is used, `capacity` requests waiting or in flight in
//! all, [`Limits`] for connections. docs/connections.md.

mod holders;
mod learned;
mod limits;
mod positions;
mod reachability;

use std::sync::Arc;

use self::holders::Holders;
use self::learned::Learned;
pub(crate) use self::limits::Limits;
use self::positions::Positions;
pub(crate) use self::reachability::{Reach, Reachability};
use crate::base::keys::ConnKey;
use crate::cross::answer::{ASIDE_CLIENT_MAX, ASIDE_SCARCE_MAX};
use crate::cross::standing::Order;
use crate::observe::server_stats::ServerStats;
use crate::placement::balance::{Measure, Statistic};
use crate::plan::{PipelineMode, Pool, Share, UpstreamPlan};
use crate::request::pending_request::{ClientName, PendingRequest, RequestFlags};
use crate::upstream::class::{ClassName, Mark};
use crate::upstream::connection::{ConnState, UpstreamConn};
use crate::upstream::fresh::Fresh;
use crate::upstream::lines::Lines;
use crate::upstream::server_state::ServerState;

/// Requests on a pipelined connection without an idle moment after which it is allowed to run empty
/// (a sync point).
const SYNC_REQUESTS: u32 = 1000;
/// The same with one request at a time, where running empty costs the time of one request and not
/// that of a pipeline.
const SYNC_REQUESTS_ALONE: u32 = 32;
/// Time without an idle moment after which a pipelined connection is allowed to run empty.
const SYNC_US: u64 = 1_000_000;

/// Connections that are replaced because all of a worker's are far: each time another process or
/// another queue of the network card may be the peer, and with two of them four tries are enough in
/// 15 cases of 16.
const FAR_TRIES: u32 = 4;
/// Further tries for each connection that turns out to be near, where connections are replaced all
/// the time: trying continues where every fourth is near, and ends where hardly any is. At most
/// [`NEARER_TRIES_MAX`] are saved.
const NEARER_TRIES: u32 = 3;
const NEARER_TRIES_MAX: u32 = 8;
/// Replacements for connections of slow readers beyond [`Limits::all`]: their responses may wait,
/// in a circle, for others that need a connection.
pub(crate) const STALLED_MAX: u32 = 1_000;
/// Connections that may be set aside before their clients are limited to [`ASIDE_SCARCE_MAX`] each,
/// if half of [`Limits::all`] is less.
const SCARCE_MIN: u32 = 64;
/// A connection that is due to be made this soon counts as on its way: waiting requests do not
/// cause another one.
const SOON_US: u64 = 50_000;
/// How long a surplus connection is idle before it is closed.
pub(crate) const SURPLUS_US: u64 = 60_000_000;

/// How the connections to a server are used, by the configuration.
#[derive(Debug)]
pub(crate) struct Mode {
    /// It represents many destinations
    /// ([`Context::is_anywhere`](crate::context::Context::is_anywhere)).
    pub anywhere: bool,
    /// Its connections belong to clients or requests and are made when those need them:
    /// [`Pool::is_private`].
    pub private: bool,
    /// Its upstream has other servers.
    pub several: bool,
    /// One request is sent at a time.
    pub pipeline_off: bool,
    /// Only requests of one client follow each other.
    pub share_client: bool,
}

/// The state by which requests are scheduled. `inflight` - `moved` + `waiting` <= `capacity`;
/// `ready` <= the number of `conns`, or it is private.
#[derive(Debug)]
pub(crate) struct Server {
    /// Index of the upstream in the plan.
    pub upstream: u16,
    /// Index of the server in the upstream.
    pub index: u16,
    /// How its connections are used.
    pub mode: Mode,
    /// How many connections there may be.
    pub limits: Limits,
    /// Requests that may wait or be in flight.
    pub capacity: u32,
    /// Its counters.
    pub stats: Arc<ServerStats>,
    /// Slots of this worker's connections, by position.
    pub conns: Vec<ConnKey>,
    /// What its connections may take.
    pub positions: Positions,
    /// Position of the connection that is reserved for a request that must be sent alone and waits
    /// here, where no more can be made: nothing else is sent on it.
    pub kept: Option<u32>,
    /// How often a far connection may still be replaced.
    far_tries: u32,
    /// Connections that are up, without those of [`Server::fresh`].
    pub ready: u32,
    /// Whether another connection can be made.
    pub contact: Reachability,
    /// When a timer was last set for a connection that must have been idle for a while before a
    /// waiting request may use it.
    pub rested_due_us: u64,
    /// Its fresh connections, with `pool "fresh"`.
    pub fresh: Option<Box<Fresh>>,
    /// The waiting requests.
    pub waiting: Lines,
    /// Requests wait, and each connection is checked for a late response.
    pub watched: bool,
    /// Requests on connections.
    pub inflight: u32,
    /// Those of them that have been moved elsewhere by now.
    pub moved: u32,
    /// Complete responses so far.
    pub answers: u64,
    /// Connections of `tcp`, including those that are being made.
    pub flows: u32,
    /// Whether it takes new requests.
    pub standing: ServerState,
    /// Responses with a status from here on are checked by health; above all statuses where nothing
    /// of that is configured.
    pub notable_from: u16,
    /// When it last returned after it had been out of use; 0: it never was. A slow start counts
    /// from here.
    pub recovered_us: u64,
    /// What its responses have shown.
    pub learned: Learned,
    /// The clients that hold its connections aside.
    pub holders: Holders,
}

impl Server {
    /// Returns server `index` of an upstream, without connections; `total` is how many connections
    /// it may have over all workers for requests that share.
    pub(crate) fn new(
        plan: &UpstreamPlan,
        upstream: u16,
        index: u16,
        stats: Arc<ServerStats>,
        limits: Limits,
        total: u32,
    ) -> Server {
        let UpstreamPlan { pool, pipeline: mode, share, queue_size, .. } = *plan;
        Server {
            upstream,
            index,
            mode: Mode {
                anywhere: false,
                private: pool.is_private(),
                several: plan.servers.len() > 1,
                pipeline_off: !Pool::PIPELINED.contains(&pool)
                    || mode == PipelineMode::Off
                    || queue_size == 1,
                share_client: share == Share::Client,
            },
            limits,
            capacity: if pool.is_private() { u32::MAX } else { limits.capacity(queue_size) },
            stats,
            conns: Vec::new(),
            positions: Positions::default(),
            kept: None,
            far_tries: FAR_TRIES,
            ready: 0,
            contact: Reachability::default(),
            rested_due_us: 0,
            fresh: None,
            waiting: Lines::default(),
            watched: false,
            inflight: 0,
            answers: 0,
            moved: 0,
            flows: 0,
            standing: ServerState::new(Order::Enable),
            notable_from: u16::MAX,
            recovered_us: 0,
            learned: Learned::new(mode, queue_size, total.min(limits.shared.max(1))),
            holders: Holders::default(),
        }
    }

    /// Gives the connection in this slot a position.
    pub(crate) fn add_conn(&mut self, index: ConnKey) -> u32 {
        self.conns.push(index);
        let count = self.conns.len();
        self.positions.grow(count);
        count as u32 - 1
    }

    /// Connections that are up, on their way, or to be made after a while.
    #[inline]
    pub(crate) fn made(&self) -> u32 {
        self.ready + self.positions.due()
    }

    /// Returns the connections whose clients do not read, and that hold up no request that waits
    /// here as far as is known.
    pub(crate) fn paused(&self) -> Vec<ConnKey> {
        self.positions.paused.members().map(|position| self.conns[position]).collect()
    }

    /// Returns the connections with a response under way that may turn out to be late.
    pub(crate) fn pending(&self) -> Vec<ConnKey> {
        self.positions.pending.members().map(|position| self.conns[position]).collect()
    }

    /// Whether the client of any connection does not read, while requests wait that this may hold
    /// up.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.positions.paused.is_empty() && !self.waiting.is_calm()
    }

    /// Whether no connection is kept without a request: the server closes each after one response,
    /// and while it waits on one for a request, it may have no thread or process left for another.
    pub(crate) fn is_one_shot(&self) -> bool {
        self.learned.lasting.is_single() && !self.limits.is_exact()
    }

    /// Whether a connection is kept although no request waits for it; `others`: how many there are
    /// beside it.
    pub(crate) fn keeps(&self, others: u32) -> bool {
        others < self.limits.min && !self.is_one_shot()
    }

    /// Whether one more connection may be held by a request that rides apart, beside those that are
    /// held and `coming`: some always remain for requests that may share, whatever holds the
    /// others. `alone`: it is none of those.
    fn may_hold(&self, coming: u32, alone: bool) -> bool {
        let limit = self.limit();
        let all = limit + self.positions.stalled().min(STALLED_MAX);
        let held = self.positions.held.count() + coming;
        held + self.positions.apart.count() < all
            && (!alone || held + self.limits.reserve(limit) < all)
    }

    /// Whether a request waits for a connection for itself because the limit is reached.
    #[inline]
    pub(crate) fn is_at_limit(&self) -> bool {
        !self.waiting.is_calm()
            && (self.waits_apart() && !self.may_hold(0, false)
                || !self.waiting.line(true).is_empty() && !self.may_hold(0, true))
    }

    /// Whether more requests wait for connections that others may share than are to be made, also
    /// later.
    fn lacks(&self) -> bool {
        self.positions.due() < self.waiting.line(false).len() as u32
    }

    /// Whether the next request that waits for a shared connection does not share it.
    fn waits_apart(&self) -> bool {
        self.waiting.line(false).front().is_some_and(|waiting| waiting.ask.traits.rides_apart())
    }

    /// Whether another connection may be made, for a request that must be sent alone or for others.
    pub(crate) fn may_grow(&self, alone: bool) -> bool {
        // The operator wants an exact number, whatever waits.
        let grows = !self.limits.is_exact();
        let apart = if grows { self.positions.apart.count() } else { 0 };
        let (made, held) = (self.made(), self.positions.held.count() + apart);
        let all = self.limit() + self.positions.stalled().min(STALLED_MAX);
        let fits = match alone {
            true => self.may_hold(self.positions.coming.count(), true),
            // Where connections end with their response, an unusable one is never made early: it
            // would close at once.
            false => {
                (made < held + self.limits.shared || grows && self.waits_apart() && self.lacks())
                    && (self.may_begin() || !self.is_one_shot())
            }
        };
        fits && made < all && self.limits.shared > 0 && self.standing.keeps_connections()
    }

    /// Whether another connection is to be made now: requests wait for more than are on their way.
    pub(crate) fn wants_more(&self) -> bool {
        let (mut shared, mut alone) =
            (self.waiting.line(false).len() as u32, self.waiting.line(true).len() as u32);
        if shared + alone == 0 {
            return false;
        }
        if let Some(available) = self.available() {
            // More connections would have nothing to do.
            let first = if self.may_grow(true) { alone.min(available) } else { 0 };
            (alone, shared) = (alone.min(available), shared.min(available - first));
        }
        let each =
            if self.is_single() || self.waits_apart() { 1 } else { self.learned.depth().max(1) };
        // Those that ran empty take requests in the next turn.
        let coming = self.positions.coming.count() + self.positions.unseen.count();
        let (for_alone, for_shared) = (alone.min(coming), shared.div_ceil(each));
        alone > coming && self.may_grow(true)
            || for_shared > coming - for_alone && shared > 0 && self.may_grow(false)
    }

    /// Makes sure that its response times are measured by this statistic, if by any; one that is
    /// set already does not change.
    pub(super) fn measure_by(&mut self, statistic: Option<Statistic>) {
        if self.learned.measure.is_none() {
            self.learned.measure = statistic.map(|by| Box::new(Measure::new(by)));
        }
    }

    /// It takes requests again after it had been out of use.
    pub(crate) fn recovered(&mut self, now_us: u64) {
        self.recovered_us = now_us;
    }

    /// Whether no more requests may be put here.
    pub(crate) fn is_full(&self) -> bool {
        self.load() >= self.capacity
    }

    /// Counts requests waiting or in flight, and connections of `tcp`; parked requests do not use
    /// up capacity.
    pub(crate) fn load(&self) -> u32 {
        let coming = self.fresh.as_deref().map_or(0, |fresh| fresh.coming);
        self.inflight - self.moved + self.waiting.unparked() as u32 + self.flows + coming
    }

    /// Whether nothing is put on any of the connections that are up until a response under way has
    /// ended, and no other can be made.
    pub(crate) fn is_held(&self) -> bool {
        !self.positions.held.is_empty()
            && self.positions.held.count() >= self.ready
            && !self.may_grow(false)
    }

    /// Whether a connection can be made where none is up, as far as is known.
    pub(crate) fn is_hopeful(&self) -> bool {
        self.limits.shared > 0 && self.contact.reach == Reach::Proven
    }

    /// Whether some connection takes a request at once, or is made for it.
    pub(crate) fn has_room(&self) -> bool {
        let room = self.positions.has_room()
            || self.contact.reach == Reach::Proven && self.may_grow(false);
        self.standing.takes_new() && !self.is_full() && !self.is_busy() && room
    }

    /// Recomputes what a connection may take. Call it after anything about the connection has
    /// changed.
    pub(crate) fn refresh(&mut self, conn: &mut UpstreamConn, now_us: u64) {
        if conn.owner.is_some() {
            return;
        }
        let position = conn.position as usize;
        let empty = conn.entries.is_empty();
        // One that is empty has outlived the limit that was learned from others.
        let total = conn.history.answers + conn.entries.len() as u64;
        let spent = !empty && (conn.wait.nudged || total >= self.learned.keepalive_limit.limit());
        let kept = self.kept == Some(conn.position);
        let up = conn.state() == ConnState::Ready
            && conn.reply.persist
            && !spent
            && !conn.gate.locating
            && !kept;
        let idle = up && empty && !conn.rest.syncing && !conn.rest.unseen;
        let resting = idle && conn.rest.is_wary(now_us);
        conn.gate.fill(conn.entries.len() as u32, self.learned.depth());
        if up && !empty && !conn.rest.syncing {
            conn.rest.syncing = self.must_sync(conn, now_us);
        }
        let front = conn.entries.front().map(|entry| entry.ask.traits);
        let (apart, alone) = (
            front.is_some_and(RequestFlags::rides_apart),
            front.is_some_and(RequestFlags::goes_alone),
        );
        let open = up
            && !conn.rest.syncing
            && !conn.gate.hold
            && !conn.reply.large
            && !conn.wait.late
            && !conn.reading.paused
            && !(empty && (resting || conn.rest.unseen))
            && (empty || (!apart && !conn.gate.probation && self.may_follow(conn)));
        let yields = alone
            || conn.reply.large
            || conn.wait.late
            || conn.reading.paused && conn.reading.yields;
        let ready = conn.state() == ConnState::Ready;
        let soon = conn.is_coming_by(now_us + SOON_US);
        let positions = &mut self.positions;
        positions.idle.set(position, idle && !resting);
        positions.resting.set(position, resting);
        // At a sync point it takes no request for longer: waiting requests need a connection.
        positions.unseen.set(position, up && empty && conn.rest.unseen && !conn.rest.syncing);
        let held = ready && (yields || !conn.reply.persist || spent && !empty);
        positions.held.set(position, held);
        positions.apart.set(position, ready && apart && !held);
        positions.paused.set(position, ready && conn.reading.paused && !conn.reading.yields);
        positions
            .pending
            .set(position, ready && !empty && !alone && !conn.reply.large && !conn.wait.late);
        let stalled = ready && conn.reading.paused && conn.reading.stalled;
        if stalled != positions.stalled.has(position) {
            positions.stalled.set(position, stalled);
            self.note_stalled(conn, stalled);
        }
        let positions = &mut self.positions;
        positions
            .sharing
            .set(position, ready && !empty && !apart && !yields && !conn.reading.paused);
        positions.coming.set(position, soon);
        positions.delayed.set(position, conn.is_coming() && !soon);
        if !ready {
            // The next one may arrive elsewhere.
            positions.locate(conn.position, None);
        }
        positions.open.set(position, open);
    }

    /// The client of a connection has not read for a while, while others waited; or that is over.
    #[cold]
    fn note_stalled(&mut self, conn: &UpstreamConn, stalled: bool) {
        let scarce = self.is_scarce();
        match conn.entries.front().filter(|_| stalled) {
            Some(front) => self.holders.hold(conn.position as usize, front.ask.carrier, scarce),
            None => self.holders.release(conn.position as usize),
        }
    }

    /// Whether a large number of connections is set aside, so that their clients may each hold only
    /// few.
    fn is_scarce(&self) -> bool {
        self.positions.stalled() >= (self.limits.all / 2).max(SCARCE_MIN)
    }

    /// Returns how many connections may be set aside for one client connection at present.
    pub(crate) fn asides_for_one(&self) -> u32 {
        if self.is_scarce() { ASIDE_SCARCE_MAX } else { ASIDE_CLIENT_MAX }
    }

    /// Whether a request is not sent before the client connection that it came on releases
    /// connections for others.
    #[inline]
    pub(crate) fn must_park(&self, ask: &PendingRequest) -> bool {
        self.holders.is_full(ask.carrier)
            && !ask.traits.has(RequestFlags::QUARANTINED)
            && !ask.traits.has(RequestFlags::TRIAL)
    }

    /// Requests that were parked because of clients that hold less now get in line again.
    #[inline]
    pub(crate) fn unpark(&mut self) {
        if self.holders.has_freed() {
            for client in self.holders.take_freed() {
                let left = self.capacity.saturating_sub(self.load());
                if self.holders.room(client) != Some(0) && !self.waiting.unpark(client, left) {
                    self.holders.look_again(client);
                }
            }
        }
    }

    /// Whether a connection has gone without an idle moment for enough requests, or for long
    /// enough, that it is allowed to run empty.
    fn must_sync(&self, conn: &UpstreamConn, now_us: u64) -> bool {
        let long =
            conn.history.pipelined && now_us.saturating_sub(conn.rest.unrested_us) >= SYNC_US;
        let alone = self.is_single() && conn.rest.since_sync == 0;
        let most = if alone { SYNC_REQUESTS_ALONE } else { SYNC_REQUESTS };
        long || conn.rest.unrested >= most
    }

    /// Whether another request may be sent behind what is unanswered on this connection.
    fn may_follow(&self, conn: &UpstreamConn) -> bool {
        !self.mode.pipeline_off && !conn.gate.full && self.learned.trust.may_pipeline()
    }

    /// Whether a connection has one request at a time, or only those of one client, so that a
    /// response is never taken for the one before it.
    pub(crate) fn is_single(&self) -> bool {
        self.mode.pipeline_off || self.mode.share_client || !self.learned.trust.may_pipeline()
    }

    /// Determines whether a request that is about to get a place here rides apart: on a connection
    /// with nothing unanswered, and nothing behind it. That is so until sharing is known to cost it
    /// nothing. With a fixed depth the operator has decided.
    #[inline]
    pub(crate) fn set_apart(&self, ask: &mut PendingRequest) {
        let why = match ask.traits.has(RequestFlags::PIPELINABLE) {
            true => self.why_apart(ask.class),
            false => RequestFlags::default(),
        };
        ask.traits = ask.traits.without(RequestFlags::APART_WHY).with(why, true);
    }

    /// Returns [`RequestFlags::APART`] with its reason, or nothing.
    #[inline]
    fn why_apart(&self, class: ClassName) -> RequestFlags {
        let Server { mode, learned, .. } = self;
        if mode.pipeline_off || mode.share_client || !learned.depth.is_adaptive() {
            let is_off = mode.pipeline_off && !mode.private;
            return RequestFlags::default().with(RequestFlags::APART, is_off);
        }
        let why = match () {
            () if !learned.trust.may_pipeline() => RequestFlags::UNTRUSTED,
            () if !learned.classes.is_alike(class) => RequestFlags::UNLIKE,
            () if learned.depth() == 1 => RequestFlags::COSTLY,
            () => return RequestFlags::default(),
        };
        why.with(RequestFlags::APART, true)
    }

    /// A request is sent on a connection that others may share: counts it, once, if it rides apart.
    /// Places are chosen more than once: by its worker, by the one that it is mailed to, and anew
    /// while it waits or after a loss.
    #[inline]
    pub(crate) fn count_apart(&self, ask: &mut PendingRequest) {
        let (traits, stats) = (ask.traits, &self.stats);
        if !traits.has(RequestFlags::APART) || traits.has(RequestFlags::COUNTED) {
            return;
        }
        let why = match () {
            // It would have had one anyway.
            () if traits.goes_alone() => return,
            () if traits.has(RequestFlags::UNTRUSTED) => &stats.apart_untrusted,
            () if traits.has(RequestFlags::UNLIKE) => &stats.apart_unlike,
            () if traits.has(RequestFlags::COSTLY) => &stats.apart_costly,
            // The operator wants it.
            () => return,
        };
        why.add(1);
        ask.traits = traits.with(RequestFlags::COUNTED, true);
    }

    /// The current conditions, for the next request that becomes the first of a connection.
    #[inline]
    pub(crate) fn mark(&self) -> Mark {
        Mark { answers: self.answers, in_flight: self.inflight }
    }

    /// Whether requests are kept apart because the operator wants it, or because the server has
    /// sent an answer too many.
    pub(crate) fn keeps_apart(&self) -> bool {
        self.mode.pipeline_off || self.mode.share_client || self.learned.trust.is_lost()
    }

    /// Returns the position of the connection that takes this request now, if any does.
    pub(crate) fn pick(
        &self,
        ask: &PendingRequest,
        tail: impl Fn(ConnKey) -> Option<ClientName>,
    ) -> Option<usize> {
        self.find(ask, tail).filter(|_| self.admits(1))
    }

    /// The same, whatever `concurrency` says.
    fn find(
        &self,
        ask: &PendingRequest,
        tail: impl Fn(ConnKey) -> Option<ClientName>,
    ) -> Option<usize> {
        if ask.traits.rides_apart() {
            return self.positions.empty().filter(|_| self.may_hold(0, ask.traits.goes_alone()));
        }
        if self.mode.share_client {
            return self.pick_for_client(ask.client, tail);
        }
        let positions = &self.positions;
        let found = positions.nearest_open(positions.resting.is_empty() || self.is_single())?;
        if positions.open.has(found) && !positions.idle.has(found) || self.may_begin() {
            return Some(found);
        }
        positions.open.first_in(&positions.sharing)
    }

    /// Whether one more connection may get requests that share it. Idle ones that were made while
    /// others were held are for requests that must be sent alone.
    fn may_begin(&self) -> bool {
        self.positions.sharing.count() < self.limits.shared
    }

    /// Whether a connection that was found to be far is better replaced: all are far, and the next
    /// one may be near. `scouted`: so far it has only served to find that out.
    pub(crate) fn may_try_nearer(&mut self, scouted: bool) -> bool {
        let all_far = self.positions.far() == self.ready;
        let may = (scouted || all_far) && self.far_tries > 0;
        self.far_tries -= u32::from(may);
        may
    }

    /// Whether the first request on a connection is sent alone, to find out whether it is near: the
    /// server ends each connection after a fixed number of requests, so that a far one can be
    /// replaced at hardly any cost.
    pub(crate) fn scouts(&self) -> bool {
        self.far_tries > 0 && self.learned.is_short_lived()
    }

    /// A new connection is near: others may be.
    pub(crate) fn note_near(&mut self) {
        if self.learned.is_short_lived() {
            self.far_tries = (self.far_tries + NEARER_TRIES).min(NEARER_TRIES_MAX);
        }
    }

    /// With `share="client"`: behind requests of the same client, otherwise on an empty connection.
    fn pick_for_client(
        &self,
        client: ClientName,
        client_of: impl Fn(ConnKey) -> Option<ClientName>,
    ) -> Option<usize> {
        let same = (0..self.conns.len()).find(|position| {
            self.positions.open.has(*position) && client_of(self.conns[*position]) == Some(client)
        });
        same.or_else(|| self.positions.empty().filter(|_| self.may_begin()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::keys::{Key, ServerIndex};
    use crate::upstream::pool::Standing;

    fn server(mode: PipelineMode) -> Server {
        let limits = Limits { min: 1, shared: 1, all: 1, ..Limits::default() };
        let plan = UpstreamPlan { pipeline: mode, queue_size: 1000, ..UpstreamPlan::default() };
        Server::new(&plan, 0, 0, Arc::default(), limits, 1)
    }

    /// A limit that was learned from other connections does not restrict one that has outlived it.
    #[test]
    fn what_has_outlived_the_limit_is_used() {
        let mut machine = server(PipelineMode::Adaptive);
        let mut conn = UpstreamConn::new(ServerIndex::new(0), 0, 0);
        conn.position = machine.add_conn(ConnKey::new(0));
        (conn.state, conn.history.answers) = (Standing::of(ConnState::Ready), 29);
        (0..3).for_each(|_| machine.learned.keepalive_limit.on_announced(7));
        machine.refresh(&mut conn, 0);
        assert!(machine.positions.is_empty_at(0));
    }

    /// A batch is what fills a receive: many small responses, or one large one; a fixed depth does
    /// not change.
    #[test]
    fn large_answers_make_short_batches() {
        let mut adaptive = server(PipelineMode::Adaptive);
        (0..64).for_each(|_| adaptive.learned.note_answers(250 * 16, 16));
        assert!(adaptive.learned.batch >= 128, "{}", adaptive.learned.batch);
        (0..64).for_each(|_| adaptive.learned.note_answers(64 * 1024 + 200, 1));
        assert_eq!(adaptive.learned.batch, 1);
        (0..64).for_each(|_| adaptive.learned.note_answers(250, 1));
        assert!(adaptive.learned.batch >= 128, "it recovers: {}", adaptive.learned.batch);
        let mut fixed = server(PipelineMode::Depth(16));
        (0..64).for_each(|_| fixed.learned.note_answers(1 << 20, 1));
        assert_eq!(fixed.learned.batch, u32::MAX);
    }
}
