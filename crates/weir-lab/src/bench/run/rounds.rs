//! All rounds of an experiment: the contenders of a cell, in which order, for how long.
//!
//! Called by `bench/mod.rs` once a run. `stage.rs` starts the contenders; `load.rs`, `memory.rs`,
//! `failover.rs`, `keepalive.rs`, `block.rs`, `bans.rs`, `tunnel.rs`, `wan.rs`, `pep.rs`,
//! `cache.rs`, `cache_events.rs`, `cache_restart.rs`, `ladder.rs`, `taken.rs`, `reload.rs` and
//! `mixed.rs` make one run each. Bounds: the rounds and seconds of the experiment or of the
//! options.

use std::io;
use std::sync::atomic::Ordering;

use super::kept::Kept;
use super::load::{self, Times};
use super::programs::Programs;
use super::stage::{Running, Stage};
use super::sweep::Sweeps;
use super::{
    bans, block, cache, cache_events, cache_restart, failover, flood, handshakes, keepalive,
    ladder, memory, mixed, pep, reload, stalled, taken, tunnel, wan,
};
use crate::bench::experiment::cache::CacheLoad;
use crate::bench::experiment::catalogue::Experiment;
use crate::bench::experiment::cells::{Cell, Closed, Load, Origin, RequestKind, SMALL};
use crate::bench::experiment::contenders::{Contender, contender};
use crate::bench::experiment::metric::Metric;
use crate::bench::experiment::mixed::Mixed;
use crate::bench::experiment::pep::{FAR_RATE, Pace, Pep};
use crate::bench::experiment::pep_cells;
use crate::bench::experiment::selection::{BenchOptions, unknown};
use crate::bench::experiment::targets;
use crate::bench::experiment::tunnel::Tunnels;
use crate::bench::experiment::wan::Object;
use crate::bench::record::outcome::Record;
use crate::bench::record::setting::Setting;
use crate::bench::record::statistics::median;

/// The name under which the origin's settings are kept.
const ORIGIN: &str = "origin";

/// The results of an experiment.
#[derive(Default)]
pub(crate) struct Measured {
    /// In the order in which they were made.
    pub(crate) records: Vec<Record>,
    /// What each weir says when it starts, by contender.
    pub(crate) said: Vec<(String, String)>,
    /// How all were started and configured.
    pub(crate) settings: Vec<Setting>,
    /// The settings that rivals got by a sweep.
    pub(crate) sweeps: Sweeps,
    /// Where the user stopped it; `records` has everything that was complete by then.
    pub(crate) stopped: Option<String>,
}

/// Runs all rounds of these cells. `keep` gets each record as soon as it is there.
///
/// # Errors
/// A program doesn't start, a run fails, or `keep` does.
pub(crate) fn rounds(
    experiment: &'static Experiment,
    options: &BenchOptions,
    cells: &[Cell],
    keep: &mut Keep<'_>,
) -> io::Result<Measured> {
    let measured = Measured::default();
    let kept = Kept::new(experiment, options)?;
    let mut rounds = Rounds { experiment, options, cells, stage: None, kept, measured, keep };
    for cell in cells {
        match rounds.measure(cell) {
            // The user's signal reaches the programs as well, so the error of such a program is
            // meaningless.
            Err(_) if load::interrupted().load(Ordering::Relaxed) => {
                rounds.measured.stopped = Some(cell.name.clone());
                break;
            }
            outcome => outcome?,
        }
    }
    Ok(rounds.measured)
}

/// The function that records and shows a record.
type Keep<'a> = dyn FnMut(&Cell, &Record) -> io::Result<()> + 'a;

/// The state of a whole run.
struct Rounds<'a> {
    experiment: &'static Experiment,
    options: &'a BenchOptions,
    cells: &'a [Cell],
    /// The stage of the last cell, and whether its origin was weir's.
    stage: Option<(Stage, bool)>,
    kept: Kept,
    measured: Measured,
    keep: &'a mut Keep<'a>,
}

