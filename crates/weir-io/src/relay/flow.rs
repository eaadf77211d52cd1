//! One direction of a relay: bytes from one socket to the other. Called by [`super::Relays`].
//!
//! ```text
//!   source --recv--> scratch --send--> sink        little at a time: two calls, one copy
//!                       \--what it didn't take--> held
//!   source --splice--> pipe --splice--> sink       much at a time: no copy
//! ```
//! Nothing is read while something waits for the sink, so a slow reader stops its writer. Bounds:
//! one pipe, or the bytes of one receive (and, at the start, those that receives in flight had
//! brought already).

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use super::pipe::{Pipe, Pipes};
use crate::net;

/// Bytes that one copying receive may bring. A receive that fills it shows that much is on its way:
/// further bytes are sent through a pipe, until a source brings less than this between two
/// silences. Measured with `examples/relay.rs` (messages of one size, each answered, processor time
/// of the forwarder): a pipe costs 10 to 30% more up to 32 KiB, as much at 64 KiB, and 20% less at
/// 128 KiB; on a connection that is always full it saves two thirds (0.15 s/GB for 0.42).
const COPY_BYTES: usize = 64 * 1024;

/// Resources that the flows of a driver share.
#[derive(Debug)]
pub(super) struct Tools {
    pub(super) pipes: Pipes,
    /// Made when the first byte is copied.
    pub(super) scratch: Vec<u8>,
    /// Most bytes for one splice.
    pub(super) pipe_bytes: u32,
    pub(super) syscalls: u64,
    pub(super) copied: u64,
    pub(super) spliced: u64,
}

/// The state of a socket.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) fd: RawFd,
    /// A receive may find something.
    pub(super) readable: bool,
    /// The end or an error follows the last byte, or one of them is urgent: a receive that stops
    /// before it does not mean that nothing is left.
    pub(super) stops_short: bool,
    /// A send may find room.
    pub(super) writable: bool,
    /// A receive from before the relay is in flight.
    pub(super) receiving: bool,
    /// A send from before the relay is in flight.
    pub(super) sending: bool,
}

/// Why a flow came to a halt.
#[derive(Debug)]
pub(super) enum Halt {
    /// A socket has to be waited for.
    Waiting,
    /// It had its share.
    Again,
    /// The source ended, and all of its bytes were delivered.
    Done,
    /// The source failed; held bytes can still be delivered.
    SourceFailed(io::Error),
    /// The sink failed.
    SinkFailed(io::Error),
}

/// Received bytes that the sink did not take.
#[derive(Debug, Default)]
struct Held {
    buffers: VecDeque<Box<[u8]>>,
    /// Bytes of the first one that were taken.
    offset: usize,
}

/// One direction.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Bytes that the sink has taken.
    pub(super) moved: u64,
    held: Option<Box<Held>>,
    pipe: Option<Pipe>,
    /// Bytes since the source was silent.
    burst: u32,
    /// Much is on its way: use a pipe.
    streaming: bool,
    /// The kernel can't splice these sockets.
    copies: bool,
    /// Nothing more comes from the source.
    pub(super) over: bool,
    /// Once all arrived bytes are read, the source has ended.
    pub(super) last: bool,
    /// Everything was delivered or given up.
    pub(super) done: bool,
}

impl Flow {
    /// `over`: the source has ended.
    pub(super) fn new(over: bool) -> Flow {
        Flow { over, ..Flow::default() }
    }

    /// Holds bytes that a receive brought before the relay began; they come before those still in
    /// the socket. Copied, because a sink that is not read may keep them for as long as the relay
    /// lives, while all sockets share the buffer's pool.
    pub(super) fn hold(&mut self, bytes: &[u8]) {
        if !self.done {
            self.held.get_or_insert_default().buffers.push_back(bytes.into());
        }
    }

    /// Gives up the undelivered bytes, and later ones.
    pub(super) fn abandon(&mut self, pipes: &mut Pipes) {
        self.held = None;
        if let Some(pipe) = self.pipe.take() {
            pipes.put(pipe);
        }
        self.over = true;
        self.done = true;
    }

    /// Moves bytes until a socket has to be waited for or `share` bytes were moved (one chunk more
    /// at most, and the held bytes when the source has ended).
    pub(super) fn advance(
        &mut self,
        source: &mut Side,
        sink: &mut Side,
        tools: &mut Tools,
        nonblocking: &mut bool,
        share: u64,
    ) -> Halt {
        let target = self.moved.saturating_add(share);
        let halt = loop {
            // After the end little is left to do, and the last bytes may wait in the kernel for it
            // (`MSG_MORE`).
            if self.moved >= target && !self.over {
                break Halt::Again;
            }
            match self.step(source, sink, tools, nonblocking) {
                Ok(None) => {}
                Ok(Some(halt)) => break halt,
                Err(halt) => break halt,
            }
        };
        if self.pipe.as_ref().is_some_and(|pipe| pipe.bytes() == 0)
            && let Some(pipe) = self.pipe.take()
        {
            tools.pipes.put(pipe);
        }
        halt
    }

    /// One delivery or one receive. Errors are those of a socket.
    fn step(
        &mut self,
        source: &mut Side,
        sink: &mut Side,
        tools: &mut Tools,
        nonblocking: &mut bool,
    ) -> Result<Option<Halt>, Halt> {
        // Bytes that were sent or received before the relay began come first.
        if sink.sending || !sink.writable && !self.over {
            return Ok(Some(Halt::Waiting));
        }
        if self.held.is_some() || self.pipe.as_ref().is_some_and(|pipe| pipe.bytes() > 0) {
            if !sink.writable {
                return Ok(Some(Halt::Waiting));
            }
            self.deliver(sink, tools).map_err(Halt::SinkFailed)?;
            return Ok(None);
        }
        if source.receiving {
            return Ok(Some(Halt::Waiting));
        }
        if self.over {
            self.done = true;
            return Ok(Some(Halt::Done));
        }
        if !source.readable {
            self.silent();
            return Ok((!self.over).then_some(Halt::Waiting));
        }
        let splices = self.streaming && !self.copies && stop_waiting(source, sink, nonblocking);
        if splices && (self.pipe.is_some() || self.take_pipe(tools)) {
            self.fill(source, tools).map_err(Halt::SourceFailed)?;
        } else {
            self.copy(source, sink, tools)?;
        }
        Ok(None)
    }

