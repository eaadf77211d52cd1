//! The client of a request, and the scheme it uses: the client of the connection, or the client for
//! which a trusted proxy has forwarded the request.
//!
//! The configured field is read from right to left. Each address in it was written by the proxy to
//! the right of it, so it is believed as long as that proxy is trusted. The first untrusted address
//! is the client, whatever is to the left of it. Called where the address is needed (rules, the
//! access log, `hash`), each time from scratch: without `trusted-proxies` it is one comparison.
//! Bound: linear in the head, and never further than the first untrusted address. RFC 7239 §4,
//! docs/client-address.md.

use std::net::{IpAddr, SocketAddr};

use weir_http::{FieldName, Fields};

use crate::plan::{AddressField, ClientPlan, NO_ADDRESS};

/// The client of a request on a connection of `peer`.
#[inline]
pub(crate) fn client_address(
    peer: IpAddr,
    fields: &Fields,
    bytes: &[u8],
    plan: &ClientPlan,
) -> IpAddr {
    if plan.trusts(peer) {
        believed(fields, bytes, plan).0.map_or(peer, |client| client.ip())
    } else {
        peer
    }
}

/// The same with its port; 0: a proxy has forwarded the request, and does not say the port.
pub(crate) fn client_socket_address(
    peer: SocketAddr,
    fields: &Fields,
    bytes: &[u8],
    plan: &ClientPlan,
) -> SocketAddr {
    let told = if plan.trusts(peer.ip()) { believed(fields, bytes, plan).0 } else { None };
    told.unwrap_or(peer)
}

/// The scheme of a request's client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spoken {
    /// TLS.
    pub(crate) sealed: bool,
    /// A trusted proxy has sent an invalid scheme: the connection's own scheme counts.
    pub(crate) is_doubtful: bool,
}

/// The scheme of the client of a request on a connection of `peer`. `sealed`: that connection uses
/// TLS.
#[inline]
pub(crate) fn client_scheme(
    peer: IpAddr,
    sealed: bool,
    fields: &Fields,
    bytes: &[u8],
    plan: &ClientPlan,
) -> Spoken {
    let told = if plan.trusts(peer) { told_scheme(fields, bytes, plan) } else { None };
    let scheme = told.map(|scheme| match scheme {
        _ if scheme.eq_ignore_ascii_case(b"https") => Some(true),
        _ if scheme.eq_ignore_ascii_case(b"http") => Some(false),
        _ => None,
    });
    Spoken { sealed: scheme.flatten().unwrap_or(sealed), is_doubtful: scheme == Some(None) }
}

/// The scheme that a trusted peer reports; None: nothing. Several lines, and lists, are not a
/// scheme: unlike in Forwarded, it is unknown which proxy has written which of them.
fn told_scheme<'a>(fields: &Fields, bytes: &'a [u8], plan: &ClientPlan) -> Option<&'a [u8]> {
    match plan.address_field {
        AddressField::XForwardedFor => {
            let mut lines = fields.all(FieldName::XForwardedProto);
            let first = lines.next()?.value.of(bytes);
            Some(if lines.next().is_none() { first } else { b"" })
        }
        AddressField::Forwarded => {
            believed(fields, bytes, plan).1.and_then(|element| parameter(element, b"proto="))
        }
    }
}

/// The client for which a trusted peer speaks (None: for itself), and the element of the field that
/// was read last: a trusted proxy wrote it.
fn believed<'a>(
    fields: &Fields,
    bytes: &'a [u8],
    plan: &ClientPlan,
) -> (Option<SocketAddr>, Option<&'a [u8]>) {
    let name = match plan.address_field {
        AddressField::XForwardedFor => FieldName::XForwardedFor,
        AddressField::Forwarded => FieldName::Forwarded,
    };
    let lines = fields.as_slice().iter().rev().filter(|field| field.known == name);
    let (mut client, mut last) = (None, None);
    for element in lines.flat_map(|field| split_backwards(field.value.of(bytes), b',')) {
        last = Some(element);
        let node = match plan.address_field {
            AddressField::XForwardedFor => Some(element),
            AddressField::Forwarded => parameter(element, b"for="),
        };
        let Some(before) = node.and_then(address) else { break };
        client = Some(before);
        if !plan.trusts(before.ip()) {
            break;
        }
    }
    (client, last)
}

