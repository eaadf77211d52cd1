//! The destination of a client that came by a listener that takes connections to other machines.
//! Also the counters of that destination ([`Usage`](crate::observe::accounting::Usage)) when the
//! connection is passed on to it (docs/transparent.md#see-where-connections-lead).
//!
//! A row is looked up once a connection, when it sets out; connections to servers of the
//! configuration do not count here. Bytes are counted together with those of the flow.

use std::net::SocketAddr;

use super::Flows;
use super::flow::{Flow, Phase};
use crate::base::keys::FlowKey;
use crate::context::Context;
use crate::ending::FlowEnd;
use crate::observe::accounting::{Account, Place};
use crate::plan::Entrance;
use crate::upstream::flows::is_destination;

/// The destination of a client.
#[derive(Debug)]
pub(super) struct Towards {
    address: SocketAddr,
    /// The destination is this machine.
    is_own: bool,
    /// The row of its connection; [`Place::NOWHERE`]: it did not set out for there.
    place: Place,
}

impl Towards {
    /// Returns the destination of a client that came in by this; None: no destination was recorded.
    pub(super) fn of(entrance: &Entrance) -> Option<Towards> {
        let towards = |address, is_own| Towards { address, is_own, place: Place::NOWHERE };
        let elsewhere = entrance.destination.map(|address| towards(address, false));
        elsewhere.or_else(|| entrance.own.map(|address| towards(address, true)))
    }

    /// Returns the destination if it is another machine.
    pub(super) fn elsewhere(&self) -> Option<SocketAddr> {
        Some(self.address).filter(|_| !self.is_own)
    }

    fn account(&self) -> Account {
        Account { destination: self.place, ..Account::default() }
    }

    /// Counts the end of a connection that was meant for the destination and never reached it.
    pub(super) fn ended(self, flow: &Flow, why: FlowEnd, cx: &mut Context) {
        let is_refused =
            matches!(flow.phase, Phase::Connecting { .. }) && why != FlowEnd::ClientReset;
        // A connection that has set out was meant for there, even if a reload has changed that
        // since.
        if !is_refused || self.place == Place::NOWHERE && !is_destination(flow.upstream, cx) {
            return;
        }
        let destination = cx.usage.destinations.find_address(self.place, self.address);
        cx.usage.refused(Account { destination, ..Account::default() }, why.word());
    }
}

impl Flows {
    /// Returns the destination of a client if it is another machine.
    pub(super) fn elsewhere(&self, key: FlowKey) -> Option<SocketAddr> {
        self.destinations.get(key).and_then(Towards::elsewhere)
    }

    /// Returns the destination to connect a flow to, if it is another machine. The flow counts
    /// there from now on.
    pub(super) fn set_out(&mut self, key: FlowKey, cx: &mut Context) -> Option<SocketAddr> {
        let towards = self.destinations.get_mut(key).filter(|towards| !towards.is_own)?;
        if towards.place == Place::NOWHERE {
            towards.place = cx.usage.destinations.find_address(Place::NOWHERE, towards.address);
            cx.usage.requested(towards.account(), true);
        }
        Some(towards.address)
    }

    /// Counts bytes that were moved to the destination of a client, and from it.
    pub(super) fn charge(&self, key: FlowKey, (up, down): (u64, u64), cx: &mut Context) {
        if let Some(towards) = self.destinations.get(key) {
            cx.usage.moved(towards.account(), up, down);
        }
    }

    /// Returns the accounts that existing flows are charged to.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = Account> {
        self.destinations.iter().map(|(_, towards)| towards.account())
    }
}
