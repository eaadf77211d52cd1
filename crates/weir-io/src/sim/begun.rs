//! Connects that an actor begins for the driver that takes them over ([`crate::Driver::adopt`]),
//! and the copies of first packets by which it knows about clients. Called by [`super::Net`], by a
//! turn and by a step.
//!
//! ```text
//!   Net::begin -> descriptor ...                     -> Driver::adopt: a socket of the driver,
//!                                                       whose connect ends like others
//!                            ... closed by its owner -> reset, with the next step or command
//! ```
//! The descriptor is one of two joined sockets of the unix domain; the world has the other. The end
//! of a connection shows on it as on a TCP socket ([`crate::is_over`]). Bound: set by the actors
//! that begin them.

use std::fs::File;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;

use super::actor::Conn;
use super::end::{End, EndId, Owner, What};
use super::kernel::Kind;
use super::world::{SYN_AGAIN_US, World};
use crate::{Socket, Token, is_over};

/// A connect that no driver has.
#[derive(Debug)]
pub(super) struct Begun {
    /// The actor that has begun it, and its name for it.
    actor: usize,
    name: u64,
    /// The inode of the descriptor that stands for it.
    inode: u64,
    /// The other socket of the pair.
    kept: UnixStream,
    end: EndId,
    /// Why it has failed; then its end no longer exists.
    failed: Option<i32>,
}

/// The actor that gets first packets or copies of them ([`super::Net::watch_firsts`]).
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    pub(super) actor: usize,
    pub(super) late_us: u64,
    pub(super) lost: u32,
    pub(super) held: bool,
}

/// The address of a connect that is to come from `from`: port 0 is any port of it.
///
/// # Errors
/// The address is taken for this server (EADDRNOTAVAIL).
pub(super) fn local_of(
    world: &mut World,
    from: SocketAddr,
    to: SocketAddr,
) -> io::Result<SocketAddr> {
    close(world);
    if from.port() == 0 {
        return Ok(world.new_local(from.ip()));
    }
    if world.ends.has_ours(from, to) || world.rng.chance(world.settings.faults.port_taken) {
        return Err(io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
    }
    Ok(from)
}

pub(super) fn begin(
    world: &mut World,
    (actor, name): (usize, u64),
    from: SocketAddr,
    to: SocketAddr,
) -> io::Result<OwnedFd> {
    if world.rng.chance(world.settings.faults.connect_failed) {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    let local = local_of(world, from, to)?;
    let (given, kept) = UnixStream::pair()?;
    let given = File::from(OwnedFd::from(given));
    let inode = given.metadata()?.ino();
    let end = world.ends.insert(End::new(Owner::Begun, local, to));
    world.begun.push(Begun { actor, name, inode, kept, end, failed: None });
    world.start_connect(end, to, true);
    Ok(given.into())
}

pub(super) fn adopt(
    world: &mut World,
    driver: usize,
    descriptor: OwnedFd,
    token: Token,
) -> io::Result<Socket> {
    let inode = File::from(descriptor).metadata()?.ino();
    let Some(at) = world.begun.iter().position(|begun| begun.inode == inode) else {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the simulated network has no descriptors but of what was begun in it",
        ));
    };
    let Begun { end: id, failed, .. } = world.begun.remove(at);
    let socket = world.drivers[driver].insert(token, Kind::Stream { end: id, connected: false });
    let Some(end) = world.ends.get_mut(id) else {
        let errno = failed.unwrap_or(libc::ECONNRESET);
        world.connected(driver, socket, Err(io::Error::from_raw_os_error(errno)));
        return Ok(socket);
    };
    end.owner = Owner::Driver { driver, socket };
    if end.peer.is_some() {
        // The first query for the outcome of a connect reports a reset that came since then, once.
        let reset = end.error.take().filter(|_| end.reset);
        let result = reset.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)));
        world.connected(driver, socket, result);
    }
    Ok(socket)
}

