//! Connections of HTTP/2 towards their clients: streams open and end, frames leave, timers are due
//! (stage reply).

use std::sync::Arc;

use weir_http::ReplyBody;
use weir_http::h2::{Additions as Added, Code, Outgoing};

use super::streams::Streams;
use crate::base::keys::{ClientKey, ExchangeKey, Key};
use crate::base::output::{HIGH_BYTES, Output, Spare};
use crate::base::slab::Slab;
use crate::cause::Cause;
use crate::client::answer::Answers;
use crate::client::connection::{ClientConn, Phase, Reading, StreamState};
use crate::client::connections::Connections;
use crate::client::http1::Additions;
use crate::client::stalls;
use crate::context::Context;
use crate::cross::answer::AnswerHead;
use crate::ending::{ClientEnd, Timeout};

/// Bytes of frames that are made for one send: an urgent response never waits for more.
const SEND_BYTES: usize = 64 * 1024;

/// Bytes of a stream that are in frames now.
type Moved = (ClientKey, usize);

/// The destination of frames: control bytes and heads are copied, bodies are moved out of the
/// streams.
struct Frames<'a> {
    conns: &'a mut Slab<ClientKey, ClientConn>,
    output: Output,
    spare: &'a mut Spare,
    moved: Vec<Moved>,
    done: Vec<ClientKey>,
}

impl Outgoing for Frames<'_> {
    fn frames(&mut self, bytes: &[u8]) {
        self.output.tail(self.spare).extend_from_slice(bytes);
    }

    fn body(&mut self, _: u32, tag: u64, bytes: usize) {
        let index = ClientKey::new(tag as u32);
        self.conns.at_mut(index).codec.output().move_to(bytes, &mut self.output, self.spare);
        match self.moved.last_mut() {
            Some((last, moved)) if *last == index => *moved += bytes,
            _ => self.moved.push((index, bytes)),
        }
    }

    fn ended(&mut self, _: u32, tag: u64) {
        self.done.push(ClientKey::new(tag as u32));
    }
}

/// Makes frames for a connection. Returns the streams with bytes in them, and those that have left
/// completely.
fn write_frames(
    conns: &mut Connections,
    index: ClientKey,
    spare: &mut Spare,
) -> (Vec<Moved>, Vec<ClientKey>) {
    let Some(mut streams) = conns.carriers.take(index) else { return Default::default() };
    let output = std::mem::take(conns.at_mut(index).codec.output());
    let (moved, done) = (std::mem::take(&mut streams.moved), std::mem::take(&mut streams.done));
    let mut frames = Frames { conns: &mut conns.conns, output, spare, moved, done };
    while frames.output.len() < SEND_BYTES
        && streams.mux.write_out(SEND_BYTES - frames.output.len(), &mut frames) > 0
    {}
    let Frames { output, moved, done, .. } = frames;
    moved.iter().for_each(|(_, bytes)| streams.take_unsent(*bytes));
    let conn = conns.at_mut(index);
    *conn.codec.output() = output;
    if streams.mux.is_finished() {
        // Without this, bytes on their way from the client would cause the end of the last response
        // to be discarded.
        (conn.flags.close, conn.flags.unread) = (true, true);
    }
    conns.carriers.put(index, streams);
    (moved, done)
}

impl Answers {
    /// Switches a connection to HTTP/2.
    pub(in crate::client) fn begin_http2(&mut self, index: ClientKey, cx: &mut Context) {
        let mut streams = Box::new(Streams::new(Arc::clone(&cx.http2), cx.now_us));
        if self.conns.at(index).flags.leaves {
            streams.mux.drain(cx.now_us);
        }
        self.conns.carriers.put(index, streams);
        let conn = self.conns.at_mut(index);
        conn.read_as(Reading::Frames);
        conn.since_us = cx.now_us;
        cx.counters.http2_connections.add(1);
        self.conns.mark(index);
        self.conns.arm(index, cx);
    }

    /// Opens a new stream for a request, and returns the connection of the stream.
    pub(in crate::client) fn open_stream(
        &mut self,
        carrier: ClientKey,
        id: u32,
        cx: &mut Context,
    ) -> ClientKey {
        let parent = self.conns.at(carrier);
        let state =
            StreamState { carrier, listener: parent.listener, id, is_given_up: false, taken: 0 };
        let mut conn = ClientConn::of_stream(parent.peer, state, cx.now_us);
        conn.flags.sealed = parent.flags.sealed;
        conn.shown.clone_from(&parent.shown);
        let (index, _) = self.conns.conns.insert(conn);
        self.conns.carriers.streams += 1;
        if let Some(streams) = self.conns.carriers.get_mut(carrier) {
            streams.mux.set_tag(id, index.number().into());
            streams.all.push(index);
        }
        cx.counters.http2_streams.add(1);
        self.records.stream_opened(index, carrier);
        index
    }

