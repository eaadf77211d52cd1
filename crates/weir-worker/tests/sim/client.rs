//! A client that plays a script: requests of all kinds, pipelined, in pieces, with pauses,
//! half-closes and aborts.
//!
//! The strict judge of replies sees every byte that comes back; each complete reply is checked
//! against the request whose turn it is.

use std::collections::VecDeque;
use std::net::SocketAddr;

use weir_check::{End, Reply, StrictReplies};
use weir_io::sim::{Actor, Conn, Net, Rng};

use super::book::{Asked, Outcome, SharedBook};
use super::dials::{COOKIE, KEY_FIELD};
use super::scenario::server_address;

/// One step of a client.
#[derive(Debug)]
pub enum Act {
    /// The next request begins: its response is due from now on.
    Ask(usize),
    /// Bytes of a request.
    Send(Vec<u8>),
    /// Microseconds.
    Wait(u64),
    /// Until this time of the world, microseconds.
    Until(u64),
    /// Until this many responses have come.
    AwaitAnswers(usize),
    /// Until a 100 or a final response comes, or a second has passed.
    AwaitContinue,
    /// Stops reading for this many microseconds, while the script continues.
    StopReading(u64),
    /// FIN.
    HalfClose,
    /// RST.
    Reset,
    /// Until the asker's response has begun to arrive, then RST.
    LeaveAtFirstBytes,
    /// Nothing more, forever: no bytes, no end.
    Vanish,
}

/// The kinds of behaviour that a client may show.
#[derive(Clone, Debug)]
pub struct Manners {
    /// Requests on the connection.
    pub requests: usize,
    /// Methods to draw from.
    pub methods: &'static [&'static str],
    /// Most requests sent without waiting for a response.
    pub burst: usize,
    /// Thousandths of clients that reset the connection at some point.
    pub abort: u32,
    /// Thousandths of clients that end their direction behind the last request.
    pub half_close: u32,
    /// Thousandths of requests before which the client stops reading for up to two seconds.
    pub slow: u32,
    /// Chunk extensions, trailers, odd but valid fields that a proxy must treat.
    pub decorations: bool,
    /// Longest body; 0: none has one.
    pub body_bytes_max: usize,
    /// Thousandths of clients that speak HTTP/1.0.
    pub old: u32,
    /// Longest pause before a request, microseconds.
    pub pause_us: u64,
    /// Brings back the cookie of its session.
    pub cookies: bool,
    /// Names one of a few keys for balancing.
    pub keys: bool,
    /// How many servers it requests from a forward proxy; 0: it requests from a server.
    pub destinations: usize,
}

impl Manners {
    /// This many safe requests, one after another, and nothing else.
    pub fn quiet(requests: usize) -> Manners {
        Manners {
            requests,
            methods: SAFE,
            burst: 1,
            abort: 0,
            half_close: 0,
            slow: 0,
            decorations: false,
            body_bytes_max: 0,
            old: 0,
            pause_us: 0,
            cookies: false,
            keys: false,
            destinations: 0,
        }
    }
}

/// Longer than the head of any request here.
const HEAD_BYTES_MAX: usize = 2_000;
/// Placeholder for the value of the session's cookie until the client has it. It binds to no
/// server.
const NO_SESSION: &[u8] = b"----------------";

pub const SAFE: &[&str] = &["GET", "GET", "GET", "GET", "HEAD", "OPTIONS"];
pub const ALL: &[&str] = &[
    "GET", "GET", "GET", "GET", "GET", "HEAD", "OPTIONS", "POST", "POST", "PUT", "DELETE", "PATCH",
];

