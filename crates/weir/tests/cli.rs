//! The command line as a user meets it: help, exit codes, reports, start, signals. Runs the real
//! binary.
//!
//! Help texts are in `help/`; `UPDATE=1 cargo test -p weir --test cli` writes them. Every wait is
//! for an event, with a deadline.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::mpsc;

use weir_check::waiting::{Patient, eventually, patient, received};

fn weir() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command
        .env_remove("WEIR_CONFIG")
        .env_remove("WEIR_ADMIN")
        .env_remove("COLUMNS")
        .stdin(Stdio::null());
    command
}

fn output(arguments: &[&str]) -> Output {
    weir().args(arguments).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A file of this test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, content: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("weir-cli-{}-{name}", std::process::id()));
        fs::write(&path, content).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

const GOOD: &str =
    "listen \"127.0.0.1:0\"\nupstream app { server \"127.0.0.1:9\" }\nroute { proxy app }\n";

#[test]
fn help_texts_are_as_stored() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help");
    for verb in [
        "",
        "run",
        "check",
        "import",
        "status",
        "status server",
        "server",
        "reload",
        "ban",
        "ban list",
        "ban add",
        "ban remove",
        "ban why",
        "cache",
        "cache stats",
        "cache top",
        "cache purge",
        "cache explain",
        "shield",
        "shield status",
        "shield top",
        "server add",
        "server drain",
        "server remove",
        "reverse",
        "forward",
        "passwd",
        "origin",
        "probe",
        "demo",
        "bomb",
        "lab",
        "lab link",
        "bench",
        "completion",
        "man",
    ] {
        let arguments: Vec<&str> =
            verb.split(' ').chain(["--help"]).filter(|word| !word.is_empty()).collect();
        let shown = output(&arguments);
        assert_eq!(code(&shown), 0);
        let name = if verb.is_empty() { "weir".to_owned() } else { verb.replace(' ', "-") };
        let file = directory.join(format!("{name}.txt"));
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&file, &shown.stdout).unwrap();
        }
        assert_eq!(stdout(&shown), fs::read_to_string(&file).unwrap_or_default(), "{name}");
    }
}

#[test]
fn wrong_usage_is_code_2_with_a_suggestion() {
    for (arguments, hint) in [
        (&["rum"][..], "run"),
        (&["run", "--wokers", "2"], "--workers"),
        (&["run", "--workers", "0"], "1..=256"),
        (&["run", "--io", "iouring"], "uring"),
        (&[], "Usage"),
        (&["reverse"], "--to"),
        (&["reverse", "--to", "127.0.0.1:1", "--pipeline", "fast"], "adaptive"),
        (&["reverse", "--to", "127.0.0.1"], "port is missing"),
        (&["reverse", "--to", "127.0.0.1:1", "--listen", "here"], "is not an address"),
        (&["reverse", "--to", "127.0.0.1:1", "--metrics", "9100"], "--metrics"),
        (&["forward", "--allow-name", "10.0.0.1"], "write address="),
        (&["forward", "--allow-port", "0"], "is neither a port"),
        (&["run", "--admin", "/run/"], "is a directory"),
        (&["server", "dran", "app", "a:1"], "drain"),
        (&["server", "drain", "app"], "<SERVER>"),
        (&["status", "--watch=0"], "1..=3600"),
        (&["lab", "link", "--loss", "101%"], "0% to 100%"),
        (&["lab", "link", "--rate", "0Mbit/s"], "from 1kbit/s"),
        (&["lab", "link", "--delay", "20"], "is not a duration"),
        (&["lab", "link", "--addresses", "10.0.0.1/30,10.0.1.1/30"], "same network"),
        (&["lab", "link", "--queue", "5ms"], "--rate"),
        (&["lab", "link", "--every", "1ms"], "10ms"),
    ] {
        let refused = output(arguments);
        assert_eq!(code(&refused), 2, "{arguments:?}");
        assert!(stderr(&refused).contains(hint), "{arguments:?}: {}", stderr(&refused));
        assert_eq!(stdout(&refused), "");
    }
}

