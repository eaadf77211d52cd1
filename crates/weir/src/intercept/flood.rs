//! Detects that more connections begin in the namespace than are completed and accepted there. Then
//! the kernel drops first packets, even of honest clients, which would get through without weir.
//!
//! Called by `keeper.rs`, which then lets new connections pass by for a while.

use std::fs;
use std::time::{Duration, Instant};

/// How long new connections pass by after first packets were dropped, at first and at most. If the
/// next try is too early, the pause is twice as long.
const PAUSE: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The state of the detection.
#[derive(Debug, Default)]
pub(super) struct Flood {
    /// First packets dropped up to the last check.
    dropped: u64,
    until: Option<Instant>,
    pause: Duration,
}

impl Flood {
    /// Whether new connections should pass by now, given the first packets dropped since the start.
    pub(super) fn is_on(&mut self, dropped: u64, now: Instant) -> bool {
        if dropped > self.dropped {
            self.pause = match self.until {
                Some(until) if now < until => self.pause,
                Some(until) if now < until + PAUSE => PAUSE_MAX.min(self.pause * 2),
                _ => PAUSE,
            };
            self.until = Some(now + self.pause);
        }
        self.dropped = dropped;
        self.until.is_some_and(|until| now < until)
    }
}

/// Returns the first packets that listeners in the process's namespace have dropped so far
/// (`ListenDrops` of proc_pid_net(5), net/netstat).
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
    //! Proves: drops are read as the kernel reports them, and each makes new connections pass by
    //! for a while. How: examples.

    use super::*;

    #[test]
    fn drops_are_read() {
        let text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops Last\nTcpExt: 1 2 37 4\n\
            IpExt: ListenDrops\nIpExt: 5\n";
        assert_eq!(
            (in_text(text), in_text("TcpExt: One\nTcpExt: 1\n"), in_text("")),
            (Some(37), None, None)
        );
    }

    #[test]
    fn each_has_new_ones_pass_by_for_a_while() {
        let (mut flood, start) = (Flood::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!flood.is_on(0, at(0)));
        assert!(flood.is_on(3, at(100)) && flood.is_on(3, at(5_099)) && !flood.is_on(3, at(5_100)));
        // Too early, and then after a long time.
        assert!(
            flood.is_on(4, at(5_200)) && flood.is_on(5, at(9_000)) && flood.is_on(5, at(18_999))
        );
        assert!(!flood.is_on(5, at(19_000)) && !flood.is_on(5, at(60_000)));
        assert!(
            flood.is_on(6, at(60_100)) && flood.is_on(6, at(65_099)) && !flood.is_on(6, at(65_100))
        );
        let mut now = 65_200;
        for (seconds, dropped) in [10, 20, 40, 60, 60].into_iter().zip(7..) {
            assert!(
                flood.is_on(dropped, at(now)) && flood.is_on(dropped, at(now + seconds * 1000 - 1))
            );
            now += seconds * 1000;
            assert!(!flood.is_on(dropped, at(now)));
        }
        // Counts from before the process was in its namespace do not matter later.
        let mut flood = Flood::default();
        assert!(
            flood.is_on(50_000, at(0)) && !flood.is_on(0, at(6_000)) && flood.is_on(1, at(60_000))
        );
    }
}
