//! A client of HTTP/2: many streams at once, with windows, priorities, bodies in both directions,
//! resets and drips of credit.
//!
//! The strict judge of streams sees every frame that comes back; each whole response is checked
//! against the request of its stream.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use weir_check::StrictStreams;
use weir_check::streams::{
    ACK, END_HEADERS, END_STREAM, PADDED, PREFACE, Seen, frame, header_block, kind,
};
use weir_io::sim::{Actor, Conn, Net, Rng};

use super::book::{Asked, Outcome, SharedBook};
use super::client::Manners;
use super::dials::{COOKIE, KEY_FIELD};

/// The initial size of a connection's windows (RFC 9113 §6.9.2).
const WINDOW_BYTES: i64 = 65_535;
/// The largest frame that weir takes.
const FRAME_BYTES_MAX: usize = 16_384;
/// How long a body waits for 100 (Continue), microseconds.
const CONTINUE_US: u64 = 1_000_000;
/// HTTP_1_1_REQUIRED (RFC 9113 §7).
const HTTP_1_1_REQUIRED: u32 = 0xd;
/// The equivalent status (RFC 9110 §15.5.20).
pub const MISDIRECTED: u16 = 421;

/// When a client gives up a stream by choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GivesUp {
    Never,
    /// In the same bytes as the request.
    AtOnce,
    /// This many microseconds later.
    After(u64),
    /// When the head of the response has come.
    AtHead,
}

/// A request that it is going to send.
#[derive(Clone, Debug)]
pub struct Ask {
    pub asked: Asked,
    /// The path; None: one of a few.
    pub path: Option<&'static str>,
    /// The fields after the pseudo fields.
    pub fields: Vec<(String, String)>,
    pub has_trailers: bool,
    pub awaits_continue: bool,
    pub gives_up: GivesUp,
    /// Microseconds to wait before it.
    pub pause_us: u64,
}

impl Ask {
    pub fn new(asked: Asked) -> Ask {
        let (has_trailers, awaits_continue) = (false, false);
        Ask {
            asked,
            path: None,
            fields: Vec::new(),
            has_trailers,
            awaits_continue,
            gives_up: GivesUp::Never,
            pause_us: 0,
        }
    }
}

/// How a client treats the connection as a whole.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Most streams at a time.
    pub streams: usize,
    /// SETTINGS_INITIAL_WINDOW_SIZE, bytes.
    pub window: u32,
    /// More for the connection than it has anyway, bytes.
    pub connection_credit: u32,
    /// Most bytes of credit that it gives back at a time, and after how many microseconds.
    pub credit: u32,
    pub credit_after_us: u64,
    /// Gives nothing back on streams before this world time.
    pub stalls_until_us: u64,
    /// Thousandths of occasions for padding, continued heads, PING, PRIORITY_UPDATE, other
    /// SETTINGS.
    pub oddities: u32,
    /// How often it changes its window by SETTINGS at most.
    pub settings_max: u32,
    /// Thousandths of occasions after which it stops reading for up to two seconds.
    pub slow: u32,
    /// Brings back the cookie of its session.
    pub cookies: bool,
}

impl Habits {
    /// Takes everything that comes, at once.
    pub fn quiet(streams: usize) -> Habits {
        Habits {
            streams,
            window: WINDOW_BYTES as u32,
            connection_credit: 0,
            credit: u32::MAX,
            credit_after_us: 0,
            stalls_until_us: 0,
            oddities: 0,
            settings_max: 0,
            slow: 0,
            cookies: false,
        }
    }
}

/// A stream that is not complete.
struct Open {
    ask: Ask,
    /// Bytes of its body.
    sent: usize,
    window: i64,
    waits: bool,
    /// Its response, or its end without one, has come.
    is_over: bool,
    /// Bytes that came and were not given back.
    owed: u32,
}

enum Due {
    Start,
    Ask,
    Resume,
    Credit(u32),
    GiveUp(u32),
    Continue(u32),
}

