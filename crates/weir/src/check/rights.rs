//! Rights that a configuration needs beyond those of every user (capabilities(7)). Called by
//! `weir check`, which cannot know the user that will run weir: the rights of a shell are not those
//! of a service.

use std::fs;

use serde_json::{Value, json};
use weir_proxy::plan::{BanVia, Plan};

use crate::ways;

/// A right, and its purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Right {
    capability: &'static str,
    what: String,
    /// What happens without it; None: weir does not start.
    without: Option<&'static str>,
}

/// Returns the rights that a configuration needs.
pub(super) fn needed(plan: &Plan) -> Vec<Right> {
    needed_from(plan, unprivileged_from())
}

/// The same for a system where every user may listen on the ports from this number on.
fn needed_from(plan: &Plan, unprivileged_from: u16) -> Vec<Right> {
    let mut rights = Vec::new();
    let ports =
        plan.listeners.iter().filter_map(|listener| Some(listener.address.network()?.port()));
    let mut ports: Vec<u16> = ports.filter(|port| (1..unprivileged_from).contains(port)).collect();
    ports.sort_unstable();
    ports.dedup();
    if !ports.is_empty() {
        let shown: Vec<String> = ports.iter().map(u16::to_string).collect();
        let what = format!(
            "to listen on {} {}",
            if ports.len() == 1 { "port" } else { "ports" },
            shown.join(", ")
        );
        rights.push(Right { capability: "CAP_NET_BIND_SERVICE", what, without: None });
    }
    if ways::need_raw(plan) {
        let what = "`transparent`, `source \"client\"`, `mark` or `device`".to_owned();
        rights.push(Right { capability: "CAP_NET_RAW", what, without: None });
    }
    let bans = plan.shield.as_ref().and_then(|shield| shield.ban.as_ref());
    if let Some(ban) = bans.filter(|ban| ban.via != BanVia::User) {
        let is_xdp = matches!(ban.via, BanVia::Xdp(_));
        let what = if is_xdp {
            "`ban` by `via=\"xdp\"`"
        } else {
            "`ban`, to have the kernel drop packets"
        };
        let without = Some("weir itself resets connections of banned clients, which costs more");
        rights.push(Right { capability: "CAP_NET_ADMIN", what: what.to_owned(), without });
        if is_xdp {
            let without = Some("a table of nftables drops the packets instead");
            rights.push(Right { capability: "CAP_BPF", what: what.to_owned(), without });
        }
    }
    rights
}

/// Returns the first port on which every user may listen (ip-sysctl(7)).
fn unprivileged_from() -> u16 {
    let written = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
    written.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(1024)
}

impl Right {
    /// Returns a line for people.
    pub(super) fn line(&self) -> String {
        let Right { capability, what, without } = self;
        let without = without.map_or_else(String::new, |without| format!("; without it {without}"));
        format!("needs {capability}: {what}{without}\n")
    }

    /// Returns JSON for programs.
    pub(super) fn json(&self) -> Value {
        json!({ "capability": self.capability, "for": self.what, "without": self.without })
    }
}

#[cfg(test)]
mod tests {
    //! Proves: needs for rights are reported with their purpose and what happens without, and
    //! nothing else is reported. How: configurations.

    use super::*;

    fn of(text: &str) -> String {
        let text = format!("{text}\nroute {{ respond 204; }}\n");
        let config =
            weir_config::parse(&text, "(test)").unwrap_or_else(|errors| panic!("{errors}"));
        needed_from(&config.plan, 1024).iter().map(Right::line).collect()
    }

    #[test]
    fn rights_are_told_with_their_reasons() {
        assert_eq!(
            of(
                "listen \"127.0.0.1:8080\"\nshield { limit \"a\" count=\"requests\" rate=\"1/s\"; }"
            ),
            ""
        );
        assert_eq!(
            of("listen \"127.0.0.1:443\"\nlisten \"[::1]:80\"\nlisten \"127.0.0.1:80\""),
            "needs CAP_NET_BIND_SERVICE: to listen on ports 80, 443\n"
        );
        let raw = of("listen \"127.0.0.1:8080\" mark=7");
        assert!(raw.starts_with("needs CAP_NET_RAW: ") && raw.lines().count() == 1, "{raw}");
        let limit = "limit \"a\" count=\"requests\" rate=\"1/s\"";
        let bans = |via: &str| {
            of(&format!(
                "listen \"127.0.0.1:8080\"\nshield {{ {limit}; ban after=2 within=\"1m\" {via}; }}"
            ))
        };
        let nft = bans("");
        assert!(
            nft.starts_with(
                "needs CAP_NET_ADMIN: `ban`, to have the kernel drop packets; without it "
            ),
            "{nft}"
        );
        assert_eq!(bans("via=\"user\""), "");
    }
}
