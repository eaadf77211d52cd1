//! Proves: how the cache treats requests that bypass it, and values that concern one client only.
//! How: plans with a cache, responses written by the test, requests as servers saw them.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use weir_cache::TagField;
use weir_proxy::observe::secured::{Secured, Shown};
use weir_proxy::plan::{CachePlan, CacheRules, Plan, ToldTo};
use weir_proxy::request::nonidempotent::TargetMatch;
use weir_proxy::request::route::{Route, RouteTable};
use weir_proxy::request::rules::RouteRules;
use weir_proxy::request::rules::edits::{Edit, FieldEdits};
use weir_proxy::request::rules::matching::{Condition, Subject};
use weir_proxy::request::rules::text::Text;

use crate::world::{Do, World, plan};

fn cached(connections: u32, change: impl FnOnce(&mut CacheRules)) -> Plan {
    let mut cache = CacheRules { told: ToldTo::Everybody, ..CacheRules::default() };
    change(&mut cache);
    let rules = RouteRules { cache: Some(Arc::new(cache)), ..RouteRules::default() };
    let route = Route { rules: Some(Arc::new(rules)), ..Route::default() };
    Plan {
        cache: Some(CachePlan::default()),
        routes: RouteTable::new(vec![route]),
        ..plan(1, connections)
    }
}

fn reply(status: u16, lines: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} X\r\n{lines}Content-Length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// Sends a request, and returns the result: status, body, Cache-Status.
fn ask(
    world: &mut World,
    client: usize,
    method: &str,
    target: &str,
    lines: &str,
) -> (u16, String, String) {
    world.ask(client, method, target, lines);
    world.run_for(50_000);
    let reply = world.clients[client].replies.last().expect("an answer");
    let status = reply.fields.all("cache-status").join(", ");
    (reply.status, String::from_utf8_lossy(&reply.body.bytes).into_owned(), status)
}

/// Returns the values of a field of the last response.
fn field(world: &World, client: usize, name: &str) -> Vec<String> {
    let reply = world.clients[client].replies.last().expect("an answer");
    reply.fields.all(name).into_iter().map(str::to_owned).collect()
}

/// Parts that the key leaves out affect nothing: a server that would write them into its page does
/// not see them.
#[test]
fn what_the_key_leaves_out_is_not_asked_for() {
    let rules = |rules: &mut CacheRules| rules.keys.ignored_parameters = vec![b"utm_*".to_vec()];
    let mut world = World::started(cached(1, rules), 1, 1);
    world.serve(|seen| {
        let lines = "Cache-Control: max-age=60\r\n";
        seen.complete.then(|| vec![Do::Answer(reply(200, lines, &seen.request.target))])
    });
    let client = world.client();
    assert_eq!(ask(&mut world, client, "GET", "/a?utm_x=evil&b=1", "").1, "/a?b=1");
    assert_eq!(
        ask(&mut world, client, "GET", "/a?b=1&utm_y=2", ""),
        (200, "/a?b=1".into(), "weir; hit; ttl=60".into())
    );
    // Nor where the cache sees other fields than those received.
    assert_eq!(
        ask(&mut world, client, "GET", "/c?utm_x=evil", "X-Forwarded-For: 192.0.2.1\r\n").1,
        "/c"
    );
    // A request that is not for the store is sent unchanged.
    ask(&mut world, client, "POST", "/a?utm_x=evil&b=1", "Content-Length: 0\r\n");
    let targets: Vec<&str> = world.requests().map(|request| request.target.as_str()).collect();
    assert_eq!(targets, ["/a?b=1", "/c", "/a?utm_x=evil&b=1"]);
    world.finish();
}

