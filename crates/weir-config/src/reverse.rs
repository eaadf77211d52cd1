//! The configuration that `weir reverse` stands for. Called by the command line, which prints it or runs it.

use std::fmt::Write as _;

use crate::expand::escape;
use crate::print::quoted;

/// What can be said on the command line of `weir reverse`. Texts are checked when the result is parsed.
#[derive(Debug, Clone, Default)]
pub struct Reverse {
    /// `address:port` of each listener.
    pub listen: Vec<String>,
    /// The certificate with which clients speak TLS; None: they don't.
    pub cert: Option<String>,
    /// Its key; None: it is in the same file.
    pub key: Option<String>,
    /// `host:port` of each server, or `https://host` with or without a port of all of them.
    pub to: Vec<String>,
    /// Connections kept to each server; None leaves the default.
    pub connections_min: Option<u32>,
    /// Connections to each server for what shares them; None leaves the default.
    pub connections: Option<u32>,
    /// Connections to each server when others are held; None leaves the default.
    pub connections_max: Option<u32>,
    /// `pool`; None leaves the default.
    pub pool: Option<String>,
    /// `adaptive`, `off` or a depth; None leaves the default.
    pub pipeline: Option<String>,
    /// How to run.
    pub common: Common,
}

/// What can be said of each proxy on the command line: how to run. None leaves the default.
#[derive(Debug, Clone, Default)]
pub struct Common {
    /// What stands for `workers`.
    pub workers: Option<u32>,
    /// What stands for `io`.
    pub io: Option<String>,
    /// What stands for `admin`.
    pub admin: Option<String>,
    /// What stands for `metrics`.
    pub metrics: Option<String>,
}

impl Common {
    /// The lines at the top of a configuration.
    pub(crate) fn to_kdl(&self) -> String {
        let mut out = String::new();
        if let Some(workers) = self.workers {
            let _ = writeln!(out, "workers {workers}");
        }
        for (name, value) in [("io", &self.io), ("admin", &self.admin), ("metrics", &self.metrics)] {
            if let Some(value) = value {
                let _ = writeln!(out, "{name} {}", literal(value));
            }
        }
        out
    }
}

impl Reverse {
    /// The configuration as KDL: only what differs from the defaults.
    pub fn to_kdl(&self) -> String {
        let mut out = self.common.to_kdl();
        for address in &self.listen {
            let _ = writeln!(out, "listen {}{}", literal(address), self.tls());
        }
        out.push_str("upstream \"app\" {\n");
        if let Some(pool) = &self.pool {
            let _ = writeln!(out, "    pool {}", literal(pool));
        }
        let counts = [
            ("connections-min", self.connections_min),
            ("connections", self.connections),
            ("connections-max", self.connections_max),
        ];
        let counts: String =
            counts.iter().filter_map(|(name, count)| Some(format!(" {name}={}", count.as_ref()?))).collect();
        // Where only some speak TLS, whoever reads the configuration says that they can't.
        let sealed: Option<Vec<String>> = self.to.iter().map(|server| over_tls(server)).collect();
        if sealed.is_some() {
            out.push_str("    tls\n");
        }
        for server in sealed.as_ref().unwrap_or(&self.to) {
            let _ = writeln!(out, "    server {}{counts}", literal(server));
        }
        match self.pipeline.as_deref() {
            None => {}
            Some(depth) if depth.parse::<u64>().is_ok() => {
                let _ = writeln!(out, "    pipeline depth={depth}");
            }
            Some(mode) => {
                let _ = writeln!(out, "    pipeline {}", literal(mode));
            }
        }
        out.push_str("}\nroute host=\"*\" path=\"/\" { proxy \"app\"; }\n");
        out
    }
}

impl Reverse {
    /// What stands behind an address whose clients speak TLS.
    fn tls(&self) -> String {
        let Some(cert) = &self.cert else { return String::new() };
        let key = self.key.as_ref().map_or_else(String::new, |key| format!(" key={}", literal(key)));
        format!(" {{\n    tls {{ certificate {}{key}; }}\n}}", literal(cert))
    }
}

