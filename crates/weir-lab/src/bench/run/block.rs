//! Attackers and users of a contender that limits its clients: what each gets, and what the attack
//! costs.
//!
//! Called by `rounds.rs`. A run has separate namespaces, an origin and a proxy, and two generators
//! on one core. The generator of users sends requests by the clock all the time, that of attackers
//! from the middle on. So users with and without attackers are the same connections of the same
//! minute. Users represent other machines than those of attackers: their generator goes first
//! wherever both have something to do, so that it measures the proxy. Attackers are classes of
//! `weir bomb`, one for each address. Bound: everything ends with the run.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::block_settings;
use super::load::{Bound, latency, pause};
use super::nets::{self, Nets, PROXY, Side};
use super::process::{self, CoreTicks, Machine, Process, bound_command};
use super::stage::{Running, Stage};
use crate::bench::experiment::block::{
    ATTACKERS, Attack, BURST, CONNECT_TIMEOUT_MS, Limiting, Program, RATE, USERS,
};
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::record::answers::Latency;
use crate::bench::record::block::{Blocked, Core, Moment};
use crate::bench::record::outcome::Record;
use crate::bomb::{self, Connect, Counts, Outcome, Percentiles, Slice, Summary};

/// Where the origin listens, in the proxy's namespace.
pub(super) const ORIGIN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
/// Before anything counts: users connect.
const WARM_UP: Duration = Duration::from_secs(1);
/// Margin at both ends of a window in which the core is watched: clocks of harness and generator
/// differ by the start of a process.
const MARGIN: Duration = Duration::from_millis(200);
/// The class of users.
const USERS_CLASS: &str = "users";
/// Requests after which attackers of [`Attack::Requests`] give up a connection: none. Specified
/// nevertheless, so that they make one when a request is due.
const NEVER: u32 = 1_000_000_000;

/// Does one run: users alone for this many seconds, then as long beside attackers.
///
/// # Errors
/// Something can't be started, the generator fails, or the user interrupts.
pub(super) fn run(
    stage: &Stage,
    contender: Contender,
    attack: Attack,
    seconds: u32,
) -> io::Result<(Running, Record)> {
    let (_, limiting) = set(contender)?;
    let nets = Nets::make(stage.directory())?;
    let origin = start_origin(stage, &nets)?;
    if let Some(limiting) = limiting.filter(|limiting| !limiting.packets.is_empty()) {
        let addresses: Vec<String> =
            (0..ATTACKERS).map(|nth| nets::attacker(nth).to_string()).collect();
        nets.filter(Side::Proxy, &limiting.packets.replace("@addresses", &addresses.join(", ")))?;
    }
    let proxy = start_proxy(stage, &nets, contender, Keeping::default())?;
    let mut users =
        Bombing::start(stage, &nets, "bomb.jsonl", (seconds, vec![users_class(attack)]))?;
    let mut attackers =
        Bombing::start(stage, &nets, ATTACKERS_OUT, (seconds, attacker_classes(attack, seconds)))?;
    let phase = Duration::from_secs(u64::from(seconds));
    let begin = Instant::now() + WARM_UP;
    let cores = (nets.cores.proxy, nets.cores.clients);
    let watch = |from: Duration| watch(&proxy, cores, begin + from, phase);
    let (alone_core, _) = watch(Duration::ZERO)?;
    let machine = Machine::now();
    let (begun, proxy_us) = (Instant::now(), process::cpu_us(&proxy.family()));
    let (attacked_core, generator_busy) = watch(phase)?;
    let (idle, stolen) = Machine::now().shares_since(machine);
    let mut record = Record {
        wall_us: begun.elapsed().as_micros() as f64,
        proxy_us: process::cpu_us(&proxy.family()).saturating_sub(proxy_us) as f64,
        pss_bytes: process::pss_bytes(&proxy.family()),
        idle,
        stolen,
        ..Record::default()
    };
    record.special.generator = format!("{}\n$ {}", users.command_line(), attackers.command_line());
    let (users, attackers) = (users.finish()?, attackers.finish()?);
    let refuses = attack.is_paced() && limiting.is_some_and(|limiting| limiting.refuses);
    let blocked = fill(&mut record, (&users, &attackers), (attack, refuses), seconds)?;
    record.special.blocked = Some(Blocked { alone_core, attacked_core, generator_busy, ..blocked });
    Ok((Running::of((proxy, PROXY), (origin, ORIGIN)), record))
}

