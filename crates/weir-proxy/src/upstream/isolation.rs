//! Decides which requests are sent alone: those in quarantine, and suspects
//! ([`crate::retry::poison`]). Requests that were lost twice, and those that servers seem to die
//! of, are sent one at a time in each upstream, over all workers.
//!
//! A server that crashes takes all its requests in flight with it. If all were sent again at once,
//! the innocent ones would be beside the killer at the next server, and die with it again and
//! again. If they are sent one at a time, the one that is lost is the killer. [`Isolation`] decides
//! which request may be sent and which is refused; [`super::quarantine`] decides on which
//! connection one is sent, and when. It owns the lines of waiting requests and touches nothing
//! else. Bounds: [`QUARANTINE_US`] for each; [`QUARANTINED_MAX`] suspects wait, besides the
//! requests that were in flight when servers died. docs/retries.md, docs/hostile.md E19.

use std::sync::Arc;

use bytes::Bytes;

use crate::base::keys::{Key, ServerIndex};
use crate::context::Context;
use crate::cross::hints::Hints;
use crate::cross::mail::{Fate, Mail};
use crate::request::pending_request::{ExchangeId, PendingRequest, RequestFlags};
use crate::retry::poison::{self, Crash, Suspect, Suspects, TEXT_BYTES_MAX, Varying, Verdict};
use crate::upstream::entry::Entry;
use crate::upstream::queue::{Queue, Waiting};
use crate::upstream::request_log::RequestLog;

/// How long one request keeps the next waiting: killers kill soon, and an innocent one may be slow.
const QUARANTINE_US: u64 = 100_000;
/// How often a worker checks whether another one has finished with the quarantine.
const LOOK_US: u64 = 1_000;
/// How far into the line it looks for one that is not held back.
const LOOK_MAX: usize = 64;
/// Requests that may wait before new suspects are refused.
const QUARANTINED_MAX: usize = 1_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Isolation {
    suspects: Suspects,
    /// By upstream.
    quarantines: Vec<Quarantine>,
    /// When the next request may be sent; never while none waits.
    due_us: u64,
    /// A request that this worker has sent may be on another worker's connection.
    is_away: bool,
    hints: Arc<Hints>,
}

/// The quarantine of one upstream.
#[derive(Debug)]
struct Quarantine {
    /// The first server of the upstream: all workers identify the quarantine by it.
    first: ServerIndex,
    /// In line.
    waiting: Queue,
    /// The request that this worker has sent.
    running: Option<Running>,
    /// A server has just died of one: the next would be sent to what is left of it.
    quiet_until_us: u64,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    id: ExchangeId,
    /// What [`Hints`] says while this worker has the quarantine.
    hold: u64,
    /// The request before it had ended, so that a crash now is due to this request.
    clean: bool,
}

/// What happens to the next request in line.
#[derive(Debug)]
pub(super) enum Next {
    /// It is sent, and no other before it has ended.
    Goes(Waiting),
    /// It is not sent any more.
    Refused(PendingRequest),
}

impl Isolation {
    /// Returns an isolation for this many servers, without suspects.
    pub(super) fn new(servers: usize, hints: Arc<Hints>) -> Isolation {
        Isolation {
            suspects: Suspects::new(servers),
            quarantines: Vec::new(),
            due_us: u64::MAX,
            is_away: false,
            hints,
        }
    }

    /// One more upstream, with this as its first server.
    pub(super) fn add_upstream(&mut self, first: ServerIndex) {
        let waiting = Queue::default();
        self.quarantines.push(Quarantine { first, waiting, running: None, quiet_until_us: 0 });
    }

    // ---- which requests are sent alone ----

    /// Decides what is done with a request that is about to be serialised by `write`.
    #[inline]
    pub(crate) fn verdict_of_new(
        &self,
        upstream: usize,
        (method, path, host): (&[u8], &[u8], &[u8]),
        whole: bool,
        write: impl FnOnce(&mut Vec<u8>),
        cx: &Context,
    ) -> Verdict {
        if self.suspects.is_empty() {
            return Verdict::Free;
        }
        let lines = [method, b" ", path, b" HTTP/1.1\r\nHost: ", host, b"\r\n"].concat();
        if !poison::family(upstream as u16, &lines)
            .is_some_and(|family| self.suspects.knows(&family))
        {
            return Verdict::Free;
        }
        let mut bytes = Vec::new();
        write(&mut bytes);
        let key = poison::key(upstream as u16, &bytes, whole, varying(upstream as u16, cx));
        key.map_or(Verdict::Free, |key| self.suspects.verdict(cx.now_us, &key))
    }

