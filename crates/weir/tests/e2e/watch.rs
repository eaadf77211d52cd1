//! Proves: `weir status --watch` shows sick servers first on a terminal of 80 columns, keys sort
//! and scroll, it continues when weir is restarted, and it restores the terminal; `weir check` says
//! ok to people. How: the real binary on a pseudo terminal; a frame is what it draws between two
//! beginnings of a screen.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::kit::{Honest, Io, Scratch, Server, Weir, app, eventually, free_port, on_both_drivers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

on_both_drivers!(a_screen_is_kept_over_a_restart, it_ends_with_its_terminal);

const COLUMNS: usize = 80;
const ROWS: usize = 24;

/// A program on a terminal, and its output.
struct Watch {
    child: Child,
    /// None: hung up.
    master: Option<OwnedFd>,
    /// Reads the output, until it has to leave the terminal.
    reader: Option<JoinHandle<()>>,
    leaves: Arc<AtomicBool>,
    terminal: File,
    written: Arc<Mutex<String>>,
}

impl Watch {
    fn start(mut command: Command) -> Watch {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a terminal");
        grantpt(&master).expect("ours");
        unlockpt(&master).expect("ours");
        let name = ptsname(&master, Vec::new()).expect("a name").into_string().expect("text");
        let terminal = File::options().read(true).write(true).open(name).expect("its other end");
        let size =
            Winsize { ws_row: ROWS as u16, ws_col: COLUMNS as u16, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).expect("a size");
        let end = || terminal.try_clone().expect("a descriptor");
        command
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .env("TERM", "xterm")
            .env_remove("NO_COLOR");
        let child = command.spawn().expect("weir starts");
        let written = Arc::new(Mutex::new(String::new()));
        let (mut reader, all) =
            (File::from(master.try_clone().expect("a descriptor")), Arc::clone(&written));
        let leaves = Arc::new(AtomicBool::new(false));
        let is_told = Arc::clone(&leaves);
        // Ends with the terminal.
        let reader = std::thread::spawn(move || {
            let (mut some, soon) = ([0; 4096], Timespec { tv_sec: 0, tv_nsec: 20_000_000 });
            while !is_told.load(Ordering::Relaxed) {
                if let Ok(0) = poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&soon)) {
                    continue;
                }
                let Ok(count @ 1..) = reader.read(&mut some) else { return };
                all.lock().expect("no panic").push_str(&String::from_utf8_lossy(&some[..count]));
            }
        });
        Watch { child, master: Some(master), reader: Some(reader), leaves, terminal, written }
    }

    /// Closes the terminal, like a window.
    fn hang_up(&mut self) {
        self.leaves.store(true, Ordering::Relaxed);
        self.reader.take().expect("once").join().expect("no panic");
        self.master = None;
    }

    fn written(&self) -> String {
        self.written.lock().expect("no panic").clone()
    }

    /// Returns the last complete frame, without colours.
    fn frame(&self) -> Vec<String> {
        let written = self.written();
        let whole = written.rsplit_once("\x1b[?2026l").map_or("", |(before, _)| before);
        let last = whole.rsplit("\x1b[?2026h").next().unwrap_or_default();
        let lines = last.split("\x1b[K").map(|line| {
            let mut plain = String::new();
            for (at, part) in line.split('\x1b').enumerate() {
                // Behind an escape are its parameters and the letter that ends them.
                let text =
                    part.split_once(|c: char| c.is_ascii_alphabetic()).map_or("", |(_, text)| text);
                plain += if at == 0 { part } else { text };
            }
            plain
        });
        let mut lines: Vec<String> = lines.collect();
        lines.pop();
        lines
    }

    fn wait(&self, what: &str, check: impl Fn(&[String]) -> bool) {
        eventually(what, || check(&self.frame()));
        let frame = self.frame();
        assert!(
            frame.len() == ROWS && frame.iter().all(|line| line.chars().count() <= COLUMNS),
            "{frame:#?}"
        );
    }

    fn press(&self, keys: &str) {
        File::from(self.master.as_ref().expect("there").try_clone().expect("a descriptor"))
            .write_all(keys.as_bytes())
            .expect("it reads");
    }
}

