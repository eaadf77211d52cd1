//! The state of one client connection, which [`crate::engine`] changes.

pub mod connection;
