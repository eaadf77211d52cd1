//! What a link between clients and proxy did with their packets.
//!
//! Filled by `run/wan.rs`, shown by `report/wan.rs`.

use serde::{Deserialize, Serialize};

/// Both ways of the link in a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Carried {
    /// From clients.
    pub(crate) to_servers: Wayed,
    /// To clients.
    pub(crate) to_clients: Wayed,
}

/// One way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wayed {
    /// Packets that came to it.
    pub(crate) packets: u64,
    /// Lost, as was asked for.
    pub(crate) lost: u64,
    /// That found no place in the queue.
    pub(crate) dropped: u64,
    /// That the kernel dropped before the link had read them: nobody asked for that.
    pub(crate) overrun: u64,
    /// By how much packets left later than they were to, on average, microseconds.
    pub(crate) late_mean_us: f64,
    /// At most, microseconds.
    pub(crate) late_max_us: f64,
}

impl Carried {
    /// The mean lateness of the worse way, microseconds.
    pub(crate) fn late_us(&self) -> f64 {
        self.to_servers.late_mean_us.max(self.to_clients.late_mean_us)
    }

    /// Of both ways.
    pub(crate) fn overrun(&self) -> u64 {
        self.to_servers.overrun + self.to_clients.overrun
    }
}
