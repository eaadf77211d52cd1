//! Where a client wanted to who came by a listener that takes connections to other machines, and what is counted for that place
//! ([`Usage`](crate::observe::accounting::Usage)) when its connection is passed on to there
//! (docs/transparent.md#see-where-connections-lead).
//!
//! A row is looked up once a connection, when it sets out; connections to servers of the configuration count nowhere here. Bytes are counted
//! where those of the flow are.

use std::net::SocketAddr;

use super::Flows;
use super::flow::{Flow, Phase};
use crate::base::keys::FlowKey;
use crate::context::Context;
use crate::ending::FlowEnd;
use crate::observe::accounting::{Account, Place};
use crate::plan::Entrance;
use crate::upstream::flows::is_destination;

/// Where a client wanted to.
#[derive(Debug)]
pub(super) struct Towards {
    address: SocketAddr,
    /// That is this machine.
    is_own: bool,
    /// The row of its connection; [`Place::NOWHERE`]: it did not set out for there.
    place: Place,
}

impl Towards {
    /// A client that came in by this; None: nobody asked where it wanted to.
    pub(super) fn of(entrance: &Entrance) -> Option<Towards> {
        let towards = |address, is_own| Towards { address, is_own, place: Place::NOWHERE };
        let elsewhere = entrance.destination.map(|address| towards(address, false));
        elsewhere.or_else(|| entrance.own.map(|address| towards(address, true)))
    }

    /// The machine, if it is another one.
    pub(super) fn elsewhere(&self) -> Option<SocketAddr> {
        Some(self.address).filter(|_| !self.is_own)
    }

    fn account(&self) -> Account {
        Account { destination: self.place, ..Account::default() }
    }

    /// Its connection has ended for this reason, which is counted if it was to go there and never came to.
    pub(super) fn ended(self, flow: &Flow, why: FlowEnd, cx: &mut Context) {
        let is_refused = matches!(flow.phase, Phase::Connecting { .. }) && why != FlowEnd::ClientReset;
        // One that has set out was to go there, also where a reload has changed that.
        if !is_refused || self.place == Place::NOWHERE && !is_destination(flow.upstream, cx) {
            return;
        }
        let destination = cx.usage.destinations.find_address(self.place, self.address);
        cx.usage.refused(Account { destination, ..Account::default() }, why.word());
    }
}

impl Flows {
    /// The machine that a client wanted to, if it is another one.
    pub(super) fn elsewhere(&self, key: FlowKey) -> Option<SocketAddr> {
        self.destinations.get(key).and_then(Towards::elsewhere)
    }

    /// A flow is connected to where its client wanted to: where that is, if it is another machine. It counts there from now on.
    pub(super) fn set_out(&mut self, key: FlowKey, cx: &mut Context) -> Option<SocketAddr> {
        let towards = self.destinations.get_mut(key).filter(|towards| !towards.is_own)?;
        if towards.place == Place::NOWHERE {
            towards.place = cx.usage.destinations.find_address(Place::NOWHERE, towards.address);
            cx.usage.requested(towards.account(), true);
        }
        Some(towards.address)
    }

    /// So many bytes have gone to where a client wanted to, and come from there.
    pub(super) fn charge(&self, key: FlowKey, (up, down): (u64, u64), cx: &mut Context) {
        if let Some(towards) = self.destinations.get(key) {
            cx.usage.moved(towards.account(), up, down);
        }
    }

    /// To whom flows are charged that are.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = Account> {
        self.destinations.iter().map(|(_, towards)| towards.account())
    }
}
