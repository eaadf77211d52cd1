//! The parts of a response on its way from its source to the codec of its client: head and
//! trailers, without a wire format.
//!
//! Made from a parsed head, or of fields that the proxy sets; read as fields by name and value, or
//! written by [`encode_reply_head`](crate::encode_reply_head) as lines of HTTP/1. Nothing is copied
//! and nothing allocated on the way; parts that have to outlive their input are kept in two buffers
//! that many heads share ([`ReplyParts::keep`]). RFC 9110 §6, §7.6.1.

use std::borrow::Cow;

use crate::encode::{Run, put_field};
use crate::field::{Field, FieldName, Fields};
use crate::oddity::Oddities;
use crate::reply::ReplyHead;
use crate::request_line::Version;
use crate::span::Span;
use crate::syntax::{Line, Sender, parse_field};

/// Never passed on: hop-by-hop or rewritten by weir.
const REMOVED: u64 = FieldName::HOP_BY_HOP;
/// Passes where the trailers do.
const ANNOUNCED: u64 = FieldName::set(&[FieldName::Trailer]);

/// Status, reason and end-to-end fields of a response. Fields between its server and weir only
/// (framing, connection, hop-by-hop fields) are not among the fields, however they are read.
#[derive(Clone, Copy, Debug)]
pub struct ReplyParts<'a> {
    /// 100 to 999.
    pub status: u16,
    /// Reason phrase, may be empty.
    pub reason: &'a [u8],
    /// Version of the received message; None: it was not received but made here.
    pub version: Option<Version>,
    /// Date is among the fields that were received (RFC 9110 §6.6.1).
    pub has_date: bool,
    /// Additional fields: name and value. The caller that adds them is responsible for their
    /// grammar; none is a field of framing or connection.
    pub added: &'a [(&'a [u8], &'a [u8])],
    /// Names of received fields, and of those kept as lines, that are not among the fields any
    /// more.
    pub removed: &'a [&'a [u8]],
    /// Lines after the received fields: complete lines, each of a field that may be passed on.
    lines: &'a [u8],
    /// Fields that are not passed on.
    hidden: u64,
    /// What the spans of `list` refer to.
    text: &'a [u8],
    list: &'a [Field],
}

/// The same when its bytes and fields are in buffers of others. Spans are counted from where its
/// own bytes begin.
#[derive(Clone, Copy, Debug)]
pub struct KeptReply {
    status: u16,
    version: Option<Version>,
    has_date: bool,
    reason: Span,
}

