//! The link of the experiment `wan`, and what can prevent it.
//!
//! Called by `stage.rs`, which checks, and by `wan.rs`. Both ends are new network namespaces, which
//! are gone with the link and the programs in them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;

use super::programs::Programs;
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::experiment::wan::{Object, QUEUE_MS, RATE, Split, Wan};
use crate::link::{End, Link, LinkOptions, Obstacle, Place, Queue, Terms};

/// The ends of the link: the clients', and that of proxy and origin.
pub(super) const CLIENTS: usize = 0;
pub(super) const FAR: usize = 1;
/// The name of its interface.
pub(super) const FAR_NAME: &str = "far";
/// Their addresses.
pub(super) const CLIENT_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub(super) const FAR_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// The file that lists the available congestion controls.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// Returns what prevents a run on this machine, if anything. Whether a link is possible is tried
/// once.
pub(super) fn obstacle(programs: &Programs, contender: Contender) -> Option<String> {
    static LINK: OnceLock<Option<String>> = OnceLock::new();
    let look = || {
        if let Some(missing) =
            ["ip", "nsenter", "setpriv"].into_iter().find(|tool| programs.path(tool).is_none())
        {
            return Some(format!(
                "{missing} is not installed, which programs in network namespaces take"
            ));
        }
        let wan = Wan { object: Object::Small, rtt_ms: 0, lost_permille: 0 };
        Link::spawn(&options(wan, 0)).err().map(why)
    };
    LINK.get_or_init(look).clone().or_else(|| {
        let What::Split(split) = contender.what else { return None };
        lacking(split, &fs::read_to_string(AVAILABLE).unwrap_or_default())
    })
}

/// Returns the reason for a congestion control that the kernel lacks, given those that it lists.
fn lacking(split: Split, available: &str) -> Option<String> {
    let has = |name: &&str| available.split_whitespace().any(|one| one == *name);
    let missing = split.congestions().find(|name| !has(name))?;
    Some(format!(
        "the kernel has no congestion control {missing} (it has {}); `modprobe tcp_{missing}` \
            may help",
        available.trim()
    ))
}

/// Returns the obstacle as text, for people.
pub(super) fn why(obstacle: Obstacle) -> String {
    let (Obstacle::Usage(why) | Obstacle::Privilege(why) | Obstacle::Failed(why)) = obstacle;
    why
}

/// Returns the link of a round.
pub(super) fn options(wan: Wan, round: u32) -> LinkOptions {
    let end = |name: &str, address| End {
        name: name.to_owned(),
        place: Place::New,
        addresses: vec![(IpAddr::V4(address), 30)],
    };
    let way = Terms {
        rate: Some(RATE),
        queue: Queue::Time(QUEUE_MS * 1_000_000),
        loss: f64::from(wan.lost_permille) / 1000.0,
        burst: None,
        delay_ns: u64::from(wan.rtt_ms) * 1_000_000 / 2,
        jitter_ns: 0,
        reorder: 0.0,
        reorder_ns: 0,
    };
    let ends = [end("clients", CLIENT_ADDRESS), end(FAR_NAME, FAR_ADDRESS)];
    LinkOptions { ends, ways: [way; 2], seed: u64::from(round), mtu: 1500 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiment::wan;

    #[test]
    fn a_congestion_control_that_the_kernel_has_not_is_named() {
        assert_eq!(lacking(wan::weir("bbr", "cubic"), "reno cubic bbr\n"), None);
        let why = lacking(wan::weir("bbr", "cubic"), "reno cubic\n").unwrap();
        assert!(
            why.starts_with("the kernel has no congestion control bbr (it has reno cubic); "),
            "{why}"
        );
        let why = lacking(wan::weir("bbr", "cubic"), "reno bbr\n").unwrap();
        assert!(why.contains(" cubic ("), "the side of the server has it: {why}");
        assert_eq!(lacking(wan::haproxy("bbr"), "reno bbr\n"), None);
    }
}
