//! Loads that a cache answers with more than one stored answer: what nobody has, and more than there is room for.
//!
//! Called by `rounds.rs` for each run of them. Each starts a cache anew, with an origin of its own behind it. Bound: the clients of the cell, and
//! its seconds twice.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::cache_settings;
use super::get::get;
use super::load::{Bound, Readings, pause, read_bomb};
use super::ports::free_address;
use super::process::{self, bound_command};
use super::stage::{Running, Stage, start_origin};
use crate::bench::experiment::cache::{Herd, ROOM_MIB, Zipf};
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::record::cache::Cached;
use crate::bench::record::outcome::Record;

/// An origin of its own, and a cache in front of it.
fn start_both(
    stage: &Stage,
    contender: Contender,
    more: &[&str],
    room: (u32, u32),
) -> io::Result<(Running, SocketAddr)> {
    let What::Caching(cacher) = contender.what else {
        return Err(io::Error::other(format!("{} stores nothing", contender.name)));
    };
    let address = free_address()?;
    let mut origin = start_origin(stage.weir(), address, stage.cores(), more, &stage.scratch("cached.log"))?;
    origin.await_listening(address)?;
    let (listen, place) = (free_address()?, (stage.directory(), stage.cores(), stage.descriptors()));
    let text = cache_settings::text(cacher, place, (listen, &[address]), room)?;
    Ok((stage.start_with(contender, listen, &text)?.before((origin, address)), address))
}

/// One run: all clients want the same at once.
///
/// # Errors
/// Something can't be started, the generator fails, or the user interrupts.
pub(super) fn herd(stage: &Stage, contender: Contender, herd: Herd) -> io::Result<(Running, Record)> {
    let log = stage.scratch("herd.requests");
    // What an earlier run left.
    let _ = fs::remove_file(&log);
    let (running, _) = start_both(stage, contender, &["--log", &log.to_string_lossy()], (ROOM_MIB, herd.clients))?;
    let out = stage.scratch("bomb.jsonl");
    let target = format!("http://{}/?size=4096&delay={}", running.address(), herd.answer_ms);
    let mut command = bound_command(stage.weir());
    let clients = herd.clients;
    command.args(["bomb", &target, "--timeout", "30s", "--late", "30s"]);
    command.args([format!("-c{clients}"), format!("-n{clients}")]).arg("--out").arg(&out);
    let before = Readings::take(stage, &running);
    Bound::start(&mut command)?.finish()?;
    let mut record = before.finish();
    record.special.generator = process::command_line(&process::words(&command));
    read_bomb(&mut record, &fs::read_to_string(&out)?)?;
    let fetches = fs::read_to_string(&log)?.lines().filter(|line| line.contains("delay=")).count() as u64;
    record.special.cached = Some(Cached { fetches, requests: record.requests, ..Cached::default() });
    Ok((running, record))
}

/// One run: more is asked for than there is room for.
///
/// # Errors
/// As [`herd`].
pub(super) fn zipf(stage: &Stage, contender: Contender, zipf: Zipf, seconds: u32) -> io::Result<(Running, Record)> {
    let (running, origin) = start_both(stage, contender, &[], (zipf.room_mib, Zipf::CONNECTIONS))?;
    let (requests, out) = (stage.scratch("zipf.requests"), stage.scratch("bomb.jsonl"));
    let mut text = String::new();
    for (key, weight) in zipf.weights().enumerate() {
        let _ = writeln!(text, "{{\"path\": \"/?size={}&key={key}\", \"weight\": {weight}}}", zipf.body);
    }
    fs::write(&requests, text)?;
    let mut command = bound_command(stage.weir());
    command.args(["bomb", &format!("http://{}/", running.address()), "--timeout", "10s", "--late", "10s"]);
    command.args([format!("-c{}", Zipf::CONNECTIONS), format!("-d{seconds}s"), format!("--warm-up={seconds}s")]);
    command.arg("--requests-file").arg(&requests).arg("--out").arg(&out);
    let mut bomb = Bound::start(&mut command)?;
    let half = Duration::from_secs(u64::from(seconds));
    pause(half)?;
    let (before, earlier) = (Readings::take(stage, &running), fetched(origin)?);
    pause(half)?;
    let mut record = before.finish();
    // The later look is itself a request.
    let fetches = fetched(origin)?.saturating_sub(earlier + 1);
    bomb.finish()?;
    record.special.generator = process::command_line(&process::words(&command));
    read_bomb(&mut record, &fs::read_to_string(&out)?)?;
    record.special.cached = Some(Cached {
        fetches,
        requests: record.requests,
        room_bytes: u64::from(zipf.room_mib) << 20,
        best_percent: zipf.best_percent(),
    });
    Ok((running, record))
}

/// Requests that weir's origin has had.
fn fetched(origin: SocketAddr) -> io::Result<u64> {
    let text = get(origin, "/__stats")?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let stats: serde_json::Value = serde_json::from_str(body).map_err(io::Error::other)?;
    stats["requests"].as_u64().ok_or_else(|| io::Error::other(format!("the origin's counters can't be read: {text}")))
}
