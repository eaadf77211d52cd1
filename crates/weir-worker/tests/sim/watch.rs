//! Looks at what each worker does with each server in each turn: a server that is out gets nothing
//! new, backups get only requests that no other server takes, and probes don't count as requests.
//!
//! `run.rs` calls it after each turn. It is exact where nothing else could have been done: it
//! judges a turn by the facts that held from its beginning to its end. A request that is repeated
//! after a loss may go to a backup, which is another server. So repetitions are counted, and a
//! backup may have had that many.

use std::sync::Arc;

use weir_proxy::observe::report::ServerReport;
use weir_proxy::observe::server_stats::ServerStats;
use weir_proxy::plan::Pool;
use weir_proxy::upstream::server_state::State;

use super::node::Node;
use super::scenario::{Kind, Scenario};

/// One server, as one worker saw it between two turns.
#[derive(Clone, Default)]
struct Sight {
    /// Takes requests of any client.
    active: bool,
    suspended: bool,
    /// Finishes its requests, by order: those that wait for it keep waiting.
    draining: bool,
    ready: u32,
    waiting: u64,
    // Counts so far.
    requests: u64,
    closes: u64,
    trials: u64,
    recoveries: u64,
    again: u64,
}

/// What one worker saw last.
#[derive(Default)]
struct Last {
    sights: Vec<Sight>,
    rebirths: u64,
    mail: u64,
}

/// Everything that is remembered of a run.
#[derive(Default)]
pub struct Watch {
    backups: Vec<bool>,
    sessions: bool,
    /// Clients keep to their connections.
    pinned: bool,
    tries_all: bool,
    /// Servers may be down.
    killed: bool,
    last: Vec<Last>,
    /// By server: trials that have begun, but whose request was not seen yet.
    trials: Vec<u64>,
    /// Requests that were repeated, and were not seen at a backup yet.
    again: u64,
    /// At some time a worker had no server for a request.
    pub none_left: bool,
}

impl Watch {
    pub fn new(scenario: &Scenario) -> Watch {
        let upstream = &scenario.plan.upstreams[0];
        let servers = || scenario.plan.upstreams.iter().flat_map(|upstream| &upstream.servers);
        Watch {
            backups: servers().map(|server| server.backup).collect(),
            sessions: upstream.sticky.is_some(),
            pinned: upstream.pool == Pool::Pinned,
            tries_all: scenario.tries_all(),
            killed: scenario.kind == Kind::Outages,
            last: (0..scenario.workers).map(|_| Last::default()).collect(),
            trials: vec![0; servers().count()],
            ..Watch::default()
        }
    }

    /// Checks a worker after a turn.
    ///
    /// # Errors
    /// What it should not have done.
    pub fn turned(&mut self, worker: usize, node: &Node) -> Result<(), String> {
        let counters = node.counters();
        let (rebirths, mail) = (counters.rebirths.get(), counters.mail_received.get());
        let now = Last { sights: sights(node), rebirths, mail };
        let before = std::mem::replace(&mut self.last[worker], now);
        self.none_left |= self.is_none_left(worker);
        let now = &self.last[worker];
        for (server, sight) in now.sights.iter().enumerate() {
            let (trials, again) =
                before.sights.get(server).map_or((0, 0), |old| (old.trials, old.again));
            self.trials[server] += sight.trials - trials;
            self.again += sight.again - again;
        }
        if before.sights.len() != now.sights.len() || before.rebirths != now.rebirths {
            return Ok(());
        }
        let turn: Vec<Turn> =
            before.sights.into_iter().zip(now.sights.iter().cloned()).map(Turn::new).collect();
        let mailed = before.mail != now.mail;
        (0..turn.len()).try_for_each(|server| self.judge(server, &turn, mailed))
    }

    /// Checks whether a server may have got the requests that it got in a turn. `mailed`: other
    /// workers, which may know less, have chosen as well.
    fn judge(&mut self, server: usize, turn: &[Turn], mailed: bool) -> Result<(), String> {
        let Turn { old, .. } = &turn[server];
        let others = || {
            turn.iter()
                .enumerate()
                .filter(|(other, turn)| *other != server && turn.takes_requests())
        };
        let keeps_sessions = old.draining && (self.sessions || self.pinned);
        let out = turn[server].is_out() && others().next().is_some() && !keeps_sessions;
        let primary = others().any(|(other, _)| !self.backups[other]);
        let backup = self.backups[server] && primary && !self.sessions && !self.pinned && !mailed;
        if !out && !backup {
            return Ok(());
        }
        let mut unexplained = turn[server].given();
        take(&mut unexplained, &mut self.trials[server]);
        if !out {
            take(&mut unexplained, &mut self.again);
        }
        let what = if out { "out" } else { "a backup" };
        if unexplained == 0 {
            Ok(())
        } else {
            Err(format!("server {server} is {what} and got {unexplained} requests"))
        }
    }

    /// Whether a worker has no server left: each is out, or not up at all.
    fn is_none_left(&self, worker: usize) -> bool {
        let mine = &self.last[worker].sights;
        let up = |server: usize| {
            self.last.iter().any(|last| last.sights.get(server).is_some_and(|one| one.ready > 0))
        };
        let suspended = mine.iter().any(|sight| sight.suspended);
        let out = mine.iter().any(|sight| !sight.active);
        let gone = |(server, sight): (usize, &Sight)| !sight.active || self.killed && !up(server);
        out && mine.iter().enumerate().all(gone) && !(suspended && self.tries_all)
    }
}

/// One server before and after a turn.
struct Turn {
    old: Sight,
    new: Sight,
}

impl Turn {
    fn new((old, new): (Sight, Sight)) -> Turn {
        Turn { old, new }
    }

    /// It could have had every request, from the beginning to the end.
    fn takes_requests(&self) -> bool {
        self.old.active
            && self.new.active
            && self.old.ready > 0
            && self.old.closes == self.new.closes
    }

    /// It was out from the beginning to the end.
    fn is_out(&self) -> bool {
        !self.old.active && !self.new.active && self.old.recoveries == self.new.recoveries
    }

    /// Requests that it got, besides those that already waited for it.
    fn given(&self) -> u64 {
        (self.new.requests - self.old.requests).saturating_sub(self.old.waiting)
    }
}

/// Explains as many as the credit allows.
fn take(unexplained: &mut u64, credit: &mut u64) {
    let taken = (*unexplained).min(*credit);
    *unexplained -= taken;
    *credit -= taken;
}

fn sights(node: &Node) -> Vec<Sight> {
    let report = node.engine().report();
    let one = |(server, stats): (&ServerReport, &Arc<ServerStats>)| Sight {
        active: server.standing == State::Active,
        suspended: matches!(server.standing, State::Suspended(_)),
        draining: server.standing == State::Draining,
        ready: server.ready,
        waiting: u64::from(server.waiting),
        requests: stats.requests.get(),
        closes: stats.closes.sum(),
        trials: stats.trials.get(),
        recoveries: stats.recoveries.get(),
        again: stats.retries.get() + stats.moves.get() + stats.resends.get() + stats.escapes.get(),
    };
    report.servers.iter().zip(node.servers()).map(one).collect()
}
