//! A line for each run while an experiment runs.
//!
//! Called by `bench/mod.rs`.

use super::numbers::{microseconds, ms};
use super::{bans, block, cache, even, failover, keepalive, mixed, pep, tunnel, wan};
use crate::bench::experiment::cells::{Cell, Load};
use crate::bench::experiment::tunnel::Tunnels;
use crate::bench::record::outcome::Record;

/// Returns one line of progress.
pub(crate) fn progress(cell: &Cell, record: &Record) -> String {
    let name = &record.contender;
    let errors: u64 = record.errors.values().sum();
    if let Some(why) = &record.not_run {
        return format!("{name:<11} not run: {why}");
    }
    match cell.load {
        Load::Failover(_) => format!("{name:<11} {}", failover::progress(record)),
        Load::Block(_) => format!("{name:<14} {}", block::progress(record)),
        Load::BanMemory => format!("{name:<14} {}", bans::memory_progress(record)),
        Load::Recovery => format!("{name:<14} {}", bans::recovery_progress(record)),
        Load::Pep(_) => format!("{name:<20} {}", pep::progress(record)),
        Load::Wan(link) => format!("{name:<14} {}", wan::progress(link, record)),
        Load::Ladder(_) => format!("{name:<16} {}", even::ladder_progress(record)),
        Load::Cache(load) => format!("{name:<11} {}", cache::progress(load, record)),
        Load::Taken => format!("{name:<16} {}", even::taken_progress(record)),
        Load::Reload => format!("{name:<16} {}", even::reload_progress(record)),
        Load::Mixed(_) => format!("{name:<11} {}", mixed::progress(record)),
        Load::Probe(_) => format!("{name:<11} {}", keepalive::progress(record)),
        Load::Tunnel(Tunnels::Full(_)) => format!("{name:<11} {}", tunnel::progress(record)),
        Load::Tunnel(Tunnels::Idle(_)) => {
            format!(
                "{name:<11} {:>8.0} B a tunnel, {errors} ends lost",
                record.bytes_per_connection
            )
        }
        Load::Idle(_) => {
            format!("{name:<11} {:>8.0} B a connection, {errors} lost", record.bytes_per_connection)
        }
        Load::Slow { .. } => {
            format!("{name:<11} {:>8.1} MB above idle, {errors} lost", record.memory_bytes / 1e6)
        }
        _ => format!(
            "{name:<11} {:>8.0}/s, CPU {:>6} µs, p99 {:>7} ms, idle {:>3.0} %, {} upstream \
                connections, {errors} errors",
            record.rate,
            microseconds(record.proxy_us_per_request()),
            ms(record.latency_us(|latency| latency.p99_us)),
            record.idle * 100.0,
            record.upstream_connections,
        ),
    }
}
