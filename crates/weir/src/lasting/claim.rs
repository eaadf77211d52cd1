//! Ensures that only one process at a time uses a file that outlives it. Two would undo each
//! other's changes, and entries purged by one would come back from the other.
//!
//! Called by `hold` when this process may use the file. Its owner holds a lock (flock(2)) on a
//! second file beside it, `.lock`, because each write replaces the file itself. The kernel releases
//! the lock when the process ends, however that happens; a process that ends in order also removes
//! the lock file. The lock file holds only the number of the process, for people. weir leaves
//! anything else by that name alone.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

use super::WARY;

/// How often weir tries a lock whose file the previous owner has removed.
const TRIES_MAX: usize = 16;
/// Longest content of a lock file: a number of 32 bits and the end of a line.
const TEXT_BYTES_MAX: usize = 11;

/// A claim to a file for this process alone.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    /// None: no file is wanted.
    path: Option<PathBuf>,
    state: State,
    /// Why the lock is missing, as last reported.
    said: Option<String>,
}

#[derive(Debug, Default)]
enum State {
    /// It is not this process's, as far as is known.
    #[default]
    Open,
    Held(#[expect(dead_code, reason = "it ends with this")] Lock),
    /// It is used without a lock, because that place has no locks.
    Unlocked,
}

/// The outcome of a claim.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It was this process's before, or none is wanted.
    Before,
    /// It is this process's from now on. If no lock is possible there, with a message for the
    /// operator, once.
    Now(Option<String>),
    /// Another program has it; its description is for people.
    Others(String),
}

/// The lock, held until this is dropped.
#[derive(Debug)]
struct Lock {
    file: File,
    /// Path of the lock file.
    path: PathBuf,
}

impl Claim {
    /// Sets which file is wanted from now on, if any, and releases another one.
    pub(crate) fn want(&mut self, path: Option<&Path>) {
        if self.path.as_deref() != path {
            *self = Claim { path: path.map(Path::to_owned), ..Claim::default() };
        }
    }

    /// Takes the file if no other process has it. Never waits: if another process has it, the
    /// caller may try again.
    pub(crate) fn take(&mut self) -> Taken {
        let Some(path) = self.path.as_deref().filter(|_| !matches!(self.state, State::Held(_)))
        else {
            return Taken::Before;
        };
        let was_ours = self.is_ours();
        let problem = match Lock::of(path) {
            Ok(Ok(lock)) => {
                self.state = State::Held(lock);
                None
            }
            Ok(Err(other)) => {
                self.state = State::Open;
                return Taken::Others(format!("{} is in use by {other}", path.display()));
            }
            Err(error) => {
                self.state = State::Unlocked;
                // Without the directory there can be no file either, and the writer of the file
                // reports that.
                (error.kind() != io::ErrorKind::NotFound).then(|| error.to_string())
            }
        };
        let note = problem.filter(|problem| self.said.as_ref() != Some(problem)).map(|problem| {
            let note = format!(
                "{}: cannot lock it ({problem}): make sure that no other program uses this file",
                path.display()
            );
            self.said = Some(problem);
            note
        });
        if was_ours { Taken::Before } else { Taken::Now(note) }
    }

    /// It is this process's, as far as that can be known.
    pub(crate) fn is_ours(&self) -> bool {
        !matches!(self.state, State::Open)
    }

    /// Releases it; any process may take it from now on.
    pub(crate) fn let_go(&mut self) {
        self.state = State::Open;
    }
}

