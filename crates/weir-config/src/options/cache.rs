//! Rows of `cache`: the size of the store, at the top, and the rules, in a `route`. Part of the
//! option table.

use super::{DAY, HOUR, KIB, MIB, SECOND, TIB, row};
use crate::schema::{BLOCK, Block, Default, Kind, Row};
use crate::texts;

/// Lifetimes: at most ten years.
const LIFETIME: Kind = Kind::Time(SECOND, 3_650 * DAY);
/// Times beyond a lifetime.
const WINDOW: Kind = Kind::Time(0, 3_650 * DAY);

pub(super) const STORE: Block = Block {
    name: "cache",
    help: "How much the routes with `cache` store, all together and for all workers \
        (docs/cache-rules.md). Without this block its defaults apply. At most one.",
    options: &[
        row(
            "size",
            Kind::Size(MIB, 16 * TIB),
            Default::Is("256MiB"),
            "Memory of all responses that are stored, that are being sent although no longer \
                stored, and that are being fetched.",
        ),
        row(
            "object-limit",
            Kind::Size(KIB, 1024 * MIB),
            Default::Absent,
            "Longest body that is stored, at most a quarter of `size`. Without this option `8MiB`, \
                or that quarter if it is less.",
        ),
        row(
            "variants-max",
            Kind::Count(1, 1000),
            Default::Is("16"),
            "Responses of one URL that differ by what their `Vary` names; a further one replaces \
                the least recently used.",
        ),
        row(
            "snapshot",
            Kind::Text("a path", texts::cache::snapshot),
            Default::Absent,
            "File that keeps stored responses across restarts, such as \
                /var/lib/weir/cache.snapshot; weir writes it as its user, with the most used \
                first.",
        ),
        row(
            "snapshot-size",
            Kind::Size(64 * KIB, 16 * TIB),
            Default::Absent,
            "Longest snapshot, at most `size`. Without this option a quarter of `size`, at most \
                `1GiB`.",
        ),
        row(
            "snapshot-interval",
            Kind::Time(SECOND, DAY),
            Default::Is("10m"),
            "How often weir writes the snapshot, besides at the end; a crash costs what came \
                since.",
        ),
    ],
    repeats: true,
    ..BLOCK
};

