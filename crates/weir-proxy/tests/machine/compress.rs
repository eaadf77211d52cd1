//! Proves: the decoded content of compressed responses equals the server's, wherever pieces end and
//! whichever client stalls, leaves or is cut off. A truncated response has no end of its coding;
//! beyond the memory limit responses are sent uncompressed. How: random traffic, by the decoders of
//! real clients. docs/compression.md.

use std::io::Read;
use std::sync::Arc;

use weir_check::{End, Reply};
use weir_proxy::base::encoder::Coding;
use weir_proxy::plan::Plan;
use weir_proxy::request::route::{Route, RouteTable};
use weir_proxy::request::rules::RouteRules;
use weir_proxy::request::rules::compress::{Compress, TYPES};

use crate::world::{Cut, Do, Rng, World, pieces, plan};

/// Returns a plan with one server behind a route that compresses, with this many bytes of memory.
pub fn compressing(bytes_max: u64) -> Plan {
    let mut plan = plan(1, 4);
    let compress = Compress {
        codings: Coding::ALL.map(|coding| (coding, 3)).to_vec(),
        types: TYPES.iter().map(|one| (*one).to_owned()).collect(),
        length_min: 100,
    };
    let rules = RouteRules { compress: Some(compress), ..RouteRules::default() };
    plan.routes = RouteTable::new(vec![Route { rules: Some(Arc::new(rules)), ..Route::default() }]);
    plan.client.compress_bytes_max = bytes_max;
    plan
}

/// Returns the server's content for the request with this number.
fn content(number: u64) -> Vec<u8> {
    let mut rng = Rng(number);
    let most = if rng.one_in(4) { 100_000 } else { 5_000 };
    let length = rng.below(most) as usize;
    let mut text = Vec::new();
    while text.len() < length {
        let word = rng.below(300);
        text.extend_from_slice(
            format!("{{\"id\": {word}, \"name\": \"word {}\"}} ", word % 7).as_bytes(),
        );
    }
    text.truncate(length);
    text
}

/// Returns it as a message.
fn message(number: u64, rng: &mut Rng) -> Vec<u8> {
    let (content, head) = (content(number), "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n");
    if rng.one_in(2) {
        return [format!("{head}Content-Length: {}\r\n\r\n", content.len()).as_bytes(), &content]
            .concat();
    }
    let mut message = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    for chunk in content.chunks(1 + rng.below(20_000) as usize) {
        message.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        message.extend_from_slice(chunk);
        message.extend_from_slice(b"\r\n");
    }
    message.extend_from_slice(b"0\r\n\r\n");
    message
}

/// Returns the bytes that a client can decode of a response, and whether they are a whole message.
pub fn decoded(reply: &Reply) -> (Vec<u8>, bool) {
    let bytes = &reply.body.bytes[..];
    assert_eq!(reply.body.length, bytes.len() as u64, "more than a test can look at");
    let mut reader: Box<dyn Read + '_> = match reply.fields.first("content-encoding") {
        None => return (bytes.to_vec(), true),
        Some("gzip") => Box::new(flate2::read::GzDecoder::new(bytes)),
        Some("br") => Box::new(brotli::Decompressor::new(bytes, 4096)),
        Some("zstd") => Box::new(zstd::stream::read::Decoder::new(bytes).expect("a decoder")),
        Some(other) => panic!("nobody asked for {other}"),
    };
    let (mut out, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match reader.read(&mut part) {
            Ok(0) => return (out, !bytes.is_empty()),
            Ok(bytes) => out.extend_from_slice(&part[..bytes]),
            Err(_) => return (out, false),
        }
    }
}

/// Complete responses, those of them that were compressed, and truncated ones.
#[derive(Default)]
struct Judged {
    whole: u64,
    compressed: u64,
    cut: u64,
}

impl Judged {
    fn judge_whole(&mut self, reply: &Reply, number: u64) {
        if reply.status != 200 {
            return;
        }
        assert_eq!(decoded(reply), (content(number), true), "{number}: {:?}", reply.fields);
        self.whole += 1;
        self.compressed += u64::from(reply.fields.has("content-encoding"));
    }

    fn judge_cut(&mut self, reply: &Reply, number: u64) {
        let (so_far, is_whole) = decoded(reply);
        let expected = content(number);
        assert!(expected.starts_with(&so_far), "{number}: what has come is not what was sent");
        assert!(
            !(is_whole && reply.fields.has("content-encoding")),
            "{number}: it broke off, and has an end"
        );
        self.cut += 1;
    }
}