    /// The connection of a stream was taken out of the table. `why` decides what its client learns,
    /// if it does not know yet.
    pub(in crate::client) fn end_stream(
        &mut self,
        index: ClientKey,
        conn: &mut ClientConn,
        why: ClientEnd,
        cx: &Context,
    ) {
        let Some(stream) = conn.stream.as_deref() else { return };
        self.conns.carriers.streams -= 1;
        let unsent = conn.codec.output().len();
        let Some(streams) = self.conns.carriers.get_mut(stream.carrier) else { return };
        streams.all.retain(|other| *other != index);
        streams.take_unsent(unsent);
        if stream.is_given_up {
            streams.mux.gone();
        } else {
            let code = if matches!(why, ClientEnd::SendTimeout | ClientEnd::Stalled) {
                Code::Cancel
            } else {
                Code::InternalError
            };
            streams.mux.reset(stream.id, code);
        }
        let is_idle = streams.all.is_empty();
        let carrier = self.conns.at_mut(stream.carrier);
        carrier.glitches = carrier.glitches.saturating_add(conn.glitches);
        carrier.flags.late |= conn.flags.late;
        if is_idle {
            carrier.since_us = cx.now_us;
        }
        if carrier.has_waiting_input() {
            // Input that exceeded a limit may be read now.
            self.conns.look_again(stream.carrier);
        }
        self.conns.mark(stream.carrier);
    }

    /// This many bytes of a request's body no longer wait in front of the machines.
    pub(in crate::client) fn consumed(&mut self, index: ClientKey, bytes: usize) {
        let Some(stream) = self.conns.at(index).stream.as_deref() else { return };
        let (carrier, id) = (stream.carrier, stream.id);
        if let Some(streams) = self.conns.carriers.get_mut(carrier) {
            streams.mux.consumed(id, bytes);
            if streams.mux.wants_write() {
                self.conns.mark(carrier);
            }
        }
    }

    /// The rest of a request's body is not wanted; this many bytes of it arrived.
    pub(in crate::client) fn ignore_body(&mut self, index: ClientKey, bytes: usize) {
        self.consumed(index, bytes);
        let Some(stream) = self.conns.at(index).stream.as_deref() else { return };
        let (carrier, id) = (stream.carrier, stream.id);
        if let Some(streams) = self.conns.carriers.get_mut(carrier) {
            streams.mux.ignore_body(id);
        }
    }

    /// A request's body is passed on as it comes from now on: if it is a stream, its window may
    /// grow.
    pub(in crate::client) fn passes_body_on(&mut self, index: ClientKey) {
        let Some(stream) = self.conns.at(index).stream.as_deref() else { return };
        let (carrier, id) = (stream.carrier, stream.id);
        if let Some(streams) = self.conns.carriers.get_mut(carrier) {
            streams.mux.pass_body_on(id, HIGH_BYTES);
        }
    }

    /// The body of a response waits in the output of a stream: from now on its client has to take
    /// it.
    #[inline]
    pub(in crate::client) fn await_client(&mut self, index: ClientKey, cx: &mut Context) {
        let conn = self.conns.at_mut(index);
        if conn.stream.is_some() && !conn.flags.sending && conn.codec.ready_bytes() > 0 {
            conn.flags.sending = true;
            conn.send_us = cx.now_us;
            self.conns.arm(index, cx);
        }
    }

    /// Whether a stream may be removed: all of its response has left, or is no longer wanted.
    fn is_over(&self, index: ClientKey, carrier: ClientKey) -> bool {
        if !self.conns.is_there(index) {
            return false;
        }
        let conn = self.conns.at(index);
        let Some(stream) = conn.stream.as_deref().filter(|stream| stream.carrier == carrier) else {
            return false;
        };
        let is_open = self
            .conns
            .carriers
            .get(carrier)
            .is_some_and(|streams| streams.mux.tag(stream.id).is_some());
        conn.flags.close && conn.codec.is_empty() && (stream.is_given_up || !is_open)
    }

    /// Stops reading: the client has made an error, or has closed. Its requests are cancelled;
    /// output for it still leaves.
    pub(in crate::client) fn end_http2(
        &mut self,
        index: ClientKey,
        why: ClientEnd,
        cx: &mut Context,
    ) {
        self.close_streams(index, why, cx);
        if let Some(streams) = self.conns.carriers.get_mut(index) {
            streams.why = Some(why);
        }
        let conn = self.conns.at_mut(index);
        conn.read_as(Reading::Closing);
        conn.stash = None;
        conn.flags.close = true;
        conn.flags.unread |= why == ClientEnd::Http2Failed;
        self.conns.mark(index);
    }

    /// Ends all streams of a connection.
    pub(in crate::client) fn close_streams(
        &mut self,
        carrier: ClientKey,
        why: ClientEnd,
        cx: &mut Context,
    ) {
        // Each removes itself from the list.
        let first = |conns: &Connections| conns.carriers.get(carrier)?.all.first().copied();
        while let Some(index) = first(&self.conns) {
            self.close_conn(index, why, cx);
        }
    }

    /// The client has reset a stream, or has caused that by an error. A request that a server may
    /// be working on continues to count.
    pub(in crate::client) fn stream_reset(&mut self, index: ClientKey, cx: &mut Context) {
        let exchange = self.conns.current(self.conns.at(index));
        if exchange
            .is_some_and(|exchange| exchange.phase() == Phase::Waiting && !exchange.want.body_open)
        {
            self.give_up(index, cx);
        } else {
            self.close_conn(index, ClientEnd::ClientReset, cx);
        }
    }

