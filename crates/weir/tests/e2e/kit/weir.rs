//! The real binary under a written configuration: start, readiness, end, and leftovers that are
//! forbidden.

use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use socket2::{Domain, Socket, Type};

use super::{Scratch, Server, Waiting, eventually, eventually_or};

/// The driver that weir should use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    /// io_uring.
    Uring,
    /// epoll.
    Epoll,
}

impl Io {
    /// Returns the word of the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Io::Uring => "uring",
            Io::Epoll => "epoll",
        }
    }
}

/// A running weir.
#[derive(Debug)]
pub struct Weir {
    /// The address of its listener.
    pub address: SocketAddr,
    child: Child,
    /// The process that has taken over; 0: none.
    in_charge: AtomicU32,
    said: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
    scratch: Scratch,
}

/// Returns a port without a listener, below the range that the kernel gives to outgoing
/// connections. The search does not listen: a program that another test starts at this moment has a
/// copy of the socket until it runs, and a listening one would block the port.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 200) as u16 * 100;
    loop {
        let port = 10_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        if can_be_bound(port) {
            return port;
        }
    }
}

fn can_be_bound(port: u16) -> bool {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a descriptor");
    socket.set_reuse_address(true).expect("an option of every socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], port)).into()).is_ok()
}

/// Returns one upstream `app` with one server and this many connections to it, made in advance, and
/// the route to it; `more` is inside the upstream.
pub fn app(server: &Server, connections: u32, more: &str) -> String {
    let address = server.address;
    format!(
        "upstream \"app\" {{\n server \"{address}\" connections-min={connections} \
            connections={connections} connections-max={connections}\n {more}\n}}\n\
            route host=\"*\" path=\"/\" {{ proxy \"app\" }}\n"
    )
}

/// Returns the status as JSON.
pub fn status(weir: &Weir) -> serde_json::Value {
    serde_json::from_str(&weir.answer(&["status", "--json"])).expect("JSON")
}

/// Returns the first server of the first upstream in the status.
pub fn server_status(weir: &Weir) -> serde_json::Value {
    status(weir)["upstreams"][0]["servers"][0].clone()
}

/// Returns the addresses of a configuration's listeners, those of `metrics` last; without unix
/// sockets.
fn listeners(text: &str) -> Vec<SocketAddr> {
    let of = |word| text.split(word).skip(1).filter_map(|rest: &str| rest.split_once('"'));
    let quoted = of("listen \"").chain(of("metrics \""));
    // `listen` of a route has names.
    let is_network = |address: &str| address.contains(':') && !address.starts_with("unix:");
    let quoted = quoted.filter(|(address, _)| is_network(address));
    quoted.map(|(address, _)| address.parse().expect("an address")).collect()
}

impl Weir {
    /// Starts `weir run` with the driver, the number of workers and the rest of the configuration,
    /// and waits until it accepts on all addresses.
    pub fn start(io: Io, workers: u32, rest: &str) -> Weir {
        Weir::start_by(io, workers, rest, Command::new(env!("CARGO_BIN_EXE_weir")))
    }

    /// The same under a limit of open descriptors.
    pub fn start_with_descriptors(io: Io, workers: u32, rest: &str, descriptors: u32) -> Weir {
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            &format!("ulimit -n {descriptors}; exec \"$0\" \"$@\""),
            env!("CARGO_BIN_EXE_weir"),
        ]);
        Weir::start_by(io, workers, rest, shell)
    }

    /// The same by this command, to which the arguments are added.
    pub fn start_by(io: Io, workers: u32, rest: &str, mut command: Command) -> Weir {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let scratch = Scratch::new();
        // Catalogues of hostile requests know this name.
        let name = if rest.contains("via-name") { "" } else { "via-name \"weir\"\n" };
        let text =
            format!("workers {workers}\nio \"{}\"\n{name}listen \"{address}\"\n{rest}", io.word());
        let file = scratch.write("weir.kdl", text.as_bytes());
        command.args(["run", "-c"]).arg(&file).env_remove("WEIR_CONFIG");
        command.env("WEIR_ADMIN", scratch.path("admin.sock"));
        Weir::watch(command, &listeners(&text), scratch)
    }

    /// Starts any command line of weir that listens on `address`.
    pub fn command(arguments: &[&str], address: SocketAddr) -> Weir {
        Weir::command_with(arguments, address, &[])
    }

    /// The same with these variables of the environment.
    pub fn command_with(
        arguments: &[&str],
        address: SocketAddr,
        variables: &[(&str, &str)],
    ) -> Weir {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(arguments).env("WEIR_ADMIN", "off").envs(variables.iter().copied());
        Weir::watch(command, &[address], Scratch::new())
    }

    fn watch(mut command: Command, listeners: &[SocketAddr], scratch: Scratch) -> Weir {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("weir starts");
        let said = Arc::new(Mutex::new(String::new()));
        let pipes: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("piped")),
            Box::new(child.stderr.take().expect("piped")),
        ];
        let readers = pipes.map(|pipe| collect(pipe, Arc::clone(&said))).into();
        let in_charge = AtomicU32::new(0);
        let mut weir = Weir { address: listeners[0], child, in_charge, said, readers, scratch };
        listeners.iter().for_each(|address| weir.wait_until_it_accepts(*address));
        weir
    }

    fn wait_until_it_accepts(&mut self, address: SocketAddr) {
        let (child, said) = (&mut self.child, &self.said);
        let said = || said.lock().expect("no reader panicked").clone();
        let accepts = || {
            if let Some(status) = child.try_wait().expect("weir is a child") {
                panic!("weir ended at start with {status}:\n{}", said());
            }
            TcpStream::connect(address).is_ok()
        };
        eventually_or("weir accepts", accepts, || format!("at {address}; it said:\n{}", said()));
    }

    /// Returns what it has written to stdout and stderr.
    pub fn said(&self) -> String {
        self.said.lock().expect("no reader panicked").clone()
    }

    /// Waits until it has written a text: a thread reads what it writes, and may be late.
    ///
    /// # Panics
    /// It has not in time.
    #[track_caller]
    pub fn says(&self, text: &str) {
        eventually_or(text, || self.said().contains(text), || self.said());
    }

    /// Returns its process id; after an upgrade that of the program in charge.
    pub fn pid(&self) -> u32 {
        match self.in_charge.load(Ordering::Relaxed) {
            0 => self.child.id(),
            pid => pid,
        }
    }

    /// Upgrades it, and waits until the new program has taken over. Returns the previous process
    /// id.
    pub fn upgrade(&self) -> u32 {
        let before = self.pid();
        assert!(self.answer(&["upgrade"]).is_empty(), "nothing is to be said of success");
        assert_ne!(self.follow(), before, "another process is in charge");
        before
    }

    /// Returns the id of the process in charge, which [`Weir::pid`] returns from now on.
    pub fn follow(&self) -> u32 {
        let status: serde_json::Value =
            serde_json::from_str(&self.answer(&["status", "--json"])).expect("JSON");
        let pid = status["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a number");
        self.in_charge.store(pid, Ordering::Relaxed);
        pid
    }

    /// Returns all processes that run its configuration: old ones, the one in charge, and new ones
    /// that are not yet.
    pub fn processes(&self) -> Vec<u32> {
        let directory = self.scratch.path("").to_string_lossy().into_owned();
        let runs_it = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&directory)
        };
        let all = fs::read_dir("/proc")
            .expect("it is there")
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        all.filter(runs_it).collect()
    }

    /// Returns the number of open descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("weir runs").count()
    }

    /// Returns the number of open sockets.
    pub fn sockets(&self) -> usize {
        let all = fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("weir runs");
        let links = all.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.filter(|to| to.to_string_lossy().starts_with("socket:")).count()
    }

    /// Returns the resident memory in bytes, without file pages.
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("weir runs");
        let line =
            status.lines().find(|line| line.starts_with("RssAnon:")).expect("the kernel tells");
        let digits: String = line.chars().filter(char::is_ascii_digit).collect();
        digits.parse::<u64>().expect("a number") * 1024
    }

    /// Returns the user and system time that it used, in clock ticks.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("weir runs");
        let fields: Vec<&str> =
            stat.rsplit(')').next().expect("a name").split_whitespace().collect();
        fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("weir is a child").is_none()
    }

    /// Sends it a signal.
    pub fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Ends it as an operator does, and checks that it ended well.
    pub fn stop(mut self) {
        self.signal("TERM");
        eventually("only clients of before an upgrade are there", || {
            !self.processes().contains(&self.pid())
        });
        let status = self.wait();
        let said = self.said();
        assert!(!said.contains("panicked"), "weir panicked:\n{said}");
        assert_eq!(status.code(), Some(0), "exit after SIGTERM:\n{said}");
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let mut waiting = Waiting::begin();
        loop {
            if let Some(status) = self.child.try_wait().expect("weir is a child") {
                self.readers.drain(..).for_each(|reader| reader.join().expect("reader"));
                return status;
            }
            assert!(waiting.goes_on(), "weir doesn't end, {}:\n{}", waiting.story(), self.said());
            std::thread::park_timeout(std::time::Duration::from_millis(2));
        }
    }

    /// Returns the path of its admin socket.
    pub fn admin(&self) -> PathBuf {
        self.scratch.path("admin.sock")
    }

    /// Runs `weir` with these arguments, so that it queries this weir.
    pub fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .args(arguments)
            .env("WEIR_ADMIN", self.admin())
            .env_remove("COLUMNS")
            .stdin(Stdio::null());
        command.output().expect("weir starts")
    }

    /// Returns the standard output of a command that must succeed.
    ///
    /// # Panics
    /// It fails.
    pub fn answer(&self, arguments: &[&str]) -> String {
        let output = self.ask(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Returns its present status, for a failed test: clients, servers, and what each connection
    /// waits for.
    fn state(&self) -> String {
        if !self.admin().exists() {
            return "not to be asked".to_owned();
        }
        // The command has its own timeout.
        let output = self.ask(&["status", "--json"]);
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    /// Rewrites its configuration: replaces the text that [`Weir::start`] was given.
    pub fn rewrite(&self, rest: &str) {
        let text = fs::read_to_string(self.config_file()).expect("it is there");
        let head = text
            .split_inclusive('\n')
            .take_while(|line| !line.starts_with("listen "))
            .collect::<String>();
        fs::write(self.config_file(), format!("{head}listen \"{}\"\n{rest}", self.address))
            .expect("it can be written");
    }

    /// Returns the path of its configuration.
    pub fn config_file(&self) -> PathBuf {
        self.scratch.path("weir.kdl")
    }
}

/// Ends a weir whose test failed, with everything started in its place, and shows what it printed.
impl Drop for Weir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- weir said:\n{}",
                self.said.lock().map(|said| said.clone()).unwrap_or_default()
            );
            eprintln!("--- weir is:\n{}", self.state());
        }
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        for pid in self.processes() {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
    }
}

fn collect(mut pipe: Box<dyn Read + Send>, into: Arc<Mutex<String>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = pipe.read(&mut buffer) {
            into.lock().expect("no panic").push_str(&String::from_utf8_lossy(&buffer[..n]));
        }
    })
}
