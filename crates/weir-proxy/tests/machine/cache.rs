//! Proves: a storable response is fetched once and then served from the store, as the RFC says and
//! in the order of requests; any other goes only to its client. Many requests for the same are one
//! request, over all workers; nothing from a connection out of step is served; and failures reach
//! all waiting clients. How: plans with a cache, responses written by the test, judged byte by
//! byte.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use weir_cache::TagField;
use weir_check::Request;
use weir_proxy::plan::{AllDown, CachePlan, CacheRules, Plan, ToldTo};
use weir_proxy::request::route::{Route, RouteTable};
use weir_proxy::request::rules::RouteRules;

use crate::world::{Do, Rng, World, plan};

fn rules(change: impl FnOnce(&mut CacheRules)) -> RouteRules {
    let mut cache = CacheRules { told: ToldTo::Everybody, ..CacheRules::default() };
    change(&mut cache);
    RouteRules { cache: Some(Arc::new(cache)), ..RouteRules::default() }
}

/// A plan whose only route has a cache.
fn cached(connections: u32, change: impl FnOnce(&mut CacheRules)) -> Plan {
    let route = Route { rules: Some(Arc::new(rules(change))), ..Route::default() };
    Plan {
        cache: Some(CachePlan { size_bytes: 64 << 20, ..CachePlan::default() }),
        routes: RouteTable::new(vec![route]),
        ..plan(1, connections)
    }
}

/// A response with these lines and this body.
fn reply(status: u16, lines: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status} X\r\n{lines}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Every path responds with these lines and its target with a count of requests.
fn counting(world: &mut World, lines: &'static str) -> Rc<Cell<u32>> {
    let count = Rc::new(Cell::new(0));
    let asked = Rc::clone(&count);
    world.serve(move |seen| {
        seen.complete.then(|| {
            asked.set(asked.get() + 1);
            vec![Do::Answer(reply(
                200,
                lines,
                format!("{} {}", seen.request.target, asked.get()).as_bytes(),
            ))]
        })
    });
    count
}

/// Returns the clients' results: status, body and Cache-Status.
fn got(world: &World, client: usize) -> Vec<(u16, String, String)> {
    let replies = world.clients[client].replies.iter();
    replies
        .map(|reply| {
            let status = reply.fields.all("cache-status").join(", ");
            (reply.status, String::from_utf8_lossy(&reply.body.bytes).into_owned(), status)
        })
        .collect()
}

fn last(world: &World, client: usize) -> (u16, String, String) {
    got(world, client).pop().expect("an answer")
}

#[test]
fn the_second_is_a_hit() {
    for workers in [1, 2] {
        let mut world = World::started(cached(1, |_| {}), workers, 1);
        let count = counting(&mut world, "Cache-Control: max-age=60\r\nETag: \"a\"\r\n");
        let first = world.client_of(0);
        world.ask(first, "GET", "/a", "");
        world.settle();
        assert_eq!(
            last(&world, first),
            (200, "/a 1".into(), "weir; fwd=uri-miss; ttl=60; stored".into())
        );
        world.run_for(2_000_000);
        let second = world.client_of(usize::from(workers) - 1);
        world.ask(second, "GET", "/a", "");
        world.settle();
        assert_eq!(last(&world, second), (200, "/a 1".into(), "weir; hit; ttl=58".into()));
        let reply = &world.clients[second].replies[0];
        assert_eq!((reply.fields.all("age"), reply.fields.all("etag")), (vec!["2"], vec!["\"a\""]));
        assert_eq!(count.get(), 1);
        // HEAD, conditions and ranges are answered from it.
        for (method, lines, expected) in [
            ("HEAD", "", (200, "")),
            ("GET", "If-None-Match: W/\"a\"\r\n", (304, "")),
            ("GET", "If-None-Match: \"b\"\r\n", (200, "/a 1")),
            ("GET", "Range: bytes=1-1\r\n", (206, "a")),
            ("GET", "Range: bytes=9-\r\n", (416, "")),
            ("GET", "Cache-Control: only-if-cached\r\n", (200, "/a 1")),
        ] {
            world.ask(second, method, "/a", lines);
            world.settle();
            let (status, body, _) = last(&world, second);
            assert_eq!((status, body.as_str()), expected, "{method} {lines}");
        }
        world.ask(second, "GET", "/b", "Cache-Control: only-if-cached\r\n");
        world.settle();
        assert_eq!(last(&world, second).0, 504);
        assert_eq!(count.get(), 1);
        world.finish();
    }
}

