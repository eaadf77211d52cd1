//! Rows of kernel options for sockets, which `listen` and `upstream` have in common. Part of the
//! option table; `compile/sockets.rs` compiles them.

use super::{DAY, KIB, MIB, SECOND, row};
use crate::schema::{Default, Kind, Row};
use crate::texts::sockets as texts;

/// Sizes of buffers.
const BUFFER: Kind = Kind::Size(4 * KIB, 1024 * MIB);

/// Each is named as [`weir_proxy::plan::Tunable::word`], or `device`, or `tcp-keepalive`.
pub(crate) const SOCKETS: &[Row] = &[
    row(
        "device",
        Kind::Text("the name of an interface", texts::device),
        Default::Absent,
        "The interface that these connections use in both directions, whatever routes say \
            (socket(7), SO_BINDTODEVICE).",
    ),
    row(
        "mark",
        Kind::Text("a number from 1 to 4294967295, also as 0x10", texts::mark),
        Default::Absent,
        "The mark of packets that weir sends, for routing and firewall rules on this machine \
            (socket(7), SO_MARK). Needs the capability CAP_NET_RAW.",
    ),
    row(
        "dscp",
        Kind::Text("a code point such as `af21`, or 0 to 63", texts::dscp),
        Default::Absent,
        "The class of service in packets that weir sends: `ef`, `af11` to `af43`, `cs0` to `cs7`, \
            `va`, `le` or a number (RFC 2474).",
    ),
    row(
        "mss",
        Kind::Count(88, 32_767),
        Default::Absent,
        "The longest segment in bytes that weir sends and announces (tcp(7), TCP_MAXSEG).",
    ),
    row(
        "send-buffer",
        BUFFER,
        Default::Absent,
        "Bytes of one connection that the kernel keeps while they wait to be sent or acknowledged \
            (SO_SNDBUF). Setting it ends the kernel's own tuning; net.core.wmem_max is the upper \
            limit.",
    ),
    row(
        "receive-buffer",
        BUFFER,
        Default::Absent,
        "Received bytes of one connection that the kernel keeps until weir reads them (SO_RCVBUF). \
            Setting it ends the kernel's own tuning of the window; net.core.rmem_max is the upper \
            limit.",
    ),
    row(
        "user-timeout",
        Kind::Time(SECOND, DAY),
        Default::Absent,
        "How long sent bytes may stay unacknowledged, or the peer may take none, until the \
            connection is aborted (tcp(7), TCP_USER_TIMEOUT).",
    ),
    row(
        "tcp-keepalive",
        Kind::Text("`off`, or times and a number such as `60s:10s:6`", texts::keepalive),
        Default::Absent,
        "How long a connection may be idle before the kernel probes the peer, the time between \
            unanswered probes, and how many unanswered probes end the connection (socket(7), \
            SO_KEEPALIVE). Parts left out are 60s, 10s and 6. What holds without this option: \
            docs/sockets.md.",
    ),
    row(
        "notsent-low-water",
        Kind::Size(KIB, 1024 * MIB),
        Default::Absent,
        "Bytes that the kernel accepts before it can send them (TCP_NOTSENT_LOWAT): with fewer, \
            less waits in a queue in which nothing can overtake.",
    ),
    row(
        "max-rate",
        Kind::Text("a rate such as `20Mbit/s`, or a size a second such as `2MiB`", texts::rate),
        Default::Absent,
        "The highest rate at which one connection sends (SO_MAX_PACING_RATE).",
    ),
];