impl Watch {
    /// Waits for its end.
    fn end(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("just looked at")
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the screen:\n{}", self.frame().join("\n"));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn a_screen_is_kept_over_a_restart(io: Io) {
    let server = Server::start(Honest);
    let others: String = (0..30)
        .map(|_| format!("server \"127.0.0.1:{}\" connections-min=0\n", free_port()))
        .collect();
    let dead = free_port();
    let late = format!(
        "upstream \"late\" {{ {others} server \"127.0.0.1:{dead}\" }}\n\
            route path=\"/late\" {{ proxy \"late\" }}\n"
    );
    let mut weir = Weir::start(io, 2, &(app(&server, 1, "") + &late));
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["status", "--watch"]).env("WEIR_ADMIN", weir.admin());
    let mut watch = Watch::start(command);
    let has = |text: String| move |frame: &[String]| frame.iter().any(|line| line.contains(&text));
    let is_first = |frame: &[String]| {
        let heading = frame.iter().position(|line| line.starts_with("UPSTREAM"));
        heading.is_some_and(|at| {
            frame[at + 1].contains(&format!(":{dead}")) && frame[at + 1].contains(" down ")
        })
    };
    watch.wait("the sick server is the first of 32", is_first);
    watch.wait("its reason is below it", has("down: connect-failed".to_owned()));
    // With the rows of the workers below them.
    watch.wait("not all fit", has(" of 37  q quits  sort [c config]".to_owned()));
    watch.press("r");
    watch.wait("another order", has("[r req/s]".to_owned()));
    watch.press("\x1b[F");
    watch.wait("the last", has("-37 of 37".to_owned()));
    watch.press("\x1b[H");
    watch.wait("the first again", is_first);

    weir.signal("TERM");
    assert_eq!(weir.wait().code(), Some(0));
    watch.wait("it says that weir is away", |frame| {
        frame[0].starts_with("no running weir found; this is ")
    });
    let mut again = Command::new(env!("CARGO_BIN_EXE_weir"));
    again.args(["run", "-c"]).arg(weir.config_file()).env("WEIR_ADMIN", weir.admin());
    let second = Watch::start(again);
    let pid = format!("pid {}", second.child.id());
    watch.wait("it has found the next one", |frame| frame[0].contains(&pid));

    let before = tcgetattr(&second.terminal).expect("a terminal");
    watch.press("q");
    assert!(watch.end().success());
    eventually("the screen of before is shown again", || {
        watch.written().trim_end().ends_with("\x1b[?25h\x1b[?1049l")
    });
    // As on an untouched terminal.
    let after = tcgetattr(&watch.terminal).expect("a terminal");
    assert_eq!(
        (after.local_modes, after.input_modes, after.output_modes),
        (before.local_modes, before.input_modes, before.output_modes)
    );
    drop(second);
    server.finish();
}

/// No other program ends it then, and it must not continue in the background.
fn it_ends_with_its_terminal(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(["status", "--watch"]).env("WEIR_ADMIN", weir.admin());
    let mut watch = Watch::start(command);
    watch.wait("it shows something", |frame| !frame.is_empty() && frame[0].starts_with("weir "));
    // No signal comes: it is not the terminal of its session.
    watch.hang_up();
    watch.end();
    weir.stop();
    server.finish();
}

#[test]
fn check_says_ok_on_a_terminal() {
    let scratch = Scratch::new();
    let good =
        "listen \"127.0.0.1:0\"\nupstream app { server \"127.0.0.1:9\" }\nroute { proxy app }\n";
    let file = scratch.write("weir.kdl", good.as_bytes());
    let marked =
        scratch.write("marked.kdl", b"listen \"127.0.0.1:8080\" mark=7\nroute { respond 204; }\n");
    let needs = "needs CAP_NET_RAW: `transparent`, `source \"client\"`, `mark` or `device`";
    for (file, more, expected) in [
        (&file, &[] as &[&str], format!("{}: ok\r\n", file.display())),
        (&marked, &[], format!("{}: ok\r\n{needs}\r\n", marked.display())),
        (&file, &["--json"], String::new()),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.arg("check").arg(file).args(more).env_remove("WEIR_CONFIG");
        let mut check = Watch::start(command);
        assert!(check.end().success());
        eventually("it is told", || {
            !check.written().is_empty() && check.written().len() >= expected.len()
        });
        assert!(
            check.written() == expected
                || !more.is_empty() && check.written().starts_with("{\"count\":0")
        );
    }
}
