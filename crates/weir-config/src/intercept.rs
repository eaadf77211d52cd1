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
    /// The congestion control towards clients; None leaves the default.
    pub client_congestion: Option<String>,
    /// The same towards servers.
    pub server_congestion: Option<String>,
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
        let named = |name| format!(" congestion={}", literal(name));
        let congestion = self.client_congestion.as_deref().map_or_else(String::new, named);
        out.push_str("tcp {\n");
        for (port, host) in self.ports.iter().flat_map(|port| hosts.iter().map(move |host| (port, host))) {
            let _ = writeln!(out, "    listen \"{host}:{port}\" transparent=#true{congestion}");
        }
        out.push_str("    proxy \"through\"\n}\nupstream \"through\" {\n    server \"original-destination\"\n");
        out.push_str("    source \"client\"\n");
        if let Some(name) = &self.server_congestion {
            let _ = writeln!(out, "    congestion {}", literal(name));
        }
        out.push_str("}\n");
        out
    }
}

#[cfg(test)]
mod tests {
    //! Proves: what is written is a configuration, with what was asked. How: examples.

    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let all = Interception {
            ports: vec![80, 443],
            ipv6: true,
            client_congestion: Some("bbr".to_owned()),
            server_congestion: Some("cubic".to_owned()),
            ..Interception::default()
        };
        for asked in [all.clone(), Interception { ports: vec![8080], ipv6: false, ..Interception::default() }] {
            let text = asked.to_kdl();
            let config = crate::parse(&text, "(test)").unwrap_or_else(|errors| panic!("{text}\n{errors}"));
            assert_eq!(config.plan.listeners.len(), if asked.ipv6 { 2 } else { 1 } * asked.ports.len());
            assert!(config.plan.listeners.iter().all(|listener| listener.transparent));
            assert!(
                config
                    .plan
                    .listeners
                    .iter()
                    .all(|listener| listener.congestion.as_deref() == asked.client_congestion.as_deref())
            );
            assert_eq!(config.plan.upstreams[0].dial.congestion.as_deref(), asked.server_congestion.as_deref());
        }
        let wrong = Interception { server_congestion: Some("B\"R".to_owned()), ..all };
        assert!(crate::parse(&wrong.to_kdl(), "(test)").is_err());
    }
}
