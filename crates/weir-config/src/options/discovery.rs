//! The rows of `discovery` and of `server`. Part of the option table.

use super::{DAY, HOUR, SECOND, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

pub(super) const DISCOVERY: Block = Block {
    name: "discovery",
    help: "How names of servers are looked up, again and again while weir runs (docs/discovery.md).",
    positional: &[],
    options: &[
        row(
            "resolver",
            Kind::List("ADDRESS or ADDRESS:PORT", texts::forward::resolver),
            Default::Absent,
            "Name servers. Without them those of the system: `/etc/hosts`, then `/etc/resolv.conf` with its search domains.",
        ),
        row(
            "family",
            Kind::Word(&["any", "ipv4", "ipv6"]),
            Default::Is("any"),
            "Which addresses are used: those of both kinds, or of one.",
        ),
        row(
            "ttl-min",
            Kind::Time(100_000, HOUR),
            Default::Is("1s"),
            "An answer holds for its TTL, but at least so long: no name is looked up more often.",
        ),
        row("ttl-max", Kind::Time(SECOND, DAY), Default::Is("5m"), "At most so long."),
        row(
            "hold",
            Kind::Time(0, DAY),
            Default::Is("30s"),
            "How long an address stays in use that answers do not have any more. While name servers fail, all stay, however long that is.",
        ),
    ],
    ..BLOCK
};

pub(super) const SERVER: Block = Block {
    name: "server",
    help: "One server of an upstream, or where a name is written, one for each of its addresses, which are looked up again when their time is over (docs/discovery.md).",
    positional: &[row(
        "address",
        Kind::Text("HOST:PORT, the name of a service, or unix:PATH", texts::server_place),
        Default::Required,
        "Where it is. `_http._tcp.app.internal` is a service (SRV): name servers say hosts, ports, which of them are backups, and weights. `unix:/run/app.sock` is a socket on this machine. `original-destination` is where the client has connected to (docs/transparent.md).",
    )],
    options: &[
        row(
            "connections-min",
            Kind::Count(0, 65_535),
            Default::Is("1"),
            "Connections kept also without traffic. As many as `connections`: all are made at the start and kept.",
        ),
        row(
            "connections",
            Kind::Count(1, 65_535),
            Default::Is("32"),
            "So many connections are made for requests that share them, when requests would wait otherwise. As the other two, in total over all workers.",
        ),
        row(
            "connections-max",
            Kind::Count(1, 65_535),
            Default::AtLeast("1024", "connections"),
            "So many are made in all, and so many requests that have a connection for themselves the server has to work on at once: those that were not found to be as quick as others, POSTs, uploads, large, late or endless answers, slow readers. Tunnels are not counted. A server that answers fewer requests a second with more at once gets fewer (docs/balancing.md).",
        ),
        row(
            "tcp-connections",
            Kind::Or("unlimited", &Kind::Count(1, 1_000_000)),
            Default::Is("unlimited"),
            "Connections of `tcp` that the server may have, in total over all workers; further ones go to others, and are reset where there are none.",
        ),
        row("weight", Kind::Count(1, 100), Default::Is("50"), "Share of requests relative to the other servers."),
        row("backup", Kind::Flag, Default::Is("#false"), "Used only when no server without this can be."),
    ],
    blocks: &[],
    repeats: true,
    ..BLOCK
};

/// What a file of `servers-from` has.
pub(crate) const SERVERS: Block = Block { blocks: &[SERVER], ..BLOCK };
