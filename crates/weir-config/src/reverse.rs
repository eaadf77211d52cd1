//! The configuration behind `weir reverse`. Called by the command line, which prints it or runs it.

use std::fmt::Write as _;

use weir_proxy::plan::ORIGINAL_DESTINATION;

use crate::expand::escape;
use crate::print::quoted;

/// The options of `weir reverse` on the command line. Texts are checked when the result is parsed.
#[derive(Debug, Clone, Default)]
pub struct Reverse {
    /// `address:port` of each listener.
    pub listen: Vec<String>,
    /// The certificate for TLS with clients; None: no TLS.
    pub cert: Option<String>,
    /// Its key; None: it is in the same file.
    pub key: Option<String>,
    /// Each server: `host:port`, `http://host` with or without a port, or `https://host` with or
    /// without a port for all of them.
    pub to: Vec<String>,
    /// Connections kept to each server; None leaves the default.
    pub connections_min: Option<u32>,
    /// Connections to each server for requests that share them; None leaves the default.
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

/// The command line options of each proxy: how to run. None leaves the default.
#[derive(Debug, Clone, Default)]
pub struct Common {
    /// The value of `workers`.
    pub workers: Option<u32>,
    /// The value of `io`.
    pub io: Option<String>,
    /// The value of `admin`.
    pub admin: Option<String>,
    /// The value of `metrics`.
    pub metrics: Option<String>,
}

impl Common {
    /// Returns the lines at the top of a configuration.
    pub(crate) fn to_kdl(&self) -> String {
        let mut out = String::new();
        if let Some(workers) = self.workers {
            let _ = writeln!(out, "workers {workers}");
        }
        for (name, value) in [("io", &self.io), ("admin", &self.admin), ("metrics", &self.metrics)]
        {
            if let Some(value) = value {
                let _ = writeln!(out, "{name} {}", literal(value));
            }
        }
        out
    }
}

impl Reverse {
    /// Returns the configuration as KDL: only values that differ from the defaults.
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
        let counts: String = counts
            .iter()
            .filter_map(|(name, count)| Some(format!(" {name}={}", count.as_ref()?)))
            .collect();
        let servers: Vec<Server> = self.to.iter().map(|server| Server::of(server)).collect();
        if servers.iter().any(|server| server.sealed == Some(true)) {
            out.push_str("    tls\n");
        }
        for server in servers {
            let _ = writeln!(out, "    server {}{counts}", literal(&server.address));
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
    /// Returns the text behind an address whose clients speak TLS.
    fn tls(&self) -> String {
        let Some(cert) = &self.cert else { return String::new() };
        let key =
            self.key.as_ref().map_or_else(String::new, |key| format!(" key={}", literal(key)));
        format!(" {{\n    tls {{ certificate {}{key}; }}\n}}", literal(cert))
    }
}

impl Reverse {
    /// Returns why no configuration can express `to`, and what to write instead; None: it can.
    pub fn fault(&self) -> Option<String> {
        let one = self.to.iter().find_map(|server| Server::fault(server));
        one.or_else(|| {
            let servers: Vec<Server> = self.to.iter().map(|server| Server::of(server)).collect();
            let sealed = servers.iter().position(|server| server.sealed == Some(true))?;
            let open = servers.iter().position(|server| server.sealed != Some(true))?;
            let (sealed, open) = (&self.to[sealed], &self.to[open]);
            Some(format!(
                "--to {sealed} and --to {open}: either all servers speak TLS or none does, because \
                 they are one upstream; \
                 write https:// for each, or a configuration with two upstreams (`weir run`)"
            ))
        })
    }
}

/// A server as `--to` names it.
struct Server {
    /// `host:port`, or the given text if it is none.
    address: String,
    /// Whether its URL asks for TLS; None: not stated.
    sealed: Option<bool>,
}

impl Server {
    /// Parses a URL, or an address with or without a port.
    fn of(text: &str) -> Server {
        let (sealed, rest) = match text.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (Some(true), rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (Some(false), rest),
            _ => (None, text),
        };
        let rest = if sealed.is_some() { rest.strip_suffix('/').unwrap_or(rest) } else { rest };
        let port = if sealed == Some(true) { 443 } else { 80 };
        let takes_port = sealed.is_some() && !rest.is_empty() && !has_port(rest);
        Server {
            address: if takes_port { format!("{rest}:{port}") } else { rest.to_owned() },
            sealed,
        }
    }

