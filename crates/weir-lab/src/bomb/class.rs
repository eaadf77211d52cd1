//! Classes of clients: their addresses, their rate, and their behaviour.
//!
//! Called by the command line's reader. A class is written `NAME: key=value, key=value`; for
//! missing keys the options of the whole run apply. [`KEYS`] lists the keys.

use std::net::IpAddr;

use super::odd;
use super::requests::{Mix, Preset, Request, Spelling};
use super::schedule::Rate;
use super::sources::Sources;
use crate::target::Target;
use crate::tls::Caller;
use crate::units::{duration_us, number};

/// Maximum connections of a class.
const CONNECTIONS_MAX: u32 = 1_000_000;
/// Deepest pipeline.
const DEPTH_MAX: u32 = 1_024;
/// Content of a slow body.
const SLOW_BODY_BYTES: usize = 1 << 20;
/// The message for a pipeline with HTTP/2 ...
pub const PIPELINE: &str = "pipeline is for HTTP/1.1; with --http2 use streams";
/// ... and for streams without it.
pub const STREAMS: &str = "streams is for HTTP/2: add --http2, or use pipeline";
/// One field of an oversized head.
const OVERSIZED_BYTES: usize = 256 * 1024;

/// How clients of a class behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Send requests and read responses.
    Normal,
    /// Connect, close, and again.
    ConnectFlood,
    /// Connect and send nothing.
    Hold,
    /// Send a head a byte at a time.
    SlowHead,
    /// Send a head, then its content a byte at a time.
    SlowBody,
    /// Read responses a little at a time.
    SlowReader,
    /// Send bytes that are not a valid request.
    Malformed,
    /// Send a head of 256 KiB.
    Oversized,
    /// Send valid but unusual requests.
    Fuzz,
    /// Send requests, and open no window for the bodies of responses (RFC 9113 §6.9).
    Stalled,
}

impl Behaviour {
    /// Whether the purpose of clients with this behaviour is to keep connections busy rather than
    /// to get responses.
    pub(super) fn holds(self) -> bool {
        use Behaviour::{Hold, SlowBody, SlowHead, SlowReader, Stalled};
        matches!(self, Hold | SlowHead | SlowBody | SlowReader | Stalled)
    }
}

/// How the generator ends connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The server ends it where the last request can announce that (`Connection: close`); else in
    /// order.
    Announced,
    /// In order, without an announcement.
    Fin,
    /// With a reset, without an announcement.
    Rst,
}

/// The word of each behaviour, and its description.
pub const BEHAVIOURS: &[(&str, Behaviour, &str)] = &[
    ("normal", Behaviour::Normal, "requests, and responses read at once"),
    ("connect-flood", Behaviour::ConnectFlood, "connects and closes, repeatedly"),
    ("hold", Behaviour::Hold, "connects and sends nothing"),
    ("slow-head", Behaviour::SlowHead, "a head, a byte at a time"),
    ("slow-body", Behaviour::SlowBody, "1 MiB of content, a byte at a time"),
    ("slow-reader", Behaviour::SlowReader, "reads 4 KiB at a time"),
    ("malformed", Behaviour::Malformed, "malformed requests"),
    ("oversized", Behaviour::Oversized, "a head of 256 KiB"),
    ("fuzz", Behaviour::Fuzz, "valid but odd requests, 256 that the seed draws"),
    ("stalled", Behaviour::Stalled, "HTTP/2: sends requests, and lets no body arrive"),
];

/// This many bytes at this interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drip {
    /// Bytes at a time, from 1.
    pub bytes: usize,
    /// Time between them, microseconds, from 1.
    pub every_us: u64,
}

