//! How a network card spreads received packets over its queues (receive side scaling), as its
//! driver reports it (ethtool(8), SIOCETHTOOL). Called to find out which core receives which
//! packets; changes nothing.

use std::io;
use std::os::fd::AsRawFd as _;

use socket2::{Domain, Socket, Type};

/// `ETHTOOL_GRSSH` (linux/ethtool.h).
const GET_RSS: u32 = 0x46;
/// `SIOCETHTOOL`.
const SIOCETHTOOL: libc::c_ulong = 0x8946;
/// `struct ethtool_rxfh` up to `rss_config`.
const HEADER_BYTES: usize = 24;
/// More entries than any table has, and more bytes than any key.
const TABLE_MAX: u32 = 65_536;
const KEY_BYTES_MAX: u32 = 1024;

/// How received packets are spread over queues.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rss {
    /// The queue, by the lowest bits of the hash.
    pub table: Vec<u32>,
    /// The key of the hash.
    pub key: Vec<u8>,
    /// Which hash, one bit: 1 is Toeplitz, 2 exclusive or, 4 CRC-32.
    pub function: u8,
    /// Addresses and ports are made the same for both directions first (`symmetric-xor`,
    /// `symmetric-or-xor`, Linux 6.8).
    pub is_symmetric: bool,
}

/// `struct ifreq` with a pointer.
#[repr(C)]
struct Request {
    name: [u8; 16],
    data: *mut u8,
    rest: [u8; 16],
}

/// The settings of an interface where this thread is; None: it has none, or does not report them.
///
/// # Errors
/// The interface does not exist; no socket can be made.
pub fn rss(interface: &str) -> io::Result<Option<Rss>> {
    let Some(sizes) = ask(interface, 0, 0)? else { return Ok(None) };
    let (table, key) = (number(&sizes, 8).min(TABLE_MAX), number(&sizes, 12).min(KEY_BYTES_MAX));
    if table == 0 {
        return Ok(None);
    }
    Ok(ask(interface, table, key)?.map(|told| read(&told, table as usize, key as usize)))
}

/// The driver's report, with room for this number of table entries and key bytes.
fn ask(interface: &str, table: u32, key: u32) -> io::Result<Option<Vec<u8>>> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    let mut data = vec![0u8; HEADER_BYTES + table as usize * 4 + key as usize];
    for (at, value) in [(0, GET_RSS), (8, table), (12, key)] {
        data[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    let mut request = Request { name: [0; 16], data: data.as_mut_ptr(), rest: [0; 16] };
    let name = interface.as_bytes();
    if name.is_empty() || name.len() >= request.name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..name.len()].copy_from_slice(name);
    // SAFETY: `request` is as large as the kernel's structure; `data` has as much room as its sizes
    // say, and both outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    if result == 0 {
        return Ok(Some(data));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EPERM | libc::EINVAL) => Ok(None),
        _ => Err(error),
    }
}

fn number(told: &[u8], at: usize) -> u32 {
    told.get(at..).and_then(|bytes| bytes.first_chunk()).copied().map_or(0, u32::from_ne_bytes)
}

fn read(told: &[u8], table: usize, key: usize) -> Rss {
    let end = HEADER_BYTES + table * 4;
    Rss {
        table: (0..table).map(|at| number(told, HEADER_BYTES + at * 4)).collect(),
        key: told.get(end..end + key).unwrap_or_default().to_vec(),
        function: told.get(16).copied().unwrap_or(0),
        is_symmetric: told.get(17).copied().unwrap_or(0) != 0,
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a driver's report is read from the right places, and an interface without one gives
    //! none. How: bytes as the kernel lays them out; loopback.

    use super::*;

    #[test]
    fn what_is_told_is_read() {
        // `cmd`, `rss_context`, `indir_size`, `key_size`, `hfunc`, `input_xfrm`, `rsvd8`, `rsvd32`.
        let mut told: Vec<u8> =
            [GET_RSS, 0, 4, 3].iter().flat_map(|number| number.to_ne_bytes()).collect();
        told.extend_from_slice(&[1, 1, 0, 0, 0, 0, 0, 0]);
        for queue in [0u32, 1, 2, 1] {
            told.extend_from_slice(&queue.to_ne_bytes());
        }
        told.extend_from_slice(&[0x6d, 0x5a, 0x6d]);
        let wanted = Rss {
            table: vec![0, 1, 2, 1],
            key: vec![0x6d, 0x5a, 0x6d],
            function: 1,
            is_symmetric: true,
        };
        assert_eq!(read(&told, 4, 3), wanted);
        assert_eq!(read(&[], 1, 1), Rss { table: vec![0], ..Rss::default() });
    }

    #[test]
    fn who_has_none_has_none() {
        assert_eq!(rss("lo").expect("every Linux has it"), None);
        assert_eq!(rss("warp0").expect_err("there is none").raw_os_error(), Some(libc::ENODEV));
        assert!(rss("").is_err() && rss("sixteen-letters-").is_err());
    }
}
