//! What the fields of a head say about its body and its connection: Content-Length,
//! Transfer-Encoding, Connection, Upgrade and the other lists that a proxy must understand.
//!
//! Called once a head, after all its lines. RFC 9110 §5.6.1, §7.6.1, §7.8, §8.6, RFC 9112 §6.

use crate::field::{FieldName, Fields};
use crate::pseudonym::Pseudonym;
use crate::scan::is_token;
use crate::span::Span;
use crate::syntax::SyntaxError;

/// Largest length of a body: sums and offsets stay far from overflow, as do those of our callers.
pub(crate) const LENGTH_MAX: u64 = i64::MAX as u64;

/// Other options than ours in Connection. Each is compared with every field, so their number must
/// be small.
const OPTIONS_MAX: usize = 64;

/// Why a Content-Length can't be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LengthFault {
    Invalid,
    Repeated,
}

/// Reads Content-Length: 1*DIGIT up to 2^63-1 in one line. Equal lines could be merged
/// (RFC 9112 §6.3), but a sender of two has a bug or a purpose, and the next program may not look
/// at both (RFC 9110 §8.6).
#[inline]
pub(crate) fn content_length(input: &[u8], fields: &Fields) -> Result<Option<u64>, LengthFault> {
    let Some(field) = fields.find(FieldName::ContentLength) else { return Ok(None) };
    if fields.is_repeated(FieldName::ContentLength) {
        return Err(LengthFault::Repeated);
    }
    match decimal(field.value.of(input)) {
        Some(length) if length <= LENGTH_MAX && !field.folded => Ok(Some(length)),
        _ => Err(LengthFault::Invalid),
    }
}

/// 1*DIGIT; None for anything else and for overflow.
#[inline]
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, &byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// The meaning of Transfer-Encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Coding {
    Absent,
    /// Exactly `chunked`, once.
    Chunked,
    /// One coding by its name alone that is not ours.
    Unknown,
    /// Anything else: lists, parameters, several lines, `identity`, nothing.
    Invalid,
}

/// Transfer-Encoding over all its lines (RFC 9112 §6.1).
#[inline]
pub(crate) fn transfer_coding(input: &[u8], fields: &Fields) -> Coding {
    let Some(field) = fields.find(FieldName::TransferEncoding) else { return Coding::Absent };
    let value = field.value.of(input);
    if field.folded || fields.is_repeated(FieldName::TransferEncoding) {
        Coding::Invalid
    } else if value.eq_ignore_ascii_case(b"chunked") {
        Coding::Chunked
    } else if is_token(value) && !value.eq_ignore_ascii_case(b"identity") {
        Coding::Unknown
    } else {
        Coding::Invalid
    }
}

/// The options of Connection that concern weir.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options {
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    pub(crate) upgrade: bool,
}

/// Reads Connection and marks the fields that it lists (RFC 9110 §7.6.1).
///
/// # Errors
/// More options than [`OPTIONS_MAX`].
#[inline]
pub(crate) fn connection(input: &[u8], fields: &mut Fields) -> Result<Options, SyntaxError> {
    let mut options = Options::default();
    let Some(&only) = fields.find(FieldName::Connection) else { return Ok(options) };
    if !fields.is_repeated(FieldName::Connection) {
        let value = only.value.of(input);
        if value.eq_ignore_ascii_case(b"keep-alive") {
            options.keep_alive = true;
            return Ok(options);
        }
        if value.eq_ignore_ascii_case(b"close") {
            options.close = true;
            return Ok(options);
        }
    }
    connection_lists(input, fields, &mut options)?;
    Ok(options)
}

fn connection_lists(
    input: &[u8],
    fields: &mut Fields,
    options: &mut Options,
) -> Result<(), SyntaxError> {
    let mut others = 0;
    for i in 0..fields.len() {
        let field = fields.as_slice()[i];
        if field.known != FieldName::Connection {
            continue;
        }
        for option in members(field.value.of(input)) {
            if option.eq_ignore_ascii_case(b"close") {
                options.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                options.keep_alive = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                options.upgrade = true;
            } else {
                others += 1;
                if others > OPTIONS_MAX {
                    return Err(SyntaxError::OptionsTooMany);
                }
                fields.mark_listed(input, option);
            }
        }
    }
    Ok(())
}

