//! May a response be stored, and on which terms is it used later? (RFC 9111 §3, §3.5; RFC 5861;
//! design of what a shared cache must not keep)
//!
//! Called once a response has a head that is wanted for the store. A response that is not
//! explicitly allowed is not stored, and [`NotStored`] gives the reason in a word for operators.

use weir_http::{FieldName, Method, ReplyBody};

use crate::answer::Answer;
use crate::directives::Directive;
use crate::freshness::{
    LifetimeSource, SECOND_US, Times, initial_age_us, lifetime, may_be_guessed,
};
use crate::list::DELTA_MAX;
use crate::options::Options;
use crate::request::Request;
use crate::usage::{is_error, is_fresh};
use crate::vary::Vary;

/// Most bytes of field lines that are stored.
pub const FIELD_BYTES_MAX: usize = 64 << 10;
/// Final statuses whose meaning for caches weir knows: only with these does must-understand
/// override no-store (RFC 9111 §5.2.2.3).
const UNDERSTOOD: [u16; 18] =
    [200, 203, 204, 206, 300, 301, 302, 303, 304, 307, 308, 404, 405, 410, 414, 421, 451, 501];

/// Why a response is not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum NotStored {
    /// Not the response to GET.
    Method,
    /// The request had a body.
    RequestBody,
    /// The request says no-store (RFC 9111 §5.2.1.5).
    RequestNoStore,
    /// Interim, partial, or 304.
    Status,
    /// It ends with the connection, so that it may be truncated (RFC 9112 §8).
    UntilClose,
    /// no-store, or must-understand with a status that weir does not understand.
    NoStore,
    /// private, even for single fields.
    Private,
    /// The request had credentials, and nothing allows it to be shared (RFC 9111 §3.5).
    Authorization,
    /// It sets a cookie and is not marked public.
    SetCookie,
    /// It varies by anything.
    VaryAny,
    /// It states no lifetime, and none can be guessed.
    NoLifetime,
    /// It is never fresh, cannot be validated, and may not be used stale.
    NeverUsable,
    /// Its fields are too large.
    FieldsTooLarge,
    /// Its body is too large.
    BodyTooLarge,
}

impl NotStored {
    /// All reasons.
    pub const ALL: [Self; 14] = [
        Self::Method,
        Self::RequestBody,
        Self::RequestNoStore,
        Self::Status,
        Self::UntilClose,
        Self::NoStore,
        Self::Private,
        Self::Authorization,
        Self::SetCookie,
        Self::VaryAny,
        Self::NoLifetime,
        Self::NeverUsable,
        Self::FieldsTooLarge,
        Self::BodyTooLarge,
    ];

    /// Returns a word for logs, metrics and Cache-Status.
    pub fn word(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::RequestBody => "request-body",
            Self::RequestNoStore => "request-no-store",
            Self::Status => "status",
            Self::UntilClose => "until-close",
            Self::NoStore => "no-store",
            Self::Private => "private",
            Self::Authorization => "authorization",
            Self::SetCookie => "set-cookie",
            Self::VaryAny => "vary",
            Self::NoLifetime => "no-lifetime",
            Self::NeverUsable => "never-usable",
            Self::FieldsTooLarge => "fields-too-large",
            Self::BodyTooLarge => "body-too-large",
        }
    }
}

/// The terms on which a stored response is used. All that lookups need; nothing of it is on the
/// heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// 200 to 999.
    pub status: u16,
    /// When its head arrived, or that of the response that validated it: microseconds of the
    /// monotonic clock.
    pub received_us: u64,
    /// When that was, Unix time in seconds.
    pub received_s: u64,
    /// Its age at that time, microseconds.
    pub initial_age_us: u64,
    /// Seconds that it is fresh, up to [`DELTA_MAX`].
    pub lifetime_s: u32,
    /// The source of the lifetime.
    pub lifetime_source: LifetimeSource,
    /// Seconds beyond its lifetime that it is served while it is refetched; 0 if that is forbidden.
    pub stale_while_revalidate_s: u32,
    /// Seconds beyond its lifetime that it is served while its server fails; 0 if that is
    /// forbidden.
    pub stale_if_error_s: u32,
    /// It is validated before each use.
    pub no_cache: bool,
    /// It may never be used stale.
    pub forbids_stale: bool,
    /// It does not change while it is fresh (RFC 8246).
    pub immutable: bool,
    /// It can be validated.
    pub has_validator: bool,
}

