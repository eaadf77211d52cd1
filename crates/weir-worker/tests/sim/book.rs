//! All requests of a run, the responses that are due, and the outcomes: the memory that clients and
//! servers of a run share.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use weir_check::upstreams::STRAY;
use weir_check::{Body, End, Reply, Request};
use weir_io::sim::Rng;

use super::through::Journeys;

/// weir holds bodies up to this size before it forwards their request.
pub const GATHER_BYTES_MAX: usize = 64 * 1024;

/// Most times that servers may see one request, whatever the reasons.
const ARRIVALS_MAX: usize = 40;

/// The fault whose response is followed by a stray interim response.
const STRAY_ROW: &str = "e7_hints_behind";

/// The book that all parties of one run write to.
pub type SharedBook = Rc<RefCell<Book>>;

/// Every request of a run, by nonce.
#[derive(Default)]
pub struct Book {
    pub entries: BTreeMap<String, Entry>,
    /// Promises that were broken, in words.
    pub violations: Vec<String>,
    /// Clients that have nothing more to do.
    pub clients_done: usize,
    /// Final responses that servers have begun.
    pub answers: u64,
    /// Most requests that a server saw unanswered on one connection.
    pub depth_max: usize,
    /// The most that were unanswered at one server.
    pub at_once_max: usize,
    /// How often weir may send a request again after a failure; None: not judged.
    pub tries_max: Option<u32>,
    /// Bytes that the parties of the run sent and received.
    pub traffic: Traffic,
    /// Responses to the wrong asker are recorded in `misdelivered` and are no violation.
    pub collects_misdelivered: bool,
    pub misdelivered: Vec<Misdelivered>,
    /// Faults that servers played: how often, and how often with requests pipelined behind.
    pub played: BTreeMap<String, Played>,
    /// Requests that each server got, besides probes; and probes.
    pub arrivals: BTreeMap<usize, u64>,
    pub probes: BTreeMap<usize, u64>,
    /// By server: the cookie that binds a session to it. Empty: there are none.
    pub cookies: Vec<String>,
    /// Requests of sessions reach their server and no other.
    pub keeps_sessions: bool,
    /// Where each client was going, in a world whose clients are redirected to weir on their way.
    pub journeys: Option<Journeys>,
    /// The codes of each GOAWAY that clients of HTTP/2 got.
    pub goaways: Vec<u32>,
    /// Connections of HTTP/2 that were ended within a frame.
    pub cut_frames: u64,
    /// Some of these clients misbehave.
    pub has_offenders: bool,
    /// `retry-nonidempotent`: every request may be repeated whose body is held.
    pub repeats_all: bool,
}

/// Bytes that passed between weir and the others, as the others saw it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    pub clients_sent: u64,
    pub clients_got: u64,
    pub servers_sent: u64,
    pub servers_got: u64,
}

/// A response that came to the wrong asker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misdelivered {
    pub nonce: String,
    /// The nonce that it carried.
    pub got: String,
}

/// How often a fault was played.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Played {
    pub times: u64,
    /// With requests of others unanswered behind it on the same connection.
    pub followed: u64,
}

/// One request.
pub struct Entry {
    pub asked: Asked,
    pub arrivals: Vec<Arrival>,
    /// The server to which its cookie binds it.
    pub bound: Option<usize>,
    /// Server connections that broke while it was unanswered on them: each counts as a try.
    pub broken: u32,
    pub outcome: Outcome,
    /// The client has seen bytes of the response.
    pub delivered: bool,
    /// For triggers: when the script first sent something.
    pub said_us: Option<u64>,
    /// Until when the script of a trigger sends nothing more once it was delivered, in world time.
    pub quiet_until_us: u64,
    /// For triggers: the client's replies, for the row to judge.
    pub replies: Vec<Reply>,
    /// For triggers: how the connection ended.
    pub end: Option<End>,
}

/// A request of a client.
#[derive(Clone, Debug)]
pub struct Asked {
    pub nonce: String,
    pub method: &'static str,
    pub conditional: bool,
    pub body: Vec<u8>,
    /// The hostile script that plays instead of an honest response.
    pub trigger: Option<String>,
}

/// A request as a server saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The connection had announced its end before: the server has not acted on the request.
    pub ignored: bool,
    /// The server, and the other end of the connection.
    pub by: (usize, SocketAddr),
}

/// The outcome for the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Waiting,
    /// Its own response, complete.
    Answered,
    /// An error of weir.
    Refused(u16),
    /// The connection ended before, or the client left.
    Cut,
    /// The client has reset its stream and keeps its connection.
    GivenUp,
}

/// The response of an honest server. It depends on the request alone, so that it may come from any
/// server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expected {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Expected {
    /// The response of an ill server.
    pub fn ill() -> Expected {
        Expected { status: 503, body: b"ill".to_vec() }
    }
}

