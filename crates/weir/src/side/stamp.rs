//! Detects that a file has changed. Called by those that read files again: users, hosts,
//! resolv.conf.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Facts that change when a file is written or replaced: device, inode, size, time of its last
/// change (nanoseconds).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed_s: i64,
    changed_ns: i64,
}

impl Stamp {
    /// Returns the stamp of a file with this metadata.
    pub(crate) fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            changed_s: metadata.mtime(),
            changed_ns: metadata.mtime_nsec(),
        }
    }

    /// Returns the stamp of the file that has this path now.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn at(path: &Path) -> io::Result<Stamp> {
        std::fs::metadata(path).map(|metadata| Stamp::of(&metadata))
    }
}