/// Hits behind a miss wait for it; nothing delays the miss.
#[test]
fn hits_keep_the_order() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    counting(&mut world, "Cache-Control: max-age=60\r\n");
    let client = world.client();
    world.ask(client, "GET", "/a", "");
    world.run_for(100_000);
    for target in ["/b", "/a", "/a", "/c", "/a"] {
        world.ask(client, "GET", target, "");
    }
    world.settle();
    let bodies: Vec<String> = got(&world, client).into_iter().map(|(_, body, _)| body).collect();
    assert_eq!(bodies, ["/a 1", "/b 2", "/a 1", "/a 1", "/c 3", "/a 1"]);
    world.finish();
}

/// A body that is larger than all windows, for readers of which one takes nothing: the server is
/// not delayed, and each gets all of it.
#[test]
fn large_bodies() {
    for (workers, chunked) in [(1, false), (1, true), (2, false)] {
        let mut world = World::started(cached(1, |_| {}), workers, 1);
        let body: Vec<u8> =
            (0..1_500_000_u32).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
        let expected = weir_check::Body::of(&body);
        let asked = Rc::new(Cell::new(0));
        let count = Rc::clone(&asked);
        world.serve(move |seen| {
            seen.complete.then(|| {
                count.set(count.get() + 1);
                let mut answer = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n".to_vec();
                if chunked {
                    answer.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
                    for chunk in body.chunks(100_000) {
                        answer.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                        answer.extend_from_slice(&[chunk, b"\r\n"].concat());
                    }
                    answer.extend_from_slice(b"0\r\n\r\n");
                } else {
                    answer.extend_from_slice(
                        format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes(),
                    );
                    answer.extend_from_slice(&body);
                }
                vec![Do::Answer(answer)]
            })
        });
        let clients: Vec<usize> =
            (0..3).map(|n| world.client_of(n % usize::from(workers))).collect();
        world.stall(clients[0], true);
        clients.iter().for_each(|client| world.ask(*client, "GET", "/large", ""));
        world.run_for(1_000_000);
        for client in &clients[1..] {
            assert!(world.clients[*client].replies[0].body == expected);
        }
        world.stall(clients[0], false);
        world.run_for(1_000_000);
        assert!(world.clients[clients[0]].replies[0].body == expected);
        assert_eq!(asked.get(), 1);
        world.finish();
    }
}

/// A response that is not storable is fetched separately for each client, and no client waits for
/// another a second time.
#[test]
fn what_is_private_is_asked_for_each() {
    for workers in [1, 2] {
        let mut world = World::started(cached(4, |_| {}), workers, 1);
        let count = counting(&mut world, "Cache-Control: private, max-age=60\r\n");
        let clients: Vec<usize> =
            (0..6).map(|n| world.client_of(n % usize::from(workers))).collect();
        clients.iter().for_each(|client| world.ask(*client, "GET", "/p", ""));
        world.settle();
        let mut bodies: Vec<String> =
            clients.iter().map(|client| last(&world, *client).1).collect();
        bodies.sort();
        bodies.dedup();
        assert_eq!((bodies.len(), count.get()), (6, 6));
        world.ask(clients[0], "GET", "/p", "");
        world.settle();
        assert_eq!(last(&world, clients[0]).2, "weir; fwd=uri-miss; detail=hit-for-miss");
        world.finish();
    }
}

fn is_get(request: &Request) -> bool {
    request.method == "GET"
}

/// A herd is one request, whichever clients leave it.
#[test]
fn a_herd_is_one_request() {
    for workers in [1, 3] {
        let mut world = World::started(cached(4, |_| {}), workers, 1);
        let count = Rc::new(Cell::new(0));
        let asked = Rc::clone(&count);
        world.serve(move |seen| {
            seen.complete.then(|| {
                asked.set(asked.get() + 1);
                assert!(is_get(seen.request));
                vec![
                    Do::Delay(200_000),
                    Do::Answer(reply(200, "Cache-Control: max-age=60\r\n", b"herd")),
                ]
            })
        });
        let clients: Vec<usize> =
            (0..30).map(|n| world.client_of(n % usize::from(workers))).collect();
        clients.iter().for_each(|client| world.ask(*client, "GET", "/h", ""));
        world.run_for(50_000);
        world.reset(clients[0]);
        world.run_for(500_000);
        for client in &clients[1..] {
            assert_eq!(last(&world, *client).1, "herd");
        }
        assert_eq!(count.get(), 1);
        world.finish();
    }
}

