//! Requests in quarantine: what was lost twice, and suspects ([`crate::retry::poison`]), go one at a time in each upstream, over all
//! workers, alone on a connection (stage schedule).
//!
//! A server that crashes takes everything with it that it had in flight. Sent again all at once, the innocent would stand beside
//! the killer at the next server, and die with it again and again. One at a time, whoever dies is the one. Called by
//! [`super::again`] and [`super::schedule`]; carried out at the end of the turn. Bounds: [`QUARANTINE_US`] for each;
//! [`QUARANTINED_MAX`] suspects wait, besides what was in flight when servers died. docs/semantics.md §4, docs/hostile.md E19.

use bytes::Bytes;

use super::loss::Loss;
use super::{Group, Upstreams};
use crate::base::keys::{ConnKey, Key, ServerIndex};
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::hints::Hints;
use crate::cross::mail::Mail;
use crate::ending::UpstreamEnd;
use crate::request::pending_request::{ExchangeId, PendingRequest, RequestFlags};
use crate::retry::poison::{self, Crash, KEY_BYTES_MAX, Suspect, Verdict};
use crate::upstream::connection::LinkState;
use crate::upstream::entry::Entry;
use crate::upstream::queue::{Queue, Waiting};
use crate::upstream::request_log::RequestLog;

/// How long one request keeps the next waiting: killers kill soon, and an innocent one may be slow.
const QUARANTINE_US: u64 = 100_000;
/// How often a worker looks whether another one has done with the quarantine.
const LOOK_US: u64 = 1_000;
/// How far into the line it looks for one that is not held back.
const LOOK_MAX: usize = 64;
/// Requests that may wait before new suspects are refused.
const QUARANTINED_MAX: usize = 1_000;

/// The quarantine of one upstream.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    /// In line.
    pub(super) waiting: Queue,
    /// The one that this worker has sent.
    running: Option<Running>,
    /// A server has just died of one: the next would go to what is left of it.
    quiet_until_us: u64,
}

#[derive(Debug, Clone, Copy)]
struct Running {
    id: ExchangeId,
    /// What [`super::Hints`] says while this worker has the quarantine.
    hold: u64,
    /// The one before had come to its end, so that whoever dies now is this one.
    clean: bool,
}

impl Quarantine {
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= QUARANTINED_MAX
    }

    /// A server has died of the one that was running: its other connections end within [`LOOK_US`].
    pub(super) fn note_death(&mut self, now_us: u64) {
        self.quiet_until_us = now_us + LOOK_US;
    }
}

impl Upstreams {
    /// Puts a request in line: it will be sent alone, and no other of the quarantine beside it.
    pub(super) fn quarantine(&mut self, mut ask: PendingRequest, bytes: Vec<u8>, cx: &Context) {
        ask.traits = ask.traits.with(RequestFlags::ALONE, true).with(RequestFlags::QUARANTINED, true);
        self.leave_quarantine(&ask, cx);
        self.groups[usize::from(ask.upstream)].quarantine.waiting.push_back(Waiting { ask, bytes });
        cx.counters.queue_waiting.add(1);
        self.quarantine_due_us = cx.now_us;
    }

    /// A request that was sent from the quarantine was answered or lost.
    pub(super) fn leave_quarantine(&mut self, ask: &PendingRequest, cx: &Context) {
        self.end_turn_of(usize::from(ask.upstream), ask.id, cx);
    }

    /// Another worker has answered a request of a client here: the next one may go if it was the one from the quarantine.
    #[inline]
    pub(crate) fn quarantined_ended(&mut self, id: ExchangeId, cx: &Context) {
        if self.quarantined_away {
            self.leave_by_name(id, cx);
        }
    }

    #[cold]
    fn leave_by_name(&mut self, id: ExchangeId, cx: &Context) {
        let mut running = self.groups.iter().map(|group| group.quarantine.running);
        self.quarantined_away = running.clone().flatten().any(|running| running.id != id);
        if let Some(group) = running.position(|running| running.is_some_and(|running| running.id == id)) {
            self.end_turn_of(group, id, cx);
        }
    }

