//! One client before the limits of `shield`: finds its accounts, charges them, and decides the
//! consequences.
//!
//! Called by `guard.rs` for each connection and request that is judged.

use super::{OFFENDED, OFFERED, OFFERED_US};
use crate::context::Context;
use crate::plan::{CONNECTIONS, LimitPlan, OFFENCES, Over, ShieldPlan};
use crate::shield::bans::Offence;
use crate::shield::key::Key;
use crate::shield::limit::{Rate, Verdict, retry_after_s};
use crate::shield::table::{Charged, Entered, Name, Place, Table};
use crate::shield::tally::Outcome;

/// One client and its accounts.
pub(super) struct Suspect<'a> {
    pub(super) table: &'a Table,
    pub(super) key: Key,
    /// The account among [`CONNECTIONS`], and the other account that was used last.
    pub(super) first: Option<(Name, Option<Place>)>,
    other: Option<(u32, Name, Option<Place>)>,
    /// Where the account is that was charged last.
    last: Option<Place>,
    now: Moment,
}

/// A time, and the worker where it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    pub(super) worker: u16,
    /// Microseconds of the worker's clock.
    pub(super) us: u64,
}

impl Moment {
    /// The present turn.
    pub(super) fn of(cx: &Context) -> Moment {
        Moment { worker: cx.worker, us: cx.now_us }
    }
}

/// The result of one limit.
pub(super) enum Said {
    Passed,
    /// Over the limit; when the next one would pass, parts.
    Over(u64),
    Untracked,
}

impl From<Verdict> for Said {
    fn from(verdict: Verdict) -> Said {
        match verdict {
            Verdict::Passed => Said::Passed,
            Verdict::Over { wait } => Said::Over(wait),
        }
    }
}

