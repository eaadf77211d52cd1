//! When the kernel checks whether the other side of an idle connection is still there
//! (SO_KEEPALIVE, socket(7); tcp(7)). Used by `way` for listeners, whose connections inherit it,
//! and for connections to servers.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// An operator's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keepalive {
    /// It never does.
    Off,
    /// It does.
    Ask {
        /// How long a connection has been idle before the first time, seconds, 1 to 32,767
        /// (TCP_KEEPIDLE).
        idle_s: u16,
        /// How long until the next time where nothing comes back, seconds, 1 to 32,767
        /// (TCP_KEEPINTVL).
        interval_s: u16,
        /// This number of unanswered probes ends the connection, 1 to 127 (TCP_KEEPCNT).
        probes: u8,
    },
}

impl Keepalive {
    /// Applies this to a socket from now on.
    pub(crate) fn set(self, socket: &impl AsFd) -> io::Result<()> {
        let socket = SockRef::from(socket);
        match self {
            Keepalive::Off => socket.set_keepalive(false),
            Keepalive::Ask { idle_s, interval_s, probes } => {
                let seconds = |count: u16| Duration::from_secs(u64::from(count));
                let times = TcpKeepalive::new()
                    .with_time(seconds(idle_s))
                    .with_interval(seconds(interval_s));
                socket.set_tcp_keepalive(&times.with_retries(u32::from(probes)))
            }
        }
    }
}
