//! Invariants of the values in any request. Called by the fuzz target `shield_by` and by property
//! tests.

use std::net::IpAddr;

use weir_http::{Fields, Limits, RequestHead, parse_request};

use super::super::key::Prefix;
use super::{Key, Message, Part, Which};

/// An additional value for a request.
const MORE: &[u8] = b"zz";

/// Properties that limits may count by, with the line that adds another value of it to a head;
/// empty: no such line.
fn parts() -> [(Part, &'static [u8]); 5] {
    [
        (Part::Header("x-key".to_owned()), b"X-Key: zz\r\n"),
        (Part::Cookie("id".to_owned()), b"Cookie: id=zz\r\n"),
        (Part::Query("user".to_owned()), b""),
        (Part::Host, b""),
        (Part::Client, b""),
    ]
}

/// Checks a head that can be parsed. Each part has a first value exactly if it has a last one.
/// Several parts together are told apart, each by its length. An unrelated field changes none.
/// Another value at the end becomes the last one, and the first only where none came before.
pub fn head(data: &[u8]) {
    let mut fields = Fields::default();
    let Some(head) = read(data, &mut fields) else { return };
    let text = &data[..head.bytes];
    let with = |line: &[u8]| [&text[..text.len() - 2], line, b"\r\n"].concat();
    let unrelated = with(b"X-Unrelated: zz\r\n");
    let mut other_fields = Fields::default();
    let other = read(&unrelated, &mut other_fields);
    let mut together = (Vec::new(), Vec::new());
    for (part, line) in parts() {
        let first = said(&part, (&head, &fields, text), Which::First);
        let last = said(&part, (&head, &fields, text), Which::Last);
        assert_eq!(first.is_some(), last.is_some(), "{part:?}: {}", text.escape_ascii());
        if let Some(other) = &other {
            let same = said(&part, (other, &other_fields, &unrelated), Which::First);
            assert_eq!(first, same, "{part:?}: {}", unrelated.escape_ascii());
        }
        if let Some(first) = &first {
            together.0.extend_from_slice(first);
            together.1.push((part.clone(), first.clone()));
        }
        another(&part, (first, last), &with(line), line.is_empty());
    }
    let mut rest = &together.0[..];
    for (part, value) in together.1.iter().filter(|(part, _)| *part != Part::Client) {
        let (length, behind) = rest.split_first_chunk().expect("a length");
        let length = u64::from_le_bytes(*length) as usize;
        assert!(length > 0 && value[8..] == behind[..length], "{part:?}: {}", text.escape_ascii());
        rest = &behind[length..];
    }
}

/// Checks a head with another value of a part.
fn another(
    part: &Part,
    (first, last): (Option<Vec<u8>>, Option<Vec<u8>>),
    text: &[u8],
    is_same: bool,
) {
    let mut fields = Fields::default();
    let Some(head) = read(text, &mut fields) else { return };
    let now = |which| said(part, (&head, &fields, text), which);
    // A field that the client's connection lists is between client and weir only.
    let is_listed = fields.as_slice().last().is_some_and(|field| field.listed);
    let more = [&(MORE.len() as u64).to_le_bytes()[..], MORE].concat();
    let expected = match is_same || is_listed {
        true => (first, last),
        false => (first.or_else(|| Some(more.clone())), Some(more)),
    };
    assert_eq!(
        (now(Which::First), now(Which::Last)),
        expected,
        "{part:?}: {}",
        text.escape_ascii()
    );
}

fn read(data: &[u8], fields: &mut Fields) -> Option<RequestHead> {
    parse_request(data, &Limits::default(), fields).ok().flatten()
}

fn said(
    part: &Part,
    (head, fields, bytes): (&RequestHead, &Fields, &[u8]),
    which: Which,
) -> Option<Vec<u8>> {
    let client = Key::of(IpAddr::from([192, 0, 2, 1]), Prefix::default());
    let mut into = Vec::new();
    part.write(client, Message { head, fields, bytes }, which, &mut into).then_some(into)
}

/// Heads to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    let lines = [
        ("/", ""),
        ("/?user=a&user=b&us%65r=c+d", "X-Key: 1\r\nx_key: 2\r\n"),
        ("http://b.test/x?y&user=", "Connection: x-key\r\nX-Key: 1\r\n"),
        ("/", "Cookie: a=b; id=1\r\nCookie: id=\"2\"; id\r\n"),
        ("/?user=%", "Cookie: ; =; id=;id =3\r\nX-Key:\r\n"),
    ];
    lines
        .map(|(target, lines)| {
            format!("GET {target} HTTP/1.1\r\nHost: A.test:80\r\n{lines}\r\n").into_bytes()
        })
        .into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn seeds_are_heads() {
        for seed in seeds() {
            assert!(read(&seed, &mut Fields::default()).is_some(), "{}", seed.escape_ascii());
            head(&seed);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]
        #[test]
        fn values_of_any_head(
            target in "/[?&=%+a-c25er]{0,12}(user=[%+&a2]{0,4}){0,2}",
            lines in "((X-Key|x_key|Cookie|Connection|Via)(:| :|: )(id=|x-key|user|[;= \
                \",a2]){0,6}\r\n){0,4}",
        ) {
            head(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{lines}\r\n").as_bytes());
        }
    }
}
