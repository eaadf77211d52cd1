//! Proves: limits hold for each client over all workers, requests and streams; refusals keep their
//! place among responses; open counts are given back whatever happens; a connection that serves
//! other clients is never reset; and a reload keeps the counts (docs/limits.md). How: plans with
//! few limits, and clients that exceed them by one.

use weir_proxy::engine::Unwanted;
use weir_proxy::plan::{
    BanPlan, ClientPlan, Entrance, LimitPlan, Network, Over, PathMatch, Plan, RequestMatch,
    ShieldPlan, Terms,
};
use weir_proxy::shield::by::{By, Part};
use weir_proxy::shield::limit::Rate;
use weir_proxy::shield::tally::Outcome;
use weir_proxy::upstream::health::Codes;

use crate::world::{Do, World, answer, plan};

const SECOND_US: u64 = 1_000_000;

fn per_second(count: u32, burst: u32) -> Rate {
    Rate::new(count, SECOND_US, burst, false)
}

/// Requests, two at once and then one a second.
fn two() -> LimitPlan {
    LimitPlan::new("two", Terms::Requests(per_second(1, 2)))
}

/// A limit that is changed.
fn with(mut limit: LimitPlan, change: impl FnOnce(&mut LimitPlan)) -> LimitPlan {
    change(&mut limit);
    limit
}

fn limited(limits: Vec<LimitPlan>) -> Plan {
    Plan { shield: Some(ShieldPlan::new(limits, 1024)), ..plan(1, 1) }
}

fn shield(world: &World) -> &ShieldPlan {
    world.nodes[0].parts.plan.shield.as_ref().expect("there are limits")
}

fn open(world: &World) -> u64 {
    shield(world).seed.table().open_sum()
}

/// Returns passed, refused, observed and untracked of the first limit.
fn tally(world: &World) -> [u64; 4] {
    let all = [Outcome::Passed, Outcome::Refused, Outcome::Observed, Outcome::Untracked];
    all.map(|outcome| shield(world).limits[0].tally.get(outcome))
}

fn connect(world: &mut World) -> Result<u64, Unwanted> {
    let peer = std::net::SocketAddr::new(world.peer, 1);
    world.nodes[0].engine.accepted(
        77,
        peer,
        Entrance { serves: world.serves, ..Entrance::default() },
    )
}

#[test]
fn refusals_stand_in_their_place() {
    let mut world = World::started(limited(vec![two()]), 1, 1);
    let client = world.client();
    for _ in 0..4 {
        world.expect(client, "GET", false, false);
    }
    world.send(client, &b"GET /v HTTP/1.1\r\nHost: a\r\n\r\n".repeat(4));
    world.settle();
    assert_eq!(world.clients[client].statuses(), [200, 200, 429, 429]);
    let again = |reply: &weir_check::Reply| reply.fields.first("Retry-After") == Some("1");
    assert!(
        world.clients[client].replies[2..].iter().all(again),
        "{:?}",
        world.clients[client].replies
    );
    assert_eq!((world.requests().count(), tally(&world)), (2, [2, 2, 0, 0]));
    world.run_for(SECOND_US);
    world.get(client, "later");
    world.get(client, "too-soon");
    world.settle();
    assert_eq!(world.clients[client].statuses()[4..], [200, 429]);
    world.finish();
}

#[test]
fn who_is_refused_again_and_again_has_time() {
    let mut world = World::started(limited(vec![two()]), 1, 1);
    let client = world.client();
    let has_time = |world: &World| world.clients[client].deferred;
    for (status, expected) in [(200, false), (200, false), (429, false), (429, true), (429, true)] {
        assert_eq!(told(&mut world, client, "/v"), status);
        assert_eq!(has_time(&world), expected, "{status}");
    }
    world.run_for(SECOND_US);
    assert_eq!(
        (told(&mut world, client, "/v"), has_time(&world)),
        (200, false),
        "he is served again"
    );
    assert_eq!([(); 2].map(|()| told(&mut world, client, "/v")), [429, 429]);
    assert!(has_time(&world));
    world.reload(plan(1, 1));
    assert!(!has_time(&world), "there are no limits any more");
    world.finish();
}

