//! When a request with an incomplete body is forwarded: `request-buffering` of a route
//! (docs/http1.md).
//!
//! Pure. Read by `Clients::read_body` (`client/uploads.rs`), which keeps the times. Bound:
//! [`GATHER_US`].

/// How long an incomplete body is gathered with [`Buffering::Auto`]. Bodies that clients write at
/// once are complete sooner, so that they leave in one send and can be retried; a client that waits
/// for a response to each piece hardly notices.
pub(crate) const GATHER_US: u64 = 100_000;

/// When a request with an incomplete body is forwarded. More than 64 KiB of a body are never
/// gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Buffering {
    /// When its body has been gathered for [`GATHER_US`], or its client waits until the server
    /// wants the body (`Expect`).
    #[default]
    Auto,
    /// Not before the body is complete, or too large to be gathered.
    On,
    /// As soon as its head is read.
    Off,
}

impl Buffering {
    /// When a request is forwarded whose head was read at `now_us`, microseconds; `u64::MAX`: at no
    /// fixed time. `expects`: its client waits until its body is wanted.
    pub(crate) fn pass_on_us(self, expects: bool, now_us: u64) -> u64 {
        match self {
            Buffering::On => u64::MAX,
            Buffering::Off => now_us,
            Buffering::Auto if expects => now_us,
            Buffering::Auto => now_us + GATHER_US,
        }
    }
}
