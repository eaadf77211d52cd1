//! Loads that need more of a cache than one stored response: responses that no cache has yet, and
//! more than there is room for.
//!
//! Called by `rounds.rs` for each run of them. Each starts a fresh cache, with a separate origin
//! behind it. Bound: the clients of the cell, and its seconds twice.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::bans::ask;
use super::cache_settings::{self, Wishes};
use super::get::get;
use super::load::{Bound, Readings, pause, read_bomb};
use super::ports::free_address;
use super::process::{self, bound_command, own_bytes};
use super::stage::{Running, Stage, start_origin};
use crate::bench::experiment::cache::{Cacher, Herd, ROOM_MIB, Zipf};
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::experiment::lru;
use crate::bench::record::cache::Cached;
use crate::bench::record::outcome::Record;

/// A cache that has just been started.
pub(super) struct Fresh {
    pub(super) running: Running,
    /// How it is configured.
    text: String,
    /// Memory of its processes at that time, bytes.
    begin_bytes: u64,
}

impl Fresh {
    /// Starts a cache in front of this server; weir has its admin socket at `admin`.
    pub(super) fn start(
        stage: &Stage,
        contender: Contender,
        to: SocketAddr,
        wishes: (Wishes, Option<&Path>),
    ) -> io::Result<Fresh> {
        Fresh::start_at(stage, contender, (free_address()?, to), wishes)
    }

    /// Starts a cache at this address.
    pub(super) fn start_at(
        stage: &Stage,
        contender: Contender,
        (listen, to): (SocketAddr, SocketAddr),
        (wishes, admin): (Wishes, Option<&Path>),
    ) -> io::Result<Fresh> {
        let What::Caching(cacher) = contender.what else {
            return Err(io::Error::other(format!("{} stores nothing", contender.name)));
        };
        let place = (stage.directory(), stage.cores(), stage.descriptors());
        let text = cache_settings::text(cacher, place, (listen, &[to]), wishes)?;
        let running = stage.start_looked_at(contender, listen, &text, admin)?;
        let begin_bytes = own_bytes(&running.pids());
        Ok(Fresh { running, text, begin_bytes })
    }

    /// Ends it and returns its configuration.
    pub(super) fn end(self) -> String {
        drop(self.running);
        self.text
    }

    /// Returns the memory that it has taken since then, and its files in memory. Bytes.
    pub(super) fn taken_bytes(&self) -> u64 {
        let memory = own_bytes(&self.running.pids()).saturating_sub(self.begin_bytes);
        memory + cache_settings::file_bytes(&self.text)
    }
}

/// Starts an origin, and a cache in front of it.
pub(super) fn start_both(
    stage: &Stage,
    contender: Contender,
    more: &[&str],
    wishes: (Wishes, Option<&Path>),
) -> io::Result<(Fresh, SocketAddr)> {
    let address = free_address()?;
    let mut origin =
        start_origin(stage.weir(), address, stage.cores(), more, &stage.scratch("cached.log"))?;
    origin.await_listening(address)?;
    let fresh = Fresh::start(stage, contender, address, wishes)?;
    Ok((Fresh { running: fresh.running.before((origin, address)), ..fresh }, address))
}

/// Does one run: all clients request the same at once.
///
/// # Errors
/// Something can't be started, the generator fails, or the user interrupts.
pub(super) fn herd(
    stage: &Stage,
    contender: Contender,
    herd: Herd,
) -> io::Result<(Running, Record)> {
    let Herd { clients, answer_ms, is_private } = herd;
    let log = stage.scratch("herd.requests");
    // The file of an earlier run.
    let _ = fs::remove_file(&log);
    let wishes = Wishes { is_private, ..Wishes::plain(ROOM_MIB, clients) };
    let (Fresh { running, .. }, _) =
        start_both(stage, contender, &["--log", &log.to_string_lossy()], (wishes, None))?;
    let out = stage.scratch("bomb.jsonl");
    let private = if is_private { "&private=1" } else { "" };
    let target = format!("http://{}/?size=4096&delay={answer_ms}{private}", running.address());
    let mut command = bound_command(stage.weir());
    command.args(["bomb", &target, "--timeout", "30s", "--late", "30s"]);
    command.args([format!("-c{clients}"), format!("-n{clients}")]).arg("--out").arg(&out);
    let before = Readings::take(stage, &running);
    Bound::start(&mut command)?.finish()?;
    let mut record = before.finish();
    record.special.generator = process::command_line(&process::words(&command));
    read_bomb(&mut record, &fs::read_to_string(&out)?)?;
    let fetches = logged(&log, "delay=")?;
    record.special.cached = Some(Cached {
        fetches,
        requests: record.requests,
        origin_ms: answer_ms,
        ..Cached::default()
    });
    Ok((running, record))
}