/// A cookie that comes with a 304 is for the client that sent the request; the stored response has
/// none.
#[test]
fn a_cookie_of_a_304_is_for_one() {
    for workers in [1, 2] {
        let mut world = World::started(cached(1, |_| {}), workers, 1);
        world.serve(|seen| {
            seen.complete.then(|| {
                let lines = "Cache-Control: max-age=2\r\nETag: \"a\"\r\n";
                match seen.request.fields.has("if-none-match") {
                    true => {
                        let answer = format!("HTTP/1.1 304 X\r\n{lines}Set-Cookie: id=1\r\n\r\n")
                            .into_bytes();
                        vec![Do::Delay(100_000), Do::Answer(answer)]
                    }
                    false => vec![Do::Answer(reply(200, lines, "body"))],
                }
            })
        });
        let (first, second) = (world.client_of(0), world.client_of(usize::from(workers) - 1));
        ask(&mut world, first, "GET", "/a", "");
        world.run_for(3_000_000);
        world.ask(first, "GET", "/a", "");
        world.run_for(20_000);
        world.ask(second, "GET", "/a", "");
        world.run_for(200_000);
        assert_eq!(field(&world, first, "set-cookie"), ["id=1"]);
        assert_eq!(field(&world, second, "set-cookie"), [""; 0]);
        assert_eq!(ask(&mut world, first, "GET", "/a", "").2, "weir; hit; ttl=2");
        assert_eq!(field(&world, first, "set-cookie"), [""; 0]);
        world.finish();
    }
}

/// A request that bypasses the store is sent again to another server when its first response breaks
/// off: fields that are only for the store are still removed then.
#[test]
fn what_begins_again_is_told_the_same() {
    let rules = |rules: &mut CacheRules| rules.tags = vec![TagField::SurrogateKey];
    let mut world = World::started(cached(2, rules), 1, 1);
    let count = Cell::new(0);
    world.serve(move |seen| {
        seen.complete.then(|| {
            let answer = reply(200, "Cache-Control: private\r\nSurrogate-Key: x\r\n", "0123456789");
            count.set(count.get() + u32::from(seen.request.target == "/p"));
            match (seen.request.target.as_str(), count.get()) {
                ("/slow", _) => Vec::new(),
                (_, 2) => {
                    vec![Do::Bytes(answer[..answer.len() - 5].to_vec()), Do::Delay(20_000), Do::Rst]
                }
                _ => vec![Do::Answer(answer)],
            }
        })
    });
    let client = world.client();
    ask(&mut world, client, "GET", "/p", "");
    world.ask(client, "GET", "/slow", "Cache-Control: no-store\r\n");
    world.ask(client, "GET", "/p", "");
    world.run_for(500_000);
    assert_eq!(world.clients[client].replies.len(), 1);
    let conn = world.open_conns().into_iter().find(|conn| {
        let requests = &world.conns[*conn].requests;
        requests.last().is_some_and(|request| request.target == "/slow")
    });
    world.say(conn.expect("it waits"), Do::Answer(reply(200, "", "slow")));
    world.run_for(500_000);
    let told = "weir; fwd=uri-miss; detail=hit-for-miss";
    assert_eq!(
        (field(&world, client, "surrogate-key"), field(&world, client, "cache-status")),
        (vec![], vec![told.into()])
    );
    assert_eq!((world.clients[client].replies.len(), world.requests().count()), (3, 4));
    world.finish();
}

/// A key whose responses were for one client each is fetched for all again as soon as a storable
/// one arrives.
#[test]
fn a_mark_ends_with_an_answer_that_may_be_stored() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    let is_private = Rc::new(Cell::new(true));
    let says = Rc::clone(&is_private);
    world.serve(move |seen| {
        let lines =
            if says.get() { "Cache-Control: private\r\n" } else { "Cache-Control: max-age=60\r\n" };
        seen.complete.then(|| vec![Do::Answer(reply(200, lines, "x"))])
    });
    let client = world.client();
    let told = |world: &mut World| ask(world, client, "GET", "/a", "").2;
    assert_eq!(told(&mut world), "weir; fwd=uri-miss; detail=private");
    assert_eq!(told(&mut world), "weir; fwd=uri-miss; detail=hit-for-miss");
    assert_eq!(told(&mut world), "weir; fwd=uri-miss; detail=hit-for-miss");
    is_private.set(false);
    assert_eq!(told(&mut world), "weir; fwd=uri-miss; detail=hit-for-miss");
    assert_eq!(told(&mut world), "weir; fwd=uri-miss; ttl=60; stored");
    assert_eq!(told(&mut world), "weir; hit; ttl=60");
    world.finish();
}