/// A response that was fetched for a client that has left is for none of those that have waited
/// with it.
#[test]
fn who_waits_gets_nothing_of_one_who_has_left() {
    for lines in ["Cache-Control: private\r\n", "Cache-Control: max-age=60\r\nVary: Cookie\r\n"] {
        let mut world = World::started(cached(4, |_| {}), 1, 1);
        world.serve(move |seen| {
            let body = seen.request.fields.all("cookie").join("");
            seen.complete
                .then(|| vec![Do::Delay(100_000), Do::Answer(reply(200, lines, body.as_bytes()))])
        });
        let (first, second) = (world.client(), world.client());
        world.ask(first, "GET", "/me", "Cookie: user=first\r\n");
        world.run_for(20_000);
        world.ask(second, "GET", "/me", "Cookie: user=second\r\n");
        world.run_for(20_000);
        world.reset(first);
        world.run_for(1_000_000);
        assert_eq!(last(&world, second).1, "user=second", "{lines}");
        world.finish();
    }
}

/// When no client waits any more, the fetch is aborted, and the next client starts a new one.
#[test]
fn nobody_waits() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    world.serve(|seen| {
        seen.complete.then(|| {
            vec![Do::Delay(200_000), Do::Answer(reply(200, "Cache-Control: max-age=60\r\n", b"x"))]
        })
    });
    let client = world.client();
    world.ask(client, "GET", "/h", "");
    world.run_for(50_000);
    world.reset(client);
    world.run_for(1_000_000);
    let next = world.client();
    world.ask(next, "GET", "/h", "");
    world.run_for(1_000_000);
    assert_eq!(last(&world, next).2, "weir; fwd=uri-miss; ttl=60; stored");
    world.finish();
}

/// A failure is one for all waiting clients, and not a request of each.
#[test]
fn a_failure_reaches_all() {
    for workers in [1, 3] {
        let mut world = World::started(cached(1, |_| {}), workers, 1);
        world.serve(|seen| seen.complete.then(|| vec![Do::Silence]));
        let clients: Vec<usize> =
            (0..9).map(|n| world.client_of(n % usize::from(workers))).collect();
        clients.iter().for_each(|client| world.ask(*client, "GET", "/h", ""));
        world.run_for(100_000);
        let asked = world.requests().count();
        world.run_for(120_000_000);
        for client in &clients {
            assert_eq!(last(&world, *client).0, 504);
        }
        assert_eq!((asked, world.requests().count()), (1, 1));
        world.finish();
    }
}

/// A truncated body is stored for no one, and its current readers notice.
#[test]
fn a_broken_body() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    world.serve(|seen| {
        let head = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 10\r\n\r\nabc"
            .to_vec();
        seen.complete.then(|| vec![Do::Bytes(head), Do::Rst])
    });
    for _ in 0..2 {
        let client = world.client();
        world.ask(client, "GET", "/h", "");
        world.run_for(10_000_000);
        assert!(world.clients[client].replies.is_empty() && world.clients[client].closed);
    }
    assert!(world.requests().count() >= 2);
    world.finish();
}

/// Each client gets a response by its values of the fields in Vary, and the server sees few
/// spellings of accepted codings.
#[test]
fn variants() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    world.serve(|seen| {
        seen.complete.then(|| {
            let body = seen.request.fields.all("accept-encoding").join("|");
            let lines = "Cache-Control: max-age=60\r\nVary: Accept-Encoding\r\n";
            vec![Do::Answer(reply(200, lines, body.as_bytes()))]
        })
    });
    let client = world.client();
    for (sent, expected) in [
        ("gzip, br;q=0.5", "br, gzip"),
        ("br,gzip", "br, gzip"),
        ("", "identity"),
        ("deflate", "identity"),
        ("gzip;q=0", "identity"),
    ] {
        let line =
            if sent.is_empty() { String::new() } else { format!("Accept-Encoding: {sent}\r\n") };
        world.ask(client, "GET", "/v", &line);
        world.run_for(50_000);
        assert_eq!(last(&world, client).1, expected);
    }
    assert_eq!(world.requests().count(), 2);
    assert_eq!(got(&world, client)[2].2, "weir; fwd=vary-miss; ttl=60; stored");
    world.finish();
}

/// One client's wishes for a response affect no other; and the server varies by the values that a
/// route sets.
#[test]
fn what_shapes_answers_is_not_asked() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    counting(&mut world, "Cache-Control: max-age=60\r\n");
    let client = world.client();
    let lines = "If-None-Match: \"x\"\r\nIf-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
        X-Forwarded-Host: evil\r\n";
    world.ask(client, "GET", "/a", lines);
    world.run_for(50_000);
    assert_eq!(last(&world, client).1, "/a 1");
    let request = world.requests().next().expect("asked");
    assert!(!request.fields.has("if-none-match") && !request.fields.has("if-modified-since"));
    assert_eq!(request.fields.all("x-forwarded-host"), ["a"]);
    // Parts of a response that is not stored are handled by the server alone.
    world.ask(client, "GET", "/b", "Range: bytes=0-0\r\n");
    world.run_for(50_000);
    let request = world.requests().last().expect("asked");
    assert_eq!(request.fields.all("range"), ["bytes=0-0"]);
    world.finish();
}