/// One class of clients.
#[derive(Debug, Clone)]
pub struct Class {
    /// Its name in reports and thresholds.
    pub name: String,
    /// The server that it sends requests to.
    pub target: Target,
    /// Connections that it has at a time.
    pub connections: u32,
    /// When its requests are due; None is a closed loop: each connection sends its next request
    /// when it has its response.
    pub rate: Option<Rate>,
    /// Random distances between requests (Poisson) instead of even ones.
    pub poisson: bool,
    /// How it behaves.
    pub behaviour: Behaviour,
    /// Local addresses of its connections, used in turn; None leaves the choice to the system.
    pub sources: Option<Sources>,
    /// What it sends.
    pub mix: Mix,
    /// Its requests are sent by HTTP/2.
    pub http2: bool,
    /// Requests that may be unanswered on a connection at a time: the depth of a pipeline, with
    /// HTTP/2 streams.
    pub depth: u32,
    /// Requests after which a connection is closed; None: never.
    pub close_every: Option<u32>,
    /// How the generator ends its connections.
    pub ending: Ending,
    /// Draws odd requests.
    pub seed: u64,
    /// How requests are cut into pieces; None: they are sent whole.
    pub drip: Option<Drip>,
    /// How clients use TLS; None: they don't.
    pub tls: Option<Caller>,
}

/// The meaning of each key, with the form of its value.
pub const KEYS: &[(&str, &str)] = &[
    ("connections", "N"),
    ("rate", "RATE, or closed"),
    ("arrivals", "even or poisson"),
    ("behave", "a behaviour"),
    ("to", "ADDRESS:PORT instead of the URL's"),
    ("source", "ADDRESS, ADDRESS/PREFIX or ADDRESS-ADDRESS"),
    ("path", "/PATH"),
    ("method", "METHOD"),
    ("body", "TEXT"),
    ("preset", "minimal or browser"),
    ("pipeline", "N"),
    ("streams", "N, with HTTP/2"),
    ("close-every", "N, or never"),
    ("end", "fin or rst"),
    ("seed", "N, of fuzz"),
    ("pieces", "BYTES/DURATION"),
];

impl Drip {
    /// Reads `BYTES/DURATION`.
    ///
    /// # Errors
    /// The text says what is expected.
    pub fn parse(text: &str) -> Result<Drip, String> {
        let wrong = || format!("`{text}` is not BYTES/DURATION, for example 1/100ms");
        let (bytes, every) = text.split_once('/').ok_or_else(wrong)?;
        let bytes = bytes.parse().ok().filter(|bytes| *bytes > 0).ok_or_else(wrong)?;
        let every_us = duration_us(every).ok().filter(|us| *us > 0).ok_or_else(wrong)?;
        Ok(Drip { bytes, every_us })
    }
}

/// Reads `even` or `poisson`; true is the latter.
///
/// # Errors
/// The text says what is expected.
pub fn arrivals(text: &str) -> Result<bool, String> {
    match text {
        "even" => Ok(false),
        "poisson" => Ok(true),
        _ => Err(format!("`{text}` is neither even nor poisson")),
    }
}

/// Reads `fin` or `rst`.
///
/// # Errors
/// The text says what is expected.
pub fn ending(text: &str) -> Result<Ending, String> {
    match text {
        "fin" => Ok(Ending::Fin),
        "rst" => Ok(Ending::Rst),
        _ => Err(format!("`{text}` is neither fin nor rst")),
    }
}

/// Reads the name of a preset.
///
/// # Errors
/// The text says what is expected.
pub fn preset(text: &str) -> Result<Preset, String> {
    match text {
        "minimal" => Ok(Preset::Minimal),
        "browser" => Ok(Preset::Browser),
        _ => Err(format!("`{text}` is neither minimal nor browser")),
    }
}

fn behaviour(text: &str) -> Result<Behaviour, String> {
    let found = BEHAVIOURS.iter().find(|(word, ..)| *word == text);
    let words: Vec<&str> = BEHAVIOURS.iter().map(|(word, ..)| *word).collect();
    found
        .map(|row| row.1)
        .ok_or_else(|| format!("`{text}` is not a behaviour; known: {}", words.join(", ")))
}

/// A number of connections.
///
/// # Errors
/// The text says what is expected.
pub fn connections(text: &str) -> Result<u32, String> {
    count(text, CONNECTIONS_MAX)
}

/// A depth of pipelining, or a number of streams.
///
/// # Errors
/// The text says what is expected.
pub fn depth(text: &str) -> Result<u32, String> {
    count(text, DEPTH_MAX)
}

