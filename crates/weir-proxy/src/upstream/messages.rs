//! Messages about requests and servers to the clients' side and to the other workers.

use crate::base::keys::ServerIndex;
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::doubt::Doubt;
use crate::cross::mail::Mail;
use crate::request::pending_request::{ConnId, ExchangeId, PendingRequest, RequestFlags};

impl Context {
    /// The response, or the rest of it, does not come.
    pub(super) fn answer_fails(&mut self, id: ExchangeId, cause: Cause) {
        self.post(id.worker, Mail::Fail { id, cause });
    }

    /// Hold a request body back, or continue.
    pub(super) fn body_flow(&mut self, id: ExchangeId, pause: bool) {
        self.post(id.worker, Mail::BodyFlow { id, pause });
    }

    /// Informs the other workers of a server's doubt.
    pub(super) fn tell_all_doubt(&mut self, server: ServerIndex, doubt: Option<Doubt>) {
        if doubt.is_none_or(Doubt::demotes) {
            self.tell_all(|| Mail::Doubt { server, doubt });
        }
    }

    /// Reports which connection a request is on, if the rest of its body has to follow, or if its
    /// client may cancel it without leaving: then no search is made for it.
    pub(super) fn assigned(&mut self, ask: &PendingRequest, conn: ConnId) {
        if ask.traits.has(RequestFlags::STREAMING) || ask.carrier != ask.client {
            self.post(ask.id.worker, Mail::Assigned { id: ask.id, conn });
        }
    }
}
