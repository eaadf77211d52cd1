//! The contenders: programs and their settings. Cells name them; `run/stage.rs` starts them.

use super::block::{self, Limiting, Program};
use super::cache::Cacher;
use super::even::Rival;
use super::handshakes::LOW_LATENCY;
use super::pep::Middle;
use super::wan::{self, Split, SplitProxy};

/// A contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Contender {
    /// Its name in tables and on the command line.
    pub(crate) name: &'static str,
    /// What it is and how it is configured.
    pub(crate) what: What,
}

/// The programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// No proxy: the origin itself.
    Direct,
    /// nginx as reverse proxy.
    Nginx,
    /// nginx as forward proxy: to whatever Host says.
    NginxForward,
    /// HAProxy.
    Haproxy,
    /// HAProxy that sends its server at most this many requests at a time, and lets the others
    /// wait.
    HaproxyCapped(u32),
    /// HAProxy in TCP mode.
    HaproxyTcp(TcpPipes),
    /// Envoy.
    Envoy,
    /// Pingora, as the program of `bench/pingora`.
    Pingora,
    /// weir.
    Weir(WeirSettings),
    /// weir as forward proxy.
    WeirForward {
        /// The value of `pool`.
        pool: &'static str,
        /// Driver.
        io: &'static str,
    },
    /// weir, in front of servers that close each connection after 100 requests.
    WeirClosing,
    /// nginx or HAProxy, configured differently.
    Rival(Rival),
    /// A cache.
    Caching(Cacher),
    /// A program that limits its clients.
    Limiting(Limiting),
    /// The far end of a slow link: the origin, or a proxy in TCP mode.
    Split(Split),
    /// A router.
    Through(Middle),
    /// weir's own origin in place of the usual one, on this driver.
    Origin(&'static str),
    /// No proxy; the generator is what is measured: wrk.
    Wrk,
    /// weir's own generator, on this driver.
    Bomb(&'static str),
}

impl What {
    /// Returns the program that it needs, if it isn't weir itself, and where else than in the path
    /// it may be.
    pub(crate) fn program(self) -> Option<&'static str> {
        match self {
            What::Nginx | What::NginxForward | What::Caching(Cacher::Nginx) => Some("nginx"),
            What::Caching(Cacher::Varnish) => Some("varnishd"),
            What::Caching(Cacher::Weir) => None,
            What::Haproxy | What::HaproxyCapped(_) | What::HaproxyTcp(_) => Some("haproxy"),
            What::Envoy => Some("envoy"),
            What::Pingora => Some("weir-bench-pingora"),
            What::Wrk => Some("wrk"),
            What::WeirClosing => Some("nginx"),
            What::Limiting(Limiting { program, .. }) | What::Rival(Rival { program, .. }) => {
                match program {
                    Program::Nginx => Some("nginx"),
                    Program::Haproxy => Some("haproxy"),
                    Program::Weir => None,
                }
            }
            What::Split(Split { proxy: Some(SplitProxy::Haproxy), .. }) => Some("haproxy"),
            What::Through(Middle::Haproxy { .. }) => Some("haproxy"),
            What::Split(_) | What::Through(_) => None,
            What::Weir(WeirSettings { is_before: true, .. }) => Some(BEFORE),
            What::Direct
            | What::Weir(_)
            | What::WeirForward { .. }
            | What::Origin(_)
            | What::Bomb(_) => None,
        }
    }

    /// Whether clients request the origin's URL from it, as from a forward proxy.
    pub(crate) fn is_forward(self) -> bool {
        matches!(self, What::NginxForward | What::WeirForward { .. })
    }

    /// Returns the descriptors that it needs for this many clients: those proxies need one more for
    /// each, to the server.
    pub(crate) fn descriptors(self, clients: u32) -> u64 {
        match self {
            What::Nginx
            | What::NginxForward
            | What::Haproxy
            | What::HaproxyCapped(_)
            | What::HaproxyTcp(_)
            | What::Rival(_)
            | What::Envoy
            | What::Pingora
            | What::WeirForward { .. } => 2 * u64::from(clients),
            What::Weir(settings) if settings.is_private() => 2 * u64::from(clients),
            What::Weir(settings) => u64::from(clients + settings.connections),
            _ => u64::from(clients),
        }
    }
}

/// What HAProxy moves bytes through in TCP mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TcpPipes {
    /// It copies them.
    None,
    /// Pipes of the system's default size, 64 KiB.
    Usual,
    /// Pipes of the largest size that an unprivileged process may set (`fs.pipe-max-size`), like
    /// weir's: 1 MiB.
    Large,
}

