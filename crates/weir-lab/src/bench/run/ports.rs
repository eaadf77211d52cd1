//! Ports for the programs that a run starts.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// A port that was free a moment ago.
pub(super) fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Returns a port that was free a moment ago on this many addresses, from 127.0.0.1 on.
pub(super) fn free_addresses(count: u8) -> io::Result<Vec<SocketAddr>> {
    let mut refused = None;
    for _ in 0..100 {
        let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = first.local_addr()?.port();
        let bind = |last| TcpListener::bind((Ipv4Addr::new(127, 0, 0, last), port));
        match (2..=count).map(bind).collect::<io::Result<Vec<TcpListener>>>() {
            Ok(others) => {
                return std::iter::once(&first)
                    .chain(&others)
                    .map(TcpListener::local_addr)
                    .collect();
            }
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or_else(|| io::Error::other("no free port")))
}