/// Returns how many requests with this text in their first line an origin has logged.
///
/// # Errors
/// The origin has not written the file.
pub(super) fn logged(log: &Path, within: &str) -> io::Result<u64> {
    Ok(fs::read_to_string(log)?.lines().filter(|line| line.contains(within)).count() as u64)
}

/// Does one run: clients request more than there is room for.
///
/// # Errors
/// As [`herd`].
pub(super) fn zipf(
    stage: &Stage,
    contender: Contender,
    zipf: Zipf,
    seconds: u32,
) -> io::Result<(Running, Record)> {
    let wishes = Wishes::plain(zipf.room_mib, Zipf::CONNECTIONS);
    let admin = stage.scratch("cache-admin.sock");
    let (fresh, origin) = start_both(stage, contender, &[], (wishes, Some(&admin)))?;
    let (requests, out) = (stage.scratch("zipf.requests"), stage.scratch("bomb.jsonl"));
    let mut text = String::new();
    for (key, weight) in zipf.weights().enumerate() {
        let _ = writeln!(
            text,
            "{{\"path\": \"/?size={}&key={key}\", \"weight\": {weight}}}",
            zipf.body
        );
    }
    fs::write(&requests, text)?;
    let mut command = bound_command(stage.weir());
    command.args([
        "bomb",
        &format!("http://{}/", fresh.running.address()),
        "--timeout",
        "10s",
        "--late",
        "10s",
    ]);
    command.args([
        format!("-c{}", Zipf::CONNECTIONS),
        format!("-d{seconds}s"),
        format!("--warm-up={seconds}s"),
    ]);
    command.arg("--requests-file").arg(&requests).arg("--out").arg(&out);
    let mut bomb = Bound::start(&mut command)?;
    let half = Duration::from_secs(u64::from(seconds));
    pause(half)?;
    let (before, earlier) = (Readings::take(stage, &fresh.running), fetched(origin)?);
    pause(half)?;
    let mut record = before.finish();
    // The later query is itself a request.
    let fetches = fetched(origin)?.saturating_sub(earlier + 1);
    bomb.finish()?;
    record.special.generator = process::command_line(&process::words(&command));
    read_bomb(&mut record, &fs::read_to_string(&out)?)?;
    // The others do not report how many responses they hold.
    let is_weir = contender.what == What::Caching(Cacher::Weir);
    let answers =
        if is_weir { ask(&admin, "GET", "/v1/cache")?["answers"].as_u64().unwrap_or(0) } else { 0 };
    // As many requests come before the counted time as in it.
    let lru = |room| lru::hit_percent(zipf, room, (record.requests, record.requests));
    record.special.cached = Some(Cached {
        fetches,
        requests: record.requests,
        room_bytes: u64::from(zipf.room_mib) << 20,
        taken_bytes: fresh.taken_bytes(),
        best_percent: zipf.best_percent(),
        lru_percent: lru(zipf.fit()),
        answers,
        same_lru_percent: if answers > 0 { lru(answers as usize) } else { 0.0 },
        ..Cached::default()
    });
    Ok((fresh.running, record))
}

/// Returns the requests that weir's origin has had.
fn fetched(origin: SocketAddr) -> io::Result<u64> {
    let text = get(origin, "/__stats")?;
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let stats: serde_json::Value = serde_json::from_str(body).map_err(io::Error::other)?;
    stats["requests"]
        .as_u64()
        .ok_or_else(|| io::Error::other(format!("the origin's counters can't be read: {text}")))
}
