//! A forward proxy to test with, and names for those who use it.

use std::net::{Ipv4Addr, SocketAddr};

use super::{Io, Server, Weir, app, free_port};

/// A proxy, the address of its forward listener, and a reverse route to `server` beside it. `forward` stands inside of its
/// block, `more` behind it.
pub fn start(io: Io, server: &Server, forward: &str, more: &str) -> (Weir, SocketAddr) {
    let (text, address) = written(server, forward, more);
    (Weir::start(io, 2, &text), address)
}

/// The same under a limit of open descriptors.
pub fn start_with_descriptors(io: Io, server: &Server, forward: &str, descriptors: u32) -> (Weir, SocketAddr) {
    let (text, address) = written(server, forward, "");
    (Weir::start_with_descriptors(io, 2, &text, descriptors), address)
}

fn written(server: &Server, forward: &str, more: &str) -> (String, SocketAddr) {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let forward = format!("forward {{\n listen \"{address}\"\n {forward}\n}}\n{more}\n");
    (app(server, 1, "") + &forward, address)
}

/// The rule that lets clients go to a port of this host.
pub fn allow(port: u16) -> String {
    format!("allow address=\"127.0.0.0/8,::1/128\" port={port}\n")
}
