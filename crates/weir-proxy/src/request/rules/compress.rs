//! `compress` of a route: which coding a client accepts, and which responses get one.
//! docs/compression.md.
//!
//! The client's coding is determined when its request is routed ([`Compress::accepted`]), the
//! coding of the response when its head arrives ([`Accepted::judge`]). Pure: functions of the rule
//! and of heads; the encoders are in [`crate::base::encoder`], used by `client/compressing.rs`.
//! Bound: linear in a head. RFC 9110 §8.4, §8.8.3, §12.5.3, §12.5.5; RFC 9111 §5.2.2.6; RFC 9530.

use weir_http::{Fields, ReplyParts};

use crate::base::encoder::Coding;
use crate::observe::kinds::{Kinds, worded};

/// Fields of a response that describe its bytes, which change when they are coded.
const OF_BYTES: [&[u8]; 5] =
    [b"Accept-Ranges", b"Content-MD5", b"Content-Digest", b"Digest", b"Repr-Digest"];

/// Media types that are worth compressing, by default.
pub const TYPES: &[&str] = &[
    "text/*",
    "application/json",
    "application/*+json",
    "application/javascript",
    "application/xml",
    "application/*+xml",
    "application/wasm",
    "application/x-javascript",
    "application/x-ndjson",
    "application/yaml",
    "application/vnd.ms-fontobject",
    "font/otf",
    "font/ttf",
    "image/svg+xml",
    "image/bmp",
    "image/x-icon",
    "image/vnd.microsoft.icon",
];

/// The rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compress {
    /// Codings, the best first, with the effort of each.
    pub codings: Vec<(Coding, u32)>,
    /// Media types in lower case; `*` matches any text.
    pub types: Vec<String>,
    /// A response with a known smaller length is not compressed.
    pub length_min: u64,
}

worded! {
    /// Why a response of a route with `compress` was not compressed.
    enum Passed;
    /// Its client accepts no coding of the route, or prefers an uncompressed response.
    Unwanted: "unwanted";
    /// It has no Content-Type, or one that is not among `types`.
    Type: "type";
    /// It is smaller than `min-length`.
    Small: "small";
    /// It has a Content-Encoding already.
    Encoded: "encoded";
    /// It, or its request, has `no-transform`.
    NoTransform: "no-transform";
    /// It is a partial response (206, Content-Range).
    Partial: "partial";
    /// Other responses use all of `compress-memory`, or memory ran out.
    Busy: "busy";
}

/// The codings that the client of one request accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// The best coding for it, with its effort; or why it gets none.
    coding: Result<(Coding, u32), Passed>,
    /// It does not accept an uncompressed response.
    must: bool,
}

/// The decision about a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Its coding with the effort, or why it is not compressed.
    pub(crate) coding: Result<(Coding, u32), Passed>,
    /// Another client might have got a different response.
    pub(crate) varies: bool,
}

impl Compress {
    /// Determines what the client of this request accepts. Spans of `fields` point into `bytes`.
    pub(crate) fn accepted(&self, fields: &Fields, bytes: &[u8]) -> Accepted {
        let lines = |name: &'static [u8]| {
            let lines = fields.as_slice().iter().filter(|field| !field.listed);
            lines
                .filter(|field| field.name.of(bytes).eq_ignore_ascii_case(name))
                .map(|field| field.value.of(bytes))
        };
        let wishes = Wishes::read(lines(b"accept-encoding"));
        let coding = if lines(b"cache-control").any(forbids_change) {
            Err(Passed::NoTransform)
        } else {
            wishes.best(&self.codings).ok_or(Passed::Unwanted)
        };
        Accepted { coding, must: wishes.refuses_identity() }
    }

    fn has_type(&self, value: &[u8]) -> bool {
        let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
        let media_type = value[..end].trim_ascii();
        self.types.iter().any(|pattern| fits(pattern.as_bytes(), media_type))
    }
}

impl Kinds for Coding {
    fn all() -> Box<[Coding]> {
        Box::new(Coding::ALL)
    }

