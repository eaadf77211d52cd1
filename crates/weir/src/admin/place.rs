//! The place of the admin socket, for the server that owns it and for its clients.
//!
//! Called by `admin` and by `client`. The socket is for its owner only (mode 0600 from the moment
//! it exists). weir replaces the socket of a dead process, but never that of a living one, unless
//! that one is ending. A lock on the directory separates two that start at once; the kernel
//! releases it when its holder ends.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use weir_config::AdminChoice;

/// The directory of services, made by the service manager or by root.
const SYSTEM: &str = "/run/weir";
/// The name of the socket there.
const NAME: &str = "admin.sock";
/// How long another weir may take for the steps above.
const LOCK_MAX: Duration = Duration::from_secs(2);
/// How long the owner of the socket may take to say whether it is ending.
const ASK_MAX: Duration = Duration::from_secs(1);
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// A listening socket's name, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    /// Another process may have put its own socket under the name meanwhile.
    identity: Identity,
}

/// Device, number and time of a file. The number alone is soon reused for another file.
#[derive(Debug, PartialEq, Eq)]
struct Identity(u64, u64, i64, i64);

impl Identity {
    fn of(found: &fs::Metadata) -> Identity {
        Identity(found.dev(), found.ino(), found.ctime(), found.ctime_nsec())
    }
}

/// Why the socket cannot be made.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) String);

/// Returns the places that `auto` means, best first. Servers and clients use the same list.
pub(crate) fn candidates() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty());
    let own = own.map(|directory| Path::new(&directory).join("weir"));
    let directories = std::iter::once(PathBuf::from(SYSTEM)).chain(own);
    directories.map(|directory| directory.join(NAME)).collect()
}

/// Makes the socket, or takes over the `given` one if its place is the wanted one. None: it is off.
///
/// # Errors
/// Why it fails, with a remedy.
pub(crate) fn bind(
    choice: &AdminChoice,
    given: Option<(PathBuf, UnixListener)>,
) -> Result<Option<(UnixListener, Place)>, Refused> {
    let bind_at = |path: &Path| {
        let given = given.filter(|(at, _)| at == path);
        let adopted = given.and_then(|(_, listener)| Some((listener, Place::of(path).ok()?)));
        adopted.map_or_else(|| bind_at(path), Ok).map(Some)
    };
    match choice {
        AdminChoice::Off => Ok(None),
        AdminChoice::At(path) => bind_at(path),
        AdminChoice::Auto => {
            let path = candidates().into_iter().find(|path| path.parent().is_some_and(usable));
            let path = path.ok_or_else(|| {
                Refused(format!(
                    "neither {SYSTEM} nor $XDG_RUNTIME_DIR can be written to; name a place with \
                        --admin PATH, or use --admin off"
                ))
            })?;
            bind_at(&path)
        }
    }
}

/// Gives the directory of services to the user that weir will run as, and makes it if it is
/// missing. If it belongs to another user than the present one it remains unchanged.
pub(crate) fn give(uid: u32, gid: u32) {
    let directory = Path::new(SYSTEM);
    let _ = DirBuilder::new().mode(0o700).create(directory);
    let is_ours =
        |found: fs::Metadata| found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if fs::symlink_metadata(directory).is_ok_and(is_ours) {
        // If this fails, making the socket reports why.
        let _ = std::os::unix::fs::lchown(directory, Some(uid), Some(gid));
    }
}

/// Whether sockets can be made in the directory, which is made if its parent allows that.
fn usable(directory: &Path) -> bool {
    // For this user only; an existing directory remains unchanged.
    let _ = DirBuilder::new().mode(0o700).create(directory);
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .is_ok()
}

fn bind_at(path: &Path) -> Result<(UnixListener, Place), Refused> {
    let refused = |error: io::Error| Refused(format!("{}: {error}", path.display()));
    let directory = path.parent().unwrap_or(Path::new("/"));
    let _lock = lock(directory).map_err(|error| {
        let hint = if error.kind() == ErrorKind::NotFound {
            "; create that directory, or name another place"
        } else {
            ""
        };
        Refused(format!("{}: {error}{hint}", directory.display()))
    })?;
    make_way(path)?;
    let listener = listen(path).map_err(refused)?;
    let place = Place::of(path).map_err(refused)?;
    if fs::symlink_metadata(path).map_err(refused)?.mode() & 0o177 != 0 {
        return Err(Refused(format!(
            "{}: this file system gives all users access to it",
            path.display()
        )));
    }
    Ok((listener, place))
}

