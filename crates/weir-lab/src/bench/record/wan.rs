//! What a link between clients and proxy did with their packets.
//!
//! Filled by `run/wan.rs`, shown by `report/wan.rs`.

use serde::{Deserialize, Serialize};

/// Both directions of the link in a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Carried {
    /// From clients.
    pub(crate) to_servers: Wayed,
    /// To clients.
    pub(crate) to_clients: Wayed,
}

/// One direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wayed {
    /// Packets that came to it.
    pub(crate) packets: u64,
    /// Packets that it dropped as configured.
    pub(crate) lost: u64,
    /// Packets that found no room in the queue.
    pub(crate) dropped: u64,
    /// Packets that the kernel dropped before the link had read them, which is not intended.
    pub(crate) overrun: u64,
    /// How late packets left, on average, microseconds.
    pub(crate) late_mean_us: f64,
    /// At most, microseconds.
    pub(crate) late_max_us: f64,
}

impl Carried {
    /// Returns the mean lateness of the worse direction, microseconds.
    pub(crate) fn late_us(&self) -> f64 {
        self.to_servers.late_mean_us.max(self.to_clients.late_mean_us)
    }

    /// Returns that of both directions.
    pub(crate) fn overrun(&self) -> u64 {
        self.to_servers.overrun + self.to_clients.overrun
    }
}
