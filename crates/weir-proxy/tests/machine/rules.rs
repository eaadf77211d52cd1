//! Proves: the rules of a route change requests and responses as configured, wherever both sides of
//! a request are, after a loss, and for weir's own responses. A request is finished by the rules
//! under which it was routed; and nothing that clients send makes a rule write what the strict
//! grammar refuses (docs/routes.md). How: plans with rules, judged byte by byte on both
//! sides; a reload in the middle; requests made at random from all valid parts.

use std::sync::Arc;

use proptest::prelude::*;
use weir_check::{Reply, Request};
use weir_proxy::plan::{ClientPlan, Network, Plan};
use weir_proxy::request::own_answer::ErrorPage;
use weir_proxy::request::route::{Route, RouteTable};
use weir_proxy::request::rules::RouteRules;
use weir_proxy::request::rules::access::Access;
use weir_proxy::request::rules::edits::{Edit, FieldEdits};
use weir_proxy::request::rules::path::{PathRules, Replacement, Rewrite};
use weir_proxy::request::rules::requirements::Requirements;
use weir_proxy::request::rules::text::Text;
use weir_proxy::upstream::health::Codes;

use crate::world::{Do, World, access_log, answer, plan};

/// Edits by verb, name and value.
fn edits(all: &[(&str, &str, &str)]) -> FieldEdits {
    let mut edits = FieldEdits::default();
    for (verb, name, value) in all {
        let text = || Text::compile(value).expect("a text");
        edits.push(
            name,
            match *verb {
                "set" => Edit::Set(text()),
                "add" => Edit::Add(text()),
                _ => Edit::Remove,
            },
        );
    }
    edits
}

fn rewrite(regex: &str, to: &str) -> Rewrite {
    let regex = regex::bytes::Regex::new(regex).expect("an expression");
    let to = Replacement::compile(to, regex.captures_len() - 1).expect("a path");
    Rewrite { regex, to }
}

/// The plan of [`plan`], whose only route has these rules.
fn ruled(rules: RouteRules) -> Plan {
    let route = Route { rules: Some(Arc::new(rules)), ..Route::default() };
    Plan { routes: RouteTable::new(vec![route]), ..plan(1, 1) }
}

/// Rules of each kind.
fn all_kinds() -> RouteRules {
    RouteRules {
        access: Access::default(),
        requirements: Requirements::default(),
        users: None,
        path: PathRules {
            strip: Some(b"/api"[..].into()),
            rewrites: vec![rewrite("^/old/(.*)$", "/new/$1")],
        },
        host: Some(b"app.internal:8080"[..].into()),
        request: edits(&[
            ("set", "X-Client", "$remote_addr"),
            (
                "add",
                "X-Way",
                "$scheme $request_method $host $request_uri $server_protocol $upstream_name",
            ),
            ("remove", "Cookie", ""),
            ("set", "X-Empty", "$http_x_none"),
            ("set", "X-Host", "$http_host"),
        ]),
        answer: edits(&[
            ("set", "Strict-Transport-Security", "max-age=1"),
            ("add", "X-Asked", "[$http_x_asked]"),
            ("remove", "X-Powered-By", ""),
        ]),
        pages: Vec::new(),
        buffering: weir_proxy::request::rules::buffering::Buffering::default(),
        compress: None,
        cache: None,
    }
}

/// An honest response with fields that rules look at.
fn talkative(request: &Request) -> Vec<u8> {
    let text = String::from_utf8(answer(request)).expect("text");
    let more = "\r\nX-Powered-By: a\r\nstrict-transport-security: no\r\nx-powered-by: b\r\n\
        X-Asked: server\r\n";
    text.replacen("\r\n", more, 1).into_bytes()
}

