//! Gives all workers another plan, in two steps: first each worker learns the new servers, then
//! what leads to them. So no mail between workers refers to a server that its reader does not know.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use weir_proxy::observe::server_stats::ServerStats;
use weir_proxy::plan::{ListenerPlan, Location, Plan};
use weir_worker::{Adoption, Command, Handle, ServerSeals, WorkerReport};

use super::listeners::Opened;
use super::{Desk, listeners};
use crate::certificates::{Renewed, Watcher};
use crate::failure::Failure;
use crate::log::Event;
use crate::run::{key_shield, open_cache, set_rights};
use crate::side::Registry;
use crate::spreading::Spreading;
use crate::verdicts::Verdicts;

/// How long a worker may take to adopt a plan.
const PATIENCE: Duration = Duration::from_secs(10);

/// The workers, and what they have besides the plan.
pub(crate) struct Workers {
    handle: Handle,
    /// Room for servers, including those that are gone.
    slots_max: usize,
    seals: ServerSeals,
    watcher: Watcher,
    users: Registry,
    spreading: Spreading,
    verdicts: Verdicts,
    /// Slots of removed servers that were empty in the last reports of the workers.
    vacant: BTreeSet<usize>,
}

impl Workers {
    /// For a weir that has just started with room for this many servers.
    pub(crate) fn new(
        handle: Handle,
        slots_max: usize,
        seals: ServerSeals,
        watcher: Watcher,
        users: Registry,
    ) -> Workers {
        let (spreading, verdicts, vacant) =
            (Spreading::default(), Verdicts::default(), BTreeSet::new());
        Workers { handle, slots_max, seals, watcher, users, spreading, verdicts, vacant }
    }

    /// Adds how new connections are spread.
    pub(crate) fn with_spreading(self, spreading: Spreading) -> Workers {
        Workers { spreading, ..self }
    }

    /// Adds the kept verdicts on servers.
    pub(crate) fn with_verdicts(self, verdicts: Verdicts) -> Workers {
        Workers { verdicts, ..self }
    }

    /// Returns the handle of the workers.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Has the files of certificates and of users checked; returns when their changes are in force.
    pub(super) fn look_at_files(&self) {
        self.watcher.look();
        self.users.look();
    }

    /// Returns the plan that follows another. A slot goes to a new server only if it was empty
    /// after the previous plan, and is empty now. So no mail that refers to the old server can be
    /// under way.
    pub(super) fn merged(&self, plan: &Plan, mut wanted: Plan) -> Result<Plan, Failure> {
        if plan.shield.is_none() {
            key_shield(&mut wanted)?;
        }
        if plan.cache.is_none() {
            open_cache(&mut wanted, self.handle.views().len())?;
        }
        let mut vacant = BTreeSet::new();
        if !self.vacant.is_empty() {
            vacant.extend(vacated(plan, &self.handle.enquire(PATIENCE)).intersection(&self.vacant));
        }
        let lost = if plan.temporary().is_empty() {
            ""
        } else {
            ", which loses temporary servers: add them again"
        };
        let needs_restart =
            |full| Failure::Configuration(format!("weir: {full}\n  help: restart weir{lost}\n"));
        plan.merged(wanted, self.slots_max, &vacant).map_err(needs_restart)
    }

    /// Puts a plan in force in all workers. Then the desk has the plan that they have, or will have
    /// soon.
    pub(super) fn hand_over(&mut self, desk: &Desk, next: Plan) -> Result<(), Failure> {
        let (current, addresses) = {
            let state = desk.lock();
            (state.current.clone(), state.told.listeners.clone())
        };
        let (old, servers) = (&current.plan, counted(&current.servers, &current.plan, &next));
        let mut renewed =
            Watcher::renewed(&old.listeners, &next.listeners).map_err(Failure::Configuration)?;
        let (workers, speech) = (self.handle.views().len(), std::mem::take(&mut renewed.speech));
        let opened = listeners::open(&old.listeners, &addresses, &next.listeners, workers, speech)?;
        let given: Vec<usize> =
            (0..old.servers()).filter(|slot| old.is_given_away(*slot, &next)).collect();
        let mut seals = self.seals.clone();
        seals.resize(old.servers(), None);
        self.seals = self.watcher.seals(&next, seals, &given).map_err(Failure::Configuration)?;
        self.users.follow(old, &next, &self.handle)?;
        if next.servers() > old.servers()
            || !given.is_empty()
            || next
                .upstreams
                .iter()
                .zip(&old.upstreams)
                .any(|(new, old)| old.is_retired() && !new.is_retired())
        {
            self.tell(desk, &Arc::new(old.widened(&next)), &servers, None)?;
        }
        let next = Arc::new(next);
        let told = self.tell(desk, &next, &servers, Some((opened, renewed)));
        // A plan that was not put in force changes nothing; a slow worker does not prevent that it
        // is in force.
        if Arc::ptr_eq(&desk.lock().current.plan, &next) {
            self.set_rights(old, &next);
            match (&next.cache, &old.cache) {
                (Some(cache), _) => cache.resize(),
                (None, Some(cache)) => cache.forget(),
                (None, None) => {}
            }
        }
        told
    }

