//! Room for new clients when descriptors are scarce: clients that have been without a request for
//! longest are closed (stage accept).
//!
//! Called when accepting was held back, and again as long as a client waits: so each call does the
//! least. Clients that have never sent a request are closed first, then those idle between two
//! requests, then those with an incomplete request for as long. No client is closed while a client
//! of an earlier kind exists, which will be idle long enough in a moment. Clients with anything
//! under way remain. Bound: one look at each connection in [`LOOK_US`].

use super::Clients;
use crate::base::keys::ClientKey;
use crate::client::connection::Reading;
use crate::client::connections::Connections;
use crate::client::http2::write::end_idle_http2;
use crate::context::Context;
use crate::ending::ClientEnd;

/// How long a client must have been without a request: one may be on its way.
const IDLE_US_MIN: u64 = 1_000_000;
/// Time between two looks; with many connections an eighth of a microsecond for each.
const LOOK_US: u64 = 10_000;
/// One of this many connections is closed at a time, at least one and at most [`GO_MAX`].
const SHARE: usize = 16;
const GO_MAX: usize = 1024;

/// Closes some idle clients, if any.
pub(crate) fn make_room(clients: &mut Clients, cx: &mut Context) {
    let conns = &clients.answers.conns;
    if cx.now_us < clients.room_us {
        return;
    }
    clients.room_us = cx.now_us + LOOK_US.max(conns.len() as u64 / 8);
    let ranked = |index| rank(conns, index).map(|(rank, since_us)| (rank, since_us, index));
    let mut idle: Vec<(Rank, u64, ClientKey)> = conns.conns.keys().filter_map(ranked).collect();
    let first = idle.iter().map(|(rank, ..)| *rank).min();
    idle.retain(|(rank, since_us, _)| Some(*rank) == first && since_us + IDLE_US_MIN <= cx.now_us);
    let count = (conns.len() / SHARE).clamp(1, GO_MAX).min(idle.len());
    idle.sort_unstable();
    for (_, _, index) in idle.into_iter().take(count) {
        match clients.answers.conns.carriers.get(index) {
            None => clients.answers.close_conn(index, ClientEnd::MadeRoom, cx),
            Some(_) => end_idle_http2(&mut clients.answers, index, ClientEnd::MadeRoom, cx),
        }
    }
}

/// The rank of a client, and since when it has had nothing under way. None: it remains.
fn rank(conns: &Connections, index: ClientKey) -> Option<(Rank, u64)> {
    let conn = conns.at(index);
    if conn.flags.sending {
        return None;
    }
    let rank = match conn.reading() {
        Reading::Head if !conn.codec.is_empty() || conn.stream.is_some() || conn.is_fetch() => {
            return None;
        }
        Reading::Head if conn.has_begun_request() => Rank::Begun,
        Reading::Head if conn.send_us > 0 => Rank::Rests,
        Reading::Head => Rank::Silent,
        Reading::Frames => match conns.carriers.get(index) {
            Some(streams) if !streams.all.is_empty() => return None,
            Some(streams) if streams.mux.is_greeted() => Rank::Rests,
            _ => Rank::Silent,
        },
        _ => return None,
    };
    Some((rank, conn.since_us))
}

/// The order in which clients are closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// It has never sent a request.
    Silent,
    /// It is idle between two requests.
    Rests,
    /// Part of a request has arrived.
    Begun,
}
