//! docs/tcp.md: clients and servers understand each other through `tcp` as they do
//! without weir between them, whatever the network does to bytes. Whatever breaks, both ends close
//! and nothing is left behind: no socket, no account, no place at a server.

use std::sync::Arc;

use weir_check::Rules;
use weir_io::sim::{Faults, Rng, Settings};
use weir_proxy::placement::balance::{Key, Method};
use weir_proxy::plan::{
    Congestion, Dial, LimitPlan, PipelineMode, Pool, Serves, ShieldPlan, TcpPlan, Terms, Tuning,
};

use super::book::Outcome;
use super::client::Manners;
use super::each_seed;
use super::run::Run;
use super::scenario::{Kind, Scenario};
use super::seeds;
use super::server::Style;

pub fn scenario(seed: u64, kind: Kind, faults: Faults) -> Scenario {
    let rng = &mut Rng::new(seed ^ 0x7c9);
    let mut scenario = Scenario::of(Kind::Hostile, seed, 1 + (seed % 3) as u16);
    (scenario.name, scenario.kind) = ("tcp", kind);
    scenario.settings = Settings::random(seed, faults);
    scenario.settings.window_bytes = 1 << rng.between(12, 18);
    let rules = Rules { via: false, lasts: false, ..Rules::default() };
    let style = Style {
        delay_us_max: *rng.pick(&[0, 20_000]),
        pieces: 300,
        slow: 20,
        rules,
        ..Style::honest()
    };
    scenario.styles.iter_mut().for_each(|old| *old = style.clone());
    scenario.clients = 1 + rng.index(12);
    scenario.manners = Manners { burst: 5, slow: 30, ..Manners::quiet(1 + rng.index(8)) };
    let balance = [Method::Ratio, Method::Least, Method::Hash(Key::ClientIp)][rng.index(3)].clone();
    let plan = scenario.plan_mut();
    plan.listeners[0].serves = Serves::Tcp(0);
    // Socket settings change nothing here.
    let mut divided = || Congestion::new(["bbr", "cubic"].into_iter().take(rng.index(3)));
    plan.listeners[0].congestion = divided();
    plan.upstreams[0].dial = Dial {
        congestion: divided(),
        tuning: Some(Tuning::by(Some("eth1")).into()),
        ..Dial::default()
    };
    plan.tcp = vec![Arc::new(TcpPlan::new(0))];
    let upstream = &mut plan.upstreams[0];
    (upstream.pool, upstream.pipeline, upstream.balance, upstream.echo) =
        (Pool::Tcp, PipelineMode::Off, balance, None);
    // Enough for all, and none of it may remain taken.
    upstream.servers.iter_mut().for_each(|server| server.tcp_connections_max = Some(1_000));
    plan.shield = Some(ShieldPlan::new(vec![LimitPlan::new("open", Terms::Open(1_000))], 1024));
    scenario
}

#[test]
fn parties_understand_each_other_through_it() {
    each_seed(seeds(), |seed| {
        let run = Run::new(scenario(seed, Kind::Hostile, Faults::harmless(seed)));
        run.finish_with(|book| {
            let lost = book.entries.values().find(|entry| entry.outcome != Outcome::Answered);
            lost.map_or(Ok(()), |entry| {
                Err(format!("a request was not answered: {:?}", entry.outcome))
            })
        });
    });
}

#[test]
fn what_breaks_leaves_nothing_behind() {
    each_seed(seeds(), |seed| {
        let mut scenario = scenario(seed, Kind::Rough, Faults::random(seed));
        scenario.manners.abort = 100;
        Run::new(scenario).finish();
    });
}

#[test]
fn workers_that_begin_anew_leave_nothing_behind() {
    each_seed(seeds(), |seed| {
        let run = Run::new(scenario(seed, Kind::Panicking, Faults::harmless(seed)));
        run.panic(4, 40);
        run.finish();
    });
}
