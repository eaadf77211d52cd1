//! Recognising field names: a perfect hash over the length and three bytes, then one comparison.
//!
//! Called once for each field line. A chain of comparisons costs several mispredicted branches a
//! line; this costs one load and a compare. The table is built and checked for collisions at
//! compile time.

use crate::field::FieldName;

/// Every name we care about in lower case. Order is that of the enumeration, which is asserted
/// below.
const NAMES: &[(FieldName, &[u8])] = &[
    (FieldName::Other, b""),
    (FieldName::Host, b"host"),
    (FieldName::ContentLength, b"content-length"),
    (FieldName::TransferEncoding, b"transfer-encoding"),
    (FieldName::Connection, b"connection"),
    (FieldName::KeepAlive, b"keep-alive"),
    (FieldName::ProxyConnection, b"proxy-connection"),
    (FieldName::ProxyAuthenticate, b"proxy-authenticate"),
    (FieldName::ProxyAuthorization, b"proxy-authorization"),
    (FieldName::ProxyAuthenticationInfo, b"proxy-authentication-info"),
    (FieldName::Proxy, b"proxy"),
    (FieldName::Te, b"te"),
    (FieldName::Trailer, b"trailer"),
    (FieldName::Upgrade, b"upgrade"),
    (FieldName::Expect, b"expect"),
    (FieldName::Via, b"via"),
    (FieldName::Forwarded, b"forwarded"),
    (FieldName::XForwardedFor, b"x-forwarded-for"),
    (FieldName::XForwardedProto, b"x-forwarded-proto"),
    (FieldName::XForwardedHost, b"x-forwarded-host"),
    (FieldName::XRealIp, b"x-real-ip"),
    (FieldName::Authorization, b"authorization"),
    (FieldName::AuthenticationInfo, b"authentication-info"),
    (FieldName::WwwAuthenticate, b"www-authenticate"),
    (FieldName::Cookie, b"cookie"),
    (FieldName::SetCookie, b"set-cookie"),
    (FieldName::IfMatch, b"if-match"),
    (FieldName::IfNoneMatch, b"if-none-match"),
    (FieldName::IfModifiedSince, b"if-modified-since"),
    (FieldName::IfUnmodifiedSince, b"if-unmodified-since"),
    (FieldName::IfRange, b"if-range"),
    (FieldName::Range, b"range"),
    (FieldName::Date, b"date"),
    (FieldName::Server, b"server"),
    (FieldName::MaxForwards, b"max-forwards"),
    (FieldName::Http2Settings, b"http2-settings"),
    (FieldName::CacheControl, b"cache-control"),
    (FieldName::ContentType, b"content-type"),
    (FieldName::ContentEncoding, b"content-encoding"),
    (FieldName::ContentRange, b"content-range"),
    (FieldName::ContentLocation, b"content-location"),
    (FieldName::Age, b"age"),
    (FieldName::Expires, b"expires"),
    (FieldName::Location, b"location"),
    (FieldName::RetryAfter, b"retry-after"),
    (FieldName::Vary, b"vary"),
    (FieldName::Pragma, b"pragma"),
    (FieldName::Warning, b"warning"),
    (FieldName::ClientCert, b"client-cert"),
    (FieldName::ClientCertChain, b"client-cert-chain"),
    (FieldName::CdnLoop, b"cdn-loop"),
];

const X_FORWARDED: &[u8] = b"x-forwarded-";
const SLOTS: usize = 128;

/// Index into `NAMES`; 0 (`Other`, which has no length) is an empty slot.
static TABLE: [u8; SLOTS] = table();

/// Needs a name of at least one byte.
const fn slot(name: &[u8]) -> usize {
    let first = (name[0] | 0x20) as usize;
    let middle = (name[name.len() / 2] | 0x20) as usize;
    let last = (name[name.len() - 1] | 0x20) as usize;
    (first * 58 + middle * 131 + last * 94 + name.len() * 113) % SLOTS
}

const fn table() -> [u8; SLOTS] {
    let mut table = [0; SLOTS];
    let mut i = 1;
    while i < NAMES.len() {
        assert!(NAMES[i].0 as usize == i, "order of the enumeration");
        let slot = slot(NAMES[i].1);
        assert!(table[slot] == 0, "two names share a slot: choose other factors");
        table[slot] = i as u8;
        i += 1;
    }
    assert!(NAMES.len() == FieldName::XForwardedOther as usize);
    table
}

/// Which known field a token names, whatever its case.
#[inline]
pub(crate) fn classify(name: &[u8]) -> FieldName {
    if name.is_empty() {
        return FieldName::Other;
    }
    let (known, text) = NAMES[TABLE[slot(name)] as usize];
    if text.len() == name.len() && same_folded(name, text) {
        return known;
    }
    if name[0] | 0x20 == b'x'
        && name.len() > X_FORWARDED.len()
        && same_folded(&name[..X_FORWARDED.len()], X_FORWARDED)
    {
        return FieldName::XForwardedOther;
    }
    FieldName::Other
}

/// `lower` is lower case and of the same length. Setting bit 5 is enough because `name` is known to
/// be a token: no byte of a token other than a capital letter falls onto a letter, digit or hyphen.
/// Whole words first, and the last word overlaps the one before it, so that most names need two
/// comparisons.
#[inline]
fn same_folded(name: &[u8], lower: &[u8]) -> bool {
    const BIT_5: u64 = 0x2020_2020_2020_2020;
    let differs =
        |a: &[u8; 8], b: &[u8; 8]| (u64::from_le_bytes(*a) | BIT_5) ^ u64::from_le_bytes(*b);
    let (Some(a), Some(b)) = (name.last_chunk::<8>(), lower.last_chunk::<8>()) else {
        return name.iter().zip(lower).fold(0, |differs, (&a, &b)| differs | ((a | 0x20) ^ b)) == 0;
    };
    let whole = name.as_chunks::<8>().0.iter().zip(lower.as_chunks::<8>().0);
    whole.fold(differs(a, b), |all, (a, b)| all | differs(a, b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_any_case() {
        for &(known, text) in &NAMES[1..] {
            assert_eq!(classify(text), known);
            assert_eq!(classify(&text.to_ascii_uppercase()), known);
            let longer = [text, b"x".as_slice()].concat();
            assert_ne!(classify(&longer), known);
            assert_ne!(classify(&text[..text.len() - 1]), known);
        }
    }

    #[test]
    fn near_misses_are_other() {
        for name in [
            "",
            "Hos",
            "hostt",
            "content_length",
            "x-forwarded",
            "x-forwarded-",
            "cookie2",
            "via2",
            "a",
        ] {
            assert_eq!(classify(name.as_bytes()), FieldName::Other, "{name}");
        }
        assert_eq!(classify(b"X-Forwarded-Port"), FieldName::XForwardedOther);
        assert_eq!(classify(b"x-forwarded-For"), FieldName::XForwardedFor);
    }

    /// The comparison by bit 5 must equal the honest one for every token byte.
    #[test]
    fn folding_is_exact_for_tokens() {
        for byte in (0..=255u8).filter(|&byte| crate::scan::is_token_byte(byte)) {
            for lower in (b'a'..=b'z').chain(b'0'..=b'9').chain([b'-']) {
                assert_eq!(
                    same_folded(&[byte], &[lower]),
                    byte.eq_ignore_ascii_case(&lower),
                    "{byte} {lower}"
                );
            }
        }
    }
}
