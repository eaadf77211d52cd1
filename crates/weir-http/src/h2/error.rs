//! Error codes of HTTP/2 (RFC 9113 §7) and the end of a connection that is at fault.

/// Why a stream or a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[allow(missing_docs)] // each variant is the code of that name
pub enum Code {
    NoError,
    ProtocolError,
    InternalError,
    FlowControlError,
    SettingsTimeout,
    StreamClosed,
    FrameSizeError,
    RefusedStream,
    Cancel,
    CompressionError,
    ConnectError,
    EnhanceYourCalm,
    InadequateSecurity,
    Http11Required,
    /// A code that RFC 9113 does not name.
    Other(u32),
}

/// Those with a name, at the place of their number.
const NAMED: [(Code, &str); 14] = [
    (Code::NoError, "no-error"),
    (Code::ProtocolError, "protocol-error"),
    (Code::InternalError, "internal-error"),
    (Code::FlowControlError, "flow-control-error"),
    (Code::SettingsTimeout, "settings-timeout"),
    (Code::StreamClosed, "stream-closed"),
    (Code::FrameSizeError, "frame-size-error"),
    (Code::RefusedStream, "refused-stream"),
    (Code::Cancel, "cancel"),
    (Code::CompressionError, "compression-error"),
    (Code::ConnectError, "connect-error"),
    (Code::EnhanceYourCalm, "enhance-your-calm"),
    (Code::InadequateSecurity, "inadequate-security"),
    (Code::Http11Required, "http-1.1-required"),
];

impl Code {
    /// From its number in a frame.
    pub fn of(number: u32) -> Code {
        NAMED.get(number as usize).map_or(Code::Other(number), |(code, _)| *code)
    }

    /// Its number in a frame.
    pub fn number(self) -> u32 {
        match self {
            Code::Other(number) => number,
            named => NAMED.iter().position(|(code, _)| *code == named).unwrap_or_default() as u32,
        }
    }

    /// Short word for log and counters.
    pub fn word(self) -> &'static str {
        NAMED.get(self.number() as usize).map_or("other", |(_, word)| word)
    }
}

/// The connection is over and the client is at fault. GOAWAY with the code is among the bytes to
/// send; then close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The code that the client gets.
    pub code: Code,
    /// What it did, in a few words.
    pub why: &'static str,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code.word(), self.why)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_codes() {
        for number in 0..20 {
            assert_eq!(Code::of(number).number(), number);
            assert_eq!(matches!(Code::of(number), Code::Other(_)), number > 13);
        }
        assert_eq!(
            (Code::of(13), Code::Http11Required.word(), Code::Other(99).word()),
            (Code::Http11Required, "http-1.1-required", "other")
        );
        assert_eq!(Failure { code: Code::Cancel, why: "because" }.to_string(), "cancel: because");
    }
}
