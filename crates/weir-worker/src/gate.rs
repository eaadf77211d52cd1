//! How clients are admitted: the machines judge them when they are accepted. Clients that speak TLS
//! are judged before their handshakes by a [`Door`], which is the [`Gate`] of the driver.
//!
//! The driver uses the door during its turn. In between the worker uses it, and gives it new plans
//! and bans.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use weir_io::{Driver, Socket};
use weir_proxy::engine::{Door, Unwanted, Visit, accepted_by_door};
use weir_tls::{Gate, Pass, Refusal};

use crate::flows;
use crate::tls::agreed;
use crate::worker::{Worker, pack};

/// See the module.
pub(crate) struct DoorGate(Rc<RefCell<Door>>);

impl DoorGate {
    /// The gate of this door.
    pub(crate) fn of(door: &Rc<RefCell<Door>>) -> Box<DoorGate> {
        Box::new(DoorGate(Rc::clone(door)))
    }
}

impl<D: Driver> Worker<D> {
    /// A client has connected to a listener; with TLS its handshake is complete.
    pub(crate) fn on_accepted(&mut self, listener: u64, socket: Socket, peer: SocketAddr) {
        self.accepted = true;
        let peer = SocketAddr::new(canonical(peer.ip()), peer.port());
        let mut entrance = self.listeners.entrance(listener);
        if self.listeners.is_transparent(listener) {
            let destination = self.driver.destination(socket);
            let now_us = self.driver.now_us();
            let destination = destination.map(|to| SocketAddr::new(canonical(to.ip()), to.port()));
            match destination.filter(|to| !self.listeners.own.has(to.ip(), now_us)) {
                None => entrance.own = destination,
                elsewhere => entrance.destination = elsewhere,
            }
        }
        let accepted = match self.driver.take_facts(socket) {
            None => self.engine.accepted(pack(socket), peer, entrance),
            Some(facts) => {
                entrance.protocols = agreed(entrance.protocols, &facts);
                let visit = visit(self.driver.take_pass(socket));
                let accepted =
                    accepted_by_door(&mut self.engine, pack(socket), peer, entrance, visit);
                accepted.inspect(|client| self.sealed(listener, *client, facts))
            }
        };
        match accepted {
            Ok(client) => {
                self.driver.set_token(socket, client);
                flows::divide(self, listener, (socket, client), peer);
                flows::receive(self, socket, client);
            }
            Err(Unwanted::Close) => self.driver.close(socket),
            Err(Unwanted::Reset) => self.driver.reset(socket),
        }
    }
}

/// The visit that was kept with a connection, for the machines.
fn visit(pass: Option<Pass>) -> Option<Visit> {
    pass?.downcast::<Visit>().ok().map(|visit| *visit)
}

/// A socket of the service manager may take IPv4 as well (ipv6(7), IPV6_V6ONLY).
fn canonical(client: IpAddr) -> IpAddr {
    client.to_canonical()
}

fn refusal(unwanted: Unwanted) -> Refusal {
    match unwanted {
        Unwanted::Close => Refusal::Close,
        Unwanted::Reset => Refusal::Reset,
    }
}

impl Gate for DoorGate {
    fn admit(&mut self, client: IpAddr, now_us: u64) -> Result<Option<Pass>, Refusal> {
        let visit = self.0.borrow_mut().admit(canonical(client), now_us).map_err(refusal)?;
        Ok(visit.map(|visit| Box::new(visit) as Pass))
    }

    fn charge(&mut self, client: IpAddr, pass: &mut Pass, now_us: u64) -> Result<(), Refusal> {
        let Some(visit) = pass.downcast_mut() else { return Ok(()) };
        self.0.borrow_mut().charge(canonical(client), visit, now_us).map_err(refusal)
    }

    fn settle(&mut self, client: IpAddr, _: &mut Pass, worked: bool, now_us: u64) {
        self.0.borrow_mut().settle(canonical(client), worked, now_us);
    }

    fn failed(&mut self, client: IpAddr, _: &mut Pass, now_us: u64) {
        self.0.borrow_mut().failed(canonical(client), now_us);
    }
}