/// RFC 9111 §4.3.5: a response to HEAD that contradicts a stored one makes that stale, any other
/// does not change it.
#[test]
fn head_that_contradicts() {
    for (etag, is_hit) in [("\"a\"", true), ("\"b\"", false)] {
        let mut world = World::started(cached(1, |_| {}), 1, 1);
        world.serve(move |seen| {
            seen.complete.then(|| {
                let (is_head, lines) =
                    (seen.request.method == "HEAD", "Cache-Control: max-age=60\r\n");
                let head =
                    format!("HTTP/1.1 200 X\r\n{lines}ETag: {etag}\r\nContent-Length: 4\r\n\r\n");
                vec![Do::Answer(match is_head {
                    true => head.into_bytes(),
                    false => reply(200, &format!("{lines}ETag: \"a\"\r\n"), "body"),
                })]
            })
        });
        let client = world.client();
        ask(&mut world, client, "GET", "/a", "");
        world.run_for(2_000_000);
        let (status, _, told) =
            ask(&mut world, client, "HEAD", "/a", "Cache-Control: no-cache\r\n");
        assert_eq!((status, told.as_str()), (200, "weir; fwd=request"));
        let told = ask(&mut world, client, "GET", "/a", "").2;
        assert_eq!(told.starts_with("weir; hit"), is_hit, "{etag}: {told}");
        world.finish();
    }
}

/// RFC 9111 §5.1: Age says that a response was not made for this request.
#[test]
fn age_is_for_what_was_made_before() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    world.serve(|seen| {
        let lines = if seen.request.target == "/old" {
            "Cache-Control: max-age=60\r\nAge: 5\r\n"
        } else {
            "Cache-Control: max-age=60\r\n"
        };
        seen.complete.then(|| vec![Do::Answer(reply(200, lines, "x"))])
    });
    let client = world.client();
    for (target, first, second) in [("/a", vec![], vec!["0"]), ("/old", vec!["5"], vec!["5"])] {
        ask(&mut world, client, "GET", target, "");
        assert_eq!(field(&world, client, "age"), first);
        ask(&mut world, client, "GET", target, "");
        assert_eq!(field(&world, client, "age"), second);
    }
    world.finish();
}

/// A route's changes to response fields do not affect weir's own fields when a stored field is left
/// out.
#[test]
fn edits_leave_what_the_store_says() {
    let cache = Arc::new(CacheRules { told: ToldTo::Everybody, ..CacheRules::default() });
    let mut answer = FieldEdits::default();
    answer.push("X-Set", Edit::Set(Text::compile("here").expect("a text")));
    let rules = RouteRules { cache: Some(cache), answer, ..RouteRules::default() };
    let route = Route { rules: Some(Arc::new(rules)), ..Route::default() };
    let mut world =
        World::started(Plan { routes: RouteTable::new(vec![route]), ..cached(1, |_| {}) }, 1, 1);
    world.serve(|seen| {
        let lines = "Cache-Control: max-age=60\r\nContent-Range: bytes 7-8/9\r\n";
        seen.complete.then(|| vec![Do::Answer(reply(200, lines, "body"))])
    });
    let client = world.client();
    ask(&mut world, client, "GET", "/a", "");
    let (status, body, _) = ask(&mut world, client, "GET", "/a", "Range: bytes=0-1\r\n");
    assert_eq!((status, body.as_str()), (206, "bo"));
    assert_eq!(field(&world, client, "content-range"), ["bytes 0-1/4"]);
    assert_eq!(
        (field(&world, client, "x-set"), field(&world, client, "age")),
        (vec!["here".into()], vec!["0".into()])
    );
    world.finish();
}

const AUTHORIZATION: &str = "Authorization: Basic YTpi\r\n";

