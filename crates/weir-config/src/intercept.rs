//! The configuration behind `weir intercept`. Called by the command line, which prints it or runs
//! it.

use std::fmt::Write as _;

use crate::reverse::{Common, literal};

/// The options of `weir intercept` on the command line that concern the proxy. Texts are checked
/// when the result is parsed.
#[derive(Debug, Clone, Default)]
pub struct Interception {
    /// Ports whose connections are intercepted.
    pub ports: Vec<u16>,
    /// Those of them that carry HTTP, which is parsed.
    pub http_ports: Vec<u16>,
    /// Connections over IPv6 as well.
    pub ipv6: bool,
    /// Options of connections with clients, by their names in `listen`.
    pub client: Vec<(&'static str, String)>,
    /// Options of connections to servers, by their names in `upstream`.
    pub server: Vec<(&'static str, String)>,
    /// The destination of the access log: a file, or `stdout`; None: no log.
    pub access_log: Option<String>,
    /// The user that weir becomes; None: it keeps its own.
    pub user: Option<String>,
    /// How to run.
    pub common: Common,
}

impl Interception {
    /// Returns the configuration as KDL: only values that differ from the defaults.
    pub fn to_kdl(&self) -> String {
        let mut out = self.common.to_kdl();
        for (name, value) in [("user", &self.user), ("access-log", &self.access_log)] {
            if let Some(value) = value {
                let _ = writeln!(out, "{name} {}", literal(value));
            }
        }
        let (http, plain): (Vec<u16>, Vec<u16>) =
            self.ports.iter().partition(|port| self.http_ports.contains(port));
        if !http.is_empty() {
            // A server that sees a proxy may respond differently, and the client has not asked for
            // a proxy. The server gets what was sent.
            out.push_str("client { via #false; underscores #true; }\n");
            self.listeners(&http, "", &mut out);
            out.push_str("route { proxy \"requests\"; }\n");
            self.upstream("requests", &mut out);
        }
        if !plain.is_empty() {
            out.push_str("tcp {\n");
            self.listeners(&plain, "    ", &mut out);
            out.push_str("    proxy \"through\"\n}\n");
            self.upstream("through", &mut out);
        }
        out
    }

    fn listeners(&self, ports: &[u16], indent: &str, out: &mut String) {
        let hosts: &[&str] = if self.ipv6 { &["0.0.0.0", "[::]"] } else { &["0.0.0.0"] };
        let options: String =
            self.client.iter().map(|(name, value)| format!(" {name}={}", literal(value))).collect();
        for (port, host) in ports.iter().flat_map(|port| hosts.iter().map(move |host| (port, host)))
        {
            let _ = writeln!(out, "{indent}listen \"{host}:{port}\" transparent=#true{options}");
        }
    }

    fn upstream(&self, name: &str, out: &mut String) {
        let _ = writeln!(
            out,
            "upstream \"{name}\" {{\n    server \"original-destination\"\n    source \"client\""
        );
        for (name, value) in &self.server {
            let _ = writeln!(out, "    {name} {}", literal(value));
        }
        out.push_str("}\n");
    }
}

#[cfg(test)]
mod tests {
    //! Proves: the text is a configuration with the requested values. How: examples.

    use std::sync::Arc;

    use weir_proxy::plan::{Congestion, Pool, Serves, Source, Tunable, Tuning};

    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let all = Interception {
            ports: vec![80, 443],
            ipv6: true,
            client: vec![("congestion", "bbr".to_owned()), ("mss", "1200".to_owned())],
            server: vec![("congestion", "cubic".to_owned()), ("max-rate", "20Mbit/s".to_owned())],
            ..Interception::default()
        };
        let http = |ports: &[u16]| Interception {
            http_ports: ports.to_vec(),
            access_log: Some("stdout".to_owned()),
            ..all.clone()
        };
        let least = Interception { ports: vec![8080], ipv6: false, ..Interception::default() };
        for asked in [all.clone(), least, http(&[80]), http(&[80, 443])] {
            let text = asked.to_kdl();
            let config =
                crate::parse(&text, "(test)").unwrap_or_else(|errors| panic!("{text}\n{errors}"));
            assert_eq!(
                config.plan.listeners.len(),
                if asked.ipv6 { 2 } else { 1 } * asked.ports.len()
            );
            assert!(config.plan.listeners.iter().all(|listener| listener.transparent));
            let is_all = asked.ipv6;
            let of = |tuning: &Option<Arc<Tuning>>, option| {
                tuning.as_ref().and_then(|tuning| tuning.get(option))
            };
            for listener in &config.plan.listeners {
                assert_eq!(
                    listener.congestion,
                    Congestion::new(is_all.then_some("bbr").into_iter())
                );
                assert_eq!(of(&listener.tuning, Tunable::Mss), is_all.then_some(1200));
            }
            let read = config
                .plan
                .listeners
                .iter()
                .filter(|listener| listener.serves == Serves::Reverse)
                .count();
            assert_eq!(read, 2 * asked.http_ports.len());
            for upstream in &config.plan.upstreams {
                let dial = &upstream.dial;
                assert_eq!(
                    dial.congestion,
                    Congestion::new(["cubic"].into_iter().filter(|_| is_all))
                );
                assert_eq!(of(&dial.tuning, Tunable::MaxRate), is_all.then_some(2_500_000));
                assert!(upstream.is_destination() && dial.source == Source::Client);
                assert_eq!(
                    upstream.pool,
                    if upstream.name == "requests" { Pool::Pinned } else { Pool::Tcp }
                );
            }
            assert_eq!(
                (config.plan.access_log.is_some(), config.plan.client.via),
                (read > 0, read == 0)
            );
        }
        let wrong = Interception { server: vec![("congestion", "B\"R".to_owned())], ..all };
        assert!(crate::parse(&wrong.to_kdl(), "(test)").is_err());
    }
}
