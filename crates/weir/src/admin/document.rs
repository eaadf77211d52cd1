//! The JSON of the admin socket, version 1: its types, for the side that writes and the side that reads.
//!
//! Field names are stable: within a version fields are added, never renamed or removed. `docs/status.md` describes them, and
//! a test compares. Times that end in `_us` are microseconds, in `_seconds` seconds. What is not known is null.

mod learned;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(crate) use self::learned::{Class, ConcurrencyLimit, Fresh};
pub(crate) use super::accepting::Accepting;
use super::cache::CacheFigures;
pub(crate) use super::interception::Interception;
pub(crate) use super::workers::Worker;

/// Of the document. A reader refuses others.
pub(crate) const VERSION: u32 = 1;

/// `GET /v1/status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    pub(crate) version: u32,
    pub(crate) weir: String,
    pub(crate) pid: u32,
    pub(crate) uptime_seconds: f64,
    pub(crate) state: String,
    pub(crate) ready: bool,
    /// Why it is not ready: a word, and what it is about.
    pub(crate) unready: Option<String>,
    #[serde(flatten)]
    pub(crate) io: Io,
    pub(crate) listeners: Vec<String>,
    /// Of the listeners whose clients speak TLS, each file once.
    pub(crate) certificates: Vec<Certificate>,
    /// Other files that TLS needs, each once.
    pub(crate) tls_files: Vec<TlsFile>,
    /// Names that are written in place of addresses of servers.
    pub(crate) names: Vec<Name>,
    /// Files with servers.
    pub(crate) server_files: Vec<ServerFile>,
    /// Clients who are not let in.
    pub(crate) bans: Bans,
    pub(crate) reload: Reload,
    pub(crate) window_seconds: u64,
    pub(crate) clients: Clients,
    pub(crate) workers: Vec<Worker>,
    pub(crate) upstreams: Vec<Upstream>,
    pub(crate) suspects: Vec<Suspect>,
    /// Limits of `shield`, in their order.
    pub(crate) limits: Vec<Limit>,
    /// What is stored; None: no route has `cache`.
    pub(crate) cache: Option<CacheFigures>,
    /// What clients of the forward proxy do; None: there is none.
    pub(crate) usage: Option<Usage>,
    /// Congestion controls that share connections of `tcp`.
    pub(crate) congestion: Vec<Arm>,
    /// Every counter, added up over the workers; one with labels is an object.
    pub(crate) totals: BTreeMap<String, serde_json::Value>,
}

/// By what it talks with the system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Io {
    pub(crate) driver: String,
    pub(crate) driver_reason: String,
    /// Where metrics are served; None: nowhere.
    pub(crate) metrics: Option<String>,
    /// By listener: which worker gets a new connection.
    pub(crate) accepting: Vec<Accepting>,
    /// What `weir intercept` does with new connections; None: this is none.
    pub(crate) interception: Option<Interception>,
}

/// What connections of `tcp` came to by one of several congestion controls.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Arm {
    /// `client` or `server`.
    pub(crate) side: String,
    pub(crate) name: String,
    /// Those that have ended.
    pub(crate) connections: u64,
    /// Those included that were sent again.
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_sent_again: u64,
    pub(crate) duration: Latency,
    pub(crate) rtt: Latency,
    pub(crate) min_rtt: Latency,
    /// Bytes a second.
    pub(crate) rate_p10: Option<u64>,
    pub(crate) rate_p50: Option<u64>,
    pub(crate) rate_p90: Option<u64>,
}

/// How many clients are banned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Bans {
    /// Bans in force.
    pub(crate) in_force: u64,
    /// Bans since the start.
    pub(crate) total: u64,
    /// Bans that gave way to others before their time.
    pub(crate) displaced: u64,
    /// Where they are kept over a restart; None: nowhere.
    pub(crate) file: Option<String>,
    /// Why they could not be kept the last time.
    pub(crate) problem: Option<String>,
    /// Those that the kernel knows; None: it takes no part.
    pub(crate) in_kernel: Option<u64>,
    /// By what it drops packets: `nftables`, `xdp`.
    pub(crate) kernel_tier: Option<String>,
    /// Those that it has not taken.
    pub(crate) kernel_refused: u64,
    /// Why it takes no part, or has not taken some.
    pub(crate) kernel_problem: Option<String>,
    /// Packets that it has dropped.
    pub(crate) packets_dropped: u64,
}

