//! The messages between the old program and the new one: JSON on a socket (SOCK_SEQPACKET,
//! unix(7)), with descriptors beside it (SCM_RIGHTS). Used by both ends. Bounds:
//! [`MESSAGE_BYTES_MAX`], [`DESCRIPTORS_MAX`] in one message.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::orders::Ordered;

/// Version of the messages; a program rejects other versions.
pub(super) const VERSION: u32 = 1;
/// Longest message.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Largest number of descriptors in a message; the kernel accepts 253 (SCM_MAX_FD).
pub(super) const DESCRIPTORS_MAX: usize = 200;
/// Space for the alignment of descriptors in a message.
const ALIGNMENT_BYTES: usize = 16;

/// Messages of the old program, in this order.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub(super) enum ToNew {
    /// First: the sender, and its job that started the new program.
    Begin { version: u32, pid: u32, job: u64 },
    /// Sockets of the listener with this name in the configuration; `file`: device and inode of the
    /// file at the path of a unix socket, if it is the old program's.
    Listener {
        address: String,
        stays_open: bool,
        #[serde(default)]
        file: Option<(u64, u64)>,
    },
    /// The socket of the metrics listener with this name in the configuration.
    Metrics { address: SocketAddr },
    /// The admin socket, and its name.
    Admin { path: PathBuf },
    /// Orders of operators for a server.
    Ordered(Ordered),
    /// The end of the list.
    All,
    /// Accept clients.
    Go,
    /// The new program owns everything else from now on, including the admin socket.
    Yours,
}

/// Messages of the new program.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub(super) enum ToOld {
    /// It was started with this process number.
    Started { pid: u32 },
    /// It will accept on this listener when it may.
    Takes { address: String },
    /// It is not ready yet, for this reason.
    Waits { why: String },
    /// It is ready, with the metrics listener and the admin socket if it takes them.
    Ready { pid: u32, metrics: bool, admin: bool },
    /// It accepts clients.
    Accepts,
    /// It ends, with this code and text.
    Fails { code: u8, text: String },
}

/// The result of receiving.
#[derive(Debug)]
pub(super) enum Heard<T> {
    /// A message, with descriptors.
    Message(T, Vec<OwnedFd>),
    /// No message within the time.
    Nothing,
    /// The other side has closed.
    Ended,
}

/// One end of the channel.
#[derive(Debug)]
pub(super) struct Channel(OwnedFd);

impl Channel {
    /// Makes both ends; other processes do not inherit them.
    pub(super) fn pair() -> io::Result<(Channel, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Channel(ours), theirs))
    }

    /// Takes the end that this process was given. None: it is not such a socket.
    pub(super) fn given(socket: OwnedFd) -> Option<Channel> {
        let kind = rustix::net::sockopt::socket_type(&socket).ok()?;
        (kind == SocketType::SEQPACKET).then_some(Channel(socket))
    }

    /// Sets how long [`Channel::say`] may wait for the other side to read.
    pub(super) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        Ok(set_socket_timeout(
            &self.0,
            Timeout::Send,
            Some(patience.max(Duration::from_millis(1))),
        )?)
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The other side has closed, or does not read in time.
    pub(super) fn say(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let text = serde_json::to_vec(message).map_err(io::Error::other)?;
        let mut space = space(descriptors.len());
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::Error::other("too many descriptors for one message"));
        }
        loop {
            match sendmsg(&self.0, &[IoSlice::new(&text)], &mut beside, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives a message of the other side within this time.
    ///
    /// # Errors
    /// An invalid message, or the operating system's.
    pub(super) fn hear<T: DeserializeOwned>(&self, patience: Duration) -> io::Result<Heard<T>> {
        let patience = Timespec::try_from(patience).ok();
        match poll(
            &mut [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)],
            patience.as_ref(),
        ) {
            Ok(0) | Err(Errno::INTR) => return Ok(Heard::Nothing),
            ready => ready?,
        };
        let (mut text, mut space) = (vec![0; MESSAGE_BYTES_MAX], space(DESCRIPTORS_MAX));
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let length = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut text)], &mut beside, flags) {
                Ok(message) => break message.bytes,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(Heard::Nothing),
                // The other side has closed with unread messages. The kernel reports that once;
                // then its last messages can still be read.
                Err(Errno::CONNRESET) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let mut descriptors = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(all) = message {
                descriptors.extend(all);
            }
        }
        if length == 0 {
            return Ok(Heard::Ended);
        }
        let message = serde_json::from_slice(&text[..length]).map_err(io::Error::other)?;
        Ok(Heard::Message(message, descriptors))
    }
}

