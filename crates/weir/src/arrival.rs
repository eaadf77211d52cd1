//! Checks whether packets arrive as a configuration with transparent listeners needs it. A problem
//! is only a warning, because rules may be added after weir starts.
//!
//! Reads only, and reports nothing if it cannot read. docs/transparent.md.

use std::fs;

use rustix::process::geteuid;
use weir_config::Arrival;
use weir_io::{Interfaces, Led};

/// Number of connections that netfilter knows in this namespace; the file exists where it can track
/// them.
const TRACKED: &str = "/proc/sys/net/netfilter/nf_conntrack_count";

/// Returns the problem and its remedy, for a weir that is about to run.
pub(crate) fn look(needed: Arrival) -> Option<(String, String)> {
    match needed {
        Arrival::ToSockets { is_ipv6 } => {
            let led =
                Interfaces::here().and_then(|mut interfaces| interfaces.led_here(is_ipv6)).ok()?;
            lead(led, is_ipv6)
        }
        Arrival::WithKeptPorts => {
            let known = fs::read_to_string(TRACKED).ok()?.trim().parse().ok()?;
            share(known)
        }
    }
}

/// The same for a check of a configuration: a user other than root may well do that on another
/// machine.
pub(crate) fn check(needed: Arrival) -> Option<(String, String)> {
    look(needed).filter(|_| geteuid().is_root())
}

/// Returns the message about what leads packets here.
fn lead(led: Led, is_ipv6: bool) -> Option<(String, String)> {
    let (family, ip) = if is_ipv6 { ("IPv6", "ip -6") } else { ("IPv4", "ip") };
    let marked = "and rules of nftables that mark packets (docs/transparent.md)";
    match led {
        Led::ByRule => None,
        Led::WithoutRule(table) => Some((
            format!(
                "no rule sends {family} packets to table {table}, whose route delivers foreign \
                    packets to local sockets"
            ),
            format!("{ip} rule add fwmark 1 lookup {table}; {marked}"),
        )),
        Led::Nowhere => Some((
            format!(
                "no route delivers {family} packets for other addresses to sockets of this \
                    machine: weir cannot accept such connections"
            ),
            format!(
                "{ip} route add local default dev lo table 100; {ip} rule add fwmark 1 lookup 100; \
                    {marked}"
            ),
        )),
    }
}

/// Returns the message for this number of connections that netfilter knows.
fn share(known: u64) -> Option<(String, String)> {
    (known > 0).then(|| {
        (
            "netfilter tracks connections here, and both sides of a connection have the same \
                addresses and ports: unless rules exempt them, they share an entry, and a client \
                that soon reuses a port may meet the old entry"
                .to_owned(),
            "exempt them from tracking (`notrack`, nft(8); weir does not check this), or remove \
                `source`"
                .to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    //! Proves: leading packets here needs a route and a rule, and the message names what is
    //! missing, with the commands for its family. How: given findings.

    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(lead(Led::ByRule, false), None);
        let (_, help) = lead(Led::Nowhere, false).unwrap();
        assert!(
            help.starts_with(
                "ip route add local default dev lo table 100; ip rule add fwmark 1 lookup 100;"
            ),
            "{help}"
        );
        let (_, help) = lead(Led::Nowhere, true).unwrap();
        assert!(
            help.starts_with("ip -6 route add local default dev lo table 100; ip -6 rule add"),
            "{help}"
        );
        let (what, help) = lead(Led::WithoutRule(7), false).unwrap();
        assert!(
            what.contains("to table 7") && help.starts_with("ip rule add fwmark 1 lookup 7;"),
            "{what} {help}"
        );
        assert!(share(0).is_none() && share(1).is_some());
    }
}
