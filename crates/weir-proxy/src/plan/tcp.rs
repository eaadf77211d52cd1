//! `tcp`: what becomes of connections that weir passes on as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Plan, UpstreamPlan};

/// So many blocks may be there before one that no listener names has its place given away: listeners go within a second.
const BLOCKS_KEPT: usize = 1024;

/// What the clients of a listener may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Serves {
    /// What a route leads to an upstream. The default.
    #[default]
    Reverse,
    /// Any destination that [`ForwardPlan::policy`](super::ForwardPlan::policy) allows (RFC 9110 §3.7: a proxy).
    Forward,
    /// Nothing: their bytes go to a server as they are. An index in [`Plan::tcp`](super::Plan::tcp).
    Tcp(u16),
}

/// A `tcp` block. Connections keep that by which they were accepted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TcpPlan {
    /// Index in [`Plan::upstreams`](super::Plan::upstreams) of the one whose servers have the connections; with `names` those that ask for
    /// none of them. None: these are reset.
    pub upstream: Option<u16>,
    /// By the name that a client asks for in its first message of TLS: the upstream. None, the default: nobody looks.
    pub names: Option<NamesPlan>,
    /// After so long without a byte either way a connection is reset, 1 ms to a day. Default 1 h.
    pub idle_timeout_us: u64,
    /// The same once one side has ended its direction. Default 1 min.
    pub half_close_timeout_us: u64,
}

/// `sni` of a `tcp` block.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamesPlan {
    /// Names in small letters, and where they lead.
    pub exact: BTreeMap<Box<str>, u16>,
    /// Domains, below which every name leads there; the longest counts.
    pub below: BTreeMap<Box<str>, u16>,
    /// How long a client may take for that message, 1 ms to a day. Default 5 s.
    pub timeout_us: u64,
}

impl NamesPlan {
    /// Where a name leads; None: it is none of them.
    pub fn find(&self, name: &str) -> Option<u16> {
        let domains = name.match_indices('.').map(|(at, _)| &name[at + 1..]);
        let mut below = domains.filter_map(|domain| self.below.get(domain));
        self.exact.get(name).or_else(|| below.next()).copied()
    }
}

impl TcpPlan {
    /// With the usual times, to this upstream.
    pub fn new(upstream: u16) -> TcpPlan {
        let upstream = Some(upstream);
        TcpPlan {
            upstream,
            names: None,
            idle_timeout_us: 3600 * super::SECOND_US,
            half_close_timeout_us: 60 * super::SECOND_US,
        }
    }

    /// The upstreams have other places: by the old one the new one.
    pub(super) fn retarget(&mut self, targets: &[usize]) {
        let names = self.names.iter_mut().flat_map(|names| names.exact.values_mut().chain(names.below.values_mut()));
        for upstream in self.upstream.iter_mut().chain(names) {
            *upstream = targets[usize::from(*upstream)] as u16;
        }
    }

    /// How often is looked whether its connections move anything, microseconds.
    pub(crate) fn look_us(&self) -> u64 {
        /// Looks in the time-out of a connection, and in that of one that is half closed.
        const LOOKS: [u64; 2] = [8, 4];
        (self.idle_timeout_us / LOOKS[0]).min(self.half_close_timeout_us / LOOKS[1]).max(1)
    }
}

/// Puts the blocks of a plan behind those of the plan before it, where they are not among them: a listener that goes accepts who waits there
/// by the block that it had, and names it by its place. Upstreams have their places already, by the one in the plan alone (`targets`).
pub(super) fn follow_tcp(next: &mut Plan, old: &Plan, targets: &[usize]) {
    let wanted = std::mem::replace(&mut next.tcp, old.tcp.clone());
    let mut known: BTreeMap<Arc<TcpPlan>, usize> = BTreeMap::new();
    next.tcp.iter().enumerate().for_each(|(place, block)| _ = known.entry(Arc::clone(block)).or_insert(place));
    // Places that no listener of before names, and no block of now has: they only become fewer.
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
    /// Whether connections of `tcp` go to its servers, and nothing else does.
    pub fn is_tcp(&self) -> bool {
        self.pool == super::Pool::Tcp
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a name leads where it stands, or where the longest domain does that it is below; others nowhere. A block has the same place in all
    //! successors of a plan, and another one never has it while a listener may name it. How: examples.

    use super::*;
    use crate::plan::ListenerPlan;

    fn plan(upstreams: &[u16]) -> Plan {
        let address = |at: usize| std::net::SocketAddr::from(([127, 0, 0, 1], 1 + at as u16));
        let listener = |at: usize| ListenerPlan { serves: Serves::Tcp(at as u16), ..ListenerPlan::new(address(at)) };
        Plan {
            listeners: (0..upstreams.len()).map(listener).collect(),
            tcp: upstreams.iter().map(|upstream| Arc::new(TcpPlan::new(*upstream))).collect(),
            ..Plan::default()
        }
    }

    /// Where the listeners of a plan lead that comes after another, whose upstreams have the places of its own.
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
        // Whoever is accepted by a listener that goes has what it had.
        assert_eq!(second.tcp[..2], first.tcp[..]);
        let (third, lead) = after(&second, &[1]);
        assert_eq!((lead, &third.tcp[..]), (vec![Some(1)], &second.tcp[..]));
        let mut plan = third;
        for upstream in 10..4_000 {
            let (next, lead) = after(&plan, &[upstream, upstream + 1]);
            assert_eq!(lead, [Some(upstream), Some(upstream + 1)]);
            let named = |at: &usize| plan.listeners.iter().any(|listener| listener.serves == Serves::Tcp(*at as u16));
            let kept = (0..plan.tcp.len()).filter(named).all(|at| next.tcp[at] == plan.tcp[at]);
            assert!(kept && next.tcp.len() <= BLOCKS_KEPT + 4, "{}", next.tcp.len());
            plan = next;
        }
    }

    #[test]
    fn names_and_domains() {
        let of = |all: &[(&str, u16)]| all.iter().map(|(name, upstream)| (Box::from(*name), *upstream)).collect();
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
