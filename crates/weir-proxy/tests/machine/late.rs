//! Proves: a response that is far slower than usual delays only its own client; nothing that must
//! not be repeated is repeated for it, and nothing is sent twice without a gain.
//! docs/pipelining-stalls.md#late-responses

use weir_check::upstreams::check_honest;
use weir_proxy::plan::{PipelineMode, Plan};
use weir_proxy::upstream::slow_answer::LATE_US_MIN;

use crate::world::{Do, Seen, World, answer, plan};

/// The time of responses to `/slow`.
const SLOW_US: u64 = 200_000;
/// By now a late response was noticed.
const NOTICED_US: u64 = LATE_US_MIN + 10_000;

fn deep(connections: u32) -> Plan {
    let mut deep = plan(1, connections);
    deep.upstreams[0].pipeline = PipelineMode::Depth(16);
    deep
}

/// Responds at once, except to `/slow`.
fn serve(seen: &Seen<'_>) -> Option<Vec<Do>> {
    let slow = seen.request.target.starts_with("/slow");
    let delay = slow.then_some(Do::Delay(SLOW_US));
    Some(delay.into_iter().chain([Do::Answer(answer(seen.request))]).collect())
}

/// A world whose server is trusted and known to be fast.
fn warm(plan: Plan, workers: u16) -> World {
    let mut world = World::started(plan, workers, 1);
    world.serve(serve);
    let clients: Vec<usize> =
        (0..4 * usize::from(workers)).map(|n| world.client_of(n % usize::from(workers))).collect();
    for n in 0..150 {
        clients.iter().for_each(|client| world.get(*client, &format!("{n:08}")));
        world.settle();
    }
    world
}

/// A slow request and `count` others behind it, each from its own client, in one turn.
fn slow_and_others(world: &mut World, count: usize) -> (usize, Vec<usize>) {
    let slow = world.client();
    world.ask(slow, "GET", "/slow?n=s0000000", "");
    let others: Vec<usize> = (0..count).map(|_| world.client()).collect();
    for (n, client) in others.iter().enumerate() {
        world.get(*client, &format!("o{n:07}"));
    }
    (slow, others)
}

fn answered(world: &World, clients: &[usize]) -> usize {
    for (n, client) in clients.iter().enumerate() {
        world.clients[*client]
            .replies
            .iter()
            .for_each(|reply| check_honest(&format!("o{n:07}"), reply).unwrap());
    }
    clients.iter().filter(|client| world.clients[**client].replies.len() == 1).count()
}

fn escapes(world: &World) -> u64 {
    world.count(|counters| counters.escapes.get())
}

#[test]
fn what_waits_behind_a_late_answer_goes_elsewhere() {
    for workers in [1, 2] {
        let mut world = warm(deep(2 * u32::from(workers)), workers);
        let (slow, others) = slow_and_others(&mut world, 15);
        world.run_for(LATE_US_MIN - 1_000);
        assert_eq!((answered(&world, &others), escapes(&world)), (0, 0));
        world.run_for(NOTICED_US - LATE_US_MIN);
        assert_eq!((answered(&world, &others), escapes(&world)), (15, 15));
        assert!(world.clients[slow].replies.is_empty());
        // Later requests are not behind the late response either.
        let later = world.client();
        world.get(later, "later000");
        world.run_for(1_000);
        assert_eq!(world.clients[later].replies.len(), 1);
        world.run_for(SLOW_US);
        check_honest("s0000000", &world.clients[slow].replies[0]).unwrap();
        assert_eq!(world.times_served("s0000000"), 1);
        assert!((0..15).all(|n| world.times_served(&format!("o{n:07}")) <= 2));
        // The connection is as good as any: its unwanted responses were read and dropped.
        let (_, again) = slow_and_others(&mut world, 15);
        world.run_for(NOTICED_US + SLOW_US);
        assert_eq!(answered(&world, &again), 15);
        assert_eq!(world.count(|counters| counters.upstream_closes.sum()), 0);
        world.finish();
    }
}

