//! Honest clients beside others that let no response come: the effect of these on the latency of
//! the first, and on the proxy's memory.
//!
//! Called by `rounds.rs`. Bound: the others end with the run; each has a fixed number of streams,
//! and sends another request when one is reset.

use std::io;
use std::time::Duration;

use super::load::{self, Bound, Times, pause};
use super::process::{bound_command, peak_bytes};
use super::stage::{Running, Stage};
use crate::bench::experiment::cells::SMALL;
use crate::bench::experiment::http2::Stalling;
use crate::bench::record::http2::Stalled;
use crate::bench::record::outcome::Record;

/// How long the others have for their requests before the honest clients connect.
const AHEAD: Duration = Duration::from_secs(2);
/// Longest run of the others, which are ended when the honest clients are done.
const STALLED_MAX: &str = "10m";

/// Does one run.
///
/// # Errors
/// A generator fails, or the user interrupts.
pub(super) fn run(
    stage: &Stage,
    running: &Running,
    stalling: Stalling,
    times: Times,
) -> io::Result<Record> {
    let Stalling { connections, rate, clients, streams, body } = stalling;
    let mut others = None;
    if !running.is_alone {
        let url = format!("{}{}{}", running.scheme(), running.address(), stage.path(body));
        let mut command = bound_command(stage.weir());
        command.args(["bomb", &url, "--json", "--http2", "-t1", "-d", STALLED_MAX, "--class"]);
        command.arg(format!("stalled: behave=stalled, connections={clients}, streams={streams}"));
        command.args(running.tls_words());
        others = Some(Bound::start(&mut command)?);
    }
    pause(AHEAD)?;
    let mut record = load::open(stage, running, connections, (f64::from(rate), SMALL), times)?;
    record.memory_bytes = peak_bytes(&running.pids()) as f64;
    if let Some(mut others) = others {
        others.interrupt();
        let summary: serde_json::Value =
            serde_json::from_str(&others.finish()?.join("\n")).map_err(io::Error::other)?;
        let total = &summary["total"];
        let reset = total["resets"].as_object().into_iter().flat_map(|codes| codes.values());
        let reset = reset.filter_map(serde_json::Value::as_u64).sum();
        let stalled =
            Stalled { open: total["requests"]["unfinished"].as_u64().unwrap_or(0), reset };
        if stalled == Stalled::default() {
            record.errors.insert("nobody_stalled".to_owned(), 1);
        }
        record.special.stalled = Some(stalled);
    }
    Ok(record)
}
