//! Which client connections hold connections of a server aside, and how many each: a client that
//! holds as many as it may gets no more requests there until one of them continues. Pure.
//!
//! Only [`super::Server::refresh`] updates it. It is empty while no client stands still. A client
//! connection may hold [`ASIDE_CLIENT_MAX`], and [`ASIDE_SCARCE_MAX`] from the moment on when one
//! more of its connections is set aside while many are, until it holds none. Without that memory it
//! would immediately request again what it was just denied. Invariant: each count is the number of
//! positions that are held for that client.

use std::collections::BTreeMap;

use crate::cross::answer::{ASIDE_CLIENT_MAX, ASIDE_SCARCE_MAX};
use crate::request::pending_request::ClientName;

/// The connections that one client connection holds.
#[derive(Debug)]
struct Holder {
    count: u32,
    allowed: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    by_client: BTreeMap<ClientName, Holder>,
    /// By position of the connection.
    at: BTreeMap<usize, ClientName>,
    /// Clients that hold less than before, to be checked once.
    freed: Vec<ClientName>,
}

impl Holders {
    /// A connection is held aside for this client from now on. `scarce`: many are.
    pub(super) fn hold(&mut self, position: usize, client: ClientName, scarce: bool) {
        let before = self.at.insert(position, client);
        debug_assert!(before.is_none(), "a connection is held for one client");
        let holder =
            self.by_client.entry(client).or_insert(Holder { count: 0, allowed: ASIDE_CLIENT_MAX });
        holder.count += 1;
        if scarce {
            holder.allowed = ASIDE_SCARCE_MAX;
        }
    }

    /// It is not held any more.
    pub(super) fn release(&mut self, position: usize) {
        let Some(client) = self.at.remove(&position) else { return };
        if let Some(holder) = self.by_client.get_mut(&client) {
            holder.count -= 1;
            if holder.count == 0 {
                self.by_client.remove(&client);
            }
        }
        if self.freed.last() != Some(&client) {
            self.freed.push(client);
        }
    }

    /// Returns how many more a client may hold; None: it holds none.
    pub(crate) fn room(&self, client: ClientName) -> Option<u32> {
        let holder = self.by_client.get(&client)?;
        Some(holder.allowed.saturating_sub(holder.count))
    }

    /// Whether a client holds as many as it may.
    #[inline]
    pub(super) fn is_full(&self, client: ClientName) -> bool {
        !self.by_client.is_empty() && self.room(client) == Some(0)
    }

    /// Whether a client holds less than when this was last asked for.
    #[inline]
    pub(super) fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// A client that holds less is to be checked once more.
    pub(super) fn look_again(&mut self, client: ClientName) {
        self.freed.push(client);
    }

    /// Returns those clients.
    pub(super) fn take_freed(&mut self) -> Vec<ClientName> {
        std::mem::take(&mut self.freed)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: the counts are those of the positions, and a client that has once been cut short
    //! remains so until it holds nothing. How: generated histories beside a plain list.

    use proptest::prelude::*;

    use super::*;
    use crate::base::keys::{ClientKey, Key};

    fn client(number: u32) -> ClientName {
        ClientName::new(0, ClientKey::new(number), 0)
    }

    proptest! {
        #[test]
        fn counts_are_those_of_positions(
            steps in prop::collection::vec(
                (0usize..40, 0u32..3, any::<bool>(), any::<bool>()),
                1..200
            ),
        ) {
            let (mut holders, mut model, mut cut) =
                (Holders::default(), BTreeMap::new(), [false; 3]);
            for (position, by, holds, scarce) in steps {
                let holds = holds && !model.contains_key(&position);
                if holds {
                    holders.hold(position, client(by), scarce);
                    model.insert(position, by);
                } else {
                    holders.release(position);
                    model.remove(&position);
                }
                for (number, cut) in cut.iter_mut().enumerate() {
                    let count = model.values().filter(|by| **by == number as u32).count() as u32;
                    *cut = count > 0 && (*cut || holds && scarce && by == number as u32);
                    let allowed = if *cut { ASIDE_SCARCE_MAX } else { ASIDE_CLIENT_MAX };
                    let room = (count > 0).then(|| allowed.saturating_sub(count));
                    prop_assert_eq!(holders.room(client(number as u32)), room);
                    prop_assert_eq!(holders.is_full(client(number as u32)), room == Some(0));
                }
            }
        }
    }

    #[test]
    fn who_is_freed_is_told_once() {
        let mut holders = Holders::default();
        (0..3).for_each(|position| holders.hold(position, client(1), false));
        assert!(!holders.has_freed());
        (0..2).for_each(|position| holders.release(position));
        assert_eq!((holders.take_freed(), holders.has_freed()), (vec![client(1)], false));
    }
}