impl Asked {
    /// May be sent again after a loss (docs/connections.md, docs/retries.md: safe or idempotent).
    /// weir must also still hold its body.
    pub fn is_idempotent(&self) -> bool {
        matches!(self.method, "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE")
    }

    /// Its body is too large to be held: weir forwards it as it comes, and its loss ends the
    /// client's connection.
    pub fn is_streamed(&self) -> bool {
        self.body.len() >= GATHER_BYTES_MAX
    }

    pub fn expected(&self) -> Expected {
        let mut rng = Rng::new(self.nonce.bytes().fold(7, |sum, byte| sum * 31 + u64::from(byte)));
        let status = match rng.below(20) {
            0 => 204,
            1 | 2 if self.conditional => 304,
            3 => 404,
            4 => 500,
            _ => 200,
        };
        let length = match rng.below(100) {
            0..50 => rng.index(100),
            50..85 => rng.index(8 << 10),
            85..98 => rng.index(90 << 10),
            _ => rng.index(400 << 10),
        };
        let body =
            if status == 204 || status == 304 { Vec::new() } else { content(&self.nonce, length) };
        Expected { status, body }
    }
}

/// `answer NONCE ` and bytes that depend on the nonce and their position.
fn content(nonce: &str, length: usize) -> Vec<u8> {
    let mut body = format!("answer {nonce} ").into_bytes();
    let step = nonce.bytes().fold(1_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    body.extend((0..length).map(|at| (at as u8).wrapping_mul(step) ^ (at >> 8) as u8));
    body
}

impl Book {
    pub fn ask(&mut self, asked: Asked) {
        let outcome = Outcome::Waiting;
        let (arrivals, replies) = (Vec::new(), Vec::new());
        let entry = Entry {
            asked,
            arrivals,
            bound: None,
            broken: 0,
            outcome,
            delivered: false,
            said_us: None,
            quiet_until_us: 0,
            replies,
            end: None,
        };
        let nonce = entry.asked.nonce.clone();
        assert!(self.entries.insert(nonce, entry).is_none(), "nonces are unique");
    }

    pub fn violation(&mut self, text: String) {
        if self.violations.len() < 20 {
            self.violations.push(text);
        }
    }

    /// Records that a request brings this cookie.
    pub fn bind(&mut self, nonce: &str, cookie: &str) {
        let bound = self.cookies.iter().position(|one| one == cookie);
        match (self.entries.get_mut(nonce), bound) {
            (Some(entry), Some(_)) => entry.bound = bound,
            _ => self
                .violation(format!("{nonce} brings the cookie {cookie:?}, which is no server's")),
        }
    }

    /// Records that a probe reached a server.
    pub fn probed(&mut self, server: usize) {
        *self.probes.entry(server).or_default() += 1;
    }

    /// Records that the head of a request reached a server.
    pub fn arrived(
        &mut self,
        (server, peer): (usize, SocketAddr),
        request: &Request,
        ignored: bool,
    ) {
        *self.arrivals.entry(server).or_default() += 1;
        if request.fields.has("upgrade") {
            // Tunnels check themselves.
            return;
        }
        let Some(entry) = self.entries.get_mut(request.nonce()) else {
            return self.violation(format!(
                "a server got a request that nobody sent: {} {}",
                request.method, request.target
            ));
        };
        entry.arrivals.push(Arrival { ignored, by: (server, peer) });
        let journeys = self.journeys.as_ref();
        if let Some(Err(text)) =
            journeys.map(|journeys| journeys.arrived(request.nonce(), (server, peer)))
        {
            return self.violation(text);
        }
        let Some(entry) = self.entries.get_mut(request.nonce()) else { return };
        let keeps_session = !self.keeps_sessions || entry.bound.is_none_or(|bound| bound == server);
        let bound = entry.bound;
        if !keeps_session {
            return self.violation(format!(
                "{} is bound to server {bound:?} and came to {server}",
                request.nonce()
            ));
        }
        if entry.arrivals.len() > ARRIVALS_MAX
            || self.tries_max.is_some_and(|most| entry.broken > most)
        {
            let (times, broken) = (entry.arrivals.len(), entry.broken);
            let text = format!(
                "{} reached servers {times} times, {broken} connections broke with it",
                request.nonce()
            );
            return self.violation(text);
        }
        if entry.asked.method != request.method {
            let text = format!("{} became {}", entry.asked.method, request.method);
            self.violation(text);
        } else if !(entry.asked.is_idempotent() || self.repeats_all && !entry.asked.is_streamed()) {
            let acted = entry.arrivals.iter().filter(|arrival| !arrival.ignored).count();
            if acted > 1 {
                let text =
                    format!("{} {} reached servers {acted} times", request.method, request.nonce());
                self.violation(text);
            }
        }
    }

    /// Records that a server's connection broke while these requests were unanswered on it.
    pub fn broke<'a>(&mut self, nonces: impl Iterator<Item = &'a str>) {
        for nonce in nonces {
            if let Some(entry) = self.entries.get_mut(nonce) {
                entry.broken += 1;
            }
        }
    }

    /// Records that a server played a fault.
    pub fn plays(&mut self, id: &str, followed: bool) {
        let played = self.played.entry(id.to_owned()).or_default();
        played.times += 1;
        played.followed += u64::from(followed);
    }

    /// Records that the script of a trigger sends something.
    pub fn said(&mut self, nonce: &str, now_us: u64) {
        if let Some(entry) = self.entries.get_mut(nonce) {
            entry.said_us.get_or_insert(now_us);
        }
    }

    /// Records that the server announced that it does not act on a request that it has received
    /// already.
    pub fn ignored(&mut self, nonce: &str) {
        if let Some(arrival) =
            self.entries.get_mut(nonce).and_then(|entry| entry.arrivals.last_mut())
        {
            arrival.ignored = true;
        }
    }

    /// Records that all of a request reached a server.
    pub fn arrived_completely(&mut self, request: &Request) {
        let Some(entry) = self.entries.get(request.nonce()) else { return };
        let sent = Body::of(&entry.asked.body);
        if (request.body.length, request.body.sum) != (sent.length, sent.sum) {
            let text = format!(
                "the body of {} came as {} B, not {} B",
                request.nonce(),
                request.body.length,
                sent.length
            );
            self.violation(text);
        }
    }

    /// Records that a client got the reply at its turn. Judges whether it is its own.
    pub fn replied(&mut self, nonce: &str, reply: &Reply) {
        if reply.interim.contains(&STRAY) && !self.asked_for_stray(nonce) {
            return self.violation(format!("{nonce} got an interim answer that is for nobody"));
        }
        let Some(entry) = self.entries.get_mut(nonce) else { return };
        entry.delivered = true;
        if entry.asked.trigger.is_some() {
            entry.replies.push(reply.clone());
            entry.outcome = Outcome::Answered;
            return;
        }
        let verdict = match reply.fields.all("x-nonce").as_slice() {
            [] => Ok(Outcome::Refused(reply.status)),
            [own] if *own == nonce => judge_own(&entry.asked, reply).and_then(|outcome| {
                judge_binding(&self.cookies, entry.bound, reply).map(|()| outcome)
            }),
            others if self.collects_misdelivered => {
                entry.outcome = Outcome::Answered;
                let (nonce, got) = (nonce.to_owned(), others.join(","));
                return self.misdelivered.push(Misdelivered { nonce, got });
            }
            others => Err(format!("{nonce} got the answer of {others:?}")),
        };
        match verdict {
            Ok(outcome) => entry.outcome = outcome,
            Err(text) => self.violation(text),
        }
    }

    /// Whether the client of this request caused a stray interim response on the same server
    /// connection. weir drops those that may be meant for another client, and only those
    /// (docs/pipelining.md, interim answers).
    fn asked_for_stray(&self, nonce: &str) -> bool {
        let Some(asked) = self.entries.get(nonce) else { return false };
        let client = &nonce[..4];
        let of_client = self
            .entries
            .range(client.to_owned()..)
            .take_while(|(other, _)| other.starts_with(client));
        let mut strays =
            of_client.filter(|(_, entry)| entry.asked.trigger.as_deref() == Some(STRAY_ROW));
        let meets = |arrival: &Arrival| asked.arrivals.iter().any(|own| own.by == arrival.by);
        strays.any(|(_, entry)| entry.arrivals.iter().any(meets))
    }
}

