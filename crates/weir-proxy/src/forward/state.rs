//! The state of a client connection as a client of the forward proxy: its user, and the decision
//! about its present request.
//!
//! A client of a reverse proxy has none of this memory. docs/forward.md.

use std::sync::Arc;

use super::lookup::{Unverified, User};
use crate::cause::Local;
use crate::observe::accounting::{Account, Place, Usage};
use crate::request::destination::Destination;

/// A client of the forward proxy.
#[derive(Debug, Default)]
pub(crate) struct ForwardState {
    /// The user that it has proved to be, and that it counts for.
    pub seat: Option<UserConnectionGuard>,
    /// The user of the last request, as verified.
    pub asker: Option<Arc<User>>,
    /// The credentials of the last request that had to be verified, as they arrived; None: it had
    /// none, or they were refused.
    pub credentials: Option<Box<[u8]>>,
    /// The serial number of that question.
    pub asked: u64,
    /// The verdict on that question; None: it is not known yet, or none was asked.
    pub verdict: Option<Result<Arc<User>, Unverified>>,
    /// The name that got no room when the present request wanted it resolved.
    pub no_room: Option<Box<str>>,
    /// The present request has been counted against the user's rate.
    pub is_counted: bool,
    /// The account of the last request, as far as it is known.
    pub account: Account,
    /// The account of an earlier request.
    pub near: Account,
    /// The decision about the last request.
    pub decision: Option<Result<Arc<Destination>, Local>>,
}

impl ForwardState {
    /// Notes the decision about the request.
    pub(super) fn decide(&mut self, decision: Result<Arc<Destination>, Local>) {
        (self.verdict, self.no_room, self.is_counted) = (None, None, false);
        self.decision = Some(decision);
    }

    /// The destination of the request, as decided.
    pub(crate) fn destination(&self) -> Option<Arc<Destination>> {
        self.decision.as_ref()?.as_ref().ok().cloned()
    }

    /// A request begins without an account. Its predecessor's destination and user remain known,
    /// because they are often the same.
    pub(super) fn begin_account(&mut self) {
        self.near = Account {
            destination: known(self.account.destination, self.near.destination),
            user: known(self.account.user, self.near.user),
        };
        self.account = Account::default();
    }

    /// Charges the request to this destination.
    pub(super) fn charge_destination(&mut self, name: &str, usage: &mut Usage) {
        self.account.destination = usage.destinations.find(self.near.destination, name);
    }

    /// Charges the request to this user.
    pub(super) fn charge_user(&mut self, name: &str, usage: &mut Usage) {
        self.account.user = usage.users.find(self.near.user, name);
    }

    /// The last request is done, and no other one will come: only the client's user remains.
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
    /// Takes one of at most `max` connections; None: all are taken.
    pub(crate) fn take(user: &Arc<User>, max: Option<u32>) -> Option<UserConnectionGuard> {
        user.enter(max).then(|| UserConnectionGuard(Arc::clone(user)))
    }

    /// Its user.
    pub(crate) fn user(&self) -> &Arc<User> {
        &self.0
    }
}

impl Drop for UserConnectionGuard {
    fn drop(&mut self) {
        self.0.leave();
    }
}
