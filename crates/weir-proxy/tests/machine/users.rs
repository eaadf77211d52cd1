//! Proves: a route with `users` accepts only requests with a valid name and password, by HTTP/1.1
//! and HTTP/2, in the order of requests, with bodies and without. Servers do not see the password;
//! a valid result is remembered for a connection and not beyond its validity. How: the test itself
//! is the side thread. docs/basic-auth.md.

use std::path::Path;
use std::sync::Arc;

use weir_proxy::forward::lookup::{Credentials, Errand, News, Unverified, User};
use weir_proxy::plan::Plan;
use weir_proxy::request::own_answer::ErrorPage;
use weir_proxy::request::route::{Route, RouteTable};
use weir_proxy::request::rules::RouteRules;
use weir_proxy::request::rules::basic_auth::BasicAuth;
use weir_proxy::request::rules::edits::{Edit, FieldEdits};
use weir_proxy::request::rules::path::PathRules;
use weir_proxy::request::rules::text::Text;
use weir_proxy::upstream::health::Codes;

use crate::world::{World, access_log, plan};

const ANN: &str = "Authorization: Basic YW5uOnNlY3JldA==\r\n"; // ann:secret
const BOB: &str = "Authorization: Basic Ym9iOnB3\r\n"; // bob:pw
const ANN_VALUE: &str = "Basic YW5uOnNlY3JldA==";
const BOB_VALUE: &str = "Basic Ym9iOnB3";

/// Everything below `/in` is for users; servers get their names.
fn guarded(passes_on: bool) -> Plan {
    guarded_by("users", passes_on)
}

fn guarded_by(file: &str, passes_on: bool) -> Plan {
    let mut request = FieldEdits::default();
    request.push("X-User", Edit::Set(Text::compile("$remote_user").expect("a text")));
    let users = BasicAuth { users: Path::new(file).into(), realm: "a \"b\"".into(), passes_on };
    let statuses = vec![Codes { first: 401, last: 401 }];
    let page =
        ErrorPage { statuses, media_type: b"text/html"[..].into(), content: "<p>Who?</p>".into() };
    let rules = RouteRules {
        users: Some(users),
        request,
        pages: vec![Arc::new(page)],
        ..RouteRules::default()
    };
    let inside = Route { path: "/in".to_owned(), rules: Some(Arc::new(rules)), ..Route::default() };
    Plan {
        routes: RouteTable::new(vec![Route::default(), inside]),
        access_log: Some(access_log("$request_uri $status $remote_user $reason")),
        ..plan(1, 1)
    }
}

fn ann() -> Arc<User> {
    Arc::new(User::new("ann"))
}

/// Answers the oldest open verification, and returns its credentials.
fn judge(world: &mut World, verdict: Result<&Arc<User>, Unverified>) -> Credentials {
    assert!(!world.errands.is_empty(), "nothing is asked");
    let (node, errand) = world.errands.remove(0);
    let Errand::Verify { question, client, users, credentials } = errand else {
        panic!("{errand:?}")
    };
    assert_eq!(&*users, Path::new("users"));
    world.news(node, News::Verified { question, client, user: verdict.cloned() });
    world.run_for(1000);
    credentials
}

fn ask(world: &mut World, client: usize, target: &str, fields: &str) {
    world.ask(client, "GET", target, fields);
    world.run_for(1000);
}