/// Tags in fields other than those of RFC 9875 are for the store alone, whether the response comes
/// from there or not.
#[test]
fn tags_stay_here() {
    let plan = cached(1, |rules| rules.tags = vec![TagField::CacheGroups, TagField::SurrogateKey]);
    let mut world = World::started(plan, 1, 1);
    world.serve(|seen| {
        seen.complete.then(|| {
            let control = if seen.request.target == "/a" { "max-age=60" } else { "private" };
            let lines = format!(
                "Cache-Control: {control}\r\nSurrogate-Key: x y\r\nCache-Groups: \"z\"\r\n"
            );
            vec![Do::Answer(reply(200, &lines, b"x"))]
        })
    });
    let client = world.client();
    for target in ["/a", "/a", "/b", "/b"] {
        world.ask(client, "GET", target, "");
        world.run_for(50_000);
        let fields = &world.clients[client].replies.last().expect("an answer").fields;
        assert!(!fields.has("surrogate-key") && fields.has("cache-groups"), "{target}");
    }
    world.finish();
}

/// Credentials: a response for one client is not for others, unless it permits that.
#[test]
fn credentials() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    counting(&mut world, "Cache-Control: max-age=60\r\n");
    let client = world.client();
    world.ask(client, "GET", "/a", "Authorization: Basic YTpi\r\n");
    world.run_for(50_000);
    assert_eq!(last(&world, client).2, "weir; fwd=uri-miss; detail=authorization");
    world.ask(client, "GET", "/a", "");
    world.run_for(50_000);
    // The credentials of that client keep no other client's response from the store.
    assert_eq!(
        last(&world, client),
        (200, "/a 2".into(), "weir; fwd=uri-miss; ttl=60; stored".into())
    );
    world.finish();
}

/// Validation: one conditional request, whose 304 makes the stored response fresh again.
#[test]
fn validation() {
    for workers in [1, 2] {
        let mut world = World::started(cached(1, |_| {}), workers, 1);
        world.serve(|seen| {
            seen.complete.then(|| {
                let lines = "Cache-Control: max-age=2\r\nETag: \"a\"\r\nX-New: 1\r\n";
                match seen.request.fields.all("if-none-match")[..] {
                    ["\"a\""] => {
                        vec![Do::Answer(format!("HTTP/1.1 304 X\r\n{lines}\r\n").into_bytes())]
                    }
                    _ => vec![Do::Answer(reply(
                        200,
                        "Cache-Control: max-age=2\r\nETag: \"a\"\r\n",
                        b"body",
                    ))],
                }
            })
        });
        let client = world.client_of(usize::from(workers) - 1);
        world.ask(client, "GET", "/a", "");
        world.run_for(3_000_000);
        world.ask(client, "GET", "/a", "");
        world.run_for(100_000);
        let reply = world.clients[client].replies.last().expect("an answer");
        assert_eq!(reply.fields.all("x-new"), ["1"]);
        assert_eq!(
            last(&world, client),
            (200, "body".into(), "weir; fwd=stale; fwd-status=304; ttl=2".into())
        );
        world.ask(client, "GET", "/a", "Cache-Control: no-cache\r\n");
        world.run_for(100_000);
        // Confirmed a moment ago: not revalidated because a client wants it.
        assert_eq!(last(&world, client).2, "weir; hit; ttl=2");
        world.run_for(1_200_000);
        world.ask(client, "GET", "/a", "Cache-Control: no-cache\r\n");
        world.run_for(100_000);
        assert_eq!(last(&world, client).2, "weir; fwd=request; fwd-status=304; ttl=2");
        assert_eq!(world.requests().count(), 3);
        world.finish();
    }
}

