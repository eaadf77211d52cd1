//! Proves: weir decides by the path that it sends, with any version of HTTP: rules for a path
//! cannot be bypassed, paths that are not UTF-8 reach their server unchanged, and if nothing reads
//! paths, all do (docs/hostile-requests.md C4). How: plans with a closed prefix, and targets that
//! servers read in different ways.

use std::sync::Arc;

use weir_proxy::plan::{LimitPlan, PathMatch, Plan, RequestMatch, ShieldPlan, Terms};
use weir_proxy::request::own_answer::OwnAnswer;
use weir_proxy::request::route::{Route, RouteTable, Target};
use weir_proxy::request::rules::RouteRules;
use weir_proxy::request::rules::access::Access;
use weir_proxy::shield::limit::Rate;

use crate::world::{World, plan};

/// All requests are served, except those below `/admin`.
fn closed() -> Plan {
    let mut access = Access::default();
    access.push(false, None);
    let rules = Some(Arc::new(RouteRules { access, ..RouteRules::default() }));
    let admin = Route { path: "/admin".to_owned(), rules, ..Route::default() };
    Plan { routes: RouteTable::new(vec![Route::default(), admin]), ..plan(1, 1) }
}

/// Requests a target by both versions; returns the statuses, and the targets that servers got.
fn asked(world: &mut World, target: &str) -> ([u16; 2], Vec<String>) {
    let before = world.requests().count();
    let (old, new) = (world.client(), world.http2_client(0, 65_535));
    world.ask(old, "GET", target, "");
    world.open(new, 1, target);
    world.settle();
    let status = world.stream_reply(new, 1).map_or(0, |reply| reply.status);
    let statuses = [world.clients[old].statuses()[0], status];
    (statuses, world.requests().skip(before).map(|request| request.target.clone()).collect())
}

#[test]
fn a_closed_prefix_stays_closed() {
    let mut world = World::started(closed(), 1, 1);
    for (target, status, sent) in [
        ("/admin/x", 403, ""),
        ("/a/../admin/x", 403, ""),
        ("//admin", 403, ""),
        ("/%61dmin/x", 403, ""),
        ("/admin;a/x", 403, ""),
        ("/admin%3Ba/x", 403, ""),
        ("/%c1%a1dmin", 403, ""),
        ("/admin/.;/../x", 400, ""),
        ("/admin/%2e;/../x", 400, ""),
        ("/admin/.;x=1/../x", 400, ""),
        ("/admin/%2e%2e;/x", 400, ""),
        ("/admin/..%3b/x", 400, ""),
        ("/admin/;a/b/../../x", 400, ""),
        ("/admin//b/../../x", 400, ""),
        ("/a/x%2fy/../../x", 400, ""),
        ("/%c0%ae%c0%ae/x", 400, ""),
        // A server that resolves no dots must not find `/admin` in it either.
        ("/admin/../x?n=00000001", 200, "/x?n=00000001"),
        ("/admin/./%2E%2e/x?/../", 200, "/x?/../"),
        ("//a/admin/x", 200, "/a/admin/x"),
        ("///?//", 200, "/?//"),
        ("/a//b;c/d%2fe/%252e%252e/%5c", 200, "/a//b;c/d%2fe/%252e%252e/%5c"),
        ("/%E4pfel/%C0%B4%C1%B3/%ff", 200, "/%E4pfel/%C0%B4%C1%B3/%ff"),
    ] {
        let expected = if sent.is_empty() { vec![] } else { vec![sent.to_owned(); 2] };
        assert_eq!(asked(&mut world, target), ([status; 2], expected), "{target}");
    }
    let client = world.client();
    let line = "POST http://h/admin/../x/./y HTTP/1.1\r\nHost: other\r\nContent-Length: 3\r\n\r\n";
    world.expect(client, "POST", false, false);
    world.send(client, format!("{line}abc").as_bytes());
    world.settle();
    let last = world.requests().last().expect("it was asked");
    let host = last.fields.all("host");
    assert_eq!(
        (last.target.as_str(), host, last.body.text()),
        ("/x/y", vec!["h"], "abc".to_owned())
    );
    world.finish();
}

/// If no rule, limit or route reads paths, none is changed.
#[test]
fn paths_that_nothing_reads_stay_as_they_are() {
    let mut world = World::started(plan(1, 1), 1, 1);
    for target in ["//x", "/a/../b", "/a/./%2e%2E/c/..", "/%E4pfel", "/a;b//c"] {
        assert_eq!(asked(&mut world, target), ([200; 2], vec![target.to_owned(); 2]), "{target}");
    }
    world.finish();
}

/// A limit for a path counts a path in any spelling, and weir's own responses do not repeat the
/// received one.
#[test]
fn limits_and_redirects_see_what_is_sent() {
    let login = PathMatch::Prefix("/login".to_owned());
    let mut limit = LimitPlan::new("login", Terms::Requests(Rate::new(1, 60_000_000, 2, false)));
    limit.requests = RequestMatch { paths: vec![login], ..RequestMatch::default() };
    let shield = Some(ShieldPlan::new(vec![limit], 1024));
    let mut world = World::started(Plan { shield, ..plan(1, 1) }, 1, 1);
    let client = world.client();
    for target in
        ["//login", "/x/../login/%E4", "/login/../login", "/l%6Fgin;a", "/%c1%acogin", "/logins"]
    {
        world.ask(client, "GET", target, "");
        world.settle();
    }
    assert_eq!(world.clients[client].statuses(), [200, 200, 429, 429, 429, 200]);
    let targets: Vec<_> = world.requests().map(|request| request.target.as_str()).collect();
    assert_eq!(targets, ["/login", "/login/%E4", "/logins"]);
    world.finish();

    let to = weir_proxy::request::rules::location::Location::compile("https://h$request_uri")
        .expect("a location");
    let target = Target::Here(Arc::new(OwnAnswer::Redirect { status: 308, to }));
    let route = Route { target, path: "/r".to_owned(), ..Route::default() };
    let mut world =
        World::started(Plan { routes: RouteTable::new(vec![route]), ..plan(1, 1) }, 1, 1);
    let client = world.client();
    world.ask(client, "GET", "//r/a/../%E4?x=//", "");
    world.settle();
    assert_eq!(world.clients[client].replies[0].fields.all("location"), ["https://h/r/%E4?x=//"]);
    world.finish();
}
