//! How the experiment `tls` is shown: columns that only it has, and how it was measured.
//!
//! Called by `figures.rs`.

use super::numbers::number;
use crate::bench::experiment::cells::{Cell, Load};
use crate::bench::experiment::contenders::contender;
use crate::bench::record::circumstances::Circumstances;
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::middle;

/// The text after the usual method.
pub(super) const METHOD: &str = "
TLS. All contenders have the same self-signed certificate, made for the run. The generator offers
TLS 1.3, TLS_AES_128_GCM_SHA256 and X25519, and nothing else; it takes every certificate, but
checks the signature of each handshake. Connections to the origin are plain. A connection of
`full-*` and `resumed` makes a handshake and one request and is closed by the proxy as the
request asks, so CPU a request is CPU a connection. `resumed` says which share of the handshakes
went on with an earlier session; the first of each thread can't. Memory of idle connections: the
harness makes the handshake and one request on each. In `flood` a second generator makes full
handshakes in 64 places, as fast as it gets them with the cores that nobody else wants (nice 19),
while clients with connections of their own ask by the clock; p99 counts from when a request was
due, and the cores are full. nginx: tickets, no session cache, `reuseport`, 16 KiB records;
HAProxy: tickets, `curves`, `ciphersuites`; both with what the distribution has as OpenSSL. weir:
default settings but `min-version \"1.3\"`; `weir-plain` is weir without TLS on the same load. In
`handshakes` the proxy has a second listener without TLS, which is what the 64 connections ask;
1,000 clients do nothing but full handshakes.
";

/// Returns the columns after the usual ones of a load.
pub(super) fn columns(load: Load) -> &'static [&'static str] {
    match load {
        Load::Idle(_) => &["TLS library"],
        Load::Flood { .. } | Load::Handshakes => &["flood, handshakes/s", "TLS library"],
        _ => &["resumed", "TLS library"],
    }
}

/// Returns their figures.
pub(super) fn row(
    cell: &Cell,
    name: &str,
    own: &[&Record],
    circumstances: &Circumstances,
) -> Vec<String> {
    let library = library(name, circumstances);
    match cell.load {
        Load::Idle(_) => vec![library],
        Load::Flood { .. } | Load::Handshakes => {
            let flood = |record: &Record| {
                record.special.handshakes.and_then(|it| it.flood_per_second).unwrap_or(f64::NAN)
            };
            vec![number(middle(own, &flood), 0), library]
        }
        _ => {
            let share = |record: &Record| {
                let made = record.special.handshakes.unwrap_or_default();
                made.resumed as f64 / (made.full + made.resumed) as f64 * 100.0
            };
            let share = number(middle(own, &share), 0);
            vec![if share == "-" { share } else { share + " %" }, library]
        }
    }
}

/// The library of a contender with its version.
fn library(name: &str, circumstances: &Circumstances) -> String {
    let Some(contender) = contender(name) else { return "-".to_owned() };
    if contender.is_plain() {
        return "none".to_owned();
    }
    let program = contender.what.program().unwrap_or("weir");
    let found = circumstances.libraries.iter().find(|(of, _)| of == program);
    found.map_or_else(|| "unknown".to_owned(), |(_, library)| library.clone())
}
