//! Hostile clients (rows A, B, C and K5 of docs/hostile.md) against the real binary, with victims
//! around them.
//!
//! Every row of a letter is sent whole, cut at a random place, and byte by byte, each on its own
//! connection. Meanwhile two other clients pipeline requests through the same upstream connections.
//! The strict grammar judges what leaves weir, the catalogue judges the outcome of the row. The
//! seed is printed.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::kit::{Client, Honest, Io, Random, Server, Stopping, Weir, app, nonce, on_both_drivers};
use weir_check::Request;
use weir_check::requests::{HostileRequest, Observed, catalogue, of_letter};
use weir_check::upstreams::check_honest;

macro_rules! letters {
    ($($name:ident = $letter:literal),* $(,)?) => {
        /// The letters that have a test.
        const LETTERS: &[&str] = &[$($letter),*];
        $( fn $name(io: Io) { play(io, $letter); } )*
        on_both_drivers!($($name),*);
    };
}

letters! {
    a1_length_and_chunked = "A1", a2_chunked_and_length = "A2", a3_transfer_codings = "A3",
    a5_hidden_lengths = "A5",
    a6_chunked_where_unusual = "A6", a7_lengths = "A7", a8_chunk_sizes = "A8",
    a9_chunk_extensions = "A9",
    a10_chunk_ends = "A10", a11_trailers = "A11", a12_http_10 = "A12",
    a13_bodies_where_unusual = "A13",
    a16_expectations = "A16", a17_local_answers = "A17",
    b1_bare_lf = "B1", b2_bare_cr = "B2", b3_control_bytes = "B3", b4_folds = "B4",
    b5_space_before_colon = "B5",
    b6_names = "B6", b7_underscores = "B7", b8_first_lines = "B8", b9_limits = "B9",
    b11_connection_options = "B11",
    b12_loops = "B12",
    c1_hosts = "C1", c2_absolute_forms = "C2", c3_forms = "C3", c4_paths = "C4",
    c7_forwarded = "C7",
    c8_methods = "C8", c9_method_override = "C9",
    k5_integers = "K5",
}

#[test]
fn every_letter_has_a_test() {
    let rows = catalogue();
    let missing: Vec<&str> =
        rows.iter().map(|row| row.letter).filter(|letter| !LETTERS.contains(letter)).collect();
    assert!(missing.is_empty(), "letters without a test: {missing:?}");
}

/// Plays the rows of a letter in random order, with victims all the while.
fn play(io: Io, letter: &str) {
    let mut random = Random::new();
    let server = Server::start(Honest);
    // One connection, so requests arrive in the order in which they left.
    let weir = Weir::start(io, random.below(2) as u32 + 1, &app(&server, 1, ""));
    let mut rows = of_letter(letter);
    random.shuffle(&mut rows);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let victims: Vec<_> = (0..2)
            .map(|_| {
                let (mut random, over, address) = (random.fork(), &over, weir.address);
                scope.spawn(move || {
                    let mut client = Client::connect(address);
                    while !over.load(Ordering::Relaxed) {
                        victims(&mut client, random.below(6) + 1);
                    }
                })
            })
            .collect();
        let end = Stopping(&over);
        for row in &rows {
            for cuts in cuts(row, &mut random) {
                one(&server, &weir, row, &cuts);
            }
        }
        drop(end);
        victims.into_iter().for_each(|victim| victim.join().expect("a victim was harmed"));
    });
    weir.stop();
    let log = server.finish();
    let smuggled = log.requests.iter().any(|(_, request)| request.target.contains("smuggled"));
    assert!(!smuggled || letter == "A6", "a body was taken for a request");
}

/// Sends pipelined requests, each of which gets its own response.
fn victims(client: &mut Client, count: usize) {
    let nonces: Vec<String> = (0..count).map(|_| nonce()).collect();
    nonces.iter().for_each(|nonce| client.get(&format!("/victim?n={nonce}")));
    nonces.iter().for_each(|nonce| {
        check_honest(nonce, &client.reply()).expect("a victim gets its own answer")
    });
}

/// Whole, in two parts, and (if it is short) byte by byte.
fn cuts(row: &HostileRequest, random: &mut Random) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new(), vec![random.below(row.bytes.len())]];
    if row.bytes.len() <= 1000 {
        all.push((1..row.bytes.len()).collect());
    }
    all
}

/// Sends one row and judges the outcome.
fn one(server: &Server, weir: &Weir, row: &HostileRequest, cuts: &[usize]) {
    let from = server.log().requests.len();
    let mut client = Client::connect(weir.address);
    row.asks.iter().for_each(|(method, version_10)| client.ask(method, *version_10));
    client.try_send_split(&row.bytes, cuts);
    let mut replies = Vec::new();
    while replies.len() < row.expect.replies_min() {
        match client.try_reply() {
            Some(reply) => replies.push(reply),
            None => break,
        }
    }
    // A reply that ends the connection must be followed by its end; otherwise this client ends it.
    let closed = replies.last().is_some_and(|reply| reply.closes);
    if !closed {
        client.finish();
    }
    client.end();
    replies.extend(std::iter::from_fn(|| client.try_reply()));
    let left: Vec<Request> = server.log().requests[from..]
        .iter()
        .map(|(_, request)| request.clone())
        .filter(|request| !request.target.starts_with("/victim"))
        // Without the requests that weir itself sends before it pipelines to a server.
        .filter(|request| request.fields.first("user-agent") != Some("weir-rehearsal"))
        .collect();
    let seen = Observed { left: &left, replies: &replies, closed: closed || replies.is_empty() };
    if let Err(error) = row.expect.check(seen) {
        let bytes = row.bytes[..row.bytes.len().min(300)].escape_ascii();
        panic!(
            "{} cut at {:?}: {error}\nsent: {bytes}\nended: {:?}",
            row.id,
            &cuts[..cuts.len().min(3)],
            client.ended()
        );
    }
}