fn space(descriptors: usize) -> Vec<MaybeUninit<u8>> {
    vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(descriptors)) + ALIGNMENT_BYTES]
}

#[cfg(test)]
mod tests {
    //! Proves: messages keep their bounds and their descriptors; silence, an end and nonsense are
    //! distinct; the last message arrives.

    use std::os::unix::net::UnixDatagram;

    use super::*;

    const SOON: Duration = Duration::from_millis(1);
    const LATE: Duration = Duration::from_secs(20);

    #[test]
    fn messages_come_with_their_descriptors() {
        let (old, new) = Channel::pair().expect("sockets");
        let new = Channel::given(new).expect("such a socket");
        let (lent, other) = UnixDatagram::pair().expect("sockets");
        let many: Vec<BorrowedFd<'_>> = (0..DESCRIPTORS_MAX).map(|_| lent.as_fd()).collect();
        old.say(
            &ToNew::Listener {
                address: "[::1]:80".to_owned(),
                stays_open: true,
                file: Some((1, 2)),
            },
            &many,
        )
        .expect("said");
        old.say(&ToNew::All, &[]).expect("said");
        match new.hear(LATE).expect("understood") {
            Heard::Message(
                ToNew::Listener { address, stays_open: true, file: Some((1, 2)) },
                descriptors,
            ) => {
                assert_eq!((&*address, descriptors.len()), ("[::1]:80", DESCRIPTORS_MAX));
                UnixDatagram::from(descriptors.into_iter().next_back().expect("one"))
                    .send(b"x")
                    .expect("the same socket");
            }
            heard => panic!("{heard:?}"),
        }
        assert_eq!(other.recv(&mut [0; 2]).expect("it arrived"), 1);
        assert!(matches!(
            new.hear(LATE).expect("understood"),
            Heard::Message(ToNew::All, descriptors) if descriptors.is_empty()
        ));
    }

    #[test]
    fn silence_an_end_and_nonsense_differ() {
        let (old, new) = Channel::pair().expect("sockets");
        let new = Channel::given(new).expect("such a socket");
        assert!(matches!(new.hear::<ToNew>(SOON).expect("nothing"), Heard::Nothing));
        old.say(&"nonsense", &[]).expect("said");
        new.hear::<ToNew>(LATE).expect_err("no message");
        drop(old);
        assert!(matches!(new.hear::<ToNew>(LATE).expect("an end"), Heard::Ended));
        new.say(&ToOld::Accepts, &[]).expect_err("nobody hears it");
        assert!(Channel::given(UnixDatagram::unbound().expect("a socket").into()).is_none());
    }

    /// The first of the two processes of a new program may send its message so late that the old
    /// one has closed.
    #[test]
    fn the_last_word_of_who_did_not_hear_all_is_heard() {
        let (old, new) = Channel::pair().expect("sockets");
        let new = Channel::given(new).expect("such a socket");
        new.say(&ToOld::Started { pid: 1 }, &[]).expect("said");
        old.say(&ToNew::Yours, &[]).expect("said");
        drop(old);
        assert!(matches!(new.hear(LATE).expect("understood"), Heard::Message(ToNew::Yours, _)));
        assert!(matches!(new.hear::<ToNew>(LATE).expect("an end"), Heard::Ended));
    }

    #[test]
    fn who_takes_nothing_is_not_waited_for() {
        let (old, _new) = Channel::pair().expect("sockets");
        old.set_patience(SOON).expect("a socket option");
        let error = (0..100_000)
            .find_map(|_| old.say(&ToNew::All, &[]).err())
            .expect("the queue has an end");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