    fn word(self) -> &'static str {
        Coding::word(self)
    }
}

impl Accepted {
    /// Whether it accepts any coding of its route.
    pub(crate) fn takes_any(self) -> bool {
        self.coding.is_ok()
    }

    /// Decides about a response with this head and, as far as known, this body length.
    pub(crate) fn judge(
        self,
        rule: &Compress,
        parts: &ReplyParts<'_>,
        length: Option<u64>,
    ) -> Verdict {
        let stays = |why| Verdict { coding: Err(why), varies: false };
        let (mut is_typed, mut is_encoded, mut is_fixed, mut is_part) =
            (false, false, false, parts.status == 206);
        for (name, value) in parts.fields() {
            if name.eq_ignore_ascii_case(b"content-type") {
                is_typed = rule.has_type(&value);
            } else if name.eq_ignore_ascii_case(b"content-encoding") {
                is_encoded = true;
            } else if name.eq_ignore_ascii_case(b"cache-control") {
                is_fixed |= forbids_change(&value);
            } else if name.eq_ignore_ascii_case(b"content-range") {
                is_part = true;
            }
        }
        if is_part {
            return stays(Passed::Partial);
        }
        if is_encoded {
            return stays(Passed::Encoded);
        }
        if is_fixed {
            return stays(Passed::NoTransform);
        }
        if !is_typed {
            return stays(Passed::Type);
        }
        let is_small =
            length.is_some_and(|length| length == 0 || length < rule.length_min && !self.must);
        if is_small {
            return stays(Passed::Small);
        }
        Verdict { coding: self.coding, varies: true }
    }
}

/// Passes on a response head as it is when it varies by what clients accept: with Vary, and with a
/// weak validator, because a strong validator is for one sequence of bytes only (RFC 9110 §8.8.1).
/// With a coding it has its Content-Encoding, and no field that describes other bytes.
pub(crate) fn with_coding<R>(
    parts: &ReplyParts<'_>,
    coding: Option<Coding>,
    weakens: bool,
    then: impl FnOnce(ReplyParts<'_>) -> R,
) -> R {
    let (mut tag, mut varies) = (None, false);
    for (name, value) in parts.fields() {
        if name.eq_ignore_ascii_case(b"etag") && value.starts_with(b"\"") {
            tag = Some([b"W/", &*value].concat());
        } else if name.eq_ignore_ascii_case(b"vary") {
            varies |= names_encoding(&value);
        }
    }
    let tag = tag.filter(|_| weakens);
    let mut removed = parts.removed.to_vec();
    removed.extend(tag.iter().map(|_| &b"ETag"[..]));
    removed.extend(coding.iter().flat_map(|_| OF_BYTES));
    // Names that rules have removed may be among the added lines: the rules have set those.
    let gone = &removed[parts.removed.len()..];
    let stays = |name: &[u8]| !gone.iter().any(|gone| gone.eq_ignore_ascii_case(name));
    let mut added: Vec<_> = parts.added.iter().copied().filter(|(name, _)| stays(name)).collect();
    added.extend(coding.map(|coding| (&b"Content-Encoding"[..], coding.word().as_bytes())));
    added.extend(tag.as_deref().map(|tag| (&b"ETag"[..], tag)));
    added.extend((!varies).then_some((&b"Vary"[..], &b"Accept-Encoding"[..])));
    then(parts.without(&removed).with(&added))
}

/// Whether a trailer describes bytes that were coded.
pub(crate) fn is_of_bytes(name: &[u8]) -> bool {
    OF_BYTES.iter().any(|other| other.eq_ignore_ascii_case(name))
}

/// The weights in Accept-Encoding (RFC 9110 §12.5.3), in thousandths; None: not mentioned.
#[derive(Debug, Default)]
struct Wishes {
    of: [Option<u16>; Coding::ALL.len()],
    identity: Option<u16>,
    others: Option<u16>,
}

impl Wishes {
    /// Members that are not a coding with a weight are ignored. Of duplicates the last counts.
    fn read<'a>(lines: impl Iterator<Item = &'a [u8]>) -> Wishes {
        let mut wishes = Wishes::default();
        for member in lines.flat_map(|line| line.split(|byte| *byte == b',')) {
            let mut parts = member.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let (name, weight) = (parts.next().unwrap_or_default(), parts.next());
            let Some(weight) =
                weight.map_or(Some(1000), weight_of).filter(|_| parts.next().is_none())
            else {
                continue;
            };
            if name == b"*" {
                wishes.others = Some(weight);
            } else if name.eq_ignore_ascii_case(b"identity") {
                wishes.identity = Some(weight);
            } else if let Some(coding) = Coding::of(name) {
                wishes.of[coding as usize] = Some(weight);
            }
        }
        wishes
    }

    /// The coding that the client prefers, at least as much as none; among equals the first.
    fn best(&self, codings: &[(Coding, u32)]) -> Option<(Coding, u32)> {
        let weight = |coding: Coding| self.of[coding as usize].or(self.others).unwrap_or(0);
        // `max_by_key` returns the last of several.
        let best = codings.iter().rev().max_by_key(|(coding, _)| weight(*coding)).copied()?;
        let weight = weight(best.0);
        (weight > 0 && self.identity.is_none_or(|identity| identity <= weight)).then_some(best)
    }

    fn refuses_identity(&self) -> bool {
        self.identity.or(self.others) == Some(0)
    }
}