fn is_ruled(request: &Request, reply: &Reply) {
    assert_eq!(request.fields.all("host"), ["app.internal:8080"]);
    assert_eq!(request.fields.all("x-forwarded-host"), ["a"]);
    assert_eq!(request.fields.all("x-host"), ["a"]);
    assert_eq!(request.fields.all("x-client"), ["192.0.2.1"]);
    assert_eq!(request.fields.all("cookie"), [""; 0]);
    assert_eq!(request.fields.all("x-empty"), [""; 0]);
    let way = request.fields.all("x-way");
    assert!(way.len() == 2 && way[0] == "mine" && way[1].starts_with("http "), "{way:?}");
    assert_eq!(reply.fields.all("strict-transport-security"), ["max-age=1"]);
    assert_eq!(reply.fields.all("x-powered-by"), [""; 0]);
    assert_eq!(reply.fields.all("x-asked"), ["server", "[what]"]);
}

const FIELDS: &str = "X-Client: forged\r\nX-Way: mine\r\nCookie: a=b\r\nX-Empty: x\r\n\
    X-Asked: what\r\nx-client: again\r\n";

#[test]
fn requests_and_answers_are_changed() {
    for workers in [1, 2] {
        let mut world = World::started(ruled(all_kinds()), workers, 1);
        world.serve(|seen| seen.complete.then(|| vec![Do::Answer(talkative(seen.request))]));
        for (n, (method, target, expected)) in [
            ("GET", "/api/old/%61/x", "/new/a/x"),
            ("POST", "/api//old/b", "/new/b"),
            ("HEAD", "/api", "/"),
            ("GET", "/api/%2e/c", "/c"),
        ]
        .into_iter()
        .enumerate()
        {
            let client = world.client_of(n % usize::from(workers));
            let nonce = format!("{n:08}");
            let body = if method == "POST" { "Content-Length: 5\r\n" } else { "" };
            world.ask(client, method, &format!("{target}?n={nonce}"), &format!("{FIELDS}{body}"));
            if method == "POST" {
                world.send(client, b"hello");
            }
            world.settle();
            let request =
                world.requests().find(|request| request.nonce() == nonce).expect("it was asked");
            assert_eq!(
                (request.target.as_str(), request.method.as_str()),
                (&*format!("{expected}?n={nonce}"), method)
            );
            is_ruled(request, &world.clients[client].replies[0]);
        }
        world.finish();
    }
}

/// Also weir's own response; a request that was refused before routing has no rules.
#[test]
fn errors_have_the_rules_of_their_route() {
    let mut world =
        World::started(ruled(RouteRules { path: PathRules::default(), ..all_kinds() }), 1, 1);
    world.servers[0].door = crate::world::Door::Refuses;
    world.open_conns().into_iter().for_each(|conn| world.cut(conn, Do::Rst));
    let client = world.client();
    world.ask(client, "GET", "/a", "X-Asked: me\r\n");
    world.run_for(70_000_000);
    let refused = world.client();
    world.ask(refused, "GET", "/%00", "");
    world.run_for(1_000);
    let replies = [client, refused].map(|client| world.clients[client].replies[0].clone());
    assert_eq!(replies[0].status, 502);
    assert_eq!(
        (replies[0].fields.all("x-asked"), replies[0].fields.all("server")),
        (vec!["[me]"], vec!["weir"])
    );
    assert_eq!(
        (replies[1].status, replies[1].fields.has("strict-transport-security")),
        (400, false)
    );
    world.finish();
}

