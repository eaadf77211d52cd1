//! The parts of a response that matter to a cache, read once from its end-to-end fields (RFC 9111
//! §5, RFC 9213).
//!
//! Called when a head arrives from a server, and again when a stored one was updated. Malformed
//! fields count as the RFC says: Expires as past, Age as absent, Vary as "never the same".

use weir_http::FieldName;

use crate::date::parse_date;
use crate::directives::{AnswerDirectives, Directive};
use crate::list::{DELTA_MAX, delta_seconds, members};
use crate::options::Options;
use crate::structured::{Value, parse_dictionary};
use crate::validators::is_etag;
use crate::vary::Vary;

/// The expiration time that a response states.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Expires {
    /// None stated.
    #[default]
    Absent,
    /// No date, or several lines: it has expired (RFC 9111 §5.3).
    Invalid,
    /// Unix time in seconds.
    At(u64),
}

/// The source of a response's directives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Control {
    /// Cache-Control, and Expires.
    #[default]
    CacheControl,
    /// The targeted field at this position of [`Options::targets`]; Cache-Control and Expires do
    /// not count (RFC 9213 §2.2).
    Targeted(usize),
}

/// The instructions of a response to a shared cache.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    /// 100 to 999.
    pub status: u16,
    /// Directives of the field that counts.
    pub directives: AnswerDirectives,
    /// The field that counts.
    pub control: Control,
    /// Always [`Expires::Absent`] when a targeted field counts.
    pub expires: Expires,
    /// Date, Unix time in seconds; None: absent or no date.
    pub date_s: Option<u64>,
    /// Age in seconds, up to [`DELTA_MAX`]; 0 when absent or no number.
    pub age_s: u32,
    /// Last-Modified, Unix time in seconds; None: absent or no date.
    pub modified_s: Option<u64>,
    /// It has a valid ETag.
    pub has_etag: bool,
    /// The fields that it varies by.
    pub vary: Vary,
    /// It has a Set-Cookie, which is stored.
    pub sets_cookie: bool,
    /// Bytes of all lines, with separators.
    pub field_bytes: usize,
}

impl Answer {
    /// Reads the end-to-end fields of a response, as pairs of name and value. `now_s` is Unix time
    /// in seconds.
    pub fn read<'a, V: AsRef<[u8]>>(
        status: u16,
        fields: impl Iterator<Item = (&'a [u8], V)>,
        options: &Options,
        now_s: u64,
    ) -> Self {
        let mut answer = Self { status, ..Self::default() };
        let mut targeted: Vec<Option<Vec<u8>>> = vec![None; options.targets.len()];
        let mut has_age = false;
        for (name, value) in fields {
            let value = value.as_ref();
            answer.field_bytes += name.len() + value.len() + b": \r\n".len();
            match FieldName::of(name) {
                FieldName::CacheControl => answer.directives.add_line(value, options.ignored),
                FieldName::Expires => answer.add_expires(value, now_s),
                FieldName::Date => {
                    answer.date_s = answer.date_s.or_else(|| parse_date(value, now_s))
                }
                FieldName::Age if !has_age => {
                    has_age = true;
                    answer.age_s = age(value);
                }
                FieldName::Vary => answer.vary.add_line(value),
                FieldName::SetCookie => answer.sets_cookie |= options.keeps(name),
                FieldName::Other => answer.add_other(name, value, options, now_s, &mut targeted),
                _ => {}
            }
        }
        answer.obey_target(&targeted, options);
        answer
    }

    fn add_expires(&mut self, value: &[u8], now_s: u64) {
        self.expires = match (self.expires, parse_date(value, now_s)) {
            (Expires::Absent, Some(at)) => Expires::At(at),
            _ => Expires::Invalid,
        };
    }

    fn add_other(
        &mut self,
        name: &[u8],
        value: &[u8],
        options: &Options,
        now_s: u64,
        targeted: &mut [Option<Vec<u8>>],
    ) {
        if name.eq_ignore_ascii_case(b"etag") {
            self.has_etag |= is_etag(value);
        } else if name.eq_ignore_ascii_case(b"last-modified") {
            self.modified_s = self.modified_s.or_else(|| parse_date(value, now_s));
        } else if name.eq_ignore_ascii_case(b"set-cookie2") {
            self.sets_cookie |= options.keeps(name);
        } else if let Some(at) =
            options.targets.iter().position(|target| target.eq_ignore_ascii_case(name))
        {
            match &mut targeted[at] {
                Some(text) => {
                    text.extend_from_slice(b", ");
                    text.extend_from_slice(value);
                }
                text => *text = Some(value.to_vec()),
            }
        }
    }

    /// The first targeted field that is valid and not empty counts instead of the others.
    fn obey_target(&mut self, targeted: &[Option<Vec<u8>>], options: &Options) {
        for (at, text) in targeted.iter().enumerate() {
            let Some(directives) =
                text.as_ref().and_then(|text| targeted_directives(text, options))
            else {
                continue;
            };
            self.directives = directives;
            self.control = Control::Targeted(at);
            self.expires = Expires::Absent;
            return;
        }
    }

    /// It has a validator, so that revalidation can be cheap.
    pub fn has_validator(&self) -> bool {
        self.has_etag || self.modified_s.is_some()
    }

    /// The response is an error, by its status.
    pub fn is_error(&self) -> bool {
        self.status >= 400
    }
}

/// RFC 9213 §2.1. None: the field is empty or no dictionary. A number of the wrong type is 0, like
/// an unreadable one in Cache-Control.
fn targeted_directives(text: &[u8], options: &Options) -> Option<AnswerDirectives> {
    let mut directives = AnswerDirectives::default();
    let mut is_empty = true;
    let parsed = parse_dictionary(text, |key, value| {
        is_empty = false;
        // Keys are lower case by their grammar.
        let Some(directive) =
            Directive::of(key).filter(|directive| !options.ignored.has(*directive))
        else {
            return;
        };
        match value {
            Value::Boolean(false) if !directive.has_seconds() => directives.take_back(directive),
            Value::Integer(seconds) if directive.has_seconds() => {
                let seconds = u32::try_from(seconds.max(0)).unwrap_or(DELTA_MAX).min(DELTA_MAX);
                directives.put_seconds(directive, seconds);
            }
            _ if directive.has_seconds() => directives.put_seconds(directive, 0),
            Value::Boolean(true) => directives.set.insert(directive),
            _ if directive.permits() => directives.take_back(directive),
            _ => directives.set.insert(directive),
        }
    });
    (parsed.is_ok() && !is_empty).then_some(directives)
}

/// RFC 9111 §5.1: the first member of a list counts; a value that is no number does not count. From
/// 2^31-1 on it is [`DELTA_MAX`], older than any lifetime.
fn age(value: &[u8]) -> u32 {
    let seconds = members(value).next().and_then(delta_seconds).unwrap_or(0);
    if seconds >= DELTA_MAX - 1 { DELTA_MAX } else { seconds }
}

#[cfg(test)]
mod tests;