    fn end_turn_of(&mut self, group: usize, id: ExchangeId, cx: &Context) {
        let group = &mut self.groups[group];
        if let Some(running) = group.quarantine.running.take_if(|running| running.id == id) {
            // Unless another worker has lost its patience meanwhile.
            let _ = self.hints.take_quarantine(group.servers.first(), running.hold, 0);
            self.quarantine_due_us = cx.now_us;
        }
    }

    /// Sends what is due. At the end of a turn, so that nothing is sent from the midst of other changes.
    pub(super) fn run_quarantine(&mut self, cx: &mut Context) {
        if cx.now_us < self.quarantine_due_us {
            return;
        }
        self.quarantine_due_us = u64::MAX;
        for group in 0..self.groups.len() {
            while self.release_next(group, cx) {}
        }
    }

    /// False: the next one has to wait, or there is none.
    fn release_next(&mut self, group: usize, cx: &mut Context) -> bool {
        let Some(position) = self.next_in_line(group, cx) else { return false };
        let Group { servers, quarantine, .. } = &mut self.groups[group];
        let Some(id) = quarantine.waiting.get(position).map(|waiting| waiting.ask.id) else { return false };
        let hold = Hints::hold_quarantine(cx.worker, cx.now_us + QUARANTINE_US);
        let clean = match self.hints.take_quarantine(servers.first(), 0, hold) {
            Ok(_) => true,
            Err(other) if other >> 16 <= cx.now_us => {
                // Nobody knows what became of it.
                if self.hints.take_quarantine(servers.first(), other, hold).is_err() {
                    return true;
                }
                false
            }
            Err(other) => {
                let look_us = (other >> 16).min(cx.now_us + LOOK_US);
                self.quarantine_due_us = self.quarantine_due_us.min(look_us);
                return false;
            }
        };
        quarantine.running = Some(Running { id, hold, clean });
        let Some(Waiting { ask, bytes }) = quarantine.waiting.remove(position) else { return false };
        cx.counters.queue_waiting.sub(1);
        if let Verdict::Refused { .. } = self.verdict_of(&ask, &bytes, cx) {
            self.leave_quarantine(&ask, cx);
            self.answer_fails(ask.id, Cause::Suspect, cx);
        } else {
            cx.counters.quarantined.add(1);
            let server = self.server_index(&ask);
            self.place_second(ask, bytes, cx);
            self.dispatch_group(server, cx);
        }
        true
    }

    /// The first in line that is not held back.
    fn next_in_line(&mut self, group: usize, cx: &Context) -> Option<usize> {
        let quarantine = &self.groups[group].quarantine;
        if cx.now_us < quarantine.quiet_until_us {
            self.quarantine_due_us = self.quarantine_due_us.min(quarantine.quiet_until_us);
            return None;
        }
        for (position, Waiting { ask, bytes }) in quarantine.waiting.places().take(LOOK_MAX) {
            let key = if self.suspects.is_empty() { None } else { poison::key(ask.upstream, bytes) };
            let held_until_us = key.map_or(0, |key| self.suspects.held_until_us(&key));
            if held_until_us <= cx.now_us {
                return Some(position);
            }
            self.quarantine_due_us = self.quarantine_due_us.min(held_until_us);
        }
        None
    }

    /// Whether this is the only request from the quarantine that any server of the upstream has.
    fn is_only_one(&self, ask: &PendingRequest) -> bool {
        let running = self.groups[usize::from(ask.upstream)].quarantine.running;
        running.is_some_and(|running| running.id == ask.id && running.clean)
    }

    /// Whether a request that waits has become suspect meanwhile.
    pub(super) fn goes_alone(&self, ask: &PendingRequest, bytes: &[u8], cx: &Context) -> bool {
        !ask.traits.has(RequestFlags::QUARANTINED) && self.verdict_of(ask, bytes, cx) != Verdict::Free
    }

