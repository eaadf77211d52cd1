//! An upstream server: reads requests with the strict judge and answers them in order, honestly or
//! after a script.
//!
//! Honest responses carry the nonce of their request and a body that depends on it. The actor's own
//! random numbers decide how they are framed, cut into pieces and delayed, and how connections end.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use weir_check::upstreams::{Closing, Ending, Step, by_id, honest_answer};
use weir_check::{Request, Rules, StrictRequests};
use weir_io::sim::{Actor, Conn, Net};

use super::book::{Entry, Expected, SharedBook};
use super::dials::{HEALTH_PATH, WELL};
use super::outage::Outage;
use super::scenario::server_index;

const SWITCH: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";

/// The trigger of a request that kills the server's process (docs/hostile.md E19).
pub const KILLER: &str = "e19_killer";
/// The trigger of a request that its server rejects at once, before it answers those in front of it
/// (docs/hostile.md E29).
pub const OVERTAKER: &str = "e29_overtaker";
/// How long the process of a killed server takes to come back, microseconds.
const RESTART_US: u64 = 5_000;
/// The same of one whose process a service manager starts again (`RestartSec` of systemd),
/// microseconds.
const SUPERVISED_US: u64 = 100_000;

/// The target of rehearsals, for which no client asks.
pub const REHEARSAL_PATH: &str = "/rehearsal";
/// How long a response to `/slow` takes, and every 20th to `/odd`, microseconds.
pub const SLOW_US: u64 = 400_000;

/// How long a response to `/poll` takes, and the second half of one to `/events`, microseconds.
pub const LASTING_US: u64 = 14_000_000;

/// How long a server leaves half a response until its client has got some of it: that client may
/// wait for others first.
const AWAIT_US_MAX: u64 = 1_000_000;

/// The nonce of responses to probes.
const PROBE_NONCE: &str = "a probe's";

/// The field of `pipeline echo`.
pub const ECHO_FIELD: &str = "x-request-id";

/// How a server behaves.
#[derive(Clone, Debug)]
pub struct Style {
    /// Longest time until a response begins, microseconds. Most begin much sooner.
    pub delay_us_max: u64,
    /// Thousandths of responses that come in pieces with pauses.
    pub pieces: u32,
    /// Thousandths of responses behind an unsolicited interim reply.
    pub interim: u32,
    /// Thousandths of responses that end by close.
    pub until_close: u32,
    /// Thousandths of times that it stops reading for a while.
    pub slow: u32,
    /// How each connection ends; None: the server ends none.
    pub closing: Option<Closing>,
    /// From this world time on, microseconds: earlier responses don't count for `closing`.
    pub closes_from_us: u64,
    /// Until this world time, microseconds: reads nothing more on a connection on which a body has
    /// begun to arrive.
    pub deaf_until_us: u64,
    /// Never answers; reads everything.
    pub silent: bool,
    /// When it begins to listen, microseconds after the start; connects before that are refused.
    pub up_after_us: u64,
    /// Thousandths of responses that come before the one that is due.
    pub swaps: u32,
    /// Carries the identifier of weir back ([`ECHO_FIELD`]).
    pub echo: bool,
    /// It processes requests behind a response that announces the end, although no response to them
    /// is sent.
    pub works_ahead: bool,
    /// Speaks HTTP/1.0: each response ends its connection.
    pub old: bool,
    /// Closes connections without requests for this long, microseconds; 0: never.
    pub idle_us: u64,
    /// How many connections it serves at a time, in the order in which they were made, each until
    /// it ends.
    pub places: usize,
    /// It dies as soon as two requests of clients are unanswered on one connection.
    pub dies_shared: bool,
    /// Times out of service.
    pub outages: Vec<Outage>,
    /// The demands that it makes on requests.
    pub rules: Rules,
}

