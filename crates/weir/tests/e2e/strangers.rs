//! Servers that send unsolicited responses, to weir with one request at a time and to nginx: how
//! many responses go to the wrong client. With these options weir is no worse than nginx, kind by
//! kind (docs/connections.md#trust-in-a-server).

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::kit::{Io, Nginx, Weir, eventually, nonce, on_both_drivers};

on_both_drivers!(one_at_a_time_is_no_worse_than_nginx, the_answer_to_a_body_is_nobodys);

/// The server's treatment of a request for `/trigger`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Reads its body as the next request, whose response takes this many microseconds.
    BodyAsRequest(u64),
    /// Responds a second time, this many microseconds later.
    Late(u64),
    /// Responds a second time, with the same call.
    Surplus,
    /// Sends a response as the body to HEAD.
    HeadBody,
    /// Sends a response as the body of a 304.
    BodyOf304,
    /// Sends a 103 behind the response.
    Hints,
    /// The same, this many microseconds later.
    LateHints(u64),
    /// Declares more than it sends.
    TooLong,
}

const KINDS: [Kind; 10] = [
    Kind::BodyAsRequest(200),
    Kind::Late(100),
    Kind::Late(1_000),
    Kind::Late(5_000),
    Kind::Surplus,
    Kind::HeadBody,
    Kind::BodyOf304,
    Kind::Hints,
    Kind::LateHints(1_000),
    Kind::TooLong,
];

/// Events of each kind.
const EVENTS: usize = 20;
/// Clients besides the one that triggers.
const VICTIMS: usize = 8;
/// Responses to them between two events.
const PAUSE: usize = 40;
/// How long a client waits for a response before it reconnects.
const PATIENCE: Duration = Duration::from_secs(2);

/// A request as a careless server reads it.
struct Asked {
    target: String,
    body: usize,
}

fn line(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    let len = reader.read_line(&mut line).ok()?;
    (len > 0).then(|| line.trim_end().to_owned())
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Asked> {
    let target = line(reader)?.split(' ').nth(1)?.to_owned();
    let mut body = 0;
    loop {
        let field = line(reader)?.to_ascii_lowercase();
        if field.is_empty() {
            return Some(Asked { target, body });
        }
        if let Some(length) = field.strip_prefix("content-length:") {
            body = length.trim().parse().ok()?;
        }
    }
}

/// Returns a response to a request for this target; its length is `more` than its body.
fn answer(target: &str, more: usize) -> String {
    format!("HTTP/1.1 200 OK\r\nX-Target: {target}\r\nContent-Length: {}\r\n\r\nok", 2 + more)
}

/// Serves one connection until it ends.
fn serve(stream: TcpStream, kind: Kind) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let Asked { target, body } = read_request(&mut reader)?;
        let trigger = target.starts_with("/trigger");
        if !trigger || !matches!(kind, Kind::BodyAsRequest(_)) {
            std::io::copy(&mut (&mut reader).take(body as u64), &mut std::io::sink()).ok()?;
        }
        // The scenario is a server that needs time; no test waits for this to pass.
        std::thread::sleep(Duration::from_micros(match kind {
            Kind::BodyAsRequest(us) if target == "/stranger" => us,
            _ => 200,
        }));
        let (own, stranger) = (answer(&target, 0), answer("/stranger", 0));
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </stranger>\r\n\r\n";
        let empty = own.trim_end_matches("ok").to_owned();
        let (first, late) = match kind {
            _ if !trigger => (own, None),
            Kind::BodyAsRequest(_) => (own, None),
            Kind::Late(us) => (own, Some((us, stranger.as_str()))),
            Kind::LateHints(us) => (own, Some((us, hints))),
            Kind::Surplus => (own + &stranger, None),
            Kind::HeadBody => (empty + &stranger, None),
            Kind::BodyOf304 => {
                (format!("HTTP/1.1 304 Not Modified\r\nX-Target: {target}\r\n\r\n{stranger}"), None)
            }
            Kind::Hints => (own + hints, None),
            Kind::TooLong => (answer(&target, 60), None),
        };
        writer.write_all(first.as_bytes()).ok()?;
        if let Some((us, more)) = late {
            std::thread::sleep(Duration::from_micros(us));
            writer.write_all(more.as_bytes()).ok()?;
        }
    }
}

/// Starts a server of this kind; its threads end with the connections.
fn start(kind: Kind) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            std::thread::spawn(move || serve(stream, kind));
        }
    });
    address
}

/// The result for a client.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    Own,
    /// Another client's response, or an unexpected interim one.
    Strange,
    /// An error, or nothing.
    Nothing,
}

/// A client that trusts what it gets.
struct Naive {
    to: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
    patience: Duration,
}

impl Naive {
    fn new(to: SocketAddr, patience: Duration) -> Naive {
        Naive { to, stream: None, patience }
    }

    /// Leaves for good: a client that only ends its own direction may still read.
    fn leave(&mut self) {
        if let Some(stream) = self.stream.take() {
            socket2::SockRef::from(stream.get_ref())
                .set_linger(Some(Duration::ZERO))
                .expect("an option of every socket");
        }
    }

    fn ask(&mut self, method: &str, target: &str, fields: &str, body: &str) -> Got {
        let got = self.try_ask(method, target, fields, body);
        if got.is_none() {
            self.leave();
        }
        got.unwrap_or(Got::Nothing)
    }

