//! What bans cost and how they end: memory of weir with many of them, and the time from the end of
//! a ban to a response.
//!
//! Called by `rounds.rs`. Namespaces, origin and proxy are those of `block.rs`. Bounds: the bans of
//! [`BANS`]; recovery is over [`PATIENCE`] after the bans.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::block::{Keeping, ORIGIN, start_origin, start_proxy};
use super::load::{check_interrupt, pause};
use super::memory::error_of;
use super::nets::{self, Nets, PROXY, Side};
use super::process;
use super::stage::{Running, Stage};
use crate::bench::experiment::block::{ATTACKERS, BAN_SECONDS, BANS, RETRY_MS};
use crate::bench::experiment::contenders::Contender;
use crate::bench::record::bans::{Held, Recovery, Taken};
use crate::bench::record::outcome::Record;

/// How long weir gets to settle before its memory is read.
const REST: Duration = Duration::from_millis(500);
/// The first of the unassigned addresses (RFC 1112 §4) to be banned.
const NOBODY: Ipv4Addr = Ipv4Addr::new(247, 0, 0, 0);
/// Length of the bans whose memory is read: they outlast the run.
const DAY_S: u64 = 86_400;
/// How long weir may take to respond on its admin socket.
const ADMIN_PATIENCE: Duration = Duration::from_secs(10);
/// How long after a refusal a client connects again.
const EVERY: Duration = Duration::from_millis(RETRY_MS);
/// How long it waits for a connection, and for a response on one.
const CONNECT_PATIENCE: Duration = Duration::from_millis(20);
const ANSWER_PATIENCE: Duration = Duration::from_millis(500);
/// A client that gets no response within this time after the end of its ban never will.
const PATIENCE: Duration = Duration::from_secs(5);

/// Starts weir with each number of bans, and reads the memory when it and the kernel have them.
///
/// # Errors
/// Something can't be started, bans are not accepted, or the user interrupts.
pub(super) fn memory(stage: &Stage, contender: Contender) -> io::Result<(Running, Record)> {
    let (nets, admin) = (Nets::make(stage.directory())?, stage.scratch("admin.sock"));
    let origin = start_origin(stage, &nets)?;
    let (mut taken, mut last) = (Vec::new(), None);
    for count in BANS {
        // Until then, the previous weir keeps its table in the kernel.
        drop(last.take());
        let state = stage.scratch("bans");
        fs::write(&state, lines(count, seconds(SystemTime::now())))?;
        pause(REST)?;
        let kernel = process::kernel_bytes();
        let keeping = Keeping { admin: Some(&admin), state: Some(&state) };
        let mut weir = start_proxy(stage, &nets, contender, keeping)?;
        let in_kernel =
            || ask(&admin, "GET", "/v1/shield").is_ok_and(|shield| has(&shield["bans"], count));
        weir.await_that(&format!("have {count} bans"), in_kernel)?;
        pause(REST)?;
        let resident_bytes = process::resident_bytes(&weir.family());
        let kernel_bytes = process::kernel_bytes() as i64 - kernel as i64;
        taken.push(Taken { bans: count, resident_bytes, kernel_bytes });
        last = Some(weir);
    }
    let weir = last.ok_or_else(|| io::Error::other("no number of bans"))?;
    let mut record = Record { pss_bytes: process::pss_bytes(&weir.family()), ..Record::default() };
    record.special.held = Some(Held { taken });
    Ok((Running::of((weir, PROXY), (origin, ORIGIN)), record))
}

/// Returns a file with `count` bans, of unassigned addresses.
fn lines(count: u32, now_s: u64) -> String {
    (0..count).fold(String::new(), |mut text, nth| {
        let network = Ipv4Addr::from(u32::from(NOBODY) + nth);
        let until = now_s + DAY_S;
        let _ = writeln!(
            text,
            "{{\"network\":\"{network}\",\"since\":{now_s},\"until\":{until},\"count\":1,\
                \"reason\":\"limit \\\"requests\\\"\"}}"
        );
        text
    })
}

/// Whether weir has this many bans in force, and the kernel as well if it takes part. Without bans
/// the kernel has nothing to do.
fn has(bans: &Value, count: u32) -> bool {
    let (in_force, in_kernel) = (bans["in_force"].as_u64(), bans["in_kernel"].as_u64());
    let kernel_is_done = in_kernel.is_none_or(|its| its == u64::from(count));
    in_force == Some(u64::from(count))
        && kernel_is_done
        && bans["kernel_refused"].as_u64() == Some(0)
}

