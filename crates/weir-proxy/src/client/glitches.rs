//! Counts glitches of clients, what is strange though legal, and ends connections that make more of them than they may.
//!
//! Called where the odd branch is taken anyway, so that a usual message pays nothing but one look at an empty set. Bound:
//! `glitches-limit` of `client` and of each upstream. Above it a client is closed in order behind what it has asked, and a
//! connection to a server behind what was asked on it. docs/status.md#glitches

use weir_http::{BodyOddities, Method, Oddities, Oddity};

use super::Clients;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::cause::Cause;
use crate::client::connection::{ClientConn, Reading};
use crate::context::Context;
use crate::ending::ClientEnd;
use crate::observe::glitch::ClientGlitch;

impl Clients {
    /// The head of a request that has its exchange already is strange.
    #[cold]
    pub(super) fn odd_request(&mut self, index: ClientKey, odd: Oddities, cx: &Context) {
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
                // Refused in a request.
                Oddity::SpacedName | Oddity::Folded => continue,
            };
            self.count_client_glitch(index, glitch, 1, cx);
        }
        self.limit_client(index, cx);
    }

    /// A request with a body begins: `unawaited` is one that expects 100 and didn't wait for it.
    pub(super) fn judge_upload(&mut self, index: ClientKey, method: Method, unawaited: bool, cx: &Context) {
        if matches!(method, Method::Get | Method::Head | Method::Delete | Method::Trace) {
            self.count_client_glitch(index, ClientGlitch::BodyUnexpected, 1, cx);
            self.limit_client(index, cx);
        }
        if unawaited {
            self.count_client_glitch(index, ClientGlitch::BodyUnawaited, 1, cx);
            self.limit_client(index, cx);
        }
    }

    /// The body of a request is strange. May end the request.
    #[cold]
    pub(super) fn odd_upload(&mut self, index: ClientKey, odd: BodyOddities, cx: &mut Context) {
        self.count_client_glitch(index, ClientGlitch::ChunkExtension, odd.extensions.into(), cx);
        self.count_client_glitch(index, ClientGlitch::ChunkCrumbs, odd.crumbs.into(), cx);
        self.count_client_glitch(index, ClientGlitch::TrailerDropped, odd.trailers.into(), cx);
        self.limit_client(index, cx);
        let max = cx.plan.client.glitches_max;
        // The body under way may come to its end, but not go on like this for ever.
        if max.is_some_and(|max| self.sessions.at(index).glitches > max.saturating_mul(2)) {
            self.upload_failed(index, Cause::Glitches, cx);
        }
    }

    /// A head came in many small pieces. What came of it may be a complete request by now.
    #[cold]
    pub(super) fn head_in_pieces(&mut self, index: ClientKey, cx: &mut Context) {
        self.count_client_glitch(index, ClientGlitch::HeadPieces, 1, cx);
        let session = self.sessions.at_mut(index);
        if session.reading == Reading::Head && is_over(session, cx.plan.client.glitches_max) {
            let since_us = session.since_us;
            if let Some(stash) = session.stash.take() {
                return self.refuse(index, Cause::Glitches, &stash.bytes[stash.start..], since_us, cx);
            }
        }
        self.limit_client(index, cx);
    }

    fn count_client_glitch(&mut self, index: ClientKey, glitch: ClientGlitch, times: u32, cx: &Context) {
        cx.counters.client_glitches[glitch as usize].add(times.into());
        let session = self.sessions.at_mut(index);
        session.glitches = session.glitches.saturating_add(times);
    }

    /// Ends a connection that has made too many glitches behind what it asked last. Nothing more is taken from it.
    fn limit_client(&mut self, index: ClientKey, cx: &Context) {
        let session = self.sessions.at_mut(index);
        if !is_over(session, cx.plan.client.glitches_max) {
            return;
        }
        if session.last != ExchangeKey::NONE {
            self.exchanges.at_mut(session.last).want.close = true;
        } else {
            session.flags.close = true;
            self.mark_session(index);
        }
        let session = self.sessions.at_mut(index);
        if session.reading == Reading::Head {
            session.reading = Reading::Closing;
        }
    }

    /// Whether a client's connection ends, or has ended, because of its glitches.
    pub(super) fn ends_by_glitches(&self, session: &ClientConn, cx: &Context) -> bool {
        is_over(session, cx.plan.client.glitches_max)
    }

    /// The target of a request had to be encoded.
    #[cold]
    pub(super) fn odd_target(&mut self, index: ClientKey, cx: &Context) {
        self.count_client_glitch(index, ClientGlitch::TargetRaw, 1, cx);
        self.limit_client(index, cx);
    }

    /// Why a client's connection ends that is closed in order.
    pub(super) fn orderly_end(&self, index: ClientKey, cx: &Context) -> ClientEnd {
        if self.ends_by_glitches(self.sessions.at(index), cx) { ClientEnd::Glitches } else { ClientEnd::Done }
    }
}

fn is_over(session: &ClientConn, max: Option<u32>) -> bool {
    max.is_some_and(|max| session.glitches > max)
}