impl<'a> Suspect<'a> {
    /// A client of which nothing is known, except perhaps where its account is among
    /// [`CONNECTIONS`].
    pub(super) fn new(
        table: &'a Table,
        key: Key,
        first: Option<(Name, Place)>,
        now: Moment,
    ) -> Suspect<'a> {
        let first = first.map(|(name, place)| (name, Some(place)));
        Suspect { table, key, first, other: None, last: None, now }
    }

    /// Returns the account of a group: that of `of`, or the client's.
    fn account(&self, group: u32, of: Option<Name>) -> (Name, Option<Place>) {
        match (of, self.first, self.other) {
            (Some(name), ..) => (name, None),
            (_, Some(known), _) if group == CONNECTIONS => known,
            (_, _, Some((known, name, place))) if known == group => (name, place),
            _ => (self.table.name(group, self.key), None),
        }
    }

    fn note(&mut self, group: u32, of: Option<Name>, name: Name, place: Option<Place>) {
        self.last = place.filter(|_| of.is_none());
        if of.is_some() {
            return;
        }
        if group == CONNECTIONS {
            self.first = Some((name, place));
        } else {
            self.other = Some((group, name, place));
        }
    }

    /// Charges a limit that is a rate.
    pub(super) fn charge(&mut self, limit: &LimitPlan, of: Option<Name>) -> Said {
        let Some(rate) = limit.terms.rate() else { return Said::Passed };
        let group = limit.seat.group;
        let slot = limit.seat.slot.into();
        if let Some(name) = of {
            self.last = None;
            let (verdict, is_shared) =
                limit.shared.charge(self.table, &name, slot, rate, self.now.us);
            self.note_shared(limit, is_shared);
            return verdict.into();
        }
        let (name, known) = self.account(group, of);
        let charged = self.table.charge(&name, known, slot, rate, self.now.us);
        let (place, said) = match charged {
            Charged::At(place, verdict) => (Some(place), verdict.into()),
            Charged::Untracked => (None, Said::Untracked),
        };
        self.note(group, of, name, place);
        said
    }

    /// Notes that the table had no room for a value of a request, which is counted together with
    /// others.
    fn note_shared(&self, limit: &LimitPlan, is_shared: bool) {
        if is_shared {
            limit.tally.count(self.now.worker, Outcome::Shared);
        }
    }

    /// Takes back a charge that a limit has just passed.
    pub(super) fn take_back(&mut self, limit: &LimitPlan) {
        let Some(rate) = limit.terms.rate() else { return };
        let (name, _) = self.account(limit.seat.group, None);
        self.table.take_back(&name, limit.seat.slot.into(), rate);
    }

    /// Charges a limit for something that has happened. False: the limit is exhausted.
    pub(super) fn note_one(&mut self, limit: &LimitPlan, of: Option<Name>) -> bool {
        let said = self.charge(limit, of);
        let outcome =
            if matches!(said, Said::Untracked) { Outcome::Untracked } else { Outcome::Passed };
        limit.tally.count(self.now.worker, outcome);
        matches!(said, Said::Passed)
    }

    /// Checks whether a limit that is a rate has room for one more, without charging it.
    pub(super) fn look(&mut self, limit: &LimitPlan, of: Option<Name>) -> Said {
        let Some(rate) = limit.terms.rate() else { return Said::Passed };
        if let Some(name) = of {
            self.last = None;
            return limit
                .shared
                .look(self.table, &name, limit.seat.slot.into(), rate, self.now.us)
                .into();
        }
        let (name, known) = self.account(limit.seat.group, of);
        let found = self.table.look(&name, limit.seat.slot.into(), rate, self.now.us);
        self.note(limit.seat.group, of, name, found.map(|(place, _)| place).or(known));
        match found {
            Some((_, Verdict::Over { wait })) => Said::Over(wait),
            _ => Said::Passed,
        }
    }

    /// Adds one to those that a limit counts as open. `observes`: however many they are.
    pub(super) fn enter(
        &mut self,
        limit: &LimitPlan,
        max: u32,
        observes: bool,
        of: Option<Name>,
    ) -> (Said, Option<Place>) {
        let group = limit.seat.group;
        let (name, known) = self.account(group, of);
        let most = if observes { u32::MAX } else { max };
        let mut entered = self.table.enter(&name, known, most, self.now.us);
        if entered == Entered::Untracked && of.is_some() {
            entered = self.table.enter_shared(&name, most);
            self.note_shared(limit, true);
        }
        let (said, place, is_in) = match entered {
            Entered::At(place, count) if count > max => (Said::Over(0), Some(place), true),
            Entered::At(place, _) => (Said::Passed, Some(place), true),
            Entered::Full(place) => (Said::Over(0), Some(place), false),
            Entered::Untracked => (Said::Untracked, None, false),
        };
        self.note(group, of, name, place);
        (said, place.filter(|_| is_in))
    }

    /// Applies the result of a limit. Returns for a refusal the seconds for Retry-After, and the
    /// offence if the client is to be banned for it.
    pub(super) fn judge(
        &mut self,
        limit: &LimitPlan,
        said: &Said,
        plan: &ShieldPlan,
    ) -> Option<(u32, Option<Offence>)> {
        let observes = plan.observe || limit.observe;
        let outcome = match said {
            Said::Passed => Outcome::Passed,
            Said::Untracked => Outcome::Untracked,
            Said::Over(_) if observes => Outcome::Observed,
            Said::Over(_) => Outcome::Refused,
        };
        limit.tally.count(self.now.worker, outcome);
        match (outcome, said) {
            (Outcome::Refused, Said::Over(wait)) => {
                if let Some(place) = self.last {
                    self.table.offend(place, self.key, plan.aggregate, self.now.us);
                }
                Some((retry_after_s(*wait), self.offend(limit, plan)))
            }
            _ => None,
        }
    }

    /// Charges a refusal as an offence. Returns the client if it is to be banned.
    fn offend(&self, limit: &LimitPlan, plan: &ShieldPlan) -> Option<Offence> {
        // A limit that may count other clients is no reason for a ban.
        let ban = plan.ban.as_ref().filter(|_| limit.by.has_client())?;
        let name = self.table.name(OFFENCES, self.key);
        let is_over = |slot, rate: &Rate| {
            let charged = self.table.charge(&name, None, slot, rate, self.now.us);
            matches!(charged, Charged::At(_, Verdict::Over { .. }))
        };
        let is_meant = is_over(OFFENDED, &ban.offences) || limit.over == Over::Ban;
        if !is_meant || is_over(OFFERED, &Rate::new(1, OFFERED_US, 1, false)) {
            return None;
        }
        Some(Offence {
            block: self.key.block()?,
            limit: limit.name.clone(),
            by_proxy: false,
            forwards: false,
        })
    }
}
