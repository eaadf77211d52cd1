//! Proves: if a server takes the body of one request for another request, its response to that
//! reaches no client (docs/hostile-requests.md A4), in every mode of pipelines and however late it
//! comes; bodies of applications cost no connection. How: a server that also responds to bodies,
//! and clients that send requests all the time.

use weir_check::upstreams::{check_honest, honest_answer};
use weir_proxy::plan::{PipelineMode, Plan, Share};

use crate::breathing::{SECOND, breathing, carrier, open};
use crate::world::{Do, Seen, World, answer, honest};

const SMUGGLED: &[u8] = b"GET /admin HTTP/1.1\r\nHost: a\r\n\r\n";
const JSON: &[u8] = b"{\"path\": \"/admin\", \"version\": 1}";

/// One server, with a change to the use of its connections.
fn upstream(change: impl FnOnce(&mut Plan)) -> Plan {
    let mut plan = breathing(1, 8, 16);
    change(&mut plan);
    plan
}

fn modes() -> [(&'static str, Plan); 4] {
    [
        ("adaptive", upstream(|_| {})),
        ("off", upstream(|plan| plan.upstreams[0].pipeline = PipelineMode::Off)),
        ("depth", upstream(|plan| plan.upstreams[0].pipeline = PipelineMode::Depth(8))),
        ("share=client", upstream(|plan| plan.upstreams[0].share = Share::Client)),
    ]
}

/// Answers each request, and each one with a body once more after that time.
fn answers_bodies(late_us: u64) -> impl FnMut(&Seen<'_>) -> Option<Vec<Do>> {
    move |seen| {
        let mut script = vec![Do::Answer(answer(seen.request))];
        if seen.request.method == "POST" {
            script.extend([Do::Delay(late_us), Do::Bytes(honest_answer("SMUGGLED"))]);
        }
        seen.complete.then_some(script)
    }
}

/// Each client has only its own responses.
fn check_all(world: &World, clients: &[usize], nonces: &[Vec<String>], what: &str) {
    for (client, nonces) in clients.iter().zip(nonces) {
        let replies = &world.clients[*client].replies;
        assert_eq!(replies.len(), nonces.len(), "{what}");
        for (nonce, reply) in nonces.iter().zip(replies) {
            check_honest(nonce, reply).unwrap_or_else(|why| panic!("{what}: {why}"));
        }
    }
}

#[test]
fn nobody_gets_the_answer_to_a_body() {
    for (mode, plan) in modes() {
        for late_us in [0, 300, 5_000, 50_000, 400_000] {
            let mut world = World::started(plan.clone(), 1, 1);
            world.serve(answers_bodies(late_us));
            let clients: Vec<usize> = (0..3).map(|_| world.client()).collect();
            let mut nonces = vec![Vec::new(); clients.len()];
            let attacker = world.client();
            for round in 0..50 {
                world.post(attacker, &format!("aaaa{round:04}"), SMUGGLED);
                world.run_for(500);
                for step in 0..3 {
                    for (number, client) in clients.iter().enumerate() {
                        let nonce = format!("{number:02}{round:04}{step:02}");
                        world.get(*client, &nonce);
                        nonces[number].push(nonce);
                    }
                    world.run_for(700);
                }
            }
            world.run_for(5 * SECOND);
            check_all(&world, &clients, &nonces, &format!("{mode}, {late_us} us late"));
        }
    }
}

/// The meaning of a body does not depend on how it is sent.
#[test]
fn bodies_that_are_streamed_are_looked_at() {
    for at in [0, 10, 70_000, 149_990] {
        let mut body = vec![b'x'; 150_000];
        body.splice(at..at, SMUGGLED.iter().copied());
        let mut world =
            World::started(upstream(|plan| plan.upstreams[0].pipeline = PipelineMode::Off), 1, 1);
        let (first, second) = (world.client(), world.client());
        world.post(first, "aaaa0000", &body);
        world.run_for(SECOND);
        world.get(second, "bbbb0000");
        world.run_for(SECOND);
        assert_ne!(carrier(&world, "aaaa0000"), carrier(&world, "bbbb0000"), "{at}");
        world.finish();
    }
}

#[test]
fn what_applications_send_costs_no_connection() {
    for (mode, plan) in modes() {
        let mut world = World::started(plan, 1, 1);
        let clients: Vec<usize> = (0..4).map(|_| world.client()).collect();
        for round in 0..100 {
            for (number, client) in clients.iter().enumerate() {
                world.post(*client, &format!("{number:02}{round:06}"), JSON);
            }
            world.run_for(SECOND / 20);
        }
        world.run_for(SECOND);
        assert_eq!(world.requests().count(), 400, "{mode}");
        assert!(world.conns.len() <= 8, "{mode}: {} connections for 400 POSTs", world.conns.len());
        world.finish();
    }
}

/// An error may have been sent without a look at the body.
#[test]
fn an_error_ends_the_connection_of_a_body() {
    let mut world = World::started(breathing(1, 4, 8), 1, 1);
    world.serve(|seen| {
        let none = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_vec();
        match seen.request.target.starts_with("/none") {
            true => seen.complete.then(|| vec![Do::Answer(none)]),
            false => honest(seen),
        }
    });
    let (first, second) = (world.client(), world.client());
    world.expect(first, "POST", false, false);
    let head = b"POST /none?n=aaaa0000 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx";
    world.send(first, head);
    world.run_for(SECOND);
    world.get(second, "bbbb0000");
    world.run_for(SECOND);
    assert_eq!(world.clients[first].statuses(), [404]);
    assert_ne!(carrier(&world, "aaaa0000"), carrier(&world, "bbbb0000"));
    // A response without a body proves nothing about later ones.
    world.ask(first, "GET", "/none?n=cccc0000", "");
    world.run_for(SECOND);
    world.get(second, "dddd0000");
    world.run_for(SECOND);
    assert_eq!(carrier(&world, "cccc0000"), carrier(&world, "dddd0000"));
    assert_eq!(open(&world), 1);
    world.finish();
}
