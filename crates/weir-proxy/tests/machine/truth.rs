//! Proves: weir's statements about itself and its additions to messages follow the RFC, and
//! hand-typed requests are understood. How: each case separately, with one worker and with two,
//! whole and in pieces. RFC 9110 §6.6.1, §7.6.3, §15.5.6; RFC 3986 §2.1.

use weir_check::upstreams::check_honest;

use crate::world::{Cut, Do, World, answer, plan};

/// 1994-11-06 08:49:37 UTC.
const WALL_US: i64 = 784_111_777_000_000;
const WALL: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

fn set_wall(world: &mut World) {
    let now_us = world.now_us as i64;
    world.nodes.iter_mut().for_each(|node| node.engine.set_wall(WALL_US - now_us, 0));
}

/// Responses without Date get one, whatever their origin, and others keep theirs; without a known
/// time none is added.
#[test]
fn every_answer_has_one_date() {
    for workers in [1, 2] {
        let mut world = World::started(plan(1, 1), workers, 1);
        world.serve(|seen| {
            let text = String::from_utf8(answer(seen.request)).unwrap();
            Some(vec![Do::Answer(match seen.request.nonce() {
                "dddddddd" => text
                    .replacen("X-Nonce", "Date: Mon, 01 Jan 2024 00:00:00 GMT\r\nX-Nonce", 1)
                    .into_bytes(),
                "eeeeeeee" => text
                    .replacen(
                        "X-Nonce",
                        "Date: Mon, 01 Jan 2024 00:00:00 GMT\r\nConnection: date\r\nX-Nonce",
                        1,
                    )
                    .into_bytes(),
                _ => text.into_bytes(),
            })])
        });
        for node in 0..usize::from(workers) {
            let client = world.client_of(node);
            world.get(client, "00000001");
            world.settle();
            if node == 0 {
                assert_eq!(
                    world.clients[client].replies[0].fields.first("date"),
                    None,
                    "nobody knows the time"
                );
            }
            set_wall(&mut world);
            world.get(client, "00000002");
            world.settle();
            world.get(client, "dddddddd");
            world.settle();
            world.get(client, "eeeeeeee");
            world.settle();
            world.ask(client, "TRACE", "/", "Max-Forwards: 0\r\n");
            world.settle();
            let dates = |at: usize| world.clients[client].replies[at].fields.all("date");
            assert_eq!((dates(1), dates(2)), (vec![WALL], vec!["Mon, 01 Jan 2024 00:00:00 GMT"]));
            assert_eq!((dates(3), dates(4)), (vec![WALL], vec![WALL]));
            assert_eq!(world.clients[client].replies[4].status, 405);
        }
        world.finish();
    }
}

/// A final OPTIONS is answered, not refused.
#[test]
fn what_weir_answers_well_is_no_refusal() {
    let mut world = World::simple(1);
    let client = world.client();
    world.ask(client, "OPTIONS", "/", "Max-Forwards: 0\r\n");
    world.settle();
    assert_eq!(world.clients[client].statuses(), [200]);
    assert_eq!(world.count(|counters| counters.refusals.sum()), 0);
    assert!(
        world.lines.len() == 1 && world.lines[0].contains(" none done - "),
        "{:?}",
        world.lines
    );
    world.finish();
}

#[test]
fn a_refused_method_hears_which_are_not() {
    let mut world = World::simple(1);
    let client = world.client();
    world.ask(client, "TRACE", "/", "Max-Forwards: 0\r\n");
    world.settle();
    world.expect(client, "CONNECT", false, false);
    world.send(client, b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n");
    world.run_for(100_000);
    assert_eq!(world.clients[client].statuses(), [405, 405]);
    for reply in &world.clients[client].replies {
        assert!(
            reply.fields.first("allow").is_some_and(|methods| methods.contains("GET")),
            "{reply:?}"
        );
    }
    world.finish();
}

/// `curl http://host/café`: as if it had been encoded, with a body behind it and a request behind
/// that, however it is cut.
#[test]
fn raw_text_in_a_target_is_encoded() {
    for cut in [Cut::Whole, Cut::Each(1), Cut::Each(7), Cut::Random] {
        let mut world = World::simple(1);
        let client = world.client();
        world.expect(client, "POST", false, false);
        world.expect(client, "GET", false, false);
        let all = "\r\nPOST /café/%41?n=00000001&ü=😀 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\
            \r\nxy\
            GET http://a/é?n=00000002 HTTP/1.1\r\nHost: a\r\n\r\n";
        world.send_cut(client, all.as_bytes(), cut);
        world.run_for(100_000);
        let targets: Vec<String> = world.requests().map(|request| request.target.clone()).collect();
        assert_eq!(
            targets,
            ["/caf%C3%A9/%41?n=00000001&%C3%BC=%F0%9F%98%80", "/%C3%A9?n=00000002"],
            "{cut:?}"
        );
        for (reply, nonce) in world.clients[client].replies.iter().zip(["00000001", "00000002"]) {
            check_honest(nonce, reply).unwrap();
        }
        assert_eq!(world.clients[client].replies.len(), 2);
        world.finish();
    }
}

/// Bytes that are not text, or are where only a host or nothing may be, are refused as ever.
#[test]
fn other_bytes_in_a_target_are_refused() {
    let refused: [&[u8]; 6] = [
        b"GET /\xe9 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /\xc0\xaf HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET http://\xc3\xa9/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET \xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"CONNECT \xc3\xa9:443 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /\xc3\xa9#x HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    for request in refused {
        for cut in [Cut::Whole, Cut::Each(1)] {
            let mut world = World::simple(1);
            let client = world.client();
            world.expect(client, "GET", false, false);
            world.send_cut(client, request, cut);
            world.run_for(100_000);
            assert_eq!(world.clients[client].statuses(), [400], "{}", request.escape_ascii());
            assert_eq!(world.requests().count(), 0);
            world.finish();
        }
    }
}

/// A head with raw text in its target that is wrong for another reason gets the response for that,
/// in pieces and at once.
#[test]
fn a_raw_target_hides_no_other_fault() {
    let start = "GET /é HTTP/1.1\r\nHost: a\r\n";
    for (request, status) in [
        (format!("{start}X: {}\r\n\r\n", "x".repeat(40_000)), 431),
        (format!("GET /é{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(10_000)), 414),
        (format!("{start}X: y\n\r\n"), 400),
    ] {
        let mut words = Vec::new();
        for cut in [Cut::Whole, Cut::Each(1)] {
            let mut world = World::simple(1);
            let client = world.client();
            world.expect(client, "GET", false, false);
            world.send_cut(client, request.as_bytes(), cut);
            world.run_for(100_000);
            assert_eq!(world.clients[client].statuses(), [status], "{cut:?}");
            words.push(world.clients[client].replies[0].body.text());
            world.finish();
        }
        assert_eq!(words[0], words[1]);
    }
}

/// The length of an encoded target is that of its encoded form: three times as long may be too
/// long.
#[test]
fn an_encoded_target_has_the_usual_limit() {
    let mut world = World::simple(1);
    let client = world.client();
    world.expect(client, "GET", false, false);
    world.send(client, format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "é".repeat(2000)).as_bytes());
    world.run_for(100_000);
    assert_eq!(world.clients[client].statuses(), [414]);
    world.finish();
}
