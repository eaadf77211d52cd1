//! Counts glitches of servers, that is, strange but legal behaviour, and closes connections that
//! make more of them than they may.
//!
//! Called where the odd branch is taken anyway. Bound: `glitches-limit` of the upstream; above it a
//! connection is closed behind its unanswered requests. docs/status-glitches.md#glitches

use weir_http::{BodyOddities, Oddities, Oddity};

use super::pool::Pair;
use crate::context::Context;
use crate::observe::glitch::UpstreamGlitch;

/// Interim responses to one request that are not strange. More than that are few hints and no
/// progress.
const INTERIMS_USUAL: u8 = 4;

impl Pair<'_> {
    /// The head of a response is strange.
    #[cold]
    pub(super) fn odd_answer(&mut self, odd: Oddities, cx: &Context) {
        for oddity in odd.iter() {
            let glitch = match oddity {
                Oddity::Folded => UpstreamGlitch::LineFold,
                Oddity::SpacedName => UpstreamGlitch::NameSpaced,
                Oddity::ListedInVain => UpstreamGlitch::ConnectionList,
                Oddity::Repeated => UpstreamGlitch::FieldRepeated,
                // It is passed on: in a response no program behind CGI can take it for another
                // field.
                Oddity::Underscore => continue,
                // Only requests have these.
                Oddity::LeadingLine
                | Oddity::OtherHost
                | Oddity::VainUpgrade
                | Oddity::ProxyField => continue,
            };
            self.glitch(glitch, 1, cx);
        }
    }

    /// An interim response came, the `count`-th to its request.
    #[cold]
    pub(super) fn judge_interim(&mut self, status: u16, count: u8, cx: &Context) {
        if status == 100 && !self.conn.asks_for_leave() {
            self.glitch(UpstreamGlitch::ContinueUnasked, 1, cx);
        }
        if count > INTERIMS_USUAL {
            self.glitch(UpstreamGlitch::InterimMany, 1, cx);
        }
    }

    /// The body of a response is strange.
    #[cold]
    pub(super) fn odd_body(&mut self, odd: BodyOddities, cx: &Context) {
        self.glitch(UpstreamGlitch::ChunkExtension, odd.extensions.into(), cx);
        self.glitch(UpstreamGlitch::ChunkCrumbs, odd.crumbs.into(), cx);
        self.glitch(UpstreamGlitch::TrailerDropped, odd.trailers.into(), cx);
    }

    /// Counts a glitch on a connection to a server. Above the limit no more requests are sent on
    /// it.
    pub(super) fn glitch(&mut self, glitch: UpstreamGlitch, times: u32, cx: &Context) {
        cx.counters.upstream_glitches[glitch as usize].add(times.into());
        let Pair { conn, server } = self;
        server.stats.glitches[glitch as usize].add(times.into());
        conn.history.glitches = conn.history.glitches.saturating_add(times);
        let max = cx.plan.upstreams[usize::from(server.upstream)].glitches_max;
        if conn.is_ready()
            && !conn.rest.syncing
            && max.is_some_and(|max| conn.history.glitches > max)
        {
            // It runs empty as at a sync point, and is closed there.
            conn.rest.syncing = true;
            server.refresh(conn, cx.now_us);
        }
    }

    /// Whether a connection to a server has made more glitches than it may.
    pub(super) fn is_worn(&self, cx: &Context) -> bool {
        let upstream = usize::from(self.server.upstream);
        cx.plan.upstreams[upstream].glitches_max.is_some_and(|max| self.conn.history.glitches > max)
    }
}