/// Settings of weir that differ from its defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WeirSettings {
    /// Driver.
    pub(crate) io: &'static str,
    /// Connections to the server.
    pub(crate) connections: u32,
    /// Requests that may wait for one.
    pub(crate) queue: u32,
    /// The value of `pipeline`.
    pub(crate) pipeline: &'static str,
    /// The value of `pool`.
    pub(crate) pool: &'static str,
    /// No TLS, even where the others use it.
    pub(crate) plain: bool,
    /// HTTP/1.1, even where the others use HTTP/2.
    pub(crate) http1: bool,
    /// No stalling clients, even where the others have to bear them.
    pub(crate) alone: bool,
    /// Limits for each client, which no client exceeds.
    pub(crate) limits: bool,
    /// Another weir than the one that measures: [`BEFORE`].
    pub(crate) is_before: bool,
    /// Lines in front of the others of its configuration.
    pub(crate) lines: &'static str,
}

impl WeirSettings {
    /// With room in the queue for that many requests at a time.
    pub(crate) fn for_clients(self, clients: u32) -> WeirSettings {
        WeirSettings { queue: self.queue.max(clients), ..self }
    }

    /// Whether connections belong to clients or requests.
    pub(crate) fn is_private(self) -> bool {
        matches!(self.pool, "pinned" | "per-request")
    }
}

/// weir with default settings.
pub(crate) const WEIR: WeirSettings = WeirSettings {
    io: "auto",
    connections: 32,
    queue: 1000,
    pipeline: "adaptive",
    pool: "pipelined",
    plain: false,
    http1: false,
    alone: false,
    limits: false,
    is_before: false,
    lines: "",
};

/// An earlier weir, which users give by its path (`--program weir-before=PATH`).
pub(crate) const BEFORE: &str = "weir-before";

/// The kernel's hash assigns connections to workers, however busy these are.
const HASH: &str = "accept-by \"hash\"\n";
/// And workers stay on their cores, whatever else runs there.
const HASH_HARD: &str = "accept-by \"hash\"\npinning \"hard\"\n";

const fn weir(name: &'static str, settings: WeirSettings) -> Contender {
    Contender { name, what: What::Weir(settings) }
}

const fn weir_forward(name: &'static str, pool: &'static str, io: &'static str) -> Contender {
    Contender { name, what: What::WeirForward { pool, io } }
}

const fn limiting(name: &'static str, limiting: Limiting) -> Contender {
    Contender { name, what: What::Limiting(limiting) }
}

const fn rival(
    name: &'static str,
    program: Program,
    is_shared: bool,
    is_pinned: bool,
) -> Contender {
    Contender { name, what: What::Rival(Rival { program, is_shared, is_pinned }) }
}

const fn split(name: &'static str, split: Split) -> Contender {
    Contender { name, what: What::Split(split) }
}

const fn through(name: &'static str, middle: Middle) -> Contender {
    Contender { name, what: What::Through(middle) }
}

impl Contender {
    /// No TLS, even where the others use it.
    pub(crate) fn is_plain(self) -> bool {
        matches!(self.what, What::Weir(WeirSettings { plain: true, .. }))
    }

    /// HTTP/1.1, even where the others use HTTP/2.
    pub(crate) fn is_http1(self) -> bool {
        matches!(self.what, What::Weir(WeirSettings { http1: true, .. }))
    }

    /// No stalling clients, even where the others have to bear them.
    pub(crate) fn is_alone(self) -> bool {
        matches!(self.what, What::Weir(WeirSettings { alone: true, .. }))
    }
}

