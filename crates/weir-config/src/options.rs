//! The option table: every word of the configuration, one row each. Nothing else in weir knows their defaults as text;
//! a test compares them with `Default` of the plan. Blocks of the forward proxy are in `options/forward.rs`, `route` in
//! `options/route.rs`, `tcp` in `options/tcp.rs`, what sockets have in `options/sockets.rs`, `compress` in `options/compress.rs`, `cache` in `options/cache.rs`, `shield` in `options/shield.rs`, `tls` in `options/tls.rs`.

mod cache;
mod compress;
mod cores;
mod discovery;
mod forward;
mod health;
mod metrics;
mod pipeline;
mod route;
mod shield;
mod shutdown;
mod sockets;
mod tcp;
mod tls;
mod upgrade;
mod user;
mod workers;

pub(crate) use discovery::SERVERS;
pub(crate) use sockets::SOCKETS;

use crate::schema::{BLOCK, Block, Default, Kind, Row};
use crate::texts;

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;
const DAY: u64 = 86_400 * SECOND;
const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const TIB: u64 = 1024 * 1024 * MIB;

/// Times that a peer may take: below a millisecond a limit only breaks things.
const TIMEOUT: Kind = Kind::Time(1_000, DAY);
/// Lengths of first lines; RFC 9112 §3 asks for at least 8000 bytes of request line, so less is possible but unusual.
const LINE: Kind = Kind::Size(64, MIB);
/// Lengths of heads.
const HEAD: Kind = Kind::Size(256, MIB);
/// Numbers of fields.
const FIELDS: Kind = Kind::Count(1, 10_000);

/// Modes of upstream connections.
const POOLS: &[&str] = &["pipelined", "shared", "pinned", "per-request", "fresh"];

const fn row(name: &'static str, kind: Kind, default: Default, help: &'static str) -> Row {
    Row { name, kind, default, help }
}

/// The document.
pub(crate) const DOCUMENT: Block = Block {
    name: "",
    help: "At the top of the file.",
    positional: &[],
    options: &[
        row(
            "workers",
            Kind::Or("auto", &Kind::Count(1, 256)),
            Default::Is("auto"),
            "Threads that carry traffic, each on a core of its own (`pinning`). `auto`: one for each core that weir may use.",
        ),
        row(
            "io",
            Kind::Word(&["auto", "uring", "epoll"]),
            Default::Is("auto"),
            "How weir talks to the kernel. `auto`: io_uring where it works, epoll elsewhere.",
        ),
        cores::PINNING,
        workers::ACCEPT_BY,
        row(
            "admin",
            Kind::Or("auto", &Kind::Or("off", &Kind::Text("a path", texts::socket_path))),
            Default::Is("auto"),
            "The unix socket of `weir status` and `weir server`, for its owner only (mode 0600). `auto`: `/run/weir/admin.sock` where weir may write there, else `$XDG_RUNTIME_DIR/weir/admin.sock`, else none.",
        ),
        row(
            "via-name",
            Kind::Or("auto", &Kind::Text("a name", texts::via_name)),
            Default::Is("auto"),
            "Weir's name in `Via` and `CDN-Loop`. A request that has it there already has come back, and gets 508: no two proxies of a chain may have the same. `auto`: `weir-` and a random number, another one at each start.",
        ),
        pipeline::STATE,
        metrics::METRICS,
        metrics::HOSTS,
    ],
    blocks: &[
        LISTEN,
        CLIENT,
        ACCESS_LOG,
        UPSTREAM,
        route::ROUTE,
        compress::COMPRESS,
        cache::STORE,
        forward::FORWARD,
        tcp::TCP,
        shield::SHIELD,
        shutdown::SHUTDOWN,
        discovery::DISCOVERY,
        upgrade::UPGRADE,
        user::USER,
    ],
    repeats: false,
    ..BLOCK
};

