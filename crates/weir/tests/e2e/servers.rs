//! Servers that people run, with the defaults of weir: those that serve one connection at a time,
//! those that close idle ones, and those with long responses. Every request gets a response, a POST
//! is executed once, and no request waits for connections that others hold.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::kit::{
    Behaviour, Client, Gone, Io, Link, Random, Scratch, Server, Weir, eventually, free_port, nonce,
    on_both_drivers, timed_get,
};
use weir_check::Request;
use weir_check::upstreams::{Ending, check_honest, honest_answer};

on_both_drivers!(
    gunicorn_with_two_processes,
    gunicorn_with_threads,
    python_without_threads,
    python_that_keeps_its_only_connection,
    clients_in_turn_of_python_that_keeps_its_only_connection,
    python_with_threads,
    node,
    uploads_that_drip_in_node,
    uploads_that_drip_in_python,
    event_streams_of_node,
    event_streams_of_python,
    long_polls_of_node,
    long_polls_of_python,
    posts_at_the_idle_limit_of_node,
    posts_at_the_idle_limit_of_gunicorn,
    posts_to_servers_that_end_connections,
);

/// Longest time of a request besides those that hold connections: without the fix it waited for
/// them, half a minute and more.
const PROMPT: Duration = Duration::from_secs(10);

/// The program to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    /// Its default worker serves one connection at a time and closes each after a response.
    GunicornSync,
    /// Keeps connections for two seconds.
    GunicornThreads,
    /// HTTP/1.0, one connection at a time.
    PythonOne,
    /// HTTP/1.1, one connection at a time, which it keeps until the other side ends it; five more
    /// wait in its queue.
    PythonKeeps,
    /// A thread for each connection.
    PythonThreads,
    /// Closes idle connections after this many milliseconds; 0: as it does by default.
    Node(u32),
}

/// A running program.
struct Real {
    address: SocketAddr,
    child: Child,
    scratch: Scratch,
}

impl Real {
    fn start(program: Program) -> Real {
        let scratch = Scratch::new();
        let port = free_port();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let scripts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/servers");
        let script = |name: &str| scripts.join(name).display().to_string();
        let gunicorn = |more: &[&str]| {
            let mut command = Command::new("/usr/bin/python3");
            command.args([
                "/usr/bin/gunicorn",
                "--bind",
                &address.to_string(),
                "--chdir",
                &script(""),
            ]);
            command.args(more).arg("servers:application");
            command
        };
        let python = |kind: &str| {
            let mut command = Command::new("/usr/bin/python3");
            command.args([&script("servers.py"), kind, &port.to_string()]);
            command
        };
        let mut command = match program {
            Program::GunicornSync => gunicorn(&["--workers", "2"]),
            Program::GunicornThreads => gunicorn(&["--threads", "64", "--keep-alive", "2"]),
            Program::PythonOne => python("one"),
            Program::PythonKeeps => python("keeps"),
            Program::PythonThreads => python("threads"),
            Program::Node(idle_ms) => {
                let mut command = Command::new("node");
                command.args([&script("server.js"), &port.to_string(), &idle_ms.to_string()]);
                command
            }
        };
        command
            .env("SERVER_LOG", scratch.path("log"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{program:?}: {error} (make setup installs it)"));
        let real = Real { address, child, scratch };
        eventually("the server accepts", || TcpStream::connect(address).is_ok());
        real
    }

    /// Starts weir in front of it, with defaults.
    fn weir(&self, io: Io) -> Weir {
        let upstream = format!(
            "upstream \"app\" {{ server \"{}\" }}\nroute {{ proxy \"app\" }}\n",
            self.address
        );
        Weir::start(io, 2, &upstream)
    }

    /// Returns what it did, line by line: `POST 12345678`.
    fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.scratch.path("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Lets the long responses end.
    fn release(&self) {
        self.scratch.write("log.release", b"");
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        // All of its group: gunicorn has several processes.
        let _ =
            Command::new("kill").args(["-KILL", "--", &format!("-{}", self.child.id())]).status();
        let _ = self.child.wait();
    }
}

/// 16 clients send 25 requests each.
fn all_are_answered(io: Io, program: Program) {
    let real = Real::start(program);
    let weir = real.weir(io);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let mut client = Client::connect(weir.address);
                for _ in 0..25 {
                    let nonce = nonce();
                    client.get(&format!("/?n={nonce}"));
                    check_honest(&nonce, &client.reply()).unwrap();
                }
            });
        }
    });
    eprintln!("{program:?}, {}: 400 requests in {:?}", io.word(), begin.elapsed());
    weir.stop();
}

fn gunicorn_with_two_processes(io: Io) {
    all_are_answered(io, Program::GunicornSync);
}

fn gunicorn_with_threads(io: Io) {
    all_are_answered(io, Program::GunicornThreads);
}

fn python_without_threads(io: Io) {
    all_are_answered(io, Program::PythonOne);
}

