//! Proves: a server that declares more than it sends never gets one client's response to another,
//! however its bytes arrive, and is not pipelined again; pages that quote HTTP pass. How: lies of
//! every length, each repeated after trust was earned; 10,000 pages.
//! docs/connections.md#trust-in-a-server; docs/hostile.md E12.

use weir_check::End;
use weir_check::upstreams::check_honest;
use weir_http::http_date;
use weir_proxy::cross::doubt::Doubt;
use weir_proxy::plan::{PipelineMode, Plan};
use weir_proxy::upstream::trust::TrustState;

use crate::stealing::{are_unharmed, trusted, victims};
use crate::world::{Client, Cut, Do, Rng, World, honest, plan};

/// The server's clock when the world's is at 0, seconds since 1970.
const THEN_S: u64 = 1_700_000_000;

fn deep(connections: u32) -> Plan {
    let mut deep = plan(1, connections);
    deep.upstreams[0].pipeline = PipelineMode::Depth(16);
    deep
}

/// A response whose declared body is longer than the real one. `stamped`: with Server and Date, as
/// most servers send them.
fn declared(nonce: &str, more: usize, stamped: bool, body: &str) -> Vec<u8> {
    let date = http_date(THEN_S);
    let date = std::str::from_utf8(&date).unwrap();
    let stamp = if stamped { format!("Server: s\r\nDate: {date}\r\n") } else { String::new() };
    let length = body.len() + more;
    format!("HTTP/1.1 200 OK\r\n{stamp}X-Nonce: {nonce}\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

fn told(nonce: &str, more: usize, stamped: bool) -> Vec<u8> {
    declared(nonce, more, stamped, &format!("answer {nonce}"))
}

/// Returns the received body of the first reply.
fn received(client: &Client) -> String {
    let cut = match &client.end {
        Some(End::Truncated(reply)) => reply.as_ref(),
        _ => client.current(),
    };
    client.replies.first().or(cut).map_or_else(String::new, |reply| reply.body.text())
}

/// Plays one lie with victims behind it; returns the delivered part. `together`: in one segment
/// with the next responses.
fn lie(world: &mut World, more: usize, stamped: bool, together: bool) {
    trusted(world);
    let mut lied = false;
    let mut kept = None;
    world.serve(move |seen| {
        let nonce = seen.request.nonce();
        if nonce == "trigger0" && !std::mem::replace(&mut lied, true) {
            let lie = told(nonce, more, stamped);
            kept = together.then(|| lie.clone());
            return Some(if together { Vec::new() } else { vec![Do::Answer(lie)] });
        }
        let own = told(nonce, 0, stamped);
        Some(match kept.take() {
            Some(lie) => vec![Do::Answer([lie, own].concat()), Do::Answer(Vec::new())],
            None => vec![Do::Answer(own)],
        })
    });
    let before = victims(world, more % 3);
    let asker = world.client();
    world.get(asker, "trigger0");
    let behind = victims(world, 5);
    world.run_for(1_000_000);
    let name = format!("{more} bytes too many, stamped {stamped}, together {together}");
    are_unharmed(world, &before);
    are_unharmed(world, &behind);
    let client = &world.clients[asker];
    match client.replies.first() {
        Some(reply) => {
            check_honest("trigger0", reply).unwrap_or_else(|fault| panic!("{name}: {fault}"))
        }
        None => {
            let body = received(client);
            let honest = "answer trigger0";
            assert!(!together, "{name}: nothing had to be delivered");
            assert!(honest.starts_with(&body) && client.closed, "{name}: {body}");
        }
    }
    let found = world.count(|counters| counters.doubts[Doubt::Misframing as usize].get());
    assert!(found > 0, "{name}: not found");
    assert_eq!(world.nodes[0].engine.report().servers[0].trust, TrustState::Surplus, "{name}");
    world.reset(asker);
    world.settle();
}

/// A body is declared so much longer that the next response begins, continues or ends in it.
#[test]
fn a_server_that_declares_more_than_it_sends() {
    for stamped in [true, false] {
        let whole = told("v0000000", 0, stamped).len();
        for together in [true, false] {
            let mut world = World::started(deep(1), 1, 1);
            let lengths = (1..20).chain((20..2 * whole).step_by(7)).chain([3 * whole, 100_000]);
            for more in lengths {
                world.cut_upstream = Cut::Whole;
                lie(&mut world, more, stamped, together);
            }
            world.finish();
        }
    }
}

/// Likewise with bytes that arrive in pieces: if the head is also in pieces, none of it gets
/// through.
#[test]
fn a_head_in_pieces_is_found() {
    let mut world = World::started(deep(2), 1, 3);
    for play in 0..100 {
        world.cut_upstream = if play % 2 == 0 { Cut::Random } else { Cut::Each(1 + play % 11) };
        lie(&mut world, 200 + 3 * play, true, false);
    }
    world.finish();
}

/// Plays a lie after whose first `cut` bytes the server is silent for a while, with three requests
/// behind it. Returns the delivered part of its body when that was over, and whether it was
/// truncated.
fn lie_in_two(
    world: &mut World,
    more: usize,
    stamped: bool,
    cut: usize,
    silent_us: u64,
) -> (String, bool) {
    trusted(world);
    let mut next = None;
    world.serve(move |seen| {
        let nonce = seen.request.nonce();
        let bytes =
            told(nonce, if nonce == "trigger0" && next.is_none() { more } else { 0 }, stamped);
        if nonce == "trigger0" && next.is_none() {
            next = Some(true);
            return Some(vec![Do::Answer(bytes)]);
        }
        let cut = if next.replace(false) == Some(true) { cut } else { 0 };
        Some(vec![
            Do::Bytes(bytes[..cut].to_vec()),
            Do::Delay(silent_us),
            Do::Answer(bytes[cut..].to_vec()),
        ])
    });
    let asker = world.client();
    world.get(asker, "trigger0");
    let behind = victims(world, 3);
    world.run_for(4 * silent_us + 50_000);
    are_unharmed(world, &behind);
    let client = &world.clients[asker];
    let body = received(client);
    let cut = client.replies.is_empty() && client.closed;
    assert_eq!(
        world.nodes[0].engine.report().servers[0].trust,
        TrustState::Surplus,
        "{more} {cut}"
    );
    world.reset(asker);
    world.settle();
    (body, cut)
}

/// A body that is declared to end within the next head, which comes in pieces: at the end of the
/// body, and elsewhere.
#[test]
fn a_head_that_stops_where_the_body_does() {
    const HONEST: &str = "answer trigger0";
    for stamped in [true, false] {
        let whole = told("v0000000", 0, stamped).len();
        let mut world = World::started(deep(1), 1, 9);
        for more in 1..whole - HONEST.len() {
            let elsewhere = [more - 1, more + 1, 1 + (more * 7) % whole];
            for cut in [more].into_iter().chain(elsewhere.into_iter().filter(|_| more % 6 == 0)) {
                let (body, was_cut) = lie_in_two(&mut world, more, stamped, cut, 500);
                assert_eq!(
                    (body.as_str(), was_cut),
                    (HONEST, true),
                    "{more} bytes too many, cut at {cut}, {stamped}"
                );
            }
        }
        // A server that is silent exactly there for longer: the first bytes of every response may
        // get through.
        for more in 1..20 {
            let (body, _) = lie_in_two(&mut world, more, stamped, more, 500_000);
            let constant = HONEST.len()..HONEST.len() + "HTTP/1.".len();
            assert!(more > 6 && body == HONEST || constant.contains(&body.len()), "{more}: {body}");
        }
        world.finish();
    }
}

/// A page that ends like the beginning of a head waits for the bytes behind it, but not for long.
#[test]
fn pages_that_end_like_a_head() {
    for (end, silent_us, by_us) in [
        ("H", 5_000_000, 11_000),
        ("HTTP/1.1 200 OK\r\nX: ", 5_000_000, 1_100_000),
        ("HTTP", 300, 400),
        ("HTTP/1.1 200 ", 20_000, 20_100),
    ] {
        for chunks in [false, true] {
            let mut world = World::started(deep(1), 1, 1);
            trusted(&mut world);
            world.serve(move |seen| match seen.request.nonce() {
                "trigger0" if chunks => Some(vec![Do::Answer(chunked("trigger0", end))]),
                "trigger0" => Some(vec![Do::Answer(declared("trigger0", 0, true, end))]),
                nonce => Some(vec![Do::Delay(silent_us), Do::Answer(told(nonce, 0, true))]),
            });
            let asker = world.client();
            world.get(asker, "trigger0");
            let behind = victims(&mut world, 2);
            world.run_for(by_us);
            let replies = &world.clients[asker].replies;
            assert_eq!(
                replies.first().map(|reply| reply.body.text()).as_deref(),
                Some(end),
                "{end} {silent_us}"
            );
            world.run_for(100_000_000);
            are_unharmed(&mut world, &behind);
            assert_eq!(
                world.count(|counters| counters.demotions.get() + counters.surplus.get()),
                0,
                "{end}"
            );
            world.finish();
        }
    }
}

/// Likewise if the connection ends there, in each way.
#[test]
fn pages_that_end_like_a_head_and_the_connection() {
    for end in ["H", "HTTP/1.1 200 OK\r\n"] {
        for last in [Do::Fin, Do::Rst] {
            let mut world = World::started(deep(1), 1, 1);
            trusted(&mut world);
            world.serve(move |seen| match seen.request.nonce() {
                "trigger0" => Some(vec![
                    Do::Answer(declared("trigger0", 0, true, end)),
                    Do::Delay(100),
                    last.clone(),
                ]),
                _ => honest(seen),
            });
            let asker = world.client();
            world.get(asker, "trigger0");
            let behind = victims(&mut world, 2);
            world.run_for(1_000_000);
            let replies = &world.clients[asker].replies;
            assert_eq!(
                replies.first().map(|reply| reply.body.text()).as_deref(),
                Some(end),
                "{end}"
            );
            are_unharmed(&mut world, &behind);
            world.finish();
        }
    }
}

/// A stream that pauses behind such bytes also releases them, and the following ones are still
/// searched.
#[test]
fn streams_that_pause_behind_the_beginning_of_a_head() {
    let mut world = World::started(deep(1), 1, 1);
    trusted(&mut world);
    world.serve(move |seen| {
        let nonce = seen.request.nonce();
        let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len()).into_bytes();
        let own = String::from_utf8(told("stranger", 0, true)).unwrap();
        let stream = String::from_utf8(declared(nonce, 0, true, "")).unwrap();
        let stream = stream.replace("Content-Length: 0", "Transfer-Encoding: chunked").into_bytes();
        Some(match nonce {
            "trigger0" => vec![
                Do::Bytes(stream),
                Do::Bytes(chunk("event H")),
                Do::Delay(50_000),
                Do::Bytes(chunk("i HT")),
                Do::Delay(50_000),
                Do::Bytes(chunk(own.strip_prefix("HT").unwrap())),
                Do::Answer(Vec::new()),
            ],
            _ => vec![Do::Delay(10_000), Do::Answer(told(nonce, 0, true))],
        })
    });
    let asker = world.client();
    world.get(asker, "trigger0");
    let behind = victims(&mut world, 2);
    let text = |world: &World| received(&world.clients[asker]);
    world.run_for(20_000);
    assert_eq!(text(&world), "event H");
    world.run_for(60_000);
    assert_eq!(text(&world), "event Hi HT");
    world.run_for(1_000_000);
    assert!(text(&world) == "event Hi HT" && world.clients[asker].closed, "{}", text(&world));
    are_unharmed(&mut world, &behind);
    world.finish();
}

/// Bytes behind a body of declared length are as bad as those in it: they are not forgotten after a
/// minute.
#[test]
fn garbage_behind_a_body_lasts() {
    for text in ["x", "</html>\n", "HTTP/1.1 SURPLUS\r\n\r\n"] {
        for company in [0, 3] {
            let mut world = World::started(deep(1), 1, 1);
            trusted(&mut world);
            world.serve(move |seen| match seen.request.nonce() {
                "trigger0" => Some(vec![Do::Answer(
                    [told("trigger0", 0, true), text.as_bytes().to_vec()].concat(),
                )]),
                _ => honest(seen),
            });
            let asker = world.client();
            world.get(asker, "trigger0");
            let behind = victims(&mut world, company);
            world.run_for(1_000_000);
            check_honest("trigger0", &world.clients[asker].replies[0]).unwrap();
            are_unharmed(&mut world, &behind);
            world.run_for(7_200_000_000);
            assert_eq!(
                world.nodes[0].engine.report().servers[0].trust,
                TrustState::Surplus,
                "{text} {company}"
            );
            world.finish();
        }
    }
}

/// A page about HTTP.
fn page(rng: &mut Rng) -> String {
    let parts = [
        "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nServer: s\r\nX-Nonce: 1\r\n\
            Content-Length: 2\r\n\r\nok",
        "HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n",
        "<pre>HTTP/1.1 301 Moved\nLocation: /\n\n</pre>",
        "\"GET / HTTP/1.1\" 200 1234 \"-\"\n",
        "HTTP/1.0 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nServer: nginx\r\n",
        "HTTP/1.1 200 ",
        "HTTP/1.",
        "H",
        "words about nothing\r\n",
        "HTTP/2 200\r\ndate: x\r\n\r\n",
    ];
    (0..=rng.below(12)).map(|_| parts[rng.below(parts.len() as u64) as usize]).collect()
}

/// 10,000 pages that quote heads of responses, pipelined, from servers that send Date and from
/// others: all are delivered whole.
#[test]
fn pages_that_quote_heads_pass() {
    for (cut, stamped) in
        [(Cut::Whole, true), (Cut::Random, true), (Cut::Whole, false), (Cut::Each(61), true)]
    {
        let mut world = World::started(deep(2), 1, 5);
        trusted(&mut world);
        world.cut_upstream = cut;
        let mut rng = Rng(7);
        let pages: Vec<String> = (0..2_500).map(|_| page(&mut rng)).collect();
        let served = pages.clone();
        world.serve(move |seen| {
            let nonce = seen.request.nonce();
            let page = &served[nonce.parse::<usize>().ok()?];
            Some(vec![Do::Answer(if nonce.ends_with('7') {
                chunked(nonce, page)
            } else {
                declared(nonce, 0, stamped, page)
            })])
        });
        world.measure_depth();
        let clients: Vec<usize> = (0..10).map(|_| world.client()).collect();
        for (round, pages) in pages.chunks(10).enumerate() {
            for (at, client) in clients.iter().enumerate() {
                world.clients[*client].replies.clear();
                world.get(*client, &format!("{:08}", 10 * round + at));
            }
            world.settle();
            for (client, page) in clients.iter().zip(pages) {
                let reply = &world.clients[*client].replies[0];
                assert_eq!((reply.status, reply.body.text()), (200, page.clone()), "{cut:?}");
            }
        }
        assert!(world.depth() > 1, "they were pipelined");
        assert_eq!(
            world.count(|counters| counters.demotions.get() + counters.surplus.get()),
            0,
            "{cut:?}"
        );
        world.finish();
    }
}

fn chunked(nonce: &str, page: &str) -> Vec<u8> {
    let chunk =
        if page.is_empty() { String::new() } else { format!("{:x}\r\n{page}\r\n", page.len()) };
    format!(
        "HTTP/1.1 200 OK\r\nX-Nonce: {nonce}\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n"
    )
    .into_bytes()
}

/// A field that cannot be passed on (a control character from the request's path in Location) is a
/// fault of that response: the one before it ended where its server said.
#[test]
fn a_fault_in_a_field_is_no_misframing() {
    let mut world = World::started(deep(1), 1, 1);
    trusted(&mut world);
    world.serve(|seen| match seen.request.nonce() {
        "trigger0" => Some(vec![Do::Answer(
            b"HTTP/1.1 302 Found\r\nLocation: /\x01\r\nContent-Length: 0\r\n\r\n".to_vec(),
        )]),
        _ => honest(seen),
    });
    let client = world.client();
    world.get(client, "00000001");
    world.get(client, "trigger0");
    world.settle();
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    assert_eq!(world.clients[client].statuses(), [200, 502]);
    let found = |doubt| world.count(|counters| counters.doubts[doubt as usize].get());
    assert!(found(Doubt::Garbage) > 0 && found(Doubt::Misframing) == 0);
    assert!(matches!(world.nodes[0].engine.report().servers[0].trust, TrustState::Penalty { .. }));
}
