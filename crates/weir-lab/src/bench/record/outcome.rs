//! What one run measured.
//!
//! Written by `run/`, kept as one line of JSON each, summarised by `report/`.

use serde::{Deserialize, Serialize};

use super::answers::{Errors, Latency};
use super::bans::{Held, Recovery};
use super::block::Blocked;
use super::cache::{Cached, Halves, Purged};
use super::even::{Laddered, Reloads, Taken, most_to_least};
use super::failover::Failover;
use super::histogram::Histogram;
use super::http2::Stalled;
use super::keepalive::Probed;
use super::mixed::Mixed;
use super::pep::Passed;
use super::tls::Handshakes;
use super::wan::Carried;
use crate::bench::experiment::block::BANS;
use crate::bench::experiment::metric::Metric;

/// One run: one JSON object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Name of the cell.
    pub(crate) cell: String,
    /// Name of the contender.
    pub(crate) contender: String,
    /// From 1.
    pub(crate) round: u32,
    /// Complete replies (memory runs: connections).
    pub(crate) requests: u64,
    /// Replies a second (slow clients and full tunnels: bytes a second).
    pub(crate) rate: f64,
    /// Bytes that the clients received.
    pub(crate) bytes: u64,
    /// Length of the window in microseconds.
    pub(crate) wall_us: f64,
    /// What clients saw: by the clock from when a request was due, in a closed loop from when it
    /// was sent. None when nothing was answered.
    pub(crate) latency: Option<Latency>,
    /// By the clock: the same from when requests were sent.
    pub(crate) sent: Option<Latency>,
    /// What went wrong.
    pub(crate) errors: Errors,
    /// Connections that the origin accepted in the window (direct: the generator's own).
    pub(crate) upstream_connections: u64,
    /// User and system time of the proxy, all processes and threads, in the window.
    pub(crate) proxy_us: f64,
    /// That of the generator.
    pub(crate) generator_us: f64,
    /// That of the origin.
    pub(crate) origin_us: f64,
    /// Why the generator was the limit, if it was.
    pub(crate) generator_limit: Option<String>,
    /// Why the run was not measured, if so.
    pub(crate) not_run: Option<String>,
    /// Share of the window in which the cores were idle.
    pub(crate) idle: f64,
    /// Share of the window that the host gave to other guests.
    pub(crate) stolen: f64,
    /// Proportional set size of the proxy after the run.
    pub(crate) pss_bytes: u64,
    /// Memory runs: growth over the state before the load (idle: proportional; slow clients:
    /// resident, at its peak). With stalled clients: all resident memory, at its peak.
    pub(crate) memory_bytes: f64,
    /// Idle connections: growth for each.
    pub(crate) bytes_per_connection: f64,
    /// Results that only some loads have.
    #[serde(flatten)]
    pub(crate) special: Special,
}

/// Results that only some loads have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Special {
    /// The command line of the generator, where it is a separate program.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) generator: String,
    /// The latencies behind `latency`.
    #[serde(default, skip_serializing_if = "Histogram::is_empty")]
    pub(crate) histogram: Histogram,
    /// Handshakes, where clients use TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) handshakes: Option<Handshakes>,
    /// Streams of clients that let no response come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stalled: Option<Stalled>,
    /// What clients saw while servers died.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failover: Option<Failover>,
    /// What the probe saw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) probed: Option<Probed>,
    /// The outcome for attackers, and for users beside them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) blocked: Option<Blocked>,
    /// Memory with bans.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) held: Option<Held>,
    /// Clients whose bans end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recovery: Option<Recovery>,
    /// Figures of the link between clients and proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wan: Option<Carried>,
    /// What connections through a router cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pep: Option<Passed>,
    /// The load of each worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ladder: Option<Laddered>,
    /// The outcome of requests for responses that a cache did not have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cached: Option<Cached>,
    /// The effect of a purge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) purged: Option<Purged>,
    /// What clients of a cache saw before and after an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) halves: Option<Halves>,
    /// Results of fast and slow requests beside each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mixed: Option<Mixed>,
    /// How much of a core another process took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) taken: Option<Taken>,
    /// Reloads of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reloads: Option<Reloads>,
}

impl Record {
    /// The proxy's time for each request, microseconds; NaN where there is none.
    pub(crate) fn proxy_us_per_request(&self) -> f64 {
        self.per_request(self.proxy_us)
    }

    /// The proxy's time for each gigabyte, seconds; NaN where there is none.
    pub(crate) fn proxy_s_per_gigabyte(&self) -> f64 {
        if self.bytes == 0 || self.proxy_us == 0.0 {
            f64::NAN
        } else {
            self.proxy_us / self.bytes as f64 * 1e3
        }
    }

    /// The generator's.
    pub(crate) fn generator_us_per_request(&self) -> f64 {
        self.per_request(self.generator_us)
    }

