//! Rows of `route`: which requests it is for, where they go, and what is changed in them. Part of the option table.

use super::cache::CACHE;
use super::compress::COMPRESS;
use super::{POOLS, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

/// What `users` says when there are none.
const NOBODY: &[&str] = &["off"];

pub(super) const ROUTE: Block = Block {
    name: "route",
    help: "Which requests of clients of `listen` go where: to an upstream (`proxy`), elsewhere (`redirect`), or nowhere, because weir answers them itself (`respond`); one of these must stand. The most specific wins: scheme, then host, then longest path, then method, then the number of `header`, `query` and `cookie`.",
    positional: &[],
    options: &[
        row(
            "scheme",
            Kind::Word(&["http", "https"]),
            Default::Absent,
            "Only clients that speak without TLS (`http`), or with it, as `trusted-proxies` tell it of theirs. Such a route comes before all without `scheme`, whatever their hosts.",
        ),
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
            "content-types",
            Kind::List("a media type, perhaps with one `*`", texts::route::content_type),
            Default::Absent,
            "What content of requests may be (`Content-Type`), as `application/json` or `text/*`. Other content, and content that does not say what it is, gets 415. Without it anything.",
        ),
        row(
            "method-override",
            Kind::Word(&["allow", "refuse"]),
            Default::Is("allow"),
            "Requests that say that another method is meant: `X-HTTP-Method-Override`, `X-HTTP-Method`, `X-Method-Override`, `_method` in the query. `refuse`: they get 403.",
        ),
        row(
            "host-address",
            Kind::Word(&["allow", "refuse"]),
            Default::Is("allow"),
            "Requests whose host is an address in place of a name, as those of scanners. `refuse`: they get 421.",
        ),
        row(
            "proxy",
            Kind::Text("the name of an upstream", texts::upstream_name),
            Default::Absent,
            "The upstream that answers.",
        ),
        row(
            "request-buffering",
            Kind::Word(&["auto", "on", "off"]),
            Default::Given("proxy", &Default::Is("auto")),
            "When servers get requests whose body is not complete. `auto`: after 100 ms, and at once with `Expect: 100-continue`. `on`: not before 64 KiB of the body are here, for servers that should not wait for slow clients, or read no chunked bodies. `off`: at once.",
        ),
        row(
            "split-by",
            Kind::Text("`uri`, `client-ip`, `header:NAME` or `cookie:NAME`", texts::balance_key),
            Default::Absent,
            "What decides about `split`: requests with the same go to the same upstream. Without it, and for requests that have none, the shares alone.",
        ),
        row(
            "pool",
            Kind::Word(POOLS),
            Default::Absent,
            "Another `pool` than the upstream's for these requests: the same servers over connections of their own.",
        ),
        row(
            "users",
            Kind::Or("off", &Kind::Text("a path", texts::forward::file)),
            Default::Is("off"),
            "File with those who may use the route and their hashed passwords, as `weir passwd` writes it (Basic, RFC 7617). Others get 401. `off`: nobody is asked who he is.",
        ),
        row(
            "realm",
            Kind::Text("a text", texts::forward::realm),
            Default::Without("users", NOBODY, &Default::Is("weir")),
            "What the route calls itself when it asks for a password; browsers remember passwords by it.",
        ),
        row(
            "pass-authorization",
            Kind::Flag,
            Default::Without("users", NOBODY, &Default::Is("#false")),
            "Servers get the password as well (`Authorization`). Otherwise it is removed; `$remote_user` tells them the name.",
        ),
        row(
            "strip-prefix",
            Kind::Text("a path", texts::route_path),
            Default::Absent,
            "Taken off the beginning of paths before they go to servers. The route's `path` begins with it.",
        ),
    ],
    blocks: &[REDIRECT, RESPOND, CONDITION, ACCESS, SPLIT, REWRITE, REQUEST, ANSWER, ERROR_PAGE, COMPRESS, CACHE],
    repeats: true,
    ..BLOCK
};

