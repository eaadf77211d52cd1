//! Clients that connect, stay, and send requests now and then; how many of them each worker of a
//! contender has, and how much it has to do.
//!
//! Called by `rounds.rs` for each run of the experiment `ladder`. The harness is all clients: one
//! thread that opens each when it is due, and sends requests on each when they are due. It never
//! waits for a response: by the next request of a client, its response is there, or is counted as
//! late. Bounds: [`CLIENTS`] connections, the seconds given.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use super::even_settings;
use super::load::{Readings, check_interrupt, pause};
use super::ports::free_address;
use super::process::Process;
use super::stage::{Running, Stage, start_origin};
use super::workers::Workers;
use crate::bench::experiment::block::Program;
use crate::bench::experiment::contenders::{Contender, What};
use crate::bench::experiment::even::{ASKS_EVERY_MS, Arrival, CLIENTS, Ladder, Rival};
use crate::bench::record::even::Laddered;
use crate::bench::record::outcome::Record;
use crate::random::Random;

/// Between the last client's arrival and the counted time, microseconds: each has sent one more
/// request by then.
const REST_US: u64 = 2 * ASKS_EVERY_MS * 1000;
/// How long a connection may take to be made.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Does one run; processor time is counted for this many seconds, once all clients are there.
///
/// # Errors
/// Something can't be started, a worker can't be read, or the user interrupts.
pub(super) fn run(
    stage: &Stage,
    contender: Contender,
    ladder: Ladder,
    (round, seconds): (u32, u32),
) -> io::Result<(Running, Record)> {
    let count = ladder.workers.unwrap_or(stage.cores());
    let (listen, to, admin) = (free_address()?, free_address()?, stage.scratch("ladder.sock"));
    // One thread, so that it is as far from one worker as from another: with several, it would be
    // random which thread has whose connections, and that would cost more than what is measured.
    let mut server = start_origin(stage.weir(), to, 1, &[], &stage.scratch("ladder-origin.log"))?;
    server.await_listening(to)?;
    let running = start(stage, contender, [listen, to], count, &admin)?.before((server, to));
    let mut clients = Clients::new(listen, ladder.arrival, round);
    let all_us = ladder.arrival.opened_at_us(CLIENTS - 1);
    clients.go_on(all_us + REST_US)?;
    let workers = Workers::find(program(contender), &running.pids(), count)?;
    let (before, cpu_us, own) = (Readings::take(stage, &running), workers.cpu_us()?, own_cpu_us());
    let answered = clients.answered;
    clients.go_on(clients.now_us() + u64::from(seconds) * 1_000_000)?;
    let used =
        workers.cpu_us()?.iter().zip(&cpu_us).map(|(after, before)| after - before).collect();
    let mut record = before.finish();
    record.generator_us = own_cpu_us() - own;
    record.requests = clients.answered - answered;
    record.rate = record.requests as f64 / (record.wall_us / 1e6);
    record.errors =
        [("not_connected", clients.refused), ("late", clients.late), ("lost", clients.lost)]
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| (kind.to_owned(), count))
            .collect();
    let connections = workers.connections(listen, &admin)?;
    record.special.ladder = Some(Laddered { connections, cpu_us: used });
    Ok((running, record))
}

fn program(contender: Contender) -> Program {
    match contender.what {
        What::Nginx => Program::Nginx,
        What::Haproxy => Program::Haproxy,
        What::Rival(Rival { program, .. }) => program,
        _ => Program::Weir,
    }
}

fn start(
    stage: &Stage,
    contender: Contender,
    [listen, to]: [SocketAddr; 2],
    workers: usize,
    admin: &Path,
) -> io::Result<Running> {
    let text = even_settings::text(stage, contender, [listen, to], workers, Some(admin))?;
    if program(contender) != Program::Weir {
        return stage.start_with(contender, listen, &text);
    }
    let file = stage.scratch(&format!("{}.kdl", contender.name));
    std::fs::write(&file, text)?;
    let (file, admin) = (file.to_string_lossy(), admin.to_string_lossy());
    let log = stage.scratch(&format!("{}.log", contender.name));
    let mut weir = Process::start(stage.weir(), &["run", "--admin", &admin, "-c", &file], &log)?;
    weir.await_listening(listen)?;
    Ok(Running::alone((weir, listen)))
}

/// Returns the processor time of the calling thread, microseconds.
fn own_cpu_us() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Events: the opening of a client sorts before its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Deed {
    Open,
    Ask,
}

/// All clients of a run.
struct Clients {
    to: SocketAddr,
    begin: Instant,
    /// Events by time, microseconds since the beginning, with the number of the client.
    due: BinaryHeap<Reverse<(u64, Deed, u32)>>,
    /// By number; None: not opened yet, or lost.
    clients: Vec<Option<Client>>,
    random: Random,
    answered: u64,
    /// Responses that were not there when the next request was due.
    late: u64,
    refused: u64,
    lost: u64,
}

