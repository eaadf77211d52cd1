//! Counts glitches, what is strange though legal, and ends connections that make more of them than they may.
//!
//! Called where the odd branch is taken anyway, so that a usual message pays nothing but one look at an empty set. Bound:
//! `glitches-limit` of `client` and of each upstream. Above it a client is closed in order behind what it has asked, and a
//! connection to a server behind what was asked on it. docs/status.md#glitches

use weir_http::{BodyOddities, Method, Oddities, Oddity};

use super::Engine;
use crate::base::keys::{ClientKey, ConnKey, ExchangeKey};
use crate::cause::Cause;
use crate::client::connection::{ClientConn, Reading};
use crate::ending::ClientEnd;
use crate::observe::glitch::{ClientGlitch, UpstreamGlitch};

/// Interim answers to one request that are not strange. More than that are few hints and no progress.
const INTERIMS_USUAL: u8 = 4;

impl Engine {
    // ---- clients ----

    /// The head of a request that has its exchange already is strange.
    #[cold]
    pub(super) fn odd_request(&mut self, index: ClientKey, odd: Oddities) {
        for oddity in odd.iter() {
            let glitch = match oddity {
                Oddity::LeadingLine => ClientGlitch::LeadingLine,
                Oddity::Underscore if self.plan.client.underscores => continue,
                Oddity::Underscore => ClientGlitch::Underscore,
                Oddity::ListedInVain => ClientGlitch::ConnectionList,
                Oddity::Repeated => ClientGlitch::FieldRepeated,
                Oddity::OtherHost => ClientGlitch::OtherHost,
                Oddity::VainUpgrade => ClientGlitch::UpgradeIgnored,
                Oddity::ProxyField => ClientGlitch::ProxyField,
                // Refused in a request.
                Oddity::SpacedName | Oddity::Folded => continue,
            };
            self.count_client_glitch(index, glitch, 1);
        }
        self.limit_client(index);
    }

    /// A request with a body begins: `unawaited` is one that expects 100 and didn't wait for it.
    pub(super) fn judge_upload(&mut self, index: ClientKey, method: Method, unawaited: bool) {
        if matches!(method, Method::Get | Method::Head | Method::Delete | Method::Trace) {
            self.count_client_glitch(index, ClientGlitch::BodyUnexpected, 1);
            self.limit_client(index);
        }
        if unawaited {
            self.count_client_glitch(index, ClientGlitch::BodyUnawaited, 1);
            self.limit_client(index);
        }
    }

    /// The body of a request is strange. May end the request.
    #[cold]
    pub(super) fn odd_upload(&mut self, index: ClientKey, odd: BodyOddities) {
        self.count_client_glitch(index, ClientGlitch::ChunkExtension, odd.extensions.into());
        self.count_client_glitch(index, ClientGlitch::ChunkCrumbs, odd.crumbs.into());
        self.count_client_glitch(index, ClientGlitch::TrailerDropped, odd.trailers.into());
        self.limit_client(index);
        let max = self.plan.client.glitches_max;
        // The body under way may come to its end, but not go on like this for ever.
        if max.is_some_and(|max| self.sessions.at(index).glitches > max.saturating_mul(2)) {
            self.upload_failed(index, Cause::Glitches);
        }
    }

    /// A head came in many small pieces. What came of it may be a complete request by now.
    #[cold]
    pub(super) fn head_in_pieces(&mut self, index: ClientKey) {
        self.count_client_glitch(index, ClientGlitch::HeadPieces, 1);
        let session = self.sessions.at_mut(index);
        if session.reading == Reading::Head && is_over(session, self.plan.client.glitches_max) {
            let since_us = session.since_us;
            if let Some(stash) = session.stash.take() {
                return self.refuse(index, Cause::Glitches, &stash.bytes[stash.start..], since_us);
            }
        }
        self.limit_client(index);
    }

    fn count_client_glitch(&mut self, index: ClientKey, glitch: ClientGlitch, times: u32) {
        self.counters.client_glitches[glitch as usize].add(times.into());
        let session = self.sessions.at_mut(index);
        session.glitches = session.glitches.saturating_add(times);
    }

