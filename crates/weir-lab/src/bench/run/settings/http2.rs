//! The same settings with listeners that use HTTP/2, over TLS or without: they change nothing else,
//! so the difference to HTTP/1.1 is HTTP/2.
//!
//! Called by `stage.rs`, after `tls.rs`.

use std::io;

use crate::bench::experiment::contenders::What;

/// Returns the text of a contender's settings, with HTTP/2 for its clients; `is_tls`: it has a
/// certificate already.
///
/// # Errors
/// It has no listener that could use it, which would be a bug.
pub(in crate::bench::run) fn spoken(what: What, text: &str, is_tls: bool) -> io::Result<String> {
    let (before, after) = match (what, is_tls) {
        (What::Nginx, true) => (" ssl reuseport ", " ssl http2 reuseport "),
        (What::Nginx, false) => (" reuseport ", " http2 reuseport "),
        (What::Haproxy, true) => (" shards by-thread ssl ", " shards by-thread alpn h2 ssl "),
        (What::Haproxy, false) => (" shards by-thread\n", " shards by-thread proto h2\n"),
        (What::Envoy, true) => ("\"alpn_protocols\":[\"http/1.1\"]", "\"alpn_protocols\":[\"h2\"]"),
        // weir with TLS offers it by default.
        (What::Weir(_), true) => return Ok(text.to_owned()),
        (What::Weir(_), false) => return weir(text),
        _ => return Err(io::Error::other(format!("{what:?} can't be set to speak HTTP/2"))),
    };
    if !text.contains(before) {
        return Err(io::Error::other(format!("{what:?} has no listener to speak HTTP/2")));
    }
    Ok(text.replace(before, after))
}

fn weir(text: &str) -> io::Result<String> {
    let line = text.lines().find(|line| line.starts_with("listen "));
    let line = line.ok_or_else(|| io::Error::other("weir has no listener to speak HTTP/2"))?;
    Ok(text.replacen(line, &format!("{line} {{\n    protocols \"h2c\"\n}}"), 1))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::Path;

    use super::super::tls::{Files, sealed};
    use super::super::{Shape, envoy, haproxy, nginx_proxy, weir as plain_weir};
    use super::*;
    use crate::bench::experiment::contenders::WEIR;

    #[test]
    fn each_listener_speaks_http_2_and_nothing_else_changes() {
        let (listen, to) =
            (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([127, 0, 0, 1], 65_000)));
        let files = Files {
            certificate: "/d/c.pem".into(),
            key: "/d/k.pem".into(),
            both: "/d/b.pem".into(),
        };
        let shape = Shape { processes: 1, threads: 2 };
        let all = [
            (What::Nginx, nginx_proxy(Path::new("/d"), listen, &[to], (2, 20_000)), "http2"),
            (What::Haproxy, haproxy(listen, &[to], shape, 20_000), "h2"),
            (What::Envoy, envoy(listen, &[to]), "h2"),
            (What::Weir(WEIR), plain_weir(listen, to, 2, WEIR), "h2c"),
        ];
        for (what, plain, word) in all {
            let tls = sealed(what, &plain, &files).unwrap();
            let with_tls = spoken(what, &tls, true).unwrap();
            assert_eq!(with_tls == tls, matches!(what, What::Weir(_)), "{with_tls}");
            match spoken(what, &plain, false) {
                Ok(text) => assert_eq!(text.matches(word).count(), 1, "{text}"),
                Err(_) => assert_eq!(what, What::Envoy),
            }
        }
        assert!(spoken(What::Direct, "", true).is_err());
    }

    #[test]
    fn what_weir_gets_is_a_configuration_of_http_2_alone() {
        let (listen, to) =
            (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([127, 0, 0, 1], 65_000)));
        let text = spoken(What::Weir(WEIR), &plain_weir(listen, to, 2, WEIR), false).unwrap();
        let config = weir_config::parse(&text, "h2c.kdl").unwrap();
        assert_eq!(config.plan.listeners.len(), 1, "{text}");
    }
}
