//! Writes a new version of a file beside the old one and replaces it when complete: a crash leaves
//! either the old or the new version.
//!
//! Used by the owners of files (`bans`, `snapshot`). Where the file system supports it, the new
//! file has no name until it is complete. So an abandoned file leaves nothing behind, however the
//! process ends. At the end, and elsewhere from the beginning, its name is that of the old file
//! with `.new`. A file that a kill leaves by that name is removed by the next writer.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fd::AsRawFd as _;
use rustix::fs::{AtFlags, CWD, OFlags, linkat};

use super::claim::is_at;

/// A file without a name was possible, but could not get one later: from now on files have one from
/// the beginning.
static MUST_BE_NAMED: AtomicBool = AtomicBool::new(false);

/// A new version of a file, abandoned when this is dropped.
#[derive(Debug)]
pub(crate) struct Next {
    file: File,
    /// The file that it will replace.
    path: PathBuf,
    /// It has the name of [`beside`].
    is_named: bool,
}

impl Next {
    /// Makes an empty file, for this user only. Removes the rest of a crash beside the old file;
    /// does not follow a link that another user has put there.
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

    /// Returns the file to write to.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Replaces the old file; durably once the directory is synced.
    ///
    /// # Errors
    /// The operating system's: the old file is still in place. If the file may not get a name
    /// (because of some rules of AppArmor and the like), the next file has one from the beginning.
    pub(crate) fn take_its_place(mut self) -> io::Result<()> {
        let beside = beside(&self.path);
        if !self.is_named {
            remove(&beside)?;
            linkat(CWD, by_number(&self.file), CWD, &beside, AtFlags::SYMLINK_FOLLOW)
                .inspect_err(|_| MUST_BE_NAMED.store(true, Ordering::Relaxed))?;
            self.is_named = true;
            // A file without a name is not in the log of btrfs: after a crash the name would exist,
            // but the file would be empty.
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
        // Another process may write its own file there by now.
        if self.is_named && is_at(&self.file, &beside) {
            // It is incomplete, and is never read.
            let _ = remove(&beside);
        }
    }
}

/// Makes a file without a name, if the system supports that and can name it later, through /proc,
/// which needs no rights.
fn nameless(path: &Path) -> Option<File> {
    let directory =
        path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::TMPFILE.bits().cast_signed();
    let file =
        OpenOptions::new().write(true).custom_flags(flags).mode(0o600).open(directory).ok()?;
    std::fs::symlink_metadata(by_number(&file)).is_ok().then_some(file)
}

fn by_number(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Returns the name that a new file may have before it gets the old file's.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Removes the rest of an earlier version beside a file that is no longer kept.
pub(crate) fn remove_rest(path: &Path) -> io::Result<()> {
    remove(&beside(path))
}

/// Removes a file that may be missing.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    //! Proves: it replaces the old file as a whole or leaves nothing, with a name before that and
    //! without, and never writes to a file that had that name. How: files in a separate directory.

    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::lasting::tests::Directory;

    /// Behaves like a system without nameless files.
    fn named(path: &Path) -> Next {
        let file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(beside(path)).unwrap();
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
            assert_eq!(
                (std::fs::read(&path).unwrap(), directory.names()),
                (b"old".to_vec(), vec!["file".to_owned()])
            );
            let next = make(&path);
            next.file().write_all(b"new").unwrap();
            next.take_its_place().unwrap();
            assert_eq!(
                (std::fs::read(&path).unwrap(), directory.names()),
                (b"new".to_vec(), vec!["file".to_owned()])
            );
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn one_that_may_have_no_name_later_has_one_at_once() {
        let directory = Directory::new("next-refused");
        let path = directory.path("file");
        std::fs::write(&path, "old").unwrap();
        // Behaves like a refusal: a file that had a name cannot get another.
        let had = directory.path("had");
        let next = Next { file: File::create(&had).unwrap(), path: path.clone(), is_named: false };
        std::fs::remove_file(&had).unwrap();
        assert!(next.take_its_place().is_err());
        assert_eq!(
            (std::fs::read(&path).unwrap(), directory.names()),
            (b"old".to_vec(), vec!["file".to_owned()])
        );
        let next = Next::create(&path).unwrap();
        assert!(next.is_named);
        next.file().write_all(b"new").unwrap();
        next.take_its_place().unwrap();
        assert_eq!(
            (std::fs::read(&path).unwrap(), directory.names()),
            (b"new".to_vec(), vec!["file".to_owned()])
        );
        MUST_BE_NAMED.store(false, Ordering::Relaxed);
    }

    #[test]
    fn what_is_there_by_its_name() {
        let directory = Directory::new("next-link");
        let (path, other, beside) =
            (directory.path("file"), directory.path("other"), directory.path("file.new"));
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
        // An abandoned file leaves another process's file alone.
        let next = named(&path);
        std::fs::remove_file(&beside).unwrap();
        std::fs::write(&beside, "another program's").unwrap();
        drop(next);
        assert!(beside.exists());
        remove_rest(&path).unwrap();
        assert!(!beside.exists());
    }
}
