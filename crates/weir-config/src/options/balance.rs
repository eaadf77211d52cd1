//! The rows of `balance` and `sticky`. Part of the option table.

use super::{DAY, HOUR, SECOND, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

pub(super) const BALANCE: Block = Block {
    name: "balance",
    help: "Which server gets the next request; docs/balancing.md says when to use which mode.",
    positional: &[row(
        "mode",
        Kind::Word(&["ratio", "dynamic", "predict", "least", "hash"]),
        Default::Is("ratio"),
        "How weir chooses the server. `ratio`: by `weight`. `dynamic`: by `weight` and response \
            time. `predict`: by the expected response time. `least`: the less loaded of two. \
            `hash`: the same server for the same key.",
    )],
    options: &[
        row(
            "by",
            Kind::Word(&["min", "avg", "max", "p50", "p75", "p90", "p95", "p99", "p99.9"]),
            Default::With("mode", &["dynamic", "predict"], &Default::Is("avg")),
            "Which response time: the shortest, the mean, the longest or a percentile.",
        ),
        row(
            "past",
            Kind::Time(SECOND, HOUR),
            Default::With("mode", &["predict"], &Default::Is("30s")),
            "How far back the trend of response times reaches.",
        ),
        row(
            "ahead",
            Kind::Time(0, HOUR),
            Default::With("mode", &["predict"], &Default::Is("15s")),
            "How far ahead weir extends the trend.",
        ),
        row(
            "key",
            Kind::Text("`uri`, `client-ip`, `header:NAME` or `cookie:NAME`", texts::balance_key),
            Default::With("mode", &["hash"], &Default::Required),
            "What is hashed. The less loaded of two servers gets a request without the key.",
        ),
    ],
    blocks: &[],
    repeats: false,
    ..BLOCK
};

pub(super) const STICKY: Block = Block {
    name: "sticky",
    help: "Binds a session to the server that answered it first, with a cookie. Without this block \
        sessions are not bound.",
    positional: &[],
    options: &[
        row(
            "cookie",
            Kind::Text("a name", texts::cookie_name),
            Default::Required,
            "The name of the cookie.",
        ),
        row(
            "allow-failover",
            Kind::Flag,
            Default::Is("#true"),
            "A session whose server cannot be used moves to another server and is bound to it. \
                Off: such a session gets 502 or 503.",
        ),
        row(
            "secret",
            Kind::Text("a text", texts::secret),
            Default::Absent,
            "Makes the value of the cookie, which identifies a server, impossible to guess. All \
                weirs in front of the same servers need the same secret. Without it, an attacker \
                who tries all addresses finds the server's.",
        ),
        row(
            "path",
            Kind::Text("a path", texts::cookie_path),
            Default::Is("/"),
            "The path that the cookie applies to.",
        ),
        row(
            "max-age",
            Kind::Or("session", &Kind::Time(SECOND, 400 * DAY)),
            Default::Is("session"),
            "When browsers forget the cookie. `session`: when the browser is closed.",
        ),
        row(
            "http-only",
            Kind::Flag,
            Default::Is("#true"),
            "Hide the cookie from scripts in the browser.",
        ),
        row("secure", Kind::Flag, Default::Is("#false"), "Browsers send the cookie over TLS only."),
        row(
            "same-site",
            Kind::Word(&["lax", "strict", "none"]),
            Default::Is("lax"),
            "Whether the cookie comes with requests that other sites cause: when the user follows \
                a link, never, or always.",
        ),
    ],
    blocks: &[],
    repeats: false,
    ..BLOCK
};