const LISTEN: Block = Block {
    name: "listen",
    help: "An address that clients connect to. At least one, with a `route`, or a `forward` or `tcp`.",
    positional: &[row(
        "address",
        Kind::Text("ADDRESS:PORT, or `unix:` and a path", texts::listener),
        Default::Required,
        "Where to listen. `[::]` is IPv6 only: listen on `0.0.0.0` as well for both. `unix:/run/http/weir.sock` is a unix socket (docs/unix-sockets.md#clients-on-unix-sockets).",
    )],
    options: &[
        row(
            "mode",
            Kind::Text("an octal number", texts::socket_mode),
            Default::Absent,
            "Who may connect to a unix socket: its mode, such as 0666. Without this option 0660.",
        ),
        row(
            "group",
            Kind::Text("a group", texts::account),
            Default::Absent,
            "The group of a unix socket, by a name in /etc/group or a number. Without this option that of weir.",
        ),
        row(
            "backlog",
            Kind::Count(1, 65_535),
            Default::Is("65535"),
            "Connections that may wait to be accepted. The kernel caps it at net.core.somaxconn.",
        ),
        row(
            "protocols",
            Kind::List("`h2`, `h2c` or `http/1.1`", texts::protocol),
            Default::Absent,
            "What clients may speak, the best first: `h2` is HTTP/2 with TLS, `h2c` HTTP/2 without, by prior knowledge. Without this option `h2` and `http/1.1` with `tls`, else `http/1.1`; a `forward` speaks `http/1.1` only.",
        ),
        row(
            "proxy-protocol",
            Kind::Flag,
            Default::Is("#false"),
            "Clients come through load balancers that say first whose connection it is, by the PROXY protocol, version 1 or 2, in front of TLS as well. Only `trusted-proxies` of `client` may connect, and only so.",
        ),
        row(
            "congestion",
            CONGESTION,
            Default::Absent,
            "The congestion control towards clients, such as `bbr` (tcp(7), TCP_CONGESTION). In `tcp` up to four names: each has an equal part of the connections (docs/congestion.md). Without this option that of the system.",
        ),
        row(
            "transparent",
            Kind::Flag,
            Default::Is("#false"),
            "Takes connections to any address whose packets are led here by routes or rules (docs/transparent.md); not of a `forward`. Needs the capability CAP_NET_RAW.",
        ),
    ],
    shared: SOCKETS,
    blocks: &[tls::TLS],
    repeats: true,
    ..BLOCK
};

const CONGESTION: Kind = Kind::List("the name of a congestion control", texts::congestion);