#[test]
fn check_says_nothing_to_programs_when_all_is_well() {
    let file = Scratch::new("good.kdl", GOOD);
    let checked = output(&["check", "-c", file.path()]);
    assert_eq!(
        (code(&checked), stdout(&checked), stderr(&checked)),
        (0, String::new(), String::new())
    );
}

/// With the options of nginx, Apache, Caddy and Traefik.
#[test]
fn check_is_done_by_the_words_of_others() {
    let (good, bad) =
        (Scratch::new("habit.kdl", GOOD), Scratch::new("habit-bad.kdl", "listen 1\n"));
    for words in [
        &["check"][..],
        &["validate"],
        &["configtest"],
        &["-t"],
        &["--test"],
        &["-t", "-c"],
        &["check", "--config"],
    ] {
        let ask = |file: &Scratch| output(&[words, &[file.path()]].concat());
        assert_eq!((code(&ask(&good)), code(&ask(&bad))), (0, 78), "{words:?}");
        assert!(stderr(&ask(&bad)).contains("habit-bad.kdl"), "{words:?}");
    }
    // `start` and a file without -c: it gets as far as reading it.
    for words in [&["start"][..], &["run"], &["start", "-c"]] {
        let refused = output(&[words, &[bad.path()]].concat());
        assert!(code(&refused) == 78 && stderr(&refused).contains("habit-bad.kdl"), "{words:?}");
    }
    let twice = output(&["run", good.path(), "-c", good.path()]);
    assert!(
        code(&twice) == 2 && stderr(&twice).contains("cannot be used with"),
        "{}",
        stderr(&twice)
    );
}

#[test]
fn import_writes_what_check_takes_and_says_what_it_has_not() {
    let nginx = "server {\n listen 127.0.0.1:8090;\n expires 1d;\n location / { proxy_pass \
        http://127.0.0.1:9; }\n location /in/ { auth_basic x; }\n}\n";
    let file = Scratch::new("import.conf", nginx);
    let imported = output(&["import", "nginx", file.path()]);
    assert_eq!(code(&imported), 65);
    assert!(stderr(&imported).ends_with("--accept lost --accept different --accept closed\n"));
    for (accepted, expected) in [
        (&["--accept", "all"][..], 0),
        (&["--accept", "lost", "--accept", "different", "--accept", "closed"], 0),
        (&["--accept", "lost", "--accept", "different"], 65),
        (&["--accept", "nothing"], 2),
    ] {
        let again = output(&[&["import", "nginx", file.path()], accepted].concat());
        assert_eq!(code(&again), expected, "{accepted:?}");
        let text = if expected == 2 { String::new() } else { stdout(&imported) };
        assert_eq!(stdout(&again), text);
    }
    let ours = Scratch::new("imported.kdl", &stdout(&imported));
    let checked = output(&["check", "-c", ours.path()]);
    assert_eq!((code(&checked), stderr(&checked)), (0, String::new()), "{}", stdout(&imported));
    let told = stderr(&imported);
    for part in [
        ":3: not carried over: `expires 1d`: weir serves no files",
        ":5: closed: `auth_basic x`: ",
        "weir: 1 carried over, 1 not carried over, 3 different, 1 closed\n",
    ] {
        assert!(told.contains(part), "{part} in {told}");
    }
    // Wrong words, another program's file, a truncated one, a missing one.
    assert_eq!(code(&output(&["import", "apache", file.path()])), 2);
    for (program, text, hint) in [
        ("haproxy", nginx, ":1:1"),
        ("nginx", "server {\n", "never closed"),
        ("nginx", "events { }\n", "could not convert any part of it"),
    ] {
        let file = Scratch::new("import-bad.conf", text);
        let refused = output(&["import", program, file.path()]);
        assert_eq!((code(&refused), stdout(&refused)), (78, String::new()), "{hint}");
        assert!(stderr(&refused).contains(hint), "{}", stderr(&refused));
    }
    assert!(
        stderr(&output(&["import", "caddy", "/nowhere/Caddyfile"])).contains("/nowhere/Caddyfile")
    );
}

