//! Plain requests beside clients that do nothing but TLS handshakes, both at the same proxy: how
//! long the handshakes delay the others.
//!
//! Called by `rounds.rs` for each run of the experiment `handshakes`. The proxy listens on two
//! addresses, one of them with TLS. Bound: the handshakes end with the run; there are no more
//! clients than [`CLIENTS`] at a time.

use std::io;
use std::net::SocketAddr;

use super::blocked::proxy_text;
use super::flood::Flood;
use super::load::{self, Times};
use super::ports::free_address;
use super::settings::tls;
use super::stage::{Running, Stage};
use crate::bench::experiment::cells::SMALL;
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::experiment::handshakes::{BESIDE, CLIENTS, LOW_LATENCY};
use crate::bench::experiment::tls::ECDSA;
use crate::bench::record::outcome::Record;

/// Does one run.
///
/// # Errors
/// Something can't be started, a generator fails, or the user interrupts.
pub(super) fn run(
    stage: &Stage,
    contender: Contender,
    times: Times,
) -> io::Result<(Running, Record)> {
    let (plain, sealed) = (free_address()?, free_address()?);
    let text = proxy_text(stage, contender.what, plain, &stage.origin_address().to_string());
    let text = with_sealed(contender.what, &text, (plain, sealed), &stage.certificate(ECDSA.key)?)?;
    let text = if contender.name == LOW_LATENCY { low_latency(&text) } else { text };
    let running = stage.start_with(contender, plain, &text)?;
    let flood = Flood::start(stage, &Running::sealed(sealed, ECDSA), CLIENTS)?;
    let (connections, rate) = BESIDE;
    let mut record = load::open(stage, &running, connections, (f64::from(rate), SMALL), times)?;
    flood.end(&mut record)?;
    Ok((running, record))
}

/// Returns the settings of a proxy with a second listener, which uses TLS.
///
/// # Errors
/// It has no listener that could do that, which would be a bug.
fn with_sealed(
    what: What,
    text: &str,
    (plain, sealed): (SocketAddr, SocketAddr),
    files: &tls::Files,
) -> io::Result<String> {
    let is_listener = |line: &&str| {
        let begins = ["listen ", "bind "].iter().any(|word| line.trim_start().starts_with(word));
        begins && line.contains(&plain.to_string())
    };
    let line = text
        .lines()
        .find(is_listener)
        .ok_or_else(|| io::Error::other(format!("{what:?} has no listener")))?;
    let other =
        tls::sealed(what, &(line.replace(&plain.to_string(), &sealed.to_string()) + "\n"), files)?;
    Ok(text.replacen(line, &format!("{line}\n{other}"), 1))
}

/// HAProxy works on heavy tasks only when nothing else waits.
fn low_latency(text: &str) -> String {
    text.replacen("global\n", "global\n    tune.sched.low-latency on\n", 1)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::settings::{Shape, haproxy, nginx_proxy, weir};
    use super::*;
    use crate::bench::experiment::contenders::WEIR;

    #[test]
    fn both_listeners_are_there() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (plain, sealed, to) = (at(1111), at(2222), at(3333));
        let files = tls::Files {
            certificate: "/d/c.pem".into(),
            key: "/d/k.pem".into(),
            both: "/d/b.pem".into(),
        };
        let shape = Shape { processes: 1, threads: 2 };
        let all = [
            (What::Nginx, nginx_proxy(Path::new("/d"), plain, &[to], (2, 20_000))),
            (What::Haproxy, haproxy(plain, &[to], shape, 20_000)),
            (What::Weir(WEIR), weir(plain, to, 2, WEIR)),
        ];
        for (what, text) in all {
            let text = with_sealed(what, &text, (plain, sealed), &files).unwrap();
            let line =
                |port: &str| text.lines().find(|line| line.contains(port)).unwrap().to_owned();
            assert!(!line("1111").contains("ssl"), "{text}");
            assert!(line("2222").contains("ssl") || what == What::Weir(WEIR), "{text}");
            assert_eq!(text.matches("3333").count(), 1, "{text}");
        }
        let text =
            with_sealed(What::Weir(WEIR), &weir(plain, to, 2, WEIR), (plain, sealed), &files)
                .unwrap();
        let config = weir_config::parse(&text, "handshakes.kdl").unwrap();
        let sealed = config.plan.listeners.iter().filter(|listener| listener.tls.is_some()).count();
        assert_eq!((config.plan.listeners.len(), sealed), (2, 1));
        assert!(
            low_latency(&haproxy(plain, &[to], shape, 20_000))
                .contains("\n    tune.sched.low-latency on\n")
        );
    }
}
