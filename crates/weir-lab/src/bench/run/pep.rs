//! Connections through a router that forwards them, or on which a program ends and continues them.
//!
//! Called by `rounds.rs` for each run of the experiment `pep`. Each run has separate namespaces, a
//! server and a proxy. Bound: the seconds given.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::load::{self, Bound, Readings, Times, pause};
use super::process::{self, Machine, Process, bound_command};
use super::router::{INTERFACES, Place, Row};
use super::router_addresses::Addresses;
use super::settings;
use super::stage::{Running, Stage};
use crate::bench::experiment::cells::{Cell, Load};
use crate::bench::experiment::contenders::{Contender, TcpPipes, What};
use crate::bench::experiment::pep::{Middle, Pace, Pep};
use crate::bench::record::outcome::Record;
use crate::bench::record::pep::{Base, Passed};

/// How long the machine is watched before the load.
const CALM: Duration = Duration::from_millis(500);

/// Returns what prevents this contender on this machine, if anything: it is tried whether packets
/// can be led to it.
pub(super) fn obstacle(stage: &Stage, contender: Contender, cell: &Cell) -> Option<String> {
    let (Load::Pep(pep), What::Through(middle)) = (cell.load, contender.what) else { return None };
    let start =
        || start(stage, &Row::make(stage.directory(), pep.way)?, (contender, middle)).map(drop);
    start().err().map(|error| error.to_string().lines().collect::<Vec<_>>().join(" "))
}

/// Does one run; by the clock with this many connections a second.
///
/// # Errors
/// Something can't be made or started, the generator fails, or the user interrupts.
pub(super) fn run(
    stage: &Stage,
    contender: Contender,
    pep: Pep,
    (rate, times): (f64, Times),
) -> io::Result<(Running, Record)> {
    let What::Through(middle) = contender.what else {
        return Err(io::Error::other(format!("{} is no router", contender.name)));
    };
    let row = Row::make(stage.directory(), pep.way)?;
    let running = start(stage, &row, (contender, middle))?;
    let others = others()?;
    let out = stage.scratch("bomb.jsonl");
    let words = row.words(Place::Clients, stage.weir());
    let mut command = bound_command(Path::new(&words[0]));
    command
        .args(&words[1..])
        .args(bomb_words(row.addresses(), pep, rate, times))
        .arg("--out")
        .arg(&out);
    let mut bomb = Bound::start(&mut command)?;
    pause(Duration::from_secs_f64(times.warm_up))?;
    let (before, machine) = (Readings::take(stage, &running), Machine::now());
    pause(Duration::from_secs_f64(times.seconds))?;
    let busy_us = Machine::now().busy_us_since(machine);
    let mut record = before.finish();
    bomb.finish()?;
    let summary = load::read_bomb(&mut record, &fs::read_to_string(&out)?)?;
    record.generator_us =
        summary.generator.cpu_us_per_request.unwrap_or(0.0) * record.requests as f64;
    record.special.generator = process::command_line(&process::words(&command));
    record.special.pep = Some(Passed { busy_us, others, routed: None });
    Ok((running, record))
}

/// Returns the share of the machine that is busy while everything is started and no client sends
/// requests.
fn others() -> io::Result<f64> {
    let before = Machine::now();
    pause(CALM)?;
    let (idle, stolen) = Machine::now().shares_since(before);
    Ok(1.0 - idle - stolen)
}

/// Notes what the machine did in the same round with no program in the middle.
pub(super) fn compare(record: &mut Record, routed: Option<&Record>) {
    let base = routed.and_then(|routed| {
        let busy_us = routed.special.pep.as_ref()?.busy_us;
        let is_known = routed.requests > 0 && routed.bytes > 0;
        is_known.then(|| Base {
            us_per_connection: busy_us / routed.requests as f64,
            us_per_byte: busy_us / routed.bytes as f64,
        })
    });
    if let Some(passed) = &mut record.special.pep {
        passed.routed = base;
    }
}

