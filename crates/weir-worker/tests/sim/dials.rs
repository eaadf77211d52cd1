//! Options that decide which server gets a request, and how often: balancing, backups, sessions,
//! health, retries, orders.
//!
//! Called by `scenario.rs`. Each is turned in a share of the worlds, alone and together; where it
//! is not turned, the promises are those of the defaults. `watch.rs`, `book.rs` and `run.rs` check
//! their effects.

use weir_io::sim::Rng;
use weir_proxy::cross::standing::Order;
use weir_proxy::placement::balance::{Key, Method, Statistic};
use weir_proxy::placement::sticky::{Cookie, Sticky};
use weir_proxy::plan::{AllDown, BodyCheck, FailoverRule, HealthPlan, Pool, UpstreamPlan};
use weir_proxy::upstream::health::{Codes, Symptom};

use super::outage::{How, Outage};
use super::scenario::Kind;

/// The target of probes; no client requests it.
pub const HEALTH_PATH: &str = "/health";
/// The response of a healthy server to a probe.
pub const WELL: &str = "quite well";
/// The cookie of sessions.
pub const COOKIE: &str = "srv";
/// The field of `balance "hash" key="header:x-key"`.
pub const KEY_FIELD: &str = "x-key";
/// Time between two clients' requests where health or orders need time to matter, microseconds.
pub const PAUSE_US: u64 = 300_000;
/// The time in which servers fall ill and operators give orders, microseconds.
const TROUBLE_US: u64 = 10_000_000;

/// One order of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Ordered {
    /// Microseconds after the start.
    pub at_us: u64,
    pub server: u32,
    pub order: Order,
}

/// Turns some of the dials of an upstream.
pub fn turn(upstream: &mut UpstreamPlan, rng: &mut Rng) {
    let servers = upstream.servers.len();
    if rng.chance(600) {
        upstream.balance = method(rng);
    }
    if rng.chance(300) {
        upstream
            .servers
            .iter_mut()
            .for_each(|server| server.weight = *rng.pick(&[1, 10, 50, 99, 100]));
    }
    if servers > 1 && rng.chance(250) {
        let (first, backups) = (rng.index(servers), 1 + rng.index(servers - 1));
        (0..backups).for_each(|step| upstream.servers[(first + step) % servers].backup = true);
    }
    if rng.chance(250) {
        upstream.slow_start_us = *rng.pick(&[1_000, 300_000, 10_000_000]);
    }
    if rng.chance(250) {
        upstream.sticky = Some(sticky(upstream, rng.chance(600)));
    }
    if rng.chance(250) {
        upstream.failover = (0..1 + rng.index(2)).map(|_| rule(rng)).collect();
    }
    if rng.chance(250) {
        upstream.health = Some(health(rng));
    }
    if rng.chance(400) {
        upstream.all_down = AllDown::Refuse;
    }
    turn_retries(upstream, rng);
}

/// Chooses how connections are shared.
pub fn turn_pool(upstream: &mut UpstreamPlan, rng: &mut Rng) {
    if rng.chance(300) {
        upstream.pool = *rng.pick(&[Pool::Shared, Pool::Pinned, Pool::PerRequest, Pool::Fresh]);
    }
}

/// Returns how many requests a server works on at once: in most worlds any number.
pub fn concurrency(rng: &mut Rng) -> Option<u32> {
    rng.chance(120).then(|| *rng.pick(&[1, 2, 5]))
}

/// Their settings, for messages.
pub fn told(upstream: &UpstreamPlan) -> String {
    let UpstreamPlan { pool, balance, failover, health, all_down, slow_start_us, .. } = upstream;
    let backups: Vec<bool> = upstream.servers.iter().map(|server| server.backup).collect();
    let sticky = upstream.sticky.as_ref().map(|sticky| sticky.allow_failover);
    let retries = (
        upstream.retry.per_request_max,
        upstream.retry.nonidempotent,
        upstream.retry.connect_retries,
    );
    format!(
        "{pool:?}, {balance:?}, backups {backups:?}, slow start {slow_start_us} us, sticky \
         (failover) {sticky:?}, {all_down:?}, \
         retries (nonidempotent, connect) {retries:?}, failover {failover:?}, health {health:?}"
    )
}

