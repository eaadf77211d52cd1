//! The part of one worker in the [concurrency limit](crate::cross::limit) of a server: it counts
//! answers and applies the limit.
//!
//! A worker counts only while it has as many connections to the server as requests share, so it
//! costs nothing far from the limit. Bound: it reports at most [`ANSWERS`] answers late, or
//! [`TOLD_US`].

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::base::keys::ServerIndex;
use crate::base::token::Token;
use crate::context::Context;
use crate::cross::limit::{Learned, Limit};
use crate::cross::mail::Mail;
use crate::cross::permits::MyPermits;
use crate::cross::places::Places;
use crate::request::pending_request::PendingRequest;
use crate::upstream::pool::Pool;
use crate::upstream::server::{STALLED_MAX, Server};

/// Answers per report.
const ANSWERS: u32 = 16;
/// Time after which fewer are reported.
const TOLD_US: u64 = 10_000;
/// Longest time that counts for an answer: event streams do not show the load.
const TOOK_US_MAX: u64 = 60_000_000;
const MINUTE_US: u64 = 60_000_000;
/// Time between two looks at a server where only the number of places is learned.
const AGAIN_US: u64 = 500_000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Shared by all workers.
    pub limit: Arc<Limit>,
    /// Likewise.
    pub places: Arc<Places>,
    /// `concurrency`, if it is set.
    pub permits: Option<MyPermits>,
    /// Connections that are up and have brought a response.
    pub served: u32,
    answers: u32,
    busy_us: u64,
    told_us: u64,
    /// Time of the timer that decides while requests wait.
    due_us: u64,
    /// Time of the timer that refuses those that have waited for `queue-timeout`; 0: none.
    pub refuses_us: u64,
    /// End of the minute that `connections_wanted` covers.
    minute_us: u64,
}

impl Load {
    /// Whether requests of other workers wait for permits of the server.
    pub(super) fn is_awaited_elsewhere(&self) -> bool {
        self.permits.as_ref().is_some_and(MyPermits::is_awaited)
    }
}

impl Server {
    /// Counts a complete answer. `took_us`: since the request was put on its connection.
    #[inline]
    pub(crate) fn note_answer(&mut self, took_us: u64, now_us: u64) {
        if self.ready >= self.limits.shared && self.learns_limit() {
            self.count_answer(took_us, now_us);
        }
    }

    fn count_answer(&mut self, took_us: u64, now_us: u64) {
        let bounds = self.limits.bounds();
        let load = &mut self.learned.load;
        load.answers += 1;
        load.busy_us += took_us.min(TOOK_US_MAX);
        if load.answers >= ANSWERS || now_us >= load.told_us + TOLD_US {
            let (answers, busy_us) =
                (std::mem::take(&mut load.answers), std::mem::take(&mut load.busy_us));
            load.told_us = now_us;
            load.limit.on_answers(answers, busy_us, now_us, bounds);
        }
    }

    /// Whether weir may choose how many connections the server has.
    fn chooses_connections(&self) -> bool {
        !self.mode.private && !self.limits.is_exact() && self.limits.all > self.limits.shared
    }

    /// Whether weir may choose how many requests the server has at once.
    fn learns_limit(&self) -> bool {
        self.chooses_connections() && self.learned.load.permits.is_none()
    }

    /// Returns how many requests of this worker the server works on (`concurrency`). A request
    /// whose client does not read does not count: that client may need another response first,
    /// which needs a permit. Nor do requests that moved to another connection.
    fn working(&self) -> u32 {
        let untaken = self.positions.stalled().min(STALLED_MAX);
        (self.inflight - self.moved).saturating_sub(untaken)
    }

    /// Takes permits for `count` more requests; false: not enough are available. [`settle_permits`]
    /// returns unused permits.
    #[inline]
    pub(super) fn admits(&self, count: u32) -> bool {
        let Some(permits) = &self.learned.load.permits else { return true };
        let working = self.working();
        (working..working + count).all(|working| permits.take(working))
    }

    /// How many more requests may be sent by `concurrency`. None: any number.
    #[inline]
    pub(crate) fn available(&self) -> Option<u32> {
        let permits = self.learned.load.permits.as_ref()?;
        Some(permits.available(self.working()))
    }

