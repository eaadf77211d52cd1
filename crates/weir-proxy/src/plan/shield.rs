//! `shield`: which limits there are, whom they are for, and what becomes of who is over one.
//! docs/limits.md.

use std::path::Path;
use std::sync::Arc;

use super::Network;
use crate::request::route::{HOST_BYTES_MAX, HostMatch, bare_host};
use crate::shield::bans::Block;
use crate::shield::by::By;
use crate::shield::key::{Key, Prefix};
use crate::shield::limit::Rate;
use crate::shield::shared::Shared;
use crate::shield::table::{SLOTS, TableSeed};
use crate::shield::tally::Tally;
use crate::upstream::health::Codes;

/// Most limits.
pub const LIMITS_MAX: usize = 64;
/// Most limits of requests in progress: what one request may hold.
pub const IN_PROGRESS_MAX: usize = 4;
/// The group whose accounts say how many connections a client has. Group 0 is the table's own.
pub(crate) const CONNECTIONS: u32 = 1;
/// The group whose accounts say what clients have offended.
pub(crate) const OFFENCES: u32 = u32::MAX;

/// All of `shield`.
#[derive(Debug, Clone)]
pub struct ShieldPlan {
    /// Nobody is refused: it is counted who would be. Default false.
    pub observe: bool,
    /// What is one client.
    pub prefix: Prefix,
    /// IPv6 networks of one /48 become one client when many of them are refused. Default true.
    pub aggregate: bool,
    /// Whom no limit is for.
    pub allow: Vec<Network>,
    /// In the order of the file: the first that refuses decides.
    pub limits: Vec<LimitPlan>,
    /// Who is banned, and for how long. None: nobody but whom an operator bans.
    pub ban: Option<BanPlan>,
    /// How long a refusal waits by [`Over::Tarpit`], microseconds. Default 10 s.
    pub tarpit_us: u64,
    /// How many of them wait at a time, of each worker. Default 1000.
    pub tarpit_max: u32,
    /// The accounts. Its key has to be set by whoever runs the plan.
    pub seed: Arc<TableSeed>,
    /// Groups that were ever given out: no number is given to others.
    groups: u32,
}

/// `ban`: what a client may offend, and what follows. docs/bans.md.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BanPlan {
    /// So many refusals, in so much time, are borne; the next one is one too many.
    pub offences: Rate,
    /// How long the first ban of a client is, seconds, at least 1.
    pub for_s: u64,
    /// By what each further one is longer.
    pub grow: u32,
    /// How long one is at most, and for how long one that is over counts, seconds.
    pub max_s: u64,
    /// How many at a time.
    pub bans_max: usize,
    /// By what packets of who is banned are dropped, if weir may have that.
    pub via: BanVia,
    /// Which packets.
    pub scope: BanScope,
    /// Where they are kept over a restart. None: where the service manager says, if it does.
    pub state: Option<Box<Path>>,
}

/// By what packets of who is banned are dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BanVia {
    /// By nothing: weir resets connections.
    User,
    /// A table of nftables. Default.
    Nft,
    /// Drivers of these network interfaces (XDP), at least one.
    Xdp(Box<[Box<str>]>),
}

/// Which packets of who is banned the kernel drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BanScope {
    /// Those to ports of listeners.
    Listeners,
    /// All of TCP.
    Host,
}

impl Default for BanPlan {
    fn default() -> BanPlan {
        let offences = Rate::new(20, 60_000_000, 20, false);
        BanPlan {
            offences,
            for_s: 600,
            grow: 2,
            max_s: 86_400,
            bans_max: 65_536,
            via: BanVia::Nft,
            scope: BanScope::Listeners,
            state: None,
        }
    }
}

/// One `limit`.
#[derive(Debug, Clone)]
pub struct LimitPlan {
    /// As written.
    pub name: Box<str>,
    /// What is counted, and how much of it may be.
    pub terms: Terms,
    /// What becomes of one too many.
    pub over: Over,
    /// Nothing does, but it is counted. Default false.
    pub observe: bool,
    /// Whom it counts. Of connections: their clients.
    pub by: By,
    /// Which requests count. Of connections: all.
    pub requests: RequestMatch,
    /// Which answers do, by their status. Of other terms: none.
    pub answers: Vec<Codes>,
    /// What has become of them.
    pub tally: Arc<Tally>,
    /// Accounts for values that the table has no room for.
    pub(crate) shared: Arc<Shared>,
    /// Where it stands in accounts.
    pub(crate) seat: Seat,
}

