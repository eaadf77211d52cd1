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
only TLS 1.3, TLS_AES_128_GCM_SHA256 and X25519. It accepts every certificate, but checks the
signature of each handshake. Connections to the origin are plain.

A connection of `full-*` and `resumed` makes a handshake and one request. The proxy closes it
because the request says so, and therefore CPU per request is CPU per connection. `resumed` shows
the share of handshakes that resumed an earlier session; the first of each thread cannot. For the
memory of idle connections, the harness makes the handshake and one request on each.

In `flood` a second generator makes full handshakes in 64 places, as fast as it gets them. It
uses the cores that no other program needs (nice 19), so the cores are full. Meanwhile clients
with other connections send requests by the clock, and p99 counts from when a request was due. In
`handshakes` the proxy has a second listener without TLS, which gets the requests of the 64
connections. 1,000 clients make only full handshakes there.

nginx has tickets, no session cache, `reuseport` and 16 KiB records. HAProxy has tickets,
`curves` and `ciphersuites`. Both use the OpenSSL of the distribution. weir has default settings
except `min-version \"1.3\"`. `weir-plain` is weir without TLS under the same load.
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