    fn try_ask(&mut self, method: &str, target: &str, fields: &str, body: &str) -> Option<Got> {
        let to = self.to;
        let stream = self
            .stream
            .get_or_insert_with(|| BufReader::new(TcpStream::connect(to).expect("a proxy")));
        stream.get_ref().set_read_timeout(Some(self.patience)).ok()?;
        let length = if body.is_empty() {
            String::new()
        } else {
            format!("Content-Length: {}\r\n", body.len())
        };
        let request =
            format!("{method} {target} HTTP/1.1\r\nHost: a\r\n{fields}{length}\r\n{body}");
        stream.get_mut().write_all(request.as_bytes()).ok()?;
        let status: u16 = line(stream)?.split(' ').nth(1)?.parse().ok()?;
        let (mut whose, mut length) = (String::new(), 0u64);
        loop {
            let field = line(stream)?;
            match field.split_once(": ") {
                None => break,
                Some((name, value)) if name.eq_ignore_ascii_case("x-target") => {
                    whose = value.to_owned()
                }
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().ok()?
                }
                Some(_) => {}
            }
        }
        if status < 200 {
            self.stream = None;
            return Some(Got::Strange);
        }
        if method != "HEAD" && status != 304 {
            let mut body = String::new();
            stream
                .take(length)
                .read_to_string(&mut body)
                .ok()
                .filter(|len| *len as u64 == length)?;
            if body.contains("HTTP/1.") {
                return Some(Got::Strange);
            }
        }
        Some(match status {
            200 | 304 if whose == target => Got::Own,
            200 | 304 => Got::Strange,
            _ => Got::Nothing,
        })
    }
}

/// Returns the responses that went to the wrong client while the server behind this proxy did that
/// [`EVENTS`] times.
fn strangers(proxy: SocketAddr, kind: Kind) -> usize {
    let (over, answered, strange) =
        (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..VICTIMS {
            scope.spawn(|| {
                let mut client = Naive::new(proxy, PATIENCE);
                while !over.load(Ordering::Relaxed) {
                    let got = client.ask("GET", &format!("/victim?n={}", nonce()), "", "");
                    strange.fetch_add(usize::from(got == Got::Strange), Ordering::Relaxed);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Trust is earned.
        eventually("victims are answered", || answered.load(Ordering::Relaxed) > 400);
        for _ in 0..EVENTS {
            let seen = answered.load(Ordering::Relaxed);
            let mut asker = Naive::new(proxy, Duration::from_millis(50));
            let target = format!("/trigger?n={}", nonce());
            match kind {
                Kind::HeadBody => asker.ask("HEAD", &target, "", ""),
                Kind::BodyOf304 => asker.ask("GET", &target, "If-None-Match: \"x\"\r\n", ""),
                Kind::BodyAsRequest(_) => {
                    asker.ask("POST", &target, "", "GET /stranger HTTP/1.1\r\nHost: a\r\n\r\n")
                }
                _ => asker.ask("GET", &target, "", ""),
            };
            asker.leave();
            eventually("victims are answered", || answered.load(Ordering::Relaxed) > seen + PAUSE);
        }
        over.store(true, Ordering::Relaxed);
    });
    strange.into_inner()
}

/// However long it takes, and however clients share connections.
fn the_answer_to_a_body_is_nobodys(io: Io) {
    for mode in ["", "pipeline off", "pipeline share=\"client\""] {
        for us in [200, 3_000, 30_000] {
            let kind = Kind::BodyAsRequest(us);
            let server = start(kind);
            let text = format!(
                "upstream \"app\" {{ server \"{server}\"; {mode} }}\nroute {{ proxy \"app\" }}\n"
            );
            let weir = Weir::start(io, 1, &text);
            assert_eq!(strangers(weir.address, kind), 0, "{kind:?} {mode}");
            weir.stop();
        }
    }
}

/// For each kind; late events depend on moments, so the kinds that differ only in their delay are
/// taken together.
fn one_at_a_time_is_no_worse_than_nginx(io: Io) {
    let modes = ["pipeline off", "pool \"shared\"", "pipeline share=\"client\""];
    let (mut late, mut late_nginx) = ([0; 3], 0);
    for kind in KINDS {
        let server = start(kind);
        let nginx = Nginx::in_front_of(server);
        let of_nginx = strangers(nginx.address, kind);
        drop(nginx);
        for (mode, late) in modes.iter().zip(&mut late) {
            let weir = Weir::start(
                io,
                1,
                &format!(
                    "upstream \"app\" {{ server \"{server}\"; {mode} }}\n\
                        route {{ proxy \"app\" }}\n"
                ),
            );
            let count = strangers(weir.address, kind);
            weir.stop();
            eprintln!("{kind:?}: {mode} {count}, nginx {of_nginx}");
            match kind {
                Kind::Late(_) => *late += count,
                // A millisecond can become more than the waited tenth of a second, on a machine
                // with much other work.
                Kind::LateHints(_) => assert!(count <= EVENTS / 10, "{kind:?}, {mode}: {count}"),
                _ => assert_eq!(count, 0, "{kind:?}, {mode}"),
            }
        }
        if let Kind::Late(_) = kind {
            late_nginx += of_nginx;
        }
    }
    assert!(
        late.iter().all(|count| *count <= late_nginx),
        "{modes:?} {late:?}, nginx {late_nginx}"
    );
}
