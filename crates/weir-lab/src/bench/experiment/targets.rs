//! The targets: figures that have to be reached. Named by `catalogue.rs`, judged by
//! `report/figures.rs`.

use super::metric::Metric;

/// A figure that has to be reached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    /// For people.
    pub(crate) title: &'static str,
    /// Where it is measured.
    pub(crate) cell: &'static str,
    /// The metric.
    pub(crate) metric: Metric,
    /// The contender whose figure it is.
    pub(crate) subject: &'static str,
    /// The contender whose figure it is divided by, or compared with under [`Bound::ExceedsBy`];
    /// None: the figure itself.
    pub(crate) against: Option<&'static str>,
    /// The required value.
    pub(crate) bound: Bound,
}

/// Which side of the bound is good.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// Above the figure of the other contender by this or less.
    ExceedsBy(f64),
}

impl Bound {
    /// Whether a figure is good; NaN (not measured) never is.
    pub(crate) fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(bound) => value >= bound,
            Bound::AtMost(bound) | Bound::ExceedsBy(bound) => value <= bound,
        }
    }
}

pub(super) const fn target(
    title: &'static str,
    cell: &'static str,
    metric: Metric,
    subject: &'static str,
    against: &'static str,
    bound: Bound,
) -> Target {
    Target { title, cell, metric, subject, against: Some(against), bound }
}

use Bound::{AtLeast, AtMost};
use Metric::{
    Cpu, CpuGigabyte, GeneratorCpu, IdleBytes, MemoryMb, P99, P99Ms, P999, Rate, SentP99Ms,
    Upstream,
};

/// Targets of kept connections in front of busy workers.
pub(crate) const KEEPALIVE: &[Target] = &[
    target(
        "fresh, 16 workers, 35 % busy: p99.9 against nginx",
        "blocked-never",
        P999,
        "weir-fresh",
        "nginx",
        AtMost(0.25),
    ),
    target(
        "per-request, 16 workers, 35 % busy: p99.9 against nginx",
        "blocked-never",
        P999,
        "weir-per-request",
        "nginx",
        AtMost(0.25),
    ),
    target(
        "the same over a unix socket, fresh",
        "unix-never",
        P999,
        "weir-fresh",
        "nginx",
        AtMost(0.25),
    ),
    target(
        "the same over a unix socket, per-request",
        "unix-never",
        P999,
        "weir-per-request",
        "nginx",
        AtMost(0.25),
    ),
];

/// Targets of the forward proxy.
pub(crate) const FORWARD: &[Target] = &[
    target("rate against direct", "forward-100", Rate, "weir-forward", "direct", AtLeast(0.85)),
    target(
        "rate against nginx",
        "forward-100",
        Rate,
        "weir-forward",
        "nginx-forward",
        AtLeast(1.5),
    ),
    target(
        "CPU a request, against nginx",
        "forward-100",
        Cpu,
        "weir-forward",
        "nginx-forward",
        AtMost(0.6),
    ),
    Target {
        title: "connections to the origin, of 100 clients",
        cell: "forward-100",
        metric: Upstream,
        subject: "weir-forward",
        against: None,
        bound: AtMost(100.0),
    },
    target(
        "full tunnel: rate against HAProxy with splice",
        "tunnel",
        Rate,
        "weir-forward",
        "haproxy-splice",
        AtLeast(1.0),
    ),
    target(
        "full tunnel: CPU a gigabyte, against HAProxy with splice",
        "tunnel",
        CpuGigabyte,
        "weir-forward",
        "haproxy-splice",
        AtMost(1.0),
    ),
    Target {
        title: "user memory for an idle tunnel, bytes",
        cell: "tunnel-idle",
        metric: IdleBytes,
        subject: "weir-forward",
        against: None,
        bound: AtMost(1024.0),
    },
];

