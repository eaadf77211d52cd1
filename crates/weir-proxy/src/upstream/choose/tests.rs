//! Proves: no server gets a request that it may not have; no server is chosen while a better one is
//! available: servers that are up before those that may come up, others before backups and
//! suspended ones, another server before the one where a request was lost; a session is sent to its
//! server; a trial only where one is due. How: upstreams in generated states, and what may be said
//! of each server without looking at ranks; examples.

use std::net::SocketAddr;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::base::keys::{ExchangeKey, Key};
use crate::context::Context;
use crate::cross::hints::Hints;
use crate::cross::standing::{Order, Suspension, SuspensionCause};
use crate::placement::balance::{self, Method};
use crate::plan::{AllDown, Plan, ServerPlan, UpstreamPlan};
use crate::request::pending_request::ExchangeId;
use crate::upstream::Upstreams;
use crate::upstream::pool::Event;
use crate::upstream::queue::tests::request;

const NOW_US: u64 = 100_000_000;

/// What another worker has of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Other {
    Nothing,
    Hope,
    Connection,
}

/// A server in a possible state. This worker is 0, the other worker 1.
#[derive(Debug, Clone, Copy)]
struct Case {
    order: Order,
    suspended: bool,
    backup: bool,
    /// Over both workers; with one, it is the worker's with the number of the server, modulo 2.
    connections: u32,
    /// Of them are up here.
    up: u32,
    /// On each of them is a request that nothing may follow.
    held: bool,
    /// One more is being made.
    comes: bool,
    reach: Reach,
    failures: u32,
    other: Other,
    trial_due: bool,
}

const CASE: Case = Case {
    order: Order::Enable,
    suspended: false,
    backup: false,
    connections: 4,
    up: 1,
    held: false,
    comes: false,
    reach: Reach::Proven,
    failures: 0,
    other: Other::Nothing,
    trial_due: false,
};

/// Nothing is up, and it is unknown whether it can be.
const DOWN: Case = Case { up: 0, reach: Reach::Doubtful, ..CASE };

struct World {
    all: Upstreams,
    cx: Context,
    cases: Vec<Case>,
}

impl World {
    fn new(cases: &[Case], balance: Method, all_down: AllDown) -> World {
        let server = |(n, case): (usize, &Case)| {
            let address = SocketAddr::from(([10, 0, 0, n as u8], 9090));
            let (connections, connections_min) = (case.connections, 0);
            let connections_max = connections;
            let plan = ServerPlan::new(&address.to_string(), address);
            ServerPlan {
                backup: case.backup,
                connections,
                connections_min,
                connections_max,
                ..plan
            }
        };
        let servers = cases.iter().enumerate().map(server).collect();
        let upstream = UpstreamPlan { servers, balance, all_down, ..UpstreamPlan::default() };
        let plan = Arc::new(Plan { upstreams: vec![upstream], ..Plan::default() });
        let mut cx = Context::new(plan, Arc::default(), 0, 2, NOW_US);
        let hints = Arc::new(Hints::new(cases.len(), 2));
        let all = Upstreams::new(Arc::clone(&hints), &[], 1, &mut cx);
        let mut world = World { all, cx, cases: cases.to_vec() };
        for (n, case) in cases.iter().enumerate() {
            world.prepare(ServerIndex::new(n as u32), case);
            let (ready, hopeful) =
                (u32::from(case.other == Other::Connection), case.other != Other::Nothing);
            hints.set_ready(ServerIndex::new(n as u32), 1, ready, hopeful);
            if case.trial_due {
                hints.set_trial(ServerIndex::new(n as u32), NOW_US);
            }
        }
        world
    }

    fn prepare(&mut self, server: ServerIndex, case: &Case) {
        let (pool, cx) = (&mut self.all.pool, &self.cx);
        let (up, comes) = match pool.servers[server].limits.shared {
            0 => (0, false),
            shared => (case.up.min(shared), case.comes && case.up < shared),
        };
        for n in 0..up + u32::from(comes) {
            let index = pool.add_position(server, cx);
            pool.transition(index, Event::Connects { deadline_us: NOW_US + 10_000_000 }, cx);
            pool.conns.at_mut(index).contact.since_us = NOW_US;
            if n < up {
                pool.transition(index, Event::Connected, cx);
                if case.held {
                    let alone =
                        request(name(100 + server.number()), RequestFlags::default(), 0).ask;
                    pool.push(
                        index,
                        PendingRequest { server: server.number() as u16, ..alone },
                        0,
                        cx,
                    );
                }
            }
        }
        let machine = &mut pool.servers[server];
        machine.contact.reach = case.reach;
        machine.contact.failures = if up == 0 { case.failures } else { 0 };
        machine.contact.unreachable = up == 0 && case.reach == Reach::Doubtful;
        machine.standing.order(case.order);
        if case.suspended {
            let cause = SuspensionCause::Answers { rule: 0 };
            machine.standing.suspend(Suspension { cause, since_us: 0 });
        }
    }

