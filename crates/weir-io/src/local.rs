//! Addresses of this machine. Called at start, for what must not be connected to.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;

/// All addresses of all interfaces, loopback too.
///
/// # Errors
/// The operating system's.
pub fn local_addresses() -> io::Result<Vec<IpAddr>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `list` may be written to; what it points to afterwards is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` is an element of the list, which is not freed before the loop ends.
        let entry = unsafe { &*at };
        addresses.extend(address_of(entry));
        at = entry.ifa_next;
    }
    // SAFETY: the list is from `getifaddrs`, and nothing points into it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(addresses)
}

fn address_of(entry: &libc::ifaddrs) -> Option<IpAddr> {
    let address = entry.ifa_addr;
    if address.is_null() {
        return None;
    }
    // SAFETY: an address begins with its family, whatever it is (getifaddrs(3)).
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says so.
            let address = unsafe { ptr::read_unaligned(address.cast::<libc::sockaddr_in>()) };
            Some(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so.
            let address = unsafe { ptr::read_unaligned(address.cast::<libc::sockaddr_in6>()) };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

/// Addresses of this machine as they were not long ago, for whoever asks often.
#[derive(Debug, Default)]
pub struct OwnAddresses {
    list: Vec<IpAddr>,
    read_us: Option<u64>,
}

impl OwnAddresses {
    /// How old what is known may be, microseconds.
    const AGE_US: u64 = 10_000_000;

    /// Whether what is sent there comes to this machine, for all that was known within the last 10 s. Looks again when that was longer ago.
    pub fn has(&mut self, address: IpAddr, now_us: u64) -> bool {
        if self.read_us.is_none_or(|read_us| now_us.saturating_sub(read_us) >= OwnAddresses::AGE_US) {
            self.read_us = Some(now_us);
            // What was known before is better than nothing.
            self.list = local_addresses().unwrap_or_else(|_| std::mem::take(&mut self.list));
        }
        let address = address.to_canonical();
        address.is_loopback() || address.is_unspecified() || self.list.contains(&address)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: loopback is found, and what is found can be bound. How: on the machine that runs it.

    use super::*;
    use std::net::{SocketAddr, UdpSocket};

    #[test]
    fn own_addresses_are_told_from_others() {
        let mut own = OwnAddresses::default();
        for address in local_addresses().unwrap() {
            assert!(own.has(address, 1), "{address}");
        }
        let has = |own: &mut OwnAddresses, text: &str| own.has(text.parse().unwrap(), 2);
        assert!(["127.9.9.9", "::ffff:127.0.0.1", "::1", "0.0.0.0"].iter().all(|text| has(&mut own, text)));
        assert!(!["203.0.113.9", "2001:db8::9"].iter().any(|text| has(&mut own, text)));
    }

    #[test]
    fn addresses_are_those_of_this_machine() {
        let addresses = local_addresses().unwrap();
        assert!(addresses.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)), "{addresses:?}");
        for address in addresses.into_iter().filter(IpAddr::is_ipv4) {
            assert!(UdpSocket::bind(SocketAddr::new(address, 0)).is_ok(), "{address}");
        }
    }
}
