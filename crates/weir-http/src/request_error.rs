//! Why a request is rejected, and the one table from cause to status and word.

use crate::faults::faults;
use crate::syntax::SyntaxError;

faults! {
    /// One cause for each way in which a client's head is at fault. After each of them the
    /// connection must be closed.
    enum RequestError;
    from
    /// A fault of lines or fields.
    Syntax(SyntaxError);
    /// More empty lines before the request than tolerated.
    LeadingLines: 400, "leading-lines", "empty lines before the request";
    /// The method is not a token, is missing, or is `PRI`.
    MethodInvalid: 400, "method-invalid", "the method is not a token";
    /// The target is missing or has a byte that is not allowed in a target.
    TargetInvalid: 400, "target-invalid", "the target is missing or has a byte that may not stand \
        in one";
    /// The target has a byte above ASCII, or a query without a path; [`crate::encode_target`] may
    /// help.
    TargetRaw: 400, "target-raw", "the target has bytes above ASCII that can't be encoded";
    /// The target has a `#`.
    TargetFragment: 400, "target-fragment", "the target has a fragment";
    /// The path has an encoded NUL, or a dot, slash or backslash as an overlong UTF-8 sequence.
    TargetEncoding: 400, "target-encoding", "the path has an encoded NUL or an overlong character";
    /// A form that the method may not have, or none at all (RFC 9112 §3.2).
    TargetForm: 400, "target-form", "the target has a form that the method may not have";
    /// The authority of an absolute-form target is not valid.
    TargetAuthority: 400, "target-authority", "the authority in the target is not valid";
    /// Not `HTTP/` digit `.` digit.
    VersionInvalid: 400, "version-invalid", "the version is malformed or missing";
    /// A version other than 1.0 and 1.1.
    VersionUnsupported: 505, "version-unsupported", "the version is not HTTP/1.0 or HTTP/1.1";
    /// HTTP/1.1 without Host.
    HostMissing: 400, "host-missing", "Host is missing";
    /// HTTP/2: a pseudo field is missing, unknown, repeated, not in front of the fields, or has an
    /// invalid value.
    PseudoField: 400, "pseudo-field", "a pseudo field is missing, unknown, repeated or misplaced";
    /// HTTP/2: a field that belongs to connections of HTTP/1, or TE other than `trailers` (RFC 9113
    /// §8.2.2).
    ConnectionField: 400, "connection-field", "a field that HTTP/2 does not have";
    /// HTTP/2: Host differs from `:authority`.
    HostDiffers: 400, "host-differs", "Host and :authority differ";
    /// HTTP/2: the body is not as long as Content-Length says (RFC 9113 §8.1.1).
    LengthDiffers: 400, "length-differs", "Content-Length is not the length of the body";
    /// HTTP/2: the trailers are malformed (RFC 9113 §8.1).
    TrailersInvalid: 400, "trailers-invalid", "the trailers are malformed";
    /// Several Host lines.
    HostRepeated: 400, "host-repeated", "Host is there more than once";
    /// Host is not a host with an optional port.
    HostInvalid: 400, "host-invalid", "Host is not a host with an optional port";
    /// Content-Length is not 1*DIGIT up to 2^63-1.
    LengthInvalid: 400, "length-invalid", "Content-Length is not a number in range";
    /// Several Content-Length lines.
    LengthRepeated: 400, "length-repeated", "Content-Length is there more than once";
    /// Content-Length and Transfer-Encoding.
    BothFramings: 400, "both-framings", "both Content-Length and Transfer-Encoding";
    /// Transfer-Encoding is not exactly `chunked`.
    CodingInvalid: 400, "coding-invalid", "Transfer-Encoding is not exactly chunked";
    /// Transfer-Encoding is one other coding.
    CodingUnknown: 501, "coding-unknown", "Transfer-Encoding names a coding other than chunked";
    /// Transfer-Encoding in HTTP/1.0.
    CodingInHttp10: 400, "coding-in-http10", "Transfer-Encoding in HTTP/1.0";
    /// CONNECT with chunks; a length is ignored.
    ConnectBody: 400, "connect-body", "CONNECT with a chunked body";
    /// Expect is not `100-continue`.
    Expectation: 417, "expectation", "Expect is not 100-continue";
}

impl From<SyntaxError> for RequestError {
    fn from(fault: SyntaxError) -> Self {
        Self::Syntax(fault)
    }
}
