//! A server whose responses name their key and version. It breaks off, fails, confirms, or sends
//! surplus responses as often as its manners say.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use weir_check::{Request, Rules, StrictRequests};
use weir_io::sim::{Actor, Conn, Net};

use super::memory::{Shared, Version};

/// Its manners, in thousandths of its responses.
#[derive(Clone, Copy, Default, Debug)]
pub struct Ways {
    /// Longest time until a response begins, microseconds.
    pub delay_us_max: u64,
    /// Shortest time, where each response takes about as long; 0: most begin much sooner than after
    /// the longest time.
    pub delay_us_min: u64,
    /// The response comes in pieces with pauses.
    pub pieces: u32,
    /// It is chunked.
    pub chunked: u32,
    /// The response is a 503.
    pub fails: u32,
    /// Its connection is reset instead, or in the middle of it.
    pub breaks: u32,
    /// It never comes.
    pub silent: u32,
    /// Its connection is reset instead, or in the middle of the response.
    pub closes: u32,
    /// From this world time on, once: another response precedes it, so that each response behind
    /// reaches the wrong request. 0: never.
    pub shifts_from_us: u64,
}

/// A request that is not completely answered.
struct Open {
    request: Request,
    asked_us: u64,
    /// It counts as open for its key.
    counts: bool,
}

struct Connection {
    judge: StrictRequests,
    open: VecDeque<Open>,
    /// The rest of the first response; None: it has not begun.
    writing: Option<VecDeque<Vec<u8>>>,
    /// The connection ends after the response that is being written.
    ends: bool,
    /// A timer that continues is set.
    waits: bool,
    /// Nothing more is answered.
    is_silent: bool,
}

/// The actor.
pub struct Origin {
    address: SocketAddr,
    memory: Shared,
    ways: Ways,
    conns: BTreeMap<Conn, Connection>,
    /// By key and way: the version that it would confirm.
    current: BTreeMap<(usize, Option<u8>), usize>,
    timers: BTreeMap<u64, Conn>,
    next_timer: u64,
    clients: usize,
    has_shifted: bool,
}

impl Origin {
    pub fn new(address: SocketAddr, memory: &Shared, ways: Ways, clients: usize) -> Origin {
        Origin {
            address,
            memory: memory.clone(),
            ways,
            conns: BTreeMap::new(),
            current: BTreeMap::new(),
            timers: BTreeMap::new(),
            next_timer: 0,
            clients,
            has_shifted: false,
        }
    }

    fn read(&mut self, net: &mut Net<'_>, conn: Conn, data: &[u8]) {
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        let mut memory = self.memory.borrow_mut();
        if let Err(violation) = connection.judge.feed(data) {
            // An origin that is out of step has lost count of answered requests.
            if !self.has_shifted {
                memory.violation(format!("to the origin: {violation}"));
            }
            drop(memory);
            self.lose(conn);
            return net.reset(conn);
        }
        while let Some(request) = connection.judge.poll_request() {
            let counts = request.method == "GET" && !request.fields.has("authorization");
            if counts {
                memory.opened(key_of(&request), way_of(&request));
            }
            connection.open.push_back(Open { request, asked_us: net.now_us(), counts });
        }
    }

    /// Begins with the first unanswered request, after a while.
    fn go_on(&mut self, net: &mut Net<'_>, conn: Conn) {
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        if connection.waits || connection.is_silent || connection.open.is_empty() {
            return;
        }
        connection.waits = true;
        let most_us = match connection.writing {
            Some(_) => self.ways.delay_us_max / 4,
            None if self.ways.delay_us_min > 0 => self.ways.delay_us_max,
            None => self.ways.delay_us_max >> net.rng().below(6),
        };
        let after_us = net.rng().between(self.ways.delay_us_min.min(most_us), most_us);
        self.next_timer += 1;
        self.timers.insert(self.next_timer, conn);
        net.timer(after_us, self.next_timer);
    }

    fn due(&mut self, net: &mut Net<'_>, conn: Conn) {
        let ways = self.ways;
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        connection.waits = false;
        if connection.writing.is_none() {
            if net.rng().chance(ways.silent) {
                connection.is_silent = true;
                return self.memory.borrow_mut().failed(net.now_us());
            }
            let Some(open) = connection.open.front() else { return };
            let (request, asked_us) = (open.request.clone(), open.asked_us);
            connection.judge.answered();
            connection.ends = net.rng().chance(ways.closes);
            let ends = connection.ends;
            let mut bytes = self.answer(net, &request, asked_us, ends);
            if ways.shifts_from_us > 0 && !self.has_shifted && net.now_us() >= ways.shifts_from_us {
                self.has_shifted = true;
                let other = Request { target: format!("/k{}", key_of(&request) + 1), ..request };
                bytes = [self.answer(net, &other, asked_us, false), bytes].concat();
            }
            let pieces = self.cut(net, bytes);
            let Some(connection) = self.conns.get_mut(&conn) else { return };
            connection.writing = Some(pieces);
        }
        if net.rng().chance(ways.breaks) {
            self.lose(conn);
            self.memory.borrow_mut().failed(net.now_us());
            return net.reset(conn);
        }
        self.write(net, conn);
    }

    fn write(&mut self, net: &mut Net<'_>, conn: Conn) {
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        let Some(pieces) = &mut connection.writing else { return };
        if let Some(piece) = pieces.pop_front() {
            net.send(conn, &piece);
        }
        if pieces.is_empty() {
            connection.writing = None;
            let ends = connection.ends;
            if let Some(open) = connection.open.pop_front() {
                close(&self.memory, &open);
            }
            if ends {
                self.lose(conn);
                self.memory.borrow_mut().failed(net.now_us());
                return net.close(conn);
            }
        }
        self.go_on(net, conn);
    }

