//! The static table (RFC 7541 appendix A), and names found in it.

/// Names and values; the first has index 1.
pub(super) const STATIC: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// One more than the longest name.
const LENGTHS: usize = 28;
/// Most names of one length.
const SAME_LENGTH: usize = 6;

/// For each length the indices of names that have it, of each name the first; 0: none.
static BY_LENGTH: [[u8; SAME_LENGTH]; LENGTHS] = by_length();

const fn by_length() -> [[u8; SAME_LENGTH]; LENGTHS] {
    let mut table = [[0; SAME_LENGTH]; LENGTHS];
    let mut counts = [0; LENGTHS];
    let mut at = 0;
    while at < STATIC.len() {
        let name = STATIC[at].0;
        // Names with several values are adjacent.
        if at == 0 || !same(name, STATIC[at - 1].0) {
            table[name.len()][counts[name.len()]] = at as u8 + 1;
            counts[name.len()] += 1;
        }
        at += 1;
    }
    table
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The first index of a name, whatever its case.
pub(super) fn index_of(name: &[u8]) -> Option<u8> {
    let candidates = BY_LENGTH.get(name.len())?.iter().copied().take_while(|&index| index != 0);
    candidates
        .into_iter()
        .find(|&index| STATIC[usize::from(index) - 1].0.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found() {
        for (at, (name, _)) in STATIC.iter().enumerate() {
            let first = STATIC.iter().position(|(other, _)| other == name).unwrap() as u8 + 1;
            assert_eq!(index_of(name), Some(first), "{at}");
            assert_eq!(index_of(&name.to_ascii_uppercase()), Some(first));
        }
        for name in ["", "x", "hosu", "content-typf", "a-name-that-is-longer-than-any-other"] {
            assert_eq!(index_of(name.as_bytes()), None);
        }
    }
}