/// `GET /v1/bans`, `/v1/bans/ADDRESS`, and what comes of `add` and `remove` there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BanList {
    pub(crate) version: u32,
    /// Those that end first first.
    pub(crate) bans: Vec<Ban>,
    /// Why whoever was asked for is never banned: what he is.
    pub(crate) never: Option<String>,
}

/// A ban, or one that was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Ban {
    /// An address, or a range of them.
    pub(crate) network: String,
    /// When it began, seconds since 1970.
    pub(crate) since_seconds: u64,
    /// When it ends.
    pub(crate) until_seconds: u64,
    /// Until then; 0: it is over, and makes the next one longer.
    pub(crate) left_seconds: u64,
    /// The how manieth of this client.
    pub(crate) count: u32,
    /// The limit that was passed, or what an operator wrote.
    pub(crate) reason: String,
    /// An operator insisted, although the client is one whom nobody bans.
    pub(crate) forced: bool,
}

/// `GET /v1/shield`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Shield {
    pub(crate) version: u32,
    /// Nobody is refused.
    pub(crate) observes: bool,
    /// Places in the table, and those that are used.
    pub(crate) accounts: u64,
    pub(crate) used: u64,
    pub(crate) limits: Vec<Limit>,
    pub(crate) bans: Bans,
    /// Who was refused most, then who is closest to a limit.
    pub(crate) top: Vec<ShieldClient>,
}

/// How somebody stands with a limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ShieldClient {
    /// A client, or `value` and a number that stands for what requests say.
    pub(crate) who: String,
    pub(crate) limit: String,
    /// How much of what may come at once, or be there at a time, is used, from 0 to 1.
    pub(crate) used: f64,
    /// Connections that are open, or requests in progress.
    pub(crate) open: u64,
    /// Refusals since there was none for a minute.
    pub(crate) refused: u64,
    /// Since the last one; None: there was none.
    pub(crate) refused_seconds: Option<f64>,
}

/// How the configuration came to be in force.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Reload {
    /// Configurations that were in force so far, the present one included.
    pub(crate) generation: u64,
    /// Whether the last reload went well; None: there was none.
    pub(crate) ok: Option<bool>,
    /// When it was, seconds since 1970.
    pub(crate) at_seconds: Option<f64>,
    /// What was wrong.
    pub(crate) error: Option<String>,
    /// Requests at servers that are no more in the configuration, and tunnels to them.
    pub(crate) leaving: u64,
}

/// A job of the thread that reloads: `POST /v1/reload`, `/v1/reload/dry-run`, `/v1/servers/UPSTREAM/SERVER/weight/N`, `add`, `remove`, and
/// `GET /v1/jobs/NUMBER`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct JobStatus {
    pub(crate) version: u32,
    pub(crate) number: u64,
    /// Whether it is done, in which case there are the others.
    pub(crate) done: bool,
    /// The exit code that it is for a verb; 0: well.
    pub(crate) code: u8,
    /// Lines for whoever asked.
    pub(crate) text: String,
}

/// A certificate that is in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Certificate {
    pub(crate) file: String,
    pub(crate) names: Vec<String>,
    /// The end of its validity, seconds since 1970.
    pub(crate) not_after_seconds: i64,
    /// Until then; below 0: it is over.
    pub(crate) left_seconds: i64,
    /// Why the file as it is now could not be used.
    pub(crate) problem: Option<String>,
}

/// A file with CAs, revocation lists or keys of tickets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TlsFile {
    pub(crate) file: String,
    /// Why it could not be used as it is now.
    pub(crate) problem: Option<String>,
}

/// A name that is written in place of addresses of servers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Name {
    /// With its port.
    pub(crate) name: String,
    /// Those that are in use.
    pub(crate) addresses: Vec<String>,
    /// Why it could not be looked up the last time.
    pub(crate) problem: Option<String>,
}

/// A file with servers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ServerFile {
    pub(crate) file: String,
    /// Servers of it that are in use, as they are written.
    pub(crate) servers: usize,
    /// Why it is not used as it is now.
    pub(crate) problem: Option<String>,
}

/// What clients see.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Clients {
    pub(crate) connections: u64,
    pub(crate) requests: u64,
    pub(crate) in_flight: u64,
    pub(crate) waiting: u64,
    pub(crate) answers: Answers,
    pub(crate) window: Window,
}

/// Counts of answers by class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Answers {
    #[serde(rename = "1xx")]
    pub(crate) c1xx: u64,
    #[serde(rename = "2xx")]
    pub(crate) c2xx: u64,
    #[serde(rename = "3xx")]
    pub(crate) c3xx: u64,
    #[serde(rename = "4xx")]
    pub(crate) c4xx: u64,
    #[serde(rename = "5xx")]
    pub(crate) c5xx: u64,
}