    /// The bytes of a response, and a version for its body.
    fn answer(
        &mut self,
        net: &mut Net<'_>,
        request: &Request,
        asked_us: u64,
        close: bool,
    ) -> Vec<u8> {
        let (key, way, nonce) =
            (key_of(request), way_of(request), request.fields.first("x-nonce").unwrap_or_default());
        let mut memory = self.memory.borrow_mut();
        let key = key % memory.resources.len();
        let end = if close { "Connection: close\r\n" } else { "" };
        let own = format!("X-Nonce: {nonce}\r\n{end}");
        if net.rng().chance(self.ways.fails) {
            memory.failed(net.now_us());
            let body = if request.method == "HEAD" { "" } else { "ill" };
            return format!("HTTP/1.1 503 Ill\r\n{own}Content-Length: 3\r\n\r\n{body}")
                .into_bytes();
        }
        if request.method == "DELETE" {
            self.current.retain(|(other, _), _| *other != key);
            memory.changes_us.insert(nonce.to_owned(), net.now_us());
            return format!("HTTP/1.1 200 Done\r\n{own}Content-Length: 4\r\n\r\ndone").into_bytes();
        }
        let resource = memory.resources[key].clone();
        let way = way.filter(|_| resource.varies);
        let current = self.current.get(&(key, way)).copied();
        let is_asked = |number: &usize| {
            request.fields.first("if-none-match") == Some(&format!("\"v{number}\""))
        };
        if let Some(number) = current.filter(is_asked)
            && net.rng().chance(500)
        {
            let version = &mut memory.versions[number];
            version.asked_us.push(asked_us);
            version.confirmed_us = net.now_us();
            let lines = resource.lines(key, number);
            return format!("HTTP/1.1 304 Same\r\n{own}{lines}\r\n").into_bytes();
        }
        let number = memory.versions.len();
        let shift = net.rng().below(10);
        let bytes = net.rng().index((resource.bytes_max >> shift).max(1)).max(resource.bytes_min);
        let owner = resource.is_private.then(|| nonce.to_owned());
        let version = Version { key, way, asked_us: vec![asked_us], confirmed_us: 0, owner, bytes };
        let body = version.body(number);
        memory.versions.push(version);
        // Only the response to a GET becomes the version that a 304 confirms later.
        if request.method == "GET" {
            self.current.insert((key, way), number);
        }
        let lines = resource.lines(key, number);
        let head = format!("HTTP/1.1 200 OK\r\n{own}X-Version: {number}\r\n{lines}");
        let is_chunked = net.rng().chance(self.ways.chunked);
        match is_chunked && request.method != "HEAD" {
            true => {
                let mut out = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
                for chunk in body.chunks(1 + net.rng().index(40_000)) {
                    out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    out.extend_from_slice(&[chunk, b"\r\n"].concat());
                }
                [out, b"0\r\n\r\n".to_vec()].concat()
            }
            false => {
                let head = format!("{head}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
                if request.method == "HEAD" { head } else { [head, body].concat() }
            }
        }
    }

    fn cut(&self, net: &mut Net<'_>, bytes: Vec<u8>) -> VecDeque<Vec<u8>> {
        let mut pieces = VecDeque::new();
        let mut rest = bytes;
        while rest.len() > 1 && net.rng().chance(self.ways.pieces) && pieces.len() < 10 {
            let tail = rest.split_off(1 + net.rng().index(rest.len() - 1));
            pieces.push_back(std::mem::replace(&mut rest, tail));
        }
        pieces.push_back(rest);
        pieces
    }

    /// A connection has ended: nothing is open on it any more.
    fn lose(&mut self, conn: Conn) {
        if let Some(connection) = self.conns.remove(&conn) {
            connection.open.iter().for_each(|open| close(&self.memory, open));
        }
    }
}

fn close(memory: &Shared, open: &Open) {
    if open.counts {
        memory.borrow_mut().closed(key_of(&open.request), way_of(&open.request));
    }
}

/// Paths are `/k` and the number of the key.
fn key_of(request: &Request) -> usize {
    request
        .target
        .strip_prefix("/k")
        .and_then(|text| text.parse().ok())
        .expect("a key that somebody asks for")
}

fn way_of(request: &Request) -> Option<u8> {
    request.fields.first("x-way").and_then(|way| way.parse().ok())
}

impl Actor for Origin {
    fn on_start(&mut self, net: &mut Net<'_>) {
        net.listen(self.address);
    }

    fn on_accepted(&mut self, _: &mut Net<'_>, conn: Conn, _: SocketAddr) {
        let connection = Connection {
            judge: StrictRequests::new(Rules::default()),
            open: VecDeque::new(),
            writing: None,
            ends: false,
            waits: false,
            is_silent: false,
        };
        self.conns.insert(conn, connection);
    }

    fn on_data(&mut self, net: &mut Net<'_>, conn: Conn, data: &[u8]) {
        self.read(net, conn, data);
        self.go_on(net, conn);
        self.memory.borrow_mut().look_at_bytes(self.clients);
    }

    fn on_timer(&mut self, net: &mut Net<'_>, id: u64) {
        if let Some(conn) = self.timers.remove(&id) {
            self.due(net, conn);
        }
        self.memory.borrow_mut().look_at_bytes(self.clients);
    }

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        self.lose(conn);
        net.close(conn);
    }

    fn on_reset(&mut self, net: &mut Net<'_>, conn: Conn) {
        self.lose(conn);
        self.memory.borrow_mut().failed(net.now_us());
    }
}