/// `q=0.5` in thousandths.
fn weight_of(parameter: &[u8]) -> Option<u16> {
    let (name, value) = parameter.split_at_checked(2)?;
    if !name.eq_ignore_ascii_case(b"q=") {
        return None;
    }
    let (whole, rest) = value.split_first()?;
    let decimals = match rest {
        [] => rest,
        [b'.', decimals @ ..] if decimals.len() <= 3 => decimals,
        _ => return None,
    };
    let digit = |at: usize| decimals.get(at).map_or(Some(0), |byte| char::from(*byte).to_digit(10));
    let thousandths = (digit(0)? * 100 + digit(1)? * 10 + digit(2)?) as u16;
    match (whole, thousandths) {
        (b'0', _) => Some(thousandths),
        (b'1', 0) => Some(1000),
        _ => None,
    }
}

/// Whether a value of Cache-Control has `no-transform` (RFC 9111 §5.2.1.6, §5.2.2.6).
fn forbids_change(value: &[u8]) -> bool {
    value
        .split(|byte| *byte == b',')
        .any(|member| member.trim_ascii().eq_ignore_ascii_case(b"no-transform"))
}

/// Whether a value of Vary says that a response depends on Accept-Encoding.
fn names_encoding(value: &[u8]) -> bool {
    let mut members = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    members.any(|member| member == b"*" || member.eq_ignore_ascii_case(b"accept-encoding"))
}

/// Whether a media type matches a pattern in lower case with at most one `*` on each side of the
/// `/`.
pub(super) fn fits(pattern: &[u8], media_type: &[u8]) -> bool {
    let sides =
        |text| <[u8]>::iter(text).position(|byte| *byte == b'/').map(|at| text.split_at(at));
    let (Some(pattern), Some(media_type)) = (sides(pattern), sides(media_type)) else {
        return false;
    };
    fits_side(pattern.0, media_type.0) && fits_side(pattern.1, media_type.1)
}

fn fits_side(pattern: &[u8], side: &[u8]) -> bool {
    match pattern.iter().position(|byte| *byte == b'*') {
        None => pattern.eq_ignore_ascii_case(side),
        Some(at) => {
            let (begin, end) = (&pattern[..at], &pattern[at + 1..]);
            side.len() >= begin.len() + end.len()
                && side[..begin.len()].eq_ignore_ascii_case(begin)
                && side[side.len() - end.len()..].eq_ignore_ascii_case(end)
        }
    }
}

#[cfg(test)]
mod tests;
