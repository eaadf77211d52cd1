//! The rows of `tcp`. Part of the option table.

use super::{LISTEN, TIMEOUT, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

pub(super) const TCP: Block = Block {
    name: "tcp",
    help: "Plain TCP: connections to its `listen` are passed on as they are to a server of `proxy` (docs/tcp.md). Needs neither `listen` nor `route` at the top.",
    options: &[
        row(
            "proxy",
            Kind::Text("the name of an upstream", texts::upstream_name),
            Default::Absent,
            "The upstream whose servers have the connections, with `sni` those that ask for none of its names. Routes can't lead to it as well.",
        ),
        row(
            "hello-timeout",
            TIMEOUT,
            Default::Is("5s"),
            "With `sni`: how long a client may take for its first message of TLS; then it is reset.",
        ),
        row(
            "idle-timeout",
            TIMEOUT,
            Default::Is("1h"),
            "After so long without a byte either way a connection is reset on both sides.",
        ),
        row("half-close-timeout", TIMEOUT, Default::Is("1m"), "The same from when one side has ended its direction."),
    ],
    blocks: &[LISTEN, SNI],
    repeats: true,
    ..BLOCK
};

const SNI: Block = Block {
    name: "sni",
    help: "Clients that ask for these names in their first message of TLS have another upstream. The message is looked into, and passed on unchanged: weir needs no certificate.",
    positional: &[row(
        "name",
        Kind::List("a name, or `*.` and a domain", texts::host_pattern),
        Default::Required,
        "Names; `*.example.org` is every name below `example.org`, not itself. The exact one counts, then the longest domain.",
    )],
    options: &[row(
        "proxy",
        Kind::Text("the name of an upstream", texts::upstream_name),
        Default::Required,
        "The upstream whose servers have them.",
    )],
    repeats: true,
    ..BLOCK
};
