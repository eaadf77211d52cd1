//! Rows of `route`: the requests that it matches, their target, and changes to them. Part of the
//! option table.

use super::cache::CACHE;
use super::compress::COMPRESS;
use super::{POOLS, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

/// The value of `users` without any.
const NOBODY: &[&str] = &["off"];

pub(super) const ROUTE: Block = Block {
    name: "route",
    help: "Which requests of clients of `listen` go to an upstream (`proxy`) or to another URL \
        (`redirect`), or get a response from weir (`respond`). One of these is required. The most \
        specific route wins: listen, then scheme, then host, then longest path, then method, then \
        the number of `path-regex`, `header`, `query` and `cookie`.",
    positional: &[],
    options: &[
        row(
            "listen",
            Kind::List("the name of a `listen`", texts::listener_name),
            Default::Absent,
            "Only clients of the listeners with these names. Such a route comes before all routes \
                without `listen`, whatever their hosts.",
        ),
        row(
            "scheme",
            Kind::Word(&["http", "https"]),
            Default::Absent,
            "Only clients without TLS (`http`), or with it (`https`), as `trusted-proxies` report \
                it of theirs. Such a route comes before all routes without `scheme`, whatever \
                their hosts.",
        ),
        row(
            "host",
            Kind::Text("`*`, a host name, or `*.` and a domain", texts::host_pattern),
            Default::Is("*"),
            "The hosts, without port.",
        ),
        row(
            "path",
            Kind::Text("a path", texts::route_path),
            Default::Is("/"),
            "A prefix that ends on a segment: `/a` means `/a` and `/a/b`, not `/ab`.",
        ),
        row(
            "path-exact",
            Kind::Text("a path", texts::route_path),
            Default::Absent,
            "This path alone, in place of `path`: `/a` does not mean `/a/b` or `/a/`.",
        ),
        row(
            "methods",
            Kind::List("a method", texts::method),
            Default::Absent,
            "The methods; without this option all.",
        ),
        row(
            "content-types",
            Kind::List("a media type, perhaps with one `*`", texts::route::content_type),
            Default::Absent,
            "Media types that the content of requests may have (`Content-Type`), as \
                `application/json` or `text/*`. Other content, and content without a type, gets \
                415. Without this option any.",
        ),
        row(
            "method-override",
            Kind::Word(&["allow", "refuse"]),
            Default::Is("allow"),
            "Requests that ask for another method: `X-HTTP-Method-Override`, `X-HTTP-Method`, \
                `X-Method-Override`, `_method` in the query. `refuse`: such requests get 403.",
        ),
        row(
            "host-address",
            Kind::Word(&["allow", "refuse"]),
            Default::Is("allow"),
            "Requests whose host is an address instead of a name, as those of scanners. `refuse`: \
                such requests get 421.",
        ),
        row(
            "proxy",
            Kind::Text("the name of an upstream", texts::upstream_name),
            Default::Absent,
            "The upstream that gets the requests.",
        ),
        row(
            "request-buffering",
            Kind::Word(&["auto", "on", "off"]),
            Default::Given("proxy", &Default::Is("auto")),
            "When servers get requests whose body is not complete. `auto`: after 100 ms, and at \
                once with `Expect: 100-continue`. `on`: not before 64 KiB of the body have \
                arrived, for servers that should not wait for slow clients, or cannot read chunked \
                bodies. `off`: at once.",
        ),
        row(
            "split-by",
            Kind::Text("`uri`, `client-ip`, `header:NAME` or `cookie:NAME`", texts::balance_key),
            Default::Absent,
            "What decides about `split`: requests with the same value go to the same upstream. \
                Without this option, and for requests without a value, only the shares decide.",
        ),
        row(
            "pool",
            Kind::Word(POOLS),
            Default::Absent,
            "A different `pool` than the upstream's for these requests: the same servers over \
                separate connections.",
        ),
        row(
            "users",
            Kind::Or("off", &Kind::Text("a path", texts::forward::file)),
            Default::Is("off"),
            "File with the users of the route and their hashed passwords, as `weir passwd` writes \
                it (Basic, RFC 7617). Other clients get 401. `off`: no authentication.",
        ),
        row(
            "realm",
            Kind::Text("a text", texts::forward::realm),
            Default::Without("users", NOBODY, &Default::Is("weir")),
            "The name of the route when it asks for a password; browsers remember passwords \
                by this name.",
        ),
        row(
            "pass-authorization",
            Kind::Flag,
            Default::Without("users", NOBODY, &Default::Is("#false")),
            "Servers get the password as well (`Authorization`). Otherwise weir removes this \
                field; `$remote_user` can give servers the name.",
        ),
        row(
            "strip-prefix",
            Kind::Text("a path", texts::route_path),
            Default::Absent,
            "Removed from the beginning of paths before they go to servers. The route's `path` \
                begins with this prefix.",
        ),
    ],
    blocks: &[
        REDIRECT, RESPOND, PATH_REGEX, CONDITION, ACCESS, SPLIT, REWRITE, REQUEST, ANSWER,
        ERROR_PAGE, COMPRESS, CACHE,
    ],
    repeats: true,
    ..BLOCK
};

const REDIRECT: Block = Block {
    name: "redirect",
    help: "Redirects clients to another URL.",
    positional: &[row(
        "to",
        Kind::Text("a URL or a path with `$names`", texts::route::location),
        Default::Required,
        "Where to, as `https://$host$request_uri` (docs/routes.md). `$request_uri` is path and \
            query as `strip-prefix` and `rewrite` leave them.",
    )],
    options: &[row(
        "status",
        Kind::Text("301, 302, 303, 307 or 308", texts::route::redirect_status),
        Default::Is("308"),
        "308 and 301 are permanent, 307 and 302 temporary. With 308 and 307 clients keep the \
            method, with 303 they use GET.",
    )],
    ..BLOCK
};

const RESPOND: Block = Block {
    name: "respond",
    help: "weir answers the request itself, in the same way for every client.",
    positional: &[
        row(
            "status",
            Kind::Count(200, 599),
            Default::Required,
            "The status of the response. A response with 204, 205 or 304 has no content.",
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
            "Content-Type. `auto`: `text/plain` for a text, and for a file by its extension.",
        ),
    ],
    ..BLOCK
};

const PATH_REGEX: Block = Block {
    name: "path-regex",
    help: "What the path must match besides `path`: decoded, and without dot segments, doubled \
        slashes and the query. All of them must hold.",
    positional: &[row(
        "regex",
        Kind::Text("a regular expression", texts::regex),
        Default::Required,
        "What to find in the path; use `^` and `$` to match all of it. It takes linear time.",
    )],
    options: &[row(
        "not",
        Kind::Flag,
        Default::Is("#false"),
        "The opposite: the path does not match.",
    )],
    repeats: true,
    ..BLOCK
};

const CONDITION: Block = Block {
    name: "condition",
    help: "What else a request must have: a field, a parameter of its query, a cookie. Without \
        `eq` or another match it need only be present. All conditions of a route must hold. In \
        JSON: `\"condition\": [{\"subject\": \"header\", \"name\": \"x-beta\", \"eq\": \"1\"}]`.",
    positional: &[
        row(
            "subject",
            Kind::Word(&["header", "query", "cookie"]),
            Default::Required,
            "The word that begins it.",
        ),
        row(
            "name",
            Kind::Text("a name", texts::route::name),
            Default::Required,
            "Its name, compared without case for a field, else with case. Names and values of a \
                query are compared decoded.",
        ),
    ],
    options: &[
        row(
            "eq",
            Kind::Text("a text", texts::route::value),
            Default::Absent,
            "One of its values equals this.",
        ),
        row(
            "prefix",
            Kind::Text("a text", texts::route::value),
            Default::Absent,
            "One of its values begins with this.",
        ),
        row(
            "suffix",
            Kind::Text("a text", texts::route::value),
            Default::Absent,
            "One of its values ends with this.",
        ),
        row(
            "regex",
            Kind::Text("a regular expression", texts::regex),
            Default::Absent,
            "One of its values contains a match; use `^` and `$` to match all of it.",
        ),
        row(
            "not",
            Kind::Flag,
            Default::Is("#false"),
            "The opposite: none of its values matches, or it is absent.",
        ),
    ],
    repeats: true,
    by_word: true,
    ..BLOCK
};

const ACCESS: Block = Block {
    name: "access",
    help: "Which requests the route takes, by the address of the client. The first line with that \
        address decides; a client on no line is allowed. Others get 403. In JSON: `\"access\": \
        [{\"verdict\": \"allow\", \"address\": [\"10.0.0.0/8\"]}]`.",
    positional: &[
        row(
            "verdict",
            Kind::Word(&["allow", "deny"]),
            Default::Required,
            "The word that begins it.",
        ),
        row(
            "address",
            Kind::List(
                "an address, a range such as 10.0.0.0/8, `unix:`, or `all`",
                texts::route::address,
            ),
            Default::Required,
            "Addresses of clients; `all`: every client.",
        ),
    ],
    repeats: true,
    by_word: true,
    ..BLOCK
};

const SPLIT: Block = Block {
    name: "split",
    help: "Sends a part of the requests to a different upstream than `proxy`, as for a canary. In \
        JSON: `\"split\": [{\"upstream\": \"canary\", \"percent\": \"5\"}]`.",
    positional: &[row(
        "upstream",
        Kind::Text("the name of an upstream", texts::upstream_name),
        Default::Required,
        "The upstream that gets this part.",
    )],
    options: &[row(
        "percent",
        Kind::Text("a number from 0 to 100, with at most two decimals", texts::route::percent),
        Default::Required,
        "The part of all requests of the route.",
    )],
    repeats: true,
    ..BLOCK
};

const REWRITE: Block = Block {
    name: "rewrite",
    help: "Changes paths before they go to servers, after `strip-prefix`. Only the first rule that \
        matches applies. Queries do not change.",
    positional: &[
        row(
            "regex",
            Kind::Text("a regular expression", texts::regex),
            Default::Required,
            "What to find in the path, in which escapes of letters, digits and `-._~` are decoded.",
        ),
        row(
            "to",
            Kind::Text("a path", texts::route::replacement),
            Default::Required,
            "What replaces the matched part; `$1` is its first group.",
        ),
    ],
    repeats: true,
    ..BLOCK
};

const REQUEST: Block = Block {
    name: "request",
    help: "Changes requests before they go to servers. At most one.",
    options: &[row(
        "host",
        Kind::Text("a host, perhaps with a port", texts::probe_host),
        Default::Absent,
        "The Host that servers see. `X-Forwarded-Host` still carries the host that the client \
            requested.",
    )],
    blocks: &[EDIT],
    repeats: true,
    ..BLOCK
};

const ANSWER: Block = Block {
    name: "answer",
    help: "Changes final responses before they go to clients, including those that weir makes \
        itself. At most one.",
    blocks: &[EDIT],
    repeats: true,
    ..BLOCK
};

const ERROR_PAGE: Block = Block {
    name: "error-page",
    help: "What clients see of errors that weir answers with, instead of its line of text; \
        responses of servers pass unchanged. The first page with the status applies. In JSON: \
        `\"error-page\": [{\"status\": [\"502\"], \"file\": \"/etc/weir/502.html\"}]`.",
    positional: &[row(
        "status",
        Kind::List("a status such as 503, or 5xx", texts::codes),
        Default::Required,
        "The statuses.",
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
            "Content-Type. `auto`: by the extension of the file.",
        ),
    ],
    repeats: true,
    ..BLOCK
};

/// Words of [`EDIT`] without a value behind them.
const WITHOUT_VALUE: &[&str] = &["remove"];

const EDIT: Block = Block {
    name: "edit",
    help: "A field: `set` replaces all fields of its name by one, `add` adds one, `remove` removes \
        all. They apply in the order in which they are written. In JSON: `\"edit\": [{\"verb\": \
        \"set\", \"name\": \"X-Client\", \"value\": \"$remote_addr\"}]`.",
    positional: &[
        row(
            "verb",
            Kind::Word(&["set", "add", "remove"]),
            Default::Required,
            "The word that begins it.",
        ),
        row(
            "name",
            Kind::Text("a field name", texts::route::field),
            Default::Required,
            "The name of the field.",
        ),
        row(
            "value",
            Kind::Text("a text with `$names`", texts::route::text),
            Default::Without("verb", WITHOUT_VALUE, &Default::Required),
            "Its value, with `$names` of the request as in the access log (docs/routes.md). An \
                empty value means no line.",
        ),
    ],
    repeats: true,
    by_word: true,
    ..BLOCK
};
