//! Renders a record as a line. One record is one line, whatever bytes a client sent: see
//! [`Escape`].
//!
//! Called once an exchange, when a log is configured; writes into the buffer of the turn and
//! allocates nothing.

use super::name::Name;
use super::record::{Compressed, Record};
use super::template::{Escape, Item, Template};
use super::{Client, Surroundings};
use crate::base::keys::Key;
use weir_http::Version;

/// The last ASCII character, a control character.
const DELETE: u8 = 0x7f;

/// Whether a byte is a quote, a backslash, a control character, or not ASCII.
#[inline(always)]
fn is_unsafe(byte: u8) -> bool {
    !(0x20..DELETE).contains(&byte) | (byte == b'"') | (byte == b'\\')
}

/// Writes values with one escape.
pub(super) struct Pen<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) escape: Escape,
}

impl Pen<'_> {
    fn quote(&mut self) {
        if self.escape == Escape::JsonValue {
            self.out.push(b'"');
        }
    }

    /// Writes bytes of any origin; empty is absent.
    pub(super) fn text(&mut self, bytes: &[u8]) {
        self.texts(&[bytes]);
    }

    /// Writes bytes in several parts.
    fn texts(&mut self, parts: &[&[u8]]) {
        if parts.iter().all(|part| part.is_empty()) {
            return self.absent();
        }
        self.quote();
        for part in parts {
            self.escaped(part);
        }
        self.quote();
    }

    fn escaped(&mut self, bytes: &[u8]) {
        // All bytes without an early exit: so it is done sixteen at a time.
        if !bytes.iter().fold(false, |found, byte| found | is_unsafe(*byte)) {
            self.out.extend_from_slice(bytes);
        } else if self.escape == Escape::Default {
            bytes.iter().for_each(|byte| self.hex_or(*byte));
        } else {
            self.json(bytes);
        }
    }

    #[cold]
    fn hex_or(&mut self, byte: u8) {
        if is_unsafe(byte) {
            self.out.extend_from_slice(&[b'\\', b'x', hex(byte >> 4), hex(byte & 15)]);
        } else {
            self.out.push(byte);
        }
    }

    /// A byte that is not part of valid UTF-8, or of a control character (some terminals also obey
    /// those above ASCII), becomes the character of its number, so that none is lost.
    #[cold]
    fn json(&mut self, bytes: &[u8]) {
        for chunk in bytes.utf8_chunks() {
            for c in chunk.valid().chars() {
                match c {
                    '"' | '\\' => self.out.extend_from_slice(&[b'\\', c as u8]),
                    '\0'..='\x1f' | '\x7f'..='\u{9f}' => {
                        c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| self.json_byte(byte));
                    }
                    _ => self.out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                }
            }
            chunk.invalid().iter().for_each(|byte| self.json_byte(*byte));
        }
    }

    fn json_byte(&mut self, byte: u8) {
        self.out.extend_from_slice(&[b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte & 15)]);
    }

    /// Writes bytes made here that need no escape.
    fn plain(&mut self, bytes: &[u8]) {
        self.quote();
        self.out.extend_from_slice(bytes);
        self.quote();
    }

    fn number(&mut self, number: u64) {
        self.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    fn number_or_absent(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.number(number),
            None => self.absent(),
        }
    }

    /// Writes seconds with `digits` digits behind the point, from a number of such parts of a
    /// second.
    fn fraction(&mut self, parts: u64, digits: u32) {
        let scale = 10u64.pow(digits);
        self.number(parts / scale);
        self.out.push(b'.');
        let mut rest = parts % scale;
        let end = self.out.len() + digits as usize;
        self.out.resize(end, b'0');
        let mut at = end;
        while rest > 0 {
            at -= 1;
            self.out[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }

    /// Writes the time from one moment to another; absent when one of them is.
    fn span(&mut self, from_us: Option<u64>, to_us: Option<u64>) {
        match (from_us, to_us) {
            (Some(from_us), Some(to_us)) => self.fraction(to_us.saturating_sub(from_us), 6),
            _ => self.absent(),
        }
    }

    fn absent(&mut self) {
        match self.escape {
            Escape::Default => self.out.push(b'-'),
            Escape::Json => {}
            Escape::JsonValue => self.out.extend_from_slice(b"null"),
        }
    }
}

fn hex(digit: u8) -> u8 {
    b"0123456789ABCDEF"[usize::from(digit)]
}

/// Appends the line of a record that ends now.
pub(super) fn line(
    out: &mut Vec<u8>,
    template: &Template,
    record: &Record,
    client: &Client,
    around: &Surroundings,
) {
    let mut pen = Pen { out, escape: template.escape };
    for (literal, item) in &template.segments {
        pen.out.extend_from_slice(literal);
        match item {
            Item::Field(place) => pen.text(record.field(*place)),
            Item::Named(name) if client.is_flow && of_flow(&mut pen, *name) => {}
            Item::Named(name) => value(&mut pen, *name, record, client, around),
        }
    }
    pen.out.extend_from_slice(&template.tail);
}

/// Writes the values that differ for a connection of `tcp`. False: nothing differs.
fn of_flow(pen: &mut Pen<'_>, name: Name) -> bool {
    match name {
        Name::ServerProtocol => pen.plain(b"TCP"),
        Name::Scheme => pen.plain(b"tcp"),
        Name::Status => pen.absent(),
        // Only the name was read.
        Name::TlsResumed => pen.absent(),
        _ => return false,
    }
    true
}

/// A match with this many arms is a jump; splitting it would cost a second one.
fn value(pen: &mut Pen<'_>, name: Name, record: &Record, client: &Client, around: &Surroundings) {
    let placed = record.placed.as_ref();
    let sent_us = placed.map(|placed| placed.sent_us);
    // A client over a unix socket has none.
    let port = Some(u64::from(client.port)).filter(|port| *port > 0);
    match name {
        Name::TimeLocal => pen.plain(around.stamp.local()),
        Name::TimeIso8601 => pen.plain(around.stamp.iso()),
        Name::TimeIso8601Msec => iso_msec(pen, around),
        Name::Msec => pen.fraction(around.unix_us(around.now_us) / 1000, 3),
        Name::StartMsec => pen.fraction(around.unix_us(record.received_us) / 1000, 3),
        Name::RemoteAddr => match record.client() {
            Some(address) => pen.text(address.to_string().as_bytes()),
            None => pen.plain(client.address.as_bytes()),
        },
        Name::RemotePort => pen.number_or_absent(port.filter(|_| record.client().is_none())),
        Name::RealipRemoteAddr => pen.plain(client.address.as_bytes()),
        Name::RealipRemotePort => pen.number_or_absent(port),
        Name::RemoteUser => pen.text(record.user()),
        Name::Request => request(pen, record),
        Name::RequestMethod => {
            pen.text(record.method_bytes.map_or(&[], |end| &record.line()[..end as usize]))
        }
        Name::RequestUri => pen.text(target(record)),
        Name::ServerProtocol => pen.text(record.version.map_or(b"", protocol)),
        Name::Scheme => {
            let sealed = record.sealed().unwrap_or(client.secured.is_some());
            pen.plain(if sealed { b"https" } else { b"http" });
        }
        Name::TlsVersion
        | Name::TlsCipher
        | Name::TlsName
        | Name::TlsResumed
        | Name::TlsClientSubject => tls(pen, name, client),
        Name::Host => pen.text(record.host()),
        Name::RequestId => pen.text(record.id()),
        Name::TraceId => pen.text(record.trace()),
        Name::RequestLength => pen.number(record.request_bytes),
        Name::Status => pen.number(u64::from(record.status)),
        Name::BodyBytesSent => pen.number(record.bytes_sent.saturating_sub(record.head_bytes)),
        Name::BytesSent => pen.number(record.bytes_sent),
        Name::CompressedBy => pen.text(record.content.coding()),
        Name::Cache => pen.text(record.content.got()),
        Name::CompressionRatio => {
            match record.content.compressed.filter(|compressed| compressed.given > 0) {
                Some(Compressed { taken, given, .. }) => {
                    pen.fraction(taken.saturating_mul(100) / given, 2)
                }
                None => pen.absent(),
            }
        }
        Name::RequestTime => pen.span(Some(record.received_us), Some(around.now_us)),
        Name::BodyTime => pen.span(Some(record.received_us), record.body_us),
        Name::QueueTime => pen.span(record.forwarded_us, record.first_sent_us),
        Name::UpstreamConnectTime => {
            let from_us =
                record.forwarded_us.filter(|from_us| record.first_connected_us >= Some(*from_us));
            pen.span(from_us, record.first_connected_us);
        }
        Name::RetryTime => pen.span(record.first_sent_us, sent_us),
        Name::UpstreamHeaderTime => pen.span(sent_us, record.begun_us),
        Name::UpstreamResponseTime => pen.span(sent_us, record.ended_us),
        Name::SendTime => pen.span(record.ended_us, Some(around.now_us)),
        Name::UpstreamName => pen.text(around.upstream(record.upstream)),
        Name::UpstreamAddr => {
            match placed.and_then(|placed| placed.address).or(record.destination()) {
                Some(address) => pen.text(address.to_string().as_bytes()),
                None => pen.text(placed.map_or(&[], |placed| around.server(placed.server))),
            }
        }
        Name::UpstreamConnection => connection(pen, record),
        Name::UpstreamReuse => pen.number_or_absent(placed.map(|placed| placed.before)),
        Name::UpstreamWorker => {
            pen.number_or_absent(placed.map(|placed| u64::from(placed.conn.worker)))
        }
        Name::Worker => pen.number(u64::from(around.worker)),
        Name::Tries => pen.number(u64::from(record.tries)),
        Name::Glitches => pen.number(u64::from(record.glitches)),
        Name::EndedBy => pen.plain(record.party.word().as_bytes()),
        Name::Phase => pen.plain(record.stage.word().as_bytes()),
        Name::Reason => pen.text(record.reason.as_bytes()),
    }
}

/// Writes a parameter of the client's TLS, if it uses TLS.
fn tls(pen: &mut Pen<'_>, name: Name, client: &Client) {
    let text: &[u8] = match (name, client.secured.as_deref()) {
        (Name::TlsVersion, Some(secured)) => secured.version.as_bytes(),
        (Name::TlsCipher, Some(secured)) => secured.suite.as_bytes(),
        (Name::TlsName, Some(secured)) => secured.name.as_deref().unwrap_or_default().as_bytes(),
        (Name::TlsClientSubject, Some(secured)) => {
            secured.subject.as_deref().unwrap_or_default().as_bytes()
        }
        (Name::TlsResumed, Some(secured)) => {
            if secured.resumed {
                b"r"
            } else {
                b"."
            }
        }
        _ => b"",
    };
    pen.text(text);
}

fn protocol(version: Version) -> &'static [u8] {
    match version {
        Version::Http10 => b"HTTP/1.0",
        Version::Http11 => b"HTTP/1.1",
        Version::Http2 => b"HTTP/2.0",
    }
}

