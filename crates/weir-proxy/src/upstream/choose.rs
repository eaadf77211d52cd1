//! Chooses where a request is sent: which server, and by which connections (stage schedule).
//!
//! Pure: a [`View`] and a request in, a [`Placement`] out. Each eligible server has a [`Rank`], and
//! the lowest wins. Among equals, the balancing method decides for a new request, and the order
//! behind the previous server for one that is sent again. These and the request that tries a
//! suspended server differ in their [`Purpose`], and in nothing else. The consequences of a choice
//! are left to the caller: whose turn it was ([`super::balancing`]), which connection takes the
//! request ([`super::placing`]). A request in quarantine is sent again when its turn has come.
//! docs/connections.md, docs/retries.md, docs/failover.md, docs/balancing.md.

use super::view::{Prospect, View};
use crate::base::keys::ServerIndex;
use crate::cause::Cause;
use crate::placement::balance::Balance;
use crate::request::pending_request::{NOBODY, PendingRequest, RequestFlags};
use crate::upstream::health::TRIAL_CHOICE_US;
use crate::upstream::server::Reach;

/// Why a request looks for a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It has just arrived.
    New,
    /// It can't be answered, or wait any longer, where it was: it looks for another server, or else
    /// takes the same one.
    Again,
    /// It is to show whether a suspended server works. Only servers from `from` on in the plan come
    /// into question.
    Trial { from: u16 },
}

/// By which connections a server gets a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// A connection of this worker, or its queue.
    Here,
    /// A connection that is made for the client or the request.
    Private,
    /// The connections of this worker.
    Worker(u16),
}

/// How good a place at a server is. The better one is less.
///
/// A backup comes after all other servers of its tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    tier: Tier,
    backup: bool,
    how: How,
}

/// What a server can do for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    /// It has the client's session, or is tried: no other server comes into question.
    Only,
    /// It takes the request now.
    Now,
    /// It had the request before, can't be reached from here, and takes it now at another worker.
    SameElsewhere,
    /// It is expected to take the request soon: it has not failed; or it may come up, and the
    /// request may not wait where it was.
    Soon,
    /// It had the request before, and can be reached.
    Same,
    /// It is suspended, but would take the request, and the configuration allows that.
    LastResort,
    /// It has failed, and may come up.
    Later,
    /// It is suspended, and may come up.
    LastResortLater,
    /// It may come up at the worker that owns its connections.
    Owner,
    /// It had the request before, and may come up.
    SameLater,
}

/// How well it can take the request, unless a key decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum How {
    /// Some connection has nothing unanswered, for a request that must be sent alone.
    Idle,
    /// As well as any.
    Free,
    /// All its connections are held by others for now.
    Held,
    /// By another worker, for a request that is at this worker because of its connections.
    Elsewhere,
    /// Its connection is about to be up, sooner than a backup is needed.
    Coming,
}

/// A server for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) rank: Rank,
    /// Its index in the upstream.
    pub(super) server: u16,
    pub(super) way: Way,
}

/// What is the same for all servers in one choice.
struct Terms<'a> {
    ask: &'a PendingRequest,
    method: Option<&'a Balance>,
    /// The request is sent again.
    again: bool,
    /// A key decides among all of a tier.
    by_key: bool,
    /// It may not wait at the server where it was.
    leaves: bool,
}

