//! Several requests at once are tried with requests of weir's own before anybody's depend on it (stage schedule).
//!
//! That a server answers one request after the other says nothing about several that come together: some execute the first or the last of
//! them only, some die. So a server that has given enough clean answers ([`Trust::wants_rehearsal`](crate::upstream::trust::Trust)) gets GET,
//! HEAD and GET of one target in one send, on a connection that nobody else uses meanwhile. All three have to be answered within
//! [`REHEARSAL_US`], in order and framed right, and the connection has to stay. The target is one of an even class
//! ([`crate::upstream::class`]) that a client was just given with 200, without credentials; if it was asked for with a cookie or has a query or a segment that looks made up, so that it may be meant for one client, only when
//! it was asked for again and again. weir asks without the cookie. `pipeline rehearse=` names another one. What can't be rehearsed is not pipelined. Bound: one a server and worker at a
//! time, a target of [`TARGET_BYTES_MAX`]. docs/pipelining.md#rehearsal

use super::agenda::Ending;
use super::doubts::doubt_everywhere;
use super::left::look_at;
use super::lost::Loss;
use super::pool::Pool;
use super::send::Outbox;
use crate::base::keys::{ConnKey, ServerIndex};
use crate::context::Context;
use crate::cross::doubt::Doubt;
use crate::ending::UpstreamEnd;
use crate::request::pending_request::{PendingRequest, RequestFlags};
use crate::upstream::class::is_plain;
use crate::upstream::entry::Entry;

/// How long each answer may take.
pub(super) const REHEARSAL_US: u64 = 10_000_000;
/// A longer target, or Host, is not asked for.
const TARGET_BYTES_MAX: usize = 1024;
/// Nor one whose answer is longer.
const BODY_BYTES_MAX: u64 = 64 * 1024;
/// How often a target with a query has to be asked for, beyond how often others are.
const REPEATED_MIN: u32 = 8;
/// Rehearsals that came to nothing, because the server announced the end of the connection or weir had to end it, before they count as
/// failed.
const BARREN_MAX: u8 = 4;

/// What a server is rehearsed with, and whether it is now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rehearsal {
    /// The target that was asked for most often of late, hashed, and how often beyond others.
    asked: (u64, u32),
    /// The target and Host to ask for, and a request that had them.
    found: Option<Box<Found>>,
    under_way: bool,
    barren: u8,
}

#[derive(Debug, Clone)]
struct Found {
    target: Vec<u8>,
    host: Vec<u8>,
    /// The lines by which weir knows its own requests again.
    marks: Vec<u8>,
    like: PendingRequest,
}

impl Rehearsal {
    /// Whether answers are looked at for a target.
    fn seeks(&self) -> bool {
        self.found.is_none() && !self.under_way
    }

    /// A target was asked for. Whether it is asked for often.
    fn is_repeated(&mut self, target: &[u8]) -> bool {
        let hash = target
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        match &mut self.asked {
            (known, often) if *known == hash => *often += 1,
            (_, often) if *often > 0 => *often -= 1,
            asked => *asked = (hash, 1),
        }
        self.asked.0 == hash && self.asked.1 >= REPEATED_MIN
    }
}

/// A request was answered on a connection of a server that wants a rehearsal, `body_bytes` in the body: it may be one to rehearse with.
#[cold]
pub(super) fn offer(index: ConnKey, entry: &Entry, body_bytes: u64, pool: &mut Pool, cx: &Context) {
    let conn = pool.conns.at(index);
    let machine = &mut pool.servers[conn.server];
    let traits = entry.ask.traits;
    let usual = traits.has(RequestFlags::PIPELINABLE) && traits.has(RequestFlags::RETRIABLE);
    let odd =
        traits.has(RequestFlags::LAST) || traits.has(RequestFlags::QUARANTINED) || traits.has(RequestFlags::TRIAL);
    if !machine.learned.rehearsal.seeks() || !usual || odd || entry.is_copy || conn.reply.status >= 500 {
        return;
    }
    let like = PendingRequest { traits: RequestFlags::PIPELINABLE.with(RequestFlags::RETRIABLE, true), ..entry.ask };
    let bytes = conn.log.copy(entry.start, entry.len as usize);
    let Some((target, host)) = parts(&bytes) else { return };
    let named = cx.plan.upstreams[usize::from(machine.upstream)].sharing.rehearse.as_deref();
    let target = match named {
        Some(named) => named.as_bytes(),
        None if conn.reply.status != 200 || body_bytes > BODY_BYTES_MAX || target.len() > TARGET_BYTES_MAX => return,
        // What takes long, or is hardly asked for, would say that the server bears less than it does.
        None if !machine.learned.classes.is_alike(entry.ask.class) => return,
        None if has_field(&bytes, &["authorization", "range"]) => return,
        None => {
            let may_be_for_one = target.contains(&b'?') || !is_plain(target) || has_field(&bytes, &["cookie"]);
            if may_be_for_one && !machine.learned.rehearsal.is_repeated(target) {
                return;
            }
            target
        }
    };
    let found = Found { target: target.to_vec(), host: host.to_vec(), marks: marks(&bytes), like };
    machine.learned.rehearsal.found = Some(Box::new(found));
}

