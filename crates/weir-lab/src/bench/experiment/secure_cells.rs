//! The cells of the experiments `tls` and `http2`. Named by `catalogue.rs`.

use super::cells::{Axes, Cell, Closed, Load, RequestKind};
use super::http2::{CONNECTIONS, STALLING, STREAMS};
use super::tls;

/// The contenders where clients use TLS.
const SEALED: &[&str] = &["nginx", "haproxy", "envoy", "weir", "weir-epoll"];

/// Returns the cells of `tls`.
pub(super) fn tls(axes: &Axes) -> Vec<Cell> {
    let of = |body, kind| Load::Closed(Closed { connections: 64, body, kind });
    let cell =
        |name: &str, title: &str, load, secure| Cell::new(name, title, load, SEALED).over(secure);
    let each = of(3, RequestKind::Close);
    let (connections, rate) = tls::BESIDE;
    vec![
        cell(
            "full-ecdsa",
            "full handshakes with ECDSA P-256, 64 at a time, a request each",
            each,
            tls::ECDSA,
        ),
        cell(
            "full-rsa",
            "full handshakes with RSA 2048, 64 at a time, a request each",
            each,
            tls::RSA,
        ),
        cell("resumed", "resumed sessions, 64 at a time, a request each", each, tls::RESUMED),
        cell("c64", "64 connections, 3 B", of(3, RequestKind::Minimal), tls::ECDSA)
            .with(&["weir-plain"]),
        cell(
            "body-1m",
            "64 connections, 1 MB bodies",
            of(1 << 20, RequestKind::Minimal),
            tls::ECDSA,
        )
        .with(&["weir-plain"]),
        cell(
            "idle",
            "idle keep-alive connections",
            Load::Idle(if axes.quick { tls::IDLE_QUICK } else { tls::IDLE }),
            tls::ECDSA,
        )
        .with(&["weir-plain"]),
        cell(
            "flood",
            "64 connections that ask 1,000 times a second by the clock, beside a flood of full \
                handshakes",
            Load::Flood { connections, rate },
            tls::ECDSA,
        ),
    ]
}

/// Returns the cells of `http2`.
pub(super) fn http2(axes: &Axes) -> Vec<Cell> {
    let load =
        Load::Closed(Closed { connections: CONNECTIONS, body: 3, kind: RequestKind::Minimal });
    let idle = Load::Idle(if axes.quick { tls::IDLE_QUICK } else { tls::IDLE });
    let clear = &["nginx", "haproxy", "weir", "weir-epoll", "weir-http1"];
    vec![
        Cell::new("tls-64x10", "HTTP/2 over TLS, 64 connections of 10 streams, 3 B", load, SEALED)
            .over(tls::ECDSA)
            .by(STREAMS),
        Cell::new(
            "h2c-64x10",
            "HTTP/2 without TLS, 64 connections of 10 \
            streams, 3 B",
            load,
            clear,
        )
        .by(STREAMS),
        Cell::new("idle-http1", "idle connections of HTTP/1.1 over TLS", idle, SEALED)
            .over(tls::ECDSA),
        Cell::new(
            "idle-http2",
            "idle connections of HTTP/2 over TLS, header \
            tables full",
            idle,
            SEALED,
        )
        .over(tls::ECDSA)
        .by(1),
        Cell::new(
            "stalled",
            "64 honest connections that ask 1,000 times a second by the clock, beside 200 with 100 \
                stalled streams of 200 KiB each",
            Load::Stalled(STALLING),
            &["weir", "weir-alone"],
        )
        .by(1),
    ]
}
