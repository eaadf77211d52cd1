//! Proves: load leaves a server that becomes ten times slower within a second and returns when it
//! recovers; nothing oscillates, no server is starved or flooded. How: queues in virtual time,
//! closed loops (clients that send again when they get a response) and open ones, with servers that
//! work on one, several or any number of requests at a time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::base::stamp::mix;
use crate::placement::balance::{Balance, Finding, Measure, Method, Statistic};
use crate::plan::{ServerPlan, UpstreamPlan};

const MS: u64 = 1_000;
const SECOND_US: u64 = 1_000 * MS;

/// The source of requests.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// This many clients, each of which sends again as soon as it gets its response.
    Clients(usize),
    /// This many requests a second.
    Rate(u64),
}

/// The capacity of a server.
#[derive(Clone, Copy, Debug)]
struct Kind {
    threads: usize,
    service_us: u64,
}

struct Server {
    kind: Kind,
    busy: usize,
    /// When each was sent, oldest first.
    queue: VecDeque<u64>,
    measure: Measure,
    outstanding: u32,
    /// Times at which requests were sent to it.
    sent: Vec<u64>,
}

/// The next event: a request arrives, or a server has answered the request that was sent at this
/// time.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Request,
    Answer(usize, u64),
}

struct Sim {
    now_us: u64,
    seed: u64,
    load: Load,
    servers: Vec<Server>,
    balance: Balance,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    turn: u64,
}

impl Sim {
    fn new(kinds: &[Kind], load: Load, by: Statistic, method: Method) -> Sim {
        let server = |n: usize| {
            let address = std::net::SocketAddr::from(([10, 0, 0, n as u8], 80));
            ServerPlan::new(&address.to_string(), address)
        };
        let servers = (0..kinds.len()).map(server).collect();
        let plan = UpstreamPlan { servers, balance: method, ..UpstreamPlan::default() };
        let mut sim = Sim {
            now_us: SECOND_US,
            seed: 1,
            load,
            servers: kinds
                .iter()
                .map(|kind| Server {
                    kind: *kind,
                    busy: 0,
                    queue: VecDeque::new(),
                    measure: Measure::new(by),
                    outstanding: 0,
                    sent: Vec::new(),
                })
                .collect(),
            balance: Balance::new(&plan, 0, 1),
            events: BinaryHeap::new(),
            turn: 0,
        };
        let first = if let Load::Clients(clients) = load { clients } else { 1 };
        (0..first).for_each(|_| sim.schedule(0, Event::Request));
        sim
    }

