//! Runs the blocks of a page in a temporary folder.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::ending::Group;
use super::matching::is_shown;
use super::page::{Block, Kind, Page};

/// How long one block may take, on a busy machine as well.
const DEADLINE: Duration = Duration::from_secs(120);
/// Ports of pages: below those that the kernel gives to outgoing connections, above those of the
/// other end-to-end tests.
const PORTS: std::ops::Range<u16> = 30_000..32_700;

/// Returns a port without a listener, never the same one twice.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let count = PORTS.end - PORTS.start;
    // Processes that start one after the other begin far from each other.
    let first = std::process::id().wrapping_mul(127) % u32::from(count);
    let first = u16::try_from(first).expect("less than the count of ports");
    loop {
        let port = PORTS.start + first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count;
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            return port;
        }
    }
}

/// Runs a page and returns all its errors. A command that fails ends the page.
pub(crate) fn run(page: &Page) -> Vec<String> {
    let mut place = Place::new();
    let mut errors = Vec::new();
    for block in &page.blocks {
        if let Err(error) = place.take(block) {
            errors.push(format!("{}:{}: {}", page.path, error.line, error.text));
            if error.is_final {
                break;
            }
        }
    }
    let is_proof = |kind: &Kind| matches!(kind, Kind::Config(_) | Kind::Run | Kind::Wrong(_));
    if !page.blocks.iter().any(|block| is_proof(&block.kind)) {
        errors.push(format!("{}:1: nothing on this page is run or checked", page.path));
    }
    errors
}

/// What is wrong with a block.
struct Wrong {
    line: usize,
    text: String,
    /// Whether no later block of the page can work.
    is_final: bool,
}

/// What the block in front printed.
enum Before {
    /// Commands were run: their text and output.
    Ran(String, String),
    /// Commands were not run.
    Parsed,
    Other,
}

/// The folder in which a page happens, and its programs.
struct Place {
    group: Group,
    folder: PathBuf,
    programs: PathBuf,
    before: Before,
    blocks: usize,
}