/// 404 responses, two at once and then one a second.
fn guesses() -> LimitPlan {
    let answers = LimitPlan::new("guesses", Terms::Answers(per_second(1, 2)));
    with(answers, |limit| limit.answers = vec![Codes { first: 404, last: 404 }])
}

/// The server has nothing below `/no`.
fn with_gaps(limits: Vec<LimitPlan>, workers: u16) -> World {
    let mut world = World::started(limited(limits), workers, 1);
    world.serve(|seen| {
        let is_there = !seen.request.target.starts_with("/no");
        let none = || b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec();
        seen.complete
            .then(|| vec![Do::Answer(if is_there { answer(seen.request) } else { none() })])
    });
    world
}

/// Returns the status that this client gets now.
fn told(world: &mut World, client: usize, target: &str) -> u16 {
    world.ask(client, "GET", target, "");
    world.settle();
    *world.clients[client].statuses().last().expect("an answer")
}

#[test]
fn answers_of_a_kind_are_counted_and_what_is_asked_next_is_refused() {
    let mut world = with_gaps(vec![guesses()], 2);
    let (one, other) = (world.client_of(0), world.client_of(1));
    let asked = [
        (one, "/no"),
        (other, "/yes"),
        (one, "/yes"),
        (other, "/no"),
        (one, "/yes"),
        (other, "/yes"),
    ];
    assert_eq!(
        asked.map(|(client, target)| told(&mut world, client, target)),
        [404, 200, 200, 404, 429, 429]
    );
    assert_eq!((world.requests().count(), tally(&world)), (4, [2, 2, 0, 0]));
    world.run_for(SECOND_US);
    assert_eq!(told(&mut world, one, "/yes"), 200, "one more has room, and that was none");
    assert_eq!([told(&mut world, one, "/no"), told(&mut world, other, "/yes")], [404, 429]);
    world.finish();
}

#[test]
fn answers_to_some_requests_count_and_refusals_do_not() {
    let requests = RequestMatch { methods: vec!["POST".to_owned()], ..RequestMatch::default() };
    let any = |limit: &mut LimitPlan| limit.answers = vec![Codes { first: 400, last: 599 }];
    let posts = with(with(guesses(), any), |limit| limit.requests = requests);
    let mut world =
        with_gaps(vec![with(two(), |limit| limit.requests = posts.requests.clone()), posts], 1);
    let client = world.client();
    assert_eq!([(); 3].map(|()| told(&mut world, client, "/no")), [404; 3], "they are no POST");
    for nonce in ["a", "b", "c", "d"] {
        world.post(client, nonce, b"x");
        world.settle();
    }
    assert_eq!(world.clients[client].statuses()[3..], [200, 200, 429, 429]);
    let counted = Outcome::ALL.map(|outcome| shield(&world).limits[1].tally.get(outcome));
    assert_eq!(counted, [0; 5], "what another limit has refused is no answer that counts");
    world.finish();
}

#[test]
fn answers_to_streams_and_while_observing() {
    for observe in [false, true] {
        let mut world = with_gaps(vec![with(guesses(), |limit| limit.observe = observe)], 1);
        let client = world.http2_client(0, 65_535);
        for stream in [1, 3, 5, 7] {
            world.open(client, stream, "/no");
            world.settle();
        }
        let status = |stream| world.stream_reply(client, stream).map(|reply| reply.status);
        let last = Some(if observe { 404 } else { 429 });
        assert_eq!([1, 3, 5, 7].map(status), [Some(404), Some(404), last, last]);
        // An observed request continues and is answered, and that response counts as well.
        assert_eq!(tally(&world), if observe { [4, 0, 2, 0] } else { [2, 2, 0, 0] });
        world.finish();
    }
}