/// The actor.
pub struct Http2Client {
    to: SocketAddr,
    book: SharedBook,
    start_us: u64,
    habits: Habits,
    asks: Vec<Ask>,
    rng: Rng,
    judge: StrictStreams,
    conn: Option<Conn>,
    /// Requests that it has sent.
    asked: usize,
    waits_to_ask: bool,
    open: BTreeMap<u32, Open>,
    /// For DATA of the connection and of a new stream, as weir gave them.
    window: i64,
    initial: i64,
    owed: u32,
    session: Option<String>,
    due: Vec<Due>,
    is_refused: bool,
    has_finished: bool,
    done: bool,
}

impl Http2Client {
    /// A client that starts at `start_us` and draws what it does.
    pub fn random(
        number: usize,
        to: SocketAddr,
        start_us: u64,
        book: &SharedBook,
        manners: &Manners,
        rng: &mut Rng,
    ) -> Http2Client {
        let habits = Habits {
            streams: *rng.pick(&[1, 3, 10, 100]),
            window: *rng.pick(&[100, 1_000, 16_384, 65_535, 65_535, 1 << 20]),
            connection_credit: *rng.pick(&[0, 0, 1 << 20, 1 << 24]),
            credit: *rng.pick(&[1_000, 20_000, u32::MAX, u32::MAX]),
            credit_after_us: *rng.pick(&[0, 0, 1_000, 30_000]),
            stalls_until_us: 0,
            oddities: *rng.pick(&[0, 50, 200]),
            settings_max: 5,
            slow: manners.slow,
            cookies: manners.cookies,
        };
        let resets = *rng.pick(&[0, 0, 100]);
        let asks = (0..manners.requests)
            .map(|index| ask(&format!("{number:04x}{index:04x}"), resets, manners, rng));
        let asks = asks.collect();
        Http2Client::scripted(to, start_us, book, habits, asks, Rng::new(rng.next_u64()))
    }

    /// A client that sends exactly these requests.
    pub fn scripted(
        to: SocketAddr,
        start_us: u64,
        book: &SharedBook,
        habits: Habits,
        asks: Vec<Ask>,
        rng: Rng,
    ) -> Http2Client {
        asks.iter().for_each(|ask| book.borrow_mut().ask(ask.asked.clone()));
        Http2Client {
            to,
            book: book.clone(),
            start_us,
            habits,
            asks,
            rng,
            judge: StrictStreams::new(),
            conn: None,
            asked: 0,
            waits_to_ask: false,
            open: BTreeMap::new(),
            window: WINDOW_BYTES,
            initial: WINDOW_BYTES,
            owed: 0,
            session: None,
            due: Vec::new(),
            is_refused: false,
            has_finished: false,
            done: false,
        }
    }

    fn send(&mut self, net: &mut Net<'_>, bytes: &[u8]) {
        if let Some(conn) = self.conn.filter(|_| !self.has_finished) {
            self.book.borrow_mut().traffic.clients_sent += bytes.len() as u64;
            net.send(conn, bytes);
        }
    }

    fn after(&mut self, net: &mut Net<'_>, time_us: u64, due: Due) {
        net.timer(time_us, self.due.len() as u64);
        self.due.push(due);
    }

    fn odd(&mut self) -> bool {
        self.rng.chance(self.habits.oddities)
    }

    fn greet(&mut self, net: &mut Net<'_>) {
        let mut bytes = PREFACE.to_vec();
        bytes.extend(self.settings(self.habits.window));
        if self.habits.connection_credit > 0 {
            bytes.extend(self.credit(0, self.habits.connection_credit));
        }
        self.send(net, &bytes);
    }

    fn settings(&mut self, window: u32) -> Vec<u8> {
        self.judge.set(Some(window));
        frame(kind::SETTINGS, 0, 0, &[&[0, 4], window.to_be_bytes().as_slice()].concat())
    }