    fn choose(&mut self, ask: &PendingRequest, purpose: Purpose) -> Result<Placement, Cause> {
        self.all.groups.choose(ask, purpose, &mut self.all.pool, &self.cx)
    }

    fn owned(&self, n: usize) -> bool {
        self.all.pool.servers[ServerIndex::new(n as u32)].limits.shared > 0
    }

    fn takes(&self, n: usize) -> bool {
        self.cases[n].order == Order::Enable && !self.cases[n].suspended
    }

    /// Whether connections of this worker are up, or can be.
    fn is_here(&self, n: usize) -> bool {
        self.owned(n) && (self.cases[n].up > 0 || self.cases[n].reach == Reach::Proven)
    }

    fn is_up(&self, n: usize) -> bool {
        self.takes(n) && (self.is_here(n) || self.cases[n].other != Other::Nothing)
    }

    /// All that holds for a choice whatever its purpose.
    fn check(&self, ask: &PendingRequest, chosen: &Placement) -> Result<(), TestCaseError> {
        let n = usize::from(chosen.server);
        match chosen.way {
            Way::Here => prop_assert!(self.owned(n), "no connections of this worker"),
            Way::Worker(worker) => {
                prop_assert!(
                    worker == 1 && (self.cases[n].other != Other::Nothing || !self.owned(n))
                );
                prop_assert!(
                    !ask.traits.has(RequestFlags::STREAMING) || ask.id.worker == 0,
                    "too late for its body"
                );
            }
            Way::Private => prop_assert!(false, "nothing is private"),
        }
        Ok(())
    }
}

fn name(number: u32) -> ExchangeId {
    ExchangeId { worker: 0, index: ExchangeKey::new(number), generation: 0 }
}

fn get() -> PendingRequest {
    request(name(0), RequestFlags::PIPELINABLE.with(RequestFlags::RETRIABLE, true), 0).ask
}

fn post() -> PendingRequest {
    request(name(0), RequestFlags::default(), 0).ask
}

fn by_key() -> Method {
    Method::Hash(balance::Key::Uri)
}

