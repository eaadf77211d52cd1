//! A connection on its way from one driver to another: no driver receives, sends or waits on it.
//!
//! Made by [`crate::Driver::release`], taken by [`crate::Driver::take_in`], on any thread. Dropping
//! it closes it. [`Releases`] is the state that real drivers keep of connections that are being
//! released. Bound: the bytes that one driver receives within the turn in which it releases a
//! connection.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use crate::sim::LooseEnd;
use crate::{Event, Socket};

/// A connection that no driver has.
#[derive(Debug)]
pub struct Loose(pub(crate) Which);

#[derive(Debug)]
pub(crate) enum Which {
    Descriptor(OwnedFd),
    Simulated(LooseEnd),
}

impl From<OwnedFd> for Loose {
    /// A connected socket.
    fn from(connected: OwnedFd) -> Loose {
        Loose(Which::Descriptor(connected))
    }
}

impl Loose {
    /// The descriptor; a simulated connection has none.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`]: it is simulated.
    pub(crate) fn into_descriptor(self) -> io::Result<OwnedFd> {
        match self.0 {
            Which::Descriptor(descriptor) => Ok(descriptor),
            Which::Simulated(_) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "a simulated connection"))
            }
        }
    }
}

/// The result of [`crate::Driver::release`].
#[derive(Debug)]
pub struct Released {
    /// The connection.
    pub connection: Loose,
    /// Bytes that were received and not handed out, in order.
    pub rest: Vec<u8>,
    /// The other side has closed its sending direction, behind these. A driver that takes the
    /// connection in and receives reports it again.
    pub ended: bool,
    /// Receiving has failed, behind these. The kernel reports it once: a driver that takes the
    /// connection in finds that it has ended.
    pub error: Option<io::Error>,
}

/// Bytes and events that came while a connection was being released.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ended: bool,
    pub(crate) error: Option<io::Error>,
}

impl Rest {
    /// The end of a release.
    pub(crate) fn with(self, connection: Which) -> Event {
        let Rest { bytes, ended, error } = self;
        Event::Released(Box::new(Released {
            connection: Loose(connection),
            rest: bytes,
            ended,
            error,
        }))
    }
}

/// Connections of one driver that are being released.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    /// By slot.
    begun: BTreeMap<u32, Rest>,
    /// Those without anything in flight. They may be closed.
    ready: Vec<Socket>,
}

impl Releases {
    /// Begins one. `ended`: the end was already reported.
    pub(crate) fn begin(&mut self, socket: Socket, ended: bool) {
        self.begun.insert(socket.index, Rest { ended, ..Rest::default() });
    }

    /// The bytes and events that have come on one so far.
    pub(crate) fn rest(&mut self, socket: Socket) -> &mut Rest {
        self.begun.entry(socket.index).or_default()
    }

    /// Nothing more comes.
    pub(crate) fn is_ready(&mut self, socket: Socket) {
        self.ready.push(socket);
    }

    /// Those for which nothing more comes.
    pub(crate) fn take_ready(&mut self) -> Vec<Socket> {
        std::mem::take(&mut self.ready)
    }

    /// One is over, or was closed.
    pub(crate) fn take(&mut self, socket: Socket) -> Rest {
        self.begun.remove(&socket.index).unwrap_or_default()
    }
}