    /// Decides what is done with a request, as serialised.
    #[inline]
    pub(super) fn verdict(&self, ask: &PendingRequest, bytes: &[u8], cx: &Context) -> Verdict {
        if self.suspects.is_empty() {
            return Verdict::Free;
        }
        self.key(ask, bytes, cx).map_or(Verdict::Free, |key| self.suspects.verdict(cx.now_us, &key))
    }

    /// Returns the key of a request with these first bytes, if anything is remembered that may be
    /// about it.
    fn key(&self, ask: &PendingRequest, bytes: &[u8], cx: &Context) -> Option<Vec<u8>> {
        let family = poison::family(ask.upstream, bytes)?;
        if self.suspects.knows(&family) { key_of(ask, bytes, cx) } else { None }
    }

    /// Whether a request that waits elsewhere has become suspect meanwhile.
    #[inline]
    pub(super) fn wants(&self, ask: &PendingRequest, bytes: &[u8], cx: &Context) -> bool {
        !self.suspects.is_empty()
            && !ask.traits.has(RequestFlags::QUARANTINED)
            && self.verdict(ask, bytes, cx) != Verdict::Free
    }

    /// Whether no new suspects of an upstream may wait.
    pub(super) fn is_full(&self, upstream: u16) -> bool {
        self.quarantines[usize::from(upstream)].waiting.len() >= QUARANTINED_MAX
    }

    // ---- the line ----

    /// Puts a request in line: it will be sent alone, and no other of the quarantine beside it.
    pub(super) fn enter(&mut self, mut ask: PendingRequest, bytes: Vec<u8>, cx: &Context) {
        ask.traits =
            ask.traits.with(RequestFlags::ALONE, true).with(RequestFlags::QUARANTINED, true);
        self.leave(&ask, cx);
        self.quarantines[usize::from(ask.upstream)].waiting.push_back(Waiting { ask, bytes });
        cx.counters.queue_waiting.add(1);
        self.due_us = cx.now_us;
    }

    /// A request that was sent from the quarantine was answered or lost.
    pub(super) fn leave(&mut self, ask: &PendingRequest, cx: &Context) {
        self.end_turn(usize::from(ask.upstream), ask.id, cx);
    }

    /// A request moves to the connections of another worker: through its client's worker, which
    /// knows whether it is still wanted and where to cancel it, and chooses again among all servers
    /// but the previous one.
    pub(super) fn send_on(
        &mut self,
        worker: u16,
        ask: PendingRequest,
        bytes: &[u8],
        cx: &mut Context,
    ) {
        if ask.id.worker != cx.worker {
            return self.send_home(ask, Fate::Unserved, bytes, cx);
        }
        self.note_away(&ask);
        let bytes = cx.write_to_post(cx.worker, bytes);
        cx.post(cx.worker, Mail::Move { worker, ask, bytes });
    }

    /// A request returns to the worker of its client, which finds another place for it, and puts it
    /// in line there.
    pub(super) fn send_home(
        &mut self,
        ask: PendingRequest,
        fate: Fate,
        bytes: &[u8],
        cx: &mut Context,
    ) {
        self.leave(&ask, cx);
        let bytes = cx.write_to_post(ask.id.worker, bytes);
        cx.post(ask.id.worker, Mail::Again { ask, fate, bytes });
    }

    /// A request moves to another worker's connection.
    fn note_away(&mut self, ask: &PendingRequest) {
        self.is_away |= ask.traits.has(RequestFlags::QUARANTINED);
    }

    /// Another worker has answered a request of a client here: the next one may be sent if it was
    /// the one from the quarantine.
    #[inline]
    pub(crate) fn on_answer_elsewhere(&mut self, id: ExchangeId, cx: &Context) {
        if self.is_away {
            self.leave_by_name(id, cx);
        }
    }

    #[cold]
    fn leave_by_name(&mut self, id: ExchangeId, cx: &Context) {
        let mut running = self.quarantines.iter().map(|quarantine| quarantine.running);
        self.is_away = running.clone().flatten().any(|running| running.id != id);
        if let Some(upstream) =
            running.position(|running| running.is_some_and(|running| running.id == id))
        {
            self.end_turn(upstream, id, cx);
        }
    }

