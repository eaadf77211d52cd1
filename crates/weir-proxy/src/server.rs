//! One server as one worker sees it: its connections, what waits for them, and which of them takes the next request.
//!
//! Fill first, then spread: requests go onto the lowest connection that has room, because requests that share a send and
//! answers that share a receive are what makes pipelining cheap. Bounds: `depth` unanswered requests on a connection
//! before the next is used, `capacity` requests waiting or in flight in all.

use std::sync::Arc;

use crate::ask::{Ask, Traits};
use crate::backoff::Pacer;
use crate::balance::Measure;
use crate::bits::Bits;
use crate::depth::Depth;
use crate::health::Window;
use crate::lifespan::Lifespan;
use crate::link::{Link, LinkState};
use crate::plan::{PipelineMode, Pool, Share};
use crate::queue::Queue;
use crate::stamina::Stamina;
use crate::standing::{Order, Standing};
use crate::stats::ServerStats;
use crate::trust::Trust;
use crate::usual::Usual;

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

/// What requests are scheduled by.
#[derive(Debug)]
pub struct Server {
    /// Index of the upstream in the plan.
    pub upstream: u16,
    /// Index of the server in the upstream.
    pub index: u16,
    /// What is counted of it.
    pub stats: Arc<ServerStats>,
    /// Slots of this worker's connections in the engine, by position.
    pub links: Vec<u32>,
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
    /// Position of the connection that is kept for the request in quarantine that waits here: nothing else is sent on it.
    pub kept: Option<u32>,
    /// Connections whose packets this worker's core receives.
    near: Bits,
    /// Connections whose packets another core receives.
    far: Bits,
    /// How often a far connection may still be made anew.
    far_tries: u32,
    /// Connections that are up.
    pub ready: u32,
    /// Connections that left the pool because their clients are slow.
    pub aside: u32,
    /// Tunnels whose bytes the driver moves: they are no connections of the engine's any more.
    pub relays: u32,
    /// Requests that wait, oldest first; those sent again stand at the front.
    pub waiting: Queue,
    /// Requests on connections.
    pub inflight: u32,
    /// Whether it takes new requests.
    pub standing: Standing,
    /// The log says that it can't be reached.
    pub told_unreachable: bool,
    /// Answers with a status from here on are looked at by health; above all of them where nothing of that is configured.
    pub notable_from: u16,
    /// By `failover` rule: what it counted; only used by the worker that judges the server.
    pub windows: Vec<Window>,
    /// Trials in vain since it was suspended, and suspensions that followed each other closely; only used there.
    pub trials: u32,
    /// When it was last taken back after a suspension; only used there. 0: never.
    pub resumed_us: u64,
    /// Before this probes don't end the present suspension; only used there. 0: they do at once.
    pub kept_out_until_us: u64,
    /// When it last came back after it had been out of use; 0: it never was. From here on a slow start counts.
    pub recovered_us: u64,
    /// How far the server may be trusted with pipelining.
    pub trust: Trust,
    /// Whether it bears that.
    pub stamina: Stamina,
    /// How deep requests may follow each other.
    pub depth: Depth,
    /// After how many requests it ends a connection.
    pub lifespan: Lifespan,
    /// How long its answers usually take.
    pub usual: Usual,
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
    /// A server with `links` connections on this worker, none of them up yet.
    pub fn new(
        upstream: u16,
        index: u16,
        stats: Arc<ServerStats>,
        links: Vec<u32>,
        total: u32,
        pool: Pool,
        mode: PipelineMode,
        share: Share,
        queue_size: u32,
    ) -> Server {
        let count = links.len();
        Server {
            upstream,
            index,
            stats,
            open: Bits::new(count),
            idle: Bits::new(count),
            resting: Bits::new(count),
            unseen: Bits::new(count),
            held: Bits::new(count),
            kept: None,
            near: Bits::new(count),
            far: Bits::new(count),
            far_tries: FAR_TRIES,
            ready: 0,
            aside: 0,
            relays: 0,
            waiting: Queue::default(),
            inflight: 0,
            standing: Standing::new(Order::Enable),
            told_unreachable: false,
            notable_from: u16::MAX,
            windows: Vec::new(),
            trials: 0,
            resumed_us: 0,
            kept_out_until_us: 0,
            recovered_us: 0,
            stamina: Stamina::default(),
            trust: Trust::new(total.min(count.max(1) as u32)),
            depth: Depth::new(mode, queue_size),
            lifespan: Lifespan::default(),
            usual: Usual::new(true),
            batch: u32::MAX,
            answer_bytes: (mode == PipelineMode::Adaptive).then_some(0),
            measure: None,
            pacer: Pacer::default(),
            failures: 0,
            unreachable: false,
            was_down: false,
            capacity: if pool.is_private() { u32::MAX } else { queue_size.saturating_mul(count as u32) },
            acknowledged_until_us: 0,
            anywhere: false,
            private: pool.is_private(),
            away_until_us: 0,
            pipeline_off: pool != Pool::Pipelined || mode == PipelineMode::Off || queue_size == 1,
            share_client: share == Share::Client,
            links,
        }
    }

    /// It takes requests again after it had been out of use.
    pub fn recovered(&mut self, now_us: u64) {
        self.recovered_us = now_us;
    }

    /// Whether no more requests may be put here.
    pub fn is_full(&self) -> bool {
        self.load() >= self.capacity
    }

