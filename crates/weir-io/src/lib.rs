//! The operating system as weir sees it: sockets, completions, time.
//!
//! [`Driver`] is the one interface; `uring`, `epoll` and `sim` implement it. All speak completions with owned
//! buffers, so the code above sees one world. This crate is the only one with unsafe code.

mod buffer;
mod driver;

pub use buffer::RecvBuf;
pub use driver::{Class, Completion, Driver, Event, Payload, Receive, Socket, Token, Waker};