fn turn_retries(upstream: &mut UpstreamPlan, rng: &mut Rng) {
    if rng.chance(300) {
        upstream.retry.per_request_max = *rng.pick(&[0, 1, 2, 20]);
    }
    if rng.chance(200) {
        upstream.retry.nonidempotent = true;
    }
    if rng.chance(300) {
        upstream.retry.connect_retries = *rng.pick(&[0, 1, 3, 100]);
    }
    if rng.chance(300) {
        upstream.retry.budget_percent = *rng.pick(&[0, 1, 100]);
    }
}

fn method(rng: &mut Rng) -> Method {
    let statistics = [Statistic::Min, Statistic::Avg, Statistic::Max, Statistic::Percentile(9_000)];
    let by = *rng.pick(&statistics);
    match rng.below(7) {
        0 => Method::Dynamic(by),
        1 => Method::Predict {
            by,
            past_us: 1_000_000,
            ahead_us: *rng.pick(&[0, 500_000, 15_000_000]),
        },
        2 => Method::Least,
        3 => Method::Hash(Key::Uri),
        4 => Method::Hash(Key::ClientIp),
        5 => Method::Hash(Key::Header(KEY_FIELD.to_owned())),
        _ => Method::Hash(Key::Cookie(COOKIE.to_owned())),
    }
}

fn sticky(upstream: &UpstreamPlan, allow_failover: bool) -> Sticky {
    let names: Vec<&str> = upstream.servers.iter().map(|server| server.name.as_str()).collect();
    Sticky::new(&Cookie::new(COOKIE), allow_failover, "secret", &upstream.name, &names)
}

fn rule(rng: &mut Rng) -> FailoverRule {
    let codes =
        [(500, 599), (503, 503), (404, 404), (500, 500)].map(|(first, last)| Codes { first, last });
    let symptoms = codes.map(Symptom::Status);
    let symptom = if rng.chance(250) { Symptom::Lost } else { *rng.pick(&symptoms) };
    let (limit, window_us) =
        (rng.between(1, 6) as u32, *rng.pick(&[10_000, 1_000_000, 60_000_000]));
    FailoverRule { symptom, limit, window_us }
}

fn health(rng: &mut Rng) -> HealthPlan {
    let looks_at_body = rng.chance(300);
    HealthPlan {
        path: HEALTH_PATH.to_owned(),
        method: if !looks_at_body && rng.chance(300) { "HEAD" } else { "GET" }.to_owned(),
        expect_body: looks_at_body.then(|| BodyCheck::Contains(WELL.to_owned())),
        interval_us: *rng.pick(&[30_000, 300_000, 2_000_000]),
        timeout_us: *rng.pick(&[20_000, 400_000, 5_000_000]),
        rise: rng.between(1, 3) as u32,
        fall: rng.between(1, 3) as u32,
        ..HealthPlan::default()
    }
}

/// Times in which a server answers everything with 503.
pub fn illnesses(rng: &mut Rng) -> Vec<Outage> {
    let count = *rng.pick(&[0, 0, 1, 3]);
    let one = |_| Outage {
        how: How::Ill,
        at_us: rng.below(TROUBLE_US),
        for_us: rng.between(1, 3_000_000),
    };
    (0..count).map(one).collect()
}

/// The orders of an operator in a world: one after the other, and in the end all servers are
/// enabled. At least one server is always enabled, except where nothing is promised anyway.
pub fn orders(servers: usize, kind: Kind, rng: &mut Rng) -> Vec<Ordered> {
    let mut all = Vec::new();
    let mut serving = vec![true; servers];
    let mut at_us = rng.below(1_000_000);
    while at_us < TROUBLE_US {
        let (server, order) = (rng.index(servers), *rng.pick(&Order::ALL));
        let others = serving.iter().enumerate().any(|(at, serves)| at != server && *serves);
        if others || order == Order::Enable || kind == Kind::Rough {
            serving[server] = order == Order::Enable;
            all.push(Ordered { at_us, server: server as u32, order });
        }
        at_us += rng.below(2_000_000);
    }
    all.extend((0..servers as u32).map(|server| Ordered {
        at_us: TROUBLE_US,
        server,
        order: Order::Enable,
    }));
    all
}
