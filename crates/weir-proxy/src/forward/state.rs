//! What a client connection is as a client of the forward proxy: who asks, and what was decided of its present request.
//!
//! A client of a reverse proxy has none of this memory. docs/semantics.md §9.

use std::sync::Arc;

use super::lookup::{Unverified, User};
use crate::cause::Local;
use crate::observe::accounting::{Account, Place, Usage};
use crate::request::destination::Destination;

/// A client of the forward proxy.
#[derive(Debug, Default)]
pub(crate) struct ForwardState {
    /// Who it has shown to be, and is counted as.
    pub seat: Option<UserConnectionGuard>,
    /// Who made the last request, as verified.
    pub asker: Option<Arc<User>>,
    /// The credentials of the last request that had to be verified, as they came; None: there was none, or they were refused.
    pub credentials: Option<Box<[u8]>>,
    /// The serial number of that question.
    pub asked: u64,
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
    /// This was decided of the request.
    pub(super) fn decide(&mut self, decision: Result<Arc<Destination>, Local>) {
        (self.verdict, self.no_room, self.is_counted) = (None, None, false);
        self.decision = Some(decision);
    }

    /// Where the request goes, as was decided.
    pub(crate) fn destination(&self) -> Option<Arc<Destination>> {
        self.decision.as_ref()?.as_ref().ok().cloned()
    }

    /// A request is new: nobody is charged yet. What its destination and user were stays known, for they are often the same.
    pub(super) fn begin_account(&mut self) {
        self.near = Account {
            destination: known(self.account.destination, self.near.destination),
            user: known(self.account.user, self.near.user),
        };
        self.account = Account::default();
    }

    /// The request goes there.
    pub(super) fn charge_destination(&mut self, name: &str, usage: &mut Usage) {
        self.account.destination = usage.destinations.find(self.near.destination, name);
    }

    /// This user makes the request.
    pub(super) fn charge_user(&mut self, name: &str, usage: &mut Usage) {
        self.account.user = usage.users.find(self.near.user, name);
    }

    /// The last request is done with, and no other one will come: only who the client is remains.
    pub(crate) fn forget_request(&mut self) {
        *self = ForwardState { seat: self.seat.take(), ..ForwardState::default() };
    }
}

fn known(now: Place, before: Place) -> Place {
    if now == Place::NOWHERE { before } else { now }
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
