//! Connections that are released to another driver, and taken in from one. Called by the commands
//! and the turn of [`super::Epoll`].

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use crate::net::set_nonblocking;
use crate::released::Which;
use crate::table::{self, NO_SEND};
use crate::{Completion, Driver, Loose, Receive, Socket, Token};

use super::{Epoll, WATCHED};

impl Epoll {
    /// Releases a connection with the next turn. Bytes that the kernel has of it remain with the
    /// kernel, for the driver that takes it in.
    pub(super) fn begin_release(&mut self, socket: Socket) -> bool {
        let busy = table::LISTENER | table::CONNECTING | table::RELAYING | table::RELEASING;
        let free =
            self.table.named(socket).is_some_and(|slot| !slot.has(busy) && slot.send == NO_SEND);
        if !free || self.pending.iter().any(|completion| completion.socket == socket) {
            return false;
        }
        self.defer(socket, false);
        let slot = self.table.slot(socket.index);
        slot.set_want(Receive::Off);
        slot.set(table::RELEASING);
        let ended = slot.has(table::ENDED);
        self.releases.begin(socket, ended);
        self.releases.is_ready(socket);
        true
    }

    /// Hands out the released connections.
    pub(super) fn finish_releases(&mut self, into: &mut Vec<Completion>) {
        for socket in self.releases.take_ready() {
            let Some(slot) = self.table.named(socket) else { continue };
            let (fd, token) = (slot.fd, slot.token);
            if slot.has(WATCHED) {
                self.poller.remove(fd);
            }
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
        set_nonblocking(connection.as_raw_fd())?;
        Ok(self.table.insert_client(connection.into_raw_fd(), token))
    }
}