impl View<'_> {
    /// Returns the best place for a request. `method` ranks equals, for an upstream of several
    /// servers. `order` is scratch space for the eligible servers: if the request is new, it
    /// afterwards has those that were as good as the chosen one, in the order of the plan.
    ///
    /// # Errors
    ///
    /// The reason why no server may have it.
    #[inline]
    pub(super) fn choose(
        &self,
        ask: &PendingRequest,
        purpose: Purpose,
        method: Option<&Balance>,
        order: &mut Vec<usize>,
    ) -> Result<Placement, Cause> {
        if purpose == Purpose::New && method.is_none() && self.is_open(ask) {
            return Ok(Placement { rank: Rank::only(), server: 0, way: Way::Here });
        }
        let found = match purpose {
            Purpose::New => self.place_new(ask, method, order),
            Purpose::Again if self.stays_bound(ask) => {
                self.place_same(ask, true).map(|place| Placement { rank: Rank::only(), ..place })
            }
            Purpose::Again => self.place_again(ask, method, order),
            Purpose::Trial { from } => self.place_trial(ask, from),
        };
        found.ok_or_else(|| self.refusal(ask))
    }

    // ---- a request that has just arrived ----

    /// Whether the only server of an upstream takes the request on a connection of this worker, as
    /// it nearly always does: then nothing has to be compared.
    #[inline]
    fn is_open(&self, ask: &PendingRequest) -> bool {
        let machine = &self.servers[self.groups[usize::from(ask.upstream)].servers.first()];
        ask.bound == NOBODY
            && machine.ready > 0
            && !machine.mode.private
            && !machine.is_full()
            && machine.standing.takes_new()
    }

    fn place_new(
        &self,
        ask: &PendingRequest,
        method: Option<&Balance>,
        equals: &mut Vec<usize>,
    ) -> Option<Placement> {
        let servers = &self.groups[usize::from(ask.upstream)].servers;
        if ask.bound != NOBODY {
            let is_usable = self.is_bound_usable(ask);
            if is_usable || ask.traits.has(RequestFlags::BOUND) {
                let way = if is_usable {
                    self.way(servers.at(usize::from(ask.bound)), ask)
                } else {
                    None
                };
                return Some(Placement { rank: Rank::only(), server: ask.bound, way: way? });
            }
        }
        let terms =
            Terms { ask, method, again: false, by_key: is_by_key(ask, method), leaves: false };
        let Some(balance) = method else {
            let (rank, _) = self.rank(0, servers.first(), &terms)?;
            return Some(Placement { rank, server: 0, way: self.way(servers.first(), ask)? });
        };
        equals.clear();
        let mut best = None;
        for (at, server) in servers.iter().enumerate() {
            let Some((rank, _)) = self.rank(at, server, &terms) else { continue };
            if best.is_none_or(|best| rank < best) {
                equals.clear();
                best = Some(rank);
            }
            if best == Some(rank) {
                equals.push(at);
            }
        }
        let (rank, chosen) = (best?, balance.choose(key_of(ask), equals)?);
        Some(Placement { rank, server: chosen as u16, way: self.way(servers.at(chosen), ask)? })
    }

    /// Returns by which connections a server gets a request that has just arrived, or came by mail.
    /// None: by none.
    #[inline]
    pub(super) fn way(&self, server: ServerIndex, ask: &PendingRequest) -> Option<Way> {
        let machine = &self.servers[server];
        if machine.mode.private {
            return Some(Way::Private);
        }
        let mailed = ask.traits.has(RequestFlags::MAILED);
        if machine.ready == 0
            && machine.limits.shared > 0
            && !mailed
            && let Some(worker) = self.lender(server)
        {
            return Some(Way::Worker(worker));
        }
        if !machine.is_full() {
            return Some(Way::Here);
        }
        let other = if mailed {
            None
        } else {
            self.able_elsewhere(server).or_else(|| self.owner_elsewhere(server))
        };
        other.map(Way::Worker)
    }

    /// Returns the worker whose connections are used until this worker has one again.
    fn lender(&self, server: ServerIndex) -> Option<u16> {
        let machine = &self.servers[server];
        let hopeful = self.is_hopeful(server);
        // A connection that ends with each response is made where it is needed.
        if machine.is_one_shot() && (hopeful || machine.contact.reach == Reach::Unknown) {
            return None;
        }
        if hopeful { self.ready_elsewhere(server) } else { self.able_elsewhere(server) }
    }

    // ---- a request that is sent again ----

    /// To another server, in the order behind the previous one; or to the same one.
    fn place_again(
        &self,
        ask: &PendingRequest,
        method: Option<&Balance>,
        order: &mut Vec<usize>,
    ) -> Option<Placement> {
        let (servers, old) =
            (&self.groups[usize::from(ask.upstream)].servers, usize::from(ask.server));
        let leaves = !self.servers[servers.at(old)].standing.keeps_waiting();
        let terms = Terms { ask, method, again: true, by_key: is_by_key(ask, method), leaves };
        order.clear();
        match (method, key_of(ask)) {
            // With a key, the data it needs is at the next server in that key's order; and still at
            // its own server, if nothing speaks against that.
            (Some(balance), Some(key)) if terms.by_key => {
                let failed = ask.tries > 0 || ask.traits.has(RequestFlags::MOVED);
                balance.order_behind(
                    key,
                    failed.then_some(old),
                    |at| self.is_up(servers.at(at)),
                    order,
                );
            }
            _ => order.extend((1..servers.len()).map(|step| (old + step) % servers.len())),
        }
        let others = order.iter().filter_map(|at| {
            let (rank, prospect) = self.rank(*at, servers.at(*at), &terms)?;
            Some(Placement { rank, server: *at as u16, way: prospect.way()? })
        });
        // The first of equals.
        others.chain(self.place_same(ask, false)).min_by_key(|place| place.rank)
    }

    /// Returns the place at the server where a request was: on this worker's connections, or on
    /// another's, if the server can't be reached from here. `bound`: its session is there.
    fn place_same(&self, ask: &PendingRequest, bound: bool) -> Option<Placement> {
        let server = self.server_index(ask);
        let machine = &self.servers[server];
        let stays = machine.standing.keeps_waiting();
        if bound && !stays {
            return None;
        }
        let owned = machine.limits.shared > 0;
        let crosses = stays && self.may_cross(ask) && (!owned || machine.contact.unreachable);
        let (able, owner) = match crosses {
            true => (self.able_elsewhere(server), self.owner_elsewhere(server)),
            false => (None, None),
        };
        let comes = owned && self.may_come_up_for(server, ask.received_us);
        let (tier, way) = match (able, owner) {
            (Some(worker), _) => (Tier::SameElsewhere, Way::Worker(worker)),
            _ if machine.ready > 0 || comes && self.is_hopeful(server) => (Tier::Same, Way::Here),
            (None, Some(worker)) => (Tier::Owner, Way::Worker(worker)),
            (None, None) if comes => (Tier::SameLater, Way::Here),
            (None, None) => return None,
        };
        Some(Placement {
            rank: Rank { tier, backup: false, how: How::Free },
            server: ask.server,
            way,
        })
    }

    /// Whether a request that is sent again remains with the server to which it is bound. One that
    /// lost two connections there is better sent elsewhere, if it may be.
    fn stays_bound(&self, ask: &PendingRequest) -> bool {
        let tied = ask.traits.has(RequestFlags::BOUND)
            || ask.tries < 2 && ask.bound != NOBODY && self.is_bound_usable(ask);
        tied && ask.bound == ask.server
    }

    /// Whether a request may move to another worker: not when the rest of its body arrives here,
    /// where it would be too late.
    fn may_cross(&self, ask: &PendingRequest) -> bool {
        !ask.traits.has(RequestFlags::STREAMING) || ask.id.worker == self.cx.worker
    }

    // ---- a request that tries a suspended server ----

    /// Returns the first server from `from` on that is due for a trial which may be this request.
    fn place_trial(&self, ask: &PendingRequest, from: u16) -> Option<Placement> {
        let servers = &self.groups[usize::from(ask.upstream)].servers;
        (usize::from(from)..servers.len()).find_map(|at| {
            let server = servers.at(at);
            let machine = &self.servers[server];
            let bound_elsewhere = ask.bound != NOBODY && ask.bound != machine.index;
            let overdue_us = self.cx.now_us.checked_sub(self.hints.trial_us(server))?;
            if bound_elsewhere
                || !machine.standing.may_be_tried()
                || !may_be_trial(ask.traits, overdue_us)
            {
                return None;
            }
            let other = if machine.ready == 0 { self.ready_elsewhere(server) } else { None };
            let way = if machine.mode.private {
                Way::Private
            } else {
                other.map_or(Way::Here, Way::Worker)
            };
            Some(Placement { rank: Rank::only(), server: at as u16, way })
        })
    }

    // ---- what a server can do ----

    /// Returns how good a server is for a request that is not there yet, and how soon. None: the
    /// server may not have it.
    #[inline]
    fn rank(&self, at: usize, server: ServerIndex, terms: &Terms<'_>) -> Option<(Rank, Prospect)> {
        let machine = &self.servers[server];
        let takes = machine.standing.takes_new();
        if !takes && !self.is_last_resort(server) {
            return None;
        }
        let prospect = self.prospect(server, self.may_cross(terms.ask), terms.ask.received_us);
        let backup = terms.method.is_some_and(|method| method.is_backup(at));
        let tier = match prospect {
            Prospect::Never => return None,
            Prospect::Here | Prospect::Elsewhere(_) if takes => Tier::Now,
            Prospect::Here | Prospect::Elsewhere(_) => Tier::LastResort,
            _ if terms.again && takes && terms.leaves => Tier::Soon,
            Prospect::Later if terms.again && takes => Tier::Later,
            _ if terms.again => return None,
            _ if !takes => Tier::LastResortLater,
            Prospect::Owner(_) => Tier::Owner,
            Prospect::Later if !backup && self.precedes_backups(server, terms) => {
                return Some((Rank { tier: Tier::Now, backup, how: How::Coming }, prospect));
            }
            Prospect::Later if machine.contact.failures == 0 => Tier::Soon,
            Prospect::Later => Tier::Later,
        };
        let how = match prospect {
            _ if terms.by_key => How::Free,
            Prospect::Elsewhere(_) | Prospect::Owner(_) if terms.again => How::Elsewhere,
            _ if tier != Tier::Now => How::Free,
            _ if !terms.again && terms.ask.traits.goes_alone() && machine.positions.has_empty() => {
                How::Idle
            }
            _ if machine.is_held() || machine.is_busy() => How::Held,
            _ => How::Free,
        };
        Some((Rank { tier, backup, how }, prospect))
    }

    /// Whether a server is about to be up, and makes a backup unnecessary.
    fn precedes_backups(&self, server: ServerIndex, terms: &Terms<'_>) -> bool {
        terms.method.is_some_and(Balance::has_backups) && self.is_coming(server)
    }
}

impl Placement {
    /// Whether no other server came into question.
    pub(super) fn is_only(&self) -> bool {
        self.rank.tier == Tier::Only
    }
}

impl Rank {
    fn only() -> Rank {
        Rank { tier: Tier::Only, backup: false, how: How::Free }
    }
}

/// Returns the hash key of a request, if it has one.
pub(super) fn key_of(ask: &PendingRequest) -> Option<u64> {
    (ask.key != 0).then_some(ask.key)
}

/// Whether the key of a request decides where it is sent.
fn is_by_key(ask: &PendingRequest, method: Option<&Balance>) -> bool {
    ask.key != 0 && method.is_some_and(|method| !method.may_roam())
}

/// Whether a request is fit for a trial that has been due for this long.
fn may_be_trial(traits: RequestFlags, overdue_us: u64) -> bool {
    let safe = traits.has(RequestFlags::PIPELINABLE) && traits.has(RequestFlags::RETRIABLE);
    let whole = !traits.has(RequestFlags::STREAMING) && !traits.has(RequestFlags::UPGRADE);
    safe || whole && overdue_us >= TRIAL_CHOICE_US
}

#[cfg(test)]
mod tests;
