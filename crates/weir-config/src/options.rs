//! The option table: every word of the configuration, one row each. No other part of weir knows
//! their defaults as text; a test compares them with `Default` of the plan. Each large block has
//! its own file: `options/forward.rs`, `options/route.rs`, `options/tcp.rs`, `options/sockets.rs`
//! (options of sockets), `options/compress.rs`, `options/cache.rs`, `options/shield.rs`,
//! `options/tls.rs`, `options/balance.rs`.

mod balance;
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
/// Lengths of first lines; RFC 9112 §3 asks for at least 8000 bytes of request line, so less is
/// possible but unusual.
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
            "Threads that carry traffic, each on its own core (`pinning`). `auto`: one for each \
                core that weir may use.",
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
            "The unix socket of `weir status` and `weir server`, for its owner only (mode 0600). \
                `auto`: `/run/weir/admin.sock` where weir may write there, else \
                `$XDG_RUNTIME_DIR/weir/admin.sock`, else none.",
        ),
        row(
            "via-name",
            Kind::Or("auto", &Kind::Text("a name", texts::via_name)),
            Default::Is("auto"),
            "The name of weir in `Via` and `CDN-Loop`. A request that already carries this name \
                has looped and gets 508, so no two proxies of a chain may have the same name. \
                `auto`: `weir-` and a random number, different at each start.",
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
    help: "An address that clients connect to. At least one is required, with a `route`, or a \
        `forward` or `tcp`.",
    positional: &[row(
        "address",
        Kind::Text("ADDRESS:PORT, or `unix:` and a path", texts::listener),
        Default::Required,
        "Where to listen. `[::]` is IPv6 only: for both, listen on `0.0.0.0` as well. \
            `unix:/run/http/weir.sock` is a unix socket \
            (docs/unix-sockets.md#clients-on-unix-sockets).",
    )],
    options: &[
        row(
            "name",
            Kind::Text("a name", texts::listener_name),
            Default::Absent,
            "The name by which the option `listen` of a `route` finds it.",
        ),
        row(
            "mode",
            Kind::Text("an octal number", texts::socket_mode),
            Default::Absent,
            "The mode of a unix socket, such as 0666: who may connect. Without this option 0660.",
        ),
        row(
            "group",
            Kind::Text("a group", texts::account),
            Default::Absent,
            "The group of a unix socket: a name in /etc/group, or a number. Without this option \
                the group of weir.",
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
            "What clients may speak, in order of preference: `h2` is HTTP/2 with TLS, `h2c` is \
                HTTP/2 without TLS, with prior knowledge. Without this option `h2` and `http/1.1` \
                with `tls`, else `http/1.1`. A `forward` speaks `http/1.1` only.",
        ),
        row(
            "proxy-protocol",
            Kind::Flag,
            Default::Is("#false"),
            "Clients come through load balancers that announce each client with the PROXY \
                protocol, version 1 or 2, also in front of TLS. Only `trusted-proxies` of `client` \
                may connect, and only with this announcement.",
        ),
        row(
            "congestion",
            CONGESTION,
            Default::Absent,
            "The congestion control towards clients, such as `bbr` (tcp(7), TCP_CONGESTION). In \
                `tcp` up to four names: each gets an equal part of the connections \
                (docs/congestion.md). Without this option the system's.",
        ),
        row(
            "transparent",
            Kind::Flag,
            Default::Is("#false"),
            "Accepts connections to any address whose packets routes or rules lead here \
                (docs/transparent.md); not in a `forward`. Needs the capability CAP_NET_RAW.",
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
    help: "Limits of a client connection.",
    positional: &[],
    options: &[
        row(
            "line-limit",
            LINE,
            Default::Is("8KiB"),
            "Longest request line; a longer one gets 414.",
        ),
        row(
            "head-limit",
            HEAD,
            Default::Is("32KiB"),
            "Longest request head; a longer one gets 431.",
        ),
        row(
            "fields-limit",
            FIELDS,
            Default::Is("100"),
            "Most fields in a request head; more get 431.",
        ),
        row(
            "body-limit",
            Kind::Or("unlimited", &Kind::Size(0, TIB)),
            Default::Is("unlimited"),
            "Largest request body; a larger one gets 413.",
        ),
        row(
            "head-timeout",
            TIMEOUT,
            Default::Is("10s"),
            "Longest time from the first byte of a head to its last; then 408.",
        ),
        row(
            "body-timeout",
            TIMEOUT,
            Default::Is("30s"),
            "Longest time between two reads of a request body; then 408.",
        ),
        row(
            "body-rate",
            Kind::Size(0, TIB),
            Default::Is("100B"),
            "Slowest acceptable request body in bytes a second, judged over each 10 s that begin \
                with a byte of it; 0 switches it off. It applies to bodies with a length, and to \
                others while weir gathers them, and ends when the response begins.",
        ),
        row(
            "idle-timeout",
            TIMEOUT,
            Default::Is("75s"),
            "How long a connection may stay open without a request.",
        ),
        row(
            "send-timeout",
            TIMEOUT,
            Default::Is("60s"),
            "How long a client may take to receive 16 KiB of what weir sends; on unix sockets, to \
                receive one send (up to 256 KiB).",
        ),
        row(
            "tunnel-timeout",
            TIMEOUT,
            Default::Is("1h"),
            "How long a tunnel (CONNECT, WebSocket) may be silent.",
        ),
        row(
            "half-closed",
            Kind::Word(&["cancel", "serve"]),
            Default::Is("cancel"),
            "What happens to requests whose client has ended its sending direction (FIN). \
                `cancel`: once weir has had nothing to send for 100 ms, it treats the client as \
                gone and tells the servers. `serve`: weir answers the requests.",
        ),
        row(
            "queue",
            Kind::Count(1, 10_000),
            Default::Is("64"),
            "Unanswered requests of one connection; then weir stops reading from it.",
        ),
        row(
            "connections",
            Kind::Or("unlimited", &Kind::Count(1, 1_000_000)),
            Default::Is("unlimited"),
            "Client connections of one worker; weir closes further ones at once.",
        ),
        row(
            "compress-memory",
            Kind::Size(0, TIB),
            Default::Is("128MiB"),
            "Memory of one worker for responses that it compresses (docs/compression.md); further \
                responses are sent uncompressed.",
        ),
        row(
            "glitches-limit",
            Kind::Or("off", &Kind::Count(1, 1_000_000)),
            Default::Is("off"),
            "Strange but legal events (docs/status-glitches.md#glitches) that a connection may \
                cause; with more, weir closes it after its earlier requests.",
        ),
        row(
            "via",
            Kind::Flag,
            Default::Is("#true"),
            "Add `Via` to responses, and to requests of the forward proxy and to \
                `original-destination`.",
        ),
        row(
            "loop-field",
            Kind::Word(&["auto", "cdn-loop", "via", "off"]),
            Default::Is("auto"),
            "Field with the name of weir (`via-name`) in requests to servers; a request that \
                returns with it gets 508. `via`: with this field, nginx (unless `gzip_proxied` \
                says otherwise) and IIS compress nothing. `auto`: `cdn-loop` (RFC 8586), or none \
                where `via` is off.",
        ),
        row(
            "underscores",
            Kind::Flag,
            Default::Is("#false"),
            "Forward fields whose name contains `_`. Many applications read `X_A` and `X-A` as one \
                field. Names that resemble what weir sets or removes, such as `X_Forwarded_For`, \
                therefore never pass.",
        ),
        row(
            "trusted-proxies",
            Kind::List("an address, a range such as 10.0.0.0/8, or `unix:`", texts::peers),
            Default::Absent,
            "Proxies in front of weir; `unix:` means those that connect over a unix socket. weir \
                believes their X-Forwarded-* and Forwarded fields, also for the address of the \
                client (docs/client-address.md). It drops these fields from all other clients.",
        ),
        row(
            "client-address",
            Kind::Word(&["x-forwarded-for", "forwarded"]),
            Default::Is("x-forwarded-for"),
            "The field in which `trusted-proxies` name the client: the last address in it that is \
                not one of theirs. All trusted proxies must set this field, and with \
                `x-forwarded-for` also X-Forwarded-Proto. Forwarded carries both.",
        ),
        row(
            "request-id",
            Kind::Or("off", &Kind::Text("a field name", texts::route::field)),
            Default::Is("off"),
            "A field, such as `X-Request-Id`, in which servers get an identifier with each \
                request: the one that a trusted proxy sent, else a new one (UUID version 7). The \
                identifier is `$request_id` in the access log and in rules.",
        ),
        row(
            "trace-context",
            Kind::Flag,
            Default::Is("#false"),
            "Requests belong to a trace (W3C Trace Context), which servers get: the trace of their \
                `traceparent`, else a new one. The trace is `$trace_id` in the access log and in \
                rules.",
        ),
    ],
    blocks: &[HTTP2],
    repeats: false,
    ..BLOCK
};

const HTTP2: Block = Block {
    name: "http2",
    help: "Limits of a client connection with HTTP/2, besides those of every client.",
    positional: &[],
    options: &[
        row(
            "streams",
            Kind::Count(1, 1000),
            Default::Is("100"),
            "Requests in progress at a time, including those that the client has cancelled, until \
                their server has been informed.",
        ),
        row(
            "window",
            Kind::Size(16 * KIB, MIB),
            Default::Is("64KiB"),
            "Bytes of a request body that may be in flight or unread.",
        ),
        row(
            "connection-window",
            Kind::Size(64 * KIB, 16 * MIB),
            Default::Is("1MiB"),
            "Bytes of the bodies of all requests of a connection that may be in flight.",
        ),
    ],
    repeats: false,
    ..BLOCK
};

const ACCESS_LOG: Block = Block {
    name: "access-log",
    help: "One line for each request. The contents of lines: docs/access-log.md.",
    positional: &[row(
        "destination",
        Kind::Or("off", &Kind::Text("a path, or `stdout`", texts::log_destination)),
        Default::Is("off"),
        "A file, which weir appends to and reopens on SIGUSR1; a FIFO; or standard output, also \
            written `-`.",
    )],
    options: &[
        row(
            "format",
            Kind::Text("`combined`, `common`, `json` or a text with `$names`", texts::log_format),
            Default::Is("combined"),
            "The content of lines.",
        ),
        row(
            "escape",
            Kind::Word(&["default", "json"]),
            Default::Is("default"),
            "How a text with `$names` escapes what clients send: `\\xHH` as nginx does, or as in \
                JSON strings.",
        ),
    ],
    blocks: &[],
    repeats: false,
    ..BLOCK
};

const UPSTREAM: Block = Block {
    name: "upstream",
    help: "A named group of servers: at least one `server` each, or `servers-from`.",
    positional: &[row(
        "name",
        Kind::Text("a name", texts::upstream_name),
        Default::Required,
        "The name that routes use.",
    )],
    options: &[
        row(
            "pool",
            Kind::Word(POOLS),
            Default::Beside(
                "pipelined",
                &[("proxy-protocol", None), ("source", Some("client"))],
                "pinned",
            ),
            "Which requests share connections. `pipelined`: requests of all clients follow each \
                other. `shared`: one request at a time, of any client. `pinned`: each client \
                connection has a server connection to itself for as long as it lives. \
                `per-request`: each request has a connection to itself. `fresh`: as `pipelined`, \
                but each request has a connection to itself while kept connections are measurably \
                worse; for servers whose workers handle one request after the other.",
        ),
        row(
            "proxy-protocol",
            Kind::Word(&["v1", "v2"]),
            Default::Absent,
            "Each connection first announces its client with this version of the PROXY protocol \
                (docs/proxy-protocol.md#to-servers). Clients then share no connections: `pool` is \
                `pinned` or `per-request`.",
        ),
        row(
            "servers-from",
            Kind::Text("a path", texts::forward::file),
            Default::Absent,
            "A file with further servers, read again when it changes: `server` as here, or in a \
                file that ends in `.json` an array such as `[{\"address\": \"10.0.0.1:80\", \
                \"weight\": 20}]` (docs/discovery.md).",
        ),
        row(
            "queue-size",
            Kind::Count(1, 1_000_000),
            Default::Is("1000"),
            "Requests waiting or in flight on each of `connections`, plus one for each further \
                connection. When all are full: 503. 1 means no pipelining.",
        ),
        row(
            "queue-timeout",
            Kind::Or("off", &TIMEOUT),
            Default::Is("off"),
            "Longest time that a request waits for a connection to a server; then 503. `off`: as \
                long as `forward-timeout`.",
        ),
        row(
            "forward-retries",
            Kind::Count(0, 100),
            Default::Is("5"),
            "How often weir may send one request again after a lost connection.",
        ),
        row(
            "retry-budget",
            Kind::Count(0, 100),
            Default::Is("20"),
            "Percent of requests that weir may send again after losses, on top of 10 a second and \
                worker; beyond it 502.",
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
            "slow-start",
            Kind::Time(0, HOUR),
            Default::Is("0s"),
            "How long a server that comes back, or joins others, takes to get its full share, \
                which grows evenly from a tenth.",
        ),
        row("connect-timeout", TIMEOUT, Default::Is("5s"), "How long one connect may take."),
        row(
            "source",
            Kind::Text("an address, or `client`", texts::source),
            Default::Absent,
            "The local address that connections come from. `client`: the address and port of the \
                client, whose packets must come back through this machine (docs/transparent.md). \
                Clients then share no connections, and weir needs the capability CAP_NET_RAW. \
                Without this option the address that the route has.",
        ),
        row(
            "congestion",
            CONGESTION,
            Default::Absent,
            "The congestion control towards servers, such as `cubic` (tcp(7), TCP_CONGESTION). For \
                `tcp` up to four names: each gets an equal part of the connections \
                (docs/congestion.md). Without this option the system's.",
        ),
        row(
            "connect-retries",
            Kind::Count(1, 1_000),
            Default::Is("10"),
            "Failed connects in a row after which requests stop waiting for a server that was in \
                use a moment ago. Requests never wait for a server that was not in use \
                (docs/retries.md).",
        ),
        row(
            "retry-nonidempotent",
            Kind::Flag,
            Default::Is("#false"),
            "Send POST and other nonidempotent requests again after a loss. Only for applications \
                where a repeated request does no harm.",
        ),
        row(
            "required",
            Kind::Flag,
            Default::Is("#false"),
            "`/readyz` answers 503 while none of its servers can be used. With `required`, one \
                broken application takes all routes of every weir out of a load balancer.",
        ),
        row(
            "fallback",
            Kind::Text("the name of an upstream", texts::upstream_name),
            Default::Absent,
            "Another upstream, for requests that no server of this one can take: none can be \
                reached, all are suspended or out of use, or all queues are full. The fallback may \
                have one itself, up to 16 upstreams in a row.",
        ),
        row(
            "all-down",
            Kind::Word(&["try-all", "refuse"]),
            Default::Is("try-all"),
            "What happens when no server can be reached that is not suspended. `try-all`: \
                suspended servers get the requests. `refuse`: 503.",
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
        row(
            "glitches-limit",
            Kind::Or("off", &Kind::Count(1, 1_000_000)),
            Default::Is("off"),
            "Strange but legal events (docs/status-glitches.md#glitches) on one connection; with \
                more, weir replaces the connection.",
        ),
    ],
    shared: SOCKETS,
    blocks: &[
        discovery::SERVER,
        tls::TO_SERVERS,
        balance::BALANCE,
        balance::STICKY,
        pipeline::PIPELINE,
        NONIDEMPOTENT,
        FAILOVER,
        health::HEALTH,
    ],
    repeats: true,
    ..BLOCK
};

const NONIDEMPOTENT: Block = Block {
    name: "nonidempotent",
    help: "Requests that must not be pipelined although their method is safe. One of the matches \
        is required.",
    positional: &[
        row("method", Kind::Text("a method", texts::method), Default::Required, "The method."),
        row("match", Kind::Word(&["any"]), Default::Absent, "`any`: every target."),
    ],
    options: &[
        row(
            "eq",
            Kind::Text("a target", texts::target),
            Default::Absent,
            "The target (path and query) equals this.",
        ),
        row(
            "prefix",
            Kind::Text("a target", texts::target),
            Default::Absent,
            "The target begins with this.",
        ),
        row(
            "suffix",
            Kind::Text("a target", texts::target),
            Default::Absent,
            "The target ends with this.",
        ),
        row(
            "regex",
            Kind::Text("a regular expression", texts::regex),
            Default::Absent,
            "The target contains a match.",
        ),
    ],
    blocks: &[],
    repeats: true,
    ..BLOCK
};

const FAILOVER: Block = Block {
    name: "failover",
    help: "Reasons to suspend a server. A suspended server gets nothing new until it has shown \
        that it works again.",
    positional: &[row(
        "code",
        Kind::Text("a status such as 503, or 5xx, or lost", texts::symptom),
        Default::Required,
        "Responses with this status, as the server sent them. `lost`: connections that the server \
         resets, or closes within a \
         response or before the first one, while a request is unanswered.",
    )],
    options: &[
        row(
            "limit",
            Kind::Count(1, 10_000),
            Default::Is("10"),
            "How many of them, over all workers.",
        ),
        row("window", TIMEOUT, Default::Is("10s"), "Within this time."),
    ],
    blocks: &[],
    repeats: true,
    ..BLOCK
};
