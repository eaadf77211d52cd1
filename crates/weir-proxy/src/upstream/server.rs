//! One server as one worker sees it: its connections, what waits for them, and which of them takes the next request.
//!
//! Fill first, then spread: requests go onto the lowest connection that has room, because requests that share a send and
//! answers that share a receive are what makes pipelining cheap. There are as many connections as requests need: one more
//! is made when a request would otherwise wait, and one that is not needed any more goes after a rest ([`Server::wants_more`]).
//! Bounds: `depth` unanswered requests on a connection before the next is used, `capacity` requests waiting or in flight in
//! all, [`Limits`] for connections. docs/semantics.md §3.

use std::sync::Arc;

use crate::base::bitset::Bits;
use crate::base::keys::{ConnKey, Key, ServerIndex};
use crate::observe::server_stats::ServerStats;
use crate::placement::balance::Measure;
use crate::plan::{PipelineMode, Pool, ServerPlan, Share, UpstreamPlan};
use crate::request::pending_request::{ClientName, PendingRequest};
use crate::upstream::backoff::Pacer;
use crate::upstream::connection::{LinkState, UpstreamConn};
use crate::upstream::depth::Depth;
use crate::upstream::early_close::EarlyCloseDetector;
use crate::upstream::idle_limit::IdleLimit;
use crate::upstream::keepalive_limit::{KeepaliveLimit, Lasting};
use crate::upstream::lines::Lines;
use crate::upstream::server_state::{Order, ServerState};
use crate::upstream::slow_answer::SlowDetector;
use crate::upstream::trust::Trust;

/// Requests on a pipelined connection without a rest after which it is let run empty (a sync point).
const SYNC_REQUESTS: u32 = 1000;
/// The same with one request at a time, where a rest costs one request's time and not that of a pipeline.
const SYNC_REQUESTS_ALONE: u32 = 32;
/// Bytes of answers that are worth having in one receive (a large receive buffer). Pipelining saves what a receive and a
/// send cost; next to the copying of large answers that is nothing, and one connection after the other would idle.
const BATCH_BYTES: u64 = 64 * 1024;
/// Time without a rest after which a pipelined connection is let run empty.
const SYNC_US: u64 = 1_000_000;

/// Connections that are made anew because all of a worker's are far: each time another process or another queue of the network
/// card may be the other end, and with two of them four times are enough in 15 cases of 16.
const FAR_TRIES: u32 = 4;
/// Further tries for each connection that turns out to be near, where connections are made anew all the time; so that it goes on
/// where every fourth is near, and is given up where hardly any is. At most [`NEARER_TRIES_MAX`] are saved.
const NEARER_TRIES: u32 = 3;
const NEARER_TRIES_MAX: u32 = 8;
/// A server that ends connections after fewer requests is not worth it: a connect costs what ten or twenty requests on a far
/// connection cost more.
const SCOUTED_REQUESTS_MIN: u64 = 50;
/// An answer in a pipeline that takes as long as the kernel delays an acknowledgement (40 ms, a tick less) may have been held
/// back for want of one (Nagle's algorithm, RFC 9293 §3.7.4). nginx with `tcp_nopush` does so.
const HELD_US: u64 = 30_000;
/// How long a server is then acknowledged at once. It costs up to a tenth of the CPU where it is of no use.
const ACKNOWLEDGE_US: u64 = 600_000_000;

/// Connections of slow readers that are made up for beyond [`Limits::all`]: their answers may wait, in a circle, for others that need one.
pub(crate) const STALLED_MAX: u32 = 1_000;
/// A connection that is due to be made so soon is on its way: what waits has no other one made.
const SOON_US: u64 = 50_000;
/// How long a connection that is not needed rests before it is closed.
pub(crate) const SURPLUS_US: u64 = 60_000_000;

/// How many connections one worker may have to a server: its part of what is configured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Kept without traffic.
    pub min: u32,
    /// Up to so many that take requests which share.
    pub shared: u32,
    /// Up to so many when some are held by what does not share.
    pub all: u32,
}