#[test]
fn who_does_not_show_himself_gets_a_challenge() {
    for workers in [1, 2] {
        let mut world = World::started(guarded(false), workers, 1);
        let client = world.client();
        let two = format!("{ANN}{ANN}");
        let long = format!("Authorization: Basic {}\r\n", "a".repeat(5000));
        for fields in
            ["", "Authorization: Bearer abc\r\n", "Authorization: Basic !\r\n", &two, &long]
        {
            ask(&mut world, client, "/in/a", fields);
        }
        assert!(world.errands.is_empty(), "none of these can be compared");
        ask(&mut world, client, "/in/b", BOB);
        assert_eq!(
            world.clients[client].statuses(),
            [401; 5],
            "nothing is said before the verdict"
        );
        assert_eq!(&*judge(&mut world, Err(Unverified::Wrong)).name, "bob");
        assert_eq!(world.clients[client].statuses(), [401; 6]);
        for reply in &world.clients[client].replies {
            assert_eq!(
                reply.fields.all("www-authenticate"),
                ["Basic realm=\"a b\", charset=\"UTF-8\""]
            );
            assert_eq!(reply.body.text(), "<p>Who?</p>");
        }
        // HEAD has no content, and a route without users is open.
        world.ask(client, "HEAD", "/in", "");
        ask(&mut world, client, "/v?n=00000001", BOB);
        assert_eq!(world.clients[client].statuses()[6..], [401, 200]);
        let asked: Vec<_> = world.requests().map(|request| request.target.clone()).collect();
        assert_eq!(asked, ["/v?n=00000001"]);
        let open = world.requests().next().expect("one");
        assert_eq!(
            open.fields.all("authorization"),
            [BOB_VALUE],
            "it is the server's affair where weir asks nobody"
        );
        let words: Vec<_> = world
            .lines
            .iter()
            .map(|line| line.split(' ').next_back().unwrap_or_default())
            .collect();
        let (missing, invalid) = ("authorization-missing", "authorization-invalid");
        let expected =
            [missing, invalid, invalid, invalid, invalid, "authorization-wrong", missing, "-"];
        assert_eq!(words, expected);
        world.finish();
    }
}

/// The server learns the name, not the password; the connection is trusted until it shows other
/// credentials or the user is revoked.
#[test]
fn who_was_good_is_remembered_by_the_connection() {
    for passes_on in [false, true] {
        let mut world = World::started(guarded(passes_on), 1, 1);
        let (client, other, who) = (world.client(), world.client(), ann());
        ask(&mut world, client, "/in/v?n=00000001", &format!("{ANN}X-User: root\r\n"));
        let shown = judge(&mut world, Ok(&who));
        assert_eq!((&*shown.name, &*shown.password), ("ann", &b"secret"[..]));
        for n in 2..6 {
            ask(&mut world, client, &format!("/in/v?n={n:08}"), ANN);
        }
        assert_eq!(world.clients[client].statuses(), [200; 5]);
        for request in world.requests() {
            assert_eq!(request.fields.all("x-user"), ["ann"]);
            let expected: &[&str] = if passes_on { &[ANN_VALUE] } else { &[] };
            assert_eq!(request.fields.all("authorization"), expected);
        }
        assert!(world.lines.iter().all(|line| line.ends_with(" 200 ann -")), "{:?}", world.lines);
        // Another connection, another password, a revoked user: each is verified.
        ask(&mut world, other, "/in/v?n=00000006", ANN);
        judge(&mut world, Err(Unverified::NoRoom));
        assert_eq!(world.clients[other].statuses(), [503]);
        ask(&mut world, other, "/in/v?n=00000007", ANN);
        judge(&mut world, Ok(&who));
        ask(&mut world, other, "/in/v?n=00000008", BOB);
        judge(&mut world, Err(Unverified::Wrong));
        assert_eq!(world.clients[other].statuses(), [503, 200, 401]);
        who.revoke();
        ask(&mut world, client, "/in/v?n=00000009", ANN);
        // Revoked while the verdict was in flight: verified once more.
        judge(&mut world, Ok(&who));
        judge(&mut world, Ok(&ann()));
        assert_eq!(world.clients[client].statuses(), [200; 6]);
        world.finish();
    }
}

