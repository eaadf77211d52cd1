//! The identity of a request on its whole path: its identifier, and the trace that it belongs to.
//!
//! Only where `request-id` or `trace-context` of `client` asks for it; without them none of this
//! runs. Made when a head was parsed (`client/receive.rs`), carried by
//! [`Ruled`](crate::request::rules::Ruled), which sends it to servers like the lines of rules;
//! written to the access log. Identifiers are UUIDs of version 7 (RFC 9562 §5.7), traces are those
//! of W3C Trace Context. Randomness is an argument: SipHash of a counter and the time under a
//! secret key. Bound: [`ID_BYTES_MAX`]. docs/request-ids.md.

use std::net::IpAddr;

use weir_http::Fields;

use crate::base::stamp::{hex, siphash};
use crate::plan::ClientPlan;

/// Longest identifier that is accepted from a trusted proxy.
pub const ID_BYTES_MAX: usize = 128;

/// The field with the trace.
pub const TRACE_PARENT: &str = "traceparent";
/// The field with further data of tracing systems; meaningless without the other.
pub const TRACE_STATE: &str = "tracestate";

/// Bytes of a trace parent of version 00.
const PARENT_BYTES: usize = 55;

/// The identity of one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its identifier; empty: it has none.
    id: Vec<u8>,
    /// Its trace parent; empty: it has none.
    parent: Vec<u8>,
    /// The trace begins here: a trace from the client is not forwarded.
    begins_trace: bool,
}

/// Makes identities. Each worker has one, with a separate key.
#[derive(Debug)]
pub(crate) struct Identities {
    key: [u64; 2],
    counter: u64,
}

impl Identities {
    /// `secret` also serves other identifiers, so the key is derived from it.
    pub(crate) fn new(secret: [u64; 2]) -> Identities {
        let key =
            [0u8, 1].map(|half| siphash(secret, &[b"identities".as_slice(), &[half]].concat()));
        Identities { key, counter: 0 }
    }

    /// Makes the identity of a request from a connection of `peer`. The times are that of the
    /// engine, and microseconds since 1970.
    pub(crate) fn identify(
        &mut self,
        fields: &Fields,
        bytes: &[u8],
        plan: &ClientPlan,
        peer: IpAddr,
        (now_us, wall_us): (u64, u64),
    ) -> Identity {
        let mut identity = Identity::default();
        if let Some(name) = &plan.request_id {
            let given = only(fields, bytes, name).filter(|id| is_id(id) && plan.trusts(peer));
            identity.id = given.map_or_else(|| self.uuid(now_us, wall_us), <[u8]>::to_vec);
        }
        if plan.trace_context {
            let given = only(fields, bytes, TRACE_PARENT).filter(|parent| is_parent(parent));
            identity.begins_trace = given.is_none();
            identity.parent = given.map_or_else(|| self.parent(now_us), <[u8]>::to_vec);
        }
        identity
    }

    /// The next unpredictable number.
    fn number(&mut self, now_us: u64) -> u64 {
        self.counter = self.counter.wrapping_add(1);
        // A worker that restarts counts from the beginning.
        let message = u128::from(now_us) << 64 | u128::from(self.counter);
        siphash(self.key, &message.to_le_bytes())
    }

    fn uuid(&mut self, now_us: u64, wall_us: u64) -> Vec<u8> {
        let [high, low] = [0; 2].map(|_| self.number(now_us));
        let high = (wall_us / 1000) << 16 | 0x7000 | high & 0x0fff;
        let low = 1 << 63 | low & (u64::MAX >> 2);
        let (high, low) = (hex(high), hex(low));
        [&high[..8], &high[8..12], &high[12..], &low[..4], &low[4..]].join(&b'-')
    }

    /// A new trace, recorded by servers that leave that choice to the trace's origin.
    fn parent(&mut self, now_us: u64) -> Vec<u8> {
        // None of them may be zero.
        let [high, low, span] = [0; 3].map(|_| hex(self.number(now_us) | 1));
        [b"00-", &high[..], &low, b"-", &span, b"-01"].concat()
    }
}

