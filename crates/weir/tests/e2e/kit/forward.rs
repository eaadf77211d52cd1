//! A forward proxy to test with, and names for its users.

use std::net::{Ipv4Addr, SocketAddr};

use super::{Io, Server, Weir, app, free_port};

/// Starts a proxy with a reverse route to `server` beside it, and returns it with the address of
/// its forward listener. `forward` goes inside its block, `more` behind it.
pub fn start(io: Io, server: &Server, forward: &str, more: &str) -> (Weir, SocketAddr) {
    let (text, address) = written(server, forward, more);
    (Weir::start(io, 2, &text), address)
}

/// Does the same under a limit of open descriptors.
pub fn start_with_descriptors(
    io: Io,
    server: &Server,
    forward: &str,
    descriptors: u32,
) -> (Weir, SocketAddr) {
    let (text, address) = written(server, forward, "");
    (Weir::start_with_descriptors(io, 2, &text, descriptors), address)
}

fn written(server: &Server, forward: &str, more: &str) -> (String, SocketAddr) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let forward = format!("forward {{\n listen \"{address}\"\n {forward}\n}}\n{more}\n");
    (app(server, 1, "") + &forward, address)
}

/// Returns the rule that lets clients connect to a port of this host.
pub fn allow(port: u16) -> String {
    format!("allow address=\"127.0.0.0/8,::1/128\" port={port}\n")
}