/// Behind two late responses in a row a request waits only once.
#[test]
fn a_request_is_moved_once() {
    let mut world = warm(deep(2), 1);
    let (_, others) = slow_and_others(&mut world, 3);
    world.run_for(1_000);
    let second = world.client();
    world.run_for(NOTICED_US - 12_000);
    world.ask(second, "GET", "/slow?n=t0000000", "");
    world.run_for(2 * SLOW_US + NOTICED_US);
    assert_eq!(answered(&world, &others), 3);
    assert!((0..3).all(|n| world.times_served(&format!("o{n:07}")) <= 2));
    // The second slow one moves away from the other. Its long silence is no reason to send it
    // again: this server overlooks nothing.
    assert_eq!(world.times_served("t0000000"), 2);
    assert!(escapes(&world) <= 6);
    world.finish();
}

/// A request that may not be repeated is never behind a late response: it goes alone.
#[test]
fn what_may_not_be_repeated_goes_alone() {
    let mut narrow = deep(2);
    narrow.upstreams[0].pipeline = PipelineMode::Depth(3);
    let mut world = warm(narrow, 1);
    let first = world.client();
    world.ask(first, "GET", "/v?n=f0000000", "");
    world.serve(|seen| match seen.request.nonce() {
        // Keeps its connection occupied until the others have theirs.
        "f0000000" => Some(vec![Do::Delay(1_000), Do::Answer(answer(seen.request))]),
        _ => serve(seen),
    });
    world.settle_once();
    let fillers = [world.client(), world.client()];
    fillers.iter().enumerate().for_each(|(n, client)| world.get(*client, &format!("e000000{n}")));
    world.settle_once();
    let (_, others) = slow_and_others(&mut world, 1);
    let posting = world.client();
    world.post(posting, "p0000000", b"body");
    world.run_for(NOTICED_US);
    assert_eq!((answered(&world, &others), escapes(&world)), (1, 1));
    assert_eq!(world.clients[posting].replies.len(), 1);
    world.run_for(2 * SLOW_US);
    assert_eq!((world.clients[posting].replies.len(), world.times_served("p0000000")), (1, 1));
    world.finish();
}

#[test]
fn nothing_moves_when_there_is_nowhere_to_go() {
    let mut world = warm(deep(1), 1);
    let (_, others) = slow_and_others(&mut world, 15);
    world.run_for(SLOW_US + 1_000);
    assert_eq!((answered(&world, &others), escapes(&world)), (15, 0));
    assert!((0..15).all(|n| world.times_served(&format!("o{n:07}")) == 1));
    world.finish();
}

#[test]
fn nothing_moves_when_it_is_switched_off() {
    let mut off = deep(2);
    off.upstreams[0].sharing.escape = Some(false);
    let mut world = warm(off, 1);
    let (_, others) = slow_and_others(&mut world, 15);
    world.run_for(SLOW_US - 1_000);
    assert_eq!(answered(&world, &others), 0);
    world.run_for(2_000);
    assert_eq!((answered(&world, &others), escapes(&world)), (15, 0));
    world.finish();
}

/// The connection ends while it still owes responses that were given elsewhere: their requests are
/// not sent a third time.
#[test]
fn a_late_connection_that_breaks_repeats_only_what_it_owes() {
    let mut world = warm(deep(2), 1);
    let mut broken = false;
    world.serve(move |seen| {
        match seen.request.target.starts_with("/slow") && !std::mem::replace(&mut broken, true) {
            true => Some(vec![Do::Delay(SLOW_US), Do::Rst]),
            false => Some(vec![Do::Answer(answer(seen.request))]),
        }
    });
    let (slow, others) = slow_and_others(&mut world, 15);
    world.run_for(NOTICED_US);
    assert_eq!(answered(&world, &others), 15);
    world.run_for(SLOW_US + 100_000);
    check_honest("s0000000", &world.clients[slow].replies[0]).unwrap();
    assert_eq!(world.times_served("s0000000"), 2);
    assert!((0..15).all(|n| world.times_served(&format!("o{n:07}")) <= 2));
    world.finish();
}

