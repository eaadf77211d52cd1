//! Proves: the windows for HTTP/2 clients fit what servers take of their bodies. How: a client
//! frame by frame, each frame of weir through the judge of streams. docs/http2.md.

use std::collections::BTreeMap;

use weir_check::StrictStreams;
use weir_check::streams::kind::{DATA, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE};
use weir_check::streams::{ACK, END_HEADERS, END_STREAM, PREFACE, Seen, frame, header_block};
use weir_proxy::plan::{Plan, Pool};

use crate::transparent::{at, through};
use crate::world::{Do, World};

/// A window as it is announced, and the largest one.
const WINDOW: i64 = 65_536;
const WINDOW_MAX: i64 = 1 << 20;
/// Bytes of a DATA frame.
const FRAME: usize = 16_384;

/// A client of HTTP/2, and the bytes that it may send.
struct Streams {
    number: usize,
    judge: StrictStreams,
    next: u32,
    /// Of the connection (0) and of streams: bytes that it may send.
    windows: BTreeMap<u32, i64>,
    seen: Vec<Seen>,
}

impl Streams {
    fn new(world: &mut World) -> Streams {
        let number = world.client_of_http2(0);
        let mut judge = StrictStreams::new();
        judge.set(None);
        world.send(
            number,
            &[&PREFACE[..], &frame(SETTINGS, 0, 0, &[]), &frame(SETTINGS, ACK, 0, &[])].concat(),
        );
        let mut client = Streams {
            number,
            judge,
            next: 1,
            windows: BTreeMap::from([(0, 65_535)]),
            seen: Vec::new(),
        };
        client.settle(world);
        client
    }

    /// Lets pending events happen, and takes the received frames.
    fn settle(&mut self, world: &mut World) {
        world.settle();
        let bytes = world.clients[self.number].raw.as_mut().map(std::mem::take).unwrap_or_default();
        self.judge.feed(&bytes).unwrap_or_else(|fault| panic!("{fault:?}"));
        while let Some(seen) = self.judge.poll() {
            if let Seen::Credit(stream, bytes) = seen {
                *self.windows.entry(stream).or_default() += i64::from(bytes);
            }
            self.seen.push(seen);
        }
    }