impl Rounds<'_> {
    /// Runs all rounds of one cell. The contenders run side by side all the time, one of them with
    /// load.
    fn measure(&mut self, cell: &Cell) -> io::Result<()> {
        eprintln!("{}: {}", cell.name, cell.title);
        let origin_is_weir = self.options.weir_origin || cell.origin != Origin::Usual;
        // One stage at a time, and the same one as long as it is suitable.
        let stage = match self.stage.take().filter(|(_, is_weir)| *is_weir == origin_is_weir) {
            Some((stage, _)) => stage,
            None => {
                let programs = Programs::new(&self.options.programs);
                Stage::open(&self.options.weir, programs, origin_is_weir, &bodies(self.cells))?
            }
        };
        let outcome = self.measure_on(&stage, cell);
        self.kept.cell(stage.directory(), cell)?;
        self.stage = Some((stage, origin_is_weir));
        outcome
    }

    fn measure_on(&mut self, stage: &Stage, cell: &Cell) -> io::Result<()> {
        let contenders = self.startable(stage, cell)?;
        let mut running = Vec::new();
        if !cell.load.is_fresh() {
            let mut tunings = Vec::new();
            for contender in &contenders {
                let times = (self.sweep_times(cell), self.options.quick);
                tunings.push(self.measured.sweeps.choose(stage, cell, *contender, times)?);
            }
            for (contender, tuning) in contenders.iter().zip(tunings) {
                running.push(stage.start_tuned(*contender, cell, tuning)?);
            }
        }
        let rate = self.fixed_rate(stage, cell)?;
        for round in 1..=self.rounds(cell) {
            let complete = self.measured.records.len();
            for at in turns(contenders.len(), round, !running.is_empty()) {
                let contender = &contenders[at];
                if let Err(error) =
                    self.take_turn(stage, cell, (*contender, running.get(at)), (round, rate))
                {
                    // A round in which not all had their turn compares nothing.
                    self.measured.records.truncate(complete);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Does a contender's run in a round; the contender is started for that unless it runs already.
    fn take_turn(
        &mut self,
        stage: &Stage,
        cell: &Cell,
        (contender, running): (Contender, Option<&Running>),
        (round, rate): (u32, f64),
    ) -> io::Result<()> {
        let (started, mut record);
        let one = if let Some((one, on_its_own)) =
            self.run_on_its_own(stage, cell, contender, (round, rate))?
        {
            record = on_its_own;
            started = one;
            &started
        } else {
            let one = match running {
                Some(one) => one,
                None => {
                    started = stage.start(contender, cell)?;
                    &started
                }
            };
            record = self.run_once(stage, cell, one, rate)?;
            load::settle(one)?;
            one
        };
        self.listen_to(stage, cell, contender, one);
        let same = |other: &&Record| other.cell == cell.name && other.round == round;
        let routed = self
            .measured
            .records
            .iter()
            .filter(same)
            .find(|other| other.contender == pep_cells::ROUTED);
        pep::compare(&mut record, routed);
        self.kept.run(stage.directory(), cell, contender, round)?;
        self.keep(cell, contender.name, round, record)
    }

    /// Does a run of a load that starts servers and proxy itself.
    fn run_on_its_own(
        &self,
        stage: &Stage,
        cell: &Cell,
        contender: Contender,
        (round, rate): (u32, f64),
    ) -> io::Result<Option<(Running, Record)>> {
        let seconds = |quick| {
            let usual = if self.options.quick { quick } else { self.experiment.seconds };
            self.options.seconds.unwrap_or(usual)
        };
        match cell.load {
            Load::Failover(fault) => failover::run(stage, contender, fault, seconds(6)).map(Some),
            Load::Block(attack) => block::run(stage, contender, attack, seconds(1)).map(Some),
            Load::BanMemory => bans::memory(stage, contender).map(Some),
            Load::Recovery => bans::recovery(stage, contender).map(Some),
            Load::Probe(probing) => keepalive::run(stage, contender, probing, seconds(4)).map(Some),
            Load::Handshakes => handshakes::run(stage, contender, self.times(1)).map(Some),
            Load::Tunnel(tunnels) => tunnel::run(stage, contender, tunnels, seconds(2)).map(Some),
            Load::Pep(load) => pep::run(stage, contender, load, (rate, self.times(1))).map(Some),
            Load::Cache(load) => of_cache(stage, contender, load, &seconds).map(Some),
            Load::Ladder(load) => {
                ladder::run(stage, contender, load, (round, seconds(2))).map(Some)
            }
            Load::Reload => reload::run(stage, contender, seconds(4)).map(Some),
            Load::Taken => taken::run(stage, contender, (round, seconds(4))).map(Some),
            Load::Mixed(load) => {
                mixed::run(stage, contender, load, self.mixed_times(load)).map(Some)
            }
            // One large object takes a while, and small ones are many.
            Load::Wan(link) => {
                let quick = if link.object == Object::Large { 6 } else { 3 };
                wan::run(stage, contender, link, (round, seconds(quick))).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Returns the contenders that can take part here; a record says why the others can't.
    fn startable(&mut self, stage: &Stage, cell: &Cell) -> io::Result<Vec<Contender>> {
        let mut startable = Vec::new();
        for contender in self.contenders(cell) {
            let own = || pep::obstacle(stage, contender, cell).or_else(|| taken::obstacle(cell));
            match stage.obstacle(contender, cell).or_else(own) {
                None => startable.push(contender),
                Some(why) => self.keep(
                    cell,
                    contender.name,
                    1,
                    Record { not_run: Some(why), ..Record::default() },
                )?,
            }
        }
        Ok(startable)
    }

    /// Remembers what a contender says of itself, and how it and its origin are configured.
    fn listen_to(&mut self, stage: &Stage, cell: &Cell, contender: Contender, running: &Running) {
        let said = &mut self.measured.said;
        if !said.iter().any(|(name, _)| name == contender.name)
            && let Some(line) = running.says()
        {
            said.push((contender.name.to_owned(), line));
        }
        self.note(cell, ORIGIN, || stage.origin_settings());
        self.note(cell, contender.name, || running.settings());
    }

    /// Remembers how something is configured in a cell. A setting that is the same as in another
    /// cell is kept once.
    fn note(&mut self, cell: &Cell, of: &str, look: impl FnOnce() -> Setting) {
        let settings = &mut self.measured.settings;
        if settings.iter().any(|known| known.of == of && known.cells.contains(&cell.name)) {
            return;
        }
        let setting = Setting { of: of.to_owned(), cells: vec![cell.name.clone()], ..look() };
        match settings.iter_mut().find(|known| known.is_like(&setting)) {
            Some(known) => known.cells.push(cell.name.clone()),
            // A contender without a proxy, or whose generator is measured, has nothing to
            // configure.
            None if setting.commands.is_empty() => {}
            None => settings.push(setting),
        }
    }

    /// Returns the contenders: those that were named, or in a quick run those that targets need, or
    /// all.
    fn contenders(&self, cell: &Cell) -> Vec<Contender> {
        let named = &self.options.contenders;
        let targets = self.experiment.targets;
        // These figures are meaningful only beside the other programs' workers, and do not take
        // long.
        let is_even = matches!(cell.load, Load::Ladder(_) | Load::Taken | Load::Reload);
        let only_targets =
            self.options.quick && !is_even && targets.iter().any(|target| target.cell == cell.name);
        let wanted = |name: &str| match (named.is_empty(), only_targets) {
            (false, _) => named.iter().any(|one| one == name),
            (true, true) => targets::is_needed(targets, &cell.name, name),
            (true, false) => true,
        };
        // Others are compared with it.
        let is_base = |name: &str| matches!(cell.load, Load::Pep(_)) && name == pep_cells::ROUTED;
        cell.contenders
            .iter()
            .filter(|name| wanted(name) || is_base(name))
            .filter_map(|name| contender(name))
            .collect()
    }

    fn rounds(&self, cell: &Cell) -> u32 {
        let is_short = cell.load.is_fresh()
            && !matches!(
                cell.load,
                Load::Tunnel(Tunnels::Full(_))
                    | Load::Block(_)
                    | Load::Wan(_)
                    | Load::Pep(_)
                    | Load::Taken
            );
        let usual = match (self.options.quick, is_short) {
            _ if cell.load.is_once() => 1,
            (false, false) => self.experiment.rounds,
            (false, true) => 3,
            (true, false) => {
                if matches!(cell.load, Load::Block(_)) {
                    2
                } else {
                    3
                }
            }
            // Memory hardly varies between rounds: once is enough when time is short.
            (true, true) => 1,
        };
        self.options.rounds.unwrap_or(usual)
    }

    fn times(&self, connections: u32) -> Times {
        let quick = if connections >= 1000 { 2 } else { 1 };
        let seconds = self.options.seconds.unwrap_or(if self.options.quick {
            quick
        } else {
            self.experiment.seconds
        });
        // Thousands of connections have to be made first, each with one to the server behind it.
        let connecting =
            f64::from(connections) / if connections > 10_000 { 4_000.0 } else { 10_000.0 };
        let warm_up = if self.options.quick { 0.3 } else { 1.0 } + connecting;
        Times { warm_up, seconds: f64::from(seconds) }
    }

    /// Returns the times of a run with several kinds of requests: proxies learn in the warm-up
    /// which of them are slow.
    fn mixed_times(&self, load: Mixed) -> Times {
        let warm_up = if self.options.quick { 1.0 } else { 3.0 };
        Times { warm_up, ..self.times(load.connections()) }
    }

    /// Returns the times of each run of a sweep: shorter than those that count.
    fn sweep_times(&self, cell: &Cell) -> Times {
        let Times { warm_up, seconds } = self.times(cell.load.connections());
        let most = if self.options.quick { 1.0 } else { 2.0 };
        // All connections have to be there before anything counts.
        Times { warm_up, seconds: seconds.min(most) }
    }

    /// Returns half of what nginx reached in the named cell; measured now when that cell wasn't
    /// part of this run.
    fn fixed_rate(&self, stage: &Stage, cell: &Cell) -> io::Result<f64> {
        if let Load::Pep(load @ Pep { pace: Pace::Half, .. }) = cell.load {
            return self.half_of_rival(stage, cell, load);
        }
        if let Load::Pep(Pep { pace: Pace::Seldom, .. }) = cell.load {
            return Ok(f64::from(FAR_RATE));
        }
        let Load::HalfOfNginx { of, connections } = cell.load else { return Ok(0.0) };
        let known = self
            .measured
            .records
            .iter()
            .filter(|record| record.cell == of && record.contender == "nginx");
        let rates: Vec<f64> = known.map(|record| record.figure(Metric::Rate)).collect();
        if !rates.is_empty() {
            return Ok(median(rates) / 2.0);
        }
        let nginx =
            contender("nginx").ok_or_else(|| unknown(self.experiment, "contender", "nginx"))?;
        let running = stage.start(nginx, cell)?;
        let load = Closed { connections, body: 3, kind: RequestKind::Minimal };
        Ok(load::closed(stage, &running, load, Times { warm_up: 1.0, seconds: 3.0 })?.rate / 2.0)
    }

    /// Returns half of what HAProxy reached through a router in a closed loop, or a quarter of what
    /// got through where it can't take part; measured now when that wasn't part of this run.
    fn half_of_rival(&self, stage: &Stage, cell: &Cell, load: Pep) -> io::Result<f64> {
        let named =
            |name| contender(name).ok_or_else(|| unknown(self.experiment, "contender", name));
        let (rival, routed) = (named(pep_cells::rival(load))?, named(pep_cells::ROUTED)?);
        let has_rival =
            stage.obstacle(rival, cell).or_else(|| pep::obstacle(stage, rival, cell)).is_none();
        let (who, share) = if has_rival { (rival, 0.5) } else { (routed, 0.25) };
        let (name, closed) = pep_cells::closed(load);
        let known = self
            .measured
            .records
            .iter()
            .filter(|record| record.cell == name && record.contender == who.name);
        let rates: Vec<f64> = known.map(|record| record.figure(Metric::Rate)).collect();
        if !rates.is_empty() {
            return Ok(median(rates) * share);
        }
        let (_, record) =
            pep::run(stage, who, closed, (0.0, Times { warm_up: 0.5, seconds: 2.0 }))?;
        Ok(record.rate * share)
    }

    fn run_once(
        &self,
        stage: &Stage,
        cell: &Cell,
        running: &Running,
        rate: f64,
    ) -> io::Result<Record> {
        let times = self.times(cell.load.connections());
        match cell.load {
            Load::Closed(closed) => load::closed(stage, running, closed, times),
            Load::HalfOfNginx { connections, .. } => {
                load::open(stage, running, connections, (rate, SMALL), times)
            }
            Load::Fixed { connections, rate, path } => {
                load::open(stage, running, connections, (f64::from(rate), path), times)
            }
            Load::Flood { connections, rate } => {
                flood::run(stage, running, (connections, rate), times)
            }
            Load::Stalled(stalling) => stalled::run(stage, running, stalling, times),
            Load::Stall => load::stall(stage, running),
            Load::Idle(connections) => memory::idle(running, connections),
            Load::Failover(_)
            | Load::Probe(_)
            | Load::Handshakes
            | Load::Tunnel(_)
            | Load::Block(_)
            | Load::Wan(_)
            | Load::Pep(_)
            | Load::Ladder(_)
            | Load::Taken
            | Load::Reload
            | Load::Cache(_)
            | Load::Mixed(_)
            | Load::BanMemory
            | Load::Recovery => Err(io::Error::other("such a run starts everything itself")),
            Load::Slow { clients, body } => {
                let seconds = if self.options.quick { 3.0 } else { 8.0 };
                memory::slow(running, clients, &stage.path(body), seconds)
            }
        }
    }

    fn keep(
        &mut self,
        cell: &Cell,
        contender: &str,
        round: u32,
        mut record: Record,
    ) -> io::Result<()> {
        record.cell = cell.name.clone();
        record.contender = contender.to_owned();
        record.round = round;
        (self.keep)(cell, &record)?;
        self.measured.records.push(record);
        Ok(())
    }
}

/// Does a run of a load that starts a fresh cache.
fn of_cache(
    stage: &Stage,
    contender: Contender,
    load: CacheLoad,
    seconds: &dyn Fn(u32) -> u32,
) -> io::Result<(Running, Record)> {
    match load {
        CacheLoad::Herd(herd) => cache::herd(stage, contender, herd),
        CacheLoad::Zipf(zipf) => cache::zipf(stage, contender, zipf, seconds(3)),
        CacheLoad::Purge(purge) => cache_events::purge(stage, contender, purge, seconds(2)),
        CacheLoad::Stale(stale) => cache_events::stale(stage, contender, stale, seconds(2)),
        CacheLoad::Slow(slow) => cache_events::slow(stage, contender, slow, seconds(2)),
        CacheLoad::Restart(restart) => cache_restart::restart(stage, contender, restart),
    }
}

/// Returns the order of a round's turns, as indices of the contenders. Two contenders that run side
/// by side swap places in each round (A B B A). So a drift of the machine, or an after-effect of
/// the previous run, affects both equally.
fn turns(contenders: usize, round: u32, side_by_side: bool) -> Vec<usize> {
    let mut turns: Vec<usize> = (0..contenders).collect();
    if contenders == 2 && side_by_side && round.is_multiple_of(2) {
        turns.reverse();
    }
    turns
}

/// Returns the lengths of all bodies that are requested.
fn bodies(cells: &[Cell]) -> Vec<u64> {
    let bodies = cells.iter().filter_map(|cell| match cell.load {
        Load::Closed(Closed { body, .. }) | Load::Slow { body, .. } => Some(body),
        Load::Stalled(stalling) => Some(stalling.body),
        _ => None,
    });
    bodies.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_that_run_side_by_side_change_places_in_each_round() {
        let order = |contenders, side_by_side| {
            (1..=4).flat_map(move |round| turns(contenders, round, side_by_side))
        };
        assert_eq!(order(2, true).collect::<Vec<_>>(), [0, 1, 1, 0, 0, 1, 1, 0]);
        assert_eq!(
            order(2, false).collect::<Vec<_>>(),
            [0, 1, 0, 1, 0, 1, 0, 1],
            "the base line goes first"
        );
        assert_eq!(turns(3, 2, true), [0, 1, 2]);
    }
}