    /// The origin's.
    pub(crate) fn origin_us_per_request(&self) -> f64 {
        self.per_request(self.origin_us)
    }

    /// Returns a figure of the latency, microseconds; NaN where there was no response.
    pub(crate) fn latency_us(&self, of: fn(&Latency) -> u64) -> f64 {
        self.latency.as_ref().map_or(f64::NAN, |latency| of(latency) as f64)
    }

    /// Returns the figure that is compared; NaN where it was not measured.
    pub(crate) fn figure(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Rate => self.rate,
            Metric::Cpu => self.proxy_us_per_request(),
            Metric::AddedCpu => self.of_router(|passed| passed.added_us(self.requests)),
            Metric::AddedCpuGigabyte => {
                self.of_router(|passed| passed.added_s_per_gigabyte(self.bytes))
            }
            Metric::CpuGigabyte => self.proxy_s_per_gigabyte(),
            Metric::GeneratorCpu => self.generator_us_per_request(),
            Metric::P50 => self.latency_us(|latency| latency.p50_us),
            Metric::P99 => self.latency_us(|latency| latency.p99_us),
            Metric::P999 => self.latency_us(|latency| latency.p999_us),
            Metric::P99Ms => self.latency_us(|latency| latency.p99_us) / 1e3,
            Metric::SentP99Ms => self.sent.map_or(f64::NAN, |sent| sent.p99_us as f64 / 1e3),
            Metric::IdleBytes => self.bytes_per_connection,
            Metric::MemoryMb => self.memory_bytes / 1e6,
            Metric::Upstream => self.upstream_connections as f64,
            Metric::Fetches => self.of_cache(|cached| cached.fetches as f64),
            Metric::BeyondOriginMs => self.of_cache(|cached| {
                self.latency_us(|latency| latency.p99_us) / 1e3 - f64::from(cached.origin_ms)
            }),
            Metric::HitsOfLru => self.of_cache(Cached::hits_of_same_lru),
            Metric::TakenOfRoom => self.of_cache(Cached::taken_of_room),
            Metric::GoneMs => {
                self.special.purged.map_or(f64::NAN, |purged| purged.gone_us as f64 / 1e3)
            }
            Metric::Failures => self.errors.values().sum::<u64>() as f64,
            Metric::AttemptCpu => self.of_attack(Blocked::attempt_us),
            Metric::UsersP99 => self.of_attack(|blocked| {
                self.latency_us(|latency| latency.p99_us) / blocked.alone.p99_us as f64
            }),
            Metric::FalseBlocks => self.of_attack(|blocked| blocked.users_blocked as f64),
            Metric::OverService => self.of_attack(Blocked::over_service_percent),
            Metric::TimeToBlock => self.of_attack(Blocked::time_to_block_p99_ms),
            Metric::BanMb => {
                let [.., most] = BANS;
                self.special.held.as_ref().map_or(f64::NAN, |held| held.more_bytes(most) / 1e6)
            }
            Metric::ConnectionsLadder => {
                self.of_ladder(|ladder| most_to_least(&ladder.connections))
            }
            Metric::CpuLadder => self.of_ladder(|ladder| most_to_least(&ladder.cpu_us)),
            Metric::CutOff => {
                self.special.reloads.map_or(f64::NAN, |_| self.errors.values().sum::<u64>() as f64)
            }
            Metric::LatePercent => self.of_mixed(Mixed::late_percent),
            Metric::Twice => {
                self.of_mixed(|mixed| mixed.twice.map_or(f64::NAN, |twice| twice as f64))
            }
            Metric::ConnectsPerThousand => {
                self.of_mixed(|_| self.upstream_connections as f64 * 1e3 / self.requests as f64)
            }
            Metric::RecoveryMs => {
                self.special.recovery.as_ref().map_or(f64::NAN, Recovery::longest_ms)
            }
        }
    }

    fn of_router(&self, read: impl Fn(&Passed) -> f64) -> f64 {
        self.special.pep.as_ref().map_or(f64::NAN, read)
    }

    fn of_cache(&self, read: impl Fn(&Cached) -> f64) -> f64 {
        self.special.cached.as_ref().map_or(f64::NAN, read)
    }

    fn of_mixed(&self, read: impl Fn(&Mixed) -> f64) -> f64 {
        self.special.mixed.as_ref().map_or(f64::NAN, read)
    }

    fn of_ladder(&self, read: impl Fn(&Laddered) -> f64) -> f64 {
        self.special.ladder.as_ref().map_or(f64::NAN, read)
    }

    fn of_attack(&self, read: impl Fn(&Blocked) -> f64) -> f64 {
        self.special.blocked.as_ref().map_or(f64::NAN, read)
    }

    fn per_request(&self, us: f64) -> f64 {
        if self.requests == 0 || us == 0.0 { f64::NAN } else { us / self.requests as f64 }
    }
}
