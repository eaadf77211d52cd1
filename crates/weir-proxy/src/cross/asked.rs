//! The data that the two sides of a worker exchange when a request is handed over: by
//! [`Requests`](super::router::Requests).

use std::ops::Range;
use std::sync::Arc;

use crate::cause::Cause;
use crate::observe::accounting::Account;
use crate::plan::Whose;
use crate::request::destination::Destination;
use crate::request::pending_request::ConnId;

/// The private data of a request, for a client with private connections.
#[derive(Debug)]
pub(crate) struct Private {
    /// Its destination, where the upstream doesn't determine that.
    pub destination: Option<Arc<Destination>>,
    /// The account that it is charged to.
    pub account: Account,
    /// The client identity of its connection, where servers are given one.
    pub whose: Option<Whose>,
}

/// The outcome for a request of a client of this worker.
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
    /// It is not served.
    Refused(Cause),
}
