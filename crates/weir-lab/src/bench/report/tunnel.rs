//! The table of a full tunnel, its line of progress, and how tunnels are measured.
//!
//! Called by `figures.rs` and `progress.rs`.

use super::limits::limit;
use super::numbers::{error_text, number};
use crate::bench::record::outcome::Record;
use crate::bench::record::statistics::median;

/// Heads of the table of a full tunnel, without the first.
pub(super) const COLUMNS: &[&str] =
    &["GB/s", "CPU s/GB: proxy", "both ends", "idle", "errors", "limit"];

/// A contender's row in it.
pub(super) fn row(own: &[&Record]) -> Vec<String> {
    let of =
        |read: &dyn Fn(&Record) -> f64| median(own.iter().map(|record| read(record)).collect());
    let errors = own.iter().flat_map(|record| record.errors.clone()).collect();
    vec![
        number(of(&|record| record.rate) / 1e9, 2),
        number(of(&Record::proxy_s_per_gigabyte), 3),
        number(of(&|record| record.generator_us / record.bytes as f64 * 1e3), 3),
        format!("{} %", number(of(&|record| record.idle) * 100.0, 0)),
        error_text(&errors),
        limit(own),
    ]
}

/// Returns the line of progress.
pub(super) fn progress(record: &Record) -> String {
    format!(
        "{:>6.2} GB/s, CPU {} s/GB, idle {:>3.0} %, {}",
        record.rate / 1e9,
        number(record.proxy_s_per_gigabyte(), 3),
        record.idle * 100.0,
        error_text(&record.errors)
    )
}

/// The text for the last section of the report.
pub(super) const METHOD: &str = "
Tunnels. The harness holds both ends of each tunnel. weir opens them on CONNECT. HAProxy in TCP
mode has only one server, and forwards from the first byte on. A full tunnel is one connection.
One thread sends pages of a file (sendfile), and another receives and discards them inside the
kernel (recv with MSG_TRUNC, which copies nothing). So the ends cost little. At the end, as many
bytes must have arrived as were sent.

CPU is that of the proxy for each received gigabyte (10^9 bytes), and `both ends` is that of the
harness. Idle tunnels carry a few bytes first, and their memory is the growth of PSS for each.

HAProxy has mode tcp and one thread per core, pinned. `haproxy-splice` has `option
splice-request` and `option splice-response` (`splice-auto` hardly ever splices), and pipes of 1
MiB (tune.pipesize), as large as those of weir. `haproxy-splice-64k` has the default pipes.
`haproxy-copy` does not splice.
";
