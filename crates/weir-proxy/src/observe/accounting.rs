//! Use of weir by clients that choose their own destination, by destination and by user: clients of
//! the forward proxy, and those that are passed on to their original destination. Called by the
//! engine where it happens; read by reports (docs/forward.md, docs/transparent.md).
//!
//! A worker keeps a [`Table`] of each. A request finds its row once, and later events find it by
//! its [`Place`]; only a name that is not in the table costs memory. Bound: [`ROWS_MAX`] rows. In a
//! full table, a new name replaces the least active of the next [`CANDIDATES`] in turn, so that a
//! flood of names evicts itself. The use of all evicted rows is kept as one sum.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Rows of a table.
pub const ROWS_MAX: usize = 1000;
/// Rows that are examined for a new name when the table is full.
const CANDIDATES: usize = 8;

/// The use since its row was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Use {
    /// Requests that were forwarded.
    pub requests: u64,
    /// CONNECT, and connections of `tcp`.
    pub tunnels: u64,
    /// Bytes that came from destinations.
    pub bytes_in: u64,
    /// Bytes that were sent to destinations.
    pub bytes_out: u64,
    /// Requests that weir itself answered with an error, and connections of `tcp` that reached no
    /// server, by reason.
    pub refusals: Vec<(&'static str, u64)>,
}

impl Use {
    /// Adds the use of another row.
    pub fn add(&mut self, other: &Use) {
        self.requests += other.requests;
        self.tunnels += other.tunnels;
        self.bytes_in += other.bytes_in;
        self.bytes_out += other.bytes_out;
        other.refusals.iter().for_each(|(word, count)| self.refuse(word, *count));
    }

    fn refuse(&mut self, word: &'static str, count: u64) {
        match self.refusals.iter_mut().find(|(known, _)| *known == word) {
            Some((_, sum)) => *sum += count,
            None => self.refusals.push((word, count)),
        }
    }
}

/// Names a row, as long as it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    slot: u32,
    /// The occupant of the slot.
    generation: u32,
}

impl Place {
    /// No row: nothing is counted.
    pub const NOWHERE: Place = Place { slot: u32::MAX, generation: 0 };
}

impl Default for Place {
    fn default() -> Place {
        Place::NOWHERE
    }
}

#[derive(Debug)]
struct Row {
    name: Arc<str>,
    /// The address that the name denotes, if it was used as an address.
    address: Option<SocketAddr>,
    generation: u32,
    /// The recent activity.
    warmth: u32,
    used: Use,
}

/// Names and their use.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
    slots: BTreeMap<Arc<str>, u32>,
    /// The slots of rows with an address.
    addresses: BTreeMap<SocketAddr, u32>,
    /// The next candidate.
    hand: usize,
    others: Use,
}

impl Table {
    /// Returns the row of a name, made if need be. `near` is its probable place.
    pub fn find(&mut self, near: Place, name: &str) -> Place {
        let is_near = self.rows.get(near.slot as usize).is_some_and(|row| *row.name == *name);
        let known = if is_near { Some(near.slot) } else { self.slots.get(name).copied() };
        let slot = known.unwrap_or_else(|| self.insert(name));
        self.visit(slot)
    }

    /// Returns the row of an address, which is that of its name. The name is formatted only for an
    /// address that was not used before.
    pub fn find_address(&mut self, near: Place, address: SocketAddr) -> Place {
        // Without the other fields of an IPv6 socket address: one name is one address.
        let address = SocketAddr::new(address.ip(), address.port());
        let is_near =
            self.rows.get(near.slot as usize).is_some_and(|row| row.address == Some(address));
        let known = if is_near { Some(near.slot) } else { self.addresses.get(&address).copied() };
        if let Some(slot) = known {
            return self.visit(slot);
        }
        let place = self.find(Place::NOWHERE, &address.to_string());
        self.rows[place.slot as usize].address = Some(address);
        self.addresses.insert(address, place.slot);
        place
    }

    /// Notes an access to a row.
    fn visit(&mut self, slot: u32) -> Place {
        let row = &mut self.rows[slot as usize];
        row.warmth = row.warmth.saturating_add(1);
        Place { slot, generation: row.generation }
    }

