//! Clients that speak HTTP/2: their connections and streams ([`streams`]), what their frames mean for requests ([`read`]), and frames and
//! timers towards them ([`write`]). What is said of a request and its answer elsewhere holds for a stream, which is a `ClientConn` without
//! a socket. The machine without sockets is `weir_http::h2`.

pub(super) mod read;
pub(super) mod streams;
pub(super) mod write;
