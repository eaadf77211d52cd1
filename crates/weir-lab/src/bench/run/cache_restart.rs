//! What a cache has after a restart: everything is stored, the program is ended and started again,
//! and everything is requested once more.
//!
//! Called by `rounds.rs` for each run of it. Bound: the responses of the cell, twice.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use super::cache::{Fresh, logged};
use super::cache_settings::Wishes;
use super::load::{Bound, Readings, pause, read_bomb};
use super::ports::free_address;
use super::process::{self, bound_command};
use super::stage::{Running, Stage, start_origin};
use crate::bench::experiment::cache::{ROOM_MIB, Restart};
use crate::bench::experiment::contenders::Contender;
use crate::bench::record::cache::Cached;
use crate::bench::record::outcome::Record;

/// Between the last response and the end: complete responses have been stored by then.
const STORED: Duration = Duration::from_millis(500);
/// How long it may take to request everything.
const PATIENCE: Duration = Duration::from_secs(120);

/// Does one run.
///
/// # Errors
/// Something can't be started, a generator fails, or the user interrupts.
pub(super) fn restart(
    stage: &Stage,
    contender: Contender,
    restart: Restart,
) -> io::Result<(Running, Record)> {
    let log = stage.scratch("restart.requests");
    // The file of an earlier run.
    let _ = fs::remove_file(&log);
    let (origin_at, listen) = (free_address()?, free_address()?);
    let more = ["--log", &log.to_string_lossy()];
    let mut origin =
        start_origin(stage.weir(), origin_at, stage.cores(), &more, &stage.scratch("cached.log"))?;
    origin.await_listening(origin_at)?;
    let wishes = Wishes::plain(ROOM_MIB, Restart::CONNECTIONS);
    let first = Fresh::start_at(stage, contender, (listen, origin_at), (wishes, None))?;
    ask_for_all(stage, &first.running, restart)?;
    pause(STORED)?;
    let stored = logged(&log, "key=")?;
    let ended = Instant::now();
    let text = first.end();
    let running = stage.start_with(contender, listen, &text)?.before((origin, origin_at));
    let down_us = ended.elapsed().as_micros() as u64;
    let before = Readings::take(stage, &running);
    let (generator, out) = ask_for_all(stage, &running, restart)?;
    let mut record = before.finish();
    record.special.generator = generator;
    read_bomb(&mut record, &out)?;
    let fetches = logged(&log, "key=")?.saturating_sub(stored);
    record.special.cached =
        Some(Cached { fetches, requests: record.requests, down_us, ..Cached::default() });
    Ok((running, record))
}

/// Requests each response once. Returns the command line, and the generator's output.
fn ask_for_all(stage: &Stage, running: &Running, restart: Restart) -> io::Result<(String, String)> {
    let out = stage.scratch("bomb.jsonl");
    let mut command = bound_command(stage.weir());
    let url = format!("http://{}/?size={}&key={{serial}}", running.address(), restart.body);
    command.args([
        "bomb",
        &url,
        "-t1",
        "--timeout",
        "10s",
        "--late",
        "10s",
        &format!("-n{}", restart.objects),
    ]);
    command.arg(format!("-c{}", Restart::CONNECTIONS)).arg("--out").arg(&out);
    let mut bomb = Bound::start(&mut command)?;
    bomb.wait(PATIENCE)?;
    bomb.finish()?;
    Ok((process::command_line(&process::words(&command)), fs::read_to_string(&out)?))
}
