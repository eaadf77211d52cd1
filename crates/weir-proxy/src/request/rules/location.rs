//! The target of a `redirect`: a text with `$names`; for each position the part of the URL is
//! known.
//!
//! Compiled once, and refused where a value could change the destination: in a scheme, or beside
//! the host. The position of a value decides what it may be: in the host only [`Name::Host`], in
//! the path the path and query of the request or one segment, behind `?` or `#` one word.
//! Everything else in it is escaped, so that nothing from a client ends a part or a line. Bound:
//! [`RENDERED_BYTES_MAX`]. RFC 3986 §3, RFC 9110 §10.2.2.

use std::fmt;

use super::text::{Item, TEXT_NAMES_MAX, TextError};
use super::{Known, RENDERED_BYTES_MAX, RuleFault};
use crate::observe::access::{Name, pieces};
use crate::request::route::bare_host;

/// Schemes that a redirect may lead to.
const SCHEMES: [&[u8]; 2] = [b"https://", b"http://"];

/// A compiled target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// Unchanged text.
    Literal(Box<[u8]>),
    /// The requested host, in the authority.
    Host,
    /// Path and query of the request. Nothing follows.
    Target,
    /// A value in which every byte with a meaning in a URL is escaped.
    Word(Item),
}

/// Why a text is not a target. The operator's fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocationError {
    /// As any text with names.
    Text(TextError),
    /// It begins neither with a scheme and a host nor with one slash.
    Form,
    /// This character is not allowed in a URL.
    Character(char),
    /// The host is invalid.
    Host,
    /// The value of this name can't be part of a host.
    Authority(String),
    /// Something follows path and query of the request.
    Behind,
    /// A redirect has no upstream.
    Upstream,
}

impl fmt::Display for LocationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocationError::Text(error) => error.fmt(f),
            LocationError::Form => f.write_str(
                "a redirect needs `https://HOST/...`, `http://HOST/...`, or a path that begins \
                    with one `/`",
            ),
            LocationError::Character('%') => f.write_str("`%` needs two hexadecimal digits"),
            LocationError::Character(c) => write!(
                f,
                "a URL cannot contain {c:?}: write each byte as `%` and two hexadecimal digits"
            ),
            LocationError::Host => f.write_str(
                "between `://` and the path must be a host, with or without a port, such as \
                    `$host:8443`",
            ),
            LocationError::Authority(name) => {
                write!(
                    f,
                    "`${name}` cannot be in front of the path, because it could lead anywhere; \
                    only `$host` can, once"
                )
            }
            LocationError::Behind => f.write_str(
                "nothing can follow `$request_uri`, because it may end with a query; as a word of \
                    a query, write it behind `?`",
            ),
            LocationError::Upstream => f.write_str("a redirect has no upstream"),
        }
    }
}

/// The part of a URL that the next byte belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Authority,
    Path,
    /// Behind `?`.
    Query,
    /// Behind `#`.
    Fragment,
    /// Behind path and query of the request.
    End,
}

impl Location {
    /// Compiles `$name` or `${name}`, `$$` for a dollar sign.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn compile(text: &str) -> Result<Location, LocationError> {
        let (found, tail) =
            pieces(text).map_err(|error| LocationError::Text(TextError::Template(error)))?;
        if found.len() > TEXT_NAMES_MAX {
            return Err(LocationError::Text(TextError::TooManyNames));
        }
        let mut compiler = Compiler { parts: Vec::new(), place: Place::Path };
        let start = found.first().map_or(&tail, |(literal, _)| literal);
        let is_target = || found.first().is_some_and(|(_, name)| *name == Name::RequestUri.word());
        let scheme = SCHEMES.iter().find(|scheme| has_prefix(start, scheme));
        match (scheme, &start[..]) {
            (Some(_), _) => compiler.place = Place::Authority,
            (None, [b'/', b'/' | b'\\', ..]) => return Err(LocationError::Form),
            (None, [b'/', ..]) => {}
            (None, []) if is_target() => {}
            _ => return Err(LocationError::Form),
        }
        let mut taken = scheme.map_or(0, |scheme| scheme.len());
        compiler.push(scheme.copied().unwrap_or_default());
        for (literal, name) in &found {
            compiler.literal(&literal[std::mem::take(&mut taken)..])?;
            compiler.name(name)?;
        }
        compiler.literal(&tail[taken..])?;
        compiler.finish()
    }

    /// Makes the target for this request. `path` is path and query after the path rules; None: as
    /// they came.
    ///
    /// # Errors
    /// The client's fault: [`RuleFault::Host`], [`RuleFault::TooLarge`].
    pub(crate) fn render(
        &self,
        known: &Known<'_>,
        path: Option<&[u8]>,
    ) -> Result<Vec<u8>, RuleFault> {
        let mut out = Vec::new();
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.extend_from_slice(text),
                Part::Host => {
                    let mut buffer = [0; 255];
                    let host = bare_host(known.head.authority.of(known.bytes), &mut buffer)
                        .unwrap_or_default();
                    if host.is_empty() {
                        return Err(RuleFault::Host);
                    }
                    out.extend_from_slice(host);
                }
                Part::Target => {
                    put_target(&mut out, path.unwrap_or_else(|| known.head.path.of(known.bytes)))
                }
                Part::Word(item) => {
                    let mut value = Vec::new();
                    item.write(&mut value, known);
                    put_word(&mut out, &value);
                }
            }
            if out.len() > RENDERED_BYTES_MAX {
                return Err(RuleFault::TooLarge);
            }
        }
        match authority(&out) {
            // The host of a request and the text beside it need not be a valid host together.
            Some(authority) if !weir_http::is_host(authority) => Err(RuleFault::Host),
            Some(_) => Ok(out),
            // Two slashes would begin a host.
            None => {
                let slashes = out.iter().take_while(|byte| **byte == b'/').count();
                out.drain(..slashes.saturating_sub(1));
                Ok(out)
            }
        }
    }
}

