//! How each program is configured where it limits its clients: as it usually is, on one core, with
//! the additions of its contender.
//!
//! Called by `block.rs`.

use std::net::SocketAddr;
use std::path::Path;

use super::settings::{self, Shape};
use crate::bench::experiment::block::{Limiting, Program, RATE};
use crate::bench::experiment::contenders::WEIR;

/// Returns the configuration; without a limit if that is None. The caller pins the process, so that
/// nothing in the text may.
pub(super) fn text(
    program: Program,
    limiting: Option<Limiting>,
    (listen, to): (SocketAddr, SocketAddr),
    (directory, descriptors): (&Path, u64),
) -> String {
    let lines = limiting.map(Limiting::lines);
    match program {
        Program::Weir => {
            let shield = lines.map_or_else(String::new, |lines| format!("shield {{\n{lines}}}\n"));
            settings::weir(listen, to, 1, WEIR)
                .replace("upstream \"app\"", &format!("{shield}upstream \"app\""))
        }
        Program::Nginx => {
            let text = settings::nginx_proxy(directory, listen, &[to], (1, descriptors))
                .replace("worker_cpu_affinity auto;\n", "");
            let Some(lines) = lines else { return text };
            let zone = format!(
                "    limit_req_zone $binary_remote_addr zone=each:10m rate={RATE}r/s;
    limit_conn_zone $binary_remote_addr zone=open:10m;\n"
            );
            let pass = "            proxy_pass";
            text.replace(pass, &(lines + pass))
                .replace("    upstream app", &(zone + "    upstream app"))
        }
        Program::Haproxy => {
            let shape = Shape { processes: 1, threads: 1 };
            let text = settings::haproxy(listen, &[to], shape, descriptors)
                .replace("    cpu-map auto:1/1-1 0-0\n", "");
            let backend = "    default_backend app";
            text.replace(backend, &(lines.unwrap_or_default() + backend))
        }
    }
}

/// weir's configuration, with its bans kept in a file.
pub(super) fn with_state(text: &str, path: &Path) -> String {
    text.replace("    ban ", &format!("    ban state=\"{}\" ", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::block::{HAPROXY_REJECT, NGINX_444, WEIR_BAN, WEIR_RESET};

    #[test]
    fn limits_are_added_and_nothing_is_pinned() {
        let addresses =
            (SocketAddr::from(([198, 18, 0, 1], 80)), SocketAddr::from(([127, 0, 0, 1], 90)));
        let of = |program, limiting| text(program, limiting, addresses, (Path::new("/d"), 20_000));
        for (program, limiting, has) in [
            (
                Program::Weir,
                WEIR_RESET,
                &["shield {\n    limit \"connections\"", "over=\"reset\"\n}\nupstream"][..],
            ),
            (
                Program::Nginx,
                NGINX_444,
                &["    limit_req_zone $binary", "limit_req zone=each burst=19 nodelay;\n"][..],
            ),
            (
                Program::Haproxy,
                HAPROXY_REJECT,
                &["\n    stick-table type ip", "gt 20 }\n    default_backend"][..],
            ),
        ] {
            let (with, without) = (of(program, Some(limiting)), of(program, None));
            has.iter().for_each(|part| {
                assert!(with.contains(part) && !without.contains(part), "{part}: {with}")
            });
            assert!(!with.contains("affinity") && !with.contains("cpu-map"), "{with}");
        }
        let kept = with_state(&of(Program::Weir, Some(WEIR_BAN)), Path::new("/d/bans"));
        assert!(kept.contains("    ban state=\"/d/bans\" for=\"1h\" via=\"user\"\n"), "{kept}");
    }
}
