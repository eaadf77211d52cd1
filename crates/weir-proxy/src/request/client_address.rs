//! Who a request comes from: the client of the connection, or the one for whom a trusted proxy has passed it on.
//!
//! The field that is configured is read from right to left. Each address in it was written by the proxy to the right of it, so it is
//! believed as long as that one is trusted; the first that is not trusted is the client, whatever stands to the left of it. Called where
//! the address is needed (rules, the access log, `hash`), each time anew: without `trusted-proxies` it is one comparison. Bound: linear in
//! the head, and never further than the first address that is not trusted. RFC 7239 §4, docs/semantics.md §17.

use std::net::{IpAddr, SocketAddr};

use weir_http::{FieldName, Fields};

use crate::plan::{AddressField, ClientPlan};

/// The client of a request on a connection of `peer`.
#[inline]
pub(crate) fn client_address(peer: IpAddr, fields: &Fields, bytes: &[u8], plan: &ClientPlan) -> IpAddr {
    if plan.trusts(peer) { believed(peer, fields, bytes, plan) } else { peer }
}

/// The same for a peer that is trusted.
fn believed(peer: IpAddr, fields: &Fields, bytes: &[u8], plan: &ClientPlan) -> IpAddr {
    let name = match plan.address_field {
        AddressField::XForwardedFor => FieldName::XForwardedFor,
        AddressField::Forwarded => FieldName::Forwarded,
    };
    let lines = fields.as_slice().iter().rev().filter(|field| field.known == name);
    let mut client = peer;
    for element in lines.flat_map(|field| field.value.of(bytes).rsplit(|byte| *byte == b',')) {
        let node = match plan.address_field {
            AddressField::XForwardedFor => Some(element),
            AddressField::Forwarded => for_parameter(element),
        };
        let Some(before) = node.and_then(address) else { return client };
        client = before;
        if !plan.trusts(client) {
            return client;
        }
    }
    client
}

/// The value of `for` of an element of Forwarded, without quotes. A comma or semicolon within quotes can only stand in what is not
/// believed: no address has any.
fn for_parameter(element: &[u8]) -> Option<&[u8]> {
    let mut pairs = element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let value =
        pairs.find_map(|pair| pair.get(..4).filter(|name| name.eq_ignore_ascii_case(b"for=")).map(|_| &pair[4..]))?;
    Some(value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value))
}

/// An address, which may have a port, and then brackets if it is of IPv6 (RFC 7239 §6).
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    address.ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    //! Proves: which address counts, whatever a client has written in front of what trusted proxies wrote. How: tables, and chains of
    //! proxies behind hostile text.

    use proptest::prelude::*;
    use weir_http::Limits;

    use super::*;
    use crate::plan::Network;

    fn plan(address_field: AddressField) -> ClientPlan {
        let network = |address: &str, prefix_bits| Network { address: address.parse().unwrap(), prefix_bits };
        let trusted_proxies = vec![network("10.0.0.0", 8), network("fd00::", 8)];
        ClientPlan { trusted_proxies, address_field, ..ClientPlan::default() }
    }

    fn found(plan: &ClientPlan, peer: &str, lines: &[&str]) -> String {
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let mut fields = Fields::default();
        weir_http::parse_request(text.as_bytes(), &Limits::default(), &mut fields).unwrap().unwrap();
        client_address(peer.parse().unwrap(), &fields, text.as_bytes(), plan).to_string()
    }

    #[test]
    fn x_forwarded_for() {
        let plan = plan(AddressField::XForwardedFor);
        for (peer, lines, expected) in [
            ("192.0.2.1", &["X-Forwarded-For: 198.51.100.1"][..], "192.0.2.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["X-Forwarded-For: 198.51.100.1"], "198.51.100.1"),
            ("::ffff:10.0.0.1", &["X-Forwarded-For: ::ffff:198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["X-Forwarded-For: 203.0.113.9, 198.51.100.1, 10.0.0.2"], "198.51.100.1"),
            ("fd00::1", &["X-Forwarded-For: 203.0.113.9", "X-A: b", "x-forwarded-for: 198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", &["X-Forwarded-For: 10.0.0.3,10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", &["X-Forwarded-For: 203.0.113.9, unknown, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["X-Forwarded-For: 203.0.113.9,"], "10.0.0.1"),
            ("10.0.0.1", &["X-Forwarded-For: 198.51.100.1:4711"], "198.51.100.1"),
            ("10.0.0.1", &["X-Forwarded-For: [2001:db8::1]:4711"], "2001:db8::1"),
            ("10.0.0.1", &["X-Forwarded-For: 2001:db8::1"], "2001:db8::1"),
            ("10.0.0.1", &["Forwarded: for=198.51.100.1"], "10.0.0.1"),
        ] {
            assert_eq!(found(&plan, peer, lines), expected, "{peer} {lines:?}");
        }
        let many = ["X-Forwarded-For: 203.0.113.9"; 50];
        assert_eq!(found(&plan, "10.0.0.1", &[&many[..], &["X-Forwarded-For: 198.51.100.1"]].concat()), "198.51.100.1");
    }

    #[test]
    fn forwarded() {
        let plan = plan(AddressField::Forwarded);
        for (lines, expected) in [
            (&["Forwarded: for=198.51.100.1"][..], "198.51.100.1"),
            (&["Forwarded: For=203.0.113.9, by=10.0.0.1; FOR=\"198.51.100.1:80\" ;proto=https"], "198.51.100.1"),
            (&["Forwarded: for=\"[2001:db8::1]:4711\""], "2001:db8::1"),
            (&["Forwarded: for=\"[2001:db8::1]\""], "2001:db8::1"),
            (&["Forwarded: for=203.0.113.9", "Forwarded: for=198.51.100.1;host=a, for=10.0.0.2"], "198.51.100.1"),
            (&["Forwarded: for=\"203.0.113.9, for=198.51.100.1"], "198.51.100.1"),
            (&["Forwarded: for=203.0.113.9, for=_hidden"], "10.0.0.1"),
            (&["Forwarded: for=203.0.113.9, proto=https"], "10.0.0.1"),
            (&["X-Forwarded-For: 198.51.100.1"], "10.0.0.1"),
        ] {
            assert_eq!(found(&plan, "10.0.0.1", lines), expected, "{lines:?}");
        }
    }

    proptest! {
        /// Each trusted proxy appends whom it was asked by.
        #[test]
        fn c7_nobody_is_believed_who_is_not_trusted(
            hostile in prop::collection::vec("[ -~]{0,30}", 0..4),
            proxies in 0usize..4,
            by_line in any::<bool>(),
            is_standard in any::<bool>(),
        ) {
            let plan = plan(if is_standard { AddressField::Forwarded } else { AddressField::XForwardedFor });
            let (name, before) = if is_standard { ("Forwarded", "for=") } else { ("X-Forwarded-For", "") };
            let chain = std::iter::once("198.51.100.1".to_owned()).chain((0..proxies).map(|n| format!("10.0.0.{n}")));
            let mut lines: Vec<String> = hostile.iter().map(|text| format!("{name}: {text}")).collect();
            for address in chain {
                match lines.last_mut() {
                    Some(last) if !by_line => *last += &format!(", {before}{address}"),
                    _ => lines.push(format!("{name}: {before}{address}")),
                }
            }
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            prop_assert_eq!(found(&plan, "10.1.0.1", &lines), "198.51.100.1");
        }
    }
}