    fn end_turn(&mut self, upstream: usize, id: ExchangeId, cx: &Context) {
        let quarantine = &mut self.quarantines[upstream];
        if let Some(running) = quarantine.running.take_if(|running| running.id == id) {
            // Unless another worker has lost its patience meanwhile.
            let _ = self.hints.take_quarantine(quarantine.first, running.hold, 0);
            self.due_us = cx.now_us;
        }
    }

    /// Returns when the next request may be sent; never while none waits.
    pub(super) fn due_us(&self) -> u64 {
        self.due_us
    }

    /// Whether some may be sent now. Then ask each upstream for its [`Isolation::next`] until none
    /// is left.
    #[inline]
    pub(super) fn begin(&mut self, cx: &Context) -> bool {
        let is_due = cx.now_us >= self.due_us;
        if is_due {
            self.due_us = u64::MAX;
        }
        is_due
    }

    /// Takes the next request of an upstream out of its line. None: it has to wait, or the line is
    /// empty.
    pub(super) fn next(&mut self, upstream: usize, cx: &Context) -> Option<Next> {
        loop {
            let position = self.next_in_line(upstream, cx)?;
            let Quarantine { first, waiting, running, .. } = &mut self.quarantines[upstream];
            let id = waiting.get(position)?.ask.id;
            let hold = Hints::hold_quarantine(cx.worker, cx.now_us + QUARANTINE_US);
            let clean = match self.hints.take_quarantine(*first, 0, hold) {
                Ok(_) => true,
                Err(other) if other >> 16 <= cx.now_us => {
                    // Its outcome is unknown.
                    if self.hints.take_quarantine(*first, other, hold).is_err() {
                        continue;
                    }
                    false
                }
                Err(other) => {
                    let look_us = (other >> 16).min(cx.now_us + LOOK_US);
                    self.due_us = self.due_us.min(look_us);
                    return None;
                }
            };
            *running = Some(Running { id, hold, clean });
            let Waiting { ask, bytes } = waiting.remove(position)?;
            cx.counters.queue_waiting.sub(1);
            if let Verdict::Refused { .. } = self.verdict(&ask, &bytes, cx) {
                self.leave(&ask, cx);
                return Some(Next::Refused(ask));
            }
            cx.counters.quarantined.add(1);
            return Some(Next::Goes(Waiting { ask, bytes }));
        }
    }

    /// The first in line that is not held back.
    fn next_in_line(&mut self, upstream: usize, cx: &Context) -> Option<usize> {
        let quarantine = &self.quarantines[upstream];
        if cx.now_us < quarantine.quiet_until_us {
            self.due_us = self.due_us.min(quarantine.quiet_until_us);
            return None;
        }
        for (position, Waiting { ask, bytes }) in quarantine.waiting.places().take(LOOK_MAX) {
            let key = if self.suspects.is_empty() { None } else { self.key(ask, bytes, cx) };
            let held_until_us = key.map_or(0, |key| self.suspects.held_until_us(&key));
            if held_until_us <= cx.now_us {
                return Some(position);
            }
            self.due_us = self.due_us.min(held_until_us);
        }
        None
    }

    /// All lines.
    pub(super) fn queues(&mut self) -> impl Iterator<Item = &mut Queue> {
        self.quarantines.iter_mut().map(|quarantine| &mut quarantine.waiting)
    }

