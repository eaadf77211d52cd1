//! Restarting a worker: after a bug it gives up everything that it has, and the other workers give
//! up everything that they had with it.
//!
//! The machines of a worker that panicked are in an unknown state, so no part of them is used
//! again. Other workers hold names of its requests and connections, and mail about them may be
//! under way both ways; the new machines will give the same names to others. So the first mail that
//! each other worker gets is [`Mail::Reborn`], upon which it forgets the old names; its mail from
//! before its [`Mail::Welcome`] is ignored. Requests of its clients to the lost worker are retried
//! if they may be, from the copies of [`crate::cross::retry_copy`]. A worker that is reborn itself
//! meanwhile may have lost the welcome with everything else; its own [`Mail::Reborn`] says as much.
//! docs/hostile.md K3.

use super::{Engine, Parts};
use crate::cause::Cause;
use crate::client::cache::fetch::on_worker_lost;
use crate::cross::mail::Mail;
use crate::request::pending_request::PendingRequest;

impl Engine {
    /// As [`Engine::new`], in place of an engine that was lost. `life` counts from 1 and grows.
    pub fn reborn(parts: Parts, now_us: u64, life: u32) -> Engine {
        parts.counters.reset_gauges();
        parts.servers.iter().for_each(|server| server.reset_gauges());
        let mut engine = Engine::new(parts, now_us);
        engine.life = life;
        let me = engine.cx.worker;
        if let Some(store) = &engine.cx.cache {
            // Requests that wait for its fetches are looked up again when their workers hear of the
            // loss.
            store.forget_worker(usize::from(me));
        }
        for worker in (0..engine.cx.workers).filter(|worker| *worker != me) {
            engine.strangers[usize::from(worker)] = true;
            engine.cx.post(worker, Mail::Reborn { life });
        }
        engine.cx.counters.rebirths.add(1);
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
        // Its new life knows no name of this worker's former life, and will not before the welcome.
        self.strangers[usize::from(worker)] = false;
        on_worker_lost(self.clients.answers());
        self.upstreams.forget_clients(worker, &mut self.cx);
        let mut again = take_unheard(self, worker);
        again.extend(take_lost(self, worker));
        self.cx.post(worker, Mail::Welcome { life });
        self.upstreams.pool().tell_suspensions(worker, &mut self.cx);
        // The failure of one may have dropped others of its client.
        again.retain(|(ask, _)| self.clients.conns().holds(ask.id));
        self.upstreams.ask_again(again, &mut self.cx);
    }
}

/// Takes the requests that were about to be sent to another worker. Nothing of them was sent to a
/// server.
fn take_unheard(engine: &mut Engine, worker: u16) -> Vec<(PendingRequest, Vec<u8>)> {
    let post = &mut engine.cx.posts[usize::from(worker)];
    let mut unheard = Vec::new();
    for mail in std::mem::take(&mut post.mail) {
        match mail {
            Mail::Ask { ask, bytes } => unheard.push((ask, post.bytes[bytes].to_vec())),
            mail => post.mail.push(mail),
        }
    }
    unheard.retain(|(ask, _)| engine.clients.conns().holds(ask.id));
    for (ask, _) in &unheard {
        engine.clients.answers().take_back(ask.id.index, &engine.cx);
    }
    engine.upstreams.count_moves(&mut unheard, &engine.cx);
    unheard
}

/// Takes the requests of clients here that the worker had, as far as they may be retried as after
/// the loss of a connection; the others fail. A request is retried once, because it may be the
/// cause of the other worker's death: it must not move from worker to worker.
fn take_lost(engine: &mut Engine, worker: u16) -> Vec<(PendingRequest, Vec<u8>)> {
    let mut again = Vec::new();
    for id in engine.clients.conns().asked_of(worker, &engine.cx) {
        let kept = engine.clients.answers().take_copy(id, &engine.cx);
        match kept.map(|kept| engine.upstreams.judge_lost(*kept, &mut engine.cx)) {
            Some(Ok(request)) => {
                engine.clients.answers().take_back(id.index, &engine.cx);
                again.push(request);
            }
            Some(Err(cause)) => engine.clients.answers().on_answer_fails(id, cause, &mut engine.cx),
            None => engine.clients.answers().on_answer_fails(id, Cause::Lost, &mut engine.cx),
        }
    }
    again
}
