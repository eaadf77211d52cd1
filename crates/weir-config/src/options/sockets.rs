//! The rows of what the kernel is asked of sockets: `listen` and `upstream` have them alike. Part of the option table; what they come to is in
//! `compile/sockets.rs`.

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
        "The interface by which connections come and go, whatever routes say (socket(7), SO_BINDTODEVICE).",
    ),
    row(
        "mark",
        Kind::Text("a number from 1 to 4294967295, also as 0x10", texts::mark),
        Default::Absent,
        "The mark of packets that weir sends, for rules of routing and of the firewall here (socket(7), SO_MARK). Needs the capability CAP_NET_RAW.",
    ),
    row(
        "dscp",
        Kind::Text("a code point such as `af21`, or 0 to 63", texts::dscp),
        Default::Absent,
        "The class of service in packets that weir sends: `ef`, `af11` to `af43`, `cs0` to `cs7`, `va`, `le` or a number (RFC 2474).",
    ),
    row(
        "mss",
        Kind::Count(88, 32_767),
        Default::Absent,
        "The longest segment, bytes, that is sent and asked for (tcp(7), TCP_MAXSEG).",
    ),
    row(
        "send-buffer",
        BUFFER,
        Default::Absent,
        "Bytes sent and not acknowledged, or waiting, that the kernel keeps of one connection (SO_SNDBUF). It ends the kernel's own tuning; more than net.core.wmem_max can't be had.",
    ),
    row(
        "receive-buffer",
        BUFFER,
        Default::Absent,
        "Bytes received and not read that the kernel keeps of one connection (SO_RCVBUF). It ends the kernel's own tuning of the window; more than net.core.rmem_max can't be had.",
    ),
    row(
        "user-timeout",
        Kind::Time(SECOND, DAY),
        Default::Absent,
        "How long what was sent may stay unacknowledged, or may not be taken, until the connection is given up (tcp(7), TCP_USER_TIMEOUT).",
    ),
    row(
        "tcp-keepalive",
        Kind::Text("`off`, or times and a number such as `60s:10s:6`", texts::keepalive),
        Default::Absent,
        "How long a connection rests until the kernel asks whether the other side is still there, how often it asks where nothing comes back, and how many times in vain end the connection (socket(7), SO_KEEPALIVE); what is left out is 60s, 10s and 6. The usual is in docs/sockets.md.",
    ),
    row(
        "notsent-low-water",
        Kind::Size(KIB, 1024 * MIB),
        Default::Absent,
        "Bytes that the kernel takes before their time to be sent has come (TCP_NOTSENT_LOWAT): fewer wait in a queue behind which nothing can overtake.",
    ),
    row(
        "max-rate",
        Kind::Text("a rate such as `20Mbit/s`, or a size a second such as `2MiB`", texts::rate),
        Default::Absent,
        "The most that is sent on one connection (SO_MAX_PACING_RATE).",
    ),
];
