//! Rows of `shield`: limits for each client. Part of the option table.

use super::{DAY, SECOND, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

/// The terms that count a number in a time; the others count a number at once.
const RATES: &[&str] = &[
    "connections",
    "requests",
    "answers",
    "glitches",
    "timeouts",
    "handshakes",
    "handshakes-failed",
];
const NUMBERS: &[&str] = &["open", "in-progress"];
const ANSWERS: &[&str] = &["answers"];

pub(super) const SHIELD: Block = Block {
    name: "shield",
    help: "Limits for each client, over all workers together (docs/limits.md). At most one.",
    options: &[
        row(
            "mode",
            Kind::Word(&["enforce", "observe"]),
            Default::Is("enforce"),
            "`observe`: weir rejects nothing; metrics (`weir_shield_total`) say how often each \
                limit would have.",
        ),
        row(
            "table",
            Kind::Count(1024, 16 << 20),
            Default::Is("65536"),
            "Clients that weir remembers at a time, a power of two; each takes 72 bytes. Clients \
                that find no room are let through and counted.",
        ),
        row(
            "aggregate",
            Kind::Flag,
            Default::Is("#true"),
            "An IPv6 /48 becomes one client for a minute when weir rejected more than 16 of its \
                networks within a minute.",
        ),
        row(
            "allow",
            Kind::List("an address, a range such as 10.0.0.0/8, or `unix:`", texts::peers),
            Default::Absent,
            "Clients without limits.",
        ),
        row(
            "tarpit",
            Kind::Time(SECOND, 60 * SECOND),
            Default::Is("10s"),
            "How long rejections by limits with over=\"tarpit\" wait.",
        ),
        row(
            "tarpit-max",
            Kind::Count(1, 1_000_000),
            Default::Is("1000"),
            "How many of them wait at a time in each worker. weir resets the connection of a \
                further one.",
        ),
    ],
    blocks: &[PREFIX, LIMIT, BAN],
    repeats: true,
    ..BLOCK
};

const PREFIX: Block = Block {
    name: "prefix",
    help: "How many bits of an address identify a client: a client with an IPv6 address has all of \
        its /64.",
    options: &[
        row("v4", Kind::Count(8, 32), Default::Is("32"), "Of IPv4."),
        row("v6", Kind::Count(16, 128), Default::Is("64"), "Of IPv6."),
    ],
    ..BLOCK
};

const LIMIT: Block = Block {
    name: "limit",
    help: "What a client may do. weir checks limits in their order, and the first that rejects \
        decides.",
    positional: &[row(
        "name",
        Kind::Text("a name", texts::upstream_name),
        Default::Required,
        "The name in status, metrics and reloads.",
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
            "What is counted. `connections`: new connections; `open`: open ones; `requests`: each \
                when it is parsed; `in-progress`: requests without a complete response; `answers`: \
                responses with a `status`; `glitches`: see docs/status-glitches.md#glitches; \
                `timeouts`: connections on which `head-timeout`, `body-timeout`, `body-rate` or \
                `send-timeout` expired; `handshakes`: TLS handshakes that resume no session; \
                `handshakes-failed`: TLS handshakes that failed. After too many `answers` weir \
                rejects what the client requests next. `glitches` and `timeouts` are counted when \
                a connection ends, and a client with too many cannot connect. After too many \
                handshakes of either kind a client cannot connect to listeners with `tls`.",
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
            "How many may come at once; `burst=B nodelay` of nginx is one less than the same here. \
                Without this option the number in `rate`.",
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
                "`client`, `host`, `header:NAME`, `cookie:NAME`, `query:NAME`, several of these \
                    with commas between, or `all`",
                texts::shield::by,
            ),
            Default::Is("client"),
            "What is counted together. `client`: each client. A part of the request: each of its \
                values, or each combination if there are several. `all`: all requests together, \
                with `match` those of a route. Only for requests and responses.",
        ),
        row(
            "missing",
            Kind::Word(&["skip", "client"]),
            Default::Is("skip"),
            "A request without what `by` names is not counted, or is counted by its client.",
        ),
        row(
            "status",
            Kind::Text(
                "statuses such as 401,403, classes such as 5xx or ranges such as 400-499",
                texts::shield::statuses,
            ),
            Default::With("count", ANSWERS, &Default::Required),
            "Which responses are counted: those of servers and of weir, but no rejections by \
                limits.",
        ),
        row(
            "over",
            Kind::Text(
                "a status from 400 to 499 or 503, `close`, `reset`, `tarpit` or `ban`",
                texts::shield::over,
            ),
            Default::Absent,
            "What happens to an attempt over the limit. A status: a response with this status and \
                `Retry-After`; `close`: 429, then the connection ends; `reset`: the connection is \
                reset; `tarpit`: as `close`, but the response waits for the `tarpit` of `shield`, \
                and weir reads nothing more meanwhile; `ban`: the client is banned, as `ban` says. \
                Without this option 429, and for connections `reset`.",
        ),
        row(
            "observe",
            Kind::Flag,
            Default::Is("#false"),
            "This limit rejects nothing; weir counts how often it would have.",
        ),
        row(
            "hammer",
            Kind::Flag,
            Default::With("count", RATES, &Default::Is("#false")),
            "A rejected client is admitted again only after it has been quiet for as long as the \
                rate says.",
        ),
    ],
    blocks: &[MATCH],
    repeats: true,
    ..BLOCK
};

