//! A relay that listens on a unix socket in front of a server, and one that connects to a unix
//! socket behind a client.

use std::io::ErrorKind::{ConnectionRefused, NotFound};
use std::io::{Result, Write as _, copy};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::Waiting;

/// Listens on a unix socket in front of a server, until the test ends.
pub struct UnixFront {
    /// Its name in a configuration.
    pub name: String,
    accepted: Arc<AtomicUsize>,
}

impl UnixFront {
    /// Relays connections at `path` to `to`, and back.
    pub fn start(path: &Path, to: SocketAddr) -> UnixFront {
        let listener = UnixListener::bind(path).expect("nothing is there");
        let accepted = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&accepted);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let Ok(far) = TcpStream::connect(to) else { continue };
                let (near_too, far_too) = (
                    near.try_clone().expect("a descriptor"),
                    far.try_clone().expect("a descriptor"),
                );
                std::thread::spawn(move || up(&near, &far));
                std::thread::spawn(move || down(&near_too, &far_too));
            }
        });
        UnixFront { name: format!("unix:{}", path.display()), accepted }
    }

    /// Returns the number of connections so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// Relays connections from the address that it returns to the listener at `path`, after these
/// bytes, and back. It waits until something listens there: weir accepts at the listeners that it
/// bound first while it still binds the others.
pub fn to_unix(path: &Path, first: &[u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let (path, first): (PathBuf, Vec<u8>) = (path.to_owned(), first.to_vec());
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            // A client that is rejected sees the end.
            let Ok(mut far) = connect(&path) else { continue };
            far.write_all(&first).expect("the other side reads");
            let (near_too, far_too) =
                (near.try_clone().expect("a descriptor"), far.try_clone().expect("a descriptor"));
            std::thread::spawn(move || {
                let _ = copy(&mut &near, &mut &far);
                let _ = far.shutdown(Shutdown::Write);
            });
            std::thread::spawn(move || {
                let _ = copy(&mut &far_too, &mut &near_too);
                let _ = near_too.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

fn connect(path: &Path) -> Result<UnixStream> {
    let mut waiting = Waiting::begin();
    loop {
        match UnixStream::connect(path) {
            Err(error)
                if matches!(error.kind(), NotFound | ConnectionRefused) && waiting.goes_on() =>
            {
                std::thread::park_timeout(Duration::from_millis(2));
            }
            done => return done,
        }
    }
}

/// What one side ends or aborts ends on the other.
fn up(mut near: &UnixStream, mut far: &TcpStream) {
    let _ = copy(&mut near, &mut far);
    let _ = far.shutdown(Shutdown::Write);
}

fn down(mut near: &UnixStream, mut far: &TcpStream) {
    let _ = copy(&mut far, &mut near);
    let _ = near.shutdown(Shutdown::Write);
}
