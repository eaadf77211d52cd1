//! Whether a server takes new requests, and why not: what the operator ordered and what health
//! found.
//!
//! The engine keeps one [`ServerState`] a server on each worker and asks it before it places
//! anything. Orders come from outside and hold until the next one; one worker decides on a
//! suspension and informs the others, and it ends without an order. docs/failover.md.
//!
//! ```text
//!                  | new requests | waiting ones | in flight | connections
//!  Active          | yes          | stay         | continue  | kept
//!  Suspended       | no           | move         | continue  | kept
//!  Draining        | bound only   | stay         | continue  | kept
//!  Disabled        | no           | move         | continue  | closed, see below
//!  Leaving         | no           | move         | continue  | closed, see below
//! ```
//! Closed: weir closes a connection once nothing is in flight, and does not open it again.

use crate::cross::standing::{Order, Suspension};

/// What `status` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Takes requests.
    Active,
    /// Gets nothing new until it has shown that it works again.
    Suspended(Suspension),
    /// By order of an operator: finishes what it has.
    Draining,
    /// By order of an operator: left alone.
    Disabled,
    /// It is no longer in the configuration: finishes what it has.
    Leaving,
}

impl State {
    /// For status and log.
    pub fn word(self) -> &'static str {
        match self {
            State::Active => "active",
            State::Suspended(_) => "suspended",
            State::Draining => "draining",
            State::Disabled => "disabled",
            State::Leaving => "leaving",
        }
    }
}

/// The standing of one server.
///
/// Invariant: `active` if and only if the order is [`Order::Enable`], it is not suspended, and the
/// configuration has it.
#[derive(Debug, Clone)]
pub struct ServerState {
    /// All that placing a request has to look at.
    active: bool,
    order: Order,
    suspension: Option<Suspension>,
    /// It is no longer in the configuration.
    retired: bool,
}

impl ServerState {
    /// A server under this order, with nothing else against it.
    pub fn new(order: Order) -> ServerState {
        ServerState { active: order == Order::Enable, order, suspension: None, retired: false }
    }

    /// Whether it takes requests from all clients.
    #[inline]
    pub fn takes_new(&self) -> bool {
        self.active
    }

    /// Whether it takes requests of clients that are bound to it (sticky sessions): also while it
    /// is draining.
    pub fn accepts_bound(&self) -> bool {
        self.keeps_connections() && self.suspension.is_none()
    }

    /// Whether a request may be sent to it although it is suspended: no order forbids it.
    pub fn may_be_tried(&self) -> bool {
        self.order == Order::Enable && self.suspension.is_some() && !self.retired
    }

    /// Whether requests that wait for it may go on waiting.
    pub fn keeps_waiting(&self) -> bool {
        self.accepts_bound()
    }

    /// Whether its connections are kept, and replaced when they close.
    #[inline]
    pub fn keeps_connections(&self) -> bool {
        self.order != Order::Disable && !self.retired
    }

    /// The order that holds.
    pub fn ordered(&self) -> Order {
        self.order
    }

    /// What health has found; it exists beside an order and outlives it.
    pub fn suspension(&self) -> Option<Suspension> {
        self.suspension
    }

    /// One word for people; an order hides a suspension.
    pub fn state(&self) -> State {
        match (self.order, self.suspension) {
            _ if self.retired => State::Leaving,
            (Order::Drain, _) => State::Draining,
            (Order::Disable, _) => State::Disabled,
            (Order::Enable, Some(suspension)) => State::Suspended(suspension),
            (Order::Enable, None) => State::Active,
        }
    }

    /// From now on this order holds. False: it did already.
    pub fn order(&mut self, order: Order) -> bool {
        let news = std::mem::replace(&mut self.order, order) != order;
        self.update();
        news
    }

    /// Sets whether it is gone from the configuration. False: nothing changes.
    pub fn retire(&mut self, retired: bool) -> bool {
        let news = std::mem::replace(&mut self.retired, retired) != retired;
        self.update();
        news
    }

    /// Suspends it. False: it is suspended already; the first reason remains.
    pub fn suspend(&mut self, suspension: Suspension) -> bool {
        let news = self.suspension.is_none();
        self.suspension.get_or_insert(suspension);
        self.update();
        news
    }

    /// Ends the suspension. False: it was not suspended.
    pub fn resume(&mut self) -> bool {
        let news = self.suspension.take().is_some();
        self.update();
        news
    }

    fn update(&mut self) {
        self.active = self.order == Order::Enable && self.suspension.is_none() && !self.retired;
    }
}

#[cfg(test)]
mod tests {
    //! Proves: what the table in the header says, for every order with and without a suspension.
    //! How: all pairs.

    use super::*;
    use crate::cross::standing::SuspensionCause;

    const SUSPENSION: Suspension =
        Suspension { cause: SuspensionCause::Answers { rule: 1 }, since_us: 7 };

    #[test]
    fn orders_and_suspensions_stand_side_by_side() {
        for first in Order::ALL {
            for second in Order::ALL {
                for suspended in [false, true] {
                    let mut standing = ServerState::new(first);
                    assert_eq!(standing.takes_new(), first == Order::Enable);
                    assert!(!standing.resume());
                    if suspended {
                        assert!(standing.suspend(SUSPENSION));
                        assert!(!standing.suspend(Suspension {
                            cause: SuspensionCause::Answers { rule: 0 },
                            since_us: 8
                        }));
                    }
                    assert_eq!(standing.order(second), first != second);
                    assert_eq!(standing.takes_new(), second == Order::Enable && !suspended);
                    assert_eq!(standing.accepts_bound(), second != Order::Disable && !suspended);
                    assert_eq!(standing.may_be_tried(), second == Order::Enable && suspended);
                    assert_eq!(standing.keeps_connections(), second != Order::Disable);
                    let expected = match second {
                        Order::Enable if suspended => State::Suspended(SUSPENSION),
                        Order::Enable => State::Active,
                        Order::Drain => State::Draining,
                        Order::Disable => State::Disabled,
                    };
                    assert_eq!(standing.state(), expected);
                    assert!(standing.retire(true) && !standing.retire(true));
                    assert_eq!(standing.state(), State::Leaving);
                    assert!(
                        !standing.takes_new()
                            && !standing.accepts_bound()
                            && !standing.may_be_tried()
                    );
                    assert!(!standing.keeps_waiting() && !standing.keeps_connections());
                    assert!(standing.retire(false));
                    assert_eq!(
                        (standing.state(), standing.takes_new()),
                        (expected, second == Order::Enable && !suspended)
                    );
                    assert_eq!(standing.resume(), suspended);
                    assert_eq!(standing.takes_new(), second == Order::Enable);
                }
            }
        }
    }
}