/// A page replaces weir's own text, whichever side is at fault, and never a server's response.
#[test]
fn errors_have_pages() {
    let page = |first, last, content: &'static str| {
        let statuses = vec![Codes { first: 599, last: 599 }, Codes { first, last }];
        Arc::new(ErrorPage {
            statuses,
            media_type: b"text/html"[..].into(),
            content: content.into(),
        })
    };
    let mut access = Access::default();
    access.push(
        false,
        Some(Network { address: "203.0.113.5".parse().expect("an address"), prefix_bits: 32 }),
    );
    let pages = vec![page(502, 502, "<p>Back soon.</p>"), page(400, 599, "<p>No.</p>")];
    let mut world =
        World::started(ruled(RouteRules { access, pages, ..RouteRules::default() }), 1, 1);
    world.serve(|seen| {
        let text = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\nmine".to_vec();
        let is_own = seen.request.target.starts_with("/own");
        Some(if is_own {
            vec![Do::Answer(text)]
        } else {
            vec![Do::Answer(b"nonsense\r\n\r\n".to_vec())]
        })
    });
    let client = world.client();
    world.peer = "203.0.113.5".parse().expect("an address");
    let stranger = world.client();
    for (client, method, target) in [
        (client, "GET", "/own"),
        (client, "POST", "/a"),
        (client, "HEAD", "/a"),
        (stranger, "GET", "/a"),
    ] {
        world.ask(client, method, target, "");
        world.run_for(1_000_000);
    }
    let all: Vec<_> =
        [client, stranger].iter().flat_map(|client| &world.clients[*client].replies).collect();
    assert_eq!(all.iter().map(|reply| reply.status).collect::<Vec<_>>(), [502, 502, 502, 403]);
    let bodies = all.iter().map(|reply| reply.body.text()).collect::<Vec<_>>();
    assert_eq!(bodies, ["mine", "<p>Back soon.</p>", "", "<p>No.</p>"]);
    for (reply, length) in all[1..].iter().zip(["17", "17", "10"]) {
        assert_eq!(
            (reply.fields.all("content-type"), reply.fields.all("content-length")),
            (vec!["text/html"], vec![length])
        );
    }
    world.finish();
}

/// A repeated request is the same request, and its response has each line once.
#[test]
fn a_repetition_has_the_same_rules() {
    for workers in [1, 2] {
        let mut world = World::started(ruled(all_kinds()), workers, 1);
        let mut lost = 0;
        world.serve(move |seen| {
            if seen.complete && lost < 1 {
                lost += 1;
                return Some(vec![Do::Rst]);
            }
            seen.complete.then(|| vec![Do::Answer(talkative(seen.request))])
        });
        let client = world.client();
        world.ask(client, "GET", "/api/old/x?n=00000001", FIELDS);
        world.run_for(10_000_000);
        let asked: Vec<_> =
            world.requests().filter(|request| request.nonce() == "00000001").collect();
        assert!(asked.len() >= 2, "it was sent again");
        assert_eq!(world.clients[client].statuses(), [200]);
        asked.iter().for_each(|request| is_ruled(request, &world.clients[client].replies[0]));
        world.finish();
    }
}

/// A request whose head was read is finished by the rules of that time; one behind it by those of
/// now.
#[test]
fn a_reload_in_the_middle() {
    for workers in [1, 2] {
        let mut world = World::started(ruled(all_kinds()), workers, 1);
        world.serve(|seen| {
            seen.complete.then(|| vec![Do::Delay(50_000), Do::Answer(talkative(seen.request))])
        });
        let clients = [world.client_of(0), world.client_of(usize::from(workers) - 1)];
        world.ask(clients[0], "GET", "/api/a?n=00000001", FIELDS);
        world.ask(
            clients[1],
            "POST",
            "/api/b?n=00000002",
            &format!("{FIELDS}Content-Length: 5\r\n"),
        );
        world.run_for(10_000);
        world.reload(ruled(RouteRules {
            answer: edits(&[("set", "X-Now", "new")]),
            ..RouteRules::default()
        }));
        world.run_for(10_000);
        world.send(clients[1], b"hello");
        clients
            .into_iter()
            .for_each(|client| world.ask(client, "GET", &format!("/c?n=0000001{client}"), FIELDS));
        world.run_for(1_000_000);
        for (client, nonce) in clients.into_iter().zip(["00000001", "00000002"]) {
            let [old, new] = &world.clients[client].replies[..] else { panic!("two answers") };
            is_ruled(
                world.requests().find(|request| request.nonce() == nonce).expect("it was asked"),
                old,
            );
            assert!(!old.fields.has("x-now"));
            assert_eq!(
                (new.fields.all("x-now"), new.fields.all("x-powered-by")),
                (vec!["new"], vec!["a", "b"])
            );
        }
        world.finish();
    }
}

