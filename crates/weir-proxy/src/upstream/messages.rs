//! What the clients' side and the other workers are told of requests and servers.

use super::Upstreams;
use crate::base::keys::ServerIndex;
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::mail::Mail;
use crate::request::pending_request::ExchangeId;
use crate::upstream::trust::Doubt;

impl Upstreams {
    /// There is no answer, or no rest of it.
    pub(super) fn answer_fails(&mut self, id: ExchangeId, cause: Cause, cx: &mut Context) {
        cx.post(id.worker, Mail::Fail { id, cause });
    }

    /// Hold a request body back, or go on.
    pub(super) fn body_flow(&mut self, id: ExchangeId, pause: bool, cx: &mut Context) {
        cx.post(id.worker, Mail::BodyFlow { id, pause });
    }

    /// Lets the other workers know what a server did.
    pub(super) fn tell_all_doubt(&mut self, server: ServerIndex, doubt: Option<Doubt>, cx: &mut Context) {
        if doubt.is_none_or(Doubt::demotes) {
            cx.tell_all(|| Mail::Doubt { server, doubt });
        }
    }
}