fn python_that_keeps_its_only_connection(io: Io) {
    all_are_answered(io, Program::PythonKeeps);
}

/// Clients come one after the other, to one worker or the other: a connection that a worker keeps
/// for the next request delays no client.
fn clients_in_turn_of_python_that_keeps_its_only_connection(io: Io) {
    let real = Real::start(Program::PythonKeeps);
    let weir = real.weir(io);
    others_are_answered(&format!("one connection at a time, {}", io.word()), &weir);
    let (mut poster, nonce) = (Client::connect(weir.address), nonce());
    poster.request("POST", &format!("/?n={nonce}"), "", b"x");
    check_honest(&nonce, &poster.reply()).unwrap();
    others_are_answered(&format!("the same behind a POST, {}", io.word()), &weir);
    let posts = real.log().iter().filter(|line| **line == format!("POST {nonce}")).count();
    assert_eq!(posts, 1);
    weir.stop();
}

fn python_with_threads(io: Io) {
    all_are_answered(io, Program::PythonThreads);
}

fn node(io: Io) {
    all_are_answered(io, Program::Node(0));
}

/// Checks that each of some GETs of separate clients gets a prompt response.
fn others_are_answered(what: &str, weir: &Weir) {
    let slowest = (0..40).map(|_| timed_get(weir)).max().unwrap_or_default();
    eprintln!("{what}: the slowest GET beside took {slowest:?}");
    assert!(slowest < PROMPT, "{slowest:?}");
}

/// 60 clients upload more than weir gathers, and then byte by byte.
fn uploads_that_drip(io: Io, program: Program) {
    let real = Real::start(program);
    let weir = real.weir(io);
    timed_get(&weir);
    let (at_once, slowly) = (vec![b'x'; 70 << 10], 20);
    let uploads: Vec<(Client, String)> = (0..60)
        .map(|_| {
            let (mut client, nonce) = (Client::connect(weir.address), nonce());
            client.ask("POST", false);
            let length = at_once.len() + slowly;
            let head =
                format!("POST /?n={nonce} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
            client.send(&[head.as_bytes(), &at_once].concat());
            (client, nonce)
        })
        .collect();
    let mut uploads = uploads;
    for _ in 0..slowly {
        let took = timed_get(&weir);
        assert!(took < PROMPT, "{took:?}");
        uploads.iter_mut().for_each(|(client, _)| client.send(b"x"));
    }
    for (client, nonce) in &mut uploads {
        check_honest(nonce, &client.reply()).unwrap();
    }
    weir.stop();
}

fn uploads_that_drip_in_node(io: Io) {
    uploads_that_drip(io, Program::Node(0));
}

fn uploads_that_drip_in_python(io: Io) {
    uploads_that_drip(io, Program::PythonThreads);
}

/// 100 clients send requests with long responses at once; others get responses; all of the 100
/// complete.
fn what_lasts(io: Io, program: Program, target: &str) {
    let real = Real::start(program);
    let weir = real.weir(io);
    for _ in 0..100 {
        timed_get(&weir);
    }
    let mut clients: Vec<(Client, String)> =
        (0..100).map(|_| (Client::connect(weir.address), nonce())).collect();
    for (client, nonce) in &mut clients {
        client.get(&format!("/{target}?n={nonce}"));
    }
    eventually("the server has all of them", || {
        let log = real.log();
        clients.iter().all(|(_, nonce)| log.contains(&format!("GET {nonce}")))
    });
    if target == "events" {
        for (client, _) in &mut clients {
            assert_eq!(client.beginning(13).status, 200);
        }
    }
    others_are_answered(&format!("100 {target}, {program:?}, {}", io.word()), &weir);
    real.release();
    for (client, nonce) in &mut clients {
        let reply = client.reply();
        assert_eq!((reply.status, reply.fields.all("x-nonce")), (200, vec![nonce.as_str()]));
    }
    weir.stop();
}

fn event_streams_of_node(io: Io) {
    what_lasts(io, Program::Node(0), "events");
}

fn event_streams_of_python(io: Io) {
    what_lasts(io, Program::PythonThreads, "events");
}

fn long_polls_of_node(io: Io) {
    what_lasts(io, Program::Node(0), "poll");
}

fn long_polls_of_python(io: Io) {
    what_lasts(io, Program::PythonThreads, "poll");
}

/// 50 clients send a POST each at once, so that connections have the same age. Then they send one
/// after the other at about the moment when the server closes idle connections: within `spread`
/// around it. Six times.
fn posts_at_the_idle_limit(io: Io, program: Program, limit: Duration, spread: Duration) {
    let real = Real::start(program);
    let weir = real.weir(io);
    let mut clients: Vec<Client> = (0..50).map(|_| Client::connect(weir.address)).collect();
    let mut posts = Vec::new();
    for round in 0..12u32 {
        let begin = Instant::now();
        let mut sent = Vec::new();
        for (n, client) in (0u32..).zip(&mut clients) {
            let at = limit - spread / 3 + spread * n / 50;
            while round % 2 == 1 && begin.elapsed() < at {
                std::thread::park_timeout(at.saturating_sub(begin.elapsed()));
            }
            let nonce = nonce();
            client.request("POST", &format!("/?n={nonce}"), "", b"x");
            sent.push(nonce);
        }
        posts.extend(clients.iter_mut().zip(sent).map(|(client, nonce)| {
            let reply = client.reply();
            (nonce.clone(), check_honest(&nonce, &reply).is_ok())
        }));
    }
    let log = real.log();
    let times =
        |nonce: &String| log.iter().filter(|line| **line == format!("POST {nonce}")).count();
    let lost = posts.iter().filter(|(_, answered)| !answered).count();
    let twice = posts.iter().filter(|(nonce, _)| times(nonce) > 1).count();
    assert_eq!((lost, twice), (0, 0), "lost, and executed twice, of {}", posts.len());
    weir.stop();
}

fn posts_at_the_idle_limit_of_node(io: Io) {
    posts_at_the_idle_limit(
        io,
        Program::Node(2000),
        Duration::from_secs(2),
        Duration::from_millis(30),
    );
}

fn posts_at_the_idle_limit_of_gunicorn(io: Io) {
    posts_at_the_idle_limit(
        io,
        Program::GunicornThreads,
        Duration::from_secs(2),
        Duration::from_millis(30),
    );
}

/// How a server ends a connection: as in the catalogue, or with a response of HTTP/1.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    As(Ending),
    Old,
}