/// Plays one round of a world from a seed.
fn play(seed: u64, bytes_max: u64, judged: &mut Judged) -> u64 {
    let mut rng = Rng(seed);
    let mut world = World::started(compressing(bytes_max), 1, seed);
    world.encodes_elsewhere = !seed.is_multiple_of(4);
    let mut of_server = Rng(seed + 1);
    world.serve(move |seen| {
        let rng = &mut of_server;
        let number = seen.request.nonce().parse().expect("a number");
        let message = message(number, rng);
        let is_cut = rng.one_in(6);
        let end = if is_cut { rng.below(message.len() as u64) as usize } else { message.len() };
        let cut =
            if rng.one_in(2) { Cut::Each(1 + rng.below(30_000) as usize) } else { Cut::Random };
        let mut script: Vec<Do> = Vec::new();
        let all = pieces(&message[..end], cut, rng);
        // As many small ones would make it long.
        let (first, rest) = all.split_at(all.len().min(20));
        for piece in first {
            script.extend([Do::Bytes(piece.clone()), Do::Delay(rng.below(300))]);
        }
        let rest = rest.concat();
        script.push(if is_cut { Do::Bytes(rest) } else { Do::Answer(rest) });
        script.extend(is_cut.then_some(if rng.one_in(2) { Do::Fin } else { Do::Rst }));
        seen.complete.then_some(script)
    });
    // The request that each client waits for; None: it may send one.
    let mut clients: Vec<(usize, Option<u64>)> = (0..4).map(|_| (world.client(), None)).collect();
    let mut number = seed * 1_000_000;
    for _ in 0..300 {
        for (client, asked) in &mut clients {
            let state = &mut world.clients[*client];
            if let (Some(reply), Some(number)) = (state.replies.pop(), *asked) {
                judged.judge_whole(&reply, number);
                *asked = None;
            }
            if state.closed || state.gone {
                if let (Some(End::Truncated(Some(reply))), Some(number)) = (&state.end, *asked) {
                    judged.judge_cut(reply, number);
                }
                (*client, *asked) = (world.client(), None);
            }
            if asked.is_none() {
                number += 1;
                *asked = Some(number);
                let accepted =
                    ["gzip", "br", "zstd", "gzip, br, zstd", "identity"][rng.below(5) as usize];
                world.ask(
                    *client,
                    "GET",
                    &format!("/?n={number}"),
                    &format!("Accept-Encoding: {accepted}\r\n"),
                );
            } else if rng.one_in(40) {
                world.reset(*client);
            } else {
                world.stall(*client, rng.one_in(10));
            }
        }
        world.run_for(100 + rng.below(1_000));
        if rng.one_in(3) {
            (0..world.jobs.len().min(1 + rng.below(4) as usize)).for_each(|_| world.encode());
        }
    }
    clients.iter().for_each(|(client, _)| world.stall(*client, false));
    world.encode_all();
    world.run_for(100_000);
    let busy = world.count(|counters| counters.compression_passed.get("busy"));
    world.finish();
    busy
}

#[test]
fn what_is_decoded_is_what_was_sent() {
    let mut judged = Judged::default();
    let busy: u64 = (1..=12).map(|seed| play(seed, 128 << 20, &mut judged)).sum();
    assert_eq!(busy, 0, "there was memory for all");
    assert!(judged.whole > 500 && judged.compressed > 300 && judged.cut > 20, "{}", judged.whole);
}

#[test]
fn beyond_their_memory_answers_stay_as_they_are() {
    let mut judged = Judged::default();
    let busy: u64 = (21..=26).map(|seed| play(seed, 1 << 20, &mut judged)).sum();
    assert!(busy > 10 && judged.compressed > 50 && judged.whole > judged.compressed, "{busy}");
}

/// A client that reads nothing keeps no encoder from others: stalled responses continue
/// uncompressed, in the same coding and to their end.
#[test]
fn who_reads_nothing_holds_no_memory() {
    for coding in ["gzip", "br", "zstd"] {
        let mut plan = compressing(12 << 20);
        (plan.upstreams[0].servers[0].connections_max, plan.client.send_timeout_us) =
            (64, 3_600_000_000);
        let mut world = World::started(plan, 1, 1);
        let text: Vec<u8> = {
            let mut rng = Rng(7);
            (0..1_000_000)
                .map(|_| b"abcdefghijklmnopqrstuvwxyz <>"[rng.below(29) as usize])
                .collect()
        };
        // In one piece a response would be encoded to its end at once, and no encoder would wait
        // for its client.
        world.cut_upstream = Cut::Each(16_384);
        let sent = text.clone();
        world.serve(move |seen| {
            let content =
                if seen.request.target.starts_with("/big") { &sent[..] } else { &sent[..10_000] };
            let head =
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n";
            let mut message = head.as_bytes().to_vec();
            for chunk in content.chunks(20_000) {
                message.extend_from_slice(
                    &[format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat(),
                );
            }
            message.extend_from_slice(b"0\r\n\r\n");
            seen.complete.then(|| vec![Do::Answer(message)])
        });
        let accepts = format!("Accept-Encoding: {coding}\r\n");
        let stalled: Vec<usize> = (0..24).map(|_| world.client()).collect();
        for client in &stalled {
            world.stall(*client, true);
            world.ask(*client, "GET", "/big", &accepts);
            world.run_for(10_000);
        }
        world.run_for(3_000_000);
        let held = world.count(|counters| counters.compressed.sum());
        let other = world.client();
        world.ask(other, "GET", "/small", &accepts);
        world.run_for(1_000_000);
        let reply = &world.clients[other].replies[0];
        assert_eq!(reply.fields.first("content-encoding"), Some(coding), "{held} are held");
        assert_eq!(decoded(reply), (text[..10_000].to_vec(), true));
        assert!(world.count(|counters| counters.compressions_reclaimed.get()) > 0, "{coding}");
        for client in &stalled {
            world.stall(*client, false);
            world.run_for(1_000_000);
            assert_eq!(
                decoded(&world.clients[*client].replies[0]),
                (text.clone(), true),
                "{coding}"
            );
        }
        world.finish();
    }
}
