//! Limits for each client, while many ask for more than they may: all workers and connections
//! together bound how much of a client passes. A client below its limit is never refused, and
//! refusals keep their place among the responses of a pipeline (docs/limits.md). Allowed
//! clients have no limit. No client is offered for a ban because of what others claim about it
//! (docs/bans.md). A client over a limit remains over it, however many clients come that
//! no longer fit.
//!
//! A client is a peer with one connection, or comes on any connection through proxies that name it,
//! trusted or not. Random worlds check that all that is open is given back, also when workers
//! panic.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use weir_io::sim::{Faults, Rng, Settings};
use weir_proxy::plan::{BanPlan, ClientPlan, LimitPlan, Network, ShieldPlan, Terms};
use weir_proxy::shield::bans::Offence;
use weir_proxy::shield::limit::Rate;

use super::book::{Asked, Book, Outcome};
use super::client::{Act, Client, Manners};
use super::run::Run;
use super::scenario::{Kind, Scenario, Sealed, listen_address};
use super::server::Style;
use super::{each_seed, seeds_of};

const SECOND: u64 = 1_000_000;
/// The world's clock at the start.
const START_US: u64 = SECOND;
/// How long clients ask.
const ASKING_US: u64 = 10 * SECOND;

/// Where all connections come from.
const PEERS: Network = Network { address: IpAddr::V4(Ipv4Addr::new(10, 1, 0, 0)), prefix_bits: 16 };
/// Clients without a limit: no connection comes from there.
const FAVOURED: Network =
    Network { address: IpAddr::V4(Ipv4Addr::new(203, 0, 114, 0)), prefix_bits: 24 };

/// The source that names a client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// Its connection alone.
    Nobody,
    /// Trusted proxies.
    Trusted,
    /// The client itself, falsely: as one of [`FAVOURED`], or as a client that it wants to be
    /// banned.
    Untrusted,
}

/// A group of clients that behave alike.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// Asks for far more than it may.
    Greedy,
    /// Never asks for more than it may.
    Modest,
    /// Asks for far more than others may, and is [`FAVOURED`].
    Favoured,
    /// Asks once.
    Swarm,
}

impl Who {
    /// How nonces begin: with the kind of client, and its number among them.
    fn name(self, client: usize) -> String {
        format!("{}{client:03x}", self.letter())
    }

    fn letter(self) -> char {
        match self {
            Who::Greedy => 'a',
            Who::Modest => 'b',
            Who::Favoured => 'c',
            Who::Swarm => 'd',
        }
    }

    /// Its address, where a proxy names it.
    fn address(self, client: usize) -> Ipv4Addr {
        let [high, low] = (client as u16).to_be_bytes();
        match self {
            Who::Greedy => Ipv4Addr::new(203, 0, 113, low),
            Who::Modest => Ipv4Addr::new(192, 0, 2, low),
            Who::Favoured => Ipv4Addr::new(203, 0, 114, low),
            Who::Swarm => Ipv4Addr::new(198, 18, high, low),
        }
    }
}

/// How much passes.
#[derive(Clone, Copy)]
struct Measure {
    per_second: u32,
    burst: u32,
}

impl Measure {
    fn random(rng: &mut Rng) -> Measure {
        Measure { per_second: *rng.pick(&[2, 5, 20]), burst: *rng.pick(&[1, 4, 10]) }
    }

    fn limit(self) -> LimitPlan {
        LimitPlan::new(
            "rate",
            Terms::Requests(Rate::new(self.per_second, SECOND, self.burst, false)),
        )
    }

    /// The most requests of one client in this time. One more, because the clocks of workers differ
    /// by a turn.
    fn most(self, time_us: u64) -> u64 {
        u64::from(self.burst) + u64::from(self.per_second) * time_us / SECOND + 1
    }
}

fn scenario(seed: u64, measure: Measure, accounts: usize, told: Told) -> Scenario {
    let mut scenario = Scenario::of(Kind::Hostile, seed, 1 + (seed % 3) as u16);
    scenario.name = "limits";
    let faults = Faults { latency_us: 50, ..Faults::none() };
    scenario.settings = Settings { small_buffers: 64, ..Settings::random(seed, faults) };
    scenario.settings.window_bytes = 64 << 10;
    scenario.styles.iter_mut().for_each(|style| *style = Style::honest());
    (scenario.clients, scenario.manners) = (0, Manners::quiet(1));
    let plan = scenario.plan_mut();
    plan.upstreams[0].queue_size = 10_000;
    plan.upstreams[0].echo = None;
    let mut shield = ShieldPlan::new(vec![measure.limit()], accounts);
    shield.allow = vec![FAVOURED];
    shield.ban =
        Some(BanPlan { offences: Rate::new(3, 60 * SECOND, 3, false), ..BanPlan::default() });
    plan.shield = Some(shield);
    if told == Told::Trusted {
        plan.client = ClientPlan { trusted_proxies: vec![PEERS], ..plan.client.clone() };
    }
    scenario
}