/// A refused client learns it, with the rules of the route, and others are served.
#[test]
fn some_addresses_are_refused() {
    let mut access = Access::default();
    access.push(
        true,
        Some(Network { address: "192.0.2.0".parse().expect("an address"), prefix_bits: 25 }),
    );
    access.push(false, None);
    let only = RouteRules { access: access.clone(), ..RouteRules::default() };
    for rules in [RouteRules { access, ..all_kinds() }, only] {
        let has_more = !rules.answer.is_empty();
        let mut world = World::started(ruled(rules), 1, 1);
        let near = world.client();
        world.peer = "192.0.2.200".parse().expect("an address");
        let far = world.client();
        for client in [near, far] {
            world.ask(client, "GET", "/api/a?n=00000001", "X-Asked: me\r\n");
            world.settle();
        }
        let [near, far] = [near, far].map(|client| world.clients[client].replies[0].clone());
        assert_eq!(
            (near.status, far.status, far.body.text().as_str()),
            (200, 403, "403 Forbidden: address-denied\n")
        );
        assert_eq!((far.fields.has("strict-transport-security"), far.closes), (has_more, false));
        assert_eq!(world.requests().count(), 1);
        assert!(world.lines[1].contains(" weir head address-denied "), "{:?}", world.lines);
        world.finish();
    }
}

/// A trusted proxy names the client: for rules, for the log, and without harm to others.
#[test]
fn trusted_proxies_are_believed() {
    let mut access = Access::default();
    access.push(
        false,
        Some(Network { address: "198.51.100.9".parse().expect("an address"), prefix_bits: 32 }),
    );
    let request = edits(&[("set", "X-Who", "$remote_addr by $realip_remote_addr")]);
    let format = "$remote_addr $remote_port $realip_remote_addr $realip_remote_port $status";
    let plan = ruled(RouteRules { access, request, ..RouteRules::default() });
    let mut plan = Plan { access_log: Some(access_log(format)), ..plan };
    plan.client.trusted_proxies =
        vec![Network { address: "192.0.2.0".parse().expect("an address"), prefix_bits: 24 }];
    let mut world = World::started(plan, 1, 1);
    let proxy = world.client();
    world.peer = "203.0.113.5".parse().expect("an address");
    let stranger = world.client();
    for (client, line, status) in [
        (proxy, "X-Forwarded-For: 198.51.100.9, 198.51.100.1\r\n", 200),
        (proxy, "X-Forwarded-For: 198.51.100.1, 198.51.100.9\r\n", 403),
        (proxy, "", 200),
        (stranger, "X-Forwarded-For: 198.51.100.9\r\n", 200),
    ] {
        world.ask(client, "GET", "/?n=00000001", line);
        world.settle();
        assert_eq!(
            world.clients[client].replies.last().map(|reply| reply.status),
            Some(status),
            "{line}"
        );
    }
    let who: Vec<_> = world.requests().flat_map(|request| request.fields.all("x-who")).collect();
    assert_eq!(
        who,
        ["198.51.100.1 by 192.0.2.1", "192.0.2.1 by 192.0.2.1", "203.0.113.5 by 203.0.113.5"],
    );
    let ports = [proxy, stranger].map(|client| world.clients[client].port);
    assert_eq!(
        world.lines,
        [
            format!("198.51.100.1 - 192.0.2.1 {} 200", ports[0]),
            format!("198.51.100.9 - 192.0.2.1 {} 403", ports[0]),
            format!("192.0.2.1 {0} 192.0.2.1 {0} 200", ports[0]),
            format!("203.0.113.5 {0} 203.0.113.5 {0} 200", ports[1]),
        ]
    );
    world.finish();
}