/// Starts the server, and the program in the middle, if any, and returns when they listen.
fn start(
    stage: &Stage,
    row: &Row,
    (contender, middle): (Contender, Middle),
) -> io::Result<Running> {
    let server = row.addresses().server;
    let words = ["origin", "--listen", &server.to_string(), "--threads", "1"];
    let mut origin =
        row.start(Place::Server, stage.weir(), &words, &stage.scratch("pep-origin.log"))?;
    row.await_listening(Place::Server, server.port(), &mut origin)?;
    let origin = (origin, server);
    let name = contender.name;
    let log = stage.scratch(&format!("{name}.log"));
    let begin = |program: &Path, words: &[&str]| row.start(Place::Router, program, words, &log);
    let configured = |ending: &str, text: String| -> io::Result<String> {
        row.lead(stage.directory())?;
        let file = stage.scratch(&format!("{name}.{ending}"));
        fs::write(&file, text)?;
        Ok(file.to_string_lossy().into_owned())
    };
    let mut process: Process = match middle {
        Middle::Forwards => return Ok(Running::origin_alone(origin)),
        Middle::Haproxy { splices, reads } => {
            let pipes = if splices { TcpPipes::Large } else { TcpPipes::None };
            let text = settings::haproxy_through(
                row.any(),
                stage.cores(),
                stage.descriptors(),
                (pipes, reads),
            );
            let missing = || io::Error::new(io::ErrorKind::NotFound, "haproxy is not installed");
            let program = stage.programs().path("haproxy").ok_or_else(missing)?;
            begin(&program, &["-db", "-f", &configured("conf", text)?])?
        }
        Middle::Weir(io) => {
            let file = configured("kdl", settings::weir_through(row.any(), stage.cores(), io))?;
            begin(stage.weir(), &["run", "--admin", "off", "-c", &file])?
        }
        Middle::WeirHttp => {
            let file = configured("kdl", settings::weir_through_http(row.any(), stage.cores()))?;
            begin(stage.weir(), &["run", "--admin", "off", "-c", &file])?
        }
        Middle::Intercept(connect) => {
            let port = server.port().to_string();
            let words = [
                "intercept",
                "--client-side",
                INTERFACES[0],
                "--server-side",
                INTERFACES[1],
                "--ports",
                &port,
            ];
            let more = ["--connect", connect, "--admin", "off"];
            let mut process = begin(stage.weir(), &[&words[..], &more].concat())?;
            // It is in a private namespace, which other processes cannot look into.
            let is_there =
                || fs::read_to_string(&log).is_ok_and(|text| text.contains("listening on "));
            process.await_that("listen", is_there)?;
            return Ok(Running::of((process, server), origin));
        }
    };
    row.await_listening(Place::Router, row.any().port(), &mut process)?;
    Ok(Running::of((process, server), origin))
}

/// Returns the arguments of the generator.
fn bomb_words(addresses: &Addresses, pep: Pep, rate: f64, times: Times) -> Vec<String> {
    let Addresses { server, sources, .. } = addresses;
    let mut words =
        vec!["bomb".to_owned(), format!("http://{server}/?size={}", pep.bytes), "--yes".to_owned()];
    words.extend([
        format!("-c{}", pep.connections()),
        "--close-every=1".to_owned(),
        format!("--source={sources}"),
    ]);
    words.extend(["--timeout=10s".to_owned(), "--late=10s".to_owned()]);
    words.push(format!("-d{}ms", (times.seconds * 1e3) as u64));
    words.push(format!("--warm-up={}ms", (times.warm_up * 1e3) as u64));
    if pep.pace != Pace::Closed {
        words.extend([format!("-R{rate:.3}"), "-t1".to_owned()]);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compared_is_the_same_round_without_anybody() {
        let of = |busy_us, requests, bytes| {
            let mut record = Record { requests, bytes, ..Record::default() };
            record.special.pep = Some(Passed { busy_us, ..Passed::default() });
            record
        };
        let (routed, mut own) = (of(1e6, 10_000, 80_000_000), of(1.5e6, 10_000, 80_000_000));
        compare(&mut own, Some(&routed));
        let passed = own.special.pep.unwrap();
        assert_eq!(passed.added_us(own.requests), 50.0);
        compare(&mut own, Some(&of(1e6, 0, 0)));
        assert_eq!(own.special.pep.unwrap().routed, None, "nothing came through");
        compare(&mut own, None);
        assert_eq!(own.special.pep.unwrap().routed, None);
    }
}
