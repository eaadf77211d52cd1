//! The configuration behind `weir forward`. Called by the command line, which prints it or runs it.

use std::fmt::Write as _;

use crate::reverse::{Common, literal};

/// The options of `weir forward` on the command line. Texts are checked when the result is parsed.
#[derive(Debug, Clone, Default)]
pub struct Forward {
    /// `address:port` of each listener.
    pub listen: Vec<String>,
    /// File of users; None: no authentication.
    pub users: Option<String>,
    /// Ranges of clients that may use it; none: all.
    pub clients: Vec<String>,
    /// Ranges of destinations that are open although they are not public.
    pub allow_addresses: Vec<String>,
    /// Ports that are open although they are not usual.
    pub allow_ports: Vec<String>,
    /// Names of destinations that are allowed, and no others; none: all.
    pub allow_names: Vec<String>,
    /// Names of destinations that are denied.
    pub deny_names: Vec<String>,
    /// Name servers; none: those of the system.
    pub resolvers: Vec<String>,
    /// `auto`, or the path of a PAC file; None: no PAC file.
    pub pac: Option<String>,
    /// How to run.
    pub common: Common,
}

impl Forward {
    /// Returns the configuration as KDL: only values that differ from the defaults.
    pub fn to_kdl(&self) -> String {
        let mut out = self.common.to_kdl();
        out.push_str("forward {\n");
        for address in &self.listen {
            let _ = writeln!(out, "    listen {}", literal(address));
        }
        for (name, value) in [("users", &self.users), ("pac", &self.pac)] {
            if let Some(value) = value {
                let _ = writeln!(out, "    {name} {}", literal(value));
            }
        }
        if !self.resolvers.is_empty() {
            let _ = writeln!(out, "    resolver{}", values(&self.resolvers));
        }
        for rule in self.rules() {
            let _ = writeln!(out, "    {rule}");
        }
        out.push_str("}\n");
        out
    }

    /// An open address or port is open for all names; both together mean those addresses also on
    /// those ports.
    fn rules(&self) -> Vec<String> {
        let criterion = |name: &str, list: &[String]| match list {
            [] => String::new(),
            list => format!(" {name}={}", literal(&list.join(","))),
        };
        let (clients, ports) =
            (criterion("client", &self.clients), criterion("port", &self.allow_ports));
        let addresses = criterion("address", &self.allow_addresses);
        let names = values(&self.allow_names);
        let mut rules = Vec::new();
        if !self.deny_names.is_empty() {
            rules.push(format!("deny{}", values(&self.deny_names)));
        }
        let mut allow = |criteria: String| rules.push(format!("allow{criteria}{clients}"));
        if !addresses.is_empty() {
            if !ports.is_empty() {
                allow(format!("{addresses}{ports}"));
            }
            allow(addresses);
        }
        if !ports.is_empty() {
            allow(format!("{names}{ports}"));
        }
        let is_list = !names.is_empty() || !clients.is_empty();
        if is_list {
            allow(names);
            rules.push("deny".to_owned());
        }
        rules
    }
}

fn values(list: &[String]) -> String {
    list.iter().map(|text| format!(" {}", literal(text))).collect()
}

#[cfg(test)]
mod tests {
    //! Proves: flags mean what their help says. How: the text for each combination, and the policy
    //! that it compiles to.

    use super::*;
    use crate::parse;
    use weir_proxy::forward::policy::{Policy, Refusal, Wanted};

    fn list(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn flags() -> Forward {
        Forward { listen: list(&["127.0.0.1:3128"]), ..Forward::default() }
    }

    fn policy(flags: &Forward) -> Policy {
        let text = flags.to_kdl();
        parse(&text, "forward")
            .unwrap_or_else(|errors| panic!("{errors}\n{text}"))
            .plan
            .forward
            .unwrap()
            .policy
    }

    fn verdict(policy: &Policy, host: &str, port: u16, address: &str) -> Result<(), Refusal> {
        let client = "10.0.0.7".parse().unwrap();
        let host = host.as_bytes();
        let wanted =
            Wanted { host, literal: None, port, method: b"CONNECT", client, user: None, wall_s: 0 };
        policy.check(&wanted).and_then(|()| policy.check_address(&wanted, address.parse().unwrap()))
    }

    #[test]
    fn without_flags_there_are_no_rules() {
        assert_eq!(flags().to_kdl(), "forward {\n    listen \"127.0.0.1:3128\"\n}\n");
    }

    #[test]
    fn addresses_and_ports_add_up() {
        let both = Forward {
            allow_addresses: list(&["10.0.0.0/8"]),
            allow_ports: list(&["22", "8000-8009"]),
            ..flags()
        };
        let policy = policy(&both);
        for (port, address, expected) in [
            (443, "10.0.0.1", Ok(())),
            (22, "10.0.0.1", Ok(())),
            (8005, "8.8.8.8", Ok(())),
            (443, "8.8.8.8", Ok(())),
            (443, "192.168.0.1", Err(Refusal::Address)),
            (22, "192.168.0.1", Err(Refusal::Address)),
            (25, "10.0.0.1", Err(Refusal::Port)),
        ] {
            assert_eq!(verdict(&policy, "a.example", port, address), expected, "{address} {port}");
        }
    }

    #[test]
    fn allowed_names_are_the_only_ones() {
        let names = Forward {
            allow_names: list(&["example.com", "example.org"]),
            deny_names: list(&["ads.example.com"]),
            allow_ports: list(&["22"]),
            ..flags()
        };
        let policy = policy(&names);
        assert_eq!(verdict(&policy, "www.example.com", 443, "8.8.8.8"), Ok(()));
        assert_eq!(verdict(&policy, "www.example.org", 22, "8.8.8.8"), Ok(()));
        assert_eq!(verdict(&policy, "a.ads.example.com", 443, "8.8.8.8"), Err(Refusal::Rule));
        assert_eq!(verdict(&policy, "example.net", 443, "8.8.8.8"), Err(Refusal::Rule));
        assert_eq!(verdict(&policy, "example.net", 22, "8.8.8.8"), Err(Refusal::Rule));
    }

    #[test]
    fn other_clients_may_do_nothing() {
        let ours = Forward { clients: list(&["10.0.0.0/8"]), ..flags() };
        assert_eq!(verdict(&policy(&ours), "a.example", 443, "8.8.8.8"), Ok(()));
        let others = Forward {
            clients: list(&["192.168.0.0/16"]),
            allow_addresses: list(&["10.0.0.0/8"]),
            allow_ports: list(&["22"]),
            ..flags()
        };
        for port in [443, 22] {
            assert_eq!(
                verdict(&policy(&others), "a.example", port, "10.0.0.1"),
                Err(Refusal::Rule)
            );
        }
    }

    #[test]
    fn text_from_the_command_line_stays_text() {
        let hostile = "x\" } listen \"0.0.0.0:1\"; ${HOME}\n";
        let forward = Forward {
            listen: list(&[hostile]),
            deny_names: list(&[hostile]),
            ..Forward::default()
        };
        let errors = parse(&forward.to_kdl(), "forward").unwrap_err();
        assert_eq!(errors.count(), 2, "{errors}");
    }
}
