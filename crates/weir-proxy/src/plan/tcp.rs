//! `tcp`: terms for connections that weir passes on unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Plan, UpstreamPlan};

/// Beyond this many blocks, the place of a block that no listener names is reused: listeners close
/// within a second.
const BLOCKS_KEPT: usize = 1024;

/// What the clients of a listener may request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Serves {
    /// Requests that a route leads to an upstream. The default.
    #[default]
    Reverse,
    /// Any destination that [`ForwardPlan::policy`](super::ForwardPlan::policy) allows (RFC 9110
    /// §3.7: a proxy).
    Forward,
    /// Nothing: their bytes are passed to a server unchanged. An index in
    /// [`Plan::tcp`](super::Plan::tcp).
    Tcp(u16),
}

/// A `tcp` block. Connections keep the block by which they were accepted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TcpPlan {
    /// Index in [`Plan::upstreams`](super::Plan::upstreams) of the upstream whose servers get the
    /// connections; with `names` those of clients that ask for none of the names. None: these are
    /// reset.
    pub upstream: Option<u16>,
    /// The upstream for each name that a client asks for in its first TLS message. None, the
    /// default: not read.
    pub names: Option<NamesPlan>,
    /// A connection is reset after this time without a byte either way, 1 ms to a day. Default 1 h.
    pub idle_timeout_us: u64,
    /// The time-out once one side has ended its direction. Default 1 min.
    pub half_close_timeout_us: u64,
}

/// `sni` of a `tcp` block.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamesPlan {
    /// Names in lower case, with their upstreams.
    pub exact: BTreeMap<Box<str>, u16>,
    /// Domains with the upstream of all names below them; the longest domain counts.
    pub below: BTreeMap<Box<str>, u16>,
    /// How long a client may take for that message, 1 ms to a day. Default 5 s.
    pub timeout_us: u64,
}

impl NamesPlan {
    /// Returns the upstream of a name; None: it matches nothing.
    pub fn find(&self, name: &str) -> Option<u16> {
        let domains = name.match_indices('.').map(|(at, _)| &name[at + 1..]);
        let mut below = domains.filter_map(|domain| self.below.get(domain));
        self.exact.get(name).or_else(|| below.next()).copied()
    }
}

impl TcpPlan {
    /// Returns a block with the default times, for this upstream.
    pub fn new(upstream: u16) -> TcpPlan {
        let upstream = Some(upstream);
        TcpPlan {
            upstream,
            names: None,
            idle_timeout_us: 3600 * super::SECOND_US,
            half_close_timeout_us: 60 * super::SECOND_US,
        }
    }

    /// Replaces the indexes of upstreams: `targets` has the new one for each old one.
    pub(super) fn retarget(&mut self, targets: &[usize]) {
        let names = self
            .names
            .iter_mut()
            .flat_map(|names| names.exact.values_mut().chain(names.below.values_mut()));
        for upstream in self.upstream.iter_mut().chain(names) {
            *upstream = targets[usize::from(*upstream)] as u16;
        }
    }

    /// Returns how often weir checks whether its connections move bytes, microseconds.
    pub(crate) fn look_us(&self) -> u64 {
        /// Looks in the time-out of a connection, and in that of a half-closed one.
        const LOOKS: [u64; 2] = [8, 4];
        (self.idle_timeout_us / LOOKS[0]).min(self.half_close_timeout_us / LOOKS[1]).max(1)
    }
}

/// Appends the blocks of a plan to those of the plan before it, except those that are among them. A
/// listener that closes still accepts its waiting clients by the block that it had, and names that
/// by its place. Upstreams have their final places; `targets` has those by index in the plan alone.
pub(super) fn follow_tcp(next: &mut Plan, old: &Plan, targets: &[usize]) {
    let wanted = std::mem::replace(&mut next.tcp, old.tcp.clone());
    let mut known: BTreeMap<Arc<TcpPlan>, usize> = BTreeMap::new();
    next.tcp
        .iter()
        .enumerate()
        .for_each(|(place, block)| _ = known.entry(Arc::clone(block)).or_insert(place));
    // Places that no earlier listener names, and no current block has: their number only shrinks.
    let mut vacant: BTreeSet<usize> = (0..next.tcp.len()).collect();
    for listener in &old.listeners {
        if let Serves::Tcp(place) = listener.serves {
            vacant.remove(&usize::from(place));
        }
    }
    let mut places: Vec<u16> = Vec::new();
    for mut block in wanted {
        Arc::make_mut(&mut block).retarget(targets);
        let free = || vacant.first().copied().filter(|_| next.tcp.len() >= BLOCKS_KEPT);
        let place = known.get(&block).copied().or_else(free).unwrap_or(next.tcp.len());
        vacant.remove(&place);
        known.entry(Arc::clone(&block)).or_insert(place);
        match next.tcp.get_mut(place) {
            Some(before) => {
                if *before != block && known.get(before) == Some(&place) {
                    known.remove(before);
                }
                *before = block;
            }
            None => next.tcp.push(block),
        }
        places.push(place as u16);
    }
    for listener in &mut next.listeners {
        if let Serves::Tcp(block) = &mut listener.serves {
            *block = places.get(usize::from(*block)).copied().unwrap_or(u16::MAX);
        }
    }
}