/// Targets of the proxy.
pub(crate) const PROXY: &[Target] = &[
    target(
        "rate, 4,000 connections, against direct",
        "c4000",
        Rate,
        "weir",
        "direct",
        AtLeast(0.90),
    ),
    target("rate, 4,000 connections, against nginx", "c4000", Rate, "weir", "nginx", AtLeast(2.0)),
    target(
        "rate, 4,000 connections, against HAProxy",
        "c4000",
        Rate,
        "weir",
        "haproxy",
        AtLeast(2.0),
    ),
    target(
        "CPU a request, 4,000 connections, against nginx",
        "c4000",
        Cpu,
        "weir",
        "nginx",
        AtMost(0.35),
    ),
    target(
        "CPU a request, 64 connections, against nginx",
        "c64",
        Cpu,
        "weir",
        "nginx",
        AtMost(0.50),
    ),
    target(
        "servers that close after 100 requests: CPU a request, 64 connections, against such as \
            never close",
        "c64",
        Cpu,
        "weir-closing",
        "weir",
        AtMost(1.25),
    ),
    target(
        "`connections=128`: CPU a request, 64 connections, against nginx",
        "c64",
        Cpu,
        "weir-128",
        "nginx",
        AtMost(0.60),
    ),
    target(
        "`connections=128`: CPU a request, 4,000 connections, against nginx",
        "c4000",
        Cpu,
        "weir-128",
        "nginx",
        AtMost(0.40),
    ),
    target(
        "`connections=1`: rate, 4,000 connections, against weir with 128",
        "c4000",
        Rate,
        "weir-1",
        "weir-128",
        AtLeast(0.95),
    ),
    target(
        "browser-sized requests: CPU a request, 64 connections, against nginx",
        "browser",
        Cpu,
        "weir",
        "nginx",
        AtMost(0.55),
    ),
    target("64 KB bodies: rate against nginx", "body-64k", Rate, "weir", "nginx", AtLeast(1.0)),
    target("1 MB bodies: rate against nginx", "body-1m", Rate, "weir", "nginx", AtLeast(1.0)),
    target(
        "new connection for each request: CPU a request, against nginx",
        "new-connection",
        Cpu,
        "weir",
        "nginx",
        AtMost(0.85),
    ),
    target(
        "epoll: CPU a request, 64 connections, against nginx",
        "c64",
        Cpu,
        "weir-epoll",
        "nginx",
        AtMost(0.65),
    ),
    target(
        "epoll: CPU a request, 4,000 connections, against nginx",
        "c4000",
        Cpu,
        "weir-epoll",
        "nginx",
        AtMost(0.50),
    ),
    target(
        "p99 at half of nginx's rate, 64 connections, against nginx",
        "fixed-rate",
        P99,
        "weir",
        "nginx",
        AtMost(1.0),
    ),
    Target {
        title: "user memory for an idle connection, bytes",
        cell: "idle",
        metric: IdleBytes,
        subject: "weir",
        against: None,
        bound: AtMost(512.0),
    },
    Target {
        title: "resident memory with 200 slow clients, MB above idle",
        cell: "slow",
        metric: MemoryMb,
        subject: "weir-256",
        against: None,
        bound: AtMost(64.0),
    },
];

/// Targets of usual load, where batches have no company.
pub(crate) const RATES: &[Target] = &[
    target(
        "1,000 requests a second: CPU a request, against nginx",
        "r1000",
        Cpu,
        "weir",
        "nginx",
        AtMost(0.75),
    ),
    target(
        "1,000 requests a second: p99, against nginx",
        "r1000",
        P99,
        "weir",
        "nginx",
        AtMost(1.0),
    ),
    target(
        "5,000 requests a second: CPU a request, against nginx",
        "r5000",
        Cpu,
        "weir",
        "nginx",
        AtMost(0.75),
    ),
    target(
        "5,000 requests a second: p99, against nginx",
        "r5000",
        P99,
        "weir",
        "nginx",
        AtMost(1.0),
    ),
    target(
        "20,000 requests a second: CPU a request, against nginx",
        "r20000",
        Cpu,
        "weir",
        "nginx",
        AtMost(0.75),
    ),
    target(
        "20,000 requests a second: p99, against nginx",
        "r20000",
        P99,
        "weir",
        "nginx",
        AtMost(1.0),
    ),
];

/// Targets of limits for each client.
pub(crate) const LIMITS: &[Target] = &[
    target(
        "two limits, 64 connections: CPU a request, against none",
        "c64",
        Cpu,
        "weir-limits",
        "weir",
        AtMost(1.01),
    ),
    target(
        "two limits, 4,000 connections: the same",
        "c4000",
        Cpu,
        "weir-limits",
        "weir",
        AtMost(1.01),
    ),
];

/// Targets of TLS with clients. The bounds for one library against another say what rustls and
/// aws-lc-rs should be worth against OpenSSL 3.0, and that weir loses none of its lead.
pub(crate) const SECURE: &[Target] = &[
    target(
        "full handshake, ECDSA P-256: CPU a connection, against nginx",
        "full-ecdsa",
        Cpu,
        "weir",
        "nginx",
        AtMost(0.75),
    ),
    target(
        "full handshake, ECDSA P-256: CPU a connection, against Envoy",
        "full-ecdsa",
        Cpu,
        "weir",
        "envoy",
        AtMost(0.80),
    ),
    target(
        "full handshake, RSA 2048: CPU a connection, against nginx",
        "full-rsa",
        Cpu,
        "weir",
        "nginx",
        AtMost(1.05),
    ),
    target(
        "resumed session: CPU a connection, against nginx",
        "resumed",
        Cpu,
        "weir",
        "nginx",
        AtMost(0.60),
    ),
    target(
        "64 connections: CPU a request, against nginx",
        "c64",
        Cpu,
        "weir",
        "nginx",
        AtMost(0.60),
    ),
    target(
        "64 connections: CPU a request, against weir without TLS",
        "c64",
        Cpu,
        "weir",
        "weir-plain",
        AtMost(1.30),
    ),
    target("1 MB bodies: rate against nginx", "body-1m", Rate, "weir", "nginx", AtLeast(1.0)),
    target(
        "1 MB bodies: CPU a gigabyte, against nginx",
        "body-1m",
        CpuGigabyte,
        "weir",
        "nginx",
        AtMost(1.10),
    ),
    Target {
        title: "user memory for an idle connection, bytes",
        cell: "idle",
        metric: IdleBytes,
        subject: "weir",
        against: None,
        bound: AtMost(5120.0),
    },
    Target {
        title: "p99 of established clients beside a flood of handshakes, ms",
        cell: "flood",
        metric: P99Ms,
        subject: "weir",
        against: None,
        bound: AtMost(5.0),
    },
];

