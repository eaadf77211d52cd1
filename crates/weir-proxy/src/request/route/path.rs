//! The path that rules are compared with, and the path that servers get.
//!
//! [`normalised`] gives the form in which routes, limits and bans compare a path; [`settled`] gives
//! the bytes that weir forwards. Servers differ in how they read a path: some resolve dot segments
//! and some don't, some merge slashes, decode `%2f` or cut off parameters (`;x`). So weir resolves
//! dot segments and leading slashes itself, once, before anything looks at a request, and forwards
//! the result: no reading of it leads into a prefix that weir has not seen
//! (docs/hostile-requests.md C4). Where a dot segment follows something that servers read in
//! different ways, its effect is ambiguous, and the request is refused. All else is forwarded as it
//! came. Bound: a result is never longer than the input. RFC 3986 §2.1, §5.2.4, §6.2.2.

use std::fmt;

/// Why a path is refused: always the client's fault, 400, never worth a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathError {
    /// `%` without two hexadecimal digits.
    InvalidEscape,
    /// `%00`.
    Nul,
    /// A dot, slash or backslash as a UTF-8 sequence that is longer than needed, as in `%c0%ae`.
    Overlong,
    /// A `\`, which some servers take for `/`.
    Backslash,
    /// A dot segment with parameters (`..;x`) or beside `%2f` or `%5c`, or `..` behind parameters,
    /// empty segments, `%2f` or `%5c`.
    AmbiguousDots,
    /// Parameters with `%2f` or `%5c` in them (`;x=%2fy`): some servers end them there.
    AmbiguousParameters,
}

impl PathError {
    /// For log and counters.
    pub fn word(self) -> &'static str {
        match self {
            PathError::InvalidEscape => "path-escape",
            PathError::Nul => "path-nul",
            PathError::Overlong => "path-overlong",
            PathError::Backslash => "path-backslash",
            PathError::AmbiguousDots => "path-dots",
            PathError::AmbiguousParameters => "path-parameters",
        }
    }
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PathError::InvalidEscape => "the path has a % without two hexadecimal digits",
            PathError::Nul => "the path contains %00",
            PathError::Overlong => "the path has a dot or slash as an overlong UTF-8 sequence",
            PathError::Backslash => "the path contains a backslash",
            PathError::AmbiguousDots => "the path has a dot segment that can be read in two ways",
            PathError::AmbiguousParameters => {
                "the path has parameters that contain an escaped slash"
            }
        })
    }
}

impl std::error::Error for PathError {}

/// The path of `path?query` without escapes, dot segments, empty segments and parameters (`;x`).
///
/// Without any copy when nothing needs simplifying. An asterisk or nothing gives `/`. Escapes need
/// not be UTF-8: bytes are compared.
///
/// # Errors
/// [`PathError`]: the client sent something that two programs would read differently.
pub fn normalised<'a>(received: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<&'a [u8], PathError> {
    if received.first() != Some(&b'/') {
        return Ok(b"/");
    }
    // The query is checked together with the path first: one vector scan is cheaper than finding
    // the `?`.
    let plain = is_plain(received);
    let path = without_query(received);
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

/// Path and query that are forwarded in place of those received: without dot segments, and with one
/// slash at the beginning. Every other byte is unchanged. None: as they came.
///
/// Its [`normalised`] form is that of the path received. A path that [`normalised`] refuses is not
/// changed.
#[inline]
pub fn settled(received: &[u8], scratch: &mut Vec<u8>) -> Option<Vec<u8>> {
    if is_plain(received) { None } else { resolved(received, scratch) }
}

#[cold]
fn resolved(received: &[u8], scratch: &mut Vec<u8>) -> Option<Vec<u8>> {
    let path = without_query(received);
    if received.first() != Some(&b'/') || is_plain(path) {
        return None;
    }
    let rest = behind_slashes(path);
    let has_dots = rest.split(|byte| *byte == b'/').any(|segment| dots(segment) > 0);
    if !has_dots && rest.len() + 1 == path.len() || normalised(path, scratch).is_err() {
        return None;
    }
    let mut out = Vec::with_capacity(received.len());
    out.push(b'/');
    for segment in rest.split_inclusive(|byte| *byte == b'/') {
        match dots(segment.strip_suffix(b"/").unwrap_or(segment)) {
            // An empty segment behind a removed one would be a second slash in front.
            0 if segment == b"/" && out.len() == 1 => {}
            0 => out.extend_from_slice(segment),
            1 => {}
            _ => out.truncate(parent(&out)),
        }
    }
    out.extend_from_slice(&received[path.len()..]);
    Some(out)
}

/// The path in front of the `?`.
fn without_query(received: &[u8]) -> &[u8] {
    &received[..received.iter().position(|&byte| byte == b'?').unwrap_or(received.len())]
}

/// The part behind the leading slashes of a path.
fn behind_slashes(path: &[u8]) -> &[u8] {
    &path[path.iter().take_while(|byte| **byte == b'/').count()..]
}

/// The number of dots of a segment that is `.` or `..`, each plain or escaped; 0: it is neither.
fn dots(segment: &[u8]) -> usize {
    let (mut rest, mut count) = (segment, 0);
    while let Some(behind) = rest
        .strip_prefix(b".")
        .or_else(|| rest.strip_prefix(b"%2e"))
        .or_else(|| rest.strip_prefix(b"%2E"))
    {
        (rest, count) = (behind, count + 1);
    }
    if rest.is_empty() && count <= 2 { count } else { 0 }
}

/// Where the last segment of a path begins that ends with a slash: behind the first slash at least.
fn parent(path: &[u8]) -> usize {
    let above = &path[..path.len() - 1];
    above.iter().rposition(|&byte| byte == b'/').map_or(1, |slash| slash + 1)
}

/// Bytes compared at a time.
const LANES: usize = 16;

/// Whether the path certainly equals its normalised form.
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

/// Whether any byte of `first` is special, or is a slash whose follower in `second` is a slash or a
/// dot.
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
    /// `;`. Servers that decode first cut off the part behind an escaped one as well.
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
        b'%' | 0x80.. => decoded(rest)?,
        byte => (Unit::Byte(byte), 1),
    };
    *rest = &rest[used..];
    Ok(unit)
}