/// Requests behind one that waits wait as well, those before it do not, and responses come in
/// order.
#[test]
fn answers_keep_their_order() {
    let who = ann();
    for verdict in [Ok(&who), Err(Unverified::Wrong)] {
        let mut world = World::started(guarded(false), 1, 1);
        let client = world.client();
        for (target, fields) in
            [("/v?n=00000001", ""), ("/in/v?n=00000002", ANN), ("/v?n=00000003", "")]
        {
            world.ask(client, "GET", target, fields);
        }
        world.ask(client, "GET", "/in/v?n=00000004", BOB);
        world.run_for(10_000);
        assert_eq!((world.clients[client].statuses(), world.errands.len()), (vec![200], 1));
        judge(&mut world, verdict);
        let second = if verdict.is_ok() { 200 } else { 401 };
        assert_eq!(
            (world.clients[client].statuses(), world.errands.len()),
            (vec![200, second, 200], 1)
        );
        judge(&mut world, Err(Unverified::Wrong));
        assert_eq!(world.clients[client].statuses(), [200, second, 200, 401]);
        world.half_close(client);
        world.run_for(1000);
        assert!(world.clients[client].closed);
        world.finish();
    }
}

/// A client that has sent everything and closed its side gets its responses.
#[test]
fn a_client_that_says_nothing_more_is_answered() {
    let mut world = World::started(guarded(false), 1, 1);
    let [last, more, gone] = [0; 3].map(|_| world.client());
    world.ask(last, "GET", "/in/v?n=00000001", ANN);
    world.half_close(last);
    world.ask(more, "GET", "/in/v?n=00000002", ANN);
    world.ask(more, "GET", "/v?n=00000003", "");
    world.half_close(more);
    world.ask(gone, "GET", "/in/v?n=00000004", ANN);
    world.run_for(1000);
    world.reset(gone);
    world.run_for(1000);
    for _ in 0..3 {
        judge(&mut world, Ok(&ann()));
    }
    assert_eq!(world.clients[last].statuses(), [200]);
    assert_eq!(world.clients[more].statuses(), [200, 200]);
    assert!(world.seen_by("00000004").is_empty(), "nobody waits for it");
    assert!([last, more, gone].iter().all(|client| world.clients[*client].closed));
    world.finish();
}

/// Nothing invites a body before the verdict. A small one is read before it is refused, and the
/// connection continues.
#[test]
fn bodies_wait_too() {
    let post = |world: &mut World, client: usize, fields: &str, length: usize| {
        world.expect(client, "POST", false, false);
        let head = format!(
            "POST /in/v?n=00000001 HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n{fields}\r\n"
        );
        world.send(client, head.as_bytes());
    };
    for (fields, length, is_good) in
        [("", 5, true), ("", 5, false), ("", 300_000, true), ("", 300_000, false)]
            .into_iter()
            .chain([("Expect: 100-continue\r\n", 5, true), ("Expect: 100-continue\r\n", 5, false)])
    {
        let mut world = World::started(guarded(false), 1, 1);
        let client = world.client();
        post(&mut world, client, &format!("{ANN}{fields}"), length);
        let expects = !fields.is_empty();
        if !expects {
            world.send(client, &vec![b'x'; length]);
        }
        world.run_for(10_000);
        assert!(
            world.clients[client].interim().is_empty() && world.clients[client].replies.is_empty()
        );
        let who = ann();
        judge(&mut world, if is_good { Ok(&who) } else { Err(Unverified::Wrong) });
        if expects {
            // Its server has no opinion on the body.
            world.run_for(1_100_000);
            assert_eq!(world.clients[client].interim(), if is_good { &[100][..] } else { &[] });
            if is_good {
                world.send(client, &vec![b'x'; length]);
            }
        }
        world.run_for(10_000);
        assert_eq!(
            world.clients[client].statuses(),
            [if is_good { 200 } else { 401 }],
            "{fields}{length} {is_good}"
        );
        assert_eq!(world.seen_by("00000001").len(), usize::from(is_good));
        let goes_on = is_good || length == 5 && !expects;
        assert_eq!(
            world.clients[client].replies[0].fields.all("connection").contains(&"close"),
            !goes_on
        );
        if goes_on {
            ask(&mut world, client, "/v?n=00000002", "");
            assert_eq!(world.clients[client].statuses().last(), Some(&200));
        }
        world.finish();
    }
}