/// Non-empty members of a comma-separated list without white space around them (RFC 9110 §5.6.1).
/// Folds count as white space. For lists without quoted strings.
pub(crate) fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|member| !member.is_empty())
}

/// Returns the value of Upgrade when it is one valid list of protocols without `h2c`
/// (RFC 9110 §7.8; RFC 9113 gave h2c up).
pub(crate) fn upgrade(input: &[u8], fields: &Fields) -> Option<Span> {
    let field = fields.find(FieldName::Upgrade)?;
    if field.folded || fields.is_repeated(FieldName::Upgrade) {
        return None;
    }
    let value = field.value.of(input);
    let valid = members(value).next().is_some() && members(value).all(is_protocol);
    valid.then_some(field.value)
}

fn is_protocol(text: &[u8]) -> bool {
    let mut parts = text.splitn(2, |&byte| byte == b'/');
    parts.all(is_token) && !text.eq_ignore_ascii_case(b"h2c")
}

/// TE has the member `trailers` (RFC 9110 §10.1.4).
pub(crate) fn te_trailers(input: &[u8], fields: &Fields) -> bool {
    fields
        .all(FieldName::Te)
        .any(|field| members(field.value.of(input)).any(|m| m.eq_ignore_ascii_case(b"trailers")))
}

/// Whether the request came back: Via already names weir as a recipient (RFC 9110 §7.6.3), or
/// CDN-Loop as a proxy that it has passed (RFC 8586 §2).
pub(crate) fn is_loop(input: &[u8], fields: &Fields, us: Pseudonym) -> bool {
    fields.all(FieldName::Via).any(|field| names_us(field.value.of(input), us))
        || fields.all(FieldName::CdnLoop).any(|field| has_passed(field.value.of(input), us))
}

/// One member is our name, with parameters or not.
fn has_passed(value: &[u8], us: Pseudonym) -> bool {
    let names = members(value).filter_map(|member| member.split(|byte| *byte == b';').next());
    names.map(<[u8]>::trim_ascii).any(|name| name.eq_ignore_ascii_case(us.as_bytes()))
}

/// One pass over `received-protocol RWS received-by [ RWS comment ]` entries: the second word of an
/// entry is the recipient; words inside comments don't count, and neither do the commas there.
fn names_us(value: &[u8], us: Pseudonym) -> bool {
    let (mut depth, mut words, mut start, mut escaped) = (0usize, 0usize, None::<usize>, false);
    for at in 0..=value.len() {
        let byte = value.get(at).copied().unwrap_or(b',');
        let within = depth > 0;
        match byte {
            _ if escaped => escaped = false,
            b'\\' if within => escaped = true,
            b')' if within => depth -= 1,
            b'(' => depth += 1,
            _ => {}
        }
        let in_word = !within && depth == 0 && byte != b',' && !byte.is_ascii_whitespace();
        match start {
            None if in_word => start = Some(at),
            Some(from) if !in_word => {
                words += 1;
                if words == 2 && value[from..at].eq_ignore_ascii_case(us.as_bytes()) {
                    return true;
                }
                start = None;
            }
            _ => {}
        }
        if byte == b',' && depth == 0 {
            words = 0;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals() {
        assert_eq!(decimal(b"0"), Some(0));
        assert_eq!(decimal(b"007"), Some(7));
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        for bad in
            ["", "18446744073709551616", "-1", "+1", "1 ", "0x1", "1_0", "99999999999999999999"]
        {
            assert_eq!(decimal(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn b12_via_recipients() {
        for named in [
            "1.1 weir",
            "1.0 a, 1.1 WEIR",
            "HTTP/1.1 weir (c)",
            "1.1 a (x, (y) \\) z), 1.1 weir",
            "1.1\tweir",
        ] {
            assert!(names_us(named.as_bytes(), Pseudonym::default()), "{named}");
        }
        for other in [
            "",
            "1.1 weirdo",
            "1.1 a (1.1 weir)",
            "1.1 a (b, 1.1 weir)",
            "weir",
            "1.1 a weir",
            "1.1 weir:80",
        ] {
            assert!(!names_us(other.as_bytes(), Pseudonym::default()), "{other}");
        }
        let other = Pseudonym::new("weir-5f").unwrap();
        assert!(
            names_us(b"1.1 weir, 1.1 Weir-5F", other) && !names_us(b"1.1 weir, 1.1 weir-5e", other)
        );
    }
}
