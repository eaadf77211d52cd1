//! Clients that speak HTTP/2: their connections and streams ([`streams`]), the effect of their
//! frames on requests ([`read`]), and frames and timers towards them ([`write`]). Statements
//! elsewhere about a request and its response hold for a stream, which is a `ClientConn` without a
//! socket. The machine without sockets is `weir_http::h2`.

pub(super) mod read;
pub(super) mod streams;
pub(super) mod write;