/// Streams wait separately; the connection's credentials count for all of them.
#[test]
fn streams_are_judged_one_by_one() {
    let mut world = World::started(guarded(false), 1, 1);
    let client = world.http2_client(0, 1 << 20);
    let by = |value| [("authorization", value)];
    let body = vec![b'x'; 60_000];
    world.open_with(client, 1, ("GET", "/in/v?n=00000001"), &by(ANN_VALUE), None);
    world.open_with(client, 3, ("POST", "/in/v?n=00000003"), &by(BOB_VALUE), Some(&body));
    world.open_with(client, 5, ("POST", "/in/v?n=00000005"), &by(ANN_VALUE), Some(&body));
    world.open_with(client, 7, ("GET", "/in/v?n=00000007"), &by(ANN_VALUE), None);
    world.open_with(client, 9, ("GET", "/v?n=00000009"), &[], None);
    world.open_with(client, 11, ("POST", "/in/v?n=00000011"), &by(ANN_VALUE), Some(b""));
    world.run_for(1000);
    assert_eq!((world.streams_answered(client), world.errands.len()), (vec![9], 5));
    world.reset_stream(client, 7);
    world.run_for(1000);
    judge(&mut world, Ok(&ann()));
    judge(&mut world, Err(Unverified::Wrong));
    judge(&mut world, Ok(&ann()));
    judge(&mut world, Ok(&ann()));
    judge(&mut world, Ok(&ann()));
    assert_eq!(world.streams_answered(client), [9, 1, 3, 5, 11]);
    for (stream, status) in [(1, 200), (3, 401), (5, 200), (11, 200)] {
        assert_eq!(
            world.stream_reply(client, stream).expect("an answer").status,
            status,
            "{stream}"
        );
    }
    let refused = world.stream_reply(client, 3).expect("an answer");
    assert_eq!(refused.fields.all("www-authenticate").len(), 1);
    // Refused bodies have used nothing up: the window of the connection is 1 MiB, and this is more.
    for n in 0..20 {
        let stream = 13 + 2 * n;
        let value = if n % 2 == 0 { BOB_VALUE } else { ANN_VALUE };
        world.open_with(
            client,
            stream,
            ("POST", &format!("/in/v?n={stream:08}")),
            &by(value),
            Some(&body),
        );
        world.run_for(1000);
        if value == BOB_VALUE {
            judge(&mut world, Err(Unverified::Wrong));
        }
        assert!(world.errands.is_empty());
        let expected = if value == BOB_VALUE { 401 } else { 200 };
        assert_eq!(
            world.stream_reply(client, stream).map(|reply| reply.status),
            Some(expected),
            "{stream}"
        );
    }
    assert!(world.seen_by("00000003").is_empty() && world.seen_by("00000007").is_empty());
    assert!(world.requests().all(|request| !request.fields.has("authorization")));
    world.finish();
}

/// Without any verdict a client hears so, and its bytes behind are never read; a later verdict has
/// no effect.
#[test]
fn a_verdict_that_does_not_come() {
    let mut world = World::started(guarded(false), 1, 1);
    let client = world.client();
    world.ask(client, "GET", "/in/v?n=00000001", ANN);
    ask(&mut world, client, "/in/v?n=00000002", BOB);
    world.run_for(12_000_000);
    assert_eq!(world.clients[client].statuses(), [504]);
    assert_eq!(world.clients[client].replies[0].fields.all("connection"), ["close"]);
    assert_eq!(world.count(|counters| counters.timeouts.get("errand")), 1);
    judge(&mut world, Ok(&ann()));
    assert!(world.errands.is_empty() && world.requests().next().is_none());
    world.finish();
}

