//! TUN devices: network interfaces whose packets a program reads and writes
//! (Documentation/networking/tuntap.rst of the kernel). Called by the laboratory. Needs
//! CAP_NET_ADMIN in the namespace.
//!
//! A device exists as long as its [`Tun`], whatever ends the process. Packets are IP packets,
//! without anything in front, and at most as long as the interface's MTU: nothing is offloaded to a
//! program that reads.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// What makes them.
pub const TUN_DEVICE: &str = "/dev/net/tun";
/// Bytes of an interface's name.
pub const INTERFACE_NAME_BYTES_MAX: usize = 15;

/// `TUNSETIFF`.
const SET_INTERFACE: Opcode = opcode::write::<libc::c_int>(b'T', 202);
/// IP packets (`IFF_TUN`), nothing in front (`IFF_NO_PI`), a new one or none (`IFF_TUN_EXCL`).
const FLAGS: u16 = 0x0001 | 0x1000 | 0x8000;

/// `struct ifreq`, as far as it is needed.
#[repr(C)]
struct Wanted {
    name: [u8; INTERFACE_NAME_BYTES_MAX + 1],
    flags: u16,
    rest: [u8; 22],
}

/// See the module.
#[derive(Debug)]
pub struct Tun {
    file: File,
}

impl Tun {
    /// Makes a device of this name, of 1 to [`INTERFACE_NAME_BYTES_MAX`] bytes, in the namespace of
    /// this thread. It is down and has no address.
    ///
    /// # Errors
    /// EBUSY: an interface has this name; EINVAL: that is no name; EPERM without CAP_NET_ADMIN;
    /// ENOENT or EACCES of [`TUN_DEVICE`].
    pub fn create(name: &str) -> io::Result<Tun> {
        let mut wanted =
            Wanted { name: [0; INTERFACE_NAME_BYTES_MAX + 1], flags: FLAGS, rest: [0; 22] };
        if name.is_empty() || name.len() > INTERFACE_NAME_BYTES_MAX || name.contains(['\0', '%']) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        wanted.name[..name.len()].copy_from_slice(name.as_bytes());
        let tun = Tun { file: open()? };
        // SAFETY: the kernel reads and writes a `struct ifreq` of 40 bytes, as `Wanted` is laid
        // out.
        unsafe { ioctl(&tun.file, Updater::<SET_INTERFACE, Wanted>::new(&mut wanted)) }?;
        Ok(tun)
    }

    /// Whether devices can be made here at all, as far as that can be found out without making one.
    ///
    /// # Errors
    /// ENOENT, ENODEV or ENXIO: the kernel does not have them, or [`TUN_DEVICE`] does not exist;
    /// EACCES: this user may not open it.
    pub fn probe() -> io::Result<()> {
        open().map(drop)
    }

    /// Reads a packet that leaves by the interface; None: none waits. A longer packet is truncated.
    ///
    /// # Errors
    /// EBADFD: the interface was deleted.
    pub fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match (&self.file).read(into) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a packet into the namespace by the interface.
    ///
    /// # Errors
    /// EIO: the interface is down; EBADFD: it was deleted; EINVAL: that is no IP packet; ENOBUFS,
    /// ENOMEM.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write(packet).map(drop)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn open() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(TUN_DEVICE)
}

const _: () = assert!(size_of::<Wanted>() == size_of::<libc::ifreq>());
