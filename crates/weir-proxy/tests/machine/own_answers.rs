//! Proves: a route's own responses come in the order of requests, beside responses of servers, as
//! each client can read them, with the rules of its route, in the access log; an unread body ends
//! its connection; and no server gets a request (docs/routes.md). How: plans with such
//! routes, judged byte by byte, and a plan without servers.

use std::sync::Arc;

use weir_proxy::plan::Plan;
use weir_proxy::request::own_answer::{Fixed, OwnAnswer};
use weir_proxy::request::route::{HostMatch, Route, RouteTable, Target};
use weir_proxy::request::rules::RouteRules;
use weir_proxy::request::rules::edits::{Edit, FieldEdits};
use weir_proxy::request::rules::location::Location;
use weir_proxy::request::rules::path::PathRules;
use weir_proxy::request::rules::text::Text;

use crate::world::{Do, World, access_log, answer, plan};

fn here(path: &str, answer: OwnAnswer) -> Route {
    Route { path: path.to_owned(), target: Target::Here(Arc::new(answer)), ..Route::default() }
}

fn redirect(path: &str, status: u16, to: &str) -> Route {
    here(path, OwnAnswer::Redirect { status, to: Location::compile(to).expect("a target") })
}

fn fixed(path: &str, status: u16, content: &'static str) -> Route {
    let media_type = (!content.is_empty()).then(|| b"text/html"[..].into());
    here(
        path,
        OwnAnswer::Fixed(Arc::new(Fixed {
            status,
            media_type,
            content: content.as_bytes().into(),
        })),
    )
}

/// Routes of each kind, and one to a server for all other requests.
fn routes() -> Vec<Route> {
    let mut answer = FieldEdits::default();
    answer.push("X-Rule", Edit::Set(Text::compile("$host [$upstream_name]").expect("a text")));
    let strip = PathRules { strip: Some(b"/old"[..].into()), rewrites: Vec::new() };
    vec![
        redirect("/r", 308, "https://$host$request_uri"),
        Route {
            rules: Some(Arc::new(RouteRules { path: strip, answer, ..RouteRules::default() })),
            ..redirect("/old", 301, "/new$request_uri")
        },
        fixed("/gone", 410, "<p>It is gone.</p>"),
        fixed("/empty", 204, ""),
        fixed("/same", 304, ""),
        fixed("/reset", 205, ""),
        Route::default(),
    ]
}

fn world(workers: u16) -> World {
    let plan = plan(1, 1);
    let format = "$request_method $request_uri $status $body_bytes_sent $upstream_name $tries \
        $ended_by $phase $reason";
    let plan =
        Plan { routes: RouteTable::new(routes()), access_log: Some(access_log(format)), ..plan };
    World::started(plan, workers, 1)
}

#[test]
fn answers_of_each_kind_in_order() {
    for workers in [1, 2] {
        let mut world = world(workers);
        world.serve(|seen| {
            seen.complete.then(|| vec![Do::Delay(10_000), Do::Answer(answer(seen.request))])
        });
        let client = world.client_of(usize::from(workers) - 1);
        for (method, target) in [
            ("GET", "/v?n=00000001"),
            ("GET", "/r/a?b"),
            ("HEAD", "/gone"),
            ("GET", "/gone/x"),
            ("GET", "/v?n=00000002"),
            ("PUT", "/empty"),
            ("GET", "/same"),
            ("GET", "/reset"),
            ("DELETE", "/old/x?y=%41"),
            ("GET", "/v?n=00000003"),
        ] {
            world.ask(client, method, target, "");
        }
        world.run_for(1_000_000);
        let replies = &world.clients[client].replies;
        assert_eq!(
            world.clients[client].statuses(),
            [200, 308, 410, 410, 200, 204, 304, 205, 301, 200]
        );
        assert_eq!(replies[1].fields.all("location"), ["https://a/r/a?b"]);
        assert_eq!((replies[1].body.length, replies[1].fields.all("server")), (0, vec!["weir"]));
        assert_eq!((replies[2].body.length, replies[3].body.length), (0, 18));
        for reply in &replies[2..4] {
            assert_eq!(reply.fields.all("content-type"), ["text/html"]);
            assert_eq!(reply.fields.all("content-length"), ["18"]);
        }
        for reply in &replies[5..8] {
            assert!(!reply.fields.has("content-type") && reply.body.length == 0);
        }
        assert_eq!(
            (replies[8].fields.all("location"), replies[8].fields.all("x-rule")),
            (vec!["/new/x?y=%41"], vec!["a []"])
        );
        assert!(replies.iter().all(|reply| !reply.closes && reply.fields.all("date").len() <= 1));
        assert_eq!(world.requests().count(), 3);
        assert_eq!(
            world.lines.iter().filter(|line| !line.contains("/v?")).cloned().collect::<Vec<_>>(),
            [
                "GET /r/a?b 308 0 - 0 none done -",
                "HEAD /gone 410 0 - 0 none done -",
                "GET /gone/x 410 18 - 0 none done -",
                "PUT /empty 204 0 - 0 none done -",
                "GET /same 304 0 - 0 none done -",
                "GET /reset 205 0 - 0 none done -",
                "DELETE /old/x?y=%41 301 0 - 0 none done -",
            ]
        );
        world.finish();
    }
}