impl Limits {
    /// This worker's part: connection `n` of server `s` belongs to worker `(n + s) mod workers`, so that no more than
    /// configured are made in total. With fewer `connections` than workers only so many of them have any.
    pub(crate) fn of(plan: &ServerPlan, server: ServerIndex, worker: u16, workers: u16) -> Limits {
        let (worker, workers) = (u32::from(worker), u32::from(workers));
        let first = (worker + workers - server.number() % workers) % workers;
        let owners = workers.min(plan.connections).max(1);
        if first >= owners {
            return Limits::default();
        }
        let mine = |total: u32| (total + owners - 1).saturating_sub(first) / owners;
        Limits { min: mine(plan.connections_min), shared: mine(plan.connections), all: mine(plan.connections_max) }
    }

    /// Requests that may wait or be in flight, with so many for each connection that takes requests which share: one more for each
    /// that may be held.
    fn capacity(self, queue_size: u32) -> u32 {
        queue_size.saturating_mul(self.shared).saturating_add(self.all.saturating_sub(self.shared))
    }

    /// Connections that requests which go alone leave to the others: as many as share, if there are so many beyond those.
    fn reserve(self) -> u32 {
        self.shared.min(self.all.saturating_sub(self.shared))
    }

    /// Exactly so many are kept, whatever happens to them.
    pub(crate) fn is_exact(self) -> bool {
        self.min == self.shared
    }
}

/// Whether a server can be connected to, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Nobody has tried.
    Unknown,
    /// The last connect was answered, and no connection has broken since.
    Proven,
    /// The last connect failed, or the last connection broke.
    Doubtful,
}

/// What requests are scheduled by.
#[derive(Debug)]
pub(crate) struct Server {
    /// Index of the upstream in the plan.
    pub upstream: u16,
    /// Index of the server in the upstream.
    pub index: u16,
    /// What is counted of it.
    pub stats: Arc<ServerStats>,
    /// Slots of this worker's connections, by position.
    pub links: Vec<ConnKey>,
    /// Connections that may take a request which others may follow.
    pub open: Bits,
    /// Connections with nothing unanswered.
    pub idle: Bits,
    /// The same, but they ran empty so lately that more may come of what they were last asked: used when there are no others.
    resting: Bits,
    /// Connections that ran empty in this turn or the last one, and take requests when everything that had arrived by then was read.
    unseen: Bits,
    /// Connections behind which nothing is put for now: a request that nothing may follow is unanswered, or the answer under way
    /// is large, late, or taken slowly.
    held: Bits,
    /// Position of the connection that is kept for what goes alone and waits here, where no more can be made: nothing else is
    /// sent on it.
    pub kept: Option<u32>,
    /// Connections whose packets this worker's core receives.
    near: Bits,
    /// Connections whose packets another core receives.
    far: Bits,
    /// How often a far connection may still be made anew.
    far_tries: u32,
    /// Connections that are up.
    pub ready: u32,
    /// Connections that are being made, or are due to be within [`SOON_US`].
    coming: Bits,
    /// Connections that are due to be made later.
    delayed: Bits,
    /// Connections whose clients do not read, and that hold up nobody who waits here as far as is known.
    paused: Bits,
    /// Connections with an answer under way that may turn out to be late.
    pending: Bits,
    /// Connections whose clients have not read for a while, and for which others wait.
    stalled: Bits,
    /// Connections with requests that share them.
    sharing: Bits,
    /// How many there may be.
    pub limits: Limits,
    /// Whether another one can be made.
    pub reach: Reach,
    /// How long it lets a connection rest.
    pub idle_limit: IdleLimit,
    /// When a timer last was to go off because a connection has rested that what waits needs.
    pub rested_due_us: u64,
    /// Requests that wait.
    pub waiting: Lines,
    /// Requests on connections.
    pub inflight: u32,
    /// Whether it takes new requests.
    pub standing: ServerState,
    /// The log says that it can't be reached.
    pub told_unreachable: bool,
    /// Answers with a status from here on are looked at by health; above all of them where nothing of that is configured.
    pub notable_from: u16,
    /// When it last came back after it had been out of use; 0: it never was. From here on a slow start counts.
    pub recovered_us: u64,
    /// How far the server may be trusted with pipelining.
    pub trust: Trust,
    /// Whether it bears that.
    pub early_close: EarlyCloseDetector,
    /// How deep requests may follow each other.
    pub depth: Depth,
    /// After how many requests it ends a connection.
    pub keepalive_limit: KeepaliveLimit,
    /// Whether it keeps connections for more than one; all workers have the same.
    pub lasting: Lasting,
    /// How long its answers usually take.
    pub usual: SlowDetector,
    /// Answers that fill a receive: more in a row on one connection gain nothing and keep others idle.
    pub batch: u32,
    /// Bytes of an answer, averaged; None when the depth is fixed.
    answer_bytes: Option<u64>,
    /// How long its answers take lately, when balancing needs that.
    pub measure: Option<Box<Measure>>,
    /// Lets connects begin one after another when many are due.
    pub pacer: Pacer,
    /// Failed connects in a row, over all connections.
    pub failures: u32,
    /// Connects that succeeded, of all its connections.
    pub connects: u64,
    /// No connection is up, and a connect has failed since the last one was.
    pub unreachable: bool,
    /// Was without connections for longer than a reconnect takes, and has not answered since.
    pub was_down: bool,
    /// Requests that may wait or be in flight.
    pub capacity: u32,
    /// Until when it gets acknowledgements at once.
    acknowledged_until_us: u64,
    /// Stands for all destinations of the forward proxy.
    pub anywhere: bool,
    /// Requests wait, and each connection is looked at for a late answer.
    pub watched: bool,
    /// Its connections belong to clients or requests and are made when those need them: [`Pool::is_private`].
    pub private: bool,
    /// Until when a private one is not chosen while another server can be: a connect has failed.
    pub away_until_us: u64,
    /// Configured to send one request at a time.
    pub pipeline_off: bool,
    /// Only requests of one client follow each other.
    pub share_client: bool,
}

