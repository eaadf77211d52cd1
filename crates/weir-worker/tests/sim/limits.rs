//! Limits for each client, while many ask for more than they may: how much of a client passes is bounded over all workers and connections
//! together, whoever stays below is never refused, and refusals keep their place among the answers of a pipeline (docs/semantics.md §21).
//!
//! In half of the worlds each client is a peer with one connection; in the other half all come through proxies that are trusted and say who they are, on
//! any connection. That what is open comes back, also when workers panic, is looked at in random worlds.

use std::collections::VecDeque;

use weir_io::sim::{Faults, Rng, Settings};
use weir_proxy::plan::{ClientPlan, LimitPlan, Network, ShieldPlan, Terms};
use weir_proxy::shield::limit::Rate;

use super::book::{Asked, Outcome};
use super::client::{Act, Client, Manners};
use super::run::Run;
use super::scenario::{Kind, Scenario, Sealed, listen_address};
use super::server::Style;
use super::{each_seed, seeds_of};

const SECOND: u64 = 1_000_000;
/// The world's clock at the start.
const START_US: u64 = SECOND;
/// For how long clients ask.
const ASKING_US: u64 = 10 * SECOND;

/// Who is in a world, by the first letter of nonces.
const GREEDY: char = 'a';
const MODEST: char = 'b';

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
        LimitPlan::new("rate", Terms::Requests(Rate::new(self.per_second, SECOND, self.burst, false)))
    }

    /// The most of one client in this time. One more: the clocks of workers differ by a turn.
    fn most(self, time_us: u64) -> u64 {
        u64::from(self.burst) + u64::from(self.per_second) * time_us / SECOND + 1
    }
}

/// Whoever has this number among those of its kind: a nonce begins with both.
fn name(who: char, client: usize) -> String {
    format!("{who}{client:03x}")
}

fn scenario(seed: u64, measure: Measure, is_behind_proxies: bool) -> Scenario {
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
    plan.shield = Some(ShieldPlan::new(vec![measure.limit()], 1024));
    if is_behind_proxies {
        let all = Network { address: std::net::Ipv4Addr::new(10, 1, 0, 0).into(), prefix_bits: 16 };
        plan.client = ClientPlan { trusted_proxies: vec![all], ..plan.client.clone() };
    }
    scenario
}

/// What a connection asks, with who it is for.
struct Connection {
    asked: Vec<Asked>,
    acts: VecDeque<Act>,
}

impl Connection {
    fn new() -> Connection {
        Connection { asked: Vec::new(), acts: VecDeque::new() }
    }

    /// One request of this client.
    fn ask(&mut self, client: &str, request: usize, forwarded: Option<usize>) {
        let nonce = format!("{client}{request:04x}");
        let forwarded = forwarded.map_or_else(String::new, |at| format!("X-Forwarded-For: 203.0.113.{at}\r\n"));
        let text = format!("GET /?n={nonce} HTTP/1.1\r\nHost: weir.test\r\n{forwarded}\r\n");
        self.acts.extend([Act::Ask(self.asked.len()), Act::Send(text.into_bytes())]);
        self.asked.push(Asked { nonce, method: "GET", conditional: false, body: Vec::new(), trigger: None });
    }

    fn add_to(self, run: &Run, start_us: u64) {
        run.add(|book| Client::scripted(listen_address(), start_us, book, self.acts, self.asked, false));
    }
}

/// Clients that ask for far more than they may, in bursts, on so many connections.
fn add_greedy(run: &Run, clients: usize, is_behind_proxies: bool, rng: &mut Rng) {
    for client in 0..clients {
        let (name, forwarded) = (name(GREEDY, client), is_behind_proxies.then_some(client));
        let mut request = 0;
        for _ in 0..if is_behind_proxies { 1 + rng.index(4) } else { 1 } {
            let mut connection = Connection::new();
            for _ in 0..10 {
                for _ in 0..1 + rng.index(12) {
                    connection.ask(&name, request, forwarded);
                    request += 1;
                }
                connection.acts.push_back(Act::Wait(rng.below(ASKING_US / 10)));
            }
            connection.add_to(run, rng.below(SECOND));
        }
    }
}

/// Clients that never ask for more than they may: a burst, and then each time they may again.
fn add_modest(run: &Run, clients: usize, measure: Measure, is_behind_proxies: bool, rng: &mut Rng) {
    let gap_us = SECOND.div_ceil(u64::from(measure.per_second));
    for client in 0..clients {
        let (name, forwarded) = (name(MODEST, client), is_behind_proxies.then_some(100 + client));
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

#[test]
fn clients_have_what_they_may_and_no_more() {
    each_seed(seeds_of(30), |seed| {
        let (rng, is_behind_proxies) = (&mut Rng::new(seed ^ 0x11317), seed % 2 == 1);
        let measure = Measure::random(rng);
        let run = Run::new(scenario(seed, measure, is_behind_proxies));
        let greedy = 4 + rng.index(8);
        add_greedy(&run, greedy, is_behind_proxies, rng);
        add_modest(&run, 10, measure, is_behind_proxies, rng);
        run.pass(100 * SECOND, || false);
        let time_us = run.world.now_us() - START_US;
        run.finish_with(|book| {
            let of = |who: String| book.entries.iter().filter(move |(nonce, _)| nonce.starts_with(&who));
            if let Some((nonce, entry)) = of(MODEST.to_string()).find(|(_, entry)| entry.outcome != Outcome::Answered) {
                return Err(format!("{nonce} asked no more than it may, and got {:?}", entry.outcome));
            }
            let mut refused = 0;
            for client in 0..greedy {
                let answered = of(name(GREEDY, client)).filter(|(_, entry)| entry.outcome == Outcome::Answered).count();
                refused += of(name(GREEDY, client)).filter(|(_, entry)| entry.outcome == Outcome::Refused(429)).count();
                if answered as u64 > measure.most(time_us) {
                    return Err(format!("client {client} got {answered} in {time_us} us"));
                }
                if answered < measure.burst as usize {
                    return Err(format!("client {client} got {answered}, less than its burst"));
                }
            }
            if refused == 0 { Err("nobody was refused".to_owned()) } else { Ok(()) }
        });
    });
}

/// Limits that nobody passes, of all that is open.
fn holding(mut scenario: Scenario) -> Scenario {
    let plenty = Rate::new(1_000_000, SECOND, 1_000_000, false);
    let terms = [Terms::Open(10_000), Terms::InProgress(10_000), Terms::Requests(plenty), Terms::InProgress(20_000)];
    let limits = terms.into_iter().map(|terms| LimitPlan::new(terms.word(), terms)).collect();
    scenario.name = "holding";
    scenario.plan_mut().shield = Some(ShieldPlan::new(limits, 1024));
    scenario
}

/// [`Run::finish`] finds what is not given back.
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
