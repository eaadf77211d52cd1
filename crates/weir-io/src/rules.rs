//! Whether rules and routes of this machine lead packets for others to its own sockets, as
//! transparent listeners need it (ip-rule(8), ip-route(8)). Called by checks of a configuration,
//! before anything is served. Changes nothing, and needs no rights.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;

use crate::Interfaces;
use crate::netlink::find;
use crate::rtnetlink::octets;

/// `RTM_GETROUTE`, `RTM_GETRULE`.
const GET_ROUTE: u16 = 26;
const GET_RULE: u16 = 34;
/// `struct rtmsg` and `struct fib_rule_hdr`, which have the table at the same place; `RTA_TABLE`
/// and `FRA_TABLE` are equal as well.
const HEADER_BYTES: usize = 12;
const TABLE_AT: usize = 4;
const TABLE: u16 = 15;
/// `RTN_LOCAL`.
const LOCAL: u8 = 2;
/// `RTN_ANYCAST`: an address of this machine and of others.
const ANYCAST: u8 = 4;
/// `RTA_DST`.
const TO: u16 = 1;
/// The errors in the kernel's answer when no packet can be sent there: no route, or a route that
/// refuses.
const NO_WAY: [i32; 5] =
    [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL, libc::EAFNOSUPPORT];
/// `RTPROT_KERNEL`: made by the kernel, for an address of this machine.
const BY_KERNEL: u8 = 2;
/// `FR_ACT_TO_TBL`.
const TO_TABLE: u8 = 1;
/// `AF_INET` and `AF_INET6`.
const FAMILIES: [u8; 2] = [2, 10];
/// `RT_TABLE_LOCAL`, where a route for a part of all addresses belongs to the owner of these
/// addresses.
const LOCAL_TABLE: u32 = 255;
/// `FRA_L3MDEV`: to the table of whichever VRF it is.
const OF_VRF: u16 = 19;
/// `NETLINK_GET_STRICT_CHK`.
const STRICT: libc::c_int = 12;

/// The means by which packets for others are led here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Led {
    /// A rule, to a table with such a route.
    ByRule,
    /// A route exists, in this table, but no rule leads there.
    WithoutRule(u32),
    /// Nothing.
    Nowhere,
}

impl Interfaces {
    /// How packets for others are led to sockets of this namespace: by routes of the type `local`
    /// that were added, and rules that lead to them. Which packets the rules are for is not
    /// checked.
    ///
    /// # Errors
    /// The operating system's; ENOPROTOOPT before Linux 4.20, which would report all routes.
    pub fn led_here(&mut self, is_ipv6: bool) -> io::Result<Led> {
        self.ask_strictly()?;
        let family = FAMILIES[usize::from(is_ipv6)];
        let mut routes = Vec::new();
        let mut header = [0; HEADER_BYTES];
        (header[0], header[7]) = (family, LOCAL);
        self.tell_all(GET_ROUTE, &header, |told| {
            // `rtm_type` and `rtm_protocol`; 0 is the value of old kernels for their own routes.
            if told[7] == LOCAL && told[5] > BY_KERNEL {
                // `rtm_dst_len`.
                routes.extend(table(told).filter(|table| *table != LOCAL_TABLE || told[1] == 0));
            }
        })?;
        let mut has_vrf = false;
        let mut rules = Vec::new();
        let mut header = [0; HEADER_BYTES];
        header[0] = family;
        self.tell_all(GET_RULE, &header, |told| {
            // `action`.
            if told[7] == TO_TABLE {
                has_vrf |= find(&told[HEADER_BYTES..], OF_VRF).is_some();
                rules.extend(table(told));
            }
        })?;
        Ok(match routes.first() {
            _ if routes.iter().any(|table| has_vrf || rules.contains(table)) => Led::ByRule,
            Some(table) => Led::WithoutRule(*table),
            None => Led::Nowhere,
        })
    }