/// The target and Host of a GET.
fn parts(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut lines = bytes.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let target = lines.next()?.strip_prefix(b"GET ")?.strip_suffix(b" HTTP/1.1")?;
    let host = lines.take_while(|line| !line.is_empty()).find_map(|line| value(line, "host"))?;
    (target.starts_with(b"/") && host.len() <= TARGET_BYTES_MAX).then_some((target, host))
}

/// The lines of a head by which weir knows a request again that has come back.
fn marks(bytes: &[u8]) -> Vec<u8> {
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').take_while(|line| *line != b"\r\n");
    let is_mark = |line: &&[u8]| ["via", "cdn-loop"].iter().any(|name| value(line, name).is_some());
    lines.filter(is_mark).flatten().copied().collect()
}

/// Whether a head has one of these fields.
fn has_field(bytes: &[u8], names: &[&str]) -> bool {
    let mut lines = bytes.split(|byte| *byte == b'\n').skip(1).take_while(|line| !matches!(line, [] | [b'\r']));
    lines.any(|line| names.iter().any(|name| value(line, name).is_some()))
}

/// The value of a line if it is of this field.
fn value<'a>(line: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let (found, value) = line.split_at_checked(name.len())?;
    let value = value.strip_prefix(b":")?;
    found.eq_ignore_ascii_case(name.as_bytes()).then(|| value.trim_ascii())
}

/// A connection has run empty whose server wants a rehearsal: begins it there if a target is known.
#[cold]
pub(super) fn begin(index: ConnKey, pool: &mut Pool, outbox: &mut Outbox, cx: &mut Context) {
    let conn = pool.conns.at_mut(index);
    let server = conn.server;
    let machine = &mut pool.servers[server];
    let free = conn.is_ready() && conn.reply.persist && conn.entries.is_empty() && conn.owner.is_none();
    let fit = free && !conn.rest.syncing && !conn.room.leaves && !conn.out.sending && conn.unsent() == 0;
    // Nobody waits for that.
    let needed = machine.kept == Some(conn.position)
        || !machine.waiting.is_calm() && !machine.may_grow(false)
        || machine.load() + 3 > machine.capacity;
    if !fit || needed || machine.learned.rehearsal.under_way || !machine.standing.takes_new() {
        return;
    }
    let Some(found) = machine.learned.rehearsal.found.take() else { return };
    machine.learned.rehearsal.under_way = true;
    let echo = cx.plan.upstreams[usize::from(machine.upstream)].echo.clone();
    (conn.wait.rehearses, conn.rest.unseen) = (true, false);
    conn.gate.hold = true;
    for (method, is_head) in [("GET", false), ("HEAD", true), ("GET", false)] {
        let ask = PendingRequest { traits: found.like.traits.with(RequestFlags::HEAD, is_head), ..found.like };
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
        pool.push(index, ask, start, cx);
        if let Some(copy) = pool.conns.at_mut(index).entries.back_mut() {
            (copy.cancelled, copy.is_copy) = (true, true);
        }
    }
    pool.servers[server].stats.rehearsals.add(1);
    look_at(index, cx.now_us + REHEARSAL_US, pool, cx);
    outbox.mark(index, pool.conns.at_mut(index));
}

/// All of a rehearsal was answered: the server may be pipelined.
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

/// A rehearsal takes too long. How its connection ends.
pub(super) fn took_too_long() -> Ending {
    Ending::ours(UpstreamEnd::Doubt(Doubt::FailsRehearsal))
}

/// The connection of a rehearsal has ended before all was answered.
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
    //! Proves: what is asked for in a rehearsal is a target that anybody may ask for again. How: tables.

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
            assert_eq!(parts(bytes.as_bytes()), expected, "{bytes:?}");
        }
    }

    #[test]
    fn fields_are_found_by_their_names() {
        let names = ["cookie", "authorization"];
        let head = |line: &str| format!("GET / HTTP/1.1\r\nHost: x\r\n{line}\r\n\r\nCookie: behind the head");
        for line in ["Cookie: a=b", "cookie:", "AUTHORIZATION: Basic x"] {
            assert!(has_field(head(line).as_bytes(), &names), "{line}");
        }
        for line in ["Cookies: a", "X-Cookie: a", "Accept: cookie: a", "A:"] {
            assert!(!has_field(head(line).as_bytes(), &names), "{line}");
        }
    }

    #[test]
    fn marks_are_whole_lines() {
        let head = b"GET / HTTP/1.1\r\nHost: x\r\nCDN-Loop: a; b\r\nX: via\r\nvia: 1.1 a\r\n\r\nVia: behind\r\n";
        assert_eq!(marks(head), b"CDN-Loop: a; b\r\nvia: 1.1 a\r\n");
    }

    #[test]
    fn a_query_is_used_when_it_is_asked_for_again_and_again() {
        let mut rehearsal = Rehearsal::default();
        assert!((0..1_000).all(|n| !rehearsal.is_repeated(format!("/?{n}").as_bytes())));
        let often: Vec<_> = (0..40)
            .map(|n| n % 3 > 0 && rehearsal.is_repeated(b"/?a") || n % 3 == 0 && rehearsal.is_repeated(b"/?b"))
            .collect();
        assert!(often.iter().any(|is| *is));
    }
}
