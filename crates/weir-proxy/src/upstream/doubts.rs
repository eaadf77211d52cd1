//! Doubts: something on a connection can't be, or was not asked for. The server may lose its trust,
//! all workers hear of it, and the connection ends; how it does is said to whoever reads from it
//! (docs/pipelining.md, docs/connections.md#trust-in-a-server).
//!
//! Doubt ends a connection, and only it: everything before it is delivered, nothing after it is
//! used, requests that waited behind are sent again if they may be (RFC 9112 §9.2, §9.3.1-2).

use weir_http::{Fields, ReplyContext};

use super::Upstreams;
use super::agenda::Ending;
use super::lost::Loss;
use super::pool::{Pair, Pool};
use crate::base::keys::{ConnKey, ServerIndex};
use crate::context::Context;
use crate::cross::answer::mark_of;
use crate::cross::doubt::Doubt;
use crate::cross::mail::Mail;
use crate::cross::verdict::Verdict;
use crate::ending::UpstreamEnd;
use crate::observe::server_event::What;

/// Something that can't be, on a connection: its server may lose its trust. How it ends.
pub(super) fn on_doubt(index: ConnKey, doubt: Doubt, pool: &mut Pool, cx: &mut Context) -> Ending {
    if doubt.is_out_of_step() {
        withdraw_stored(index, pool, cx);
    }
    doubt_everywhere(pool.conns.at(index).server, Some(doubt), pool, cx);
    let conn = pool.conns.at(index);
    let fresh = conn.history.answers == 0;
    let tries = conn.entries.front().map_or(0, |entry| entry.ask.tries);
    let loss = if matches!(doubt, Doubt::EarlyAnswer | Doubt::Misframing | Doubt::OvertakingError) {
        Loss::Broken
    } else if fresh || tries > 0 || doubt == Doubt::EchoMismatch || conn.reply.begun {
        Loss::BadAnswer
    } else {
        // It may be the tail of the answer before: the oldest request is asked again, alone on a
        // new connection.
        Loss::Broken
    };
    Ending { loss, why: UpstreamEnd::Doubt(doubt) }
}

/// Bytes on a connection on which nothing is asked (RFC 9112 §9.2: never an answer). How it ends.
pub(super) fn on_unasked(
    index: ConnKey,
    bytes: &[u8],
    pool: &mut Pool,
    cx: &mut Context,
) -> Ending {
    let conn = pool.conns.at(index);
    let farewell = bytes.starts_with(b"HTTP/1.") && bytes.get(8..12) == Some(b" 408");
    let blank = bytes.len() <= 4 && bytes.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
    if farewell || blank {
        // Some servers say 408 before they close an idle connection; a stray empty line is
        // harmless.
        return Ending::ours(UpstreamEnd::IdleClose);
    }
    let otherwise = match conn.ended_bodyless() {
        true => Doubt::ForbiddenBody,
        // Right behind it: later bytes may be a farewell.
        false if conn.ended_measured() && conn.history.answered_us == cx.now_us => {
            Doubt::Misframing
        }
        false => Doubt::Garbage,
    };
    on_surplus(index, bytes, otherwise, pool, cx)
}

/// Something came behind a response that was not requested: an answer too many, or what these bytes
/// are; `otherwise` if they don't tell. Returns how the connection ends.
pub(super) fn on_surplus(
    index: ConnKey,
    bytes: &[u8],
    otherwise: Doubt,
    pool: &mut Pool,
    cx: &mut Context,
) -> Ending {
    withdraw_stored(index, pool, cx);
    let pair = pool.pair(index);
    let doubt = pair.name_surplus(bytes, otherwise, cx);
    doubt_everywhere(pair.conn.server, doubt, pool, cx);
    Ending { loss: Loss::Orderly, why: doubt.map_or(UpstreamEnd::Surplus, UpstreamEnd::Doubt) }
}

/// The responses of a connection may belong to others: they are no longer stored for later use, nor
/// is the part that waits to be stored. This applies to all of it, also from before it last ran
/// empty for what seemed long enough: a server that took longer for the response that it still owed
/// has been out of step since before.
fn withdraw_stored(index: ConnKey, pool: &Pool, cx: &Context) {
    if let Some(store) = &cx.cache {
        store.withdraw(mark_of(pool.conn_id(index, cx), 0));
    }
}

/// Counts a doubt, lets the server's trust know, and the other workers. None is an answer too many.
pub(super) fn doubt_everywhere(
    server: ServerIndex,
    doubt: Option<Doubt>,
    pool: &mut Pool,
    cx: &mut Context,
) {
    pool.doubt_server(server, doubt, cx);
    cx.tell_all_doubt(server, doubt);
}