impl Identity {
    /// Its identifier; empty: it has none.
    pub(crate) fn id(&self) -> &[u8] {
        &self.id
    }

    /// The identifier of its trace; empty: it has none.
    pub(crate) fn trace(&self) -> &[u8] {
        self.parent.get(3..35).unwrap_or_default()
    }

    /// Names of client fields that are not forwarded.
    pub(crate) fn removed<'a>(&self, plan: &'a ClientPlan) -> impl Iterator<Item = &'a [u8]> {
        let of_trace = [TRACE_PARENT, TRACE_STATE].into_iter().filter(|_| self.begins_trace);
        plan.request_id.as_deref().into_iter().chain(of_trace).map(str::as_bytes)
    }

    /// Fields for the server.
    pub(crate) fn lines<'a>(
        &'a self,
        plan: &'a ClientPlan,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let id = plan.request_id.as_deref().map(|name| (name.as_bytes(), &self.id[..]));
        let parent = (TRACE_PARENT.as_bytes(), &self.parent[..]);
        id.into_iter()
            .chain(Some(parent).filter(|_| self.begins_trace))
            .filter(|(_, value)| !value.is_empty())
    }
}

/// The value of the only field of this name; None: the request has no such field, or several.
fn only<'a>(fields: &Fields, bytes: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let is_named =
        |field: &&weir_http::Field| field.name.of(bytes).eq_ignore_ascii_case(name.as_bytes());
    let mut found = fields.as_slice().iter().filter(is_named);
    let first = found.next()?;
    found.next().is_none().then(|| first.value.of(bytes))
}

/// Whether this may be an identifier: visible characters, without those that end a value in a list
/// or in quotes.
fn is_id(text: &[u8]) -> bool {
    let fine = |byte: &u8| byte.is_ascii_graphic() && !b"\"\\,;".contains(byte);
    (1..=ID_BYTES_MAX).contains(&text.len()) && text.iter().all(fine)
}

/// Whether this is a trace parent of W3C Trace Context, possibly of a later version.
fn is_parent(text: &[u8]) -> bool {
    let digits = |text: &[u8]| text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_something = |text: &[u8]| digits(text) && text.iter().any(|byte| *byte != b'0');
    let Some((parent, more)) = text.split_at_checked(PARENT_BYTES) else { return false };
    let [version, trace, span, flags] =
        [&parent[..2], &parent[3..35], &parent[36..52], &parent[53..]];
    let is_separated = [2, 35, 52].iter().all(|at| parent[*at] == b'-');
    let is_whole = more.is_empty() || version != b"00" && more.starts_with(b"-");
    is_separated
        && is_whole
        && version != b"ff"
        && digits(version)
        && is_something(trace)
        && is_something(span)
        && digits(flags)
}

#[cfg(test)]
mod tests {
    //! Proves: which values are accepted from whom, and that generated values conform to the
    //! standards and never repeat. How: tables, and many of them.

    use std::collections::BTreeSet;

    use weir_http::Limits;

    use super::*;
    use crate::plan::Network;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn plan(request_id: bool, trace_context: bool) -> ClientPlan {
        let trusted_proxies =
            vec![Network { address: IpAddr::from([10, 0, 0, 1]), prefix_bits: 32 }];
        let request_id = request_id.then(|| "X-Request-Id".into());
        ClientPlan { request_id, trace_context, trusted_proxies, ..ClientPlan::default() }
    }

    fn identity(plan: &ClientPlan, trusted: bool, lines: &str) -> Identity {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let mut fields = Fields::default();
        weir_http::parse_request(text.as_bytes(), &Limits::default(), &mut fields)
            .unwrap()
            .unwrap();
        let mut identities = Identities::new([1, 2]);
        let peer = IpAddr::from([10, 0, 0, if trusted { 1 } else { 2 }]);
        identities.identify(&fields, text.as_bytes(), plan, peer, (3, 1_795_297_256_123_456))
    }