const CLIENT: Block = Block {
    name: "client",
    help: "What a client may do.",
    positional: &[],
    options: &[
        row("line-limit", LINE, Default::Is("8KiB"), "Longest request line; over it 414."),
        row("head-limit", HEAD, Default::Is("32KiB"), "Longest request head; over it 431."),
        row("fields-limit", FIELDS, Default::Is("100"), "Most fields in a request head; over it 431."),
        row(
            "body-limit",
            Kind::Or("unlimited", &Kind::Size(0, TIB)),
            Default::Is("unlimited"),
            "Largest request body; over it 413.",
        ),
        row("head-timeout", TIMEOUT, Default::Is("10s"), "From the first byte of a head to its last; over it 408."),
        row("body-timeout", TIMEOUT, Default::Is("30s"), "Between two reads of a request body; over it 408."),
        row(
            "body-rate",
            Kind::Size(0, TIB),
            Default::Is("100B"),
            "Slowest acceptable request body in bytes a second, judged over each 10 s that begin with a byte of it; 0 switches it off. It is for bodies with a length, and for others while they are gathered, and ends when the answer begins.",
        ),
        row("idle-timeout", TIMEOUT, Default::Is("75s"), "How long a connection may stay without a request."),
        row(
            "send-timeout",
            TIMEOUT,
            Default::Is("60s"),
            "How long a client may take for 16 KiB of what is sent to it; on unix sockets, for one send (up to 256 KiB).",
        ),
        row("tunnel-timeout", TIMEOUT, Default::Is("1h"), "How long a tunnel (CONNECT, WebSocket) may be silent."),
        row(
            "half-closed",
            Kind::Word(&["cancel", "serve"]),
            Default::Is("cancel"),
            "What becomes of requests whose client has ended its sending direction (FIN). `cancel`: as soon as weir has nothing to send for 100 ms the client is taken for one that has left, and its servers are told. `serve`: they are answered.",
        ),
        row(
            "queue",
            Kind::Count(1, 10_000),
            Default::Is("64"),
            "Unanswered requests of one connection; then it is not read further.",
        ),
        row(
            "connections",
            Kind::Or("unlimited", &Kind::Count(1, 1_000_000)),
            Default::Is("unlimited"),
            "Client connections of one worker; above it new ones are closed at once.",
        ),
        row(
            "compress-memory",
            Kind::Size(0, TIB),
            Default::Is("128MiB"),
            "Memory of one worker for answers that it compresses (docs/compression.md); answers beyond leave as they are.",
        ),
        row(
            "glitches-limit",
            Kind::Or("off", &Kind::Count(1, 1_000_000)),
            Default::Is("off"),
            "Strange though legal events (docs/status.md) that one connection may make; with more it is closed behind what it asked.",
        ),
        row("via", Kind::Flag, Default::Is("#true"), "Add `Via` to responses, and to requests of the forward proxy."),
        row(
            "loop-field",
            Kind::Word(&["auto", "cdn-loop", "via", "off"]),
            Default::Is("auto"),
            "Field with weir's name (`via-name`) in requests to servers: one that comes back with it gets 508. `via`: behind it nginx (unless `gzip_proxied` says otherwise) and IIS compress nothing. `auto`: `cdn-loop` (RFC 8586), or nothing where `via` is off.",
        ),
        row(
            "underscores",
            Kind::Flag,
            Default::Is("#false"),
            "Forward fields whose name contains `_`. Many applications read `X_A` and `X-A` as one; so those that could be taken for what weir sets or removes, such as `X_Forwarded_For`, never pass.",
        ),
        row(
            "trusted-proxies",
            Kind::List("an address, a range such as 10.0.0.0/8, or `unix:`", texts::peers),
            Default::Absent,
            "Proxies in front of weir, `unix:` those that come over a unix socket: their X-Forwarded-* and Forwarded fields are believed, also in who the client is (docs/client-address.md). From all others they are dropped.",
        ),
        row(
            "client-address",
            Kind::Word(&["x-forwarded-for", "forwarded"]),
            Default::Is("x-forwarded-for"),
            "The field in which `trusted-proxies` say who the client is: the last address in it that is not one of theirs. All of them must set this one, and X-Forwarded-Proto with the first; in Forwarded stands both.",
        ),
        row(
            "request-id",
            Kind::Or("off", &Kind::Text("a field name", texts::route::field)),
            Default::Is("off"),
            "A field, such as `X-Request-Id`, in which servers get an identifier with each request: that of a trusted proxy, else a new one (UUID version 7). It is `$request_id` in the access log and in rules.",
        ),
        row(
            "trace-context",
            Kind::Flag,
            Default::Is("#false"),
            "Requests belong to a trace (W3C Trace Context): that of their `traceparent`, else a new one, which servers get. It is `$trace_id` in the access log and in rules.",
        ),
    ],
    blocks: &[HTTP2],
    repeats: false,
    ..BLOCK
};

const HTTP2: Block = Block {
    name: "http2",
    help: "What a client connection of HTTP/2 may do, besides what any client may.",
    positional: &[],
    options: &[
        row(
            "streams",
            Kind::Count(1, 1000),
            Default::Is("100"),
            "Requests under way at a time, also those that the client has given up, until their server is told.",
        ),
        row(
            "window",
            Kind::Size(16 * KIB, MIB),
            Default::Is("64KiB"),
            "Bytes of a request's body that may be on their way or unread.",
        ),
        row(
            "connection-window",
            Kind::Size(64 * KIB, 16 * MIB),
            Default::Is("1MiB"),
            "Bytes of the bodies of all requests of a connection that may be on their way.",
        ),
    ],
    repeats: false,
    ..BLOCK
};

const ACCESS_LOG: Block = Block {
    name: "access-log",
    help: "A line for each request. What lines can say: docs/access-log.md.",
    positional: &[row(
        "destination",
        Kind::Or("off", &Kind::Text("a path, or `stdout`", texts::log_destination)),
        Default::Is("off"),
        "A file, which is appended to and opened anew on SIGUSR1; a FIFO; or standard output, also written `-`.",
    )],
    options: &[
        row(
            "format",
            Kind::Text("`combined`, `common`, `json` or a text with `$names`", texts::log_format),
            Default::Is("combined"),
            "What lines say.",
        ),
        row(
            "escape",
            Kind::Word(&["default", "json"]),
            Default::Is("default"),
            "How a text with `$names` writes what clients send: `\\xHH` as nginx does, or for the inside of JSON strings.",
        ),
    ],
    blocks: &[],
    repeats: false,
    ..BLOCK
};

