//! Invalidations since a snapshot was begun: behind its responses, each once. URLs without a
//! response in it are left out, because most requests that change something are for such URLs.
//! Called by the keeper (`snapshot`). Bounds: [`CHANGES_BYTES_MAX`], in the file and in memory, and
//! 8 bytes for each key of the snapshot.

use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::io::{self, Write};
use std::time::{Duration, Instant};

use weir_cache::{Noted, Target, put_change};

use super::file::CHANGES_BYTES_MAX;

/// The changes behind a snapshot.
#[derive(Debug, Default)]
pub(super) struct Tail<W> {
    out: W,
    bytes: u64,
    /// All of them, so that a URL with a thousand POST requests a second is written once.
    said: BTreeSet<Vec<u8>>,
    /// Hashes of the URLs of its responses, sorted. None: the URLs are not known.
    urls: Option<Box<[u64]>>,
    /// Time of the oldest change that is not on the disk.
    unsynced_since: Option<Instant>,
}

impl<W: Write> Tail<W> {
    /// Continues behind this many bytes of existing changes.
    pub(super) fn after(out: W, bytes: u64) -> Tail<W> {
        Tail { out, bytes, said: BTreeSet::new(), urls: None, unsynced_since: None }
    }

    /// Sets the URLs of its responses.
    pub(super) fn concern<'a>(&mut self, urls: impl Iterator<Item = &'a [u8]>) {
        let mut hashes: Vec<u64> = urls.map(hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        self.urls = Some(hashes.into());
    }

    /// Whether it is nearly full: time for another snapshot.
    pub(super) fn is_long(&self) -> bool {
        self.bytes > CHANGES_BYTES_MAX / 2
    }

    /// Adds changes.
    ///
    /// # Errors
    /// They do not fit, or cannot be written: the snapshot must not be used any more.
    pub(super) fn add(&mut self, noted: &Noted) -> io::Result<()> {
        let mut fits = !noted.has_more;
        let mut bytes = Vec::new();
        for change in
            noted.list.iter().filter(|change| is_concerned(self.urls.as_deref(), &change.target))
        {
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

/// Whether a response of these URLs may be affected.
fn is_concerned(urls: Option<&[u64]>, target: &Target) -> bool {
    match (target, urls) {
        (Target::Url(url), Some(urls)) => urls.binary_search(&hash(url)).is_ok(),
        _ => true,
    }
}

/// A collision costs only a few useless bytes.
fn hash(url: &[u8]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(url)
}

impl Tail<File> {
    /// Syncs it to the disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.unsynced_since.take().is_some() { self.out.sync_data() } else { Ok(()) }
    }

    /// Whether a change has been missing on the disk for this long.
    pub(super) fn is_unsynced_for(&self, time: Duration) -> bool {
        self.unsynced_since.is_some_and(|since| since.elapsed() >= time)
    }
}

impl Tail<Vec<u8>> {
    /// Appends it to the responses of an otherwise complete snapshot, and syncs all of that to the
    /// disk.
    pub(super) fn behind(self, mut file: File) -> io::Result<Tail<File>> {
        file.write_all(&self.out)?;
        file.sync_data()?;
        Ok(Tail {
            out: file,
            bytes: self.bytes,
            said: self.said,
            urls: self.urls,
            unsynced_since: None,
        })
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each change is written once, and too much is an error. How: a tail in memory.

    use weir_cache::{Change, Changed};

    use super::*;

    fn noted(count: usize, bytes: usize) -> Noted {
        let url = |number: usize| format!("http://a/{number:0>bytes$}").into_bytes();
        let list =
            (0..count).map(|number| Change { target: Target::Url(url(number)), is_soft: false });
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
        assert!(tail.add(&noted(many / 3, 1000)).is_ok() && !tail.is_long());
        assert!(tail.add(&noted(many * 2 / 3, 1000)).is_ok() && tail.is_long());
        assert!(tail.add(&noted(many, 1000)).is_err());
    }

    /// Otherwise changes without a pause would never reach the disk.
    #[test]
    fn what_comes_later_puts_off_nothing() {
        let mut tail = Tail::<Vec<u8>>::default();
        tail.add(&noted(1, 1)).unwrap();
        let since = tail.unsynced_since;
        assert!(since.is_some());
        while Instant::now() <= since.unwrap() {}
        tail.add(&noted(2, 1)).unwrap();
        assert_eq!(tail.unsynced_since, since);
    }

    /// However many they are.
    #[test]
    fn what_it_has_no_answers_of_is_not_said() {
        let mut tail = Tail::<Vec<u8>>::default();
        tail.concern([&b"http://a/1000"[..], b"http://a/1", b"http://a/1"].into_iter());
        let many = noted(CHANGES_BYTES_MAX as usize / 8, 1);
        tail.add(&many).unwrap();
        let mut expected = Vec::new();
        [1, 1000].into_iter().for_each(|at| assert!(put_change(&mut expected, &many.list[at])));
        assert_eq!(tail.out, expected);
        // A change that is not about one URL is always written.
        let host = Change { target: Target::Host(b"b".to_vec()), is_soft: true };
        tail.add(&Noted { list: vec![host.clone()], has_more: false }).unwrap();
        assert!(put_change(&mut expected, &host));
        assert_eq!(tail.out, expected);
    }
}