    /// Ends a connection that has made too many glitches behind what it asked last. Nothing more is taken from it.
    fn limit_client(&mut self, index: ClientKey) {
        let session = self.sessions.at_mut(index);
        if !is_over(session, self.plan.client.glitches_max) {
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
    pub(super) fn ends_by_glitches(&self, session: &ClientConn) -> bool {
        is_over(session, self.plan.client.glitches_max)
    }

    /// The target of a request had to be encoded.
    #[cold]
    pub(super) fn odd_target(&mut self, index: ClientKey) {
        self.count_client_glitch(index, ClientGlitch::TargetRaw, 1);
        self.limit_client(index);
    }

    /// Why a client's connection ends that is closed in order.
    pub(super) fn orderly_end(&self, index: ClientKey) -> ClientEnd {
        if self.ends_by_glitches(self.sessions.at(index)) { ClientEnd::Glitches } else { ClientEnd::Done }
    }

    // ---- servers ----

    /// The head of an answer is strange.
    #[cold]
    pub(super) fn odd_answer(&mut self, index: ConnKey, odd: Oddities) {
        for oddity in odd.iter() {
            let glitch = match oddity {
                Oddity::Folded => UpstreamGlitch::LineFold,
                Oddity::SpacedName => UpstreamGlitch::NameSpaced,
                Oddity::ListedInVain => UpstreamGlitch::ConnectionList,
                Oddity::Repeated => UpstreamGlitch::FieldRepeated,
                // It passes on: in an answer it can't be taken for another field by a program behind CGI.
                Oddity::Underscore => continue,
                // Only requests have these.
                Oddity::LeadingLine | Oddity::OtherHost | Oddity::VainUpgrade | Oddity::ProxyField => continue,
            };
            self.upstream_glitch(index, glitch, 1);
        }
    }

    /// An interim answer came, the `count`-th to its request.
    #[cold]
    pub(super) fn judge_interim(&mut self, index: ConnKey, status: u16, count: u8) {
        if status == 100 {
            self.upstream_glitch(index, UpstreamGlitch::ContinueUnasked, 1);
        }
        if count > INTERIMS_USUAL {
            self.upstream_glitch(index, UpstreamGlitch::InterimMany, 1);
        }
    }

    /// The body of an answer is strange.
    #[cold]
    pub(super) fn odd_body(&mut self, index: ConnKey, odd: BodyOddities) {
        self.upstream_glitch(index, UpstreamGlitch::ChunkExtension, odd.extensions.into());
        self.upstream_glitch(index, UpstreamGlitch::ChunkCrumbs, odd.crumbs.into());
        self.upstream_glitch(index, UpstreamGlitch::TrailerDropped, odd.trailers.into());
    }

    /// Counts a glitch on a connection to a server. Above the limit nothing more is asked on it.
    pub(super) fn upstream_glitch(&mut self, index: ConnKey, glitch: UpstreamGlitch, times: u32) {
        self.counters.upstream_glitches[glitch as usize].add(times.into());
        let link = self.links.at_mut(index);
        let server = &mut self.servers[link.server];
        server.stats.glitches[glitch as usize].add(times.into());
        link.glitches = link.glitches.saturating_add(times);
        let max = self.plan.upstreams[usize::from(server.upstream)].glitches_max;
        if link.is_ready() && !link.syncing && max.is_some_and(|max| link.glitches > max) {
            // It runs empty as at a sync point, and is closed there.
            link.syncing = true;
            server.refresh(link, self.now_us);
        }
    }

    /// Whether a connection to a server has made more glitches than it may.
    pub(super) fn is_worn(&self, index: ConnKey) -> bool {
        let link = self.links.at(index);
        let upstream = usize::from(self.servers[link.server].upstream);
        self.plan.upstreams[upstream].glitches_max.is_some_and(|max| link.glitches > max)
    }
}

fn is_over(session: &ClientConn, max: Option<u32>) -> bool {
    max.is_some_and(|max| session.glitches > max)
}
