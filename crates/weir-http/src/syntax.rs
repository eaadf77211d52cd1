//! Field lines: from the byte after the first line to the empty line (RFC 9112 §2.2, §5).
//!
//! Called by the request and the response parser and for single trailer lines. Strictly from left
//! to right, and a fault is reported when its byte is there: a cut-off head is therefore either
//! "not complete" or has exactly the result of the whole head. Bounds: bytes and number of fields
//! of [`Limits`](crate::Limits).

use crate::faults::faults;
use crate::field::{Field, Fields};
use crate::known::classify;
use crate::oddity::{Oddities, Oddity};
use crate::scan::{NOT_TOKEN, UNDERSCORE, is_blank, name_end, token_faults, value_end};
use crate::span::Span;

faults! {
    /// Faults of lines and fields that requests and replies share. The sender is at fault in all of
    /// them.
    enum SyntaxError;
    /// A line ends with LF alone.
    BareLf: 400, "bare-lf", "a line ends with LF alone";
    /// A CR that no LF follows.
    BareCr: 400, "bare-cr", "a CR is not followed by LF";
    /// NUL or another control byte.
    ControlByte: 400, "control-byte", "a control byte in the head";
    /// A field line begins with the colon.
    NameEmpty: 400, "name-empty", "an empty field name";
    /// A field name that is not a token.
    NameInvalid: 400, "name-invalid", "a field name with a byte that may not stand in one";
    /// White space before the colon (in a request), or inside a name.
    NameSpaced: 400, "name-spaced", "white space in or behind a field name";
    /// A field line without a colon.
    ColonMissing: 400, "colon-missing", "a field line without a colon";
    /// A line fold in a request or trailer, or one before the first field.
    Folded: 400, "line-fold", "a folded field line";
    /// The first line is longer than allowed.
    LineTooLong: 414, "line-too-long", "the first line is too long";
    /// The head is longer than allowed.
    HeadTooLarge: 431, "head-too-large", "the head is too large";
    /// More field lines than allowed.
    FieldsTooMany: 431, "fields-too-many", "too many field lines";
    /// Connection names more options than is ever useful.
    OptionsTooMany: 431, "connection-options", "too many connection options";
}

/// The sender of the head: a proxy must repair two faults in responses that it must reject in
/// requests (RFC 9112 §5.1, §5.2).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    Client,
    Upstream,
}

/// Reads the bytes at a place where a line end is expected: its end, the fault, or None when bytes
/// are missing.
#[inline(always)]
pub(crate) fn line_end(input: &[u8], at: usize) -> Result<Option<usize>, SyntaxError> {
    match input.get(at) {
        None => Ok(None),
        Some(b'\r') => match input.get(at + 1) {
            None => Ok(None),
            Some(b'\n') => Ok(Some(at + 2)),
            Some(_) => Err(SyntaxError::BareCr),
        },
        Some(b'\n') => Err(SyntaxError::BareLf),
        Some(_) => Err(SyntaxError::ControlByte),
    }
}

/// Parses field lines from `at`, appends them to `fields` and returns the position after the empty
/// line; None when the window ends before it.
///
/// # Errors
/// The first fault from the left.
#[inline]
pub(crate) fn parse_fields(
    window: &[u8],
    mut at: usize,
    fields_max: usize,
    sender: Sender,
    fields: &mut Fields,
) -> Result<Option<usize>, SyntaxError> {
    loop {
        if window.get(at) == Some(&b'\r') {
            return line_end(window, at);
        }
        if fields.len() >= fields_max && at < window.len() && !is_blank(window[at]) {
            return Err(SyntaxError::FieldsTooMany);
        }
        let next = match parse_field(window, at, sender, &mut fields.odd)? {
            Line::Cut => return Ok(None),
            Line::Field(field) => {
                fields.push(field);
                field.line.end as usize
            }
            Line::Fold => match (sender, fields.last_mut()) {
                (Sender::Upstream, Some(last)) => match extend_folded(window, at, last)? {
                    None => return Ok(None),
                    Some(end) => {
                        fields.odd.insert(Oddity::Folded);
                        end
                    }
                },
                _ => return Err(SyntaxError::Folded),
            },
        };
        at = next;
    }
}

