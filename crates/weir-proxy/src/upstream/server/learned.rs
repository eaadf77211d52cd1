//! What a worker has learned about a server from its responses and from the ends of its
//! connections. Pure.
//!
//! Each part is a separate file beside the parent of this file. This file combines them, and adds
//! what is too small for a file: how large responses are, and whether they wait for a missing
//! acknowledgement. `batch` >= 1.

use crate::cross::lasting::Lasting;
use crate::placement::balance::Measure;
use crate::plan::PipelineMode;
use crate::upstream::class::Classes;
use crate::upstream::crash::CrashDetector;
use crate::upstream::deaf::DeafDetector;
use crate::upstream::depth::Depth;
use crate::upstream::early_close::EarlyCloseDetector;
use crate::upstream::idle_limit::IdleLimit;
use crate::upstream::keepalive_limit::KeepaliveLimit;
use crate::upstream::load::Load;
use crate::upstream::rehearsal::Rehearsal;
use crate::upstream::slow_answer::SlowDetector;
use crate::upstream::trust::Trust;

/// Bytes of answers that are worth having in one receive (a large receive buffer). Pipelining saves
/// what a receive and a send cost; next to the copying of large answers that is nothing, and one
/// connection after the other would idle.
const BATCH_BYTES: u64 = 64 * 1024;
/// An answer in a pipeline that takes as long as the kernel delays an acknowledgement (40 ms, a
/// tick less) may have been held back for want of one (Nagle's algorithm, RFC 9293 §3.7.4). nginx
/// with `tcp_nopush` does so.
const HELD_US: u64 = 30_000;
/// How long a server is then acknowledged at once. It costs up to a tenth of the CPU where it is of
/// no use.
const ACKNOWLEDGE_US: u64 = 600_000_000;
/// A server that ends connections after fewer requests is not worth a nearer connection: a
/// connect costs what ten or twenty requests on a far connection cost more.
const SCOUTED_REQUESTS_MIN: u64 = 50;

/// See the module.
#[derive(Debug)]
pub(crate) struct Learned {
    /// How far the server may be trusted with pipelining.
    pub trust: Trust,
    /// Whether it bears that.
    pub early_close: EarlyCloseDetector,
    /// Whether connections fall silent because of it.
    pub deaf: DeafDetector,
    /// Whether it dies of that.
    pub crash: CrashDetector,
    /// What it is rehearsed with.
    pub rehearsal: Rehearsal,
    /// Which requests are alike.
    pub classes: Classes,
    /// How deep requests may follow each other.
    pub depth: Depth,
    /// After how many requests it ends a connection.
    pub keepalive_limit: KeepaliveLimit,
    /// Whether it keeps connections for more than one; all workers have the same.
    pub lasting: Lasting,
    /// How much it bears at once; all workers have the same.
    pub load: Load,
    /// How long it lets a connection rest.
    pub idle_limit: IdleLimit,
    /// It has sent a body where there is none: its connections end behind the answer to a HEAD.
    pub strays: bool,
    /// How long its answers usually take.
    pub usual: SlowDetector,
    /// Answers that fill a receive: more in a row on one connection gain nothing and keep others
    /// idle.
    pub batch: u32,
    /// How long its answers take lately, when balancing needs that.
    pub measure: Option<Box<Measure>>,
    /// Bytes of an answer, averaged; None when the depth is fixed.
    answer_bytes: Option<u64>,
    /// Until when it gets acknowledgements at once.
    acknowledged_until_us: u64,
}

impl Learned {
    /// Nothing yet. `shared`: how many connections are there for requests that share them, over all
    /// workers.
    pub(super) fn new(mode: PipelineMode, queue_size: u32, shared: u32) -> Learned {
        let rehearses = mode == PipelineMode::Adaptive && queue_size > 1;
        Learned {
            trust: Trust::new(shared).rehearsed_first(rehearses),
            early_close: EarlyCloseDetector::default(),
            deaf: DeafDetector::default(),
            crash: CrashDetector::default(),
            rehearsal: Rehearsal::default(),
            classes: Classes::default(),
            depth: Depth::new(mode, queue_size),
            keepalive_limit: KeepaliveLimit::default(),
            lasting: Lasting::default(),
            strays: false,
            load: Load::default(),
            idle_limit: IdleLimit::default(),
            usual: SlowDetector::new(true),
            batch: u32::MAX,
            measure: None,
            answer_bytes: (mode == PipelineMode::Adaptive).then_some(0),
            acknowledged_until_us: 0,
        }
    }

    /// Unanswered requests on a connection before the next one is used.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        self.depth.limit().min(self.batch)
    }

    /// Learns from a receive on a connection with several unanswered requests, `elapsed_us` after
    /// the one before. True when the server seems to wait for acknowledgements.
    pub(crate) fn holds_back(&mut self, elapsed_us: u64, now_us: u64) -> bool {
        if elapsed_us >= HELD_US {
            self.acknowledged_until_us = now_us + ACKNOWLEDGE_US;
        }
        now_us < self.acknowledged_until_us
    }

    /// Learns from a receive that completed `count` answers (at least 1) of `bytes` in all.
    pub(crate) fn note_answers(&mut self, bytes: u64, count: u32) {
        if let Some(mean) = &mut self.answer_bytes {
            *mean = (*mean * 7 + bytes / u64::from(count)) / 8;
            self.batch = u32::try_from(BATCH_BYTES / (*mean).max(1)).unwrap_or(u32::MAX).max(1);
        }
    }

    /// Learns from the end of a response, the `answers`-th on its connection. The response says
    /// whether the connection persists (`persist`) or ends (`announced`). `pooled`: the connection
    /// belongs to no client.
    #[inline]
    pub(crate) fn on_end(&mut self, answers: u64, persist: bool, announced: bool, pooled: bool) {
        if persist {
            self.keepalive_limit.on_survived(answers);
        } else if announced {
            self.keepalive_limit.on_announced(answers);
        }
        match answers {
            1 if pooled && persist => self.lasting.on_promised(),
            1 if pooled && announced => self.lasting.on_single(),
            2 if pooled => self.lasting.on_kept(),
            _ => {}
        }
    }

    /// Whether it ends connections only after enough requests to make one more connect cheap.
    pub(super) fn is_short_lived(&self) -> bool {
        (SCOUTED_REQUESTS_MIN..u64::MAX).contains(&self.keepalive_limit.limit())
    }

    /// An operator says that it may earn trust again: that it sent answers too many, or did not
    /// bear pipelining, is forgotten.
    pub(crate) fn forgive(&mut self) {
        self.trust.clear();
        (self.early_close, self.deaf, self.strays, self.usual.overlook) = <_>::default();
    }
}
