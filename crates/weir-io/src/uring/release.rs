//! Connections that are released to another driver, and taken in from one. Called by the commands
//! of [`super::Uring`], its turn and `reap`.
//!
//! Sockets are named by real descriptors here, never by registered ones: any ring can take one. A
//! receive in flight has taken bytes from the kernel, or will until its cancellation is carried
//! out: they belong to the next holder of the connection.

use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use crate::released::Which;
use crate::table::{self, NO_SEND};
use crate::{Completion, Driver, Loose, Receive, RecvBuf, Socket, Token};

use super::ring::Entry;
use super::{ARMED, Uring};

impl Uring {
    /// Releases a connection as soon as nothing of it is in flight.
    pub(super) fn begin_release(&mut self, socket: Socket) -> bool {
        let busy = table::LISTENER | table::CONNECTING | table::RELAYING | table::RELEASING;
        let free =
            self.table.named(socket).is_some_and(|slot| !slot.has(busy) && slot.send == NO_SEND);
        if !free || self.pending.iter().any(|completion| completion.socket == socket) {
            return false;
        }
        self.defer(socket, false);
        self.table.slot(socket.index).set_want(Receive::Off);
        self.reconcile(socket);
        let slot = self.table.slot(socket.index);
        slot.set(table::RELEASING);
        let (armed, ended) = (slot.has(ARMED), slot.has(table::ENDED));
        self.releases.begin(socket, ended);
        if !armed {
            self.releases.is_ready(socket);
        }
        true
    }

    /// Bytes that a receive brings after its connection was released.
    pub(super) fn received_last(&mut self, socket: Socket, entry: Entry, buffer: Option<RecvBuf>) {
        let rest = self.releases.rest(socket);
        match (buffer, -entry.result) {
            (Some(buffer), _) => {
                rest.bytes.extend_from_slice(&buffer);
                self.recycle(buffer);
            }
            (None, 0) => rest.ended = true,
            (None, libc::ENOBUFS | libc::ECANCELED | libc::EINTR | libc::EAGAIN) => {}
            (None, code) => rest.error = Some(io::Error::from_raw_os_error(code)),
        }
        if entry.more() {
            return;
        }
        if self.releases.rest(socket).ended || self.releases.rest(socket).error.is_some() {
            self.table.slot(socket.index).set(table::ENDED);
        }
        self.releases.is_ready(socket);
    }

    /// Hands out those without anything in flight.
    pub(super) fn finish_releases(&mut self, into: &mut Vec<Completion>) {
        for socket in self.releases.take_ready() {
            let Some(slot) = self.table.named(socket) else { continue };
            let (fd, token) = (slot.fd, slot.token);
            self.table.remove(socket.index);
            self.scarce.forget(socket);
            // SAFETY: the table owned the descriptor, and has just forgotten it.
            let connection = unsafe { OwnedFd::from_raw_fd(fd) };
            let event = self.releases.take(socket).with(Which::Descriptor(connection));
            into.push(Completion { token, socket, event });
        }
    }

    pub(super) fn insert_loose(&mut self, connection: Loose, token: Token) -> io::Result<Socket> {
        let connection = connection.into_descriptor()?;
        // As with one that was connected elsewhere.
        rustix::io::ioctl_fionbio(&connection, false)?;
        Ok(self.table.insert_client(connection.into_raw_fd(), token))
    }
}
