//! Whether more connections begin in the namespace than are completed and accepted there. Then the kernel drops first packets, of honest clients too, who
//! would get through without weir.
//!
//! Called by `keeper.rs`, which has new ones pass by for so long.

use std::fs;
use std::time::{Duration, Instant};

/// How long new ones pass by after first packets were dropped: then it is tried again.
const PAUSE: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Flood {
    /// First packets that were dropped by then.
    dropped: u64,
    until: Option<Instant>,
}

impl Flood {
    /// Whether new ones are to pass by now, when so many first packets were dropped since the start.
    pub(super) fn is_on(&mut self, dropped: u64, now: Instant) -> bool {
        if dropped > self.dropped {
            (self.dropped, self.until) = (dropped, Some(now + PAUSE));
        }
        self.until.is_some_and(|until| now < until)
    }
}

/// First packets that listeners in the namespace of the process dropped, since it is there (`ListenDrops` of proc_pid_net(5), net/netstat).
pub(super) fn dropped() -> u64 {
    fs::read_to_string("/proc/self/net/netstat").ok().and_then(|text| in_text(&text)).unwrap_or(0)
}

fn in_text(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split(' ').position(|name| name == "ListenDrops")?;
    values.split(' ').nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    //! Proves: drops are read as the kernel tells of them, and each has new connections pass by for a while. How: examples.

    use super::*;

    #[test]
    fn drops_are_read() {
        let text =
            "TcpExt: SyncookiesSent ListenOverflows ListenDrops Last\nTcpExt: 1 2 37 4\nIpExt: ListenDrops\nIpExt: 5\n";
        assert_eq!((in_text(text), in_text("TcpExt: One\nTcpExt: 1\n"), in_text("")), (Some(37), None, None));
    }

    #[test]
    fn each_has_new_ones_pass_by_for_a_while() {
        let (mut flood, start) = (Flood::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!flood.is_on(0, at(0)));
        assert!(flood.is_on(3, at(100)) && flood.is_on(3, at(5_099)) && !flood.is_on(3, at(5_100)));
        assert!(flood.is_on(4, at(5_200)) && flood.is_on(5, at(9_000)) && flood.is_on(5, at(13_999)));
        assert!(!flood.is_on(5, at(14_000)));
    }
}