impl UpstreamPlan {
    /// Whether its servers get connections of `tcp`, and nothing else.
    pub fn is_tcp(&self) -> bool {
        self.pool == super::Pool::Tcp
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a name leads to its own upstream, or to that of the longest domain that it is below;
    //! others lead nowhere. A block has the same place in all successors of a plan, and another
    //! block never has it while a listener may name it. How: examples.

    use super::*;
    use crate::plan::ListenerPlan;

    fn plan(upstreams: &[u16]) -> Plan {
        let address = |at: usize| std::net::SocketAddr::from(([127, 0, 0, 1], 1 + at as u16));
        let listener = |at: usize| ListenerPlan {
            serves: Serves::Tcp(at as u16),
            ..ListenerPlan::new(address(at))
        };
        Plan {
            listeners: (0..upstreams.len()).map(listener).collect(),
            tcp: upstreams.iter().map(|upstream| Arc::new(TcpPlan::new(*upstream))).collect(),
            ..Plan::default()
        }
    }

    /// Returns a plan that follows another, and where its listeners lead. Both have the same places
    /// of upstreams.
    fn after(old: &Plan, upstreams: &[u16]) -> (Plan, Vec<Option<u16>>) {
        let mut next = plan(upstreams);
        follow_tcp(&mut next, old, &(0..5_000).collect::<Vec<_>>());
        let lead = |listener: &ListenerPlan| match listener.serves {
            Serves::Tcp(at) => next.tcp[usize::from(at)].upstream,
            _ => None,
        };
        let lead = next.listeners.iter().map(lead).collect();
        (next, lead)
    }

    #[test]
    fn blocks_keep_their_places() {
        let first = plan(&[1, 2]);
        let (second, lead) = after(&first, &[2, 3]);
        assert_eq!(lead, [Some(2), Some(3)]);
        // A client that a closing listener accepts has the block that the listener had.
        assert_eq!(second.tcp[..2], first.tcp[..]);
        let (third, lead) = after(&second, &[1]);
        assert_eq!((lead, &third.tcp[..]), (vec![Some(1)], &second.tcp[..]));
        let mut plan = third;
        for upstream in 10..4_000 {
            let (next, lead) = after(&plan, &[upstream, upstream + 1]);
            assert_eq!(lead, [Some(upstream), Some(upstream + 1)]);
            let named = |at: &usize| {
                plan.listeners.iter().any(|listener| listener.serves == Serves::Tcp(*at as u16))
            };
            let kept = (0..plan.tcp.len()).filter(named).all(|at| next.tcp[at] == plan.tcp[at]);
            assert!(kept && next.tcp.len() <= BLOCKS_KEPT + 4, "{}", next.tcp.len());
            plan = next;
        }
    }

    #[test]
    fn names_and_domains() {
        let of = |all: &[(&str, u16)]| {
            all.iter().map(|(name, upstream)| (Box::from(*name), *upstream)).collect()
        };
        let names = NamesPlan {
            exact: of(&[("a.test", 1), ("x.b.test", 2)]),
            below: of(&[("b.test", 3), ("c.b.test", 4)]),
            timeout_us: 0,
        };
        for (name, upstream) in [
            ("a.test", Some(1)),
            ("x.b.test", Some(2)),
            ("y.b.test", Some(3)),
            ("z.y.b.test", Some(3)),
            ("d.c.b.test", Some(4)),
            ("c.b.test", Some(3)),
            ("b.test", None),
            ("ab.test", None),
            ("", None),
            (".", None),
        ] {
            assert_eq!(names.find(name), upstream, "{name}");
        }
    }
}
