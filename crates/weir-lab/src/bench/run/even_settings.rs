//! How contenders of `ladder`, `taken-core` and `mixed` are configured. Four things differ from the
//! other experiments: the number of workers, the socket that they accept from, whether they are
//! pinned, and how many requests they send their server at a time.
//!
//! Called by `ladder.rs`, `taken.rs` and `mixed.rs`. The settings are repeated in the report's last
//! section.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use super::settings::{self, Shape};
use super::stage::Stage;
use crate::bench::experiment::block::Program;
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::experiment::even::Rival;
use crate::bench::experiment::tuning::HAPROXY_KEEPS;

/// nginx and HAProxy where each worker has a socket and a core.
const TUNED: Rival = Rival { program: Program::Nginx, is_shared: false, is_pinned: true };

/// Returns the configuration of a contender with this many workers that listens on one address and
/// forwards to the server on another one. `admin` is where weir and HAProxy report their state.
///
/// # Errors
/// The contender cannot be configured in this way.
pub(super) fn text(
    stage: &Stage,
    contender: Contender,
    [listen, to]: [SocketAddr; 2],
    workers: usize,
    admin: Option<&Path>,
) -> io::Result<String> {
    let rival = match contender.what {
        What::Nginx => TUNED,
        What::Haproxy | What::HaproxyCapped(_) => Rival { program: Program::Haproxy, ..TUNED },
        What::Rival(rival) => rival,
        What::Weir(weir) => return Ok(settings::weir(listen, to, workers, weir)),
        _ => return Err(io::Error::other(format!("cannot set {} like this", contender.name))),
    };
    let text = match rival.program {
        Program::Nginx => settings::nginx_proxy(
            stage.directory(),
            listen,
            &[to],
            (workers as u64, stage.descriptors()),
        ),
        _ => {
            let shape = Shape { processes: 1, threads: workers };
            settings::tuned(
                settings::haproxy(listen, &[to], shape, stage.descriptors()),
                HAPROXY_KEEPS,
            )
        }
    };
    let text = rival_text(&text, rival, workers == stage.cores(), admin);
    Ok(match contender.what {
        What::HaproxyCapped(most) => capped(&text, most),
        _ => text,
    })
}

/// Returns the same HAProxy with at most this many requests at a time for its server; the others
/// wait in a queue.
fn capped(text: &str, most: u32) -> String {
    text.replace(" pool-purge-delay 1h", &format!(" pool-purge-delay 1h maxconn {most}"))
}

/// Returns the same configuration as this rival has it. HAProxy can be pinned only where it has a
/// thread a core.
fn rival_text(tuned: &str, rival: Rival, is_one_a_core: bool, admin: Option<&Path>) -> String {
    let is_haproxy = rival.program == Program::Haproxy;
    let is_pinned = rival.is_pinned && (is_one_a_core || !is_haproxy);
    let mut text = String::new();
    for line in tuned.lines() {
        let is_affinity =
            line.starts_with("worker_cpu_affinity") || line.trim_start().starts_with("cpu-map");
        // Where all accept from one socket, a worker that takes many at a time takes them from the
        // others: that is the default of both programs.
        let is_greed = rival.is_shared && line.trim_start().starts_with("tune.maxaccept");
        if (is_affinity && !is_pinned) || is_greed {
            continue;
        }
        let line = match rival.is_shared {
            true => line
                .replace(" reuseport", "")
                .replace(" shards by-thread", "")
                .replace("multi_accept on", "multi_accept off"),
            false => line.to_owned(),
        };
        text += &(line + "\n");
        if let Some(admin) = admin.filter(|_| is_haproxy && text.ends_with("global\n")) {
            text += &format!("    stats socket {} mode 600 level admin\n", admin.display());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn who_shares_a_socket_has_neither_one_a_worker_nor_greed() {
        let tuned = settings::nginx_proxy(Path::new("/d"), address(1), &[address(2)], (8, 20_000));
        assert_eq!(rival_text(&tuned, TUNED, false, None), tuned);
        let shared = rival_text(&tuned, Rival { is_shared: true, ..TUNED }, false, None);
        assert!(
            shared.contains("listen 127.0.0.1:1 backlog=65535;")
                && shared.contains("multi_accept off;"),
            "{shared}"
        );
        assert!(
            shared.contains("worker_cpu_affinity auto;") && shared.contains("worker_processes 8;"),
            "{shared}"
        );
        let unpinned = rival_text(&tuned, Rival { is_pinned: false, ..TUNED }, false, None);
        assert!(!unpinned.contains("affinity") && unpinned.contains("reuseport"), "{unpinned}");
    }

    #[test]
    fn haproxy_has_requests_wait_beyond_what_its_server_may_have() {
        let shape = Shape { processes: 1, threads: 2 };
        let text = capped(&settings::haproxy(address(1), &[address(2)], shape, 20_000), 32);
        assert!(
            text.contains("    server s0 127.0.0.1:2 pool-purge-delay 1h maxconn 32\n"),
            "{text}"
        );
    }

    #[test]
    fn haproxy_is_pinned_where_it_has_a_thread_a_core() {
        let shape = Shape { processes: 1, threads: 8 };
        let tuned = settings::haproxy(address(1), &[address(2)], shape, 20_000);
        let rival = Rival { program: Program::Haproxy, ..TUNED };
        let admin = Path::new("/d/haproxy.sock");
        let own = rival_text(&tuned, rival, true, Some(admin));
        assert!(
            own.starts_with(
                "global\n    stats socket /d/haproxy.sock mode 600 level admin\n    nbthread 8\n"
            ),
            "{own}"
        );
        assert!(
            own.contains("cpu-map")
                && own.contains("shards by-thread")
                && own.contains("tune.maxaccept"),
            "{own}"
        );
        let more = rival_text(&tuned, rival, false, Some(admin));
        assert!(!more.contains("cpu-map") && more.contains("nbthread 8"), "{more}");
        let shared = rival_text(&tuned, Rival { is_shared: true, ..rival }, true, None);
        assert!(
            !shared.contains("shards")
                && !shared.contains("maxaccept 500")
                && !shared.contains("stats"),
            "{shared}"
        );
    }
}