/// The actor.
pub struct Client {
    to: SocketAddr,
    book: SharedBook,
    start_us: u64,
    acts: VecDeque<Act>,
    requests: Vec<Asked>,
    version_10: bool,
    judge: StrictReplies,
    conn: Option<Conn>,
    asked: usize,
    answered: usize,
    waiting: Option<Waiting>,
    /// The value of the last cookie that it got.
    session: Option<String>,
    /// Timers that were set; only the last one counts.
    timers: u64,
    done: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Waiting {
    Timer,
    Answers(usize),
    Continue,
    FirstBytes,
}

/// The timer that starts the client; the one that ends a pause of reading.
const START: u64 = u64::MAX;
const RESUME: u64 = u64::MAX - 1;

impl Client {
    /// A client that starts at `start_us` and draws what it does.
    pub fn random(
        number: usize,
        to: SocketAddr,
        start_us: u64,
        book: &SharedBook,
        manners: &Manners,
        rng: &mut Rng,
    ) -> Client {
        let mut writer =
            Writer { number, rng, manners, acts: VecDeque::new(), requests: Vec::new() };
        let version_10 = writer.rng.chance(manners.old);
        if version_10 {
            writer.http_10();
        } else {
            writer.all();
        }
        let Writer { acts, requests, .. } = writer;
        Client::scripted(to, start_us, book, acts, requests, version_10)
    }

    /// A client that does exactly this.
    pub fn scripted(
        to: SocketAddr,
        start_us: u64,
        book: &SharedBook,
        acts: VecDeque<Act>,
        requests: Vec<Asked>,
        version_10: bool,
    ) -> Client {
        for asked in &requests {
            book.borrow_mut().ask(asked.clone());
        }
        Client {
            to,
            book: book.clone(),
            start_us,
            acts,
            requests,
            version_10,
            judge: StrictReplies::new(),
            conn: None,
            asked: 0,
            answered: 0,
            waiting: None,
            session: None,
            timers: 0,
            done: false,
        }
    }

    fn go_on(&mut self, net: &mut Net<'_>) {
        while self.waiting.is_none() && !self.done {
            let Some(conn) = self.conn else { return };
            let Some(act) = self.acts.pop_front() else { return self.finish_when_answered(net) };
            match act {
                Act::Ask(index) => {
                    self.asked = index + 1;
                    self.bring_cookie(index);
                    self.judge.ask(self.requests[index].method, self.version_10, false);
                }
                Act::Send(bytes) => {
                    self.book.borrow_mut().traffic.clients_sent += bytes.len() as u64;
                    net.send(conn, &bytes);
                }
                Act::Until(at_us) => {
                    self.wait(net, at_us.saturating_sub(net.now_us()), Waiting::Timer)
                }
                Act::Wait(time_us) => self.wait(net, time_us, Waiting::Timer),
                Act::AwaitAnswers(count) if self.answered < count => {
                    self.waiting = Some(Waiting::Answers(count))
                }
                Act::AwaitAnswers(_) => {}
                Act::AwaitContinue => self.wait(net, 1_000_000, Waiting::Continue),
                Act::StopReading(time_us) => {
                    net.pause(conn);
                    net.timer(time_us, RESUME);
                }
                Act::HalfClose => net.finish(conn),
                Act::Reset => {
                    net.reset(conn);
                    self.finish();
                }
                Act::Vanish => {
                    net.pause(conn);
                    self.finish();
                }
                Act::LeaveAtFirstBytes => self.waiting = Some(Waiting::FirstBytes),
            }
        }
    }

    /// Writes the cookie of its session into the request that follows.
    fn bring_cookie(&mut self, index: usize) {
        let Some(session) = &self.session else { return };
        let sends = |act: &&mut Act| !matches!(act, Act::Ask(_));
        let of_request = self.acts.iter_mut().take_while(sends);
        let bytes = of_request
            .filter_map(|act| if let Act::Send(bytes) = act { Some(bytes) } else { None });
        let mut request: Vec<&mut u8> = bytes.flatten().take(HEAD_BYTES_MAX).collect();
        let at = request
            .windows(NO_SESSION.len())
            .position(|window| window.iter().map(|byte| **byte).eq(NO_SESSION.iter().copied()));
        let Some(at) = at else { return };
        request[at..].iter_mut().zip(session.bytes()).for_each(|(old, new)| **old = new);
        self.book.borrow_mut().bind(&self.requests[index].nonce, session);
    }