#[test]
fn all_workers_and_connections_count_together() {
    let mut world = World::started(limited(vec![two()]), 2, 1);
    let clients: Vec<usize> = (0..6).map(|number| world.client_of(number % 2)).collect();
    for client in &clients {
        world.get(*client, "a");
        world.settle();
    }
    let statuses: Vec<u16> =
        clients.iter().flat_map(|client| world.clients[*client].statuses()).collect();
    assert_eq!(statuses, [200, 200, 429, 429, 429, 429]);
    world.peer = "192.0.2.77".parse().expect("an address");
    let other = world.client();
    world.get(other, "b");
    world.settle();
    assert_eq!(world.clients[other].statuses(), [200], "another client");
    world.finish();
}

#[test]
fn streams_are_requests() {
    let mut world = World::started(limited(vec![two()]), 1, 1);
    let client = world.http2_client(0, 65_535);
    for stream in [1, 3, 5, 7] {
        world.open(client, stream, "/v");
    }
    world.settle();
    let status = |stream| world.stream_reply(client, stream).map(|reply| reply.status);
    assert_eq!([1, 3, 5, 7].map(status), [Some(200), Some(200), Some(429), Some(429)]);
    world.finish();
}

#[test]
fn who_does_not_stop_is_closed() {
    let mut world = World::started(limited(vec![two()]), 1, 1);
    let client = world.client();
    for number in 0..1010 {
        if !world.clients[client].closed {
            world.get(client, &number.to_string());
            world.settle();
        }
    }
    let replies = &world.clients[client].replies;
    let [.., before, last] = &replies[..] else { panic!("{} replies", replies.len()) };
    assert_eq!((replies.len(), last.status, last.closes, before.closes), (1002, 429, true, false));
    world.finish();
}

#[test]
fn what_becomes_of_one_too_many() {
    for (over, status) in
        [(Over::Status(403), Some(403)), (Over::Close, Some(429)), (Over::Reset, None)]
    {
        let mut world = World::started(limited(vec![with(two(), |limit| limit.over = over)]), 1, 1);
        let client = world.client();
        for nonce in ["a", "b", "c"] {
            world.get(client, nonce);
            world.settle();
        }
        let client = &world.clients[client];
        assert_eq!(client.statuses().get(2).copied(), status, "{over:?}");
        assert_eq!(client.was_reset, over == Over::Reset, "{over:?}");
        assert_eq!(
            client.replies.last().is_some_and(|reply| reply.closes),
            over == Over::Close,
            "{over:?}"
        );
        world.finish();
    }
}

/// Both for one limit and for all.
#[test]
fn observing() {
    for all in [false, true] {
        let mut plan = limited(vec![with(two(), |limit| limit.observe = !all)]);
        plan.shield.as_mut().expect("limits").observe = all;
        let mut world = World::started(plan, 1, 1);
        let client = world.client();
        (0..5).for_each(|_| world.get(client, "a"));
        world.settle();
        assert_eq!(world.clients[client].statuses(), [200; 5]);
        assert_eq!(tally(&world), [2, 0, 3, 0]);
        world.finish();
    }
}

#[test]
fn only_what_a_limit_is_for() {
    let requests = RequestMatch {
        paths: vec![PathMatch::Exact("/login".to_owned())],
        methods: vec!["POST".to_owned()],
        ..RequestMatch::default()
    };
    let mut world =
        World::started(limited(vec![with(two(), |limit| limit.requests = requests)]), 1, 1);
    let client = world.client();
    for (method, target) in [
        ("GET", "/login"),
        ("POST", "/login?a"),
        ("POST", "/x/..//log%69n"),
        ("POST", "/login"),
        ("POST", "/other"),
    ] {
        world.ask(client, method, target, "Content-Length: 0\r\n");
        world.settle();
    }
    assert_eq!(world.clients[client].statuses(), [200, 200, 200, 429, 200]);
    world.finish();
}