/// Stale while it is refetched, by one request; and stale while the server fails.
#[test]
fn stale_answers() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    let fails = Rc::new(Cell::new(false));
    let failing = Rc::clone(&fails);
    let count = Rc::new(Cell::new(0));
    let asked = Rc::clone(&count);
    world.serve(move |seen| {
        seen.complete.then(|| {
            asked.set(asked.get() + 1);
            if failing.get() {
                return vec![Do::Answer(reply(503, "", b"sorry"))];
            }
            let lines =
                "Cache-Control: max-age=1, stale-while-revalidate=10, stale-if-error=100\r\n";
            vec![Do::Answer(reply(200, lines, format!("{}", asked.get()).as_bytes()))]
        })
    });
    let client = world.client();
    let ask = |world: &mut World, after_us| {
        world.run_for(after_us);
        world.ask(client, "GET", "/a", "");
        world.run_for(50_000);
        let (status, body, told) = last(world, client);
        assert_eq!(status, 200);
        (body, told)
    };
    assert_eq!(ask(&mut world, 0).0, "1");
    assert_eq!(ask(&mut world, 2_000_000), ("1".into(), "weir; hit; ttl=-1".into()));
    assert_eq!((ask(&mut world, 0).0.as_str(), count.get()), ("2", 2));
    fails.set(true);
    assert_eq!(ask(&mut world, 50_000_000).0, "2");
    assert_eq!(
        ask(&mut world, 0),
        ("2".into(), "weir; hit; fwd=stale; fwd-status=503; ttl=-49".into())
    );
    world.servers[0].door = crate::world::Door::Refuses;
    world.open_conns().into_iter().for_each(|conn| world.cut(conn, Do::Rst));
    world.run_for(1_000_000);
    world.ask(client, "GET", "/a", "");
    world.run_for(40_000_000);
    assert_eq!(last(&world, client).0, 200);
    assert!(
        last(&world, client).2.starts_with("weir; hit; fwd=stale; ttl=-"),
        "{:?}",
        last(&world, client)
    );
    world.finish();
}

/// A client that changes a resource reads its own change.
#[test]
fn changes() {
    for workers in [1, 2] {
        let mut world = World::started(cached(1, |_| {}), workers, 1);
        let count = Rc::new(Cell::new(0));
        let asked = Rc::clone(&count);
        world.serve(move |seen| {
            seen.complete.then(|| {
                asked.set(asked.get() + 1);
                let lines = match &*seen.request.target {
                    "/post" => "Location: /other\r\n",
                    _ => "Cache-Control: max-age=60\r\n",
                };
                vec![Do::Answer(reply(200, lines, format!("{}", asked.get()).as_bytes()))]
            })
        });
        let client = world.client_of(0);
        let other = world.client_of(usize::from(workers) - 1);
        for target in ["/a", "/other", "/third"] {
            world.ask(other, "GET", target, "");
            world.run_for(50_000);
        }
        world.ask(client, "POST", "/post", "Content-Length: 2\r\n");
        world.send(client, b"ab");
        world.run_for(50_000);
        world.ask(client, "DELETE", "/a", "");
        world.run_for(50_000);
        let mut bodies = Vec::new();
        for target in ["/a", "/other", "/third"] {
            world.ask(client, "GET", target, "");
            world.run_for(50_000);
            bodies.push(last(&world, client).1);
        }
        assert_eq!(bodies, ["6", "7", "3"]);
        world.finish();
    }
}

/// Also, a fetch in progress at that time is not for later requests.
#[test]
fn changes_while_it_is_fetched() {
    for workers in [1, 2] {
        let mut world = World::started(cached(4, |_| {}), workers, 1);
        let count = Rc::new(Cell::new(0));
        let asked = Rc::clone(&count);
        world.serve(move |seen| {
            seen.complete.then(|| {
                let answer = |body: &str| {
                    Do::Answer(reply(200, "Cache-Control: max-age=60\r\n", body.as_bytes()))
                };
                match seen.request.method == "GET" {
                    true => {
                        asked.set(asked.get() + 1);
                        vec![Do::Delay(100_000), answer(&format!("{}", asked.get()))]
                    }
                    false => vec![answer("changed")],
                }
            })
        });
        let (early, late) = (world.client_of(0), world.client_of(usize::from(workers) - 1));
        world.ask(early, "GET", "/a", "");
        world.run_for(20_000);
        world.ask(late, "DELETE", "/a", "");
        world.run_for(20_000);
        assert_eq!(last(&world, late).1, "changed");
        world.ask(late, "GET", "/a", "");
        world.run_for(1_000_000);
        assert_eq!((last(&world, early).1, last(&world, late).1), ("1".into(), "2".into()));
        world.finish();
    }
}

/// A server that responds once too often is out of step: its later responses are for no one.
#[test]
fn a_server_out_of_step() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    world.serve(|seen| {
        seen.complete.then(|| {
            let lines = "Cache-Control: max-age=60\r\n";
            let own = reply(200, lines, seen.request.target.as_bytes());
            match &*seen.request.target {
                // The response of another request, then its own.
                "/shifted" => vec![
                    Do::Answer(reply(200, lines, b"/secret")),
                    Do::Delay(100_000),
                    Do::Bytes(own),
                ],
                "/surplus" => vec![Do::Answer([own.clone(), own].concat())],
                _ => vec![Do::Answer(own)],
            }
        })
    });
    let client = world.client();
    for target in ["/shifted", "/surplus"] {
        world.ask(client, "GET", target, "");
        world.run_for(5_000_000);
        world.ask(client, "GET", target, "Cache-Control: only-if-cached\r\n");
        world.run_for(50_000);
        assert_eq!(last(&world, client).0, 504, "{target}");
    }
    world.finish();
}

