//! Frames of HTTP/2 from clients: their effect on requests (stages accept and parse). RFC 9113 §5,
//! §8.

use std::sync::Arc;

use weir_http::h2::{Code, Event, Glitch, PREFACE, Turn};

use crate::base::keys::{ClientKey, Key};
use crate::base::piece::Input;
use crate::cause::Cause;
use crate::client::Clients;
use crate::client::connection::Reading;
use crate::client::connections::Connections;
use crate::context::Context;
use crate::cross::router::Requests;
use crate::ending::ClientEnd;
use crate::observe::glitch::ClientGlitch;

/// This many bytes of the preface identify it: no HTTP/1 method in use begins like this.
const TELLING_BYTES: usize = 3;

/// Whether a client that begins like this speaks HTTP/2; None: that is not clear yet.
fn begins_http2(bytes: &[u8]) -> Option<bool> {
    let length = bytes.len().min(TELLING_BYTES);
    match bytes[..length] == PREFACE[..length] {
        true if length < TELLING_BYTES => None,
        is_preface => Some(is_preface),
    }
}

/// Names a glitch as the counters do.
fn glitch_of(glitch: Glitch) -> ClientGlitch {
    match glitch {
        Glitch::ResetEarly => ClientGlitch::ResetEarly,
        Glitch::ForcedReset => ClientGlitch::ForcedReset,
        Glitch::Refused => ClientGlitch::StreamRefused,
        Glitch::Chatter => ClientGlitch::Chatter,
        Glitch::Continuation => ClientGlitch::Continuation,
        Glitch::EmptyFrame => ClientGlitch::EmptyFrame,
        Glitch::ClosedStream => ClientGlitch::ClosedStream,
        Glitch::WindowShrunk => ClientGlitch::WindowShrunk,
        Glitch::Priority => ClientGlitch::Priority,
        Glitch::Malformed => ClientGlitch::Malformed,
        Glitch::TrailerDropped => ClientGlitch::TrailerDropped,
    }
}

/// Counts the glitches of an HTTP/2 connection since the last call.
fn count_glitches(conns: &mut Connections, index: ClientKey, cx: &Context) {
    let Some(streams) = conns.carriers.get_mut(index) else { return };
    let glitches = streams.mux.take_glitches();
    let conn = conns.at_mut(index);
    glitches
        .iter()
        .for_each(|(glitch, times)| conn.count_glitch(glitch_of(glitch), times.into(), cx));
}

fn is_reading_frames(conns: &Connections, index: ClientKey) -> bool {
    conns.is_there(index) && conns.at(index).reading() == Reading::Frames
}

impl Clients {
    /// Handles the first bytes of a client that may begin with the preface of HTTP/2. True: they
    /// are consumed.
    pub(in crate::client) fn is_http2(
        &mut self,
        index: ClientKey,
        input: &[u8],
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) -> bool {
        let stash = self.conn(index).stash.as_ref().map_or(&[][..], |stash| &stash.bytes);
        let mut begin: Vec<u8> = stash.iter().take(TELLING_BYTES).copied().collect();
        begin.extend(input.iter().take(TELLING_BYTES));
        let Some(is_http2) = begins_http2(&begin) else { return false };
        self.conn_mut(index).flags.may_be_http2 = false;
        if is_http2 {
            self.answers.begin_http2(index, cx);
            self.frames_received(index, input, to, cx);
        }
        is_http2
    }

    /// Takes bytes of frames, behind those that wait to be read.
    pub(in crate::client) fn frames_received(
        &mut self,
        index: ClientKey,
        input: &[u8],
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        match self.conn_mut(index).stash.as_mut() {
            Some(stash) => {
                stash.push(input);
                self.read_kept_frames(index, to, cx);
            }
            None => {
                let used = self.read_frames(index, input, to, cx);
                if used < input.len() && is_reading_frames(&self.answers.conns, index) {
                    self.conn_mut(index).stash.get_or_insert_default().push(&input[used..]);
                }
            }
        }
    }

    /// Continues reading where frames had to wait.
    pub(in crate::client) fn read_kept_frames(
        &mut self,
        index: ClientKey,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        let Some(lent) = self.conn_mut(index).lend_input() else { return };
        let used = self.read_frames(index, lent.rest(), to, cx);
        if let Some(conn) = self.answers.conns.conns.get_mut(index) {
            conn.take_input_back(lent, used);
        }
    }

