//! State that workers share without mail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::base::keys::{Key, ServerIndex};
use crate::cross::lasting::Lasting;
use crate::cross::limit::Limit;
use crate::cross::permits::Permits;
use crate::cross::places::Places;
use crate::cross::standing::Order;
use crate::cross::verdict::Verdict;
use crate::placement::balance::Shared;

/// How long requests go on waiting for a server that can't be reached, since that server last had a
/// useful connection: it may be restarting.
pub(crate) const RESTART_US: u64 = 2_000_000;
/// Bit of a number of connections: another one can be made, as far as is known.
const HOPEFUL: u32 = 1 << 31;

/// State that workers share without mail: how many connections to each server are up, and an
/// operator's last order. Read without locks; it outlives the machines of a worker.
#[derive(Debug)]
pub struct Hints {
    ready: Vec<AtomicU32>,
    /// By server: whether its connections live for more than one response.
    pub(crate) lasting: Vec<Lasting>,
    /// By server: how many requests that ride apart it works on at once.
    pub(crate) limits: Vec<Arc<Limit>>,
    /// By server: index in [`Order::ALL`]. All workers write the same.
    orders: Vec<AtomicU8>,
    /// By server: why it is not pipelined until an operator clears it, as [`Verdict::code`]; 0:
    /// nothing of that kind.
    verdicts: Vec<AtomicU8>,
    /// By server: from when on a request may be tried on it while it is suspended.
    trials_us: Vec<AtomicU64>,
    /// By the first server of an upstream: which worker has sent a request from the quarantine, and
    /// until when others wait; 0: none.
    quarantines: Vec<AtomicU64>,
    /// By server: when a client last had a good response to the request of a probe; 0: never.
    proved_us: Vec<AtomicU64>,
    /// By server: when a connection to it last ended that had brought a response; 0: never.
    seen_us: Vec<AtomicU64>,
    /// By server: whether it serves few connections at a time.
    places: Vec<Arc<Places>>,
    /// By server: `concurrency`.
    permits: Vec<Arc<Permits>>,
    /// By server and worker: connections that are up and have brought a response.
    served: Vec<AtomicU32>,
    /// By server: connections of `tcp` to it, including those that are being made.
    flows: Vec<AtomicU32>,
    shared: Shared,
    workers: usize,
}

impl Hints {
    /// Returns hints for `servers` (of all upstreams together, including possible later ones) and
    /// `workers`.
    pub fn new(servers: usize, workers: usize) -> Hints {
        Hints {
            ready: (0..servers * workers).map(|_| AtomicU32::new(0)).collect(),
            lasting: (0..servers).map(|_| Lasting::default()).collect(),
            limits: (0..servers).map(|_| Arc::default()).collect(),
            orders: (0..servers).map(|_| AtomicU8::new(Order::default() as u8)).collect(),
            verdicts: (0..servers).map(|_| AtomicU8::new(0)).collect(),
            trials_us: (0..servers).map(|_| AtomicU64::new(u64::MAX)).collect(),
            quarantines: (0..servers).map(|_| AtomicU64::new(0)).collect(),
            proved_us: (0..servers).map(|_| AtomicU64::new(0)).collect(),
            seen_us: (0..servers).map(|_| AtomicU64::new(0)).collect(),
            places: (0..servers).map(|_| Arc::default()).collect(),
            permits: (0..servers).map(|_| Arc::default()).collect(),
            served: (0..servers * workers).map(|_| AtomicU32::new(0)).collect(),
            flows: (0..servers).map(|_| AtomicU32::new(0)).collect(),
            shared: Shared::new(servers, workers),
            workers,
        }
    }

    /// Another server has this slot now, of which nothing is known. Only while no worker uses
    /// either.
    pub(crate) fn forget(&self, server: ServerIndex) {
        self.lasting[server.index()].forget();
        self.limits[server.index()].forget();
        self.set_order(server, Order::default());
        self.set_verdict(server, None);
        self.set_trial(server, u64::MAX);
        self.set_proved(server, 0);
        self.set_seen(server, 0);
        self.places[server.index()].forget();
        self.permits[server.index()].forget();
        self.shared.forget(server);
    }

    /// Whether a server may have another connection of `tcp`, with at most `max` over all workers;
    /// None: any number.
    pub(crate) fn has_flow_room(&self, server: ServerIndex, max: Option<u32>) -> bool {
        max.is_none_or(|max| self.flows[server.index()].load(Ordering::Relaxed) < max)
    }