/// Keeps other processes that follow the same rules out of the directory.
fn lock(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    let end = Instant::now() + LOCK_MAX;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(error) if error != rustix::io::Errno::WOULDBLOCK => return Err(error.into()),
            Err(_) if Instant::now() >= end => {
                return Err(io::Error::new(
                    ErrorKind::ResourceBusy,
                    "another program keeps it locked",
                ));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Removes an unused socket under this name.
fn make_way(path: &Path) -> Result<(), Refused> {
    let name = path.display();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Refused(format!("{name}: {error}"))),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Refused(format!(
                "{name} exists and is not a socket; name another place with --admin PATH"
            )));
        }
        Ok(_) => {}
    }
    let living = |pid: String| {
        Refused(format!(
            "{name} belongs to a running weir{pid}; give this one its own socket with --admin \
                PATH, or use --admin off"
        ))
    };
    match connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        // Its queue is full: the process is alive, and busy.
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(living(String::new())),
        Ok(stream) if is_ending(&stream) => {}
        Ok(stream) => {
            let peer = rustix::net::sockopt::socket_peercred(&stream);
            return Err(living(peer.map_or_else(
                |_| String::new(),
                |peer| format!(" (pid {})", peer.pid.as_raw_nonzero()),
            )));
        }
        Err(error) => return Err(Refused(format!("{name}: {error}"))),
    }
    fs::remove_file(path).map_err(|error| Refused(format!("{name}: {error}")))
}

/// Connects at once or not at all.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&socket2::SockAddr::unix(path)?)?;
    socket.set_nonblocking(false)?;
    Ok(socket.into())
}

/// Whether the owner is a weir that drains: its successor may have the name.
fn is_ending(mut stream: &UnixStream) -> bool {
    let mut ask = || -> io::Result<String> {
        stream.set_read_timeout(Some(ASK_MAX))?;
        stream.set_write_timeout(Some(ASK_MAX))?;
        stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.take(4096).read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.ends_with("\r\n\r\ndraining\n"))
}

/// Makes a socket that is never, not even briefly, open to others.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    // Linux gives the name the mode that the socket has when it is bound.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&socket2::SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

impl Place {
    /// Notes the socket that is there now.
    fn of(path: &Path) -> io::Result<Place> {
        let found = fs::symlink_metadata(path)?;
        if !found.file_type().is_socket() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        Ok(Place { path: path.to_owned(), identity: Identity::of(&found) })
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the socket to another process, so that it is not removed here.
    pub(crate) fn leave(mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _lock = self.path.parent().and_then(|directory| lock(directory).ok());
        let is_ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| Identity::of(&found) == self.identity);
        if is_ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a socket is for its owner only; weir replaces the socket of a dead process, never a
    //! living one or another file; and it removes only its own socket. How: sockets in a directory
    //! of the test.

    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let path =
                std::env::temp_dir().join(format!("weir-place-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Directory(path)
        }

        fn socket(&self) -> PathBuf {
            self.0.join("s")
        }

        fn bind(&self) -> Result<(UnixListener, Place), Refused> {
            bind(&AdminChoice::At(self.socket()), None).map(|bound| bound.expect("it is not off"))
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn it_is_for_its_owner_and_goes_with_it() {
        let directory = Directory::new("owner");
        let (listener, place) = directory.bind().unwrap();
        assert_eq!(
            fs::symlink_metadata(directory.socket()).unwrap().permissions().mode() & 0o777,
            0o600
        );
        drop((listener, place));
        assert!(!directory.socket().exists());
    }

    #[test]
    fn what_a_dead_process_left_is_replaced_and_not_removed_twice() {
        let directory = Directory::new("dead");
        let (listener, first) = directory.bind().unwrap();
        // As after kill -9: the name exists, without a listener.
        drop(listener);
        let (_listener, _second) = directory.bind().unwrap();
        drop(first);
        assert!(directory.socket().exists(), "the successor's");
    }

    #[test]
    fn a_living_one_stays_and_the_way_out_is_named() {
        let directory = Directory::new("living");
        let (_listener, _place) = directory.bind().unwrap();
        // It accepts in time but sends nothing: a silent process may be busy.
        let Refused(text) = directory.bind().unwrap_err();
        let pid = format!("(pid {})", std::process::id());
        assert!(text.contains("--admin PATH") && text.contains(&pid), "{text}");
        assert!(directory.socket().exists());
    }

    #[test]
    fn other_files_stay() {
        let directory = Directory::new("file");
        fs::write(directory.socket(), "mine").unwrap();
        let Refused(text) = directory.bind().unwrap_err();
        assert!(text.contains("not a socket"), "{text}");
        assert_eq!(fs::read_to_string(directory.socket()).unwrap(), "mine");
        let missing = AdminChoice::At(directory.0.join("no/s"));
        let Refused(text) = bind(&missing, None).unwrap_err();
        assert!(text.contains("create that directory"), "{text}");
        assert!(bind(&AdminChoice::Off, None).unwrap().is_none());
    }

    #[test]
    fn one_that_is_given_is_taken_over_and_left_by_its_owner() {
        let directory = Directory::new("given");
        let (listener, place) = directory.bind().unwrap();
        let take = |at: PathBuf| {
            let given = Some((at, listener.try_clone().unwrap()));
            bind(&AdminChoice::At(directory.socket()), given).map(Option::unwrap)
        };
        // Another place would need its own socket.
        take(directory.0.join("elsewhere")).unwrap_err();
        let (_taken, successor) = take(place.path().to_owned()).unwrap();
        place.leave();
        assert!(directory.socket().exists());
        drop(successor);
        assert!(!directory.socket().exists());
    }
}