/// Targets of plain requests beside handshakes.
pub(crate) const HANDSHAKES: &[Target] = &[target(
    "p99 of plain requests beside 1,000 clients that handshake, against HAProxy with low-latency \
        tasks",
    "handshakes",
    P99,
    "weir",
    "haproxy-low-latency",
    AtMost(1.0),
)];

/// Targets of HTTP/2 with clients.
pub(crate) const HTTP2: &[Target] = &[
    target(
        "HTTP/2 over TLS, 64 x 10 streams: CPU a request, against nginx",
        "tls-64x10",
        Cpu,
        "weir",
        "nginx",
        AtMost(0.50),
    ),
    target(
        "HTTP/2 over TLS, 64 x 10 streams: CPU a request, against HAProxy",
        "tls-64x10",
        Cpu,
        "weir",
        "haproxy",
        AtMost(0.60),
    ),
    target(
        "HTTP/2 without TLS, 64 x 10 streams: CPU a request, against HTTP/1.1 on 64 connections",
        "h2c-64x10",
        Cpu,
        "weir",
        "weir-http1",
        AtMost(1.15),
    ),
    Target {
        title: "user memory for an idle connection of HTTP/1.1 over TLS, bytes",
        cell: "idle-http1",
        metric: IdleBytes,
        subject: "weir",
        against: None,
        bound: AtMost(5120.0),
    },
    Target {
        title: "user memory for an idle connection of HTTP/2 over TLS with a full header table, \
            bytes",
        cell: "idle-http2",
        metric: IdleBytes,
        subject: "weir",
        against: None,
        bound: AtMost(11_264.0),
    },
    target(
        "200 x 100 stalled streams: p99 of honest clients, against nobody who stalls",
        "stalled",
        P99,
        "weir",
        "weir-alone",
        AtMost(2.0),
    ),
    Target {
        title: "the same: resident memory at its highest, MB",
        cell: "stalled",
        metric: MemoryMb,
        subject: "weir",
        against: None,
        bound: AtMost(400.0),
    },
];

/// Targets of `weir bomb`. There, a contender's CPU is the generator's.
pub(crate) const GENERATOR: &[Target] = &[
    target(
        "64 connections: CPU a request, against wrk",
        "g64",
        GeneratorCpu,
        "bomb",
        "wrk",
        AtMost(0.8),
    ),
    target("64 connections: rate, against wrk", "g64", Rate, "bomb", "wrk", AtLeast(1.0)),
    target(
        "4,000 connections: CPU a request, against wrk",
        "g4000",
        GeneratorCpu,
        "bomb",
        "wrk",
        AtMost(0.8),
    ),
    target("4,000 connections: rate, against wrk", "g4000", Rate, "bomb", "wrk", AtLeast(1.0)),
    Target {
        title: "an origin that stands still for 1 s: 99th percentile from the due time, ms",
        cell: "stall",
        metric: P99Ms,
        subject: "bomb",
        against: None,
        bound: AtLeast(850.0),
    },
    Target {
        title: "the same from when requests were sent, ms",
        cell: "stall",
        metric: SentP99Ms,
        subject: "bomb",
        against: None,
        bound: AtMost(100.0),
    },
];

/// Targets of `weir origin`.
pub(crate) const ORIGIN: &[Target] = &[
    target(
        "64 connections: rate, against nginx",
        "o64",
        Rate,
        "weir-origin",
        "nginx-file",
        AtLeast(1.3),
    ),
    target(
        "4,000 connections: rate, against nginx",
        "o4000",
        Rate,
        "weir-origin",
        "nginx-file",
        AtLeast(1.3),
    ),
    target(
        "epoll, 64 connections: rate, against nginx",
        "o64",
        Rate,
        "weir-origin-epoll",
        "nginx-file",
        AtLeast(1.3),
    ),
    target(
        "epoll, 4,000 connections: rate, against nginx",
        "o4000",
        Rate,
        "weir-origin-epoll",
        "nginx-file",
        AtLeast(1.3),
    ),
];

/// Whether a target needs this contender's figure in this cell.
pub(crate) fn is_needed(targets: &[Target], cell: &str, contender: &str) -> bool {
    let needs = |target: &Target| target.subject == contender || target.against == Some(contender);
    targets.iter().any(|target| target.cell == cell && needs(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_was_not_measured_is_a_miss() {
        assert!(!AtLeast(0.0).holds(f64::NAN) && !AtMost(1.0).holds(f64::NAN));
        assert!(AtLeast(1.0).holds(1.0) && AtMost(1.0).holds(1.0));
    }
}
