//! The state of servers and of the connections to them: what was sent and not answered, what is known of a server (trust, depth,
//! limits, how long it takes), whether it is in use, and which connections belong to one client. [`crate::engine`] changes it.

pub(crate) mod backoff;
pub(crate) mod connection;
pub(crate) mod depth;
pub(crate) mod early_close;
pub(crate) mod entry;
pub mod health;
pub(crate) mod idle_limit;
pub(crate) mod keepalive_limit;
pub(crate) mod lines;
pub(crate) mod misframing;
pub(crate) mod overlook;
pub(crate) mod places;
pub(crate) mod private_pool;
pub mod probe;
pub(crate) mod queue;
pub(crate) mod request_log;
pub(crate) mod server;
pub mod server_state;
pub mod slow_answer;
pub mod trust;