impl Style {
    pub fn honest() -> Style {
        Style {
            delay_us_max: 0,
            pieces: 0,
            interim: 0,
            until_close: 0,
            slow: 0,
            closing: None,
            closes_from_us: 0,
            deaf_until_us: 0,
            silent: false,
            up_after_us: 0,
            swaps: 0,
            echo: false,
            works_ahead: false,
            old: false,
            idle_us: 0,
            places: usize::MAX,
            dies_shared: false,
            outages: Vec::new(),
            rules: Rules::default(),
        }
    }
}

/// The actor.
pub struct Server {
    pub(super) address: SocketAddr,
    pub(super) book: SharedBook,
    pub(super) style: Style,
    pub(super) conns: BTreeMap<Conn, Connection>,
    timers: BTreeMap<u64, Due>,
    next_timer: u64,
    /// Timers that became due while it is stopped.
    pub(super) frozen: Option<Vec<Due>>,
    /// Each response is the last one of its connection.
    pub(super) retiring: bool,
    /// Times that its application is ill: more than 0 is ill.
    pub(super) ill: u32,
    /// Connections so far.
    accepted: u64,
}

pub(super) struct Connection {
    /// The client of the connection.
    peer: SocketAddr,
    judge: StrictRequests,
    pub(super) queue: VecDeque<Request>,
    /// For the request that is being answered; None when the next may begin.
    writing: Option<Writing>,
    /// Honest responses that have begun, as the style counts them.
    answered: usize,
    /// The request whose head was counted as arrived, while its body is not complete.
    pub(super) open_nonce: Option<String>,
    /// It announced or sent its end: it acts on nothing more.
    deaf: bool,
    /// It sent `Connection: close`.
    announced: bool,
    /// The script of the request whose body is not complete has begun.
    early: bool,
    /// After 101: each byte comes back one higher.
    tunnel: bool,
    /// weir probes the server on it: it counts as no traffic.
    probe: bool,
    /// The pieces of its response are far apart.
    lasts: bool,
    /// How many were accepted before.
    order: u64,
    /// Bytes received and counted as traffic, before the first request was complete.
    got: u64,
}

enum Writing {
    /// The response begins when the timer fires.
    Delay,
    /// Further pieces, one per timer.
    Pieces(VecDeque<Vec<u8>>, After),
    /// A hostile script.
    Script { nonce: String, steps: VecDeque<Step> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum After {
    Next,
    Finish,
    Reset,
    /// Leaves what arrives unread, then closes.
    Unread,
}

/// The purpose of a timer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Go(Conn),
    Resume(Conn),
    /// It has been idle for as long as it may, if it has still given this many responses.
    Rested(Conn, usize),
    CloseUnread(Conn),
    /// It begins to listen.
    Up,
    /// It reads a request that kills it.
    Die,
    /// An outage of the style begins, or ends.
    Down(usize),
    Back(usize),
}

impl Connection {
    /// Whether all requests are answered.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.writing.is_none()
            && self.open_nonce.is_none()
            && !self.deaf
            && !self.tunnel
    }
}

impl Server {
    pub fn new(address: SocketAddr, book: &SharedBook, style: Style) -> Server {
        Server {
            address,
            book: book.clone(),
            style,
            conns: BTreeMap::new(),
            timers: BTreeMap::new(),
            next_timer: 0,
            frozen: None,
            retiring: false,
            ill: 0,
            accepted: 0,
        }
    }

    /// Position in the plan.
    fn index(&self) -> usize {
        server_index(self.address)
    }

    pub(super) fn timer(&mut self, net: &mut Net<'_>, after_us: u64, due: Due) {
        self.next_timer += 1;
        self.timers.insert(self.next_timer, due);
        net.timer(after_us, self.next_timer);
    }

