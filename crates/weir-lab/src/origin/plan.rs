//! What a request selects: which page, and what is kept of its body for the response.
//!
//! Called by `connection.rs` once a head is complete and then with each piece of the body; pure.
//! Bound: [`ECHO_BYTES_MAX`] of a body to send back.

use weir_http::{FieldName, Fields, Method, RequestHead, Version};

use super::connection::Scene;
use super::reply::{Answer, Body};
use super::wanted::Wanted;
use crate::checksum::{EMPTY, fnv1a};

/// Largest body that `/echo` sends back; over it: 413.
const ECHO_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What to do when the request's body is complete.
#[derive(Debug)]
pub(super) enum Plan {
    Reply(Answer),
    /// `/__stats`.
    Stats(Answer),
    /// Send this back: the head as it came, then the body.
    Echo(Answer),
    /// `/sum`: length and checksum of the body.
    Sum(Answer, Checksum),
    /// It has its response already.
    Answered,
}

/// Length and FNV-1a of a body.
#[derive(Debug)]
pub(super) struct Checksum {
    length: u64,
    hash: u64,
}

impl Plan {
    /// Returns the page of a request. None: the query is invalid.
    pub(super) fn of(scene: &Scene<'_>, input: &[u8], head: &RequestHead) -> Option<Plan> {
        let target = head.path.of(input);
        let split = memchr::memchr(b'?', target).unwrap_or(target.len());
        let (path, query) = (&target[..split], target.get(split + 1..));
        let mut answer = Answer {
            wanted: query.map_or(Some(Wanted::default()), Wanted::from_query)?,
            body: Body::Ok,
            head_only: head.method == Method::Head,
            http10: head.version == Version::Http10,
            persist: head.persist,
            faults: None,
        };
        match path {
            b"/echo" => {
                answer.body = Body::Text(input[..head.bytes].to_vec(), "text/plain");
                return Some(Plan::Echo(answer));
            }
            b"/sum" => return Some(Plan::Sum(answer, Checksum::default())),
            b"/__stats" => {
                let text = serde_json::to_vec(&(scene.totals)()).unwrap_or_default();
                answer.body = Body::Text(text, "application/json");
                return Some(Plan::Stats(answer));
            }
            b"/page" => answer.body = page(),
            b"/" if query.is_none() && wants_html(scene.fields, input) => answer.body = page(),
            _ => {
                if let Some(size) = answer.wanted.size {
                    answer.body = Body::Pattern(size);
                }
            }
        }
        Some(Plan::Reply(answer))
    }

    /// The statistics remain readable whatever misbehaviours there are.
    pub(super) fn is_exempt(&self) -> bool {
        matches!(self, Plan::Stats(_))
    }

    /// Takes a part of the request's body. False: more than is kept.
    pub(super) fn take_body(&mut self, bytes: &[u8]) -> bool {
        match self {
            Plan::Reply(_) | Plan::Stats(_) | Plan::Answered => true,
            Plan::Sum(_, checksum) => {
                checksum.add(bytes);
                true
            }
            Plan::Echo(answer) => {
                if let Body::Text(text, _) = &mut answer.body {
                    text.extend_from_slice(bytes);
                    return text.len() <= ECHO_BYTES_MAX;
                }
                true
            }
        }
    }

    /// Returns the response that is still due.
    pub(super) fn into_answer(self) -> Option<Answer> {
        match self {
            Plan::Reply(answer) | Plan::Stats(answer) | Plan::Echo(answer) => Some(answer),
            Plan::Sum(mut answer, checksum) => {
                let text = format!("bytes={} fnv1a={:016x}\n", checksum.length, checksum.hash);
                answer.body = Body::Text(text.into_bytes(), "text/plain");
                Some(answer)
            }
            Plan::Answered => None,
        }
    }
}

impl Default for Checksum {
    fn default() -> Checksum {
        Checksum { length: 0, hash: EMPTY }
    }
}

impl Checksum {
    fn add(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        self.hash = fnv1a(self.hash, bytes);
    }
}

/// The demo's page.
fn page() -> Body {
    Body::Text(include_bytes!("page.html").to_vec(), "text/html; charset=utf-8")
}

/// Whether the client is a browser.
fn wants_html(fields: &Fields, input: &[u8]) -> bool {
    fields
        .as_slice()
        .iter()
        .filter(|field| {
            field.known == FieldName::Other && field.name.of(input).eq_ignore_ascii_case(b"accept")
        })
        .any(|field| memchr::memmem::find(field.value.of(input), b"text/html").is_some())
}
