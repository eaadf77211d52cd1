//! Streams of responses: a reader's results are the same however they are cut.

use super::cuts;
use crate::{Fields, Limits, ReplyBody, ReplyContext, ReplyPart, ReplyReader};

/// What a reader found in a stream, with pieces of one body put together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// A head: its status, what follows it, how many field lines it has.
    Head(u16, ReplyBody, usize),
    /// Bytes of a body, or after a change of protocol.
    Data(Vec<u8>),
    /// The end of a reply, with its trailers.
    End(Vec<u8>),
    /// The stream can't be read further.
    Fault(String),
}

/// What a reader found, and its state.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Heard {
    /// In order.
    pub found: Vec<Found>,
    /// Bytes consumed.
    pub consumed: usize,
    /// The end of the connection would be that of the response.
    pub ends_by_close: bool,
    /// Bytes of body still to come.
    pub body_left: Option<u64>,
}

impl Heard {
    fn data(&mut self, bytes: &[u8]) {
        match self.found.last_mut() {
            Some(Found::Data(before)) => before.extend_from_slice(bytes),
            _ => self.found.push(Found::Data(bytes.to_vec())),
        }
    }

    /// Reads on until `end`. False: the stream can't be read further.
    fn read(
        &mut self,
        reader: &mut ReplyReader,
        data: &[u8],
        context: ReplyContext,
        fields: &mut Fields,
    ) -> bool {
        let limits = Limits::default();
        let mut at = 0;
        loop {
            let before = at;
            let part = match reader.read(data, &mut at, context, &limits, fields) {
                Ok(part) => part,
                Err(fault) => {
                    self.found.push(Found::Fault(fault.to_string()));
                    return false;
                }
            };
            self.consumed += at - before;
            match part {
                ReplyPart::More => break,
                ReplyPart::Head(head) => {
                    assert_eq!(at - before, head.bytes);
                    self.found.push(Found::Head(head.status, head.body, fields.len()));
                }
                ReplyPart::Data { start, end } => {
                    assert!(before <= start && start < end && end == at);
                    self.data(&data[start..end]);
                }
                ReplyPart::End => {
                    assert!(reader.is_complete() && !reader.ends_by_close());
                    self.found.push(Found::End(reader.trailers().as_bytes().to_vec()));
                    reader.begin_reply();
                    assert!(reader.awaits_head() && !reader.is_complete());
                }
            }
        }
        assert!(at == data.len() || reader.awaits_head(), "only heads are not consumed");
        reader.hold(&data[at..]);
        true
    }
}

/// Reads `data` in pieces that end at `ends` (ascending, the last one is the length); every
/// response belongs to `context`.
pub fn read_replies(
    data: &[u8],
    mut reader: ReplyReader,
    context: ReplyContext,
    ends: impl Iterator<Item = usize>,
) -> Heard {
    let (mut heard, mut fields, mut from) = (Heard::default(), Fields::default(), 0);
    for end in ends {
        if let Some(input) = reader.join(&data[from..end], &Limits::default()) {
            assert!(!reader.has_held());
            if !heard.read(&mut reader, &input, context, &mut fields) {
                return heard;
            }
        }
        from = end;
        assert_eq!(reader.has_held(), heard.consumed < from, "what is not consumed is held");
    }
    (heard.ends_by_close, heard.body_left) = (reader.ends_by_close(), reader.body_left());
    heard
}

/// A stream of replies: whole, byte by byte and in two pieces alike.
pub fn replies(data: &[u8]) {
    for context in [ReplyContext { head: false }, ReplyContext { head: true }] {
        for (reader, judges) in [(ReplyReader::default(), false), (ReplyReader::judging(), true)] {
            let read = |ends: &mut dyn Iterator<Item = usize>| {
                read_replies(data, reader.clone(), context, ends)
            };
            let whole = read(&mut [data.len()].into_iter());
            check_same(&read(&mut (1..=data.len())), &whole, judges, data);
            for cut in cuts(data.len()).step_by(4) {
                check_same(&read(&mut [cut, data.len()].into_iter()), &whole, judges, data);
            }
        }
    }
}

/// A judging reader finds a fault as soon as its byte is there. A reader that passes responses on
/// may miss it until the head is complete.
fn check_same(pieces: &Heard, whole: &Heard, judges: bool, data: &[u8]) {
    match whole.found.split_last() {
        Some((Found::Fault(_), before)) if !judges && pieces.found == before => {}
        // The number of bytes consumed before a fault in the middle of a chunk's head is
        // irrelevant.
        Some((Found::Fault(_), _)) => {
            assert_eq!(pieces.found, whole.found, "{}", data.escape_ascii())
        }
        _ => assert_eq!(pieces, whole, "{}", data.escape_ascii()),
    }
}