    /// Does what a timer was set for.
    pub(super) fn act(&mut self, net: &mut Net<'_>, due: Due) {
        match due {
            Due::Go(conn) => self.due(net, conn),
            Due::Resume(conn) => net.resume(conn),
            Due::Rested(conn, answered) => self.end_rested(net, conn, answered),
            Due::CloseUnread(conn) => {
                self.conns.remove(&conn);
                net.close(conn);
            }
            Due::Up => net.listen(self.address),
            Due::Die => {
                self.die(net);
                let after_us = if self.style.dies_shared { SUPERVISED_US } else { RESTART_US };
                self.timer(net, after_us, Due::Up);
            }
            Due::Down(index) => self.go_down(net, index),
            Due::Back(index) => self.come_back(net, index),
        }
    }

    fn send(&self, net: &mut Net<'_>, conn: Conn, bytes: &[u8]) {
        let probe = self.conns.get(&conn).is_some_and(|connection| connection.probe);
        self.book.borrow_mut().traffic.servers_sent += if probe { 0 } else { bytes.len() as u64 };
        net.send(conn, bytes);
    }

    /// Counts bytes as traffic, until they turn out to be those of a probe.
    fn count_received(&mut self, conn: Conn, bytes: u64) {
        let traffic = &mut self.book.borrow_mut().traffic;
        traffic.servers_got += bytes;
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        connection.got += bytes;
        if connection.probe {
            traffic.servers_got -= std::mem::take(&mut connection.got);
        } else if connection.judge.unanswered_max() > 0 {
            connection.got = 0;
        }
    }

    /// Takes back the bytes of an incomplete probe, for which weir has timed out.
    fn forget_traffic(&mut self, conn: Conn) {
        let got = self.conns.get(&conn).map_or(0, |connection| connection.got);
        self.book.borrow_mut().traffic.servers_got -= got;
    }

    /// Reads requests and records their arrival.
    fn read(&mut self, net: &mut Net<'_>, conn: Conn, data: &[u8]) {
        let server = self.index();
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        let book = &mut *self.book.borrow_mut();
        if let Err(violation) = connection.judge.feed(data) {
            // Behind an announced end the judge has lost count of answered requests.
            if !connection.deaf {
                book.violation(format!("to the server {}: {violation}", self.address));
            }
            self.conns.remove(&conn);
            return net.reset(conn);
        }
        if connection.tunnel {
            let bytes: Vec<u8> =
                connection.judge.take_tunnel().iter().map(|byte| byte.wrapping_add(1)).collect();
            book.traffic.servers_sent += bytes.len() as u64;
            return net.send(conn, &bytes);
        }
        let ignored = connection.announced && !self.style.works_ahead;
        while let Some(request) = connection.judge.poll_request() {
            if request.target == HEALTH_PATH {
                connection.probe = true;
                book.probed(server);
            } else if request.target == REHEARSAL_PATH {
                book.plays("rehearsed", false);
            } else if connection.open_nonce.take().is_none_or(|nonce| nonce != request.nonce()) {
                book.arrived((server, connection.peer), &request, ignored);
            }
            book.arrived_completely(&request);
            if !connection.deaf {
                connection.queue.push_back(request);
            }
        }
        let rehearses = connection.queue.iter().any(|request| request.target == REHEARSAL_PATH);
        if !rehearses {
            book.depth_max = book.depth_max.max(connection.judge.unanswered());
        }
        if let Some(request) = connection.judge.current()
            && connection.open_nonce.is_none()
        {
            connection.open_nonce = Some(request.nonce().to_owned());
            book.arrived((server, connection.peer), request, ignored);
        }
        let at_once = self.conns.values().map(|connection| connection.judge.unanswered()).sum();
        book.at_once_max = book.at_once_max.max(at_once);
    }