    /// Reads frames. Returns the bytes used: fewer than all when reading is blocked, or over.
    fn read_frames(
        &mut self,
        index: ClientKey,
        bytes: &[u8],
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) -> usize {
        let Some(streams) = self.answers.conns.carriers.get(index) else { return 0 };
        let limits = Arc::clone(&streams.limits);
        let mut turn = Turn::new(bytes, cx.now_us, &limits);
        let mut heads = std::mem::take(&mut self.heads);
        while let Some(streams) = self.answers.conns.carriers.get_mut(index) {
            match streams.mux.read(&mut turn, &mut heads) {
                Ok(Some(event)) => {
                    self.on_event(index, &event, to, cx);
                    if !is_reading_frames(&self.answers.conns, index) {
                        break;
                    }
                }
                Ok(None) => break,
                Err(_) => {
                    count_glitches(&mut self.answers.conns, index, cx);
                    self.answers.end_http2(index, ClientEnd::Http2Failed, cx);
                    break;
                }
            }
        }
        self.heads = heads;
        if is_reading_frames(&self.answers.conns, index) {
            self.frames_were_read(index, cx);
        }
        turn.consumed()
    }

    /// All received frames are read.
    fn frames_were_read(&mut self, index: ClientKey, cx: &mut Context) {
        let Some(streams) = self.answers.conns.carriers.get_mut(index) else { return };
        streams.note_read(cx.now_us);
        let wants_write = streams.mux.wants_write();
        count_glitches(&mut self.answers.conns, index, cx);
        let conn = self.conn(index);
        if conn.ends_by_glitches(&cx.plan.client)
            && let Some(streams) = self.answers.conns.carriers.get_mut(index)
        {
            streams.mux.fail(Code::EnhanceYourCalm, "too many glitches");
            return self.answers.end_http2(index, ClientEnd::Http2Failed, cx);
        }
        if wants_write {
            self.answers.conns.mark(index);
        }
        self.answers.conns.arm(index, cx);
    }

    fn on_event(
        &mut self,
        index: ClientKey,
        event: &Event<'_>,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        match *event {
            Event::Request { stream, ref request, .. } => {
                let opened = self.answers.open_stream(index, stream, cx);
                let text = Input::borrowed(request.text);
                self.request_parsed(opened, &request.head, request.fields, &text, 0, to, cx);
            }
            Event::Refused { stream, error, line } => {
                let opened = self.answers.open_stream(index, stream, cx);
                self.answers.refuse(opened, error.into(), line, cx.now_us, cx);
            }
            Event::Broken { stream, tag, error } => {
                self.body_broken(index, stream, ClientKey::new(tag as u32), error.into(), cx);
            }
            Event::Data { stream, tag, bytes, end } => {
                self.stream_data(index, stream, ClientKey::new(tag as u32), bytes, end, to, cx);
            }
            Event::Reset { tag, by_client, .. } => {
                cx.counters.http2_streams_reset.add(u64::from(by_client));
                self.answers.stream_reset(ClientKey::new(tag as u32), cx);
            }
            // Requests under way continue, and then nothing comes (RFC 9113 §6.8).
            Event::Leaving { code: Code::NoError } => {}
            // A connection error: its client is about to close.
            Event::Leaving { .. } => self.answers.end_http2(index, ClientEnd::ClientClosed, cx),
        }
    }

    /// The body of a request contradicts its head: the request gets an error where one can still be
    /// sent, otherwise the stream ends.
    fn body_broken(
        &mut self,
        carrier: ClientKey,
        id: u32,
        index: ClientKey,
        cause: Cause,
        cx: &mut Context,
    ) {
        if self.answers.conns.upload(index).is_some() {
            return self.answers.upload_failed(index, cause, cx);
        }
        if let Some(streams) = self.answers.conns.carriers.get_mut(carrier) {
            streams.mux.reset(id, Code::ProtocolError);
        }
        self.answers.stream_reset(index, cx);
    }

    /// Takes a piece of a request's body. `end`: it is the last.
    fn stream_data(
        &mut self,
        carrier: ClientKey,
        id: u32,
        index: ClientKey,
        bytes: &[u8],
        end: bool,
        to: &mut Requests<'_>,
        cx: &mut Context,
    ) {
        let conn = self.conn_mut(index);
        if conn.flags.unverified {
            // The client has to be identified first. The window bounds the size.
            conn.flags.ended |= end;
            return conn.stash.get_or_insert_default().push(bytes);
        }
        if conn.reading() != Reading::Body {
            if let Some(streams) = self.answers.conns.carriers.get_mut(carrier) {
                streams.mux.consumed(id, bytes.len());
                streams.mux.ignore_body(id);
            }
            return;
        }
        conn.flags.ended |= end;
        if let Some(stash) = conn.stash.as_mut() {
            // Behind bytes that the servers' side can't take yet. The window bounds the size.
            stash.push(bytes);
            return;
        }
        let used = self.parse(index, &Input::borrowed(bytes), to, cx);
        if !self.is_there(index) || self.conn(index).reading() != Reading::Body {
            return;
        }
        let conn = self.conn_mut(index);
        if used < bytes.len() {
            conn.stash.get_or_insert_default().push(&bytes[used..]);
        } else if end {
            self.input_ended(index, to, cx);
        }
    }
}