impl Server {
    /// Server `index` of an upstream, without connections; `total` is how many that share there may be over all workers.
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
            stats,
            links: Vec::new(),
            open: Bits::default(),
            idle: Bits::default(),
            resting: Bits::default(),
            unseen: Bits::default(),
            held: Bits::default(),
            kept: None,
            near: Bits::default(),
            far: Bits::default(),
            far_tries: FAR_TRIES,
            ready: 0,
            coming: Bits::default(),
            delayed: Bits::default(),
            paused: Bits::default(),
            pending: Bits::default(),
            stalled: Bits::default(),
            sharing: Bits::default(),
            limits,
            reach: Reach::Unknown,
            idle_limit: IdleLimit::default(),
            rested_due_us: 0,
            waiting: Lines::default(),
            inflight: 0,
            standing: ServerState::new(Order::Enable),
            told_unreachable: false,
            notable_from: u16::MAX,
            recovered_us: 0,
            early_close: EarlyCloseDetector::default(),
            trust: Trust::new(total.min(limits.shared.max(1))),
            depth: Depth::new(mode, queue_size),
            keepalive_limit: KeepaliveLimit::default(),
            lasting: Lasting::default(),
            usual: SlowDetector::new(true),
            batch: u32::MAX,
            answer_bytes: (mode == PipelineMode::Adaptive).then_some(0),
            measure: None,
            pacer: Pacer::default(),
            failures: 0,
            connects: 0,
            unreachable: false,
            was_down: false,
            capacity: if pool.is_private() { u32::MAX } else { limits.capacity(queue_size) },
            acknowledged_until_us: 0,
            anywhere: false,
            watched: false,
            private: pool.is_private(),
            away_until_us: 0,
            pipeline_off: pool != Pool::Pipelined || mode == PipelineMode::Off || queue_size == 1,
            share_client: share == Share::Client,
        }
    }

    /// Gives the connection in this slot a position.
    pub(crate) fn add_link(&mut self, index: ConnKey) -> u32 {
        self.links.push(index);
        let count = self.links.len();
        let taking = [&mut self.open, &mut self.idle, &mut self.resting, &mut self.unseen, &mut self.sharing];
        let others = [&mut self.held, &mut self.paused, &mut self.pending, &mut self.stalled];
        let coming = [&mut self.coming, &mut self.delayed];
        let placed = [&mut self.near, &mut self.far];
        taking.into_iter().chain(others).chain(coming).chain(placed).for_each(|bits| bits.grow(count));
        count as u32 - 1
    }

    /// Connections that are up, on their way, or to be made after a while.
    #[inline]
    pub(crate) fn made(&self) -> u32 {
        self.ready + self.coming.count() + self.delayed.count()
    }

    /// Whether any connection is on its way, or takes requests in the next turn.
    pub(crate) fn coming_any(&self) -> bool {
        !(self.coming.is_empty() && self.unseen.is_empty())
    }

    /// Whether any connection is on its way.
    pub(crate) fn is_coming(&self) -> bool {
        !self.coming.is_empty()
    }

    /// Connections whose clients do not read, and that hold up nobody who waits here as far as is known.
    pub(crate) fn paused(&self) -> Vec<ConnKey> {
        self.paused.members().map(|position| self.links[position]).collect()
    }

    /// Connections with an answer under way that may turn out to be late.
    pub(crate) fn pending(&self) -> Vec<ConnKey> {
        self.pending.members().map(|position| self.links[position]).collect()
    }

    /// Whether the client of any connection does not read, while requests wait that may be held up.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.paused.is_empty() && !self.waiting.is_empty()
    }

    /// Connections whose clients have not read for a while, and for which others wait.
    pub(crate) fn stalled(&self) -> u32 {
        self.stalled.count()
    }

    /// Whether none is kept without a request: the server ends each after one answer, and while it waits on one for a request, it
    /// may have nobody for another one.
    pub(crate) fn is_one_shot(&self) -> bool {
        self.lasting.is_single() && !self.limits.is_exact()
    }

    /// Whether a connection is kept although nothing waits for it; `others`: how many there are beside it.
    pub(crate) fn keeps(&self, others: u32) -> bool {
        others < self.limits.min && !self.is_one_shot()
    }

    /// Whether one more connection may be held by a request that goes alone, beside those that are held and `coming`: some always
    /// stay for those that share, whatever holds the others.
    fn may_hold(&self, coming: u32) -> bool {
        let all = self.limits.all + self.stalled().min(STALLED_MAX);
        self.held.count() + coming + self.limits.reserve() < all
    }

    /// Whether another connection may be made, for a request that goes alone or for others.
    pub(crate) fn may_grow(&self, alone: bool) -> bool {
        let (made, held) = (self.made(), self.held.count());
        let all = self.limits.all + self.stalled().min(STALLED_MAX);
        let fits = match alone {
            true => self.may_hold(self.coming.count()),
            // Where each connection ends with its answer, one that can't be used now is never made in advance: it would be closed at once.
            false => made < held + self.limits.shared && (self.may_begin() || !self.is_one_shot()),
        };
        fits && made < all && self.limits.shared > 0 && self.standing.keeps_connections()
    }

    /// Whether another connection is to be made now: requests wait for more than are on their way.
    pub(crate) fn wants_more(&self) -> bool {
        let (shared, alone) = (self.waiting.line(false).len() as u32, self.waiting.line(true).len() as u32);
        if shared + alone == 0 {
            return false;
        }
        let each = if self.is_single() { 1 } else { self.depth.limit().min(self.batch).max(1) };
        // Those that ran empty take requests in the next turn.
        let coming = self.coming.count() + self.unseen.count();
        let (for_alone, for_shared) = (alone.min(coming), shared.div_ceil(each));
        alone > coming && self.may_grow(true) || for_shared > coming - for_alone && shared > 0 && self.may_grow(false)
    }

    /// It takes requests again after it had been out of use.
    pub(crate) fn recovered(&mut self, now_us: u64) {
        self.recovered_us = now_us;
    }

    /// Whether no more requests may be put here.
    pub(crate) fn is_full(&self) -> bool {
        self.load() >= self.capacity
    }

    /// Requests waiting or in flight.
    pub(crate) fn load(&self) -> u32 {
        self.inflight + self.waiting.len() as u32
    }

    /// Whether nothing is put on any of the connections that are up until the answer under way has ended, and no other can be
    /// made.
    pub(crate) fn is_held(&self) -> bool {
        !self.held.is_empty() && self.held.count() >= self.ready && !self.may_grow(false)
    }

    /// Whether a connection can be made where none is up, as far as is known.
    pub(crate) fn is_hopeful(&self) -> bool {
        self.limits.shared > 0 && self.reach == Reach::Proven
    }

    /// Whether some connection takes a request at once, or is made for it.
    pub(crate) fn has_room(&self) -> bool {
        let room =
            !(self.open.is_empty() && self.resting.is_empty()) || self.reach == Reach::Proven && self.may_grow(false);
        self.standing.takes_new() && !self.is_full() && room
    }

    /// Recomputes what a connection may take. Call after anything about it changed.
    pub(crate) fn refresh(&mut self, link: &mut UpstreamConn, now_us: u64) {
        if link.owner.is_some() {
            return;
        }
        let position = link.position as usize;
        let empty = link.entries.is_empty();
        // One that is empty has outlived what was learned from others.
        let spent = !empty && (link.nudged || link.answers + link.entries.len() as u64 >= self.keepalive_limit.limit());
        let kept = self.kept == Some(link.position);
        let up = link.state() == LinkState::Ready && link.persist && !spent && !link.locating && !kept;
        let idle = up && empty && !link.syncing && !link.unseen;
        let resting = idle && link.wary && now_us < link.rest_until_us;
        let (limit, len) = (self.depth.limit().min(self.batch), link.entries.len() as u32);
        // Refilled by a quarter of the depth: a request for each answer as it comes would make batches of one ever after.
        link.full = len >= limit || link.full && len > limit - limit / 4;
        if up && !empty && !link.syncing {
            let long = link.pipelined && now_us.saturating_sub(link.unrested_us) >= SYNC_US;
            let alone = self.is_single() && link.since_sync == 0;
            let most = if alone { SYNC_REQUESTS_ALONE } else { SYNC_REQUESTS };
            link.syncing = long || link.unrested >= most;
        }
        let open = up
            && !link.syncing
            && !link.hold
            && !link.large
            && !link.late
            && !link.paused
            && !(empty && (resting || link.unseen))
            && (empty || (!link.probation && self.may_follow(link)));
        self.idle.set(position, idle && !resting);
        self.resting.set(position, resting);
        self.unseen.set(position, up && empty && link.unseen);
        let alone = link.entries.front().is_some_and(|entry| entry.ask.traits.goes_alone());
        let yields = alone || link.large || link.late || link.paused && link.yields;
        let ready = link.state() == LinkState::Ready;
        self.held.set(position, ready && (yields || !link.persist || spent && !empty));
        self.paused.set(position, ready && link.paused && !link.yields);
        self.pending.set(position, ready && !empty && !alone && !link.large && !link.late);
        self.stalled.set(position, ready && link.paused && link.stalled);
        self.sharing.set(position, ready && !empty && !yields && !link.paused);
        let soon = link.is_coming_by(now_us + SOON_US);
        self.coming.set(position, soon);
        self.delayed.set(position, link.is_coming() && !soon);
        if !ready {
            // The next one may arrive elsewhere.
            self.locate(link.position, None);
        }
        self.open.set(position, open);
    }

    /// Learns from a receive on a connection with several unanswered requests, `elapsed_us` after the one before. True when
    /// the server seems to wait for acknowledgements.
    pub(crate) fn holds_back(&mut self, elapsed_us: u64, now_us: u64) -> bool {
        if elapsed_us >= HELD_US {
            self.acknowledged_until_us = now_us + ACKNOWLEDGE_US;
        }
        now_us < self.acknowledged_until_us
    }

    /// Learns from a receive that completed `count` answers (at least 1) of `bytes` in all.
    pub(crate) fn note_answers(&mut self, bytes: u64, count: u32) {
        if let Some(mean) = &mut self.answer_bytes {
            *mean = (*mean * 7 + bytes / u64::from(count)) / 8;
            self.batch = u32::try_from(BATCH_BYTES / (*mean).max(1)).unwrap_or(u32::MAX).max(1);
        }
    }

    /// Whether another request may be sent behind what is unanswered on this connection.
    fn may_follow(&self, link: &UpstreamConn) -> bool {
        !self.pipeline_off && !link.full && self.trust.may_pipeline()
    }

    /// Whether a connection has one request at a time, or those of one client: what it is asked next must not be taken for the
    /// answer before.
    pub(crate) fn is_single(&self) -> bool {
        self.pipeline_off || self.share_client || !self.trust.may_pipeline()
    }

    /// Whether that is so because the operator wants it, or because the server has sent an answer too many.
    pub(crate) fn keeps_apart(&self) -> bool {
        self.pipeline_off || self.share_client || self.trust.is_lost()
    }

    /// Whether a connection ran empty so lately that others are preferred.
    pub(crate) fn is_resting(&self, position: usize) -> bool {
        self.resting.has(position)
    }

    /// Positions of all such.
    pub(crate) fn resting(&self) -> impl Iterator<Item = usize> {
        self.resting.members()
    }

    /// The position of the connection that takes this request now, if there is one.
    pub(crate) fn pick(&self, ask: &PendingRequest, tail: impl Fn(ConnKey) -> Option<ClientName>) -> Option<usize> {
        if ask.traits.goes_alone() {
            return self.empty().filter(|_| self.may_hold(0));
        }
        if self.share_client {
            return self.pick_for_client(ask.client, tail);
        }
        let found = self.nearest_open()?;
        if self.open.has(found) && !self.idle.has(found) || self.may_begin() {
            return Some(found);
        }
        self.open.first_in(&self.sharing)
    }

    /// Whether one more connection may get requests that share it. Idle ones that were made while others were held are for what
    /// goes alone.
    fn may_begin(&self) -> bool {
        self.sharing.count() < self.limits.shared
    }

    /// Whether nothing is unanswered on some connection.
    pub(crate) fn has_empty(&self) -> bool {
        [&self.idle, &self.resting, &self.unseen].iter().any(|among| !among.is_empty())
    }

    /// Whether nothing is unanswered on this connection, and it takes a request.
    pub(crate) fn is_empty_at(&self, position: usize) -> bool {
        self.idle.has(position) || self.resting.has(position)
    }

    /// A connection with nothing unanswered, one that has rested if possible.
    fn empty(&self) -> Option<usize> {
        self.preferred(&self.idle).or_else(|| self.preferred(&self.resting))
    }

    /// A connection for what others may follow: that it is near counts for more than that it has rested.
    fn nearest_open(&self) -> Option<usize> {
        let near = |among: &Bits| among.first_in(&self.near);
        let not_far = |among: &Bits| among.first_outside(&self.far);
        let (open, resting) = (&self.open, &self.resting);
        if self.resting.is_empty() || self.is_single() {
            return self.preferred(open).or_else(|| self.preferred(resting));
        }
        let either = |of: &dyn Fn(&Bits) -> Option<usize>| of(open).or_else(|| of(resting));
        either(&near).or_else(|| either(&not_far)).or_else(|| either(&|among| among.first()))
    }

    /// Fills near connections first, far ones last.
    fn preferred(&self, among: &Bits) -> Option<usize> {
        among.first_in(&self.near).or_else(|| among.first_outside(&self.far)).or_else(|| among.first())
    }

    /// Whether a connection's packets are received by this worker's core (true) or another; None: not known yet.
    pub(crate) fn is_near(&self, position: u32) -> Option<bool> {
        let position = position as usize;
        (self.near.has(position) || self.far.has(position)).then(|| self.near.has(position))
    }

    /// Learns which core receives the packets of a connection: this worker's (near) or another; None: not known yet.
    pub(crate) fn locate(&mut self, position: u32, near: Option<bool>) {
        self.near.set(position as usize, near == Some(true));
        self.far.set(position as usize, near == Some(false));
    }

    /// Whether a connection that was found to be far is better made anew: all are, and the next one may be near. `scouted`: it
    /// has done nothing yet but to find that out.
    pub(crate) fn may_try_nearer(&mut self, scouted: bool) -> bool {
        let all_far = self.far.count() == self.ready;
        let may = (scouted || all_far) && self.far_tries > 0;
        self.far_tries -= u32::from(may);
        may
    }

    /// Whether the first request on a connection goes alone, to find out whether it is near: the server ends each after so many
    /// requests, so that one that is far can be replaced at hardly any cost.
    pub(crate) fn scouts(&self) -> bool {
        self.far_tries > 0 && self.is_short_lived()
    }

    /// A new connection is near: others may be.
    pub(crate) fn note_near(&mut self) {
        if self.is_short_lived() {
            self.far_tries = (self.far_tries + NEARER_TRIES).min(NEARER_TRIES_MAX);
        }
    }

    fn is_short_lived(&self) -> bool {
        (SCOUTED_REQUESTS_MIN..u64::MAX).contains(&self.keepalive_limit.limit())
    }

    /// With `share="client"`: behind requests of the same client, else on a connection of its own.
    fn pick_for_client(&self, client: ClientName, client_of: impl Fn(ConnKey) -> Option<ClientName>) -> Option<usize> {
        let same = (0..self.links.len())
            .find(|position| self.open.has(*position) && client_of(self.links[*position]) == Some(client));
        same.or_else(|| self.empty().filter(|_| self.may_begin()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::keys::Key;
    use crate::upstream::pool::Standing;

    fn server(mode: PipelineMode) -> Server {
        let limits = Limits { min: 1, shared: 1, all: 1 };
        let plan = UpstreamPlan { pipeline: mode, queue_size: 1000, ..UpstreamPlan::default() };
        Server::new(&plan, 0, 0, Arc::default(), limits, 1)
    }

    /// A limit that was learned from other connections keeps nothing from one that has outlived it.
    #[test]
    fn what_has_outlived_the_limit_is_used() {
        let mut machine = server(PipelineMode::Adaptive);
        let mut link = UpstreamConn::new(ServerIndex::new(0), 0, 0);
        link.position = machine.add_link(ConnKey::new(0));
        (link.state, link.answers) = (Standing::of(LinkState::Ready), 29);
        (0..3).for_each(|_| machine.keepalive_limit.on_announced(7));
        machine.refresh(&mut link, 0);
        assert!(machine.is_empty_at(0));
    }

    /// A batch is what fills a receive: many small answers, one large one; a fixed depth stays what it is.
    #[test]
    fn large_answers_make_short_batches() {
        let mut adaptive = server(PipelineMode::Adaptive);
        (0..64).for_each(|_| adaptive.note_answers(250 * 16, 16));
        assert!(adaptive.batch >= 128, "{}", adaptive.batch);
        (0..64).for_each(|_| adaptive.note_answers(64 * 1024 + 200, 1));
        assert_eq!(adaptive.batch, 1);
        (0..64).for_each(|_| adaptive.note_answers(250, 1));
        assert!(adaptive.batch >= 128, "it recovers: {}", adaptive.batch);
        let mut fixed = server(PipelineMode::Depth(16));
        (0..64).for_each(|_| fixed.note_answers(1 << 20, 1));
        assert_eq!(fixed.batch, u32::MAX);
    }
}