    /// Acts before the body of the request has come: sends 100 (Continue), or begins the script of
    /// a hostile row.
    fn look_at_open_request(&mut self, net: &mut Net<'_>, conn: Conn, fresh: bool) {
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        let Some(request) = connection.judge.current() else { return };
        if connection.deaf
            || !connection.queue.is_empty()
            || connection.writing.is_some()
            || self.style.silent
        {
            return;
        }
        if request.target.starts_with("/trigger") {
            let request = request.clone();
            if std::mem::replace(&mut connection.early, true) {
                return;
            }
            self.begin_script(net, conn, &request);
        } else if fresh && request.fields.has("expect") && net.rng().chance(800) {
            self.send(net, conn, b"HTTP/1.1 100 Continue\r\n\r\n");
        }
    }

    fn is_trigger(&self, request: &Request) -> bool {
        let book = self.book.borrow();
        book.entries.get(request.nonce()).is_some_and(|entry| entry.asked.trigger.is_some())
    }

    fn go_on(&mut self, net: &mut Net<'_>, conn: Conn) {
        if !self.has_place(conn) {
            return;
        }
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        if connection.writing.is_some() || connection.deaf || self.style.silent {
            return;
        }
        let Some(request) = connection.queue.front().cloned() else {
            return self.look_at_open_request(net, conn, false);
        };
        if self.is_trigger(&request) {
            self.conns.entry(conn).and_modify(|connection| drop(connection.queue.pop_front()));
            return self.begin_script(net, conn, &request);
        }
        self.conns.entry(conn).and_modify(|connection| connection.writing = Some(Writing::Delay));
        let most = self.style.delay_us_max >> net.rng().below(8);
        let lasts_us = match request.target.split('?').next() {
            Some("/poll") => LASTING_US,
            Some("/slow") => SLOW_US,
            Some("/odd") if net.rng().below(20) == 0 => SLOW_US,
            _ => 0,
        };
        let after_us = net.rng().below(most + 1) + lasts_us;
        self.timer(net, after_us, Due::Go(conn));
    }

    /// Whether a connection is one of those that are served.
    fn has_place(&self, conn: Conn) -> bool {
        if self.style.places >= self.conns.len() {
            return true;
        }
        let Some(order) = self.conns.get(&conn).map(|connection| connection.order) else {
            return false;
        };
        let before = |other: &&Connection| other.order < order && !other.deaf;
        self.conns.values().filter(before).count() < self.style.places
    }

    /// Gives the place of a connection that has ended to another one.
    fn fill_places(&mut self, net: &mut Net<'_>) {
        if self.style.places < usize::MAX {
            let conns: Vec<Conn> = self.conns.keys().copied().collect();
            conns.into_iter().for_each(|conn| self.go_on(net, conn));
        }
    }

    fn end_rested(&mut self, net: &mut Net<'_>, conn: Conn, answered: usize) {
        if self
            .conns
            .get(&conn)
            .is_some_and(|connection| connection.answered == answered && connection.is_idle())
        {
            self.deafen(conn);
            net.finish(conn);
        }
    }

    fn due(&mut self, net: &mut Net<'_>, conn: Conn) {
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        match connection.writing.take() {
            Some(Writing::Delay) => self.begin_answer(net, conn),
            Some(Writing::Pieces(pieces, after)) => self.write(net, conn, pieces, after),
            Some(Writing::Script { nonce, steps }) => self.play(net, conn, nonce, steps),
            None => {}
        }
    }