/// A response carries a cookie exactly when it comes from another server than the one to which the
/// request was bound.
fn judge_binding(cookies: &[String], bound: Option<usize>, reply: &Reply) -> Result<(), String> {
    let by = reply.fields.first("x-server").and_then(|server| server.parse::<usize>().ok());
    let expected =
        by.filter(|by| bound != Some(*by)).and_then(|by| cookies.get(by)).map(String::as_str);
    let got = reply.fields.first("set-cookie").and_then(|cookie| cookie.split(['=', ';']).nth(1));
    if got == expected {
        Ok(())
    } else {
        Err(format!("bound to {bound:?}, answered by {by:?}, got the cookie {got:?}"))
    }
}

/// Checks that the reply is the complete honest response to this request, or that of an ill server.
fn judge_own(asked: &Asked, reply: &Reply) -> Result<Outcome, String> {
    let ill = reply.fields.has("x-ill");
    let expected = if ill { Expected::ill() } else { asked.expected() };
    let body = if asked.method == "HEAD" { Body::default() } else { Body::of(&expected.body) };
    let nonce = &asked.nonce;
    if reply.status != expected.status {
        return Err(format!("{nonce} got status {} instead of {}", reply.status, expected.status));
    }
    if (reply.body.length, reply.body.sum) != (body.length, body.sum) {
        return Err(format!(
            "{nonce} got {} B of body instead of {} B",
            reply.body.length, body.length
        ));
    }
    Ok(Outcome::Answered)
}
