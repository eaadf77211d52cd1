//! Beginning anew: after a bug a worker gives up all that it has, and the others give up what they had with it.
//!
//! The machines of a worker that panicked are in an unknown state, so nothing of them is used again. Other workers hold
//! names of its requests and connections, and mail that speaks of them may be under way both ways; the new machines will
//! give the same names to others. So the first thing that each of them hears is [`Mail::Reborn`], upon which they forget
//! the old names, and whatever they said before their [`Mail::Welcome`] is not listened to. What their clients had asked
//! there goes again if it may be repeated, from the copies of [`crate::cross::retry_copy`]. One that is reborn itself meanwhile may have
//! lost the welcome with everything else; its own [`Mail::Reborn`] says as much. docs/hostile.md K3.

use super::{Engine, Parts};
use crate::base::keys::{ConnKey, ExchangeKey};
use crate::cause::Cause;
use crate::client::connection::Phase;
use crate::cross::mail::Mail;
use crate::cross::retry_copy::RetryCopy;
use crate::request::pending_request::{ExchangeId, LinkId, PendingRequest, RequestFlags};
use crate::upstream::connection::LinkState;

impl Engine {
    /// As [`Engine::new`], in place of an engine that was lost. `life` counts from 1 and grows.
    pub fn reborn(parts: Parts, now_us: u64, life: u32) -> Engine {
        parts.counters.reset_gauges();
        parts.servers.iter().for_each(|server| server.reset_gauges());
        let mut engine = Engine::new(parts, now_us);
        engine.life = life;
        for worker in (0..engine.workers).filter(|worker| *worker != engine.worker).collect::<Vec<_>>() {
            engine.strangers[usize::from(worker)] = true;
            engine.post(worker, Mail::Reborn { life });
        }
        engine.counters.rebirths.add(1);
        engine
    }

    pub(super) fn is_stranger(&self, worker: u16) -> bool {
        self.strangers[usize::from(worker)]
    }

    pub(super) fn on_welcome(&mut self, worker: u16, life: u32) {
        if life == self.life {
            self.strangers[usize::from(worker)] = false;
        }
    }

    /// Another worker lost everything. Its clients are gone, and so are its connections.
    pub(super) fn on_reborn(&mut self, worker: u16, life: u32) {
        // Its new life has heard of no name of this worker's former one, and will not before the welcome.
        self.strangers[usize::from(worker)] = false;
        self.forget_clients(worker);
        let mut again = self.take_unheard(worker);
        again.extend(self.take_lost(worker));
        self.post(worker, Mail::Welcome { life });
        self.tell_suspensions(worker);
        self.ask_again(again);
    }

    /// Nobody waits any more for what this worker's clients asked here.
    fn forget_clients(&mut self, worker: u16) {
        for server in self.servers.iter_mut() {
            let before = server.waiting.len();
            server.waiting.retain(|waiting| waiting.ask.id.worker != worker);
            self.counters.queue_waiting.sub((before - server.waiting.len()) as u64);
        }
        self.forget_quarantined(worker);
        let links: Vec<ConnKey> = self.links.keys().collect();
        let mut unfinished: Vec<ExchangeId> = Vec::new();
        for index in links {
            let name = LinkId { worker: self.worker, index, generation: self.links.generation(index) };
            let link = self.links.at_mut(index);
            if link.state == LinkState::Tunnel {
                if link.peer.is_some_and(|peer| peer.worker == worker) {
                    link.peer = None;
                    self.leave_tunnel(index);
                }
                continue;
            }
            link.body_paused = link.body_paused.filter(|id| id.worker != worker);
            for entry in link.entries.iter_mut().filter(|entry| entry.ask.id.worker == worker && !entry.cancelled) {
                if entry.ask.traits.has(RequestFlags::STREAMING) {
                    unfinished.push(entry.ask.id);
                } else {
                    entry.cancelled = true;
                }
            }
            let (paused, by) = (link.paused, link.paused_by);
            if paused && (by >> 56) as u16 == worker {
                self.flow_here(name, by, false);
            }
        }
        for id in unfinished {
            self.cancel_here(id, true, None);
        }
    }

    /// Requests that it was going to be asked for. Nothing of them was sent.
    fn take_unheard(&mut self, worker: u16) -> Vec<(PendingRequest, Vec<u8>)> {
        let post = &mut self.posts[usize::from(worker)];
        let mut unheard = Vec::new();
        for mail in std::mem::take(&mut post.mail) {
            match mail {
                Mail::Ask { ask, bytes } => unheard.push((ask, post.bytes[bytes].to_vec())),
                mail => post.mail.push(mail),
            }
        }
        unheard.retain(|(ask, _)| self.is_wanted(ask.id));
        for (ask, _) in &mut unheard {
            self.take_back(ask.id.index);
            // Such moves are not limited.
            let _ = self.count_repetition(ask, false, true, false);
        }
        unheard
    }

    /// What clients here asked there, and may ask again as after the loss of a connection. The rest has no answer. Once, because a
    /// request may be what the other worker has died of: it must not go from one to the next.
    fn take_lost(&mut self, worker: u16) -> Vec<(PendingRequest, Vec<u8>)> {
        let owed = |slot: &ExchangeKey| {
            let exchange = self.exchanges.at(*slot);
            let at = exchange.link.map_or(exchange.asked, |link| link.worker);
            at == worker && matches!(exchange.phase, Phase::Waiting | Phase::Answering)
        };
        let lost: Vec<ExchangeId> = self.exchanges.keys().filter(owed).map(|slot| self.exchange_id(slot)).collect();
        let mut again = Vec::new();
        for id in lost {
            // The failure of one may have dropped others of its client.
            let kept = if self.is_gone(id) { None } else { self.exchanges.at_mut(id.index).kept.take() };
            if kept.is_some() {
                // Of an answer that has begun the client has nothing.
                self.forget_beginning(id.index);
            }
            match kept.map(|kept| self.judge_lost(*kept)) {
                Some(Ok(request)) => again.push(request),
                Some(Err(cause)) => self.answer_fails(id, cause),
                None => self.answer_fails(id, Cause::Lost),
            }
        }
        again
    }

    fn judge_lost(&mut self, kept: RetryCopy) -> Result<(PendingRequest, Vec<u8>), Cause> {
        let RetryCopy { mut ask, bytes } = kept;
        self.leave_quarantine(&ask);
        if ask.traits.has(RequestFlags::WRECKED) {
            return Err(Cause::Lost);
        }
        ask.traits = ask.traits.without(RequestFlags::TRIAL).with(RequestFlags::WRECKED, true);
        self.count_repetition(&mut ask, true, false, true)?;
        self.take_back(ask.id.index);
        Ok((ask, bytes))
    }

    /// Places them, so that the oldest is first in line.
    fn ask_again(&mut self, mut again: Vec<(PendingRequest, Vec<u8>)>) {
        again.sort_by_key(|(ask, _)| ask.serial);
        for (ask, bytes) in again.into_iter().rev() {
            if self.is_wanted(ask.id) {
                self.place_again(ask, bytes);
            }
        }
        for group in 0..self.groups.len() {
            self.dispatch_group(self.groups[group].servers.first());
        }
    }
}
