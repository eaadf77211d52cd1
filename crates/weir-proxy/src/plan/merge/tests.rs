//! Proves: a successor is as configured, leaves everything that remains in place, never renumbers
//! anything, keeps an ordered weight until the configuration changes it, and respects its bound;
//! workers can take each step between two plans one after another; the number of comparisons for
//! thousands of servers grows in proportion. How: random chains of configurations, each beside the
//! one before; comparisons are counted.

use std::cell::Cell;

use proptest::prelude::*;
use weir_http::Fields;

use super::*;
use crate::placement::sticky::{Cookie, Sticky};
use crate::plan::Pool;
use crate::request::route::{Asked, HostMatch, Route, RouteTable, Target};

/// A few upstreams of a few names, each with a few servers of a few names and weights, and a route
/// to each.
fn plan() -> impl Strategy<Value = Plan> {
    let server = (0u8..6, 1u32..4, 1u32..3);
    let upstream = (prop::collection::vec(server, 1..5), any::<bool>());
    prop::collection::btree_map(0u8..5, upstream, 0..4).prop_map(|upstreams| {
        let upstreams: Vec<_> = upstreams
            .into_iter()
            .map(|(name, (servers, shared))| upstream_of(name, &servers, shared))
            .collect();
        let route = |(target, plan): (usize, &UpstreamPlan)| Route {
            host: HostMatch::Exact(plan.name.clone()),
            target: Target::Upstream(target),
            ..Route::default()
        };
        let routes = RouteTable::new(upstreams.iter().enumerate().map(route).collect());
        Plan { upstreams, routes, ..Plan::default() }
    })
}

fn upstream_of(name: u8, servers: &[(u8, u32, u32)], shared: bool) -> UpstreamPlan {
    let mut plans: Vec<ServerPlan> = Vec::new();
    for (name, weight, connections) in servers {
        let name = format!("s{name}");
        if plans.iter().all(|plan| plan.name != name) {
            let plan = ServerPlan::new(&name, ([127, 0, 0, 1], 80).into());
            plans.push(ServerPlan { weight: *weight, connections: *connections, ..plan });
        }
    }
    let name = format!("u{name}");
    let names: Vec<&str> = plans.iter().map(|plan| plan.name.as_str()).collect();
    let sticky = Some(Sticky::new(&Cookie::new("c"), true, "", &name, &names));
    let pool = if shared { Pool::Shared } else { Pool::Pipelined };
    UpstreamPlan { sticky, servers: plans, pool, name, ..UpstreamPlan::default() }
}

/// Returns slots and names of all that is in use.
fn living(plan: &Plan) -> Vec<(usize, String, String)> {
    let named = |slot| {
        let (upstream, server) = plan.server(slot).expect("a slot");
        (slot, upstream.name.clone(), server.name.clone())
    };
    (0..plan.servers()).filter(|slot| !plan.is_retired(*slot)).map(named).collect()
}

/// Name and kind of an upstream, its servers, and the cookie of each.
type Said = (String, Pool, Vec<(ServerPlan, Option<Vec<u8>>)>);