/// A server's response to an authenticated client means nothing for the stored response for all:
/// neither to HEAD, nor by a 304 for something else.
#[test]
fn answers_to_credentials_end_nothing() {
    for (method, lines, after_us) in
        [("HEAD", "Cache-Control: no-cache\r\n", 2_000_000), ("GET", "", 61_000_000)]
    {
        let mut world = World::started(cached(1, |_| {}), 1, 1);
        world.serve(|seen| {
            seen.complete.then(|| {
                let (is_personal, is_head) =
                    (seen.request.fields.has("authorization"), seen.request.method == "HEAD");
                let is_asked = seen.request.fields.has("if-none-match");
                let etag = if is_personal { "\"b\"" } else { "\"a\"" };
                let lines = format!("Cache-Control: max-age=60\r\nETag: {etag}\r\n");
                vec![Do::Answer(match (is_asked, is_head) {
                    (true, _) => format!("HTTP/1.1 304 X\r\n{lines}\r\n").into_bytes(),
                    (false, true) => {
                        format!("HTTP/1.1 200 X\r\n{lines}Content-Length: 8\r\n\r\n").into_bytes()
                    }
                    (false, false) => {
                        reply(200, &lines, if is_personal { "personal" } else { "body" })
                    }
                })]
            })
        });
        let client = world.client();
        ask(&mut world, client, "GET", "/a", "");
        world.run_for(after_us);
        let (status, body, _) =
            ask(&mut world, client, method, "/a", &format!("{lines}{AUTHORIZATION}"));
        assert_eq!((status, body.as_str()), (200, if method == "HEAD" { "" } else { "personal" }));
        let (_, body, told) = ask(&mut world, client, "GET", "/a", "");
        // It is unchanged: fresh, or to be validated.
        let expected =
            if method == "HEAD" { "weir; hit; " } else { "weir; fwd=stale; fwd-status=304; " };
        assert!(told.starts_with(expected) && body == "body", "{method}: {told}");
        world.finish();
    }
}

/// Nor does its size: that is one client's page, and no other client bypasses the store because of
/// it.
#[test]
fn what_is_too_large_for_one_marks_nothing() {
    for (lines, expected) in [
        (AUTHORIZATION, "weir; fwd=uri-miss; ttl=60; stored"),
        ("", "weir; fwd=uri-miss; detail=hit-for-miss"),
    ] {
        let store = CachePlan { object_bytes_max: 4096, ..CachePlan::default() };
        let mut world = World::started(Plan { cache: Some(store), ..cached(1, |_| {}) }, 1, 1);
        let count = Cell::new(0);
        world.serve(move |seen| {
            seen.complete.then(|| {
                count.set(count.get() + 1);
                let head = "HTTP/1.1 200 X\r\nCache-Control: public, max-age=60\r\n\
                    Transfer-Encoding: chunked\r\n\r\n";
                let chunk = |bytes: usize| format!("{bytes:x}\r\n{}\r\n", "x".repeat(bytes));
                let body = if count.get() == 1 { chunk(1000).repeat(8) } else { chunk(1000) };
                vec![Do::Answer(format!("{head}{body}0\r\n\r\n").into_bytes())]
            })
        });
        let client = world.client();
        assert_eq!(ask(&mut world, client, "GET", "/a", lines).1.len(), 8000);
        assert_eq!(ask(&mut world, client, "GET", "/a", "").2, expected, "{lines}");
        world.finish();
    }
}

/// RFC 9111 §4.4: a request on a route that stores nothing also invalidates what another route has
/// stored of its URL.
#[test]
fn a_change_by_another_route() {
    let stores =
        RouteRules { cache: Some(Arc::new(CacheRules::default())), ..RouteRules::default() };
    let routes = vec![
        Route {
            methods: Some(vec!["GET".to_owned()]),
            rules: Some(Arc::new(stores)),
            ..Route::default()
        },
        Route::default(),
    ];
    let mut world =
        World::started(Plan { routes: RouteTable::new(routes), ..cached(1, |_| {}) }, 1, 1);
    let count = Cell::new(0);
    world.serve(move |seen| {
        seen.complete.then(|| {
            count.set(count.get() + 1);
            vec![Do::Answer(reply(200, "Cache-Control: max-age=60\r\n", &count.get().to_string()))]
        })
    });
    let client = world.client();
    let bodies: Vec<String> = ["GET", "GET", "DELETE", "GET"]
        .map(|method| ask(&mut world, client, method, "/a", "").1)
        .into();
    assert_eq!(bodies, ["1", "1", "2", "3"]);
    world.finish();
}

