//! The fields of one head as a list of slices of it.
//!
//! Filled by the head parsers, read by routing and by the encoders. The list is scratch memory that
//! is reused for every head, so parsing allocates nothing once it has grown to the usual size. RFC
//! 9110 §5.

use crate::known::classify;
use crate::oddity::{Oddities, Oddity};
use crate::span::Span;

/// Fields that the proxy treats specially. Everything else is [`FieldName::Other`] and passes on.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[allow(missing_docs)] // each variant is the field of that name
pub enum FieldName {
    /// Any name that is not listed here.
    #[default]
    Other,
    Host,
    ContentLength,
    TransferEncoding,
    Connection,
    KeepAlive,
    ProxyConnection,
    ProxyAuthenticate,
    ProxyAuthorization,
    ProxyAuthenticationInfo,
    Proxy,
    Te,
    Trailer,
    Upgrade,
    Expect,
    Via,
    Forwarded,
    XForwardedFor,
    XForwardedProto,
    XForwardedHost,
    XRealIp,
    Authorization,
    AuthenticationInfo,
    WwwAuthenticate,
    Cookie,
    SetCookie,
    IfMatch,
    IfNoneMatch,
    IfModifiedSince,
    IfUnmodifiedSince,
    IfRange,
    Range,
    Date,
    Server,
    MaxForwards,
    Http2Settings,
    CacheControl,
    ContentType,
    ContentEncoding,
    ContentRange,
    ContentLocation,
    Age,
    Expires,
    Location,
    RetryAfter,
    Vary,
    Pragma,
    Warning,
    ClientCert,
    ClientCertChain,
    CdnLoop,
    /// Any other name that begins with `X-Forwarded-`.
    XForwardedOther,
}

impl FieldName {
    const COUNT: usize = 64;

    /// Which known field `name` is, whatever its case. `name` must be a token.
    pub fn of(name: &[u8]) -> Self {
        classify(name)
    }

    #[inline]
    const fn bit(self) -> u64 {
        1 << self as u8
    }

    /// Fields that concern one connection or its framing, or must not pass a proxy: never passed
    /// on, in either direction (RFC 9110 §7.6.1).
    pub(crate) const HOP_BY_HOP: u64 = Self::set(&[
        Self::ContentLength,
        Self::TransferEncoding,
        Self::Connection,
        Self::KeepAlive,
        Self::ProxyConnection,
        Self::ProxyAuthenticate,
        Self::ProxyAuthorization,
        Self::ProxyAuthenticationInfo,
        Self::Proxy,
        Self::Te,
        Self::Trailer,
        Self::Upgrade,
        Self::Http2Settings,
    ]);

    /// Whether it is between two neighbours only, or must not pass a proxy: framing, connection and
    /// the like. A proxy writes those itself (RFC 9110 §7.6.1).
    pub const fn is_hop_by_hop(self) -> bool {
        self.is_in(Self::HOP_BY_HOP)
    }

    /// Whether it names the client that a proxy speaks for; only trusted senders are believed:
    /// Forwarded, X-Forwarded-*, X-Real-IP.
    pub const fn is_forwarding(self) -> bool {
        self.is_in(Self::FORWARDING)
    }

    /// Fields that only a trusted client may send.
    pub(crate) const FORWARDING: u64 = Self::set(&[
        Self::Forwarded,
        Self::XForwardedFor,
        Self::XForwardedProto,
        Self::XForwardedHost,
        Self::XForwardedOther,
        Self::XRealIp,
    ]);

    /// Returns a set for quick membership tests.
    pub(crate) const fn set(names: &[Self]) -> u64 {
        let mut bits = 0;
        let mut i = 0;
        while i < names.len() {
            bits |= names[i].bit();
            i += 1;
        }
        bits
    }

    /// Whether it is in a set made by [`FieldName::set`].
    #[inline]
    pub(crate) const fn is_in(self, set: u64) -> bool {
        set & self.bit() != 0
    }
}

const _: () = assert!((FieldName::XForwardedOther as usize) < FieldName::COUNT);

/// Never removed because Connection names it: framing, identity, fields that weir sets, and fields
/// that caches rely on. A client that could strip these from a request would control the server's
/// view of the client (CVE-2022-31813); a response without its Cache-Control or Vary would be
/// stored for all.
const NEVER_LISTED: u64 = FieldName::set(&[
    FieldName::Host,
    FieldName::ContentLength,
    FieldName::TransferEncoding,
    FieldName::Cookie,
    FieldName::SetCookie,
    FieldName::Authorization,
    FieldName::WwwAuthenticate,
    FieldName::Via,
    FieldName::CdnLoop,
    FieldName::Forwarded,
    FieldName::XForwardedFor,
    FieldName::XForwardedProto,
    FieldName::XForwardedHost,
    FieldName::XForwardedOther,
    FieldName::XRealIp,
    FieldName::ClientCert,
    FieldName::ClientCertChain,
    FieldName::CacheControl,
    FieldName::Vary,
    FieldName::Expires,
    FieldName::Age,
]);