/// Returns the servers of each upstream in use, in the order of their names, and the cookie of
/// each.
fn said(plan: &Plan) -> Vec<Said> {
    let mut all: Vec<_> = plan
        .upstreams
        .iter()
        .filter(|upstream| !upstream.is_retired())
        .map(|upstream| {
            let cookie = |at: usize| {
                upstream
                    .sticky
                    .as_ref()
                    .and_then(|sticky| sticky.cookie(at as u16))
                    .map(|text| text.to_vec())
            };
            let servers = upstream.servers.iter().enumerate().filter(|(_, server)| !server.retired);
            let mut servers: Vec<_> =
                servers.map(|(at, server)| (server.clone(), cookie(at))).collect();
            servers.sort_by(|a, b| a.0.name.cmp(&b.0.name));
            (upstream.name.clone(), upstream.pool, servers)
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn target(plan: &Plan, name: &str) -> Option<String> {
    let (host, fields) = (name.as_bytes(), &Fields::default());
    let asked = Asked {
        listener: None,
        sealed: false,
        host,
        path: b"/",
        method: b"GET",
        fields,
        bytes: b"",
    };
    let found = plan.routes.find(&asked, &mut Vec::new()).expect("a path");
    found.map(|to| {
        let at = to.target.upstream().expect("an upstream");
        assert!(!plan.upstreams[at].is_retired(), "a route leads to what is gone");
        plan.upstreams[at].name.clone()
    })
}

proptest! {
    #[test]
    fn a_successor_says_what_was_wanted(chain in prop::collection::vec(plan(), 2..8)) {
        let mut chain = chain.into_iter();
        let mut now = chain.next().expect("a first one");
        for wanted in chain {
            let next = now.merged(wanted.clone(), usize::MAX, &BTreeSet::new()).expect("room");
            prop_assert_eq!(said(&next), said(&wanted));
            for name in 0..5 {
                let name = format!("u{name}");
                prop_assert_eq!(target(&next, &name), target(&wanted, &name));
            }
            // Nothing is renumbered.
            prop_assert!(next.places().starts_with(&now.places()));
            for slot in 0..now.servers() {
                let [before, after] = [&now, &next].map(|plan| plan.server(slot).expect("a slot"));
                prop_assert_eq!((&before.0.name, &before.1.name), (&after.0.name, &after.1.name));
            }
            // A server that is unchanged in both keeps its place; each name occurs once.
            let (before, after) = (living(&now), living(&next));
            for (slot, upstream, server) in &after {
                let same = after.iter().filter(|(_, u, s)| (u, s) == (upstream, server)).count();
                prop_assert_eq!(same, 1);
                let plans = |plan: &Plan| {
                    plan.upstreams
                        .iter()
                        .find(|one| !one.is_retired() && one.name == *upstream)
                        .cloned()
                };
                let (old, new) = (plans(&now), plans(&next).expect("it is there"));
                let stays = old.is_some_and(|old| {
                    let of = |plan: &UpstreamPlan| {
                        plan.present().find(|one| one.name == *server).cloned()
                    };
                    old.fits(&new)
                        && of(&old).is_some_and(|one| one.is_same(&of(&new).expect("it is there")))
                });
                prop_assert_eq!(stays, before.contains(&(*slot, upstream.clone(), server.clone())));
            }
            now = next;
        }
    }

    /// Vacant slots are given to others before new ones are made, and the step before that removes
    /// the old servers from them.
    #[test]
    fn vacant_slots_are_given_away(chain in prop::collection::vec(plan(), 2..20)) {
        let mut chain = chain.into_iter();
        let mut now = chain.next().expect("a first one");
        for wanted in chain {
            let gone = |plan: &Plan| {
                (0..plan.servers()).filter(|slot| plan.is_retired(*slot)).collect::<BTreeSet<_>>()
            };
            let next = now.merged(wanted.clone(), usize::MAX, &gone(&now)).expect("room");
            let wide = now.widened(&next);
            prop_assert_eq!(said(&next), said(&wanted));
            prop_assert_eq!(wide.places(), next.places());
            for slot in 0..now.servers() {
                prop_assert_eq!(wide.is_given_away(slot, &next), false);
                if now.is_given_away(slot, &next) {
                    prop_assert!(now.is_retired(slot) && wide.is_retired(slot));
                    prop_assert_eq!(
                        next.server(slot).map(|(upstream, _)| &upstream.name),
                        now.server(slot).map(|(upstream, _)| &upstream.name)
                    );
                }
            }
            for (slot, upstream, server) in living(&now) {
                let after =
                    living(&next).into_iter().find(|(_, u, s)| (u, s) == (&upstream, &server));
                prop_assert!(
                    after.is_none()
                        || next
                            .server(slot)
                            .is_some_and(|(u, s)| (&u.name, &s.name) == (&upstream, &server))
                );
            }
            now = next;
        }
    }

    /// Between the two nothing is missing that either knows, and nothing leads to a server that
    /// only the second has.
    #[test]
    fn the_step_between_has_all_of_both(first in plan(), wanted in plan()) {
        let next = first.merged(wanted, usize::MAX, &BTreeSet::new()).expect("room");
        let wide = first.widened(&next);
        prop_assert_eq!(wide.places(), next.places());
        for slot in 0..wide.servers() {
            let gone = next.is_retired(slot) && (slot >= first.servers() || first.is_retired(slot));
            prop_assert_eq!(wide.is_retired(slot), gone);
        }
        for name in 0..5 {
            let name = format!("u{name}");
            prop_assert_eq!(target(&wide, &name), target(&first, &name));
        }
    }

    /// Nothing changes where nothing is different.
    #[test]
    fn the_same_again_is_the_same(first in plan()) {
        let next = first.merged(first.clone(), first.servers(), &BTreeSet::new()).expect("room");
        prop_assert_eq!(next.places(), first.places());
        prop_assert_eq!(living(&next), living(&first));
    }
}

#[test]
fn a_weight_that_was_ordered_stays_until_it_is_written_anew() {
    let plan = |weight| Plan {
        upstreams: vec![upstream_of(1, &[(1, weight, 1), (2, 1, 1)], false)],
        ..Plan::default()
    };
    let ordered = plan(2).weighted(0, Some(70));
    let same = ordered.merged(plan(2), 2, &BTreeSet::new()).unwrap();
    assert_eq!(
        (same.upstreams[0].servers[0].weight_now(), same.upstreams[0].servers[1].weight_now()),
        (70, 1)
    );
    let mut other = plan(2);
    other.upstreams[0].queue_size = 7;
    let other = ordered.merged(other, 4, &BTreeSet::new()).unwrap();
    assert_eq!(
        (other.server(2).unwrap().1.weight_now(), other.predecessors()[2], other.predecessors()[3]),
        (70, Some(0), Some(1))
    );
    assert_eq!(same.weighted(0, None).upstreams[0].servers[0].weight_now(), 2);
    assert_eq!(
        same.merged(plan(3), 2, &BTreeSet::new()).unwrap().upstreams[0].servers[0].weight_now(),
        3
    );
}

#[test]
fn what_is_gone_counts_until_it_comes_back() {
    let plan = |server| Plan {
        upstreams: vec![upstream_of(1, &[(server, 1, 1)], false)],
        ..Plan::default()
    };
    let second = plan(1).merged(plan(2), 2, &BTreeSet::new()).unwrap();
    let third = second.merged(plan(1), 2, &BTreeSet::new()).unwrap();
    assert_eq!(living(&third), [(0, "u1".to_owned(), "s1".to_owned())]);
    assert_eq!(third.merged(plan(3), 2, &BTreeSet::new()).unwrap_err(), Full { slots: 2 });
}

/// Servers of one upstream that come and go for ever need no more slots than the most at a time,
/// plus those that are to come.
#[test]
fn an_upstream_that_changes_for_ever_stays_small() {
    let plan = |first: u8| {
        let servers: Vec<_> = (first..first + 3).map(|server| (server, 1, 1)).collect();
        Plan { upstreams: vec![upstream_of(1, &servers, false)], ..Plan::default() }
    };
    let mut now = plan(0);
    for first in 1..200 {
        let gone = (0..now.servers()).filter(|slot| now.is_retired(*slot)).collect();
        now = now.merged(plan(first), 6, &gone).expect("room");
    }
    assert!(now.servers() <= 4, "{}", now.servers());
}

/// A listener is identified by its address alone; of several at port 0 each is found once.
#[test]
fn listeners_are_known_by_their_addresses() {
    let of = |ports: &[u16]| -> Vec<ListenerPlan> {
        ports.iter().map(|port| ListenerPlan::new(([127, 0, 0, 1], *port).into())).collect()
    };
    let mut other = of(&[81, 80]);
    other[1].backlog = 7;
    assert_eq!(kept(&of(&[80, 82]), &other), [None, Some(0)]);
    assert_eq!(kept(&of(&[0, 80, 0]), &of(&[0, 0, 0])), [Some(0), Some(2), None]);
    assert!(kept(&of(&[80]), &[]).is_empty());
}

thread_local! {
    static COMPARED: Cell<usize> = const { Cell::new(0) };
}

/// Counts a comparison of two upstreams, or of two servers.
pub(super) fn count() {
    COMPARED.with(|compared| compared.set(compared.get() + 1));
}

#[test]
fn comparisons_grow_with_the_number_of_upstreams_and_servers() {
    const MANY: u32 = 5_000;
    let server = |at: u32| {
        ServerPlan::new(&format!("s{at}"), (std::net::Ipv4Addr::from(0x0a00_0000 + at), 80).into())
    };
    let upstream =
        |name: String, servers| UpstreamPlan { name, servers, ..UpstreamPlan::default() };
    let of_one = |servers: Vec<ServerPlan>| vec![upstream("all".to_owned(), servers)];
    let of_each = |numbers: Vec<u32>| -> Vec<UpstreamPlan> {
        numbers.into_iter().map(|at| upstream(format!("u{at}"), vec![server(at)])).collect()
    };
    let lists: [&dyn Fn(Vec<u32>) -> Vec<UpstreamPlan>; 2] =
        [&|numbers| of_one(numbers.into_iter().map(server).collect()), &of_each];
    for list in lists {
        let plan = |numbers: Vec<u32>| Plan { upstreams: list(numbers), ..Plan::default() };
        let old = plan((0..MANY).collect());
        let next: [Vec<u32>; 4] = [
            (0..MANY).collect(),
            (0..MANY).rev().collect(),
            (0..=MANY).rev().collect(),
            (MANY..2 * MANY).collect(),
        ];
        for numbers in next {
            let before = COMPARED.get();
            let merged =
                old.merged(plan(numbers), usize::MAX, &(0..MANY as usize).collect()).expect("room");
            let compared = COMPARED.get() - before;
            assert!(
                compared <= 10 * MANY as usize,
                "{compared} comparisons for {} servers",
                merged.servers()
            );
        }
    }
}