/// The identifiers of a request: for its server, also when it is sent again; for its client, from
/// any responder; and in the log.
#[test]
fn requests_have_names() {
    let rules = RouteRules {
        answer: edits(&[("set", "X-Id", "$request_id/$trace_id")]),
        ..RouteRules::default()
    };
    for workers in [1, 2] {
        let plan = Plan {
            access_log: Some(access_log("$request_id $trace_id $status")),
            ..ruled(rules.clone())
        };
        let client = ClientPlan {
            request_id: Some("X-Request-Id".into()),
            trace_context: true,
            ..plan.client.clone()
        };
        let mut world = World::started(Plan { client, ..plan }, workers, 1);
        let mut lost = 0;
        world.serve(move |seen| {
            if seen.complete && lost < 1 {
                lost += 1;
                return Some(vec![Do::Rst]);
            }
            seen.complete.then(|| vec![Do::Answer(answer(seen.request))])
        });
        let client = world.client();
        world.ask(client, "GET", "/?n=00000001", "X-Request-Id: forged\r\ntracestate: a=b\r\n");
        world.run_for(10_000_000);
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        let parent = format!("00-{trace}-00f067aa0ba902b7-00");
        world.expect(client, "POST", false, false);
        let head = format!(
            "POST /?n=00000002 HTTP/1.1\r\nHost: a\r\nTraceparent: {parent}\r\ntracestate: a=b\r\n"
        );
        world.send(client, format!("{head}Content-Length: 5\r\n\r\n").as_bytes());
        world.settle();
        world.send(client, b"hello");
        world.ask(client, "GET", "/a%2F..%2Fb", "");
        world.settle();
        assert_eq!(world.clients[client].statuses(), [200, 200, 400]);
        let asked: Vec<_> = world.requests().map(|request| &request.fields).collect();
        assert_eq!(asked.len(), 3, "the first was sent again");
        assert_eq!(asked[0].all("x-request-id"), asked[1].all("x-request-id"));
        assert_eq!(
            (asked[0].all("traceparent"), asked[0].has("tracestate")),
            (asked[1].all("traceparent"), false)
        );
        assert_eq!(
            (asked[2].all("traceparent"), asked[2].all("tracestate")),
            (vec![&*parent], vec!["a=b"])
        );
        for (at, fields) in [(0, asked[0]), (1, asked[2])] {
            let [id] = fields.all("x-request-id")[..] else { panic!("one identifier") };
            let trace = &fields.all("traceparent")[0][3..35];
            assert!(id.len() == 36 && id != "forged", "{id}");
            assert_eq!(
                world.clients[client].replies[at].fields.all("x-id"),
                [format!("{id}/{trace}")]
            );
            assert_eq!(world.lines[at], format!("{id} {trace} 200"));
        }
        assert!(
            world.lines[2].len() == 36 + 1 + 32 + 4 && world.lines[2].ends_with(" 400"),
            "{}",
            world.lines[2]
        );
        world.finish();
    }
}

#[test]
fn what_would_be_too_much_is_refused() {
    let texts: Vec<String> = (0..8).map(|_| "$http_x_long".repeat(4)).collect();
    let sets: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h"]
        .iter()
        .zip(&texts)
        .map(|(name, text)| ("set", *name, text.as_str()))
        .collect();
    for rules in [
        RouteRules { request: edits(&sets), ..RouteRules::default() },
        RouteRules { answer: edits(&sets), ..RouteRules::default() },
    ] {
        let mut world = World::started(ruled(rules), 1, 1);
        let client = world.client();
        for bytes in [1_000, 4_000, 1_000] {
            world.ask(client, "GET", "/?n=00000001", &format!("X-Long: {}\r\n", "x".repeat(bytes)));
            world.settle();
        }
        assert_eq!(world.clients[client].statuses(), [200, 431, 200]);
        world.finish();
    }
}

/// Paths that rules cannot change unambiguously, and one whose canonical form has left the prefix.
#[test]
fn c6_doubtful_paths_are_refused() {
    let mut world = World::started(ruled(all_kinds()), 1, 1);
    let client = world.client();
    for target in
        ["/api;v=1/x", "/api/../secret", "/apis", "/api/a%2F..%2Fb", "/api/%2", "/api%2Fx"]
    {
        world.ask(client, "GET", target, "");
    }
    world.settle();
    assert_eq!(world.clients[client].statuses(), [400; 6]);
    assert_eq!(world.requests().count(), 0);
    world.finish();
}