/// Servers such as PHP behind Apache read a path with a suffix behind a slash as the same path.
#[test]
fn nothing_behind_a_path_passes_by_its_limit() {
    let mut limit = LimitPlan::new("one", Terms::Requests(per_second(1, 1)));
    limit.requests.paths = vec![PathMatch::Exact("/wp-login.php".to_owned())];
    for target in [
        "/wp-login.php/",
        "/wp-login.php//",
        "/wp-login.php/x",
        "/wp-login.php%2f",
        "/wp-login.php%2Fx.css",
        "/wp-login.php;x/y?z",
    ] {
        let mut world = World::started(limited(vec![limit.clone()]), 1, 1);
        let client = world.client();
        for target in ["/wp-login.php", target, "/wp-login.phpx", "/"] {
            world.ask(client, "GET", target, "");
            world.settle();
        }
        assert_eq!(world.clients[client].statuses(), [200, 429, 200, 200], "{target}");
        world.finish();
    }
}

/// Returns the status that this client gets for these fields.
fn told_for(world: &mut World, client: usize, target: &str, fields: &str) -> u16 {
    world.ask(client, "GET", target, fields);
    world.settle();
    *world.clients[client].statuses().last().expect("an answer")
}

#[test]
fn who_says_the_same_is_counted_together() {
    let by = |parts: Vec<Part>, falls_back| By { parts, falls_back };
    let key = || Part::Header("x-key".to_owned());
    let mut limit = two();
    for (by, expected) in [
        (by(vec![key()], false), [200, 200, 429, 200, 200, 200, 200]),
        (by(vec![key()], true), [200, 200, 429, 200, 200, 200, 429]),
        (by(vec![Part::Client, key()], false), [200, 200, 200, 200, 200, 200, 200]),
        (by(Vec::new(), false), [200, 200, 429, 429, 429, 429, 429]),
    ] {
        limit.by = by;
        let mut world = World::started(limited(vec![limit.clone()]), 2, 1);
        let first = world.client();
        world.peer = "192.0.2.77".parse().expect("an address");
        let second = world.client();
        let asked = [
            (first, "1"),
            (second, "1"),
            (first, "1"),
            (first, "2"),
            (second, ""),
            (second, ""),
            (second, ""),
        ];
        let told = asked.map(|(client, key)| {
            let fields = if key.is_empty() { String::new() } else { format!("X-Key: {key}\r\n") };
            told_for(&mut world, client, "/v", &fields)
        });
        assert_eq!(told, expected, "{:?}", limit.by);
        world.finish();
    }
}

/// Responses and requests in progress as well; values that others may have written ban no client.
#[test]
fn what_counts_by_values() {
    let by = By { parts: vec![Part::Query("user".to_owned())], falls_back: false };
    let of_values = |limit: LimitPlan| with(limit, |limit| limit.by = by.clone());
    let mut world = with_gaps(vec![of_values(guesses())], 1);
    let (first, second) = (world.client(), world.client());
    for client in [first, second] {
        assert_eq!(told_for(&mut world, client, "/no?user=a", ""), 404);
    }
    assert_eq!(told_for(&mut world, first, "/no?user=a", ""), 429);
    assert_eq!(told_for(&mut world, first, "/no?user=b", ""), 404);
    // Whichever of two a server uses.
    assert_eq!(told_for(&mut world, first, "/no?user=c&user=a", ""), 429);
    assert_eq!(told_for(&mut world, first, "/no?user=a&user=d", ""), 429);
    world.finish();

    let at_once = of_values(LimitPlan::new("at-once", Terms::InProgress(1)));
    let mut plan = limited(vec![at_once]);
    let ban = BanPlan { offences: Rate::new(1, SECOND_US, 1, false), ..BanPlan::default() };
    plan.shield.as_mut().expect("limits").ban = Some(ban);
    let mut world = World::started(Plan { shield: plan.shield, ..self::plan(1, 2) }, 1, 1);
    world.serve(|seen| {
        (!seen.request.target.contains("slow")).then(|| vec![Do::Answer(answer(seen.request))])
    });
    let (first, second) = (world.client(), world.client());
    world.ask(first, "GET", "/slow?user=a", "");
    world.settle();
    let told = ["a", "b", "a", "a"]
        .map(|user| told_for(&mut world, second, &format!("/?user={user}"), ""));
    assert_eq!((told, open(&world)), ([429, 200, 429, 429], 1));
    assert!(world.nodes[0].engine.take_offence().is_none());
    world.reset(first);
    world.settle();
    assert_eq!(open(&world), 0);
    world.finish();
}