/// weir's origin, on the proxy's side.
///
/// # Errors
/// It can't be started.
pub(super) fn start_origin(stage: &Stage, nets: &Nets) -> io::Result<Process> {
    let words = ["origin", "--listen", &ORIGIN.to_string(), "--threads", "1"];
    let log = stage.scratch("block-origin.log");
    let mut origin = nets.start((Side::Proxy, nets.cores.origin), stage.weir(), &words, &log)?;
    nets.await_listening(Side::Proxy, &mut origin, ORIGIN)?;
    Ok(origin)
}

/// What a weir has besides its limits. Default: neither.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Keeping<'a> {
    /// Where its admin socket is.
    pub(super) admin: Option<&'a Path>,
    /// Where its bans are kept.
    pub(super) state: Option<&'a Path>,
}

/// Returns the program of a contender, and its limit.
fn set(contender: Contender) -> io::Result<(Program, Option<Limiting>)> {
    match contender.what {
        What::Weir(_) => Ok((Program::Weir, None)),
        What::Nginx => Ok((Program::Nginx, None)),
        What::Haproxy => Ok((Program::Haproxy, None)),
        What::Limiting(limiting) => Ok((limiting.program, Some(limiting))),
        _ => Err(io::Error::other(format!("{} can't be attacked", contender.name))),
    }
}

/// Starts the contender and returns it when it listens.
///
/// # Errors
/// It can't be started, or is not a contender of the experiment.
pub(super) fn start_proxy(
    stage: &Stage,
    nets: &Nets,
    contender: Contender,
    keeping: Keeping<'_>,
) -> io::Result<Process> {
    let (program, limiting) = set(contender)?;
    let directory = stage.directory();
    let text =
        block_settings::text(program, limiting, (PROXY, ORIGIN), (directory, stage.descriptors()));
    let text = keeping.state.map_or(text.clone(), |path| block_settings::with_state(&text, path));
    let ending = if program == Program::Weir { "kdl" } else { "conf" };
    let file = stage.scratch(&format!("{}.{ending}", contender.name));
    fs::write(&file, text)?;
    let (file, directory) = (file.to_string_lossy(), directory.to_string_lossy());
    let admin = keeping.admin.map_or("off".into(), Path::to_string_lossy);
    let installed = |name: &str| {
        let missing =
            || io::Error::new(io::ErrorKind::NotFound, format!("{name} is not installed"));
        stage.programs().path(name).ok_or_else(missing)
    };
    let (path, words): (PathBuf, Vec<&str>) = match program {
        Program::Weir => (stage.weir().to_owned(), vec!["run", "--admin", &admin, "-c", &file]),
        Program::Nginx => {
            (installed("nginx")?, vec!["-p", &directory, "-e", "stderr", "-c", &file])
        }
        Program::Haproxy => (installed("haproxy")?, vec!["-db", "-f", &file]),
    };
    let log = stage.scratch(&format!("{}.log", contender.name));
    let mut proxy = nets.start((Side::Proxy, nets.cores.proxy), &path, &words, &log)?;
    nets.await_listening(Side::Proxy, &mut proxy, PROXY)?;
    Ok(proxy)
}

/// The output file of the attackers' generator; that of users has the same name as in other
/// experiments.
pub(super) const ATTACKERS_OUT: &str = "attackers.jsonl";
/// How far that of attackers steps back (nice(1)): a process with 0 gets 68 times as much of the
/// core where both want it.
const ATTACKERS_NICE: &str = "19";

/// A generator that runs.
struct Bombing {
    bomb: Bound,
    words: Vec<String>,
    out: PathBuf,
}

impl Bombing {
    /// Starts a generator, on the side and the core of clients, with these classes, for twice this
    /// many seconds.
    fn start(
        stage: &Stage,
        nets: &Nets,
        name: &str,
        (seconds, classes): (u32, Vec<String>),
    ) -> io::Result<Bombing> {
        let out = stage.scratch(name);
        let mut words = nets.words(Side::Clients, nets.cores.clients, stage.weir());
        words.extend(bomb_words(classes, seconds));
        if name == ATTACKERS_OUT {
            words.splice(..0, ["nice", "-n", ATTACKERS_NICE].map(str::to_owned));
            // A client whose every packet is dropped never has a connection, which is no failure
            // here.
            words.push("--fail-if=answered<0%".to_owned());
        }
        let mut command = bound_command(words[0].as_ref());
        command.args(&words[1..]).arg("--out").arg(&out);
        Ok(Bombing { bomb: Bound::start(&mut command)?, words: process::words(&command), out })
    }

