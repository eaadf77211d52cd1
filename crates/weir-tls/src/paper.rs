//! A paper cipher: the shape of TLS without its secrets, for tests and simulations that must see
//! and repeat every byte. It is in no product.
//!
//! A record is a type, two bytes of version, its length, its content, and a tag of 16 bytes that
//! depends on the number of the record in its direction. The client says hello, and whether it
//! wants HTTP/2; the server responds with a flight of a given length, the client confirms; the
//! server then sends a ticket. A client that says hello again has resumed a session, for all that
//! this means here. An alert or a bad tag ends it. A message can make it use nothing more, miss a
//! certificate, or panic, as a library may.

use crate::cipher::{
    Cipher, Facts, Failure, HANDSHAKE_RECORD, Opened, RECORD_BYTES_MAX, Seal, State,
};

/// Bytes before the content of a record, and behind it.
pub(crate) const HEADER: usize = 5;
pub(crate) const TAG: usize = 16;
const DATA: u8 = 0x17;
const ALERT: u8 = 0x15;
/// First messages of clients; the second one asks for HTTP/2.
const HELLOS: [&[u8]; 2] = [b"hello", b"hello h2"];
/// First message of a client that resumes a session; no paper end sends it.
pub(crate) const HELLO_AGAIN: &[u8] = b"hello again";
/// The content of an alert.
pub(crate) const CLOSE_NOTIFY: u8 = 0;
pub(crate) const BAD_RECORD: u8 = 20;
pub(crate) const NO_CERTIFICATE: u8 = 116;

/// One end.
pub(crate) struct Paper {
    is_client: bool,
    http2: bool,
    /// The client resumes an earlier session, whichever that was.
    resumes: bool,
    /// Messages of the handshake that were received.
    got: usize,
    said_hello: bool,
    open: bool,
    ended: bool,
    said_close: bool,
    /// Records in and out.
    opened: u8,
    sealed: u8,
    /// Bytes of the server's flight.
    flight: usize,
    /// It uses no more of the bytes that it is given.
    hoards: bool,
}

/// Of clients.
#[derive(Debug, Default)]
pub struct ClientPapers {
    /// They want HTTP/2.
    pub http2: bool,
}

impl Seal for ClientPapers {
    fn cipher(&self) -> Box<dyn Cipher> {
        Box::new(Paper::new(true, self.http2, 0))
    }
}

/// The cipher of a server with a flight of this number of bytes.
#[derive(Debug)]
pub struct Papers(pub usize);

impl Seal for Papers {
    fn cipher(&self) -> Box<dyn Cipher> {
        Box::new(Paper::new(false, false, self.0))
    }
}

/// A record: the one of this number in its direction.
pub fn record(kind: u8, number: u8, parts: &[&[u8]], out: &mut Vec<u8>) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&[kind, 3, 3]);
    out.extend_from_slice(&((len + TAG) as u16).to_be_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(&[number; TAG]);
}

impl Paper {
    fn new(is_client: bool, http2: bool, flight: usize) -> Paper {
        Paper {
            is_client,
            http2,
            resumes: false,
            got: 0,
            said_hello: false,
            open: false,
            ended: false,
            said_close: false,
            opened: 0,
            sealed: 0,
            flight,
            hoards: false,
        }
    }

    fn put(&mut self, kind: u8, parts: &[&[u8]], out: &mut Vec<u8>) {
        record(kind, self.sealed, parts, out);
        self.sealed = self.sealed.wrapping_add(1);
    }

    fn message(&mut self, body: &[u8], out: &mut Vec<u8>) {
        self.got += 1;
        match (self.is_client, self.got) {
            (true, 1) => {
                self.put(HANDSHAKE_RECORD, &[b"confirm"], out);
                self.open = true;
            }
            (false, 1) => {
                self.http2 = body == HELLOS[1];
                self.resumes = body == HELLO_AGAIN;
                let flight = vec![b'f'; self.flight];
                self.put(HANDSHAKE_RECORD, &[&flight], out);
            }
            (false, 2) => {
                self.open = true;
                self.put(HANDSHAKE_RECORD, &[b"ticket"], out);
            }
            _ => {}
        }
    }

    fn record(
        &mut self,
        record: &[u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let (body, tag) = record[HEADER..].split_at(record.len() - HEADER - TAG);
        if tag != [self.opened; TAG] {
            self.put(ALERT, &[&[BAD_RECORD]], out);
            return Err(Failure::Misbehaved);
        }
        self.opened = self.opened.wrapping_add(1);
        match record[0] {
            HANDSHAKE_RECORD if self.open && body == b"hoard" => self.hoards = true,
            HANDSHAKE_RECORD if body == b"nobody" => {
                self.put(ALERT, &[&[NO_CERTIFICATE]], out);
                return Err(Failure::NoCertificate);
            }
            HANDSHAKE_RECORD if body == b"panic" => panic!("as it was told"),
            HANDSHAKE_RECORD => self.message(body, out),
            DATA if self.open => plain.extend_from_slice(body),
            ALERT if body == [CLOSE_NOTIFY] => self.ended = true,
            ALERT => return Err(Failure::Alert),
            _ => return Err(Failure::Misbehaved),
        }
        Ok(())
    }
}

impl Cipher for Paper {
    fn open(&mut self, bytes: &mut [u8], plain: &mut Vec<u8>, out: &mut Vec<u8>) -> Opened {
        if self.is_client && !std::mem::replace(&mut self.said_hello, true) {
            self.put(HANDSHAKE_RECORD, &[HELLOS[usize::from(self.http2)]], out);
        }
        let mut used = 0;
        let failed = |used, why| Opened { used, state: Err(why) };
        while bytes.len() - used >= HEADER && !self.ended && !self.hoards {
            let rest = &bytes[used..];
            let len = HEADER + usize::from(u16::from_be_bytes([rest[3], rest[4]]));
            if !(HEADER + TAG..=HEADER + TAG + RECORD_BYTES_MAX).contains(&len) {
                return failed(used, Failure::Misbehaved);
            }
            if rest.len() < len {
                break;
            }
            let record = rest[..len].to_vec();
            used += len;
            if let Err(why) = self.record(&record, plain, out) {
                return failed(used, why);
            }
            // It was opened in place.
            bytes[used - len..used].fill(b'?');
        }
        let state = match (self.open, self.ended) {
            (true, true) => State::Ended,
            (true, false) => State::Open,
            (false, true) => return failed(used, Failure::Left),
            (false, false) => State::Handshaking,
        };
        Opened { used, state: Ok(state) }
    }

    fn seal(
        &mut self,
        _: &mut [u8],
        parts: &[&[u8]],
        record_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        assert!(self.open && !self.said_close, "sealed before the handshake or behind the end");
        for part in parts {
            part.chunks(record_max).for_each(|chunk| self.put(DATA, &[chunk], out));
        }
        Ok(())
    }

    fn close(&mut self, _: &mut [u8], out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.said_close, true) {
            self.put(ALERT, &[&[CLOSE_NOTIFY]], out);
        }
    }

    fn facts(&self) -> Facts {
        Facts {
            version: "Paper",
            suite: "PAPER",
            http2: self.http2,
            resumed: self.resumes,
            ..Facts::default()
        }
    }

    fn has_worked(&self) -> Option<bool> {
        (self.got > 0).then_some(!self.resumes)
    }
}