/// The value of a parameter of an element of Forwarded, without quotes. `name` ends in `=`.
fn parameter<'a>(element: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut pairs = split_backwards(element, b';').map(<[u8]>::trim_ascii);
    let value = pairs.find_map(|pair| {
        let (start, value) = pair.split_at_checked(name.len())?;
        start.eq_ignore_ascii_case(name).then_some(value)
    })?;
    Some(value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value))
}

/// The parts between separators outside of quotes, last to first. Quotes are paired from the end as
/// well. So a quote that an untrusted client has left open, to the left of a proxy's text, does not
/// reach into that text; and text that a proxy has quoted, such as a requested host with commas,
/// remains one value.
fn split_backwards(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let at = last_unquoted(text, separator);
        rest = at.map(|at| &text[..at]);
        Some(at.map_or(text, |at| &text[at + 1..]))
    })
}

/// The position of the last separator outside of quotes.
fn last_unquoted(text: &[u8], separator: u8) -> Option<usize> {
    let mut at = text.len();
    while at > 0 {
        at -= 1;
        match text[at] {
            byte if byte == separator => return Some(at),
            b'"' => at = opening_quote(&text[..at])?,
            _ => {}
        }
    }
    None
}

/// The position where the quotes open that end behind this text (RFC 9110 §5.6.4).
fn opening_quote(text: &[u8]) -> Option<usize> {
    let mut end = text.len();
    loop {
        let at = text[..end].iter().rposition(|byte| *byte == b'"')?;
        let escapes = text[..at].iter().rev().take_while(|byte| **byte == b'\\').count();
        if escapes % 2 == 0 {
            return Some(at);
        }
        end = at;
    }
}

/// An address, possibly with a port (otherwise 0), and then with brackets for IPv6 (RFC 7239 §6).
fn address(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare
        .parse::<IpAddr>()
        .map(|address| SocketAddr::new(address, 0))
        .or_else(|_| text.parse::<SocketAddr>());
    let address =
        address.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()));
    // The value that represents clients without an address is not accepted.
    address.ok().filter(|address| address.ip() != NO_ADDRESS)
}

#[cfg(test)]
mod tests {
    //! Proves: which address counts, whatever a client has written in front of the text of trusted
    //! proxies. How: tables, and chains of proxies behind hostile text.

    use proptest::prelude::*;
    use weir_http::Limits;

    use super::*;
    use crate::plan::Network;

    fn plan(address_field: AddressField) -> ClientPlan {
        let network =
            |address: &str, prefix_bits| Network { address: address.parse().unwrap(), prefix_bits };
        let trusted_proxies = vec![network("10.0.0.0", 8), network("fd00::", 8), Network::LOCAL];
        ClientPlan { trusted_proxies, address_field, ..ClientPlan::default() }
    }

    fn parsed(lines: &[&str]) -> (String, Fields) {
        let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let mut fields = Fields::default();
        weir_http::parse_request(text.as_bytes(), &Limits::default(), &mut fields)
            .unwrap()
            .unwrap();
        (text, fields)
    }