    /// Sets the rights of unix sockets that remain.
    fn set_rights(&self, old: &Plan, next: &Plan) {
        let rights = |plan: &ListenerPlan| (plan.mode, plan.group);
        let before: HashMap<_, _> =
            old.listeners.iter().rev().map(|plan| (&plan.address, rights(plan))).collect();
        let is_changed = |plan: &&ListenerPlan| {
            before.get(&plan.address).is_some_and(|before| *before != rights(plan))
        };
        set_rights(&self.handle, next.listeners.iter().filter(is_changed));
    }

    /// Does one step: returns when all workers have adopted the plan.
    fn tell(
        &mut self,
        desk: &Desk,
        plan: &Arc<Plan>,
        servers: &[Vec<Arc<ServerStats>>],
        listeners: Option<(Opened, Renewed)>,
    ) -> Result<(), Failure> {
        let failed = |why: &str| Failure::Running(format!("weir: {why}\n"));
        if self.handle.is_ending() {
            return Err(failed("this weir is shutting down"));
        }
        let server_seals = self.seals.clone();
        let before = Arc::clone(&desk.lock().current.plan);
        let is_new = |slot| slot >= before.servers() || before.is_given_away(slot, plan);
        let adoption = Adoption::new(Arc::clone(plan), servers.to_vec(), server_seals);
        let adoption = adoption.with_verdicts(self.verdicts.of(plan, is_new));
        let (mut listeners, renewed) = listeners.unzip();
        let files = listeners.as_mut().map(|opened: &mut Opened| std::mem::take(&mut opened.files));
        let spread = listeners.as_mut().map(|opened| {
            let before: Vec<_> = opened.changes.iter().map(|change| change.before).collect();
            (before, std::mem::take(&mut opened.ports))
        });
        let (changes, addresses) =
            listeners.map(|opened| (opened.changes, opened.addresses)).unzip();
        let adoption = Arc::new(adoption.with_listeners(changes));
        let told = self.handle.command(&Command::Adopt(Arc::clone(&adoption)));
        told.map_err(|weir_worker::Busy| {
            failed("the workers still have too many pending commands; try again")
        })?;
        let before = spread.map(|(before, ports)| {
            self.spreading.follow(&before, ports, self.handle.views().len());
            before
        });
        if let Some(files) = files {
            // A removed unix socket gets no new clients; those that have connected to it are
            // accepted.
            let paths: HashSet<_> = plan.listeners.iter().map(|at| &at.address).collect();
            let stays = |path: &Path| paths.contains(&Location::Unix(path.into()));
            self.handle.remove_files(stays);
            self.handle.keep_files(files);
        }
        desk.set_current(Arc::clone(plan), servers.to_vec(), addresses);
        if let Some(renewed) = renewed {
            self.watcher.take_over(renewed);
        }
        let reports = self.handle.enquire(PATIENCE);
        self.vacant = vacated(plan, &reports);
        let silent = reports.iter().position(Option::is_none);
        let failed_listeners = adoption.take_failed();
        if let Some(before) = before.filter(|_| !failed_listeners.is_empty()) {
            self.spreading.incomplete(&before);
        }
        for error in failed_listeners {
            Event::ListenerIncomplete
                .says("a worker cannot accept on a listener, but the others can")
                .with("error", error)
                .log();
        }
        silent.map_or(Ok(()), |worker| {
            let text = format!(
                "worker {worker} did not apply the change within {} s; try again",
                PATIENCE.as_secs()
            );
            Err(failed(&text))
        })
    }
}

/// Returns slots of removed servers that are empty in all workers.
fn vacated(plan: &Plan, reports: &[Option<Arc<WorkerReport>>]) -> BTreeSet<usize> {
    let is_left = |slot: usize, report: &Option<Arc<WorkerReport>>| {
        let server = report.as_ref().and_then(|report| report.machines.servers.get(slot));
        server.is_some_and(|server| server.vacant)
    };
    let slots = (0..plan.servers()).filter(|slot| plan.is_retired(*slot));
    slots.filter(|slot| reports.iter().all(|report| is_left(*slot, report))).collect()
}

/// Returns the counters of each server of the next plan, by worker. A server that takes over
/// another's name keeps its counters; one that gets another's slot starts with new ones.
fn counted(now: &[Vec<Arc<ServerStats>>], old: &Plan, next: &Plan) -> Vec<Vec<Arc<ServerStats>>> {
    let mut all = now.to_vec();
    for slot in (0..old.servers()).filter(|slot| old.is_given_away(*slot, next)) {
        all.iter_mut().for_each(|servers| servers[slot] = Arc::default());
    }
    let predecessors = next.predecessors();
    for before in predecessors.iter().copied().skip(old.servers()) {
        for servers in &mut all {
            let stats = before.and_then(|before| servers.get(before)).cloned().unwrap_or_default();
            servers.push(stats);
        }
    }
    all
}
