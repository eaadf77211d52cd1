//! TCP keepalive probes in an import: `so_keepalive` of nginx, `clitcpka` and `srvtcpka` of
//! HAProxy.
//!
//! A switch alone needs no line: weir probes connections that may be idle for long, sooner than the
//! system's two hours. Times are carried over.

use weir_proxy::plan::Keepalive;

use super::draft::Draft;
use super::tree::Node;
use crate::reverse::literal;
use crate::units::time_text;

/// The system's values if only some are set: the idle time, the interval (microseconds), and the
/// number of probes without a reply (tcp(7)).
const SYSTEM: (u64, u64, u64) = (7_200_000_000, 75_000_000, 9);

/// The values that are set; None: not set.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) idle_us: Option<u64>,
    pub(super) interval_us: Option<u64>,
    pub(super) probes: Option<u64>,
}

impl Times {
    /// Returns which of them are set.
    pub(super) fn said(self) -> [bool; 3] {
        [self.idle_us.is_some(), self.interval_us.is_some(), self.probes.is_some()]
    }

    /// Returns them as weir writes them, as near as possible.
    pub(super) fn text(self, draft: &mut Draft<'_>, node: &Node) -> String {
        // 0 means the system's value in these dialects.
        let said =
            |number: Option<u64>, usual| number.filter(|number| *number > 0).unwrap_or(usual);
        let us = [said(self.idle_us, SYSTEM.0), said(self.interval_us, SYSTEM.1)];
        let fit =
            us.map(|us| us.div_ceil(1_000_000).clamp(1, Keepalive::SECONDS_MAX.into()) * 1_000_000);
        let probes = said(self.probes, SYSTEM.2);
        let count = probes.clamp(1, Keepalive::PROBES_MAX.into());
        if (fit, count) != (us, probes) {
            draft.different(node, "`tcp-keepalive` has the nearest value that weir allows");
        }
        format!("{}:{}:{count}", time_text(fit[0]), time_text(fit[1]))
    }
}

/// Converts `so_keepalive` of a `listen` of nginx, whose times `time` reads. None: nothing has to
/// be written.
pub(super) fn of_listen(
    draft: &mut Draft<'_>,
    node: &Node,
    time: fn(&str) -> Option<u64>,
) -> Option<String> {
    let said =
        node.arguments().skip(1).filter_map(|word| word.strip_prefix("so_keepalive=")).last()?;
    if matches!(said, "on" | "off") {
        return (said == "off").then(|| said.to_owned());
    }
    let parts: Vec<&str> = said.split(':').collect();
    let part = |at: usize| parts.get(at).copied().filter(|part| !part.is_empty());
    let times = Times {
        idle_us: part(0).and_then(time),
        interval_us: part(1).and_then(time),
        probes: part(2).and_then(|part| part.parse().ok()),
    };
    let said = [0, 1, 2].map(|at| part(at).is_some());
    if times.said() != said || said == [false; 3] || parts.len() > 3 {
        draft.lost(node, "`so_keepalive` must be `on`, `off`, or two times and a number");
        return None;
    }
    Some(times.text(draft, node))
}

impl Draft<'_> {
    /// Sets the keepalive times for clients of a listener of requests.
    pub(super) fn ask(&mut self, address: &str, keepalive: &str) {
        if let Some(listen) =
            self.listens.iter_mut().find(|listen| listen.address.to_string() == address)
        {
            listen.rights.insert("tcp-keepalive", literal(keepalive));
        }
    }
}
