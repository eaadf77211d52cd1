//! Responses of hostile servers: rows E0 to E18, E21, E26 to E28 of docs/hostile.md as scripts,
//! each with its expected result.
//!
//! Called by machine tests (bytes into the engine) and by the end-to-end tests (a scripted server,
//! victims around the asker). A script is played for the *trigger* request alone; the same server
//! responds to every other request honestly, with the nonce that the request carries
//! ([`honest_answer`]), so a misplaced byte shows at a victim. Always expected: every victim gets
//! exactly one response, in order, with its own nonce. RFC 9112 §6.3, §9.2, §9.3;
//! docs/connections.md, docs/connections.md#trust-in-a-server.

mod rows;

use std::sync::LazyLock;

use crate::message::Reply;
use crate::replies::End;

/// One row: a request, the server's script, and the expected result.
#[derive(Debug, Clone)]
pub struct HostileUpstream {
    /// Letter and a few words, as a name: `e1_second_answer`.
    pub id: &'static str,
    /// The row of docs/hostile.md: `E1`.
    pub letter: &'static str,
    /// What the asker sends.
    pub trigger: Trigger,
    /// What the server does, in order.
    pub steps: Vec<Step>,
    /// What the asker must see.
    pub asker: Asker,
    /// The effect on the server's standing and on this connection.
    pub trust: Trust,
    /// How much may happen on the connection meanwhile.
    pub company: Company,
}

/// The request that the script is played for. Its target begins with `/trigger?n=NONCE`.
#[derive(Debug, Clone)]
pub struct Trigger {
    /// Its method.
    pub method: &'static str,
    /// The rest of its target.
    pub query: &'static str,
    /// Field lines besides Host, each with CRLF.
    pub fields: &'static str,
    /// The Content-Length that it declares, if any.
    pub declared: Option<u64>,
    /// Body bytes that the client sends before it waits for the response. Fewer than declared: it
    /// never sends the rest. They are then more than weir gathers before it sends a request to a
    /// server (64 KiB).
    pub body: Vec<u8>,
}

/// The steps of a scripted server. `{n}` in bytes stands for the nonce of the trigger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Writes these bytes with one call.
    Send(Vec<u8>),
    /// Waits until the asker has everything sent so far (its response, or for [`Asker::Leaves`] the
    /// first bytes).
    AwaitDelivered,
    /// Ends its direction of the connection, or all of it.
    Fin,
    /// Resets the connection.
    Rst,
}

/// What the asker must see. Statuses are alternatives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asker {
    /// A complete response with this status, this body (`{n}`: nonce) and the field `X-Nonce` with
    /// its nonce.
    Answer(u16, String),
    /// As `Answer`, or 502: the head already announces a body where none is allowed.
    AnswerOr502(u16, String),
    /// A complete error response of weir's own.
    Status(&'static [u16]),
    /// The response begins and is cut: the connection closes before its end. Or, if nothing was
    /// delivered, 502.
    Truncated,
    /// The asker resets its connection when the first bytes of the response have arrived.
    Leaves,
}

/// The effect on the connection that the script ran on, and on the server's standing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// No effect: the connection remains open.
    Kept,
    /// The connection remains open or ends; the server is not blamed.
    Either,
    /// The effect depends on the requests after the trigger.
    Any,
    /// weir closes the connection; the server is not blamed.
    Closed,
    /// weir closes the connection, and the server is at depth 1 for a time if others waited after
    /// the trigger.
    Rude,
    /// weir closes the connection and the server is at depth 1 for a time.
    Doubt,
    /// weir closes the connection and the server is not pipelined again.
    Surplus,
}

/// The circumstances under which HTTP lets a proxy notice the fault at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Company {
    /// Only when no other request is sent until the connection has ended: later bytes look like the
    /// next response.
    Alone,
    /// Also while others wait for their turn on a connection at depth 1.
    Queued,
    /// Also with requests of others pipelined before and after the trigger.
    Pipelined,
}

/// A server that closes its connections after a fixed number of responses, whatever else was sent
/// to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closing {
    /// Letter and a few words.
    pub id: &'static str,
    /// The row of the catalogue.
    pub letter: &'static str,
    /// Responses on each connection before it ends.
    pub answers: usize,
    /// How it ends.
    pub how: Ending,
}

/// How a server ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Ends its direction, after reading everything that came.
    Fin,
    /// Resets.
    Rst,
    /// Sends half of the next response first.
    HalfAnswer,
    /// Closes with requests unread in its socket, so that its kernel answers them with a reset.
    Unread,
    /// Announces `Connection: close` in its last response.
    Announced,
}

/// What the asker saw, to be judged.
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'a> {
    /// The nonce of the trigger.
    pub nonce: &'a str,
    /// Complete responses.
    pub replies: &'a [Reply],
    /// How the connection ended, if it did.
    pub end: Option<&'a End>,
}

impl Asker {
    /// Judges what the asker saw.
    ///
    /// # Errors
    /// The difference from the expectation.
    pub fn check(&self, seen: Outcome<'_>) -> Result<(), String> {
        let cut = matches!(seen.end, Some(End::Truncated(_)));
        match (self, seen.replies) {
            (Asker::AnswerOr502(..), [reply]) if !cut && reply.status == 502 => own_error(reply),
            (Asker::Answer(status, body) | Asker::AnswerOr502(status, body), [reply]) if !cut => {
                let body = body.replace("{n}", seen.nonce);
                let own = reply.fields.all("x-nonce") == [seen.nonce];
                match reply.status == *status && reply.body.text() == body && own {
                    true => Ok(()),
                    false => Err(format!("expected {status} with body {body:?}, got {reply:?}")),
                }
            }
            (Asker::Status(statuses), [reply]) if !cut && statuses.contains(&reply.status) => {
                own_error(reply)
            }
            (Asker::Truncated, []) if cut => Ok(()),
            (Asker::Truncated, [reply]) if reply.status == 502 => own_error(reply),
            (Asker::Leaves, []) => Ok(()),
            _ => Err(format!("expected {self:?}, got {seen:?}")),
        }
    }
}

