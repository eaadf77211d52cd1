//! The listeners of a worker: on which terms they accept, how those change at run time, and how
//! listeners are closed.
//!
//! A leaving listener takes no new connections ([`Driver::turn_away`]), accepts those that have
//! been or are being made, and is closed when none of them waits any more. Its clients are
//! finished. A listener that another process has as well is left to that process at once
//! ([`Driver::hand_over`]). Called by the worker's loop and when another plan comes into force.
//! Bounds: [`ACCEPTING_MAX_US`] for a leaving listener.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use weir_io::{AcceptQueue, Announced, Balancers, Driver, Inbound, OwnAddresses, Socket};
use weir_proxy::base::token::Token;
use weir_proxy::ending::Farewell;
use weir_proxy::engine::number_listeners;
use weir_proxy::plan::{Entrance, ListenerPlan, Location, Plan, Serves, Side};

use crate::start::Sealing;
use crate::tuning::tuning;
use crate::worker::Worker;

/// How long a leaving listener accepts connections that were being made: longer than a round trip
/// nearly everywhere.
const ACCEPTING_US: u64 = 100_000;
/// The same while some clients wait, which they may have to until descriptors are available again.
const ACCEPTING_MAX_US: u64 = 1_000_000;
/// Time between two checks of whether they do.
const ACCEPTING_LOOK_US: u64 = 10_000;

/// How a listener of the plan that comes into force changes.
#[derive(Debug)]
pub struct ListenerChange {
    /// Its index in the previous plan, from which it keeps sockets and clients; None: it is new.
    pub before: Option<usize>,
    /// For a new listener: bound and listening sockets, by worker; each is taken once.
    pub sockets: Mutex<Vec<Option<OwnedFd>>>,
    /// How the connections that it accepts from now on speak.
    pub speech: Speech,
}

/// How the clients of a listener speak from now on.
#[derive(Debug)]
pub enum Speech {
    /// As before.
    Same,
    /// Without TLS.
    Plain,
    /// With TLS.
    Tls(Sealing),
}

impl ListenerChange {
    fn take(&self, worker: u16) -> Option<OwnedFd> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.get_mut(usize::from(worker))?.take()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    /// By number, which is never reused; None: it is closed.
    all: Vec<Option<Listener>>,
    /// By number: address and interface.
    places: Vec<(Location, Option<String>)>,
    /// Numbers of the plan's listeners, in its order.
    of_plan: Vec<u32>,
    leaving: Vec<Leaver>,
    /// A client that connects to one of these addresses is connecting to this proxy, and not
    /// through it.
    pub(crate) own: OwnAddresses,
}

/// A leaving listener.
#[derive(Debug, Clone, Copy)]
struct Leaver {
    number: u32,
    since_us: u64,
    /// Another process serves the clients that wait there; only clients that were accepted here are
    /// reported.
    is_handed_over: bool,
}

#[derive(Debug)]
struct Listener {
    /// One socket; or several, or one that other workers have as well, where another process has
    /// opened them ([`crate::Inherited`]).
    sockets: Vec<Socket>,
    /// With the real port where 0 was configured; None: it is a unix socket, about which the kernel
    /// tells less.
    address: Option<SocketAddr>,
    plan: ListenerPlan,
    /// The service manager has the sockets as well, and keeps them.
    stays_open: bool,
    is_leaving: bool,
}

/// How connections of a listener are accepted.
pub fn inbound(plan: &ListenerPlan) -> Inbound<'_> {
    let passed_on = matches!(plan.serves, Serves::Tcp(_));
    let tuning = tuning(plan.tuning.as_deref());
    let congestion = plan.congestion.usual().map(AsRef::as_ref);
    Inbound { transparent: plan.transparent, congestion, tuning, passed_on }
}

impl Listeners {
    fn get(&self, number: u32) -> Option<&Listener> {
        self.all.get(number as usize)?.as_ref()
    }

