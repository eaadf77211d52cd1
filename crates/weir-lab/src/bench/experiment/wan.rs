//! The experiment `wan`: a slow link that loses packets between clients and the proxy, and which
//! side has which congestion control.
//!
//! Named by `Load::Wan` and by `contenders.rs`; `run/wan.rs` does it.

/// What the link sends, bits a second each way.
pub(crate) const RATE: u64 = 20_000_000;
/// How long a packet waits for the link at most, milliseconds: more is dropped.
pub(crate) const QUEUE_MS: u64 = 100;
/// Clients of small objects: too few to fill the link.
pub(crate) const SMALL_CLIENTS: u32 = 4;

/// What clients request over the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wan {
    /// The object.
    pub(crate) object: Object,
    /// From a client to the other end and back, milliseconds.
    pub(crate) rtt_ms: u32,
    /// Packets of 1,000 that are lost, each way.
    pub(crate) lost_permille: u32,
}

impl Wan {
    /// Clients at a time.
    pub(crate) fn clients(self) -> u32 {
        match self.object {
            Object::Large => 1,
            Object::Small => SMALL_CLIENTS,
        }
    }
}

/// What clients request, with a connection for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Object {
    /// One after the other by one client: measures the rate.
    Large,
    /// Measures the time.
    Small,
}

impl Object {
    /// Returns its length in bytes.
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Object::Large => 4 << 20,
            Object::Small => 8 << 10,
        }
    }
}

/// The far end of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Split {
    /// The proxy; None: the origin itself.
    pub(crate) proxy: Option<SplitProxy>,
    /// Congestion control towards clients.
    pub(crate) clients: &'static str,
    /// Congestion control of the proxy towards the server; None: that of the system.
    pub(crate) server: Option<&'static str>,
}

/// A proxy that passes connections on as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SplitProxy {
    /// It sets a congestion control for each side.
    Weir,
    /// It can't set one; routes do that for it.
    Haproxy,
}

/// No proxy.
pub(crate) const fn end_to_end(congestion: &'static str) -> Split {
    Split { proxy: None, clients: congestion, server: None }
}

/// weir with these.
pub(crate) const fn weir(clients: &'static str, server: &'static str) -> Split {
    Split { proxy: Some(SplitProxy::Weir), clients, server: Some(server) }
}

/// HAProxy with this towards clients.
pub(crate) const fn haproxy(congestion: &'static str) -> Split {
    Split { proxy: Some(SplitProxy::Haproxy), clients: congestion, server: None }
}

impl Split {
    /// Returns what weir is configured to use towards clients and towards the server. Only the
    /// unprivileged ones in `allowed` can be configured, since weir gives up the right to others
    /// when it starts. Where nothing is configured towards clients, their route decides.
    pub(crate) fn of_options(self, allowed: &str) -> [Option<&'static str>; 2] {
        let may = |name: &&str| {
            self.proxy == Some(SplitProxy::Weir)
                && allowed.split_whitespace().any(|one| one == *name)
        };
        [Some(self.clients).filter(may), self.server.filter(may)]
    }

    /// Returns all congestion controls that the kernel has to have.
    pub(crate) fn congestions(self) -> impl Iterator<Item = &'static str> {
        [Some(self.clients), self.server].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weir_chooses_what_anybody_may_have_and_others_nothing() {
        let options = |split: Split| split.of_options("reno bbr\n");
        assert_eq!(options(weir("bbr", "cubic")), [Some("bbr"), None]);
        assert_eq!(options(weir("cubic", "reno")), [None, Some("reno")]);
        assert_eq!((options(haproxy("bbr")), options(end_to_end("bbr"))), ([None; 2], [None; 2]));
    }
}