    /// Requests waiting or in flight.
    pub fn load(&self) -> u32 {
        self.inflight + self.waiting.len() as u32
    }

    /// Whether nothing is put on any of the connections that are up until the answer under way has ended.
    pub fn is_held(&self) -> bool {
        !self.held.is_empty() && self.held.count() >= self.ready
    }

    /// Whether some connection takes a request at once.
    pub fn has_room(&self) -> bool {
        self.standing.takes_new() && !self.is_full() && !(self.open.is_empty() && self.resting.is_empty())
    }

    /// Recomputes what a connection may take. Call after anything about it changed.
    pub fn refresh(&mut self, link: &mut Link, now_us: u64) {
        if link.state == LinkState::Aside || link.owner.is_some() {
            // Its position belongs to its successor, or it has none.
            return;
        }
        let position = link.position as usize;
        let spent = link.answers + link.entries.len() as u64 >= self.lifespan.limit();
        let kept = self.kept == Some(link.position);
        let up = link.state == LinkState::Ready && link.persist && !spent && !link.locating && !kept;
        let empty = link.entries.is_empty();
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
        self.held.set(position, up && (link.hold || link.large || link.late || link.paused));
        self.open.set(position, open);
    }

    /// Learns from a receive on a connection with several unanswered requests, `elapsed_us` after the one before. True when
    /// the server seems to wait for acknowledgements.
    pub fn holds_back(&mut self, elapsed_us: u64, now_us: u64) -> bool {
        if elapsed_us >= HELD_US {
            self.acknowledged_until_us = now_us + ACKNOWLEDGE_US;
        }
        now_us < self.acknowledged_until_us
    }

    /// Learns from a receive that completed `count` answers (at least 1) of `bytes` in all.
    pub fn note_answers(&mut self, bytes: u64, count: u32) {
        if let Some(mean) = &mut self.answer_bytes {
            *mean = (*mean * 7 + bytes / u64::from(count)) / 8;
            self.batch = u32::try_from(BATCH_BYTES / (*mean).max(1)).unwrap_or(u32::MAX).max(1);
        }
    }

    /// Whether another request may be sent behind what is unanswered on this connection.
    fn may_follow(&self, link: &Link) -> bool {
        !self.pipeline_off && !link.full && self.trust.may_pipeline()
    }

    /// Whether a connection has one request at a time, or those of one client: what it is asked next must not be taken for the
    /// answer before.
    pub fn is_single(&self) -> bool {
        self.pipeline_off || self.share_client || !self.trust.may_pipeline()
    }

    /// The position of the connection that takes this request now, if there is one.
    pub fn pick(&self, ask: &Ask, client_of: impl Fn(u32) -> Option<u64>) -> Option<usize> {
        if ask.traits.has(Traits::ALONE) {
            return self.empty();
        }
        if !ask.traits.has(Traits::PIPELINABLE) {
            let open = || if self.share_client { None } else { self.preferred(&self.open) };
            return self.empty().or_else(open);
        }
        if self.share_client {
            return self.pick_for_client(ask.client, client_of);
        }
        self.nearest_open()
    }

    /// Whether nothing is unanswered on some connection.
    pub fn has_empty(&self) -> bool {
        [&self.idle, &self.resting, &self.unseen].iter().any(|among| !among.is_empty())
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
    pub fn is_near(&self, position: u32) -> Option<bool> {
        let position = position as usize;
        (self.near.has(position) || self.far.has(position)).then(|| self.near.has(position))
    }

    /// Learns which core receives the packets of a connection: this worker's (near) or another; None: not known yet.
    pub fn locate(&mut self, position: u32, near: Option<bool>) {
        self.near.set(position as usize, near == Some(true));
        self.far.set(position as usize, near == Some(false));
    }

    /// Whether a connection that was found to be far is better made anew: all are, and the next one may be near. `scouted`: it
    /// has done nothing yet but to find that out.
    pub fn may_try_nearer(&mut self, scouted: bool) -> bool {
        let all_far = self.far.count() as usize == self.links.len();
        let may = (scouted || all_far) && self.far_tries > 0;
        self.far_tries -= u32::from(may);
        may
    }

    /// Whether the first request on a connection goes alone, to find out whether it is near: the server ends each after so many
    /// requests, so that one that is far can be replaced at hardly any cost.
    pub fn scouts(&self) -> bool {
        self.far_tries > 0 && self.is_short_lived()
    }

    /// A new connection is near: others may be.
    pub fn note_near(&mut self) {
        if self.is_short_lived() {
            self.far_tries = (self.far_tries + NEARER_TRIES).min(NEARER_TRIES_MAX);
        }
    }

    fn is_short_lived(&self) -> bool {
        (SCOUTED_REQUESTS_MIN..u64::MAX).contains(&self.lifespan.limit())
    }

    /// With `share="client"`: behind requests of the same client, else on a connection of its own.
    fn pick_for_client(&self, client: u64, client_of: impl Fn(u32) -> Option<u64>) -> Option<usize> {
        let same = (0..self.links.len())
            .find(|position| self.open.has(*position) && client_of(self.links[*position]) == Some(client));
        same.or_else(|| self.empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(mode: PipelineMode) -> Server {
        Server::new(0, 0, Arc::default(), vec![0], 1, Pool::Pipelined, mode, Share::All, 1000)
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
