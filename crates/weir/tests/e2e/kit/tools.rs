//! Programs that users know: runs them, and keeps their files in a directory that disappears.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::{Io, Waiting, eventually, free_port};

/// A directory of one test.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a new one.
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("weir-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a writable temporary directory");
        Scratch(path)
    }

    /// Returns the path of a file in it.
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
/// It is not installed (`make setup` does that), or does not end; then it and its children are
/// killed.
pub fn run(program: &str, arguments: &[&str]) -> Output {
    finish(Command::new(program).args(arguments))
}

/// Runs weir with this configuration, without the rights to administer the network and to make raw
/// packets, until it ends. Returns its exit code, and what it printed.
pub fn finish_without_rights(io: Io, scratch: &Scratch, text: &str) -> (Option<i32>, String) {
    let file = scratch.write("weir.kdl", format!("io \"{}\"\n{text}", io.word()).as_bytes());
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-net_raw,-net_admin", "--inh-caps=-net_raw,-net_admin"]);
    command.args([env!("CARGO_BIN_EXE_weir"), "run", "-c"]).arg(file).env("WEIR_ADMIN", "off");
    let done = finish(&mut command);
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
}

/// Returns a page's DOM after a browser has run it. The browser reaches only this host, and sends
/// no requests besides those of the page.
pub fn browse(scratch: &Scratch, arguments: &[&str], url: &str) -> String {
    let profile = format!("--user-data-dir={}", scratch.path("profile").display());
    let fixed = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        "--ignore-certificate-errors",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        // Its clock stops while something is loaded, so this is how long a page may be idle.
        "--virtual-time-budget=20000",
        "--dump-dom",
        &profile,
    ];
    let output = run("chromium-headless-shell", &[&fixed, arguments, &[url]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The same for a command with an environment.
pub fn finish(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    // A test sets its proxies itself.
    for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error} (make setup installs it)"));
    let pipes: [Box<dyn Read + Send>; 2] = [
        Box::new(child.stdout.take().expect("piped")),
        Box::new(child.stderr.take().expect("piped")),
    ];
    let [stdout, stderr] = pipes.map(|mut pipe| {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            pipe.read_to_end(&mut all).map(|_| all)
        })
    });
    let mut waiting = Waiting::for_program();
    // Its children have its pipes as well.
    while child.try_wait().expect("a child").is_none()
        || !stdout.is_finished()
        || !stderr.is_finished()
    {
        if !waiting.goes_on() {
            let _ =
                Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status();
            let _ = child.wait();
            panic!("{command:?} doesn't end; {}", waiting.story());
        }
        std::thread::park_timeout(Duration::from_millis(2));
    }
    let status = child.wait().expect("a child");
    let [stdout, stderr] = [stdout, stderr]
        .map(|reader| reader.join().expect("no panic").expect("a pipe can be read"));
    Output { status, stdout, stderr }
}

/// Runs the body of this test in a separate network namespace: starts the test binary there again,
/// for this test alone. If such namespaces are impossible, it says so and tests nothing.
///
/// # Panics
/// The test failed there.
pub fn in_own_network(test: &str, body: impl FnOnce()) {
    in_network(&["--net", "--map-root-user"], test, body);
}

/// The same with all rights of root, which a user namespace does not give: to have the kernel run
/// programs.
///
/// # Panics
/// The test failed there.
pub fn in_own_network_as_root(test: &str, body: impl FnOnce()) {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tested: it needs root");
    }
    in_network(&["--net"], test, body);
}

