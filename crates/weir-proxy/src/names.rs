//! Addresses of names, as one worker knows them, and which clients wait for them. Called by the engine when a client of the forward
//! proxy names a destination.
//!
//! A name is asked for once, however many clients want it, and holds for its TTL, at least [`HOLD_US`], so that those who waited can
//! use it. Bound: [`NAMES_MAX`] names. semantics.md §9.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::errand::{Addresses, Unresolved};

/// Names that are known or asked for; beyond that what is not asked for is forgotten.
pub const NAMES_MAX: usize = 10_000;
/// How long any answer holds at least.
const HOLD_US: u64 = 1_000_000;

/// What is known of names.
#[derive(Debug, Default)]
pub struct Names {
    names: HashMap<Box<str>, Name>,
}

#[derive(Debug)]
enum Name {
    /// Clients by slot and occupant.
    Asked {
        waiting: Vec<(u32, u32)>,
    },
    Known {
        answer: Result<Arc<[IpAddr]>, Unresolved>,
        until_us: u64,
    },
}

/// What is known of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// It has these addresses, or none.
    Known(Result<Arc<[IpAddr]>, Unresolved>),
    /// It is asked for already; the client waits.
    Waits,
    /// It has to be asked for; the client waits.
    Ask,
}

impl Names {
    /// Looks a name up for a client, which is noted as waiting unless the name is known.
    pub fn look(&mut self, name: &str, client: (u32, u32), now_us: u64) -> Lookup {
        match self.names.get_mut(name) {
            Some(Name::Known { answer, until_us }) if now_us < *until_us => return Lookup::Known(answer.clone()),
            Some(Name::Asked { waiting }) => {
                if !waiting.contains(&client) {
                    waiting.push(client);
                }
                return Lookup::Waits;
            }
            Some(Name::Known { .. }) | None => {}
        }
        if self.names.len() >= NAMES_MAX {
            self.make_room(now_us);
        }
        self.names.insert(name.into(), Name::Asked { waiting: vec![client] });
        Lookup::Ask
    }

    /// Forgets what has expired; if that is not enough, all that nobody waits for.
    fn make_room(&mut self, now_us: u64) {
        self.names.retain(|_, name| !matches!(name, Name::Known { until_us, .. } if *until_us <= now_us));
        if self.names.len() >= NAMES_MAX {
            self.names.retain(|_, name| matches!(name, Name::Asked { .. }));
        }
    }

    /// Notes an answer and gives out who waits for it. What nobody asked is not noted.
    pub fn learn(&mut self, name: &str, answer: Result<Addresses, Unresolved>, now_us: u64) -> Vec<(u32, u32)> {
        let ttl_us = match &answer {
            Ok(addresses) => addresses.ttl_us,
            Err(Unresolved::NoSuchName { ttl_us }) => *ttl_us,
            Err(Unresolved::Failed | Unresolved::TimedOut) => 0,
        };
        let Some(known) = self.names.get_mut(name) else { return Vec::new() };
        let waiting = match known {
            Name::Asked { waiting } => std::mem::take(waiting),
            Name::Known { .. } => return Vec::new(),
        };
        let until_us = now_us.saturating_add(ttl_us.max(HOLD_US));
        *known = Name::Known { answer: answer.map(|addresses| addresses.list), until_us };
        waiting
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a name is asked for once and holds as long as its TTL says; the table is bounded.

    use super::*;

    const SECOND_US: u64 = 1_000_000;

    fn addresses(last: u8, ttl_us: u64) -> Result<Addresses, Unresolved> {
        Ok(Addresses { list: Arc::from([IpAddr::from([192, 0, 2, last])]), ttl_us })
    }

    #[test]
    fn a_name_is_asked_for_once() {
        let mut names = Names::default();
        assert_eq!(names.look("a", (1, 1), 0), Lookup::Ask);
        assert_eq!(names.look("a", (2, 1), 0), Lookup::Waits);
        assert_eq!(names.look("a", (2, 1), 0), Lookup::Waits);
        assert_eq!(names.learn("a", addresses(1, 5 * SECOND_US), 7), [(1, 1), (2, 1)]);
        let Lookup::Known(Ok(list)) = names.look("a", (3, 1), 5 * SECOND_US) else { panic!("not known") };
        assert_eq!(list[..], [IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(names.look("a", (3, 1), 5 * SECOND_US + 7), Lookup::Ask, "its time is over");
        assert_eq!(names.learn("b", addresses(1, SECOND_US), 8), [], "nobody asked");
        assert_eq!(names.look("b", (3, 1), 9), Lookup::Ask);
    }

    #[test]
    fn failures_hold_so_that_those_who_waited_see_them() {
        for (why, hold_us) in [
            (Unresolved::Failed, SECOND_US),
            (Unresolved::TimedOut, SECOND_US),
            (Unresolved::NoSuchName { ttl_us: 30 * SECOND_US }, 30 * SECOND_US),
            (Unresolved::NoSuchName { ttl_us: 0 }, SECOND_US),
        ] {
            let mut names = Names::default();
            names.look("a", (1, 1), 0);
            names.learn("a", Err(why), 0);
            assert_eq!(names.look("a", (1, 1), hold_us - 1), Lookup::Known(Err(why)));
            assert_eq!(names.look("a", (1, 1), hold_us), Lookup::Ask);
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let mut names = Names::default();
        names.look("waits", (1, 1), 0);
        for n in 0..3 * NAMES_MAX {
            let name = n.to_string();
            names.look(&name, (2, 1), n as u64);
            names.learn(&name, addresses(1, 3600 * SECOND_US), n as u64);
            assert!(names.names.len() <= NAMES_MAX + 1);
        }
        assert_eq!(names.learn("waits", addresses(1, 1), 9), [(1, 1)], "nobody who waits is forgotten");
    }
}