    /// The same, and it is counted at once.
    pub(crate) fn begin_flow(&self, server: ServerIndex, max: Option<u32>) -> bool {
        let add = |flows: u32| (flows < max.unwrap_or(u32::MAX)).then_some(flows.saturating_add(1));
        self.flows[server.index()].fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// `count` connections of `tcp` to a server have ended.
    pub(crate) fn end_flows(&self, server: ServerIndex, count: u32) {
        self.flows[server.index()].fetch_sub(count, Ordering::Relaxed);
    }

    /// Returns how many servers it has room for.
    pub fn servers(&self) -> usize {
        self.orders.len()
    }

    /// Returns the connections of a worker to a server that are up.
    pub fn ready(&self, server: ServerIndex, worker: usize) -> u32 {
        self.ready[server.index() * self.workers + worker].load(Ordering::Relaxed) & !HOPEFUL
    }

    /// Whether a worker has a connection to a server, or can have one as far as it knows.
    pub(crate) fn is_able(&self, server: ServerIndex, worker: usize) -> bool {
        self.ready[server.index() * self.workers + worker].load(Ordering::Relaxed) > 0
    }

    /// Returns the state shared for balancing.
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn places(&self, server: ServerIndex) -> &Arc<Places> {
        &self.places[server.index()]
    }

    pub(crate) fn permits(&self, server: ServerIndex) -> &Arc<Permits> {
        &self.permits[server.index()]
    }

    pub(crate) fn set_served(&self, server: ServerIndex, worker: usize, served: u32) {
        self.served[server.index() * self.workers + worker].store(served, Ordering::Relaxed);
    }

    /// Returns the connections to a server that are up and have brought a response, over all
    /// workers.
    pub(crate) fn served(&self, server: ServerIndex) -> u32 {
        let first = server.index() * self.workers;
        let each = &self.served[first..first + self.workers];
        each.iter().map(|served| served.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn set_ready(&self, server: ServerIndex, worker: usize, ready: u32, hopeful: bool) {
        let word = ready | if hopeful { HOPEFUL } else { 0 };
        self.ready[server.index() * self.workers + worker].store(word, Ordering::Relaxed);
    }

    /// Returns the last order of an operator for a server.
    pub fn order(&self, server: ServerIndex) -> Order {
        Order::ALL[usize::from(self.orders[server.index()].load(Ordering::Relaxed))]
    }

    pub(crate) fn set_order(&self, server: ServerIndex, order: Order) {
        self.orders[server.index()].store(order as u8, Ordering::Relaxed);
    }

    /// Returns why a server is not pipelined until an operator clears it.
    pub(crate) fn verdict(&self, server: ServerIndex) -> Option<Verdict> {
        Verdict::of(self.verdicts[server.index()].load(Ordering::Relaxed))
    }

    pub(crate) fn set_verdict(&self, server: ServerIndex, verdict: Option<Verdict>) {
        self.verdicts[server.index()].store(verdict.map_or(0, Verdict::code), Ordering::Relaxed);
    }

    pub(crate) fn proved_us(&self, server: ServerIndex) -> u64 {
        self.proved_us[server.index()].load(Ordering::Relaxed)
    }

    pub(crate) fn set_proved(&self, server: ServerIndex, now_us: u64) {
        self.proved_us[server.index()].store(now_us, Ordering::Relaxed);
    }

    /// A connection to a server has ended that had brought a response.
    pub(crate) fn set_seen(&self, server: ServerIndex, now_us: u64) {
        self.seen_us[server.index()].store(now_us, Ordering::Relaxed);
    }

    /// Returns until when a server that can't be reached is waited for, because it was in use; 0:
    /// it never was.
    pub(crate) fn awaited_until_us(&self, server: ServerIndex) -> u64 {
        match self.seen_us[server.index()].load(Ordering::Relaxed) {
            0 => 0,
            seen_us => seen_us.saturating_add(RESTART_US),
        }
    }

    pub(crate) fn trial_us(&self, server: ServerIndex) -> u64 {
        self.trials_us[server.index()].load(Ordering::Relaxed)
    }

    pub(crate) fn set_trial(&self, server: ServerIndex, due_us: u64) {
        self.trials_us[server.index()].store(due_us, Ordering::Relaxed);
    }

    /// Takes the quarantine of an upstream for one request.
    ///
    /// # Errors
    ///
    /// The present holder: as returned by [`Hints::hold_quarantine`].
    pub(crate) fn take_quarantine(
        &self,
        first: ServerIndex,
        before: u64,
        hold: u64,
    ) -> Result<u64, u64> {
        self.quarantines[first.index()].compare_exchange(
            before,
            hold,
            Ordering::Relaxed,
            Ordering::Relaxed,
        )
    }

    /// Encodes the holder of a quarantine: until when, and which worker.
    pub(crate) fn hold_quarantine(worker: u16, until_us: u64) -> u64 {
        until_us << 16 | u64::from(worker)
    }

    /// Takes the trial if it is due: one worker gets true, and the next trial comes at `next_us` if
    /// no verdict does before.
    pub(crate) fn take_trial(&self, server: ServerIndex, now_us: u64, next_us: u64) -> bool {
        let trial = &self.trials_us[server.index()];
        let due_us = trial.load(Ordering::Relaxed);
        due_us <= now_us
            && trial.compare_exchange(due_us, next_us, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
