//! The JSON of the admin socket, version 1: its types, for the writer and the reader.
//!
//! Field names are stable: within a version fields are added, never renamed or removed.
//! `docs/status-document.md` describes them, and a test compares. Times that end in `_us` are
//! microseconds, in `_seconds` seconds. Unknown values are null.

mod learned;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(crate) use self::learned::{Class, ConcurrencyLimit, Fresh};
pub(crate) use super::accepting::Accepting;
use super::cache::CacheFigures;
pub(crate) use super::interception::Interception;
pub(crate) use super::workers::Worker;

/// Version of the document. A reader rejects others.
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
    /// Why it is not ready: a word, and its object.
    pub(crate) unready: Option<String>,
    #[serde(flatten)]
    pub(crate) io: Io,
    pub(crate) listeners: Vec<String>,
    /// Of the listeners whose clients use TLS, each file once.
    pub(crate) certificates: Vec<Certificate>,
    /// Other files that TLS needs, each once.
    pub(crate) tls_files: Vec<TlsFile>,
    /// Names that the configuration has in place of server addresses.
    pub(crate) names: Vec<Name>,
    /// Files with servers.
    pub(crate) server_files: Vec<ServerFile>,
    /// Banned clients.
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
    /// What clients of the forward proxy do; None: no forward proxy.
    pub(crate) usage: Option<Usage>,
    /// Congestion controls that share connections of `tcp`.
    pub(crate) congestion: Vec<Arm>,
    /// Every counter, added up over the workers; a counter with labels is an object.
    pub(crate) totals: BTreeMap<String, serde_json::Value>,
}

/// How it talks with the system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Io {
    pub(crate) driver: String,
    pub(crate) driver_reason: String,
    /// Address that serves metrics; None: nowhere.
    pub(crate) metrics: Option<String>,
    /// By listener: how the worker for a new connection is chosen.
    pub(crate) accepting: Vec<Accepting>,
    /// What `weir intercept` does with new connections; None: not an interception.
    pub(crate) interception: Option<Interception>,
}

/// Results of connections of `tcp` with one of several congestion controls.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Arm {
    /// `client` or `server`.
    pub(crate) side: String,
    pub(crate) name: String,
    /// Connections that have ended.
    pub(crate) connections: u64,
    /// Including retransmitted bytes.
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

/// Numbers about bans.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Bans {
    /// Bans in force.
    pub(crate) in_force: u64,
    /// Bans since the start.
    pub(crate) total: u64,
    /// Bans that were displaced before their end.
    pub(crate) displaced: u64,
    /// The file that keeps them over a restart; None: no file.
    pub(crate) file: Option<String>,
    /// Why the last write of the file failed.
    pub(crate) problem: Option<String>,
    /// Bans in the kernel; None: it takes no part.
    pub(crate) in_kernel: Option<u64>,
    /// How it drops packets: `nftables`, `xdp`.
    pub(crate) kernel_tier: Option<String>,
    /// Bans that it has not taken.
    pub(crate) kernel_refused: u64,
    /// Why it takes no part, or has not taken some.
    pub(crate) kernel_problem: Option<String>,
    /// Packets that it has dropped.
    pub(crate) packets_dropped: u64,
}

/// `GET /v1/bans`, `/v1/bans/NETWORK`, and the results of `add` and `remove` there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BanList {
    pub(crate) version: u32,
    /// In the order of their ends.
    pub(crate) bans: Vec<Ban>,
    /// Why the requested client is never banned.
    pub(crate) never: Option<String>,
}

/// A ban, in force or over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Ban {
    /// An address, or a range of them.
    pub(crate) network: String,
    /// When it began, seconds since 1970.
    pub(crate) since_seconds: u64,
    /// When it ends.
    pub(crate) until_seconds: u64,
    /// Time to its end, rounded up, and never more than its length; 0: it is over, and makes the
    /// next one longer.
    pub(crate) left_seconds: u64,
    /// Number of bans of this client up to now.
    pub(crate) count: u32,
    /// The exceeded limit, or the text of an operator.
    pub(crate) reason: String,
    /// An operator insisted, although the client is exempt from bans.
    pub(crate) forced: bool,
}

