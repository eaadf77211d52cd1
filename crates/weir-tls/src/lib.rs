//! TLS with clients and servers: a driver around a driver, so that nothing above it knows.
//!
//! The worker calls [`Sealed`] in place of its driver, and [`Sealed`] calls that driver. The trait
//! [`Cipher`] is what it needs from a TLS library; `rustls23` implements it with rustls. [`Pair`]
//! is a certificate with its key, [`Terms`] the settings for the clients of a listener,
//! [`ServerTerms`] the requirements for the servers of an upstream.
#![forbid(unsafe_code)]

mod chain;
mod cipher;
mod clients;
mod der;
mod distinguished;
mod driver;
mod gate;
mod guarded;
mod handshake;
mod keys;
mod known;
mod names;
mod pairs;
mod pem;
mod records;
mod rustls23;
mod sealed;
mod servers;
mod session;
mod staple;
mod terms;
mod tickets;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
#[cfg(any(test, feature = "paper"))]
pub mod paper;
#[cfg(test)]
mod tests;

pub use cipher::{
    Cipher, Facts, Failure, HANDSHAKE_RECORD, Opened, RECORD_BYTES_MAX, Seal, State, Tally,
};
pub use clients::{ClientTrust, HINTS_BYTES_MAX, LIST_FILE_BYTES_MAX, LISTS_MAX, WantedOfClients};
pub use der::{day_text, subject_text};
pub use gate::{Gate, Pass, Refusal};
pub use pairs::{BadPair, CHAIN_MAX, EXPIRES_SOON_S, FILE_BYTES_MAX, Files, Pair};
pub use records::{REST_US, SHORT_BYTES, SHORT_RECORD_BYTES};
pub use rustls23::client_end;
pub use sealed::{CLOSE_US, FLIGHT_BYTES_MAX, HANDSHAKE_BYTES_MAX, HANDSHAKES_MAX, Sealed};
pub use servers::{
    PeerName, Roots, ServerSeal, ServerTerms, TICKETS_MAX, TRUSTED_MAX, Trust, WantedOfServers,
};
pub use staple::Staple;
pub use terms::{Materials, Terms, Wanted, provider};
pub use tickets::{KEY_BYTES, KEYS_MAX, LIFETIME_S, TicketKeys};