/// Bans clients by order for a few seconds, and lets each of them retry all the time until it gets
/// a response.
///
/// # Errors
/// Something can't be started, weir does not ban, or the user interrupts.
pub(super) fn recovery(stage: &Stage, contender: Contender) -> io::Result<(Running, Record)> {
    let (nets, admin) = (Nets::make(stage.directory())?, stage.scratch("admin.sock"));
    let origin = start_origin(stage, &nets)?;
    let keeping = Keeping { admin: Some(&admin), state: None };
    let weir = start_proxy(stage, &nets, contender, keeping)?;
    let mut banned = Vec::new();
    for nth in 0..ATTACKERS {
        let address = nets::attacker(nth);
        let answer = ask(&admin, "POST", &format!("/v1/bans/{address}/add?for={BAN_SECONDS}"))?;
        let until_s = answer["bans"][0]["until_seconds"].as_u64();
        banned
            .push((address, until_s.ok_or_else(|| io::Error::other(format!("no ban: {answer}")))?));
    }
    let returned = nets.within(Side::Clients, || {
        std::thread::scope(|scope| {
            let threads: Vec<_> = banned
                .iter()
                .map(|(who, until_s)| scope.spawn(|| comes_back(*who, *until_s)))
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect::<io::Result<Vec<Back>>>()
        })
    })?;
    let mut recovery = Recovery::default();
    for Back { refused, after_us } in &returned {
        recovery.refused += refused;
        recovery.after_us.extend(after_us);
    }
    let early = recovery.after_us.iter().filter(|us| **us < 0).count() as u64;
    let mut errors = error_of("answered_while_banned", early);
    errors
        .extend(error_of("never_answered", u64::from(ATTACKERS) - recovery.after_us.len() as u64));
    errors.extend(error_of(
        "never_refused",
        returned.iter().filter(|back| back.refused == 0).count() as u64,
    ));
    let mut record =
        Record { errors, pss_bytes: process::pss_bytes(&weir.family()), ..Record::default() };
    record.special.recovery = Some(recovery);
    Ok((Running::of((weir, PROXY), (origin, ORIGIN)), record))
}

/// What a banned client saw.
struct Back {
    /// Attempts that were refused.
    refused: u64,
    /// From the end of the ban to the first response after a refusal, microseconds; None: there was
    /// none in time.
    after_us: Option<i64>,
}

/// Retries until there is a response. Responses before the first refusal are not counted: a ban
/// takes a moment.
fn comes_back(who: Ipv4Addr, until_s: u64) -> io::Result<Back> {
    let until = UNIX_EPOCH + Duration::from_secs(until_s);
    let mut refused = 0;
    while SystemTime::now() < until + PATIENCE {
        check_interrupt()?;
        if is_answered(who)? {
            if refused > 0 {
                return Ok(Back { refused, after_us: Some(micros_since(until)) });
            }
        } else {
            refused += 1;
        }
        std::thread::sleep(EVERY);
    }
    Ok(Back { refused, after_us: None })
}

/// Returns the time from `then` to now, microseconds; less than 0 before.
fn micros_since(then: SystemTime) -> i64 {
    let micros = |time: Duration| time.as_micros() as i64;
    then.elapsed().map_or_else(|early| -micros(early.duration()), micros)
}

/// Whether a request from this address gets a response.
fn is_answered(who: Ipv4Addr) -> io::Result<bool> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(IpAddr::V4(who), 0).into())?;
    if socket.connect_timeout(&PROXY.into(), CONNECT_PATIENCE).is_err() {
        return Ok(false);
    }
    socket.set_read_timeout(Some(ANSWER_PATIENCE))?;
    let mut start = [0; 12];
    let request = format!("GET / HTTP/1.1\r\nHost: {PROXY}\r\nConnection: close\r\n\r\n");
    let asked =
        (&socket).write_all(request.as_bytes()).and_then(|()| (&socket).read_exact(&mut start));
    Ok(asked.is_ok() && &start == b"HTTP/1.1 200")
}

/// Requests a document from weir's admin socket.
///
/// # Errors
/// No response, or weir refuses.
pub(super) fn ask(admin: &Path, method: &str, path: &str) -> io::Result<Value> {
    let mut stream = UnixStream::connect(admin)?;
    stream.set_read_timeout(Some(ADMIN_PATIENCE))?;
    stream.write_all(
        format!("{method} {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let wrong = |why: &str| {
        io::Error::new(ErrorKind::InvalidData, format!("weir's admin socket {why}: {answer}"))
    };
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| wrong("does not speak HTTP"))?;
    if !head.starts_with("HTTP/1.1 200") {
        return Err(wrong("refuses"));
    }
    serde_json::from_str(body).map_err(|_| wrong("answers no JSON"))
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_a_ban_of_an_address_of_its_own() {
        let text = lines(300, 1000);
        let bans: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(bans.len(), 300);
        assert_eq!(
            (bans[0]["network"].as_str(), bans[299]["network"].as_str()),
            (Some("247.0.0.0"), Some("247.0.1.43"))
        );
        assert_eq!(
            (bans[0]["since"].as_u64(), bans[0]["until"].as_u64()),
            (Some(1000), Some(1000 + DAY_S))
        );
    }

    #[test]
    fn all_bans_are_there_when_weir_and_kernel_say_so() {
        let bans = |in_force: u64, in_kernel: Option<u64>, refused: u64| {
            serde_json::json!({
                "in_force": in_force,
                "in_kernel": in_kernel,
                "kernel_refused": refused
            })
        };
        assert!(
            has(&bans(7, None, 0), 7) && has(&bans(7, Some(7), 0), 7) && has(&bans(0, None, 0), 0)
        );
        assert!(
            !has(&bans(7, Some(6), 0), 7)
                && !has(&bans(6, None, 0), 7)
                && !has(&bans(7, Some(7), 1), 7)
        );
        assert!(!has(&Value::Null, 0));
    }
}
