//! The path that routes are matched against, when the one received could be written in a simpler way.
//!
//! Called by [`super::RouteTable::find`]. Only the decision uses it: what is forwarded stays as it came (docs/hostile.md C4).
//! Where servers are known to read a path in different ways and the difference leads to another place, the request is
//! refused instead of guessed. Bound: the result is never longer than the input. RFC 3986 §2.1, §5.2.4, §6.2.2.

use std::fmt;

/// Why a path is refused: always the client's fault, 400, never worth a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathError {
    /// `%` without two hexadecimal digits.
    InvalidEscape,
    /// `%00`.
    Nul,
    /// Not UTF-8 once decoded, as in the overlong `%c0%ae`.
    InvalidUtf8,
    /// A `\`, which some servers take for `/`.
    Backslash,
    /// A `..` that some servers see and others don't: beside `%2f`, `%5c` or `//`, or with parameters (`..;x`).
    AmbiguousDots,
}

impl PathError {
    /// For log and counters.
    pub fn word(self) -> &'static str {
        match self {
            PathError::InvalidEscape => "path-escape",
            PathError::Nul => "path-nul",
            PathError::InvalidUtf8 => "path-utf8",
            PathError::Backslash => "path-backslash",
            PathError::AmbiguousDots => "path-dots",
        }
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PathError::InvalidEscape => "the path has a % without two hexadecimal digits",
            PathError::Nul => "the path contains %00",
            PathError::InvalidUtf8 => "the decoded path is not UTF-8",
            PathError::Backslash => "the path contains a backslash",
            PathError::AmbiguousDots => "the path has a .. that can be read in two ways",
        })
    }
}

impl std::error::Error for PathError {}

/// The path of `path?query` without escapes, dot segments, empty segments and parameters (`;x`).
///
/// Without any copy when there is nothing to simplify. An asterisk or nothing gives `/`.
///
/// # Errors
/// [`PathError`]: the client sent something that two programs would read differently.
pub fn normalised<'a>(received: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<&'a [u8], PathError> {
    if received.first() != Some(&b'/') {
        return Ok(b"/");
    }
    // The query is looked at together with the path first: one vector scan is cheaper than finding the `?`.
    let plain = is_plain(received);
    let end = received.iter().position(|&byte| byte == b'?').unwrap_or(received.len());
    let path = &received[..end];
    if plain || is_plain(path) {
        return Ok(path);
    }
    scratch.clear();
    simplify(path, scratch)?;
    Ok(scratch)
}

/// The refusals of [`normalised`] for a caller that needs no path.
///
/// # Errors
/// As [`normalised`].
#[inline]
pub fn check(received: &[u8], scratch: &mut Vec<u8>) -> Result<(), PathError> {
    if is_plain(received) { Ok(()) } else { normalised(received, scratch).map(|_| ()) }
}

/// Bytes looked at together.
const LANES: usize = 16;

/// Whether the path surely equals its normalised form.
fn is_plain(path: &[u8]) -> bool {
    let Some(last) = path.len().checked_sub(1) else { return true };
    let (first, second) = (&path[..last], &path[1..]);
    let mut odd = is_special(path[last]);
    if last >= LANES {
        let (a, b) = (first.chunks_exact(LANES), second.chunks_exact(LANES));
        odd |= a.zip(b).fold(false, |odd, (a, b)| odd | is_odd(a, b));
        // The rest together with bytes already seen, so that it is a full vector as well.
        odd |= is_odd(&first[last - LANES..], &second[last - LANES..]);
    } else {
        odd |= is_odd(first, second);
    }
    !odd
}

/// Whether any byte of `first` is special, or is a slash whose follower in `second` is a slash or a dot.
fn is_odd(first: &[u8], second: &[u8]) -> bool {
    first.iter().zip(second).fold(false, |odd, (&byte, &next)| {
        odd | is_special(byte) | ((byte == b'/') & ((next == b'/') | (next == b'.')))
    })
}

fn is_special(byte: u8) -> bool {
    // Without short circuits, so that the loops above become vector code.
    (byte == b'%') | (byte == b'\\') | (byte == b';') | (byte >= 0x80)
}

/// One element of a path after decoding.
enum Unit {
    /// `/`, or one that is hidden in an escape.
    Separator { escaped: bool },
    /// `;` as it is, not escaped.
    Parameters,
    /// Anything else.
    Byte(u8),
}

/// Takes the first element off `rest`, which is not empty.
fn next_unit(rest: &mut &[u8]) -> Result<Unit, PathError> {
    let (unit, used) = match rest[0] {
        b'/' => (Unit::Separator { escaped: false }, 1),
        b';' => (Unit::Parameters, 1),
        b'\\' => return Err(PathError::Backslash),
        b'%' => {
            let digit = |at: usize| rest.get(at).and_then(|&byte| char::from(byte).to_digit(16));
            let (Some(high), Some(low)) = (digit(1), digit(2)) else { return Err(PathError::InvalidEscape) };
            match (high << 4 | low) as u8 {
                0 => return Err(PathError::Nul),
                b'/' | b'\\' => (Unit::Separator { escaped: true }, 3),
                byte => (Unit::Byte(byte), 3),
            }
        }
        byte => (Unit::Byte(byte), 1),
    };
    *rest = &rest[used..];
    Ok(unit)
}

/// The segment being written.
struct Segment {
    /// Where it starts in the output; the byte before is a slash.
    start: usize,
    /// An escaped or doubled separator is beside it, or it has parameters: then it must not be `..`.
    doubtful: bool,
    /// After its first `;`.
    in_parameters: bool,
}

fn simplify(path: &[u8], out: &mut Vec<u8>) -> Result<(), PathError> {
    out.push(b'/');
    let mut rest = &path[1..];
    let mut segment = Segment { start: 1, doubtful: false, in_parameters: false };
    while !rest.is_empty() {
        match next_unit(&mut rest)? {
            Unit::Byte(byte) if !segment.in_parameters => out.push(byte),
            Unit::Byte(_) => (),
            Unit::Parameters => {
                segment.in_parameters = true;
                segment.doubtful = true;
            }
            Unit::Separator { escaped } => {
                segment.doubtful |= escaped;
                let empty = out.len() == segment.start;
                if end_segment(out, &segment)? {
                    out.push(b'/');
                }
                segment = Segment { start: out.len(), doubtful: escaped || empty, in_parameters: false };
            }
        }
    }
    end_segment(out, &segment)?;
    std::str::from_utf8(out).map(|_| ()).map_err(|_| PathError::InvalidUtf8)
}

/// Applies dot segments. True when the segment stays and a slash may follow it.
fn end_segment(out: &mut Vec<u8>, segment: &Segment) -> Result<bool, PathError> {
    match &out[segment.start..] {
        b"" => Ok(false),
        b"." => {
            out.truncate(segment.start);
            Ok(false)
        }
        b".." if segment.doubtful => Err(PathError::AmbiguousDots),
        b".." => {
            let parent = &out[..segment.start - 1];
            let keep = parent.iter().rposition(|&byte| byte == b'/').map_or(1, |slash| slash + 1);
            out.truncate(keep);
            Ok(false)
        }
        _ => Ok(true),
    }
}
