//! Addresses of names, as one worker knows them, and which clients wait for them. Called by the
//! engine when a client of the forward proxy names a destination.
//!
//! A name is resolved once, however many clients want it, and is valid for its TTL, at least
//! [`HOLD_US`], so that the clients that waited can use it. While the lookup is under way, each
//! client or user that wants it has a separate errand, [`ASKERS_MAX`] at most, which the side
//! thread combines into one query. So a name that has to wait in the queue of one client advances
//! in that of another, and lack of room for one client says nothing to others. Bound: [`NAMES_MAX`]
//! names and those that clients wait for. docs/forward.md.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::base::keys::ClientKey;
use crate::forward::lookup::{Addresses, Unresolved};
use crate::forward::shares::Asker;

/// Names that are known or being resolved; beyond that, names that are not being resolved are
/// forgotten.
pub(crate) const NAMES_MAX: usize = 10_000;
/// Clients or users with a separate errand for a name; others wait for those errands, and get one
/// when none of those had room.
const ASKERS_MAX: usize = 8;
/// How long any result is valid at least.
const HOLD_US: u64 = 1_000_000;

/// A client of the engine by slot and occupant.
pub(crate) type Client = (ClientKey, u32);

/// The known names.
#[derive(Debug, Default)]
pub(crate) struct Names {
    names: BTreeMap<Box<str>, Name>,
}

#[derive(Debug)]
enum Name {
    Asked(Asked),
    Known { answer: Result<Arc<[IpAddr]>, Unresolved>, until_us: u64 },
}

/// A name for which errands are under way.
#[derive(Debug, Default)]
struct Asked {
    /// The clients or users with an errand: each once, at most [`ASKERS_MAX`].
    askers: Vec<Asker>,
    waiting: Vec<(Client, Asker)>,
}

impl Asked {
    /// Adds a client that wants it.
    fn join(&mut self, client: Client, asker: Asker) -> Lookup {
        let lookup = match self.askers.len() < ASKERS_MAX && !self.askers.contains(&asker) {
            true => Lookup::Ask,
            false => Lookup::Waits,
        };
        if lookup == Lookup::Ask {
            self.askers.push(asker.clone());
        }
        match self.waiting.iter_mut().find(|(waits, _)| *waits == client) {
            Some((_, before)) => *before = asker,
            None => self.waiting.push((client, asker)),
        }
        lookup
    }
}

/// The result of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// It has these addresses, or none.
    Known(Result<Arc<[IpAddr]>, Unresolved>),
    /// An errand is under way; the client waits.
    Waits,
    /// An errand is needed; the client waits.
    Ask,
}

/// Clients that waited for a name that was not resolved for lack of room.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unasked {
    /// Clients without room.
    pub refused: Vec<Client>,
    /// Other clients: their wait has ended, and they have to look again.
    pub others: Vec<Client>,
}

impl Names {
    /// Looks a name up for a client, which is noted as waiting unless the name is known.
    pub(crate) fn look(&mut self, name: &str, client: Client, asker: Asker, now_us: u64) -> Lookup {
        match self.names.get_mut(name) {
            Some(Name::Known { answer, until_us }) if now_us < *until_us => {
                return Lookup::Known(answer.clone());
            }
            Some(Name::Asked(asked)) => return asked.join(client, asker),
            Some(Name::Known { .. }) | None => {}
        }
        if self.names.len() >= NAMES_MAX {
            self.make_room(now_us);
        }
        let mut asked = Asked::default();
        let lookup = asked.join(client, asker);
        self.names.insert(name.into(), Name::Asked(asked));
        lookup
    }

    /// Notes that there was no room for an errand. Returns the clients that have to know: those of
    /// the errand, and all others when no errand is left that they could wait for.
    pub(crate) fn refuse(&mut self, name: &str, asker: &Asker) -> Unasked {
        let Some(Name::Asked(asked)) = self.names.get_mut(name) else { return Unasked::default() };
        asked.askers.retain(|other| other != asker);
        let is_over = asked.askers.is_empty();
        let clients =
            |list: Vec<(Client, Asker)>| list.into_iter().map(|(client, _)| client).collect();
        let (refused, others) =
            std::mem::take(&mut asked.waiting).into_iter().partition(|(_, of)| of == asker);
        if !is_over {
            asked.waiting = others;
            return Unasked { refused: clients(refused), others: Vec::new() };
        }
        self.names.remove(name);
        Unasked { refused: clients(refused), others: clients(others) }
    }

    /// Forgets expired names; if that is not enough, all for which no client waits.
    fn make_room(&mut self, now_us: u64) {
        self.names
            .retain(|_, name| !matches!(name, Name::Known { until_us, .. } if *until_us <= now_us));
        if self.names.len() >= NAMES_MAX {
            self.names.retain(|_, name| matches!(name, Name::Asked(_)));
        }
    }