struct Compiler {
    parts: Vec<Part>,
    place: Place,
}

impl Compiler {
    /// Appends unchanged text.
    fn literal(&mut self, text: &[u8]) -> Result<(), LocationError> {
        if self.place == Place::End && !text.is_empty() {
            return Err(LocationError::Behind);
        }
        let mut rest = text;
        while let Some((&byte, behind)) = rest.split_first() {
            rest = behind;
            let is_digit = |at: usize| behind.get(at).is_some_and(u8::is_ascii_hexdigit);
            let fine = match byte {
                b'%' => is_digit(0) && is_digit(1),
                b'[' | b']' => self.place == Place::Authority,
                b'#' => self.place != Place::Fragment,
                _ => is_plain(byte),
            };
            if !fine {
                let at = text.len() - behind.len() - 1;
                let c =
                    text[at..].utf8_chunks().next().and_then(|chunk| chunk.valid().chars().next());
                return Err(LocationError::Character(c.unwrap_or('\u{fffd}')));
            }
            self.place = match (self.place, byte) {
                (Place::Authority, b'/') => Place::Path,
                (_, b'#') => Place::Fragment,
                (Place::Authority | Place::Path, b'?') => Place::Query,
                (place, _) => place,
            };
        }
        self.push(text);
        Ok(())
    }

    fn push(&mut self, text: &[u8]) {
        match self.parts.last_mut() {
            _ if text.is_empty() => {}
            Some(Part::Literal(before)) => *before = [&before[..], text].concat().into(),
            _ => self.parts.push(Part::Literal(text.into())),
        }
    }

    fn name(&mut self, name: &str) -> Result<(), LocationError> {
        let item = Item::of(name).map_err(LocationError::Text)?;
        let part = match (self.place, &item) {
            (_, Item::Named(Name::UpstreamName)) => return Err(LocationError::Upstream),
            (Place::End, _) => return Err(LocationError::Behind),
            (Place::Authority, Item::Named(Name::Host)) if !self.parts.contains(&Part::Host) => {
                Part::Host
            }
            (Place::Authority | Place::Path, Item::Named(Name::RequestUri)) => {
                self.place = Place::End;
                self.end_with_slash();
                Part::Target
            }
            (Place::Authority, _) => return Err(LocationError::Authority(name.to_owned())),
            (Place::Path | Place::Query | Place::Fragment, _) => Part::Word(item),
        };
        self.parts.push(part);
        Ok(())
    }

    /// The path of a request begins with a slash: a slash before it is the same one.
    fn end_with_slash(&mut self) {
        if let Some(Part::Literal(text)) = self.parts.last_mut()
            && let Some(shorter) = text.strip_suffix(b"/")
            && !SCHEMES.contains(&&**text)
        {
            *text = shorter.into();
            self.parts.retain(|part| *part != Part::Literal(Box::default()));
        }
    }

    fn finish(self) -> Result<Location, LocationError> {
        // With the shortest of hosts in the place of the client's.
        let sample = |part: &Part| match part {
            Part::Literal(text) => text.to_vec(),
            Part::Host => b"a".to_vec(),
            Part::Target => b"/".to_vec(),
            Part::Word(_) => Vec::new(),
        };
        let sample: Vec<u8> = self.parts.iter().flat_map(sample).collect();
        match authority(&sample) {
            Some(text) if !weir_http::is_host(text) => Err(LocationError::Host),
            _ => Ok(Location { parts: self.parts }),
        }
    }
}

fn has_prefix(text: &[u8], prefix: &[u8]) -> bool {
    text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Host and port of a URL; None: it is a path.
fn authority(url: &[u8]) -> Option<&[u8]> {
    let scheme = SCHEMES.iter().find(|scheme| has_prefix(url, scheme))?;
    url[scheme.len()..].split(|byte| b"/?#".contains(byte)).next()
}

/// Whether a byte is itself without any meaning (RFC 3986 §2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Whether a byte is allowed in path and query.
fn is_plain(byte: u8) -> bool {
    is_unreserved(byte) || b"!$&'()*+,;=:@/?".contains(&byte)
}

/// Appends path and query of a request. Escapes in it remain.
fn put_target(out: &mut Vec<u8>, target: &[u8]) {
    // OPTIONS for everything has no path.
    let target = if target.first() == Some(&b'/') { target } else { b"/" };
    for (at, &byte) in target.iter().enumerate() {
        let digits = target.get(at + 1..at + 3).unwrap_or_default();
        let is_escape =
            byte == b'%' && digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit);
        put(out, byte, is_plain(byte) || is_escape);
    }
}

/// Appends a value as a single word.
fn put_word(out: &mut Vec<u8>, value: &[u8]) {
    value.iter().for_each(|&byte| put(out, byte, is_unreserved(byte)));
}

/// Appends a byte as itself, or escaped.
fn put(out: &mut Vec<u8>, byte: u8, as_itself: bool) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    if as_itself {
        out.push(byte);
    } else {
        out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

#[cfg(test)]
mod tests;
