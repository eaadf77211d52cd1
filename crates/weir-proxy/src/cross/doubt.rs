//! What a server can do that puts in doubt where its answers end, or whose they are: said of it on
//! all workers, counted and told.
//!
//! What follows for its connections is decided by [`Trust`](crate::upstream::trust::Trust). Codes
//! are those of docs/hostile.md.

use crate::observe::kinds::worded;

worded! {
    /// What makes an upstream connection unusable from this byte on.
    enum Doubt;
    /// Bytes after the end of an answer that don't begin a valid answer; a head that is none
    /// (docs/hostile.md E17).
    Garbage: "garbage";
    /// An answer when no request was unanswered (E2).
    AnswerToNothing: "answer-to-nothing";
    /// A body on an answer to HEAD, on 204 or on 304 (E4-E6).
    ForbiddenBody: "forbidden-body";
    /// Content-Length together with Transfer-Encoding (E13).
    BothFramings: "both-framings";
    /// A Content-Length or chunk size that is invalid, or lengths that conflict (E14, E16).
    InvalidLength: "invalid-length";
    /// A transfer coding that weir can't decode (E15).
    UnknownCoding: "unknown-coding";
    /// 101 without an Upgrade (E8).
    UnaskedUpgrade: "unasked-upgrade";
    /// More than 32 interim answers to one request (E7).
    InterimFlood: "interim-flood";
    /// An answer that ended before the body of its request was sent (E9).
    EarlyAnswer: "early-answer";
    /// An answer that ends by close while requests wait behind it (E28).
    CloseDelimited: "close-delimited";
    /// HTTP/1.0 or `Connection: close` on an answer while requests wait behind it.
    NotPersistent: "not-persistent";
    /// The identifier that an answer carries back is not its request's (E20).
    EchoMismatch: "echo-mismatch";
    /// Pipelined connections end after a few answers, over and over (E18, E28).
    CutsShort: "cuts-short";
    /// A reset within an answer while requests wait behind it: this server does not end connections
    /// in order.
    ResetWithin: "reset-within";
    /// Several requests of weir's own that were sent at once were not all answered, or the
    /// connection ended.
    FailsRehearsal: "fails-rehearsal";
    /// Connections that have had several requests at once are never answered again, over and over.
    FallsSilent: "falls-silent";
    /// The server has crashed while several requests were unanswered on one connection.
    DiesShared: "dies-shared";
    /// A body that is longer or shorter than its declared length: another answer's head within it,
    /// or garbage right behind it.
    Misframing: "misframing";
    /// An error that ends its connection while others wait behind the oldest request: it may be for
    /// one of those (E29).
    OvertakingError: "overtaking-error";
}

impl Doubt {
    /// Whether the server remains at depth 1 until an operator clears it, as after an answer too
    /// many: responses may have been delivered to the wrong clients, and the next ones would be.
    pub fn lasts(self) -> bool {
        self == Doubt::Misframing
    }

    /// Whether it shows that responses on the connection may have belonged to other requests than
    /// was thought: they must not be shared.
    pub(crate) fn is_out_of_step(self) -> bool {
        use Doubt::{
            AnswerToNothing, BothFramings, EarlyAnswer, EchoMismatch, ForbiddenBody, Garbage,
            InvalidLength, Misframing,
        };
        matches!(
            self,
            Garbage
                | AnswerToNothing
                | ForbiddenBody
                | BothFramings
                | InvalidLength
                | EarlyAnswer
                | EchoMismatch
                | Misframing
        )
    }

    /// Whether it puts the whole server back to depth 1: it shows a wrong opinion of where answers
    /// end or whose they are, or that pipelining is no use. The others are what honest servers do
    /// when they close; they cost only the connection.
    pub fn demotes(self) -> bool {
        use Doubt::{CloseDelimited, EarlyAnswer, NotPersistent, OvertakingError};
        !matches!(self, EarlyAnswer | CloseDelimited | NotPersistent | OvertakingError)
    }
}