    fn begin_answer(&mut self, net: &mut Net<'_>, conn: Conn) {
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        if self.style.swaps > 0 && connection.queue.len() > 1 && net.rng().chance(self.style.swaps)
        {
            connection.queue.swap(0, 1);
            self.book.borrow_mut().plays("e20_wrong_order", true);
        }
        let Some(request) = connection.queue.pop_front() else { return };
        if connection.probe {
            return self.answer_probe(net, conn, &request);
        }
        let counts = net.now_us() >= self.style.closes_from_us;
        if request.fields.has("upgrade") {
            connection.judge.upgraded();
            connection.tunnel = true;
            let echo =
                request.fields.first(ECHO_FIELD).filter(|_| self.style.echo).map(str::to_owned);
            return match echo {
                Some(echo) => {
                    let head = &SWITCH[..SWITCH.len() - 2];
                    self.send(
                        net,
                        conn,
                        &[head, format!("X-Request-Id: {echo}\r\n\r\n").as_bytes()].concat(),
                    );
                }
                None => self.send(net, conn, SWITCH),
            };
        }
        connection.answered += usize::from(counts);
        connection.judge.answered();
        connection.lasts = request.target.starts_with("/events");
        self.book.borrow_mut().answers += 1;
        let ending = self
            .style
            .closing
            .filter(|closing| counts && closing.answers == connection.answered)
            .map(|c| c.how);
        let half = self.style.closing.is_some_and(|closing| {
            closing.how == Ending::HalfAnswer && closing.answers + 1 == connection.answered
        });
        if let Some(closing) = self.style.closing.filter(|_| ending.is_some() || half) {
            self.book.borrow_mut().plays(closing.id, !connection.queue.is_empty());
        }
        let ending = if self.style.old { Some(Ending::Fin) } else { ending };
        let ending = if self.retiring { Some(Ending::Announced) } else { ending };
        let announced = ending == Some(Ending::Announced);
        // Half of a response that ends by close would look complete.
        let (bytes, mut after) = self.answer(net, &request, announced, !half);
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        match ending {
            Some(Ending::Fin) => after = After::Finish,
            Some(Ending::Rst) => after = After::Reset,
            Some(Ending::Unread) => after = After::Unread,
            Some(Ending::Announced) => {
                connection.announced = true;
                after = After::Finish;
                let behind = connection
                    .queue
                    .iter()
                    .map(Request::nonce)
                    .chain(connection.open_nonce.as_deref());
                if !self.style.works_ahead {
                    behind.for_each(|nonce| self.book.borrow_mut().ignored(nonce));
                }
            }
            Some(Ending::HalfAnswer) | None => {}
        }
        connection.deaf = after != After::Next;
        if half {
            connection.deaf = true;
            let pieces = VecDeque::from([bytes[..bytes.len() / 2].to_vec()]);
            return self.write(net, conn, pieces, After::Finish);
        }
        let lasts = self.conns.get(&conn).is_some_and(|connection| connection.lasts);
        let pieces = match lasts {
            true => VecDeque::from([
                bytes[..bytes.len() - 1].to_vec(),
                bytes[bytes.len() - 1..].to_vec(),
            ]),
            false => self.cut(net, bytes),
        };
        self.write(net, conn, pieces, after);
    }

    /// Reports the health of a server, in a response that must reach no client.
    fn answer_probe(&mut self, net: &mut Net<'_>, conn: Conn, request: &Request) {
        self.conns.entry(conn).and_modify(|connection| connection.judge.answered());
        let (status, words) = if self.ill > 0 { (503, "ill") } else { (200, WELL) };
        let length = words.len();
        let head = format!(
            "HTTP/1.1 {status} Whatever\r\nX-Nonce: {PROBE_NONCE}\r\n\
                Content-Length: {length}\r\n\r\n"
        );
        let body = if request.method == "HEAD" { "" } else { words };
        let pieces = self.cut(net, [head.as_bytes(), body.as_bytes()].concat());
        let after = if net.rng().chance(500) { After::Finish } else { After::Next };
        self.write(net, conn, pieces, after);
    }