/// A connect has ended.
pub(super) fn ended(world: &mut World, id: EndId, failed: Option<i32>) {
    let Some(begun) = world.begun.iter_mut().find(|begun| begun.end == id) else { return };
    begun.failed = failed;
    let (actor, name) = (begun.actor, begun.name);
    if failed.is_some() {
        over(world, id);
    }
    let result = failed.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)));
    world.call(actor, |actor, net| actor.on_begun(net, name, result));
}

/// A connection that no driver has is over: a check of its descriptor shows it.
pub(super) fn over(world: &World, id: EndId) {
    if let Some(begun) = world.begun.iter().find(|begun| begun.end == id) {
        // It fails only when the other socket is closed.
        let _ = begun.kept.shutdown(Shutdown::Write);
    }
}

/// Resets those whose descriptors were closed.
pub(super) fn close(world: &mut World) {
    let (closed, kept) =
        std::mem::take(&mut world.begun).into_iter().partition(|begun| is_over(&begun.kept));
    world.begun = kept;
    let closed: Vec<Begun> = closed;
    closed.iter().for_each(|begun| world.close_end(begun.end, true));
}

/// A first packet arrives. Where it is led to the listeners of a door, the watching actor gets a
/// copy. False: it doesn't arrive there now.
pub(super) fn is_let_through(world: &mut World, from: EndId, to: SocketAddr) -> bool {
    let is_led = world.led.contains_key(&to)
        && world.ends.get(from).is_some_and(|client| matches!(client.owner, Owner::Actor(_)));
    let Some(Watch { actor, late_us, lost, held }) = world.watch.filter(|_| is_led) else {
        return true;
    };
    let at_us = world.now_us + world.rng.below(late_us + 1);
    world.schedule(at_us, What::First { actor, from, to });
    let is_lost = !held && world.rng.chance(lost);
    if is_lost {
        world.schedule(world.now_us + SYN_AGAIN_US, What::Syn { from, to });
    }
    !held && !is_lost
}

/// A copy of a first packet comes to its actor. The client may have given up.
pub(super) fn first(world: &mut World, actor: usize, from: EndId, to: SocketAddr) {
    let Some(client) = world.ends.get(from).map(|end| end.local) else { return };
    world.call(actor, |actor, net| actor.on_first(net, Conn(from), (client, to)));
}

/// Delivers a held first packet.
pub(super) fn pass_on(world: &mut World, from: EndId) {
    let Some(to) = world.ends.get(from).map(|end| end.remote) else { return };
    world.schedule(world.now_us, What::PassedOn { from, to });
}

/// Lets the sender of a held first packet learn that its connect has failed.
pub(super) fn refuse(world: &mut World, from: EndId, errno: i32) {
    world.schedule(
        world.now_us + world.settings.faults.latency_us,
        What::ConnectFailed { to: from, errno },
    );
}

#[cfg(test)]
mod tests {
    //! Proves: a connect that was begun is taken over whatever its outcome, and one that is not
    //! taken over is reset; first packets reach the actor that watches them. How: a client, a
    //! server and an actor in between, by hand.

    use std::cell::RefCell;
    use std::rc::Rc;

    use super::super::{Actor, Faults, Firsts, Net, Settings, SimDriver, SimWorld, Step};
    use super::*;
    use crate::{Completion, Driver as _, Event};

    const CLIENT_DOOR: ([u8; 4], u16) = ([198, 51, 100, 1], 80);
    const SERVER: ([u8; 4], u16) = ([192, 0, 2, 1], 80);
    const CLIENT: ([u8; 4], u16) = ([10, 1, 0, 9], 4000);

    #[derive(Default)]
    struct Seen {
        begun: Option<OwnedFd>,
        ended: Vec<bool>,
        firsts: usize,
        connected: Option<Result<(), io::ErrorKind>>,
        accepted: usize,
        reset: usize,
    }

    type Log = Rc<RefCell<Seen>>;

    /// Begins a connect when it starts, and delivers or refuses held packets.
    struct Between(Log, Option<(Firsts, Option<i32>)>);