    fn command_line(&self) -> String {
        process::command_line(&self.words)
    }

    /// Returns what it saw, when it has ended.
    fn finish(&mut self) -> io::Result<bomb::Record> {
        self.bomb.finish()?;
        bomb::Record::read(&fs::read_to_string(&self.out)?).map_err(io::Error::other)
    }
}

/// Returns the arguments of a generator. One thread: its core is the only one that it has.
fn bomb_words(classes: Vec<String>, seconds: u32) -> Vec<String> {
    let mut words =
        vec!["bomb".to_owned(), format!("http://{PROXY}/"), "--yes".to_owned(), "-t1".to_owned()];
    words.extend(["--timeout=2s".to_owned(), format!("--connect-timeout={CONNECT_TIMEOUT_MS}ms")]);
    words.extend([format!("-d{}s", 2 * seconds), format!("--warm-up={}us", WARM_UP.as_micros())]);
    words.extend(classes.into_iter().map(|class| format!("--class={class}")));
    words
}

/// Returns the users, as a class of the generator.
fn users_class(attack: Attack) -> String {
    let rate = attack.users_rate();
    format!(
        "{USERS_CLASS}: rate={rate}, arrivals=poisson, connections={USERS}, source={}",
        nets::USERS
    )
}

/// Returns the attackers, each as a class.
fn attacker_classes(attack: Attack, seconds: u32) -> Vec<String> {
    let begin_us = WARM_UP.as_micros() as u64 + u64::from(seconds) * 1_000_000;
    let class = |nth| {
        let source = if attack == Attack::Many {
            nets::MANY.to_owned()
        } else {
            nets::attacker(nth).to_string()
        };
        format!(
            "{}: rate=0/{}us+{}, connections={}, {}, source={source}",
            name(nth),
            begin_us + delay_us(attack, nth),
            attack.rate(),
            attack.connections(),
            behaviour(attack),
        )
    };
    (0..attack.attackers()).map(class).collect()
}

/// Returns what an attacker does, in the words of a generator's class.
fn behaviour(attack: Attack) -> String {
    match attack {
        Attack::Requests => format!("close-every={NEVER}"),
        Attack::Connections | Attack::Many => "close-every=1".to_owned(),
        Attack::ConnectFlood => "behave=connect-flood".to_owned(),
        Attack::Hold => "behave=hold".to_owned(),
        Attack::SlowHead => "behave=slow-head, close-every=1".to_owned(),
        Attack::SlowBody => "behave=slow-body, close-every=1".to_owned(),
        Attack::SlowReader => format!("behave=slow-reader, close-every=1, path=/?size={}", 1 << 20),
        Attack::Malformed => format!("behave=malformed, close-every={NEVER}"),
        Attack::Oversized => "behave=oversized, close-every=1".to_owned(),
        Attack::Fuzz => format!("behave=fuzz, close-every={NEVER}"),
    }
}

/// Returns the name of an attacker's class.
fn name(nth: u32) -> String {
    format!("attacker-{nth:02}")
}

/// Returns how long after the first an attacker begins, so that all together are evenly spaced.
fn delay_us(attack: Attack, nth: u32) -> u64 {
    u64::from(nth) * 1_000_000 / u64::from(attack.rate() * ATTACKERS)
}

/// Returns what the proxy's core does in a phase that begins then, without its margins, and the
/// share in which the generator's is busy.
fn watch(
    proxy: &Process,
    (core, generator): (usize, usize),
    begin: Instant,
    phase: Duration,
) -> io::Result<(Core, f64)> {
    let until = |moment: Instant| pause(moment.saturating_duration_since(Instant::now()));
    let ticks = || [core, generator].map(CoreTicks::now);
    let look = || (Instant::now(), ticks(), process::cpu_us(&proxy.family()));
    until(begin + MARGIN)?;
    let (at, ticks, proxy_us) = look();
    until(begin + phase.saturating_sub(MARGIN))?;
    let (end, later, end_us) = look();
    let time = end - at;
    let (busy, softirq) = later[0].shares_since(ticks[0], time);
    let (generator_busy, _) = later[1].shares_since(ticks[1], time);
    let proxy = end_us.saturating_sub(proxy_us) as f64 / time.as_micros() as f64;
    Ok((Core { busy, softirq, proxy }, generator_busy))
}