    /// Returns why it cannot be a server, and what to write instead; None: the configuration
    /// reports it, or nothing is wrong.
    fn fault(text: &str) -> Option<String> {
        let wrong = |why: &str| Some(format!("--to {text}: {why}"));
        let Some((scheme, rest)) = text.split_once("://") else {
            // A service and the client's own destination have no port.
            let is_other = text.is_empty() || text.starts_with('_') || text == ORIGINAL_DESTINATION;
            let is_host = !is_other && !has_port(text) && !text.contains(['/', ':', ' ', '"']);
            return if is_host {
                wrong(&format!(
                    "the port is missing: write {text}:80, or http://{text}, which means port 80"
                ))
            } else {
                None
            };
        };
        if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
            return wrong(&format!(
                "weir speaks HTTP to servers, not `{scheme}`: write http:// or https://"
            ));
        }
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.is_empty() {
            return wrong("the host is missing: write http://HOST or http://HOST:PORT");
        }
        if authority.contains('@') {
            return wrong("the address of a server has no user and no password");
        }
        if !matches!(path, "" | "/") {
            return wrong(&format!(
                "the address of a server has no path, because requests keep theirs: write \
                    {scheme}://{authority}, or a configuration with `rewrite` (docs/routes.md)"
            ));
        }
        None
    }
}

/// Whether a host has a port behind it.
fn has_port(authority: &str) -> bool {
    let bare_ipv6 = authority.parse::<std::net::Ipv6Addr>().is_ok();
    !bare_ipv6
        && authority
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && !port.ends_with(']'))
}

/// Returns a literal string: the shell has already expanded variables.
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
            assert_eq!(
                (server.connections_min, server.connections, server.connections_max),
                (2, 4, 6)
            );
        }
        assert_eq!(upstream.pipeline, weir_proxy::plan::PipelineMode::Depth(16));
    }

    #[test]
    fn each_pool_can_be_asked_for() {
        for pool in ["pipelined", "shared", "pinned", "per-request", "fresh"] {
            let (listen, to) =
                (vec!["127.0.0.1:8080".to_owned()], vec!["10.0.0.1:9090".to_owned()]);
            let reverse = Reverse { listen, to, pool: Some(pool.to_owned()), ..Reverse::default() };
            let config = parse(&reverse.to_kdl(), "reverse").unwrap();
            assert_eq!(config.plan.upstreams[0].pool.word(), pool);
        }
    }

    /// Returns the servers of the plan, and whether they use TLS; or the message.
    fn servers(to: &[&str]) -> Result<(Vec<String>, bool), String> {
        let to = to.iter().map(|server| (*server).to_owned()).collect();
        let reverse =
            Reverse { listen: vec!["127.0.0.1:8080".to_owned()], to, ..Reverse::default() };
        if let Some(fault) = reverse.fault() {
            return Err(fault);
        }
        let plan = parse(&reverse.to_kdl(), "reverse").map_err(|errors| errors.to_string())?.plan;
        let upstream = &plan.upstreams[0];
        Ok((
            upstream.servers.iter().map(|server| server.name.clone()).collect(),
            upstream.tls.is_some(),
        ))
    }

    #[test]
    fn servers_by_url() {
        for (to, names, sealed) in [
            (&["https://127.0.0.1:8443"][..], &["127.0.0.1:8443"][..], true),
            (
                &["HTTPS://127.0.0.1/", "https://[::1]", "https://[::1]:44"],
                &["127.0.0.1:443", "[::1]:443", "[::1]:44"],
                true,
            ),
            (&["http://127.0.0.1:9090"], &["127.0.0.1:9090"], false),
            (&["HTTP://127.0.0.1/", "http://[::1]:81/"], &["127.0.0.1:80", "[::1]:81"], false),
            (&["http://127.0.0.1", "127.0.0.1:90"], &["127.0.0.1:80", "127.0.0.1:90"], false),
        ] {
            assert_eq!(
                servers(to),
                Ok((names.iter().map(|name| (*name).to_owned()).collect(), sealed)),
                "{to:?}"
            );
        }
    }

    #[test]
    fn servers_that_can_t_be_are_named_with_what_to_write() {
        for (to, text) in [
            (
                &["https://127.0.0.1:8443", "127.0.0.1:90"][..],
                "either all servers speak TLS or none does",
            ),
            (&["http://127.0.0.1", "https://127.0.0.1"], "write https:// for each"),
            (
                &["https://127.0.0.1/app"],
                "the address of a server has no path, because requests keep theirs: write \
                    https://127.0.0.1, or",
            ),
            (&["http://a?x=1"], "write http://a, or"),
            (&["https://"], "the host is missing"),
            (&["http://u:p@a"], "no user and no password"),
            (&["127.0.0.1"], "the port is missing: write 127.0.0.1:80, or http://127.0.0.1"),
            (&["app.internal"], "the port is missing"),
            (&["ftp://a"], "not `ftp`"),
            (&["::1"], "an IPv6 address needs brackets"),
        ] {
            let said = servers(to).unwrap_err();
            assert!(said.contains(text), "{to:?}: {said}");
        }
    }

    #[test]
    fn text_from_the_command_line_stays_text() {
        let hostile = "x\" } listen \"0.0.0.0:1\"; ${HOME}\n";
        let [cert, key] = [Some(hostile.to_owned()), Some(hostile.to_owned())];
        let reverse = Reverse {
            listen: vec![hostile.to_owned()],
            to: vec![hostile.to_owned()],
            cert,
            key,
            ..Reverse::default()
        };
        let errors = parse(&reverse.to_kdl(), "reverse").unwrap_err();
        assert_eq!(errors.count(), 4, "{errors}");
    }
}
