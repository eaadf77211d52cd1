//! Admission of connections: bans, and the limits that are checked when a client connects, after
//! the header of the PROXY protocol.
//!
//! [`judge`] is for all connections. A client that speaks TLS meets a [`Door`] before its
//! handshake; the code that runs the handshake owns the door, and `Clients::accepted` then does not
//! judge the client again. The cost of a handshake is charged before the step that does the work,
//! and taken back at once if the step did none: so of the clients admitted at the same time no more
//! than the limit complete handshakes. docs/limits.md.

use std::net::IpAddr;
use std::sync::Arc;

use super::suspect::{Moment, Said, Suspect};
use super::{Guard, Offences, key_of};
use crate::client::Unwanted;
use crate::observe::counters::Counters;
use crate::plan::{Over, Plan, ShieldPlan, Terms};
use crate::shield::bans::{BanSet, Offence};
use crate::shield::table::{Place, TableSeed};
use crate::shield::tally::Outcome;

/// A client that a [`Door`] has admitted: its place among the open ones, which is given back when
/// this is dropped.
#[derive(Debug)]
pub struct Visit {
    seed: Arc<TableSeed>,
    open: Option<Place>,
    /// A limit that only observes has counted the handshake as over the limit.
    is_observed: bool,
}

impl Visit {
    /// For a client that counts as open there.
    pub(super) fn of(seed: Arc<TableSeed>, open: Place) -> Visit {
        Visit { seed, open: Some(open), is_observed: false }
    }

    /// Leaves it to a guard of the same accounts to give the place back.
    pub(super) fn hand_over(mut self, guard: Option<&Guard>) -> Option<Place> {
        if guard.is_some_and(|guard| Arc::ptr_eq(&guard.seed, &self.seed)) {
            self.open.take()
        } else {
            None
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.open.take().into_iter().for_each(|place| self.seed.table().leave(place));
    }
}

/// See the module. Times are microseconds of the worker's clock.
#[derive(Debug)]
pub struct Door {
    plan: Arc<Plan>,
    bans: Arc<BanSet>,
    worker: u16,
    counters: Arc<Counters>,
    offences: Offences,
    /// The outcomes of the limits before the present step, by position.
    charged: Vec<(usize, Outcome)>,
}

impl Door {
    /// Creates the door of this worker, without banned clients.
    pub fn new(plan: Arc<Plan>, worker: u16, counters: Arc<Counters>) -> Door {
        let (bans, offences) = (Arc::default(), Offences::default());
        Door { plan, bans, worker, counters, offences, charged: Vec::new() }
    }

    /// Adopts a new plan.
    pub fn adopt(&mut self, plan: Arc<Plan>) {
        self.plan = plan;
    }

    /// Sets the banned clients.
    pub fn set_bans(&mut self, bans: Arc<BanSet>) {
        self.bans = bans;
    }

    /// Returns a client that is to be banned, if any.
    pub fn take_offence(&mut self) -> Option<Offence> {
        self.offences.take()
    }

    /// Decides whether a client may begin a handshake. None: it may, and no limit applies to it.
    ///
    /// # Errors
    /// It may not.
    pub fn admit(&mut self, client: IpAddr, now_us: u64) -> Result<Option<Visit>, Unwanted> {
        if self.bans.bans(client, now_us) {
            self.counters.connections_banned.increment();
            return Err(Unwanted::Reset);
        }
        let Some(shield) = applying(&self.plan, client) else { return Ok(None) };
        let now = Moment { worker: self.worker, us: now_us };
        let open = judge(shield, client, true, now, &mut self.offences, &self.counters)?;
        Ok(Some(Visit { seed: Arc::clone(&shield.seed), open, is_observed: false }))
    }