/// A connection's requests, with the clients that they are for.
struct Connection {
    asked: Vec<Asked>,
    acts: VecDeque<Act>,
}

impl Connection {
    fn new() -> Connection {
        Connection { asked: Vec::new(), acts: VecDeque::new() }
    }

    /// Adds a request of this client.
    fn ask(&mut self, client: &str, request: usize, forwarded: Option<Ipv4Addr>) {
        let nonce = format!("{client}{request:04x}");
        let forwarded =
            forwarded.map_or_else(String::new, |address| format!("X-Forwarded-For: {address}\r\n"));
        let text = format!("GET /?n={nonce} HTTP/1.1\r\nHost: weir.test\r\n{forwarded}\r\n");
        self.acts.extend([Act::Ask(self.asked.len()), Act::Send(text.into_bytes())]);
        self.asked.push(Asked {
            nonce,
            method: "GET",
            conditional: false,
            body: Vec::new(),
            trigger: None,
        });
    }

    fn add_to(self, run: &Run, start_us: u64) {
        run.add(|book| {
            Client::scripted(listen_address(), start_us, book, self.acts, self.asked, false)
        });
    }
}

/// Adds clients that ask for far more than they may, in bursts, each on one or more connections.
fn add_greedy(run: &Run, who: Who, clients: usize, told: Told, rng: &mut Rng) {
    for client in 0..clients {
        let name = who.name(client);
        let mut request = 0;
        for _ in 0..if told == Told::Trusted { 1 + rng.index(4) } else { 1 } {
            let mut connection = Connection::new();
            for _ in 0..10 {
                for _ in 0..1 + rng.index(12) {
                    let forwarded = match told {
                        Told::Nobody => None,
                        Told::Trusted => Some(who.address(client)),
                        Told::Untrusted => {
                            Some(rng.pick(&[Who::Favoured, Who::Modest]).address(client))
                        }
                    };
                    connection.ask(&name, request, forwarded);
                    request += 1;
                }
                connection.acts.push_back(Act::Wait(rng.below(ASKING_US / 10)));
            }
            connection.add_to(run, rng.below(SECOND));
        }
    }
}

/// Adds clients that never ask for more than they may: a burst, and then one request whenever they
/// may again.
fn add_modest(run: &Run, clients: usize, measure: Measure, told: Told, rng: &mut Rng) {
    let gap_us = SECOND.div_ceil(u64::from(measure.per_second));
    for client in 0..clients {
        let name = Who::Modest.name(client);
        let forwarded = (told == Told::Trusted).then(|| Who::Modest.address(client));
        let mut connection = Connection::new();
        (0..measure.burst as usize).for_each(|request| connection.ask(&name, request, forwarded));
        for request in 0..20 {
            let all = measure.burst as usize + request;
            connection.acts.push_back(Act::AwaitAnswers(all));
            connection.acts.push_back(Act::Wait(gap_us + 1));
            connection.ask(&name, all, forwarded);
        }
        connection.add_to(run, rng.below(SECOND));
    }
}

/// How many requests of one client, or of all of its kind, had this outcome.
fn count(book: &Book, name: &str, outcome: &Outcome) -> u64 {
    book.entries
        .iter()
        .filter(|(nonce, entry)| nonce.starts_with(name) && entry.outcome == *outcome)
        .count() as u64
}

/// Checks that no request of this kind of client was refused.
fn check_served(book: &Book, who: Who) -> Result<(), String> {
    let mut of = book.entries.iter().filter(|(nonce, _)| nonce.starts_with(who.letter()));
    let refused = of.find(|(_, entry)| entry.outcome != Outcome::Answered);
    refused.map_or(Ok(()), |(nonce, entry)| {
        Err(format!("{nonce} asked what it may, and got {:?}", entry.outcome))
    })
}

/// Checks that each of `clients` greedy clients had at most its limit, and at least its burst.
fn check_bounds(book: &Book, clients: usize, measure: Measure, time_us: u64) -> Result<(), String> {
    for client in 0..clients {
        let answered = count(book, &Who::Greedy.name(client), &Outcome::Answered);
        if !(u64::from(measure.burst)..=measure.most(time_us)).contains(&answered) {
            return Err(format!("client {client} got {answered} in {time_us} us"));
        }
    }
    if count(book, &Who::Greedy.letter().to_string(), &Outcome::Refused(429)) == 0 {
        return Err("nobody was refused".to_owned());
    }
    Ok(())
}

