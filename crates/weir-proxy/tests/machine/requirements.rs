//! Proves: a route's requirements are checked for each of its requests before the body, a password
//! and a server are involved, by HTTP/1.1 and HTTP/2. A client that does not meet one learns it,
//! and the log has it; requests behind it are served. How: one route with all requirements, and one
//! with users. docs/routes.md#what-a-route-requires.

use std::path::Path;
use std::sync::Arc;

use weir_proxy::plan::Plan;
use weir_proxy::request::route::{Route, RouteTable};
use weir_proxy::request::rules::RouteRules;
use weir_proxy::request::rules::basic_auth::BasicAuth;
use weir_proxy::request::rules::requirements::Requirements;

use crate::world::{World, plan};

fn requirements() -> Requirements {
    Requirements {
        content_types: vec!["application/json".into(), "text/*".into()],
        no_override: true,
        no_address: true,
    }
}

/// All but `/any` requires something; `/in` also requires a password.
fn strict() -> Plan {
    let users = BasicAuth { users: Path::new("users").into(), realm: "a".into(), passes_on: false };
    let rules = RouteRules { requirements: requirements(), ..RouteRules::default() };
    let inside = RouteRules { users: Some(users), ..rules.clone() };
    let route = |path: &str, rules| Route { path: path.to_owned(), rules, ..Route::default() };
    let routes = vec![
        route("/", Some(Arc::new(rules))),
        route("/in", Some(Arc::new(inside))),
        route("/any", None),
    ];
    Plan { routes: RouteTable::new(routes), ..plan(1, 1) }
}

fn reasons(world: &World) -> Vec<&str> {
    world.lines.iter().map(|line| line.split(' ').nth(7).unwrap_or_default()).collect()
}

/// A small body that arrives anyway does not change the connection.
#[test]
fn content_is_of_a_type() {
    for workers in [1, 2] {
        let mut world = World::started(strict(), workers, 1);
        let client = world.client_of(usize::from(workers) - 1);
        for (n, (target, fields)) in [
            ("/v", "Content-Type: application/json\r\n"),
            ("/v", "Content-Type: image/png\r\n"),
            ("/v", ""),
            ("/v", "Content-Type: text/csv\r\nContent-Type: text/csv\r\n"),
            ("/any", "Content-Type: image/png\r\n"),
            ("/v", "Content-Type: TEXT/CSV; charset=utf-8\r\n"),
        ]
        .into_iter()
        .enumerate()
        {
            world.expect(client, "POST", false, false);
            let head = format!("POST {target}?n=0000000{n} HTTP/1.1\r\nHost: a\r\n{fields}");
            world.send(client, format!("{head}Content-Length: 5\r\n\r\nhello").as_bytes());
            world.get(client, &format!("0000001{n}"));
            world.settle();
        }
        let (fine, refused) = ([200, 200], [415, 200]);
        assert_eq!(
            world.clients[client].statuses(),
            [fine, refused, refused, refused, fine, fine].concat()
        );
        assert_eq!(
            world.clients[client].replies[2].body.text(),
            "415 Unsupported Media Type: content-type\n"
        );
        assert!(world.clients[client].replies.iter().all(|reply| !reply.closes));
        assert_eq!(world.requests().filter(|request| request.method == "POST").count(), 3);
        assert_eq!(world.count(|counters| counters.refusals.get("content-type")), 3);
        assert_eq!(reasons(&world).iter().filter(|reason| **reason == "content-type").count(), 3);
        world.finish();
    }
}

/// A client that waits for 100 gets 415 in its place, and no long body is invited.
#[test]
fn no_body_is_asked_for() {
    for fields in [
        "Content-Length: 5\r\nExpect: 100-continue\r\n",
        "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Content-Length: 1000000\r\n",
    ] {
        let mut world = World::started(strict(), 1, 1);
        let clients = [world.client(), world.client()];
        for (client, media_type) in clients.into_iter().zip(["image/png", "text/csv"]) {
            world.expect(client, "PUT", false, false);
            let head = format!(
                "PUT /v?n=00000001 HTTP/1.1\r\nHost: a\r\n\
                    {fields}Content-Type: {media_type}\r\n\r\n"
            );
            world.send(client, head.as_bytes());
            world.settle();
        }
        // Its server has no opinion on the body.
        world.run_for(1_100_000);
        let [refused, invited] = clients.map(|client| &world.clients[client]);
        assert_eq!((refused.statuses(), refused.replies[0].closes), (vec![415], true), "{fields}");
        assert!(refused.replies[0].interim.is_empty());
        assert_eq!(
            invited.interim(),
            if fields.contains("Expect") { &[100][..] } else { &[] },
            "{fields}"
        );
        assert_eq!(world.requests().count(), 0);
        world.finish();
    }
}

#[test]
fn methods_and_hosts_mean_what_they_say() {
    let mut world = World::started(strict(), 1, 1);
    let client = world.client();
    for (target, fields) in [
        ("/v?n=00000001", "X-Other: a\r\n"),
        ("/v?n=00000002", "X-HTTP-Method-Override: PUT\r\n"),
        ("/v?_method=PUT", ""),
    ] {
        world.ask(client, "POST", target, fields);
    }
    for host in ["10.0.0.1", "[2001:db8::1]:8080", "a.example:80"] {
        world.expect(client, "GET", false, false);
        world
            .send(client, format!("GET /v?n=00000003 HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
    }
    world.settle();
    assert_eq!(world.clients[client].statuses(), [200, 403, 403, 421, 421, 200]);
    assert_eq!(world.requests().count(), 2);
    let expected = ["-", "method-override", "method-override", "host-address", "host-address", "-"];
    assert_eq!(reasons(&world), expected);
    world.finish();
}

/// Only the refused stream ends; its body is dropped.
#[test]
fn streams() {
    let mut world = World::started(strict(), 1, 1);
    let client = world.http2_client(0, 65_535);
    let long = vec![b'x'; 40_000];
    for (stream, target, fields, body) in [
        (1, "/v?n=00000001", vec![("content-type", "image/png")], Some(&long[..])),
        (3, "/v?n=00000002", vec![("content-type", "text/csv")], Some(&long[..])),
        (5, "/v?n=00000003", vec![], Some(&b"a"[..])),
        (7, "/v?n=00000004", vec![], None),
        (9, "/v?n=00000005", vec![("x-method-override", "PUT")], None),
    ] {
        world.open_with(client, stream, ("POST", target), &fields, body);
    }
    world.settle();
    let statuses =
        [1, 3, 5, 7, 9].map(|stream| world.stream_reply(client, stream).map(|reply| reply.status));
    assert_eq!(statuses, [415, 200, 415, 200, 403].map(Some));
    assert_eq!(world.requests().count(), 2);
    world.finish();
}

/// A request that would be refused anyway costs no comparison of passwords.
#[test]
fn no_password_is_compared() {
    let mut world = World::started(strict(), 1, 1);
    let client = world.client();
    let shown = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
    world.ask(client, "GET", "/in?_method=PUT", shown);
    world.ask(client, "GET", "/in?n=00000001", "");
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses(), [403, 401]);
    assert!(world.errands.is_empty());
    world.ask(client, "GET", "/in?n=00000002", shown);
    world.run_for(1000);
    assert_eq!(world.errands.len(), 1);
    world.finish();
}
