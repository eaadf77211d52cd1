//! Proves: deep for fast servers also when they or their machines are saturated, 1 for slow ones,
//! and back again when they change; also when more requests wait than connections can hold; fixed
//! depths don't change; no input breaks the bounds. How: a closed-loop simulation of clients, a
//! fill-first scheduler, and kinds of servers, in virtual time; and random input.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// How the simulated server spends its time.
#[derive(Debug, Clone, Copy)]
enum Server {
    /// One processor for all connections, which it serves in turns: `us` for a request.
    Processor { us: u64 },
    /// The same, but others have the processor for all but `on_us` of each `of_us`.
    Shared { us: u64, on_us: u64, of_us: u64 },
    /// Requests of a connection one after the other, connections independent: each request takes
    /// `us`; every `every`th `long_us`.
    Sleeper { us: u64, every: u64, long_us: u64 },
}

#[derive(Default)]
struct Connection {
    /// Send times of unanswered requests.
    sent_us: VecDeque<u64>,
    /// The time at which the sleeper has done the oldest, or 0 when not begun.
    busy_until_us: u64,
    last_answer_us: u64,
    answered: u32,
}

/// Clients that each have one request at a time.
struct Simulation {
    depth: Depth,
    connections: Vec<Connection>,
    waiting: usize,
    now_us: u64,
    /// Where the processor continues, and since when it is ahead of the clock.
    next: usize,
    processor_us: u64,
    served: u64,
    /// Limits seen, one a turn.
    limits: Vec<u32>,
}

/// The proxy's polling interval.
const TURN_US: u64 = 100;

impl Simulation {
    fn new(depth: Depth, connections: usize, clients: usize) -> Simulation {
        let connections = (0..connections).map(|_| Connection::default()).collect();
        let (next, processor_us, served) = (0, 0, 0);
        Simulation {
            depth,
            connections,
            waiting: clients,
            now_us: 0,
            next,
            processor_us,
            served,
            limits: Vec::new(),
        }
    }

    fn run(&mut self, server: Server, turns: usize) -> &[u32] {
        self.limits.clear();
        for _ in 0..turns {
            self.dispatch();
            self.now_us += TURN_US;
            match server {
                Server::Processor { us } => self.serve_in_turns(us),
                Server::Shared { us, on_us, of_us } if self.now_us % of_us < on_us => {
                    self.serve_in_turns(us)
                }
                Server::Shared { .. } => {}
                Server::Sleeper { us, every, long_us } => self.serve_sleeping(us, every, long_us),
            }
            self.reap();
            self.limits.push(self.depth.limit());
        }
        &self.limits
    }

    /// Fills one connection first; when all are full, the rest waits.
    fn dispatch(&mut self) {
        let limit = self.depth.limit() as usize;
        for connection in &mut self.connections {
            while self.waiting > 0 && connection.sent_us.len() < limit {
                connection.sent_us.push_back(self.now_us);
                self.waiting -= 1;
            }
        }
    }

    fn serve_in_turns(&mut self, us: u64) {
        let count = self.connections.len();
        self.processor_us = self.processor_us.max(self.now_us - TURN_US);
        let mut idle = 0;
        while self.processor_us + us <= self.now_us && idle < count {
            let connection = &mut self.connections[self.next];
            self.next = (self.next + 1) % count;
            if connection.sent_us.len() > connection.answered as usize {
                connection.answered += 1;
                self.processor_us += us;
                idle = 0;
            } else {
                idle += 1;
            }
        }
    }

    fn serve_sleeping(&mut self, us: u64, every: u64, long_us: u64) {
        for connection in &mut self.connections {
            while let Some(sent_us) = connection.sent_us.get(connection.answered as usize) {
                let long = self.served % every == every - 1;
                let takes_us = if long { long_us } else { us };
                let done_us = connection.busy_until_us.max(*sent_us) + takes_us;
                if done_us > self.now_us {
                    break;
                }
                self.served += 1;
                connection.busy_until_us = done_us;
                connection.answered += 1;
            }
        }
    }

    fn reap(&mut self) {
        let share = (self.waiting / self.connections.len()) as u32;
        for connection in self.connections.iter_mut().filter(|connection| connection.answered > 0) {
            let since_us = connection.sent_us[0].max(connection.last_answer_us);
            let depth = connection.sent_us.len() as u32 + share;
            self.depth.on_answers(&Answers {
                now_us: self.now_us,
                elapsed_us: self.now_us - since_us,
                count: connection.answered,
                depth,
                first: connection.sent_us[0] >= connection.last_answer_us,
            });
            connection.sent_us.drain(..connection.answered as usize);
            connection.last_answer_us = self.now_us;
            self.waiting += connection.answered as usize;
            connection.answered = 0;
        }
    }
}

fn adaptive() -> Depth {
    Depth::new(PipelineMode::Adaptive, 1000)
}

fn sleeper(us: u64) -> Server {
    Server::Sleeper { us, every: u64::MAX, long_us: us }
}

/// The limit that held at least nine of ten turns.
fn usual(limits: &[u32]) -> (u32, u32) {
    let mut sorted = limits.to_vec();
    sorted.sort_unstable();
    (sorted[sorted.len() / 20], sorted[sorted.len() - 1 - sorted.len() / 20])
}

