//! Addresses of this machine: lists them, and looks one up. Called at start, and
//! before connects that must not lead to certain addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::Interfaces;

/// All addresses of all interfaces, including loopback.
///
/// # Errors
/// The operating system's.
pub fn local_addresses() -> io::Result<Vec<IpAddr>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: `list` may be written to; the list that it points to afterwards is freed below.
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

/// The name of this machine (gethostname(2)); empty if it has none, or none that is text.
pub fn host_name() -> String {
    // At most 64 bytes and a zero (HOST_NAME_MAX).
    let mut name = [0_u8; 65];
    // SAFETY: the kernel writes at most `name.len()` bytes there.
    let code = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    if code == 0 { String::from_utf8_lossy(&name[..end]).into_owned() } else { String::new() }
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

/// The kernel's answer to where packets to an address would be sent, for all threads of a network
/// namespace. So addresses count that were added a moment ago, or that a route of the type `local`
/// leads here.
#[derive(Debug)]
pub struct LocalRoutes {
    /// None: no socket could be made to ask by; it is tried again.
    interfaces: Mutex<Option<Interfaces>>,
    /// The addresses at the start, for when the kernel can't be asked.
    listed: Vec<IpAddr>,
}

impl LocalRoutes {
    /// For the namespace that this thread is in.
    ///
    /// # Errors
    /// The addresses can't be listed: the operating system's.
    pub fn here() -> io::Result<LocalRoutes> {
        Ok(LocalRoutes {
            interfaces: Mutex::new(Interfaces::here().ok()),
            listed: local_addresses()?,
        })
    }

    /// Whether packets to an address reach this machine now. Asks the kernel, which takes some
    /// microseconds.
    pub fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        if address.is_loopback() || address.is_unspecified() {
            return true;
        }
        let mut interfaces = self.interfaces.lock().unwrap_or_else(PoisonError::into_inner);
        if interfaces.is_none() {
            *interfaces = Interfaces::here().ok();
        }
        match interfaces.as_mut().map(|interfaces| interfaces.is_local(address)) {
            Some(Ok(is_local)) => is_local,
            // A new socket the next time.
            Some(Err(_)) => {
                *interfaces = None;
                self.listed.contains(&address)
            }
            None => self.listed.contains(&address),
        }
    }
}

/// Addresses of this machine as they were not long ago, for frequent queries.
#[derive(Debug, Default)]
pub struct OwnAddresses {
    list: Vec<IpAddr>,
    read_us: Option<u64>,
}

impl OwnAddresses {
    /// How old the list may be, microseconds.
    const AGE_US: u64 = 10_000_000;

    /// Whether packets to this address reach this machine, according to a list that is at most 10 s
    /// old. Makes a new list when the last one is older.
    pub fn has(&mut self, address: IpAddr, now_us: u64) -> bool {
        if self.read_us.is_none_or(|read_us| now_us.saturating_sub(read_us) >= OwnAddresses::AGE_US)
        {
            self.read_us = Some(now_us);
            // The old list is better than nothing.
            self.list = local_addresses().unwrap_or_else(|_| std::mem::take(&mut self.list));
        }
        let address = address.to_canonical();
        address.is_loopback() || address.is_unspecified() || self.list.contains(&address)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: loopback is found, and the addresses found can be bound. How: on the machine that
    //! runs it.

    use super::*;
    use std::net::{SocketAddr, UdpSocket};

    use weir_check::waiting::eventually;

    #[test]
    fn own_addresses_are_told_from_others() {
        let mut own = OwnAddresses::default();
        for address in local_addresses().unwrap() {
            assert!(own.has(address, 1), "{address}");
        }
        let has = |own: &mut OwnAddresses, text: &str| own.has(text.parse().unwrap(), 2);
        assert!(
            ["127.9.9.9", "::ffff:127.0.0.1", "::1", "0.0.0.0"]
                .iter()
                .all(|text| has(&mut own, text))
        );
        assert!(!["203.0.113.9", "2001:db8::9"].iter().any(|text| has(&mut own, text)));
    }

    #[test]
    fn an_address_counts_as_soon_as_it_is_there() {
        let Ok(there) = crate::Namespace::create() else {
            return eprintln!("not tested: no namespace can be made");
        };
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let seen = || {
            let mut interfaces = Interfaces::here().unwrap();
            let lo = interfaces.index("lo").unwrap().unwrap();
            interfaces.set_up(lo).unwrap();
            let routes = LocalRoutes::here().unwrap();
            let is = |text: &str| routes.has(address(text));
            assert!(is("127.0.0.1") && is("::1") && is("0.0.0.0") && is("127.9.9.9"));
            let later = ["9.9.9.9", "198.18.0.1", "198.18.0.2", "2001:db8::9"];
            assert!(!later.iter().any(|text| is(text)), "there is no route at all");
            // The third is a second address of its network, whose packets have the address of the
            // first.
            for (text, bits) in later.into_iter().zip([32, 24, 24, 128]) {
                match interfaces.add_address(lo, address(text), bits) {
                    Err(_) if text.contains(':') => eprintln!("not tested: there is no IPv6"),
                    done => {
                        done.unwrap();
                        // The kernel activates an IPv6 address a moment after it was added
                        // (addrconf_dad_work in net/ipv6/addrconf.c).
                        eventually("the address is there", || is(text));
                    }
                }
            }
            assert!(is("::ffff:9.9.9.9"));
            assert!(!is("9.9.9.8"));
        };
        there.enter(seen).unwrap();
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
