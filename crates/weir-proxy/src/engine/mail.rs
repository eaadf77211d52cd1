//! What crosses workers: each message towards a machine is a call when the machine is here, and mail when it is not.

use bytes::Bytes;

use super::answer::Lines;
use super::{Engine, Piece};
use crate::base::keys::{ExchangeKey, ServerIndex};
use crate::cause::Cause;
use crate::client::connection::{Phase, Reading};
use crate::cross::mail::{AnswerHead, Mail, Post};
use crate::request::pending_request::{ExchangeId, LinkId, PendingRequest, RequestFlags};
use crate::upstream::trust::Doubt;

/// Smaller pieces travel in the post's own buffer.
const SMALL_BYTES_MAX: usize = 4096;

impl Engine {
    /// Handles everything that the worker `from` says.
    pub fn deliver(&mut self, from: u16, post: Post) {
        let bytes = Bytes::from(post.bytes);
        for mail in post.mail {
            self.counters.mail_received.add(1);
            self.deliver_one(from, mail, &bytes);
        }
    }

    fn deliver_one(&mut self, from: u16, mail: Mail, bytes: &Bytes) {
        match mail {
            Mail::Reborn { life } => self.on_reborn(from, life),
            Mail::Welcome { life } => self.on_welcome(from, life),
            // It is about somebody of the life before, who may have a namesake now.
            _ if self.is_stranger(from) => {}
            Mail::Ask { ask, bytes: range } => self.accept_mailed(ask, &bytes[range]),
            Mail::Again { ask, bytes: range } => self.on_again(ask, &bytes[range]),
            Mail::Body { id, link, data, end } => self.link_body(id, link, Piece::Kept(data), end),
            Mail::Cancel { id, hard, link } => self.cancel_here(id, hard, link),
            Mail::Flow { link, client, pause } => self.flow_here(link, client, pause),
            Mail::Doubt { server, doubt } => _ = self.distrust(server, doubt),
            Mail::Unheard { server, since_us } => self.forget_resting(server, since_us),
            Mail::Vacate { server } => self.vacate(server),
            Mail::Fault { server, rule } => self.on_fault(server, rule),
            Mail::TrialEnded { server, good } => self.on_trial_ended(server, good),
            Mail::Suspended { server, suspension } => self.on_suspended(server, suspension),
            Mail::Resumed { server } => self.on_resumed(server),
            Mail::Suspect { key, deaths, refused_until_us } => self.on_suspect(&key, deaths, refused_until_us),
            Mail::Acquitted { key } => self.on_acquitted(&key),
            Mail::Assigned { id, link } => self.on_assigned(id, link),
            Mail::Placed { id, placed } => self.on_placed(id, placed),
            Mail::BodyFlow { id, pause } => self.on_body_flow(id, pause),
            Mail::Head { id, link, head, upgrade, lines } => {
                // When the asker is gone, its cancellation is on the way.
                if self.exchanges.holds(id.index, id.generation) {
                    self.on_answer_head(id.index, link, head, upgrade.as_deref(), Lines::Raw(&bytes[lines]));
                }
            }
            Mail::Small { id, bytes: range } => self.answer_piece(id, Piece::Borrowed(&bytes[range])),
            Mail::Large { id, data } => self.answer_piece(id, Piece::Kept(data)),
            Mail::End { id, trailers } => {
                self.quarantined_ended(id);
                self.answer_done(id, &trailers);
            }
            Mail::Fail { id, cause } => {
                self.quarantined_ended(id);
                self.answer_fails(id, cause);
            }
        }
    }

    pub(super) fn post(&mut self, worker: u16, mail: Mail) {
        self.counters.mail_sent.add(1);
        self.posts[usize::from(worker)].mail.push(mail);
    }

