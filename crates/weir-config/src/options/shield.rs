//! Rows of `shield`: limits for each client. Part of the option table.

use super::{DAY, SECOND, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

/// What is so many in a time, and what so many at once.
const RATES: &[&str] =
    &["connections", "requests", "answers", "glitches", "timeouts", "handshakes", "handshakes-failed"];
const NUMBERS: &[&str] = &["open", "in-progress"];
const ANSWERS: &[&str] = &["answers"];

pub(super) const SHIELD: Block = Block {
    name: "shield",
    help: "Limits for each client, over all workers together (docs/limits.md). One at most.",
    options: &[
        row(
            "mode",
            Kind::Word(&["enforce", "observe"]),
            Default::Is("enforce"),
            "`observe`: nobody is refused; metrics (`weir_shield_total`) say how often each limit would have.",
        ),
        row(
            "table",
            Kind::Count(1024, 16 << 20),
            Default::Is("65536"),
            "Clients that are remembered at a time, a power of two; each takes 72 bytes. Who finds no room is let through and counted.",
        ),
        row(
            "aggregate",
            Kind::Flag,
            Default::Is("#true"),
            "An IPv6 /48 becomes one client for a minute when more than 16 of its networks were refused within one.",
        ),
        row(
            "allow",
            Kind::List("an address, a range such as 10.0.0.0/8, or `unix:`", texts::peers),
            Default::Absent,
            "Clients that no limit is for.",
        ),
        row(
            "tarpit",
            Kind::Time(SECOND, 60 * SECOND),
            Default::Is("10s"),
            "How long refusals wait of limits with over=\"tarpit\".",
        ),
        row(
            "tarpit-max",
            Kind::Count(1, 1_000_000),
            Default::Is("1000"),
            "How many of them wait at a time, of each worker. The connection of one more is reset.",
        ),
    ],
    blocks: &[PREFIX, LIMIT, BAN],
    repeats: true,
    ..BLOCK
};

const PREFIX: Block = Block {
    name: "prefix",
    help: "How many bits of an address make a client: whoever has an IPv6 address has all of its /64.",
    options: &[
        row("v4", Kind::Count(8, 32), Default::Is("32"), "Of IPv4."),
        row("v6", Kind::Count(16, 128), Default::Is("64"), "Of IPv6."),
    ],
    ..BLOCK
};

const LIMIT: Block = Block {
    name: "limit",
    help: "What a client may do. Limits are looked at in their order, and the first that refuses decides.",
    positional: &[row(
        "name",
        Kind::Text("a name", texts::upstream_name),
        Default::Required,
        "What status, metrics and reloads know it by.",
    )],
    options: &[
        row(
            "count",
            Kind::Word(&[
                "connections",
                "open",
                "requests",
                "in-progress",
                "answers",
                "glitches",
                "timeouts",
                "handshakes",
                "handshakes-failed",
            ]),
            Default::Required,
            "What is counted: new connections, open ones, requests (each when it is parsed), requests without a complete answer, answers with a `status`: who has had too many is refused what he asks next; glitches (docs/status.md#glitches), and connections on which `head-timeout`, `body-timeout`, `body-rate` or `send-timeout` was over: counted when a connection ends, and whoever has too many can't connect; TLS handshakes that resume no session, and those that came to nothing: whoever has too many can't connect to listeners with `tls`.",
        ),
        row(
            "rate",
            Kind::Text("a rate such as 200/s, 5/min or 10/h", texts::shield::rate),
            Default::With("count", RATES, &Default::Required),
            "How many in how much time.",
        ),
        row(
            "burst",
            Kind::Count(1, 1_000_000),
            Default::With("count", RATES, &Default::Absent),
            "How many may come at once; `burst=B nodelay` of nginx is one less than the same here. Without this option as many as `rate` says.",
        ),
        row(
            "max",
            Kind::Count(1, 1_000_000),
            Default::With("count", NUMBERS, &Default::Required),
            "How many there may be at a time.",
        ),
        row(
            "by",
            Kind::Text(
                "`client`, `host`, `header:NAME`, `cookie:NAME`, `query:NAME`, several of these with commas between, or `all`",
                texts::shield::by,
            ),
            Default::Is("client"),
            "Whom it counts: each client; each value of what a request says; each pair if there are several; `all`: all requests together, with `match` those of a route. Of requests and answers.",
        ),
        row(
            "missing",
            Kind::Word(&["skip", "client"]),
            Default::Is("skip"),
            "A request that says nothing of `by` is not counted, or is by its client.",
        ),
        row(
            "status",
            Kind::Text(
                "statuses such as 401,403, classes such as 5xx or ranges such as 400-499",
                texts::shield::statuses,
            ),
            Default::With("count", ANSWERS, &Default::Required),
            "Which answers are counted, servers' and weir's own, but no refusals by limits.",
        ),
        row(
            "over",
            Kind::Text("a status from 400 to 499 or 503, `close`, `reset`, `tarpit` or `ban`", texts::shield::over),
            Default::Absent,
            "What becomes of one too many: an answer with this status and `Retry-After`; `close`: 429, and the connection ends behind it; `reset`: the connection is reset; `tarpit`: as `close`, but the answer waits for the `tarpit` of `shield`, and nothing more is read meanwhile; `ban`: the client is banned, as `ban` says. Without this option 429, and of connections `reset`.",
        ),
        row(
            "observe",
            Kind::Flag,
            Default::Is("#false"),
            "Nobody is refused by this limit; it is counted how often it would have.",
        ),
        row(
            "hammer",
            Kind::Flag,
            Default::With("count", RATES, &Default::Is("#false")),
            "Who is refused has to keep quiet as long as the rate says before he is taken again.",
        ),
    ],
    blocks: &[MATCH],
    repeats: true,
    ..BLOCK
};

const BAN: Block = Block {
    name: "ban",
    help: "Who is refused too often is banned: reset at connect, and what is open is reset, too (docs/bans.md). Without it only operators ban, by `weir ban add`. One at most.",
    options: &[
        row(
            "after",
            Kind::Count(1, 1_000_000),
            Default::Is("20"),
            "So many refusals within `within` are borne; the next one bans.",
        ),
        row(
            "within",
            Kind::Time(SECOND, DAY),
            Default::Is("1m"),
            "See `after`. Refusals are forgotten evenly, at the pace of `after` in this time.",
        ),
        row("for", Kind::Time(SECOND, 3650 * DAY), Default::Is("10m"), "How long the first ban of a client is."),
        row(
            "grow",
            Kind::Count(1, 100),
            Default::Is("2"),
            "Each further one is so many times as long as the one before.",
        ),
        row(
            "max",
            Kind::Time(SECOND, 3650 * DAY),
            Default::Is("1d"),
            "How long one is at most, and for how long one that is over makes the next one longer.",
        ),
        row(
            "bans-max",
            Kind::Count(16, 1 << 20),
            Default::Is("65536"),
            "Bans at a time, with those that are over and still count. With one more that gives way which ends first.",
        ),
        row(
            "via",
            Kind::Word(&["auto", "xdp", "user"]),
            Default::Is("auto"),
            "`auto`: with CAP_NET_ADMIN the kernel drops packets of who is banned, in a table of nftables that is gone with weir; else, and with `user`, weir resets his connections. `xdp`: drivers of network cards drop them, with CAP_BPF, too; where that can't be, as `auto`.",
        ),
        row(
            "interface",
            Kind::List("a network interface", texts::shield::interface),
            Default::With("via", &["xdp"], &Default::Required),
            "Whose drivers, such as `eth0`: those by which clients come.",
        ),
        row(
            "scope",
            Kind::Word(&["listeners", "host"]),
            Default::Is("listeners"),
            "What the kernel drops of them: TCP to ports of listeners, or all TCP to this machine.",
        ),
        row(
            "state",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "File that keeps bans over a restart, written by weir as its user. Without this option `bans` in $STATE_DIRECTORY, which systemd sets, else none.",
        ),
    ],
    repeats: true,
    ..BLOCK
};

const MATCH: Block = Block {
    name: "match",
    help: "Which requests count: those that have all of it. Without it all. One at most.",
    options: &[
        row(
            "path",
            Kind::List("a path", texts::route_path),
            Default::Absent,
            "One of these paths, in the form that routes are compared with, or what follows one behind a slash; `/` is only itself.",
        ),
        row(
            "prefix",
            Kind::List("a path", texts::route_path),
            Default::Absent,
            "Or one that begins with one of these, which ends on a segment.",
        ),
        row("methods", Kind::List("a method", texts::method), Default::Absent, "One of these methods."),
        row(
            "host",
            Kind::List("a host name, or `*.` and a domain", texts::host_pattern),
            Default::Absent,
            "One of these hosts, without port.",
        ),
    ],
    repeats: true,
    ..BLOCK
};