/// A server that makes its pages from client data that weir sends, and an office whose route sends
/// more of it than that of all others.
fn office(told: &'static str, name: &'static str, text: &str) -> World {
    let mut rules = RouteRules::default();
    match told {
        "set" => rules.request.push(name, Edit::Set(Text::compile(text).expect("a text"))),
        "remove" => rules.request.push(name, Edit::Remove),
        _ => rules.host = Some(text.as_bytes().into()),
    }
    office_and_others([rules, RouteRules::default()], vec![name])
}

/// Likewise with these rules for the office and for all others, and pages from these fields.
fn office_and_others(rules: [RouteRules; 2], names: Vec<&'static str>) -> World {
    let cache = Arc::new(CacheRules { told: ToldTo::Everybody, ..CacheRules::default() });
    let mut plan = cached(1, |_| {});
    let is_of_office = Condition {
        subject: Subject::Header("x-office".to_owned()),
        value: TargetMatch::Any,
        not: false,
    };
    let route = |conditions, rules| {
        let rules = RouteRules { cache: Some(Arc::clone(&cache)), ..rules };
        Route { conditions, rules: Some(Arc::new(rules)), ..Route::default() }
    };
    let [of_office, of_others] = rules;
    plan.routes =
        RouteTable::new(vec![route(vec![is_of_office], of_office), route(Vec::new(), of_others)]);
    plan.client.request_id = Some("X-Request-Id".into());
    let mut world = World::started(plan, 1, 1);
    world.serve(move |seen| {
        let fields = &seen.request.fields;
        let told: Vec<String> =
            names.iter().map(|name| format!("{name}: {}", fields.all(name).join(","))).collect();
        let page = format!("{} {}", fields.first("host").unwrap_or_default(), told.join(" "));
        seen.complete
            .then(|| vec![Do::Answer(reply(200, "Cache-Control: public, max-age=60\r\n", &page))])
    });
    world
}

/// The values that a route sends to servers are part of the key: a response made from them is only
/// for clients with the same values.
#[test]
fn what_weir_tells_servers_is_part_of_the_key() {
    for (told, name, text) in [
        ("set", "X-Role", "staff"),
        ("set", "X-Who", "$remote_addr"),
        ("set", "X-Who", "$request_id of $remote_addr"),
        ("set", "X-Seen", "$http_x_other"),
        ("remove", "X-Other", ""),
        ("host", "X-Role", "office.internal"),
    ] {
        let mut world = office(told, name, text);
        let client = world.client();
        let inside = "X-Office: 1\r\nX-Other: 2\r\n";
        let first = ask(&mut world, client, "GET", "/a", inside);
        let others = ask(&mut world, client, "GET", "/a", "X-Other: 2\r\n");
        let what = format!("{told} {name} {text}");
        assert_ne!(first.1, others.1, "{what}");
        assert_eq!(others.2, "weir; fwd=uri-miss; ttl=60; stored", "{what}");
        assert_eq!(
            ask(&mut world, client, "GET", "/a", "X-Other: 2\r\n").2,
            "weir; hit; ttl=60",
            "{what}"
        );
        let again = ask(&mut world, client, "GET", "/a", inside);
        // A value that names each request is never found again, which is safe.
        if !text.contains("$request_id") {
            assert_eq!((again.1, again.2.as_str()), (first.1, "weir; hit; ttl=60"), "{what}");
        }
        // A change of the URL affects all of them.
        ask(&mut world, client, "DELETE", "/a", "");
        for lines in [inside, ""] {
            assert!(
                ask(&mut world, client, "GET", "/a", lines).2.contains("fwd=uri-miss"),
                "{what}"
            );
        }
        world.finish();
    }
}

