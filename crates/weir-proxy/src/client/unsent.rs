//! The bytes that a client has not taken, by which its sources and its own requests are stopped
//! ([`HIGH_BYTES`], docs/buffers.md): the output, the responses that wait for their turn, and the
//! bytes that are being encoded or wait for that.

use super::connection::ClientConn;
use super::connections::Connections;
use crate::base::keys::ClientKey;
use crate::base::output::HIGH_BYTES;
use crate::plan::ClientPlan;

/// Bytes of responses that a client has not taken.
pub(super) fn unsent(conns: &Connections, index: ClientKey) -> usize {
    unsent_first(conns, index) + conns.at(index).codec.held_bytes()
}

/// The same without those that wait for their turn: only this part can shrink before the first
/// response is complete.
pub(super) fn unsent_first(conns: &Connections, index: ClientKey) -> usize {
    let conn = conns.at(index);
    conn.outgoing() + coding(conns, conn)
}

/// Bytes of the first response that are being encoded or wait for that.
pub(super) fn coding(conns: &Connections, conn: &ClientConn) -> usize {
    conns.current(conn).map_or(0, |first| first.reply.coding())
}

/// Whether another request of a client may be taken now.
pub(super) fn may_ask(conns: &Connections, index: ClientKey, plan: &ClientPlan) -> bool {
    conns.at(index).codec.requests() < plan.requests_queued_max && unsent(conns, index) < HIGH_BYTES
}