    fn of_token(&self, token: u64) -> Option<(u32, &Listener)> {
        let Some(Token::Listener { index }) = Token::unpack(token) else { return None };
        Some((index, self.get(index)?))
    }

    /// Starts to accept. Even if that fails, the number is that of the next listener of the plan.
    pub(crate) fn add<D: Driver>(
        &mut self,
        driver: &mut D,
        sockets: Vec<OwnedFd>,
        stays_open: bool,
        plan: &ListenerPlan,
    ) -> io::Result<()> {
        let number = self.all.len() as u32;
        self.of_plan.push(number);
        self.all.push(None);
        self.places.push((plan.address.clone(), plan.device().map(str::to_owned)));
        let address = match (plan.address.network(), sockets.first()) {
            (Some(_), Some(socket)) => Some(TcpListener::from(socket.try_clone()?).local_addr()?),
            (address, _) => address,
        };
        let token = Token::Listener { index: number }.pack();
        // Not before: a socket that was taken over belongs to another process until now.
        sockets.iter().try_for_each(|socket| inbound(plan).apply(socket))?;
        let sockets = sockets
            .into_iter()
            .map(|socket| driver.listen(socket, token))
            .collect::<io::Result<_>>()?;
        let plan = plan.clone();
        self.all[number as usize] =
            Some(Listener { sockets, address, plan, stays_open, is_leaving: false });
        Ok(())
    }

    /// Returns by number the index of each listener in the plan, as far as its clients may still
    /// send requests; nothing where no route names a listener.
    pub(crate) fn in_plan(&self, plan: &Plan) -> Vec<Option<usize>> {
        if !plan.routes.reads_listeners() {
            return Vec::new();
        }
        // Also of a closed one, while another process accepts there: it may have clients here.
        let found = |(address, device): &(Location, Option<String>)| {
            let is_this = |other: &ListenerPlan| {
                other.address == *address && other.device() == device.as_deref()
            };
            plan.listeners.iter().position(is_this)
        };
        let mut by_number: Vec<Option<usize>> = self.places.iter().map(found).collect();
        // Several may have the same address, of which the kernel chooses the port.
        for (index, number) in self.of_plan.iter().enumerate() {
            by_number[*number as usize] = Some(index);
        }
        by_number
    }

    /// Tells the driver the listeners that clients reach through load balancers, which announce
    /// each client.
    pub(crate) fn announce<D: Driver>(&self, driver: &mut Announced<D>, plan: &Arc<Plan>) {
        for listener in self.of_plan.iter().filter_map(|number| self.get(*number)) {
            for socket in &listener.sockets {
                let balancers = listener.plan.proxy_protocol.then(|| -> Balancers {
                    let plan = Arc::clone(plan);
                    Arc::new(move |address| plan.client.trusts(address))
                });
                driver.announce(*socket, balancers);
            }
        }
    }