impl Lock {
    /// Returns the lock of a file, or its owner.
    fn of(path: &Path) -> io::Result<Result<Lock, String>> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        for _ in 0..TRIES_MAX {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(WARY);
            let mut file = match options.open(&path) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return foreign(&path).map_or(Err(error), |other| Ok(Err(other)));
                }
                opened => opened?,
            };
            let something_else = || {
                io::Error::other(
                    "another file has the name of its lock, so weir does not change it",
                )
            };
            if !file.metadata()?.is_file() {
                return Err(something_else());
            }
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(Err(holder(&mut file, &path))),
                Err(error) => return Err(error.into()),
            }
            // The previous owner may have removed it after it was opened here.
            if !is_at(&file, &path) {
                continue;
            }
            if !is_a_lock(&file)? {
                return Err(something_else());
            }
            // Only for people: on a full disk the lock file names no process.
            let _ = file.set_len(0).and_then(|()| writeln!(&file, "{}", std::process::id()));
            return Ok(Ok(Lock { file, path }));
        }
        Ok(Err("programs that constantly start and end".to_owned()))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While this process holds the lock, no other one replaces the file.
        if is_at(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
        // A process that is just starting may keep it open for a moment longer.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Whether weir may overwrite and remove a file: it belongs to this user, has only this name, and
/// holds the number of a process or nothing.
fn is_a_lock(file: &File) -> io::Result<bool> {
    let (about, mut bytes) = (file.metadata()?, [0; TEXT_BYTES_MAX + 1]);
    let count = file.read_at(&mut bytes, 0)?;
    let text = &bytes[..count];
    let is_number = text.strip_suffix(b"\n").unwrap_or(text).iter().all(u8::is_ascii_digit);
    let is_short = text.len() <= TEXT_BYTES_MAX;
    Ok(about.uid() == geteuid().as_raw() && about.nlink() == 1 && is_short && is_number)
}

/// Returns the owner of a lock that this user may not open, for people. None: the lock belongs to
/// this user, or there is none.
fn foreign(path: &Path) -> Option<String> {
    let uid = std::fs::symlink_metadata(path).ok()?.uid();
    (uid != geteuid().as_raw()).then(|| {
        format!(
            "a program of another user, number {uid} (the lock is {}: remove it if no such program \
                runs)",
            path.display()
        )
    })
}

/// Returns the owner of a lock, for people.
fn holder(file: &mut File, path: &Path) -> String {
    let mut text = String::new();
    let _ = file.take(16).read_to_string(&mut text);
    let who = match text.trim_end().parse::<u32>() {
        // Containers number their processes separately.
        Ok(pid) if pid == std::process::id() => {
            format!("weir itself, for another purpose, or process {pid} of another container")
        }
        Ok(pid) => format!("another program, process {pid}"),
        Err(_) => "another program".to_owned(),
    };
    format!("{who} (it has locked {})", path.display())
}

/// Whether the file is the one that is at a path now.
pub(super) fn is_at(file: &File, path: &Path) -> bool {
    let id = |about: &std::fs::Metadata| (about.dev(), about.ino());
    let both = (file.metadata(), std::fs::symlink_metadata(path));
    matches!(both, (Ok(one), Ok(other)) if id(&one) == id(&other))
}

#[cfg(test)]
mod tests {
    //! Proves: one process has the file at a time, however the previous one releases it; a process
    //! that cannot lock it gets one message and goes on. How: files in a separate directory.

    use super::*;
    use crate::lasting::tests::Directory;

    fn claim(path: &Path) -> Claim {
        let mut claim = Claim::default();
        claim.want(Some(path));
        claim
    }

    #[test]
    fn one_at_a_time() {
        let directory = Directory::new("claim");
        let (path, lock) = (directory.path("cache"), directory.path("cache.lock"));
        let (mut first, mut second) = (claim(&path), claim(&path));
        assert_eq!(first.take(), Taken::Now(None));
        assert_eq!((first.take(), first.is_ours(), second.is_ours()), (Taken::Before, true, false));
        let who = format!(
            "weir itself, for another purpose, or process {} of another container",
            std::process::id()
        );
        let told =
            format!("{} is in use by {who} (it has locked {})", path.display(), lock.display());
        assert_eq!((second.take(), second.is_ours()), (Taken::Others(told), false));
        // The same file again, and then another one.
        first.want(Some(&path));
        assert!(first.is_ours() && lock.exists());
        first.want(Some(&directory.path("other")));
        assert!(!first.is_ours() && !lock.exists());
        assert_eq!(second.take(), Taken::Now(None));
        second.let_go();
        assert_eq!((second.is_ours(), lock.exists()), (false, false));
        // The lock file that a crash leaves is not locked.
        std::fs::write(&lock, "4711\n").unwrap();
        let mut third = claim(&path);
        assert_eq!(third.take(), Taken::Now(None));
        assert_eq!(std::fs::read_to_string(&lock).unwrap(), format!("{}\n", std::process::id()));
        assert!(matches!(second.take(), Taken::Others(_)));
        drop(third);
        assert_eq!((second.take(), Claim::default().take()), (Taken::Now(None), Taken::Before));
    }

    #[test]
    fn a_lock_that_was_removed_is_none() {
        let directory = Directory::new("claim-removed");
        let path = directory.path("cache");
        let mut first = claim(&path);
        assert_eq!(first.take(), Taken::Now(None));
        std::fs::remove_file(directory.path("cache.lock")).unwrap();
        let mut second = claim(&path);
        assert_eq!(second.take(), Taken::Now(None));
        drop(first);
        assert!(directory.path("cache.lock").exists(), "it is the other one's by now");
    }

    #[test]
    fn where_none_can_be_had() {
        let directory = Directory::new("claim-none");
        let path = directory.path("cache");
        std::fs::create_dir(directory.path("cache.lock")).unwrap();
        let mut claim = claim(&path);
        assert!(
            matches!(claim.take(), Taken::Now(Some(note)) if note.contains("cannot lock it ("))
        );
        assert_eq!((claim.take(), claim.is_ours()), (Taken::Before, true), "it is said once");
        // It works without a lock no longer than necessary.
        std::fs::remove_dir(directory.path("cache.lock")).unwrap();
        assert_eq!(claim.take(), Taken::Before);
        assert!(matches!(self::claim(&path).take(), Taken::Others(_)));
        let nowhere = directory.path("no/cache");
        assert_eq!(self::claim(&nowhere).take(), Taken::Now(None), "who writes there says why not");
    }

    #[test]
    fn what_is_no_lock_is_left_alone() {
        let directory = Directory::new("claim-other");
        let (path, lock) = (directory.path("cache"), directory.path("cache.lock"));
        let is_refused = || {
            let mut claim = claim(&path);
            let taken = claim.take();
            matches!(
                taken,
                Taken::Now(Some(note)) if note.contains("(another file has the name of its lock")
            )
        };
        for text in ["words", "4711\n4712\n", "123456789012"] {
            std::fs::write(&lock, text).unwrap();
            assert!(is_refused(), "{text}");
            assert_eq!(std::fs::read_to_string(&lock).unwrap(), text);
        }
        // Under another name it may be anything.
        std::fs::write(&lock, "").unwrap();
        std::fs::hard_link(&lock, directory.path("other")).unwrap();
        assert!(is_refused() && lock.exists());
        std::fs::remove_file(directory.path("other")).unwrap();
        for text in ["", "4711", "4294967295\n"] {
            std::fs::write(&lock, text).unwrap();
            assert_eq!(claim(&path).take(), Taken::Now(None), "{text}");
        }
        assert!(!lock.exists());
        if geteuid().is_root() {
            std::fs::write(&lock, "").unwrap();
            std::os::unix::fs::chown(&lock, Some(65_534), None).unwrap();
            assert!(is_refused() && lock.exists());
            let stranger = "a program of another user, number 65534 (";
            assert!(foreign(&lock).is_some_and(|who| who.starts_with(stranger)));
            std::os::unix::fs::chown(&lock, Some(0), None).unwrap();
        }
        std::fs::write(&lock, "").unwrap();
        assert_eq!((foreign(&lock), foreign(&path)), (None, None));
    }
}
