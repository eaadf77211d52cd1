//! The laboratory: test origin, load generator, prober, link emulator, benchmark harness, the
//! demo's live view.
//!
//! Called by the verbs `origin`, `bomb`, `probe`, `lab`, `bench` and `demo` of the binary, and by
//! end-to-end tests. Runs on the same drivers as the proxy itself; only the prober and the link do
//! without.

pub mod bench;
pub mod bomb;
pub mod certificate;
mod chart;
mod checksum;
mod io;
pub mod link;
pub mod live;
pub mod machine;
pub mod origin;
mod page;
pub mod probe;
mod random;
pub mod target;
pub mod tls;
pub mod units;
