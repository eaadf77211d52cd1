//! Listening at a path of the file system, unix(7): the socket appears there complete, with its
//! final rights, and its maker removes it. Called by `weir-worker`, and on a reload or when a
//! listener is taken over.
//!
//! The socket of a dead process is replaced, that of a living one is never pushed aside: a connect
//! finds out which it is. Two processes that do so at once are kept apart by a lock of the
//! directory. Other programs may hold that lock as well, so the wait for it is limited. Bounds:
//! [`LOCK_MAX`], [`REMOVAL_LOCK_MAX`].

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Gid, Mode, Uid, chownat, fchmod, flock};
use rustix::process::{getegid, geteuid};
use socket2::{Domain, SockAddr, Socket, Type};

/// How long another process may take to make its socket in the same directory.
const LOCK_MAX: Duration = Duration::from_secs(2);
/// The same where a name is only removed.
const REMOVAL_LOCK_MAX: Duration = Duration::from_millis(100);

/// The name of a unix socket that is listened on. It is removed with this, if it still belongs to
/// that socket and this process is responsible for it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Keeps its number from being given to another file; opened without any rights (O_PATH).
    file: File,
    /// Whether this process is responsible for it; otherwise another process is.
    is_ours: bool,
}

/// Makes a unix socket that is listened on at this path, with a mode (such as 0o660) and maybe a
/// group. `backlog` is in connections; the system caps it at `net.core.somaxconn`.
///
/// # Errors
/// Any obstacle, with a text that names the path: [`ErrorKind::AddrInUse`] where another process
/// listens there.
pub fn bind_unix(
    path: &Path,
    backlog: u32,
    mode: u32,
    group: Option<u32>,
) -> io::Result<(OwnedFd, SocketFile)> {
    let named = |error: io::Error| explain(path, &error);
    let lock = lock(path, LOCK_MAX);
    check_unix_free(path)?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(named(error)),
        _ => {}
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // The name has at most the mode of the socket when it is bound: no other user may connect
    // before the rights are right.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.set_nonblocking(true)?;
    SockAddr::unix(path).and_then(|address| socket.bind(&address)).map_err(named)?;
    let file = SocketFile::of(path, true).map_err(named)?;
    file.check_new().map_err(named)?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    drop(lock);
    file.set_rights(mode, group)?;
    Ok((socket.into(), file))
}

/// Whether [`bind_unix`] would find this path free, except for the remains of a dead process.
///
/// # Errors
/// As there; also a file that is no socket.
pub fn check_unix_free(path: &Path) -> io::Result<()> {
    let named = |error: io::Error| explain(path, &error);
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(named(error)),
        Ok(found) if !found.file_type().is_socket() => {
            let text = "a file that is not a socket is there; remove it, or choose another path";
            return Err(explain(path, &io::Error::new(ErrorKind::AlreadyExists, text)));
        }
        Ok(_) => {}
    }
    match crate::net::connect_unix(path, true).map_err(named)?.1 {
        Err(error)
            if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) =>
        {
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let text = "a socket is there to which weir may not connect, so weir cannot tell \
                whether it is in use; remove it, or choose another path";
            Err(explain(path, &io::Error::new(ErrorKind::PermissionDenied, text)))
        }
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(named(error)),
        // It listens, maybe with a full queue.
        _ => Err(explain(
            path,
            &io::Error::new(ErrorKind::AddrInUse, "another program listens there"),
        )),
    }
}

fn explain(path: &Path, error: &io::Error) -> io::Error {
    let hint = match error.kind() {
        ErrorKind::NotFound => "; create its directory",
        ErrorKind::PermissionDenied if error.raw_os_error().is_some() => {
            "; weir needs permission to create files in its directory"
        }
        _ => "",
    };
    io::Error::new(error.kind(), format!("cannot listen on unix:{}: {error}{hint}", path.display()))
}

