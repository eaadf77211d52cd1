//! Programs that users know: run them, and keep their files in a directory that disappears.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{eventually, free_port};

/// A directory of one test.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new one.
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("weir-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a writable temporary directory");
        Scratch(path)
    }

    /// Where a file of it is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).expect("the directory is writable");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program to its end.
///
/// # Panics
/// It isn't installed (`make setup` does that).
pub fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    output.unwrap_or_else(|error| panic!("{program}: {error} (make setup installs it)"))
}

/// nginx as a server of files.
#[derive(Debug)]
pub struct Nginx {
    /// Where it listens.
    pub address: SocketAddr,
    child: Child,
    scratch: Scratch,
}

impl Nginx {
    /// Serves files with these names and contents; `more` stands in its `server` block.
    pub fn start(files: &[(&str, &[u8])], more: &str) -> Nginx {
        let scratch = Scratch::new();
        for (name, bytes) in files {
            scratch.write(name, bytes);
        }
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let config = scratch.write("nginx.conf", configuration(&scratch.0, address, more).as_bytes());
        let program = ["/usr/sbin/nginx", "/usr/bin/nginx"].into_iter().find(|path| Path::new(path).exists());
        let mut command = Command::new(program.unwrap_or("nginx"));
        command.arg("-p").arg(&scratch.0).arg("-c").arg(config).args(["-e", "error.log"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("nginx is installed (make setup)");
        eventually("nginx accepts", || TcpStream::connect(address).is_ok());
        Nginx { address, child, scratch }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM: the master ends its worker; a killed master would leave it behind.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

fn configuration(root: &Path, address: SocketAddr, more: &str) -> String {
    let root = root.display();
    format!(
        "daemon off; worker_processes 1; pid {root}/pid; error_log {root}/error.log;\n\
         events {{ worker_connections 4096; }}\n\
         http {{ access_log off; client_body_temp_path {root}/body; proxy_temp_path {root}/proxy;\n\
         fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;\n\
         server {{ listen {address} backlog=4096; root {root}; {more} }} }}\n"
    )
}