    /// The bytes of the honest response, and whether the connection ends with it.
    fn answer(
        &mut self,
        net: &mut Net<'_>,
        request: &Request,
        close: bool,
        may_end_by_close: bool,
    ) -> (Vec<u8>, After) {
        let book = self.book.borrow();
        let Some(entry) = book.entries.get(request.nonce()) else {
            let whole = honest_answer(request.nonce());
            let head = whole
                .windows(4)
                .position(|bytes| bytes == b"\r\n\r\n")
                .map_or(whole.len(), |at| at + 4);
            let length = if request.method == "HEAD" { head } else { whole.len() };
            return (whole[..length].to_vec(), After::Next);
        };
        let expected = if self.ill > 0 { Expected::ill() } else { entry.asked.expected() };
        let server = self.index();
        let rng = net.rng();
        let mut out = String::new();
        if rng.chance(self.style.interim) {
            out.push_str("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n");
        }
        let (status, nonce) = (expected.status, request.nonce());
        let minor = if self.style.old { 0 } else { 1 };
        out.push_str(&format!(
            "HTTP/1.{minor} {status} Whatever\r\nX-Nonce: {nonce}\r\nX-Server: {server}\r\n"
        ));
        if self.ill > 0 {
            out.push_str("X-Ill: yes\r\n");
        }
        if let Some(echo) = request.fields.first(ECHO_FIELD).filter(|_| self.style.echo) {
            out.push_str(&format!("X-Request-Id: {echo}\r\n"));
        }
        if close {
            out.push_str("Connection: close\r\n");
        }
        let bodiless = request.method == "HEAD" || matches!(expected.status, 204 | 304);
        let length = expected.body.len();
        if bodiless {
            if expected.status != 204 && rng.chance(500) {
                out.push_str(&format!("Content-Length: {length}\r\n"));
            }
            out.push_str("\r\n");
            return (out.into_bytes(), After::Next);
        }
        if may_end_by_close && rng.chance(self.style.until_close) {
            out.push_str("\r\n");
            return ([out.into_bytes(), expected.body].concat(), After::Finish);
        }
        if !self.style.old && rng.chance(400) {
            out.push_str("Transfer-Encoding: chunked\r\n\r\n");
            let mut out = out.into_bytes();
            let mut rest = &expected.body[..];
            while !rest.is_empty() {
                let shift = rng.below(8);
                let take = 1 + rng.index((rest.len() >> shift).max(1));
                out.extend_from_slice(format!("{take:X}\r\n").as_bytes());
                out.extend_from_slice(&rest[..take]);
                out.extend_from_slice(b"\r\n");
                rest = &rest[take..];
            }
            out.extend_from_slice(if rng.chance(300) {
                b"0\r\nX-Sum: 1\r\n\r\n"
            } else {
                b"0\r\n\r\n"
            });
            return (out, After::Next);
        }
        out.push_str(&format!("Content-Length: {length}\r\n\r\n"));
        ([out.into_bytes(), expected.body].concat(), After::Next)
    }

    fn cut(&self, net: &mut Net<'_>, bytes: Vec<u8>) -> VecDeque<Vec<u8>> {
        let mut pieces = VecDeque::new();
        let mut rest = bytes;
        while rest.len() > 1 && net.rng().chance(self.style.pieces) && pieces.len() < 30 {
            let tail = rest.split_off(1 + net.rng().index(rest.len() - 1));
            pieces.push_back(std::mem::replace(&mut rest, tail));
        }
        pieces.push_back(rest);
        pieces
    }

    /// Writes the next piece, then waits, continues with the next request, or ends.
    fn write(
        &mut self,
        net: &mut Net<'_>,
        conn: Conn,
        mut pieces: VecDeque<Vec<u8>>,
        after: After,
    ) {
        if let Some(piece) = pieces.pop_front() {
            self.send(net, conn, &piece);
        }
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        if !pieces.is_empty() {
            connection.writing = Some(Writing::Pieces(pieces, after));
            let after_us = if connection.lasts {
                LASTING_US
            } else {
                net.rng().below(1 + (self.style.delay_us_max >> 2))
            };
            return self.timer(net, after_us, Due::Go(conn));
        }
        match after {
            After::Next => {
                if self.style.idle_us > 0 {
                    let rested = Due::Rested(conn, connection.answered);
                    self.timer(net, self.style.idle_us, rested);
                }
                self.go_on(net, conn);
            }
            After::Finish => net.finish(conn),
            After::Reset => {
                self.note_broken(conn);
                self.conns.remove(&conn);
                net.reset(conn);
            }
            After::Unread => {
                net.pause(conn);
                let after_us = net.rng().below(5_000);
                self.timer(net, after_us, Due::CloseUnread(conn));
            }
        }
    }