    fn take_pipe(&mut self, tools: &mut Tools) -> bool {
        self.pipe = tools.pipes.take();
        self.pipe.is_some()
    }

    /// Nothing is left in the source for now.
    fn silent(&mut self) {
        self.streaming &= self.burst as usize >= COPY_BYTES;
        self.burst = 0;
        self.over |= self.last;
    }

    fn came(&mut self, bytes: usize) {
        self.over |= bytes == 0;
        self.burst = self.burst.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
    }

    fn fill(&mut self, source: &mut Side, tools: &mut Tools) -> io::Result<()> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        tools.syscalls += 1;
        match pipe.fill(source.fd, tools.pipe_bytes) {
            Ok(bytes) => self.came(bytes),
            // A splice doesn't get past an urgent byte (`tcp_read_sock`), a receive does.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && source.stops_short => {
                self.streaming = false
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => source.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if cannot_splice(&error) => self.copies = true,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Receives, and sends the bytes at once; those without room are held.
    fn copy(&mut self, source: &mut Side, sink: &mut Side, tools: &mut Tools) -> Result<(), Halt> {
        tools.scratch.resize(COPY_BYTES, 0);
        let bytes =
            receive(source, &mut tools.scratch, &mut tools.syscalls).map_err(Halt::SourceFailed)?;
        let Some(mut bytes) = bytes else { return Ok(()) };
        self.came(bytes);
        self.streaming = bytes == COPY_BYTES;
        let mut failure = None;
        if bytes > 0 && bytes < COPY_BYTES {
            if source.stops_short {
                // As a rule the next thing is the end: if it is known before the bytes are sent, it
                // is sent in the same segment.
                match receive(source, &mut tools.scratch[bytes..], &mut tools.syscalls) {
                    Ok(None) => {}
                    Ok(Some(more)) => {
                        self.came(more);
                        bytes += more;
                    }
                    Err(error) => failure = Some(error),
                }
            } else {
                // As the epoll driver does: an edge announces later bytes, but not an end that was
                // announced already.
                source.readable = false;
            }
        }
        let ends = self.over && !self.last;
        let sent = send(sink, &tools.scratch[..bytes], ends, &mut tools.syscalls)
            .map_err(Halt::SinkFailed)?;
        self.moved += sent as u64;
        tools.copied += sent as u64;
        if sent < bytes {
            self.hold(&tools.scratch[sent..bytes]);
        }
        failure.map_or(Ok(()), |error| Err(Halt::SourceFailed(error)))
    }

    /// Sends waiting bytes.
    fn deliver(&mut self, sink: &mut Side, tools: &mut Tools) -> io::Result<()> {
        if let Some(held) = &mut self.held {
            let Some(buffer) = held.buffers.front() else {
                self.held = None;
                return Ok(());
            };
            let sent = send(sink, &buffer[held.offset..], false, &mut tools.syscalls)?;
            held.offset += sent;
            if held.offset == buffer.len() {
                held.buffers.pop_front();
                held.offset = 0;
            }
            self.moved += sent as u64;
            tools.copied += sent as u64;
            return Ok(());
        }
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        tools.syscalls += 1;
        match pipe.drain(sink.fd) {
            Ok(bytes) => {
                self.moved += bytes as u64;
                tools.spliced += bytes as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                sink.writable = false;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if cannot_splice(&error) => {
                let bytes = pipe.unload()?;
                self.copies = true;
                self.hold(&bytes);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Splicing needs descriptors that don't block, but operations from before the relay must not see
/// that. Returns whether they are non-blocking now; most relays are over before they need it.
fn stop_waiting(source: &Side, sink: &Side, nonblocking: &mut bool) -> bool {
    let both = [source, sink];
    if !*nonblocking && both.iter().all(|side| !side.receiving && !side.sending) {
        *nonblocking = both.iter().all(|side| net::set_nonblocking(side.fd).is_ok());
    }
    *nonblocking
}

/// Whether the call failed and not the socket: an unusual kind of socket, a sandbox, memory.
fn cannot_splice(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ENOSYS | libc::EPERM | libc::EOPNOTSUPP | libc::ENOMEM)
    )
}

/// Receives available bytes; None: none now. 0 bytes are the end.
fn receive(source: &mut Side, room: &mut [u8], syscalls: &mut u64) -> io::Result<Option<usize>> {
    *syscalls += 1;
    // SAFETY: the range is exclusively borrowed.
    match unsafe { net::receive(source.fd, room.as_mut_ptr(), room.len()) } {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            source.readable = false;
            Ok(None)
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends as much as the socket has room for; `ends`: only the end follows.
fn send(sink: &mut Side, bytes: &[u8], ends: bool, syscalls: &mut u64) -> io::Result<usize> {
    if bytes.is_empty() {
        return Ok(0);
    }
    *syscalls += 1;
    // SAFETY: `bytes` is readable for its length.
    match unsafe { net::send(sink.fd, bytes.as_ptr(), bytes.len(), ends) } {
        Ok(sent) => {
            sink.writable = sent == bytes.len();
            Ok(sent)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            sink.writable = false;
            Ok(0)
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}