impl Terms {
    /// Returns the terms of a response that may be stored, or that was validated.
    pub fn of(answer: &Answer, options: &Options, times: &Times) -> Self {
        let lifetime = lifetime(answer, options, times.received_s);
        let said = &answer.directives;
        // An operator's lifetime overrides the response's own statements, including no-cache.
        let is_forced = lifetime.source == LifetimeSource::Forced;
        // Most pages for one client say nothing at all. No other client gets them unvalidated,
        // whatever the operator allows to be served stale.
        let says_nothing = lifetime.source == LifetimeSource::None
            && !said.set.has(Directive::Public)
            && said.stale_while_revalidate_s.or(said.stale_if_error_s).is_none();
        let forbids_stale = said.forbids_stale() || answer.is_error() || says_nothing;
        let initial_age_us = initial_age_us(answer, times);
        // It lives from now on, however old it was on arrival.
        let before_s = if is_forced { initial_age_us.div_ceil(SECOND_US) } else { 0 };
        let lifetime_s =
            u64::from(lifetime.seconds).saturating_add(before_s).min(u64::from(DELTA_MAX));
        let window = |said: Option<u32>, operator: u32| {
            if forbids_stale { 0 } else { said.unwrap_or(operator) }
        };
        Self {
            status: answer.status,
            received_us: times.received_us,
            received_s: times.received_s,
            initial_age_us,
            lifetime_s: lifetime_s as u32,
            lifetime_source: lifetime.source,
            stale_while_revalidate_s: window(
                said.stale_while_revalidate_s,
                options.stale_while_revalidate_s,
            ),
            stale_if_error_s: window(said.stale_if_error_s, options.stale_if_error_s),
            no_cache: said.set.has(Directive::NoCache) && !is_forced,
            forbids_stale,
            immutable: said.set.has(Directive::Immutable),
            has_validator: answer.has_validator(),
        }
    }

    /// Returns its age, microseconds (RFC 9111 §4.2.3). `now_us` is of the monotonic clock.
    pub fn age_us(&self, now_us: u64) -> u64 {
        self.initial_age_us.saturating_add(now_us.saturating_sub(self.received_us))
    }

    /// Returns the value of its Age field (RFC 9111 §5.1): whole seconds, up to [`DELTA_MAX`].
    pub fn age_s(&self, now_us: u64) -> u32 {
        (self.age_us(now_us) / SECOND_US).min(u64::from(DELTA_MAX)) as u32
    }

    /// Whether it can be used when it arrives: fresh, after validation, or stale.
    fn is_usable(&self) -> bool {
        let is_fresh = !self.no_cache && is_fresh(self, self.received_us);
        let is_used_stale = self.stale_while_revalidate_s > 0 || self.stale_if_error_s > 0;
        is_fresh || (!is_error(self) && (self.has_validator || is_used_stale))
    }
}

/// Returns the terms on which the response to a request may be stored. `body` is how the end of its
/// body is known.
///
/// # Errors
/// Why not; it is no fault.
pub fn may_store(
    request: Request<'_>,
    answer: &Answer,
    body: ReplyBody,
    options: &Options,
    times: &Times,
) -> Result<Terms, NotStored> {
    judge_request(request)?;
    judge_body(answer, body, options)?;
    judge_directives(request, answer, options)?;
    let terms = Terms::of(answer, options, times);
    if !terms.lifetime_source.is_explicit() && !is_marked(answer) {
        return Err(NotStored::NoLifetime);
    }
    if terms.is_usable() { Ok(terms) } else { Err(NotStored::NeverUsable) }
}

fn judge_request(request: Request<'_>) -> Result<(), NotStored> {
    if request.head.method != Method::Get {
        return Err(NotStored::Method);
    }
    if !request.head.body.is_empty() {
        return Err(NotStored::RequestBody);
    }
    if request.directives().no_store { Err(NotStored::RequestNoStore) } else { Ok(()) }
}

fn judge_body(answer: &Answer, body: ReplyBody, options: &Options) -> Result<(), NotStored> {
    if answer.status < 200 || matches!(answer.status, 206 | 304) {
        return Err(NotStored::Status);
    }
    if answer.field_bytes > FIELD_BYTES_MAX {
        return Err(NotStored::FieldsTooLarge);
    }
    match body {
        ReplyBody::UntilClose => Err(NotStored::UntilClose),
        ReplyBody::Length(bytes) if bytes > options.object_bytes_max => {
            Err(NotStored::BodyTooLarge)
        }
        _ => Ok(()),
    }
}

fn judge_directives(
    request: Request<'_>,
    answer: &Answer,
    options: &Options,
) -> Result<(), NotStored> {
    use Directive::{MustRevalidate, MustUnderstand, NoStore, Private, Public, SMaxage};
    let said = answer.directives.set;
    let is_understood = UNDERSTOOD.contains(&answer.status);
    let must_understand = said.has(MustUnderstand);
    if must_understand && !is_understood || said.has(NoStore) && !must_understand {
        return Err(NotStored::NoStore);
    }
    if said.has(Private) {
        return Err(NotStored::Private);
    }
    if request.has(FieldName::Authorization) && !said.has_any(&[Public, SMaxage, MustRevalidate]) {
        return Err(NotStored::Authorization);
    }
    if answer.sets_cookie && !options.stores_set_cookie && !said.has(Public) {
        return Err(NotStored::SetCookie);
    }
    if answer.vary == Vary::Anything { Err(NotStored::VaryAny) } else { Ok(()) }
}

/// RFC 9111 §3: it is marked as storable although it names no lifetime, or its status is. no-cache
/// alone is enough with a validator, because nothing is used without validation.
fn is_marked(answer: &Answer) -> bool {
    !answer.is_error() && (may_be_guessed(answer) || answer.directives.set.has(Directive::NoCache))
}

#[cfg(test)]
mod tests;
