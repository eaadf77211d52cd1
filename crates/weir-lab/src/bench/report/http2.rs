//! How the experiment `http2` is shown: columns that only it has, and how it was measured.
//!
//! Called by `figures.rs`.

use super::numbers::number;
use crate::bench::experiment::cells::Load;
use crate::bench::record::http2::Stalled;
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::middle;

/// The text after the usual method.
pub(super) const METHOD: &str = "
HTTP/2. `weir bomb` sends requests on ten streams of each of 64 connections at a time. Header
blocks use only the static table of HPACK, so every request is the same work. Over TLS, all use
one self-signed certificate (ECDSA P-256), made for the run, and only TLS 1.3,
TLS_AES_128_GCM_SHA256, X25519 and ALPN h2. Connections to the origin are plain HTTP/1.1. nginx
has `listen ... http2`. HAProxy has `alpn h2`, or `proto h2` without TLS. Both have default
numbers of streams.

weir has default settings. `weir-http1` is weir without TLS, which gets HTTP/1.1 on 64
connections. Streams that a server had not taken when it left a connection (GOAWAY) count neither
as errors nor as responses. For the memory of idle connections, the harness makes the handshake
and one request on each. With HTTP/2 that request has so many fields to keep that the header
table of 4,096 bytes is full.

In `stalled` a second generator has 200 connections with 100 streams each, which request 200 KiB.
It opens no window for a byte of them, and repeats the request when a stream is reset. Honest
clients send requests with HTTP/2 by the clock, and p99 counts from when a request was due.
Memory is the highest resident size since the start. `weir-alone` is weir without the second
generator.
";

/// Returns the columns after the usual ones of a load.
pub(super) fn columns(load: Load) -> &'static [&'static str] {
    match load {
        Load::Stalled(_) => &["resident, MB at its highest", "stalled streams at the end", "reset"],
        _ => &[],
    }
}

/// Returns their figures.
pub(super) fn row(load: Load, own: &[&Record]) -> Vec<String> {
    let Load::Stalled(_) = load else { return Vec::new() };
    let streams = |of: fn(Stalled) -> u64| {
        number(
            middle(own, &|record: &Record| {
                record.special.stalled.map_or(f64::NAN, |it| of(it) as f64)
            }),
            0,
        )
    };
    vec![
        number(middle(own, &|record: &Record| record.memory_bytes / 1e6), 1),
        streams(|it| it.open),
        streams(|it| it.reset),
    ]
}