/// `GET /v1/shield`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Shield {
    pub(crate) version: u32,
    /// Limits reject no requests.
    pub(crate) observes: bool,
    /// Places in the table, and used places.
    pub(crate) accounts: u64,
    pub(crate) used: u64,
    pub(crate) limits: Vec<Limit>,
    pub(crate) bans: Bans,
    /// Clients with the most rejections, then those closest to a limit.
    pub(crate) top: Vec<ShieldClient>,
}

/// A client's use of a limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ShieldClient {
    /// A client, or `value` and a number in place of a value of requests.
    pub(crate) who: String,
    pub(crate) limit: String,
    /// Used part of the limit, at once or at a time, from 0 to 1.
    pub(crate) used: f64,
    /// Open connections, or requests in progress.
    pub(crate) open: u64,
    /// Rejections since the last minute without any.
    pub(crate) refused: u64,
    /// Since the last rejection; None: none so far.
    pub(crate) refused_seconds: Option<f64>,
}

/// History of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Reload {
    /// Configurations in force so far, the present one included.
    pub(crate) generation: u64,
    /// Whether the last reload succeeded; None: no reload so far.
    pub(crate) ok: Option<bool>,
    /// When it was, seconds since 1970.
    pub(crate) at_seconds: Option<f64>,
    /// The error of it.
    pub(crate) error: Option<String>,
    /// Requests at servers that have left the configuration, and tunnels to them.
    pub(crate) leaving: u64,
}

/// A job of the thread that reloads: `POST /v1/reload`, `/v1/reload/dry-run`,
/// `/v1/servers/UPSTREAM/SERVER/weight/N`, `add`, `remove`, and `GET /v1/jobs/NUMBER`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct JobStatus {
    pub(crate) version: u32,
    pub(crate) number: u64,
    /// Whether it is done; only then the other fields are set.
    pub(crate) done: bool,
    /// The exit code of a verb; 0: success.
    pub(crate) code: u8,
    /// Lines for the caller.
    pub(crate) text: String,
}

/// A certificate in force.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Certificate {
    pub(crate) file: String,
    pub(crate) names: Vec<String>,
    /// The end of its validity, seconds since 1970.
    pub(crate) not_after_seconds: i64,
    /// Time to its end; below 0: expired.
    pub(crate) left_seconds: i64,
    /// Why the present file could not be used.
    pub(crate) problem: Option<String>,
}

/// A file with CAs, revocation lists or keys of tickets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TlsFile {
    pub(crate) file: String,
    /// Why the present file could not be used.
    pub(crate) problem: Option<String>,
}

/// A name that the configuration has in place of server addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Name {
    /// With its port.
    pub(crate) name: String,
    /// Addresses in use.
    pub(crate) addresses: Vec<String>,
    /// Why the last lookup failed.
    pub(crate) problem: Option<String>,
}

/// A file with servers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ServerFile {
    pub(crate) file: String,
    /// Servers of it in use, as written.
    pub(crate) servers: usize,
    /// Why the present file is not used.
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

/// Counts of responses by class.
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

/// Recent activity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Window {
    /// Its elapsed part: less than its length after the start.
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
    /// The effective weight.
    pub(crate) weight: u32,
    /// The configured weight.
    pub(crate) weight_configured: u32,
    /// It gets requests only while no other server of its upstream can.
    pub(crate) backup: bool,
    /// Added by an operator; it is not in the configuration.
    pub(crate) temporary: bool,
    /// `up`, `down` (no connection), `suspended`, `draining`, `disabled`, or `unknown` when no
    /// worker replies.
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
    #[serde(flatten)]
    pub(crate) bounds: ServerBounds,
    pub(crate) answers: Answers,
    /// All its counters; a counter with labels is an object.
    pub(crate) totals: BTreeMap<String, serde_json::Value>,
    pub(crate) window: Window,
    pub(crate) last_problem: Option<Problem>,
}

/// How much a server takes at once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ServerBounds {
    /// The configured limit of requests that it works on at once.
    pub(crate) concurrency: Option<u32>,
    /// The learned limit, where more requests at once are worse.
    pub(crate) limit: Option<ConcurrencyLimit>,
    /// Connections that it serves at a time, if weir has learned that.
    pub(crate) places: Option<u32>,
}

