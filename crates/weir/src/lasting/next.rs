//! A file that is written beside another one and takes its place when it is whole: a crash leaves the old one or the new one.
//!
//! Called by those who keep files (`bans`, `snapshot`). Where the file system can do it the new one has no name until it is whole, so that nothing is left
//! of one that was given up, however the process ended; then, and elsewhere from the beginning, the name is the other one's with `.new`. What a kill leaves
//! by that name goes with the next one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fd::AsRawFd as _;
use rustix::fs::{AtFlags, CWD, OFlags, linkat};

use super::claim::is_at;

/// One without a name could be made, and not be given one: from then on they have one from the beginning.
static MUST_BE_NAMED: AtomicBool = AtomicBool::new(false);

/// See the module. Given up when it is dropped.
#[derive(Debug)]
pub(crate) struct Next {
    file: File,
    /// Whose place it is to take.
    path: PathBuf,
    /// It is there by the name of [`beside`].
    is_named: bool,
}

impl Next {
    /// An empty one, for this user only. What a crash has left beside the other one goes; if somebody else has put a link there it is not followed.
    ///
    /// # Errors
    /// The operating system's.
    pub(crate) fn create(path: &Path) -> io::Result<Next> {
        let beside = beside(path);
        remove(&beside)?;
        let may_be_nameless = !MUST_BE_NAMED.load(Ordering::Relaxed);
        if let Some(file) = may_be_nameless.then(|| nameless(path)).flatten() {
            return Ok(Next { file, path: path.to_owned(), is_named: false });
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(beside)?;
        Ok(Next { file, path: path.to_owned(), is_named: true })
    }

    /// What is to be written.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives it the name of the other one; for good when the directory is on the disk.
    ///
    /// # Errors
    /// The operating system's: the other one is there as before. If it may not be given a name (some rules of AppArmor and the like) the next one may.
    pub(crate) fn take_its_place(mut self) -> io::Result<()> {
        let beside = beside(&self.path);
        if !self.is_named {
            remove(&beside)?;
            linkat(CWD, by_number(&self.file), CWD, &beside, AtFlags::SYMLINK_FOLLOW)
                .inspect_err(|_| MUST_BE_NAMED.store(true, Ordering::Relaxed))?;
            self.is_named = true;
            // What has no name is not in the log of btrfs: after a crash the name would be there, and nothing in it.
            self.file.sync_all()?;
        }
        std::fs::rename(&beside, &self.path)?;
        self.is_named = false;
        Ok(())
    }
}

impl Drop for Next {
    fn drop(&mut self) {
        let beside = beside(&self.path);
        // Another process may write its own there by now.
        if self.is_named && is_at(&self.file, &beside) {
            // It is not whole, and nobody reads it.
            let _ = remove(&beside);
        }
    }
}

/// One without a name, if there can be such and it can be given one: by /proc, for which no rights are needed.
fn nameless(path: &Path) -> Option<File> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::TMPFILE.bits().cast_signed();
    let file = OpenOptions::new().write(true).custom_flags(flags).mode(0o600).open(directory).ok()?;
    std::fs::symlink_metadata(by_number(&file)).is_ok().then_some(file)
}

fn by_number(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The name that a new one may have before it has the other one's.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Removes what an earlier one may have left beside a file that is not kept any more.
pub(crate) fn remove_rest(path: &Path) -> io::Result<()> {
    remove(&beside(path))
}

/// Removes a file that may not be there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    //! Proves: it takes the other one's place as a whole or leaves nothing, with a name before that and without, and what is there by that name is not
    //! written to. How: files in a directory of its own.

    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::lasting::tests::Directory;

    /// As where there are no files without names.
    fn named(path: &Path) -> Next {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(beside(path)).unwrap();
        Next { file, path: path.to_owned(), is_named: true }
    }

    #[test]
    fn with_a_name_and_without() {
        let directory = Directory::new("next");
        let path = directory.path("file");
        for make in [named, |path: &Path| Next::create(path).unwrap()] {
            std::fs::write(&path, "old").unwrap();
            let next = make(&path);
            next.file().write_all(b"new").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"old");
            drop(next);
            assert_eq!((std::fs::read(&path).unwrap(), directory.names()), (b"old".to_vec(), vec!["file".to_owned()]));
            let next = make(&path);
            next.file().write_all(b"new").unwrap();
            next.take_its_place().unwrap();
            assert_eq!((std::fs::read(&path).unwrap(), directory.names()), (b"new".to_vec(), vec!["file".to_owned()]));
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn one_that_may_have_no_name_later_has_one_at_once() {
        let directory = Directory::new("next-refused");
        let path = directory.path("file");
        std::fs::write(&path, "old").unwrap();
        // As where it is refused: one that had a name can't be given another one.
        let had = directory.path("had");
        let next = Next { file: File::create(&had).unwrap(), path: path.clone(), is_named: false };
        std::fs::remove_file(&had).unwrap();
        assert!(next.take_its_place().is_err());
        assert_eq!((std::fs::read(&path).unwrap(), directory.names()), (b"old".to_vec(), vec!["file".to_owned()]));
        let next = Next::create(&path).unwrap();
        assert!(next.is_named);
        next.file().write_all(b"new").unwrap();
        next.take_its_place().unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), directory.names()), (b"new".to_vec(), vec!["file".to_owned()]));
        MUST_BE_NAMED.store(false, Ordering::Relaxed);
    }

    #[test]
    fn what_is_there_by_its_name() {
        let directory = Directory::new("next-link");
        let (path, other, beside) = (directory.path("file"), directory.path("other"), directory.path("file.new"));
        std::fs::write(&other, "mine").unwrap();
        std::os::unix::fs::symlink(&other, &beside).unwrap();
        let next = Next::create(&path).unwrap();
        // And once more while it is written.
        let _ = std::os::unix::fs::symlink(&other, &beside);
        next.file().write_all(b"new").unwrap();
        next.take_its_place().unwrap();
        assert_eq!(
            (std::fs::read(&path).unwrap(), std::fs::read(&other).unwrap()),
            (b"new".to_vec(), b"mine".to_vec())
        );
        assert!(std::fs::symlink_metadata(&path).unwrap().is_file() && !beside.exists());
        // One that was given up leaves another one's alone.
        let next = named(&path);
        std::fs::remove_file(&beside).unwrap();
        std::fs::write(&beside, "another program's").unwrap();
        drop(next);
        assert!(beside.exists());
        remove_rest(&path).unwrap();
        assert!(!beside.exists());
    }
}
