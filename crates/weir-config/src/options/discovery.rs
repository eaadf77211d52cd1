//! The rows of `discovery` and of `server`. Part of the option table.

use super::{DAY, HOUR, SECOND, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

pub(super) const DISCOVERY: Block = Block {
    name: "discovery",
    help: "How weir looks up the names of servers, repeatedly while it runs (docs/discovery.md).",
    positional: &[],
    options: &[
        row(
            "resolver",
            Kind::List("ADDRESS or ADDRESS:PORT", texts::forward::resolver),
            Default::Absent,
            "Name servers. Without this option those of the system: `/etc/hosts`, then \
                `/etc/resolv.conf` with its search domains.",
        ),
        row(
            "family",
            Kind::Word(&["any", "ipv4", "ipv6"]),
            Default::Is("any"),
            "Which addresses weir uses: those of both kinds, or of one.",
        ),
        row(
            "ttl-min",
            Kind::Time(100_000, HOUR),
            Default::Is("1s"),
            "An answer holds for its TTL, but at least for this time: weir looks up no name more \
                often, except while name servers fail.",
        ),
        row(
            "ttl-max",
            Kind::Time(SECOND, DAY),
            Default::Is("5m"),
            "The longest time that an answer holds.",
        ),
        row(
            "hold",
            Kind::Time(0, DAY),
            Default::Is("30s"),
            "How long an address stays in use after answers no longer have it. While name servers \
                fail, all addresses remain in use, however long that is.",
        ),
    ],
    ..BLOCK
};

pub(super) const SERVER: Block = Block {
    name: "server",
    help: "One server of an upstream. A host name means one server for each of its addresses, \
        which weir looks up again when they expire (docs/discovery.md).",
    positional: &[row(
        "address",
        Kind::Text("HOST:PORT, the name of a service, or unix:PATH", texts::server_place),
        Default::Required,
        "Where the server is. `_http._tcp.app.internal` is a service (SRV): name servers say \
            hosts, ports, which of them are backups, and weights. `unix:/run/app.sock` is a socket \
            on this machine. `original-destination` is the address that the client has connected \
            to (docs/transparent.md).",
    )],
    options: &[
        row(
            "connections-min",
            Kind::Count(0, 65_535),
            Default::Is("1"),
            "Connections that weir keeps even without traffic. With the number of `connections`, \
                weir makes all of them at the start and keeps them.",
        ),
        row(
            "connections",
            Kind::Count(1, 65_535),
            Default::Is("32"),
            "Connections for requests that share them: weir makes up to this many when requests \
                would wait otherwise. Like the other two, in total over all workers.",
        ),
        row(
            "connections-max",
            Kind::Count(1, 65_535),
            Default::AtLeast("1024", "connections"),
            "Most connections in all, and most requests with a connection to themselves that the \
                server works on at once: those that were not found to be as quick as others, \
                POSTs, uploads, large, late or endless responses, slow readers. Tunnels are not \
                counted. A server that answers fewer requests a second with more at once gets \
                fewer (docs/balancing.md).",
        ),
        row(
            "concurrency",
            Kind::Or("unlimited", &Kind::Count(1, 65_535)),
            Default::Is("unlimited"),
            "Requests that the server works on at once, in total over all workers, whatever \
                connections they are on. Further ones go to other servers or wait, at most for \
                `queue-timeout` (docs/connections.md#limit-what-a-server-works-on-at-once). A \
                response that its client does not read no longer counts.",
        ),
        row(
            "tcp-connections",
            Kind::Or("unlimited", &Kind::Count(1, 1_000_000)),
            Default::Is("unlimited"),
            "Connections of `tcp` that the server may have, in total over all workers. Further \
                ones go to other servers, and weir resets them where no other server can take \
                them.",
        ),
        row(
            "weight",
            Kind::Count(1, 100),
            Default::Is("50"),
            "Share of requests relative to the other servers.",
        ),
        row(
            "backup",
            Kind::Flag,
            Default::Is("#false"),
            "Used only when no server without `backup` can be used.",
        ),
    ],
    blocks: &[],
    repeats: true,
    ..BLOCK
};

/// The contents of a file for `servers-from`.
pub(crate) const SERVERS: Block = Block { blocks: &[SERVER], ..BLOCK };