impl Server {
    /// How much attention from an operator it needs; 0: none.
    pub(crate) fn sickness(&self) -> u8 {
        match (self.state.as_str(), self.trust.as_str()) {
            ("up", "penalty" | "surplus" | "unfit") => 1,
            ("up", _) => 0,
            ("draining" | "disabled", _) => 2,
            _ => 3,
        }
    }

    /// Its state for people, with a note for a backup.
    pub(crate) fn state_shown(&self) -> String {
        let backup = if self.backup { " (backup)" } else { "" };
        format!("{}{backup}", self.state)
    }

    /// Its weight for people: with the configured weight if an operator set another.
    pub(crate) fn weight_shown(&self) -> String {
        let Server { weight, weight_configured, .. } = self;
        // An older weir reports no configured weight.
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

/// Why the last connection ended.
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
    /// Time to the end of the rejections; 0 without any.
    pub(crate) left_us: u64,
}

/// A limit for each client, and what it did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Limit {
    pub(crate) name: String,
    /// The word of the configuration.
    pub(crate) count: String,
    /// It rejects no requests.
    pub(crate) observes: bool,
    pub(crate) passed: u64,
    pub(crate) refused: u64,
    /// Those that it would have rejected.
    pub(crate) observed: u64,
    /// Those whose clients had no place in the table.
    pub(crate) untracked: u64,
    /// Those whose values had no place in the table: they were counted together with others, and
    /// also above.
    pub(crate) shared: u64,
}

/// What clients do that choose their destination.
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

/// The use of one destination, or by one user.
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
    /// Responses by status, since the start.
    pub(crate) statuses: BTreeMap<u16, u64>,
    pub(crate) classes: Vec<Class>,
    pub(crate) rows: Vec<Row>,
}

/// `GET /v1/servers/UPSTREAM/SERVER/left`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Left {
    pub(crate) version: u32,
    /// Requests and tunnels at a removed server; None: a worker did not reply.
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

/// The form of every error: a word for programs, a sentence for people.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Error {
    pub(crate) error: String,
    pub(crate) message: String,
}

#[cfg(test)]
mod tests {
    //! Proves: the page that describes the document names every field of it, and every name on the
    //! page exists. How: the fields of a document without empty parts.

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
                servers: vec![Server {
                    last_problem: Some(Problem::default()),
                    ..Server::default()
                }],
                ..Upstream::default()
            }],
            suspects: vec![Suspect::default()],
            limits: vec![Limit::default()],
            cache: Some(CacheFigures::default()),
            io: Io { interception: Some(Interception::default()), ..Io::default() },
            usage: Some(Usage {
                destinations: Uses { rows: vec![Use::default()], ..Uses::default() },
                ..Usage::default()
            }),
            ..Status::default()
        };
        let detail = ServerStatus {
            server: Server {
                bounds: ServerBounds {
                    limit: Some(ConcurrencyLimit::default()),
                    ..ServerBounds::default()
                },
                ..Server::default()
            },
            classes: vec![Class::default()],
            rows: vec![Row::default()],
            ..ServerStatus::default()
        };
        let mut found = BTreeSet::new();
        let left = serde_json::to_value(Left::default()).unwrap();
        for document in
            [serde_json::to_value(status).unwrap(), serde_json::to_value(detail).unwrap(), left]
        {
            fields(&document, &mut found);
        }
        found.retain(|name| !name.ends_with("xx"));
        assert!(found.len() > 60, "{found:?}");
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/status-document.md");
        let page = std::fs::read_to_string(path).unwrap();
        let section =
            page.split("\n## ").find(|section| section.starts_with("The document")).unwrap();
        let named: BTreeSet<String> =
            section.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let missing: Vec<_> = found.difference(&named).collect();
        assert!(missing.is_empty(), "docs/status-document.md does not name {missing:?}");
        // The other way round: names in the first column of a table.
        let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
        for name in
            cells.flat_map(|cell| cell.split(['`', ',', ' '])).filter(|name| !name.is_empty())
        {
            assert!(
                found.contains(name),
                "docs/status-document.md names {name}, which does not exist"
            );
        }
    }
}
