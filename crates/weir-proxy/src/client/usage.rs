//! Who is charged with what clients of the forward proxy do (stage account): see [`crate::observe::accounting`].

use super::Clients;
use crate::base::keys::{ClientKey, ExchangeKey};
use crate::cause::Cause;
use crate::context::Context;
use crate::observe::accounting::{Account, Place};

impl Clients {
    /// What the present request of a client is charged to.
    pub(super) fn account_of(&self, session: ClientKey) -> Account {
        self.conns.at(session).proxied.as_deref().map_or_else(Account::default, |proxied| proxied.account)
    }

    /// A request is new: nobody is charged yet. What its destination and user were stays known, for they are often the same.
    pub(super) fn begin_account(&mut self, session: ClientKey) {
        let proxied = self.proxied(session);
        proxied.near = Account {
            destination: known(proxied.account.destination, proxied.near.destination),
            user: known(proxied.account.user, proxied.near.user),
        };
        proxied.account = Account::default();
    }

    pub(super) fn charge_destination(&mut self, session: ClientKey, name: &str, cx: &mut Context) {
        let near = self.proxied(session).near.destination;
        let place = cx.usage.destinations.find(near, name);
        self.proxied(session).account.destination = place;
    }

    pub(super) fn charge_user(&mut self, session: ClientKey, name: &str, cx: &mut Context) {
        let near = self.proxied(session).near.user;
        let place = cx.usage.users.find(near, name);
        self.proxied(session).account.user = place;
    }

    /// The request of a client goes to its destination.
    pub(super) fn count_use(&mut self, session: ClientKey, is_tunnel: bool, cx: &mut Context) {
        cx.usage.requested(self.account_of(session), is_tunnel);
    }

    /// The request of an exchange got an answer of weir's own, or not all of its answer.
    pub(super) fn count_refusal(&mut self, slot: ExchangeKey, cause: Cause, cx: &mut Context) {
        cx.counters.refusals.count(cause);
        let session = self.conns.exchange(slot).session;
        if self.conns.at(session).flags.proxied {
            cx.usage.refused(self.account_of(session), cause.word());
        }
    }
}

fn known(now: Place, before: Place) -> Place {
    if now == Place::NOWHERE { before } else { now }
}
