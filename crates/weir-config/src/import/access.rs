//! The clients that a route accepts, as lines of `allow` and `deny`. Filled by the dialects;
//! written by `write`.
//!
//! Bounds: those of the compiler, [`NETWORKS_MAX`] addresses and [`LINES_MAX`] lines of a route.

use weir_proxy::request::rules::access::NETWORKS_MAX;

use crate::compile::RULES_MAX as LINES_MAX;
use crate::texts;

/// Lines in their order, of which the first with the address decides; an address without a line is
/// allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Access(Vec<Line>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    allows: bool,
    whom: Vec<String>,
}

impl Access {
    /// Returns lines that deny these clients, or all but these.
    pub(super) fn without(whom: &[String], is_rest: bool) -> Access {
        let mut access = Access::default();
        whom.iter().for_each(|address| access.push(is_rest, address.clone()));
        if is_rest {
            access.push(false, "all".to_owned());
        }
        access
    }

    /// Appends a line.
    pub(super) fn push(&mut self, allows: bool, address: String) {
        match self.0.last_mut().filter(|line| line.allows == allows) {
            Some(line) => line.whom.push(address),
            None => self.0.push(Line { allows, whom: vec![address] }),
        }
    }

    /// Whether all clients are allowed.
    pub(super) fn is_open(&self) -> bool {
        self.0.iter().all(|line| line.allows)
    }

    /// Whether a route has room for it.
    pub(super) fn fits(&self) -> bool {
        self.0.len() <= LINES_MAX
            && self.0.iter().map(|line| line.whom.len()).sum::<usize>() <= NETWORKS_MAX
    }

    /// Returns the clients that both allow. None: lines cannot express it.
    pub(super) fn and(&self, other: &Access) -> Option<Access> {
        let denies_only = |access: &Access| access.0.iter().all(|line| !line.allows);
        let (first, second) = match (self, other) {
            (open, some) | (some, open) if open.is_open() => return Some(some.clone()),
            (first, second) if denies_only(first) => (first, second),
            (second, first) if denies_only(first) => (first, second),
            _ => return None,
        };
        let mut both = Access::default();
        for line in first.0.iter().chain(&second.0) {
            line.whom.iter().for_each(|address| both.push(line.allows, address.clone()));
        }
        Some(both)
    }

    /// Returns the lines as they are written: the word and its addresses.
    pub(super) fn lines(&self) -> impl Iterator<Item = (&'static str, &[String])> {
        let lines = if self.is_open() { &[] } else { &self.0[..] };
        lines.iter().map(|line| (if line.allows { "allow" } else { "deny" }, &line.whom[..]))
    }
}

/// Returns an address or a range as weir writes it.
pub(super) fn address(text: &str) -> Option<String> {
    texts::network(text).ok()
}

#[cfg(test)]
mod tests {
    //! Proves: two lists together allow exactly the clients that both allow. How: all addresses of
    //! a small world, for random lists.

    use proptest::prelude::*;
    use weir_proxy::plan::Network;
    use weir_proxy::request::rules::access::Access as Compiled;

    use super::*;

    fn lists() -> impl Strategy<Value = Access> {
        let whom = prop::sample::select(vec![
            "all",
            "10.0.0.0/31",
            "10.0.0.1/32",
            "10.0.0.2/31",
            "10.0.0.0/30",
        ]);
        prop::collection::vec((any::<bool>(), whom), 0..5).prop_map(|lines| {
            let mut access = Access::default();
            lines.into_iter().for_each(|(allows, whom)| access.push(allows, whom.to_owned()));
            access
        })
    }

    fn compiled(access: &Access) -> Compiled {
        let mut compiled = Compiled::default();
        for (word, whom) in access.lines() {
            for whom in whom {
                let network = whom.split_once('/').map(|(address, bits)| Network {
                    address: address.parse().unwrap(),
                    prefix_bits: bits.parse().unwrap(),
                });
                compiled.push(word == "allow", network);
            }
        }
        compiled
    }

    proptest! {
        #[test]
        fn both_must_let_them_in(one in lists(), other in lists()) {
            if let Some(both) = one.and(&other) {
                let [one, other, both] = [&one, &other, &both].map(compiled);
                for last in 0..5 {
                    let client = std::net::Ipv4Addr::new(10, 0, 0, last).into();
                    prop_assert_eq!(
                        both.admits(client),
                        one.admits(client) && other.admits(client)
                    );
                }
            }
        }
    }

    #[test]
    fn all_but_some() {
        let some = ["10.0.0.0/8".to_owned()];
        let lines = |access: &Access| {
            access.lines().map(|(word, whom)| format!("{word} {whom:?}")).collect::<Vec<_>>()
        };
        assert_eq!(
            lines(&Access::without(&some, true)),
            ["allow [\"10.0.0.0/8\"]", "deny [\"all\"]"]
        );
        assert_eq!(lines(&Access::without(&some, false)), ["deny [\"10.0.0.0/8\"]"]);
        assert!(Access::without(&some, true).and(&Access::without(&some, true)).is_none());
        assert!(!Access::without(&vec![some[0].clone(); 1001], false).fits());
    }
}
