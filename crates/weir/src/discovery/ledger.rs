//! The results for each name, and when it is looked up again. Pure: time is an argument. Called by
//! [`super`].
//!
//! An address is in use from the first result with it until `hold` after the first result without
//! it. Failed lookups change nothing, and are tried again after [`RETRY_MIN`], twice that, and so
//! on up to [`RETRY_MAX`]. A result without addresses is a result like others. It is valid for its
//! own time, but at most for [`NOTHING_MAX`] or the configured minimum, because the name has no
//! server meanwhile. Bound: [`ADDRESSES_MAX`] a name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weir_proxy::plan::{DiscoveryPlan, Place};

use crate::log::{Event, Line};

/// Addresses in use of one name; weir has no room for more servers anyway.
pub(super) const ADDRESSES_MAX: usize = 256;
/// The first pause after a failed lookup.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// The longest pause.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The longest time after which a name without addresses is looked up again.
const NOTHING_MAX: Duration = Duration::from_secs(5);

/// The servers of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) places: Vec<Place>,
    pub(super) ttl: Duration,
    /// No lookup of any part failed.
    pub(super) is_whole: bool,
}

/// Why a lookup had no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The name has no addresses, as name servers say, for this long if they say that
    /// (RFC 2308 §5).
    Nothing(&'static str, Option<Duration>),
    /// The lookup failed.
    Failed(&'static str),
}

impl Trouble {
    pub(super) fn text(&self) -> &'static str {
        let (Trouble::Nothing(text, _) | Trouble::Failed(text)) = self;
        text
    }
}

/// The state of a name, for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    /// As written.
    pub(crate) name: String,
    /// Addresses in use.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Why the last lookup had no result; None: it had one, or was the first.
    pub(crate) problem: Option<&'static str>,
}

#[derive(Debug)]
struct Name {
    /// Addresses in use. With a time: no result has had the address since then.
    addresses: BTreeMap<SocketAddr, (Place, Option<Instant>)>,
    due: Instant,
    is_asked: bool,
    /// Failed lookups in a row.
    failures: u32,
    problem: Option<&'static str>,
    /// It has been looked up since the last refresh.
    is_settled: bool,
}

/// The state of all names.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    plan: DiscoveryPlan,
    names: BTreeMap<String, Name>,
}

impl Ledger {
    /// Sets how long results are valid from now on.
    pub(super) fn set_plan(&mut self, plan: DiscoveryPlan) {
        self.plan = plan;
    }

    /// Has each name looked up at once, known or not.
    pub(super) fn refresh(&mut self, now: Instant) {
        self.names.values_mut().for_each(|name| (name.due, name.is_settled) = (now, false));
    }

    /// Sets the wanted names.
    pub(super) fn want(&mut self, names: &BTreeSet<String>, now: Instant) {
        self.names.retain(|name, _| names.contains(name));
        for name in names {
            let new = || Name {
                addresses: BTreeMap::new(),
                due: now,
                is_asked: false,
                failures: 0,
                problem: None,
                is_settled: false,
            };
            if !self.names.contains_key(name) {
                self.names.insert(name.clone(), new());
            }
        }
    }

    /// Returns names that are due, at most this many. Their lookups start now.
    pub(super) fn take_due(&mut self, now: Instant, max: usize) -> Vec<String> {
        let due = self.names.iter_mut().filter(|(_, name)| !name.is_asked && name.due <= now);
        due.take(max)
            .map(|(text, name)| {
                name.is_asked = true;
                text.clone()
            })
            .collect()
    }

    /// Notes the end of a lookup.
    pub(super) fn learn(
        &mut self,
        text: &str,
        answer: Result<Answer, Trouble>,
        now: Instant,
    ) -> Option<Line> {
        let name = self.names.get_mut(text)?;
        (name.is_asked, name.is_settled) = (false, true);
        match answer {
            Ok(answer) => name.answered(text, answer, &self.plan, now),
            Err(trouble) => name.failed(text, &trouble, &self.plan, now),
        }
    }

    /// Drops addresses whose time is over.
    pub(super) fn expire(&mut self, now: Instant) {
        let hold = hold(&self.plan);
        self.names.values_mut().for_each(|name| name.expire(hold, now));
    }

