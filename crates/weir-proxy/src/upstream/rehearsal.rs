//! Rehearsals: weir tries several requests at once, which it makes itself, before client requests
//! depend on it (stage schedule).
//!
//! A server that answers requests one at a time may still fail when several arrive together. Some
//! servers execute only the first or only the last of them, and some crash. So once a server has
//! given enough clean answers ([`Trust::wants_rehearsal`](crate::upstream::trust::Trust)), weir
//! sends it GET, HEAD and GET for one target in a single send, on a connection that carries nothing
//! else meanwhile. The server passes if it answers all three in order and with correct framing,
//! each within [`REHEARSAL_US`], and keeps the connection open.
//!
//! weir picks a target that a client has just received with status 200, without credentials, and
//! whose class is even ([`crate::upstream::class`]). A target that may be personal (it has a query,
//! a cookie was sent, or a segment looks generated) must have been requested repeatedly; weir
//! requests it without the cookie. `pipeline rehearse=` sets the target instead. A server that
//! cannot be rehearsed is not pipelined. Bound: one rehearsal at a time for each server and worker,
//! a target of [`TARGET_BYTES_MAX`]. docs/pipelining-trust.md#rehearsal

use weir_http::{Fields, Limits, Method, Version};

use super::agenda::Ending;
use super::doubts::doubt_everywhere;
use super::left::look_at;
use super::load::settle_permits;
use super::lost::Loss;
use super::pool::Pool;
use super::send::{Outbox, push_copy};
use crate::base::keys::{ConnKey, ServerIndex};
use crate::context::Context;
use crate::cross::doubt::Doubt;
use crate::ending::UpstreamEnd;
use crate::placement::balance::hash_key;
use crate::request::pending_request::{PendingRequest, RequestFlags};
use crate::upstream::class::is_plain;
use crate::upstream::entry::Entry;

/// How long each answer may take.
pub(super) const REHEARSAL_US: u64 = 10_000_000;
/// Longest target, and longest Host, that a rehearsal uses.
const TARGET_BYTES_MAX: usize = 1024;
/// Longest answer to the client that makes its target usable.
const BODY_BYTES_MAX: u64 = 64 * 1024;
/// Lead over other targets, in requests, that a target which may be personal needs.
const REPEATED_MIN: u32 = 8;
/// Rehearsals without a result that count as one failure. The server announced the end of the
/// connection, or weir had to close it.
const BARREN_MAX: u8 = 4;

/// The state of rehearsals with one server.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rehearsal {
    /// The most frequent target of late (Boyer-Moore majority vote): its hash, and its lead over
    /// others.
    asked: (u64, u32),
    /// The next rehearsal.
    found: Option<Box<Found>>,
    under_way: bool,
    barren: u8,
}

#[derive(Debug, Clone)]
struct Found {
    target: Vec<u8>,
    host: Vec<u8>,
    /// Loop-detection lines of the original request.
    marks: Vec<u8>,
    like: PendingRequest,
}

impl Rehearsal {
    /// Whether a target is needed.
    fn seeks(&self) -> bool {
        self.found.is_none() && !self.under_way
    }

    /// Counts a request for a target. Returns whether clients ask for it often.
    fn is_repeated(&mut self, target: &[u8]) -> bool {
        let hash = hash_key(target);
        match &mut self.asked {
            (known, often) if *known == hash => *often += 1,
            (_, often) if *often > 0 => *often -= 1,
            asked => *asked = (hash, 1),
        }
        self.asked.0 == hash && self.asked.1 >= REPEATED_MIN
    }
}