    /// The connection for the request in quarantine that waits at a place in a server's line: an idle one that has rested. A suspect
    /// gets no other, so that its end is evidence: one is made anew for it. None: one is kept for it until it is good.
    pub(super) fn pick_quarantined(&mut self, server: ServerIndex, at: usize, cx: &mut Context) -> Option<usize> {
        let machine = &self.servers[server];
        let Waiting { ask, bytes } = machine.waiting.line(true).get(at)?;
        let (ask, suspect) = (*ask, self.verdict_of(ask, bytes, cx) != Verdict::Free);
        let rested = |position: &usize| self.links.at(machine.links[*position]).is_rested(cx.now_us);
        let fresh = |position: &usize| self.is_fresh(machine.links[*position], &ask, cx);
        let mut idle = (0..machine.links.len()).filter(|position| machine.idle.has(*position)).filter(fresh);
        if let Some(position) = idle.clone().find(rested).or_else(|| idle.next().filter(|_| !suspect)) {
            return Some(position);
        }
        self.take_kept(server, &ask, suspect, cx)
    }

    /// The connection that is kept for what goes alone and waits in vain, where no more can be made: once it is empty.
    pub(super) fn pick_kept(&mut self, server: ServerIndex, ask: &PendingRequest, cx: &mut Context) -> Option<usize> {
        let machine = &self.servers[server];
        match machine.coming_any() || machine.may_grow(true) {
            true => None,
            false => self.take_kept(server, ask, false, cx),
        }
    }

    /// The kept connection, once it was seen empty. One that is not good for this request is made anew; `rests`: it has to have rested.
    fn take_kept(&mut self, server: ServerIndex, ask: &PendingRequest, rests: bool, cx: &mut Context) -> Option<usize> {
        let position = self.keep_one(server, cx)?;
        let index = self.servers[server].links[position];
        let link = self.links.at(index);
        if !link.is_vacant() {
            return None;
        }
        if rests && !link.is_rested(cx.now_us) || !self.is_fresh(index, ask, cx) {
            let quarantined = ask.traits.has(RequestFlags::QUARANTINED);
            self.lose_link(
                index,
                Loss::Ours,
                if quarantined { UpstreamEnd::Quarantine } else { UpstreamEnd::Rested },
                cx,
            );
            return None;
        }
        Some(position)
    }

    /// The connection that is kept for one request: one that comes up soon, or else a new one, or the one that will be empty the
    /// soonest.
    fn keep_one(&mut self, server: ServerIndex, cx: &mut Context) -> Option<usize> {
        if self.servers[server].kept.is_none()
            && !self.servers[server].coming_any()
            && self.servers[server].may_grow(true)
        {
            self.make_connection(server, cx);
        }
        let soon_us = cx.now_us + poison::CRASH_US;
        let effort = |position: &usize| {
            let link = self.links.at(self.servers[server].links[*position]);
            match link.state {
                LinkState::Connecting { .. } => Some((0, false, 0)),
                LinkState::Down { retry_us } if retry_us <= soon_us => Some((0, false, 0)),
                LinkState::Ready => {
                    let alone = link.entries.front().is_some_and(|entry| entry.ask.traits.goes_alone());
                    Some((1, alone || link.large || link.late || link.paused, link.entries.len()))
                }
                _ => None,
            }
        };
        let kept = self.servers[server].kept.map(|position| position as usize);
        let all = 0..self.servers[server].links.len();
        let chosen = kept
            .filter(|position| effort(position).is_some())
            .or_else(|| all.filter(|at| effort(at).is_some()).min_by_key(effort))?;
        if kept != Some(chosen) {
            self.servers[server].kept = Some(chosen as u32);
            kept.into_iter().chain([chosen]).for_each(|position| self.refresh_position(server, position, cx));
        }
        Some(chosen)
    }

    /// Gives the kept connection back to everybody, unless something waits for it.
    #[cold]
    pub(super) fn end_keeping(&mut self, server: ServerIndex, cx: &Context) {
        let machine = &mut self.servers[server];
        if machine.waiting.line(true).is_empty()
            && let Some(position) = machine.kept.take()
        {
            self.refresh_position(server, position as usize, cx);
        }
    }