/// Values that servers get of every client anyway keep no client from stored responses.
#[test]
fn what_is_told_of_every_client_is_not_part_of_the_key() {
    for (name, text) in [
        ("X-Real-IP", "$remote_addr"),
        ("X-Call", "$request_id"),
        ("X-Call", "a-$trace_id-$request_id"),
    ] {
        let mut world = office("set", name, text);
        let first = world.client();
        world.peer = [192, 0, 2, 77].into();
        let second = world.client();
        ask(&mut world, first, "GET", "/a", "X-Office: 1\r\n");
        assert_eq!(
            ask(&mut world, second, "GET", "/a", "X-Office: 1\r\n").2,
            "weir; hit; ttl=60",
            "{name} {text}"
        );
        world.finish();
    }
}

/// A key contains the text that a route writes around such values, and the name of the field.
#[test]
fn what_is_written_around_such_values_is_part_of_the_key() {
    for edits in [
        [("X-Ctx", "role=staff;rid=$request_id"), ("X-Ctx", "role=guest;rid=$request_id")],
        [("X-Ctx", "$trace_id staff"), ("X-Ctx", "$trace_id guest")],
        [("X-Ctx", "role=staff;rid=$request_id"), ("X-Ctx", "$request_id")],
        [("X-Ctx", "role=staff;rid=$request_id"), ("X-Ctx", "role=staff;rid=")],
        [("X-Real-IP", "staff $remote_addr"), ("X-Real-IP", "guest $remote_addr")],
        [("X-Staff", "$request_id"), ("X-Guest", "$request_id")],
    ] {
        for edit in [Edit::Set, Edit::Add] {
            let rules = edits.map(|(name, text)| {
                let mut rules = RouteRules::default();
                rules.request.push(name, edit(Text::compile(text).expect("a text")));
                rules
            });
            let mut world =
                office_and_others(rules, vec!["x-ctx", "x-real-ip", "x-staff", "x-guest"]);
            let first = world.client();
            world.peer = [192, 0, 2, 77].into();
            let second = world.client();
            for (lines, others) in [("X-Office: 1\r\n", ""), ("", "X-Office: 1\r\n")] {
                ask(&mut world, first, "DELETE", "/a", "");
                let page = ask(&mut world, first, "GET", "/a", lines);
                let other = ask(&mut world, second, "GET", "/a", others);
                assert_ne!(page.1, other.1, "{edits:?}");
                assert_eq!(other.2, "weir; fwd=uri-miss; ttl=60; stored", "{edits:?}");
                for (lines, page) in [(lines, page.1), (others, other.1)] {
                    assert_eq!(
                        ask(&mut world, second, "GET", "/a", lines),
                        (200, page, "weir; hit; ttl=60".into())
                    );
                }
            }
            world.finish();
        }
    }
}

/// A certificate that is sent to servers is part of the key.
#[test]
fn a_certificate_is_part_of_the_key() {
    let mut world = World::started(cached(1, |_| {}), 1, 1);
    world.serve(|seen| {
        let page = seen.request.fields.first("client-cert").unwrap_or("nobody").to_owned();
        seen.complete.then(|| vec![Do::Answer(reply(200, "Cache-Control: max-age=60\r\n", &page))])
    });
    let clients: Vec<usize> = [Some(&b"ann"[..]), Some(b"bob"), None, Some(b"ann")]
        .into_iter()
        .map(|certificate| {
            let client = world.client();
            let shown = certificate.map(|der| Arc::new(Shown::new(der)));
            world.seal(client, Secured { shown, ..Secured::default() });
            client
        })
        .collect();
    let mut told = Vec::new();
    for client in clients {
        let (_, page, status) = ask(&mut world, client, "GET", "/a", "");
        told.push((page, status.contains("hit")));
    }
    let page = |page: &str, hit| (page.to_owned(), hit);
    assert_eq!(
        told,
        [page(":YW5u:", false), page(":Ym9i:", false), page("nobody", false), page(":YW5u:", true)]
    );
    world.finish();
}
