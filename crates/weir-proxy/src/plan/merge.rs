//! The successor of a plan in use: another configuration, with everything that is in both in the
//! same place.
//!
//! An upstream is identified by its name; a server by its name, its address and its numbers of
//! connections. If it is in both configurations, it keeps index and slot, and with them everything
//! that is known, counted and in progress. A new one is appended. A missing one remains as a
//! tombstone (`retired`), which gets nothing new. It takes its place again when it returns, unless
//! nothing is left there and another server of its upstream has been given the place. Some options
//! of an upstream are part of what its connections and its requests are: with a change of those, a
//! new upstream takes the name over ([`UpstreamPlan::fits`]). Pure. Bound: the caller's number of
//! slots, for everything that ever existed. docs/reload.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::tcp::follow_tcp;
use super::{AllDown, ListenerPlan, Plan, ServerPlan, UpstreamPlan};

/// Servers that may be added while weir runs, over all upstreams.
pub const SERVERS_SPARE: usize = 1024;

/// The servers need more slots than there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// Number of slots.
    pub slots: usize,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this weir has used all {} server slots since its start", self.slots)
    }
}

/// Returns for each listener of another plan the one of the old plan whose socket and clients it
/// keeps. It is identified by its address; those on port 0, of which there may be several, in
/// order. With another interface it is another listener: sockets share a port with those of their
/// interface.
pub fn kept(old: &[ListenerPlan], new: &[ListenerPlan]) -> Vec<Option<usize>> {
    let key = |one: &ListenerPlan| (one.address.clone(), one.device().map(str::to_owned));
    let mut known: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    // The first of each is last, where it is taken from.
    old.iter().enumerate().rev().for_each(|(at, one)| known.entry(key(one)).or_default().push(at));
    new.iter().map(|one| known.get_mut(&key(one))?.pop()).collect()
}

impl Plan {
    /// Returns the plan of `wanted`, which was just compiled, with everything in its place.
    /// Listeners and the access log are those of `wanted`: the caller decides whether a running
    /// worker can use them ([`kept`]). `vacant` are slots of removed servers at which no worker has
    /// anything left: others of the same upstream may have them.
    ///
    /// # Errors
    /// [`Full`]: more than `slots_max` servers, removed ones included.
    pub fn merged(
        &self,
        mut wanted: Plan,
        slots_max: usize,
        vacant: &BTreeSet<usize>,
    ) -> Result<Plan, Full> {
        let full = Full { slots: slots_max };
        let plans = std::mem::take(&mut wanted.upstreams);
        let mut next = Plan {
            upstreams: self.upstreams.iter().map(UpstreamPlan::retired).collect(),
            slots: self.places(),
            ..wanted
        };
        let mut namesakes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        self.upstreams
            .iter()
            .enumerate()
            .for_each(|(at, old)| namesakes.entry(&old.name).or_default().push(at));
        let vacant: BTreeSet<(u16, u16)> =
            vacant.iter().filter_map(|slot| next.slots.get(*slot).copied()).collect();
        let mut targets = Vec::new();
        for plan in plans {
            let named = namesakes.get(plan.name.as_str()).map_or(&[][..], Vec::as_slice);
            let is_living = |at: &usize| !self.upstreams[*at].is_retired();
            let fits = |at: &usize| self.upstreams[*at].fits(&plan);
            let living = named.iter().copied().find(|at| is_living(at) && fits(at));
            let at =
                living.or_else(|| named.iter().copied().find(fits)).unwrap_or(next.upstreams.len());
            let old = self.upstreams.get(at).map_or(&[][..], |old| &old.servers);
            let namesake = named.iter().copied().find(is_living).map(|at| &self.upstreams[at]);
            let free =
                |index: &usize| old[*index].retired && vacant.contains(&(at as u16, *index as u16));
            let plan = plan.following(old, namesake, (0..old.len()).filter(free).collect());
            let added = old.len()..plan.servers.len();
            if added.end > usize::from(u16::MAX) || at >= usize::from(u16::MAX) {
                return Err(full);
            }
            next.slots.extend(added.map(|index| (at as u16, index as u16)));
            targets.push(at);
            if at < next.upstreams.len() {
                next.upstreams[at] = plan;
            } else {
                next.upstreams.push(plan);
            }
        }
        if next.slots.len() > slots_max {
            return Err(full);
        }
        for at in &targets {
            if let AllDown::Fallback(upstream) = &mut next.upstreams[*at].all_down {
                *upstream = targets[*upstream];
            }
        }
        next.routes.retarget(&targets);
        if let Some(forward) = &mut next.forward {
            forward.upstream = targets[forward.upstream];
        }
        follow_tcp(&mut next, self, &targets);
        if let (Some(shield), Some(old)) = (&mut next.shield, &self.shield) {
            shield.follow(old);
        }
        if let (Some(cache), Some(old)) = (&mut next.cache, &self.cache) {
            cache.store.clone_from(&old.store);
        }
        // No other party has seen a name that is chosen at random.
        next.client.head.pseudonym = next.client.via_name.unwrap_or(self.client.head.pseudonym);
        Ok(next)
    }