/// Fills in everything that the generator saw.
fn fill(
    record: &mut Record,
    (asked, attackers): (&bomb::Record, &bomb::Record),
    (attack, refuses): (Attack, bool),
    seconds: u32,
) -> io::Result<Blocked> {
    let generators = [asked, attackers].map(|record| Summary::of(record).generator);
    let class = |record: &'_ bomb::Record, name: &str| {
        record
            .class(name)
            .cloned()
            .ok_or_else(|| io::Error::other(format!("no class {name} in the results")))
    };
    let (mut alone, mut attacked) = (Slice::default(), Slice::default());
    for (second, slice) in &class(asked, USERS_CLASS)? {
        if *second < seconds { alone.add(slice) } else { attacked.add(slice) }
    }
    let mut users = alone.counts.clone();
    users.add(&attacked.counts);
    record.requests = attacked.counts.answered();
    record.rate = record.requests as f64 / f64::from(seconds);
    record.errors = users.troubles();
    record.latency = percentiles(&attacked);
    record.generator_us =
        generators.iter().map(|generator| generator.busy).sum::<f64>() * record.wall_us;
    // Attackers may come late: the number that came is counted.
    record.generator_limit = generators[0].limit.clone();
    let mut blocked = Blocked {
        users: attacked.counts.offered(),
        users_blocked: users.blocked(),
        alone: percentiles(&alone).unwrap_or_default(),
        allowed: refuses.then_some(0),
        beyond: refuses.then_some(0),
        ..Blocked::default()
    };
    for nth in 0..attack.attackers() {
        let mut slice = Slice::default();
        // The end of the run waits for outstanding attempts; meanwhile the limit lets more through,
        // and unanswered clients retry.
        let its = class(attackers, &name(nth))?;
        let within = its.iter().filter(|(second, _)| !attack.is_paced() || **second < 2 * seconds);
        within.for_each(|(_, second)| slice.add(second));
        add_attacker(&mut blocked, &slice, (attack, nth), seconds);
    }
    blocked.attempts_per_second = blocked.attempts as f64 / f64::from(seconds);
    let attackers: Vec<_> =
        (0..attack.attackers()).filter_map(|nth| attackers.class(&name(nth))).collect();
    let users = class(asked, USERS_CLASS)?;
    blocked.timeline = (0..2 * seconds).map(|second| moment(second, &users, &attackers)).collect();
    Ok(blocked)
}

/// Returns the figures of users and attackers in a second.
fn moment(
    second: u32,
    users: &BTreeMap<u32, Slice>,
    attackers: &[&BTreeMap<u32, Slice>],
) -> Moment {
    let times = users.get(&second).and_then(percentiles);
    let mut moment = Moment {
        second,
        p50_us: times.map(|times| times.p50_us),
        p99_us: times.map(|times| times.p99_us),
        ..Moment::default()
    };
    for slice in attackers.iter().filter_map(|its| its.get(&second)) {
        moment.served += slice.counts.status_class(2);
        moment.blocked += kinds(&slice.counts).values().sum::<u64>();
    }
    moment
}

fn percentiles(slice: &Slice) -> Option<Latency> {
    slice.times().and_then(|times| Percentiles::of(times.latency())).as_ref().map(latency)
}

/// Adds the results of an attacker.
fn add_attacker(blocked: &mut Blocked, slice: &Slice, (attack, nth): (Attack, u32), seconds: u32) {
    let counts = &slice.counts;
    let served = counts.status_class(2);
    // A request that never left, because its connection was not made, does not count as an attempt:
    // the connection does.
    let attempts = counts.attempts().saturating_sub(counts.outcomes(Outcome::Unsent));
    blocked.attempts += attempts;
    blocked.served += served;
    let kinds = kinds(counts);
    let turned_away: u64 = kinds.values().sum();
    kinds.into_iter().for_each(|(kind, count)| *blocked.blocked.entry(kind).or_default() += count);
    let rest = attempts.saturating_sub(served + turned_away);
    let is_one = |word: &str| word == "unsent" || rest > 0 && NEITHER.contains(&word);
    let connected = ("connected".to_owned(), counts.outcomes(Outcome::Connected));
    let others =
        counts.troubles().into_iter().chain(Some(connected).filter(|(_, count)| *count > 0));
    let others = others.filter(|(word, _)| is_one(word));
    others.for_each(|(word, count)| *blocked.neither.entry(word).or_default() += count);
    let phase_us = u64::from(seconds) * 1_000_000;
    if let (Some(allowed), Some(beyond)) = (&mut blocked.allowed, &mut blocked.beyond) {
        let its = u64::from(BURST + RATE * seconds);
        *allowed += its;
        *beyond += served.saturating_sub(its);
        let over_us = phase_us
            + delay_us(attack, nth)
            + u64::from(attack.first_over()) * 1_000_000 / u64::from(attack.rate());
        let first_us = slice.first_block_us.unwrap_or(over_us + phase_us);
        blocked.time_to_block_us.push(first_us.saturating_sub(over_us));
    }
}