/// A server is not pipelined until an operator clears it: restarting workers, and the program, know
/// of it from now on.
fn note_verdict(server: ServerIndex, verdict: Verdict, pool: &mut Pool, cx: &Context) {
    pool.hints.set_verdict(server, Some(verdict));
    pool.events.note(server, What::Judged(verdict), cx);
}

/// Another worker has come to this verdict on a server, or weir did before its restart. An unknown
/// server is ignored.
#[cold]
pub(crate) fn restore(
    server: ServerIndex,
    verdict: Verdict,
    all: &mut Upstreams,
    cx: &mut Context,
) {
    let pool = &mut all.pool;
    if pool.servers.get(server).is_some() && pool.servers[server].learned.trust.restore(verdict) {
        note_verdict(server, verdict, pool, cx);
        pool.refresh_conns(server, cx);
    }
}

impl Pool {
    /// Recomputes what each connection of a server may take.
    pub(super) fn refresh_conns(&mut self, server: ServerIndex, cx: &Context) {
        let now_us = cx.now_us;
        for position in 0..self.servers[server].conns.len() {
            let index = self.servers[server].conns[position];
            let conn = self.conns.at_mut(index);
            self.servers[server].refresh(conn, now_us);
        }
    }

    /// Counts a doubt and lets the server's trust know. None is an answer too many.
    pub(super) fn doubt_server(
        &mut self,
        server: ServerIndex,
        doubt: Option<Doubt>,
        cx: &mut Context,
    ) {
        let demoted = self.distrust(server, doubt, cx);
        if demoted {
            let what = match (doubt, self.servers[server].learned.trust.verdict()) {
                (Some(doubt), Some(Verdict::Unfit(_))) => What::Unfit(doubt),
                (doubt, _) => doubt.map_or(What::Surplus, What::Demoted),
            };
            self.events.note(server, what, cx);
        }
        let stats = &self.servers[server].stats;
        match doubt {
            Some(doubt) => {
                cx.counters.demotions.add(demoted.into());
                stats.demotions.add(demoted.into());
                cx.counters.doubt(doubt);
                stats.doubt(doubt);
            }
            None => {
                cx.counters.surplus.add(1);
                stats.surplus.add(1);
            }
        }
    }

    /// Informs the server's trust of a doubt, here or at another worker, which counts it. True when
    /// it falls back to depth 1.
    pub(crate) fn distrust(
        &mut self,
        server: ServerIndex,
        doubt: Option<Doubt>,
        cx: &mut Context,
    ) -> bool {
        let now_us = cx.now_us;
        let learned = &mut self.servers[server].learned;
        learned.strays |= doubt == Some(Doubt::ForbiddenBody);
        let trust = &mut learned.trust;
        let demoted = match doubt {
            Some(doubt) => trust.on_doubt(now_us, doubt),
            None => trust.on_surplus(),
        };
        if let Some(verdict) = trust.verdict().filter(|_| demoted) {
            note_verdict(server, verdict, self, cx);
            // Others may have seen less of it. What follows from an answer too many they know.
            if matches!(verdict, Verdict::Unfit(_)) {
                cx.tell_all(|| Mail::Verdict { server, verdict });
            }
        }
        self.refresh_conns(server, cx);
        if doubt == Some(Doubt::CutsShort) {
            self.hurry_silent(server, cx);
        }
        demoted
    }
}

impl Pair<'_> {
    /// Returns what unrequested bytes are: an answer too many (None), the beginning of one, or
    /// `otherwise`.
    fn name_surplus(&self, bytes: &[u8], otherwise: Doubt, cx: &Context) -> Option<Doubt> {
        let Pair { conn, server } = self;
        let plan = &cx.plan.upstreams[usize::from(server.upstream)];
        match weir_http::parse_reply(
            bytes,
            &plan.head,
            ReplyContext::default(),
            &mut Fields::default(),
        ) {
            // A farewell is for no particular request; a whole response belongs to one.
            Ok(Some(head)) if head.status < 200 || head.status >= 400 && !head.persist => {
                Some(Doubt::AnswerToNothing)
            }
            Ok(Some(_)) => None,
            Ok(None) if bytes.is_empty() => Some(otherwise),
            Ok(None) if conn.history.pipelined && bytes.starts_with(b"HTTP/1.") => None,
            Ok(None) => Some(Doubt::AnswerToNothing),
            Err(_) => Some(otherwise),
        }
    }
}