    #[test]
    fn identifiers_are_taken_from_trusted_proxies_only() {
        let plan = plan(true, false);
        for (trusted, lines, expected) in [
            (true, "x-request-id: Root=1-5759e988\r\n", Some("Root=1-5759e988")),
            (false, "X-Request-Id: a\r\n", None),
            (true, "X-Request-Id: a\r\nX-Request-Id: b\r\n", None),
            (true, "X-Request-Id: a, b\r\n", None),
            (true, "X-Request-Id: a b\r\n", None),
            (true, "X-Request-Id:\r\n", None),
            (true, "X-Request-Id: a\"\r\n", None),
            (true, "", None),
        ] {
            let identity = identity(&plan, trusted, lines);
            let is_uuid = identity.id.len() == 36 && identity.id.starts_with(b"01a2"); // 2026
            assert_eq!(is_uuid, expected.is_none(), "{lines} {identity:?}");
            assert!(expected.is_none_or(|expected| identity.id == expected.as_bytes()));
            assert_eq!(identity.removed(&plan).collect::<Vec<_>>(), [b"X-Request-Id"]);
            assert_eq!(
                identity.lines(&plan).collect::<Vec<_>>(),
                [(&b"X-Request-Id"[..], &identity.id[..])]
            );
        }
        let long = format!("X-Request-Id: {}\r\n", "x".repeat(ID_BYTES_MAX + 1));
        assert_eq!(identity(&plan, true, &long).id.len(), 36);
    }

    #[test]
    fn traces_are_continued_or_begun() {
        let plan = plan(false, true);
        let line = |value: &str| format!("traceparent: {value}\r\n");
        let later = PARENT.replacen("00", "01", 1);
        for (lines, expected) in [
            (line(PARENT), Some(PARENT)),
            (line(&format!("{later}-more")), Some(&*format!("{later}-more"))),
            (line(&later), Some(&*later)),
            (line(&format!("{PARENT}-more")), None),
            (line(&later.replacen("01", "ff", 1)), None),
            (line(&PARENT.to_uppercase()), None),
            (line(&PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32))), None),
            (line(&PARENT.replace("00f067aa0ba902b7", &"0".repeat(16))), None),
            (line(&PARENT[..54]), None),
            (line(PARENT) + &line(PARENT), None),
            (String::new(), None),
        ] {
            let identity = identity(&plan, false, &lines);
            assert!(is_parent(&identity.parent) && identity.id.is_empty());
            assert_eq!(expected.is_none(), identity.begins_trace, "{lines}");
            assert!(expected.is_none_or(|expected| identity.parent == expected.as_bytes()));
            let names: &[&[u8]] =
                if expected.is_none() { &[b"traceparent", b"tracestate"] } else { &[] };
            assert_eq!(identity.removed(&plan).collect::<Vec<_>>(), names);
            assert_eq!(identity.lines(&plan).count(), usize::from(expected.is_none()));
            assert_eq!(identity.trace(), &identity.parent[3..35]);
        }
    }

    #[test]
    fn all_differ_and_have_their_time() {
        let fields = Fields::default();
        let mut all = BTreeSet::new();
        for secret in [[1, 2], [1, 3]] {
            // The second is a worker that has restarted.
            for now_us in [0, 1_000] {
                let mut identities = Identities::new(secret);
                for _ in 0..1000 {
                    let times = (now_us, 1_795_297_256_123_456);
                    let peer = IpAddr::from([10, 0, 0, 2]);
                    let identity =
                        identities.identify(&fields, b"", &plan(true, true), peer, times);
                    let id = String::from_utf8(identity.id).unwrap();
                    let parts: Vec<&str> = id.split('-').collect();
                    assert_eq!(
                        parts.iter().map(|part| part.len()).collect::<Vec<_>>(),
                        [8, 4, 4, 4, 12]
                    );
                    let milliseconds = u64::from_str_radix(&id[..13].replace('-', ""), 16).unwrap();
                    assert_eq!((milliseconds, &parts[2][..1]), (1_795_297_256_123, "7"));
                    assert!(parts[3].starts_with(['8', '9', 'a', 'b']));
                    all.insert(id);
                    all.insert(String::from_utf8(identity.parent).unwrap());
                }
            }
        }
        assert_eq!(all.len(), 8_000);
    }
}
