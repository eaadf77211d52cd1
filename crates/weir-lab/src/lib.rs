//! The laboratory: test origin, load generator, benchmark harness, the demo's live view.
//!
//! Called by the verbs `origin`, `bench` and `demo` of the binary, and by end-to-end tests. Runs on the same drivers as the
//! proxy itself.

pub mod bench;
pub mod bomb;
mod io;
pub mod live;
pub mod origin;
pub mod target;