    fn begin_script(&mut self, net: &mut Net<'_>, conn: Conn, request: &Request) {
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        connection.judge.answered();
        let nonce = request.nonce().to_owned();
        let mut book = self.book.borrow_mut();
        let Some(entry) = book.entries.get(&nonce) else { return };
        let (first, id) = (entry.arrivals.len() == 1, entry.asked.trigger.clone());
        let Some(id) = id else { return };
        if first {
            book.plays(&id, !connection.queue.is_empty());
        }
        drop(book);
        if id == KILLER {
            return self.timer(net, 0, Due::Die);
        }
        if id == OVERTAKER {
            return self.refuse(net, conn);
        }
        let mut steps = VecDeque::from(by_id(&id).steps.clone());
        if let (Some(echo), Some(Step::Send(bytes))) =
            (request.fields.first(ECHO_FIELD), steps.front_mut())
        {
            *bytes = with_echo(bytes, echo);
        }
        self.play(net, conn, nonce, steps);
    }

    /// Rejects such a request before it answers those in front, unless the response to those has
    /// begun.
    fn refuse_at_once(&mut self, net: &mut Net<'_>, conn: Conn) {
        let Some(connection) = self.conns.get_mut(&conn) else { return };
        if connection.deaf || !matches!(connection.writing, None | Some(Writing::Delay)) {
            return;
        }
        let mut book = self.book.borrow_mut();
        let is_refused = |request: &Request| {
            let entry = book.entries.get(request.nonce());
            entry.is_some_and(|entry| entry.asked.trigger.as_deref() == Some(OVERTAKER))
        };
        let Some(at) = connection.queue.iter().position(is_refused) else { return };
        if at > 0 {
            book.plays(OVERTAKER, true);
            drop(book);
            connection.judge.answered();
            self.refuse(net, conn);
        }
    }

    fn die_of_company(&mut self, net: &mut Net<'_>, conn: Conn) {
        let Some(connection) = self.conns.get(&conn).filter(|_| self.style.dies_shared) else {
            return;
        };
        let is_dying = self.timers.values().any(|due| matches!(due, Due::Die | Due::Up));
        if !is_dying
            && connection.queue.iter().filter(|request| request.target != REHEARSAL_PATH).count()
                > 1
        {
            self.timer(net, 0, Due::Die);
        }
    }

    fn refuse(&mut self, net: &mut Net<'_>, conn: Conn) {
        self.send(
            net,
            conn,
            b"HTTP/1.1 431 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        );
        self.deafen(conn);
        self.conns.entry(conn).and_modify(|connection| connection.queue.clear());
        net.finish(conn);
    }

    fn play(&mut self, net: &mut Net<'_>, conn: Conn, nonce: String, mut steps: VecDeque<Step>) {
        while let Some(step) = steps.pop_front() {
            match &step {
                Step::Send(template) => {
                    self.book.borrow_mut().said(&nonce, net.now_us());
                    self.send(net, conn, &Step::bytes(template, &nonce));
                }
                Step::AwaitDelivered => {
                    let now_us = net.now_us();
                    let quiet_us = self
                        .book
                        .borrow()
                        .entries
                        .get(&nonce)
                        .map_or(0, |entry| quiet_us(entry, now_us));
                    if quiet_us > 0 {
                        steps.push_front(step);
                        self.timer(net, quiet_us, Due::Go(conn));
                        if let Some(connection) = self.conns.get_mut(&conn) {
                            connection.writing = Some(Writing::Script { nonce, steps });
                        }
                        return;
                    }
                }
                Step::Fin => {
                    self.deafen(conn);
                    net.finish(conn);
                }
                Step::Rst => {
                    self.conns.remove(&conn);
                    net.reset(conn);
                }
            }
        }
        self.go_on(net, conn);
    }

    fn deafen(&mut self, conn: Conn) {
        if let Some(connection) = self.conns.get_mut(&conn) {
            connection.deaf = true;
        }
    }
}

impl Actor for Server {
    fn on_start(&mut self, net: &mut Net<'_>) {
        match self.style.up_after_us {
            0 => net.listen(self.address),
            after_us => self.timer(net, after_us, Due::Up),
        }
        self.plan_outages(net);
    }

