//! A deterministic network and clock: the third implementation of [`crate::Driver`], for tests and
//! instruction counts.
//!
//! A [`SimWorld`] holds virtual time, a queue of events, TCP connections (windows, FIN, RST,
//! latency) and all of their users: drivers of real workers ([`SimDriver`]) and scripted parties
//! ([`Actor`]). One seed decides everything that is left to chance, above all [`Faults`]; the same
//! seed gives the same run, event for event ([`SimWorld::trace_hash`]).
//!
//! ```text
//!   loop: world.step() -> Event      something arrived, an actor was called
//!                      -> Turn(n)    call the turn of the worker that owns driver n, once
//!                      -> Idle       nothing will ever happen again
//! ```
//! The network behaves like Linux: received bytes are still handed out after a reset, the error is
//! reported once, closing with unread bytes resets. It leaves out retransmission, congestion,
//! TIME_WAIT.

mod actor;
mod begun;
mod commands;
mod completions;
mod driver;
mod end;
mod faults;
mod kernel;
mod parties;
mod relay;
mod release;
mod rng;
#[cfg(test)]
mod tests;
mod trace;
mod world;

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::rc::Rc;

pub use actor::{Actor, Conn, Firsts, Net};
pub use driver::{Ledger, SimDriver};
pub use faults::Faults;
pub(crate) use release::LooseEnd;
pub use rng::Rng;
pub use world::START_US;

use kernel::DriverState;
use world::World;

/// Sizes and behavior of a world.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The faults.
    pub faults: Faults,
    /// Bytes that one direction of a connection holds between the two owners, at least 1.
    pub window_bytes: usize,
    /// 4 KiB receive buffers of each driver.
    pub small_buffers: u32,
    /// 64 KiB receive buffers of each driver.
    pub large_buffers: u32,
    /// Sockets of each driver, listeners included; above it connects and accepts fail for lack of
    /// descriptors.
    pub sockets_max: u32,
    /// Drivers look for arrived bytes only during a turn, like epoll; otherwise at once, like
    /// io_uring.
    pub lazy: bool,
    /// Longest time that a turn of a worker takes, microseconds, at least 1.
    pub turn_us_max: u64,
}

impl Settings {
    /// Without faults, and plenty of everything.
    pub fn calm() -> Settings {
        Settings {
            faults: Faults::none(),
            window_bytes: 256 << 10,
            small_buffers: 256,
            large_buffers: 64,
            sockets_max: 20_000,
            lazy: false,
            turn_us_max: 1,
        }
    }

    /// Sizes drawn from the seed, down to the smallest sensible ones, with these faults.
    pub fn random(seed: u64, faults: Faults) -> Settings {
        let rng = &mut Rng::new(seed ^ 0x5e77);
        Settings {
            faults,
            window_bytes: 1 << rng.between(8, 18),
            small_buffers: 1 << rng.between(2, 7),
            large_buffers: 1 << rng.between(2, 6),
            sockets_max: 20_000,
            lazy: rng.chance(500),
            turn_us_max: rng.between(1, 100),
        }
    }
}

/// What [`SimWorld::step`] did or requires next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Something happened in the network.
    Event,
    /// The owner of this driver has to take its turn.
    Turn(usize),
    /// Nothing will happen any more.
    Idle,
}

/// The simulated network. Cheap to clone; all clones are the same world. Not for use from several
/// threads.
#[derive(Clone)]
pub struct SimWorld {
    world: Rc<RefCell<World>>,
}

impl SimWorld {
    /// An empty world. Its clock starts at one second.
    pub fn new(seed: u64, settings: Settings) -> SimWorld {
        SimWorld { world: Rc::new(RefCell::new(World::new(seed, settings))) }
    }

    /// Adds a driver.
    pub fn driver(&self) -> SimDriver {
        let world = &mut *self.world.borrow_mut();
        let mut state =
            DriverState::new(world.settings.small_buffers, world.settings.large_buffers);
        state.now_us = world.now_us;
        world.drivers.push(state);
        SimDriver { world: self.world.clone(), index: world.drivers.len() - 1 }
    }

    /// Adds an actor; it starts with the next step.
    pub fn actor(&self, actor: impl Actor + 'static) {
        self.world.borrow_mut().add_actor(Box::new(actor));
    }