    /// Returns the waiting requests.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.quarantines.iter().flat_map(|quarantine| quarantine.waiting.iter())
    }

    // ---- deaths and responses ----

    /// Returns the crash of its server that the loss of a connection belongs to; None: it says
    /// nothing about requests. Times are those of the connection, and of the oldest request on it.
    pub(super) fn crash_of(
        &mut self,
        server: ServerIndex,
        connected_us: u64,
        sent_us: u64,
        cx: &Context,
    ) -> Option<Crash> {
        let stood = connected_us.saturating_add(poison::CRASH_US) <= sent_us;
        self.suspects.on_loss(cx.now_us, server.index(), stood)
    }

    /// A request was in flight when a server died. True: it is not sent any more. `rested`: as
    /// [`crate::upstream::connection::UpstreamConn::rested`].
    pub(super) fn accuse(
        &mut self,
        crash: Crash,
        rested: bool,
        entry: &Entry,
        log: &RequestLog,
        cx: &mut Context,
    ) -> bool {
        let bytes = log.copy(entry.start, entry.len as usize);
        let Some(key) = key_of(&entry.ask, &bytes, cx) else { return false };
        let alone = rested && self.is_only_one(&entry.ask);
        let (verdict, tell) = self.suspects.on_death(cx.now_us, crash, entry.sent_us, alone, &key);
        if tell && let Some((deaths, refused_until_us)) = self.suspects.opinion(&key) {
            let key = Bytes::from(key);
            cx.tell_all(|| Mail::Suspect { key: key.clone(), deaths, refused_until_us });
        }
        matches!(verdict, Verdict::Refused { .. })
    }

    /// Whether this is the only request from the quarantine that any server of the upstream has.
    fn is_only_one(&self, ask: &PendingRequest) -> bool {
        let running = self.quarantines[usize::from(ask.upstream)].running;
        running.is_some_and(|running| running.id == ask.id && running.clean)
    }

    /// A request from the quarantine was lost. `accused`: its server may have died of it, and its
    /// other connections end within [`LOOK_US`].
    pub(super) fn on_lost(&mut self, ask: &PendingRequest, accused: bool, cx: &Context) {
        if accused {
            self.quarantines[usize::from(ask.upstream)].quiet_until_us = cx.now_us + LOOK_US;
        }
        self.leave(ask, cx);
    }

    /// Another server has this slot.
    pub(super) fn forget_server(&mut self, server: ServerIndex) {
        self.suspects.forget_server(server.index());
    }

    /// A server has answered.
    #[inline]
    pub(super) fn on_life(&mut self, server: ServerIndex) {
        self.suspects.on_life(server.index());
    }

    /// A request was answered: it is no longer suspect, and the next one in quarantine may be sent.
    #[inline]
    pub(super) fn on_answer(&mut self, entry: &Entry, log: &RequestLog, cx: &mut Context) {
        if entry.ask.traits.has(RequestFlags::QUARANTINED) {
            self.leave(&entry.ask, cx);
        }
        if !self.suspects.is_empty() {
            self.acquit(entry, log, cx);
        }
    }

    fn acquit(&mut self, entry: &Entry, log: &RequestLog, cx: &mut Context) {
        let first = log.copy(entry.start, (entry.len as usize).min(TEXT_BYTES_MAX));
        if !poison::family(entry.ask.upstream, &first)
            .is_some_and(|family| self.suspects.knows(&family))
        {
            return;
        }
        if let Some(key) = key_of(&entry.ask, &log.copy(entry.start, entry.len as usize), cx)
            && self.suspects.on_answer(&key)
        {
            let key = Bytes::from(key);
            cx.tell_all(|| Mail::Acquitted { key: key.clone() });
        }
    }

    /// Forgets what is old.
    pub(super) fn sweep(&mut self, cx: &Context) {
        self.suspects.sweep(cx.now_us);
    }

    // ---- other workers and operators ----

    /// Another worker's judgement of a key.
    pub(crate) fn on_suspect(
        &mut self,
        key: &[u8],
        deaths: u8,
        refused_until_us: u64,
        cx: &Context,
    ) {
        self.suspects.learn(cx.now_us, key, deaths, refused_until_us);
    }

    /// Another worker has had a response for a key.
    pub(crate) fn on_acquitted(&mut self, key: &[u8]) {
        self.suspects.on_answer(key);
    }

    /// The clients of a worker are gone.
    pub(super) fn forget_clients(&mut self, worker: u16, cx: &Context) {
        for Quarantine { waiting, .. } in &mut self.quarantines {
            let before = waiting.len();
            waiting.retain(|waiting| waiting.ask.id.worker != worker);
            cx.counters.queue_waiting.sub((before - waiting.len()) as u64);
        }
    }

    /// Returns the requests that were in flight when servers died, as far as this worker knows.
    pub(crate) fn suspects(&self, cx: &Context) -> Vec<Suspect> {
        self.suspects.list(cx.now_us).collect()
    }

    /// Forgets all accusations of requests. An operator's command; tell every worker.
    pub(crate) fn forgive(&mut self) {
        self.suspects.forgive();
    }
}

fn key_of(ask: &PendingRequest, bytes: &[u8], cx: &Context) -> Option<Vec<u8>> {
    let whole = !ask.traits.has(RequestFlags::PIECEMEAL);
    poison::key(ask.upstream, bytes, whole, varying(ask.upstream, cx))
}

fn varying(upstream: u16, cx: &Context) -> Varying<'_> {
    Varying::of(&cx.plan.client, &cx.plan.upstreams[usize::from(upstream)])
}