#[test]
fn fixed_depths() {
    for (mode, queue_size, limit) in [
        (PipelineMode::Off, 1000, 1),
        (PipelineMode::Depth(1), 1000, 1),
        (PipelineMode::Depth(300), 1000, 300),
        (PipelineMode::Depth(300), 8, 8),
        (PipelineMode::Depth(0), 0, 1),
        (PipelineMode::Adaptive, 1, 1),
        (PipelineMode::Adaptive, 5, 1),
        (PipelineMode::Adaptive, 1000, DEPTH_START),
    ] {
        let mut depth = Depth::new(mode, queue_size);
        assert_eq!(depth.limit(), limit, "{mode:?}");
        if mode != PipelineMode::Adaptive || queue_size == 1 {
            let answers = |at| Answers {
                now_us: at * 1000,
                elapsed_us: at,
                count: 1,
                depth: 1,
                first: at % 3 == 0,
            };
            (0..10_000).for_each(|at| depth.on_answers(&answers(at)));
            assert_eq!(depth.limit(), limit, "{mode:?}");
        }
    }
}

#[test]
fn a_saturated_fast_server_is_pipelined_deeply() {
    for (clients, connections, us) in [
        (64, 128, 12),
        (64, 32, 12),
        (256, 32, 12),
        (4000, 128, 12),
        (64, 1, 12),
        (64, 128, 30),
        (100, 128, 40),
    ] {
        let mut simulation = Simulation::new(adaptive(), connections, clients);
        simulation.run(Server::Processor { us }, 20_000);
        let (low, high) = usual(simulation.run(Server::Processor { us }, 20_000));
        assert!(low >= 8, "{clients} clients, {connections} connections, {us} us: {low} to {high}");
    }
}

/// A processor that is rarely there delays the first request of a connection as it delays the last:
/// depth is not to blame.
#[test]
fn a_busy_machine_is_no_reason_for_less_depth() {
    for (clients, connections) in [(64, 32), (256, 32), (1000, 16)] {
        let server = Server::Shared { us: 12, on_us: 1_000, of_us: 8_000 };
        let mut simulation = Simulation::new(adaptive(), connections, clients);
        simulation.run(server, 20_000);
        let (low, high) = usual(simulation.run(server, 50_000));
        assert!(low >= 8, "{clients} clients, {connections} connections: {low} to {high}");
    }
}

#[test]
fn a_slow_server_gets_one_request_a_connection() {
    let cases = [
        (8, 32, 10_000),
        (100, 128, 10_000),
        (20, 128, 2_000),
        (3, 8, 100_000),
        (10, 4, 2_000),
        (10, 4, 10_000),
    ];
    for (clients, connections, us) in cases {
        let mut simulation = Simulation::new(adaptive(), connections, clients);
        simulation.run(sleeper(us), 20_000 * us as usize / 10_000 + 20_000);
        let (low, high) = usual(simulation.run(sleeper(us), 20_000));
        assert_eq!((low, high), (1, 1), "{clients} clients, {connections} connections, {us} us");
    }
}

#[test]
fn a_server_that_is_sometimes_slow_is_not_pipelined_deeply() {
    let server = Server::Sleeper { us: 100, every: 10, long_us: 20_000 };
    let mut simulation = Simulation::new(adaptive(), 128, 32);
    simulation.run(server, 20_000);
    let (_, high) = usual(simulation.run(server, 20_000));
    assert!(high <= 2, "{high}");
}

#[test]
fn the_limit_follows_a_server_that_changes() {
    let mut simulation = Simulation::new(adaptive(), 32, 16);
    for _ in 0..3 {
        simulation.run(Server::Processor { us: 12 }, 20_000);
        assert!(simulation.depth.limit() >= 8, "{}", simulation.depth.limit());
        simulation.run(sleeper(10_000), 20_000);
        assert_eq!(simulation.depth.limit(), 1);
    }
}

#[test]
fn a_steady_server_does_not_make_the_limit_flap() {
    let mut simulation = Simulation::new(adaptive(), 128, 64);
    simulation.run(Server::Processor { us: 12 }, 50_000);
    let limits = simulation.run(Server::Processor { us: 12 }, 50_000);
    let changes = limits.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes < 500, "{changes} changes in 50,000 turns");
}

proptest! {
    #[test]
    fn no_input_breaks_the_bounds(
        queue_size in 0..200u32,
        input in prop::collection::vec(
            (any::<u64>(), 0..64u32, any::<u32>(), any::<u32>(), any::<bool>()),
            0..500
        ),
    ) {
        let mut depth = Depth::new(PipelineMode::Adaptive, queue_size);
        let mut now_us = 0u64;
        for (elapsed_us, shift, count, deep, first) in input {
            now_us = now_us.saturating_add(elapsed_us >> 40);
            let (elapsed_us, count, deep) =
                (elapsed_us >> shift, count >> (shift / 2), deep >> (shift / 2));
            depth.on_answers(&Answers { now_us, elapsed_us, count, depth: deep, first });
            prop_assert!(depth.limit() >= 1 && depth.limit() <= DEPTH_MAX.min(queue_size.max(1)));
        }
    }
}
