//! Memory that operations point at only until they are submitted: message headers, slice lists,
//! addresses.
//!
//! The kernel copies these when it takes the operation (feature SUBMIT_STABLE), so they are reused
//! each turn. Bound: as many as operations are queued before one system call.

use std::net::SocketAddr;

use socket2::SockAddr;

use crate::outgoing::{Outgoing, SLICES_MAX};

struct Message {
    header: libc::msghdr,
    slices: [libc::iovec; SLICES_MAX],
}

/// Reused boxes, so that growth moves no memory that the kernel will read.
#[derive(Default)]
pub(crate) struct Scratch {
    // The boxes are the point: the kernel holds their addresses while the vectors grow.
    #[allow(clippy::vec_box)]
    messages: Vec<Box<Message>>,
    used: usize,
    #[allow(clippy::vec_box)]
    addresses: Vec<Box<SockAddr>>,
}

impl Scratch {
    /// A message header that describes the next slices of `outgoing`; valid until
    /// [`Scratch::clear`].
    pub(crate) fn message(&mut self, outgoing: &Outgoing) -> *const libc::msghdr {
        if self.used == self.messages.len() {
            let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
            // SAFETY: msghdr is plain data for which all zeroes (null pointers, no lengths) is a
            // value.
            let header = unsafe { std::mem::zeroed() };
            self.messages.push(Box::new(Message { header, slices: [empty; SLICES_MAX] }));
        }
        let message = &mut self.messages[self.used];
        self.used += 1;
        message.header.msg_iovlen = outgoing.fill(&mut message.slices) as _;
        message.header.msg_iov = message.slices.as_mut_ptr();
        &raw const message.header
    }

    /// An address in the kernel's form; valid until [`Scratch::clear`].
    pub(crate) fn address(
        &mut self,
        address: SocketAddr,
    ) -> (*const libc::sockaddr, libc::socklen_t) {
        self.addresses.push(Box::new(address.into()));
        let stored = &self.addresses[self.addresses.len() - 1];
        (stored.as_ptr().cast(), stored.len())
    }

    /// Everything queued was submitted.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
        self.addresses.clear();
    }
}
