//! Proves: a server that ends connections in any way as soon as they are pipelined is used at depth
//! 1 and tried again later, with no request lost; one with a keep-alive limit is not mistaken for
//! it. docs/connections.md#trust-in-a-server, docs/hostile.md E18, E28.

use weir_check::upstreams::check_honest;
use weir_proxy::cross::doubt::Doubt;
use weir_proxy::plan::PipelineMode;

use crate::world::{Do, World, answer, plan};

/// How a server ends a connection with waiting requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Fin,
    Rst,
    UntilClose,
}

/// The end of a response without a stated length.
fn unframed(bytes: Vec<u8>) -> Vec<u8> {
    let text = String::from_utf8(bytes).unwrap();
    let lines: Vec<&str> = text
        .split("\r\n")
        .filter(|line| !line.to_ascii_lowercase().starts_with("content-length"))
        .collect();
    lines.join("\r\n").into_bytes()
}

/// 16 clients send requests for this time; all are answered. The server ends each connection after
/// `answers` with more than one request.
fn load(world: &mut World, us: u64, end: End, answers: usize) {
    let mut seen = std::collections::BTreeMap::new();
    world.serve(move |request| {
        let given: &mut usize = seen.entry(request.conn).or_default();
        *given += 1;
        let bytes = answer(request.request);
        let script = match given.is_multiple_of(answers) {
            false => vec![Do::Delay(200), Do::Answer(bytes)],
            // Long enough after the response that the next requests are here.
            true if end == End::UntilClose => {
                vec![Do::Delay(200), Do::Answer(unframed(bytes)), Do::Delay(200), Do::Fin]
            }
            true => {
                vec![
                    Do::Delay(200),
                    Do::Answer(bytes),
                    Do::Delay(200),
                    if end == End::Rst { Do::Rst } else { Do::Fin },
                ]
            }
        };
        Some(script)
    });
    let clients: Vec<usize> = (0..16).map(|_| world.client()).collect();
    let end_us = world.now_us + us;
    let (mut serial, mut asked) = (0, vec![String::new(); 16]);
    while world.now_us < end_us {
        for (client, asked) in clients.iter().zip(&mut asked) {
            if let Some(reply) = world.clients[*client].replies.pop() {
                check_honest(asked, &reply).unwrap_or_else(|fault| panic!("{end:?}: {fault}"));
                asked.clear();
            }
            if asked.is_empty() {
                serial += 1;
                *asked = format!("{serial:08}");
                world.get(*client, asked);
            }
        }
        world.run_for(500);
    }
    world.run_for(1_000_000);
}

fn world() -> World {
    let mut deep = plan(1, 2);
    deep.upstreams[0].pipeline = PipelineMode::Depth(16);
    World::started(deep, 1, 1)
}

/// Found within seconds, for a minute, then for two.
#[test]
fn e18_and_e28_a_server_that_cuts_pipelines_short_is_not_pipelined() {
    for end in [End::Fin, End::Rst, End::UntilClose] {
        let mut world = world();
        load(&mut world, 2_000_000, end, 5);
        assert_eq!(world.count(|counters| counters.demotions.get()), 1, "{end:?}");
        let report = world.nodes[0].engine.report();
        assert_eq!(report.servers[0].penalty_for, Some(Doubt::CutsShort));
        world.measure_depth();
        let open = world.open_conns();
        let since = world.conns.len();
        load(&mut world, 500_000, end, 5);
        // Requests that were unanswered on connections that had ended before do not count.
        let depth = open
            .into_iter()
            .chain(since..world.conns.len())
            .map(|conn| world.conns[conn].depth)
            .max();
        assert_eq!(depth, Some(1), "{end:?}");
        world.run_for(60_000_000);
        load(&mut world, 2_000_000, end, 5);
        assert_eq!(
            world.count(|counters| counters.demotions.get()),
            2,
            "{end:?}: it was tried again"
        );
        assert!(world.nodes[0].engine.report().servers[0].penalty_us > 100_000_000, "{end:?}");
        world.finish();
    }
}

/// nginx ends connections after 1,000 requests, Apache after 100, some without announcement.
#[test]
fn e27_a_keep_alive_limit_does_not_demote() {
    for end in [End::Fin, End::Rst] {
        let mut world = world();
        load(&mut world, 3_000_000, end, 100);
        assert_eq!(world.count(|counters| counters.demotions.get()), 0, "{end:?}");
        assert!(world.depth() > 1);
        world.finish();
    }
}