    /// Returns the use to add to for a row: the sum of all others if the row is gone.
    fn at(&mut self, place: Place) -> Option<&mut Use> {
        match self.rows.get_mut(place.slot as usize) {
            Some(row) if row.generation == place.generation => {
                row.warmth = row.warmth.saturating_add(1);
                Some(&mut row.used)
            }
            Some(_) => Some(&mut self.others),
            None => None,
        }
    }

    fn insert(&mut self, name: &str) -> u32 {
        let mut row = Row {
            name: name.into(),
            address: None,
            generation: 0,
            warmth: 0,
            used: Use::default(),
        };
        let slot = if self.rows.len() < ROWS_MAX { self.rows.len() } else { self.coldest() };
        self.slots.insert(Arc::clone(&row.name), slot as u32);
        match self.rows.get_mut(slot) {
            None => self.rows.push(row),
            Some(old) => {
                row.generation = old.generation.wrapping_add(1);
                let old = std::mem::replace(old, row);
                self.slots.remove(&old.name);
                old.address.map(|address| self.addresses.remove(&address));
                self.others.add(&old.used);
            }
        }
        slot as u32
    }

    /// Returns the least active of the next rows. Each row cools down once while as many new names
    /// arrive as the table has rows.
    fn coldest(&mut self) -> usize {
        let first = self.hand;
        self.hand = (first + 1) % self.rows.len();
        self.rows[first].warmth /= 2;
        let candidates = (first..first + CANDIDATES).map(|at| at % self.rows.len());
        candidates.min_by_key(|at| self.rows[*at].warmth).unwrap_or(first)
    }

    /// Returns all rows, and the sum of the use that is not in them.
    pub fn told(&self) -> (impl Iterator<Item = (Place, &Arc<str>, &Use)>, &Use) {
        let place =
            |slot: usize, row: &Row| Place { slot: slot as u32, generation: row.generation };
        let rows = self.rows.iter().enumerate();
        (rows.map(move |(slot, row)| (place(slot, row), &row.name, &row.used)), &self.others)
    }
}

/// The rows that a request and its connection are charged to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Account {
    /// Row of the destination.
    pub destination: Place,
    /// Row of the user.
    pub user: Place,
}

/// The use of one worker by clients.
#[derive(Debug, Default)]
pub struct Usage {
    /// By host and port.
    pub destinations: Table,
    /// By name.
    pub users: Table,
}

impl Usage {
    fn each(&mut self, account: Account, mut count: impl FnMut(&mut Use)) {
        self.destinations.at(account.destination).map(&mut count);
        self.users.at(account.user).map(&mut count);
    }

    /// A request is forwarded to its destination, or a connection is passed on unchanged.
    pub fn requested(&mut self, account: Account, is_tunnel: bool) {
        self.each(account, |used| if is_tunnel { used.tunnels += 1 } else { used.requests += 1 });
    }

    /// weir itself answered a request, or a connection reached no server.
    pub fn refused(&mut self, account: Account, word: &'static str) {
        self.each(account, |used| used.refuse(word, 1));
    }

    /// Bytes were sent to the destination and received from it.
    pub fn moved(&mut self, account: Account, bytes_out: u64, bytes_in: u64) {
        if account == Account::default() {
            // Also all traffic to servers of the configuration.
            return;
        }
        self.each(account, |used| {
            used.bytes_out += bytes_out;
            used.bytes_in += bytes_in;
        });
    }
}

#[cfg(test)]
mod tests {
    //! Proves: rows are found again, the table is bounded, a flood evicts itself and not busy
    //! names, and no count is lost. How: names by number.

    use super::*;

    fn sum(table: &Table) -> Use {
        let (rows, others) = table.told();
        let mut all = others.clone();
        rows.for_each(|(.., used)| all.add(used));
        all
    }

