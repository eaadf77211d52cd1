//! TLS for clients: a driver around a driver, so that nothing above it knows.
//!
//! [`Sealed`] is called by the worker in place of its driver and calls that; what a TLS library has to do for it is the trait
//! [`Cipher`].

mod cipher;
mod driver;
mod handshake;
mod sealed;
mod session;

#[cfg(test)]
mod paper;
#[cfg(test)]
mod tests;

pub use cipher::{Cipher, Facts, Failure, HANDSHAKE_RECORD, Opened, RECORD_BYTES_MAX, Seal, State, Tally};
pub use sealed::{CLOSE_US, HANDSHAKE_BYTES_MAX, HANDSHAKES_MAX, Sealed, WORK_US};
