//! The third [`Driver`]: sockets of the simulated network.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use super::kernel::{Kind, class_index};
use super::world::World;
use super::{begun, release};
use crate::{
    AcceptQueue, Class, Completion, Delivery, Departure, Driver, DriverStats, Loose, Outbound,
    Payload, Receive, RecvBuf, Relayed, Socket, Token, Waker,
};

/// One worker's driver in a [`super::SimWorld`].
///
/// [`Driver::turn`] never waits: it hands out the completions that are due at this point in time
/// and notes for how long the caller would have waited; the world calls for the next turn when that
/// matters.
///
/// Misuse that the interface forbids (a second send in flight, a send before the connect ended,
/// turning for ever without waiting) ends the run with the seed in the message.
pub struct SimDriver {
    pub(super) world: Rc<RefCell<World>>,
    pub(super) index: usize,
}

/// The holdings of a driver. All zero after everything was closed and given back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ledger {
    /// Sockets in use, without listeners.
    pub streams: u32,
    /// Listeners in use.
    pub listeners: u32,
    /// Payloads given to send and not handed back.
    pub sends: u32,
    /// 4 KiB receive buffers that are handed out (or on their way) and not given back.
    pub small_buffers: u32,
    /// The same for 64 KiB.
    pub large_buffers: u32,
    /// Completions made and not handed out.
    pub completions: u32,
    /// Relays that are not over.
    pub relays: u32,
}

impl SimDriver {
    /// Position among the drivers of the world, from 0, as in [`super::Step::Turn`].
    pub fn index(&self) -> usize {
        self.index
    }

    /// Starts accepting at an address of the simulated network, without a real listener.
    pub fn listen_at(&mut self, address: SocketAddr, token: Token) -> Socket {
        self.command(|world, driver| world.driver_listen(driver, address, token))
    }

    /// The resources that it holds now.
    pub fn ledger(&self) -> Ledger {
        self.world.borrow().ledger(self.index)
    }

    fn command<R>(&mut self, run: impl FnOnce(&mut World, usize) -> R) -> R {
        let world = &mut *self.world.borrow_mut();
        world.drivers[self.index].asked = true;
        run(world, self.index)
    }
}

impl World {
    pub(super) fn ledger(&self, driver: usize) -> Ledger {
        let state = &self.drivers[driver];
        let mut ledger = Ledger { completions: state.staged() as u32, ..Ledger::default() };
        for socket in state.sockets.iter().filter_map(|slot| slot.state.as_ref()) {
            match socket.kind {
                Kind::Listener { .. } => ledger.listeners += 1,
                Kind::Stream { .. } => ledger.streams += 1,
            }
            ledger.sends += u32::from(socket.sending.is_some());
        }
        ledger.relays = state.relays.iter().flatten().count() as u32;
        ledger.small_buffers = state.pools[0].total - state.pools[0].free();
        ledger.large_buffers = state.pools[1].total - state.pools[1].free();
        ledger
    }
}

impl Driver for SimDriver {
    fn now_us(&self) -> u64 {
        self.world.borrow().drivers[self.index].now_us
    }

    /// The address is the one that [`super::SimWorld::listener`] made the listener for, otherwise
    /// the listener's own; no real connection is ever accepted.
    fn listen(&mut self, listener: impl Into<OwnedFd>, token: Token) -> io::Result<Socket> {
        let listener = TcpListener::from(listener.into());
        let real = listener.local_addr()?;
        let address = self.world.borrow_mut().aliases.remove(&real.port()).unwrap_or(real);
        Ok(self.listen_at(address, token))
    }

    fn turn_away(&mut self, listener: Socket) {
        self.command(|world, driver| world.driver_turn_away(driver, listener));
    }

    /// The simulated network has no other process: waiting clients are reset.
    fn hand_over(&mut self, listener: Socket) {
        self.close(listener);
    }

    fn duplicate(&mut self, _: Socket) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// No client has to wait in the simulated network for lack of room.
    fn set_backlog(&mut self, _: Socket, _: u32) {}