const BAN: Block = Block {
    name: "ban",
    help: "Bans clients that are rejected too often: weir resets their new connections, and their \
        open ones as well (docs/bans.md). Without this block only operators ban, with `weir ban \
        add`. At most one.",
    options: &[
        row(
            "after",
            Kind::Count(1, 1_000_000),
            Default::Is("20"),
            "Rejections within `within` that do not ban; the next one does.",
        ),
        row(
            "within",
            Kind::Time(SECOND, DAY),
            Default::Is("1m"),
            "See `after`. Rejections are forgotten evenly, at the pace of `after` in this time.",
        ),
        row(
            "for",
            Kind::Time(SECOND, 3650 * DAY),
            Default::Is("10m"),
            "How long the first ban of a client is.",
        ),
        row(
            "grow",
            Kind::Count(1, 100),
            Default::Is("2"),
            "How many times as long as the one before each further ban is.",
        ),
        row(
            "max",
            Kind::Time(SECOND, 3650 * DAY),
            Default::Is("1d"),
            "Longest ban, and how long an expired ban makes the next one longer.",
        ),
        row(
            "bans-max",
            Kind::Count(16, 1 << 20),
            Default::Is("65536"),
            "Bans at a time, including expired ones that still count. A further ban replaces the \
                one that ends first.",
        ),
        row(
            "via",
            Kind::Word(&["auto", "xdp", "user"]),
            Default::Is("auto"),
            "What blocks banned clients. `auto`: with CAP_NET_ADMIN the kernel drops their \
                packets, in a table of nftables that disappears with weir; else, and with `user`, \
                weir resets their connections. `xdp`: drivers of network cards drop the packets, \
                which also needs CAP_BPF; where that is impossible, as `auto`.",
        ),
        row(
            "interface",
            Kind::List("a network interface", texts::shield::interface),
            Default::With("via", &["xdp"], &Default::Required),
            "The interfaces whose drivers drop packets, such as `eth0`: those on which packets \
                of clients arrive.",
        ),
        row(
            "scope",
            Kind::Word(&["listeners", "host"]),
            Default::Is("listeners"),
            "What the kernel drops of banned clients: TCP to ports of listeners, or all TCP to \
                this machine.",
        ),
        row(
            "state",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "File that keeps bans across restarts; weir writes it as its user. Without this option \
                `bans` in $STATE_DIRECTORY, which systemd sets, else none.",
        ),
    ],
    repeats: true,
    ..BLOCK
};

const MATCH: Block = Block {
    name: "match",
    help: "Which requests count: those that match all of it. Without this block all. At most one.",
    options: &[
        row(
            "path",
            Kind::List("a path", texts::route_path),
            Default::Absent,
            "One of these paths, in the form that routes are compared with, or what follows one \
                after a slash; `/` is only itself.",
        ),
        row(
            "prefix",
            Kind::List("a path", texts::route_path),
            Default::Absent,
            "Or a path that begins with one of these, which ends on a segment.",
        ),
        row(
            "methods",
            Kind::List("a method", texts::method),
            Default::Absent,
            "One of these methods.",
        ),
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