/// Keeps others who follow the same rules out of the directory of this path. None: the lock is not
/// available in this time, and the caller works without it.
fn lock(path: &Path, patience: Duration) -> Option<File> {
    let file = File::open(path.parent()?).ok()?;
    let end = Instant::now() + patience;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) => return None,
        }
    }
}

impl SocketFile {
    /// The socket that is at this path now. `is_ours`: this process is responsible for it.
    ///
    /// # Errors
    /// The path has no socket.
    pub fn of(path: &Path, is_ours: bool) -> io::Result<SocketFile> {
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.file_type().is_socket() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        Ok(SocketFile { path: path.to_owned(), file, is_ours })
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets whether this process is responsible for it from now on.
    pub fn set_ours(&mut self, is_ours: bool) {
        self.is_ours = is_ours;
    }

    /// Changes its owner; None: as before.
    ///
    /// # Errors
    /// The operating system's.
    pub fn give_to(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        Ok(chownat(&self.file, "", uid, gid, AtFlags::EMPTY_PATH)?)
    }

    /// Device and inode: no other file has them as long as this is kept.
    pub fn id(&self) -> Option<(u64, u64)> {
        self.file.metadata().ok().map(|found| id(&found))
    }

    /// Where others control the directory, another file may have taken the place of the one that
    /// was just made.
    fn check_new(&self) -> io::Result<()> {
        let found = self.file.metadata()?;
        if found.uid() == geteuid().as_raw() && found.nlink() == 1 {
            return Ok(());
        }
        let text =
            "another user has put a file there; choose a directory where no other user may write";
        Err(io::Error::new(ErrorKind::AlreadyExists, text))
    }

    /// Gives it a mode, and a group; None: that of this process, or that of its directory where
    /// this gives it (inode(7), S_ISGID). Meanwhile no user may connect that may not before and
    /// afterwards.
    ///
    /// # Errors
    /// The operating system's, with a text that names the path.
    pub fn set_rights(&self, mode: u32, group: Option<u32>) -> io::Result<()> {
        let failed = |error: &io::Error| explain(&self.path, error);
        let found = self.file.metadata().map_err(|error| failed(&error))?;
        let (before, own) = (found.mode() & 0o7777, getegid().as_raw());
        let group = group
            .unwrap_or_else(|| if self.is_of_directory(found.gid()) { found.gid() } else { own });
        if found.gid() != group {
            self.set_mode(before & mode).map_err(|error| failed(&error))?;
            self.give_to(None, Some(group)).map_err(|error| {
                let why = match error.kind() {
                    ErrorKind::PermissionDenied => "weir must be root or in that group".to_owned(),
                    _ => error.to_string(),
                };
                failed(&io::Error::new(
                    error.kind(),
                    format!("cannot give it to group {group}: {why}"),
                ))
            })?;
        } else if before == mode {
            return Ok(());
        }
        self.set_mode(mode).map_err(|error| failed(&error))
    }

    /// Whether its directory gives this group to new files.
    fn is_of_directory(&self, gid: u32) -> bool {
        let directory = self.path.parent().and_then(|path| std::fs::metadata(path).ok());
        directory.is_some_and(|directory| {
            directory.mode() & libc::S_ISGID != 0 && directory.gid() == gid
        })
    }

    /// Sets the mode by a name that no other process can change: a link in its place would not be
    /// followed.
    fn set_mode(&self, mode: u32) -> io::Result<()> {
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.is_ours {
            return;
        }
        // Keeps others from putting another socket there between the look and the removal.
        let _lock = lock(&self.path, REMOVAL_LOCK_MAX);
        let found = std::fs::symlink_metadata(&self.path).ok();
        if self.id().is_some_and(|ours| found.is_some_and(|found| id(&found) == ours)) {
            // If its directory is no longer ours it remains, and the next process to listen there
            // replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn id(found: &std::fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

#[cfg(test)]
mod tests {
    //! Proves: the socket has its mode at once and is removed with its owner, the socket of a dead
    //! process is replaced, that of a living one and foreign files are not. How: sockets in a
    //! directory of the test.

    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let path =
                std::env::temp_dir().join(format!("weir-unix-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).expect("a directory");
            Directory(path)
        }

        fn bind(&self) -> io::Result<(OwnedFd, SocketFile)> {
            bind_unix(&self.0.join("s"), 8, 0o666, None)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn it_has_its_mode_and_goes_with_its_owner() {
        let directory = Directory::new("mode");
        let (socket, file) = directory.bind().expect("nothing is there");
        let found = std::fs::symlink_metadata(file.path()).expect("it is there");
        assert_eq!(found.permissions().mode() & 0o777, 0o666);
        crate::net::connect_unix(file.path(), true).expect("a socket").1.expect("it listens");
        let error = directory.bind().expect_err("it lives").to_string();
        let text = format!(
            "cannot listen on unix:{}: another program listens there",
            file.path().display()
        );
        assert_eq!(error, text);
        drop((socket, file));
        assert!(!directory.0.join("s").exists());
    }

    #[test]
    fn what_a_dead_process_left_is_replaced_and_not_removed_by_it() {
        let directory = Directory::new("dead");
        let (socket, mut first) = directory.bind().expect("nothing is there");
        drop(socket);
        let (_socket, second) = directory.bind().expect("nobody listens there");
        // Another file has its name now.
        drop(first);
        assert!(second.path().exists());
        first = SocketFile::of(second.path(), false).expect("a socket");
        drop(first);
        assert!(second.path().exists(), "that one was not ours");
    }

    #[test]
    fn a_lock_of_somebody_else_is_not_waited_for_for_ever() {
        let directory = Directory::new("lock");
        let held = File::open(&directory.0).expect("a directory");
        flock(&held, FlockOperation::LockExclusive).expect("nobody has it");
        let (_socket, file) = directory.bind().expect("it goes without");
        drop(file);
        assert!(!directory.0.join("s").exists());
    }

    #[test]
    fn a_file_that_somebody_else_can_have_put_there_is_refused() {
        let directory = Directory::new("swap");
        let (_socket, file) = directory.bind().expect("nothing is there");
        file.check_new().expect("it is ours alone");
        std::fs::hard_link(file.path(), directory.0.join("other")).expect("the same file system");
        let error = file.check_new().expect_err("it has two names").to_string();
        assert!(error.starts_with("another user has put a file there; "), "{error}");
    }

    #[test]
    fn a_group_that_is_not_said_any_more_is_taken_back() {
        if !geteuid().is_root() {
            return eprintln!("not tested: this needs root");
        }
        let directory = Directory::new("group");
        let (_socket, file) = directory.bind().expect("nothing is there");
        let rights = || {
            let found = std::fs::symlink_metadata(file.path()).expect("it is there");
            (found.mode() & 0o777, found.gid())
        };
        file.set_rights(0o660, Some(70)).expect("this is root");
        assert_eq!(rights(), (0o660, 70));
        file.set_rights(0o660, None).expect("it is ours");
        assert_eq!(rights(), (0o660, getegid().as_raw()));
    }

    #[test]
    fn other_files_stay() {
        let directory = Directory::new("file");
        std::fs::write(directory.0.join("s"), "mine").expect("a file");
        let error = directory.bind().expect_err("it is no socket").to_string();
        assert!(
            error.ends_with(
                "a file that is not a socket is there; remove it, or choose another path"
            ),
            "{error}"
        );
        assert_eq!(std::fs::read_to_string(directory.0.join("s")).expect("it is there"), "mine");
        let error = bind_unix(&directory.0.join("no/s"), 8, 0o600, None)
            .expect_err("no directory")
            .to_string();
        assert!(error.ends_with("; create its directory"), "{error}");
    }
}
