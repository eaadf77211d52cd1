//! Rows of the forward proxy: `forward` with its `listen`, `allow` and `deny`. Part of the option
//! table.

use super::{FIELDS, HEAD, LINE, LISTEN, TIMEOUT, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

/// The value of `users` without any.
const NOBODY: &[&str] = &["off"];

pub(super) const FORWARD: Block = Block {
    name: "forward",
    help: "A forward proxy: clients of its `listen` request any destination that its rules allow \
        (docs/forward.md). At most one; needs neither `listen` nor `route` at the top.",
    options: &[
        row(
            "users",
            Kind::Or("off", &Kind::Text("a path", texts::forward::file)),
            Default::Is("off"),
            "File with the users of the proxy and their hashed passwords, as `weir passwd` writes \
                it. `off`: no authentication.",
        ),
        row(
            "realm",
            Kind::Text("a text", texts::forward::realm),
            Default::Without("users", NOBODY, &Default::Is("weir")),
            "The name of the proxy when it asks for a password.",
        ),
        row(
            "user-connections",
            Kind::Or("unlimited", &Kind::Count(1, 1_000_000)),
            Default::Without("users", NOBODY, &Default::Is("unlimited")),
            "Client connections of one user; more get 429.",
        ),
        row(
            "user-rate",
            Kind::Or("unlimited", &Kind::Count(1, 1_000_000)),
            Default::Without("users", NOBODY, &Default::Is("unlimited")),
            "Requests and tunnels a second of one user, with as many at once; more get 429.",
        ),
        row(
            "pool",
            Kind::Text("`pinned` or `per-request`", texts::forward::pool),
            Default::Is("pinned"),
            "Which requests share upstream connections. `pinned`: a client connection has one \
                upstream connection for each destination. `per-request`: each request has a \
                connection to itself.",
        ),
        row(
            "destinations",
            Kind::Count(1, 1_000),
            Default::With("pool", &["pinned"], &Default::Is("16")),
            "Upstream connections of one client connection; for a further one weir closes the \
                least recently used.",
        ),
        row(
            "resolver",
            Kind::List("ADDRESS or ADDRESS:PORT", texts::forward::resolver),
            Default::Absent,
            "Name servers. Without this option those of the system: `/etc/hosts` and \
                `/etc/resolv.conf`.",
        ),
        row(
            "pac",
            Kind::Or("off", &Kind::Or("auto", &Kind::Text("a path", texts::forward::file))),
            Default::Is("off"),
            "The response to `/proxy.pac` for clients that request it from the proxy itself. \
                `auto`: a file made of the listeners. A path: your file, read at start and at each \
                reload. `off`: 404.",
        ),
        row(
            "pac-host",
            Kind::Text("a host", texts::forward::proxy_host),
            Default::With("pac", &["auto"], &Default::Absent),
            "The name or address by which clients reach the proxy, for `pac auto`. Without this \
                option the addresses of the listeners.",
        ),
        row(
            "connect-timeout",
            TIMEOUT,
            Default::Is("5s"),
            "How long a connect to a destination may take; then 504.",
        ),
        row(
            "forward-timeout",
            TIMEOUT,
            Default::Is("60s"),
            "Longest time from the receipt of a request to the beginning of its response; \
                then 504.",
        ),
        row(
            "answer-timeout",
            TIMEOUT,
            Default::Is("1h"),
            "Longest silence within a response that has begun, such as an event stream; then weir \
                cuts the response (`answer-timeout`).",
        ),
        row(
            "line-limit",
            LINE,
            Default::Is("8KiB"),
            "Longest status line of a response; a longer one means 502.",
        ),
        row(
            "head-limit",
            HEAD,
            Default::Is("32KiB"),
            "Longest response head; a longer one means 502.",
        ),
        row(
            "fields-limit",
            FIELDS,
            Default::Is("100"),
            "Most fields in a response head; more mean 502.",
        ),
    ],
    blocks: &[LISTEN, RULE],
    repeats: true,
    ..BLOCK
};

const RULE: Block = Block {
    name: "rule",
    help: "Which clients may reach which destinations. The first rule whose criteria all match \
        decides; without one, the defaults (docs/forward.md). In JSON: `\"rule\": [{\"verdict\": \
        \"deny\", \"name\": [\"ads.example\"]}]`.",
    positional: &[
        row(
            "verdict",
            Kind::Word(&["allow", "deny"]),
            Default::Required,
            "The word that begins the rule.",
        ),
        row(
            "name",
            Kind::List("a name", texts::forward::name),
            Default::Absent,
            "Names of destinations: `example.com` is that name and all below it, `*.example.com` \
                only those below, `=example.com` only that name.",
        ),
    ],
    options: &[
        row(
            "names-file",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "A file of such names, one per line; `#` begins a comment. weir reads it at start and \
                at each reload.",
        ),
        row(
            "address",
            Kind::List("an address or a range such as 10.0.0.0/8", texts::network),
            Default::Absent,
            "Addresses of destinations, including those of names. Only with this option an `allow` \
                opens addresses that are not public.",
        ),
        row(
            "port",
            Kind::List("a port or a range such as 8000-8999", texts::forward::ports),
            Default::Absent,
            "Ports of destinations. Only with this option an `allow` opens unusual ones.",
        ),
        row(
            "method",
            Kind::List("a method", texts::method),
            Default::Absent,
            "Methods; `CONNECT` for tunnels.",
        ),
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
            "Until when the rule holds; a date includes all of that day.",
        ),
        row(
            "hours",
            Kind::List("a part of the day such as 08:00-18:00", texts::forward::hours),
            Default::Absent,
            "When the rule holds on each day (UTC).",
        ),
    ],
    repeats: true,
    by_word: true,
    ..BLOCK
};