    fn on_accepted(&mut self, net: &mut Net<'_>, conn: Conn, peer: SocketAddr) {
        if self.frozen.is_some() {
            net.pause(conn);
        }
        let connection = Connection {
            peer,
            judge: StrictRequests::new(self.style.rules),
            queue: VecDeque::new(),
            writing: None,
            answered: 0,
            open_nonce: None,
            deaf: false,
            announced: false,
            early: false,
            tunnel: false,
            probe: false,
            lasts: false,
            order: self.accepted,
            got: 0,
        };
        self.accepted += 1;
        self.conns.insert(conn, connection);
    }

    fn on_data(&mut self, net: &mut Net<'_>, conn: Conn, data: &[u8]) {
        let before = self.conns.get(&conn).and_then(|connection| connection.open_nonce.clone());
        self.count_received(conn, data.len() as u64);
        self.read(net, conn, data);
        self.count_received(conn, 0);
        self.refuse_at_once(net, conn);
        self.die_of_company(net, conn);
        let now = self.conns.get(&conn).and_then(|connection| connection.open_nonce.clone());
        self.look_at_open_request(net, conn, now != before);
        self.go_on(net, conn);
        let deaf_us = self.style.deaf_until_us.saturating_sub(net.now_us());
        if deaf_us > 0 && now.is_some() {
            net.pause(conn);
            self.timer(net, deaf_us, Due::Resume(conn));
        }
        if net.rng().chance(self.style.slow) {
            net.pause(conn);
            let after_us = net.rng().below(500_000);
            self.timer(net, after_us, Due::Resume(conn));
        }
    }

    fn on_timer(&mut self, net: &mut Net<'_>, id: u64) {
        let Some(due) = self.timers.remove(&id) else { return };
        match &mut self.frozen {
            Some(missed) if !matches!(due, Due::Down(_) | Due::Back(_)) => missed.push(due),
            _ => self.act(net, due),
        }
    }

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        self.forget_traffic(conn);
        if self.conns.remove(&conn).is_some_and(|connection| connection.tunnel) {
            return net.finish(conn);
        }
        net.close(conn);
        self.fill_places(net);
    }

    fn on_reset(&mut self, net: &mut Net<'_>, conn: Conn) {
        self.forget_traffic(conn);
        self.conns.remove(&conn);
        self.fill_places(net);
    }
}

/// How long a script waits before it checks again whether it may continue.
fn quiet_us(entry: &Entry, now_us: u64) -> u64 {
    let patient = entry.said_us.is_none_or(|said_us| now_us < said_us + AWAIT_US_MAX);
    if !entry.delivered && patient { 1_000 } else { entry.quiet_until_us.saturating_sub(now_us) }
}

/// A scripted response that carries the identifier of its request back, only once, as far as the
/// script's author knows it.
fn with_echo(bytes: &[u8], echo: &str) -> Vec<u8> {
    let mark = b"X-Nonce: {n}\r\n";
    let at =
        bytes.windows(mark.len()).position(|window| window == mark).map_or(0, |at| at + mark.len());
    let field = format!("X-Request-Id: {echo}\r\n");
    if at == 0 { bytes.to_vec() } else { [&bytes[..at], field.as_bytes(), &bytes[at..]].concat() }
}
