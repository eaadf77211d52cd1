//! Established clients beside a flood of handshakes: the effect of the flood on their latency.
//!
//! Called by `rounds.rs`. Bound: the flood ends with the run; it has at most the given number of
//! connections at a time.

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

/// Does one run: this many connections send requests at this rate by the clock.
///
/// # Errors
/// A generator fails, or the user interrupts.
pub(super) fn run(
    stage: &Stage,
    running: &Running,
    (connections, rate): (u32, u32),
    times: Times,
) -> io::Result<Record> {
    let flood = Flood::start(stage, running, FLOOD_CONNECTIONS)?;
    let mut record = load::open(stage, running, connections, (f64::from(rate), SMALL), times)?;
    flood.end(&mut record)?;
    Ok(record)
}

/// Clients that do nothing but handshakes.
pub(super) struct Flood(Bound);

impl Flood {
    /// Starts this many at a time against the running program; they are under way when this
    /// returns.
    ///
    /// # Errors
    /// The generator doesn't start, or the user interrupts.
    pub(super) fn start(stage: &Stage, running: &Running, connections: u32) -> io::Result<Flood> {
        let url = format!("{}{}{SMALL}", running.scheme(), running.address());
        // Real floods come from elsewhere: here, their client side only takes what other processes
        // leave of the cores.
        let mut command = bound_command(Path::new("nice"));
        command
            .args(["-n", "19"])
            .arg(stage.weir())
            .args(["bomb", &url, "--json", "-d", FLOOD_MAX, "--class"]);
        command.arg(format!("flood: behave=connect-flood, connections={connections}"));
        command.args(running.tls_words());
        let flood = Flood(Bound::start(&mut command)?);
        pause(AHEAD)?;
        Ok(flood)
    }

    /// Ends them, and records how many handshakes there were a second.
    ///
    /// # Errors
    /// The generator failed.
    pub(super) fn end(mut self, record: &mut Record) -> io::Result<()> {
        self.0.interrupt();
        let summary: serde_json::Value =
            serde_json::from_str(&self.0.finish()?.join("\n")).map_err(io::Error::other)?;
        let (seconds, made) = (&summary["seconds"], &summary["total"]["handshakes"]["full"]);
        let made = made.as_u64().unwrap_or(0) as f64 / seconds.as_f64().unwrap_or(0.0).max(1e-6);
        record.special.handshakes = Some(Handshakes {
            flood_per_second: Some(made),
            ..record.special.handshakes.unwrap_or_default()
        });
        if made == 0.0 {
            record.errors.insert("no_flood".to_owned(), 1);
        }
        Ok(())
    }
}
