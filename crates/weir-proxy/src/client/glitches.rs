//! Counts glitches of clients, which are strange though legal, and ends connections that exceed the
//! limit.
//!
//! Called where the odd branch is taken anyway, so that a usual message only costs one look at an
//! empty set. Bound: `glitches-limit` of `client` and of each upstream. Above it a client is closed
//! in order behind its last request, and a connection to a server behind the last request on it.
//! docs/status-glitches.md#glitches

use weir_http::{BodyOddities, Method, Oddities, Oddity};

use super::Clients;
use super::connections::Connections;
use crate::base::keys::ClientKey;
use crate::cause::Cause;
use crate::client::connection::{ClientConn, Reading};
use crate::context::Context;
use crate::ending::ClientEnd;
use crate::observe::glitch::ClientGlitch;
use crate::plan::ClientPlan;

impl ClientConn {
    /// Counts a glitch this many times.
    pub(super) fn count_glitch(&mut self, glitch: ClientGlitch, times: u32, cx: &Context) {
        cx.counters.client_glitches[glitch as usize].add(times.into());
        self.glitches = self.glitches.saturating_add(times);
    }

    /// Counts the oddities of a request head.
    #[cold]
    pub(super) fn count_oddities(&mut self, odd: Oddities, cx: &Context) {
        for oddity in odd.iter() {
            let glitch = match oddity {
                Oddity::LeadingLine => ClientGlitch::LeadingLine,
                Oddity::Underscore if cx.plan.client.underscores => continue,
                Oddity::Underscore => ClientGlitch::Underscore,
                Oddity::ListedInVain => ClientGlitch::ConnectionList,
                Oddity::Repeated => ClientGlitch::FieldRepeated,
                Oddity::OtherHost => ClientGlitch::OtherHost,
                Oddity::VainUpgrade => ClientGlitch::UpgradeIgnored,
                Oddity::ProxyField => ClientGlitch::ProxyField,
                // Rejected in a request.
                Oddity::SpacedName | Oddity::Folded => continue,
            };
            self.count_glitch(glitch, 1, cx);
        }
    }

    /// A request with a body begins: `unawaited` is one that expects 100 and didn't wait for it.
    /// Returns whether that is strange.
    pub(super) fn judge_upload(&mut self, method: Method, unawaited: bool, cx: &Context) -> bool {
        let unexpected =
            matches!(method, Method::Get | Method::Head | Method::Delete | Method::Trace);
        if unexpected {
            self.count_glitch(ClientGlitch::BodyUnexpected, 1, cx);
        }
        if unawaited {
            self.count_glitch(ClientGlitch::BodyUnawaited, 1, cx);
        }
        unexpected || unawaited
    }

    /// Whether it ends, or has ended, because of its glitches.
    #[inline]
    pub(super) fn ends_by_glitches(&self, plan: &ClientPlan) -> bool {
        plan.glitches_max.is_some_and(|max| self.glitches > max)
    }

    /// Why it ends when it is closed in order.
    pub(super) fn orderly_end(&self, plan: &ClientPlan) -> ClientEnd {
        if self.ends_by_glitches(plan) { ClientEnd::Glitches } else { ClientEnd::Done }
    }
}

impl Connections {
    /// Ends a connection with too many glitches behind its last request.
    pub(super) fn limit(&mut self, index: ClientKey, cx: &Context) {
        if self.at(index).ends_by_glitches(&cx.plan.client) {
            self.close_behind(index);
        }
    }
}

impl Clients {
    /// Counts the oddities of a request body. May end the request.
    #[cold]
    pub(super) fn odd_upload(&mut self, index: ClientKey, odd: BodyOddities, cx: &mut Context) {
        let conn = self.conn_mut(index);
        conn.count_glitch(ClientGlitch::ChunkExtension, odd.extensions.into(), cx);
        conn.count_glitch(ClientGlitch::ChunkCrumbs, odd.crumbs.into(), cx);
        conn.count_glitch(ClientGlitch::TrailerDropped, odd.trailers.into(), cx);
        self.answers.conns.limit(index, cx);
        let max = cx.plan.client.glitches_max;
        // The present body may finish, but not continue like this for ever.
        if max.is_some_and(|max| self.conn(index).glitches > max.saturating_mul(2)) {
            self.answers.upload_failed(index, Cause::Glitches, cx);
        }
    }

    /// A head arrived in many small pieces. The part that arrived may be a complete request by now.
    #[cold]
    pub(super) fn head_in_pieces(&mut self, index: ClientKey, cx: &mut Context) {
        let conn = self.conn_mut(index);
        conn.count_glitch(ClientGlitch::HeadPieces, 1, cx);
        if conn.reading() == Reading::Head && conn.ends_by_glitches(&cx.plan.client) {
            let since_us = conn.since_us;
            if let Some(stash) = conn.stash.take() {
                return self.answers.refuse(
                    index,
                    Cause::Glitches,
                    &stash.bytes[stash.start..],
                    since_us,
                    cx,
                );
            }
        }
        self.answers.conns.limit(index, cx);
    }
}
