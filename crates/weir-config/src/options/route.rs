//! Rows of `route`: which requests it is for, where they go, and what is changed in them. Part of the option table.

use super::{POOLS, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

pub(super) const ROUTE: Block = Block {
    name: "route",
    help: "Which requests of clients of `listen` go where. The most specific wins: host, then longest path, then method, then the number of `header`, `query` and `cookie`.",
    positional: &[],
    options: &[
        row(
            "host",
            Kind::Text("`*`, a host name, or `*.` and a domain", texts::host_pattern),
            Default::Is("*"),
            "Which hosts, without port.",
        ),
        row(
            "path",
            Kind::Text("a path", texts::route_path),
            Default::Is("/"),
            "A prefix that ends on a segment: `/a` means `/a` and `/a/b`, not `/ab`.",
        ),
        row("methods", Kind::List("a method", texts::method), Default::Absent, "Which methods; without it all."),
        row(
            "proxy",
            Kind::Text("the name of an upstream", texts::upstream_name),
            Default::Required,
            "The upstream that answers.",
        ),
        row(
            "pool",
            Kind::Word(POOLS),
            Default::Absent,
            "Another `pool` than the upstream's for these requests: the same servers over connections of their own.",
        ),
        row(
            "strip-prefix",
            Kind::Text("a path", texts::route_path),
            Default::Absent,
            "Taken off the beginning of paths before they go to servers. The route's `path` begins with it.",
        ),
    ],
    blocks: &[CONDITION, REWRITE, REQUEST, ANSWER],
    repeats: true,
    ..BLOCK
};

const CONDITION: Block = Block {
    name: "condition",
    help: "What else a request must have: a field, a member of its query, a cookie. Without `eq` or another match it need only be there. All of a route's must hold. In JSON: `\"condition\": [{\"subject\": \"header\", \"name\": \"x-beta\", \"eq\": \"1\"}]`.",
    positional: &[
        row("subject", Kind::Word(&["header", "query", "cookie"]), Default::Required, "The word that begins it."),
        row(
            "name",
            Kind::Text("a name", texts::route::name),
            Default::Required,
            "What it is called: of a field without case, else with case. Names and values of a query are compared decoded.",
        ),
    ],
    options: &[
        row("eq", Kind::Text("a text", texts::route::value), Default::Absent, "One of its values is this."),
        row(
            "prefix",
            Kind::Text("a text", texts::route::value),
            Default::Absent,
            "One of its values begins with this.",
        ),
        row("suffix", Kind::Text("a text", texts::route::value), Default::Absent, "One of its values ends with this."),
        row(
            "regex",
            Kind::Text("a regular expression", texts::regex),
            Default::Absent,
            "One of its values contains a match; `^` and `$` for all of it.",
        ),
        row("not", Kind::Flag, Default::Is("#false"), "The opposite: none of its values is so, or it is not there."),
    ],
    repeats: true,
    by_word: true,
    ..BLOCK
};

const REWRITE: Block = Block {
    name: "rewrite",
    help: "Paths become others before they go to servers, after `strip-prefix`. The first that matches is done. Queries stay.",
    positional: &[
        row(
            "regex",
            Kind::Text("a regular expression", texts::regex),
            Default::Required,
            "What is looked for in the path, in which escapes of letters, digits and `-._~` are undone.",
        ),
        row(
            "to",
            Kind::Text("a path", texts::route::replacement),
            Default::Required,
            "What becomes of the part that it matches; `$1` is its first group.",
        ),
    ],
    repeats: true,
    ..BLOCK
};

const REQUEST: Block = Block {
    name: "request",
    help: "What servers see otherwise than clients have sent it. One at most.",
    options: &[row(
        "host",
        Kind::Text("a host, perhaps with a port", texts::probe_host),
        Default::Absent,
        "The Host that servers see. `X-Forwarded-Host` still says what the client asked for.",
    )],
    blocks: &[EDIT],
    repeats: true,
    ..BLOCK
};

const ANSWER: Block = Block {
    name: "answer",
    help: "What clients see otherwise than servers have sent it, in final answers, also those that weir makes itself. One at most.",
    blocks: &[EDIT],
    repeats: true,
    ..BLOCK
};

/// Words of [`EDIT`] behind which no value stands.
const WITHOUT_VALUE: &[&str] = &["remove"];

const EDIT: Block = Block {
    name: "edit",
    help: "A field: `set` puts one in place of all of its name, `add` one besides them, `remove` takes all away. In the order in which they stand. In JSON: `\"edit\": [{\"verb\": \"set\", \"name\": \"X-Client\", \"value\": \"$remote_addr\"}]`.",
    positional: &[
        row("verb", Kind::Word(&["set", "add", "remove"]), Default::Required, "The word that begins it."),
        row("name", Kind::Text("a field name", texts::route::field), Default::Required, "Which field."),
        row(
            "value",
            Kind::Text("a text with `$names`", texts::route::text),
            Default::Without("verb", WITHOUT_VALUE, &Default::Required),
            "What it says; `$names` of the request as in the access log (docs/semantics.md §14). Empty: no line.",
        ),
    ],
    repeats: true,
    by_word: true,
    ..BLOCK
};