/// Streams of HTTP/2 are requests like any others, also when they are reset.
#[test]
fn streams() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    world.serve(|seen| {
        seen.complete.then(|| {
            let body = vec![b'x'; 300_000];
            vec![Do::Delay(100_000), Do::Answer(reply(200, "Cache-Control: max-age=60\r\n", &body))]
        })
    });
    let client = world.http2_client(0, 1 << 20);
    for stream in [1, 3, 5] {
        world.open(client, stream, "/s");
    }
    world.run_for(20_000);
    world.reset_stream(client, 3);
    world.run_for(1_000_000);
    world.open(client, 7, "/s");
    world.run_for(100_000);
    for stream in [1, 5, 7] {
        let reply =
            world.stream_reply(client, stream).unwrap_or_else(|| panic!("no answer on {stream}"));
        assert_eq!((reply.status, reply.body.length), (200, 300_000));
    }
    assert_eq!(world.requests().count(), 1);
    // The only waiting stream is reset.
    world.open(client, 9, "/t");
    world.run_for(20_000);
    world.reset_stream(client, 9);
    world.run_for(1_000_000);
    world.open(client, 11, "/t");
    world.run_for(1_000_000);
    assert_eq!(world.stream_reply(client, 11).map(|reply| reply.status), Some(200));
    world.finish();
}

/// A worker that loses everything leaves no client waiting.
#[test]
fn a_worker_is_born_again() {
    let mut world = World::started(cached(1, |_| {}), 2, 1);
    world.serve(|seen| {
        seen.complete.then(|| {
            vec![Do::Delay(300_000), Do::Answer(reply(200, "Cache-Control: max-age=60\r\n", b"x"))]
        })
    });
    let (first, second) = (world.client_of(0), world.client_of(1));
    world.ask(first, "GET", "/h", "");
    world.run_for(20_000);
    world.ask(second, "GET", "/h", "");
    world.run_for(20_000);
    world.begin_anew(0);
    world.run_for(5_000_000);
    assert_eq!(last(&world, second).1, "x");
    world.finish();
}

/// Fields that Connection names do not reach the server, so they do not select a response.
#[test]
fn what_connection_names_selects_nothing() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    world.serve(|seen| {
        seen.complete.then(|| {
            let body = seen.request.fields.all("accept-language").join("|");
            vec![Do::Answer(reply(
                200,
                "Cache-Control: max-age=60\r\nVary: Accept-Language\r\n",
                body.as_bytes(),
            ))]
        })
    });
    let client = world.client();
    for (lines, expected) in [
        ("Accept-Language: de\r\nConnection: accept-language\r\n", ""),
        ("Accept-Language: de\r\n", "de"),
        ("", ""),
    ] {
        world.ask(client, "GET", "/a", lines);
        world.run_for(50_000);
        assert_eq!(last(&world, client).1, expected, "{lines}");
    }
    assert_eq!(world.requests().count(), 2);
    world.finish();
}

/// A 304 without a conditional request is no response, and confirms nothing.
#[test]
fn a_304_without_conditions() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    let count = Rc::new(Cell::new(0));
    let asked = Rc::clone(&count);
    world.serve(move |seen| {
        seen.complete.then(|| {
            asked.set(asked.get() + 1);
            match asked.get() {
                1 => vec![Do::Answer(reply(
                    200,
                    "Cache-Control: max-age=1, stale-while-revalidate=1\r\n",
                    b"x",
                ))],
                _ => vec![Do::Answer(
                    b"HTTP/1.1 304 X\r\nCache-Control: max-age=60\r\n\r\n".to_vec(),
                )],
            }
        })
    });
    let client = world.client();
    world.ask(client, "GET", "/a", "");
    world.run_for(5_000_000);
    world.ask(client, "GET", "/a", "");
    world.run_for(1_000_000);
    assert_eq!(last(&world, client).0, 502);
    world.finish();
}

