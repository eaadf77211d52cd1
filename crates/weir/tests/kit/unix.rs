//! Something that listens on a unix socket in front of a server.

use std::io::copy;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// See the module. It listens until the test ends.
pub struct UnixFront {
    /// What a configuration calls it.
    pub name: String,
    accepted: Arc<AtomicUsize>,
}

impl UnixFront {
    /// Passes on what comes at `path` to `to`, and back.
    pub fn start(path: &Path, to: SocketAddr) -> UnixFront {
        let listener = UnixListener::bind(path).expect("nothing is there");
        let accepted = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&accepted);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let Ok(far) = TcpStream::connect(to) else { continue };
                let (near_too, far_too) =
                    (near.try_clone().expect("a descriptor"), far.try_clone().expect("a descriptor"));
                std::thread::spawn(move || up(&near, &far));
                std::thread::spawn(move || down(&near_too, &far_too));
            }
        });
        UnixFront { name: format!("unix:{}", path.display()), accepted }
    }

    /// Connections so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

/// What one side ends, or breaks off, ends on the other.
fn up(mut near: &UnixStream, mut far: &TcpStream) {
    let _ = copy(&mut near, &mut far);
    let _ = far.shutdown(Shutdown::Write);
}

fn down(mut near: &UnixStream, mut far: &TcpStream) {
    let _ = copy(&mut far, &mut near);
    let _ = near.shutdown(Shutdown::Write);
}