    /// Asks another worker for the answer to a request of a client here, whose bytes are in its post from `start` on.
    pub(super) fn mail_ask(&mut self, worker: u16, ask: PendingRequest, start: usize) {
        let post = &self.posts[usize::from(worker)];
        let bytes = start..post.bytes.len();
        let exchange = self.exchanges.at_mut(ask.id.index);
        (exchange.asked, exchange.link) = (worker, None);
        if ask.traits.has(RequestFlags::RETRIABLE) && !ask.traits.has(RequestFlags::STREAMING) {
            exchange.kept = Some(self.shelf.keep(ask, &post.bytes[bytes.clone()]));
        }
        self.post(worker, Mail::Ask { ask, bytes });
    }

    /// A request is here again.
    pub(super) fn take_back(&mut self, slot: ExchangeKey) {
        let exchange = self.exchanges.at_mut(slot);
        (exchange.asked, exchange.link) = (self.worker, None);
        self.release(slot);
    }

    /// The copy of a request is not needed any more.
    #[inline]
    pub(super) fn release(&mut self, slot: ExchangeKey) {
        if let Some(kept) = self.exchanges.at_mut(slot).kept.take() {
            self.shelf.give_back(kept);
        }
    }

    // ---- towards the client's side ----

    pub(super) fn mail_head(
        &mut self,
        id: ExchangeId,
        link: LinkId,
        head: AnswerHead,
        upgrade: Option<Bytes>,
        lines: Lines<'_>,
    ) {
        let via = self.plan.client.pseudonym();
        let post = &mut self.posts[usize::from(id.worker)];
        let start = post.bytes.len();
        lines.write(&mut post.bytes, via);
        let lines = start..post.bytes.len();
        self.post(id.worker, Mail::Head { id, link, head, upgrade, lines });
    }

    /// The head of an answer has come to the client's worker.
    pub(super) fn on_answer_head(
        &mut self,
        slot: ExchangeKey,
        from: LinkId,
        head: AnswerHead,
        upgrade: Option<&[u8]>,
        lines: Lines<'_>,
    ) {
        if self.exchanges.at(slot).phase != Phase::Waiting {
            return;
        }
        match (head.status, upgrade) {
            (101, Some(upgrade)) => self.answer_switch(slot, from, upgrade, lines),
            (100..200, _) => self.answer_interim(slot, head.status, lines),
            _ => self.answer_begin(slot, from, head, lines),
        }
    }

    /// A piece of an answer's body or of a tunnel, to wherever its asker is.
    pub(super) fn answer_piece(&mut self, id: ExchangeId, piece: Piece<'_>) {
        if id.worker == self.worker {
            if self.exchanges.holds(id.index, id.generation) && self.exchanges.at(id.index).phase == Phase::Answering {
                self.answer_body(id.index, piece);
            }
            return;
        }
        let mail = match piece {
            Piece::Borrowed(bytes) if bytes.len() <= SMALL_BYTES_MAX => {
                let post = &mut self.posts[usize::from(id.worker)];
                let start = post.bytes.len();
                post.bytes.extend_from_slice(bytes);
                Mail::Small { id, bytes: start..post.bytes.len() }
            }
            Piece::Borrowed(bytes) => Mail::Large { id, data: Bytes::copy_from_slice(bytes) },
            Piece::Kept(data) => Mail::Large { id, data },
        };
        self.post(id.worker, mail);
    }

    /// An answer is complete (or a tunnel's upstream has closed its direction).
    pub(super) fn answer_done(&mut self, id: ExchangeId, trailers: &[u8]) {
        if id.worker != self.worker {
            let trailers = Bytes::copy_from_slice(trailers);
            self.post(id.worker, Mail::End { id, trailers });
        } else if self.exchanges.holds(id.index, id.generation) {
            if self.is_tunnel(id.index) {
                self.tunnel_answer_ended(id.index);
            } else if self.exchanges.at(id.index).phase == Phase::Answering {
                self.answer_end(id.index, trailers);
            }
        }
    }