/// Fields with one value, which are strange when repeated. Where that is dangerous the message is
/// rejected (Host, Content-Length).
const ONCE: u64 = FieldName::set(&[
    FieldName::Authorization,
    FieldName::ProxyAuthorization,
    FieldName::Cookie,
    FieldName::ContentType,
    FieldName::ContentRange,
    FieldName::ContentLocation,
    FieldName::IfModifiedSince,
    FieldName::IfUnmodifiedSince,
    FieldName::IfRange,
    FieldName::Range,
    FieldName::MaxForwards,
    FieldName::Date,
    FieldName::Age,
    FieldName::Expires,
    FieldName::Location,
    FieldName::RetryAfter,
]);

/// One field line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Field {
    /// The whole line with its CRLF (and with its continuation lines when folded).
    pub line: Span,
    /// The name without white space before the colon.
    pub name: Span,
    /// The value without white space around it.
    pub value: Span,
    /// Which field it is.
    pub known: FieldName,
    /// Hop-by-hop because Connection names it; never set for framing, identity and forwarding
    /// fields.
    pub listed: bool,
    /// In replies only: the value contains a line fold.
    pub folded: bool,
    /// The name contains `_`.
    pub underscore: bool,
    /// In responses only: white space precedes the colon, so the line can't be copied.
    pub(crate) spaced: bool,
}

impl Field {
    /// Returns the same field for a line that begins here.
    pub(crate) fn moved(&self, start: usize) -> Field {
        let from = self.line.start as usize;
        let moved = |span: Span| {
            Span::new(span.start as usize - from + start, span.end as usize - from + start)
        };
        Field { line: moved(self.line), name: moved(self.name), value: moved(self.value), ..*self }
    }
}

/// Fields of one head in their order. Reuse one for every head: it keeps its memory.
#[derive(Debug, Clone)]
pub struct Fields {
    list: Vec<Field>,
    /// Sets of names: at least once, more than once.
    seen: u64,
    repeated: u64,
    /// Position of the first field of each name; meaningful only when `seen` has it.
    first: [u32; FieldName::COUNT],
    /// Oddities of the head.
    pub(crate) odd: Oddities,
}

impl Default for Fields {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            seen: 0,
            repeated: 0,
            first: [0; FieldName::COUNT],
            odd: Oddities::default(),
        }
    }
}

impl Fields {
    /// All fields in the order of the head.
    #[inline]
    pub fn as_slice(&self) -> &[Field] {
        &self.list
    }

    /// Number of field lines.
    #[inline]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The head has no field.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The first field of a known name (of `Other`: the first unknown one).
    #[inline]
    pub fn find(&self, known: FieldName) -> Option<&Field> {
        if known.is_in(self.seen) {
            self.list.get(self.first[known as usize] as usize)
        } else {
            None
        }
    }

    /// Returns all fields of a known name, in order.
    pub fn all(&self, known: FieldName) -> impl Iterator<Item = &Field> {
        let from = if known.is_in(self.seen) {
            self.first[known as usize] as usize
        } else {
            self.list.len()
        };
        self.list[from..].iter().filter(move |field| field.known == known)
    }

    /// Returns the value of the first field of this name, compared without regard to case. `input`
    /// is the parsed input.
    pub fn get<'a>(&self, input: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
        let known = classify(name);
        let found =
            self.all(known).find(|field| field.name.of(input).eq_ignore_ascii_case(name))?;
        Some(found.value.of(input))
    }

    /// Returns the oddities of the head that was parsed.
    #[inline]
    pub fn oddities(&self) -> Oddities {
        self.odd
    }

    /// Some field of a set made by [`FieldName::set`] is there.
    #[inline]
    pub(crate) fn has_any(&self, set: u64) -> bool {
        self.seen & set != 0
    }

    /// The name occurs more than once.
    #[inline]
    pub(crate) fn is_repeated(&self, known: FieldName) -> bool {
        known.is_in(self.repeated)
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.seen = 0;
        self.repeated = 0;
        self.odd = Oddities::default();
    }

    #[inline]
    pub(crate) fn push(&mut self, field: Field) {
        let (bit, place) = (field.known.bit(), field.known as usize % FieldName::COUNT);
        let new = self.seen & bit == 0;
        self.first[place] = if new { self.list.len() as u32 } else { self.first[place] };
        self.repeated |= self.seen & bit;
        self.seen |= bit;
        self.list.push(field);
    }

    pub(crate) fn last_mut(&mut self) -> Option<&mut Field> {
        self.list.last_mut()
    }

    /// Notes fields that occur more often than allowed. Call it when the head is complete.
    #[inline]
    pub(crate) fn judge_repeated(&mut self) {
        if self.repeated & ONCE != 0 {
            self.odd.insert(Oddity::Repeated);
        }
    }

    /// Marks every field of this name as hop-by-hop, unless it may never be removed.
    pub(crate) fn mark_listed(&mut self, input: &[u8], name: &[u8]) {
        let known = classify(name);
        if known.is_in(NEVER_LISTED) {
            self.odd.insert(Oddity::ListedInVain);
            return;
        }
        if !known.is_in(self.seen) {
            return;
        }
        for field in &mut self.list {
            if field.name.len() == name.len() && field.name.of(input).eq_ignore_ascii_case(name) {
                field.listed = true;
            }
        }
    }
}
