//! What the two sides of a worker tell each other when a request is handed over: by [`Requests`](super::router::Requests).

use std::ops::Range;
use std::sync::Arc;

use crate::cause::Cause;
use crate::observe::accounting::Account;
use crate::plan::Whose;
use crate::request::destination::Destination;
use crate::request::pending_request::ConnId;

/// What is told of a request whose client's connections are its own.
#[derive(Debug)]
pub(crate) struct Private {
    /// Where it goes, where the upstream doesn't say that.
    pub destination: Option<Arc<Destination>>,
    /// To whom it is charged.
    pub account: Account,
    /// Whose its connection is said to be, where its servers are told.
    pub whose: Option<Whose>,
}

/// What became of a request of a client of this worker.
#[derive(Debug)]
pub(crate) enum Asked {
    /// It is here: on this connection, or in a line.
    Here(Option<ConnId>),
    /// It is in the post for this worker.
    Elsewhere {
        /// Which worker.
        worker: u16,
        /// Where its bytes are.
        bytes: Range<usize>,
    },
    /// It goes nowhere.
    Refused(Cause),
}
