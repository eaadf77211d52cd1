//! An HTTP/2 client without TLS that is written frame by frame. It spells out here what it sends,
//! with HPACK without table and without Huffman coding. So it shares nothing with the code under
//! test but the decoder of heads.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use weir_http::h2::hpack::Decoder;

use super::{Patient, patient};

pub use weir_check::streams::kind::{
    DATA, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE,
};
pub use weir_check::streams::{END_HEADERS, END_STREAM, PREFACE, frame, header_block};

/// The response on a stream.
#[derive(Debug, Default, Clone)]
pub struct Answer {
    /// Statuses, including those of interim responses.
    pub statuses: Vec<u16>,
    /// Fields of the heads and trailers, in order.
    pub fields: Vec<(String, String)>,
    /// Bytes of the body.
    pub body: Vec<u8>,
    /// Whether it is complete.
    pub ended: bool,
    /// The code with which it was reset.
    pub reset: Option<u32>,
}

/// One connection.
pub struct Http2Client {
    stream: Patient<TcpStream>,
    decoder: Decoder,
    next: u32,
    /// Responses by stream.
    pub answers: BTreeMap<u32, Answer>,
    /// Last stream and code of each GOAWAY.
    pub goaways: Vec<(u32, u32)>,
    /// Payloads of PING acknowledgements.
    pub pongs: Vec<Vec<u8>>,
    /// Whether the server has closed.
    pub closed: bool,
    /// Whether the client gives credit back for what it receives.
    pub gives_credit: bool,
}

impl Http2Client {
    /// Connects, and sends the preface with these settings.
    pub fn connect(address: SocketAddr, settings: &[(u16, u32)]) -> Http2Client {
        let stream = TcpStream::connect(address).expect("weir accepts");
        stream.set_nodelay(true).expect("a socket option");
        let mut client = Http2Client {
            stream: patient(stream),
            decoder: Decoder::default(),
            next: 1,
            answers: BTreeMap::new(),
            goaways: Vec::new(),
            pongs: Vec::new(),
            closed: false,
            gives_credit: true,
        };
        let mut list = Vec::new();
        for (number, value) in settings {
            list.extend(number.to_be_bytes());
            list.extend(value.to_be_bytes());
        }
        client.send(&[&PREFACE[..], &frame(SETTINGS, 0, 0, &list)].concat());
        client
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("weir reads");
    }

    /// Returns the bytes of a request on a new stream, and the stream. `more`: a body follows.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        more: bool,
    ) -> (Vec<u8>, u32) {
        let stream = self.next;
        self.next += 2;
        let head =
            [(":method", method), (":scheme", "http"), (":authority", "a.test"), (":path", path)];
        let flags = END_HEADERS | if more { 0 } else { END_STREAM };
        self.answers.insert(stream, Answer::default());
        (frame(HEADERS, flags, stream, &header_block(&[&head, fields].concat())), stream)
    }

    /// Sends a GET.
    pub fn get(&mut self, path: &str) -> u32 {
        let (bytes, stream) = self.request("GET", path, &[], false);
        self.send(&bytes);
        stream
    }

    /// Reads frames until this holds, even if the connection has ended.
    pub fn read_until(&mut self, what: &str, holds: impl Fn(&Http2Client) -> bool) {
        while !holds(self) {
            assert!(!self.closed, "{what}");
            self.read_frame();
        }
    }

    /// Reads frames until this holds.
    pub fn until(&mut self, what: &str, holds: impl Fn(&Http2Client) -> bool) {
        while !holds(self) {
            assert!(!self.closed, "{what}: the connection ended; {:?}", self.goaways);
            self.read_frame();
        }
    }

    /// Reads frames until the response on a stream is complete, and returns it.
    pub fn answer(&mut self, stream: u32) -> Answer {
        self.until("an answer", |client| {
            let answer = &client.answers[&stream];
            answer.ended || answer.reset.is_some()
        });
        self.answers[&stream].clone()
    }

    /// Reads one frame and records what it says.
    pub fn read_frame(&mut self) {
        let mut head = [0; 9];
        if let Err(error) = self.stream.read_exact(&mut head) {
            assert_ne!(
                error.kind(),
                ErrorKind::TimedOut,
                "no frame in time: {error}; so far {:?}",
                self.answers
            );
            self.closed = true;
            return;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        assert!(length <= 16_384, "a frame of {length} bytes");
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).expect("a whole frame");
        let word =
            |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().expect("four bytes"));
        match head[3] {
            SETTINGS if head[4] & 1 == 0 => self.send(&frame(SETTINGS, 1, 0, &[])),
            PING if head[4] & 1 == 1 => self.pongs.push(payload),
            GOAWAY => self.goaways.push((word(0), word(4))),
            RST_STREAM => {
                self.answers.get_mut(&stream).expect("a stream of ours").reset = Some(word(0))
            }
            HEADERS => {
                assert_ne!(head[4] & END_HEADERS, 0, "heads of tests are small");
                let answer = self.answers.get_mut(&stream).expect("a stream of ours");
                assert!(
                    !answer.ended && answer.reset.is_none(),
                    "a head behind the end of stream {stream}"
                );
                let take = |name: &[u8], value: &[u8]| {
                    let [name, value] =
                        [name, value].map(|text| String::from_utf8_lossy(text).into_owned());
                    match name.as_str() {
                        ":status" => answer.statuses.push(value.parse().expect("a status")),
                        _ => answer.fields.push((name, value)),
                    }
                    true
                };
                self.decoder.decode(&payload, &mut Vec::new(), take).expect("a header block");
                answer.ended = head[4] & END_STREAM != 0;
            }
            DATA => {
                let answer = self.answers.get_mut(&stream).expect("a stream of ours");
                assert!(
                    !answer.ended && answer.reset.is_none(),
                    "bytes behind the end of stream {stream}"
                );
                answer.body.extend(&payload);
                answer.ended = head[4] & END_STREAM != 0;
                if self.gives_credit && length > 0 {
                    let credit = (length as u32).to_be_bytes();
                    self.send(
                        &[
                            frame(WINDOW_UPDATE, 0, 0, &credit),
                            frame(WINDOW_UPDATE, 0, stream, &credit),
                        ]
                        .concat(),
                    );
                }
            }
            _ => {}
        }
    }
}

impl Answer {
    /// Returns the value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}