/// The `host:port` of a server that is spoken TLS to; None: it is none such.
fn over_tls(server: &str) -> Option<String> {
    let (scheme, rest) = server.split_once("://")?;
    if !scheme.eq_ignore_ascii_case("https") {
        return None;
    }
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let has_port = rest.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && !port.ends_with(']'));
    Some(if has_port { rest.to_owned() } else { format!("{rest}:443") })
}

/// A string that is taken as it is: the shell has expanded what there was to expand.
pub(crate) fn literal(text: &str) -> String {
    quoted(&escape(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    #[test]
    fn what_is_printed_reads_back_and_says_what_was_asked() {
        let reverse = Reverse {
            listen: vec!["127.0.0.1:8080".to_owned()],
            to: vec!["10.0.0.1:9090".to_owned(), "10.0.0.2:9090".to_owned()],
            connections_min: Some(2),
            connections: Some(4),
            connections_max: Some(6),
            pool: Some("pipelined".to_owned()),
            pipeline: Some("16".to_owned()),
            ..Reverse::default()
        };
        let config = parse(&reverse.to_kdl(), "reverse").unwrap();
        let upstream = &config.plan.upstreams[0];
        assert_eq!(upstream.servers.len(), 2);
        for server in &upstream.servers {
            assert_eq!((server.connections_min, server.connections, server.connections_max), (2, 4, 6));
        }
        assert_eq!(upstream.pipeline, weir_proxy::plan::PipelineMode::Depth(16));
    }

    #[test]
    fn each_pool_can_be_asked_for() {
        for pool in ["pipelined", "shared", "pinned", "per-request", "fresh"] {
            let (listen, to) = (vec!["127.0.0.1:8080".to_owned()], vec!["10.0.0.1:9090".to_owned()]);
            let reverse = Reverse { listen, to, pool: Some(pool.to_owned()), ..Reverse::default() };
            let config = parse(&reverse.to_kdl(), "reverse").unwrap();
            assert_eq!(config.plan.upstreams[0].pool.word(), pool);
        }
    }

    #[test]
    fn servers_over_tls() {
        let servers = |to: &[&str]| {
            let to = to.iter().map(|server| (*server).to_owned()).collect();
            let reverse = Reverse { listen: vec!["127.0.0.1:8080".to_owned()], to, ..Reverse::default() };
            let plan = parse(&reverse.to_kdl(), "reverse").map_err(|errors| errors.to_string())?.plan;
            let upstream = &plan.upstreams[0];
            assert!(upstream.tls.is_some());
            Ok::<_, String>(upstream.servers.iter().map(|server| server.name.clone()).collect::<Vec<_>>())
        };
        assert_eq!(servers(&["https://127.0.0.1:8443"]).unwrap(), ["127.0.0.1:8443"]);
        assert_eq!(
            servers(&["HTTPS://127.0.0.1/", "https://[::1]", "https://[::1]:44"]).unwrap(),
            ["127.0.0.1:443", "[::1]:443", "[::1]:44"]
        );
        for (to, text) in [
            (&["https://127.0.0.1:8443", "127.0.0.1:90"][..], "a `tls` block into the upstream, which is for all"),
            (&["https://127.0.0.1/app"], "127.0.0.1/app"),
            (&["https://"], "neither an address nor a host name"),
        ] {
            let said = servers(to).unwrap_err();
            assert!(said.contains(text), "{said}");
        }
    }

    #[test]
    fn text_from_the_command_line_stays_text() {
        let hostile = "x\" } listen \"0.0.0.0:1\"; ${HOME}\n";
        let [cert, key] = [Some(hostile.to_owned()), Some(hostile.to_owned())];
        let reverse =
            Reverse { listen: vec![hostile.to_owned()], to: vec![hostile.to_owned()], cert, key, ..Reverse::default() };
        let errors = parse(&reverse.to_kdl(), "reverse").unwrap_err();
        assert_eq!(errors.count(), 4, "{errors}");
    }
}