    /// Notes a result and returns the clients that wait for it. An unrequested result is not noted.
    pub(crate) fn learn(
        &mut self,
        name: &str,
        answer: Result<Addresses, Unresolved>,
        now_us: u64,
    ) -> Vec<Client> {
        let ttl_us = match &answer {
            Ok(addresses) => addresses.ttl_us,
            Err(Unresolved::NoSuchName { ttl_us }) => *ttl_us,
            Err(Unresolved::Failed | Unresolved::TimedOut | Unresolved::NoRoom) => 0,
        };
        let Some(known) = self.names.get_mut(name) else { return Vec::new() };
        let waiting = match known {
            Name::Asked(asked) => std::mem::take(&mut asked.waiting),
            Name::Known { .. } => return Vec::new(),
        };
        let until_us = now_us.saturating_add(ttl_us.max(HOLD_US));
        *known = Name::Known { answer: answer.map(|addresses| addresses.list), until_us };
        waiting.into_iter().map(|(client, _)| client).collect()
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a name is resolved once for each client that wants it and is valid as long as its
    //! TTL says; the table is bounded.

    use super::*;
    use crate::base::keys::Key;

    const SECOND_US: u64 = 1_000_000;

    fn client(slot: u32) -> Client {
        (ClientKey::new(slot), 1)
    }

    fn asker(last: u8) -> Asker {
        Asker::of(None, IpAddr::from([198, 51, 100, last]))
    }

    fn addresses(last: u8, ttl_us: u64) -> Result<Addresses, Unresolved> {
        Ok(Addresses { list: Arc::from([IpAddr::from([192, 0, 2, last])]), ttl_us })
    }

    #[test]
    fn a_name_is_asked_for_once() {
        let mut names = Names::default();
        assert_eq!(names.look("a", client(1), asker(1), 0), Lookup::Ask);
        assert_eq!(names.look("a", client(2), asker(1), 0), Lookup::Waits);
        assert_eq!(names.look("a", client(2), asker(1), 0), Lookup::Waits);
        assert_eq!(names.learn("a", addresses(1, 5 * SECOND_US), 7), [client(1), client(2)]);
        let Lookup::Known(Ok(list)) = names.look("a", client(3), asker(1), 5 * SECOND_US) else {
            panic!("not known")
        };
        assert_eq!(list[..], [IpAddr::from([192, 0, 2, 1])]);
        assert_eq!(
            names.look("a", client(3), asker(1), 5 * SECOND_US + 7),
            Lookup::Ask,
            "its time is over"
        );
        assert_eq!(names.learn("b", addresses(1, SECOND_US), 8), [], "nobody asked");
        assert_eq!(names.look("b", client(3), asker(1), 9), Lookup::Ask);
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
            names.look("a", client(1), asker(1), 0);
            names.learn("a", Err(why), 0);
            assert_eq!(names.look("a", client(1), asker(1), hold_us - 1), Lookup::Known(Err(why)));
            assert_eq!(names.look("a", client(1), asker(1), hold_us), Lookup::Ask);
        }
    }

    #[test]
    fn each_has_an_errand_of_his_own() {
        let mut names = Names::default();
        assert_eq!(names.look("a", client(1), asker(1), 0), Lookup::Ask);
        assert_eq!(names.look("a", client(2), asker(2), 0), Lookup::Ask);
        assert_eq!(names.look("a", client(3), asker(2), 0), Lookup::Waits);
        assert_eq!(names.look("a", client(4), asker(1), 0), Lookup::Waits);
        let refused = Unasked { refused: vec![client(1), client(4)], others: Vec::new() };
        assert_eq!(names.refuse("a", &asker(1)), refused, "the other one's errand is under way");
        assert_eq!(names.refuse("a", &asker(1)), Unasked::default());
        assert_eq!(names.look("a", client(1), asker(1), 0), Lookup::Ask, "he may try again");
        assert_eq!(names.learn("a", addresses(1, SECOND_US), 0), [client(2), client(3), client(1)]);
        assert_eq!(names.refuse("a", &asker(1)), Unasked::default(), "too late");
        assert!(matches!(names.look("a", client(1), asker(1), 1), Lookup::Known(Ok(_))));
    }

    #[test]
    fn who_waits_for_the_errands_of_others_is_told_when_none_is_left() {
        let mut names = Names::default();
        for n in 0..=8_u8 {
            let asks = names.look("a", client(n.into()), asker(n), 0);
            assert_eq!(
                asks,
                if n < 8 { Lookup::Ask } else { Lookup::Waits },
                "so many errands for a name"
            );
        }
        for n in 0..7 {
            assert_eq!(names.refuse("a", &asker(n)).others, []);
        }
        assert_eq!(
            names.refuse("a", &asker(7)),
            Unasked { refused: vec![client(7)], others: vec![client(8)] }
        );
        assert_eq!(names.look("a", client(8), asker(8), 0), Lookup::Ask);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut names = Names::default();
        names.look("waits", client(1), asker(1), 0);
        for n in 0..3 * NAMES_MAX {
            let name = n.to_string();
            names.look(&name, client(2), asker(1), n as u64);
            names.learn(&name, addresses(1, 3600 * SECOND_US), n as u64);
            assert!(names.names.len() <= NAMES_MAX + 1);
        }
        assert_eq!(
            names.learn("waits", addresses(1, 1), 9),
            [client(1)],
            "nobody who waits is forgotten"
        );
    }
}
