//! Established clients beside a flood of handshakes: what the flood does to their latency.
//!
//! Called by `rounds.rs`. Bound: the flood ends with the run; it makes no more than [`FLOOD_CONNECTIONS`] connections at a time.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::load::{self, Bound, Times, pause};
use super::process::bound_command;
use super::stage::{Running, Stage};
use crate::bench::experiment::cells::SMALL;
use crate::bench::experiment::tls::FLOOD_CONNECTIONS;
use crate::bench::record::outcome::Record;
use crate::bench::record::tls::Handshakes;

/// How long the flood runs before the clients connect.
const AHEAD: Duration = Duration::from_millis(500);
/// Longest run of the flood, which is ended when the clients are done.
const FLOOD_MAX: &str = "10m";

/// One run: so many connections ask so often by the clock.
///
/// # Errors
/// A generator fails, or the user interrupts.
pub(super) fn run(
    stage: &Stage,
    running: &Running,
    (connections, rate): (u32, u32),
    times: Times,
) -> io::Result<Record> {
    let url = format!("{}{}{SMALL}", running.scheme(), running.address());
    // Real floods come from elsewhere: the clients' side of this one takes what nobody else wants of the cores.
    let mut command = bound_command(Path::new("nice"));
    command.args(["-n", "19"]).arg(stage.weir()).args(["bomb", &url, "--json", "-d", FLOOD_MAX, "--class"]);
    command.arg(format!("flood: behave=connect-flood, connections={FLOOD_CONNECTIONS}"));
    command.args(running.tls_words());
    let mut flood = Bound::start(&mut command)?;
    pause(AHEAD)?;
    let mut record = load::open(stage, running, connections, (f64::from(rate), SMALL), times)?;
    flood.interrupt();
    let summary: serde_json::Value = serde_json::from_str(&flood.finish()?.join("\n")).map_err(io::Error::other)?;
    let (seconds, made) = (&summary["seconds"], &summary["total"]["handshakes"]["full"]);
    let made = made.as_u64().unwrap_or(0) as f64 / seconds.as_f64().unwrap_or(0.0).max(1e-6);
    record.special.handshakes =
        Some(Handshakes { flood_per_second: Some(made), ..record.special.handshakes.unwrap_or_default() });
    if made == 0.0 {
        record.errors.insert("no_flood".to_owned(), 1);
    }
    Ok(record)
}