/// Streams continue after one that had no verdict: its late verdict admits none of them.
#[test]
fn a_verdict_that_comes_too_late_for_its_stream() {
    let mut world = World::started(guarded(false), 1, 1);
    let client = world.http2_client(0, 1 << 20);
    world.open_with(client, 1, ("GET", "/in/v?n=00000001"), &[("authorization", ANN_VALUE)], None);
    world.run_for(12_000_000);
    assert_eq!(world.stream_reply(client, 1).map(|reply| reply.status), Some(504));
    world.open_with(client, 3, ("GET", "/in/v?n=00000003"), &[("authorization", BOB_VALUE)], None);
    world.run_for(1000);
    judge(&mut world, Ok(&ann()));
    assert!(world.requests().next().is_none() && world.stream_reply(client, 3).is_none());
    judge(&mut world, Err(Unverified::Wrong));
    assert_eq!(world.stream_reply(client, 3).map(|reply| reply.status), Some(401));
    world.finish();
}

/// A verdict on the credentials of one request admits no later one of its connection.
#[test]
fn a_verdict_is_for_the_request_that_asked() {
    let mut world = World::started(guarded(false), 1, 1);
    let client = world.client();
    ask(&mut world, client, "/in/v?n=00000001", ANN);
    let Some((node, Errand::Verify { question, client: lane, .. })) =
        world.errands.first().cloned()
    else {
        panic!("nothing is asked")
    };
    judge(&mut world, Err(Unverified::NoRoom));
    ask(&mut world, client, "/in/v?n=00000002", BOB);
    world.news(node, News::Verified { question, client: lane, user: Ok(ann()) });
    world.run_for(1000);
    assert_eq!((world.clients[client].statuses(), world.requests().count()), (vec![503], 0));
    judge(&mut world, Err(Unverified::Wrong));
    assert_eq!(world.clients[client].statuses(), [503, 401]);
    world.finish();
}

/// A 401 says what is required (RFC 9110 §15.5.2). If rules cannot be applied to a request, its
/// client learns that.
#[test]
fn no_401_is_without_a_challenge() {
    let mut plan = guarded(false);
    let users = BasicAuth { users: Path::new("users").into(), realm: "r".into(), passes_on: false };
    let path = PathRules { strip: Some(b"/in"[..].into()), ..PathRules::default() };
    let rules = RouteRules { users: Some(users), path, ..RouteRules::default() };
    let inside = Route { path: "/in".to_owned(), rules: Some(Arc::new(rules)), ..Route::default() };
    plan.routes = RouteTable::new(vec![Route::default(), inside]);
    let mut world = World::started(plan, 1, 1);
    let client = world.client();
    ask(&mut world, client, "/in/a", "");
    ask(&mut world, client, "/in;x/a", "");
    assert_eq!(world.clients[client].statuses(), [401, 400]);
    for reply in &world.clients[client].replies {
        assert_eq!(reply.fields.has("www-authenticate"), reply.status == 401);
    }
    world.finish();
}

/// A request that was routed before a reload is finished by the rules of that time. Another file
/// starts a new verification.
#[test]
fn a_reload_while_a_verdict_is_awaited() {
    let mut world = World::started(guarded(false), 1, 1);
    let client = world.client();
    ask(&mut world, client, "/in/v?n=00000001", ANN);
    world.reload(guarded_by("others", true));
    judge(&mut world, Ok(&ann()));
    assert_eq!(world.clients[client].statuses(), [200]);
    assert!(world.requests().all(|request| !request.fields.has("authorization")));
    ask(&mut world, client, "/in/v?n=00000002", ANN);
    let (node, errand) = world.errands.pop().expect("a verification");
    let Errand::Verify { question, client: lane, users, .. } = errand else { panic!("{errand:?}") };
    assert_eq!(&*users, Path::new("others"));
    world.news(node, News::Verified { question, client: lane, user: Err(Unverified::Wrong) });
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses(), [200, 401]);
    world.finish();
}
