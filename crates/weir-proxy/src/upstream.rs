//! The state of servers and of the connections to them: what was sent and not answered, what is known of a server (trust, depth, limits, how long
//! it takes), and whether it is in use. [`crate::engine`] changes it; nothing here knows of clients.

pub mod backoff;
pub mod connection;
pub mod depth;
pub mod early_close;
pub mod health;
pub mod idle_limit;
pub mod keepalive_limit;
pub mod lines;
pub mod misframing;
pub mod places;
pub mod private_pool;
pub mod probe;
pub mod queue;
pub mod request_log;
pub mod server;
pub mod server_state;
pub mod slow_answer;
pub mod trust;
