//! Loads in which something happens to a cache under traffic: a purge, an origin that dies, clients
//! that read slowly.
//!
//! Called by `rounds.rs` for each run of them. Each starts a fresh cache. Clients send requests by
//! the clock, the first half of the time undisturbed. Bound: the seconds of a run twice, and
//! [`FILLING`].

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{ScopedJoinHandle, scope};
use std::time::{Duration, Instant};

use super::bans::ask;
use super::cache::{Fresh, logged, start_both};
use super::cache_looks::{Asker, Look, look_on};
use super::cache_settings::Wishes;
use super::load::{Bound, Readings, pause, read_bomb};
use super::memory::error_of;
use super::process::{self, bound_command};
use super::servers::Servers;
use super::stage::{Running, Stage};
use crate::bench::experiment::cache::{Cacher, Purge, ROOM_MIB, SlowReaders, Stale};
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::experiment::failover::Deed;
use crate::bench::record::cache::{Cached, Half, Halves, Purged};
use crate::bench::record::outcome::Record;
use crate::bomb::{self, Slice, Summary};

/// Before the time that counts: all popular responses are stored by then.
const WARM_UP: Duration = Duration::from_secs(2);
/// How long it may take to store the responses to be purged.
const FILLING: Duration = Duration::from_secs(600);
/// Purged responses are at least this old, so that their Age distinguishes them from those that are
/// fetched afterwards.
const OLD: Duration = Duration::from_millis(2100);
/// Keys that are checked before a purge: they have to be stored.
const SAMPLE: u64 = 1000;
/// Seconds after a purge that count as its duration.
const PURGING_S: u32 = 2;
/// How long before the slow readers the client that is not slow sends its request, as a part of
/// what the origin takes.
const AMONG: u32 = 3;
/// Longest run of slow readers, which are ended before.
const READERS_MAX: &str = "10m";

/// Clients that send requests by the clock.
struct Clients {
    bomb: Bound,
    command: Command,
    out: PathBuf,
    /// When the counted time begins.
    begin: Instant,
}

impl Clients {
    /// Starts clients that request `what`, words of `weir bomb`, for this many counted seconds.
    fn start(
        stage: &Stage,
        to: SocketAddr,
        (connections, rate): (u32, u32),
        seconds: u32,
        what: &[&str],
    ) -> io::Result<Clients> {
        let out = stage.scratch("bomb.jsonl");
        let mut command = bound_command(stage.weir());
        command.args([
            "bomb",
            "-t1",
            "--timeout",
            "10s",
            "--late",
            "10s",
            &format!("-c{connections}"),
        ]);
        command.args([
            format!("-R{rate}"),
            format!("-d{seconds}s"),
            format!("--warm-up={}ms", WARM_UP.as_millis()),
        ]);
        // A target that begins with a slash is requested from the measured program.
        let url = |word: &&str| {
            if word.starts_with("/?") { format!("http://{to}{word}") } else { (*word).to_owned() }
        };
        command.args(what.iter().map(url)).arg("--out").arg(&out);
        let bomb = Bound::start(&mut command)?;
        Ok(Clients { bomb, command, out, begin: Instant::now() + WARM_UP })
    }

    /// Waits until this much of the counted time is over.
    fn await_second(&self, seconds: f64) -> io::Result<()> {
        pause(
            (self.begin + Duration::from_secs_f64(seconds))
                .saturating_duration_since(Instant::now()),
        )
    }

    /// Waits for the clients to end. Their results go into the record, split at second `at`; the
    /// `most` seconds after that count as the second half.
    fn finish(mut self, record: &mut Record, (at, most): (u32, u32)) -> io::Result<()> {
        self.bomb.finish()?;
        record.special.generator = process::command_line(&process::words(&self.command));
        let text = fs::read_to_string(&self.out)?;
        read_bomb(record, &text)?;
        let bombed = bomb::Record::read(&text).map_err(io::Error::other)?;
        record.special.halves =
            Some(Halves { before: half(&bombed, (0, at)), after: half(&bombed, (at, at + most)) });
        Ok(())
    }
}

