//! Drops packets from addresses in the kernel, before they are processed in any way: by a table of
//! nftables that belongs to this process and disappears with it. Called by the keeper of bans;
//! needs CAP_NET_ADMIN in the network namespace, at each call and in the calling thread.
//!
//! The kernel forgets each block after its time. `nft/table.rs` has the content of the table,
//! `nft/message.rs` the encoding. Bounds: as many hosts as [`Nft::open`] is given; a call sends
//! [`ELEMENTS_MAX`] elements at a time and waits for the kernel at most [`ANSWER_US`] each time. If
//! the kernel refuses a part of a call, because a set is full or memory is short, the rest is
//! carried out.

mod message;
mod table;
/// Whether a smaller batch would fail as well: without the right, or when the kernel does not
/// answer in time.
fn concerns_all(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
    sockopt,
};

use message::{Answer, Batch, ELEMENTS_MAX, answers, find};
use table::{Change, Element, Set, change, elements};

/// How long the kernel may take for an answer.
const ANSWER_US: u64 = 2_000_000;
/// Room for answers of the kernel until they are read: those of a batch with every message refused.
const ANSWERS_BYTES: usize = 1 << 20;

/// Addresses with a common prefix: the first of them, and the length of the prefix in bits (1 to
/// 32, or 1 to 128). Bits behind the prefix are 0.
pub type Network = (IpAddr, u8);

/// Whether a network may overlap with other blocked ones or have them beside it: a host, or the 64
/// bits of IPv6 that one client has. Of other networks, none may contain another that is blocked at
/// the same time.
pub fn stands_alone(network: Network) -> bool {
    !Set::of(network).is_of_intervals()
}

/// Which packets are examined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// TCP to these ports.
    Ports(Vec<u16>),
    /// All TCP.
    Host,
}

/// Counts of dropped packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Packets.
    pub packets: u64,
    /// Their bytes, with the IP header.
    pub bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Nft {
    socket: OwnedFd,
    table: String,
    /// The number of the next message.
    number: u32,
    /// Buffer for the kernel's answers.
    buffer: Vec<u8>,
}