    /// Returns this plan with the upstreams and servers of its successor added, to which nothing
    /// leads yet, and without removing any. Each worker needs it before the first worker has the
    /// successor itself, because they name servers to each other by slot. A server that has been
    /// given the slot of another is not in it yet: this step forgets what is known of the old
    /// server.
    pub fn widened(&self, next: &Plan) -> Plan {
        let mut wide =
            Plan { upstreams: next.upstreams.clone(), slots: next.slots.clone(), ..self.clone() };
        for (old, plan) in self.upstreams.iter().zip(&mut wide.upstreams) {
            let was_retired = old.is_retired();
            plan.servers.iter_mut().for_each(|server| server.orphaned &= was_retired);
            plan.sticky.clone_from(&old.sticky);
            for (old, server) in old.servers.iter().zip(&mut plan.servers) {
                server.retired = old.retired && (server.retired || !server.is_same(old));
            }
        }
        wide
    }

    /// Whether a slot has another server in a successor than here: it was vacant.
    pub fn is_given_away(&self, slot: usize, next: &Plan) -> bool {
        let servers = self.server(slot).zip(next.server(slot));
        servers.is_some_and(|((_, old), (_, new))| !old.is_same(new))
    }

    /// Returns the plan with another weight of a server, or with the configured weight again.
    pub fn weighted(&self, slot: usize, weight: Option<u32>) -> Plan {
        let mut next = Plan { slots: self.places(), ..self.clone() };
        if let Some((upstream, index)) = next.slots.get(slot) {
            next.upstreams[usize::from(*upstream)].servers[usize::from(*index)].weight_ordered =
                weight;
        }
        next
    }
}

impl UpstreamPlan {
    /// Returns it as no longer configured.
    fn retired(&self) -> UpstreamPlan {
        let mut plan = self.clone();
        plan.servers.iter_mut().for_each(|server| server.orphaned = true);
        plan
    }

    /// Whether an upstream with other options can take the place of this one while requests are in
    /// progress: everything is equal that is part of a connection, a queue or a judgement.
    pub fn fits(&self, other: &UpstreamPlan) -> bool {
        #[cfg(test)]
        tests::count();
        self.pool == other.pool
            && self.tls == other.tls
            && self.dial == other.dial
            && self.pipeline == other.pipeline
            && self.share == other.share
            && self.echo == other.echo
            && self.sharing == other.sharing
            && self.queue_size == other.queue_size
            && self.failover == other.failover
            && self.health == other.health
            && self.balance.statistic() == other.balance.statistic()
            && self.is_destination() == other.is_destination()
    }

    /// Returns this upstream with its servers in the places of the same servers in `old`, and the
    /// first of the others in the places that are `free`. `namesake` had the name until now.
    fn following(
        mut self,
        old: &[ServerPlan],
        namesake: Option<&UpstreamPlan>,
        mut free: Vec<usize>,
    ) -> UpstreamPlan {
        let mut servers: Vec<ServerPlan> = old
            .iter()
            .map(|old| ServerPlan { retired: true, orphaned: false, ..old.clone() })
            .collect();
        let mut order: Vec<Option<usize>> = vec![None; old.len()];
        let named = by_name(old);
        let of = |name: &str| named.get(name).map_or(&[][..], Vec::as_slice);
        let taken: BTreeSet<usize> = self
            .servers
            .iter()
            .flat_map(|server| {
                of(&server.name).iter().copied().filter(|at| old[*at].is_same(server))
            })
            .collect();
        free.retain(|at| !taken.contains(at));
        let mut free = free.into_iter();
        let present = namesake.map(|plan| by_name(&plan.servers));
        for (index, mut server) in self.servers.into_iter().enumerate() {
            let before = namesake.zip(present.as_ref()).and_then(|(plan, present)| {
                let places = present.get(server.name.as_str())?;
                places.iter().map(|at| &plan.servers[*at]).find(|one| !one.retired)
            });
            let before = before.filter(|one| one.weight == server.weight);
            server.weight_ordered = before.and_then(|one| one.weight_ordered);
            // A server that takes a name over gets a place behind it, as a new one does.
            let namesakes = of(&server.name);
            let known = namesakes.iter().copied().find(|at| old[*at].is_same(&server));
            let Some(at) = known.or_else(|| namesakes.is_empty().then(|| free.next()).flatten())
            else {
                servers.push(server);
                order.push(Some(index));
                continue;
            };
            servers[at] = server;
            order[at] = Some(index);
        }
        self.sticky = self.sticky.map(|sticky| sticky.ordered(&order));
        UpstreamPlan { servers, ..self }
    }
}

/// Returns the places of servers by their names, ascending.
fn by_name(servers: &[ServerPlan]) -> BTreeMap<&str, Vec<usize>> {
    let mut places: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    servers
        .iter()
        .enumerate()
        .for_each(|(at, server)| places.entry(&server.name).or_default().push(at));
    places
}

impl ServerPlan {
    /// Whether it is the same server, which may keep its connections.
    pub(crate) fn is_same(&self, other: &ServerPlan) -> bool {
        #[cfg(test)]
        tests::count();
        let numbers = |one: &ServerPlan| {
            (one.connections_min, one.connections, one.connections_max, one.concurrency)
        };
        self.name == other.name && self.address == other.address && numbers(self) == numbers(other)
    }
}

#[cfg(test)]
mod tests;
