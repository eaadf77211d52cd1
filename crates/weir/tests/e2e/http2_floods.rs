//! Proves: known attacks on HTTP/2 cost the real program no more memory than its connections may
//! have, and no more processor time than honest requests would, and all other clients are served
//! meanwhile. How: thirty connections send each flood until weir ends them; the resources of the
//! process are read from /proc. The limits of a single connection are tested in
//! `crates/weir-http/tests/h2/bounds.rs`.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use crate::kit::http2::{
    DATA, END_HEADERS, END_STREAM, HEADERS, Http2Client, PING, PREFACE, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame, header_block,
};
use crate::kit::{Honest, Io, Server, Weir, app, bounded, free_port, on_both_drivers};
use weir_check::streams::kind::{CONTINUATION, PRIORITY};

on_both_drivers!(
    ;
    alone:
    floods_are_cheap,
);

/// Connections that flood at a time.
const ATTACKERS: usize = 30;
/// Bytes of each flood.
const FLOOD_BYTES: usize = 512 << 10;
/// Memory that a connection may cost: data that waits to be sent, a frame, its streams, its table
/// and a block (bounds.rs), and receive buffers.
const CONNECTION_BYTES: u64 = 384 << 10;
/// Honest requests whose processor time a flood may cost at most, and ticks that are lost in the
/// noise.
const WORTH: usize = 3000;
const NOISE_TICKS: u64 = 30;

/// Returns a head as a block, without an index.
fn head(method: &str) -> Vec<u8> {
    header_block(&[
        (":method", method),
        (":scheme", "http"),
        (":authority", "a.test"),
        (":path", "/"),
    ])
}

/// Repeats bytes until they are a flood.
fn often(bytes: &[u8]) -> Vec<u8> {
    bytes.repeat(FLOOD_BYTES / bytes.len())
}

/// Returns this many streams, each with the result of `what` for its number.
fn streams(count: u32, what: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    (0..count).flat_map(|number| what(1 + 2 * number)).collect()
}

/// Returns the request of a stream with more to come.
fn post(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &head("POST"))
}

/// Returns a head whose fields are references to one of 3,000 bytes in the table, which is made
/// first.
fn references(count: usize) -> Vec<u8> {
    // A literal with indexing and a new name, RFC 7541 §6.2.1; index 62 is the last addition,
    // RFC 7541 §2.3.3.
    let (name, value) = (b"x", [b'v'; 3000]);
    let mut block = head("GET");
    block.extend([0x40, 1]);
    block.extend(name);
    // 127 and the rest in groups of seven bits, RFC 7541 §5.1.
    let rest = value.len() - 127;
    block.extend([127, (rest & 127) as u8 | 128, (rest >> 7) as u8]);
    block.extend(value);
    let mut bytes = frame(HEADERS, END_HEADERS | END_STREAM, 1, &block);
    let all = [head("GET"), vec![0x80 | 62; count]].concat();
    bytes.extend(streams(40, |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream + 2, &all)));
    bytes
}