/// Checks that clients offered for a ban did ask for too much: by their connection, or as a trusted
/// proxy says, which is then noted.
fn check_offences(offences: &[Offence], told: Told, greedy: usize) -> Result<(), String> {
    let is_right = |offence: &Offence| match (offence.block.address(), told) {
        (IpAddr::V4(address), Told::Trusted) => {
            offence.by_proxy && (0..greedy).any(|client| Who::Greedy.address(client) == address)
        }
        (address, _) => {
            !offence.by_proxy
                && offence.forwards == (told == Told::Untrusted)
                && PEERS.contains(address)
        }
    };
    match offences.iter().find(|offence| !is_right(offence)) {
        Some(offence) => Err(format!("{offence:?} is to be banned")),
        None if offences.is_empty() => Err("nobody is to be banned".to_owned()),
        None => Ok(()),
    }
}

#[test]
fn clients_have_what_they_may_and_no_more() {
    for told in [Told::Nobody, Told::Trusted, Told::Untrusted] {
        each_seed(seeds_of(15), |seed| {
            let rng = &mut Rng::new(seed ^ 0x11317);
            let measure = Measure::random(rng);
            let run = Run::new(scenario(seed, measure, 1024, told));
            let greedy = 4 + rng.index(8);
            add_greedy(&run, Who::Greedy, greedy, told, rng);
            add_modest(&run, 10, measure, told, rng);
            if told == Told::Trusted {
                add_greedy(&run, Who::Favoured, 3, told, rng);
            }
            run.pass_clients();
            let time_us = run.world.now_us() - START_US;
            let offences = run.offences();
            run.finish_with(|book| {
                check_served(book, Who::Modest)?;
                check_served(book, Who::Favoured)?;
                check_bounds(book, greedy, measure, time_us)?;
                check_offences(&offences, told, greedy)
            });
        });
    }
}

/// Each client of the swarm owes less than the clients over their limits, and may not take their
/// accounts.
#[test]
fn a_swarm_takes_nobodys_debt() {
    const SWARM: usize = 4_000;
    each_seed(seeds_of(6), |seed| {
        let rng = &mut Rng::new(seed ^ 0x5a4a);
        let measure = Measure { per_second: 2, burst: 4 };
        let run = Run::new(scenario(seed, measure, 64, Told::Trusted));
        for client in 0..4 {
            let (name, address) = (Who::Greedy.name(client), Who::Greedy.address(client));
            let mut connection = Connection::new();
            for request in 0..200 {
                connection.ask(&name, request, Some(address));
                connection.acts.push_back(Act::Wait(ASKING_US / 200));
            }
            connection.add_to(&run, 1);
        }
        // Once those are over their limits: many more clients than there is room for, before their
        // debts are over.
        for part in 0..10 {
            let mut connection = Connection::new();
            for client in (part..SWARM).step_by(10) {
                connection.ask(&Who::Swarm.name(client), 0, Some(Who::Swarm.address(client)));
                connection.acts.push_back(Act::Wait(rng.below(1_000)));
            }
            connection.add_to(&run, 4 * SECOND + rng.below(SECOND / 10));
        }
        run.pass_clients();
        let time_us = run.world.now_us() - START_US;
        run.finish_with(|book| {
            check_served(book, Who::Swarm)?;
            check_bounds(book, 4, measure, time_us)
        });
    });
}

/// Adds limits that no client exceeds, on everything that is open.
fn holding(mut scenario: Scenario) -> Scenario {
    let plenty = Rate::new(1_000_000, SECOND, 1_000_000, false);
    let terms = [
        Terms::Open(10_000),
        Terms::InProgress(10_000),
        Terms::Requests(plenty),
        Terms::InProgress(20_000),
    ];
    let limits = terms.into_iter().map(|terms| LimitPlan::new(terms.word(), terms)).collect();
    scenario.name = "holding";
    scenario.plan_mut().shield = Some(ShieldPlan::new(limits, 1024));
    scenario
}

/// [`Run::finish`] finds anything that is not given back.
#[test]
fn what_is_open_is_given_back() {
    for workers in [1, 2] {
        each_seed(seeds_of(20), |seed| {
            Run::new(holding(Scenario::new(seed, workers).with_http2())).finish();
        });
        each_seed(seeds_of(20), |seed| {
            let sealed = Sealed { clients: true, servers: false };
            Run::new(holding(Scenario::new(seed, workers).with_http2().with_tls(sealed))).finish();
        });
        each_seed(seeds_of(20), |seed| {
            let run = Run::new(holding(Scenario::of(Kind::Panicking, seed, workers)));
            run.panic(1 + (seed % 6) as u32, 300);
            run.finish();
        });
    }
}
