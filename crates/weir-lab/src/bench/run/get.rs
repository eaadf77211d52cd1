//! One small request on a separate connection: for counters of servers, and to occupy them.
//!
//! Called by `stage.rs`, `keepalive.rs` and `cache.rs`. Bound: five seconds between two pieces of
//! the response.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Sends a request and returns the whole response.
///
/// # Errors
/// The server takes too long, or its response is not text.
pub(super) fn get(address: SocketAddr, target: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