/// Returns each attack by its number, and its bytes behind the preface.
fn floods() -> Vec<(&'static str, Vec<u8>)> {
    let open = |more: &[u8]| [post(1), often(more)].concat();
    let unended = frame(HEADERS, 0, 1, &head("GET"));
    let crumb = header_block(&[("cookie", "a")]);
    vec![
        ("CVE-2019-9512 PING", often(&frame(PING, 0, 0, &[0; 8]))),
        ("CVE-2019-9513 PRIORITY", often(&frame(PRIORITY, 0, 3, &[0, 0, 0, 1, 7]))),
        (
            "CVE-2019-9514 requests that are no requests",
            streams(2000, |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &head("A B"))),
        ),
        ("CVE-2019-9515 SETTINGS", often(&frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1]))),
        (
            "CVE-2019-9516 fields without a name",
            streams(2000, |stream| {
                let empty = [head("GET"), [0, 0, 0].repeat(60)].concat();
                frame(HEADERS, END_HEADERS | END_STREAM, stream, &empty)
            }),
        ),
        ("CVE-2019-9518 empty DATA", open(&frame(DATA, 0, 1, b""))),
        (
            "CVE-2023-44487 requests that are reset",
            streams(4000, |stream| {
                [post(stream), frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat()
            }),
        ),
        (
            "CVE-2024-27316 CONTINUATION",
            [unended.clone(), often(&frame(CONTINUATION, 0, 1, &crumb))].concat(),
        ),
        (
            "CVE-2024-27316 empty CONTINUATION",
            [unended.clone(), often(&frame(CONTINUATION, 0, 1, b""))].concat(),
        ),
        (
            "CVE-2024-27316 large CONTINUATION",
            [unended, often(&frame(CONTINUATION, 0, 1, &crumb.repeat(1000)))].concat(),
        ),
        (
            "CVE-2025-8671 window updates by nothing",
            streams(4000, |stream| {
                [post(stream), frame(WINDOW_UPDATE, 0, stream, &[0; 4])].concat()
            }),
        ),
        (
            "CVE-2025-8671 DATA behind the end",
            streams(4000, |stream| {
                let ended = frame(HEADERS, END_HEADERS | END_STREAM, stream, &head("POST"));
                [ended, frame(DATA, 0, stream, b"x")].concat()
            }),
        ),
        ("CVE-2026-49975 references to a large field", references(4000)),
        (
            "crumbs of a cookie",
            streams(60, |stream| {
                frame(
                    HEADERS,
                    END_HEADERS | END_STREAM,
                    stream,
                    &[head("GET"), crumb.repeat(150)].concat(),
                )
            }),
        ),
        ("window updates", often(&frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]))),
        ("frames that nobody knows", often(&frame(99, 0, 0, b"x"))),
        ("tiny DATA", [post(1), frame(DATA, 0, 1, b"x").repeat(12_000)].concat()),
        ("no HTTP/2 at all", vec![0; FLOOD_BYTES]),
    ]
}

/// Sends all of it, or what weir accepts, and reads until the end. Returns the largest observed
/// memory.
fn attack(weir: &Weir, address: SocketAddr, flood: &[u8]) -> u64 {
    let connections: Vec<TcpStream> = (0..ATTACKERS)
        .map(|_| {
            let mut stream = TcpStream::connect(address).expect("weir accepts");
            bounded(&stream);
            // An error is hoped for: weir has ended the connection.
            let _ = stream.write_all(&[&PREFACE[..], &frame(SETTINGS, 0, 0, b"")].concat());
            let _ = stream.write_all(flood);
            stream
        })
        .collect();
    let used = weir.memory();
    for mut stream in connections {
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    used.max(weir.memory())
}

fn floods_are_cheap(io: Io) {
    let server = Server::start(Honest);
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let listen = format!("listen \"{address}\" {{ protocols \"h2c\"; }}\n");
    let weir = Weir::start(io, 1, &format!("{listen}{}", app(&server, 2, "")));
    let honest = |count: usize| {
        let mut client = Http2Client::connect(address, &[]);
        for _ in 0..count {
            let stream = client.get("/a?n=00000000");
            assert_eq!(client.answer(stream).statuses, [200]);
        }
    };
    // The first ones allocate what is kept.
    honest(WORTH);
    let before = weir.cpu_ticks();
    honest(WORTH);
    let worth = weir.cpu_ticks() - before;
    for (name, flood) in floods() {
        let (memory, ticks) = (weir.memory(), weir.cpu_ticks());
        let highest = attack(&weir, address, &flood);
        let (grown, used) = (highest.saturating_sub(memory), weir.cpu_ticks() - ticks);
        assert!(grown < ATTACKERS as u64 * CONNECTION_BYTES, "{name}: {grown} bytes");
        assert!(
            used <= worth + NOISE_TICKS,
            "{name}: {used} ticks, {WORTH} honest requests cost {worth}"
        );
        println!("{name}: {grown} bytes, {used} ticks of {worth}");
        honest(3);
    }
    weir.stop();
    server.finish();
}