/// The server wants a rehearsal, and has just answered a request with `body_bytes` of body: uses
/// the target of that request if it may be asked for again.
#[cold]
pub(super) fn offer(index: ConnKey, entry: &Entry, body_bytes: u64, pool: &mut Pool, cx: &Context) {
    let conn = pool.conns.at(index);
    let machine = &mut pool.servers[conn.server];
    let (traits, status) = (entry.ask.traits, conn.reply.status);
    let usual = traits.has(RequestFlags::PIPELINABLE) && traits.has(RequestFlags::RETRIABLE);
    let odd = traits.has(RequestFlags::LAST)
        || traits.has(RequestFlags::QUARANTINED)
        || traits.has(RequestFlags::TRIAL);
    if !machine.learned.rehearsal.seeks() || !usual || odd || entry.is_copy || status >= 500 {
        return;
    }
    let named = cx.plan.upstreams[usize::from(machine.upstream)].sharing.rehearse.as_deref();
    // A slow or rare target would make the server look worse than it is.
    let is_fit = || {
        status == 200
            && body_bytes <= BODY_BYTES_MAX
            && machine.learned.classes.is_alike(entry.ask.class)
    };
    if named.is_none() && !is_fit() {
        return;
    }
    let bytes = conn.log.copy(entry.start, entry.len as usize);
    let mut fields = Fields::default();
    let Some((target, host)) = parse_get(&bytes, &mut fields) else { return };
    let has = |name: &str| fields.get(&bytes, name.as_bytes()).is_some();
    let target = match named {
        Some(named) => named.as_bytes(),
        None if target.len() > TARGET_BYTES_MAX || has("authorization") || has("range") => return,
        None => {
            let may_be_personal = target.contains(&b'?') || !is_plain(target) || has("cookie");
            if may_be_personal && !machine.learned.rehearsal.is_repeated(target) {
                return;
            }
            target
        }
    };
    let like = PendingRequest {
        traits: RequestFlags::PIPELINABLE.with(RequestFlags::RETRIABLE, true),
        ..entry.ask
    };
    let (target, host) = (target.to_vec(), host.to_vec());
    machine.learned.rehearsal.found =
        Some(Box::new(Found { target, host, marks: marks(&bytes, &fields), like }));
}

/// Parses a request as it was sent. Returns its target and Host if it is a GET in origin-form.
fn parse_get<'a>(bytes: &'a [u8], fields: &mut Fields) -> Option<(&'a [u8], &'a [u8])> {
    let head = weir_http::parse_request(bytes, &Limits::default(), fields).ok()??;
    let host = fields.get(bytes, b"host")?;
    let fits = head.method == Method::Get
        && head.version == Version::Http11
        && host.len() <= TARGET_BYTES_MAX;
    let target = head.target.of(bytes);
    (fits && target.starts_with(b"/")).then_some((target, host))
}

/// The lines of a head by which weir recognises a request that comes back to it.
fn marks(bytes: &[u8], fields: &Fields) -> Vec<u8> {
    let is_mark = |name: &[u8]| {
        ["via", "cdn-loop"].iter().any(|mark| name.eq_ignore_ascii_case(mark.as_bytes()))
    };
    let marked = fields.as_slice().iter().filter(|field| is_mark(field.name.of(bytes)));
    marked.flat_map(|field| field.line.of(bytes)).copied().collect()
}

/// The requests of a rehearsal, and whether they are HEAD.
const REQUESTS: [(&str, bool); 3] = [("GET", false), ("HEAD", true), ("GET", false)];

