//! The destination of a request whose upstream doesn't determine it: decided by the forward proxy
//! (docs/forward.md), or the address that its client connected to (docs/transparent.md).

use std::net::SocketAddr;
use std::sync::Arc;

use crate::observe::accounting::{Account, Place, Usage};
use crate::plan::Entrance;

/// A permitted destination of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Host in lower case and port: distinguishes its connections from others; empty where the
    /// client's requests have only one destination.
    pub name: Box<str>,
    /// Permitted addresses, in the order in which they are tried; not empty.
    pub addresses: Vec<SocketAddr>,
}

/// The address that a client connected to, on a listener that takes connections to other machines.
#[derive(Debug)]
pub(crate) struct Original {
    to: Arc<Destination>,
    /// The address belongs to this machine.
    is_own: bool,
    /// The account of requests to it; [`Place::NOWHERE`]: none came yet.
    place: Place,
}

impl Original {
    /// For a client that came in by this entrance; None: the address is not needed.
    pub(crate) fn of(entrance: &Entrance) -> Option<Original> {
        let (address, is_own) = match (entrance.destination, entrance.own) {
            (Some(address), _) => (address, false),
            (None, own) => (own?, true),
        };
        let to = Arc::new(Destination { name: "".into(), addresses: vec![address] });
        Some(Original { to, is_own, place: Place::NOWHERE })
    }

    /// The same for another worker, which has separate accounts.
    pub(crate) fn elsewhere_counted(self) -> Original {
        Original { place: Place::NOWHERE, ..self }
    }

    /// The destination of requests, if it is another machine.
    pub(crate) fn to(&self) -> Option<&Arc<Destination>> {
        Some(&self.to).filter(|_| !self.is_own)
    }

    /// Returns the account of requests to it: from now on this worker has a row for it.
    pub(crate) fn charge(&mut self, usage: &mut Usage) -> Account {
        self.place = usage.destinations.find_address(self.place, self.to.addresses[0]);
        self.account()
    }

    /// The same account, as it was last.
    pub(crate) fn account(&self) -> Account {
        Account { destination: self.place, ..Account::default() }
    }
}
