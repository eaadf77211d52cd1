//! Whether a file is another one than before. Called by whoever reads files again: users, hosts, resolv.conf.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// What changes when a file is written or replaced: device, inode, size, time of its last change (nanoseconds).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed_s: i64,
    changed_ns: i64,
}

impl Stamp {
    /// Of a file that is open, or was looked at.
    pub(crate) fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed_s: metadata.mtime(),
            changed_ns: metadata.mtime_nsec(),
        }
    }

    /// Of whatever has this path now.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn at(path: &Path) -> io::Result<Stamp> {
        std::fs::metadata(path).map(|metadata| Stamp::of(&metadata))
    }
}