impl From<[u64; 5]> for Answers {
    fn from([c1xx, c2xx, c3xx, c4xx, c5xx]: [u64; 5]) -> Answers {
        Answers { c1xx, c2xx, c3xx, c4xx, c5xx }
    }
}

/// What happened lately.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Window {
    /// How much of it is over: less than its length after the start.
    pub(crate) seconds: f64,
    /// The mean.
    pub(crate) requests_per_second: f64,
    /// Of the last two to three seconds.
    pub(crate) requests_per_second_now: f64,
    pub(crate) answers: Answers,
    pub(crate) retries: u64,
    pub(crate) latency: Latency,
}

/// Response times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    pub(crate) min_us: Option<u64>,
    pub(crate) mean_us: Option<u64>,
    pub(crate) max_us: Option<u64>,
    pub(crate) p50_us: Option<u64>,
    pub(crate) p75_us: Option<u64>,
    pub(crate) p90_us: Option<u64>,
    pub(crate) p95_us: Option<u64>,
    pub(crate) p99_us: Option<u64>,
    pub(crate) p999_us: Option<u64>,
}

/// A named group of servers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Upstream {
    pub(crate) name: String,
    /// Whether any of its servers can take requests.
    pub(crate) usable: bool,
    pub(crate) servers: Vec<Server>,
}

/// One server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) address: String,
    /// The one that counts.
    pub(crate) weight: u32,
    /// The one of the configuration.
    pub(crate) weight_configured: u32,
    /// It gets requests only while no other server of its upstream can.
    pub(crate) backup: bool,
    /// An operator has added it; it is not in the configuration.
    pub(crate) temporary: bool,
    /// `up`, `down` (no connection), `suspended`, `draining`, `disabled`, or `unknown` when no worker answers.
    pub(crate) state: String,
    pub(crate) why: Option<String>,
    pub(crate) usable: bool,
    /// How long it has been suspended; 0 when it is not.
    pub(crate) suspended_us: u64,
    pub(crate) connections: Connections,
    pub(crate) in_flight: u64,
    pub(crate) waiting: u64,
    pub(crate) capacity: u64,
    pub(crate) trust: String,
    pub(crate) penalty_us: u64,
    pub(crate) penalty_for: Option<String>,
    pub(crate) depth: u32,
    /// With `pool "fresh"`.
    pub(crate) fresh: Option<Fresh>,
    /// Where it was learned that more at once are worse.
    pub(crate) limit: Option<ConcurrencyLimit>,
    pub(crate) answers: Answers,
    /// Everything that is counted of it; a count with labels is an object.
    pub(crate) totals: BTreeMap<String, serde_json::Value>,
    pub(crate) window: Window,
    pub(crate) last_problem: Option<Problem>,
}

impl Server {
    /// How much somebody should look after it; 0: not at all.
    pub(crate) fn sickness(&self) -> u8 {
        match (self.state.as_str(), self.trust.as_str()) {
            ("up", "penalty" | "surplus") => 1,
            ("up", _) => 0,
            ("draining" | "disabled", _) => 2,
            _ => 3,
        }
    }

    /// Its state for people: a backup says that it is one.
    pub(crate) fn state_shown(&self) -> String {
        let backup = if self.backup { " (backup)" } else { "" };
        format!("{}{backup}", self.state)
    }

    /// Its weight for people: with that of the configuration where another one was ordered.
    pub(crate) fn weight_shown(&self) -> String {
        let Server { weight, weight_configured, .. } = self;
        // A weir of before knows no other one.
        if [*weight, 0].contains(weight_configured) {
            weight.to_string()
        } else {
            format!("{weight} ({weight_configured})")
        }
    }
}

/// Connections of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Connections {
    pub(crate) up: u32,
    pub(crate) configured: u32,
    pub(crate) aside: u32,
    pub(crate) tunnels: u32,
}

/// Why a connection ended last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Problem {
    pub(crate) word: String,
    pub(crate) ago_us: u64,
}

/// A request that was in flight when servers died.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Suspect {
    pub(crate) upstream: String,
    pub(crate) method: String,
    pub(crate) host: String,
    /// Without the query.
    pub(crate) path: String,
    pub(crate) deaths: u32,
    /// `noted`, `suspect` (sent alone) or `refused`.
    pub(crate) state: String,
    /// To the end of the refusal; 0 without one.
    pub(crate) left_us: u64,
}