    fn found(plan: &ClientPlan, peer: &str, lines: &[&str]) -> String {
        let (text, fields) = parsed(lines);
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
            (
                "fd00::1",
                &["X-Forwarded-For: 203.0.113.9", "X-A: b", "x-forwarded-for: 198.51.100.1"],
                "198.51.100.1",
            ),
            ("10.0.0.1", &["X-Forwarded-For: 10.0.0.3,10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", &["X-Forwarded-For: 203.0.113.9, unknown, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["X-Forwarded-For: 203.0.113.9,"], "10.0.0.1"),
            ("10.0.0.1", &["X-Forwarded-For: 198.51.100.1:4711"], "198.51.100.1"),
            ("10.0.0.1", &["X-Forwarded-For: [2001:db8::1]:4711"], "2001:db8::1"),
            ("10.0.0.1", &["X-Forwarded-For: 2001:db8::1"], "2001:db8::1"),
            ("10.0.0.1", &["Forwarded: for=198.51.100.1"], "10.0.0.1"),
            // Over a unix socket, which is trusted; no other client can claim to use one.
            ("::", &["X-Forwarded-For: 198.51.100.1"], "198.51.100.1"),
            ("::", &["X-Forwarded-For: 198.51.100.1, 10.0.0.2"], "198.51.100.1"),
            ("::", &["X-Forwarded-For: 198.51.100.1, unknown"], "::"),
            ("10.0.0.1", &["X-Forwarded-For: 198.51.100.1, ::"], "10.0.0.1"),
            ("10.0.0.1", &["X-Forwarded-For: 198.51.100.1, unix:"], "10.0.0.1"),
        ] {
            assert_eq!(found(&plan, peer, lines), expected, "{peer} {lines:?}");
        }
        let many = ["X-Forwarded-For: 203.0.113.9"; 50];
        assert_eq!(
            found(&plan, "10.0.0.1", &[&many[..], &["X-Forwarded-For: 198.51.100.1"]].concat()),
            "198.51.100.1"
        );
    }

    /// The port belongs to the same client as the address.
    #[test]
    fn ports() {
        let plans = [AddressField::XForwardedFor, AddressField::Forwarded].map(plan);
        for (field, peer, lines, expected) in [
            (0, "192.0.2.1:4711", &["X-Forwarded-For: 198.51.100.1:80"][..], "192.0.2.1:4711"),
            (0, "10.0.0.1:4711", &[], "10.0.0.1:4711"),
            (0, "10.0.0.1:4711", &["X-Forwarded-For: 198.51.100.1"], "198.51.100.1:0"),
            (
                0,
                "10.0.0.1:4711",
                &["X-Forwarded-For: [2001:db8::1]:80, 10.0.0.2:81"],
                "[2001:db8::1]:80",
            ),
            (0, "10.0.0.1:4711", &["X-Forwarded-For: 198.51.100.1:80, unknown"], "10.0.0.1:4711"),
            (0, "10.0.0.1:4711", &["X-Forwarded-For: unknown, 10.0.0.2:81"], "10.0.0.2:81"),
            (1, "10.0.0.1:4711", &["Forwarded: for=\"198.51.100.1:80\""], "198.51.100.1:80"),
        ] {
            let (text, fields) = parsed(lines);
            let found = client_socket_address(
                peer.parse().unwrap(),
                &fields,
                text.as_bytes(),
                &plans[field],
            );
            assert_eq!(found.to_string(), expected, "{lines:?}");
        }
    }

    #[test]
    fn forwarded() {
        let plan = plan(AddressField::Forwarded);
        for (lines, expected) in [
            (&["Forwarded: for=198.51.100.1"][..], "198.51.100.1"),
            (
                &["Forwarded: For=203.0.113.9, by=10.0.0.1; FOR=\"198.51.100.1:80\" ;proto=https"],
                "198.51.100.1",
            ),
            (&["Forwarded: for=\"[2001:db8::1]:4711\""], "2001:db8::1"),
            (&["Forwarded: for=\"[2001:db8::1]\""], "2001:db8::1"),
            (
                &["Forwarded: for=203.0.113.9", "Forwarded: for=198.51.100.1;host=a, for=10.0.0.2"],
                "198.51.100.1",
            ),
            (&["Forwarded: for=\"203.0.113.9, for=198.51.100.1"], "198.51.100.1"),
            (&["Forwarded: for=203.0.113.9, for=_hidden"], "10.0.0.1"),
            (&["Forwarded: for=203.0.113.9, proto=https"], "10.0.0.1"),
            (&["X-Forwarded-For: 198.51.100.1"], "10.0.0.1"),
            // A requested host, quoted by the proxy.
            (&["Forwarded: for=198.51.100.1;host=\"a,for=203.0.113.9;b\""], "198.51.100.1"),
            (&["Forwarded: for=198.51.100.1;host=\"\\\",for=203.0.113.9;b\""], "198.51.100.1"),
            (&["Forwarded: host=\"a;for=203.0.113.9;b\";for=198.51.100.1"], "198.51.100.1"),
            (&["Forwarded: a=\"b\", for=198.51.100.1;host=\"c\", for=10.0.0.2"], "198.51.100.1"),
            (&["Forwarded: for=198.51.100.1, for=\"10.0.0.2"], "10.0.0.1"),
        ] {
            assert_eq!(found(&plan, "10.0.0.1", lines), expected, "{lines:?}");
        }
    }

    /// "https", "http", and "-" in front if an invalid scheme was sent.
    fn scheme(plan: &ClientPlan, peer: &str, sealed: bool, lines: &[&str]) -> &'static str {
        let (text, fields) = parsed(lines);
        let spoken = client_scheme(peer.parse().unwrap(), sealed, &fields, text.as_bytes(), plan);
        match (spoken.sealed, spoken.is_doubtful) {
            (true, false) => "https",
            (false, false) => "http",
            (true, true) => "-https",
            (false, true) => "-http",
        }
    }

    #[test]
    fn schemes() {
        let plans = [AddressField::XForwardedFor, AddressField::Forwarded].map(plan);
        for (field, peer, sealed, lines, expected) in [
            (0, "192.0.2.1", false, &["X-Forwarded-Proto: https"][..], "http"),
            (0, "192.0.2.1", true, &["X-Forwarded-Proto: http"], "https"),
            (0, "192.0.2.1", false, &["X-Forwarded-Proto: nonsense"], "http"),
            (0, "10.0.0.1", false, &["X-Forwarded-Proto: https"], "https"),
            (0, "10.0.0.1", true, &["x-forwarded-proto:  HTTP "], "http"),
            (0, "10.0.0.1", true, &["Forwarded: for=198.51.100.1;proto=http"], "https"),
            (0, "10.0.0.1", true, &[], "https"),
            (0, "10.0.0.1", false, &["X-Forwarded-Proto: https, http"], "-http"),
            (
                0,
                "10.0.0.1",
                false,
                &["X-Forwarded-Proto: https", "X-Forwarded-Proto: https"],
                "-http",
            ),
            (0, "10.0.0.1", true, &["X-Forwarded-Proto:"], "-https"),
            (0, "10.0.0.1", true, &["X-Forwarded-Proto: wss"], "-https"),
            (1, "192.0.2.1", false, &["Forwarded: for=198.51.100.1;proto=https"], "http"),
            (1, "10.0.0.1", false, &["Forwarded: for=198.51.100.1;proto=https"], "https"),
            (1, "10.0.0.1", false, &["X-Forwarded-Proto: https"], "http"),
            (1, "10.0.0.1", true, &["Forwarded: proto=\"http\""], "http"),
            (1, "10.0.0.1", false, &["Forwarded: for=a;proto=https, for=198.51.100.1"], "http"),
            (
                1,
                "10.0.0.1",
                false,
                &["Forwarded: for=198.51.100.1;PROTO=https, for=10.0.0.2;proto=http"],
                "https",
            ),
            (
                1,
                "10.0.0.1",
                false,
                &["Forwarded: for=203.0.113.9;proto=https, for=198.51.100.1;proto=http"],
                "http",
            ),
            (
                1,
                "10.0.0.1",
                false,
                &["Forwarded: for=198.51.100.1;host=\"a;proto=https;b\""],
                "http",
            ),
            (1, "10.0.0.1", false, &["Forwarded: for=198.51.100.1;proto=ftp"], "-http"),
        ] {
            assert_eq!(scheme(&plans[field], peer, sealed, lines), expected, "{peer} {lines:?}");
        }
    }

    proptest! {
        /// Each trusted proxy appends the address of its client.
        #[test]
        fn c7_nobody_is_believed_who_is_not_trusted(
            hostile in prop::collection::vec("[ -~]{0,30}", 0..4),
            proxies in 0usize..4,
            by_line in any::<bool>(),
            is_standard in any::<bool>(),
        ) {
            let plan = plan(if is_standard {
                AddressField::Forwarded
            } else {
                AddressField::XForwardedFor
            });
            let (name, before) =
                if is_standard { ("Forwarded", "for=") } else { ("X-Forwarded-For", "") };
            let chain = std::iter::once("198.51.100.1".to_owned())
                .chain((0..proxies).map(|n| format!("10.0.0.{n}")));
            let mut lines: Vec<String> =
                hostile.iter().map(|text| format!("{name}: {text}")).collect();
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