    fn chance(&mut self) -> f64 {
        self.seed += 1;
        (mix(self.seed) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn schedule(&mut self, after_us: u64, event: Event) {
        self.turn += 1;
        self.events.push(Reverse((self.now_us + after_us, self.turn, event)));
    }

    fn run_for(&mut self, us: u64) {
        let end_us = self.now_us + us;
        while let Some(Reverse((at_us, ..))) = self.events.peek()
            && *at_us <= end_us
        {
            let Reverse((at_us, _, event)) = self.events.pop().unwrap();
            self.now_us = at_us;
            match event {
                Event::Request => self.request(),
                Event::Answer(server, sent_us) => self.answer(server, sent_us),
            }
        }
        self.now_us = end_us;
    }

    fn request(&mut self) {
        if let Load::Rate(rate) = self.load {
            let gap_us = -(1.0 - self.chance()).ln() * SECOND_US as f64 / rate as f64;
            self.schedule(gap_us as u64, Event::Request);
        }
        if self.balance.is_due(self.now_us) {
            self.reweigh();
        }
        self.turn += 1;
        let servers = &self.servers;
        self.balance.begin(self.turn, |at| servers[at].outstanding);
        let chosen = self.balance.pick(false, None, |_| true).unwrap();
        let server = &mut self.servers[chosen];
        server.outstanding += 1;
        server.sent.push(self.now_us);
        server.queue.push_back(self.now_us);
        self.work(chosen);
    }

    fn work(&mut self, at: usize) {
        while self.servers[at].busy < self.servers[at].kind.threads
            && let Some(sent_us) = self.servers[at].queue.pop_front()
        {
            self.servers[at].busy += 1;
            // Between half and one and a half times the average.
            let service_us =
                (self.servers[at].kind.service_us as f64 * (0.5 + self.chance())) as u64;
            self.schedule(service_us.max(1), Event::Answer(at, sent_us));
        }
    }

    fn answer(&mut self, at: usize, sent_us: u64) {
        let server = &mut self.servers[at];
        server.busy -= 1;
        server.outstanding -= 1;
        server.measure.record(self.now_us - sent_us);
        if matches!(self.load, Load::Clients(_)) {
            self.schedule(0, Event::Request);
        }
        self.work(at);
    }

    fn reweigh(&mut self) {
        let now_us = self.now_us;
        let reads: Vec<Option<u64>> = self
            .servers
            .iter_mut()
            .map(|server| {
                let oldest = server
                    .queue
                    .front()
                    .map(|sent_us| (now_us - sent_us, server.queue.len() as u32));
                let (response_us, samples) = server.measure.read(now_us, oldest.into_iter());
                (samples > 0).then_some(u64::from(response_us))
            })
            .collect();
        self.balance.reweigh(now_us, |at| Finding { recovered_us: 0, response_us: reads[at] });
    }

    /// Each server's part of the requests sent in this time.
    fn shares(&self, from_us: u64, to_us: u64) -> Vec<f64> {
        let count = |server: &Server| {
            server.sent.iter().filter(|at| (from_us..to_us).contains(*at)).count() as f64
        };
        let sum: f64 = self.servers.iter().map(count).sum();
        self.servers.iter().map(|server| count(server) / sum).collect()
    }

    /// Requests to each server in the last second, on average.
    fn rate(&self) -> usize {
        let recent = |server: &Server| {
            server.sent.iter().filter(|at| **at + SECOND_US >= self.now_us).count()
        };
        self.servers.iter().map(recent).sum::<usize>() / self.servers.len()
    }

    fn last(&self, us: u64) -> Vec<f64> {
        self.shares(self.now_us - us, self.now_us)
    }
}

const ALL: [Statistic; 5] = [
    Statistic::Min,
    Statistic::Avg,
    Statistic::Max,
    Statistic::Percentile(5000),
    Statistic::Percentile(9900),
];

/// Servers with one, eight and any number of threads, at loads that leave them idle, busy and
/// overloaded.
fn situations() -> Vec<(Kind, Load)> {
    let mut all = Vec::new();
    for (threads, service_us) in [(1, 500), (8, 4_000), (1_000, 10_000)] {
        let kind = Kind { threads, service_us };
        all.extend([4, 64, 400].map(|clients| (kind, Load::Clients(clients))));
        let rate = (threads.min(50) as u64 * SECOND_US / service_us) / 2;
        all.push((kind, Load::Rate(rate)));
    }
    all
}

#[test]
fn load_leaves_a_slow_server_within_a_second_and_comes_back() {
    for by in ALL {
        for (kind, load) in situations() {
            for count in [2, 10] {
                let mut sim = Sim::new(&vec![kind; count], load, by, Method::Dynamic(by));
                sim.run_for(5 * SECOND_US);
                let (before, rate) = (sim.last(SECOND_US)[0], sim.rate());
                sim.servers[0].kind.service_us *= 10;
                sim.run_for(2 * SECOND_US);
                // The second second: the first was for moving the load. With few responses a second
                // it takes longer.
                let after = sim.last(SECOND_US)[0];
                assert!(
                    after <= 0.2 * before || rate < 100,
                    "{by:?} {kind:?} {load:?} {count}: {before} -> {after}"
                );
                assert!(after > 0.0, "{by:?} {kind:?} {load:?} {count}: starved");
                sim.servers[0].kind = kind;
                // The few recent responses are measured over as much as five seconds.
                sim.run_for(8 * SECOND_US);
                let back = sim.last(2 * SECOND_US)[0];
                assert!(
                    back > 0.8 / count as f64,
                    "{by:?} {kind:?} {load:?} {count}: {back} again"
                );
            }
        }
    }
}

#[test]
fn equal_servers_share_equally_and_nothing_oscillates() {
    for by in ALL {
        for (kind, load) in situations() {
            let mut sim = Sim::new(&[kind; 2], load, by, Method::Dynamic(by));
            sim.run_for(5 * SECOND_US);
            for _ in 0..25 {
                sim.run_for(SECOND_US / 5);
                let share = sim.last(SECOND_US / 5)[0];
                assert!(
                    (0.3..0.7).contains(&share),
                    "{by:?} {kind:?} {load:?}: {share} in a fifth of a second"
                );
            }
            let share = sim.last(5 * SECOND_US)[0];
            assert!(
                (0.45..0.55).contains(&share),
                "{by:?} {kind:?} {load:?}: {share} in five seconds"
            );
        }
    }
}

/// A server that sends no responses at all is found by its requests in flight.
#[test]
fn load_leaves_a_server_that_hangs() {
    for by in ALL {
        let kind = Kind { threads: 1_000, service_us: 5_000 };
        let mut sim = Sim::new(&[kind; 3], Load::Rate(2_000), by, Method::Dynamic(by));
        sim.run_for(2 * SECOND_US);
        sim.servers[0].kind.service_us = 1_000 * SECOND_US;
        sim.run_for(2 * SECOND_US);
        let share = sim.last(SECOND_US)[0];
        assert!(share < 0.2 / 3.0, "{by:?}: {share}");
    }
}

/// A server without measurements gets as much as the others, no more.
#[test]
fn an_unknown_server_is_one_of_many() {
    let kind = Kind { threads: 1_000, service_us: 5_000 };
    let mut sim =
        Sim::new(&[kind; 4], Load::Rate(2_000), Statistic::Avg, Method::Dynamic(Statistic::Avg));
    sim.run_for(2 * SECOND_US);
    sim.servers[0].measure = Measure::new(Statistic::Avg);
    sim.run_for(SECOND_US / 10);
    let share = sim.last(SECOND_US / 10)[0];
    assert!((0.15..0.35).contains(&share), "{share}");
}

/// `predict` moves load away while a server is still getting slower, before `dynamic` does.
#[test]
fn a_trend_is_followed_before_it_is_there() {
    let share = |method: Method| {
        let kind = Kind { threads: 1_000, service_us: 10_000 };
        let mut sim = Sim::new(&[kind; 2], Load::Rate(1_000), Statistic::Avg, method);
        for step in 0..200 {
            // In 20 s it becomes twice as slow.
            sim.servers[0].kind.service_us = 10_000 + 50 * step;
            sim.run_for(SECOND_US / 10);
        }
        sim.last(SECOND_US)[0]
    };
    let now = share(Method::Dynamic(Statistic::Avg));
    let predict =
        |ahead_us| share(Method::Predict { by: Statistic::Avg, past_us: 30 * SECOND_US, ahead_us });
    let (ahead, flat) = (predict(15 * SECOND_US), predict(0));
    assert!(ahead < now - 0.03, "{ahead} with a trend, {now} without");
    assert!((flat - now).abs() < 0.03, "{flat} looking no way ahead, {now} without a trend");
}
