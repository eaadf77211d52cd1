//! Where a request goes whose upstream doesn't say that: decided by the forward proxy (docs/semantics.md §9), or where its client has connected
//! to (docs/semantics.md §24).

use std::net::SocketAddr;
use std::sync::Arc;

use crate::observe::accounting::{Account, Place, Usage};
use crate::plan::Entrance;

/// Where a request may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Host in lower case and port: what tells its connections from others; empty where the client's requests go nowhere else.
    pub name: Box<str>,
    /// Addresses that are allowed, in the order in which they are tried; not empty.
    pub addresses: Vec<SocketAddr>,
}

/// Where a client has connected to that came by a listener that takes connections to other machines.
#[derive(Debug)]
pub(crate) struct Original {
    to: Arc<Destination>,
    /// That is this machine.
    is_own: bool,
    /// To whom requests are charged that go there; [`Place::NOWHERE`]: none did yet.
    place: Place,
}

impl Original {
    /// A client that came in by this; None: nobody asked where it wanted to.
    pub(crate) fn of(entrance: &Entrance) -> Option<Original> {
        let (address, is_own) = match (entrance.destination, entrance.own) {
            (Some(address), _) => (address, false),
            (None, own) => (own?, true),
        };
        let to = Arc::new(Destination { name: "".into(), addresses: vec![address] });
        Some(Original { to, is_own, place: Place::NOWHERE })
    }

    /// What a client is in another worker, which counts for itself.
    pub(crate) fn elsewhere_counted(self) -> Original {
        Original { place: Place::NOWHERE, ..self }
    }

    /// Where requests go, if that is another machine.
    pub(crate) fn to(&self) -> Option<&Arc<Destination>> {
        Some(&self.to).filter(|_| !self.is_own)
    }

    /// To whom requests that go there are charged: from now on this worker has a row for it.
    pub(crate) fn charge(&mut self, usage: &mut Usage) -> Account {
        self.place = usage.destinations.find_address(self.place, self.to.addresses[0]);
        self.account()
    }

    /// The same, as it was last.
    pub(crate) fn account(&self) -> Account {
        Account { destination: self.place, ..Account::default() }
    }
}
