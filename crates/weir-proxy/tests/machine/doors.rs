//! Proves: TLS clients are judged before their handshakes. weir does no more of the expensive work
//! than limits allow, over all workers and for any number of handshakes at once; resumed ones are
//! free; and open counts are given back however a handshake ends (docs/limits.md). How:
//! doors that are called as a driver does.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use weir_proxy::engine::{Door, Unwanted, Visit, accepted_by_door};
use weir_proxy::observe::counters::Counters;
use weir_proxy::plan::{
    BanPlan, ClientPlan, Entrance, LimitPlan, Network, Over, Plan, ShieldPlan, Terms,
};
use weir_proxy::shield::bans::{BanSet, Block};
use weir_proxy::shield::limit::Rate;
use weir_proxy::shield::tally::Outcome;

use crate::world::{World, plan};

const SECOND_US: u64 = 1_000_000;
const NOW_US: u64 = 77 * SECOND_US;

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn client() -> IpAddr {
    address("192.0.2.7")
}

/// One a second, two at once.
fn rate() -> Rate {
    Rate::new(1, SECOND_US, 2, false)
}

fn limit(terms: Terms, change: impl FnOnce(&mut LimitPlan)) -> LimitPlan {
    let mut limit = LimitPlan::new(terms.word(), terms);
    change(&mut limit);
    limit
}

fn limited(limits: Vec<LimitPlan>) -> Plan {
    Plan { shield: Some(ShieldPlan::new(limits, 1024)), ..plan(1, 1) }
}

fn shield(plan: &Plan) -> &ShieldPlan {
    plan.shield.as_ref().expect("there are limits")
}

fn open(plan: &Plan) -> u64 {
    shield(plan).seed.table().open_sum()
}

fn tally(plan: &Plan) -> [u64; 4] {
    let all = [Outcome::Passed, Outcome::Refused, Outcome::Observed, Outcome::Untracked];
    all.map(|outcome| shield(plan).limits[0].tally.get(outcome))
}

/// Doors of several workers.
fn doors<const N: usize>(plan: &Arc<Plan>) -> [Door; N] {
    std::array::from_fn(|worker| Door::new(Arc::clone(plan), worker as u16, Arc::default()))
}

/// A handshake up to its work.
fn shake(door: &mut Door, worked: bool, now_us: u64) -> Result<Visit, Unwanted> {
    let mut visit = door.admit(client(), now_us)?.expect("a limit is for him");
    work(door, &mut visit, worked, now_us).map(|()| visit)
}

fn work(door: &mut Door, visit: &mut Visit, worked: bool, now_us: u64) -> Result<(), Unwanted> {
    door.charge(client(), visit, now_us)?;
    door.settle(client(), worked, now_us);
    Ok(())
}

#[test]
fn handshakes_that_work_are_limited_and_others_are_free() {
    let plan =
        Arc::new(limited(vec![limit(Terms::Handshakes(rate()), |limit| limit.over = Over::Close)]));
    let [mut one, mut other] = doors(&plan);
    (0..50).for_each(|_| _ = shake(&mut one, false, NOW_US).expect("it resumes"));
    assert_eq!(tally(&plan), [0; 4]);
    shake(&mut one, true, NOW_US).expect("the first");
    shake(&mut other, false, NOW_US).expect("it resumes");
    shake(&mut other, true, NOW_US).expect("the second");
    assert_eq!(
        shake(&mut one, true, NOW_US).err(),
        Some(Unwanted::Close),
        "in front of the handshake"
    );
    assert_eq!(
        shake(&mut other, false, NOW_US).err(),
        Some(Unwanted::Close),
        "nobody knows yet that it would resume"
    );
    assert_eq!(tally(&plan), [2, 2, 0, 0]);
    let later_us = NOW_US + SECOND_US;
    shake(&mut one, true, later_us).expect("another one");
    assert!(shake(&mut one, true, later_us).is_err());
    let others = other.admit(address("192.0.2.8"), later_us);
    assert!(others.is_ok(), "another client");
}

#[test]
fn who_came_at_the_same_time_works_no_more_than_he_may() {
    for observe in [false, true] {
        let handshakes = limit(Terms::Handshakes(rate()), |limit| limit.observe = observe);
        let plan = Arc::new(limited(vec![handshakes]));
        let mut doors: [Door; 2] = doors(&plan);
        let mut visits: Vec<Visit> = (0..6)
            .map(|number| {
                doors[number % 2]
                    .admit(client(), NOW_US)
                    .expect("nothing was done")
                    .expect("a visit")
            })
            .collect();
        let worked: Vec<bool> = visits
            .iter_mut()
            .enumerate()
            .map(|(number, visit)| work(&mut doors[number % 2], visit, true, NOW_US).is_ok())
            .collect();
        assert_eq!(worked, [true, true, observe, observe, observe, observe]);
        // Each is counted once, however many steps it takes.
        work(&mut doors[0], &mut visits[2], false, NOW_US).err();
        assert_eq!(tally(&plan), if observe { [2, 0, 4, 0] } else { [2, 5, 0, 0] });
    }
}

#[test]
fn handshakes_that_fail_are_limited() {
    for observe in [false, true] {
        let failed = limit(Terms::HandshakesFailed(rate()), |limit| limit.observe = observe);
        let plan = Arc::new(limited(vec![failed]));
        let [mut door] = doors(&plan);
        for _ in 0..3 {
            // A handshake that was admitted fails, even if no more failures are allowed.
            door.failed(client(), NOW_US);
        }
        door.failed(address("192.0.2.8"), NOW_US);
        assert_eq!(tally(&plan), [4, 0, 0, 0]);
        assert_eq!(door.admit(client(), NOW_US).is_ok(), observe);
        assert!(
            door.admit(address("192.0.2.9"), NOW_US).is_ok()
                && door.admit(client(), NOW_US + SECOND_US).is_ok()
        );
        assert_eq!(tally(&plan), if observe { [4, 0, 1, 0] } else { [4, 1, 0, 0] });
    }
}

