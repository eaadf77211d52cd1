//! The experiment `mixed`: the clients of a cell, what they request, and the server.
//!
//! Named by `mixed_cells.rs` and `cells.rs`. Pure.

/// A response to a fast request that takes longer is late, microseconds.
pub(crate) const LATE_US: u64 = 8_000;

/// A load of one or several kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Mixed {
    /// The clients that a row of the table is about.
    pub(crate) measured: Clients,
    /// The clients beside them.
    pub(crate) beside: &'static [Clients],
    /// Connections that the server accepts at a time; further ones wait. None: any number.
    pub(crate) places: Option<usize>,
}

/// Clients that request the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Clients {
    /// Kept connections.
    pub(crate) connections: u32,
    /// When they send requests.
    pub(crate) pace: Pace,
    /// What they request. `{serial}` is a number that is unique to each request.
    pub(crate) path: &'static str,
}

/// When clients send requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Pace {
    /// Each connection sends its next request when it has its response.
    Loop,
    /// This many requests a second in total, evenly spaced.
    Even(u32),
    /// This many requests a second in total, at random moments (Poisson), like those of that many
    /// clients that pause.
    Random(u32),
}

impl Mixed {
    /// Client connections.
    pub(crate) fn connections(&self) -> u32 {
        self.all().map(|clients| clients.connections).sum()
    }

    /// All clients, the measured ones first.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Clients> {
        std::iter::once(&self.measured).chain(self.beside)
    }

    /// Whether some requests have numbers, by which the harness recognises what the server got
    /// twice.
    pub(crate) fn is_numbered(&self) -> bool {
        self.all().any(|clients| clients.path.contains("{serial}"))
    }

    /// Whether the measured clients send requests by the clock.
    pub(crate) fn is_by_the_clock(&self) -> bool {
        self.measured.pace != Pace::Loop
    }
}