/// Long responses on all connections that may be shared do not keep other requests waiting: further
/// connections are made, also for a server that is used at depth 1, or that is still unknown.
#[test]
fn answers_that_last_make_room() {
    for (mode, trusted) in
        [(PipelineMode::Off, true), (PipelineMode::Adaptive, true), (PipelineMode::Adaptive, false)]
    {
        for workers in [1, 2] {
            let mut polls = plan(1, 4);
            polls.upstreams[0].pipeline = mode;
            polls.upstreams[0].servers[0].connections_max = 64;
            let mut world =
                if trusted { warm(polls, workers) } else { World::started(polls, workers, 1) };
            world.serve(|seen| {
                let lasts = seen.request.target.starts_with("/poll");
                let delay = lasts.then_some(Do::Delay(30_000_000));
                Some(delay.into_iter().chain([Do::Answer(answer(seen.request))]).collect())
            });
            let clients: Vec<usize> =
                (0..20).map(|n| world.client_of(n % usize::from(workers))).collect();
            for (n, client) in clients.iter().enumerate() {
                world.ask(*client, "GET", &format!("/poll?n=p{n:07}"), "");
            }
            let other = world.client();
            world.get(other, "other000");
            // As long as the server is unknown, weir waits a second for a response.
            world.run_for(if trusted { 1_000_000 } else { 6_000_000 });
            assert_eq!(
                world.clients[other].replies.len(),
                1,
                "{mode:?}, trusted: {trusted}, {workers} workers"
            );
            world.run_for(60_000_000);
            let answered =
                clients.iter().filter(|client| world.clients[**client].statuses() == [200]).count();
            assert_eq!(answered, 20, "{mode:?}, trusted: {trusted}, {workers} workers");
            world.finish();
        }
    }
}

/// Responses to `/slow` begin after `first_us` and end `rest_us` later, the others take `first_us`.
fn serve_in_two(first_us: u64, rest_us: u64) -> impl FnMut(&Seen<'_>) -> Option<Vec<Do>> {
    move |seen| {
        let whole = answer(seen.request);
        let end = whole.len() - 1;
        let mut script = vec![Do::Delay(first_us), Do::Answer(whole[..end].to_vec())];
        if seen.request.target.starts_with("/slow") {
            script.push(Do::Delay(rest_us));
        }
        script.push(Do::Bytes(whole[end..].to_vec()));
        Some(script)
    }
}

/// A response that begins after more than 100 ms is not late because of that: only the time that it
/// then takes counts.
#[test]
fn an_answer_that_has_begun_has_its_time_from_then_on() {
    for (rest_us, late) in [(50_000, false), (250_000, true)] {
        let mut world = warm(deep(2), 1);
        world.serve(serve_in_two(150_000, 0));
        let client = world.client();
        for n in 0..300 {
            world.get(client, &format!("b{n:07}"));
            world.run_for(160_000);
        }
        world.serve(serve_in_two(150_000, rest_us));
        let before = escapes(&world);
        let (slow, others) = slow_and_others(&mut world, 3);
        world.run_for(6_000_000);
        assert_eq!((world.clients[slow].replies.len(), answered(&world, &others)), (1, 3));
        assert_eq!(escapes(&world) > before, late, "{rest_us}");
        world.finish();
    }
}

/// Responses that continue for a while are no reason to send much twice: only requests behind an
/// endless one move in any case.
#[test]
fn moves_behind_answers_that_have_begun_are_a_share() {
    let mut world = warm(deep(2), 1);
    world.serve(serve_in_two(0, 300_000));
    let rounds = 40;
    for _ in 0..rounds {
        let (slow, others) = slow_and_others(&mut world, 15);
        world.run_for(1_000_000);
        assert_eq!((world.clients[slow].replies.len(), answered(&world, &others)), (1, 15));
        [slow].iter().chain(&others).for_each(|client| world.reset(*client));
    }
    // One in five of all responses, including unwanted ones; and the initial savings.
    assert!(escapes(&world) <= (128 * 5 + rounds * 16) / 4 + 10, "{}", escapes(&world));
    world.serve(serve_in_two(0, 30_000_000));
    let (_, others) = slow_and_others(&mut world, 15);
    world.run_for(1_300_000);
    assert_eq!(answered(&world, &others), 15);
    world.finish();
}

/// Behind an endless response nothing moves either.
#[test]
fn nothing_moves_behind_what_has_begun_when_it_is_switched_off() {
    let mut off = deep(2);
    off.upstreams[0].sharing.escape = Some(false);
    let mut world = warm(off, 1);
    world.serve(serve_in_two(0, 5_000_000));
    let (_, others) = slow_and_others(&mut world, 15);
    world.run_for(2_000_000);
    assert_eq!((answered(&world, &others), escapes(&world)), (0, 0));
    // Later requests are not put behind it.
    let later = world.client();
    world.get(later, "later000");
    world.run_for(1_000);
    assert_eq!(world.clients[later].replies.len(), 1);
    world.run_for(4_000_000);
    assert_eq!((answered(&world, &others), escapes(&world)), (15, 0));
    world.finish();
}
