//! `shield`: limits, the clients that they apply to, and the consequences of exceeding one.
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
/// Most limits of requests in progress: the most places that one request may hold.
pub const IN_PROGRESS_MAX: usize = 4;
/// The group of accounts with the number of connections of each client. Group 0 is the table's own.
pub(crate) const CONNECTIONS: u32 = 1;
/// The group of accounts with the offences of clients.
pub(crate) const OFFENCES: u32 = u32::MAX;

/// All of `shield`.
#[derive(Debug, Clone)]
pub struct ShieldPlan {
    /// No client is refused: weir counts how many would be. Default false.
    pub observe: bool,
    /// The addresses that make up one client.
    pub prefix: Prefix,
    /// IPv6 networks of one /48 become one client when many of them are refused. Default true.
    pub aggregate: bool,
    /// Clients that no limit applies to.
    pub allow: Vec<Network>,
    /// In the order of the file: the first that refuses decides.
    pub limits: Vec<LimitPlan>,
    /// Which clients are banned, and for how long. None: only those that an operator bans.
    pub ban: Option<BanPlan>,
    /// How long a refusal waits with [`Over::Tarpit`], microseconds. Default 10 s.
    pub tarpit_us: u64,
    /// How many of them wait at a time, for each worker. Default 1000.
    pub tarpit_max: u32,
    /// The accounts. The program that runs the plan has to set their key.
    pub seed: Arc<TableSeed>,
    /// The highest group ever assigned: no number is reused.
    groups: u32,
}

/// `ban`: how many offences a client may commit, and the consequences. docs/bans.md.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BanPlan {
    /// This rate of refusals is tolerated; the next one is one too many.
    pub offences: Rate,
    /// The length of the first ban of a client, seconds, at least 1.
    pub for_s: u64,
    /// The factor by which each further ban is longer.
    pub grow: u32,
    /// The longest ban, and how long an ended one counts, seconds.
    pub max_s: u64,
    /// How many bans at a time.
    pub bans_max: usize,
    /// The mechanism that drops packets of banned clients, if weir has the privilege.
    pub via: BanVia,
    /// The packets that it drops.
    pub scope: BanScope,
    /// The file that keeps bans over a restart. None: in the state directory that the service
    /// manager names, if any.
    pub state: Option<Box<Path>>,
}

/// The mechanism that drops packets of banned clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BanVia {
    /// None: weir resets connections.
    User,
    /// A table of nftables. Default.
    Nft,
    /// Drivers of these network interfaces (XDP), at least one.
    Xdp(Box<[Box<str>]>),
}

/// The packets of banned clients that the kernel drops.
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
    /// The property that is counted, and its limit.
    pub terms: Terms,
    /// The consequence for the excess.
    pub over: Over,
    /// No consequence, only counted. Default false.
    pub observe: bool,
    /// The accounts that it counts in. For connections: their clients.
    pub by: By,
    /// The requests that count. For connections: all.
    pub requests: RequestMatch,
    /// The responses that count, by status. For other terms: none.
    pub answers: Vec<Codes>,
    /// Counters of the outcomes.
    pub tally: Arc<Tally>,
    /// Accounts for values that the table has no room for.
    pub(crate) shared: Arc<Shared>,
    /// Its place in accounts.
    pub(crate) seat: Seat,
}

/// The property of each client that a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Terms {
    /// The rate of new connections.
    Connections(Rate),
    /// Connections that are open.
    Open(u32),
    /// The rate of requests.
    Requests(Rate),
    /// Requests without a complete response.
    InProgress(u32),
    /// The rate of responses of [`LimitPlan::answers`]. Over it, the next requests of the client
    /// are refused.
    Answers(Rate),
    /// The rate of glitches on connections that have ended. Over it, the next connections of the
    /// client are refused.
    Glitches(Rate),
    /// The rate of connections that timed out on the client (head, body, send), likewise.
    Timeouts(Rate),
    /// The rate of TLS handshakes with the asymmetric work done. Resumed ones do not count. Over
    /// it, the next TLS connections of the client are refused.
    Handshakes(Rate),
    /// The rate of failed TLS handshakes, likewise.
    HandshakesFailed(Rate),
}

/// The consequence for the excess.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The response has this status: 400-499 or 503. Only of requests.
    Status(u16),
    /// The connection is closed; of a request behind a response with 429.
    Close,
    /// The connection is reset. If it also serves others: as [`Over::Status`] with 429.
    Reset,
    /// As [`Over::Close`], but the response waits for [`ShieldPlan::tarpit_us`]; with
    /// [`ShieldPlan::tarpit_max`] that wait already, as [`Over::Reset`]. If the connection also
    /// serves others: as [`Over::Status`] with 429. Only of requests.
    Tarpit,
    /// The client is banned, if the keeper of bans agrees; until that is known, as [`Over::Reset`].
    Ban,
}

