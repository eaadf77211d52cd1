//! Scripted parties of the simulated network: clients and servers of tests.
//!
//! The world calls an [`Actor`] when something happens to it; the actor's requests to its [`Net`]
//! take effect through later events, so a callback is never entered twice.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::begun::{self, Watch};
use super::end::EndId;
use super::rng::Rng;
use super::world::World;

/// One connection of an actor. A name of a connection that is gone does nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Conn(pub(super) EndId);

/// A party that uses the simulated network directly.
pub trait Actor {
    /// Called once, before anything else.
    fn on_start(&mut self, net: &mut Net<'_>) {
        let _ = net;
    }

    /// A client connected to an address that this actor listens on.
    fn on_accepted(&mut self, net: &mut Net<'_>, conn: Conn, peer: SocketAddr) {
        let _ = (net, conn, peer);
    }

    /// The end of [`Net::connect`]. After an error the connection is gone.
    fn on_connected(&mut self, net: &mut Net<'_>, conn: Conn, result: io::Result<()>) {
        let _ = (net, conn, result);
    }

    /// Bytes arrived; never empty.
    fn on_data(&mut self, net: &mut Net<'_>, conn: Conn, data: &[u8]);

    /// The other side closed its sending direction. Sending is still possible; [`Net::close`] ends
    /// the connection.
    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        net.close(conn);
    }

    /// The connection was reset and is gone.
    fn on_reset(&mut self, net: &mut Net<'_>, conn: Conn) {
        let _ = (net, conn);
    }

    /// All bytes that were given to [`Net::send`] have found room in the network.
    fn on_drained(&mut self, net: &mut Net<'_>, conn: Conn) {
        let _ = (net, conn);
    }

    /// The first packet of a client that is [led](super::SimWorld::lead), or a copy of it, has come
    /// ([`Net::watch_firsts`]): from the first of these addresses to the second. `first` names the
    /// client's end.
    fn on_first(&mut self, net: &mut Net<'_>, first: Conn, ends: (SocketAddr, SocketAddr)) {
        let _ = (net, first, ends);
    }

    /// A connect of [`Net::begin`] of this name has ended before a driver took it over.
    fn on_begun(&mut self, net: &mut Net<'_>, name: u64, result: io::Result<()>) {
        let _ = (net, name, result);
    }

    /// A timer of [`Net::timer`] is due. Timers can't be cancelled: ignore those that no longer
    /// matter.
    fn on_timer(&mut self, net: &mut Net<'_>, id: u64) {
        let _ = (net, id);
    }
}

/// How first packets reach the actor that watches them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Firsts {
    /// How long they take at most, microseconds.
    pub late_us: u64,
    /// Thousandths of packets that are lost after their copies, and come again after a second, with
    /// another copy. Not of those that are held.
    pub lost: u32,
    /// They are no copies: the packets themselves are delivered nowhere else.
    pub held: bool,
}

/// The actions of an actor, during a callback.
pub struct Net<'a> {
    pub(super) world: &'a mut World,
    pub(super) actor: usize,
}

impl Net<'_> {
    /// Microseconds since the start of the world.
    pub fn now_us(&self) -> u64 {
        self.world.now_us
    }

    /// This actor's own stream of random numbers.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.world.actors[self.actor].rng
    }

    /// Accepts connections to this address from now on.
    ///
    /// # Panics
    /// When the address is taken.
    pub fn listen(&mut self, address: SocketAddr) {
        self.world.listen_actor(address, self.actor);
    }

    /// Stops accepting: later connects are refused, connections remain.
    pub fn unlisten(&mut self, address: SocketAddr) {
        self.world.unlisten(address);
    }

    /// Starts a connection; ends in [`Actor::on_connected`].
    pub fn connect(&mut self, to: SocketAddr) -> Conn {
        Conn(self.world.connect_actor(self.actor, to))
    }

    /// Sends, behind earlier bytes. Never blocks: bytes without room in the network wait in memory.
    pub fn send(&mut self, conn: Conn, bytes: &[u8]) {
        self.world.send_actor(conn.0, bytes);
    }

    /// Bytes given to [`Net::send`] that found no room in the network yet.
    pub fn queued(&self, conn: Conn) -> usize {
        self.world.ends.get(conn.0).map_or(0, |end| end.outbox.len())
    }

    /// Ends the sending direction (FIN) behind everything that was sent.
    pub fn finish(&mut self, conn: Conn) {
        self.world.finish_actor(conn.0);
    }

    /// Ends the connection behind everything that was sent. Bytes that arrive later are answered
    /// with a reset.
    pub fn close(&mut self, conn: Conn) {
        self.world.close_actor(conn.0);
    }

    /// Resets the connection; bytes without room in the network are lost.
    pub fn reset(&mut self, conn: Conn) {
        self.world.reset_actor(conn.0);
    }

    /// Ends the connection as if the actor's process were gone: bytes without room in the network
    /// are lost, and the kernel ends the connection as for dead processes, with a reset when
    /// something is unread, otherwise in order.
    pub fn kill(&mut self, conn: Conn) {
        self.world.kill_actor(conn.0);
    }

    /// Stops reading; the window fills, then the other side must wait.
    pub fn pause(&mut self, conn: Conn) {
        self.world.set_paused(conn.0, true);
    }

    /// Reads again.
    pub fn resume(&mut self, conn: Conn) {
        self.world.set_paused(conn.0, false);
    }

    /// Switches injected faults off for the bytes that both ends of this connection send from now
    /// on.
    pub fn calm(&mut self, conn: Conn) {
        self.world.calm(conn.0);
    }

    /// Calls [`Actor::on_timer`] with `id`, `after_us` microseconds from now.
    pub fn timer(&mut self, after_us: u64, id: u64) {
        self.world.set_timer(self.actor, after_us, id);
    }

    /// From now on this actor, or none, gets the first packets of clients that are
    /// [led](super::SimWorld::lead) ([`Actor::on_first`]).
    pub fn watch_firsts(&mut self, how: Option<Firsts>) {
        let actor = self.actor;
        self.world.watch =
            how.map(|Firsts { late_us, lost, held }| Watch { actor, late_us, lost, held });
    }

    /// Delivers a held first packet to the listener that its client is led to.
    pub fn pass_on(&mut self, first: Conn) {
        begun::pass_on(self.world, first.0);
    }

    /// Lets the sender of a held first packet fail with this error of connect(2).
    pub fn refuse(&mut self, first: Conn, errno: i32) {
        begun::refuse(self.world, first.0, errno);
    }

    /// Begins a connect, from this address, for the driver that takes the descriptor over
    /// ([`crate::Driver::adopt`]). [`Faults`](super::Faults) are those of connects of drivers.
    /// Closing the descriptor resets it.
    ///
    /// # Errors
    /// The address is taken for this server, or no descriptors are left.
    pub fn begin(&mut self, name: u64, from: SocketAddr, to: SocketAddr) -> io::Result<OwnedFd> {
        begun::begin(self.world, (self.actor, name), from, to)
    }

    /// Own address of a connection.
    pub fn local(&self, conn: Conn) -> Option<SocketAddr> {
        self.world.ends.get(conn.0).map(|end| end.local)
    }

    /// Address of the other side.
    pub fn remote(&self, conn: Conn) -> Option<SocketAddr> {
        self.world.ends.get(conn.0).map(|end| end.remote)
    }
}