    impl Actor for Between {
        fn on_start(&mut self, net: &mut Net<'_>) {
            match self.1 {
                Some((firsts, _)) => net.watch_firsts(Some(firsts)),
                None => self.0.borrow_mut().begun = net.begin(7, CLIENT.into(), SERVER.into()).ok(),
            }
        }

        fn on_begun(&mut self, _: &mut Net<'_>, name: u64, result: io::Result<()>) {
            assert_eq!(name, 7);
            self.0.borrow_mut().ended.push(result.is_ok());
        }

        fn on_first(&mut self, net: &mut Net<'_>, first: Conn, ends: (SocketAddr, SocketAddr)) {
            assert_eq!((Some(ends.0), ends.1), (net.local(first), SERVER.into()));
            self.0.borrow_mut().firsts += 1;
            match self.1 {
                Some((Firsts { held: true, .. }, None)) => net.pass_on(first),
                Some((Firsts { held: true, .. }, Some(errno))) => net.refuse(first, errno),
                _ => {}
            }
        }

        fn on_data(&mut self, _: &mut Net<'_>, _: Conn, _: &[u8]) {}
    }

    /// Accepts clients; with true it resets them.
    struct Server(Log, bool);

    impl Actor for Server {
        fn on_start(&mut self, net: &mut Net<'_>) {
            net.listen(SERVER.into());
        }

        fn on_accepted(&mut self, net: &mut Net<'_>, conn: Conn, peer: SocketAddr) {
            assert_eq!(peer, CLIENT.into());
            self.0.borrow_mut().accepted += 1;
            if self.1 {
                net.reset(conn);
            }
        }

        fn on_reset(&mut self, _: &mut Net<'_>, _: Conn) {
            self.0.borrow_mut().reset += 1;
        }

        fn on_data(&mut self, _: &mut Net<'_>, _: Conn, _: &[u8]) {}
    }

    struct Client(Log);

    impl Actor for Client {
        fn on_start(&mut self, net: &mut Net<'_>) {
            net.connect(SERVER.into());
        }

        fn on_connected(&mut self, _: &mut Net<'_>, _: Conn, result: io::Result<()>) {
            self.0.borrow_mut().connected = Some(result.map_err(|error| error.kind()));
        }

        fn on_data(&mut self, _: &mut Net<'_>, _: Conn, _: &[u8]) {}
    }

    /// Starts an actor, and nothing else.
    fn start(world: &SimWorld, driver: &mut SimDriver, actor: impl Actor + 'static) {
        world.actor(actor);
        while let Step::Turn(_) = world.step() {
            driver.turn(None, &mut Vec::new()).expect("a turn");
        }
    }

    fn settle(world: &SimWorld, driver: &mut SimDriver) -> Vec<Completion> {
        let mut completions = Vec::new();
        for _ in 0..1000 {
            match world.step() {
                Step::Event => {}
                Step::Turn(_) => driver.turn(None, &mut completions).expect("a turn"),
                Step::Idle => break,
            }
        }
        completions
    }

    fn connects(completions: &[Completion]) -> Vec<Result<(), io::ErrorKind>> {
        let of = |completion: &Completion| match &completion.event {
            Event::Connected(result) => Some(result.as_ref().copied().map_err(io::Error::kind)),
            _ => None,
        };
        completions.iter().filter_map(of).collect()
    }