pub(super) const CACHE: Block = Block {
    name: "cache",
    help: "Stores responses and serves them again, by RFC 9111 and nothing looser; a bare `cache` \
        is enough. The options are here, the promises in docs/cache-rules.md. At most one.",
    options: &[
        row(
            "heuristic",
            Kind::Flag,
            Default::Is("#true"),
            "Responses that state no lifetime but have a `Last-Modified` are fresh for a tenth of \
                the time since then, at most a day. With `public` for statuses below 400, else for \
                those that RFC 9110 §15.1 names, without 206.",
        ),
        row(
            "error-ttl",
            WINDOW,
            Default::Is("10s"),
            "Longest lifetime of responses with a status of 400 or more, whatever they state. \
                `0s`: no lifetime.",
        ),
        row(
            "stale-while-revalidate",
            WINDOW,
            Default::Is("0s"),
            "How long after its lifetime a response is still served at once while weir fetches it \
                again, if the response does not state this itself.",
        ),
        row(
            "stale-if-error",
            WINDOW,
            Default::Is("0s"),
            "How long after its lifetime a response is served while its server fails, if the \
                response does not state this itself.",
        ),
        row(
            "max-stale",
            WINDOW,
            Default::Is("0s"),
            "Upper limit for a client's `max-stale`. `0s`: weir ignores it.",
        ),
        row(
            "strip",
            Kind::List("a field name", texts::cache::strip),
            Default::Absent,
            "Fields of responses that are not stored, such as `Set-Cookie`: clients that get a \
                stored response get it without them.",
        ),
        row(
            "ignore",
            Kind::List("a directive of Cache-Control", texts::cache::directive),
            Default::Absent,
            "Directives of responses that weir treats as absent, such as `no-cache`.",
        ),
        row(
            "request-directives",
            Kind::Word(&["validate", "obey", "ignore"]),
            Default::Is("validate"),
            "What `no-cache`, `max-age` and `min-fresh` of clients do. `validate`: weir validates \
                a stored response, but not within a second of the last time. `obey`: each time. \
                `ignore`: nothing.",
        ),
        row(
            "set-cookie",
            Kind::Word(&["refuse", "store"]),
            Default::Is("refuse"),
            "Responses with `Set-Cookie` are not stored unless they say `public`. `store`: weir \
                stores them like others, and every client gets the cookie.",
        ),
        row(
            "cache-status",
            Kind::Word(&["off", "on", "trusted"]),
            Default::Is("off"),
            "Which clients see in `Cache-Status` (RFC 9211) what the cache did: none, all, or the \
                `trusted-proxies` of `client`.",
        ),
        row(
            "tags",
            Kind::List(
                "`Cache-Groups`, `Surrogate-Key`, `Cache-Tag` or `xkey`",
                texts::cache::tag_field,
            ),
            Default::Absent,
            "Fields of responses with the tags that `weir cache purge --tag` finds them by. \
                Without this option `Cache-Groups`.",
        ),
        row(
            "purge-from",
            Kind::List("an address, a range such as 10.0.0.0/8, or `unix:`", texts::peers),
            Default::Absent,
            "Clients whose `PURGE` purges all responses of its URL, such as 127.0.0.1; others get \
                403. Without this option weir forwards `PURGE` like any method.",
        ),
        row(
            "hit-for-miss",
            Kind::Time(0, HOUR),
            Default::Is("2m"),
            "After a response that may not be stored: how long no request waits for the response \
                to another request for the same.",
        ),
    ],
    blocks: &[
        lifetimes(
            "ttl",
            "A lifetime for responses with certain statuses that state none. Several are allowed, \
                each status in one.",
        ),
        lifetimes(
            "ttl-force",
            "A lifetime for responses with certain statuses, whatever they state. It makes no \
                response storable.",
        ),
        KEY,
        BYPASS,
    ],
    repeats: true,
    ..BLOCK
};

const fn lifetimes(name: &'static str, help: &'static str) -> Block {
    const TIME: &[Row] = &[row("time", LIFETIME, Default::Required, "The lifetime.")];
    const STATUS: &[Row] = &[row(
        "status",
        Kind::List("a status", texts::cache::status),
        Default::Is("200"),
        "The statuses, such as \"200,301,404\"; from 400 on, `error-ttl` is the most.",
    )];
    Block { name, help, positional: TIME, options: STATUS, repeats: true, ..BLOCK }
}

const KEY: Block = Block {
    name: "key",
    help: "What requests with the same response have in common, besides scheme, host, path, query \
        and upstream. At most one.",
    options: &[
        row(
            "query-ignore",
            Kind::List(
                "a name of a parameter, perhaps with `*` at its end",
                texts::cache::parameter,
            ),
            Default::Absent,
            "Parameters of the query that make no difference, such as `utm_*`. When weir requests \
                what it may store, it does not send these parameters to servers.",
        ),
        row(
            "query-sort",
            Kind::Flag,
            Default::Is("#false"),
            "The order of the parameters makes no difference.",
        ),
        row(
            "header",
            Kind::List("a field name", texts::route::field),
            Default::Absent,
            "Fields of requests that make a difference.",
        ),
        row(
            "cookie",
            Kind::List("the name of a cookie", texts::cookie_name),
            Default::Absent,
            "Cookies that make a difference.",
        ),
    ],
    repeats: true,
    ..BLOCK
};

const BYPASS: Block = Block {
    name: "bypass",
    help: "Requests that bypass the cache: weir forwards them and does not store their responses. \
        At most one.",
    options: &[row(
        "cookie",
        Kind::List("the name of a cookie", texts::cookie_name),
        Default::Required,
        "Requests with one of these cookies.",
    )],
    repeats: true,
    ..BLOCK
};
