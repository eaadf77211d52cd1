//! Reads cookies of a request: RFC 6265 §5.4, as strict as it is harmless.
//!
//! Called by balancing. Each byte of the Cookie fields is looked at once; their length is bounded
//! by that of a head. A cookie is a name of any bytes but `=` and `;`, compared with case, and a
//! value without one pair of quotes.

use weir_http::{FieldName, Fields};

/// Returns the values of all cookies of this name, in their order. `input` is the parsed text.
pub(crate) fn values<'a>(
    fields: &'a Fields,
    input: &'a [u8],
    name: &'a [u8],
) -> impl Iterator<Item = &'a [u8]> {
    let lines = fields.all(FieldName::Cookie).map(move |field| field.value.of(input));
    lines
        .flat_map(|line| line.split(|byte| *byte == b';'))
        .filter_map(move |pair| value(pair, name))
}

fn value<'a>(pair: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let at = pair.iter().position(|byte| *byte == b'=')?;
    let value = pair[at + 1..].trim_ascii();
    let unquoted = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    (pair[..at].trim_ascii() == name).then_some(unquoted.unwrap_or(value))
}

#[cfg(test)]
mod tests {
    //! Proves: which values a request has for a name, however its cookies are written. How: a table
    //! of fields.

    use super::*;

    fn read(cookies: &[&str], name: &str) -> Vec<String> {
        let lines: String = cookies.iter().map(|line| format!("Cookie: {line}\r\n")).collect();
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let mut fields = Fields::default();
        weir_http::parse_request(text.as_bytes(), &weir_http::Limits::default(), &mut fields)
            .unwrap()
            .unwrap();
        let values = values(&fields, text.as_bytes(), name.as_bytes());
        values.map(|value| String::from_utf8_lossy(value).into_owned()).collect()
    }

    #[test]
    fn values_by_name() {
        for (cookies, wanted) in [
            (vec![], vec![]),
            (vec!["a=1"], vec!["1"]),
            (vec!["b=2; a=1; c=3"], vec!["1"]),
            (vec!["a=1; a=2", "b=9", "a=3"], vec!["1", "2", "3"]),
            (vec!["a=\"1\""], vec!["1"]),
            (vec!["a=\"1", "a=1\"", "a=\"", "a=\"\""], vec!["\"1", "1\"", "\"", ""]),
            (vec!["a=x=y"], vec!["x=y"]),
            (vec![" a = 1 ;a=2"], vec!["1", "2"]),
            (vec!["aa=1; A=2; a; =a; ;;a=", "ba=1"], vec![""]),
            (vec!["b=\"; a=1\""], vec!["1\""]),
        ] {
            assert_eq!(read(&cookies, "a"), wanted, "{cookies:?}");
        }
    }
}
