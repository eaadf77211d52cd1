//! Rows of `cache`: how much is stored, at the top, and by which rules, in a `route`. Part of the option table.

use super::{DAY, HOUR, KIB, MIB, SECOND, TIB, row};
use crate::schema::{BLOCK, Block, Default, Kind, Row};
use crate::texts;

/// Lifetimes: at most ten years.
const LIFETIME: Kind = Kind::Time(SECOND, 3_650 * DAY);
/// Times beyond a lifetime.
const WINDOW: Kind = Kind::Time(0, 3_650 * DAY);

pub(super) const STORE: Block = Block {
    name: "cache",
    help: "How much the routes with `cache` store, all together and for all workers (docs/cache-rules.md). Without it they have what stands here. One at most.",
    options: &[
        row(
            "size",
            Kind::Size(MIB, 16 * TIB),
            Default::Is("256MiB"),
            "Memory of all that is stored, that is being sent though it is not stored any more, and that is being fetched.",
        ),
        row(
            "object-limit",
            Kind::Size(KIB, 1024 * MIB),
            Default::Absent,
            "Longest body that is stored, at most a quarter of `size`. Without this option `8MiB`, or that quarter if it is less.",
        ),
        row(
            "variants-max",
            Kind::Count(1, 1000),
            Default::Is("16"),
            "Answers of one URL that differ by what their `Vary` names; the one that was used least recently makes room.",
        ),
        row(
            "snapshot",
            Kind::Text("a path", texts::cache::snapshot),
            Default::Absent,
            "File that keeps what is stored over a restart, such as /var/lib/weir/cache.snapshot; written by weir as its user, with what is used most first.",
        ),
        row(
            "snapshot-size",
            Kind::Size(64 * KIB, 16 * TIB),
            Default::Absent,
            "Longest snapshot, at most `size`. Without this option a quarter of `size`, at most `1GiB`.",
        ),
        row(
            "snapshot-interval",
            Kind::Time(SECOND, DAY),
            Default::Is("10m"),
            "How often the snapshot is written, besides at the end: what a crash costs.",
        ),
    ],
    repeats: true,
    ..BLOCK
};

pub(super) const CACHE: Block = Block {
    name: "cache",
    help: "Answers are stored and served again, by RFC 9111 and nothing looser; a bare `cache` will do. What it can be told is here, what it promises in docs/cache-rules.md. One at most.",
    options: &[
        row(
            "heuristic",
            Kind::Flag,
            Default::Is("#true"),
            "Answers that say nothing of their lifetime but have a `Last-Modified` are fresh for a tenth of the time since then, at most a day.",
        ),
        row(
            "error-ttl",
            WINDOW,
            Default::Is("10s"),
            "Longest lifetime of answers with a status from 400 on, whatever they say. `0s`: none.",
        ),
        row(
            "stale-while-revalidate",
            WINDOW,
            Default::Is("0s"),
            "For how long after its lifetime an answer that doesn't say it is still served at once, while it is fetched anew.",
        ),
        row(
            "stale-if-error",
            WINDOW,
            Default::Is("0s"),
            "For how long after its lifetime an answer that doesn't say it is served while its server fails.",
        ),
        row(
            "max-stale",
            WINDOW,
            Default::Is("0s"),
            "How far a client's `max-stale` reaches at most. `0s`: it is ignored.",
        ),
        row(
            "strip",
            Kind::List("a field name", texts::cache::strip),
            Default::Absent,
            "Fields of answers that are not stored, such as `Set-Cookie`: who gets a stored answer gets it without them.",
        ),
        row(
            "ignore",
            Kind::List("a directive of Cache-Control", texts::cache::directive),
            Default::Absent,
            "Directives of answers that count as not there, such as `no-cache`.",
        ),
        row(
            "request-directives",
            Kind::Word(&["validate", "obey", "ignore"]),
            Default::Is("validate"),
            "What `no-cache`, `max-age` and `min-fresh` of clients do. `validate`: a stored answer is validated, but not within a second of the last time. `obey`: each time. `ignore`: nothing.",
        ),
        row(
            "set-cookie",
            Kind::Word(&["refuse", "store"]),
            Default::Is("refuse"),
            "Answers with `Set-Cookie` are not stored unless they say `public`; `store`: as others, with the cookie for everybody.",
        ),
        row(
            "cache-status",
            Kind::Word(&["off", "on", "trusted"]),
            Default::Is("off"),
            "Who is told by `Cache-Status` (RFC 9211) what the cache did: nobody, everybody, or the `trusted-proxies` of `client`.",
        ),
        row(
            "tags",
            Kind::List("`Cache-Groups`, `Surrogate-Key`, `Cache-Tag` or `xkey`", texts::cache::tag_field),
            Default::Absent,
            "Fields of answers with the tags by which `weir cache purge --tag` finds them. Without this option `Cache-Groups`.",
        ),
        row(
            "purge-from",
            Kind::List("an address, a range such as 10.0.0.0/8, or `unix:`", texts::peers),
            Default::Absent,
            "Clients whose `PURGE` has all answers of its URL gone, such as 127.0.0.1; others get 403. Without this option `PURGE` is forwarded as any method.",
        ),
        row(
            "hit-for-miss",
            Kind::Time(0, HOUR),
            Default::Is("2m"),
            "After an answer that may not be stored: for how long nobody waits for another one's answer to the same.",
        ),
    ],
    blocks: &[
        lifetimes(
            "ttl",
            "A lifetime for answers with certain statuses that say nothing of theirs. Several may stand, each status in one.",
        ),
        lifetimes(
            "ttl-force",
            "A lifetime for answers with certain statuses, whatever they say of theirs. What may not be stored is not stored for it.",
        ),
        KEY,
        BYPASS,
    ],
    repeats: true,
    ..BLOCK
};

const fn lifetimes(name: &'static str, help: &'static str) -> Block {
    const TIME: &[Row] = &[row("time", LIFETIME, Default::Required, "How long.")];
    const STATUS: &[Row] = &[row(
        "status",
        Kind::List("a status", texts::cache::status),
        Default::Is("200"),
        "Of which statuses, such as \"200,301,404\"; from 400 on, `error-ttl` is the most.",
    )];
    Block { name, help, positional: TIME, options: STATUS, repeats: true, ..BLOCK }
}

const KEY: Block = Block {
    name: "key",
    help: "What requests with the same answer have in common, besides scheme, host, path, query and upstream. One at most.",
    options: &[
        row(
            "query-ignore",
            Kind::List("a name of a parameter, perhaps with `*` at its end", texts::cache::parameter),
            Default::Absent,
            "Parameters of the query that make no difference, such as `utm_*`. Servers are not told them when they are asked for what is to be stored.",
        ),
        row("query-sort", Kind::Flag, Default::Is("#false"), "The order of the parameters makes no difference."),
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
    help: "Requests that have nothing to do with the cache: they are forwarded, and their answers not stored. One at most.",
    options: &[row(
        "cookie",
        Kind::List("the name of a cookie", texts::cookie_name),
        Default::Required,
        "Those with one of these cookies.",
    )],
    repeats: true,
    ..BLOCK
};
