//! Resolves names for all workers. The side thread calls it for each
//! [`Errand::Resolve`](weir_proxy::forward::lookup::Errand).
//!
//! A name that several askers want is resolved once, and the result is kept for as long as it is
//! valid. It counts towards the share of the first asker. Its turn comes by the line of whichever
//! asker has one first (`turns`). So no asker waits behind another's names that are never answered,
//! nor because another wants the same name. Queries for IPv6 and IPv4 go out at the same time. If
//! one kind arrives and the other has not [`Limits::half`] later, the first is sent alone, valid
//! for a second; the result of both goes to those that ask again (RFC 8305 §3).
//!
//! Bounds: [`Limits`], of which each client or user may have as much as is free ([`Shares`]); each
//! name has its own deadline, so a slow one delays no other.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use weir_proxy::forward::lookup::{News, Unresolved};
use weir_proxy::forward::shares::{Asker, Shares};

use super::Tell;
use super::cache::Cache;
use super::dns::{Dns, Kind, absolute};
use super::hosts::Hosts;
use super::order::{self, Answer, Found, Missing, Route};
use super::turns::{Ticket, Turns};

/// Limits on numbers and times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// For one name, including the wait for its turn.
    pub(crate) deadline: Duration,
    /// For the wait for its turn; the rest of the deadline is for name servers.
    pub(crate) turn: Duration,
    /// How much longer the second kind of addresses may take than the first.
    pub(crate) half: Duration,
    /// Names that are queried at once; fewer where descriptors are scarce.
    pub(crate) asked_max: usize,
    /// Names that are queried or wait for that; weir has no room for further ones.
    pub(crate) open_max: usize,
    /// Names in memory.
    pub(crate) kept_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            deadline: Duration::from_secs(8),
            turn: Duration::from_secs(3),
            half: Duration::from_millis(50),
            asked_max: 512,
            open_max: 8192,
            kept_max: 10_000,
        }
    }
}

/// How long an address of `/etc/hosts` is valid.
const HOSTS_TTL: Duration = Duration::from_secs(10);
/// Result for text that cannot be a name, and how long it is valid.
const NO_NAME: Answer = Err(Unresolved::NoSuchName { ttl_us: 60_000_000 });

/// Known names, and names that are being resolved.
pub(crate) struct Names {
    dns: Dns,
    limits: Limits,
    tell: Tell,
    state: RefCell<State>,
}

struct State {
    known: Cache<Box<str>, Answer>,
    open: HashMap<Rc<str>, Open>,
    /// Of open names, by their first asker.
    shares: Shares,
    turns: Turns,
    /// Names so far.
    count: u64,
    /// None: only name servers are queried.
    hosts: Option<Hosts>,
    route: Route,
}

/// A name that is being resolved, or waits for that.
struct Open {
    ticket: Ticket,
    /// The first asker.
    first: Asker,
    /// The waiting workers, and for which askers.
    waiting: Vec<(u16, Asker)>,
    /// Gives it its turn. None: it has had that.
    turn: Option<oneshot::Sender<Turn>>,
    /// The addresses of one kind, while the other kind is still missing.
    half: Option<Answer>,
}

/// The outcome of a question.
enum Fate {
    Known(Answer),
    /// The name is being resolved already; the worker gets that result.
    Joined,
    /// It waits for its turn.
    Begun(oneshot::Receiver<Turn>),
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Names {{ open: {} }}", self.state.borrow().open.len())
    }
}

impl Names {
    /// Starts without known names. With `hosts` the table of the system has priority.
    pub(crate) fn new(dns: Dns, hosts: Option<Hosts>, limits: Limits, tell: Tell) -> Rc<Names> {
        let known = Cache::new(limits.kept_max);
        let state = State {
            known,
            open: HashMap::new(),
            shares: Shares::new(limits.open_max),
            turns: Turns::new(limits.asked_max),
            count: 0,
            hosts,
            route: Route::default(),
        };
        Rc::new(Names { dns, limits, tell, state: RefCell::new(state) })
    }

    /// Resolves a name for an asker at a worker, and replies at once or within the deadline. Call
    /// it within a local set of tokio.
    pub(crate) fn ask(self: &Rc<Names>, worker: u16, asker: Asker, name: Box<str>) {
        let fate = self.fate(worker, &asker, &name);
        match fate {
            Fate::Known(answer) => {
                return (self.tell)(worker, News::Resolved { name, asker, answer });
            }
            Fate::Joined => {}
            Fate::Begun(turn) => {
                // Whatever happens to the task, all waiting workers get a reply.
                let ending =
                    Ending { names: Rc::clone(self), name, answer: Err(Unresolved::Failed) };
                tokio::task::spawn_local(Rc::clone(self).find(ending, turn));
            }
        }
        self.give_turns();
    }