    /// A real listener that stands for `address` when it is given to [`crate::Driver::listen`] of a
    /// driver of this world: for code that takes listeners. Several for one address share its
    /// connections.
    ///
    /// # Errors
    /// The operating system's: no socket could be made.
    pub fn listener(&self, address: SocketAddr) -> io::Result<TcpListener> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        self.world.borrow_mut().aliases.insert(listener.local_addr()?.port(), address);
        Ok(listener)
    }

    /// From now on connects of actors to `to` come out at the listeners of `door`, with their
    /// original destination ([`crate::Driver::destination`]): as routes lead packets on a router.
    /// Those of drivers don't.
    pub fn lead(&self, to: SocketAddr, door: SocketAddr) {
        self.world.borrow_mut().led.insert(to, door);
    }

    /// Advances by one event or one turn.
    pub fn step(&self) -> Step {
        self.step_until(u64::MAX)
    }

    /// The same, but time stops at `until_us`: later events do not happen, and the result is
    /// [`Step::Idle`].
    pub fn step_until(&self, until_us: u64) -> Step {
        self.world.borrow_mut().step(until_us)
    }

    /// Steps until `done` says so (asked after each step), `until_us` is reached, or nothing can
    /// happen any more. `turn` takes the turn of the driver's owner. True when `done` said so.
    ///
    /// # Panics
    /// After `steps_max` steps: the system doesn't settle.
    pub fn run(
        &self,
        until_us: u64,
        steps_max: u64,
        mut turn: impl FnMut(usize),
        mut done: impl FnMut() -> bool,
    ) -> bool {
        for _ in 0..steps_max {
            if done() {
                return true;
            }
            match self.step_until(until_us) {
                Step::Event => {}
                Step::Turn(driver) => turn(driver),
                Step::Idle => return done(),
            }
        }
        self.fail("too many steps")
    }

    /// Microseconds of virtual time.
    pub fn now_us(&self) -> u64 {
        self.world.borrow().now_us
    }

    /// The seed it was made with.
    pub fn seed(&self) -> u64 {
        self.world.borrow().seed
    }

    /// Changes the dials from now on; anything on its way is unaffected.
    pub fn set_faults(&self, faults: Faults) {
        self.world.borrow_mut().settings.faults = faults;
    }

    /// The resources that a driver holds now.
    pub fn ledger(&self, driver: usize) -> Ledger {
        self.world.borrow().ledger(driver)
    }

    /// Ends of connections that exist, of drivers and actors.
    pub fn connection_ends(&self) -> usize {
        self.world.borrow().ends.count()
    }

    /// Connects that actors have begun and no driver has taken over, with descriptors that are
    /// still open.
    pub fn begun(&self) -> usize {
        let world = &mut *self.world.borrow_mut();
        begun::close(world);
        world.begun.len()
    }

    /// A hash of every event, its time and its bytes, and of every completion so far.
    pub fn trace_hash(&self) -> u64 {
        self.world.borrow().trace.hash()
    }

    /// Keeps the last events in words; they are printed when a run fails.
    pub fn keep_lines(&self) {
        self.world.borrow_mut().trace.keep_lines();
    }

    /// The last events in words, if they are kept.
    pub fn lines(&self) -> Vec<String> {
        self.world.borrow().trace.lines()
    }

    /// Ends the run with the seed and the time in the message.
    ///
    /// # Panics
    /// Always.
    pub fn fail(&self, what: &str) -> ! {
        self.world.borrow().fail(what)
    }
}

/// How long a driver with something to do can be delayed at most, microseconds.
const LATE_TURN_US_MAX: u64 = 20_000;

impl World {
    fn step(&mut self, until_us: u64) -> Step {
        release::close_dropped(self);
        begun::close(self);
        let event_us = self.next_event_us();
        if let Some(driver) = self.pick_runnable()
            && !self.event_goes_first(event_us)
        {
            return Step::Turn(driver);
        }
        let deadline_us = self.drivers.iter().filter_map(|driver| driver.deadline_us).min();
        let event_first =
            event_us.is_some_and(|event| deadline_us.is_none_or(|at| event <= at.max(self.now_us)));
        let next_us = if event_first { event_us } else { deadline_us };
        match next_us {
            None => Step::Idle,
            Some(at_us) if at_us > until_us => {
                self.now_us = self.now_us.max(until_us);
                Step::Idle
            }
            Some(_) if event_first => {
                self.run_event();
                Step::Event
            }
            Some(at_us) => {
                self.now_us = self.now_us.max(at_us);
                self.step_at_deadline()
            }
        }
    }

    /// One of the drivers that have something to do.
    fn pick_runnable(&mut self) -> Option<usize> {
        let now_us = self.now_us;
        let count = self.drivers.iter().filter(|driver| driver.runnable(now_us)).count();
        let nth = if count > 1 { self.rng.index(count) } else { 0 };
        let mut runnable =
            self.drivers.iter().enumerate().filter(|(_, driver)| driver.runnable(now_us));
        runnable.nth(nth).map(|(index, _)| index)
    }

    fn event_goes_first(&mut self, event_us: Option<u64>) -> bool {
        let Some(event_us) = event_us else { return false };
        if event_us <= self.now_us {
            return self.rng.chance(500);
        }
        event_us <= self.now_us + LATE_TURN_US_MAX
            && self.rng.chance(self.settings.faults.late_turn)
    }

    fn step_at_deadline(&mut self) -> Step {
        let due = self
            .drivers
            .iter()
            .position(|driver| driver.deadline_us.is_some_and(|at| at <= self.now_us));
        match due {
            Some(index) => Step::Turn(index),
            None => Step::Idle,
        }
    }
}