/// Returns the results from one second on and before another one.
fn half(bombed: &bomb::Record, (from, to): (u32, u32)) -> Half {
    let mut sum = Slice::default();
    bombed
        .slices()
        .filter(|(second, _)| (from..to).contains(second))
        .for_each(|(_, slice)| sum.add(slice));
    let times = sum.times().map(|times| &times.corrected).filter(|times| !times.is_empty());
    Half {
        rate: sum.counts.status_class(2) as f64 / f64::from(to.saturating_sub(from).max(1)),
        p99_us: times.map_or(0, |times| times.value_at_quantile(0.99)),
        max_us: times.map_or(0, hdrhistogram::Histogram::max),
        failed: sum.counts.troubles().values().sum(),
    }
}

/// Does one run: responses are purged by their tag, while another one is requested.
///
/// # Errors
/// Something can't be started, nothing is stored or purged, a generator fails, or the user
/// interrupts.
pub(super) fn purge(
    stage: &Stage,
    contender: Contender,
    purge: Purge,
    seconds: u32,
) -> io::Result<(Running, Record)> {
    let admin = stage.scratch("cache-admin.sock");
    let wishes = Wishes { has_tags: true, ..Wishes::plain(purge.room_mib, Purge::CONNECTIONS) };
    let (fresh, _) = start_both(stage, contender, &[], (wishes, Some(&admin)))?;
    let (to, objects) = (fresh.running.address(), u64::from(purge.objects));
    fill(stage, to, objects)?;
    pause(OLD)?;
    let taken_bytes = fresh.taken_bytes();
    let missing = missing(to, objects)?;
    let clients = Clients::start(
        stage,
        to,
        (Purge::CONNECTIONS, Purge::RATE),
        2 * seconds,
        &["/?size=16&tag=2"],
    )?;
    clients.await_second(0.0)?;
    let (before, end, lookers) =
        (Readings::take(stage, &fresh.running), AtomicBool::new(false), u64::from(Purge::LOOKERS));
    let (looks, ordered, done) = scope(|scope| {
        let threads: Vec<ScopedJoinHandle<'_, _>> = (0..lookers)
            .map(|number| {
                scope.spawn({
                    let end = &end;
                    move || look_on(to, (number, lookers, objects), &tagged, end)
                })
            })
            .collect();
        let order = || {
            clients.await_second(f64::from(seconds))?;
            let ordered = Instant::now();
            order_purge(contender, to, &admin)?;
            let done = Instant::now();
            clients.await_second(f64::from(2 * seconds))?;
            Ok::<_, io::Error>((ordered, done))
        };
        let times = order();
        end.store(true, Ordering::Relaxed);
        let join = |thread: ScopedJoinHandle<'_, io::Result<Vec<Look>>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let looks: io::Result<Vec<Vec<Look>>> = threads.into_iter().map(join).collect();
        let (ordered, done) = times?;
        Ok::<_, io::Error>((looks?.concat(), ordered, done))
    })?;
    let mut record = before.finish();
    clients.finish(&mut record, (seconds, PURGING_S.min(seconds)))?;
    let purged = Purged { objects, taken_bytes, ..purged(&looks, ordered, done) };
    record.errors.extend(error_of("not_stored", missing));
    record.errors.extend(error_of("old_after_purge", purged.old_after));
    record.errors.extend(error_of("nothing_looked_at", u64::from(purged.looks == 0)));
    record.special.purged = Some(purged);
    Ok((fresh.running, record))
}

/// Returns the target of one of the responses that are purged; keys are spelled as `weir bomb` does
/// with one thread.
fn tagged(key: u64) -> String {
    format!("/?size=16&tag=1&key={key:012}")
}

/// Makes the cache store all of them.
fn fill(stage: &Stage, to: SocketAddr, objects: u64) -> io::Result<()> {
    let mut command = bound_command(stage.weir());
    let url = format!("http://{to}/?size=16&tag=1&key={{serial}}");
    command.args(["bomb", &url, "-t1", "--json", "--timeout", "30s", &format!("-n{objects}")]);
    command.arg(format!("-c{}", Purge::CONNECTIONS));
    let mut bomb = Bound::start(&mut command)?;
    bomb.wait(FILLING)?;
    bomb.finish().map(drop)
}