/// A client without TLS makes no handshake.
#[test]
fn plain_connections_are_not_theirs() {
    let plan = limited(vec![
        limit(Terms::Handshakes(rate()), |_| ()),
        limit(Terms::HandshakesFailed(rate()), |_| ()),
    ]);
    let mut world = World::started(plan, 1, 1);
    world.peer = client();
    let plan = Arc::clone(&world.nodes[0].parts.plan);
    let [mut door] = doors(&plan);
    (0..3).for_each(|_| door.failed(client(), world.now_us));
    (0..2).for_each(|_| _ = shake(&mut door, true, world.now_us));
    assert!(door.admit(client(), world.now_us).is_err());
    let client = world.client();
    world.get(client, "a");
    world.settle();
    assert_eq!(world.clients[client].statuses(), [200]);
    world.finish();
}

fn accept(world: &mut World, visit: Option<Visit>) -> Result<u64, Unwanted> {
    let entrance = Entrance { serves: world.serves, ..Entrance::default() };
    accepted_by_door(&mut world.nodes[0].engine, 77, SocketAddr::new(client(), 1), entrance, visit)
}

#[test]
fn what_is_open_comes_back() {
    let limits = || {
        vec![
            LimitPlan::new("open", Terms::Open(2)),
            limit(Terms::Connections(Rate::new(9, SECOND_US, 9, false)), |_| ()),
        ]
    };
    let mut world = World::started(limited(limits()), 1, 1);
    let plan = Arc::clone(&world.nodes[0].parts.plan);
    let [mut door] = doors(&plan);
    let mut admit =
        |now_us| door.admit(client(), now_us).map(|visit| visit.expect("a limit is for him"));
    let (first, second) = (admit(NOW_US).expect("one"), admit(NOW_US).expect("two"));
    assert_eq!((admit(NOW_US).err(), open(&plan)), (Some(Unwanted::Reset), 2));
    drop(first);
    assert_eq!(open(&plan), 1, "a handshake that came to nothing");
    let token = accept(&mut world, Some(second)).expect("it is let in");
    assert_eq!((open(&plan), tally(&plan)), (1, [2, 1, 0, 0]), "it is not judged again");
    world.nodes[0].engine.client_failed(token);
    assert_eq!(open(&plan), 0);
    // A worker that has lost everything gives back what it had, except handshakes that are still in
    // progress.
    let (third, fourth) = (admit(NOW_US).expect("one"), admit(NOW_US).expect("two"));
    accept(&mut world, Some(third)).expect("it is let in");
    world.begin_anew(0);
    assert_eq!(open(&plan), 1);
    // Other accounts, or none.
    world.reload(self::plan(1, 1));
    accept(&mut world, Some(fourth)).expect("it is let in");
    assert_eq!(open(&plan), 0);
    world.reload(limited(limits()));
    let fifth = admit(NOW_US + SECOND_US).expect("of the accounts before");
    accept(&mut world, Some(fifth)).expect("it is let in");
    assert_eq!((open(&plan), open(&world.nodes[0].parts.plan)), (0, 0));
    // A client that is not wanted after all.
    let sixth = admit(NOW_US + SECOND_US).expect("one");
    world.nodes[0]
        .engine
        .set_bans(Arc::new(BanSet::new(vec![(Block::of(client(), 32).expect("one"), u64::MAX)])));
    assert_eq!((accept(&mut world, Some(sixth)).err(), open(&plan)), (Some(Unwanted::Reset), 0));
}

#[test]
fn bans_and_who_is_never_limited() {
    let mut limits =
        limited(vec![limit(Terms::HandshakesFailed(rate()), |limit| limit.over = Over::Ban)]);
    let own = limits.shield.as_mut().expect("limits");
    own.ban = Some(BanPlan::default());
    own.allow = vec![Network { address: address("198.51.100.0"), prefix_bits: 24 }];
    let trusted_proxies = vec![Network { address: address("203.0.113.1"), prefix_bits: 32 }];
    let plan = Arc::new(Plan {
        client: ClientPlan { trusted_proxies, ..ClientPlan::default() },
        ..limits
    });
    let counters = Arc::new(Counters::default());
    let mut door = Door::new(Arc::clone(&plan), 0, Arc::clone(&counters));
    (0..2).for_each(|_| door.failed(client(), NOW_US));
    assert!(door.take_offence().is_none());
    assert!(door.admit(client(), NOW_US).is_err() && door.admit(client(), NOW_US).is_err());
    let offence = door.take_offence().expect("he is to be banned");
    assert_eq!(
        (offence.block.to_string(), &*offence.limit, offence.by_proxy),
        ("192.0.2.7".to_owned(), "handshakes-failed", false)
    );
    assert!(door.take_offence().is_none(), "once");
    for exempt in ["198.51.100.9", "203.0.113.1"] {
        assert!(matches!(door.admit(address(exempt), NOW_US), Ok(None)), "{exempt}");
    }
    door.set_bans(Arc::new(BanSet::new(vec![(
        Block::of(address("198.51.100.9"), 32).expect("one"),
        NOW_US + 1,
    )])));
    assert_eq!(door.admit(address("198.51.100.9"), NOW_US).err(), Some(Unwanted::Reset));
    assert!(door.admit(address("198.51.100.9"), NOW_US + 1).is_ok());
    assert_eq!(counters.connections_banned.get(), 1);
    door.adopt(Arc::new(self::plan(1, 1)));
    assert!(matches!(door.admit(client(), NOW_US), Ok(None)), "no limits any more");
}
