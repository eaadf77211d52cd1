//! Carries out what `misbehave.rs` read: decides for each occasion, and freezes when the whole
//! origin shall.
//!
//! Called by `connection.rs` and `server.rs`, only when there are misbehaviours. Shared by all
//! threads, so that `every=N` and shares count over the whole origin.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::misbehave::{Kind, Misbehaviours, Rule};

/// Longest sleep in a freeze before the next check whether the origin shall end.
const NAP: Duration = Duration::from_millis(20);

/// The rules, and how many occasions each had.
#[derive(Debug)]
pub(super) struct Mischief {
    rules: Misbehaviours,
    occasions: [AtomicU64; Kind::COUNT],
    first_request: OnceLock<Instant>,
    frozen: AtomicBool,
}

impl Mischief {
    /// Returns None when there are no misbehaviours.
    pub(super) fn new(rules: Misbehaviours) -> Option<Mischief> {
        let occasions = std::array::from_fn(|_| AtomicU64::new(0));
        let mischief = Mischief {
            rules,
            occasions,
            first_request: OnceLock::new(),
            frozen: AtomicBool::new(false),
        };
        (!rules.is_empty()).then_some(mischief)
    }

    /// Returns the configured misbehaviours.
    pub(super) fn rules(&self) -> &Misbehaviours {
        &self.rules
    }

    /// Notes a request: the time of a freeze counts from the first.
    pub(super) fn requested(&self) {
        self.first_request.get_or_init(Instant::now);
    }

    /// Takes an occasion; returns the rule if it applies to this one.
    pub(super) fn strikes(&self, kind: Kind) -> Option<Rule> {
        let rule = self.rules.rule(kind)?;
        let nth = self.occasions[kind as usize].fetch_add(1, Ordering::Relaxed) + 1;
        rule.often.hits(nth).then_some(rule)
    }

    /// Sleeps to the end of the freeze if now is inside it, or until `stop` is set. Returns true
    /// for the first thread that does.
    pub(super) fn stand_still(&self, stop: &AtomicBool) -> bool {
        let Some(rule) = self.rules.rule(Kind::Freeze) else { return false };
        let Some(first) = self.first_request.get() else { return false };
        let begin = *first + Duration::from_micros(rule.second);
        let end = begin + Duration::from_micros(rule.first);
        let now = Instant::now();
        if now < begin || now >= end {
            return false;
        }
        let is_first = !self.frozen.swap(true, Ordering::Relaxed);
        while !stop.load(Ordering::Acquire) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(NAP));
        }
        is_first
    }
}
