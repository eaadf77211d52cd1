//! Rows of the forward proxy: `forward` with its `listen`, `allow` and `deny`. Part of the option table.

use super::{FIELDS, HEAD, LINE, LISTEN, TIMEOUT, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

/// What `users` says when there are none.
const NOBODY: &[&str] = &["off"];

pub(super) const FORWARD: Block = Block {
    name: "forward",
    help: "A forward proxy: clients of its `listen` ask for any destination that its rules allow (docs/forward.md). One at most; needs neither `listen` nor `route` at the top.",
    options: &[
        row(
            "users",
            Kind::Or("off", &Kind::Text("a path", texts::forward::file)),
            Default::Is("off"),
            "File with those who may use it and their hashed passwords, as `weir passwd` writes it. `off`: nobody is asked who he is.",
        ),
        row(
            "realm",
            Kind::Text("a text", texts::forward::realm),
            Default::Without("users", NOBODY, &Default::Is("weir")),
            "What it calls itself when it asks for a password.",
        ),
        row(
            "user-connections",
            Kind::Or("unlimited", &Kind::Count(1, 1_000_000)),
            Default::Without("users", NOBODY, &Default::Is("unlimited")),
            "Client connections of one user; over it 429.",
        ),
        row(
            "user-rate",
            Kind::Or("unlimited", &Kind::Count(1, 1_000_000)),
            Default::Without("users", NOBODY, &Default::Is("unlimited")),
            "Requests and tunnels a second of one user, with as many at once; over it 429.",
        ),
        row(
            "pool",
            Kind::Text("`pinned` or `per-request`", texts::forward::pool),
            Default::Is("pinned"),
            "`pinned`: a client connection has one upstream connection for each destination. `per-request`: each request has its own.",
        ),
        row(
            "destinations",
            Kind::Count(1, 1_000),
            Default::With("pool", &["pinned"], &Default::Is("16")),
            "Upstream connections of one client connection; for one more the least recently used is closed.",
        ),
        row(
            "resolver",
            Kind::List("ADDRESS or ADDRESS:PORT", texts::forward::resolver),
            Default::Absent,
            "Name servers. Without them those of the system: `/etc/hosts` and `/etc/resolv.conf`.",
        ),
        row(
            "pac",
            Kind::Or("off", &Kind::Or("auto", &Kind::Text("a path", texts::forward::file))),
            Default::Is("off"),
            "What `/proxy.pac` answers to those who ask the proxy itself: `auto`, a file made of the listeners; a file of your own, read at start; `off`: 404.",
        ),
        row(
            "pac-host",
            Kind::Text("a host", texts::forward::proxy_host),
            Default::With("pac", &["auto"], &Default::Absent),
            "The name or address by which clients reach the proxy, for `pac auto`. Without it the addresses of the listeners.",
        ),
        row(
            "connect-timeout",
            TIMEOUT,
            Default::Is("5s"),
            "How long a connect to a destination may take; over it 504.",
        ),
        row(
            "forward-timeout",
            TIMEOUT,
            Default::Is("60s"),
            "From the receipt of a request to the beginning of its answer; over it 504.",
        ),
        row(
            "answer-timeout",
            TIMEOUT,
            Default::Is("1h"),
            "Longest silence within an answer that has begun, such as an event stream; over it the answer is cut (`answer-timeout`).",
        ),
        row("line-limit", LINE, Default::Is("8KiB"), "Longest status line of a reply; over it 502."),
        row("head-limit", HEAD, Default::Is("32KiB"), "Longest reply head; over it 502."),
        row("fields-limit", FIELDS, Default::Is("100"), "Most fields in a reply head; over it 502."),
    ],
    blocks: &[LISTEN, RULE],
    repeats: true,
    ..BLOCK
};

const RULE: Block = Block {
    name: "rule",
    help: "Who may go where. The first rule decides whose criteria all match; where none does, the defaults (docs/forward.md). In JSON: `\"rule\": [{\"verdict\": \"deny\", \"name\": [\"ads.example\"]}]`.",
    positional: &[
        row("verdict", Kind::Word(&["allow", "deny"]), Default::Required, "The word that begins the rule."),
        row(
            "name",
            Kind::List("a name", texts::forward::name),
            Default::Absent,
            "Names of destinations: `example.com` is it and all below it, `*.example.com` only those below, `=example.com` only itself.",
        ),
    ],
    options: &[
        row(
            "names-file",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "A file of such names, one a line, `#` begins a comment. Read at start.",
        ),
        row(
            "address",
            Kind::List("an address or a range such as 10.0.0.0/8", texts::network),
            Default::Absent,
            "Addresses of destinations, also of those that were named. Only with this an `allow` opens addresses that are not public.",
        ),
        row(
            "port",
            Kind::List("a port or a range such as 8000-8999", texts::forward::ports),
            Default::Absent,
            "Ports of destinations. Only with this an `allow` opens unusual ones.",
        ),
        row("method", Kind::List("a method", texts::method), Default::Absent, "Methods; `CONNECT` for tunnels."),
        row("user", Kind::List("a name", texts::forward::user), Default::Absent, "Names of users."),
        row(
            "client",
            Kind::List("an address or a range such as 10.0.0.0/8", texts::network),
            Default::Absent,
            "Addresses of clients.",
        ),
        row(
            "since",
            Kind::Text("a date or a time (UTC)", texts::forward::moment),
            Default::Absent,
            "From when on the rule holds: `2026-12-31`, or `2026-12-31T18:00:00Z`.",
        ),
        row(
            "until",
            Kind::Text("a date or a time (UTC)", texts::forward::moment),
            Default::Absent,
            "Until when it holds; a date with all of that day.",
        ),
        row(
            "hours",
            Kind::List("a part of the day such as 08:00-18:00", texts::forward::hours),
            Default::Absent,
            "When it holds on each day (UTC).",
        ),
    ],
    repeats: true,
    by_word: true,
    ..BLOCK
};
