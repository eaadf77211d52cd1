//! Waiting for the end of a head that arrives in pieces, at a cost linear in its bytes
//! (docs/hostile-requests.md B10).
//!
//! Called on the grown input each time something arrived; it looks only at new bytes. It finds line
//! ends, nothing more; the parser runs once, when the head is complete. Faults that are visible
//! before that are rejected at once: bare CR or LF, control bytes, and heads over their [`Limits`].
//! The error itself comes from the parser, run on the bytes so far, so that a head in pieces and
//! the same head at once get the same response.

use crate::field::Fields;
use crate::limits::Limits;
use crate::reply::{ReplyContext, ReplyError, parse_reply};
use crate::request::{LEADING_LINES_MAX, parse_request};
use crate::request_error::RequestError;
use crate::request_line::encode_target;
use crate::scan::value_end;
use crate::syntax::{SyntaxError, line_end};

/// How far a head has been looked at. `line <= at`. Start with the default for each new head.
///
/// ```text
/// GET / HTTP/1.1 CRLF Host: exam
///                     ^line     ^at: nothing before it needs another look
/// ```
#[derive(Clone, Debug, Default)]
pub struct HeadScan {
    /// Where the current line begins.
    line: usize,
    /// Next byte to look at.
    at: usize,
    /// Leading empty lines that were skipped.
    leading: usize,
    /// The first line is complete.
    first_done: bool,
}

impl HeadScan {
    /// Returns the length of the request head at the start of `input` once it is complete. `input`
    /// must be the input of the previous call with bytes appended. Once it is complete, further
    /// calls return the same.
    ///
    /// # Errors
    /// The client is at fault; the same error that [`parse_request`] returns for this input, or for
    /// the output of [`encode_target`] for it.
    pub fn find(&mut self, input: &[u8], limits: &Limits) -> Result<Option<usize>, RequestError> {
        self.advance(input, limits, LEADING_LINES_MAX).map_err(|fault| {
            let mut parsed = parse_request(input, limits, &mut Fields::default());
            if let Err(RequestError::TargetRaw) = parsed {
                parsed = encode_target(input, limits).and_then(|encoded| {
                    encoded.map_or(Ok(None), |head| {
                        parse_request(&head.bytes, limits, &mut Fields::default())
                    })
                });
            }
            parsed.err().unwrap_or(RequestError::Syntax(fault))
        })
    }

    /// Where the first head in `input` ends, None when it is not complete.
    ///
    /// # Errors
    /// The fault that is found without parsing.
    pub(crate) fn request_end(input: &[u8], limits: &Limits) -> Result<Option<usize>, SyntaxError> {
        Self::default().advance(input, limits, LEADING_LINES_MAX)
    }

    /// The length of the reply head at the start of `input` once it is complete, as
    /// [`HeadScan::find`].
    ///
    /// # Errors
    /// The upstream is at fault; the same error that [`parse_reply`] returns for this input.
    pub fn find_reply(
        &mut self,
        input: &[u8],
        limits: &Limits,
    ) -> Result<Option<usize>, ReplyError> {
        self.advance(input, limits, 0).map_err(|fault| {
            let parsed =
                parse_reply(input, limits, ReplyContext::default(), &mut Fields::default());
            parsed.err().unwrap_or(ReplyError::Syntax(fault))
        })
    }

    fn advance(
        &mut self,
        input: &[u8],
        limits: &Limits,
        leading_max: usize,
    ) -> Result<Option<usize>, SyntaxError> {
        let window = limits.window(input);
        loop {
            self.at = value_end(window, self.at);
            let Some(end) = line_end(window, self.at)? else { break };
            let empty = self.at == self.line;
            if empty && (self.first_done || self.leading == leading_max) {
                // The position does not move, so that the next call returns the same.
                return Ok(Some(end));
            }
            (self.line, self.at) = (end, end);
            if empty {
                self.leading += 1;
            } else {
                self.first_done = true;
            }
        }
        if !self.first_done && window.len() - self.line >= limits.line_with_end_max() {
            return Err(SyntaxError::LineTooLong);
        }
        if input.len() >= limits.head_max() {
            return Err(SyntaxError::HeadTooLarge);
        }
        Ok(None)
    }
}