    fn wait(&mut self, net: &mut Net<'_>, time_us: u64, waiting: Waiting) {
        self.timers += 1;
        net.timer(time_us, self.timers);
        self.waiting = Some(waiting);
    }

    fn finish_when_answered(&mut self, net: &mut Net<'_>) {
        if self.answered == self.requests.len() {
            if let Some(conn) = self.conn {
                net.close(conn);
            }
            self.finish();
        } else {
            self.waiting = Some(Waiting::Answers(self.requests.len()));
        }
    }

    /// Nothing more will come. Unanswered requests are cut.
    fn finish(&mut self) {
        if self.done {
            return;
        }
        self.done = true;
        self.acts.clear();
        let book = &mut *self.book.borrow_mut();
        for asked in &self.requests[self.answered..] {
            if let Some(entry) = book.entries.get_mut(&asked.nonce) {
                entry.outcome = Outcome::Cut;
            }
        }
        book.clients_done += 1;
    }

    fn take_replies(&mut self) {
        while let Some(reply) = self.judge.poll_reply() {
            self.take_reply(&reply);
        }
    }

    fn take_reply(&mut self, reply: &Reply) {
        let nonce = self.requests[self.answered].nonce.clone();
        if let Some(cookie) = reply.fields.first("set-cookie") {
            self.session = cookie.split(['=', ';']).nth(1).map(str::to_owned);
        }
        self.book.borrow_mut().replied(&nonce, reply);
        self.answered += 1;
    }

    /// Records how the connection of a trigger ended.
    fn note_end(&self, end: &End) {
        for asked in self.requests.iter().filter(|asked| asked.trigger.is_some()) {
            if let Some(entry) = self.book.borrow_mut().entries.get_mut(&asked.nonce) {
                entry.end = Some(end.clone());
            }
        }
    }

    fn is_over(&self) -> bool {
        match &self.waiting {
            Some(Waiting::Answers(count)) => self.answered >= *count,
            Some(Waiting::Continue) => {
                self.answered == self.asked || self.judge.interim().contains(&100)
            }
            Some(Waiting::FirstBytes) => {
                self.judge.current().is_some() || self.answered == self.asked
            }
            Some(Waiting::Timer) | None => false,
        }
    }
}

impl Actor for Client {
    fn on_start(&mut self, net: &mut Net<'_>) {
        net.timer(self.start_us, START);
    }

    fn on_timer(&mut self, net: &mut Net<'_>, id: u64) {
        match (id, self.conn) {
            (START, _) => self.conn = Some(net.connect(self.to)),
            (RESUME, Some(conn)) => net.resume(conn),
            (id, _) if id == self.timers => {
                if matches!(self.waiting, Some(Waiting::Timer | Waiting::Continue)) {
                    self.waiting = None;
                    self.go_on(net);
                }
            }
            _ => {}
        }
    }

    fn on_connected(&mut self, net: &mut Net<'_>, conn: Conn, result: std::io::Result<()>) {
        if let (Some(journeys), Some(asked)) =
            (&mut self.book.borrow_mut().journeys, self.requests.first())
        {
            journeys.begin(&asked.nonce, self.to, net.local(conn));
        }
        match result {
            Ok(()) => self.go_on(net),
            Err(_) => self.finish(),
        }
    }

    fn on_data(&mut self, net: &mut Net<'_>, conn: Conn, data: &[u8]) {
        if self.done {
            return;
        }
        self.book.borrow_mut().traffic.clients_got += data.len() as u64;
        if let Err(violation) = self.judge.feed(data) {
            let nonces: Vec<&str> =
                self.requests.iter().map(|asked| asked.nonce.as_str()).collect();
            self.book.borrow_mut().violation(format!(
                "to the client of {nonces:?} at {}: {violation}",
                self.answered
            ));
            net.reset(conn);
            return self.finish();
        }
        self.take_replies();
        if self.judge.current().is_some()
            && let Some(asked) = self.requests.get(self.answered)
            && let Some(entry) = self.book.borrow_mut().entries.get_mut(&asked.nonce)
        {
            entry.delivered = true;
        }
        if self.is_over() {
            self.waiting = None;
            self.go_on(net);
        }
    }

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        let end = self.judge.end();
        self.note_end(&end);
        if end == End::Clean {
            self.take_replies();
        }
        net.close(conn);
        self.finish();
    }