/// Checks that nothing from the server is in an error response.
fn own_error(reply: &Reply) -> Result<(), String> {
    match reply.fields.has("x-nonce") || reply.body.text().contains(SURPLUS) {
        true => Err(format!("an error reply with the server's bytes: {reply:?}")),
        false => Ok(()),
    }
}

/// Text that hostile servers send where nothing is allowed: a client that receives it was harmed.
pub const SURPLUS: &str = "SURPLUS";
/// Status of interim responses that belong to no request.
pub const STRAY: u16 = 199;

impl Trigger {
    /// The bytes of the request.
    pub fn bytes(&self, host: &str, nonce: &str) -> Vec<u8> {
        let length =
            self.declared.map(|length| format!("Content-Length: {length}\r\n")).unwrap_or_default();
        let Trigger { method, query, fields, .. } = self;
        let head = format!(
            "{method} /trigger?n={nonce}{query} HTTP/1.1\r\nHost: {host}\r\n{fields}{length}\r\n"
        );
        [head.as_bytes(), &self.body].concat()
    }

    /// Whether the client stops before the end of the body.
    pub fn is_incomplete(&self) -> bool {
        self.declared.unwrap_or_default() > self.body.len() as u64
    }
}

impl Step {
    /// Returns the bytes of a send with the nonce in place.
    pub fn bytes(template: &[u8], nonce: &str) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(template.len() + nonce.len());
        let mut rest = template;
        while let Some(at) = rest.windows(3).position(|window| window == b"{n}") {
            bytes.extend_from_slice(&rest[..at]);
            bytes.extend_from_slice(nonce.as_bytes());
            rest = &rest[at + 3..];
        }
        bytes.extend_from_slice(rest);
        bytes
    }
}

/// Returns the response of an honest server: the nonce in the field `X-Nonce` and in the body.
pub fn honest_answer(nonce: &str) -> Vec<u8> {
    let body = format!("answer {nonce}");
    format!("HTTP/1.1 200 OK\r\nX-Nonce: {nonce}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

/// Checks that a response is exactly that of [`honest_answer`] for this nonce.
///
/// # Errors
/// The difference.
pub fn check_honest(nonce: &str, reply: &Reply) -> Result<(), String> {
    let own =
        reply.fields.all("x-nonce") == [nonce] && reply.body.text() == format!("answer {nonce}");
    if own && reply.status == 200 && !reply.interim.contains(&STRAY) {
        Ok(())
    } else {
        Err(format!("nonce {nonce} got {reply:?}"))
    }
}

/// Made once: some scripts have a megabyte, and simulations look rows up all the time.
static ROWS: LazyLock<Vec<HostileUpstream>> = LazyLock::new(rows::all);

/// Every scripted row, in the order of the catalogue. Ids are unique.
pub fn catalogue() -> &'static [HostileUpstream] {
    &ROWS
}

/// The row with this id.
///
/// # Panics
/// No row has this id.
pub fn by_id(id: &str) -> &'static HostileUpstream {
    ROWS.iter().find(|row| row.id == id).unwrap_or_else(|| panic!("no row {id} in the catalogue"))
}

/// Servers that close: rows E18 and E27.
pub fn closings() -> Vec<Closing> {
    rows::closings()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StrictReplies;

    #[test]
    fn ids_are_unique_and_every_letter_is_there() {
        let mut ids: Vec<&str> = catalogue().iter().map(|row| row.id).collect();
        ids.extend(closings().iter().map(|row| row.id));
        ids.sort_unstable();
        let total = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), total);
        for letter in (0..=18).chain([27, 28]).map(|n| format!("e{n}_")) {
            assert!(ids.iter().any(|id| id.starts_with(&letter)), "no row of {letter}");
        }
    }

    /// A server that the catalogue blames sends what the judge of responses would reject, or an
    /// unsolicited response.
    #[test]
    fn blamed_scripts_are_faulty_by_the_judge_too() {
        for row in catalogue() {
            let mut judge = StrictReplies::new();
            judge.ask(row.trigger.method, false, row.trigger.fields.contains("Upgrade"));
            let sent: Vec<u8> = row.steps.iter().flat_map(sent_bytes).collect();
            let faulty = judge.feed(&sent).is_err()
                || judge.interim().len() > 32
                || judge.end() != End::Clean;
            let interim = judge.poll_reply().is_some_and(|reply| reply.interim.len() > 32);
            if matches!(row.trust, Trust::Doubt | Trust::Surplus) {
                assert!(faulty || interim, "{} is blamed for nothing", row.id);
            }
            if row.trust == Trust::Kept && row.letter != "E17" {
                assert!(!faulty, "{} is not blamed for a fault", row.id);
            }
        }
    }

    fn sent_bytes(step: &Step) -> Vec<u8> {
        match step {
            Step::Send(bytes) => Step::bytes(bytes, "00000007"),
            _ => Vec::new(),
        }
    }
}