/// Returns how many of a sample of them are not stored.
fn missing(to: SocketAddr, objects: u64) -> io::Result<u64> {
    let (mut asker, sample) = (Asker::connect(to)?, SAMPLE.min(objects));
    let mut missing = 0;
    for nth in 1..=sample {
        missing += u64::from(!asker.ask("GET", &tagged(nth * (objects / sample)), "")?.is_old());
    }
    Ok(missing)
}

/// Orders the purge in the way of each program: weir's admin socket, or a method of Varnish's
/// configuration.
fn order_purge(contender: Contender, to: SocketAddr, admin: &Path) -> io::Result<()> {
    if contender.what == What::Caching(Cacher::Weir) {
        return ask(admin, "POST", "/v1/cache/purge?tag=t1").map(drop);
    }
    match Asker::connect(to)?.ask("BAN", "/", "X-Tag: t1\r\n")?.status {
        200 => Ok(()),
        status => Err(io::Error::other(format!("the response to a ban is {status}"))),
    }
}

/// Returns what the lookers saw of a purge.
fn purged(looks: &[Look], ordered: Instant, done: Instant) -> Purged {
    let after = || looks.iter().filter(|look| look.had > ordered);
    let last = after().filter(|look| look.is_old).map(|look| look.had).max();
    Purged {
        order_us: (done - ordered).as_micros() as u64,
        gone_us: last.map_or(0, |last| (last - ordered).as_micros() as u64),
        old_after: after().filter(|look| look.is_old && look.asked > done).count() as u64,
        looks: after().count() as u64,
        ..Purged::default()
    }
}

/// Does one run: the origin dies in the middle.
///
/// # Errors
/// Something can't be started or killed, a generator fails, or the user interrupts.
pub(super) fn stale(
    stage: &Stage,
    contender: Contender,
    stale: Stale,
    seconds: u32,
) -> io::Result<(Running, Record)> {
    let mut servers = Servers::start(stage, 1)?;
    let plain = Wishes::plain(ROOM_MIB, Stale::CONNECTIONS);
    let wishes = Wishes { lifetime_s: stale.lifetime_s, serves_stale: true, ..plain };
    let Fresh { running, .. } =
        Fresh::start(stage, contender, servers.addresses()[0], (wishes, None))?;
    let requests = stage.scratch("stale.requests");
    let line = |key: u32| format!("{{\"path\": \"/?size=4096&key={key}\"}}\n");
    fs::write(&requests, (0..stale.keys).map(line).collect::<String>())?;
    let (to, load) = (running.address(), (Stale::CONNECTIONS, Stale::RATE));
    let what = ["/?size=4096", "--requests-file", &requests.to_string_lossy()];
    let clients = Clients::start(stage, to, load, 2 * seconds, &what)?;
    clients.await_second(0.0)?;
    let (before, earlier) = (Readings::take(stage, &running), servers.requests("GET")?);
    clients.await_second(f64::from(seconds))?;
    servers.act(0, Deed::Kill)?;
    clients.await_second(f64::from(2 * seconds))?;
    let mut record = before.finish();
    clients.finish(&mut record, (seconds, seconds))?;
    let count = |requests: std::collections::HashMap<String, u64>| requests.values().sum::<u64>();
    let fetches = count(servers.requests("GET")?) - count(earlier);
    record.special.cached =
        Some(Cached { fetches, requests: record.requests, ..Cached::default() });
    Ok((running, record))
}