fn request(pen: &mut Pen<'_>, record: &Record) {
    match record.version {
        Some(version) => pen.texts(&[record.line(), b" ", protocol(version)]),
        None => pen.text(record.line()),
    }
}

fn target(record: &Record) -> &[u8] {
    record.method_bytes.and_then(|end| record.line().get(end as usize + 1..)).unwrap_or_default()
}

fn iso_msec(pen: &mut Pen<'_>, around: &Surroundings) {
    let (second, zone) = around.stamp.iso_parts();
    let millisecond = around.unix_us(around.now_us) / 1000 % 1000;
    pen.quote();
    pen.out.extend_from_slice(second);
    let digits = [millisecond / 100, millisecond / 10 % 10, millisecond % 10]
        .map(|digit| b'0' + digit as u8);
    pen.out.push(b'.');
    pen.out.extend_from_slice(&digits);
    pen.out.extend_from_slice(zone);
    pen.quote();
}

fn connection(pen: &mut Pen<'_>, record: &Record) {
    let Some(placed) = &record.placed else { return pen.absent() };
    pen.quote();
    pen.number(u64::from(placed.conn.worker));
    pen.out.push(b':');
    pen.number(u64::from(placed.conn.index.number()));
    pen.out.push(b':');
    pen.number(u64::from(placed.conn.generation));
    pen.quote();
}
