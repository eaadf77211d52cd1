//! The rows of `tcp`. Part of the option table.

use super::{LISTEN, TIMEOUT, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

pub(super) const TCP: Block = Block {
    name: "tcp",
    help: "Plain TCP: weir passes connections to its `listen` unchanged to a server of `proxy` \
        (docs/tcp.md). Needs neither `listen` nor `route` at the top.",
    options: &[
        row(
            "proxy",
            Kind::Text("the name of an upstream", texts::upstream_name),
            Default::Absent,
            "The upstream whose servers get the connections; with `sni`, those that request none \
                of its names. Routes cannot use the same upstream.",
        ),
        row(
            "hello-timeout",
            TIMEOUT,
            Default::Is("5s"),
            "With `sni`: how long a client may take to send its first TLS message; then weir \
                resets the connection.",
        ),
        row(
            "idle-timeout",
            TIMEOUT,
            Default::Is("1h"),
            "weir resets a connection on both sides after this long without a byte either way.",
        ),
        row(
            "half-close-timeout",
            TIMEOUT,
            Default::Is("1m"),
            "The same, once one side has ended its direction.",
        ),
    ],
    blocks: &[LISTEN, SNI],
    repeats: true,
    ..BLOCK
};

const SNI: Block = Block {
    name: "sni",
    help: "Clients that request these names in their first TLS message get another upstream. weir \
        reads the message and passes it on unchanged: it needs no certificate.",
    positional: &[row(
        "name",
        Kind::List("a name, or `*.` and a domain", texts::host_pattern),
        Default::Required,
        "Names; `*.example.org` is every name below `example.org`, not itself. An exact name wins, \
            then the longest domain.",
    )],
    options: &[row(
        "proxy",
        Kind::Text("the name of an upstream", texts::upstream_name),
        Default::Required,
        "The upstream whose servers get them.",
    )],
    repeats: true,
    ..BLOCK
};