/// What a limit counts of each client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terms {
    /// New connections, so many in a time.
    Connections(Rate),
    /// Connections that are open.
    Open(u32),
    /// Requests, so many in a time.
    Requests(Rate),
    /// Requests without a complete answer.
    InProgress(u32),
    /// Answers of [`LimitPlan::answers`], so many in a time. Who has had them is refused his next requests.
    Answers(Rate),
    /// Glitches of connections that have ended, so many in a time. Who has made them is refused his next connections.
    Glitches(Rate),
    /// Connections that a time of clients was over for (head, body, send), likewise.
    Timeouts(Rate),
    /// TLS handshakes for which the asymmetric work was done, so many in a time. Resumed ones are none. Who has made them is refused his
    /// next connections that speak TLS.
    Handshakes(Rate),
    /// TLS handshakes that came to nothing, likewise.
    HandshakesFailed(Rate),
}

/// What becomes of one too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// It is answered with this status: 400-499 or 503. Only of requests.
    Status(u16),
    /// The connection is closed; of a request behind an answer with 429.
    Close,
    /// The connection is reset. Of one that serves others, too: as [`Over::Status`] with 429.
    Reset,
    /// As [`Over::Close`], but the answer waits for [`ShieldPlan::tarpit_us`]; with [`ShieldPlan::tarpit_max`] that wait as [`Over::Reset`].
    /// Of a connection that serves others, too: as [`Over::Status`] with 429. Only of requests.
    Tarpit,
    /// The client is banned, if whoever keeps bans agrees; until that is known, as [`Over::Reset`].
    Ban,
}

/// Which requests a limit counts: those that have all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestMatch {
    /// One of these hosts; empty: any.
    pub hosts: Vec<HostMatch>,
    /// One of these paths; empty: any.
    pub paths: Vec<PathMatch>,
    /// One of these methods; empty: any.
    pub methods: Vec<String>,
}

/// A path, in the form that requests are normalised to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathMatch {
    /// This one, and what follows it behind a slash, which many servers read as the same. `/` matches only itself.
    Exact(String),
    /// This one and all below, as routes have it.
    Prefix(String),
}

/// The group of limits whose accounts a limit uses, and its place in each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Seat {
    pub(crate) group: u32,
    pub(crate) slot: u8,
}

impl Terms {
    /// The word of the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Terms::Connections(_) => "connections",
            Terms::Open(_) => "open",
            Terms::Requests(_) => "requests",
            Terms::InProgress(_) => "in-progress",
            Terms::Answers(_) => "answers",
            Terms::Glitches(_) => "glitches",
            Terms::Timeouts(_) => "timeouts",
            Terms::Handshakes(_) => "handshakes",
            Terms::HandshakesFailed(_) => "handshakes-failed",
        }
    }

    /// Whether it is for connections, of which nothing is known but who has made them.
    pub fn is_of_connections(self) -> bool {
        !matches!(self, Terms::Requests(_) | Terms::InProgress(_) | Terms::Answers(_))
    }

    /// Whether it is for connections that speak TLS alone.
    pub fn is_of_handshakes(self) -> bool {
        matches!(self, Terms::Handshakes(_) | Terms::HandshakesFailed(_))
    }

    /// The rate, if it is one.
    pub fn rate(&self) -> Option<&Rate> {
        match self {
            Terms::Connections(rate) | Terms::Requests(rate) | Terms::Answers(rate) => Some(rate),
            Terms::Glitches(rate) | Terms::Timeouts(rate) => Some(rate),
            Terms::Handshakes(rate) | Terms::HandshakesFailed(rate) => Some(rate),
            Terms::Open(_) | Terms::InProgress(_) => None,
        }
    }
}

impl LimitPlan {
    /// Whether it is for some paths only.
    pub fn reads_paths(&self) -> bool {
        !self.requests.paths.is_empty()
    }