const REDIRECT: Block = Block {
    name: "redirect",
    help: "Clients are to ask elsewhere.",
    positional: &[row(
        "to",
        Kind::Text("a URL or a path with `$names`", texts::route::location),
        Default::Required,
        "Where, as `https://$host$request_uri` (docs/routes.md). `$request_uri` is path and query as `strip-prefix` and `rewrite` leave them.",
    )],
    options: &[row(
        "status",
        Kind::Text("301, 302, 303, 307 or 308", texts::route::redirect_status),
        Default::Is("308"),
        "308 and 301 for good, 307 and 302 for now; with 308 and 307 the same method again, with 303 GET.",
    )],
    ..BLOCK
};

const RESPOND: Block = Block {
    name: "respond",
    help: "Weir answers by itself, the same to everybody.",
    positional: &[
        row(
            "status",
            Kind::Count(200, 599),
            Default::Required,
            "The status of the answer. With 204, 205 and 304 there is no content.",
        ),
        row("text", Kind::Text("a text", texts::route::content), Default::Absent, "The content."),
    ],
    options: &[
        row(
            "file",
            Kind::Text("a path", texts::route::file),
            Default::Absent,
            "A file with the content instead, of at most 1 MiB, read at start and at each reload.",
        ),
        row(
            "type",
            Kind::Or("auto", &Kind::Text("a media type", texts::route::media_type)),
            Default::Is("auto"),
            "Content-Type. `auto`: `text/plain` for a text, and for a file by the end of its name.",
        ),
    ],
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

const ACCESS: Block = Block {
    name: "access",
    help: "Whose requests the route takes, by the address of the client. The first line decides that has it; whom none has may come. Others get 403. In JSON: `\"access\": [{\"verdict\": \"allow\", \"address\": [\"10.0.0.0/8\"]}]`.",
    positional: &[
        row("verdict", Kind::Word(&["allow", "deny"]), Default::Required, "The word that begins it."),
        row(
            "address",
            Kind::List("an address, a range such as 10.0.0.0/8, `unix:`, or `all`", texts::route::address),
            Default::Required,
            "Whom; `all`: everybody.",
        ),
    ],
    repeats: true,
    by_word: true,
    ..BLOCK
};

const SPLIT: Block = Block {
    name: "split",
    help: "A part of the requests goes to another upstream than `proxy` says, as for a canary. In JSON: `\"split\": [{\"upstream\": \"canary\", \"percent\": \"5\"}]`.",
    positional: &[row(
        "upstream",
        Kind::Text("the name of an upstream", texts::upstream_name),
        Default::Required,
        "Which one.",
    )],
    options: &[row(
        "percent",
        Kind::Text("a number from 0 to 100, with at most two decimals", texts::route::percent),
        Default::Required,
        "How much of all requests of the route.",
    )],
    repeats: true,
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

const ERROR_PAGE: Block = Block {
    name: "error-page",
    help: "What clients see of errors that weir answers with, in place of its line of text; answers of servers pass as they are. The first that has the status counts. In JSON: `\"error-page\": [{\"status\": [\"502\"], \"file\": \"/etc/weir/502.html\"}]`.",
    positional: &[row(
        "status",
        Kind::List("a status such as 503, or 5xx", texts::codes),
        Default::Required,
        "For which statuses.",
    )],
    options: &[
        row(
            "file",
            Kind::Text("a path", texts::route::file),
            Default::Required,
            "A file with the content, of at most 1 MiB, read at start and at each reload.",
        ),
        row(
            "type",
            Kind::Or("auto", &Kind::Text("a media type", texts::route::media_type)),
            Default::Is("auto"),
            "Content-Type. `auto`: by the end of the file's name.",
        ),
    ],
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
            "What it says; `$names` of the request as in the access log (docs/routes.md). Empty: no line.",
        ),
    ],
    repeats: true,
    by_word: true,
    ..BLOCK
};