impl<'a> ReplyParts<'a> {
    /// Makes the parts of a parsed head: `input` and `fields` are those that `head` was parsed
    /// from.
    #[inline]
    pub fn received(input: &'a [u8], head: &ReplyHead, fields: &'a Fields) -> ReplyParts<'a> {
        ReplyParts {
            status: head.status,
            reason: head.reason.of(input),
            version: Some(head.version),
            has_date: fields.find(FieldName::Date).is_some_and(|field| !field.listed),
            added: &[],
            removed: &[],
            lines: &[],
            hidden: REMOVED,
            text: &input[..head.bytes],
            list: fields.as_slice(),
        }
    }

    /// Makes the parts of a response of the proxy itself, with the usual reason and these fields.
    pub fn made(status: u16, fields: &'a [(&'a [u8], &'a [u8])]) -> ReplyParts<'a> {
        ReplyParts {
            status,
            reason: crate::reason(status).as_bytes(),
            version: None,
            has_date: false,
            added: fields,
            removed: &[],
            lines: &[],
            hidden: REMOVED,
            text: &[],
            list: &[],
        }
    }

    /// Makes the parts of a response whose fields were written before, each as `name: value` and a
    /// line end, by a caller that knows that they may be passed on; with the usual reason. They are
    /// written unchanged.
    #[inline]
    pub fn of_lines(status: u16, lines: &'a [u8]) -> ReplyParts<'a> {
        ReplyParts { lines, ..ReplyParts::made(status, &[]) }
    }

    /// Returns the same with these additional fields.
    #[inline]
    pub fn with(self, added: &'a [(&'a [u8], &'a [u8])]) -> ReplyParts<'a> {
        ReplyParts { added, ..self }
    }

    /// Returns the same without received fields of these names.
    pub fn without(self, removed: &'a [&'a [u8]]) -> ReplyParts<'a> {
        ReplyParts { removed, ..self }
    }

    /// Returns the same with the Trailer of its source, for a client that gets the trailers which
    /// that announces (RFC 9110 §6.6.2).
    #[inline]
    pub fn announcing(self) -> ReplyParts<'a> {
        ReplyParts { hidden: REMOVED & !ANNOUNCED, ..self }
    }

    /// Whether a field is for the client.
    #[inline]
    fn passes(&self, field: &Field) -> bool {
        !(field.known.is_in(self.hidden) | field.listed)
            && (self.removed.is_empty() || !self.is_removed(field))
    }

    #[cold]
    fn is_removed(&self, field: &Field) -> bool {
        self.is_removed_name(field.name.of(self.text))
    }

    fn is_removed_name(&self, name: &[u8]) -> bool {
        self.removed.iter().any(|removed| name.eq_ignore_ascii_case(removed))
    }

    /// The fields that are kept as lines.
    fn kept(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let all = *self;
        fields_of_lines(self.lines).filter(move |(name, _)| !all.is_removed_name(name))
    }

    /// Name and value of each field in order. A value is copied only where it came with line folds,
    /// each of which is one space here.
    pub fn fields(&self) -> impl Iterator<Item = (&'a [u8], Cow<'a, [u8]>)> {
        let text = self.text;
        let all = *self;
        let passing = self.list.iter().filter(move |field| all.passes(field));
        let received = passing.map(move |field| (field.name.of(text), unfolded(text, field)));
        let behind = self.kept().chain(self.added.iter().copied());
        received.chain(behind.map(|(name, value)| (name, Cow::Borrowed(value))))
    }

    /// Bytes that the head has as text of HTTP/1, at most, without what its codec adds.
    pub(crate) fn bytes_max(&self) -> usize {
        let added: usize =
            self.added.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        self.reason.len() + self.text.len() + self.lines.len() + added
    }

    /// Appends the received fields, and those after them, as lines of HTTP/1. Adjacent lines that
    /// all pass are copied as one run.
    pub(crate) fn put_received(&self, out: &mut Vec<u8>) {
        let mut run = Run::default();
        for field in self.list {
            let passes = self.passes(field);
            if passes & !field.folded & !field.spaced {
                run.add(field);
                continue;
            }
            run.flush(out, self.text);
            if passes {
                put_field(out, field.name.of(self.text), &unfolded(self.text, field));
            }
        }
        run.flush(out, self.text);
        if self.removed.is_empty() {
            out.extend_from_slice(self.lines);
        } else {
            self.kept().for_each(|(name, value)| put_field(out, name, value));
        }
    }

    /// Appends its bytes to `text` and its fields, without those that pass to no client, to `list`;
    /// [`KeptReply::parts`] restores it from what was appended.
    pub fn keep(&self, text: &mut Vec<u8>, list: &mut Vec<Field>) -> KeptReply {
        // It becomes known later whether its client gets trailers.
        let announcing = self.announcing();
        let start = text.len();
        text.extend_from_slice(self.reason);
        let reason = Span::new(0, text.len() - start);
        let mut run = Run::default();
        for field in self.list.iter().filter(|field| announcing.passes(field)) {
            if field.folded | field.spaced || !run.is_followed_by(field) {
                run.flush(text, self.text);
            }
            if field.folded | field.spaced {
                list.push(put_kept(
                    text,
                    start,
                    field.name.of(self.text),
                    &unfolded(self.text, field),
                    field.known,
                ));
                continue;
            }
            let to = text.len() - start + run.len();
            run.add(field);
            list.push(field.moved(to));
        }
        run.flush(text, self.text);
        let behind = self.kept().chain(self.added.iter().copied());
        list.extend(
            behind.map(|(name, value)| put_kept(text, start, name, value, FieldName::of(name))),
        );
        KeptReply { status: self.status, version: self.version, has_date: self.has_date, reason }
    }
}

