//! What the clients' side and the other workers are told of requests and servers.

use crate::base::keys::ServerIndex;
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::doubt::Doubt;
use crate::cross::mail::Mail;
use crate::request::pending_request::{ConnId, ExchangeId, PendingRequest, RequestFlags};

impl Context {
    /// There is no answer, or no rest of it.
    pub(super) fn answer_fails(&mut self, id: ExchangeId, cause: Cause) {
        self.post(id.worker, Mail::Fail { id, cause });
    }

    /// Hold a request body back, or go on.
    pub(super) fn body_flow(&mut self, id: ExchangeId, pause: bool) {
        self.post(id.worker, Mail::BodyFlow { id, pause });
    }

    /// Lets the other workers know what a server did.
    pub(super) fn tell_all_doubt(&mut self, server: ServerIndex, doubt: Option<Doubt>) {
        if doubt.is_none_or(Doubt::demotes) {
            self.tell_all(|| Mail::Doubt { server, doubt });
        }
    }

    /// Which connection a request is on, if the rest of its body has to follow, or its client may give it up without leaving: then nothing
    /// is searched for it.
    pub(super) fn assigned(&mut self, ask: &PendingRequest, conn: ConnId) {
        if ask.traits.has(RequestFlags::STREAMING) || ask.carrier != ask.client {
            self.post(ask.id.worker, Mail::Assigned { id: ask.id, conn });
        }
    }
}
