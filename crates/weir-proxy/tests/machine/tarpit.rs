//! Proves: a refusal by `over="tarpit"` waits for its time in its place among the responses,
//! nothing behind it is parsed and little of it received, and its connection ends with it. A client
//! that leaves is released at once, one that has to leave hears it at once, and beyond the maximum
//! of waiting refusals a connection is reset (docs/limits.md). How: a limit of two requests,
//! whose third waits for ten seconds of a clock that runs as it likes.

use weir_proxy::ending::Farewell;
use weir_proxy::plan::{ClientPlan, LimitPlan, Network, Over, Plan, ShieldPlan, Terms};
use weir_proxy::shield::limit::Rate;
use weir_proxy::shield::tally::Outcome;

use crate::world::{Do, World, answer, plan};

const SECOND_US: u64 = 1_000_000;
const TARPIT_US: u64 = 10 * SECOND_US;
/// No timer is later by more.
const TICK_US: u64 = 100_000;

fn limited(change: impl FnOnce(&mut ShieldPlan)) -> Plan {
    let mut two = LimitPlan::new("two", Terms::Requests(Rate::new(1, 3600 * SECOND_US, 2, false)));
    two.over = Over::Tarpit;
    let mut shield = ShieldPlan::new(vec![two], 1024);
    change(&mut shield);
    Plan { shield: Some(shield), ..plan(1, 1) }
}

fn world() -> World {
    World::started(limited(|_| ()), 1, 1)
}

/// Returns a client that has had its two responses, and whose third request is held.
fn held(world: &mut World) -> usize {
    let client = world.client();
    (0..3).for_each(|_| world.get(client, "a"));
    world.settle();
    assert_eq!(world.clients[client].statuses(), [200, 200]);
    client
}

fn refused(world: &World) -> u64 {
    world.nodes[0].parts.plan.shield.as_ref().expect("limits").limits[0].tally.get(Outcome::Refused)
}

#[test]
fn a_refusal_waits_and_is_the_last_answer() {
    let mut world = world();
    let client = world.client();
    for _ in 0..3 {
        world.expect(client, "GET", false, false);
    }
    world.send(client, &b"GET /v HTTP/1.1\r\nHost: a\r\n\r\n".repeat(5));
    world.run_for(TARPIT_US - 1);
    assert_eq!(
        (world.clients[client].statuses(), world.clients[client].closed),
        (vec![200, 200], false)
    );
    world.run_for(TICK_US);
    assert_eq!(world.clients[client].statuses(), [200, 200, 429]);
    let last = &world.clients[client].replies[2];
    assert!(last.closes && last.fields.first("Retry-After").is_some(), "{last:?}");
    // The bytes behind it are not read: it ends slowly, so that the response is not lost.
    world.run_for(3 * SECOND_US);
    assert!(world.clients[client].closed && !world.clients[client].was_reset);
    assert_eq!(
        (world.requests().count(), refused(&world)),
        (2, 1),
        "what is behind it is not judged"
    );
    assert_eq!(world.count(|all| all.tarpitted.get()), 1);
    world.finish();
}