    /// A step of a handshake may do the asymmetric work, which has not happened yet.
    /// [`Door::settle`] is called next, except after an error.
    ///
    /// # Errors
    /// The handshake must not continue.
    pub fn charge(
        &mut self,
        client: IpAddr,
        visit: &mut Visit,
        now_us: u64,
    ) -> Result<(), Unwanted> {
        self.charged.clear();
        let Some(shield) = &self.plan.shield else { return Ok(()) };
        let mut suspect = self.suspect(shield, client, now_us);
        let limits = shield.limits.iter().enumerate();
        for (at, limit) in limits.filter(|(_, limit)| matches!(limit.terms, Terms::Handshakes(_))) {
            let said = suspect.charge(limit, None);
            match said {
                Said::Passed => self.charged.push((at, Outcome::Passed)),
                Said::Untracked => self.charged.push((at, Outcome::Untracked)),
                Said::Over(_) if shield.observe || limit.observe => {
                    if !std::mem::replace(&mut visit.is_observed, true) {
                        suspect.judge(limit, &said, shield);
                    }
                }
                Said::Over(_) => {
                    let offence =
                        suspect.judge(limit, &said, shield).and_then(|(_, offence)| offence);
                    self.offences.offer(offence, &self.counters);
                    return Err(limit.over.into());
                }
            }
        }
        Ok(())
    }

    /// The step is over. `worked`: it has done the work; otherwise its charges are taken back.
    pub fn settle(&mut self, client: IpAddr, worked: bool, now_us: u64) {
        let charged = std::mem::take(&mut self.charged);
        if let Some(shield) = &self.plan.shield {
            let mut suspect = self.suspect(shield, client, now_us);
            for (limit, outcome) in
                charged.iter().filter_map(|(at, outcome)| Some((shield.limits.get(*at)?, *outcome)))
            {
                if worked {
                    limit.tally.count(self.worker, outcome);
                } else if outcome == Outcome::Passed {
                    suspect.take_back(limit);
                }
            }
        }
        self.charged = charged;
        self.charged.clear();
    }

    /// A client's handshake has failed.
    pub fn failed(&mut self, client: IpAddr, now_us: u64) {
        let Some(shield) = &self.plan.shield else { return };
        let mut suspect = self.suspect(shield, client, now_us);
        for limit in
            shield.limits.iter().filter(|limit| matches!(limit.terms, Terms::HandshakesFailed(_)))
        {
            suspect.note_one(limit, None);
        }
    }

    fn suspect<'a>(&self, shield: &'a ShieldPlan, client: IpAddr, now_us: u64) -> Suspect<'a> {
        let table = shield.seed.table();
        let key = key_of(client, shield, table, now_us);
        Suspect::new(table, key, None, Moment { worker: self.worker, us: now_us })
    }
}

/// The limits that apply to a client that connects. The clients behind a trusted proxy are not
/// known yet.
pub(super) fn applying(plan: &Plan, client: IpAddr) -> Option<&ShieldPlan> {
    plan.shield.as_ref().filter(|shield| !plan.client.trusts(client) && !shield.allows(client))
}

/// Decides whether a client that has just connected may stay; returns where it counts as open, if
/// it does. `is_sealed`: it speaks TLS.
///
/// # Errors
/// The client may not stay; what to do with the connection.
pub(super) fn judge(
    shield: &ShieldPlan,
    client: IpAddr,
    is_sealed: bool,
    now: Moment,
    offences: &mut Offences,
    counters: &Counters,
) -> Result<Option<Place>, Over> {
    let table = shield.seed.table();
    let mut suspect = Suspect::new(table, key_of(client, shield, table, now.us), None, now);
    let mut open = None;
    for limit in shield.limits.iter().filter(|limit| limit.terms.is_of_connections()) {
        let observes = shield.observe || limit.observe;
        let said = match limit.terms {
            Terms::Open(max) => {
                let (said, place) = suspect.enter(limit, max, observes, None);
                open = open.or(place);
                said
            }
            Terms::Handshakes(_) | Terms::HandshakesFailed(_) if !is_sealed => continue,
            // Counted when the handshake runs.
            Terms::Handshakes(_) if observes => continue,
            // These count the past, not this connection.
            Terms::Glitches(_)
            | Terms::Timeouts(_)
            | Terms::Handshakes(_)
            | Terms::HandshakesFailed(_) => match suspect.look(limit, None) {
                Said::Passed => continue,
                said => said,
            },
            _ => suspect.charge(limit, None),
        };
        if let Some((_, offence)) = suspect.judge(limit, &said, shield) {
            open.into_iter().for_each(|place| table.leave(place));
            offences.offer(offence, counters);
            return Err(limit.over);
        }
    }
    Ok(open)
}
