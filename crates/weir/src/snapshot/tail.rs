//! What became invalid since a snapshot was written, or is being written: behind its answers, each once. Called by the keeper (`snapshot`). Bound:
//! [`CHANGES_BYTES_MAX`], in the file and in memory.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use weir_cache::{Noted, put_change};

use super::file::CHANGES_BYTES_MAX;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Tail<W> {
    out: W,
    bytes: u64,
    /// All of them, for a URL that is posted to a thousand times a second is one.
    said: BTreeSet<Vec<u8>>,
    /// Since when something is not on the disk.
    unsynced_since: Option<Instant>,
}

impl<W: Write> Tail<W> {
    /// Behind so many bytes of changes that are there.
    pub(super) fn after(out: W, bytes: u64) -> Tail<W> {
        Tail { out, bytes, said: BTreeSet::new(), unsynced_since: None }
    }

    /// Adds what was noted.
    ///
    /// # Errors
    /// It is too much, or can't be written: what is in front is not to be used any more.
    pub(super) fn add(&mut self, noted: &Noted) -> io::Result<()> {
        let mut fits = !noted.has_more;
        let mut bytes = Vec::new();
        for change in &noted.list {
            let from = bytes.len();
            fits &= put_change(&mut bytes, change);
            if !self.said.insert(bytes[from..].to_vec()) {
                bytes.truncate(from);
            }
        }
        self.bytes += bytes.len() as u64;
        if !fits || self.bytes > CHANGES_BYTES_MAX {
            return Err(io::Error::other("too much has become invalid since it was written"));
        }
        if !bytes.is_empty() {
            self.unsynced_since.get_or_insert_with(Instant::now);
        }
        self.out.write_all(&bytes)
    }
}

impl Tail<File> {
    /// Has it on the disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.unsynced_since.take().is_some() { self.out.sync_data() } else { Ok(()) }
    }

    /// Something has not been on the disk for so long.
    pub(super) fn is_unsynced_for(&self, time: Duration) -> bool {
        self.unsynced_since.is_some_and(|since| since.elapsed() >= time)
    }
}

impl Tail<Vec<u8>> {
    /// Puts it behind the answers of a snapshot that is whole otherwise, and has all of that on the disk.
    pub(super) fn behind(self, mut file: File) -> io::Result<Tail<File>> {
        file.write_all(&self.out)?;
        file.sync_data()?;
        Ok(Tail { out: file, bytes: self.bytes, said: self.said, unsynced_since: None })
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each change is said once, and what is too much is an error. How: a tail in memory.

    use weir_cache::{Change, Changed, Target};

    use super::*;

    fn noted(count: usize, bytes: usize) -> Noted {
        let url = |number: usize| format!("http://a/{number:0>bytes$}").into_bytes();
        let list = (0..count).map(|number| Change { target: Target::Url(url(number)), is_soft: false });
        Noted { list: list.collect(), has_more: false }
    }

    #[test]
    fn each_is_said_once() {
        let mut tail = Tail::<Vec<u8>>::default();
        tail.add(&noted(3, 1)).unwrap();
        let bytes = tail.bytes;
        (0..1000).for_each(|_| tail.add(&noted(3, 1)).unwrap());
        assert_eq!((tail.bytes, tail.out.len() as u64), (bytes, bytes));
        Changed::read(&tail.out).unwrap();
        assert!(tail.add(&Noted { has_more: true, ..Noted::default() }).is_err());
        let mut tail = Tail::<Vec<u8>>::default();
        let many = CHANGES_BYTES_MAX as usize / 1000;
        assert!(tail.add(&noted(many / 2, 1000)).is_ok() && tail.add(&noted(many, 1000)).is_err());
    }
}
