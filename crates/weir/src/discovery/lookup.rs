//! One lookup of a name: `/etc/hosts` first, unless name servers are configured, then DNS for the
//! wanted kinds of addresses at the same time. The lookup of a service (RFC 2782) begins with its
//! records. Called by [`super`], within a local set of tokio. Bounds: [`PATIENCE`],
//! [`ADDRESSES_MAX`].

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use hickory_resolver::proto::rr::rdata::SRV;
use tokio::task::JoinSet;
use weir_proxy::plan::{DiscoveryPlan, Family, Place, UNLOCATED};

use super::ledger::{ADDRESSES_MAX, Answer, Trouble};
use crate::side::dns::{Dns, Kind, relative};
use crate::side::hosts::{HOSTS, Hosts};
use crate::side::order::{Found, Missing};

/// Longest time for all name servers together.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long an address of `/etc/hosts` is valid.
const HOSTS_TTL: Duration = Duration::from_secs(10);
/// The result for text that cannot be a name, and for the target `.` of an unavailable service.
const NO_NAME: Trouble = Trouble::Nothing("such a name cannot exist", None);
/// The result without a reply.
const SILENCE: Trouble = Trouble::Failed("no name server responded in time");

/// Looks names up.
#[derive(Debug)]
pub(super) struct Asker {
    dns: Dns,
    hosts: Option<RefCell<Hosts>>,
    family: Family,
}

impl Asker {
    /// Call it within a tokio runtime.
    ///
    /// # Errors
    /// The objections of hickory-resolver to the name servers.
    pub(super) fn new(plan: &DiscoveryPlan) -> Result<Rc<Asker>, String> {
        let dns =
            Dns::searching(&plan.resolvers, ADDRESSES_MAX).map_err(|error| error.to_string())?;
        let hosts = plan.resolvers.is_empty().then(|| RefCell::new(Hosts::new(HOSTS)));
        Ok(Rc::new(Asker { dns, hosts, family: plan.family }))
    }

    /// Returns the places of a name as it is written: `host:port`, or a service.
    pub(super) async fn look_up(self: Rc<Asker>, written: &str) -> Result<Answer, Trouble> {
        tokio::time::timeout(PATIENCE, self.find(&written.to_ascii_lowercase()))
            .await
            .unwrap_or(Err(SILENCE))
    }

    async fn find(self: &Rc<Asker>, written: &str) -> Result<Answer, Trouble> {
        let Some((host, port)) = written.rsplit_once(':') else {
            return self.service(written).await;
        };
        let port: u16 = port.parse().map_err(|_| NO_NAME)?;
        let (found, is_whole) = self.host(host).await?;
        let places =
            found.list.into_iter().map(|address| SocketAddr::new(address, port).into()).collect();
        Ok(Answer { places, ttl: found.ttl, is_whole })
    }

    /// Looks a service up, with all the addresses of each of its hosts.
    async fn service(self: &Rc<Asker>, written: &str) -> Result<Answer, Trouble> {
        let name = relative(written).ok_or(NO_NAME)?;
        let (services, mut ttl) =
            self.dns.ask_service(&name).await.map_err(|why| trouble(&[why]))?;
        let mut asking = JoinSet::new();
        for (at, service) in services.iter().enumerate() {
            let (asker, host) = (Rc::clone(self), service.target.to_ascii().to_ascii_lowercase());
            asking.spawn_local(async move { (at, asker.host(&host).await) });
        }
        let (mut places, mut is_whole, mut last) = (Vec::new(), true, None);
        for (at, found) in asking.join_all().await {
            match found {
                Ok((found, whole)) => {
                    (ttl, is_whole) = (ttl.min(found.ttl), is_whole && whole);
                    let service = &services[at];
                    let place = |ip| Place {
                        address: SocketAddr::new(ip, service.port),
                        ..rank(service, &services)
                    };
                    places.extend(found.list.into_iter().map(place));
                }
                Err(why) => {
                    is_whole &= matches!(why, Trouble::Nothing(..));
                    // A name server that fails knows nothing of addresses: those of before stay.
                    if !matches!(last, Some(Trouble::Failed(_))) {
                        last = Some(why);
                    }
                }
            }
        }
        match last.filter(|_| places.is_empty()) {
            Some(why) => Err(why),
            None => Ok(Answer { places, ttl, is_whole }),
        }
    }

    /// Returns the addresses of a host, and whether the list is complete.
    async fn host(self: &Rc<Asker>, host: &str) -> Result<(Found, bool), Trouble> {
        match self.in_hosts(host.trim_end_matches('.')) {
            Some(list) => Ok((Found { list, ttl: HOSTS_TTL }, true)),
            None => self.in_dns(host).await,
        }
    }

    fn in_hosts(&self, host: &str) -> Option<Vec<IpAddr>> {
        let mut hosts = self.hosts.as_ref()?.borrow_mut();
        let list = hosts.find(host, Instant::now())?.iter().copied();
        let list: Vec<IpAddr> =
            list.filter(|address| self.kinds().contains(&kind_of(*address))).collect();
        (!list.is_empty()).then_some(list)
    }

    /// Returns the reply of name servers, and whether it is complete.
    async fn in_dns(self: &Rc<Asker>, host: &str) -> Result<(Found, bool), Trouble> {
        let name = relative(host).ok_or(NO_NAME)?;
        let mut asking = JoinSet::new();
        for kind in self.kinds() {
            let (asker, name) = (Rc::clone(self), name.clone());
            asking.spawn_local(async move { asker.dns.ask(&name, *kind).await });
        }
        join(asking.join_all().await)
    }