    #[test]
    fn a_row_is_found_again() {
        let mut usage = Usage::default();
        let a = usage.destinations.find(Place::NOWHERE, "a:80");
        let b = usage.destinations.find(a, "b:80");
        assert_eq!(usage.destinations.find(b, "a:80"), a);
        assert_eq!(usage.destinations.find(a, "a:80"), a);
        let ann = usage.users.find(Place::NOWHERE, "ann");
        let account = Account { destination: b, user: ann };
        usage.requested(account, false);
        usage.requested(account, true);
        usage.refused(account, "denied-by-rule");
        usage.moved(account, 3, 4);
        usage.moved(Account { user: Place::NOWHERE, ..account }, 1, 1);
        usage.refused(Account::default(), "credentials-missing");
        let of = |table: &Table, name: &str| {
            table.told().0.find(|(_, known, _)| ***known == *name).unwrap().2.clone()
        };
        let refusals = vec![("denied-by-rule", 1)];
        let expected = Use { requests: 1, tunnels: 1, bytes_out: 3, bytes_in: 4, refusals };
        assert_eq!(of(&usage.users, "ann"), expected);
        assert_eq!(of(&usage.destinations, "b:80"), Use { bytes_out: 4, bytes_in: 5, ..expected });
        assert_eq!(of(&usage.destinations, "a:80"), Use::default());
    }

    #[test]
    fn an_address_and_its_name_have_one_row() {
        let mut table = Table::default();
        let v4 = SocketAddr::from(([192, 0, 2, 1], 443));
        let v6 = SocketAddr::V6(std::net::SocketAddrV6::new(
            [0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into(),
            80,
            7,
            0,
        ));
        let named = table.find(Place::NOWHERE, "192.0.2.1:443");
        let of_v6 = table.find_address(named, v6);
        for near in [Place::NOWHERE, named, of_v6] {
            assert_eq!(table.find_address(near, v4), named);
            assert_eq!(table.find_address(near, v6), of_v6);
            assert_eq!(table.find(near, "[2001:db8::1]:80"), of_v6);
        }
        // The name in its place has its own address, and so has the old one when it returns.
        let many = |table: &mut Table, port: u16| {
            let others =
                (0..9 * ROWS_MAX as u32).map(|n| SocketAddr::from((n.to_be_bytes(), port)));
            others.for_each(|other| assert_ne!(table.find_address(Place::NOWHERE, other), named));
        };
        many(&mut table, 1);
        let again = table.find_address(named, v4);
        assert_ne!(again, named);
        many(&mut table, 2);
        assert_eq!(
            (table.rows.len(), table.slots.len(), table.addresses.len()),
            (ROWS_MAX, ROWS_MAX, ROWS_MAX)
        );
        let is_own =
            |row: &Row| row.address.is_some_and(|address| *address.to_string() == *row.name);
        assert!(table.rows.iter().all(is_own));
    }

    #[test]
    fn a_flood_drives_out_itself() {
        let mut usage = Usage::default();
        let busy: Vec<String> = (0..20).map(|n| format!("busy{n}:443")).collect();
        let requests = 50_000;
        for n in 0..requests as usize {
            // Each of the busy ones has one request of 400; all others occur once.
            let name = if n % 20 == 0 { busy[n / 20 % 20].clone() } else { format!("{n}:80") };
            let destination = usage.destinations.find(Place::NOWHERE, &name);
            let account = Account { destination, user: Place::NOWHERE };
            usage.requested(account, false);
            usage.moved(account, 10, 20);
        }
        assert_eq!(usage.destinations.rows.len(), ROWS_MAX);
        assert_eq!(usage.destinations.slots.len(), ROWS_MAX);
        let kept = |name: &&String| {
            usage
                .destinations
                .told()
                .0
                .any(|(_, known, used)| **known == ***name && used.requests == 125)
        };
        assert_eq!(busy.iter().filter(kept).count(), 20);
        let all = sum(&usage.destinations);
        assert_eq!(
            (all.requests, all.bytes_out, all.bytes_in),
            (requests, 10 * requests, 20 * requests)
        );
    }

    #[test]
    fn what_comes_too_late_is_counted_for_the_others() {
        let mut usage = Usage::default();
        let first = usage.destinations.find(Place::NOWHERE, "first:80");
        for n in 0..9 * ROWS_MAX {
            usage.destinations.find(Place::NOWHERE, &n.to_string());
        }
        usage.moved(Account { destination: first, user: Place::NOWHERE }, 1, 2);
        assert!(usage.destinations.told().0.all(|(.., used)| *used == Use::default()));
        assert_eq!(sum(&usage.destinations), Use { bytes_out: 1, bytes_in: 2, ..Use::default() });
    }
}