/// A small body is read before its response, in however many pieces it arrives; its content is
/// never parsed as a request, and the bytes behind it are the next one.
#[test]
fn a_small_body_leaves_the_connection() {
    let evil = "GET /v?n=00000009 HTTP/1.1\r\nHost: a\r\n\r\n";
    let large = evil.repeat(2000)[..65_536].to_owned();
    for (fields, body) in [("", evil), ("Expect: 100-continue\r\n", "hello"), ("", &large)] {
        for (target, status) in [("/r", 308), ("/gone", 410)] {
            for piece in [usize::MAX, 1, 1000] {
                if piece == 1 && body.len() > 100 {
                    continue;
                }
                let mut world = world(1);
                let client = world.client();
                world.get(client, "00000001");
                world.expect(client, "POST", false, false);
                let head = format!(
                    "POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n{fields}\r\n",
                    body.len()
                );
                let text = format!("{head}{body}");
                // With `Expect` a part of the body has to be here.
                let (first, rest) = text.as_bytes().split_at(head.len() + 1);
                world.send(client, first);
                world.settle();
                assert_eq!(
                    world.clients[client].statuses(),
                    [200],
                    "nothing is answered before the body is here: {target} {fields} {}",
                    body.len()
                );
                rest.chunks(piece.min(rest.len())).for_each(|piece| world.send(client, piece));
                world.get(client, "00000002");
                world.settle();
                let replies = &world.clients[client].replies;
                assert_eq!(
                    world.clients[client].statuses(),
                    [200, status, 200],
                    "{fields} {target}"
                );
                assert!(!replies[1].closes && replies[1].interim.is_empty());
                assert_eq!(world.requests().count(), 2);
                world.finish();
            }
        }
    }
}

/// A client that does not send the announced bytes hears it, and loses its connection.
#[test]
fn a_small_body_has_its_time() {
    let mut world = world(1);
    let clients = [world.client(), world.client()];
    for client in clients {
        world.expect(client, "POST", false, false);
        world.send(client, b"POST /gone HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    }
    world.half_close(clients[1]);
    world.run_for(120_000_000);
    for (client, status) in clients.into_iter().zip([408, 400]) {
        let replies = &world.clients[client].replies;
        assert_eq!((replies.len(), replies[0].status, replies[0].closes), (1, status, true));
    }
    world.finish();
}

/// Bytes behind an unread body are never parsed as a request.
#[test]
fn a_body_ends_the_connection() {
    let large = "GET /v?n=00000009 HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2000);
    for (fields, body) in [
        ("Content-Length: 65537\r\n", &*large),
        ("Content-Length: 5\r\nConnection: close\r\n", "hello"),
        ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n"),
        ("Content-Length: 5\r\nExpect: 100-continue\r\n", ""),
    ] {
        for target in ["/r", "/gone"] {
            let mut world = world(1);
            let client = world.client();
            world.get(client, "00000001");
            world.expect(client, "POST", false, false);
            world.send(
                client,
                format!("POST {target} HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}").as_bytes(),
            );
            world.settle();
            let replies = &world.clients[client].replies;
            assert_eq!(
                (replies.len(), replies[1].closes, replies[1].interim.len()),
                (2, true, 0),
                "{fields}"
            );
            assert_eq!(world.requests().count(), 1);
            world.finish();
        }
    }
}

#[test]
fn clients_of_http_1_0() {
    let mut world = world(1);
    let ask = |world: &mut World, text: &str| {
        let client = world.client();
        world.expect(client, "GET", true, false);
        world.send(client, text.as_bytes());
        world.settle();
        world.clients[client].replies[0].clone()
    };
    let reply =
        ask(&mut world, "GET /r HTTP/1.0\r\nHost: Old.Example\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(
        (reply.status, reply.fields.all("location"), reply.closes),
        (308, vec!["https://old.example/r"], true)
    );
    let reply = ask(&mut world, "GET /r HTTP/1.0\r\n\r\n");
    assert_eq!((reply.status, reply.closes), (400, true));
    assert_eq!(
        world.lines.last().map(String::as_str),
        Some("GET /r 400 31 - 0 weir head redirect-host")
    );
    world.finish();
}

/// Also with HTTP/2, where the content is longer than a window.
#[test]
fn streams_get_them_too() {
    let long: &'static str = Box::leak("x".repeat(300_000).into_boxed_str());
    let table = RouteTable::new(vec![
        fixed("/long", 200, long),
        redirect("/", 302, "https://$host$request_uri"),
    ]);
    let mut world = World::started(Plan { routes: table, ..plan(1, 1) }, 1, 1);
    let client = world.http2_client(0, 65_535);
    for (stream, target) in [(1, "/long"), (3, "/x"), (5, "/long")] {
        world.open(client, stream, target);
    }
    world.settle();
    assert_eq!(world.streams_answered(client), [3]);
    for stream in [1, 5] {
        world.credit(client, stream, 300_000);
    }
    world.settle();
    assert_eq!(world.streams_answered(client).len(), 3);
    world.finish();
}

/// A weir without any server, and a reload that changes the response of a route.
#[test]
fn no_server_is_needed() {
    let without = |route: Route| Plan {
        upstreams: Vec::new(),
        routes: RouteTable::new(vec![Route { host: HostMatch::Exact("a".to_owned()), ..route }]),
        ..plan(1, 1)
    };
    let mut world = World::started(without(fixed("/", 503, "Back soon.")), 2, 1);
    let client = world.client();
    world.ask(client, "GET", "/x", "");
    world.settle();
    world.reload(without(redirect("/", 307, "https://b.example")));
    world.run_for(10_000);
    world.ask(client, "GET", "/x", "");
    world.ask(client, "OPTIONS", "*", "");
    world.settle();
    assert_eq!(world.clients[client].statuses(), [503, 307, 307]);
    assert_eq!(world.clients[client].replies[1].fields.all("location"), ["https://b.example"]);
    world.finish();
}