    fn on_reset(&mut self, _: &mut Net<'_>, _: Conn) {
        let end = self.judge.end();
        self.note_end(&end);
        self.finish();
    }
}

/// Writes the script of a client.
struct Writer<'a> {
    number: usize,
    rng: &'a mut Rng,
    manners: &'a Manners,
    acts: VecDeque<Act>,
    requests: Vec<Asked>,
}

impl Writer<'_> {
    fn all(&mut self) {
        let abort_at =
            self.rng.chance(self.manners.abort).then(|| self.rng.index(self.manners.requests));
        let mut unanswered = 0;
        for index in 0..self.manners.requests {
            if abort_at == Some(index) {
                return self.abort();
            }
            if unanswered > self.rng.index(self.manners.burst) {
                self.acts.push_back(Act::AwaitAnswers(index));
                unanswered = 0;
            }
            if self.rng.chance(self.manners.slow) {
                let time_us = self.rng.between(1, 2_000_000);
                self.acts.push_back(Act::StopReading(time_us));
            }
            if self.manners.pause_us > 0 {
                let time_us = self.rng.below(self.manners.pause_us);
                self.acts.push_back(Act::Wait(time_us));
            }
            self.request(index);
            unanswered += 1;
        }
        if self.rng.chance(self.manners.half_close) {
            self.acts.push_back(Act::HalfClose);
        }
    }

    /// One request, the whole connection: the response may end by close.
    fn http_10(&mut self) {
        let nonce = self.nonce(0);
        let (origin, host) = self.destination();
        let head = format!("GET {origin}/old?n={nonce} HTTP/1.0\r\nHost: {host}\r\n\r\n");
        self.ask("GET", nonce, false, Vec::new());
        self.send(head.into_bytes());
    }

    /// Returns the prefix of the path of the next request, and its Host.
    fn destination(&mut self) -> (String, String) {
        match self.manners.destinations {
            0 => (String::new(), "weir.test".to_owned()),
            count => {
                let host = server_address(self.rng.index(count)).to_string();
                (format!("http://{host}"), host)
            }
        }
    }

    fn nonce(&self, index: usize) -> String {
        format!("{:04x}{:04x}", self.number, index)
    }

    fn ask(&mut self, method: &'static str, nonce: String, conditional: bool, body: Vec<u8>) {
        self.acts.push_back(Act::Ask(self.requests.len()));
        let asked = Asked { nonce, method, conditional, body, trigger: None };
        self.requests.push(asked);
    }

    /// Sends part of a request, or all of it, and then resets the connection.
    fn abort(&mut self) {
        let index = self.requests.len();
        self.request(index);
        let kept = self.rng.index(self.acts.len() + 1);
        while self.acts.len() > kept && !matches!(self.acts.back(), Some(Act::Ask(_))) {
            self.acts.pop_back();
        }
        let time_us = self.rng.below(20_000);
        self.acts.push_back(Act::Wait(time_us));
        self.acts.push_back(Act::Reset);
    }

    fn request(&mut self, index: usize) {
        let method = *self.rng.pick(self.manners.methods);
        let nonce = self.nonce(index);
        let conditional = method == "GET" && self.rng.chance(100);
        let body = self.body(method);
        let (origin, host) = self.destination();
        let path = self.rng.below(5);
        let mut head =
            format!("{method} {origin}/p{path}?n={nonce}&x HTTP/1.1\r\nHost: {host}\r\n");
        if conditional {
            head.push_str("If-None-Match: \"x\"\r\n");
        }
        if self.manners.decorations {
            self.decorate(&mut head);
        }
        if self.manners.cookies && self.rng.chance(900) {
            head.push_str(&format!(
                "Cookie: a=b; {COOKIE}={}\r\n",
                String::from_utf8_lossy(NO_SESSION)
            ));
        }
        if self.manners.keys && self.rng.chance(900) {
            head.push_str(&format!("{KEY_FIELD}: {}\r\n", self.rng.below(20)));
        }
        self.ask(method, nonce, conditional, body.clone());
        let expects = !body.is_empty() && self.rng.chance(150);
        if expects {
            head.push_str("Expect: 100-continue\r\n");
        }
        let chunked = !body.is_empty() && self.rng.chance(400);
        if chunked {
            head.push_str("Transfer-Encoding: chunked\r\n\r\n");
        } else if method == "POST" || !body.is_empty() {
            head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        } else {
            head.push_str("\r\n");
        }
        let rest = if chunked { self.chunks(&body) } else { body };
        self.send_request(head.into_bytes(), rest, expects);
    }

    fn send_request(&mut self, mut head: Vec<u8>, rest: Vec<u8>, expects: bool) {
        if expects {
            self.send(head);
            self.acts.push_back(Act::AwaitContinue);
            self.send(rest);
        } else {
            head.extend_from_slice(&rest);
            self.send(head);
        }
    }

    fn body(&mut self, method: &str) -> Vec<u8> {
        let likely = match method {
            "POST" | "PUT" | "PATCH" => 900,
            "GET" | "DELETE" => 30,
            _ => 0,
        };
        if !self.rng.chance(likely) || self.manners.body_bytes_max == 0 {
            return Vec::new();
        }
        let shift = self.rng.below(12);
        let length = 1 + self.rng.index(self.manners.body_bytes_max >> shift);
        (0..length).map(|at| b'a' + (at % 23) as u8).collect()
    }

    fn chunks(&mut self, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut rest = body;
        while !rest.is_empty() {
            let shift = self.rng.below(8);
            let take = 1 + self.rng.index((rest.len() >> shift).max(1));
            let extension =
                if self.manners.decorations && self.rng.chance(50) { ";a=b" } else { "" };
            out.extend_from_slice(format!("{take:x}{extension}\r\n").as_bytes());
            out.extend_from_slice(&rest[..take]);
            out.extend_from_slice(b"\r\n");
            rest = &rest[take..];
        }
        let trailer =
            if self.manners.decorations && self.rng.chance(200) { "X-Sum: 5\r\n" } else { "" };
        out.extend_from_slice(format!("0\r\n{trailer}\r\n").as_bytes());
        out
    }

    fn decorate(&mut self, head: &mut String) {
        const FIELDS: [&str; 8] = [
            "Connection: keep-alive\r\n",
            "Keep-Alive: timeout=5\r\n",
            "X_Forwarded_For: 1.2.3.4\r\n",
            "X-Forwarded-For: 1.2.3.4\r\n",
            "Connection: X-Mine\r\nX-Mine: y\r\n",
            "TE: trailers, gzip\r\nConnection: te\r\n",
            "Cookie: a=b; c=d\r\n",
            "X-Empty:\r\n",
        ];
        for field in FIELDS {
            if self.rng.chance(80) {
                head.push_str(field);
            }
        }
    }

    /// Sends in one or more pieces, at times one byte each.
    fn send(&mut self, bytes: Vec<u8>) {
        match self.rng.below(10) {
            0 if bytes.len() < 400 => {
                for byte in bytes {
                    self.acts.push_back(Act::Send(vec![byte]));
                    let time_us = self.rng.below(200);
                    self.acts.push_back(Act::Wait(time_us));
                }
            }
            1..4 => {
                let cut = self.rng.index(bytes.len() + 1);
                let time_us = self.rng.below(30_000);
                self.acts.push_back(Act::Send(bytes[..cut].to_vec()));
                self.acts.push_back(Act::Wait(time_us));
                self.acts.push_back(Act::Send(bytes[cut..].to_vec()));
            }
            _ => self.acts.push_back(Act::Send(bytes)),
        }
    }
}
