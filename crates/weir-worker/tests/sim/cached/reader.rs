//! A client that asks for a few keys again and again, in bursts, and at times reads slowly, or
//! leaves.

use std::collections::VecDeque;
use std::net::SocketAddr;

use weir_check::{End, StrictReplies};
use weir_io::sim::{Actor, Conn, Net};

use super::super::book::SharedBook;
use super::memory::{Question, Shared};

/// One step.
#[derive(Debug)]
pub enum Step {
    Ask(Question),
    /// Until this time of the world, microseconds.
    Until(u64),
    /// Until all is answered.
    Await,
    /// Stops reading for this many microseconds, while the script continues.
    StopReading(u64),
    /// RST.
    Leave,
}

/// The actor.
pub struct Reader {
    to: SocketAddr,
    book: SharedBook,
    memory: Shared,
    steps: VecDeque<Step>,
    judge: StrictReplies,
    conn: Option<Conn>,
    /// Unanswered requests, and when they were sent.
    asked: VecDeque<(Question, u64)>,
    /// It leaves only at the end, and nothing cuts it off.
    must_be_answered: bool,
    waits: bool,
    done: bool,
}

const GO_ON: u64 = 0;
const RESUME: u64 = 1;

impl Reader {
    /// `must_be_answered`: nothing excuses an error, nor the end of its connection.
    pub fn new(
        to: SocketAddr,
        book: &SharedBook,
        memory: &Shared,
        steps: VecDeque<Step>,
        must_be_answered: bool,
    ) -> Reader {
        Reader {
            to,
            book: book.clone(),
            memory: memory.clone(),
            steps,
            judge: StrictReplies::new(),
            conn: None,
            asked: VecDeque::new(),
            must_be_answered,
            waits: false,
            done: false,
        }
    }

    fn go_on(&mut self, net: &mut Net<'_>) {
        while !self.waits && !self.done {
            let Some(conn) = self.conn else { return };
            match self.steps.front() {
                None if self.asked.is_empty() => {
                    net.close(conn);
                    return self.finish();
                }
                None => return,
                Some(Step::Await) if !self.asked.is_empty() => return,
                Some(_) => {}
            }
            match self.steps.pop_front() {
                Some(Step::Ask(question)) => {
                    self.judge.ask(question.method, false, false);
                    let bytes = question.bytes();
                    self.asked.push_back((question, net.now_us()));
                    net.send(conn, &bytes);
                }
                Some(Step::Until(at_us)) => {
                    self.waits = true;
                    net.timer(at_us.saturating_sub(net.now_us()), GO_ON);
                }
                Some(Step::StopReading(time_us)) => {
                    net.pause(conn);
                    net.timer(time_us, RESUME);
                }
                Some(Step::Leave) => {
                    net.reset(conn);
                    self.finish();
                }
                Some(Step::Await) | None => {}
            }
        }
    }

    /// Ends the reader: nothing more comes.
    fn finish(&mut self) {
        if !std::mem::replace(&mut self.done, true) {
            self.book.borrow_mut().clients_done += 1;
        }
    }

    /// The other side has ended the connection.
    fn ended(&mut self) {
        if self.done {
            return;
        }
        let end = self.judge.end();
        let mut memory = self.memory.borrow_mut();
        memory.counts.failed += 1;
        if self.must_be_answered {
            let asked: Vec<&str> =
                self.asked.iter().map(|(question, _)| question.nonce.as_str()).collect();
            memory.violation(format!("invariant 6: cut off while {asked:?} were not answered"));
        }
        // invariant 1 holds for a truncated reply as well: it is the beginning of what was asked
        // for.
        if let (End::Truncated(Some(reply)), Some((question, _))) = (&end, self.asked.front())
            && reply.status == 200
            && !memory.collects_astray
            && let Some(number) =
                reply.fields.first("x-version").and_then(|text| text.parse::<usize>().ok())
        {
            let version = &memory.versions[number];
            let is_of_key = version.key == question.key
                && (version.way.is_none() || version.way == question.way);
            if !is_of_key || !version.body(number).starts_with(&reply.body.bytes) {
                let text =
                    format!("invariant 1: {} got the beginning of something else", question.nonce);
                memory.violation(text);
            }
        }
        drop(memory);
        self.finish();
    }

    fn take_replies(&mut self, now_us: u64) {
        while let Some(reply) = self.judge.poll_reply() {
            let mut memory = self.memory.borrow_mut();
            let Some((question, asked_us)) = self.asked.pop_front() else {
                return memory.violation("a reply that nobody asked for".to_owned());
            };
            let is_refusal = reply.status >= 500 && !question.lines.contains("only-if-cached");
            if is_refusal && self.must_be_answered {
                memory.violation(format!(
                    "invariant 6: {} got {} at {now_us}",
                    question.nonce, reply.status
                ));
            }
            memory.replied(&question, asked_us, &reply, now_us);
        }
    }
}

impl Actor for Reader {
    fn on_start(&mut self, net: &mut Net<'_>) {
        self.conn = Some(net.connect(self.to));
        self.waits = true;
    }

    fn on_connected(&mut self, net: &mut Net<'_>, _: Conn, result: std::io::Result<()>) {
        match result {
            Ok(()) => {
                self.waits = false;
                self.go_on(net);
            }
            Err(_) => self.finish(),
        }
    }

    fn on_timer(&mut self, net: &mut Net<'_>, id: u64) {
        match (id, self.conn) {
            (RESUME, Some(conn)) => net.resume(conn),
            _ => {
                self.waits = false;
                self.go_on(net);
            }
        }
    }

    fn on_data(&mut self, net: &mut Net<'_>, conn: Conn, data: &[u8]) {
        if self.done {
            return;
        }
        if let Err(violation) = self.judge.feed(data) {
            self.memory.borrow_mut().violation(format!("to a client: {violation}"));
            net.reset(conn);
            return self.finish();
        }
        self.take_replies(net.now_us());
        self.go_on(net);
    }

    fn on_end(&mut self, net: &mut Net<'_>, conn: Conn) {
        net.close(conn);
        self.ended();
    }

    fn on_reset(&mut self, _: &mut Net<'_>, _: Conn) {
        self.ended();
    }
}