#[test]
fn connections_that_are_open() {
    let mut world = World::started(limited(vec![LimitPlan::new("open", Terms::Open(2))]), 1, 1);
    let (first, _second) = (world.client(), world.client());
    assert_eq!(connect(&mut world), Err(Unwanted::Reset));
    assert_eq!(open(&world), 2);
    world.reset(first);
    world.settle();
    assert_eq!(open(&world), 1);
    world.client();
    assert_eq!(connect(&mut world), Err(Unwanted::Reset));
    world.begin_anew(0);
    assert_eq!(open(&world), 0, "a worker that has lost everything gives it back");
    world.client();
    assert_eq!((open(&world), tally(&world)), (1, [4, 2, 0, 0]));
    world.finish();
}

#[test]
fn connections_that_come_too_fast() {
    let connects = with(LimitPlan::new("c", Terms::Connections(per_second(1, 2))), |limit| {
        limit.over = Over::Close
    });
    let mut world =
        World::started(limited(vec![LimitPlan::new("open", Terms::Open(9)), connects]), 1, 1);
    world.client();
    world.client();
    assert_eq!(connect(&mut world), Err(Unwanted::Close));
    assert_eq!(open(&world), 2, "who is refused by a later limit is not open");
    world.run_for(SECOND_US);
    world.client();
    world.finish();
}

#[test]
fn requests_in_progress() {
    let at_once = LimitPlan::new("at-once", Terms::InProgress(1));
    let mut world =
        World::started(Plan { shield: limited(vec![at_once]).shield, ..plan(1, 2) }, 1, 1);
    world.serve(|seen| {
        (!seen.request.target.contains("slow")).then(|| vec![Do::Answer(answer(seen.request))])
    });
    let (first, second) = (world.client(), world.client());
    world.get(first, "slow");
    world.settle();
    world.get(second, "a");
    world.settle();
    assert_eq!((world.clients[second].statuses(), open(&world)), (vec![429], 1));
    world.reset(first);
    world.settle();
    assert_eq!(open(&world), 0);
    world.get(second, "b");
    world.settle();
    assert_eq!((world.clients[second].statuses(), open(&world)), (vec![429, 200], 0));
    world.finish();
}

