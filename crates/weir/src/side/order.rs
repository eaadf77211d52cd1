//! From lookup results to the reply for a worker: joins both kinds of addresses in one list, in the
//! order in which to try them. RFC 8305 §4 (alternating between the kinds), RFC 2308 (how long a
//! negative result is valid). Pure, except for [`Route::has_ipv6`]. Called by `names`.
//!
//! Bounds: [`LIST_MAX`] addresses of a name, both kinds together; times between [`TTL_MIN`] and
//! [`TTL_MAX`] or [`NO_TTL_MAX`].

use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_proxy::forward::lookup::{Addresses, Unresolved};

/// The result for a name, and how long it is valid.
pub(crate) type Answer = Result<Addresses, Unresolved>;

/// Largest number of addresses of one name; clients never try more.
pub(crate) const LIST_MAX: usize = 16;
/// Shortest validity of a result, even if its TTL is 0: otherwise each request would start a query.
pub(crate) const TTL_MIN: Duration = Duration::from_secs(1);
/// Longest validity of addresses.
const TTL_MAX: Duration = Duration::from_secs(3600);
/// Longest validity of a negative result.
const NO_TTL_MAX: Duration = Duration::from_secs(60);
/// Longest validity of addresses of one kind if the query for the other kind failed.
const HALF_TTL_MAX: Duration = Duration::from_secs(30);

/// Addresses of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Not empty.
    pub(crate) list: Vec<IpAddr>,
    /// The shortest TTL on the way.
    pub(crate) ttl: Duration,
}

/// Why a lookup found no addresses of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The name does not exist (NXDOMAIN); None: the name server does not say for how long.
    Name(Option<Duration>),
    /// The name has no addresses of this kind.
    Kind(Option<Duration>),
    /// The name server fails or refuses.
    Failed,
    /// The name server does not reply.
    TimedOut,
}

/// Joins the results for IPv6 and IPv4.
pub(crate) fn join(
    v6: Result<Found, Missing>,
    v4: Result<Found, Missing>,
    v6_first: bool,
) -> Answer {
    match (v6, v4) {
        (Ok(v6), Ok(v4)) => Ok(addresses(&v6.list, &v4.list, v6_first, v6.ttl.min(v4.ttl))),
        (Ok(one), Err(other)) | (Err(other), Ok(one)) => {
            let is_known = matches!(other, Missing::Name(_) | Missing::Kind(_));
            let ttl = if is_known { one.ttl } else { one.ttl.min(HALF_TTL_MAX) };
            Ok(addresses(&one.list, &[], v6_first, ttl))
        }
        (Err(v6), Err(v4)) => Err(missing(v6, v4)),
    }
}

/// Builds the list of one kind or both. Unreachable addresses come last but are included, because
/// routes change.
pub(crate) fn addresses(v6: &[IpAddr], v4: &[IpAddr], v6_first: bool, ttl: Duration) -> Addresses {
    let (first, second) = if v6_first { (v6, v4) } else { (v4, v6) };
    let mut list = Vec::new();
    for at in 0..first.len().max(second.len()) {
        for address in [first.get(at), second.get(at)].into_iter().flatten() {
            if list.len() < LIST_MAX && !list.contains(address) {
                list.push(*address);
            }
        }
    }
    Addresses { list: list.into(), ttl_us: micros(ttl.clamp(TTL_MIN, TTL_MAX)) }
}

fn missing(v6: Missing, v4: Missing) -> Unresolved {
    use Missing::{Failed, Kind, Name, TimedOut};
    let no = |ttl: Option<Duration>| {
        let ttl = ttl.unwrap_or(TTL_MIN).clamp(TTL_MIN, NO_TTL_MAX);
        Unresolved::NoSuchName { ttl_us: micros(ttl) }
    };
    match (v6, v4) {
        (Name(ttl), Failed | TimedOut) | (Failed | TimedOut, Name(ttl)) => no(ttl),
        (TimedOut, _) | (_, TimedOut) => Unresolved::TimedOut,
        (Failed, _) | (_, Failed) => Unresolved::Failed,
        (Name(a) | Kind(a), Name(b) | Kind(b)) => no(a.into_iter().chain(b).min()),
    }
}

/// Returns the same result with the rest of its validity.
pub(crate) fn aged(answer: &Answer, left: Duration) -> Answer {
    match answer {
        Ok(addresses) => Ok(Addresses { list: Arc::clone(&addresses.list), ttl_us: micros(left) }),
        Err(Unresolved::NoSuchName { .. }) => Err(Unresolved::NoSuchName { ttl_us: micros(left) }),
        Err(other) => Err(*other),
    }
}