/// The client's end may be known already before its waiting bytes are parsed.
#[test]
fn who_has_left_before_he_was_parsed_does_not_wait() {
    let client =
        ClientPlan { requests_queued_max: 2, serves_half_closed: true, ..ClientPlan::default() };
    let mut world = World::started(Plan { client, ..limited(|_| ()) }, 1, 1);
    world.serve(move |seen| Some(vec![Do::Delay(SECOND_US), Do::Answer(answer(seen.request))]));
    let client = world.client();
    (0..3).for_each(|_| world.expect(client, "GET", false, false));
    world.send(client, &b"GET /v HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3));
    world.half_close(client);
    world.run_for(4 * SECOND_US);
    assert_eq!(
        (world.clients[client].statuses(), world.clients[client].closed),
        (vec![200, 200, 429], true)
    );
    world.finish();
}

/// Its time starts with the request, and it is sent in its turn.
#[test]
fn what_was_asked_before_comes_first() {
    for slow_us in [SECOND_US, 2 * TARPIT_US] {
        let mut world = world();
        world.serve(move |seen| Some(vec![Do::Delay(slow_us), Do::Answer(answer(seen.request))]));
        let client = world.client();
        (0..3).for_each(|_| world.get(client, "a"));
        world.run_for(slow_us.min(TARPIT_US) - 1);
        assert_eq!(world.clients[client].statuses(), [0; 0]);
        world.run_for(slow_us.max(TARPIT_US) + slow_us);
        assert_eq!(world.clients[client].statuses(), [200, 200, 429], "{slow_us}");
        assert!(world.clients[client].closed);
        world.finish();
    }
}

#[test]
fn who_leaves_is_let_go_at_once() {
    for by_reset in [false, true] {
        let mut world = world();
        let client = held(&mut world);
        if by_reset {
            world.reset(client);
        } else {
            world.half_close(client);
        }
        world.settle();
        assert_eq!((world.nodes[0].engine.clients(), world.nodes[0].engine.exchanges()), (0, 0));
        assert_eq!(world.clients[client].statuses(), [200, 200]);
        world.run_for(2 * TARPIT_US);
        world.finish();
    }
}

/// The client's earlier requests are answered, even if it sends nothing more; then no client is
/// kept for the refusal.
#[test]
fn who_ends_his_direction_gets_what_he_asked_before() {
    let mut world = world();
    world.serve(|seen| Some(vec![Do::Delay(60_000), Do::Answer(answer(seen.request))]));
    let client = world.client();
    (0..3).for_each(|_| world.get(client, "a"));
    world.half_close(client);
    world.settle();
    assert_eq!(world.clients[client].statuses(), [0; 0]);
    world.run_for(SECOND_US);
    assert_eq!(world.clients[client].statuses(), [200, 200, 429]);
    assert!(world.clients[client].closed);
    world.finish();
}

#[test]
fn an_answer_in_front_of_it_may_end_the_connection() {
    let mut world = world();
    world.serve(|seen| {
        let cut = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc".to_vec();
        seen.request
            .target
            .contains("cut")
            .then(|| vec![Do::Answer(cut), Do::Delay(SECOND_US), Do::Rst])
    });
    let client = world.client();
    world.ask(client, "GET", "/cut", "");
    world.settle();
    world.ask(client, "GET", "/b", "");
    world.ask(client, "GET", "/c", "");
    world.run_for(3 * SECOND_US);
    assert!(world.clients[client].closed);
    assert_eq!(world.nodes[0].engine.exchanges(), 0);
    // Its place is free, and no timer fires for it.
    world.run_for(2 * TARPIT_US);
    world.finish();
}

#[test]
fn a_body_is_not_read() {
    let mut world = world();
    let client = world.client();
    (0..2).for_each(|_| world.get(client, "a"));
    world.expect(client, "POST", false, false);
    world.send(client, b"POST /v HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n");
    for _ in 0..40 {
        world.send(client, &[b'x'; 4096]);
        world.settle();
    }
    let unread = world.clients[client].unread();
    assert!((80_000..100_000).contains(&unread), "{unread} bytes are with the kernel");
    assert_eq!(world.clients[client].statuses(), [200, 200]);
    world.run_for(TARPIT_US + TICK_US);
    assert_eq!(world.clients[client].statuses(), [200, 200, 429]);
    assert!(!world.clients[client].closed, "it may be read");
    world.run_for(3 * SECOND_US);
    assert!(world.clients[client].closed);
    world.finish();
}

#[test]
fn who_is_to_go_is_told_at_once() {
    for who in [Farewell::All, Farewell::Successor, Farewell::Listener(0), Farewell::Listener(9)] {
        let mut world = world();
        let client = held(&mut world);
        world.nodes[0].engine.drain(who);
        world.settle();
        world.run_for(0);
        let (is_told, told) = (who != Farewell::Listener(9), &world.clients[client]);
        assert_eq!(
            (told.statuses().len(), told.closed),
            (if is_told { 3 } else { 2 }, is_told),
            "{who:?}"
        );
        if who == Farewell::All {
            assert!(world.nodes[0].engine.is_drained());
        }
        world.finish();
    }
    // A client that is refused in the meantime does not wait either.
    let mut world = world();
    let other = world.client();
    held(&mut world);
    world.nodes[0].engine.drain(Farewell::All);
    world.get(other, "b");
    world.settle();
    assert_eq!((world.clients[other].statuses(), world.clients[other].closed), (vec![429], true));
    world.finish();
}

#[test]
fn a_reload_forgets_nobody() {
    let mut world = world();
    let client = held(&mut world);
    world.reload(plan(1, 1));
    world.run_for(TARPIT_US + TICK_US);
    assert_eq!(world.clients[client].statuses(), [200, 200, 429]);
    assert!(world.clients[client].closed);
    world.finish();
}

#[test]
fn one_more_than_may_wait_is_reset() {
    let mut world = World::started(limited(|shield| shield.tarpit_max = 2), 1, 1);
    let first = held(&mut world);
    let refused = |world: &mut World| {
        let client = world.client();
        world.get(client, "b");
        world.settle();
        client
    };
    let (second, third) = (refused(&mut world), refused(&mut world));
    assert_eq!(
        [first, second, third].map(|client| world.clients[client].closed),
        [false, false, true]
    );
    assert!(world.clients[third].was_reset);
    assert_eq!(world.count(|all| all.tarpit_full.get()), 1);
    world.reset(second);
    world.settle();
    let fourth = refused(&mut world);
    assert!(!world.clients[fourth].closed, "there is room again");
    world.begin_anew(0);
    let fifth = refused(&mut world);
    assert!(!world.clients[fifth].closed);
    world.run_for(TARPIT_US + TICK_US);
    assert_eq!(world.clients[fifth].statuses(), [429]);
    world.finish();
}

/// A client behind a trusted proxy gets its refusal at once: the connection serves others.
#[test]
fn proxies_are_not_kept() {
    let trusted_proxies =
        vec![Network { address: "192.0.2.1".parse().expect("an address"), prefix_bits: 32 }];
    let client = ClientPlan { trusted_proxies, ..ClientPlan::default() };
    let mut world = World::started(Plan { client, ..limited(|_| ()) }, 1, 1);
    world.peer = "192.0.2.1".parse().expect("an address");
    let proxy = world.client();
    for who in [1, 1, 1, 2] {
        world.ask(proxy, "GET", "/v", &format!("X-Forwarded-For: 198.51.100.{who}\r\n"));
        world.settle();
    }
    assert_eq!(world.clients[proxy].statuses(), [200, 200, 429, 200]);
    assert!(!world.clients[proxy].closed);
    world.finish();
}

/// A stream waits separately, and others of its connection continue.
#[test]
fn streams_wait_by_themselves() {
    let mut requests =
        LimitPlan::new("one", Terms::Requests(Rate::new(1, 3600 * SECOND_US, 1, false)));
    requests.over = Over::Tarpit;
    requests.requests.paths = vec![weir_proxy::plan::PathMatch::Exact("/login".to_owned())];
    let mut world = World::started(
        Plan { shield: Some(ShieldPlan::new(vec![requests], 1024)), ..plan(1, 1) },
        1,
        1,
    );
    let client = world.http2_client(0, 65_535);
    let status =
        |world: &World, stream| world.stream_reply(client, stream).map(|reply| reply.status);
    for (stream, target) in [(1, "/login"), (3, "/login"), (5, "/v"), (7, "/login")] {
        world.open(client, stream, target);
        world.settle();
    }
    assert_eq!(
        [1, 3, 5, 7].map(|stream| status(&world, stream)),
        [Some(200), None, Some(200), None]
    );
    world.reset_stream(client, 7);
    world.settle();
    assert_eq!(world.nodes[0].engine.exchanges(), 1, "who gives it up is forgotten");
    world.run_for(TARPIT_US + TICK_US);
    assert_eq!(status(&world, 3), Some(429));
    world.open(client, 9, "/v");
    world.settle();
    assert_eq!(status(&world, 9), Some(200), "the connection goes on");
    world.open(client, 11, "/login");
    world.settle();
    world.nodes[0].engine.drain(Farewell::All);
    world.run_for(TICK_US);
    assert_eq!(status(&world, 11), Some(429), "it is told in the drain");
    world.run_for(5 * SECOND_US);
    assert!(world.clients[client].closed && world.nodes[0].engine.is_drained());
    world.finish();
}