    /// A server that accepts it, resets it, or is not there; taken over at once, or when that is
    /// over.
    #[test]
    fn whatever_comes_of_it_is_told_to_whom_it_is_given() {
        for (server, late) in
            [Some(false), Some(true), None].into_iter().flat_map(|one| [(one, false), (one, true)])
        {
            let (world, log) = (SimWorld::new(1, Settings::calm()), Log::default());
            let mut driver = world.driver();
            start(&world, &mut driver, Between(log.clone(), None));
            if let Some(resets) = server {
                start(&world, &mut driver, Server(log.clone(), resets));
            }
            if late {
                assert!(settle(&world, &mut driver).is_empty());
                let seen = log.borrow();
                assert_eq!(seen.ended, [server.is_some()]);
                assert_eq!(is_over(seen.begun.as_ref().expect("begun")), server != Some(false));
            }
            let begun = log.borrow_mut().begun.take().expect("begun");
            let socket = driver.adopt(begun, 3).expect("it is of this world");
            let completions = settle(&world, &mut driver);
            let expected = match server {
                Some(true) if late => Err(io::ErrorKind::ConnectionReset),
                Some(_) => Ok(()),
                None => Err(io::ErrorKind::ConnectionRefused),
            };
            assert_eq!(connects(&completions), [expected], "{server:?} {late}");
            assert_eq!((world.begun(), driver.ledger().streams), (0, 1));
            driver.close(socket);
            settle(&world, &mut driver);
            assert_eq!(
                (world.ledger(0).streams, log.borrow().accepted),
                (0, usize::from(server.is_some()))
            );
        }
    }

    #[test]
    fn who_closes_the_descriptor_resets_the_connection() {
        for early in [true, false] {
            let (world, log) = (SimWorld::new(1, Settings::calm()), Log::default());
            let mut driver = world.driver();
            start(&world, &mut driver, Between(log.clone(), None));
            start(&world, &mut driver, Server(log.clone(), false));
            if !early {
                settle(&world, &mut driver);
            }
            assert_eq!(world.begun(), 1);
            // Its address is taken until then.
            let connect = |driver: &mut SimDriver| {
                let way = crate::Outbound {
                    from: Some(CLIENT.into()),
                    transparent: true,
                    ..Default::default()
                };
                driver.connect_by(way, SERVER.into(), 5)
            };
            assert_eq!(
                connect(&mut driver).map_err(|error| error.kind()),
                Err(io::ErrorKind::AddrNotAvailable)
            );
            drop(log.borrow_mut().begun.take());
            assert!(connect(&mut driver).is_ok() && world.begun() == 0);
            settle(&world, &mut driver);
            // Where its first packet was on its way the server has never heard of it.
            let heard = usize::from(!early);
            assert_eq!((log.borrow().accepted, log.borrow().reset), (1 + heard, heard));
        }
        let world = SimWorld::new(1, Settings::calm());
        let other: OwnedFd = File::open("/dev/null").expect("a descriptor").into();
        let why = world.driver().adopt(other, 1).map_err(|error| error.kind());
        assert_eq!(why, Err(io::ErrorKind::Unsupported));
    }

    #[test]
    fn first_packets_come_to_who_watches_them() {
        let copies = Firsts { late_us: 100, ..Firsts::default() };
        let held = Firsts { held: true, ..copies };
        let cases = [
            (copies, None, 1, Ok(())),
            (Firsts { lost: 500, ..copies }, None, 1, Ok(())),
            (held, None, 1, Ok(())),
            (held, Some(libc::ECONNREFUSED), 1, Err(io::ErrorKind::ConnectionRefused)),
            (held, Some(libc::ETIMEDOUT), 1, Err(io::ErrorKind::TimedOut)),
        ];
        for (firsts, errno, least, expected) in cases {
            let mut most = 0;
            for seed in 0..20 {
                let world =
                    SimWorld::new(seed, Settings { faults: Faults::none(), ..Settings::calm() });
                let (mut driver, log) = (world.driver(), Log::default());
                driver.listen_at(CLIENT_DOOR.into(), 1);
                world.lead(SERVER.into(), CLIENT_DOOR.into());
                world.actor(Between(log.clone(), Some((firsts, errno))));
                world.actor(Client(log.clone()));
                let completions = settle(&world, &mut driver);
                let accepted = completions
                    .iter()
                    .filter(|one| matches!(one.event, Event::Accepted { .. }))
                    .count();
                let seen = log.borrow();
                assert_eq!(
                    (seen.connected, accepted == 1),
                    (Some(expected), expected.is_ok()),
                    "{firsts:?}"
                );
                assert!(seen.firsts >= least);
                most = most.max(seen.firsts);
            }
            assert_eq!(most > 1, firsts.lost > 0, "each packet has a copy");
        }
    }
}