    /// One that nobody has passed yet.
    pub fn new(name: &str, terms: Terms) -> LimitPlan {
        LimitPlan {
            name: name.into(),
            terms,
            over: if terms.is_of_connections() { Over::Reset } else { Over::Status(429) },
            observe: false,
            by: By::default(),
            requests: RequestMatch::default(),
            answers: Vec::new(),
            tally: Arc::default(),
            shared: Arc::default(),
            seat: Seat::default(),
        }
    }

    fn is_like(&self, other: &LimitPlan) -> bool {
        self.name == other.name && self.terms.word() == other.terms.word()
    }
}

impl ShieldPlan {
    /// These limits, each with a place in accounts.
    pub fn new(limits: Vec<LimitPlan>, accounts: usize) -> ShieldPlan {
        let mut plan = ShieldPlan {
            observe: false,
            prefix: Prefix::default(),
            aggregate: true,
            allow: Vec::new(),
            limits,
            ban: None,
            tarpit_us: 10_000_000,
            tarpit_max: 1000,
            seed: Arc::new(TableSeed::new(accounts, [0; 2])),
            groups: CONNECTIONS,
        };
        plan.seat(&[], Some(CONNECTIONS));
        plan
    }

    /// The same with a key that nobody can predict.
    pub fn set_key(&mut self, key: [u64; 2]) {
        self.seed = Arc::new(TableSeed::new(self.seed.accounts(), key));
    }

    /// What a client has offended is forgotten.
    pub fn forgive(&self, block: Block) {
        let table = self.seed.table();
        table.forgive(&table.name(OFFENCES, Key::of_block(block)));
    }

    /// The successor of another one: limits that are in both keep their accounts and counts, and the table stays as large as it was.
    pub(super) fn follow(&mut self, old: &ShieldPlan) {
        self.seed = Arc::clone(&old.seed);
        self.groups = old.groups;
        self.seat(&old.limits, None);
    }

    /// Gives each limit a place in the accounts of a group, up to [`SLOTS`] rates in one. Those that are new come into new groups, in
    /// which nobody has a debt; `first` is one to begin with.
    fn seat(&mut self, old: &[LimitPlan], first: Option<u32>) {
        let mut open = first.map(|group| Seat { group, slot: 0 });
        for limit in &mut self.limits {
            if let Some(old) = old.iter().find(|old| old.is_like(limit)) {
                limit.seat = old.seat;
                (limit.tally, limit.shared) = (Arc::clone(&old.tally), Arc::clone(&old.shared));
                continue;
            }
            limit.seat = match limit.terms {
                Terms::Open(_) => Seat { group: CONNECTIONS, slot: 0 },
                Terms::InProgress(_) => {
                    self.groups += 1;
                    Seat { group: self.groups, slot: 0 }
                }
                _ => {
                    let seat = open.filter(|seat| usize::from(seat.slot) < SLOTS).unwrap_or_else(|| {
                        self.groups += 1;
                        Seat { group: self.groups, slot: 0 }
                    });
                    open = Some(Seat { slot: seat.slot + 1, ..seat });
                    seat
                }
            };
        }
    }

    /// Whether no limit is for a client of this address. Who has none, because he comes over a unix socket, is somebody of this machine.
    #[inline]
    pub fn allows(&self, client: std::net::IpAddr) -> bool {
        client == super::NO_ADDRESS || self.allow.iter().any(|network| network.has_client(client))
    }
}

impl RequestMatch {
    /// Whether it is for all requests.
    #[inline]
    pub fn is_everything(&self) -> bool {
        self.hosts.is_empty() && self.paths.is_empty() && self.methods.is_empty()
    }

    /// Whether it is for a request. `path` is normalised, without a query.
    pub fn has(&self, host: &[u8], path: &[u8], method: &[u8]) -> bool {
        let of_method = self.methods.is_empty() || self.methods.iter().any(|one| one.as_bytes() == method);
        let of_path = self.paths.is_empty() || self.paths.iter().any(|one| one.has(path));
        of_method && of_path && (self.hosts.is_empty() || self.has_host(host))
    }

    fn has_host(&self, authority: &[u8]) -> bool {
        let mut buffer = [0; HOST_BYTES_MAX];
        let host = bare_host(authority, &mut buffer);
        self.hosts.iter().any(|one| match (one, host) {
            (HostMatch::Any, _) => true,
            (_, None) => false,
            (HostMatch::Exact(name), Some(host)) => name.as_bytes() == host,
            (HostMatch::Suffix(name), Some(host)) => {
                let suffix = name.trim_start_matches('*').as_bytes();
                host.len() > suffix.len() && host.ends_with(suffix)
            }
        })
    }
}

