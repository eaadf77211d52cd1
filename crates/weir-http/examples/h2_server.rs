//! An HTTP/2 server without TLS for conformance tests (h2spec, h2load, curl with prior knowledge).
//! It answers each request with 200 and a body.
//!
//! `cargo run -p weir-http --example h2_server -- PORT [BYTES]` listens on 127.0.0.1; BYTES is the
//! length of the body (default 16). It shows the order in which a [`Mux`] is driven: read until it
//! returns None, write until it returns 0, then wait for more.
// The library knows no sockets and clocks; what tries it out must.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use weir_http::h2::{Additions, Blocked, Code, Event, Heads, Limits, Mux, Outgoing, Turn};
use weir_http::{ReplyParts, SERVER, Trailers};

/// Bytes to gather for one write.
const WRITE_BYTES: usize = 65_536;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().and_then(|port| port.parse::<u16>().ok()).unwrap_or(8080);
    let bytes = arguments.next().and_then(|bytes| bytes.parse::<usize>().ok()).unwrap_or(16);
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    for socket in listener.incoming() {
        let socket = socket?;
        std::thread::spawn(move || serve(socket, bytes));
    }
    Ok(())
}

/// Bytes to send. Bodies repeat the same byte, so nothing of them has to be kept.
#[derive(Default)]
struct Output(Vec<u8>);

impl Outgoing for Output {
    fn frames(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn body(&mut self, _stream: u32, _tag: u64, bytes: usize) {
        self.0.resize(self.0.len() + bytes, b'w');
    }

    fn ended(&mut self, _stream: u32, _tag: u64) {}
}

fn serve(mut socket: TcpStream, body_bytes: usize) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let (limits, began) = (Limits::default(), Instant::now());
    let (mut mux, mut heads, mut output) = (Mux::new(&limits), Heads::default(), Output::default());
    let (mut buffer, mut stash) = (vec![0; 65_536], Vec::new());
    loop {
        while mux.write_out(WRITE_BYTES, &mut output) > 0 {
            socket.write_all(&output.0)?;
            output.0.clear();
        }
        if mux.is_finished() {
            return linger(&socket);
        }
        if let Some(Blocked::Until(until_us)) = mux.blocked() {
            std::thread::sleep(Duration::from_micros(until_us).saturating_sub(began.elapsed()));
        }
        let now_us = began.elapsed().as_micros() as u64;
        mux.expire(now_us);
        if stash.is_empty() {
            let received = socket.read(&mut buffer)?;
            if received == 0 {
                return Ok(());
            }
            stash.extend_from_slice(&buffer[..received]);
        }
        let mut turn = Turn::new(&stash, now_us, &limits);
        // After a failure there is nothing to read, only to write.
        while let Ok(Some(event)) = mux.read(&mut turn, &mut heads) {
            answer(&mut mux, &event, body_bytes);
        }
        let consumed = if mux.failure().is_some() { stash.len() } else { turn.consumed() };
        stash.drain(..consumed);
    }
}

fn answer(mux: &mut Mux, event: &Event<'_>, body_bytes: usize) {
    match *event {
        Event::Request { stream, end, .. } if end => put_answer(mux, stream, 200, body_bytes),
        Event::Refused { stream, error, .. } | Event::Broken { stream, error, .. } => {
            put_answer(mux, stream, error.status(), 0)
        }
        Event::Data { stream, bytes, end, .. } => {
            mux.consumed(stream, bytes.len());
            if end {
                put_answer(mux, stream, 200, body_bytes);
            }
        }
        Event::Leaving { code } if code != Code::NoError => {
            mux.fail(Code::NoError, "the client has left");
        }
        Event::Request { .. } | Event::Reset { .. } | Event::Leaving { .. } => {}
    }
}

fn put_answer(mux: &mut Mux, stream: u32, status: u16, bytes: usize) {
    let parts = ReplyParts::made(status, &[SERVER, (b"Content-Type", b"text/plain")]);
    let additions = Additions { length: Some(bytes as u64), ..Additions::default() };
    mux.reply_head(stream, &parts, &additions, bytes == 0);
    if bytes > 0 {
        mux.reply_data(stream, bytes);
        mux.end(stream, Trailers::default());
    }
}

/// Lets the client read the last bytes before a reset of the connection can discard them.
fn linger(mut socket: &TcpStream) -> std::io::Result<()> {
    socket.shutdown(std::net::Shutdown::Write)?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut rest = [0; 4096];
    while socket.read(&mut rest)? > 0 {}
    Ok(())
}