    fn refresh_position(&mut self, server: ServerIndex, position: usize, cx: &Context) {
        let machine = &mut self.servers[server];
        machine.refresh(self.links.at_mut(machine.links[position]), cx.now_us);
    }

    /// The clients of a worker are gone.
    pub(super) fn forget_quarantined(&mut self, worker: u16, cx: &Context) {
        for group in &mut self.groups {
            let before = group.quarantine.waiting.len();
            group.quarantine.waiting.retain(|waiting| waiting.ask.id.worker != worker);
            cx.counters.queue_waiting.sub((before - group.quarantine.waiting.len()) as u64);
        }
    }

    /// What is to be done with a request, as serialised.
    fn verdict_of(&self, ask: &PendingRequest, bytes: &[u8], cx: &Context) -> Verdict {
        if self.suspects.is_empty() {
            return Verdict::Free;
        }
        poison::key(ask.upstream, bytes).map_or(Verdict::Free, |key| self.suspects.verdict(cx.now_us, &key))
    }

    /// What is to be done with a request that is going to be serialised.
    #[inline]
    pub(crate) fn verdict_of_new(
        &self,
        upstream: usize,
        method: &[u8],
        path: &[u8],
        host: &[u8],
        cx: &Context,
    ) -> Verdict {
        if self.suspects.is_empty() {
            return Verdict::Free;
        }
        let lines = [method, b" ", path, b" HTTP/1.1\r\nHost: ", host, b"\r\n"].concat();
        poison::key(upstream as u16, &lines).map_or(Verdict::Free, |key| self.suspects.verdict(cx.now_us, &key))
    }

    /// Which crash of its server the loss of a connection belongs to; None: it says nothing about requests. Times are those of
    /// the connection, and of the oldest request on it.
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
        let Some(key) = key_of(entry, log) else { return false };
        let alone = rested && self.is_only_one(&entry.ask);
        let (verdict, tell) = self.suspects.on_death(cx.now_us, crash, entry.sent_us, alone, &key);
        if tell && let Some((deaths, refused_until_us)) = self.suspects.opinion(&key) {
            let key = Bytes::from(key);
            cx.tell_all(|| Mail::Suspect { key: key.clone(), deaths, refused_until_us });
        }
        matches!(verdict, Verdict::Refused { .. })
    }

    /// A request was answered: nobody accuses it any more, and the next one in quarantine may go.
    #[inline]
    pub(super) fn note_answered(&mut self, index: ConnKey, entry: &Entry, cx: &mut Context) {
        if entry.ask.traits.has(RequestFlags::QUARANTINED) {
            self.leave_quarantine(&entry.ask, cx);
        }
        if !self.suspects.is_empty() {
            self.acquit(index, entry, cx);
        }
    }

    fn acquit(&mut self, index: ConnKey, entry: &Entry, cx: &mut Context) {
        if let Some(key) = key_of(entry, &self.links.at(index).log)
            && self.suspects.on_answer(&key)
        {
            let key = Bytes::from(key);
            cx.tell_all(|| Mail::Acquitted { key: key.clone() });
        }
    }

    /// What another worker thinks of a key.
    pub(crate) fn on_suspect(&mut self, key: &[u8], deaths: u8, refused_until_us: u64, cx: &Context) {
        self.suspects.learn(cx.now_us, key, deaths, refused_until_us);
    }

    /// Another worker has had an answer for a key.
    pub(crate) fn on_acquitted(&mut self, key: &[u8]) {
        self.suspects.on_answer(key);
    }

    /// Requests that were in flight when servers died, by what this worker knows.
    pub(crate) fn suspects(&self, cx: &Context) -> Vec<Suspect> {
        self.suspects.list(cx.now_us).collect()
    }

    /// Forgets all accusations of requests. An operator's command; tell every worker.
    pub(crate) fn forgive_suspects(&mut self) {
        self.suspects.forgive();
    }
}

fn key_of(entry: &Entry, log: &RequestLog) -> Option<Vec<u8>> {
    poison::key(entry.ask.upstream, &log.copy(entry.start, (entry.len as usize).min(KEY_BYTES_MAX)))
}