/// An error predicts nothing for others: it keeps no client from the store.
#[test]
fn errors_mark_nothing() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    let count = Rc::new(Cell::new(0));
    let asked = Rc::clone(&count);
    world.serve(move |seen| {
        seen.complete.then(|| {
            asked.set(asked.get() + 1);
            let status = if asked.get() == 1 { 500 } else { 200 };
            let lines = if asked.get() == 1 { "" } else { "Cache-Control: max-age=60\r\n" };
            vec![Do::Answer(reply(status, lines, b"x"))]
        })
    });
    let client = world.client();
    for expected in [
        "weir; fwd=uri-miss; detail=no-lifetime",
        "weir; fwd=uri-miss; ttl=60; stored",
        "weir; hit; ttl=60",
    ] {
        world.ask(client, "GET", "/a", "");
        world.run_for(50_000);
        assert_eq!(last(&world, client).2, expected);
    }
    world.finish();
}

/// A response of the fallback upstream is not stored as if it were the other's.
#[test]
fn a_fall_back_is_not_stored() {
    let mut plan = cached(1, |_| {});
    let other = crate::world::plan(2, 1);
    let mut second = other.upstreams[0].clone();
    second.name = "other".to_owned();
    second.servers.remove(0);
    plan.upstreams.push(second);
    plan.upstreams[0].all_down = AllDown::Fallback(1);
    let mut world = World::started(plan, 1, 1);
    for server in &mut world.servers {
        server.serve = Box::new(|seen| {
            seen.complete
                .then(|| vec![Do::Answer(reply(200, "Cache-Control: max-age=60\r\n", b"sorry"))])
        });
    }
    world.servers[0].door = crate::world::Door::Refuses;
    world.open_conns().into_iter().take(1).for_each(|conn| world.cut(conn, Do::Rst));
    world.run_for(5_000_000);
    let client = world.client();
    for _ in 0..2 {
        world.ask(client, "GET", "/a", "");
        world.run_for(5_000_000);
        assert_eq!(
            last(&world, client),
            (200, "sorry".into(), "weir; fwd=uri-miss; detail=fallback".into())
        );
    }
    world.finish();
}

/// Draining ends with the fetches in progress.
#[test]
fn draining_while_it_is_fetched() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    world.serve(|seen| seen.complete.then(|| vec![Do::Silence]));
    let client = world.client();
    world.ask(client, "GET", "/a", "");
    world.run_for(50_000);
    world.nodes[0].engine.drain(weir_proxy::ending::Farewell::All);
    world.run_for(50_000);
    world.nodes[0].engine.drain(weir_proxy::ending::Farewell::AllButTunnels);
    world.run_for(50_000);
    assert!(world.nodes[0].engine.is_drained());
    world.finish();
}

/// The actions of a server for a request of the random test: the properties of its target are at
/// the beginning of each body.
fn at_random(rng: &mut Rng, request: &Request) -> Vec<Do> {
    let lines = [
        "Cache-Control: max-age=5\r\nETag: \"a\"\r\n",
        "Cache-Control: max-age=1, stale-while-revalidate=3, stale-if-error=60\r\n",
        "Cache-Control: max-age=30\r\nVary: X-Way\r\n",
        "Cache-Control: private\r\n",
        "Cache-Control: no-cache\r\nETag: \"b\"\r\n",
        "Cache-Control: max-age=30\r\n",
    ][rng.below(6) as usize];
    let length = [0, 10, 3_000, 30_000, 400_000][rng.below(5) as usize];
    let body = [format!("{} ", request.target).into_bytes(), vec![b'x'; length]].concat();
    let is_head = request.method == "HEAD";
    let answer = match rng.below(8) {
        0 if request.fields.has("if-none-match") => {
            format!("HTTP/1.1 304 X\r\n{lines}\r\n").into_bytes()
        }
        1 => reply(503, "", if is_head { b"" } else { &body }),
        2 if !is_head => {
            let head = format!(
                "HTTP/1.1 200 X\r\n{lines}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n",
                body.len()
            );
            [head.as_bytes(), &body, b"\r\n0\r\n\r\n"].concat()
        }
        _ if is_head => {
            format!("HTTP/1.1 200 X\r\n{lines}Content-Length: {}\r\n\r\n", body.len()).into_bytes()
        }
        _ => reply(200, lines, &body),
    };
    let mut all = if rng.one_in(2) { vec![Do::Delay(rng.below(300_000))] } else { Vec::new() };
    match rng.below(12) {
        0 => all.extend([Do::Bytes(answer[..answer.len() / 2].to_vec()), Do::Rst]),
        1 => all.extend([Do::Answer(answer), Do::Fin]),
        2 if answer.len() > 60_000 => {
            let (first, rest) = answer.split_at(answer.len() / 2);
            all.extend([Do::Bytes(first.to_vec()), Do::Delay(400_000), Do::Answer(rest.to_vec())]);
        }
        _ => all.push(Do::Answer(answer)),
    }
    all
}

