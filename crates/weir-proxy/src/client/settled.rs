//! The path of a request as all code sees it (stage parse): without dot segments, and with one
//! slash at its beginning.
//!
//! Called by `Clients::request_parsed` before anything looks at a request, so that bans, limits,
//! routes, rules, cache, log and server all have the same bytes. Calls
//! [`settled`](crate::request::route::path::settled). Paths of the forward proxy belong to
//! strangers and are left unchanged, as are all paths if nothing in the plan reads paths. Bound:
//! one copy of the head.

use weir_http::RequestHead;

use crate::client::connection::ClientConn;
use crate::plan::Plan;
use crate::request::route::path::settled;

/// Returns the head with another path, and its bytes with one byte of those behind them, if any;
/// None: the path is left unchanged.
#[inline]
pub(super) fn settle(
    conn: &ClientConn,
    head: &RequestHead,
    bytes: &[u8],
    plan: &Plan,
    scratch: &mut Vec<u8>,
) -> Option<(RequestHead, Vec<u8>)> {
    let path = settled(head.path.of(bytes), scratch)?;
    (!conn.flags.proxied && plan.reads_paths()).then(|| head.with_path(bytes, &path))
}