/// An encoded line end that a rule puts together is found: such a request is the last of its batch.
#[test]
fn c6_a_line_end_that_is_put_together_is_found() {
    let path = PathRules { strip: None, rewrites: vec![rewrite("^/(.*)x(.*)$", "/$1$2")] };
    let mut world = World::started(ruled(RouteRules { path, ..RouteRules::default() }), 1, 1);
    let trusted = world.client();
    for n in 0..200 {
        world.get(trusted, &format!("{n:08}"));
        world.settle();
    }
    world.measure_depth();
    world.serve(|seen| {
        seen.complete.then(|| vec![Do::Delay(1_000), Do::Answer(answer(seen.request))])
    });
    // `%25x0d`: the escape is complete before and after.
    for n in 0..8 {
        world.ask(trusted, "GET", &format!("/a%25x0d?n=0000030{n}"), "");
    }
    world.settle();
    assert_eq!(world.depth(), 1);
    assert!(world.requests().any(|request| request.target.starts_with("/a%250d")));
    world.finish();
}

/// Bytes that are valid in a field's value, with a preference for those with a special meaning
/// somewhere.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => prop::sample::select(&b"\t \"\\:;,%$/0d0a"[..]),
        2 => 0x21..0x7fu8,
        1 => 0x80..=0xffu8,
    ];
    prop::collection::vec(byte, 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The world's judges read every byte on both sides. Beyond the grammar: rules add exactly the
    /// configured lines.
    #[test]
    fn no_rule_breaks_the_grammar(
        values in prop::collection::vec(value(), 3),
        target in "[!-\"$-;=?-~]{0,30}",
        host in "[a-z.]{1,20}(:[0-9]{1,4})?",
        method in prop::sample::select(&["GET", "POST", "HEAD", "PROPFIND"][..]),
    ) {
        let rules = RouteRules {
            path: PathRules {
                strip: None,
                rewrites: vec![rewrite("^/(.*)([a-z])(.*)$", "/$3$2$1")],
            },
            request: edits(&[
                ("set", "X-Out", "$http_x_a$http_x_b"),
                ("add", "X-Out", "$http_x_c $request_uri"),
                ("set", "X-Who", "$host$http_host"),
                ("set", "X-Cookie", "$http_cookie;$http_content_length;$http_connection"),
            ]),
            answer: edits(&[
                ("set", "X-Back", "$http_x_a"),
                ("add", "X-Back", "  $http_x_b$request_uri$http_x_c  "),
            ]),
            ..RouteRules::default()
        };
        let mut world = World::started(ruled(rules), 1, 1);
        let client = world.client();
        let mut text = format!(
            "{method} /{target} HTTP/1.1\r\nHost: {host}\r\n\
            Content-Length: 0\r\n"
        )
        .into_bytes();
        for (name, value) in ["X-A", "X-B", "X-C"].iter().zip(&values) {
            text.extend([name.as_bytes(), b":", value, b"\r\n"].concat());
        }
        text.extend(b"\r\n");
        world.expect(client, method, false, false);
        world.send(client, &text);
        world.settle();
        let replies = &world.clients[client].replies;
        prop_assert_eq!(replies.len(), 1);
        if replies[0].status == 200 {
            let trimmed = |value: &[u8]| value.trim_ascii().to_vec();
            let first = [trimmed(&values[0]), trimmed(&values[1])].concat();
            let request = world.requests().last().expect("it was asked");
            prop_assert_eq!(
                request.fields.all("x-out").len(),
                1 + usize::from(!trimmed(&first).is_empty())
            );
            prop_assert_eq!(request.fields.all("x-who").len(), 1);
            prop_assert_eq!(
                replies[0].fields.all("x-back").len(),
                1 + usize::from(!trimmed(&values[0]).is_empty())
            );
            prop_assert!(request.target.starts_with('/') && !request.target.starts_with("//"));
        } else {
            prop_assert!([400, 414].contains(&replies[0].status), "{}", replies[0].status);
        }
        world.finish();
    }
}