/// Whatever clients, servers and workers do, no client gets a response for another target, and
/// every client that stays is answered in order. The state is audited after each turn.
#[test]
fn whatever_happens_nobody_gets_what_is_anothers() {
    for seed in 0..150_u64 {
        eprintln!("seed {seed}");
        let mut rng = Rng(seed);
        let workers = 1 + rng.below(3) as u16;
        let mut plan = cached(1 + rng.below(3) as u32, |_| {});
        let object_bytes_max = if rng.one_in(3) { 100_000 } else { 1 << 20 };
        plan.cache =
            Some(CachePlan { size_bytes: 4 << 20, object_bytes_max, ..CachePlan::default() });
        let mut world = World::started(plan, workers, seed);
        let mut servers = Rng(seed ^ 0x55);
        world.serve(move |seen| seen.complete.then(|| at_random(&mut servers, seen.request)));
        let mut asked: Vec<Vec<String>> = Vec::new();
        for _ in 0..120 {
            if asked.is_empty() || rng.one_in(6) {
                world.client_of(rng.below(u64::from(workers)) as usize);
                asked.push(Vec::new());
            }
            let client = rng.below(asked.len() as u64) as usize;
            let is_open = !world.clients[client].closed && !world.clients[client].gone;
            match rng.below(20) {
                0 if is_open => world.reset(client),
                1 | 2 if is_open => world.stall(client, rng.one_in(2)),
                3 if workers > 1 && rng.one_in(8) => {
                    world.begin_anew(rng.below(u64::from(workers)) as usize)
                }
                4 | 5 => world.run_for(rng.below(3_000_000)),
                _ if is_open => {
                    let method =
                        ["GET", "GET", "GET", "GET", "HEAD", "DELETE"][rng.below(6) as usize];
                    let target = format!("/{}", rng.below(4));
                    let fields = [
                        "",
                        "",
                        "X-Way: 1\r\n",
                        "X-Way: 2\r\n",
                        "If-None-Match: \"a\"\r\n",
                        "Cache-Control: no-cache\r\n",
                        "Authorization: Basic YTpi\r\n",
                    ][rng.below(7) as usize];
                    world.ask(client, method, &target, fields);
                    asked[client].push(target);
                }
                _ => {}
            }
            world.run_for(rng.below(60_000));
        }
        for client in 0..asked.len() {
            // Responses that a client has not taken are lost with its restarted worker.
            if !world.clients[client].closed {
                world.stall(client, false);
            }
        }
        world.run_for(200_000_000);
        for (client, asked) in asked.iter().enumerate() {
            for (reply, target) in world.clients[client].replies.iter().zip(asked) {
                let body = String::from_utf8_lossy(&reply.body.bytes);
                let is_own = reply.body.bytes.is_empty()
                    || reply.status >= 500
                    || body.starts_with(&format!("{target} "));
                assert!(
                    is_own,
                    "seed {seed}, client {client}: {target} got {}",
                    &body[..body.len().min(20)]
                );
            }
        }
        world.finish();
    }
}

/// A stream that is reset during its fetch leaves nothing incomplete, and no client waits for a
/// response that none gets.
#[test]
fn a_fetch_that_was_given_up_is_nobodys() {
    let whole = || {
        let head =
            b"HTTP/1.1 200 X\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n"
                .to_vec();
        (head, b"3\r\none\r\n0\r\n\r\n".to_vec())
    };
    for workers in [1, 2] {
        // Before a silent server hears of it, when its head arrives and its end does not, and when
        // both have arrived.
        for (head_us, body_us) in [(10_000, 1_000), (40_000, 200_000), (10_000, 3_600_000_000)] {
            let mut world = World::started(cached(2, |_| {}), workers, 1);
            let mut is_first = true;
            world.serve(move |_| {
                let (head, body) = whole();
                let (head_us, body_us) =
                    if std::mem::take(&mut is_first) { (head_us, body_us) } else { (0, 0) };
                Some(vec![
                    Do::Delay(head_us),
                    Do::Bytes(head),
                    Do::Delay(body_us),
                    Do::Answer(body),
                ])
            });
            let client = world.http2_client(0, 1 << 20);
            world.settle();
            world.open(client, 1, "/a");
            world.run_for(3_000);
            world.reset_stream(client, 1);
            world.run_for(1_000);
            let early = world.client_of(usize::from(workers) - 1);
            world.ask(early, "GET", "/a", "");
            world.run_for(1_000_000);
            let late = world.client();
            world.ask(late, "GET", "/a", "");
            world.run_for(1_000_000);
            for client in [early, late] {
                let (status, body, _) = last(&world, client);
                assert_eq!((status, body.as_str()), (200, "one"), "{workers} {head_us} {body_us}");
            }
        }
    }
}