fn count(text: &str, most: u32) -> Result<u32, String> {
    let wrong = || format!("`{text}` is not a number from 1 to {most}");
    let value = number(text).map_err(|_| wrong())?;
    if value.fract() == 0.0 && (1.0..=f64::from(most)).contains(&value) {
        Ok(value as u32)
    } else {
        Err(wrong())
    }
}

impl Class {
    /// Reads `NAME: key=value, ...` over the options of the run in `base`; `spelling` is how its
    /// requests are spelled unless it says otherwise.
    ///
    /// # Errors
    /// The class and the key that are wrong, and what is expected.
    pub fn parse(text: &str, base: &Class, spelling: &Spelling) -> Result<Class, String> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let name = name.trim();
        if name.is_empty()
            || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        {
            return Err(format!(
                "`{name}` is not the name of a class; expected `NAME: key=value, key=value`"
            ));
        }
        let mut class = Class { name: name.to_owned(), ..base.clone() };
        let mut own = OwnRequests {
            path: class.target.path.clone(),
            spelling: spelling.clone(),
            changed: false,
        };
        for pair in rest.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let wrong = |why: String| format!("class `{name}`: {why}");
            let (key, value) =
                pair.split_once('=').ok_or_else(|| wrong(format!("`{pair}` is not key=value")))?;
            class
                .set(key.trim(), value.trim(), &mut own)
                .map_err(|why| wrong(format!("{}: {why}", key.trim())))?;
        }
        if own.changed {
            let request = Request::new(&class.target.host, &own.path, 1, &own.spelling);
            class.mix = Mix::new(vec![request.map_err(|why| format!("class `{name}`: {why}"))?])?;
        }
        class.arrange().map_err(|why| format!("class `{name}`: {why}"))
    }

    fn set(&mut self, key: &str, value: &str, own: &mut OwnRequests) -> Result<(), String> {
        own.changed |= matches!(key, "path" | "method" | "body" | "preset");
        match key {
            "connections" => self.connections = connections(value)?,
            "rate" if value == "closed" => self.rate = None,
            // A comma would end the value; in a class the stages of a rate are joined by `+`.
            "rate" => self.rate = Some(Rate::parse(&value.replace('+', ","))?),
            "arrivals" => self.poisson = arrivals(value)?,
            "behave" => self.behaviour = behaviour(value)?,
            "source" => self.sources = Some(Sources::parse(value)?),
            "path" => own.path = value.to_owned(),
            "method" => own.spelling.method = Some(value.to_owned()),
            "body" => own.spelling.body = value.as_bytes().to_vec(),
            "preset" => own.spelling.preset = preset(value)?,
            "pipeline" if self.http2 => return Err(PIPELINE.to_owned()),
            "streams" if !self.http2 => return Err(STREAMS.to_owned()),
            "pipeline" | "streams" => self.depth = depth(value)?,
            "close-every" if value == "never" => self.close_every = None,
            "close-every" => self.close_every = Some(count(value, u32::MAX)?),
            "end" => self.ending = ending(value)?,
            "seed" => {
                self.seed =
                    value.parse().map_err(|_| format!("`{value}` is not a whole number from 0"))?
            }
            "to" => {
                self.target.address =
                    value.parse().map_err(|_| format!("`{value}` is not ADDRESS:PORT"))?;
            }
            "pieces" => self.drip = Some(Drip::parse(value)?),
            _ => {
                let keys: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
                return Err(format!("no such key; known: {}", keys.join(", ")));
            }
        }
        Ok(())
    }

    /// Fills in what its behaviour requires, and rejects incompatible settings.
    ///
    /// # Errors
    /// The text says which settings are incompatible.
    pub fn arrange(mut self) -> Result<Class, String> {
        if let Some(sources) = &self.sources {
            let same = matches!(
                (sources.first(), self.target.address.ip()),
                (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_))
            );
            if !same {
                return Err(format!(
                    "source {} cannot reach {}",
                    sources.first(),
                    self.target.address.ip()
                ));
            }
        }
        let each_second = Drip { bytes: 1, every_us: 1_000_000 };
        let of_http1 = [
            Behaviour::Hold,
            Behaviour::SlowHead,
            Behaviour::SlowBody,
            Behaviour::Malformed,
            Behaviour::Fuzz,
        ];
        if self.http2 && (of_http1.contains(&self.behaviour) || self.drip.is_some()) {
            return Err(
                "hold, pieces, slow, malformed and odd requests are for HTTP/1.1: remove --http2"
                    .to_owned(),
            );
        }
        if !self.http2 && self.behaviour == Behaviour::Stalled {
            return Err("stalled is for HTTP/2: add --http2, or use slow-reader".to_owned());
        }
        match self.behaviour {
            Behaviour::Normal | Behaviour::Stalled => {}
            Behaviour::ConnectFlood | Behaviour::Hold => {
                if self.drip.is_some() || self.depth > 1 || self.close_every.is_some() {
                    return Err(
                        "it sends no request, so pieces, pipeline, streams and close-every have no \
                            effect".to_owned()
                    );
                }
            }
            Behaviour::SlowHead => self.drip = self.drip.or(Some(each_second)),
            Behaviour::SlowBody => {
                self.drip = self.drip.or(Some(each_second));
                self.mix = self.with_spelling(Spelling {
                    body: vec![b'x'; SLOW_BODY_BYTES],
                    ..Spelling::default()
                })?;
            }
            Behaviour::SlowReader => {}
            Behaviour::Malformed => self.mix = Mix::new(malformed(&self.target.host))?,
            Behaviour::Fuzz => self.mix = Mix::new(odd::requests(&self.target.host, self.seed))?,
            Behaviour::Oversized => {
                let fields = vec![("X-Large".to_owned(), "x".repeat(OVERSIZED_BYTES))];
                self.mix = self.with_spelling(Spelling { fields, ..Spelling::default() })?;
            }
        }
        if self.http2 && self.mix.requests().iter().any(|request| request.http2.is_none()) {
            return Err("its requests are for HTTP/1.1 only".to_owned());
        }
        if self.drip.is_some() && self.depth > 1 {
            return Err("pieces and pipeline exclude each other".to_owned());
        }
        Ok(self)
    }

    /// Whether its requests are expected to get responses in time; slow ones take as long as they
    /// are allowed to.
    pub(crate) fn answers(&self) -> bool {
        let slow = [
            Behaviour::Hold,
            Behaviour::SlowHead,
            Behaviour::SlowBody,
            Behaviour::SlowReader,
            Behaviour::Stalled,
        ];
        !slow.contains(&self.behaviour)
    }

    /// Whether a connection is made when a request is due and not before, so that the latency
    /// includes a user's wait for it.
    pub(crate) fn connects_when_due(&self) -> bool {
        let asks_nothing = matches!(self.behaviour, Behaviour::ConnectFlood | Behaviour::Hold);
        self.rate.is_some() && (self.close_every.is_some() || asks_nothing)
    }

    fn with_spelling(&self, spelling: Spelling) -> Result<Mix, String> {
        let spelling =
            Spelling { http2: self.http2.then(|| scheme(self.target.is_tls)), ..spelling };
        Mix::new(vec![Request::new(&self.target.host, &self.target.path, 1, &spelling)?])
    }
}

/// The scheme of a URL, as HTTP/2 sends it.
pub fn scheme(is_tls: bool) -> &'static str {
    if is_tls { "https" } else { "http" }
}

/// What a class says about its requests.
struct OwnRequests {
    path: String,
    spelling: Spelling,
    changed: bool,
}

/// Returns requests that servers must reject (RFC 9112 §2.2, §3, §5, §6.3), one at a time.
fn malformed(host: &str) -> Vec<Request> {
    let texts = [
        "NONSENSE\r\n\r\n".to_owned(),
        format!("GET  / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        format!("GET / HTTP/9.9\r\nHost: {host}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nBad Name: x\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nHost: other\r\n\r\n"),
        format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: -1\r\n\r\n"),
        format!(
            "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\
                \r\n0\r\n\r\n"
        ),
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}\u{3}\u{3}\r\n\r\n".to_owned(),
    ];
    let request = |text: String| Request {
        name: "malformed".to_owned(),
        head_bytes: text.len(),
        last: text.clone().into(),
        bytes: text.into(),
        serial_at: None,
        is_head: false,
        weight: 1,
        http2: None,
    };
    texts.into_iter().map(request).collect()
}