impl KeptReply {
    /// The parts again. `text` and `list` are exactly what [`ReplyParts::keep`] has appended.
    ///
    /// # Panics
    /// They are different, and shorter.
    pub fn parts<'a>(&self, text: &'a [u8], list: &'a [Field]) -> ReplyParts<'a> {
        ReplyParts {
            status: self.status,
            reason: self.reason.of(text),
            version: self.version,
            has_date: self.has_date,
            added: &[],
            removed: &[],
            lines: &[],
            hidden: REMOVED,
            text,
            list,
        }
    }
}

/// Name and value of each line, in order. `lines` are complete ones that were written as `name:
/// value` and a line end; others are left out.
pub fn fields_of_lines(lines: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
    let lines = lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines.filter_map(|line| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    })
}

/// Returns a value as it may leave: each fold, with the white space around it, becomes one space.
fn unfolded<'a>(text: &'a [u8], field: &Field) -> Cow<'a, [u8]> {
    let value = field.value.of(text);
    if !field.folded {
        return Cow::Borrowed(value);
    }
    let lines =
        value.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    Cow::Owned(lines.collect::<Vec<_>>().join(&b' '))
}

/// Appends a line to the bytes kept from `start` on; returns its position.
fn put_kept(
    text: &mut Vec<u8>,
    start: usize,
    name: &[u8],
    value: &[u8],
    known: FieldName,
) -> Field {
    let begin = text.len() - start;
    put_field(text, name, value);
    let end = text.len() - start;
    let (name, value) =
        (Span::new(begin, begin + name.len()), Span::new(end - 2 - value.len(), end - 2));
    Field { line: Span::new(begin, end), name, value, known, ..Field::default() }
}

/// Fields after the body of a response, each of which may be passed on (RFC 9110 §6.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trailers<'a> {
    lines: &'a [u8],
}