/// Ends each connection like this after this many responses; 0: after about four, at random.
struct Ends {
    way: Way,
    answers: usize,
    random: Mutex<Random>,
}

impl Behaviour for Ends {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        let last = match self.answers {
            0 => self.random.lock().expect("no panic").below(4) == 0,
            answers => link.answers + 1 >= answers,
        };
        match self.way {
            _ if !last => link.honest(request),
            Way::As(ending) => link.end(request, ending),
            Way::Old => {
                let answer = String::from_utf8(honest_answer(request.nonce())).expect("text");
                link.answer(answer.replacen("HTTP/1.1", "HTTP/1.0", 1).as_bytes()).and(Err(Gone))
            }
        }
    }
}

/// Sends POSTs of eight clients with GETs beside them. Returns how many were lost, and how many
/// were not executed exactly once.
fn posts_to(io: Io, way: Way, answers: usize) -> (usize, usize) {
    let server = Server::start(Ends { way, answers, random: Mutex::new(Random::new()) });
    let upstream = format!(
        "upstream \"app\" {{ server \"{}\"\n forward-retries 100\n retry-budget 100 }}\n\
            route {{ proxy \"app\" }}\n",
        server.address
    );
    let weir = Weir::start(io, 2, &upstream);
    let posts: Vec<(String, u16)> = std::thread::scope(|scope| {
        let client = |writes: bool| {
            let mut client = Client::connect(weir.address);
            let mut posts = Vec::new();
            for _ in 0..POSTS {
                let gets = [nonce(), nonce()];
                gets.iter().for_each(|nonce| client.get(&format!("/?n={nonce}")));
                let post = nonce();
                if writes {
                    client.request("POST", &format!("/?n={post}"), "", b"x");
                }
                gets.iter().for_each(|nonce| check_honest(nonce, &client.reply()).unwrap());
                if writes {
                    posts.push((post, client.reply().status));
                }
            }
            posts
        };
        let clients: Vec<_> = (0..8).map(|n| scope.spawn(move || client(n % 4 != 3))).collect();
        clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect()
    });
    weir.stop();
    let log = server.finish();
    let mut times = std::collections::BTreeMap::new();
    log.requests.iter().for_each(|(_, request)| *times.entry(request.nonce()).or_insert(0) += 1);
    let lost = posts.iter().filter(|(_, status)| *status != 200).count();
    let is_wrong = |(nonce, status): &&(String, u16)| {
        let times = times.get(nonce.as_str()).copied().unwrap_or(0);
        times > 1 || *status == 200 && times == 0
    };
    (lost, posts.iter().filter(is_wrong).count())
}

/// POSTs of a client.
const POSTS: usize = 40;

/// Nothing is lost and nothing executed twice, however a server ends connections. If it ends one
/// without notice and at random, that is impossible to foresee: the first on each worker may meet
/// the end.
fn posts_to_servers_that_end_connections(io: Io) {
    let endings = [Ending::Announced, Ending::Fin, Ending::Rst, Ending::Unread].map(Way::As);
    for way in endings.into_iter().chain([Way::Old]) {
        for answers in [1, 3, 30, 0] {
            let silent = !matches!(way, Way::As(Ending::Announced) | Way::Old);
            let (lost, wrong) = posts_to(io, way, answers);
            assert!(
                lost <= if silent && answers == 0 { 2 } else { 0 },
                "{way:?} {answers}: {lost} lost"
            );
            assert_eq!(wrong, 0, "{way:?} {answers}: executed not once");
        }
    }
}
