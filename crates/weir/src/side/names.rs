//! The addresses of names, for all workers. Called by the side thread for each [`Errand::Resolve`](weir_proxy::forward::lookup::Errand).
//!
//! A name that several want is asked of name servers once, and what they said is kept for as long as it holds. It takes the share of
//! who wanted it first, and its turn comes by the line of whoever has one first (`turns`), so that nobody waits behind names of
//! another that are never answered, nor for a name because another wants it too. IPv6 and IPv4 are asked at the same time; when one kind is there and the other is not [`Limits::half`] later, the first is told
//! alone for a second, and the rest to whoever asks again (RFC 8305 §3).
//!
//! Bounds: [`Limits`], of which each client or user may have as much as is free ([`Shares`]); each name has its own time, so that a
//! slow one delays no other.

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

/// How much at once, and how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// For one name, with waiting for its turn.
    pub(crate) deadline: Duration,
    /// For it to get its turn; what is left of the deadline is for name servers.
    pub(crate) turn: Duration,
    /// How much longer the second kind of addresses may take than the first.
    pub(crate) half: Duration,
    /// Names that are asked of name servers at once; fewer where descriptors are few.
    pub(crate) asked_max: usize,
    /// Names that are asked or wait for that; for further ones there is no room.
    pub(crate) open_max: usize,
    /// Names that are kept.
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

/// How long an address of `/etc/hosts` holds.
const HOSTS_TTL: Duration = Duration::from_secs(10);
/// How long what can't be a name is none.
const NO_NAME: Answer = Err(Unresolved::NoSuchName { ttl_us: 60_000_000 });

/// What is known and what is being asked.
pub(crate) struct Names {
    dns: Dns,
    limits: Limits,
    tell: Tell,
    state: RefCell<State>,
}

struct State {
    known: Cache<Box<str>, Answer>,
    open: HashMap<Rc<str>, Open>,
    /// Of names that are open: by who wanted them first.
    shares: Shares,
    turns: Turns,
    /// Names so far.
    count: u64,
    /// None: only name servers are asked.
    hosts: Option<Hosts>,
    route: Route,
}

/// A name that is being asked, or waits for that.
struct Open {
    ticket: Ticket,
    /// Who wanted it first.
    first: Asker,
    /// Who waits for it: workers, and for whom.
    waiting: Vec<(u16, Asker)>,
    /// Where it is told that it has its turn. None: it has.
    turn: Option<oneshot::Sender<Turn>>,
    /// What is known already, while the other kind of addresses is not.
    half: Option<Answer>,
}

/// What becomes of a question.
enum Fate {
    Known(Answer),
    /// Somebody else has asked; the worker is told with him.
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
    /// Nothing known yet. With `hosts` the table of the system comes first.
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

    /// A worker wants the addresses of a name for somebody: it is told, now or within the deadline. Call it within a local set of
    /// tokio.
    pub(crate) fn ask(self: &Rc<Names>, worker: u16, asker: Asker, name: Box<str>) {
        let fate = self.fate(worker, &asker, &name);
        match fate {
            Fate::Known(answer) => return (self.tell)(worker, News::Resolved { name, asker, answer }),
            Fate::Joined => {}
            Fate::Begun(turn) => {
                // Whatever happens to the task, all who wait are told.
                let ending = Ending { names: Rc::clone(self), name, answer: Err(Unresolved::Failed) };
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
            let (v6, v4): (Vec<IpAddr>, Vec<IpAddr>) = addresses.iter().partition(|address| address.is_ipv6());
            return Fate::Known(Ok(order::addresses(&v6, &v4, state.route.has_ipv6(now), HOSTS_TTL)));
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
            // What can't be sent is given back by its drop.
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

    /// Tells addresses of one kind to those who wait, for as short as can be.
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
            (self.tell)(worker, News::Resolved { name: name.into(), asker, answer: answer.clone() });
        }
    }

    fn has_ipv6(&self) -> bool {
        self.state.borrow_mut().route.has_ipv6(Instant::now())
    }
}

impl State {
    /// Who has the next turn, and the name that he has it for.
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
    /// It waits for its turn no more.
    fn leave_lines(&self, turns: &mut Turns) {
        if self.turn.is_some() {
            self.waiting.iter().for_each(|(_, asker)| turns.withdraw(asker, &self.ticket));
        }
    }
}

/// A turn of somebody, given back by its drop.
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

/// The end of a question, also when its task panics or is dropped.
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