fn any_case() -> impl Strategy<Value = Case> {
    let order = prop::sample::select(vec![
        Order::Enable,
        Order::Enable,
        Order::Enable,
        Order::Drain,
        Order::Disable,
    ]);
    let reach =
        prop::sample::select(vec![Reach::Unknown, Reach::Proven, Reach::Doubtful, Reach::Doubtful]);
    let other =
        prop::sample::select(vec![Other::Nothing, Other::Nothing, Other::Hope, Other::Connection]);
    let connections = prop::sample::select(vec![1, 4]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let parts = (order, reach, other, connections, 0..3u32, 0..5u32, flags);
    parts.prop_map(
        |(
            order,
            reach,
            other,
            connections,
            up,
            failures,
            (suspended, backup, held, comes, trial_due),
        )| {
            Case {
                order,
                suspended,
                backup,
                connections,
                up: up.min(connections),
                held,
                comes,
                reach,
                failures,
                other,
                trial_due,
            }
        },
    )
}

/// An upstream, a request of a client of this worker, the method, and what happens when all are
/// down.
fn any_world() -> impl Strategy<Value = (Vec<Case>, PendingRequest, Method, AllDown)> {
    let method = prop::sample::select(vec![Method::Ratio, Method::Least, by_key()]);
    let all_down = prop::sample::select(vec![AllDown::TryAll, AllDown::Refuse]);
    let ask = (prop::sample::select(vec![get(), post()]), 0..2u64, any::<prop::sample::Index>());
    (prop::collection::vec(any_case(), 1..5), ask, method, all_down).prop_map(
        |(cases, ask, method, all_down)| {
            let (ask, key, server) = ask;
            let key = if method == by_key() { key * 77 } else { 0 };
            let server = server.index(cases.len()) as u16;
            (cases, PendingRequest { key, server, ..ask }, method, all_down)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_new_request((cases, ask, method, all_down) in any_world()) {
        let (mut world, all) = (World::new(&cases, method, all_down), 0..cases.len());
        let some_up =
            |backup: bool| all.clone().any(|n| world.is_up(n) && cases[n].backup == backup);
        let (up, backup_up) = (some_up(false), some_up(true));
        let Ok(chosen) = world.choose(&ask, Purpose::New) else {
            prop_assert!(!up && !backup_up, "refused");
            return Ok(());
        };
        world.check(&ask, &chosen)?;
        let n = usize::from(chosen.server);
        let comes = world.takes(n) && !cases[n].backup && cases[n].comes && backup_up;
        prop_assert!(world.is_up(n) || !up && (!backup_up || comes), "another one is up");
        prop_assert!(!cases[n].backup || !up, "a backup, and another one is up");
        if !world.takes(n) {
            let tried = cases[n].suspended
                && cases[n].order == Order::Enable
                && all_down == AllDown::TryAll;
            prop_assert!(tried, "one that takes nothing");
        }
        let free = |n: usize| {
            world.is_up(n)
                && cases[n].backup == cases[chosen.server as usize].backup
                && !cases[n].held
        };
        if world.is_up(n) && ask.key == 0 && all.clone().any(free) {
            let held = world.all.pool.servers[ServerIndex::new(n as u32)].is_held();
            prop_assert!(!held, "a held one, and another is free");
        }
    }

    #[test]
    fn one_that_goes_again(
        (cases, ask, method, all_down) in any_world(),
        streaming: bool,
        from_other: bool,
        tries in 1..3u8,
    ) {
        let (mut world, all) = (World::new(&cases, method, all_down), 0..cases.len());
        let id = ExchangeId { worker: u16::from(from_other), ..ask.id };
        let traits = ask.traits.with(RequestFlags::STREAMING, streaming);
        let (ask, old) = (PendingRequest { id, traits, tries, ..ask }, usize::from(ask.server));
        let crosses = !streaming || !from_other;
        let is_up = |n: usize| world.takes(n) && (world.is_here(n) || crosses && world.is_up(n));
        let some_up =
            |backup: bool| all.clone().any(|n| n != old && is_up(n) && cases[n].backup == backup);
        let (up, backup_up) = (some_up(false), some_up(true));
        let up_now: Vec<bool> = all.map(is_up).collect();
        let Ok(chosen) = world.choose(&ask, Purpose::Again) else {
            prop_assert!(!up && !backup_up, "refused");
            return Ok(());
        };
        world.check(&ask, &chosen)?;
        let n = usize::from(chosen.server);
        prop_assert!(n != old || !up && !backup_up, "where it was lost, and another one is up");
        prop_assert!(n == old || up_now[n] || !up && !backup_up, "one that is not up");
        prop_assert!(n == old || !cases[n].backup || !up, "a backup, and another one is up");
        if n != old && !world.takes(n) {
            let tried = cases[n].suspended
                && cases[n].order == Order::Enable
                && all_down == AllDown::TryAll;
            prop_assert!(tried, "one that takes nothing");
        }
    }

    #[test]
    fn one_of_a_session(
        (cases, ask, method, all_down) in any_world(),
        strictly: bool,
        again: bool,
    ) {
        let mut world = World::new(&cases, method, all_down);
        let (bound, traits) = (ask.server, ask.traits.with(RequestFlags::BOUND, strictly));
        let ask = PendingRequest { bound, traits, ..ask };
        let case = cases[usize::from(bound)];
        let accepts = case.order != Order::Disable && !case.suspended;
        let up = world.is_here(usize::from(bound)) || case.other != Other::Nothing;
        match world.choose(&ask, if again { Purpose::Again } else { Purpose::New }) {
            Ok(chosen) => {
                world.check(&ask, &chosen)?;
                prop_assert!(chosen.server == bound || !(strictly || accepts && up), "not its own");
                prop_assert!(chosen.server != bound || accepts || !strictly, "it takes nothing");
            }
            Err(_) => prop_assert!(!(accepts && up && !again), "its server is there"),
        }
    }

    #[test]
    fn one_that_tries_a_server((cases, ask, method, all_down) in any_world()) {
        let mut world = World::new(&cases, method, all_down);
        let due = |case: &Case| case.trial_due && case.suspended && case.order == Order::Enable;
        let fit = ask.traits.has(RequestFlags::RETRIABLE);
        let mut tried = Vec::new();
        while let Ok(chosen) =
            world.choose(&ask, Purpose::Trial { from: tried.last().map_or(0, |last| last + 1) })
        {
            tried.push(chosen.server);
        }
        let expected = (0..cases.len()).filter(|n| fit && due(&cases[*n])).map(|n| n as u16);
        prop_assert_eq!(tried, expected.collect::<Vec<_>>());
    }
}

/// The servers that new requests get, one after another.
fn chosen(world: &mut World, ask: &PendingRequest) -> Vec<u16> {
    (0..6).map(|_| world.choose(ask, Purpose::New).expect("a place").server).collect()
}

#[test]
fn ranks_are_in_the_order_of_preference() {
    let rank = |tier, backup, how| Rank { tier, backup, how };
    let order = [
        rank(Tier::Now, false, How::Idle),
        rank(Tier::Now, false, How::Held),
        rank(Tier::Now, false, How::Elsewhere),
        rank(Tier::Now, false, How::Coming),
        rank(Tier::Now, true, How::Idle),
        rank(Tier::Soon, false, How::Free),
        rank(Tier::LastResort, false, How::Free),
        rank(Tier::Later, false, How::Free),
    ];
    assert!(order.is_sorted());
}

#[test]
fn a_post_goes_where_nothing_is_unanswered() {
    let mut world =
        World::new(&[DOWN, Case { held: true, ..CASE }, CASE], Method::Ratio, AllDown::TryAll);
    assert_eq!(chosen(&mut world, &post()), [2; 6]);
    assert_eq!(chosen(&mut world, &get()), [1, 2, 1, 2, 1, 2], "another connection may be made");
}

#[test]
fn a_held_server_comes_after_others_unless_a_key_decides() {
    let held = Case { held: true, connections: 2, ..CASE };
    let mut world = World::new(&[held, CASE], by_key(), AllDown::TryAll);
    assert_eq!(chosen(&mut world, &get()), [1; 6], "without the key nothing decides");
    let of_held = (1..).map(|key| PendingRequest { key, ..get() });
    let mut of_held =
        of_held.filter(|ask| world.choose(ask, Purpose::New).expect("a place").server == 0);
    assert!(of_held.next().is_some());
}

#[test]
fn one_that_comes_spares_the_backup() {
    let comes = Case { comes: true, reach: Reach::Unknown, ..DOWN };
    let backup = Case { backup: true, ..CASE };
    // It is unknown whether a connect that has not succeeded so far will.
    let mut world = World::new(&[comes, backup], Method::Ratio, AllDown::TryAll);
    assert_eq!(chosen(&mut world, &get()), [0; 6]);
    let mut world =
        World::new(&[Case { failures: 1, ..comes }, backup], Method::Ratio, AllDown::TryAll);
    assert_eq!(chosen(&mut world, &get()), [1; 6]);
}

#[test]
fn a_retry_crosses_workers_before_it_takes_a_backup() {
    let elsewhere = Case { connections: 1, other: Other::Connection, ..DOWN };
    let mut world = World::new(
        &[CASE, elsewhere, Case { backup: true, ..CASE }],
        Method::Ratio,
        AllDown::TryAll,
    );
    let again =
        world.choose(&PendingRequest { tries: 1, ..get() }, Purpose::Again).expect("a place");
    assert_eq!((again.server, again.way), (1, Way::Worker(1)));
}

#[test]
fn a_suspended_server_is_the_last_resort() {
    let suspended = Case { suspended: true, ..CASE };
    for (all_down, expected) in
        [(AllDown::TryAll, Ok(1)), (AllDown::Refuse, Err(Cause::NoHealthyServer))]
    {
        let mut world =
            World::new(&[Case { failures: 1_000, ..DOWN }, suspended], Method::Ratio, all_down);
        let new = world.choose(&get(), Purpose::New).map(|place| place.server);
        let again = world
            .choose(&PendingRequest { tries: 1, ..get() }, Purpose::Again)
            .map(|place| place.server);
        assert_eq!((new, again), (expected, expected));
    }
}
