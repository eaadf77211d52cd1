//! Whether a cache's responses are old ones: the harness requests one after the other on kept
//! connections, and reads their Age (RFC 9111 §5.1).
//!
//! Called by `cache_events.rs`. Pieces of a response come within [`PATIENCE`]. Bound:
//! [`HEAD_BYTES_MAX`], and as many looks as there are responses.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a piece of a response may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest head of a response.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Between two looks on a connection.
const EVERY: Duration = Duration::from_micros(250);
/// The distance between keys that are checked one after the other: a prime, so that no key comes
/// twice.
const STRIDE: u64 = 7919;

/// A kept connection.
pub(super) struct Asker {
    stream: TcpStream,
    address: SocketAddr,
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// How long ago the origin made it, seconds; None: it does not say, like a response that was
    /// just fetched.
    pub(super) age_s: Option<u64>,
    /// Length of its body, bytes.
    pub(super) body: usize,
}

impl Answer {
    /// Whether it was stored a while ago.
    pub(super) fn is_old(&self) -> bool {
        self.age_s.is_some_and(|age_s| age_s > 0)
    }
}

/// One look at a response.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// When it was requested.
    pub(super) asked: Instant,
    /// When it was complete.
    pub(super) had: Instant,
    pub(super) is_old: bool,
}

impl Asker {
    pub(super) fn connect(address: SocketAddr) -> io::Result<Asker> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Asker { stream, address })
    }

    /// Sends a request with this method and these further lines of its head, and reads the whole
    /// response.
    ///
    /// # Errors
    /// The connection ends or is silent for too long, or the response has no length.
    pub(super) fn ask(&mut self, method: &str, target: &str, fields: &str) -> io::Result<Answer> {
        let request =
            format!("{method} {target} HTTP/1.1\r\nHost: {}\r\n{fields}\r\n", self.address);
        self.stream.write_all(request.as_bytes())?;
        let mut bytes = Vec::new();
        let head_bytes = loop {
            if let Some(at) = memchr::memmem::find(&bytes, b"\r\n\r\n") {
                break at + 4;
            }
            if bytes.len() > HEAD_BYTES_MAX {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    "a response has a head without an end",
                ));
            }
            self.read_more(&mut bytes)?;
        };
        let answer = of_head(&String::from_utf8_lossy(&bytes[..head_bytes]))?;
        while bytes.len() < head_bytes + answer.body {
            self.read_more(&mut bytes)?;
        }
        Ok(answer)
    }

    fn read_more(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let mut piece = [0; 64 << 10];
        match self.stream.read(&mut piece)? {
            0 => Err(io::Error::new(
                ErrorKind::UnexpectedEof,
                "a connection ended within a response",
            )),
            length => {
                bytes.extend_from_slice(&piece[..length]);
                Ok(())
            }
        }
    }
}

/// Reads status, Age and Content-Length.
fn of_head(head: &str) -> io::Result<Answer> {
    let wrong = |what: &str| {
        io::Error::new(ErrorKind::InvalidData, format!("a response has no {what}: {head}"))
    };
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| wrong("status"))?;
    let field = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        let line = lines
            .filter(|(its, _)| its.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
            .next();
        line.and_then(|value| value.parse::<u64>().ok())
    };
    let body = field("content-length").ok_or_else(|| wrong("length"))?;
    Ok(Answer { status, age_s: field("age"), body: body as usize })
}

/// Looks at one response after the other until `end` is set, or until it has seen its share of the
/// keys. From the `keys` keys from 1 on, its share is those with `number` as the remainder.
/// `target` makes the target of a key.
///
/// # Errors
/// As [`Asker::ask`].
pub(super) fn look_on(
    address: SocketAddr,
    (number, lookers, keys): (u64, u64, u64),
    target: &(dyn Fn(u64) -> String + Sync),
    end: &AtomicBool,
) -> io::Result<Vec<Look>> {
    let mut asker = Asker::connect(address)?;
    let share = keys / lookers;
    let mut looks = Vec::new();
    for nth in 0..share {
        if end.load(Ordering::Relaxed) {
            break;
        }
        let key = nth * STRIDE % share * lookers + number + 1;
        let asked = Instant::now();
        let is_old = asker.ask("GET", &target(key), "")?.is_old();
        looks.push(Look { asked, had: Instant::now(), is_old });
        std::thread::sleep(EVERY);
    }
    Ok(looks)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn an_answer_is_old_by_its_age() {
        let head = |fields: &str| {
            of_head(&format!("HTTP/1.1 200 OK\r\nContent-Length: 16\r\n{fields}\r\n"))
        };
        assert_eq!(head("age: 3\r\n").unwrap(), Answer { status: 200, age_s: Some(3), body: 16 });
        assert!(head("Age: 3\r\n").unwrap().is_old() && !head("Age: 0\r\n").unwrap().is_old());
        assert!(!head("").unwrap().is_old());
        let error = of_head("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap_err();
        assert!(error.to_string().contains("no length"), "{error}");
    }

    #[test]
    fn no_key_is_looked_at_twice() {
        let (lookers, keys) = (2, 1000);
        let share = keys / lookers;
        let of =
            |number: u64| (0..share).map(move |nth| nth * STRIDE % share * lookers + number + 1);
        let all: BTreeSet<u64> = of(0).chain(of(1)).collect();
        assert_eq!(all, (1..=keys).collect());
    }

    #[test]
    fn whole_answers_are_read_on_one_connection() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            for answer in [
                "HTTP/1.1 200 OK\r\nAge: 2\r\nContent-Length: 3\r\n\r\nabc",
                "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
            ] {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.extend(byte);
                }
                seen.push(String::from_utf8(request).unwrap());
                stream.write_all(answer.as_bytes()).unwrap();
            }
            seen
        });
        let mut asker = Asker::connect(address).unwrap();
        assert_eq!(
            asker.ask("GET", "/a", "").unwrap(),
            Answer { status: 200, age_s: Some(2), body: 3 }
        );
        assert_eq!(asker.ask("BAN", "/", "X-Tag: t1\r\n").unwrap().status, 404);
        let seen = server.join().unwrap();
        assert_eq!(seen[1], format!("BAN / HTTP/1.1\r\nHost: {address}\r\nX-Tag: t1\r\n\r\n"));
    }
}