/// All contenders. `weir` has default settings.
pub(crate) const CONTENDERS: &[Contender] = &[
    Contender { name: "direct", what: What::Direct },
    Contender { name: "nginx", what: What::Nginx },
    Contender { name: "haproxy", what: What::Haproxy },
    Contender { name: LOW_LATENCY, what: What::Haproxy },
    Contender { name: "haproxy-32", what: What::HaproxyCapped(32) },
    rival("nginx-shared", Program::Nginx, true, true),
    rival("nginx-unpinned", Program::Nginx, false, false),
    rival("haproxy-shared", Program::Haproxy, true, true),
    rival("haproxy-unpinned", Program::Haproxy, false, false),
    Contender { name: "haproxy-splice", what: What::HaproxyTcp(TcpPipes::Large) },
    Contender { name: "haproxy-splice-64k", what: What::HaproxyTcp(TcpPipes::Usual) },
    Contender { name: "haproxy-copy", what: What::HaproxyTcp(TcpPipes::None) },
    Contender { name: "envoy", what: What::Envoy },
    Contender { name: "pingora", what: What::Pingora },
    weir("weir", WEIR),
    weir(BEFORE, WeirSettings { is_before: true, ..WEIR }),
    weir("weir-epoll", WeirSettings { io: "epoll", ..WEIR }),
    weir("weir-plain", WeirSettings { plain: true, ..WEIR }),
    weir("weir-http1", WeirSettings { http1: true, ..WEIR }),
    weir("weir-alone", WeirSettings { alone: true, ..WEIR }),
    weir("weir-limits", WeirSettings { limits: true, ..WEIR }),
    weir("weir-hash", WeirSettings { lines: HASH, ..WEIR }),
    weir("weir-hash-hard", WeirSettings { lines: HASH_HARD, ..WEIR }),
    weir("weir-8", WeirSettings { connections: 8, ..WEIR }),
    weir("weir-128", WeirSettings { connections: 128, ..WEIR }),
    weir("weir-256", WeirSettings { connections: 256, ..WEIR }),
    weir("weir-1", WeirSettings { connections: 1, ..WEIR }),
    weir("weir-off", WeirSettings { pipeline: "off", ..WEIR }),
    weir("weir-stay", WeirSettings { pipeline: "adaptive escape=off", ..WEIR }),
    weir("weir-shared", WeirSettings { pool: "shared", ..WEIR }),
    weir("weir-pinned", WeirSettings { pool: "pinned", ..WEIR }),
    weir("weir-per-request", WeirSettings { pool: "per-request", ..WEIR }),
    weir("weir-fresh", WeirSettings { pool: "fresh", ..WEIR }),
    weir_forward("weir-forward", "pinned", "auto"),
    weir_forward("weir-forward-epoll", "pinned", "epoll"),
    weir_forward("weir-forward-per-request", "per-request", "auto"),
    Contender { name: "nginx-forward", what: What::NginxForward },
    Contender { name: "nginx-cache", what: What::Caching(Cacher::Nginx) },
    Contender { name: "varnish", what: What::Caching(Cacher::Varnish) },
    Contender { name: "weir-cache", what: What::Caching(Cacher::Weir) },
    Contender { name: "weir-closing", what: What::WeirClosing },
    Contender { name: "nginx-file", what: What::Direct },
    Contender { name: "weir-origin", what: What::Origin("auto") },
    Contender { name: "weir-origin-epoll", what: What::Origin("epoll") },
    limiting("weir-observe", block::WEIR_OBSERVE),
    limiting("weir-429", block::WEIR_429),
    limiting("weir-reset", block::WEIR_RESET),
    limiting("weir-ban", block::WEIR_BAN),
    limiting("weir-drop", block::WEIR_DROP),
    limiting("weir-xdp", block::WEIR_XDP),
    limiting("nginx-429", block::NGINX_429),
    limiting("nginx-444", block::NGINX_444),
    limiting("haproxy-429", block::HAPROXY_429),
    limiting("haproxy-reject", block::HAPROXY_REJECT),
    limiting("haproxy-nft", block::HAPROXY_NFT),
    limiting("weir-guard", block::WEIR_GUARD),
    limiting("weir-guard-ban", block::WEIR_GUARD_BAN),
    limiting("nginx-guard", block::NGINX_GUARD),
    limiting("haproxy-guard", block::HAPROXY_GUARD),
    split("direct-cubic", wan::end_to_end("cubic")),
    split("direct-bbr", wan::end_to_end("bbr")),
    split("haproxy-cubic", wan::haproxy("cubic")),
    split("haproxy-bbr", wan::haproxy("bbr")),
    split("weir-cubic", wan::weir("cubic", "cubic")),
    split("weir-bbr", wan::weir("bbr", "cubic")),
    through("routed", Middle::Forwards),
    through("haproxy-through", Middle::Haproxy { splices: true, reads: false }),
    through("haproxy-through-copy", Middle::Haproxy { splices: false, reads: false }),
    through("haproxy-through-http", Middle::Haproxy { splices: true, reads: true }),
    through("haproxy-through-http-copy", Middle::Haproxy { splices: false, reads: true }),
    through("weir-through", Middle::Weir("auto")),
    through("weir-through-epoll", Middle::Weir("epoll")),
    through("weir-through-http", Middle::WeirHttp),
    through("weir-intercept", Middle::Intercept("accept")),
    through("weir-intercept-syn", Middle::Intercept("syn")),
    through("weir-intercept-first", Middle::Intercept("first")),
    Contender { name: "wrk", what: What::Wrk },
    Contender { name: "bomb", what: What::Bomb("auto") },
    Contender { name: "bomb-epoll", what: What::Bomb("epoll") },
];

/// Returns the message for a program that is missing.
pub(crate) fn absent(program: &str) -> String {
    match program {
        BEFORE => format!("no earlier weir is given: --program {BEFORE}=PATH"),
        _ => format!("{program} is not installed"),
    }
}

/// The contender of that name.
pub(crate) fn contender(name: &str) -> Option<Contender> {
    CONTENDERS.iter().copied().find(|contender| contender.name == name)
}
