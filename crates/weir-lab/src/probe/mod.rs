//! A prober: one request at a time, so that each slow one is seen with the phase that made it slow,
//! where averages hide it.
//!
//! Called by `weir probe`. It waits for each response and then pauses, so a server that stalls
//! gives one slow request and not many late ones: for latency at a rate use an open loop. Bound:
//! one connection, one request in flight, `count` requests.

mod exchange;
mod summary;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use exchange::{Kind, Outcome, Phase, Place, Times};
pub use summary::Summary;

use crate::tls::Caller;
use crate::units::show_ns;
use exchange::Prober;
use summary::us;

/// What to request, and how.
#[derive(Debug, Clone)]
pub struct ProbeOptions {
    /// Where to connect to.
    pub place: Place,
    /// Value of the Host field.
    pub host: String,
    /// Target of the request line.
    pub path: String,
    /// Requests, at least 1.
    pub count: u64,
    /// Time between a response and the next request.
    pub pause: Duration,
    /// Responses that take longer are slow.
    pub threshold: Duration,
    /// Requests for each connection; None: as many as the server allows.
    pub close_every: Option<u64>,
    /// Time-out for a whole exchange, including connecting; more than zero.
    pub timeout: Duration,
    /// How the client uses TLS; None: it doesn't.
    pub tls: Option<Caller>,
}

/// A request that is worth reporting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which request, from 1.
    pub number: u64,
    /// When it began.
    pub at: jiff::Timestamp,
    /// Its outcome: a slow response, or a failure.
    pub outcome: Outcome,
}

/// Whether to continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// With the next request.
    Continue,
    /// No more results are wanted.
    Stop,
}

/// Sends requests until the count is reached or `tell` says stop. `tell` is called after each
/// request, with a finding if it was slow or failed; the lock is held meanwhile, so its holder sees
/// whole requests only.
pub fn run(
    options: &ProbeOptions,
    summary: &Mutex<Summary>,
    mut tell: impl FnMut(&Summary, Option<&Finding>) -> Next,
) {
    let mut prober = Prober::new(options.place.clone(), options.timeout, options.tls.clone());
    let [keep, last] = [false, true].map(|is_last| request(options, is_last));
    let begin = Instant::now();
    let mut on_connection = 0;
    for number in 1..=options.count {
        let renewed = prober.renew();
        let at = jiff::Timestamp::now();
        let is_new = !prober.is_connected();
        on_connection = if is_new { 1 } else { on_connection + 1 };
        let is_last = number == options.count
            || options.close_every.is_some_and(|every| on_connection >= every);
        let outcome = match &renewed {
            Ok(_) => prober.exchange(if is_last { &last } else { &keep }, is_last),
            Err(detail) => unsent(detail),
        };
        let is_made = is_new && !matches!(outcome, Outcome::Failed { phase: Phase::Connect, .. });
        let mut found = summary.lock().unwrap_or_else(PoisonError::into_inner);
        found.seconds = begin.elapsed().as_secs_f64();
        found.connections += u64::from(is_made);
        found.renewed += u64::from(renewed == Ok(true));
        let is_worth_telling =
            found.record(&outcome, is_new) || matches!(outcome, Outcome::Failed { .. });
        let finding = is_worth_telling.then_some(Finding { number, at, outcome });
        let next = tell(&found, finding.as_ref());
        drop(found);
        if next == Next::Stop {
            return;
        }
        if number < options.count {
            std::thread::sleep(options.pause);
        }
    }
}

/// A request that was not sent, because its connection is spoilt.
fn unsent(detail: &str) -> Outcome {
    let detail = format!("{detail}; not sent");
    Outcome::Failed { kind: Kind::Malformed, phase: Phase::Connect, after_ns: 0, detail }
}

/// Returns the request. The last on a connection announces the end, so that the server ends the
/// connection and keeps its port busy instead of ours.
fn request(options: &ProbeOptions, is_last: bool) -> Vec<u8> {
    let close = if is_last { "Connection: close\r\n" } else { "" };
    let ProbeOptions { path, host, .. } = options;
    format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: weir-probe\r\nAccept: */*\r\n\
        {close}\r\n"
    )
    .into_bytes()
}

impl Finding {
    /// A line for people, without its end.
    pub fn text(&self) -> String {
        let head = format!("{:.3}  #{}", self.at, self.number);
        match &self.outcome {
            Outcome::Answered { times, .. } => {
                let shown = |name: &str, ns: Option<u64>| {
                    ns.map_or_else(String::new, |ns| format!("{name} {}, ", show_ns(ns)))
                };
                let connect =
                    shown("connect", times.connect_ns) + &shown("handshake", times.handshake_ns);
                format!(
                    "{head}  slow: {}, {connect}first byte {}, body {}: {}",
                    show_ns(times.total_ns()),
                    show_ns(times.first_byte_ns),
                    show_ns(times.body_ns),
                    times.slowest().name()
                )
            }
            Outcome::Failed { kind, phase, after_ns, detail } => {
                format!(
                    "{head}  failed: {} in {}, after {}: {detail}",
                    kind.name(),
                    phase.name(),
                    show_ns(*after_ns)
                )
            }
        }
    }

    /// The same for programs. Times are microseconds.
    pub fn json(&self) -> Value {
        let (time, request) = (format!("{:.6}", self.at), self.number);
        match &self.outcome {
            Outcome::Answered { status, times } => json!({
                "type": "slow",
                "time": time,
                "request": request,
                "status": status,
                "total_us": us(times.total_ns()),
                "connect_us": times.connect_ns.map(us),
                "handshake_us": times.handshake_ns.map(us),
                "first_byte_us": us(times.first_byte_ns),
                "body_us": us(times.body_ns),
                "slowest": times.slowest().name().replace(' ', "_"),
            }),
            Outcome::Failed { kind, phase, after_ns, detail } => json!({
                "type": "failed",
                "time": time,
                "request": request,
                "kind": kind.name(),
                "phase": phase.name().replace(' ', "_"),
                "after_us": us(*after_ns),
                "detail": detail,
            }),
        }
    }
}

#[cfg(test)]
mod tests;