    /// Begins a request whose body follows.
    fn post(&mut self, world: &mut World, path: &str) -> u32 {
        let stream = self.next;
        self.next += 2;
        self.judge.ask(stream, "POST");
        self.windows.insert(stream, WINDOW);
        let list = [(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", path)];
        world.send(self.number, &frame(HEADERS, END_HEADERS, stream, &header_block(&list)));
        stream
    }

    /// Returns the bytes of a request without a body, to be sent, and its stream.
    fn get(&mut self, path: &str) -> (Vec<u8>, u32) {
        let stream = self.next;
        self.next += 2;
        self.judge.ask(stream, "GET");
        let list = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", path)];
        (frame(HEADERS, END_HEADERS | END_STREAM, stream, &header_block(&list)), stream)
    }

    /// Sends this many bytes of a body, in frames, if the windows allow it; returns whether they
    /// did.
    fn send(&mut self, world: &mut World, stream: u32, bytes: usize) -> bool {
        if [0, stream].iter().any(|id| self.windows[id] < bytes as i64) {
            return false;
        }
        for piece in vec![b'x'; bytes].chunks(FRAME) {
            world.send(self.number, &frame(DATA, 0, stream, piece));
        }
        [0, stream]
            .iter()
            .for_each(|id| *self.windows.get_mut(id).expect("a window") -= bytes as i64);
        true
    }

    fn end(&mut self, world: &mut World, stream: u32) {
        world.send(self.number, &frame(DATA, END_STREAM, stream, b""));
        self.settle(world);
        let is_answer = |seen: &Seen| {
            matches!(
                seen,
                Seen::Reply(of, reply) if *of == stream && reply.status == 200
            )
        };
        assert!(self.seen.iter().any(is_answer), "{:?}", self.seen);
    }

    fn reset(&mut self, world: &mut World, stream: u32) {
        self.judge.give_up(stream);
        world.send(self.number, &frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
        self.settle(world);
    }

    /// Returns the bytes that it may send on a stream whose received bytes are all passed on.
    fn full(&self, stream: u32) -> i64 {
        self.windows[&stream]
    }
}

fn nonce(number: u32) -> String {
    format!("/p?n={number:08}")
}

/// Sends frame by frame until the window of a stream is this large.
fn grow(client: &mut Streams, world: &mut World, stream: u32, to: i64) {
    for _ in 0..3 * WINDOW_MAX as usize / FRAME {
        if client.full(stream) >= to {
            return;
        }
        assert!(client.send(world, stream, FRAME), "there is always a window");
        client.settle(world);
    }
    panic!("{} bytes", client.full(stream));
}

#[test]
fn windows_of_uploads_that_go_on_grow_and_come_back() {
    let mut world = World::simple(4);
    let mut client = Streams::new(&mut world);
    let before = client.windows[&0];
    // Three times as many as a connection could have if nothing was given back.
    for number in 0..12u32 {
        let stream = client.post(&mut world, &nonce(number));
        grow(&mut client, &mut world, stream, WINDOW_MAX);
        match number % 2 {
            0 => client.end(&mut world, stream),
            _ => client.reset(&mut world, stream),
        }
        assert!(client.windows[&0] <= before + WINDOW_MAX, "{} bytes", client.windows[&0]);
    }
    // A window that was used up is a large burst: it stops no stream.
    let stream = client.post(&mut world, &nonce(12));
    grow(&mut client, &mut world, stream, WINDOW_MAX);
    assert!(client.send(&mut world, stream, WINDOW_MAX as usize));
    client.settle(&mut world);
    assert_eq!(client.full(stream), WINDOW_MAX);
    client.end(&mut world, stream);
    world.finish();
}

#[test]
fn a_body_that_has_to_wait_keeps_its_window() {
    let mut world = World::simple(4);
    let mut client = Streams::new(&mut world);
    // The server reads nothing: the untaken bytes are kept, up to a window.
    world.servers[0].deaf = true;
    let stuck = client.post(&mut world, &nonce(0));
    let mut sent = 0;
    while client.send(&mut world, stuck, FRAME) {
        sent += FRAME;
        client.settle(&mut world);
    }
    assert!(sent < 500_000, "{sent} bytes");
    assert_eq!(client.windows[&stuck], 0);
    let credit =
        |seen: &Seen| matches!(seen, Seen::Credit(0, bytes) if i64::from(*bytes) == WINDOW);
    assert!(!client.seen.iter().any(credit), "{:?}", client.seen);
    client.reset(&mut world, stuck);
    world.servers[0].deaf = false;
    // A server that takes it, but later each time.
    let mut slow = World::simple(1);
    let mut client = Streams::new(&mut slow);
    slow.servers[0].deaf = true;
    let stream = client.post(&mut slow, &nonce(1));
    for _ in 0..100 {
        while client.send(&mut slow, stream, FRAME) {
            client.settle(&mut slow);
        }
        while client.full(stream) < WINDOW / 2 {
            slow.swallow(0);
            client.settle(&mut slow);
        }
        assert!(client.full(stream) <= WINDOW, "{} bytes", client.full(stream));
    }
    // Swallowed bytes are lost to the judges.
}

/// Frames that arrive cut, each read ending within another one, are not one endless frame; an
/// endless one is.
#[test]
fn the_patience_is_with_one_frame() {
    let mut world = World::simple(4);
    let mut client = Streams::new(&mut world);
    let patience_us = Plan::default().client.head_timeout_us;
    let mut rest = Vec::new();
    for number in 0..20 {
        let (bytes, _) = client.get(&nonce(number));
        let half = bytes.len() / 2;
        world.send(client.number, &[&rest[..], &bytes[..half]].concat());
        rest = bytes[half..].to_vec();
        world.run_for(patience_us / 2);
        client.settle(&mut world);
    }
    let answers = |client: &Streams| {
        client.seen.iter().filter(|seen| matches!(seen, Seen::Reply(..))).count()
    };
    assert_eq!(answers(&client), 19);
    assert!(!client.seen.iter().any(|seen| matches!(seen, Seen::Goaway(..))));
    // Byte by byte it is the same frame.
    for byte in rest[..rest.len() - 1].chunks(1).take(10) {
        world.send(client.number, byte);
        world.run_for(patience_us / 8);
    }
    client.settle(&mut world);
    assert_eq!(client.seen.last(), Some(&Seen::Goaway(37, 11)));
    world.finish();
}

/// CVE-2019-9517: windows wide open, and an unread socket: a hundred large responses remain with
/// their servers.
#[test]
fn who_opens_windows_and_reads_nothing_has_little_kept() {
    const LARGE: usize = 2_000_000;
    let mut world = World::simple(50);
    world.serve(|seen| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n");
        let mut script = vec![Do::Answer(head.into_bytes())];
        script.extend((0..LARGE / 20_000).map(|_| Do::Bytes(vec![b'x'; 20_000])));
        seen.complete.then_some(script)
    });
    let mut client = Streams::new(&mut world);
    // All windows as large as they can be.
    let credit = 0x7fff_ffffu32 - 65_535;
    let settings = frame(SETTINGS, 0, 0, &[&[0, 4][..], &0x7fff_ffffu32.to_be_bytes()].concat());
    world.send(
        client.number,
        &[settings, frame(WINDOW_UPDATE, 0, 0, &credit.to_be_bytes())].concat(),
    );
    client.judge.set(Some(0x7fff_ffff));
    client.judge.credit(0, credit);
    client.settle(&mut world);
    world.stall(client.number, true);
    for number in 0..100 {
        let (bytes, _) = client.get(&nonce(number));
        world.send(client.number, &bytes);
    }
    world.settle();
    let sent = world.count(|counters| counters.upstream_bytes_in.get());
    // The limit of all streams together, and for each answered one its minimum and a receive.
    assert!(sent > 1_000_000 && sent < 1_048_576 + 50 * (16_384 + 65_536 + 200), "{sent} bytes");
    world.reset(client.number);
    world.stall(client.number, false);
}

/// Also if the client's own address decides, which a stream has from its connection.
#[test]
fn requests_to_where_a_client_has_connected_to_are_for_http_1() {
    let mut world = World::started(through(Pool::Pinned, 1), 1, 1);
    world.destination = Some(at(0));
    let mut client = Streams::new(&mut world);
    let (bytes, stream) = client.get(&nonce(1));
    world.send(client.number, &bytes);
    client.settle(&mut world);
    // RFC 9113 §7, HTTP_1_1_REQUIRED.
    assert!(
        client.seen.iter().any(|seen| matches!(seen, Seen::Reset(of, 0xd) if *of == stream)),
        "{:?}",
        client.seen
    );
    assert!(world.connects.is_empty());
    world.reset(client.number);
    world.finish();
}