/// The requests that a limit counts: those that match all of these.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestMatch {
    /// One of these hosts; empty: any.
    pub hosts: Vec<HostMatch>,
    /// One of these paths; empty: any.
    pub paths: Vec<PathMatch>,
    /// One of these methods; empty: any.
    pub methods: Vec<String>,
}

/// A path, in the normalised form of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathMatch {
    /// This path, and anything behind it after a slash, which many servers read as the same. `/`
    /// matches only itself.
    Exact(String),
    /// This path and all below, as in routes.
    Prefix(String),
}

/// The group of limits whose accounts a limit uses, and its place in each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Seat {
    pub(crate) group: u32,
    pub(crate) slot: u8,
}

impl Terms {
    /// Returns the word of the configuration.
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

    /// Whether it applies to connections, of which only the client is known.
    pub fn is_of_connections(self) -> bool {
        !matches!(self, Terms::Requests(_) | Terms::InProgress(_) | Terms::Answers(_))
    }

    /// Whether it applies only to connections that speak TLS.
    pub fn is_of_handshakes(self) -> bool {
        matches!(self, Terms::Handshakes(_) | Terms::HandshakesFailed(_))
    }

    /// Returns the rate, if it is one.
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
    /// Whether it applies to some paths only.
    pub fn reads_paths(&self) -> bool {
        !self.requests.paths.is_empty()
    }

    /// Returns a limit that has counted nothing yet.
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
    /// Returns these limits, each with a place in accounts.
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

    /// Sets an unpredictable key.
    pub fn set_key(&mut self, key: [u64; 2]) {
        self.seed = Arc::new(TableSeed::new(self.seed.accounts(), key));
    }

    /// Forgets the offences of a client.
    pub fn forgive(&self, block: Block) {
        let table = self.seed.table();
        table.forgive(&table.name(OFFENCES, Key::of_block(block)));
    }

    /// Makes this the successor of another plan: limits that are in both keep their accounts and
    /// counts, and the table keeps its size.
    pub(super) fn follow(&mut self, old: &ShieldPlan) {
        self.seed = Arc::clone(&old.seed);
        self.groups = old.groups;
        self.seat(&old.limits, None);
    }

    /// Gives each limit a place in the accounts of a group, up to [`SLOTS`] rates in one. New
    /// limits get new groups, in which no client has a debt; `first` is one to begin with.
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
                    let seat =
                        open.filter(|seat| usize::from(seat.slot) < SLOTS).unwrap_or_else(|| {
                            self.groups += 1;
                            Seat { group: self.groups, slot: 0 }
                        });
                    open = Some(Seat { slot: seat.slot + 1, ..seat });
                    seat
                }
            };
        }
    }

    /// Whether no limit applies to a client with this address. A client without one comes over a
    /// unix socket and is on this machine.
    #[inline]
    pub fn allows(&self, client: std::net::IpAddr) -> bool {
        client == super::NO_ADDRESS || self.allow.iter().any(|network| network.has_client(client))
    }
}

impl RequestMatch {
    /// Whether it matches all requests.
    #[inline]
    pub fn is_everything(&self) -> bool {
        self.hosts.is_empty() && self.paths.is_empty() && self.methods.is_empty()
    }

    /// Whether it matches a request. `path` is normalised, without a query.
    pub fn has(&self, host: &[u8], path: &[u8], method: &[u8]) -> bool {
        let of_method =
            self.methods.is_empty() || self.methods.iter().any(|one| one.as_bytes() == method);
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
    //! Proves: which requests a limit counts, and that limits never get places in which others have
    //! left debts. How: tables.

    use super::*;

    fn rate(name: &str) -> LimitPlan {
        LimitPlan::new(name, Terms::Requests(Rate::new(1, 1, 1, false)))
    }

    fn seats(plan: &ShieldPlan) -> Vec<(u32, u8)> {
        plan.limits.iter().map(|limit| (limit.seat.group, limit.seat.slot)).collect()
    }

    #[test]
    fn which_requests() {
        let paths =
            vec![PathMatch::Exact("/login".to_owned()), PathMatch::Prefix("/api".to_owned())];
        let hosts =
            vec![HostMatch::Exact("a.test".to_owned()), HostMatch::Suffix("*.b.test".to_owned())];
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
        assert!(
            RequestMatch::default().has(b"", b"/", b"GET")
                && RequestMatch::default().is_everything()
        );
        assert!(
            PathMatch::Prefix("/".to_owned()).has(b"/x")
                && PathMatch::Prefix("/a/".to_owned()).has(b"/a/b")
        );
        let home = PathMatch::Exact("/".to_owned());
        assert!(home.has(b"/") && !home.has(b"/x") && !home.has(b""));
        let login = PathMatch::Exact("/login/".to_owned());
        assert!(
            ["/login", "/login/", "/login/x"].iter().all(|path| login.has(path.as_bytes()))
                && !login.has(b"/logins")
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
        assert_eq!(
            seats(&third),
            [(5, 0)],
            "what `a` was is forgotten, but not what clients owed there"
        );
    }
}