const UPSTREAM: Block = Block {
    name: "upstream",
    help: "A named group of servers: at least one `server` each, or `servers-from`.",
    positional: &[row("name", Kind::Text("a name", texts::upstream_name), Default::Required, "What routes call it.")],
    options: &[
        row(
            "pool",
            Kind::Word(POOLS),
            Default::Beside("pipelined", &[("proxy-protocol", None), ("source", Some("client"))], "pinned"),
            "Whose requests use which connections. `pipelined`: those of all clients follow each other. `shared`: one at a time, of any client. `pinned`: each client connection has one of its own for as long as it lives. `per-request`: each request has one of its own. `fresh`: as `pipelined`, but each request has one of its own while kept connections are measurably worse: for servers whose workers do one request after the other.",
        ),
        row(
            "proxy-protocol",
            Kind::Word(&["v1", "v2"]),
            Default::Absent,
            "Each connection says first whose it is, by this version of the PROXY protocol (docs/proxy-protocol.md#to-servers). Clients share none then: `pool` is `pinned` or `per-request`.",
        ),
        row(
            "servers-from",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "A file with further servers, which is read again when it has changed: `server` as here, or in a file that ends in `.json` an array such as `[{\"address\": \"10.0.0.1:80\", \"weight\": 20}]` (docs/discovery.md).",
        ),
        row(
            "queue-size",
            Kind::Count(1, 1_000_000),
            Default::Is("1000"),
            "Requests waiting or in flight on each of `connections`, with one more for each further one. When all are full: 503. 1 means no pipelining.",
        ),
        row(
            "forward-retries",
            Kind::Count(0, 100),
            Default::Is("5"),
            "How often one request may be sent again after a lost connection.",
        ),
        row(
            "retry-budget",
            Kind::Count(0, 100),
            Default::Is("20"),
            "Percent of requests that may be sent again after losses, on top of 10 a second and worker; over it 502.",
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
        row(
            "slow-start",
            Kind::Time(0, HOUR),
            Default::Is("0s"),
            "How long a server that comes back, or to others, takes to get its full share: from a tenth on it grows evenly.",
        ),
        row("connect-timeout", TIMEOUT, Default::Is("5s"), "How long one connect may take."),
        row(
            "source",
            Kind::Text("an address, or `client`", texts::source),
            Default::Absent,
            "The address of this machine that connections come from. `client`: the address and port of the client, whose packets must come back through this machine (docs/transparent.md); clients share no connections then, and it needs the capability CAP_NET_RAW. Without this option the one that the route has.",
        ),
        row(
            "congestion",
            CONGESTION,
            Default::Absent,
            "The congestion control towards servers, such as `cubic` (tcp(7), TCP_CONGESTION). For `tcp` up to four names: each has an equal part of the connections (docs/congestion.md). Without this option that of the system.",
        ),
        row(
            "connect-retries",
            Kind::Count(1, 1_000),
            Default::Is("10"),
            "Failed connects in a row after which nothing waits any longer for a server that was in use a moment ago. One that was not is never waited for (docs/retries.md).",
        ),
        row(
            "retry-nonidempotent",
            Kind::Flag,
            Default::Is("#false"),
            "Send POST and the like again after a loss. Only for applications where twice does no harm.",
        ),
        row(
            "required",
            Kind::Flag,
            Default::Is("#false"),
            "`/readyz` is 503 while none of its servers can be used. Without it one broken application takes all routes of every weir out of a load balancer.",
        ),
        row(
            "fallback",
            Kind::Text("the name of an upstream", texts::upstream_name),
            Default::Absent,
            "Another upstream that has the requests which no server of this one can take: none can be reached, all are suspended or out of use, or all queues are full. It may have one itself, up to 16 upstreams in a row.",
        ),
        row(
            "all-down",
            Kind::Word(&["try-all", "refuse"]),
            Default::Is("try-all"),
            "When no server can be reached that is not suspended. `try-all`: suspended ones get the requests; `refuse`: 503.",
        ),
        row("line-limit", LINE, Default::Is("8KiB"), "Longest status line of a reply; over it 502."),
        row("head-limit", HEAD, Default::Is("32KiB"), "Longest reply head; over it 502."),
        row("fields-limit", FIELDS, Default::Is("100"), "Most fields in a reply head; over it 502."),
        row(
            "glitches-limit",
            Kind::Or("off", &Kind::Count(1, 1_000_000)),
            Default::Is("off"),
            "Strange though legal events (docs/status.md) on one connection; with more it is made anew.",
        ),
    ],
    shared: SOCKETS,
    blocks: &[
        discovery::SERVER,
        tls::TO_SERVERS,
        BALANCE,
        STICKY,
        pipeline::PIPELINE,
        NONIDEMPOTENT,
        FAILOVER,
        health::HEALTH,
    ],
    repeats: true,
    ..BLOCK
};

const BALANCE: Block = Block {
    name: "balance",
    help: "Which server gets the next request; docs/balancing.md says when to use which.",
    positional: &[row(
        "mode",
        Kind::Word(&["ratio", "dynamic", "predict", "least", "hash"]),
        Default::Is("ratio"),
        "`ratio`: by `weight`. `dynamic`: by `weight` and response time. `predict`: by the response time to be expected. `least`: the less loaded of two. `hash`: the same server for the same key.",
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
            "How far ahead it is drawn.",
        ),
        row(
            "key",
            Kind::Text("`uri`, `client-ip`, `header:NAME` or `cookie:NAME`", texts::balance_key),
            Default::With("mode", &["hash"], &Default::Required),
            "What is hashed. A request without it goes to the less loaded of two servers.",
        ),
    ],
    blocks: &[],
    repeats: false,
    ..BLOCK
};

const STICKY: Block = Block {
    name: "sticky",
    help: "Binds a session to the server that answered it first, by a cookie. Without this block there is none.",
    positional: &[],
    options: &[
        row("cookie", Kind::Text("a name", texts::cookie_name), Default::Required, "What the cookie is called."),
        row(
            "allow-failover",
            Kind::Flag,
            Default::Is("#true"),
            "A session whose server can't be used goes to another one and is bound to that. Off: it gets 502 or 503.",
        ),
        row(
            "secret",
            Kind::Text("a text", texts::secret),
            Default::Absent,
            "Makes the value of the cookie, which stands for a server, impossible to guess. All weirs in front of the same servers need the same. Without it somebody who tries all addresses finds the server's.",
        ),
        row("path", Kind::Text("a path", texts::cookie_path), Default::Is("/"), "Where the cookie counts."),
        row(
            "max-age",
            Kind::Or("session", &Kind::Time(SECOND, 400 * DAY)),
            Default::Is("session"),
            "When browsers forget it. `session`: when they are closed.",
        ),
        row("http-only", Kind::Flag, Default::Is("#true"), "Scripts in the browser don't see it."),
        row("secure", Kind::Flag, Default::Is("#false"), "Browsers send it over TLS only."),
        row(
            "same-site",
            Kind::Word(&["lax", "strict", "none"]),
            Default::Is("lax"),
            "Whether it comes with requests that other sites cause: when a link is followed, never, or always.",
        ),
    ],
    blocks: &[],
    repeats: false,
    ..BLOCK
};

const NONIDEMPOTENT: Block = Block {
    name: "nonidempotent",
    help: "Requests that must not be pipelined although their method is safe. One of the matches must stand.",
    positional: &[
        row("method", Kind::Text("a method", texts::method), Default::Required, "Which method."),
        row("match", Kind::Word(&["any"]), Default::Absent, "`any`: every target."),
    ],
    options: &[
        row("eq", Kind::Text("a target", texts::target), Default::Absent, "The target (path and query) is this."),
        row("prefix", Kind::Text("a target", texts::target), Default::Absent, "The target begins with this."),
        row("suffix", Kind::Text("a target", texts::target), Default::Absent, "The target ends with this."),
        row("regex", Kind::Text("a regular expression", texts::regex), Default::Absent, "The target contains a match."),
    ],
    blocks: &[],
    repeats: true,
    ..BLOCK
};

const FAILOVER: Block = Block {
    name: "failover",
    help: "What a server is suspended for: it gets nothing new until it has shown that it works again.",
    positional: &[row(
        "code",
        Kind::Text("a status such as 503, or 5xx, or lost", texts::symptom),
        Default::Required,
        "Answers with this status, as the server gave them; `lost`: connections that it resets, or closes within an answer or \
         before the first one, while a request is unanswered.",
    )],
    options: &[
        row("limit", Kind::Count(1, 10_000), Default::Is("10"), "How many of them, over all workers."),
        row("window", TIMEOUT, Default::Is("10s"), "Within this time."),
    ],
    blocks: &[],
    repeats: true,
    ..BLOCK
};