#[test]
fn check_prints_what_reads_back() {
    let file = Scratch::new("print.kdl", GOOD);
    let kdl = stdout(&output(&["check", "-c", file.path(), "--print"]));
    assert!(kdl.contains("queue-size 1000"), "{kdl}");
    let json = stdout(&output(&["check", "-c", file.path(), "--print", "--json"]));
    for (name, text) in [("again.kdl", &kdl), ("again.json", &json)] {
        let again = Scratch::new(name, text);
        assert_eq!(stdout(&output(&["check", "-c", again.path(), "--print"])), kdl, "{name}");
    }
}

#[test]
fn bad_configuration_is_code_78_with_every_error() {
    let file = Scratch::new(
        "bad.kdl",
        "lissten \"127.0.0.1:1\"\nlisten \"127.0.0.1:1\"\nroute { proxy app }\n",
    );
    for verb in ["check", "run"] {
        let refused = output(&[verb, "-c", file.path()]);
        assert_eq!(code(&refused), 78, "{verb}");
        let report = stderr(&refused);
        for part in [
            "bad.kdl:1:1",
            "did you mean `listen`?",
            "bad.kdl:3:15",
            "unknown upstream `app`",
            "2 errors",
        ] {
            assert!(report.contains(part), "{part} in {report}");
        }
        assert!(!report.contains('\u{1b}'), "no colours without a terminal");
        assert_eq!(stdout(&refused), "");
    }
    let json = output(&["check", "-c", file.path(), "--json"]);
    assert_eq!((code(&json), stderr(&json)), (78, String::new()));
    assert!(stdout(&json).contains("\"line\":3"), "{}", stdout(&json));
}

#[test]
fn a_warning_is_told_and_does_no_harm() {
    let file = Scratch::new("warning.kdl", &format!("metrics \"0.0.0.0:9100\"\n{GOOD}"));
    let checked = output(&["check", "-c", file.path()]);
    assert_eq!((code(&checked), stdout(&checked)), (0, String::new()));
    let report = stderr(&checked);
    assert!(report.contains("warning.kdl:1:9") && report.contains("1 warning"), "{report}");
    let json = output(&["check", "-c", file.path(), "--json"]);
    assert!(
        code(&json) == 0 && stdout(&json).contains("\"code\":\"exposed\""),
        "{}",
        stdout(&json)
    );
}

#[test]
fn rights_that_a_configuration_needs_are_told() {
    let file =
        Scratch::new("rights.kdl", "listen \"127.0.0.1:8080\" mark=7\nroute { respond 204; }\n");
    let json = output(&["check", "-c", file.path(), "--json"]);
    assert!(
        code(&json) == 0 && stdout(&json).contains("\"capability\":\"CAP_NET_RAW\""),
        "{}",
        stdout(&json)
    );
    // On a terminal it prints a line; programs use the code.
    assert_eq!(stdout(&output(&["check", "-c", file.path()])), "");
}

#[test]
fn asking_when_nothing_runs_is_code_1_and_names_the_way_out() {
    let nowhere =
        std::env::temp_dir().join(format!("weir-cli-{}-nowhere.sock", std::process::id()));
    let nowhere = nowhere.to_str().unwrap();
    for arguments in [
        &["status"][..],
        &["status", "--json"],
        &["server", "drain", "app", "a:1"],
        &["status", "--wait=0"],
    ] {
        let refused = output(&[arguments, &["--admin", nowhere]].concat());
        assert_eq!((code(&refused), stdout(&refused)), (1, String::new()), "{arguments:?}");
        let said = stderr(&refused);
        assert!(
            said.contains(nowhere)
                && said.contains("--admin PATH")
                && said.contains("is it running?"),
            "{said}"
        );
    }
}

#[test]
fn files_that_can_not_be_read_are_code_78() {
    for (path, part) in [("/does/not/exist.kdl", "No such file"), ("/", "directory")] {
        let refused = output(&["run", "-c", path]);
        assert_eq!(code(&refused), 78);
        assert!(
            stderr(&refused).contains(path) && stderr(&refused).contains(part),
            "{}",
            stderr(&refused)
        );
    }
}