    /// Sockets of the plan's listeners, in its order.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = &[Socket]> {
        self.of_plan
            .iter()
            .map(|number| self.get(*number).map_or(&[][..], |listener| &listener.sockets[..]))
    }

    /// The plan's accepting listeners: their names in the plan, their sockets, and whether those
    /// remain open.
    pub(crate) fn present(&self) -> impl Iterator<Item = (&Location, &[Socket], bool)> {
        let present = self.of_plan.iter().filter_map(|number| self.get(*number));
        present.map(|listener| (&listener.plan.address, &listener.sockets[..], listener.stays_open))
    }

    /// The entrance that a client has used.
    pub(crate) fn entrance(&self, token: u64) -> Entrance {
        self.of_token(token).map_or_else(
            Entrance::default,
            |(number, Listener { plan, is_leaving, .. })| Entrance {
                listener: number,
                serves: plan.serves,
                protocols: plan.protocols,
                destination: None,
                own: None,
                is_leaving: *is_leaving,
            },
        )
    }

    /// Whether the listener of this number is leaving or closed. An unknown number is of a listener
    /// yet to come.
    pub(crate) fn is_leaving(&self, number: u32) -> bool {
        self.all
            .get(number as usize)
            .is_some_and(|listener| listener.as_ref().is_none_or(|known| known.is_leaving))
    }

    /// Whether it accepts connections to addresses other than those of this machine.
    pub(crate) fn is_transparent(&self, token: u64) -> bool {
        self.of_token(token).is_some_and(|(_, listener)| listener.plan.transparent)
    }

    /// The congestion control of this client, where it is one of several, and whether its
    /// connection has another one from its listener.
    pub(crate) fn arm(&self, token: u64, client: SocketAddr) -> Option<(Arc<str>, bool)> {
        let (_, listener) = self.of_token(token)?;
        let congestion =
            Some(&listener.plan.congestion).filter(|congestion| congestion.is_divided())?;
        let name = congestion.of(Side::Client, client)?;
        Some((Arc::clone(name), congestion.usual() != Some(name)))
    }

    /// Whether servers receive the certificates of its clients.
    pub(crate) fn tells_certificates(&self, token: u64) -> bool {
        let tls = self.of_token(token).and_then(|(_, listener)| listener.plan.tls.as_ref());
        tls.and_then(|tls| tls.clients.as_ref()).is_some_and(|clients| clients.told)
    }

    /// Whether new clients are accepted, by a listener of the plan.
    pub(crate) fn accept(&self) -> bool {
        !self.of_plan.is_empty()
    }

    /// None is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.of_plan.is_empty() && self.leaving.is_empty()
    }

    /// The accept queues of the plan's listeners.
    pub(crate) fn queues<D: Driver>(&self, driver: &mut D) -> Vec<(SocketAddr, AcceptQueue)> {
        let present = self.of_plan.iter().filter_map(|number| self.get(*number));
        let sockets = present
            .flat_map(|listener| listener.sockets.iter().map(|socket| (listener.address, *socket)));
        sockets
            .filter_map(|(address, socket)| Some((address?, driver.accept_queue(socket)?)))
            .collect()
    }

    /// The listener takes no new clients, and is closed soon. `taken`: another process accepts
    /// there from now on.
    fn leave<D: Driver>(&mut self, number: u32, taken: &[Location], driver: &mut D) {
        let Some(listener) = self.all.get_mut(number as usize).and_then(Option::as_mut) else {
            return;
        };
        listener.is_leaving = true;
        let is_handed_over = listener.stays_open || taken.contains(&listener.plan.address);
        for socket in &listener.sockets {
            if is_handed_over { driver.hand_over(*socket) } else { driver.turn_away(*socket) }
        }
        self.leaving.push(Leaver { number, since_us: driver.now_us(), is_handed_over });
    }
}

impl<D: Driver> Worker<D> {
    /// Counts clients that no balancer has announced as required.
    pub(crate) fn count_unannounced(&mut self) {
        let refused = self.driver.inner_mut().take_refused();
        if refused > 0 {
            self.parts.counters.clients_unannounced.add(refused);
        }
    }

    /// Applies the listeners of the plan that came into force. Returns the errors of those that
    /// can't be accepted on.
    pub(crate) fn change_listeners(&mut self, changes: &[ListenerChange]) -> Vec<io::Error> {
        let (plan, worker) = (Arc::clone(&self.parts.plan), self.parts.worker);
        let mut before: Vec<Option<u32>> = self.listeners.of_plan.drain(..).map(Some).collect();
        let mut failed = Vec::new();
        for (change, plan) in changes.iter().zip(&plan.listeners) {
            let kept = change.before.and_then(|at| before.get_mut(at)?.take());
            if let Some(number) = kept {
                self.listeners.of_plan.push(number);
                failed.extend(self.change_terms(number, plan).err());
            } else if let Some(socket) = change.take(worker) {
                failed
                    .extend(self.listeners.add(&mut self.driver, vec![socket], false, plan).err());
            }
            let listener =
                self.listeners.of_plan.last().and_then(|number| self.listeners.get(*number));
            for socket in listener.map(|listener| listener.sockets.clone()).unwrap_or_default() {
                match &change.speech {
                    Speech::Same => {}
                    Speech::Plain => self.driver.unseal_listener(socket),
                    Speech::Tls(sealing) => self.seal(socket, sealing),
                }
            }
        }
        self.listeners.announce(self.driver.inner_mut(), &plan);
        number_listeners(&mut self.engine, self.listeners.in_plan(&plan));
        for number in before.into_iter().flatten() {
            self.listeners.leave(number, &[], &mut self.driver);
            self.engine.drain(Farewell::Listener(number));
        }
        if self.draining {
            self.stop_accepting(&[]);
        }
        failed
    }