    fn kinds(&self) -> &'static [Kind] {
        match self.family {
            Family::Any => &[Kind::V4, Kind::V6],
            Family::V4 => &[Kind::V4],
            Family::V6 => &[Kind::V6],
        }
    }
}

fn kind_of(address: IpAddr) -> Kind {
    if address.is_ipv4() { Kind::V4 } else { Kind::V6 }
}

/// Joins the results of each kind.
fn join(all: Vec<Result<Found, Missing>>) -> Result<(Found, bool), Trouble> {
    let mut found = Found { list: Vec::new(), ttl: Duration::MAX };
    let mut missing = Vec::new();
    for one in all {
        match one {
            Ok(one) => {
                found.list.extend(one.list);
                found.ttl = found.ttl.min(one.ttl);
            }
            Err(why) => missing.push(why),
        }
    }
    if found.list.is_empty() {
        return Err(trouble(&missing));
    }
    Ok((found, !missing.iter().any(|why| matches!(why, Missing::Failed | Missing::TimedOut))))
}

/// Returns why no lookup had a result.
fn trouble(missing: &[Missing]) -> Trouble {
    let told = missing.iter().filter_map(|why| match why {
        Missing::Name(ttl) | Missing::Kind(ttl) => *ttl,
        Missing::Failed | Missing::TimedOut => None,
    });
    let ttl = told.min();
    if missing.iter().any(|why| matches!(why, Missing::Name(_))) {
        Trouble::Nothing("there is no such name", ttl)
    } else if missing.contains(&Missing::TimedOut) {
        SILENCE
    } else if missing.contains(&Missing::Failed) {
        Trouble::Failed("the name servers sent no usable response")
    } else {
        Trouble::Nothing("it has no addresses", ttl)
    }
}

/// Returns the rank of a service among all of its name. Those of the lowest priority are used, the
/// others are backups; the weights within a priority are shares of the configured weight. The
/// address is left open.
fn rank(service: &SRV, all: &[SRV]) -> Place {
    let lowest = all.iter().map(|other| other.priority).min().unwrap_or(0);
    let peers = all.iter().filter(|other| other.priority == service.priority);
    let most = peers.map(|other| u32::from(other.weight)).max().unwrap_or(0);
    // If none has a weight, all are equal.
    let share =
        (u32::from(service.weight) * 100).checked_div(most).map_or(100, |share| share.max(1));
    Place { address: UNLOCATED, share, backup: service.priority > lowest }
}

#[cfg(test)]
mod tests {
    //! Proves: a certain result wins over an uncertain one, and found addresses over both. How:
    //! every pair.

    use super::*;
    use hickory_resolver::proto::rr::Name;

    #[test]
    fn what_was_found_is_joined() {
        let found = |last: u8, ttl_s| {
            Ok(Found {
                list: vec![IpAddr::from([10, 0, 0, last])],
                ttl: Duration::from_secs(ttl_s),
            })
        };
        let (both, is_whole) = join(vec![found(1, 9), found(2, 5)]).unwrap();
        assert_eq!((both.list.len(), both.ttl, is_whole), (2, Duration::from_secs(5), true));
        for (other, is_whole) in [
            (Missing::Kind(None), true),
            (Missing::Name(None), true),
            (Missing::Failed, false),
            (Missing::TimedOut, false),
        ] {
            assert_eq!(join(vec![Err(other), found(1, 9)]).unwrap().1, is_whole, "{other:?}");
        }
        use Missing::{Failed, Kind, Name, TimedOut};
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (one, other, told) in [
            (Name(None), Failed, Trouble::Nothing("there is no such name", None)),
            (Name(None), Kind(None), Trouble::Nothing("there is no such name", None)),
            (
                Name(seconds(9)),
                Kind(seconds(7)),
                Trouble::Nothing("there is no such name", seconds(7)),
            ),
            (Kind(None), Kind(None), Trouble::Nothing("it has no addresses", None)),
            (Kind(seconds(3)), Kind(None), Trouble::Nothing("it has no addresses", seconds(3))),
            (Kind(None), TimedOut, SILENCE),
            (Failed, TimedOut, SILENCE),
            (Failed, Kind(None), Trouble::Failed("the name servers sent no usable response")),
        ] {
            assert_eq!(join(vec![Err(one), Err(other)]), Err(told.clone()), "{one:?} {other:?}");
            assert_eq!(join(vec![Err(other), Err(one)]), Err(told), "{other:?} {one:?}");
        }
    }

    #[test]
    fn services_have_ranks() {
        let of = |all: &[(u16, u16)]| -> Vec<(u32, bool)> {
            let service =
                |(priority, weight): &(u16, u16)| SRV::new(*priority, *weight, 80, Name::root());
            let all: Vec<SRV> = all.iter().map(service).collect();
            all.iter().map(|one| rank(one, &all)).map(|place| (place.share, place.backup)).collect()
        };
        assert_eq!(of(&[(1, 0), (1, 0)]), [(100, false), (100, false)]);
        assert_eq!(of(&[(5, 10), (5, 40), (5, 0)]), [(25, false), (100, false), (1, false)]);
        assert_eq!(of(&[(2, 65_535), (1, 1), (2, 1)]), [(100, true), (100, false), (1, true)]);
    }
}