#[test]
fn the_variable_names_the_file_and_the_flag_comes_first() {
    let file = Scratch::new("variable.kdl", GOOD);
    let by_variable =
        weir().args(["check", "--print"]).env("WEIR_CONFIG", file.path()).output().unwrap();
    assert_eq!(code(&by_variable), 0);
    let both = weir()
        .args(["check", "-c", file.path()])
        .env("WEIR_CONFIG", "/does/not/exist")
        .output()
        .unwrap();
    assert_eq!(code(&both), 0);
    let missing = weir().arg("check").env("WEIR_CONFIG", "/does/not/exist").output().unwrap();
    assert_eq!(code(&missing), 78);
}

#[test]
fn a_file_beside_is_found_and_no_file_is_code_78() {
    let directory = std::env::temp_dir().join(format!("weir-cli-{}-directory", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let check = || weir().args(["check", "--print"]).current_dir(&directory).output().unwrap();
    if !Path::new("/etc/weir/weir.kdl").exists() {
        let nothing = check();
        assert_eq!(code(&nothing), 78);
        assert!(stderr(&nothing).contains("-c FILE"), "{}", stderr(&nothing));
    }
    fs::write(directory.join("weir.kdl"), GOOD).unwrap();
    let found = check();
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(code(&found), 0);
}

#[test]
fn reverse_prints_the_configuration_that_it_stands_for() {
    let printed = output(&[
        "reverse",
        "--listen",
        "127.0.0.1:8080",
        "--to",
        "127.0.0.1:9090",
        "--to",
        "127.0.0.1:9091",
        "--connections-min",
        "2",
        "--connections",
        "4",
        "--connections-max",
        "8",
        "--pool",
        "pipelined",
        "--pipeline",
        "16",
        "--workers",
        "2",
        "--io",
        "epoll",
        "--print",
    ]);
    assert_eq!(code(&printed), 0);
    let expected = "workers 2\nio \"epoll\"\nlisten \"127.0.0.1:8080\"\n\
                    upstream \"app\" {\n    pool \"pipelined\"\n    \
                    server \"127.0.0.1:9090\" connections-min=2 connections=4 \
                    connections-max=8\n    server \
                    \"127.0.0.1:9091\" connections-min=2 connections=4 connections-max=8\n    \
                    pipeline depth=16\n}\nroute \
                    host=\"*\" path=\"/\" { proxy \"app\"; }\n";
    assert_eq!(stdout(&printed), expected);
    let file = Scratch::new("reverse.kdl", expected);
    assert_eq!(code(&output(&["check", "-c", file.path()])), 0);
}

#[test]
fn forward_prints_the_configuration_that_it_stands_for() {
    let flags = "forward --listen 127.0.0.1:3128 --workers 2 --client 10.0.0.0/8 --allow-address \
                 10.0.0.0/8,192.168.0.0/16 \
                 --allow-port 22 --deny-name ads.example --deny-name tracker.example --resolver \
                 127.0.0.1 --pac auto --print";
    let printed = output(&flags.split_whitespace().collect::<Vec<_>>());
    assert_eq!(code(&printed), 0, "{}", stderr(&printed));
    let expected = r#"workers 2
forward {
    listen "127.0.0.1:3128"
    pac "auto"
    resolver "127.0.0.1"
    deny "ads.example" "tracker.example"
    allow address="10.0.0.0/8,192.168.0.0/16" port="22" client="10.0.0.0/8"
    allow address="10.0.0.0/8,192.168.0.0/16" client="10.0.0.0/8"
    allow port="22" client="10.0.0.0/8"
    allow client="10.0.0.0/8"
    deny
}
"#;
    assert_eq!(stdout(&printed), expected);
    let file = Scratch::new("forward.kdl", expected);
    assert_eq!(code(&output(&["check", "-c", file.path()])), 0);
}

#[test]
fn a_taken_port_is_code_1_and_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = output(&["reverse", "--listen", &address, "--to", "127.0.0.1:9"]);
    assert_eq!(code(&refused), 1);
    assert!(
        stderr(&refused).contains(&address) && stderr(&refused).contains("uses this port"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn a_second_weir_does_not_share_the_port_of_the_first() {
    let first = Running::start(&["reverse", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"]);
    let refused =
        output(&["reverse", "--listen", &first.address.to_string(), "--to", "127.0.0.1:9"]);
    assert_eq!(code(&refused), 1);
    assert!(stderr(&refused).contains("uses this port"), "{}", stderr(&refused));
    first.end("INT");
}

#[test]
fn an_address_of_another_machine_is_code_1() {
    // TEST-NET-1, RFC 5737: no machine has it.
    let refused = output(&["reverse", "--listen", "192.0.2.1:8080", "--to", "127.0.0.1:9"]);
    assert_eq!(code(&refused), 1);
    assert!(stderr(&refused).contains("192.0.2.1:8080"), "{}", stderr(&refused));
}

#[test]
fn a_privileged_port_is_code_77_and_names_the_capability() {
    // Only where the kernel would refuse: with setpriv even root can drop the capability.
    let floor =
        fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    if floor.trim().parse::<u16>().is_ok_and(|first| first <= 80) {
        eprintln!("skipped: this machine has no privileged ports");
        return;
    }
    let mut command = Command::new("setpriv");
    command.args([
        "--bounding-set=-net_bind_service",
        "--inh-caps=-net_bind_service",
        "--ambient-caps=-all",
        "--",
    ]);
    command.arg(env!("CARGO_BIN_EXE_weir")).args([
        "reverse",
        "--listen",
        "127.0.0.1:80",
        "--to",
        "127.0.0.1:9",
    ]);
    let Ok(refused) = command.stdin(Stdio::null()).output() else {
        eprintln!("skipped: no setpriv");
        return;
    };
    if stderr(&refused).contains("setpriv:") {
        eprintln!("skipped: {}", stderr(&refused));
        return;
    }
    assert_eq!(code(&refused), 77, "{}", stderr(&refused));
    assert!(stderr(&refused).contains("CAP_NET_BIND_SERVICE"), "{}", stderr(&refused));
}

/// A started weir that has printed its address.
struct Running {
    child: Child,
    address: SocketAddr,
    line: String,
    errors: BufReader<ChildStderr>,
}

impl Running {
    fn start(arguments: &[&str]) -> Running {
        let mut command = weir();
        // Concurrent tests would use the same socket.
        command
            .args(arguments)
            .env("WEIR_ADMIN", "off")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let address = line
            .rsplit("listening on ")
            .next()
            .and_then(|text| text.split_whitespace().next()?.parse().ok());
        let address = address.unwrap_or_else(|| panic!("no address in: {line}"));
        Running { child, address, line, errors }
    }

    fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    fn connect(&self) -> Patient<TcpStream> {
        patient(TcpStream::connect(self.address).unwrap())
    }

    /// Waits for the end. Returns the exit code and the output after the first warning, except for
    /// unreachable servers: most tests have none, and weir warns when it has noticed.
    fn wait(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        let (sender, ended) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            self.errors.read_to_string(&mut said).unwrap();
            let status = self.child.wait().unwrap();
            sender.send(()).unwrap();
            let matters = |line: &&str| {
                !line.contains(" info weir: ") && !line.contains(" weir: server-unreachable: ")
            };
            let said: Vec<&str> = said.lines().filter(matters).collect();
            (status.code(), said.join("\n"))
        });
        received(&ended).expect("weir ends");
        reader.join().unwrap()
    }

    fn end(self, signal: &str) {
        self.signal(signal);
        assert_eq!(self.wait(), (Some(0), String::new()));
    }
}

#[test]
fn one_line_says_what_runs_and_why() {
    for io in ["epoll", "auto"] {
        let arguments = [
            "reverse",
            "--listen",
            "127.0.0.1:0",
            "--to",
            "127.0.0.1:9",
            "--io",
            io,
            "--workers",
            "2",
        ];
        let running = Running::start(&arguments);
        let (time, rest) = running.line.split_once(' ').unwrap();
        assert!(
            time.len() == "2026-11-24T18:44:17.123Z".len() && time.ends_with('Z'),
            "{}",
            running.line
        );
        assert!(rest.starts_with("info weir: "), "{}", running.line);
        assert!(
            running.line.contains("epoll: ") || running.line.contains("io_uring: "),
            "{}",
            running.line
        );
        assert!(running.line.contains(" workers=2"), "{}", running.line);
        running.end("INT");
    }
}

#[test]
fn an_idle_weir_ends_at_sigterm_and_at_sigint() {
    for signal in ["TERM", "INT"] {
        let running =
            Running::start(&["reverse", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:9"]);
        let mut idle = running.connect();
        running.end(signal);
        assert!(matches!(idle.read(&mut [0; 8]), Ok(0) | Err(_)), "an idle connection is closed");
    }
}

/// A request under way: it has reached the server, which responds on a signal.
struct Unanswered {
    weir: Running,
    client: Patient<TcpStream>,
    server: Patient<TcpStream>,
}

impl Unanswered {
    fn new() -> Unanswered {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap().to_string();
        let weir = Running::start(&[
            "reverse",
            "--listen",
            "127.0.0.1:0",
            "--to",
            &to,
            "--connections",
            "1",
        ]);
        let mut client = weir.connect();
        write!(client, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut server = patient(listener.accept().unwrap().0);
        let mut first = String::new();
        BufReader::new(&mut server).read_line(&mut first).unwrap();
        assert_eq!(first, "GET /slow HTTP/1.1\r\n");
        Unanswered { weir, client, server }
    }

    /// SIGTERM was noticed when weir no longer accepts.
    fn drain(&self) {
        self.weir.signal("TERM");
        eventually("nothing new is accepted", || TcpStream::connect(self.weir.address).is_err());
    }
}

#[test]
fn sigterm_lets_a_request_finish() {
    let mut request = Unanswered::new();
    request.drain();
    write!(request.server, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    let mut answer = String::new();
    request.client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nok"), "{answer}");
    assert_eq!(request.weir.wait(), (Some(0), String::new()));
}

/// Drains while eight clients of two workers wait for one connection, which the server ends after
/// each response if set.
fn drain_with_one_connection(ends: bool) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let arguments =
        ["reverse", "--listen", "127.0.0.1:0", "--to", &to, "--connections", "1", "--workers", "2"];
    // However long a response takes.
    let weir = Running::start(&[&arguments[..], &["--connections-max", "1"]].concat());
    let mut clients: Vec<_> = (0..8).map(|_| weir.connect()).collect();
    for client in &mut clients {
        write!(client, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    }
    let accept = || BufReader::new(patient(listener.accept().unwrap().0));
    let mut server = accept();
    for n in 0..clients.len() {
        if ends && n > 0 {
            server = accept();
        }
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert_ne!(
                server.read_line(&mut line).unwrap(),
                0,
                "the connection ended before request {n}"
            );
        }
        if n == 0 {
            weir.signal("TERM");
            eventually("nothing new is accepted", || TcpStream::connect(weir.address).is_err());
        }
        let connection = if ends { "Connection: close\r\n" } else { "" };
        write!(server.get_mut(), "HTTP/1.1 200 OK\r\n{connection}Content-Length: 2\r\n\r\nok")
            .unwrap();
    }
    for mut client in clients {
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nok"), "{answer}");
    }
    assert_eq!(weir.wait(), (Some(0), String::new()));
}

/// The only connection belongs to one worker; clients of the other worker also get their responses.
#[test]
fn sigterm_lets_requests_of_all_workers_finish() {
    drain_with_one_connection(false);
}

/// Even if the connection has to be made again, by a worker without clients.
#[test]
fn a_drained_worker_still_connects_for_the_others() {
    drain_with_one_connection(true);
}

#[test]
fn a_second_sigterm_and_sigint_end_at_once() {
    for second in ["TERM", "INT"] {
        let mut request = Unanswered::new();
        request.drain();
        request.weir.signal(second);
        assert_eq!(request.weir.wait(), (Some(0), String::new()));
        assert!(
            matches!(request.client.read(&mut [0; 8]), Ok(0) | Err(_)),
            "the request was given up"
        );
    }
}

#[test]
fn sigint_ends_at_once() {
    let mut request = Unanswered::new();
    request.weir.signal("INT");
    assert_eq!(request.weir.wait(), (Some(0), String::new()));
    assert!(matches!(request.client.read(&mut [0; 8]), Ok(0) | Err(_)), "the request was given up");
}