/// Glitches and timeouts are charged when connections end; a client with too many of them is not
/// accepted.
#[test]
fn manners_of_connections_that_have_ended() {
    fn raw(world: &mut World, client: usize) {
        world.send(client, b"\r\nGET /v HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    fn slow(world: &mut World, client: usize) {
        world.send(client, b"GET /v HTT");
        world.settle();
        world.run_for(2 * ClientPlan::default().head_timeout_us);
    }
    let hourly = Rate::new(1, 3600 * SECOND_US, 2, false);
    let cases =
        [(Terms::Glitches(hourly), raw as fn(&mut World, usize)), (Terms::Timeouts(hourly), slow)];
    for (terms, misbehave) in cases {
        let mut world = World::started(limited(vec![LimitPlan::new("manners", terms)]), 1, 1);
        for count in 1..=2 {
            let client = world.client();
            world.expect(client, "GET", false, false);
            misbehave(&mut world, client);
            world.settle();
            if !world.clients[client].closed {
                world.reset(client);
                world.settle();
            }
            assert_eq!(tally(&world), [count, 0, 0, 0], "{terms:?}");
        }
        assert_eq!(
            (connect(&mut world), tally(&world)),
            (Err(Unwanted::Reset), [2, 1, 0, 0]),
            "{terms:?}"
        );
        world.peer = "192.0.2.99".parse().expect("an address");
        world.client();
        world.finish();
    }
}

/// Clients behind a trusted proxy are told apart by its statements; its connections serve others,
/// and are neither counted nor reset. The proxy's own requests are not limited.
#[test]
fn behind_a_trusted_proxy() {
    let trusted = |address: std::net::IpAddr| Network { address, prefix_bits: 32 };
    let limits =
        vec![LimitPlan::new("open", Terms::Open(1)), with(two(), |limit| limit.over = Over::Reset)];
    let plan = Plan {
        client: ClientPlan {
            trusted_proxies: vec![trusted("192.0.2.1".parse().expect("an address"))],
            ..ClientPlan::default()
        },
        ..limited(limits)
    };
    let mut world = World::started(plan, 1, 1);
    world.peer = "192.0.2.1".parse().expect("an address");
    let clients = [world.client(), world.client(), world.client()];
    assert_eq!(open(&world), 0);
    for number in 0..12 {
        world.ask(clients[number % 3], "GET", "/v", "X-Forwarded-For: 198.51.100.1\r\n");
        world.settle();
    }
    assert!(
        clients.iter().all(|client| !world.clients[*client].deferred),
        "who speaks for others is not kept waiting"
    );
    world.ask(clients[0], "GET", "/v", "X-Forwarded-For: 198.51.100.2\r\n");
    (0..5).for_each(|_| world.ask(clients[1], "GET", "/v", ""));
    world.settle();
    let statuses = clients.map(|client| world.clients[client].statuses());
    assert_eq!(
        statuses,
        [
            vec![200, 429, 429, 429, 200],
            vec![200, 429, 429, 429, 200, 200, 200, 200, 200],
            vec![429; 4]
        ]
    );
    assert!(clients.iter().all(|client| !world.clients[*client].closed));
    world.finish();
}

#[test]
fn who_is_allowed_has_no_limit() {
    let mut plan = limited(vec![two(), LimitPlan::new("open", Terms::Open(1))]);
    plan.shield.as_mut().expect("limits").allow =
        vec![Network { address: "192.0.2.0".parse().expect("an address"), prefix_bits: 24 }];
    let mut world = World::started(plan, 1, 1);
    world.peer = "192.0.2.9".parse().expect("an address");
    let (client, _other) = (world.client(), world.client());
    (0..20).for_each(|_| world.get(client, "a"));
    world.settle();
    assert_eq!((world.clients[client].statuses(), tally(&world)), (vec![200; 20], [0; 4]));
    world.finish();
}

#[test]
fn a_reload_keeps_what_was_counted() {
    let limits = || vec![two(), LimitPlan::new("open", Terms::Open(2))];
    let mut world = World::started(limited(limits()), 1, 1);
    let (client, other) = (world.client(), world.client());
    (0..3).for_each(|_| world.get(client, "a"));
    world.settle();
    let mut reversed = limits();
    reversed.reverse();
    world.reload(limited(reversed));
    world.get(client, "b");
    world.settle();
    assert_eq!(world.clients[client].statuses(), [200, 200, 429, 429]);
    assert_eq!((open(&world), connect(&mut world)), (2, Err(Unwanted::Reset)));
    world.reload(plan(1, 1));
    world.get(client, "c");
    world.get(other, "d");
    world.settle();
    assert_eq!(
        (world.clients[client].statuses()[4], world.clients[other].statuses()),
        (200, vec![200])
    );
    // New limits know nothing of earlier clients.
    world.reload(limited(limits()));
    world.get(client, "e");
    world.settle();
    assert_eq!((world.clients[client].statuses()[5], open(&world)), (200, 0));
    world.finish();
}

/// A limit by a field, as for the protection of logins.
fn by_user(mut limit: LimitPlan) -> LimitPlan {
    limit.by = By { parts: vec![Part::Header("x-user".to_owned())], falls_back: false };
    limit
}

/// Sends a request in the name of a user.
fn ask_as(world: &mut World, client: usize, user: &str, target: &str) -> u16 {
    world.ask(client, "GET", target, &format!("X-User: {user}\r\n"));
    world.settle();
    *world.clients[client].statuses().last().expect("an answer")
}

/// Invented values make no limit forget another value, and open none: values without room are
/// counted together.
#[test]
fn a_full_table_opens_no_limit_by_value() {
    // Ten a minute, five at once; or the same number of 404 responses.
    let rate = Rate::new(10, 60 * SECOND_US, 5, false);
    let mut answers = guesses();
    answers.terms = Terms::Answers(rate);
    for (limit, passed) in [(LimitPlan::new("login", Terms::Requests(rate)), 200), (answers, 404)] {
        let mut world = with_gaps(vec![by_user(limit)], 1);
        let client = world.client();
        for number in 0..1100 {
            for _ in 0..3 {
                ask_as(
                    &mut world,
                    client,
                    &format!("u{number}"),
                    if passed == 404 { "/no" } else { "/v" },
                );
            }
        }
        let shared = || shield(&world).limits[0].tally.get(Outcome::Shared);
        assert!(shared() > 1000, "{}", shared());
        for user in ["alice", "bob", "eve"] {
            let target = if passed == 404 { "/no" } else { "/v" };
            let told: Vec<u16> =
                (0..30).map(|_| ask_as(&mut world, client, user, target)).collect();
            let passes = told.iter().filter(|status| **status == passed).count();
            assert!(passes <= 5, "{user}: {passes} of 30");
        }
        assert_eq!(tally(&world)[3], 0, "nobody is let through for want of room");
        world.finish();
    }
}

/// Nor do they make one forget earlier values, or start over when room is available again.
#[test]
fn who_fills_the_table_is_not_forgiven() {
    let rate = Rate::new(1, 60 * SECOND_US, 5, false);
    let mut world = World::started(
        limited(vec![by_user(LimitPlan::new("login", Terms::Requests(rate)))]),
        1,
        1,
    );
    let client = world.client();
    let mut passes = 0;
    for round in 0..30 {
        passes += u32::from(ask_as(&mut world, client, "alice", "/v") == 200);
        for number in 0..100 {
            ask_as(&mut world, client, &format!("u{round}-{number}"), "/v");
        }
        world.run_for(SECOND_US);
    }
    assert!(passes <= 6, "{passes} guesses in half a minute");
    world.finish();
}

/// Requests in progress of a value without room are also counted together with others, and given
/// back.
#[test]
fn what_is_in_progress_is_counted_without_room() {
    let rate = Rate::new(1, 3600 * SECOND_US, 5, false);
    let limits = vec![
        by_user(LimitPlan::new("rate", Terms::Requests(rate))),
        by_user(LimitPlan::new("both", Terms::InProgress(2))),
    ];
    let mut world = World::started(limited(limits), 1, 1);
    let filler = world.client();
    for number in 0..1100 {
        ask_as(&mut world, filler, &format!("u{number}"), "/v");
    }
    world.serve(|_| None);
    let clients: Vec<usize> = (0..4).map(|_| world.client()).collect();
    for client in &clients {
        world.ask(*client, "GET", "/v", "X-User: alice\r\n");
    }
    world.settle();
    let refused = |world: &World| {
        clients.iter().filter(|client| world.clients[**client].statuses() == [429]).count()
    };
    assert_eq!((refused(&world), open(&world)), (2, 2));
    clients.iter().for_each(|client| world.reset(*client));
    world.run_for(SECOND_US);
    assert_eq!(open(&world), 0);
}