impl Clients {
    fn new(to: SocketAddr, arrival: Arrival, seed: u32) -> Clients {
        let due =
            (0..CLIENTS).map(|nth| Reverse((arrival.opened_at_us(nth), Deed::Open, nth))).collect();
        let clients = (0..CLIENTS).map(|_| None).collect();
        let random = Random::new(u64::from(seed)).fork(1);
        Clients {
            to,
            begin: Instant::now(),
            due,
            clients,
            random,
            answered: 0,
            late: 0,
            refused: 0,
            lost: 0,
        }
    }

    fn now_us(&self) -> u64 {
        self.begin.elapsed().as_micros() as u64
    }

    /// Handles everything that is due by `until_us`.
    fn go_on(&mut self, until_us: u64) -> io::Result<()> {
        while let Some(Reverse((due_us, deed, nth))) =
            self.due.peek().copied().filter(|next| next.0.0 <= until_us)
        {
            check_interrupt()?;
            if let Some(early_us) = due_us.checked_sub(self.now_us()).filter(|us| *us > 0) {
                // In short steps, so that the user can interrupt.
                std::thread::sleep(Duration::from_micros(early_us.min(20_000)));
                continue;
            }
            self.due.pop();
            match deed {
                Deed::Open => self.open(nth),
                Deed::Ask => self.ask(nth),
            }
        }
        // When all clients are lost, nothing more is due.
        pause(Duration::from_micros(until_us.saturating_sub(self.now_us())))
    }

    fn open(&mut self, nth: u32) {
        match Client::open(self.to) {
            Ok(client) => {
                self.clients[nth as usize] = Some(client);
                self.due.push(Reverse((self.now_us(), Deed::Ask, nth)));
            }
            Err(_) => self.refused += 1,
        }
    }

    fn ask(&mut self, nth: u32) {
        let Some(client) = &mut self.clients[nth as usize] else { return };
        match client.ask(self.to) {
            Ok(Answer::Came) => self.answered += 1,
            Ok(Answer::None) => {}
            Ok(Answer::Late) => self.late += 1,
            Err(_) => {
                self.lost += 1;
                self.clients[nth as usize] = None;
                return;
            }
        }
        let wait_us = ASKS_EVERY_MS as f64 * 1000.0 * (0.5 + self.random.fraction());
        self.due.push(Reverse((self.now_us() + wait_us as u64, Deed::Ask, nth)));
    }
}

/// The result of the previous request.
enum Answer {
    /// There was no request.
    None,
    Came,
    /// The response is not here yet; no further request was sent.
    Late,
}

/// A client's connection.
struct Client {
    stream: TcpStream,
    waits: bool,
}

impl Client {
    fn open(to: SocketAddr) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&to, CONNECT_PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Client { stream, waits: false })
    }

    /// Takes the response to the last request, and sends the next request.
    fn ask(&mut self, to: SocketAddr) -> io::Result<Answer> {
        let mut answer = Answer::None;
        if self.waits {
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) if bytes[..length].ends_with(b"ok\n") => answer = Answer::Came,
                Ok(_) => return Ok(Answer::Late),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Answer::Late),
                Err(error) => return Err(error),
            }
        }
        self.waits = true;
        self.stream.write_all(format!("GET / HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes())?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_client_asks_again_when_it_has_its_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let mut client = Client::open(to).unwrap();
        let mut server = listener.accept().unwrap().0;
        assert!(matches!(client.ask(to), Ok(Answer::None)));
        let mut bytes = [0; 4096];
        let length = server.read(&mut bytes).unwrap();
        assert!(bytes[..length].starts_with(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:"));
        assert!(
            matches!(client.ask(to), Ok(Answer::Late)),
            "nothing has come, and nothing more is asked"
        );
        server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n").unwrap();
        // On loopback, written bytes arrive at once.
        assert!(matches!(client.ask(to), Ok(Answer::Came)));
        assert!(server.read(&mut bytes).unwrap() > 0, "the second request");
        drop(server);
        assert!(client.ask(to).is_err());
    }

    #[test]
    fn a_client_is_opened_before_it_asks() {
        let mut due = BinaryHeap::from([
            Reverse((5, Deed::Ask, 0)),
            Reverse((5, Deed::Open, 9)),
            Reverse((4, Deed::Ask, 3)),
        ]);
        let order: Vec<_> =
            std::iter::from_fn(|| due.pop()).map(|Reverse((_, deed, nth))| (deed, nth)).collect();
        assert_eq!(order, [(Deed::Ask, 3), (Deed::Open, 9), (Deed::Ask, 0)]);
    }
}