impl PathMatch {
    fn has(&self, path: &[u8]) -> bool {
        match self {
            PathMatch::Exact(one) if one == "/" => path == b"/",
            PathMatch::Exact(one) => is_at_or_below(path, one.trim_end_matches('/')),
            PathMatch::Prefix(one) => is_at_or_below(path, one),
        }
    }
}

fn is_at_or_below(path: &[u8], prefix: &str) -> bool {
    let rest = path.strip_prefix(prefix.as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || prefix.ends_with('/'))
}

#[cfg(test)]
mod tests {
    //! Proves: which requests a limit counts, and that limits never get places in which others have left debts. How: tables.

    use super::*;

    fn rate(name: &str) -> LimitPlan {
        LimitPlan::new(name, Terms::Requests(Rate::new(1, 1, 1, false)))
    }

    fn seats(plan: &ShieldPlan) -> Vec<(u32, u8)> {
        plan.limits.iter().map(|limit| (limit.seat.group, limit.seat.slot)).collect()
    }

    #[test]
    fn which_requests() {
        let paths = vec![PathMatch::Exact("/login".to_owned()), PathMatch::Prefix("/api".to_owned())];
        let hosts = vec![HostMatch::Exact("a.test".to_owned()), HostMatch::Suffix("*.b.test".to_owned())];
        let requests = RequestMatch { hosts, paths, methods: vec!["POST".to_owned()] };
        for (host, path, method, expected) in [
            ("a.test", "/login", "POST", true),
            ("A.test:80", "/login", "POST", true),
            ("x.b.test", "/api", "POST", true),
            ("x.b.test", "/api/x", "POST", true),
            ("b.test", "/api", "POST", false),
            ("a.test", "/login/", "POST", true),
            ("a.test", "/login/x", "POST", true),
            ("a.test", "/logins", "POST", false),
            ("a.test", "/x/login", "POST", false),
            ("a.test", "", "POST", false),
            ("a.test", "/apix", "POST", false),
            ("a.test", "/login", "GET", false),
            ("", "/login", "POST", false),
        ] {
            let has = requests.has(host.as_bytes(), path.as_bytes(), method.as_bytes());
            assert_eq!(has, expected, "{host} {path} {method}");
        }
        assert!(RequestMatch::default().has(b"", b"/", b"GET") && RequestMatch::default().is_everything());
        assert!(PathMatch::Prefix("/".to_owned()).has(b"/x") && PathMatch::Prefix("/a/".to_owned()).has(b"/a/b"));
        let home = PathMatch::Exact("/".to_owned());
        assert!(home.has(b"/") && !home.has(b"/x") && !home.has(b""));
        let login = PathMatch::Exact("/login/".to_owned());
        assert!(
            ["/login", "/login/", "/login/x"].iter().all(|path| login.has(path.as_bytes())) && !login.has(b"/logins")
        );
    }

    #[test]
    fn places_in_accounts() {
        let open = LimitPlan::new("open", Terms::Open(1));
        let at_once = LimitPlan::new("at-once", Terms::InProgress(1));
        let names = ["a", "b", "c", "d", "e"];
        let mut limits: Vec<LimitPlan> = names.into_iter().map(rate).collect();
        limits.extend([open, at_once]);
        let first = ShieldPlan::new(limits, 1024);
        assert_eq!(seats(&first), [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (1, 0), (3, 0)]);
        let mut second = ShieldPlan::new(["x", "b", "y"].into_iter().map(rate).collect(), 2048);
        second.follow(&first);
        assert_eq!(seats(&second), [(4, 0), (1, 1), (4, 1)]);
        assert_eq!(second.seed.accounts(), 1024);
        assert!(Arc::ptr_eq(&second.limits[1].tally, &first.limits[1].tally));
        let mut third = ShieldPlan::new(["a"].into_iter().map(rate).collect(), 1024);
        third.follow(&second);
        assert_eq!(seats(&third), [(5, 0)], "what `a` was is forgotten, but not what clients owed there");
    }
}
