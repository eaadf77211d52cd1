//! The addresses of names, for all workers. Called by the side thread for each [`Errand::Resolve`](weir_proxy::errand::Errand).
//!
//! A name that several workers ask for is asked of name servers once, and what they said is kept for as long as it holds. IPv6
//! and IPv4 are asked at the same time; when one kind is there and the other is not [`Limits::half`] later, the first is told
//! alone for a second, and the rest to whoever asks again (RFC 8305 §3).
//!
//! Bounds: [`Limits`]; each name has its own time, so that a slow one delays no other.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use weir_proxy::errand::{News, Unresolved};

use super::Tell;
use super::cache::Cache;
use super::dns::{Dns, Kind, absolute};
use super::hosts::Hosts;
use super::order::{self, Answer, Found, Missing, Route};

/// How much at once, and how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// For one name, with waiting for its turn.
    pub(crate) deadline: Duration,
    /// How much longer the second kind of addresses may take than the first.
    pub(crate) half: Duration,
    /// Names that are asked of name servers at once; fewer where descriptors are few.
    pub(crate) asked_max: usize,
    /// Names that are asked or wait for that; further ones fail at once.
    pub(crate) open_max: usize,
    /// Names that are kept.
    pub(crate) kept_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            deadline: Duration::from_secs(8),
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
    turns: Semaphore,
    tell: Tell,
    state: RefCell<State>,
}

struct State {
    known: Cache<Box<str>, Answer>,
    open: HashMap<Box<str>, Open>,
    /// None: only name servers are asked.
    hosts: Option<Hosts>,
    route: Route,
}

/// A name that is being asked.
#[derive(Default)]
struct Open {
    /// Who waits for it.
    workers: Vec<u16>,
    /// What is known already, while the other kind of addresses is not.
    half: Option<Answer>,
}

/// What becomes of a question.
enum Fate {
    Known(Answer),
    /// Somebody else has asked; the worker is told with him.
    Joined,
    Begun,
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
        let state = State { known, open: HashMap::new(), hosts, route: Route::default() };
        Rc::new(Names { dns, limits, turns: Semaphore::new(limits.asked_max), tell, state: RefCell::new(state) })
    }

    /// A worker wants the addresses of a name: it is told, now or within the deadline. Call it within a local set of tokio.
    pub(crate) fn ask(self: &Rc<Names>, worker: u16, name: Box<str>) {
        let fate = self.fate(worker, &name);
        match fate {
            Fate::Known(answer) => (self.tell)(worker, News::Resolved { name, answer }),
            Fate::Joined => {}
            Fate::Begun => {
                // Whatever happens to the task, all who wait are told.
                let ending = Ending { names: Rc::clone(self), name, answer: Err(Unresolved::Failed) };
                tokio::task::spawn_local(Rc::clone(self).find(ending));
            }
        }
    }

    fn fate(&self, worker: u16, name: &str) -> Fate {
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
                    open.workers.push(worker);
                    Fate::Joined
                }
            };
        }
        if absolute(name).is_none() {
            return Fate::Known(NO_NAME);
        }
        if state.open.len() >= self.limits.open_max {
            return Fate::Known(Err(Unresolved::Failed));
        }
        state.open.insert(name.into(), Open { workers: vec![worker], half: None });
        Fate::Begun
    }

    async fn find(self: Rc<Names>, mut ending: Ending) {
        let found = tokio::time::timeout(self.limits.deadline, self.look_up(&ending.name)).await;
        ending.answer = found.unwrap_or(Err(Unresolved::TimedOut));
    }

    async fn look_up(self: &Rc<Names>, name: &str) -> Answer {
        let Some(absolute) = absolute(name) else { return NO_NAME };
        let Ok(_turn) = self.turns.acquire().await else { return Err(Unresolved::Failed) };
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
        let workers = match self.state.borrow_mut().open.get_mut(name) {
            Some(open) => {
                open.half = Some(answer.clone());
                std::mem::take(&mut open.workers)
            }
            None => return,
        };
        self.tell_all(&workers, name, &answer);
    }

    fn tell_all(&self, workers: &[u16], name: &str, answer: &Answer) {
        for worker in workers {
            (self.tell)(*worker, News::Resolved { name: name.into(), answer: answer.clone() });
        }
    }

    fn has_ipv6(&self) -> bool {
        self.state.borrow_mut().route.has_ipv6(Instant::now())
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
            state.open.remove(&self.name)
        };
        let workers = open.map(|open| open.workers).unwrap_or_default();
        self.names.tell_all(&workers, &self.name, &self.answer);
    }
}

#[cfg(test)]
mod tests;