/// A limit for each client, and what has become of those that it is for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Limit {
    pub(crate) name: String,
    /// The word of the configuration.
    pub(crate) count: String,
    /// It refuses nobody.
    pub(crate) observes: bool,
    pub(crate) passed: u64,
    pub(crate) refused: u64,
    /// They would have been refused.
    pub(crate) observed: u64,
    /// The table had no room for their clients.
    pub(crate) untracked: u64,
    /// The table had no room for what they say: they were counted together with others, and are among the former, too.
    pub(crate) shared: u64,
}

/// What clients do who choose where they go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Usage {
    pub(crate) destinations: Uses,
    pub(crate) users: Uses,
}

/// The busiest, and all others as one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Uses {
    pub(crate) rows: Vec<Use>,
    pub(crate) others: Use,
}

/// What was done with one destination, or by one user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Use {
    /// Host and port, or the user's name.
    pub(crate) name: String,
    pub(crate) connections: u64,
    pub(crate) requests: u64,
    pub(crate) tunnels: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// By word.
    pub(crate) refusals: BTreeMap<String, u64>,
}

/// `GET /v1/servers/UPSTREAM/SERVER`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ServerStatus {
    pub(crate) version: u32,
    pub(crate) upstream: String,
    pub(crate) server: Server,
    /// Answers by status, since the start.
    pub(crate) statuses: BTreeMap<u16, u64>,
    pub(crate) classes: Vec<Class>,
    pub(crate) rows: Vec<Row>,
}

/// `GET /v1/servers/UPSTREAM/SERVER/left`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Left {
    pub(crate) version: u32,
    /// Requests and tunnels at a server that was removed; None: a worker did not tell.
    pub(crate) left: Option<u64>,
}

/// One connection to a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Row {
    pub(crate) number: u32,
    pub(crate) worker: usize,
    pub(crate) state: String,
    pub(crate) since_us: u64,
    pub(crate) retry_us: u64,
    pub(crate) in_flight: u32,
    pub(crate) queued: u32,
    pub(crate) answers: u64,
    pub(crate) closes: u64,
    pub(crate) closed_why: Option<String>,
    pub(crate) glitches: u32,
}

/// What every refusal is: a word for programs, a sentence for people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Error {
    pub(crate) error: String,
    pub(crate) message: String,
}

#[cfg(test)]
mod tests {
    //! Proves: the page that describes the document names every field of it, and what it names there exists. How: the fields of
    //! a document of which nothing is empty.

    use std::collections::BTreeSet;

    use super::*;

    fn fields(value: &serde_json::Value, into: &mut BTreeSet<String>) {
        if let Some(object) = value.as_object() {
            for (name, inner) in object {
                into.insert(name.clone());
                fields(inner, into);
            }
        }
        value.as_array().into_iter().flatten().for_each(|inner| fields(inner, into));
    }

    #[test]
    fn every_field_is_in_the_page() {
        let status = Status {
            workers: vec![Worker::default()],
            upstreams: vec![Upstream {
                servers: vec![Server { last_problem: Some(Problem::default()), ..Server::default() }],
                ..Upstream::default()
            }],
            suspects: vec![Suspect::default()],
            limits: vec![Limit::default()],
            usage: Some(Usage {
                destinations: Uses { rows: vec![Use::default()], ..Uses::default() },
                ..Usage::default()
            }),
            ..Status::default()
        };
        let detail = ServerStatus {
            server: Server { limit: Some(ConcurrencyLimit::default()), ..Server::default() },
            classes: vec![Class::default()],
            rows: vec![Row::default()],
            ..ServerStatus::default()
        };
        let mut found = BTreeSet::new();
        let left = serde_json::to_value(Left::default()).unwrap();
        for document in [serde_json::to_value(status).unwrap(), serde_json::to_value(detail).unwrap(), left] {
            fields(&document, &mut found);
        }
        found.retain(|name| !name.ends_with("xx"));
        assert!(found.len() > 60, "{found:?}");
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/status.md");
        let page = std::fs::read_to_string(path).unwrap();
        let section = page.split("\n## ").find(|section| section.starts_with("The document")).unwrap();
        let named: BTreeSet<String> = section.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let missing: Vec<_> = found.difference(&named).collect();
        assert!(missing.is_empty(), "docs/status.md does not name {missing:?}");
        // The other way round: names in the first column of a table.
        let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
        for name in cells.flat_map(|cell| cell.split(['`', ',', ' '])).filter(|name| !name.is_empty()) {
            assert!(found.contains(name), "docs/status.md names {name}, which does not exist");
        }
    }
}
