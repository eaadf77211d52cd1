//! Fast and slow requests beside each other: a server that responds as each request specifies, a
//! proxy in front, and one generator with a class for each kind of clients.
//!
//! Called by `rounds.rs` for each run of the experiment `mixed`. Each run starts a new server and a
//! new proxy, so that no run profits from what another has learned. The server logs numbered
//! requests, so the harness knows exactly which came twice. Bounds: the times given, and as many
//! lines in the server's log as there are requests.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::bans::ask;
use super::even_settings;
use super::load::{self, Bound, Readings, Times, pause};
use super::ports::free_address;
use super::process::{self, bound_command};
use super::stage::{Running, Stage, start_origin};
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::experiment::mixed::{Clients, LATE_US, Mixed, Pace};
use crate::bench::record::histogram::Histogram;
use crate::bench::record::mixed::{Beside, Mixed as Seen};
use crate::bench::record::outcome::Record;
use crate::bomb::{self, Summary};

/// The class of the measured clients, and how those of the others begin.
const MEASURED: &str = "measured";
const BESIDE: &str = "beside";
/// How long a response may take.
const TIMEOUT: &str = "10s";
/// How the number of a request is written in its path.
const SERIAL: &str = "{serial}";

/// Does one run.
///
/// # Errors
/// Something can't be started, the generator fails, or the user interrupts.
pub(super) fn run(
    stage: &Stage,
    contender: Contender,
    mixed: Mixed,
    times: Times,
) -> io::Result<(Running, Record)> {
    let (to, path) = (free_address()?, stage.scratch("mixed.sock"));
    let requests = stage.scratch("mixed.requests");
    // The file of an earlier run.
    let _ = fs::remove_file(&requests);
    let (unix, log) =
        (path.to_string_lossy().into_owned(), requests.to_string_lossy().into_owned());
    let mut words = vec!["--unix", &unix];
    if mixed.is_numbered() {
        words.extend(["--log", &log]);
    }
    if mixed.places.is_some() {
        // With io_uring a thread may have accepted another one before it stops.
        words.extend(["--accept", "one", "--io", "epoll"]);
    }
    let threads = mixed.places.unwrap_or(stage.cores());
    let mut server =
        start_origin(stage.weir(), to, threads, &words, &stage.scratch("mixed-origin.log"))?;
    // An attempt to connect would take a place.
    server.await_that(&format!("listen at {unix}"), || UnixStream::connect(&path).is_ok())?;
    let running = if contender.what == What::Direct {
        Running::origin_alone((server, to))
    } else {
        let listen = free_address()?;
        let text = even_settings::text(stage, contender, [listen, to], stage.cores(), None)?;
        stage.start_with(contender, listen, &text)?.before((server, to))
    };
    let out = stage.scratch("bomb.jsonl");
    let mut command = bound_command(stage.weir());
    command.args([
        "bomb",
        &format!("http://{}/", running.address()),
        "-t1",
        "--timeout",
        TIMEOUT,
        "--late",
        TIMEOUT,
    ]);
    command.args([format!("-d{}ms", (times.seconds * 1e3) as u64)]);
    command
        .args([format!("--warm-up={}ms", (times.warm_up * 1e3) as u64), "--out".to_owned()])
        .arg(&out);
    for (name, clients) in names(&mixed).zip(mixed.all()) {
        command.arg("--class").arg(class(&name, clients));
    }
    let accepts = connects(&path)?;
    let mut bomb = Bound::start(&mut command)?;
    pause(Duration::from_secs_f64(times.warm_up))?;
    let before = Readings::take(stage, &running);
    pause(Duration::from_secs_f64(times.seconds))?;
    let mut record = before.finish();
    bomb.finish()?;
    record.special.generator = process::command_line(&process::words(&command));
    // The second look is itself a connection.
    record.upstream_connections = (connects(&path)? - accepts).saturating_sub(1);
    let summary = load::read_bomb(&mut record, &fs::read_to_string(&out)?)?;
    record.generator_us =
        summary.generator.cpu_us_per_request.unwrap_or(0.0) * record.requests as f64;
    fill(&mut record, &summary, &mixed)?;
    if mixed.is_numbered() {
        count_twice(&mut record, &fs::read_to_string(&requests)?, &mixed);
    }
    Ok((running, record))
}

/// Names of the classes, the measured one first.
fn names(mixed: &Mixed) -> impl Iterator<Item = String> {
    let beside = 1..=mixed.beside.len();
    std::iter::once(MEASURED.to_owned()).chain(beside.map(|nth| format!("{BESIDE}-{nth}")))
}

