//! The configuration that `weir intercept` stands for. Called by the command line, which prints it or runs it.

use std::fmt::Write as _;

use crate::reverse::{Common, literal};

/// What of the command line of `weir intercept` is a matter of the proxy. Texts are checked when the result is parsed.
#[derive(Debug, Clone, Default)]
pub struct Interception {
    /// Ports whose connections are taken.
    pub ports: Vec<u16>,
    /// Those of IPv6, too.
    pub ipv6: bool,
    /// Options of connections with clients, by their names in `listen`.
    pub client: Vec<(&'static str, String)>,
    /// The same of those to servers, in `upstream`.
    pub server: Vec<(&'static str, String)>,
    /// Who weir becomes; None: it stays who it is.
    pub user: Option<String>,
    /// How to run.
    pub common: Common,
}

impl Interception {
    /// The configuration as KDL: only what differs from the defaults.
    pub fn to_kdl(&self) -> String {
        let mut out = self.common.to_kdl();
        if let Some(user) = &self.user {
            let _ = writeln!(out, "user {}", literal(user));
        }
        let hosts: &[&str] = if self.ipv6 { &["0.0.0.0", "[::]"] } else { &["0.0.0.0"] };
        let options: String = self.client.iter().map(|(name, value)| format!(" {name}={}", literal(value))).collect();
        out.push_str("tcp {\n");
        for (port, host) in self.ports.iter().flat_map(|port| hosts.iter().map(move |host| (port, host))) {
            let _ = writeln!(out, "    listen \"{host}:{port}\" transparent=#true{options}");
        }
        out.push_str("    proxy \"through\"\n}\nupstream \"through\" {\n    server \"original-destination\"\n");
        out.push_str("    source \"client\"\n");
        for (name, value) in &self.server {
            let _ = writeln!(out, "    {name} {}", literal(value));
        }
        out.push_str("}\n");
        out
    }
}

#[cfg(test)]
mod tests {
    //! Proves: what is written is a configuration, with what was asked. How: examples.

    use std::sync::Arc;

    use weir_proxy::plan::{Congestion, Tunable, Tuning};

    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let all = Interception {
            ports: vec![80, 443],
            ipv6: true,
            client: vec![("congestion", "bbr".to_owned()), ("mss", "1200".to_owned())],
            server: vec![("congestion", "cubic,reno".to_owned()), ("max-rate", "20Mbit/s".to_owned())],
            ..Interception::default()
        };
        for asked in [all.clone(), Interception { ports: vec![8080], ipv6: false, ..Interception::default() }] {
            let text = asked.to_kdl();
            let config = crate::parse(&text, "(test)").unwrap_or_else(|errors| panic!("{text}\n{errors}"));
            assert_eq!(config.plan.listeners.len(), if asked.ipv6 { 2 } else { 1 } * asked.ports.len());
            assert!(config.plan.listeners.iter().all(|listener| listener.transparent));
            let is_all = asked.ipv6;
            let of = |tuning: &Option<Arc<Tuning>>, option| tuning.as_ref().and_then(|tuning| tuning.get(option));
            for listener in &config.plan.listeners {
                assert_eq!(listener.congestion, Congestion::new(is_all.then_some("bbr").into_iter()));
                assert_eq!(of(&listener.tuning, Tunable::Mss), is_all.then_some(1200));
            }
            let dial = &config.plan.upstreams[0].dial;
            assert_eq!(dial.congestion, Congestion::new(["cubic", "reno"].into_iter().filter(|_| is_all)));
            assert_eq!(of(&dial.tuning, Tunable::MaxRate), is_all.then_some(2_500_000));
        }
        let wrong = Interception { server: vec![("congestion", "B\"R".to_owned())], ..all };
        assert!(crate::parse(&wrong.to_kdl(), "(test)").is_err());
    }
}
