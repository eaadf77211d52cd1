//! Proves: `split` gives each upstream its share, by count or by a stable key, through reloads,
//! also where connections belong to clients; and rules, fallbacks and the order of responses are
//! the same as without it. How: three upstreams of one server each, counted.
//! docs/traffic-splitting.md.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_proxy::placement::balance::Key;
use weir_proxy::plan::{AllDown, Plan, Pool, UpstreamPlan};
use weir_proxy::request::route::{Route, RouteTable, Target};
use weir_proxy::request::rules::RouteRules;
use weir_proxy::request::rules::edits::{Edit, FieldEdits};
use weir_proxy::request::rules::split::Split;
use weir_proxy::request::rules::text::Text;

use crate::world::{Door, World, plan};

/// Upstreams `app`, `canary` and `other` with these shares in hundredths of a percent; servers get
/// their own name.
fn shares(canary: u32, other: u32, key: Option<Key>) -> Plan {
    let mut all = plan(3, 2);
    let mut servers = std::mem::take(&mut all.upstreams[0].servers).into_iter();
    let mut upstream = |name: &str| UpstreamPlan {
        name: name.to_owned(),
        servers: servers.next().into_iter().collect(),
        ..UpstreamPlan::default()
    };
    all.upstreams = ["app", "canary", "other"].map(&mut upstream).into();
    let mut request = FieldEdits::default();
    request.push("X-Side", Edit::Set(Text::compile("$upstream_name").expect("a text")));
    let rules = Some(Arc::new(RouteRules { request, ..RouteRules::default() }));
    let target = Target::Split(Arc::new(Split::new(&[(canary, 1), (other, 2)], 0, key)));
    all.routes = RouteTable::new(vec![Route { target, rules, ..Route::default() }]);
    all
}

/// Returns how many requests each server has seen, all with the right name.
fn seen(world: &World) -> BTreeMap<usize, usize> {
    let mut seen = BTreeMap::new();
    for conn in &world.conns {
        for request in &conn.requests {
            assert_eq!(request.fields.all("x-side"), [["app", "canary", "other"][conn.server]]);
            *seen.entry(conn.server).or_default() += 1;
        }
    }
    seen
}

#[test]
fn each_has_its_share() {
    for workers in [1, 2] {
        let mut world = World::started(shares(500, 2_500, None), workers, 1);
        let clients: Vec<usize> =
            (0..4).map(|n| world.client_of(n % usize::from(workers))).collect();
        for n in 0..400 {
            world.get(clients[n % 4], &format!("{n:08}"));
            world.run_for(1_000);
        }
        let had = seen(&world);
        assert!((18..=22).contains(&had[&1]) && (98..=102).contains(&had[&2]), "{had:?}");
        assert_eq!(world.count(|counters| counters.split_off.get()) as usize, had[&1] + had[&2]);
        assert!(clients.iter().all(|client| world.clients[*client].statuses() == [200; 100]));
        world.finish();
    }
}

/// A key is always on the same side; requests without a key are counted.
#[test]
fn a_key_stays() {
    let mut world = World::started(shares(5_000, 0, Some(Key::Cookie("user".to_owned()))), 2, 1);
    let clients = [world.client_of(0), world.client_of(1)];
    let ask = |world: &mut World, client: usize, user: usize, n: usize| {
        let target = format!("/v?n={user:04}{n:04}");
        world.ask(client, "GET", &target, &format!("Cookie: user=u{user}\r\n"));
        world.run_for(2_000);
    };
    for n in 0..3 {
        for user in 0..40 {
            ask(&mut world, clients[(n + user) % 2], user, n);
        }
    }
    // A larger share keeps the users that it had.
    world.reload(shares(7_000, 0, Some(Key::Cookie("user".to_owned()))));
    for user in 0..40 {
        ask(&mut world, clients[user % 2], user, 3);
    }
    let mut of_user: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for conn in &world.conns {
        for request in &conn.requests {
            of_user.entry(request.nonce()[..4].to_owned()).or_default().push(conn.server);
        }
    }
    let canaries = of_user
        .values()
        .filter(|servers| servers.iter().filter(|server| **server == 1).count() >= 3)
        .count();
    let others = of_user
        .values()
        .filter(|servers| servers.iter().filter(|server| **server == 0).count() >= 3)
        .count();
    assert_eq!((of_user.len(), canaries + others), (40, 40), "{of_user:?}");
    assert!((10..=30).contains(&canaries), "{canaries}");
    // No user returns from the canary.
    assert!(
        of_user.values().all(|servers| servers.iter().filter(|server| **server == 1).count() != 3)
    );
    let moved = of_user
        .values()
        .filter(|servers| servers.iter().filter(|server| **server == 1).count() == 1)
        .count();
    assert!(moved > 0, "a larger share has more");
    let before = seen(&world)[&1];
    for n in 0..10 {
        world.get(clients[0], &format!("9{n:07}"));
        world.run_for(2_000);
    }
    assert!((6..=8).contains(&(seen(&world)[&1] - before)));
    world.finish();
}

/// Pipelined requests whose responses come from both sides, one of which has connections of
/// clients: in order.
#[test]
fn answers_of_both_sides_are_in_order() {
    let mut plan = shares(5_000, 0, None);
    plan.upstreams[1].pool = Pool::Pinned;
    let mut world = World::started(plan, 1, 1);
    let client = world.client();
    for n in 0..20 {
        world.get(client, &format!("{n:08}"));
    }
    world.run_for(1_000_000);
    assert_eq!(world.clients[client].statuses(), [200; 20]);
    for (n, reply) in world.clients[client].replies.iter().enumerate() {
        weir_check::upstreams::check_honest(&format!("{n:08}"), reply).unwrap();
    }
    let had = seen(&world);
    assert!((9..=11).contains(&had[&1]), "{had:?}");
    world.finish();
}

/// A canary that is down has a fallback like any upstream.
#[test]
fn a_canary_that_is_gone() {
    let mut plan = shares(10_000, 0, None);
    plan.upstreams[1].all_down = AllDown::Fallback(0);
    plan.routes = RouteTable::new(vec![Route {
        target: Target::Split(Arc::new(Split::new(&[(10_000, 1)], 0, None))),
        ..Route::default()
    }]);
    let mut world = World::new(plan, 1, 1);
    world.servers[1].door = Door::Refuses;
    let client = world.client();
    for n in 0..4 {
        world.get(client, &format!("{n:08}"));
        world.run_for(100_000);
    }
    assert_eq!(world.clients[client].statuses(), [200; 4]);
    assert_eq!(
        world
            .conns
            .iter()
            .filter(|conn| conn.server == 0)
            .map(|conn| conn.requests.len())
            .sum::<usize>(),
        4
    );
    world.finish();
}