/// An escape, or a byte above ASCII, and how many bytes of the path it has.
fn decoded(rest: &[u8]) -> Result<(Unit, usize), PathError> {
    if let Some((byte, used)) = weir_http::overlong_ascii(rest) {
        return match byte {
            0 => Err(PathError::Nul),
            b'.' | b'/' | b'\\' => Err(PathError::Overlong),
            b';' => Ok((Unit::Parameters, used)),
            // Compared in the form that careless decoders produce.
            _ => Ok((Unit::Byte(byte), used)),
        };
    }
    if rest[0] != b'%' {
        return Ok((Unit::Byte(rest[0]), 1));
    }
    let digit = |at: usize| rest.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let (Some(high), Some(low)) = (digit(1), digit(2)) else {
        return Err(PathError::InvalidEscape);
    };
    match (high << 4 | low) as u8 {
        0 => Err(PathError::Nul),
        b'/' | b'\\' => Ok((Unit::Separator { escaped: true }, 3)),
        b';' => Ok((Unit::Parameters, 3)),
        byte => Ok((Unit::Byte(byte), 3)),
    }
}

/// A path that is being simplified.
struct Simplifying<'a> {
    /// The finished part: begins with a slash.
    out: &'a mut Vec<u8>,
    /// Where the segment being written starts in `out`; the byte before is a slash.
    start: usize,
    /// The segment has had its first `;`.
    in_parameters: bool,
    /// An escaped separator is next to the segment.
    beside_escaped: bool,
    /// Parameters, an escaped separator or an empty segment came before: servers differ in what
    /// `..` removes.
    has_doubt: bool,
}

fn simplify(path: &[u8], out: &mut Vec<u8>) -> Result<(), PathError> {
    out.push(b'/');
    let mut rest = behind_slashes(path);
    let (start, in_parameters, beside_escaped, has_doubt) = (1, false, false, false);
    let mut path = Simplifying { out, start, in_parameters, beside_escaped, has_doubt };
    while !rest.is_empty() {
        match next_unit(&mut rest)? {
            Unit::Byte(byte) if !path.in_parameters => path.out.push(byte),
            Unit::Byte(_) => {}
            Unit::Parameters => (path.in_parameters, path.has_doubt) = (true, true),
            Unit::Separator { escaped: true } if path.in_parameters => {
                return Err(PathError::AmbiguousParameters);
            }
            Unit::Separator { escaped } => {
                path.has_doubt |= escaped || path.out.len() == path.start;
                path.beside_escaped |= escaped;
                path.end_segment(true)?;
                path.beside_escaped = escaped;
            }
        }
    }
    path.end_segment(false)
}

impl Simplifying<'_> {
    /// Applies dot segments and begins the next segment. `slash`: another one follows.
    fn end_segment(&mut self, slash: bool) -> Result<(), PathError> {
        let is_cut = self.in_parameters || self.beside_escaped;
        match &self.out[self.start..] {
            b"" => {}
            b"." if is_cut => return Err(PathError::AmbiguousDots),
            b"." => self.out.truncate(self.start),
            b".." if is_cut || self.has_doubt => return Err(PathError::AmbiguousDots),
            b".." => self.out.truncate(parent(&self.out[..self.start])),
            _ if slash => self.out.push(b'/'),
            _ => {}
        }
        (self.start, self.in_parameters) = (self.out.len(), false);
        Ok(())
    }
}