    /// There is no answer, or no rest of it.
    pub(super) fn answer_fails(&mut self, id: ExchangeId, cause: Cause) {
        if id.worker != self.worker {
            self.post(id.worker, Mail::Fail { id, cause });
        } else if self.exchanges.holds(id.index, id.generation) && self.exchanges.at(id.index).phase != Phase::Done {
            self.answer_failed(id.index, cause);
        }
    }

    /// Hold a request body back, or go on.
    pub(super) fn body_flow(&mut self, id: ExchangeId, pause: bool) {
        if id.worker == self.worker {
            self.on_body_flow(id, pause);
        } else {
            self.post(id.worker, Mail::BodyFlow { id, pause });
        }
    }

    pub(super) fn on_body_flow(&mut self, id: ExchangeId, pause: bool) {
        if !self.exchanges.holds(id.index, id.generation) {
            return;
        }
        let index = self.exchanges.at(id.index).session;
        let now_us = self.now_us;
        let session = self.sessions.at_mut(index);
        let uploading = session.upload.as_ref().is_some_and(|upload| upload.exchange == id.index);
        if !uploading && session.reading != Reading::Tunnel {
            // It crossed the end of its body; the next body of this client is not meant.
            return;
        }
        session.flags.body_paused = pause;
        session.since_us = now_us;
        if let Some(upload) = session.upload.as_mut() {
            // While weir does not read it, its rate is not its client's affair.
            upload.begin_window(now_us);
        }
        let generation = self.sessions.generation(index);
        if !pause && self.sessions.at(index).stash.is_some() {
            self.to_parse.push_back((index, generation));
        }
        self.update_receive(index);
        self.arm_session(index);
    }

    /// A streaming request has its connection: the rest of its body may come.
    pub(super) fn on_assigned(&mut self, id: ExchangeId, link: LinkId) {
        if self.exchanges.holds(id.index, id.generation) {
            self.exchanges.at_mut(id.index).link = Some(link);
            self.on_body_flow(id, false);
        }
    }

    // ---- towards the upstream's side ----

    /// Stops or resumes a source of answers for a client of this worker.
    pub(super) fn flow(&mut self, link: LinkId, client: u64, pause: bool) {
        if link.worker == self.worker {
            self.flow_here(link, client, pause);
        } else {
            self.post(link.worker, Mail::Flow { link, client, pause });
        }
    }

    /// A piece of a request body or of a tunnel.
    pub(super) fn body_to_link(&mut self, slot: ExchangeKey, piece: Piece<'_>, end: bool) {
        let Some(link) = self.exchanges.at(slot).link else { return };
        let id = self.exchange_id(slot);
        if link.worker == self.worker {
            self.link_body(id, link, piece, end);
        } else {
            let data = match piece {
                Piece::Borrowed(bytes) => Bytes::copy_from_slice(bytes),
                Piece::Kept(bytes) => bytes,
            };
            self.post(link.worker, Mail::Body { id, link, data, end });
        }
    }

    /// Tells whoever was asked that the answer is not wanted any more.
    pub(super) fn cancel_upstream(&mut self, slot: ExchangeKey, hard: bool) {
        let exchange = self.exchanges.at(slot);
        if !matches!(exchange.phase, Phase::Waiting | Phase::Answering) {
            return;
        }
        let link = exchange.link;
        let worker = link.map_or(exchange.asked, |link| link.worker);
        let id = self.exchange_id(slot);
        if worker == self.worker {
            self.cancel_here(id, hard, link);
        } else {
            self.post(worker, Mail::Cancel { id, hard, link });
        }
    }

    /// Lets the other workers know what a server did.
    pub(super) fn tell_all_doubt(&mut self, server: ServerIndex, doubt: Option<Doubt>) {
        if doubt.is_some_and(|doubt| !doubt.demotes()) {
            return;
        }
        self.tell_all(|| Mail::Doubt { server, doubt });
    }

    /// The same mail to each other worker.
    pub(super) fn tell_all(&mut self, mail: impl Fn() -> Mail) {
        let me = self.worker;
        (0..self.workers).filter(|worker| *worker != me).for_each(|worker| self.post(worker, mail()));
    }
}
