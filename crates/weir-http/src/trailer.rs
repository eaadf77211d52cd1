//! Which fields are allowed in a trailer section, and the check of one trailer line
//! (RFC 9110 §6.5.1, RFC 9112 §7.1.2).

use crate::field::{Field, FieldName};
use crate::oddity::Oddities;
use crate::syntax::{Line, Sender, SyntaxError, parse_field};

/// Framing, routing, authentication and connection fields: in a trailer they are an attack or a
/// serious mistake.
const FORBIDDEN: u64 = FieldName::HOP_BY_HOP
    | FieldName::set(&[
        FieldName::Host,
        FieldName::Expect,
        FieldName::Via,
        FieldName::Forwarded,
        FieldName::XForwardedFor,
        FieldName::XForwardedProto,
        FieldName::XForwardedHost,
        FieldName::XForwardedOther,
        FieldName::XRealIp,
        FieldName::ClientCert,
        FieldName::ClientCertChain,
        FieldName::Authorization,
        FieldName::WwwAuthenticate,
        FieldName::Cookie,
        FieldName::SetCookie,
    ]);

/// Controls, conditions and descriptions of the content: too late in a trailer, so they are
/// dropped.
const TOO_LATE: u64 = FieldName::set(&[
    FieldName::AuthenticationInfo,
    FieldName::IfMatch,
    FieldName::IfNoneMatch,
    FieldName::IfModifiedSince,
    FieldName::IfUnmodifiedSince,
    FieldName::IfRange,
    FieldName::Range,
    FieldName::Date,
    FieldName::Server,
    FieldName::MaxForwards,
    FieldName::CacheControl,
    FieldName::ContentType,
    FieldName::ContentEncoding,
    FieldName::ContentRange,
    FieldName::ContentLocation,
    FieldName::Age,
    FieldName::Expires,
    FieldName::Location,
    FieldName::RetryAfter,
    FieldName::Vary,
    FieldName::Pragma,
    FieldName::Warning,
]);

/// How a trailer field is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TrailerFate {
    Pass,
    Drop,
    Forbidden,
}

/// Judges one line with its CRLF.
///
/// # Errors
/// It is not a field line; folds are rejected.
pub(crate) fn judge_trailer(line: &[u8]) -> Result<TrailerFate, SyntaxError> {
    match parse_field(line, 0, Sender::Client, &mut Oddities::default())? {
        Line::Field(field) if field.line.len() == line.len() => Ok(fate(&field)),
        Line::Field(_) | Line::Cut => Err(SyntaxError::ControlByte),
        Line::Fold => Err(SyntaxError::Folded),
    }
}

fn fate(field: &Field) -> TrailerFate {
    if field.known.is_in(FORBIDDEN) {
        TrailerFate::Forbidden
    } else if field.known.is_in(TOO_LATE) {
        TrailerFate::Drop
    } else {
        TrailerFate::Pass
    }
}
