//! Proves: what is promised to clients of HTTP/2 fits what servers take of them. How: a client frame by frame, each frame of weir through the
//! judge of streams. docs/semantics.md §10a.

use std::collections::BTreeMap;

use weir_check::StrictStreams;
use weir_check::streams::kind::{DATA, HEADERS, RST_STREAM, SETTINGS};
use weir_check::streams::{ACK, END_HEADERS, END_STREAM, PREFACE, Seen, frame, header_block};

use crate::world::World;

/// A window as it is announced, and the largest one.
const WINDOW: i64 = 65_536;
const WINDOW_MAX: i64 = 1 << 20;
/// Bytes of a DATA frame.
const FRAME: usize = 16_384;

/// A client of HTTP/2, and what it may send.
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
        world.send(number, &[&PREFACE[..], &frame(SETTINGS, 0, 0, &[]), &frame(SETTINGS, ACK, 0, &[])].concat());
        let mut client = Streams { number, judge, next: 1, windows: BTreeMap::from([(0, 65_535)]), seen: Vec::new() };
        client.settle(world);
        client
    }

    /// Lets happen what can, and takes what came.
    fn settle(&mut self, world: &mut World) {
        world.settle();
        let bytes = world.clients[self.number].frames.as_mut().map(std::mem::take).unwrap_or_default();
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

    /// Sends so much of a body, in frames, if the windows allow it. Whether they did.
    fn send(&mut self, world: &mut World, stream: u32, bytes: usize) -> bool {
        if [0, stream].iter().any(|id| self.windows[id] < bytes as i64) {
            return false;
        }
        for piece in vec![b'x'; bytes].chunks(FRAME) {
            world.send(self.number, &frame(DATA, 0, stream, piece));
        }
        [0, stream].iter().for_each(|id| *self.windows.get_mut(id).expect("a window") -= bytes as i64);
        true
    }

    fn end(&mut self, world: &mut World, stream: u32) {
        world.send(self.number, &frame(DATA, END_STREAM, stream, b""));
        self.settle(world);
        let is_answer = |seen: &Seen| matches!(seen, Seen::Reply(of, reply) if *of == stream && reply.status == 200);
        assert!(self.seen.iter().any(is_answer), "{:?}", self.seen);
    }

    fn reset(&mut self, world: &mut World, stream: u32) {
        self.judge.give_up(stream);
        world.send(self.number, &frame(RST_STREAM, 0, stream, &8u32.to_be_bytes()));
        self.settle(world);
    }

    /// What it may send on a stream of which everything that came is passed on.
    fn full(&self, stream: u32) -> i64 {
        self.windows[&stream]
    }
}

fn nonce(number: u32) -> String {
    format!("/p?n={number:08}")
}

/// Sends frame by frame until the window of a stream is that large.
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
    // Three times as many as a connection could have if nothing came back.
    for number in 0..12u32 {
        let stream = client.post(&mut world, &nonce(number));
        grow(&mut client, &mut world, stream, WINDOW_MAX);
        match number % 2 {
            0 => client.end(&mut world, stream),
            _ => client.reset(&mut world, stream),
        }
        assert!(client.windows[&0] <= before + WINDOW_MAX, "{} bytes", client.windows[&0]);
    }
    // A window that was used up is a large burst: nobody is stopped by it.
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
    // The server reads nothing: what it does not take is kept, up to a window.
    world.servers[0].deaf = true;
    let stuck = client.post(&mut world, &nonce(0));
    let mut sent = 0;
    while client.send(&mut world, stuck, FRAME) {
        sent += FRAME;
        client.settle(&mut world);
    }
    assert!(sent < 500_000, "{sent} bytes");
    assert_eq!(client.windows[&stuck], 0);
    let credit = |seen: &Seen| matches!(seen, Seen::Credit(0, bytes) if *bytes as i64 == WINDOW);
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
    // What was swallowed is lost to the judges.
}