/// Starts a rehearsal on a connection that has just become empty, if a target is known.
#[cold]
pub(super) fn begin(index: ConnKey, pool: &mut Pool, outbox: &mut Outbox, cx: &mut Context) {
    let conn = pool.conns.at_mut(index);
    let server = conn.server;
    let machine = &mut pool.servers[server];
    let free =
        conn.is_ready() && conn.reply.persist && conn.entries.is_empty() && conn.owner.is_none();
    let fit =
        free && !conn.rest.syncing && !conn.room.leaves && !conn.out.sending && conn.unsent() == 0;
    // A rehearsal must not delay client requests.
    let needed = machine.kept == Some(conn.position)
        || !machine.waiting.is_calm() && !machine.may_grow(false)
        || machine.load() + REQUESTS.len() as u32 > machine.capacity;
    if !fit || needed || machine.learned.rehearsal.under_way || !machine.standing.takes_new() {
        return;
    }
    if !machine.admits(REQUESTS.len() as u32) {
        return settle_permits(server, pool, cx);
    }
    let Some(found) = machine.learned.rehearsal.found.take() else { return };
    machine.learned.rehearsal.under_way = true;
    let echo = cx.plan.upstreams[usize::from(machine.upstream)].echo.clone();
    (conn.wait.rehearses, conn.rest.unseen) = (true, false);
    conn.gate.hold = true;
    for (method, is_head) in REQUESTS {
        let ask = PendingRequest {
            traits: found.like.traits.with(RequestFlags::HEAD, is_head),
            ..found.like
        };
        let conn = pool.conns.at_mut(index);
        let start = conn.log.end();
        let out = conn.log.pending();
        for part in [method.as_bytes(), b" ", &found.target, b" HTTP/1.1\r\nHost: ", &found.host] {
            out.extend_from_slice(part);
        }
        out.extend_from_slice(b"\r\nUser-Agent: weir-rehearsal\r\nAccept: */*\r\n");
        out.extend_from_slice(&found.marks);
        if let Some(name) = &echo {
            for part in [name.as_bytes(), b": ", &ask.echo[..], b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
        out.extend_from_slice(b"\r\n");
        push_copy(index, ask, start, pool, outbox, cx);
    }
    pool.servers[server].stats.rehearsals.add(1);
    look_at(index, cx.now_us + REHEARSAL_US, pool, cx);
}

/// The server has answered the whole rehearsal and may be pipelined.
#[cold]
pub(super) fn passed(index: ConnKey, pool: &mut Pool, cx: &Context) {
    let conn = pool.conns.at_mut(index);
    conn.wait.rehearses = false;
    let server = conn.server;
    let learned = &mut pool.servers[server].learned;
    learned.rehearsal = Rehearsal::default();
    learned.trust.on_rehearsed(cx.now_us);
    pool.refresh_conns(server, cx);
}

/// How the connection ends when a rehearsal takes too long.
pub(super) fn took_too_long() -> Ending {
    Ending::ours(UpstreamEnd::Doubt(Doubt::FailsRehearsal))
}

/// The connection has ended before the rehearsal was complete.
#[cold]
pub(super) fn broke_off(server: ServerIndex, ending: Ending, pool: &mut Pool, cx: &mut Context) {
    let orderly = [UpstreamEnd::Disabled, UpstreamEnd::Crowded].contains(&ending.why);
    let tells = matches!(ending.loss, Loss::Announced | Loss::Ours) && !orderly;
    let rehearsal = &mut pool.servers[server].learned.rehearsal;
    let barren = rehearsal.barren + u8::from(tells);
    *rehearsal = Rehearsal { barren, ..Rehearsal::default() };
    let failed = match ending {
        Ending { why: UpstreamEnd::Doubt(Doubt::FailsRehearsal), .. } => true,
        Ending { loss: Loss::Announced | Loss::Ours, .. } => barren >= BARREN_MAX,
        _ => true,
    };
    if failed {
        pool.servers[server].learned.rehearsal.barren = 0;
        doubt_everywhere(server, Some(Doubt::FailsRehearsal), pool, cx);
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a rehearsal uses only targets that are safe to request again. How: tables.

    use super::*;

    #[test]
    fn a_target_and_host_are_read() {
        for (bytes, expected) in [
            ("GET /a?b HTTP/1.1\r\nHost: x:8\r\n\r\n", Some(("/a?b", "x:8"))),
            ("GET /a HTTP/1.1\r\nA: b\r\nhOST:x\r\n\r\nHost: y", Some(("/a", "x"))),
            ("HEAD /a HTTP/1.1\r\nHost: x\r\n\r\n", None),
            ("GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", None),
            ("GET /a HTTP/1.0\r\nHost: x\r\n\r\n", None),
            ("GET /a HTTP/1.1\r\nHosts: x\r\n\r\nHost: x", None),
            ("", None),
        ] {
            let expected = expected.map(|(target, host)| (target.as_bytes(), host.as_bytes()));
            assert_eq!(parse_get(bytes.as_bytes(), &mut Fields::default()), expected, "{bytes:?}");
        }
    }

    #[test]
    fn fields_are_found_by_their_names() {
        let has = |line: &str| {
            let head =
                format!("GET / HTTP/1.1\r\nHost: x\r\n{line}\r\n\r\nCookie: behind the head");
            let mut fields = Fields::default();
            parse_get(head.as_bytes(), &mut fields).expect("a request");
            ["cookie", "authorization"]
                .iter()
                .any(|name| fields.get(head.as_bytes(), name.as_bytes()).is_some())
        };
        for line in ["Cookie: a=b", "cookie:", "AUTHORIZATION: Basic x"] {
            assert!(has(line), "{line}");
        }
        for line in ["Cookies: a", "X-Cookie: a", "Accept: cookie: a", "A:"] {
            assert!(!has(line), "{line}");
        }
    }

    #[test]
    fn marks_are_whole_lines() {
        let head = b"GET / HTTP/1.1\r\nHost: x\r\nCDN-Loop: a; b\r\nX: via\r\nvia: 1.1 a\r\n\r\n\
            Via: behind\r\n";
        let mut fields = Fields::default();
        parse_get(head, &mut fields).expect("a request");
        assert_eq!(marks(head, &fields), b"CDN-Loop: a; b\r\nvia: 1.1 a\r\n");
    }

    #[test]
    fn a_query_is_used_when_it_is_asked_for_again_and_again() {
        let mut rehearsal = Rehearsal::default();
        assert!((0..1_000).all(|n| !rehearsal.is_repeated(format!("/?{n}").as_bytes())));
        let often: Vec<_> = (0..40)
            .map(|n| {
                n % 3 > 0 && rehearsal.is_repeated(b"/?a")
                    || n % 3 == 0 && rehearsal.is_repeated(b"/?b")
            })
            .collect();
        assert!(often.iter().any(|is| *is));
    }
}