    /// Whether packets that this machine sends to an address come back to itself: the kernel's
    /// route for them is of the type `local`, or `anycast`.
    ///
    /// # Errors
    /// The operating system's, except errors which mean that no route leads to the address.
    pub fn is_local(&mut self, address: IpAddr) -> io::Result<bool> {
        let mut header = [0; HEADER_BYTES];
        let bits = if address.is_ipv4() { 32 } else { 128 };
        (header[0], header[1]) = (FAMILIES[usize::from(address.is_ipv6())], bits);
        let destination = octets(address);
        // An error of the socket says nothing about routes, whatever its number is.
        let told = self.answer(
            GET_ROUTE,
            0,
            &header,
            |message| message.bytes(TO, &destination),
            |told| told.get(7).copied(),
        )?;
        match told {
            Ok(kind) => Ok(matches!(kind, Some(LOCAL | ANYCAST))),
            Err(code) if NO_WAY.contains(&code) => Ok(false),
            Err(code) => Err(io::Error::from_raw_os_error(code)),
        }
    }

    /// Makes the kernel report only the requested entries.
    fn ask_strictly(&self) -> io::Result<()> {
        let on: libc::c_int = 1;
        let length = size_of_val(&on) as libc::socklen_t;
        // SAFETY: the descriptor is open as long as `self` is, and the pointer is to a number of
        // that length, which the kernel copies.
        let code = unsafe {
            libc::setsockopt(
                self.descriptor().as_raw_fd(),
                libc::SOL_NETLINK,
                STRICT,
                (&raw const on).cast(),
                length,
            )
        };
        if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// The table of a route, or the one to which a rule leads.
fn table(told: &[u8]) -> Option<u32> {
    let long =
        find(told.get(HEADER_BYTES..)?, TABLE).and_then(|number| number.first_chunk().copied());
    long.map(u32::from_ne_bytes).or_else(|| told.get(TABLE_AT).map(|short| u32::from(*short)))
}

#[cfg(test)]
mod tests {
    //! Proves: an added route with a rule to its table leads here, and only with it; the kernel's
    //! own routes do not. How: in new namespaces, if they may be made.

    use super::*;
    use crate::{Namespace, Tun};

    #[test]
    fn a_route_with_a_rule_leads_here() {
        let Ok(there) = Namespace::create() else {
            return eprintln!("not tested: no namespace can be made");
        };
        if Tun::probe().is_err() {
            return eprintln!("not tested: there are no TUN devices");
        }
        let led = || {
            let _tun = Tun::create("weir-led").unwrap();
            let mut interfaces = Interfaces::here().unwrap();
            let [lo, tun] = ["lo", "weir-led"].map(|name| interfaces.index(name).unwrap().unwrap());
            interfaces.set_up(lo).unwrap();
            interfaces.set_up(tun).unwrap();
            let own: IpAddr = "198.18.9.1".parse().unwrap();
            interfaces.add_address(tun, own, 30).unwrap();
            assert_eq!(interfaces.led_here(false).unwrap(), Led::Nowhere);
            assert_eq!(interfaces.led_here(true).unwrap(), Led::Nowhere);
            let [mine, other] = ["198.18.9.1", "198.18.9.2"].map(|text| text.parse().unwrap());
            assert_eq!(
                [mine, other].map(|address| interfaces.is_local(address).unwrap()),
                [true, false]
            );
            interfaces.lead_in(tun, "weir-led", lo, own, [None; 2]).unwrap();
            assert_eq!(interfaces.led_here(false).unwrap(), Led::ByRule);
            assert_eq!(interfaces.led_here(true).unwrap(), Led::Nowhere);
        };
        there.enter(led).unwrap();
    }

    #[test]
    fn a_table_is_named_in_either_way() {
        let mut told = vec![0; HEADER_BYTES];
        told[TABLE_AT] = 100;
        assert_eq!(table(&told), Some(100));
        told.extend_from_slice(&8u16.to_ne_bytes());
        told.extend_from_slice(&TABLE.to_ne_bytes());
        told.extend_from_slice(&1000u32.to_ne_bytes());
        assert_eq!(table(&told), Some(1000));
        for cut in 0..HEADER_BYTES {
            let _ = table(&told[..cut]);
        }
    }
}