    fn credit(&mut self, stream: u32, bytes: u32) -> Vec<u8> {
        self.judge.credit(stream, bytes);
        frame(kind::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
    }

    /// Sends requests and bodies as far as it may.
    fn go_on(&mut self, net: &mut Net<'_>) {
        while !self.done && !self.waits_to_ask && self.asked < self.asks.len() && !self.is_refused {
            if self.open.len() >= self.habits.streams {
                break;
            }
            self.ask(net);
        }
        self.send_bodies(net);
        let is_all = self.asked == self.asks.len() || self.is_refused;
        if is_all && !self.waits_to_ask && self.open.is_empty() && !self.has_finished && !self.done
        {
            self.has_finished = true;
            if let Some(conn) = self.conn {
                net.finish(conn);
            }
        }
    }

    fn ask(&mut self, net: &mut Net<'_>) {
        let stream = self.asked as u32 * 2 + 1;
        let ask = self.asks[self.asked].clone();
        self.asked += 1;
        self.judge.ask(stream, ask.asked.method);
        let mut bytes = self.head(stream, &ask);
        if ask.gives_up == GivesUp::AtOnce {
            bytes.extend(self.reset(stream, &ask.asked.nonce));
        }
        self.send(net, &bytes);
        match ask.gives_up {
            GivesUp::AtOnce => return self.pause(net),
            GivesUp::After(time_us) => self.after(net, time_us, Due::GiveUp(stream)),
            GivesUp::AtHead | GivesUp::Never => {}
        }
        let waits = ask.awaits_continue && !ask.asked.body.is_empty();
        if waits {
            self.after(net, CONTINUE_US, Due::Continue(stream));
        }
        let open = Open { ask, sent: 0, window: self.initial, waits, is_over: false, owed: 0 };
        self.open.insert(stream, open);
        self.pause(net);
    }

    /// Pauses before the next request.
    fn pause(&mut self, net: &mut Net<'_>) {
        if self.rng.chance(self.habits.slow)
            && let Some(conn) = self.conn
        {
            net.pause(conn);
            let time_us = self.rng.between(1, 2_000_000);
            self.after(net, time_us, Due::Resume);
        }
        let pause_us = self.asks.get(self.asked).map_or(0, |ask| ask.pause_us);
        if pause_us > 0 {
            self.waits_to_ask = true;
            self.after(net, pause_us, Due::Ask);
        }
    }

    /// The frames of a request's head, and oddities before it.
    fn head(&mut self, stream: u32, ask: &Ask) -> Vec<u8> {
        let path = ask.path.map_or_else(|| format!("/p{}", self.rng.below(5)), str::to_owned);
        let target = format!("{path}?n={}&x", ask.asked.nonce);
        let pseudo = [
            (":method", ask.asked.method),
            (":scheme", "http"),
            (":path", &target),
            (":authority", "weir.test"),
        ];
        let mut fields: Vec<(&str, &str)> = pseudo.to_vec();
        fields.extend(ask.fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let length = ask.asked.body.len().to_string();
        if !ask.asked.body.is_empty() && self.rng.chance(600) {
            fields.push(("content-length", &length));
        }
        let session = self.session.clone().filter(|_| self.habits.cookies);
        let crumb = session.as_ref().map(|session| format!("{COOKIE}={session}"));
        if let (Some(crumb), Some(session)) = (&crumb, &session) {
            // Crumbs are joined again (RFC 9113 §8.2.3).
            fields.extend([("cookie", "a=b"), ("cookie", crumb.as_str())]);
            self.book.borrow_mut().bind(&ask.asked.nonce, session);
        }
        let block = header_block(&fields);
        let ends = ask.asked.body.is_empty() && !ask.has_trailers;
        let end = if ends { END_STREAM } else { 0 };
        let mut out = Vec::new();
        if self.odd() {
            let urgency = [&stream.to_be_bytes()[..], b"u=1, i"].concat();
            out.extend(frame(kind::PRIORITY_UPDATE, 0, 0, &urgency));
        }
        if self.odd() {
            self.judge.ping();
            out.extend(frame(kind::PING, 0, 0, b"sim ping"));
        }
        if self.odd() {
            let cut = self.rng.index(block.len());
            out.extend(frame(kind::HEADERS, end, stream, &block[..cut]));
            out.extend(frame(kind::CONTINUATION, END_HEADERS, stream, &block[cut..]));
        } else if self.odd() {
            let padded = [&[3], block.as_slice(), &[0; 3]].concat();
            out.extend(frame(kind::HEADERS, end | END_HEADERS | PADDED, stream, &padded));
        } else {
            out.extend(frame(kind::HEADERS, end | END_HEADERS, stream, &block));
        }
        out
    }

    /// RST_STREAM, and its entry in the book.
    fn reset(&mut self, stream: u32, nonce: &str) -> Vec<u8> {
        self.judge.give_up(stream);
        if let Some(entry) = self.book.borrow_mut().entries.get_mut(nonce)
            && entry.outcome == Outcome::Waiting
        {
            entry.outcome = Outcome::GivenUp;
        }
        const CANCEL: u32 = 8;
        frame(kind::RST_STREAM, 0, stream, &CANCEL.to_be_bytes())
    }

    fn give_up(&mut self, net: &mut Net<'_>, stream: u32) {
        if let Some(open) = self.open.remove(&stream) {
            let bytes = self.reset(stream, &open.ask.asked.nonce);
            self.send(net, &bytes);
        }
    }

    /// DATA of all streams, as far as windows allow, a frame of each at a time.
    fn send_bodies(&mut self, net: &mut Net<'_>) {
        loop {
            let streams: Vec<u32> = self.open.keys().copied().collect();
            let mut out = Vec::new();
            for stream in streams {
                out.extend(self.body_part(stream));
            }
            if out.is_empty() {
                return;
            }
            self.send(net, &out);
        }
    }

    fn body_part(&mut self, stream: u32) -> Vec<u8> {
        let Some(open) = self.open.get_mut(&stream) else { return Vec::new() };
        let left = open.ask.asked.body.len() - open.sent;
        let ends_with_trailers = open.ask.has_trailers;
        if open.waits || left == 0 {
            return Vec::new();
        }
        let room = self.window.min(open.window).clamp(0, FRAME_BYTES_MAX as i64 - 10) as usize;
        let shift = self.rng.below(4);
        let length = room.min((left >> shift).max(1));
        let padding = if self.rng.chance(self.habits.oddities) { self.rng.index(9) } else { 0 };
        // The length of the padding is also a byte of the payload.
        let padding = if padding > 0 && length + padding < room { padding } else { 0 };
        if length == 0 {
            return Vec::new();
        }
        let bytes = &open.ask.asked.body[open.sent..open.sent + length];
        let is_last = length == left;
        // Some clients send the end in a separate frame.
        let ends_apart = is_last && !ends_with_trailers && self.rng.chance(self.habits.oddities);
        let end = if is_last && !ends_with_trailers && !ends_apart { END_STREAM } else { 0 };
        let payload = match padding {
            0 => bytes.to_vec(),
            _ => [&[padding as u8 - 1], bytes, &vec![0; padding - 1]].concat(),
        };
        let flags = end | if padding > 0 { PADDED } else { 0 };
        let mut out = frame(kind::DATA, flags, stream, &payload);
        self.window -= payload.len() as i64;
        open.window -= payload.len() as i64;
        open.sent += length;
        if ends_apart {
            out.extend(frame(kind::DATA, END_STREAM, stream, &[]));
        }
        if is_last && ends_with_trailers {
            let block = header_block(&[("x-sum", "5")]);
            out.extend(frame(kind::HEADERS, END_HEADERS | END_STREAM, stream, &block));
        }
        if is_last && open.is_over {
            self.open.remove(&stream);
        }
        out
    }

    fn take(&mut self, net: &mut Net<'_>, seen: Seen) {
        match seen {
            Seen::Settings(pairs) => {
                for (_, window) in pairs.into_iter().filter(|(number, _)| *number == 4) {
                    let change = i64::from(window) - self.initial;
                    self.initial += change;
                    self.open.values_mut().for_each(|open| open.window += change);
                }
                self.send(net, &frame(kind::SETTINGS, ACK, 0, &[]));
            }
            Seen::Ping(bytes) => self.send(net, &frame(kind::PING, ACK, 0, &bytes)),
            Seen::Credit(0, bytes) => self.window += i64::from(bytes),
            Seen::Credit(stream, bytes) => {
                if let Some(open) = self.open.get_mut(&stream) {
                    open.window += i64::from(bytes);
                }
            }
            Seen::Data(stream, bytes) => self.owe(net, stream, bytes),
            Seen::Reply(stream, reply) => {
                let Some(open) = self.open.get_mut(&stream) else { return };
                let nonce = open.ask.asked.nonce.clone();
                open.is_over = true;
                if let Some(cookie) = reply.fields.first("set-cookie") {
                    self.session = cookie.split(['=', ';']).nth(1).map(str::to_owned);
                }
                self.book.borrow_mut().replied(&nonce, &reply);
                // A response before the end of the body: in half of the cases the client does not
                // send the rest.
                if open.sent == open.ask.asked.body.len() || reply.body.length % 2 == 0 {
                    let is_unfinished = open.sent < open.ask.asked.body.len();
                    self.open.remove(&stream);
                    if is_unfinished {
                        let bytes = self.reset(stream, &nonce);
                        self.send(net, &bytes);
                    }
                }
            }
            Seen::Reset(stream, code) => self.was_reset(stream, code),
            Seen::Goaway(last, code) => {
                self.is_refused = true;
                self.book.borrow_mut().goaways.push(code);
                let unserved: Vec<u32> =
                    self.open.keys().copied().filter(|stream| *stream > last).collect();
                unserved.into_iter().for_each(|stream| self.was_reset(stream, 0));
            }
        }
    }

    /// Nothing more comes on this stream.
    fn was_reset(&mut self, stream: u32, code: u32) {
        let Some(open) = self.open.remove(&stream) else { return };
        if open.is_over {
            return;
        }
        if let Some(entry) = self.book.borrow_mut().entries.get_mut(&open.ask.asked.nonce) {
            entry.delivered |= self.judge.has_begun(stream);
            entry.outcome = if code == HTTP_1_1_REQUIRED {
                Outcome::Refused(MISDIRECTED)
            } else {
                Outcome::Cut
            };
        }
    }

    /// Notes bytes to be given back, and gives them back now or later.
    fn owe(&mut self, net: &mut Net<'_>, stream: u32, bytes: u32) {
        self.owed += bytes;
        if let Some(open) = self.open.get_mut(&stream) {
            open.owed += bytes;
        }
        match self
            .habits
            .credit_after_us
            .max(self.habits.stalls_until_us.saturating_sub(net.now_us()))
        {
            0 => self.repay(net, stream),
            time_us => self.after(net, time_us, Due::Credit(stream)),
        }
    }

    fn repay(&mut self, net: &mut Net<'_>, stream: u32) {
        let most = self.habits.credit;
        let mut out = Vec::new();
        let owed = self.owed.min(most);
        if owed > 0 {
            self.owed -= owed;
            out.extend(self.credit(0, owed));
        }
        let part = self.open.get_mut(&stream).map_or(0, |open| {
            let part = open.owed.min(most);
            open.owed -= part;
            part
        });
        if part > 0 {
            out.extend(self.credit(stream, part));
        }
        self.send(net, &out);
        let is_missing = self.owed > 0 || self.open.get(&stream).is_some_and(|open| open.owed > 0);
        if is_missing {
            self.after(net, self.habits.credit_after_us.max(100), Due::Credit(stream));
        }
    }

    /// Checks the streams after something came.
    fn look(&mut self, net: &mut Net<'_>) {
        let begun: Vec<u32> =
            self.open.keys().copied().filter(|stream| self.judge.has_begun(*stream)).collect();
        for stream in begun {
            let open = &self.open[&stream];
            if let Some(entry) = self.book.borrow_mut().entries.get_mut(&open.ask.asked.nonce) {
                entry.delivered = true;
            }
            if open.ask.gives_up == GivesUp::AtHead && !open.is_over {
                self.give_up(net, stream);
            }
        }
        for (stream, open) in &mut self.open {
            if self.judge.interim(*stream).contains(&100) || open.is_over {
                open.waits = false;
            }
        }
        if self.habits.settings_max > 0 && self.odd() {
            self.habits.settings_max -= 1;
            let window = self.habits.window + self.rng.below(10_000) as u32;
            let bytes = self.settings(window);
            self.send(net, &bytes);
        }
    }

    /// Ends the client: nothing more will come. Unanswered requests are cut.
    fn finish(&mut self) {
        if self.done {
            return;
        }
        self.done = true;
        let book = &mut *self.book.borrow_mut();
        for (stream, open) in &self.open {
            if let Some(entry) = book.entries.get_mut(&open.ask.asked.nonce) {
                entry.delivered |= self.judge.has_begun(*stream);
            }
        }
        for ask in &self.asks {
            if let Some(entry) = book.entries.get_mut(&ask.asked.nonce)
                && entry.outcome == Outcome::Waiting
            {
                entry.outcome = Outcome::Cut;
            }
        }
        book.clients_done += 1;
    }
}

impl Actor for Http2Client {
    fn on_start(&mut self, net: &mut Net<'_>) {
        self.after(net, self.start_us, Due::Start);
    }

    fn on_timer(&mut self, net: &mut Net<'_>, id: u64) {
        let Some(due) = self.due.get(id as usize).filter(|_| !self.done) else { return };
        match (due, self.conn) {
            (Due::Start, _) => self.conn = Some(net.connect(self.to)),
            (Due::Resume, Some(conn)) => net.resume(conn),
            (Due::Ask, _) => self.waits_to_ask = false,
            (&Due::Credit(stream), _) => self.repay(net, stream),
            (&Due::GiveUp(stream), _) => self.give_up(net, stream),
            (Due::Continue(stream), _) => {
                if let Some(open) = self.open.get_mut(stream) {
                    open.waits = false;
                }
            }
            (Due::Resume, None) => {}
        }
        if !matches!(self.due[id as usize], Due::Start) {
            self.go_on(net);
        }
    }

    fn on_connected(&mut self, net: &mut Net<'_>, _: Conn, result: std::io::Result<()>) {
        if result.is_err() {
            return self.finish();
        }
        self.greet(net);
        self.go_on(net);
    }

    fn on_data(&mut self, net: &mut Net<'_>, conn: Conn, data: &[u8]) {
        if self.done {
            return;
        }
        self.book.borrow_mut().traffic.clients_got += data.len() as u64;
        if let Err(violation) = self.judge.feed(data) {
            self.book.borrow_mut().violation(format!("to a client of HTTP/2: {violation}"));
            net.reset(conn);
            return self.finish();
        }
        while let Some(seen) = self.judge.poll() {
            self.take(net, seen);
        }
        self.look(net);
        self.go_on(net);
    }

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        self.book.borrow_mut().cut_frames += u64::from(!self.judge.is_between_frames());
        net.close(conn);
        self.finish();
    }

    fn on_reset(&mut self, _: &mut Net<'_>, _: Conn) {
        self.finish();
    }
}

/// Draws a request in the way of the clients of HTTP/1.1.
fn ask(nonce: &str, resets: u32, manners: &Manners, rng: &mut Rng) -> Ask {
    let method = *rng.pick(manners.methods);
    let likely = match method {
        "POST" | "PUT" | "PATCH" => 900,
        "GET" | "DELETE" => 30,
        _ => 0,
    };
    let mut body = Vec::new();
    if rng.chance(likely) && manners.body_bytes_max > 0 {
        let shift = rng.below(12);
        let length = 1 + rng.index(manners.body_bytes_max >> shift);
        body = (0..length).map(|at| b'a' + (at % 23) as u8).collect();
    }
    let mut fields = Vec::new();
    let mut field = |name: &str, value: &str| fields.push((name.to_owned(), value.to_owned()));
    let conditional = method == "GET" && rng.chance(100);
    if conditional {
        field("if-none-match", "\"x\"");
    }
    if manners.keys && rng.chance(900) {
        field(KEY_FIELD, &rng.below(20).to_string());
    }
    if rng.chance(200) {
        let priority = rng.pick(&["u=0", "u=7", "u=3, i", "i", "nonsense"]);
        field("priority", priority);
    }
    let awaits_continue = !body.is_empty() && rng.chance(150);
    if awaits_continue {
        field("expect", "100-continue");
    }
    if manners.decorations && rng.chance(100) {
        field("te", "trailers");
    }
    let has_trailers = !body.is_empty() && manners.decorations && rng.chance(200);
    let gives_up = match rng.below(3) {
        _ if !rng.chance(resets) => GivesUp::Never,
        0 => GivesUp::AtOnce,
        1 => GivesUp::After(rng.below(50_000)),
        _ => GivesUp::AtHead,
    };
    let pause_us = if manners.pause_us > 0 { rng.below(manners.pause_us) } else { 0 };
    let asked = Asked { nonce: nonce.to_owned(), method, conditional, body, trigger: None };
    Ask { asked, path: None, fields, has_trailers, awaits_continue, gives_up, pause_us }
}