/// Outcomes that are neither served nor refused.
const NEITHER: [&str; 9] = [
    "wrong_body",
    "truncated",
    "not_http",
    "timed_out",
    "unfinished",
    "unreachable",
    "none_left",
    "unconnected",
    "connected",
];

/// Returns how attempts were refused.
fn kinds(counts: &Counts) -> BTreeMap<String, u64> {
    let statuses = counts.statuses.iter().filter(|(status, _)| **status >= 400);
    let statuses = statuses.map(|(status, count)| (status.to_string(), *count));
    let cut = [
        ("reset", counts.outcomes(Outcome::Reset)),
        ("closed", counts.outcomes(Outcome::Closed)),
        ("refused", counts.connects(Connect::Refused)),
        ("dropped", counts.connects(Connect::TimedOut)),
    ];
    let cut = cut
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(kind, count)| (kind.to_owned(), count));
    statuses.chain(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::block_cells::CLASSES;

    fn slice(served: u64, refused: u64, first_block_us: Option<u64>) -> Slice {
        let mut slice = Slice::default();
        slice.first_block_us = first_block_us;
        for (status, count) in [(200, served), (429, refused)] {
            (0..count).for_each(|_| {
                slice.counts.outcome(Outcome::Answered);
                slice.counts.status(status);
            });
        }
        slice.counts.outcome(Outcome::Reset);
        slice.counts.outcome(Outcome::Unsent);
        slice
    }

    #[test]
    fn each_attacker_is_judged_by_himself() {
        let mut blocked = Blocked { allowed: Some(0), beyond: Some(0), ..Blocked::default() };
        let attack = Attack::Requests;
        // In two seconds 24 are let through. The 21st request is the first beyond the limit: it is
        // due 100 ms after the first one.
        add_attacker(&mut blocked, &slice(27, 500, Some(2_101_000)), (attack, 0), 2);
        add_attacker(&mut blocked, &slice(10, 500, None), (attack, 1), 2);
        assert_eq!((blocked.served, blocked.attempts), (37, 37 + 1000 + 2));
        assert_eq!(
            (blocked.allowed, blocked.beyond),
            (Some(48), Some(3)),
            "what one has less is nobody else's"
        );
        assert_eq!(blocked.time_to_block_us, [1000, 2_000_000]);
        assert_eq!(blocked.blocked, [("429".to_owned(), 1000), ("reset".to_owned(), 2)].into());
        assert_eq!(blocked.neither, [("unsent".to_owned(), 2)].into());
    }

    #[test]
    fn a_second_has_what_came_in_it() {
        let (users, attacker) = ([(1, slice(5, 0, None))].into(), [(1, slice(2, 7, None))].into());
        let at = |second| moment(second, &users, &[&attacker, &attacker]);
        // Each was reset once, besides the refusals.
        assert_eq!(at(1), Moment { second: 1, served: 4, blocked: 16, ..Moment::default() });
        assert_eq!(at(0), Moment::default());
    }

    #[test]
    fn the_generator_understands_what_it_is_told() {
        for attack in [Attack::Requests, Attack::Connections]
            .into_iter()
            .chain(CLASSES.iter().map(|row| row.0))
        {
            let classes = attacker_classes(attack, 3);
            assert_eq!(classes.len(), attack.attackers() as usize);
            let mut due = 0.0;
            for class in &classes {
                let rate = class
                    .split("rate=")
                    .nth(1)
                    .unwrap()
                    .split(',')
                    .next()
                    .unwrap()
                    .replace('+', ",");
                let rate = bomb::Rate::parse(&rate).unwrap();
                assert_eq!(rate.expected(4.0), 0.0, "nobody attacks in the first half: {class}");
                due += rate.expected(7.0);
            }
            let users = f64::from(attack.users_rate()) * 3.0;
            assert!(
                !attack.is_paced() || (9.9..10.1).contains(&(due / users)),
                "ten for each of users': {due}"
            );
        }
    }
}
