//! The load of the demo: clients that send requests to weir as fast as they get responses, in turn
//! through the pipelined upstream and through the other. Called by `demo`.
//!
//! Clients, server and number of connections are the same; the only difference is that requests
//! follow each other. Bounds: one turn at a time of [`TURN_US`], of which the first [`SETTLING`]
//! seconds are not compared.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use weir_io::IoChoice;
use weir_lab::bomb::{self, Behaviour, Class, Ending, Mix, Preset, Request, Spelling};
use weir_lab::live::Figures;
use weir_lab::target::Target;
use weir_lab::tls::{Caller, Client, Trust, Wishes};

/// Length of a turn, microseconds.
const TURN_US: u64 = 15_000_000;
/// Seconds at the start of a turn that are not compared.
const SETTLING: u32 = 3;
/// Longest wait for a response, microseconds.
const TIMEOUT_US: u64 = 10_000_000;

/// The ways, in turn: the name of an upstream, and the path of its requests.
pub(super) const WAYS: [(&str, &str); 2] =
    [("pipelined", "/"), ("one-at-a-time", "/one-at-a-time")];

/// The working clients, until [`Load::end`].
#[derive(Debug)]
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    /// Turns that were begun; 0: none.
    turns: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// Starts this many clients of an address; 0: none.
    ///
    /// # Errors
    /// No TLS client, or no thread.
    pub(super) fn start(
        clients: u32,
        address: SocketAddr,
        is_tls: bool,
        io: IoChoice,
    ) -> Result<Load, String> {
        let mut load = Load { stop: Arc::default(), turns: Arc::default(), thread: None };
        if clients == 0 {
            return Ok(load);
        }
        let plans = WAYS.map(|(_, path)| plan(clients, address, path, is_tls, io, &load.stop));
        let [first, second] = plans;
        let plans = [first?, second?];
        let (stop, turns) = (Arc::clone(&load.stop), Arc::clone(&load.turns));
        let work = move || {
            for plan in plans.iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                turns.fetch_add(1, Ordering::Relaxed);
                // If the load fails it ends, and the demo continues without it.
                if bomb::run(plan, |_, _| {}).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("demo-load".to_owned()).spawn(work);
        load.thread = Some(thread.map_err(|error| format!("no thread for the load: {error}"))?);
        Ok(load)
    }

    /// Returns the number of the turn, from 1, and the place of its way in [`WAYS`]; None: no load.
    pub(super) fn turn(&self) -> Option<(usize, usize)> {
        let turns = self.turns.load(Ordering::Relaxed);
        Some((turns, turns.checked_sub(1)? % WAYS.len()))
    }

    /// Stops new requests, and waits for the responses under way.
    pub(super) fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is already on standard error.
            let _ = thread.join();
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end();
    }
}

fn plan(
    clients: u32,
    address: SocketAddr,
    path: &str,
    is_tls: bool,
    io: IoChoice,
    stop: &Arc<AtomicBool>,
) -> Result<bomb::Plan, String> {
    let scheme = if is_tls { "https" } else { "http" };
    let target = Target::parse(&format!("{scheme}://{address}{path}"))?;
    let tls = if is_tls {
        let wishes = Wishes {
            trust: Trust::Anybody,
            version: None,
            suite: None,
            group: None,
            resume: false,
            http2: false,
        };
        Some(Caller::new(&Client::new(&wishes)?, &target.name)?)
    } else {
        None
    };
    let spelling = Spelling { preset: Preset::Minimal, ..Spelling::default() };
    let mix = Mix::new(vec![Request::new(&target.host, path, 1, &spelling)?])?;
    let class = Class {
        name: path.to_owned(),
        target,
        connections: clients,
        rate: None,
        poisson: false,
        behaviour: Behaviour::Normal,
        sources: None,
        mix,
        http2: false,
        depth: 1,
        close_every: None,
        ending: Ending::Announced,
        seed: 1,
        drip: None,
        tls,
    };
    Ok(bomb::Plan {
        classes: vec![class],
        threads: 1,
        own: 0..1,
        io,
        duration_us: Some(TURN_US),
        requests: None,
        warm_up_us: 0,
        connect_timeout_us: TIMEOUT_US,
        timeout_us: TIMEOUT_US,
        late_us: TIMEOUT_US,
        same_body: false,
        seed: 1,
        stop: Arc::clone(stop),
    })
}

/// The costs of both ways, side by side.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    turn: usize,
    /// Seconds of this turn so far.
    seconds: u32,
    sums: [Sum; WAYS.len()],
}

/// Over the seconds of one way.
#[derive(Debug, Default, Clone, Copy)]
struct Sum {
    seconds: f64,
    requests: f64,
    cpu_us: f64,
}

impl Comparison {
    /// Adds the activity of the last second.
    pub(super) fn add(&mut self, (turn, way): (usize, usize), figures: &Figures) {
        if turn != self.turn {
            (self.turn, self.seconds) = (turn, 0);
        }
        self.seconds += 1;
        if self.seconds <= SETTLING {
            return;
        }
        let sum = &mut self.sums[way];
        sum.seconds += 1.0;
        sum.requests += figures.rate;
        sum.cpu_us += figures.rate * figures.cpu_us.unwrap_or(0.0);
    }

    /// Returns a line for each way, as soon as both are known.
    pub(super) fn lines(&self) -> Option<String> {
        if self.sums.iter().any(|sum| sum.requests < 1.0) {
            return None;
        }
        let line = |((name, _), sum): (&(&str, &str), &Sum)| {
            let (rate, cost) = (sum.requests / sum.seconds, sum.cpu_us / sum.requests);
            format!(
                "weir demo: {name:<13} {rate:>7.0} req/s, {cost:>5.1} us of weir's CPU time per \
                    request\n"
            )
        };
        Some(WAYS.iter().zip(&self.sums).map(line).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rate: f64, cpu_us: f64) -> Figures {
        Figures {
            rate,
            clients: 1,
            upstreams: 1,
            waiting: 0,
            in_flight: 0,
            failures: 0,
            cpu_us: Some(cpu_us),
            p50_us: None,
            p99_us: None,
        }
    }

    #[test]
    fn settled_seconds_of_both_ways_are_compared() {
        let mut comparison = Comparison::default();
        for second in 0..6 {
            comparison.add((1, 0), &figures(if second < 3 { 9.0 } else { 40_000.0 }, 10.0));
        }
        assert_eq!(comparison.lines(), None);
        for second in 0..5 {
            comparison.add((2, 1), &figures(20_000.0, if second < 3 { 99.0 } else { 21.5 }));
        }
        let expected = "weir demo: pipelined       40000 req/s,  10.0 us of weir's CPU time per \
                        request\n\
                        weir demo: one-at-a-time   20000 req/s,  21.5 us of weir's CPU time per \
                        request\n";
        assert_eq!(comparison.lines().as_deref(), Some(expected));
    }
}
