//! Programs that the kernel runs for weir (eBPF), and how they are loaded. Ring 1: it knows the
//! operating system, and nothing of a proxy.
//!
//! Sources are C, in `bpf/`, with the compiled objects beside them: building weir needs no compiler
//! for C. A test compiles each object again and compares. Nothing is pinned: attached programs are
//! removed with the process, however that ends.
#![forbid(unsafe_code)]

mod accept;
mod error;
mod intercept;
mod xdp;

pub use accept::{Accept, GROUPS_MAX, Group, Listener};
pub use error::BpfError;
pub use intercept::{Hold, Holding, Inside, Intercept, Programs, Side, Taken};
pub use xdp::{Dropped, Network, Ports, Xdp, XdpError};
