//! One rule of the policy: as configured, and compiled for lookups. Rules that differ only in their
//! names or addresses are merged, so that a list of 100,000 rules with a name each costs the same
//! as one rule with 100,000 names. Called by [`super::Policy`].

use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::addresses::AddressSet;
use super::names::{NameSet, Pattern};
use super::public::carried;
use super::{Refusal, Wanted, is_usual_port};
use crate::plan::Network;

/// `allow` or `deny`, with criteria. All present criteria must match; an empty list is no
/// criterion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// Whether it allows.
    pub allow: bool,
    /// Names of destinations; None: any, even an address. An empty list matches nothing: it may
    /// come from an empty file.
    pub names: Option<Vec<Pattern>>,
    /// Addresses of destinations. An `allow` rule allows non-public addresses only if it lists them
    /// here.
    pub addresses: Vec<Network>,
    /// Ports of destinations. An `allow` rule allows unusual ports only if it lists them here.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Methods, with case; `CONNECT` for tunnels.
    pub methods: Vec<String>,
    /// Names of users. A request without a verified user matches none.
    pub users: Vec<String>,
    /// Addresses of clients.
    pub clients: Vec<Network>,
    /// From when on it holds, seconds since 1970; None: always.
    pub since_s: Option<i64>,
    /// Until when it holds, exclusive, seconds since 1970; None: for ever.
    pub until_s: Option<i64>,
    /// When it holds on each day.
    pub hours: Vec<Hours>,
}

/// Minutes of each day (UTC), 0-1440. A range whose end is not after its start wraps around
/// midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hours {
    /// The first minute.
    pub from_min: u16,
    /// The first minute behind the range.
    pub to_min: u16,
}

impl Hours {
    fn contains(self, minute: u16) -> bool {
        if self.from_min < self.to_min {
            (self.from_min..self.to_min).contains(&minute)
        } else {
            minute >= self.from_min || minute < self.to_min
        }
    }
}

impl Rule {
    /// Takes the names or the addresses of another rule over, if that makes no difference;
    /// otherwise gives it back.
    fn absorb(&mut self, other: Rule) -> Option<Rule> {
        let same = self.allow == other.allow
            && (&self.methods, &self.users, &self.clients)
                == (&other.methods, &other.users, &other.clients)
            && (self.since_s, self.until_s) == (other.since_s, other.until_s)
            && (&self.ports, &self.hours) == (&other.ports, &other.hours);
        if !same {
            return Some(other);
        }
        match (&mut self.names, &other.names) {
            (Some(mine), Some(names)) if self.addresses == other.addresses => {
                mine.extend_from_slice(names)
            }
            (mine, names)
                if !self.addresses.is_empty() && !other.addresses.is_empty() && mine == names =>
            {
                self.addresses.extend(other.addresses);
            }
            _ => return Some(other),
        }
        None
    }
}

/// Merges consecutive rules where the result is the same.
pub(super) fn merged(rules: Vec<Rule>) -> Vec<Rule> {
    let mut merged: Vec<Rule> = Vec::new();
    for rule in rules {
        let left = match merged.last_mut() {
            Some(last) => last.absorb(rule),
            None => Some(rule),
        };
        merged.extend(left);
    }
    merged
}

/// A compiled rule.
#[derive(Debug, Clone)]
pub(super) struct Compiled {
    allow: bool,
    names: Option<NameSet>,
    addresses: Option<AddressSet>,
    ports: Box<[RangeInclusive<u16>]>,
    methods: Box<[Box<[u8]>]>,
    /// Sorted.
    users: Box<[Box<str>]>,
    clients: Option<AddressSet>,
    since_s: i64,
    until_s: i64,
    hours: Box<[Hours]>,
}

impl Compiled {
    pub(super) fn new(rule: Rule) -> Compiled {
        let set = |networks: &[Network]| (!networks.is_empty()).then(|| AddressSet::new(networks));
        let mut users: Vec<Box<str>> = rule.users.into_iter().map(Into::into).collect();
        users.sort_unstable();
        Compiled {
            allow: rule.allow,
            names: rule.names.as_deref().map(NameSet::new),
            addresses: set(&rule.addresses),
            ports: rule.ports.into(),
            methods: rule.methods.into_iter().map(|method| method.into_bytes().into()).collect(),
            users: users.into(),
            clients: set(&rule.clients),
            since_s: rule.since_s.unwrap_or(i64::MIN),
            until_s: rule.until_s.unwrap_or(i64::MAX),
            hours: rule.hours.into(),
        }
    }

    /// Whether it is for some addresses only.
    pub(super) fn has_addresses(&self) -> bool {
        self.addresses.is_some()
    }

    /// Whether the rule may match as far as the destination's address is concerned. A rule that
    /// denies an IPv4 address also denies it inside an IPv6 address that a translator or tunnel
    /// takes there.
    pub(super) fn matches_address(&self, address: IpAddr) -> bool {
        let Some(addresses) = &self.addresses else { return true };
        let carried = match address {
            IpAddr::V6(address) if !self.allow => carried(address),
            _ => None,
        };
        addresses.contains(address)
            || carried.is_some_and(|inside| addresses.contains(inside.into()))
    }

    /// Whether all criteria match that do not concern the destination's address. The cheap ones
    /// first.
    pub(super) fn matches(&self, wanted: &Wanted<'_>) -> bool {
        (self.since_s..self.until_s).contains(&wanted.wall_s)
            && is_any(&self.ports, |ports| ports.contains(&wanted.port))
            && is_any(&self.methods, |method| **method == *wanted.method)
            && is_any(&self.hours, |hours| hours.contains(minute_of_day(wanted.wall_s)))
            && self.is_for_user(wanted.user)
            && self.clients.as_ref().is_none_or(|clients| clients.contains(wanted.client))
            && self
                .names
                .as_ref()
                .is_none_or(|names| wanted.literal.is_none() && names.contains(wanted.host))
    }

    fn is_for_user(&self, user: Option<&str>) -> bool {
        self.users.is_empty()
            || user.is_some_and(|user| {
                self.users.binary_search_by(|known| (**known).cmp(user)).is_ok()
            })
    }

    /// The decision of the rule when it matches, as far as that does not concern the destination's
    /// address.
    ///
    /// # Errors
    /// The client's fault: the rule denies, or doesn't allow the port.
    pub(super) fn decision(&self, wanted: &Wanted<'_>) -> Result<(), Refusal> {
        if !self.allow {
            return Err(Refusal::Rule);
        }
        // Protocols of low ports may take a request for a command (mail, for example): there it
        // must be a tunnel.
        let is_opened =
            !self.ports.is_empty() && (wanted.is_tunnel() || wanted.port > LISTED_ABOVE);
        if is_opened || is_usual_port(wanted) { Ok(()) } else { Err(Refusal::Port) }
    }
}

/// Plain requests may use ports above this only when a rule lists them, and of lower ports only
/// port 80.
pub const LISTED_ABOVE: u16 = 1024;

fn is_any<T>(list: &[T], matches: impl Fn(&T) -> bool) -> bool {
    list.is_empty() || list.iter().any(matches)
}

fn minute_of_day(wall_s: i64) -> u16 {
    // Always below 1440.
    u16::try_from(wall_s.rem_euclid(86_400) / 60).unwrap_or(0)
}