impl Nft {
    /// Makes the table, with the name `table`, for at most `hosts_max` blocked hosts. Those in
    /// `allowed` are never dropped.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN, or when another program has a table of that name; EEXIST
    /// likewise; EOPNOTSUPP, ENOENT or EINVAL where the kernel has no nf_tables, or is older than
    /// 5.12; ETIMEDOUT when it does not answer.
    pub fn open(
        table: &str,
        scope: &Scope,
        allowed: &[Network],
        hosts_max: u32,
    ) -> io::Result<Nft> {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::NETFILTER))?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_timeout(
            &socket,
            sockopt::Timeout::Recv,
            Some(Duration::from_micros(ANSWER_US)),
        )?;
        sockopt::set_socket_recv_buffer_size(&socket, ANSWERS_BYTES)?;
        let mut nft =
            Nft { socket, table: table.to_owned(), number: 1, buffer: vec![0; 64 * 1024] };
        nft.carry_out(|batch, table| table::create(batch, table, scope, allowed, hosts_max))?;
        Ok(nft)
    }

    /// Blocks each of these for the given time. Returns those that the kernel has not taken, each
    /// with an error.
    ///
    /// One that is blocked already keeps its time on kernels before 6.12; remove it first.
    pub fn add(&mut self, blocks: &[(Network, Duration)]) -> Vec<(Network, io::Error)> {
        let timed =
            |(block, time): &(Network, Duration)| (*block, Some((time.as_millis() as u64).max(1)));
        self.change(&blocks.iter().map(timed).collect::<Vec<_>>(), Change::Add)
    }

    /// Unblocks these. Returns those that could not be removed: ENOENT is one that was not there,
    /// or had expired.
    pub fn remove(&mut self, blocks: &[Network]) -> Vec<(Network, io::Error)> {
        self.change(&blocks.iter().map(|block| (*block, None)).collect::<Vec<_>>(), Change::Delete)
    }

    /// Counts of packets dropped since the table was made.
    ///
    /// # Errors
    /// The operating system's.
    pub fn dropped(&mut self) -> io::Result<Dropped> {
        let number = self.number;
        self.number = number.wrapping_add(1);
        self.send(&table::ask_dropped(&self.table, number))?;
        self.receive(number, |told| {
            let counter = find(told, 4)?;
            let number = |kind| find(counter, kind)?.first_chunk().copied().map(u64::from_be_bytes);
            Some(Dropped { packets: number(2)?, bytes: number(1)? })
        })?
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Changes the sets in as few messages as possible, and retries in halves the parts that the
    /// kernel refuses: it takes a batch whole or not at all.
    fn change(
        &mut self,
        blocks: &[(Network, Option<u64>)],
        how: Change,
    ) -> Vec<(Network, io::Error)> {
        let mut failed = Vec::new();
        for set in [Set::Ban4, Set::Ban6, Set::Net4, Set::Net6] {
            let of_set: Vec<_> =
                blocks.iter().copied().filter(|(block, _)| Set::of(*block) == set).collect();
            // An interval is two elements.
            let mut parts: Vec<&[(Network, Option<u64>)]> =
                of_set.chunks(ELEMENTS_MAX / 2).collect();
            while let Some(part) = parts.pop() {
                let of_part: Vec<Element> = part
                    .iter()
                    .flat_map(|(network, time_ms)| elements(*network, *time_ms))
                    .collect();
                match self.carry_out(|batch, table| change(batch, table, set, &of_part, how)) {
                    Ok(()) => {}
                    Err(error) if part.len() == 1 || concerns_all(&error) => {
                        let why = |_| {
                            error
                                .raw_os_error()
                                .map_or_else(|| error.kind().into(), io::Error::from_raw_os_error)
                        };
                        failed.extend(part.iter().map(|(block, _)| (*block, why(()))));
                    }
                    Err(_) => parts.extend(<[_; 2]>::from(part.split_at(part.len() / 2))),
                }
            }
        }
        failed
    }

    /// Sends a batch and waits for the answer to its last message.
    fn carry_out(&mut self, write: impl FnOnce(&mut Batch, &str) -> u32) -> io::Result<()> {
        let mut batch = Batch::new(self.number);
        let last = write(&mut batch, &self.table);
        // The end of the batch has a number as well.
        self.number = last.wrapping_add(2);
        self.send(&batch.finish())?;
        self.receive(last, |_| None::<()>).map(drop)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = sendto(&self.socket, bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Reads until this message is answered: the first error since the last call, or the value that
    /// `take` finds in the answer.
    fn receive<T>(
        &mut self,
        number: u32,
        take: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        let mut refused = None;
        loop {
            let read = match recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Ok((read, _)) => read,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(refused.unwrap_or_else(|| error.into())),
            };
            for (of, answer) in answers(&self.buffer[..read]) {
                match answer {
                    Answer::Done(code) if code != 0 => {
                        // An error that concerns the whole batch comes with the number of the batch
                        // itself.
                        refused.get_or_insert_with(|| io::Error::from_raw_os_error(-code));
                    }
                    // Skips the header that messages of nftables have.
                    Answer::Told(told) if of == number => {
                        return Ok(take(told.get(4..).unwrap_or_default()));
                    }
                    _ => {}
                }
                if of == number {
                    return refused.map_or(Ok(None), Err);
                }
            }
            if let Some(refused) = refused {
                // Other answers to this batch are discarded.
                return self.forget_rest(number).and(Err(refused));
            }
        }
    }

    /// Takes the answers up to this message out of the socket, as far as they are there.
    fn forget_rest(&mut self, number: u32) -> io::Result<()> {
        while let Ok((read, _)) = recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            if answers(&self.buffer[..read]).any(|(of, _)| of == number) {
                break;
            }
        }
        Ok(())
    }
}