    /// Gives a listener other terms. The sender of this plan has checked that they are possible,
    /// mostly.
    fn change_terms(&mut self, number: u32, plan: &ListenerPlan) -> io::Result<()> {
        let Some(listener) = self.listeners.all.get_mut(number as usize).and_then(Option::as_mut)
        else {
            return Ok(());
        };
        let mut changed = Ok(());
        if listener.plan.backlog != plan.backlog {
            listener
                .sockets
                .iter()
                .for_each(|socket| self.driver.set_backlog(*socket, plan.backlog));
        }
        if inbound(&listener.plan) != inbound(plan) {
            let descriptors =
                listener.sockets.iter().filter_map(|socket| self.driver.duplicate(*socket).ok());
            // All sockets, even when one fails.
            let next = inbound(plan).in_place_of(&inbound(&listener.plan));
            let outcomes: Vec<_> = descriptors.map(|socket| next.apply(&socket)).collect();
            changed = outcomes.into_iter().collect();
        }
        listener.plan = plan.clone();
        changed
    }

    /// Takes nothing new except connected clients; where another process has taken over, only
    /// accepted clients.
    pub(crate) fn stop_accepting(&mut self, taken: &[Location]) {
        for number in std::mem::take(&mut self.listeners.of_plan) {
            self.listeners.leave(number, taken, &mut self.driver);
        }
        self.dialing.end();
    }

    /// When leaving listeners are to be closed, or checked again: none with a waiting client is
    /// closed.
    pub(crate) fn listening_until_us(&mut self) -> Option<u64> {
        let leaving = std::mem::take(&mut self.listeners.leaving);
        let until_us = leaving.iter().map(|one| self.leaves_at_us(*one)).min();
        self.listeners.leaving = leaving;
        until_us
    }

    /// When a leaving listener is to be closed; a time later than now: or checked again.
    fn leaves_at_us(&mut self, leaver: Leaver) -> u64 {
        let Leaver { number, since_us, is_handed_over } = leaver;
        let now_us = self.driver.now_us();
        if now_us < since_us + ACCEPTING_US {
            return since_us + ACCEPTING_US;
        }
        let sockets = self.listeners.get(number).map_or(&[][..], |listener| &listener.sockets[..]);
        let driver = &mut self.driver;
        let is_awaited = if is_handed_over {
            // Until the driver has reported all accepted clients, and within the time limit of
            // their handshakes.
            sockets.iter().any(|socket| {
                driver.accept_queue(*socket).is_some() || driver.unfinished_of(*socket) > 0
            })
        } else {
            let may_be = now_us < since_us + ACCEPTING_MAX_US;
            may_be && (self.accepted || sockets.iter().any(|socket| driver.is_awaited(*socket)))
        };
        if is_awaited { now_us + ACCEPTING_LOOK_US } else { now_us }
    }

    /// Closes the listeners for which it is time.
    pub(crate) fn stop_listening(&mut self) {
        let leaving = std::mem::take(&mut self.listeners.leaving);
        for one in leaving {
            if self.leaves_at_us(one) > self.driver.now_us() {
                self.listeners.leaving.push(one);
            } else if let Some(listener) = self.listeners.all[one.number as usize].take() {
                listener.sockets.into_iter().for_each(|socket| self.driver.close(socket));
            }
        }
    }
}
