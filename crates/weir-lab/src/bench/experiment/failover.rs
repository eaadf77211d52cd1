//! The experiment `failover`: the requests to the servers, and what happens to which server when.
//!
//! Named by `Load::Failover`. Bound: each fault is over, with all servers well, when three quarters
//! of a run are.

/// Servers behind the proxy.
pub(crate) const SERVERS: usize = 3;
/// GETs a second, and the connections that they come on: more than wait at a time when a third of
/// them waits for 2 s.
pub(crate) const READS: (u32, u32) = (2000, 2048);
/// POSTs a second, and the connections that they come on.
pub(crate) const WRITES: (u32, u32) = (200, 256);
/// All client connections.
pub(crate) const CONNECTIONS: u32 = READS.1 + WRITES.1;

/// What happens to the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// One is killed and started again later.
    Killed,
    /// One freezes for a while: it neither resets nor responds.
    Frozen,
    /// All are restarted, one after the other.
    Rolling,
    /// One answers everything with 503 for a while.
    Failing,
    /// One resets the connection upon every second request for a while.
    Resetting,
    /// One is killed and started again, four times in a row.
    Flapping,
}

impl Fault {
    /// Returns what is done when, as a share of the counted time, and to which server.
    pub(crate) fn script(self) -> Vec<(f64, usize, Deed)> {
        let (begin, end) = (0.25, 0.625);
        match self {
            Fault::Killed => vec![(begin, 0, Deed::Kill), (end, 0, Deed::Start)],
            Fault::Frozen => vec![(begin, 0, Deed::Freeze), (end, 0, Deed::Thaw)],
            Fault::Failing => vec![(begin, 0, Deed::Replace("status=503")), (end, 0, Deed::Heal)],
            Fault::Resetting => {
                vec![(begin, 0, Deed::Replace("reset=every=2")), (end, 0, Deed::Heal)]
            }
            Fault::Rolling => (0..SERVERS)
                .flat_map(|nth| {
                    let at = begin + 0.1875 * nth as f64;
                    [(at, nth, Deed::End), (at + 0.05, nth, Deed::Start)]
                })
                .collect(),
            Fault::Flapping => (0..4)
                .flat_map(|time| {
                    let at = begin + 0.125 * f64::from(time);
                    [(at, 0, Deed::Kill), (at + 0.0625, 0, Deed::Start)]
                })
                .collect(),
        }
    }
}

/// What can be done to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// SIGKILL.
    Kill,
    /// SIGTERM: it closes its connections and ends.
    End,
    /// It is started again.
    Start,
    /// SIGSTOP: it neither answers nor resets anything, and the kernel still accepts connections
    /// for it.
    Freeze,
    /// SIGCONT.
    Thaw,
    /// Killed, and replaced by one that misbehaves in this way.
    Replace(&'static str),
    /// Killed, and replaced by a good one.
    Heal,
}

impl Deed {
    /// What was done, for people and programs.
    pub(crate) fn word(self) -> String {
        match self {
            Deed::Kill => "killed".to_owned(),
            Deed::End => "ended".to_owned(),
            Deed::Start => "started".to_owned(),
            Deed::Freeze => "frozen".to_owned(),
            Deed::Thaw => "thawed".to_owned(),
            Deed::Replace(how) => format!("replaced by one with {how}"),
            Deed::Heal => "replaced by a good one".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_ends_within_the_run_with_all_servers_well() {
        for fault in [
            Fault::Killed,
            Fault::Frozen,
            Fault::Rolling,
            Fault::Failing,
            Fault::Resetting,
            Fault::Flapping,
        ] {
            let script = fault.script();
            assert!(script.is_sorted_by(|a, b| a.0 < b.0), "{fault:?}");
            assert!(
                script[0].0 >= 0.25 && script[script.len() - 1].0 <= 0.75,
                "{fault:?}: time to recover is left"
            );
            for server in 0..SERVERS {
                let last = script.iter().rfind(|(_, nth, _)| *nth == server);
                let well = last.is_none_or(|(_, _, deed)| {
                    matches!(deed, Deed::Start | Deed::Thaw | Deed::Heal)
                });
                assert!(well, "{fault:?}");
            }
        }
    }
}