    fn connect_by(
        &mut self,
        way: Outbound<'_>,
        to: SocketAddr,
        token: Token,
    ) -> io::Result<Socket> {
        // No process ends in the simulated network, and options can change nothing about its
        // packets except addresses.
        let Outbound { from, transparent, congestion: _, tuning: _, resets: _ } = way;
        if from.is_some() && !transparent {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a simulated machine has no addresses to choose from",
            ));
        }
        self.command(|world, driver| world.driver_connect(driver, from, to, token))
    }

    fn connect_unix(&mut self, _: &Path, _: Token) -> io::Result<Socket> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "the simulated network has no files"))
    }

    fn adopt(&mut self, begun: OwnedFd, token: Token) -> io::Result<Socket> {
        self.command(|world, driver| begun::adopt(world, driver, begun, token))
    }

    fn release(&mut self, socket: Socket) -> bool {
        self.command(|world, driver| release::release(world, driver, socket))
    }

    fn take_in(&mut self, connection: Loose, token: Token) -> io::Result<Socket> {
        self.command(|world, driver| release::take_in(world, driver, connection, token))
    }

    fn set_token(&mut self, socket: Socket, token: Token) {
        self.command(|world, driver| {
            if let Some(state) = world.drivers[driver].get_mut(socket) {
                state.token = token;
            }
        });
    }

    fn receive(&mut self, socket: Socket, how: Receive) {
        self.command(|world, driver| world.driver_receive(driver, socket, how));
    }

    fn send(&mut self, socket: Socket, payload: Payload) {
        self.command(|world, driver| world.driver_send(driver, socket, payload));
    }

    fn shutdown_write(&mut self, socket: Socket) {
        self.command(|world, driver| world.driver_shutdown_write(driver, socket));
    }

    fn relay(&mut self, a: Socket, b: Socket) {
        self.command(|world, driver| world.driver_relay(driver, a, b));
    }

    fn relayed(&self, socket: Socket) -> Option<Relayed> {
        self.world.borrow().relayed(self.index, socket)
    }

    /// The simulated network has no acknowledgements.
    fn acknowledge(&mut self, _: Socket) {}

    /// Bytes come late here anyway.
    fn defer(&mut self, _: Socket, _: bool) {}

    fn close(&mut self, socket: Socket) {
        self.command(|world, driver| world.driver_close(driver, socket, false));
    }

    fn reset(&mut self, socket: Socket) {
        self.command(|world, driver| world.driver_close(driver, socket, true));
    }

    fn streams(&self) -> Vec<Socket> {
        self.world.borrow().drivers[self.index].streams()
    }

    fn recycle(&mut self, buffer: RecvBuf) {
        drop(buffer);
    }

    fn buffers(&self, class: Class) -> (u32, u32) {
        let world = self.world.borrow();
        let pool = &world.drivers[self.index].pools[class_index(class)];
        (pool.free(), pool.total)
    }

    /// No kernel would report it.
    fn accept_queue(&mut self, _: Socket) -> Option<AcceptQueue> {
        None
    }

    /// The simulated network forgets no connection.
    fn delivery(&mut self, _: Socket) -> Delivery {
        Delivery::Acknowledged
    }

    fn departure(&mut self, socket: Socket) -> Departure {
        let world = self.world.borrow();
        let stream = world.drivers[self.index].get(socket).map(|socket| &socket.kind);
        let Some(Kind::Stream { end, .. }) = stream else { return Departure::Broken };
        match world.ends.get(*end) {
            Some(end) if !end.reset && !end.fin => Departure::Stays,
            Some(end) if !end.reset => Departure::Ended,
            _ => Departure::Broken,
        }
    }

    /// Nothing is sent again, and only the delays of the test take time.
    fn path(&mut self, _: Socket) -> Option<crate::Path> {
        None
    }

    /// Congestion is not simulated.
    fn set_congestion(&mut self, _: Socket, _: &str) {}

    fn destination(&mut self, socket: Socket) -> Option<SocketAddr> {
        let world = self.world.borrow();
        let Kind::Stream { end, .. } = world.drivers[self.index].get(socket)?.kind else {
            return None;
        };
        world.ends.get(end).map(|end| end.local)
    }

    /// No peer vanishes silently.
    fn keep_alive(&mut self, _: Socket) {}

    /// Cores are not simulated.
    fn receiving_core(&mut self, _: Socket) -> Option<u32> {
        None
    }

    fn turn(&mut self, wait_us: Option<u64>, into: &mut Vec<Completion>) -> io::Result<()> {
        self.world.borrow_mut().driver_turn(self.index, wait_us, into);
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.world.borrow().drivers[self.index].waker.clone()
    }

    fn name(&self) -> &'static str {
        "sim"
    }

    /// Without system calls, which do not exist here.
    fn stats(&self) -> DriverStats {
        self.world.borrow().drivers[self.index].stats
    }
}
