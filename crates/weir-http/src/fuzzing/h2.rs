//! Connections of HTTP/2 and header blocks: the bytes of a client, or of a server, have the same
//! result however they are cut, and the output is frames within windows.

use std::sync::Arc;

use super::cuts;
use crate::h2::client::{self, Client, Windows};
use crate::h2::frame::{self, FRAME_BYTES_MAX, FrameHead, HEAD_BYTES, Kind};
use crate::h2::hpack::{Decoder, encode};
use crate::h2::{Additions, Blocked, Event, Heads, Limits, Mux, Outgoing, PREFACE, Turn};
use crate::{
    Fields, Framing, ReplyParts, RequestBody, RequestEdits, Trailers, encode_request, parse_request,
};

/// Body of each response in bytes: more than a frame, less than a window.
const ANSWER_BYTES: usize = 20_000;

/// What a connection reported, with pieces of a body put together.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Told {
    /// Stream, head as text, whether no body follows.
    Request(u32, String, bool),
    Refused(u32, &'static str),
    Broken(u32, &'static str),
    Data(u32, Vec<u8>, bool),
    /// Stream, code, by the client.
    Reset(u32, u32, bool),
    Leaving(u32),
    Failed(u32, &'static str),
}

/// A connection whose responses come when the client has sent everything.
struct Listener {
    mux: Mux,
    heads: Heads,
    limits: Limits,
    now_us: u64,
    told: Vec<Told>,
    out: Wire,
}

/// Written frames, and the events of their streams.
#[derive(Default)]
struct Wire {
    bytes: Vec<u8>,
    ended: usize,
}

impl Outgoing for Wire {
    fn frames(&mut self, bytes: &[u8]) {
        assert!(!bytes.is_empty());
        self.bytes.extend_from_slice(bytes);
    }

    fn body(&mut self, _stream: u32, _tag: u64, bytes: usize) {
        self.bytes.resize(self.bytes.len() + bytes, b'.');
    }

    fn ended(&mut self, _stream: u32, _tag: u64) {
        self.ended += 1;
    }
}

impl Listener {
    fn new(limits: Limits) -> Listener {
        let (mux, heads) = (Mux::new(&limits), Heads::default());
        Listener { mux, heads, limits, now_us: 1, told: Vec::new(), out: Wire::default() }
    }

    /// Feeds one piece completely. False: the connection has failed.
    fn feed(&mut self, piece: &[u8]) -> bool {
        let mut at = 0;
        loop {
            let (limits, mut heads) = (self.limits.clone(), std::mem::take(&mut self.heads));
            let mut turn = Turn::new(&piece[at..], self.now_us, &limits);
            loop {
                match self.mux.read(&mut turn, &mut heads) {
                    Ok(Some(event)) => self.tell(&event),
                    Ok(None) => break,
                    Err(failure) => {
                        self.told.push(Told::Failed(failure.code.number(), failure.why));
                        return false;
                    }
                }
            }
            at += turn.consumed();
            self.heads = heads;
            assert!(self.mux.memory() < 400_000, "{}", self.mux.memory());
            match self.mux.blocked() {
                None => assert_eq!(at, piece.len()),
                Some(Blocked::Output) => self.write(usize::MAX),
                Some(Blocked::Until(until_us)) => self.now_us = until_us,
                Some(Blocked::InFlight) => panic!("nothing lingers"),
            }
            self.mux.expire(self.now_us);
            if at == piece.len() && self.mux.blocked().is_none() {
                return true;
            }
        }
    }

    fn tell(&mut self, event: &Event<'_>) {
        let told = match *event {
            Event::Request { stream, request, end } => {
                check_head(request.text, &self.limits);
                Told::Request(stream, String::from_utf8_lossy(request.text).into_owned(), end)
            }
            Event::Refused { stream, error, .. } => Told::Refused(stream, error.word()),
            Event::Broken { stream, error, .. } => Told::Broken(stream, error.word()),
            Event::Data { stream, bytes, end, .. } => match self.told.last_mut() {
                Some(Told::Data(of, before, ended @ false)) if *of == stream => {
                    before.extend_from_slice(bytes);
                    *ended = end;
                    return;
                }
                _ => Told::Data(stream, bytes.to_vec(), end),
            },
            Event::Reset { stream, code, by_client, .. } => {
                Told::Reset(stream, code.number(), by_client)
            }
            Event::Leaving { code } => Told::Leaving(code.number()),
        };
        self.told.push(told);
    }

    fn write(&mut self, bytes_max: usize) {
        while self.mux.write_out(bytes_max, &mut self.out) > 0 {}
    }

    /// Answers open streams, consumes kept bytes, and writes everything that may leave.
    fn finish(&mut self) {
        let open: Vec<u32> = self.mux.streams().map(|(stream, _)| stream).collect();
        for stream in open {
            self.mux.consumed(stream, usize::MAX);
            self.mux.reply_head(stream, &ReplyParts::made(200, &[]), &Additions::default(), false);
            self.mux.reply_data(stream, ANSWER_BYTES);
            self.mux.end(stream, Trailers::kept(if stream % 4 == 1 { b"" } else { b"A: b\r\n" }));
        }
        self.write(5_000);
        assert!(!self.mux.wants_write());
    }
}

/// Checks that the text of a request is accepted by the parser of HTTP/1, with nothing behind it.
fn check_head(text: &[u8], limits: &Limits) {
    let line_end = text.windows(11).position(|part| part == b" HTTP/2.0\r\n").expect("a line");
    let old = [&text[..line_end], b" HTTP/1.1\r\n", &text[line_end + 11..]].concat();
    // The list is measured differently from text.
    let head = crate::Limits { head_bytes_max: 1 << 20, ..limits.head.clone() };
    match parse_request(&old, &head, &mut Fields::default()) {
        Ok(Some(head)) => assert_eq!(head.bytes, old.len(), "{}", old.escape_ascii()),
        other => panic!("{other:?}: {}", old.escape_ascii()),
    }
}

/// Checks that frames may be sent: whole, on streams that the client has opened, with readable
/// blocks, bodies within the first windows.
fn check_frames(mut bytes: &[u8]) {
    let mut decoder = Decoder::default();
    let (mut block, mut body) = (Vec::new(), 0);
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() {
        let head = FrameHead::parse(head);
        head.check().unwrap_or_else(|failure| panic!("{head:?}: {failure}"));
        assert!(head.length <= FRAME_BYTES_MAX && (head.stream == 0 || head.stream % 2 == 1));
        let (payload, behind) = rest.split_at(head.length as usize);
        bytes = behind;
        match head.kind {
            Kind::Headers | Kind::Continuation => {
                block.extend_from_slice(payload);
                if head.has(frame::END_HEADERS) {
                    decoder
                        .decode(&block, &mut Vec::new(), |_, _| true)
                        .expect("a block that can be read");
                    block.clear();
                }
            }
            Kind::Data => body += payload.len(),
            _ => assert!(block.is_empty()),
        }
    }
    assert!(bytes.is_empty() && block.is_empty() && body <= 0x7fff_ffff);
}

/// Checks a client's side of a connection after its preface: whole, byte by byte and in two pieces
/// it has the same result, in events and in frames.
pub fn connection(data: &[u8]) {
    let tight = Limits {
        head: crate::Limits {
            line_bytes_max: 60,
            head_bytes_max: 400,
            fields_max: 5,
            ..crate::Limits::default()
        },
        streams_max: 3,
        window_bytes: 16_384,
        connection_window_bytes: 65_536,
        requests_max: 5,
        growth: Arc::default(),
    };
    let input = [&PREFACE[..], data].concat();
    for limits in [Limits::default(), tight] {
        let run = |pieces: &[&[u8]]| {
            let mut listener = Listener::new(limits.clone());
            let goes_on = pieces.iter().all(|piece| listener.feed(piece));
            listener.finish();
            assert!(goes_on || listener.mux.is_finished());
            (listener.told, listener.out.bytes)
        };
        let whole = run(&[&input]);
        check_frames(&whole.1);
        let single = run(&input.chunks(1).collect::<Vec<_>>());
        if has_reset(data) {
            // A stream that is reset in the same piece is not reported: pieces without the whole
            // head of a frame cannot contain a reset.
            assert_eq!(
                run(&input.chunks(HEAD_BYTES - 1).collect::<Vec<_>>()),
                single,
                "in small pieces"
            );
            continue;
        }
        assert_eq!(single, whole, "byte by byte");
        for cut in cuts(input.len()).step_by(16) {
            assert_eq!(run(&[&input[..cut], &input[cut..]]), whole, "cut at {cut}");
        }
    }
}

/// Whether a frame of the input is RST_STREAM.
fn has_reset(mut data: &[u8]) -> bool {
    while let Some((head, rest)) = data.split_first_chunk::<HEAD_BYTES>() {
        let head = FrameHead::parse(head);
        if head.kind == Kind::RstStream {
            return true;
        }
        data = rest.get(head.length as usize..).unwrap_or_default();
    }
    false
}

/// Names and values.
pub type List = Vec<(Vec<u8>, Vec<u8>)>;

/// Splits header blocks, each preceded by a byte with its length.
fn split_blocks(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = data;
    std::iter::from_fn(move || {
        let (&length, behind) = rest.split_first()?;
        let (block, behind) = behind.split_at(behind.len().min(usize::from(length)));
        rest = behind;
        Some(block)
    })
}

/// Reads header blocks of one connection with our decoder and with `theirs`, an independent one:
/// blocks that ours reads give the same there. Ours rejects more, never less.
pub fn blocks_beside(data: &[u8], mut theirs: impl FnMut(&[u8]) -> Option<List>) {
    let mut ours = Decoder::default();
    for block in split_blocks(data) {
        let mut list = List::new();
        let take = |name: &[u8], value: &[u8]| {
            list.push((name.to_vec(), value.to_vec()));
            list.len() < 1_000
        };
        // After a fault the tables may differ, and reading stops. Other decoders don't accept a
        // block without fields.
        if ours.decode(block, &mut Vec::new(), take).is_err() || list.is_empty() {
            return;
        }
        assert_eq!(theirs(block), Some(list), "{}", block.escape_ascii());
    }
}

/// Checks header blocks: decoded fields read the same when encoded again.
pub fn blocks(data: &[u8]) {
    let (mut decoder, mut again) = (Decoder::default(), Decoder::default());
    for block in split_blocks(data) {
        let (mut list, mut bytes) = (Vec::new(), 0);
        let take = |name: &[u8], value: &[u8]| {
            bytes += name.len() + value.len() + 32;
            list.push((name.to_ascii_lowercase(), value.to_vec()));
            bytes < 65_536
        };
        let read = decoder.decode(block, &mut Vec::new(), take);
        assert!(decoder.memory() <= 4096 + 1024);
        if read.is_err() {
            return;
        }
        let mut written = Vec::new();
        list.iter().for_each(|(name, value)| encode::put_field(&mut written, name, value));
        let mut found = Vec::new();
        let take = |name: &[u8], value: &[u8]| {
            found.push((name.to_vec(), value.to_vec()));
            true
        };
        again.decode(&written, &mut Vec::new(), take).expect("our own block");
        assert_eq!(found, list);
        assert_eq!(again.memory(), 0);
    }
}

/// Appends a field unchanged, without Huffman code and in its case (RFC 7541 §6.2.2).
pub fn literal(block: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    block.push(0);
    for text in [name, value] {
        let mut rest = text.len();
        if rest < 127 {
            block.push(rest as u8);
        } else {
            block.push(127);
            rest -= 127;
            while rest > 127 {
                block.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            block.push(rest as u8);
        }
        block.extend_from_slice(text);
    }
}

/// Makes a header list out of bytes: fields end with 0xff, their names with 0xfe.
pub fn list(data: &[u8]) -> List {
    let fields = data.split(|byte| *byte == 0xff);
    let parts = fields.map(|field| {
        let end = field.iter().position(|byte| *byte == 0xfe).unwrap_or(field.len());
        (field[..end].to_vec(), field.get(end + 1..).unwrap_or_default().to_vec())
    });
    parts.collect()
}

/// Returns a request with this header list as it leaves for a server, with a body as long as
/// declared; None: it is not forwarded, or not in this form.
pub fn forwarded(list: &[(Vec<u8>, Vec<u8>)]) -> Option<Vec<u8>> {
    let mut block = Vec::new();
    list.iter().for_each(|(name, value)| literal(&mut block, name, value));
    if block.len() > FRAME_BYTES_MAX as usize {
        return None;
    }
    let mut input = PREFACE.to_vec();
    frame::put_settings(&mut input, &[]);
    frame::put_head(&mut input, Kind::Headers, frame::END_HEADERS, 1, block.len());
    input.extend(block);
    let (limits, mut heads) = (Limits::default(), Heads::default());
    let (mut mux, mut turn) = (Mux::new(&limits), Turn::new(&input, 0, &limits));
    let Ok(Some(Event::Request { request, .. })) = mux.read(&mut turn, &mut heads) else {
        return None;
    };
    let (head, text) = (request.head, request.text);
    let (framing, bytes) = match head.body {
        RequestBody::Open => (Framing::None, 0),
        RequestBody::Length(length) if length < 1_000 => (Framing::Length(length), length as usize),
        _ => return None,
    };
    let edits = RequestEdits {
        judges_clients: false,
        path: head.path.of(text),
        host: head.authority.of(text),
        framing,
        close: false,
        expect: head.expect_continue && framing != Framing::None,
        upgrade: None,
        te_trailers: head.te_trailers,
        via: None,
        cdn_loop: None,
        underscores: false,
        forwarded: None,
        keeps_forwarding: false,
        extra: &[],
        removed: &[],
        added: &[],
    };
    let mut out = Vec::new();
    encode_request(&mut out, text, &head, request.fields, &edits);
    out.resize(out.len() + bytes, b'x');
    Some(out)
}

/// Returns seeds of [`list`]: valid and invalid heads.
pub fn list_seeds() -> Vec<Vec<u8>> {
    let start = ":method GET|:scheme http|:path /a?b=c|:authority a.test";
    let more = [
        "",
        "|cookie a=1|cookie b=2|te trailers|accept */*",
        "|host a.test|content-length 3|x-a b",
        "|host b.test",
        "|transfer-encoding chunked",
        "|connection x|x y",
        "|Upper x",
        "|x-a b\r\nx-b: c",
        "|x-a:b c",
        "|content-length 3|content-length 4",
        "|:path /b",
        "|via 1.1 a|expect 100-continue|max-forwards 1",
    ];
    let bytes = |text: String| {
        let fields = text.split('|').map(|field| field.replacen(' ', "\u{1}", 1).into_bytes());
        let fields: Vec<Vec<u8>> = fields.collect();
        let list = fields.join(&0xff);
        list.into_iter().map(|byte| if byte == 1 { 0xfe } else { byte }).collect()
    };
    more.into_iter().map(|more| bytes(format!("{start}{more}"))).collect()
}

/// What a client reported, with pieces of a body put together.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Heard {
    /// Stream, status, whether no body follows.
    Head(u32, u16, bool),
    Data(u32, Vec<u8>, bool),
    /// Stream, code, by the server.
    Reset(u32, u32, bool),
    Leaving(u32, u32),
    Failed(u32, &'static str),
}

/// Checks a server's side of a connection: whole, byte by byte and in two pieces it has the same
/// result for a client with three requests under way, in events and in frames.
pub fn answers(data: &[u8]) {
    for windows in
        [Windows::OPEN, Windows { stream: 50, connection: 65_535, gives_back: true }, Windows::SHUT]
    {
        let run = |pieces: &[&[u8]]| {
            let mut client = Client::new(windows);
            let (none, content): (Arc<[u8]>, Arc<[u8]>) = ([].into(), [b'x'; 70_000].into());
            for (content, is_head) in [(&none, false), (&none, true), (&content, false)] {
                client.open(&client::Request { block: b"\x82\x86\x84\x41\x01a", content, is_head });
            }
            let mut heard = Vec::new();
            pieces.iter().all(|piece| hear(&mut client, piece, &mut heard));
            let mut out = Vec::new();
            while client.wants_write() {
                out.extend(client.take_out());
            }
            (heard, out)
        };
        let whole = run(&[data]);
        check_frames(&whole.1[PREFACE.len()..]);
        assert_eq!(run(&data.chunks(1).collect::<Vec<_>>()), whole, "byte by byte");
        for cut in cuts(data.len()).step_by(16) {
            assert_eq!(run(&[&data[..cut], &data[cut..]]), whole, "cut at {cut}");
        }
    }
}

/// Feeds one piece completely. False: the connection has failed.
fn hear(client: &mut Client, piece: &[u8], heard: &mut Vec<Heard>) -> bool {
    let mut at = 0;
    loop {
        let told = match client.read(piece, &mut at) {
            Ok(None) => {
                assert_eq!(at, piece.len());
                return true;
            }
            Ok(Some(client::Event::Head { stream, status, end })) => {
                Heard::Head(stream, status, end)
            }
            Ok(Some(client::Event::Data { stream, bytes, end })) => match heard.last_mut() {
                Some(Heard::Data(of, before, ended @ false)) if *of == stream => {
                    before.extend_from_slice(bytes);
                    *ended = end;
                    continue;
                }
                _ => Heard::Data(stream, bytes.to_vec(), end),
            },
            Ok(Some(client::Event::Reset { stream, code, by_server })) => {
                Heard::Reset(stream, code.number(), by_server)
            }
            Ok(Some(client::Event::Leaving { last, code })) => Heard::Leaving(last, code.number()),
            Err(failure) => {
                assert_eq!(client.room(), 0);
                heard.push(Heard::Failed(failure.code.number(), failure.why));
                return false;
            }
        };
        heard.push(told);
    }
}

/// Seeds of [`answers`]: ordinary ones, and odd ones.
pub fn answer_seeds() -> Vec<Vec<u8>> {
    let put = |kind, flags, stream, payload: &[u8]| {
        let head = FrameHead { length: payload.len() as u32, kind, flags, stream };
        [&head.bytes(), payload].concat()
    };
    let settings = put(Kind::Settings, 0, 0, &[]);
    let large = put(Kind::Settings, 0, 0, &[0, 4, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2]);
    let ok =
        |stream, flags, more: &[u8]| put(Kind::Headers, flags, stream, &[b"\x88", more].concat());
    let frames: Vec<Vec<Vec<u8>>> = vec![
        vec![
            settings.clone(),
            ok(1, 4, b""),
            put(Kind::Data, 0, 1, b"abc"),
            put(Kind::Data, 9, 1, b"\x01de\0"),
            ok(3, 5, b"\x0f\x0d\x015"),
        ],
        vec![
            large,
            put(Kind::WindowUpdate, 0, 0, &[0, 1, 0, 0]),
            put(Kind::Ping, 0, 0, b"12345678"),
            ok(5, 5, b""),
        ],
        vec![
            settings.clone(),
            put(Kind::Headers, 4, 1, b"\x08\x03103"),
            ok(1, 4, b"\x0f\x0d\x013"),
            put(Kind::Data, 0, 1, b"abc"),
            put(Kind::Headers, 5, 1, b"\x40\x01x\x01y"),
        ],
        vec![
            settings.clone(),
            put(Kind::Headers, 0, 1, b"\x88"),
            put(Kind::Continuation, 4, 1, b"\x40\x01n\x01v"),
            put(Kind::Data, 1, 1, &[b'a'; 49]),
        ],
        vec![
            settings.clone(),
            ok(1, 4, b""),
            put(Kind::RstStream, 0, 1, &[0, 0, 0, 7]),
            put(Kind::Goaway, 0, 0, &[0, 0, 0, 3, 0, 0, 0, 0]),
            ok(3, 0x2d, b""),
        ],
        vec![
            settings,
            ok(1, 4, b""),
            put(Kind::Data, 0, 1, &[b'a'; 40]),
            put(Kind::Data, 0, 1, &[b'a'; 40]),
            put(Kind::PushPromise, 4, 1, &[0, 0, 0, 2]),
        ],
    ];
    frames.into_iter().map(|frames| frames.concat()).collect()
}

/// Seeds of [`blocks`]: literals that are kept and not, coded and not, references, size updates.
pub fn block_seeds() -> Vec<Vec<u8>> {
    let block = |block: &[u8]| [&[block.len() as u8], block].concat();
    let first = block(b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff");
    let second = block(b"\x82\x86\x84\xbe\x58\x86\xa8\xeb\x10\x64\x9c\xbf\x40\x01n\x01v");
    let third = block(b"\x20\x3f\xe1\x1f\x10\x01n\x01v\x0f\x0d\x015\x40\x03abc\x00");
    vec![[first, second.clone(), block(&[0xbe; 30])].concat(), [second, third].concat()]
}

/// Seeds of [`connection`]: ordinary ones, and odd ones.
pub fn seeds() -> Vec<Vec<u8>> {
    let put = |kind, flags, stream, payload: &[u8]| {
        let head = FrameHead { length: payload.len() as u32, kind, flags, stream };
        [&head.bytes(), payload].concat()
    };
    let settings = put(Kind::Settings, 0, 0, &[]);
    let get = |more: &[u8]| [b"\x82\x86\x84\x41\x01a", more].concat();
    let request = |stream, flags, more: &[u8]| put(Kind::Headers, flags, stream, &get(more));
    let field = b"\x40\x03x-a\x05value\x40\x06cookie\x03a=1\x40\x06cookie\x03b=2";
    let frames: Vec<Vec<Vec<u8>>> = vec![
        vec![request(1, 5, b""), request(3, 5, field), request(5, 5, &[0xbe, 0xbf, 0xc0])],
        vec![
            request(1, 4, b"\x0f\x0d\x015"),
            put(Kind::Data, 0, 1, b"abc"),
            put(Kind::Data, 9, 1, b"\x01de\0"),
        ],
        vec![
            put(Kind::Headers, 1, 1, b"\x82\x86"),
            put(Kind::Continuation, 0, 1, b"\x84"),
            put(Kind::Continuation, 4, 1, b"\x41\x01a"),
        ],
        vec![
            request(1, 4, b""),
            put(Kind::Data, 0, 1, b"abc"),
            put(Kind::Headers, 5, 1, b"\x00\x01x\x01y"),
            put(Kind::Ping, 0, 0, b"12345678"),
        ],
        vec![
            request(1, 5, b""),
            put(Kind::RstStream, 0, 1, &[0, 0, 0, 8]),
            request(3, 5, b""),
            put(Kind::Goaway, 0, 0, &[0; 8]),
        ],
        vec![
            request(1, 4, b""),
            request(3, 4, b""),
            request(5, 4, b""),
            request(7, 4, b""),
            put(Kind::Data, 1, 5, &[0; 300]),
        ],
        vec![
            put(Kind::Settings, 1, 0, &[]),
            put(Kind::Settings, 0, 0, &[0, 4, 0, 0, 0, 9, 0, 1, 0, 0, 0, 0]),
            request(1, 0x2d, b""),
        ],
        vec![
            request(1, 5, b"\x00\x08priority\x06u=1, i"),
            put(Kind::PriorityUpdate, 0, 0, b"\0\0\0\x01u=6"),
            put(Kind::WindowUpdate, 0, 1, &[0, 0, 1, 0]),
        ],
        vec![
            request(1, 5, b"\x00\x01A\x01b"),
            request(3, 5, b"\x00\x04host\x01b"),
            request(5, 5, b"\x00\x06expect\x01x"),
            put(Kind::Unknown(80), 0, 0, b"x"),
        ],
        vec![put(
            Kind::Headers,
            5,
            1,
            &[&get(b"")[..], &[0x40, 1, b'n', 90], &[b'v'; 90], &[0xbe; 20]].concat(),
        )],
    ];
    frames.into_iter().map(|frames| [settings.clone(), frames.concat()].concat()).collect()
}