    /// Resets a stream for an upstream with private connections, which streams can't share: the
    /// client has to retry with HTTP/1.1 (RFC 9113 §7, HTTP_1_1_REQUIRED). Returns whether it did.
    pub(in crate::client) fn needs_http1(
        &mut self,
        index: ClientKey,
        slot: ExchangeKey,
        upstream: usize,
        cx: &mut Context,
    ) -> bool {
        let Some(stream) = self.conns.at(index).stream.as_deref() else { return false };
        if !cx.is_private(upstream as u16) {
            return false;
        }
        let (carrier, id) = (stream.carrier, stream.id);
        if let Some(streams) = self.conns.carriers.get_mut(carrier) {
            streams.mux.reset(id, Code::Http11Required);
        }
        self.count_refusal(slot, Cause::NeedsHttp1, cx);
        self.records.blame(slot, Cause::NeedsHttp1, || self.conns.standing(slot));
        self.close_conn(index, ClientEnd::Closed, cx);
        true
    }

    /// The client of a stream has given it up while a server has its request. The request continues
    /// to count as a stream of the client until its response arrives or the server knows, so that
    /// resets don't allow more concurrent requests (CVE-2023-44487, CVE-2025-8671). A request that
    /// was not sent yet is taken back.
    fn give_up(&mut self, index: ClientKey, cx: &mut Context) {
        if let Some(slot) = self.conns.at(index).codec.current() {
            // The request will not be retried.
            self.release(slot);
            self.conns.withdraw(slot, cx);
        }
        stalls::end_stalls(&mut self.conns, index, cx);
        let conn = self.conns.at_mut(index);
        let Some(stream) = conn.stream.as_deref_mut() else { return };
        stream.is_given_up = true;
        let carrier = stream.carrier;
        if let Some(streams) = self.conns.carriers.get_mut(carrier) {
            streams.mux.linger();
        }
    }

    /// Makes frames, to be sent, from the bytes of a connection's streams that may leave.
    pub(in crate::client) fn fill(&mut self, carrier: ClientKey, cx: &mut Context) {
        let (mut moved, mut done) = write_frames(&mut self.conns, carrier, &mut cx.spare);
        for (index, bytes) in moved.drain(..) {
            self.conns.at_mut(index).note_taken(bytes, cx.now_us);
            self.records.delivered(index, bytes as u64, cx);
            self.conns.relieve(index, cx);
            self.conns.arm_awaited(index, cx);
        }
        for index in done.drain(..) {
            if self.is_over(index, carrier) {
                let why = self.conns.at(index).orderly_end(&cx.plan.client);
                self.close_conn(index, why, cx);
            }
        }
        if let Some(streams) = self.conns.carriers.get_mut(carrier) {
            streams.moved = moved;
            if streams.done.is_empty() {
                streams.done = done;
            }
        }
    }

    /// A client that speaks HTTP/2 has timed out.
    pub(in crate::client) fn http2_timed_out(&mut self, index: ClientKey, cx: &mut Context) {
        let now_us = cx.now_us;
        let conn = self.conns.at(index);
        let Some(streams) = self.conns.carriers.get(index) else { return };
        if streams.patience_end_us(conn, &cx.plan.client) > now_us {
            return;
        }
        let is_late = streams.is_late_with_frame();
        cx.counters.timeouts.count(if is_late { Timeout::Head } else { Timeout::Idle });
        let Some(streams) = self.conns.carriers.get_mut(index) else { return };
        self.conns.conns.at_mut(index).flags.late |= is_late;
        if !is_late {
            return end_idle_http2(self, index, ClientEnd::IdleTimeout, cx);
        }
        streams.mux.fail(Code::EnhanceYourCalm, "a frame did not come to its end");
        self.end_http2(index, ClientEnd::Http2Failed, cx);
    }
}

/// Closes an idle HTTP/2 client in order.
pub(in crate::client) fn end_idle_http2(
    answers: &mut Answers,
    index: ClientKey,
    why: ClientEnd,
    cx: &mut Context,
) {
    if let Some(streams) = answers.conns.carriers.get_mut(index) {
        streams.mux.fail(Code::NoError, why.word());
        answers.end_http2(index, why, cx);
    }
}

impl Streams {
    /// Writes the head of a final response as HEADERS. Returns the number of bytes.
    pub(in crate::client) fn begin(
        &mut self,
        id: u32,
        head: &AnswerHead<'_>,
        additions: &Additions,
    ) -> usize {
        let length = match head.body {
            ReplyBody::None if head.parts.status == 204 => None,
            ReplyBody::None => head.declared_length,
            ReplyBody::Length(length) => Some(length),
            ReplyBody::Chunked | ReplyBody::UntilClose => None,
        };
        let is_all = matches!(head.body, ReplyBody::None | ReplyBody::Length(0));
        let added = Added { via: additions.via, date: additions.date.as_ref(), length };
        self.mux.reply_head(id, &head.parts, &added, is_all)
    }
}
