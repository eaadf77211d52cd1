//! The state of one client connection, which [`crate::engine`] changes.

pub(crate) mod connection;
