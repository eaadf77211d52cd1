//! Why a request is refused, and the one table from cause to status and word.

use std::fmt;

use crate::syntax::SyntaxError;

/// One cause for each way in which a client's head is at fault. After each of them the connection must be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RequestError {
    /// A fault of lines or fields.
    Syntax(SyntaxError),
    /// More empty lines before the request than tolerated.
    LeadingLines,
    /// The method is not a token, is missing, or is `PRI`.
    MethodInvalid,
    /// The target is missing or has a byte that may not stand in one.
    TargetInvalid,
    /// The target has a byte above ASCII; [`crate::encode_target`] may help.
    TargetRaw,
    /// The target has a `#`.
    TargetFragment,
    /// The path has an encoded NUL or an overlong UTF-8 sequence.
    TargetEncoding,
    /// A form that the method may not have, or none at all (RFC 9112 §3.2).
    TargetForm,
    /// The authority of an absolute-form target is not valid.
    TargetAuthority,
    /// Not `HTTP/` digit `.` digit.
    VersionInvalid,
    /// A version other than 1.0 and 1.1.
    VersionUnsupported,
    /// HTTP/1.1 without Host.
    HostMissing,
    /// Several Host lines.
    HostRepeated,
    /// Host is not a host with an optional port.
    HostInvalid,
    /// Content-Length is not 1*DIGIT up to 2^63-1.
    LengthInvalid,
    /// Several Content-Length lines.
    LengthRepeated,
    /// Content-Length and Transfer-Encoding.
    BothFramings,
    /// Transfer-Encoding is not exactly `chunked`.
    CodingInvalid,
    /// Transfer-Encoding is one other coding.
    CodingUnknown,
    /// Transfer-Encoding in HTTP/1.0.
    CodingInHttp10,
    /// CONNECT with a body.
    ConnectBody,
    /// Expect is not `100-continue`.
    Expectation,
}

impl RequestError {
    /// The status to answer with.
    pub fn status(self) -> u16 {
        match self {
            Self::Syntax(fault) => fault.status(),
            Self::VersionUnsupported => 505,
            Self::CodingUnknown => 501,
            Self::Expectation => 417,
            _ => 400,
        }
    }

    /// Short word for log and counters.
    pub fn word(self) -> &'static str {
        match self {
            Self::Syntax(fault) => fault.word(),
            Self::LeadingLines => "leading-lines",
            Self::MethodInvalid => "method-invalid",
            Self::TargetInvalid => "target-invalid",
            Self::TargetRaw => "target-raw",
            Self::TargetFragment => "target-fragment",
            Self::TargetEncoding => "target-encoding",
            Self::TargetForm => "target-form",
            Self::TargetAuthority => "target-authority",
            Self::VersionInvalid => "version-invalid",
            Self::VersionUnsupported => "version-unsupported",
            Self::HostMissing => "host-missing",
            Self::HostRepeated => "host-repeated",
            Self::HostInvalid => "host-invalid",
            Self::LengthInvalid => "length-invalid",
            Self::LengthRepeated => "length-repeated",
            Self::BothFramings => "both-framings",
            Self::CodingInvalid => "coding-invalid",
            Self::CodingUnknown => "coding-unknown",
            Self::CodingInHttp10 => "coding-in-http10",
            Self::ConnectBody => "connect-body",
            Self::Expectation => "expectation",
        }
    }
}

impl From<SyntaxError> for RequestError {
    fn from(fault: SyntaxError) -> Self {
        Self::Syntax(fault)
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syntax(fault) => return fault.fmt(f),
            Self::LeadingLines => "empty lines before the request",
            Self::MethodInvalid => "the method is not a token",
            Self::TargetInvalid => "the target is missing or has a byte that may not stand in one",
            Self::TargetRaw => "the target has bytes above ASCII that can't be encoded",
            Self::TargetFragment => "the target has a fragment",
            Self::TargetEncoding => "the path has an encoded NUL or an overlong character",
            Self::TargetForm => "the target has a form that the method may not have",
            Self::TargetAuthority => "the authority in the target is not valid",
            Self::VersionInvalid => "the version is malformed or missing",
            Self::VersionUnsupported => "the version is not HTTP/1.0 or HTTP/1.1",
            Self::HostMissing => "Host is missing",
            Self::HostRepeated => "Host is there more than once",
            Self::HostInvalid => "Host is not a host with an optional port",
            Self::LengthInvalid => "Content-Length is not a number in range",
            Self::LengthRepeated => "Content-Length is there more than once",
            Self::BothFramings => "both Content-Length and Transfer-Encoding",
            Self::CodingInvalid => "Transfer-Encoding is not exactly chunked",
            Self::CodingUnknown => "Transfer-Encoding names a coding other than chunked",
            Self::CodingInHttp10 => "Transfer-Encoding in HTTP/1.0",
            Self::ConnectBody => "CONNECT with a body",
            Self::Expectation => "Expect is not 100-continue",
        })
    }
}

impl std::error::Error for RequestError {}