    fn fate(&self, worker: u16, asker: &Asker, name: &str) -> Fate {
        let now = Instant::now();
        let state = &mut *self.state.borrow_mut();
        if let Some((answer, left)) = state.known.find(name, now) {
            return Fate::Known(order::aged(answer, left));
        }
        if let Some(addresses) = state.hosts.as_mut().and_then(|hosts| hosts.find(name, now)) {
            let (v6, v4): (Vec<IpAddr>, Vec<IpAddr>) =
                addresses.iter().partition(|address| address.is_ipv6());
            return Fate::Known(Ok(order::addresses(
                &v6,
                &v4,
                state.route.has_ipv6(now),
                HOSTS_TTL,
            )));
        }
        if let Some(open) = state.open.get_mut(name) {
            return match &open.half {
                Some(answer) => Fate::Known(order::aged(answer, order::TTL_MIN)),
                None => {
                    open.waiting.push((worker, asker.clone()));
                    if open.turn.is_some() {
                        state.turns.wait(asker, open.ticket.clone());
                    }
                    Fate::Joined
                }
            };
        }
        if absolute(name).is_none() {
            return Fate::Known(NO_NAME);
        }
        if !state.shares.enter(asker) {
            return Fate::Known(Err(Unresolved::NoRoom));
        }
        state.count += 1;
        let ticket: Ticket = (state.count, name.into());
        let (sender, turn) = oneshot::channel();
        state.turns.wait(asker, ticket.clone());
        let waiting = vec![(worker, asker.clone())];
        let open = Open { ticket, first: asker.clone(), waiting, turn: Some(sender), half: None };
        state.open.insert(name.into(), open);
        Fate::Begun(turn)
    }

    /// Gives all turns that can be given.
    fn give_turns(self: &Rc<Names>) {
        loop {
            let next = self.state.borrow_mut().next_turn();
            let Some((asker, turn)) = next else { return };
            let given = Turn { names: Rc::clone(self), asker };
            // A turn that cannot be sent is given back when dropped.
            let _ = turn.map(|turn| turn.send(given));
        }
    }

    async fn find(self: Rc<Names>, mut ending: Ending, turn: oneshot::Receiver<Turn>) {
        let begun = Instant::now();
        let Ok(Ok(_turn)) = tokio::time::timeout(self.limits.turn, turn).await else {
            ending.answer = Err(Unresolved::NoRoom);
            return;
        };
        let left = self.limits.deadline.saturating_sub(begun.elapsed());
        let found = tokio::time::timeout(left, self.look_up(&ending.name)).await;
        ending.answer = found.unwrap_or(Err(Unresolved::TimedOut));
    }

    async fn look_up(self: &Rc<Names>, name: &str) -> Answer {
        let Some(absolute) = absolute(name) else { return NO_NAME };
        let mut asking = JoinSet::new();
        for kind in [Kind::V6, Kind::V4] {
            let (names, absolute) = (Rc::clone(self), absolute.clone());
            asking.spawn_local(async move { (kind, names.dns.ask(&absolute, kind).await) });
        }
        let (mut v6, mut v4) = (Err(Missing::Failed), Err(Missing::Failed));
        let mut keep = |(kind, found): (Kind, Result<Found, Missing>)| match kind {
            Kind::V6 => v6 = found,
            Kind::V4 => v4 = found,
        };
        let Some(Ok(first)) = asking.join_next().await else { return Err(Unresolved::Failed) };
        let half = first.1.clone().ok();
        keep(first);
        let mut second = tokio::time::timeout(self.limits.half, asking.join_next()).await;
        if second.is_err() {
            if let Some(half) = half {
                self.tell_half(name, &half);
            }
            second = Ok(asking.join_next().await);
        }
        if let Ok(Some(Ok(second))) = second {
            keep(second);
        }
        order::join(v6, v4, self.has_ipv6())
    }

    /// Sends addresses of one kind to those that wait, valid for the shortest time.
    fn tell_half(&self, name: &str, half: &Found) {
        let answer = Ok(order::addresses(&half.list, &[], true, order::TTL_MIN));
        let waiting = match self.state.borrow_mut().open.get_mut(name) {
            Some(open) => {
                open.half = Some(answer.clone());
                std::mem::take(&mut open.waiting)
            }
            None => return,
        };
        self.tell_all(waiting, name, &answer);
    }

    fn tell_all(&self, waiting: Vec<(u16, Asker)>, name: &str, answer: &Answer) {
        for (worker, asker) in waiting {
            (self.tell)(
                worker,
                News::Resolved { name: name.into(), asker, answer: answer.clone() },
            );
        }
    }

    fn has_ipv6(&self) -> bool {
        self.state.borrow_mut().route.has_ipv6(Instant::now())
    }
}

impl State {
    /// Returns the asker that has the next turn, and the name that it is for.
    fn next_turn(&mut self) -> Option<(Asker, Option<oneshot::Sender<Turn>>)> {
        let (asker, (_, name)) = self.turns.next()?;
        let turn = self.open.get_mut(&name).and_then(|open| {
            open.leave_lines(&mut self.turns);
            open.turn.take()
        });
        Some((asker, turn))
    }
}

impl Open {
    /// Removes it from the lines: it no longer waits for its turn.
    fn leave_lines(&self, turns: &mut Turns) {
        if self.turn.is_some() {
            self.waiting.iter().for_each(|(_, asker)| turns.withdraw(asker, &self.ticket));
        }
    }
}

/// A turn of an asker, given back when dropped.
struct Turn {
    names: Rc<Names>,
    asker: Asker,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.names.state.borrow_mut().turns.leave(&self.asker);
        self.names.give_turns();
    }
}

/// The end of a question, even if its task panics or is dropped.
struct Ending {
    names: Rc<Names>,
    name: Box<str>,
    answer: Answer,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let open = {
            let state = &mut *self.names.state.borrow_mut();
            if let Some(time) = order::keeps(&self.answer) {
                state.known.insert(self.name.clone(), self.answer.clone(), Instant::now() + time);
            }
            let open = state.open.remove(&*self.name);
            if let Some(open) = &open {
                state.shares.leave(&open.first);
                open.leave_lines(&mut state.turns);
            }
            open
        };
        let waiting = open.map(|open| open.waiting).unwrap_or_default();
        self.names.tell_all(waiting, &self.name, &self.answer);
    }
}

#[cfg(test)]
mod tests;
