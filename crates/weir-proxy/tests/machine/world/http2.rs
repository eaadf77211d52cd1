//! Clients of HTTP/2 in the world: they send frames, and received bytes pass through the strict
//! judge of frames.

use weir_check::streams::{ACK, END_HEADERS, END_STREAM, PREFACE, Seen, frame, header_block, kind};
use weir_check::{Reply, StrictStreams};
use weir_proxy::plan::Protocols;

use super::{Incoming, World};

/// CANCEL (RFC 9113 §7).
pub const CANCEL: u32 = 8;
/// SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113 §6.5.2).
const INITIAL_WINDOW_SIZE: u8 = 4;

/// The state of an HTTP/2 client, in place of replies in order.
pub struct Frames {
    pub judge: StrictStreams,
    /// Responses and resets, as they came.
    pub seen: Vec<Seen>,
}

impl World {
    /// A new client of an engine that speaks HTTP/2: each of its streams begins with this window,
    /// their connection has plenty.
    pub fn http2_client(&mut self, node: usize, window: u32) -> usize {
        let client = self.accept(node, Protocols { http1: false, http2: true });
        let mut judge = StrictStreams::new();
        judge.set(Some(window));
        let mut bytes = PREFACE.to_vec();
        bytes.extend(frame(
            kind::SETTINGS,
            0,
            0,
            &[&[0, INITIAL_WINDOW_SIZE], window.to_be_bytes().as_slice()].concat(),
        ));
        self.clients[client].frames = Some(Frames { judge, seen: Vec::new() });
        self.send(client, &bytes);
        self.credit(client, 0, 1 << 30);
        client
    }

    fn frames(&mut self, client: usize) -> &mut Frames {
        self.clients[client].frames.as_mut().expect("a client of HTTP/2")
    }

    /// A GET on a new stream.
    pub fn open(&mut self, client: usize, stream: u32, target: &str) {
        self.open_with(client, stream, ("GET", target), &[], None);
    }

    /// A request with these fields on a new stream, and its body in frames of at most 16 KiB.
    pub fn open_with(
        &mut self,
        client: usize,
        stream: u32,
        (method, target): (&str, &str),
        fields: &[(&str, &str)],
        body: Option<&[u8]>,
    ) {
        self.open_head(client, stream, (method, target), fields, body.is_none());
        let Some(body) = body else { return };
        for piece in body.chunks(16 * 1024) {
            self.send(client, &frame(kind::DATA, 0, stream, piece));
        }
        self.send(client, &frame(kind::DATA, END_STREAM, stream, b""));
    }

    /// Sends the head of such a request. `ends`: it has no body.
    pub fn open_head(
        &mut self,
        client: usize,
        stream: u32,
        (method, target): (&str, &str),
        fields: &[(&str, &str)],
        ends: bool,
    ) {
        self.frames(client).judge.ask(stream, method);
        let pseudo =
            [(":method", method), (":scheme", "http"), (":path", target), (":authority", "a")];
        let block = header_block(&[&pseudo, fields].concat());
        let end = if ends { END_STREAM } else { 0 };
        self.send(client, &frame(kind::HEADERS, END_HEADERS | end, stream, &block));
    }

    /// Returns the received bytes of the body of a stream's response, unless that is complete.
    pub fn stream_bytes(&self, client: usize, stream: u32) -> Option<u64> {
        let frames = self.clients[client].frames.as_ref().expect("a client of HTTP/2");
        frames.judge.current(stream).map(|reply| reply.body.length)
    }

    /// Returns the response on a stream, if it is complete.
    pub fn stream_reply(&self, client: usize, stream: u32) -> Option<&Reply> {
        let seen = &self.clients[client].frames.as_ref().expect("a client of HTTP/2").seen;
        seen.iter().find_map(|seen| match seen {
            Seen::Reply(of, reply) if *of == stream => Some(reply),
            _ => None,
        })
    }

    /// Grants this many more bytes for a stream; 0: for the connection.
    pub fn credit(&mut self, client: usize, stream: u32, bytes: u32) {
        self.frames(client).judge.credit(stream, bytes);
        self.send(client, &frame(kind::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes()));
    }

    /// The client resets a stream.
    pub fn reset_stream(&mut self, client: usize, stream: u32) {
        self.frames(client).judge.give_up(stream);
        self.send(client, &frame(kind::RST_STREAM, 0, stream, &CANCEL.to_be_bytes()));
    }

    /// Streams that weir has reset with this code.
    pub fn streams_reset(&self, client: usize, code: u32) -> Vec<u32> {
        let seen = &self.clients[client].frames.as_ref().expect("a client of HTTP/2").seen;
        seen.iter()
            .filter(|seen| matches!(seen, Seen::Reset(_, by) if *by == code))
            .map(stream_of)
            .collect()
    }

    /// Streams that are answered completely.
    pub fn streams_answered(&self, client: usize) -> Vec<u32> {
        let seen = &self.clients[client].frames.as_ref().expect("a client of HTTP/2").seen;
        seen.iter().filter(|seen| matches!(seen, Seen::Reply(..))).map(stream_of).collect()
    }

    /// Frames come to a client.
    pub(super) fn hear_frames(&mut self, client: usize, bytes: &[u8]) {
        let machine = &mut self.clients[client];
        let Some(frames) = machine.frames.as_mut() else { return };
        frames.judge.feed(bytes).unwrap_or_else(|fault| panic!("client {client}: {fault:?}"));
        while let Some(seen) = frames.judge.poll() {
            match seen {
                Seen::Settings(_) => {
                    machine.pending.push_back(Incoming::Bytes(frame(kind::SETTINGS, ACK, 0, &[])))
                }
                Seen::Reply(..) | Seen::Reset(..) | Seen::Goaway(..) => frames.seen.push(seen),
                Seen::Ping(_) | Seen::Data(..) | Seen::Credit(..) => {}
            }
        }
    }
}

fn stream_of(seen: &Seen) -> u32 {
    match seen {
        Seen::Reply(stream, _) | Seen::Reset(stream, _) => *stream,
        _ => 0,
    }
}