impl Place {
    fn new() -> Place {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        // Short, for it is part of the path of a unix socket.
        let name =
            format!("weir-howto-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let programs = std::env::temp_dir().join(name);
        let folder = programs.join("page");
        fs::create_dir_all(&folder).expect("a temporary folder");
        symlink(env!("CARGO_BIN_EXE_weir"), programs.join("weir")).expect("the folder is new");
        Place { group: Group::begin(), folder, programs, before: Before::Other, blocks: 0 }
    }

    /// Does what a block says.
    fn take(&mut self, block: &Block) -> Result<(), Wrong> {
        let before = std::mem::replace(&mut self.before, Before::Other);
        match &block.kind {
            Kind::Config(file) => {
                self.write(file, &block.text);
                self.check(block, file)
            }
            Kind::File(file) => {
                self.write(file, &block.text);
                Ok(())
            }
            Kind::Run => self.run(block),
            Kind::Parse => self.parse(block),
            Kind::Output => compare(block, &before),
            Kind::Shown => Ok(()),
            Kind::Wrong(why) => {
                Err(Wrong { line: block.line, text: (*why).to_owned(), is_final: false })
            }
        }
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.folder.join(file);
        fs::create_dir_all(path.parent().expect("it is in the folder"))
            .expect("a folder can be made");
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    fn check(&mut self, block: &Block, file: &str) -> Result<(), Wrong> {
        let end = self.shell(&format!("weir check {file}"));
        end.good(&format!("weir check {file}"), block.line)
    }

    fn parse(&mut self, block: &Block) -> Result<(), Wrong> {
        self.write("no-run.sh", &block.text);
        let end = self.shell("sh -n no-run.sh");
        self.before = Before::Parsed;
        if end.is_good() {
            return Ok(());
        }
        let text = format!("sh cannot read this:\n{}{}", block.text, end.told());
        Err(Wrong { line: block.line, text, is_final: false })
    }

    fn run(&mut self, block: &Block) -> Result<(), Wrong> {
        let end = self.shell(&block.text);
        let at = end.reached(&block.text);
        let command: Vec<&str> = block.text.lines().skip(at.start).take(at.len()).collect();
        let (line, command) = (block.line + at.start, command.join("\n"));
        end.good(&command, line)?;
        self.before = Before::Ran(block.text.clone(), end.stdout);
        Ok(())
    }

    /// Runs these lines by `sh -eu` in the folder, and waits until the shell has ended.
    fn shell(&mut self, lines: &str) -> End {
        self.blocks += 1;
        let file = |end: &str| self.programs.join(format!("{}.{end}", self.blocks));
        let (script, stdout, stderr) = (file("sh"), file("out"), file("err"));
        fs::write(&script, lines).expect("a script");
        let mut command = self.group.shell(&script);
        command.current_dir(&self.folder);
        // Files and no pipes: programs in the background write to them for as long as they live.
        command
            .stdout(File::create(&stdout).expect("a file"))
            .stderr(File::create(&stderr).expect("a file"));
        self.set_environment(&mut command);
        let mut child = command.spawn().expect("sh starts");
        drop(command); // it holds the pipe of the group
        let (sender, ended) = mpsc::channel();
        let waiter = std::thread::spawn(move || {
            let _ = sender.send(child.wait().expect("it is a child"));
        });
        let status = ended.recv_timeout(DEADLINE).ok();
        if status.is_none() {
            self.end();
        }
        waiter.join().expect("the thread only waits");
        End { status, stdout: read(&stdout), stderr: read(&stderr) }
    }

    /// Ends everything that the page has started.
    fn end(&mut self) {
        std::mem::replace(&mut self.group, Group::begin()).end();
    }

    fn set_environment(&self, command: &mut Command) {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.programs.display()));
        command.env("WEIR_ADMIN", self.programs.join("admin.sock"));
        command.env("HOME", &self.folder).env("XDG_RUNTIME_DIR", &self.programs);
        command.env("LC_ALL", "C").env("TZ", "UTC");
        for name in [
            "WEIR_CONFIG",
            "STATE_DIRECTORY",
            "NOTIFY_SOCKET",
            "http_proxy",
            "https_proxy",
            "all_proxy",
            "no_proxy",
        ] {
            command.env_remove(name).env_remove(name.to_ascii_uppercase());
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.end();
        let _ = fs::remove_dir_all(&self.programs);
    }
}

/// How the commands of a block have ended.
struct End {
    /// None: not in time.
    status: Option<ExitStatus>,
    stdout: String,
    stderr: String,
}

impl End {
    fn is_good(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// The lines of the script, from 0, with the command that was reached last.
    fn reached(&self, script: &str) -> std::ops::Range<usize> {
        let lines: Vec<&str> = script.lines().collect();
        let mut read = 0;
        for line in self.stderr.lines() {
            read += usize::from(lines.get(read) == Some(&line));
        }
        let mut first = read.saturating_sub(1);
        let goes_on = |line: &str| ["\\", "|", "&&"].iter().any(|end| line.ends_with(end));
        while first > 0 && goes_on(lines[first - 1]) {
            first -= 1;
        }
        first..read
    }

    /// Everything that was printed. In standard error, each line of the script is in front of its
    /// output.
    fn told(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    fn good(&self, command: &str, line: usize) -> Result<(), Wrong> {
        if self.is_good() {
            return Ok(());
        }
        let end = match self.status {
            Some(status) => format!("ends with {status}"),
            None => format!("has not ended after {} s", DEADLINE.as_secs()),
        };
        Err(Wrong {
            line,
            text: format!("`{command}` {end}, and prints\n{}", self.told()),
            is_final: true,
        })
    }
}

/// Compares what a page shows with what the commands in front of it printed.
fn compare(block: &Block, before: &Before) -> Result<(), Wrong> {
    let wrong = |text: String| Err(Wrong { line: block.line, text, is_final: false });
    match before {
        Before::Parsed => Ok(()),
        Before::Other => wrong(
            "this text is the output of no command: a block `sh` must be in front of it".to_owned(),
        ),
        Before::Ran(_, printed) if is_shown(&block.text, printed) => Ok(()),
        Before::Ran(commands, printed) => {
            let commands = commands.trim_end();
            wrong(format!("`{commands}` prints something else than\n{}but\n{printed}", block.text))
        }
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}