/// Returns a class in the generator's syntax.
fn class(name: &str, clients: &Clients) -> String {
    let Clients { connections, pace, path } = clients;
    let pace = match pace {
        Pace::Loop => "rate=closed".to_owned(),
        Pace::Even(rate) => format!("rate={rate}"),
        Pace::Random(rate) => format!("rate={rate}, arrivals=poisson"),
    };
    format!("{name}: connections={connections}, {pace}, path={path}")
}

/// Connections that the server has accepted.
fn connects(path: &Path) -> io::Result<u64> {
    let stats = ask(path, "GET", "/__stats")?;
    stats["connects"]
        .as_u64()
        .ok_or_else(|| io::Error::other(format!("the server's counters can't be read: {stats}")))
}

/// Replaces the figures of all clients with those of the measured ones, and adds the figures of the
/// others.
fn fill(record: &mut Record, summary: &Summary, mixed: &Mixed) -> io::Result<()> {
    let of = |name: &str| {
        summary
            .class(name)
            .ok_or_else(|| io::Error::other(format!("no class {name} in the results")))
    };
    let measured = of(MEASURED)?;
    let counts = measured.counted();
    let latencies = || measured.times().map(bomb::Times::latency);
    record.rate = counts.status_class(2) as f64 / summary.seconds;
    record.latency = measured.corrected.or(measured.raw).as_ref().map(load::latency);
    record.sent = measured.corrected.and(measured.raw).as_ref().map(load::latency);
    record.special.histogram = Histogram::of(latencies().into_iter().flat_map(bomb::pairs));
    let late = latencies().into_iter().flat_map(bomb::pairs).filter(|(us, _)| *us > LATE_US);
    let mut seen = Seen {
        answered: counts.answered(),
        late: late.map(|(_, count)| count).sum(),
        ..Seen::default()
    };
    for (name, clients) in names(mixed).zip(mixed.all()).skip(1) {
        let class = of(&name)?;
        let latency = class.corrected.or(class.raw).as_ref().map(load::latency);
        seen.beside.push(Beside {
            path: clients.path.to_owned(),
            rate: class.answered_per_second,
            latency,
        });
    }
    record.special.mixed = Some(seen);
    Ok(())
}

/// Counts numbered requests in the server's log, and those that came once more.
fn count_twice(record: &mut Record, log: &str, mixed: &Mixed) {
    let numbered: Vec<(&str, &str)> =
        mixed.all().filter_map(|clients| clients.path.split_once(SERIAL)).collect();
    let is_numbered = |line: &&str| {
        // METHOD TARGET VERSION
        let target = line.split(' ').nth(1).unwrap_or_default();
        numbered.iter().any(|(before, after)| target.starts_with(before) && target.ends_with(after))
    };
    let mut counts: HashMap<&str, u64> = HashMap::new();
    log.lines().filter(is_numbered).for_each(|line| *counts.entry(line).or_default() += 1);
    if let Some(seen) = &mut record.special.mixed {
        seen.numbered = Some(counts.len() as u64);
        seen.twice = Some(counts.values().map(|count| count - 1).sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: Mixed = Mixed {
        measured: Clients { connections: 2, pace: Pace::Random(30), path: "/page/{serial}" },
        beside: &[
            Clients { connections: 3, pace: Pace::Loop, path: "/item/{serial}?delay=1" },
            Clients { connections: 1, pace: Pace::Even(5), path: "/fast" },
        ],
        places: None,
    };

    #[test]
    fn classes_are_written_as_the_generator_reads_them() {
        let classes: Vec<String> =
            names(&LOAD).zip(LOAD.all()).map(|(name, clients)| class(&name, clients)).collect();
        let expected = [
            "measured: connections=2, rate=30, arrivals=poisson, path=/page/{serial}",
            "beside-1: connections=3, rate=closed, path=/item/{serial}?delay=1",
            "beside-2: connections=1, rate=5, path=/fast",
        ];
        assert_eq!(classes, expected);
    }

    #[test]
    fn what_the_server_got_twice_is_counted_and_only_what_is_numbered() {
        let log = "GET /page/000000000001 HTTP/1.1\nGET /fast HTTP/1.1\n\
                   GET /item/000000000002?delay=1 HTTP/1.1\n\
                   GET /page/000000000001 HTTP/1.1\nGET /fast HTTP/1.1\n\
                   GET /page/000000000001 HTTP/1.1\n";
        let mut record = Record::default();
        record.special.mixed = Some(Seen::default());
        count_twice(&mut record, log, &LOAD);
        let seen = record.special.mixed.unwrap();
        assert_eq!((seen.numbered, seen.twice), (Some(2), Some(2)));
    }
}