impl<'a> Trailers<'a> {
    /// From complete lines that were checked:
    /// [`ChunkedDecoder::trailers`](crate::ChunkedDecoder::trailers).
    pub(crate) fn new(lines: &'a [u8]) -> Trailers<'a> {
        Trailers { lines }
    }

    /// Restores the output of [`Trailers::as_bytes`].
    pub fn kept(bytes: &'a [u8]) -> Trailers<'a> {
        Trailers { lines: bytes }
    }

    /// Returns the bytes, to be kept and passed to [`Trailers::kept`] later.
    pub fn as_bytes(self) -> &'a [u8] {
        self.lines
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.lines.is_empty()
    }

    /// Name and value of each in order.
    pub fn fields(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut at = 0;
        std::iter::from_fn(move || {
            match parse_field(self.lines, at, Sender::Client, &mut Oddities::default()) {
                Ok(Line::Field(field)) => {
                    at = field.line.end as usize;
                    Some((field.name.of(self.lines), field.value.of(self.lines)))
                }
                _ => None,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    //! Proves: for any head, the kept and restored parts have the same fields, and the same text of
    //! HTTP/1; hop-by-hop fields are in neither. How: heads with all kinds of lines, in buffers
    //! that hold other things.

    use super::*;
    use crate::{Limits, ReplyContext, encode_reply_head, parse_reply};

    const HEADS: &[&str] = &[
        "HTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 204 \r\nA: 1\r\n\r\n",
        "HTTP/1.0 404 Nope\r\nServer: x\r\nConnection: close, x-hop, Set-Cookie\r\nX-Hop: 1\r\n\
         Content-Length: 3\r\nSet-Cookie: a\r\n\
         Keep-Alive: 1\r\nDate: d\r\nA_b:1 \r\n\r\n",
        "HTTP/1.1 200 OK\r\nA: 1\r\nB: x\r\n \t y \r\n  \r\n\tz\r\nC\t : w\r\nD:\r\n\r\n",
        "HTTP/1.1 200 OK\r\nConnection: date\r\nDate: d\r\nA:\r\n x\r\nKeep-Alive : 1\r\nB: 1\r\n\
            TE: a\r\nC : 1\r\n\r\n",
    ];

    fn text_of(parts: &ReplyParts<'_>) -> String {
        let mut out = Vec::new();
        encode_reply_head(&mut out, parts, None, None);
        String::from_utf8(out).unwrap()
    }

    fn fields_of(parts: &ReplyParts<'_>) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        parts.fields().map(|(name, value)| (text(name), text(&value))).collect()
    }

    #[test]
    fn what_is_kept_is_what_came() {
        let added: &[(&[u8], &[u8])] = &[(b"Set-Cookie", b"s=1"), (b"Empty", b"")];
        for (head, added) in HEADS.iter().flat_map(|head| [(head, &[][..]), (head, added)]) {
            let input = format!("{head}a body: x\r\n");
            let mut fields = Fields::default();
            let parsed = parse_reply(
                input.as_bytes(),
                &Limits::default(),
                ReplyContext::default(),
                &mut fields,
            );
            let parsed = parsed.unwrap().unwrap();
            let parts = ReplyParts::received(input.as_bytes(), &parsed, &fields).with(added);
            let (mut text, mut list) = (b"before".to_vec(), vec![Field::default()]);
            let kept = parts.keep(&mut text, &mut list);
            let again = kept.parts(&text[6..], &list[1..]);
            assert_eq!(text_of(&again), text_of(&parts), "{head}");
            assert_eq!(fields_of(&again), fields_of(&parts), "{head}");
            assert_eq!(
                (again.status, again.version, again.has_date),
                (parts.status, parts.version, parts.has_date)
            );
            assert!(
                parts.bytes_max() + "HTTP/1.1 200 \r\n".len() >= text_of(&parts).len(),
                "{head}"
            );
            // Kept parts may be kept again.
            let (mut text, mut list) = (Vec::new(), Vec::new());
            let kept = again.keep(&mut text, &mut list);
            assert_eq!(fields_of(&kept.parts(&text, &list)), fields_of(&parts), "{head}");
        }
    }

    #[test]
    fn fields_are_end_to_end_and_repaired() {
        let fields = |at: usize| {
            let input = HEADS[at].as_bytes();
            let mut fields = Fields::default();
            let head = parse_reply(input, &Limits::default(), ReplyContext::default(), &mut fields)
                .unwrap()
                .unwrap();
            let parts = ReplyParts::received(input, &head, &fields);
            (
                parts.has_date,
                fields_of(&parts)
                    .into_iter()
                    .map(|(name, value)| name + "=" + &value)
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(
            fields(2),
            (true, ["Server=x", "Set-Cookie=a", "Date=d", "A_b=1"].map(str::to_owned).to_vec())
        );
        assert_eq!(fields(3), (false, ["A=1", "B=x y z", "C=w", "D="].map(str::to_owned).to_vec()));
        assert_eq!(fields(4), (false, ["A=x", "B=1", "C=1"].map(str::to_owned).to_vec()));
    }

    /// Only received fields are removed: as fields, as text and when they are kept.
    #[test]
    fn fields_that_are_removed() {
        let input = HEADS[4].as_bytes();
        let mut fields = Fields::default();
        let head = parse_reply(input, &Limits::default(), ReplyContext::default(), &mut fields)
            .unwrap()
            .unwrap();
        let removed: [&[u8]; 2] = [b"a", b"C"];
        let parts =
            ReplyParts::received(input, &head, &fields).without(&removed).with(&[(b"A", b"y")]);
        let expected = [("B".to_owned(), "1".to_owned()), ("A".to_owned(), "y".to_owned())];
        assert_eq!(fields_of(&parts), expected);
        assert_eq!(text_of(&parts), "HTTP/1.1 200 OK\r\nB: 1\r\nA: y\r\n");
        let (mut text, mut list) = (Vec::new(), Vec::new());
        let kept = parts.keep(&mut text, &mut list);
        assert_eq!(fields_of(&kept.parts(&text, &list)), expected);
    }

    #[test]
    fn made_here() {
        let parts = ReplyParts::made(503, &[(b"Server", b"weir"), (b"Retry-After", b"1")]);
        assert_eq!(
            text_of(&parts),
            "HTTP/1.1 503 Service Unavailable\r\nServer: weir\r\nRetry-After: 1\r\n"
        );
        assert_eq!((parts.version, parts.fields().count()), (None, 2));
    }

    /// Lines that were written before are fields, text and kept like others, and can be removed
    /// like received ones.
    #[test]
    fn of_lines_that_were_written() {
        let added: [(&[u8], &[u8]); 1] = [(b"Age", b"3")];
        let parts = ReplyParts::of_lines(200, b"Date: d\r\nA: x: y\r\nEmpty: \r\n").with(&added);
        assert_eq!(
            text_of(&parts),
            "HTTP/1.1 200 OK\r\nDate: d\r\nA: x: y\r\nEmpty: \r\nAge: 3\r\n"
        );
        let names = |parts: &ReplyParts<'_>| {
            fields_of(parts).into_iter().map(|(n, v)| n + "=" + &v).collect::<Vec<_>>()
        };
        assert_eq!(names(&parts), ["Date=d", "A=x: y", "Empty=", "Age=3"]);
        let fewer = parts.without(&[b"a", b"age"]);
        assert_eq!(text_of(&fewer), "HTTP/1.1 200 OK\r\nDate: d\r\nEmpty: \r\nAge: 3\r\n");
        for parts in [parts, fewer] {
            let (mut text, mut list) = (Vec::new(), Vec::new());
            let kept = parts.keep(&mut text, &mut list);
            assert_eq!(fields_of(&kept.parts(&text, &list)), fields_of(&parts));
            assert_eq!(text_of(&kept.parts(&text, &list)), text_of(&parts));
            assert!(parts.bytes_max() + "HTTP/1.1 200 \r\n".len() >= text_of(&parts).len());
        }
    }

    #[test]
    fn trailers_are_announced_to_who_gets_them() {
        let text =
            b"HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n";
        let mut fields = Fields::default();
        let context = crate::ReplyContext::default();
        let head = crate::parse_reply(text, &crate::Limits::default(), context, &mut fields)
            .unwrap()
            .unwrap();
        let parts = ReplyParts::received(text, &head, &fields);
        let (mut kept_text, mut kept_list) = (Vec::new(), Vec::new());
        let kept = parts.keep(&mut kept_text, &mut kept_list);
        for parts in [parts, kept.parts(&kept_text, &kept_list)] {
            let names = |parts: ReplyParts<'_>| {
                parts.fields().map(|(name, _)| name.to_vec()).collect::<Vec<_>>()
            };
            assert_eq!(names(parts), [b"A"]);
            assert_eq!(names(parts.announcing()), [b"Trailer".to_vec(), b"A".to_vec()]);
        }
    }

    #[test]
    fn trailers_by_name_and_value() {
        let trailers = Trailers::new(b"A: 1\r\nb:\t2 \r\nC:\r\n");
        let found: Vec<_> = trailers.fields().collect();
        assert_eq!(found, [(&b"A"[..], &b"1"[..]), (&b"b"[..], &b"2"[..]), (&b"C"[..], &b""[..])]);
        assert_eq!(Trailers::kept(trailers.as_bytes()), trailers);
        assert!(Trailers::default().is_empty() && Trailers::default().fields().next().is_none());
    }
}