/// Returns how long a result may be kept; None: not at all, so the next request queries again.
pub(crate) fn keeps(answer: &Answer) -> Option<Duration> {
    match answer {
        Ok(Addresses { ttl_us, .. }) | Err(Unresolved::NoSuchName { ttl_us }) => {
            Some(Duration::from_micros(*ttl_us))
        }
        Err(Unresolved::Failed | Unresolved::TimedOut | Unresolved::NoRoom) => None,
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Whether this host can reach IPv6 addresses, checked from time to time.
#[derive(Debug, Default)]
pub(crate) struct Route {
    known: Option<(bool, Instant)>,
}

impl Route {
    /// How long a check is valid: networks come and go.
    const HOLDS: Duration = Duration::from_secs(10);

    /// Whether this host has a route to public IPv6 addresses. This sends nothing.
    pub(crate) fn has_ipv6(&mut self, now: Instant) -> bool {
        match self.known {
            Some((has, since)) if now.duration_since(since) < Route::HOLDS => has,
            _ => {
                // Any public address: connecting UDP only looks for a route.
                let far = Ipv6Addr::new(0x2001, 0x4860, 0, 0, 0, 0, 0, 1);
                let has = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))
                    .is_ok_and(|socket| socket.connect((far, 53)).is_ok());
                self.known = Some((has, now));
                has
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: order and bounds of the list, and which result wins when both kinds differ. How:
    //! every pair.

    use super::*;

    fn list(text: &str) -> Vec<IpAddr> {
        text.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    fn found(text: &str, ttl_s: u64) -> Result<Found, Missing> {
        Ok(Found { list: list(text), ttl: Duration::from_secs(ttl_s) })
    }

    fn told(answer: &Answer) -> String {
        answer.as_ref().unwrap().list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn kinds_take_turns_and_the_one_that_can_be_reached_begins() {
        let (v6, v4) =
            (found("2001:db8::1 2001:db8::2", 60), found("192.0.2.1 192.0.2.2 192.0.2.3", 30));
        let answer = join(v6.clone(), v4.clone(), true);
        assert_eq!(told(&answer), "2001:db8::1 192.0.2.1 2001:db8::2 192.0.2.2 192.0.2.3");
        assert_eq!(answer.unwrap().ttl_us, 30_000_000);
        assert_eq!(
            told(&join(v6, v4, false)),
            "192.0.2.1 2001:db8::1 192.0.2.2 2001:db8::2 192.0.2.3"
        );
    }

    #[test]
    fn a_list_has_no_doubles_and_an_end() {
        let many: Vec<String> = (0..100).map(|n| format!("192.0.2.{n} 192.0.2.{n}")).collect();
        let answer = join(Err(Missing::Kind(None)), found(&many.join(" "), 5), true).unwrap();
        assert_eq!(answer.list.len(), 16);
        assert_eq!(answer.list[1], list("192.0.2.1")[0]);
        // Of both kinds together, so that each has its share.
        let [v6, v4] = ["2001:db8::", "192.0.2."]
            .map(|start| (10..99).map(|n| format!("{start}{n} ")).collect::<String>());
        let answer = join(found(&v6, 5), found(&v4, 5), true).unwrap();
        assert_eq!(
            (answer.list.len(), answer.list.iter().filter(|address| address.is_ipv4()).count()),
            (16, 8)
        );
    }

    #[test]
    fn times_are_kept_between_bounds() {
        let of =
            |ttl_s| join(Err(Missing::Kind(None)), found("192.0.2.1", ttl_s), true).unwrap().ttl_us;
        assert_eq!([of(0), of(7), of(90_000)], [1_000_000, 7_000_000, 3_600_000_000]);
        let half = |missing| join(Err(missing), found("192.0.2.1", 300), true).unwrap().ttl_us;
        assert_eq!(half(Missing::Name(None)), 300_000_000);
        assert_eq!([half(Missing::Failed), half(Missing::TimedOut)], [30_000_000; 2]);
    }

    #[test]
    fn what_is_certain_wins_over_what_is_not() {
        use Missing::{Failed, Kind, Name, TimedOut};
        let second = |s| Some(Duration::from_secs(s));
        let no = |s: u64| Unresolved::NoSuchName { ttl_us: s * 1_000_000 };
        for (one, other, told) in [
            (Name(second(20)), Name(second(30)), no(20)),
            (Name(second(20)), Kind(None), no(20)),
            (Kind(None), Kind(None), no(1)),
            (Kind(second(900)), Kind(second(900)), no(60)),
            (Name(second(9)), Failed, no(9)),
            (Name(second(9)), TimedOut, no(9)),
            (Kind(second(9)), Failed, Unresolved::Failed),
            (Kind(second(9)), TimedOut, Unresolved::TimedOut),
            (Failed, TimedOut, Unresolved::TimedOut),
            (Failed, Failed, Unresolved::Failed),
        ] {
            assert_eq!(join(Err(one), Err(other), true), Err(told), "{one:?} {other:?}");
            assert_eq!(join(Err(other), Err(one), false), Err(told), "{other:?} {one:?}");
        }
    }

    #[test]
    fn an_answer_grows_old() {
        let answer = join(Err(Missing::Kind(None)), found("192.0.2.1", 60), true);
        assert_eq!(keeps(&answer), Some(Duration::from_secs(60)));
        assert_eq!(aged(&answer, Duration::from_secs(4)).unwrap().ttl_us, 4_000_000);
        let no = Err(Unresolved::NoSuchName { ttl_us: 9_000_000 });
        assert_eq!(keeps(&no), Some(Duration::from_secs(9)));
        assert_eq!(
            aged(&no, Duration::from_secs(4)),
            Err(Unresolved::NoSuchName { ttl_us: 4_000_000 })
        );
        assert_eq!(
            (keeps(&Err(Unresolved::Failed)), keeps(&Err(Unresolved::TimedOut))),
            (None, None)
        );
    }
}
