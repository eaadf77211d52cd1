//! Errors that weir itself sends for a gRPC request: in `grpc-status` and `grpc-message` beside
//! HTTP's status 200, in a head without a body (Trailers-Only of the gRPC protocol over HTTP/2).
//!
//! Otherwise a gRPC client shows its user only a bare HTTP status. Called by
//! `Answers::fail_exchange_with` for requests that [`is_grpc`] has marked. gRPC-Web accepts any
//! HTTP status and is not meant. <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>,
//! <https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md>

use weir_http::{FieldName, Fields, ReplyBody, ReplyParts, SERVER, Trailers};

use super::answer::Answers;
use super::cache;
use crate::base::keys::ExchangeKey;
use crate::cause::Cause;
use crate::context::Context;
use crate::cross::answer::{AnswerHead, Source};

const MEDIA_TYPE: &[u8] = b"application/grpc";

/// Returns whether a request is of gRPC itself, which needs HTTP/2 all the way, and not of
/// gRPC-Web.
pub(super) fn is_grpc(fields: &Fields, bytes: &[u8]) -> bool {
    let value = fields.find(FieldName::ContentType).map_or(&b""[..], |field| field.value.of(bytes));
    let is_prefix = value.len() >= MEDIA_TYPE.len()
        && value[..MEDIA_TYPE.len()].eq_ignore_ascii_case(MEDIA_TYPE);
    is_prefix && matches!(value.get(MEDIA_TYPE.len()), None | Some(b'+' | b';' | b' ' | b'\t'))
}

/// Maps an HTTP status to a gRPC status.
fn status_of(status: u16) -> &'static [u8] {
    match status {
        // INTERNAL
        400 => b"13",
        // UNAUTHENTICATED
        401 => b"16",
        // PERMISSION_DENIED
        403 => b"7",
        // UNIMPLEMENTED: no such method is known here.
        404 | 415 => b"12",
        // UNAVAILABLE: the client may retry.
        429 | 502..=504 => b"14",
        // UNKNOWN
        _ => b"2",
    }
}

/// Answers with the error that has this status in HTTP.
pub(super) fn fail(
    answers: &mut Answers,
    slot: ExchangeKey,
    cause: Cause,
    status: u16,
    cx: &mut Context,
) {
    let message = match cause {
        Cause::Grpc => b"weir does not forward gRPC: it speaks HTTP/1.1 to servers".to_vec(),
        _ => weir_http::error_text(status, cause.word()).trim_ascii_end().to_vec(),
    };
    let fields: [(&[u8], &[u8]); 4] = [
        SERVER,
        (b"Content-Type", MEDIA_TYPE),
        (b"Grpc-Status", status_of(status)),
        (b"Grpc-Message", &message),
    ];
    let parts = ReplyParts::made(200, &fields);
    let head = AnswerHead { parts, body: ReplyBody::None, declared_length: None, upgrade: None };
    cache::begin(answers, slot, Source::Here, &head, cx);
    answers.answer_end(slot, Trailers::default(), cx);
}

#[cfg(test)]
mod tests {
    //! Proves: which media types are gRPC's, and which status each error gets. How: tables.

    use super::*;

    #[test]
    fn media_types() {
        for (value, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/gRPC; charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/grpcx", false),
            ("", false),
        ] {
            let text = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Type: {value}\r\n\r\n");
            let mut fields = Fields::default();
            weir_http::parse_request(text.as_bytes(), &weir_http::Limits::default(), &mut fields)
                .unwrap()
                .unwrap();
            assert_eq!(is_grpc(&fields, text.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn statuses() {
        for (status, expected) in [
            (400, "13"),
            (401, "16"),
            (403, "7"),
            (404, "12"),
            (429, "14"),
            (502, "14"),
            (503, "14"),
            (504, "14"),
            (413, "2"),
        ] {
            assert_eq!(status_of(status), expected.as_bytes(), "{status}");
        }
    }
}
