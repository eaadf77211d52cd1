//! What a client connection is as a client of the forward proxy: who asks, and what was decided of its present request.
//!
//! A client of a reverse proxy has none of this memory. docs/semantics.md §9.

use std::sync::Arc;

use crate::cause::Local;
use crate::forward::lookup::{Unverified, User};
use crate::observe::accounting::Account;
use crate::upstream::private_pool::Destination;

/// A client of the forward proxy.
#[derive(Debug, Default)]
pub(crate) struct ForwardState {
    /// Who it has shown to be, and is counted as.
    pub seat: Option<UserConnectionGuard>,
    /// Who made the last request, as verified.
    pub asker: Option<Arc<User>>,
    /// The credentials of the last request that had to be verified, as they came.
    pub credentials: Box<[u8]>,
    /// What came of that; None: it is not known yet, or there was none.
    pub verdict: Option<Result<Arc<User>, Unverified>>,
    /// The name for which there was no room when the request that is being decided wanted it resolved.
    pub no_room: Option<Box<str>>,
    /// The request that is being decided has been counted against the user's rate.
    pub is_counted: bool,
    /// To whom the last request is charged, as far as that is known.
    pub account: Account,
    /// To whom one before was.
    pub near: Account,
    /// What was decided of the last request.
    pub decision: Option<Result<Arc<Destination>, Local>>,
}

impl ForwardState {
    /// The last request is done with, and no other one will come: only who the client is remains.
    pub(crate) fn forget_request(&mut self) {
        *self = ForwardState { seat: self.seat.take(), ..ForwardState::default() };
    }
}

/// A connection of a user, counted while it lives.
#[derive(Debug)]
pub(crate) struct UserConnectionGuard(Arc<User>);

impl UserConnectionGuard {
    /// One of at most `max` connections; None: there are as many.
    pub(crate) fn take(user: &Arc<User>, max: Option<u32>) -> Option<UserConnectionGuard> {
        user.enter(max).then(|| UserConnectionGuard(Arc::clone(user)))
    }

    /// Whose it is.
    pub(crate) fn user(&self) -> &Arc<User> {
        &self.0
    }
}

impl Drop for UserConnectionGuard {
    fn drop(&mut self) {
        self.0.leave();
    }
}