fn in_network(unshare: &[&str], test: &str, body: impl FnOnce()) {
    const INSIDE: &str = "WEIR_TEST_IN_OWN_NETWORK";
    if std::env::var(INSIDE).is_ok_and(|inside| inside == test) {
        assert!(
            run("ip", &["link", "set", "lo", "up"]).status.success(),
            "the loopback interface of the namespace"
        );
        return body();
    }
    let binary = std::env::current_exe().expect("a test binary");
    let mut command = Command::new("unshare");
    command.args(unshare).arg(binary).args(["--exact", test, "--nocapture"]);
    command.env(INSIDE, test).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let done = finish(&mut command);
    let (shown, told) =
        (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    if told.starts_with("unshare: ") {
        return eprintln!("not tested: {told}");
    }
    eprintln!("{told}");
    // Apart from the outer binary's report on its own tests.
    let shown: String = shown.lines().map(|line| format!("| {line}\n")).collect();
    assert!(done.status.success() && shown.contains("1 passed"), "{shown}");
}

/// nginx as a server of files.
#[derive(Debug)]
pub struct Nginx {
    /// Its address.
    pub address: SocketAddr,
    child: Child,
    /// Removed with it.
    _scratch: Scratch,
}

impl Nginx {
    /// Serves files with these names and contents; `more` is inside its `server` block.
    pub fn start(files: &[(&str, &[u8])], more: &str) -> Nginx {
        let scratch = Scratch::new();
        for (name, bytes) in files {
            scratch.write(name, bytes);
        }
        Nginx::run(scratch, "", more)
    }

    /// Starts a proxy with kept connections to this server.
    pub fn in_front_of(server: SocketAddr) -> Nginx {
        let upstream = format!("upstream app {{ server {server}; keepalive 32; }}");
        let location = "location / { proxy_pass http://app; proxy_http_version 1.1; \
            proxy_set_header Connection \"\"; }";
        Nginx::run(Scratch::new(), &upstream, location)
    }

    fn run(scratch: Scratch, http: &str, more: &str) -> Nginx {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let config =
            scratch.write("nginx.conf", configuration(&scratch.0, address, http, more).as_bytes());
        let program =
            ["/usr/sbin/nginx", "/usr/bin/nginx"].into_iter().find(|path| Path::new(path).exists());
        let mut command = Command::new(program.unwrap_or("nginx"));
        command.arg("-p").arg(&scratch.0).arg("-c").arg(config).args(["-e", "error.log"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("nginx is installed (make setup)");
        eventually("nginx accepts", || TcpStream::connect(address).is_ok());
        Nginx { address, child, _scratch: scratch }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM: the master ends its worker; a killed master would leave it behind.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

fn configuration(root: &Path, address: SocketAddr, http: &str, more: &str) -> String {
    let root = root.display();
    format!(
        "daemon off; worker_processes 1; pid {root}/pid; error_log {root}/error.log;\n\
         events {{ worker_connections 4096; }}\n\
         http {{ access_log off; client_body_temp_path {root}/body; proxy_temp_path {root}/proxy;\n\
         fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;\n\
         {http}\n\
         server {{ listen {address} backlog=4096; root {root}; {more} }} }}\n"
    )
}

/// A socket of this network as /proc/net/tcp shows it (proc_net_tcp(5)).
#[derive(Debug)]
pub struct TcpSocket {
    /// Address and port in hexadecimal, as for the remote end.
    pub local: String,
    pub remote: String,
    /// In hexadecimal: `01` is established, `0A` listens.
    pub state: String,
    /// Bytes sent that the other side has not acknowledged.
    pub unacknowledged: usize,
}

pub fn tcp_sockets() -> Vec<TcpSocket> {
    let text = std::fs::read_to_string("/proc/net/tcp").expect("proc is mounted");
    let number = |digits: &str| usize::from_str_radix(digits, 16).ok();
    let socket = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1).map(str::to_owned);
        let (local, remote, state) = (words.next()?, words.next()?, words.next()?);
        let queues = words.next()?;
        Some(TcpSocket { local, remote, state, unacknowledged: number(queues.split_once(':')?.0)? })
    };
    text.lines().filter_map(socket).collect()
}

/// Writes a user as `weir passwd` does.
pub fn passwd(file: &Path, name: &str, password: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("passwd").arg(file).arg(name).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().expect("weir starts");
    writeln!(child.stdin.take().expect("piped"), "{password}").expect("weir reads");
    assert!(child.wait().expect("a child").success());
}