    /// Whether the server works on as many requests as it may.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.available() == Some(0)
    }

    /// Most requests of this worker that have a connection for themselves, without those aside.
    #[inline]
    pub(crate) fn limit(&self) -> u32 {
        if !self.chooses_connections() {
            return self.limits.all;
        }
        let load = &self.learned.load;
        let limit = match self.learns_limit() {
            true => self.limits.part_of(load.limit.get(self.limits.bounds())),
            false => self.limits.all,
        };
        match load.places.count() {
            0 => limit.min(self.limits.all),
            places => limit.min(self.limits.part_of(places).max(1)),
        }
    }

    /// A request got in line: counts it if it still waits and the reason is the limit,
    /// `connections-max` or `concurrency`.
    #[cold]
    pub(crate) fn note_waiting(&mut self, ask: &PendingRequest, now_us: u64) {
        let waits = || self.waiting.line(ask.traits.goes_alone()).has(ask.id);
        // Those in front of it may still wait for their connections to be made.
        let waiting = self.waiting.unparked() as u32;
        if self.available().is_some_and(|available| waiting > available) {
            self.stats.concurrency_waits.add(waits().into());
            return;
        }
        if !self.is_at_limit() || !waits() {
            return;
        }
        if self.learned.load.limit.is_held() || self.learned.load.places.count() > 0 {
            self.stats.limit_waits.add(1);
        } else if self.limit() >= self.limits.all {
            self.stats.connection_waits.add(1);
        } else {
            // A short trial.
            return;
        }
        let wanted = u64::from(self.positions.taken()) + self.waiting.unparked() as u64;
        let load = &mut self.learned.load;
        if now_us >= load.minute_us {
            load.minute_us = now_us + MINUTE_US;
            self.stats.connections_wanted.set(0);
        }
        self.stats.connections_wanted.set(wanted.max(self.stats.connections_wanted.get()));
    }

    /// Decides about the limit if that is due.
    pub(crate) fn look_at_limit(&self, now_us: u64) {
        if self.learns_limit() {
            self.learned.load.limit.look(now_us, self.limits.bounds());
        }
    }

    /// The connections that the server serves at a time, if that was learned.
    pub(crate) fn learned_places(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.learned.load.places.count()).filter(|_| self.chooses_connections())
    }

    /// The learned limit, while it is in force.
    pub(crate) fn learned_limit(&self, now_us: u64) -> Option<Learned> {
        self.learned.load.limit.learned(now_us).filter(|_| self.learns_limit())
    }
}

/// Call it before this worker sends its next requests: gives permits to waiting workers that have
/// fewer.
#[inline]
pub(super) fn share_permits(server: ServerIndex, pool: &Pool, cx: &mut Context) {
    let machine = &pool.servers[server];
    if let Some(permits) = &machine.learned.load.permits {
        let working = machine.working();
        permits.share(working, |worker| cx.post(worker, Mail::Permit { server }));
    }
}

/// Call it afterwards: returns the permits that this worker does not use.
#[inline]
pub(super) fn settle_permits(server: ServerIndex, pool: &Pool, cx: &mut Context) {
    let machine = &pool.servers[server];
    if let Some(permits) = &machine.learned.load.permits {
        let (working, waits) = (machine.working(), !machine.waiting.is_calm());
        permits.settle(working, waits, |worker| cx.post(worker, Mail::Permit { server }));
    }
}

/// A request waits because of the limit: decides now if that is due, else by a timer.
#[cold]
pub(super) fn await_limit(server: ServerIndex, pool: &mut Pool, cx: &mut Context) {
    let machine = &mut pool.servers[server];
    if !machine.chooses_connections() {
        return;
    }
    let (bounds, learns) = (machine.limits.bounds(), machine.learns_limit());
    let load = &mut machine.learned.load;
    load.places.on_waiting(cx.now_us);
    let due_us = match learns {
        true => load.limit.on_waiting(cx.now_us, bounds),
        false => cx.now_us + AGAIN_US,
    };
    if load.due_us <= cx.now_us {
        load.due_us = due_us;
        cx.wheel.insert(Token::Limit { server }.pack(), due_us);
    }
}