    /// Returns when something is due.
    pub(super) fn next(&self) -> Option<Instant> {
        let due = self.names.values().filter(|name| !name.is_asked).map(|name| name.due);
        let missing = self
            .names
            .values()
            .flat_map(|name| name.addresses.values().filter_map(|(_, since)| *since));
        due.chain(missing.map(|since| since + hold(&self.plan))).min()
    }

    /// Whether each name has been looked up since the last refresh.
    pub(super) fn is_settled(&self) -> bool {
        self.names.values().all(|name| name.is_settled)
    }

    /// Returns the addresses in use.
    pub(super) fn known(&self) -> BTreeMap<String, Vec<Place>> {
        let of = |(text, name): (&String, &Name)| {
            (text.clone(), name.addresses.values().map(|(place, _)| *place).collect())
        };
        self.names.iter().map(of).collect()
    }

    /// Returns the state of all names.
    pub(super) fn shown(&self) -> Vec<Shown> {
        let of = |(text, name): (&String, &Name)| Shown {
            name: text.clone(),
            addresses: name.addresses.keys().copied().collect(),
            problem: name.problem,
        };
        self.names.iter().map(of).collect()
    }
}

impl Name {
    fn answered(
        &mut self,
        text: &str,
        answer: Answer,
        plan: &DiscoveryPlan,
        now: Instant,
    ) -> Option<Line> {
        let was_lost = self.problem.take().is_some();
        self.failures = 0;
        if answer.is_whole {
            self.miss(&answer.places, plan, now);
        }
        for place in answer.places {
            if self.addresses.len() < ADDRESSES_MAX || self.addresses.contains_key(&place.address) {
                self.addresses.insert(place.address, (place, None));
            }
        }
        let [min, max] = [plan.ttl_min_us, plan.ttl_max_us].map(Duration::from_micros);
        let ttl = answer.ttl.clamp(min, max.max(min));
        self.due = now + if answer.is_whole { ttl } else { ttl.min(RETRY_MAX) };
        was_lost.then(|| {
            Event::NameResolved.says(format_args!("resolved {text} again")).with("name", text)
        })
    }

    fn failed(
        &mut self,
        text: &str,
        trouble: &Trouble,
        plan: &DiscoveryPlan,
        now: Instant,
    ) -> Option<Line> {
        self.due = now
            + match trouble {
                Trouble::Nothing(_, ttl) => {
                    self.miss(&[], plan, now);
                    self.failures = 0;
                    let min = Duration::from_micros(plan.ttl_min_us);
                    ttl.unwrap_or(min).min(NOTHING_MAX).max(min)
                }
                Trouble::Failed(_) => {
                    let pause = (RETRY_MIN * (1 << self.failures.min(5))).min(RETRY_MAX);
                    self.failures = self.failures.saturating_add(1);
                    pause
                }
            };
        let before = self.problem.replace(trouble.text());
        let stays = match (self.addresses.len(), trouble) {
            (0, _) => "it has no server until the lookup succeeds".to_owned(),
            (_, Trouble::Failed(_)) => "known addresses remain in use".to_owned(),
            (_, Trouble::Nothing(..)) => {
                format!("known addresses remain in use for {} s", hold(plan).as_secs_f64())
            }
        };
        before.is_none().then(|| {
            let sentence = format_args!("cannot resolve {text}: {}; {stays}", trouble.text());
            Event::NameFailed.says(sentence).with("name", text)
        })
    }

    /// Notes which addresses are missing from a result.
    fn miss(&mut self, these: &[Place], plan: &DiscoveryPlan, now: Instant) {
        let is_missing = |address: &SocketAddr| these.iter().all(|place| place.address != *address);
        for (_, (_, since)) in self.addresses.iter_mut().filter(|(address, _)| is_missing(address))
        {
            since.get_or_insert(now);
        }
        self.expire(hold(plan), now);
    }

    fn expire(&mut self, hold: Duration, now: Instant) {
        self.addresses.retain(|_, (_, since)| since.is_none_or(|since| now < since + hold));
    }
}

fn hold(plan: &DiscoveryPlan) -> Duration {
    Duration::from_micros(plan.hold_us)
}

#[cfg(test)]
mod tests;