/// Does one run: in the middle come clients that all read the same large response slowly.
///
/// # Errors
/// As [`stale`].
pub(super) fn slow(
    stage: &Stage,
    contender: Contender,
    slow: SlowReaders,
    seconds: u32,
) -> io::Result<(Running, Record)> {
    let log = stage.scratch("slow.requests");
    // The file of an earlier run.
    let _ = fs::remove_file(&log);
    let wishes = Wishes::plain(ROOM_MIB, SlowReaders::CONNECTIONS + slow.readers);
    let (Fresh { running, .. }, _) =
        start_both(stage, contender, &["--log", &log.to_string_lossy()], (wishes, None))?;
    let (to, load) = (running.address(), (SlowReaders::CONNECTIONS, SlowReaders::RATE));
    let clients =
        Clients::start(stage, to, load, 2 * seconds, &["/?size=16&private=1&key={serial}"])?;
    clients.await_second(0.0)?;
    let before = Readings::take(stage, &running);
    clients.await_second(f64::from(seconds))?;
    let target = format!("/?size={}&delay={}", slow.body, slow.answer_ms);
    let (mut readers, out) = start_readers(stage, to, &target, slow.readers)?;
    pause(Duration::from_millis(u64::from(slow.answer_ms / AMONG)))?;
    let asked = Instant::now();
    let whole = Asker::connect(to).and_then(|mut asker| asker.ask("GET", &target, ""));
    let whole_us = asked.elapsed().as_micros() as u64;
    clients.await_second(f64::from(2 * seconds))?;
    let mut record = before.finish();
    clients.finish(&mut record, (seconds, seconds))?;
    readers.interrupt();
    readers.finish()?;
    let bombed = bomb::Record::read(&fs::read_to_string(&out)?).map_err(io::Error::other)?;
    let mut troubles = Summary::of(&bombed).total.counted().troubles();
    // They are slow to the end.
    let reading = troubles.remove("unfinished").unwrap_or(0);
    record
        .errors
        .extend(troubles.into_iter().map(|(kind, count)| (format!("readers {kind}"), count)));
    record
        .errors
        .extend(error_of("readers absent", u64::from(slow.readers).saturating_sub(reading)));
    record.errors.extend(error_of(
        "not_whole",
        u64::from(!whole.is_ok_and(|answer| answer.body == slow.body as usize)),
    ));
    let fetches = logged(&log, "delay=")?;
    record.special.cached = Some(Cached {
        fetches,
        requests: u64::from(slow.readers) + 1,
        origin_ms: slow.answer_ms,
        whole_us,
        ..Cached::default()
    });
    Ok((running, record))
}

/// Starts clients that read slowly until they are ended, and their output.
fn start_readers(
    stage: &Stage,
    to: SocketAddr,
    target: &str,
    readers: u32,
) -> io::Result<(Bound, PathBuf)> {
    let out = stage.scratch("readers.jsonl");
    let mut command = bound_command(stage.weir());
    command.args([
        "bomb",
        &format!("http://{to}{target}"),
        "-t1",
        "--json",
        "-d",
        READERS_MAX,
        "--timeout",
        READERS_MAX,
    ]);
    command.arg("--class").arg(format!("readers: behave=slow-reader, connections={readers}"));
    command.arg("--out").arg(&out);
    Ok((Bound::start(&mut command)?, out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_is_over_with_the_last_old_answer() {
        let begin = Instant::now();
        let at = |us: u64| begin + Duration::from_micros(us);
        let look = |asked: u64, had: u64, is_old| Look { asked: at(asked), had: at(had), is_old };
        // The order is given at 100 and returns at 300.
        let looks =
            [look(10, 50, true), look(60, 150, true), look(160, 340, true), look(310, 350, false)];
        let told = purged(&looks, at(100), at(300));
        assert_eq!((told.order_us, told.gone_us, told.old_after, told.looks), (200, 240, 0, 3));
        let late = purged(&[look(310, 400, true)], at(100), at(300));
        assert_eq!((late.gone_us, late.old_after), (300, 1));
        assert_eq!(purged(&[], at(100), at(300)).gone_us, 0);
    }

    #[test]
    fn keys_are_spelled_as_the_generator_does() {
        let request =
            bomb::Request::new("h", "/?size=16&tag=1&key={serial}", 1, &bomb::Spelling::default())
                .unwrap();
        let bytes = bomb::with_serial(&request.bytes, request.serial_at.unwrap(), 0, 42);
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(text.starts_with(&format!("GET {} HTTP/1.1\r\n", tagged(42))), "{text}");
    }
}