/// The kind of a line.
pub(crate) enum Line {
    /// The window ends in it.
    Cut,
    Field(Field),
    /// It begins with white space.
    Fold,
}

/// Parses one field line that begins at `at`. Oddities of its name are added to `odd`.
///
/// # Errors
/// The first fault from the left.
#[inline(always)]
pub(crate) fn parse_field(
    window: &[u8],
    at: usize,
    sender: Sender,
    odd: &mut Oddities,
) -> Result<Line, SyntaxError> {
    let name_end = name_end(window, at);
    let Some(&stop) = window.get(name_end) else { return Ok(Line::Cut) };
    let name = &window[at..name_end];
    let (mut colon, mut spaced) = (name_end, false);
    if stop != b':' {
        if name.is_empty() && is_blank(stop) {
            return Ok(Line::Fold);
        }
        match colon_after_space(window, name_end, sender)? {
            None => return Ok(Line::Cut),
            Some(place) => {
                odd.insert(Oddity::SpacedName);
                (colon, spaced) = (place, true);
            }
        }
    }
    let faults = token_faults(name);
    if name.is_empty() {
        return Err(SyntaxError::NameEmpty);
    }
    if faults != 0 {
        if faults & NOT_TOKEN != 0 {
            return Err(SyntaxError::NameInvalid);
        }
        odd.insert(Oddity::Underscore);
    }
    let value_end = value_end(window, colon + 1);
    let Some(end) = line_end(window, value_end)? else { return Ok(Line::Cut) };
    let field = Field {
        line: Span::new(at, end),
        name: Span::new(at, name_end),
        value: trim(window, colon + 1, value_end),
        known: classify(name),
        underscore: faults & UNDERSCORE != 0,
        spaced,
        ..Field::default()
    };
    Ok(Line::Field(field))
}

/// A name ended without a colon: returns the colon after white space in a response, else the fault.
#[cold]
fn colon_after_space(
    window: &[u8],
    at: usize,
    sender: Sender,
) -> Result<Option<usize>, SyntaxError> {
    if !is_blank(window[at]) {
        return Err(match line_end(window, at)? {
            None => return Ok(None),
            Some(_) => SyntaxError::ColonMissing,
        });
    }
    if sender == Sender::Client {
        return Err(SyntaxError::NameSpaced);
    }
    let rest = &window[at..];
    match rest.iter().position(|&byte| !is_blank(byte)) {
        None => Ok(None),
        Some(len) if rest[len] == b':' => Ok(Some(at + len)),
        Some(_) => Err(SyntaxError::NameSpaced),
    }
}

/// Adds a continuation line to the field before it.
#[cold]
fn extend_folded(
    window: &[u8],
    at: usize,
    field: &mut Field,
) -> Result<Option<usize>, SyntaxError> {
    let value_end = value_end(window, at);
    let Some(end) = line_end(window, value_end)? else { return Ok(None) };
    let from = if field.value.is_empty() { at } else { field.value.start as usize };
    field.value = trim(window, from, value_end);
    field.line.end = end as u32;
    field.folded = true;
    Ok(Some(end))
}

/// White space around a value is not part of it (RFC 9110 §5.5). CR and LF can only come from folds
/// here.
#[inline]
fn trim(input: &[u8], start: usize, end: usize) -> Span {
    let space = |byte: u8| is_blank(byte) || matches!(byte, b'\r' | b'\n');
    let (mut start, mut end) = (start, end);
    while start < end && space(input[start]) {
        start += 1;
    }
    while start < end && space(input[end - 1]) {
        end -= 1;
    }
    Span::new(start, end)
}
