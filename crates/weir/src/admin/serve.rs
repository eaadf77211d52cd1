//! HTTP of the control thread: accepts, reads one request, writes one response, closes.
//!
//! Called by `admin`; `routes` makes the responses. A client can use few resources: at most
//! [`CONNECTIONS_MAX`] connections at a time for each listener, a head of [`HEAD_BYTES_MAX`],
//! [`EXCHANGE_MAX`] from accept to close. A new connection never waits for idle ones. If the limit
//! is reached, weir closes a connection of the client with the most connections ([`Guests`]). One
//! request a connection makes that bound simple, and does not bother a scraper that comes once in
//! 15 s.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;

use super::routes::{Answer, Body};

/// Connections of one listener at a time; with more, weir closes others.
pub(crate) const CONNECTIONS_MAX: usize = 64;
/// Longest head; a longer one gets 431.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Most fields; more get 431.
const FIELDS_MAX: usize = 64;
/// Longest time from accept to close.
const EXCHANGE_MAX: Duration = Duration::from_secs(10);
/// Longest time for the whole head to arrive.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// Pause after a failed accept, which fails for lack of descriptors and would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Responds to a request; the path may hold anything.
pub(crate) type Respond = dyn Fn(&Request<Incoming>) -> Answer;

/// A source of connections.
pub(crate) trait Accept {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// Returns the next connection, and its client's address; None: on this machine.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Stream, Option<IpAddr>)>>;
}

impl Accept for tokio::net::UnixListener {
    type Stream = tokio::net::UnixStream;

    async fn next(&self) -> io::Result<(tokio::net::UnixStream, Option<IpAddr>)> {
        self.accept().await.map(|(stream, _)| (stream, None))
    }
}

impl Accept for tokio::net::TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn next(&self) -> io::Result<(tokio::net::TcpStream, Option<IpAddr>)> {
        self.accept().await.map(|(stream, peer)| (stream, Some(peer.ip().to_canonical())))
    }
}

/// The open connections, the oldest first.
#[derive(Debug, Default)]
struct Guests {
    all: Vec<Guest>,
    /// Number of the next connection.
    number: u64,
}

#[derive(Debug)]
struct Guest {
    number: u64,
    peer: Option<IpAddr>,
    /// Its request has arrived.
    has_asked: Rc<Cell<bool>>,
    /// Aborts its exchange; None: not yet begun.
    exchange: Option<AbortHandle>,
}

impl Guests {
    /// Adds a connection, for which there is room. Returns its number.
    fn add(&mut self, peer: Option<IpAddr>, has_asked: Rc<Cell<bool>>) -> u64 {
        self.number += 1;
        self.all.push(Guest { number: self.number, peer, has_asked, exchange: None });
        self.number
    }

    fn set_exchange(&mut self, number: u64, exchange: AbortHandle) {
        if let Some(guest) = self.all.iter_mut().find(|guest| guest.number == number) {
            guest.exchange = Some(exchange);
        }
    }

    fn remove(&mut self, number: u64) {
        self.all.retain(|guest| guest.number != number);
    }

    /// Removes the connection that has to close before another is accepted. That is one of the
    /// client with the most connections: the oldest without a request, or else the oldest. None: no
    /// need.
    fn take_surplus(&mut self, room: usize) -> Option<Guest> {
        if self.all.len() < room {
            return None;
        }
        let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
        self.all.iter().for_each(|guest| *counts.entry(guest.peer).or_default() += 1);
        let most = counts.values().copied().max()?;
        let is_of_them = |guest: &&Guest| counts[&guest.peer] == most;
        let silent = self.all.iter().filter(is_of_them).find(|guest| !guest.has_asked.get());
        let number = silent.or_else(|| self.all.iter().find(is_of_them))?.number;
        let at = self.all.iter().position(|guest| guest.number == number)?;
        Some(self.all.remove(at))
    }
}

/// Serves for ever. Call it inside a `LocalSet`.
pub(crate) async fn serve(listener: impl Accept, respond: Rc<Respond>) {
    let guests: Rc<RefCell<Guests>> = Rc::default();
    loop {
        let Ok((stream, peer)) = listener.next().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let surplus = guests.borrow_mut().take_surplus(CONNECTIONS_MAX);
        if let Some(exchange) = surplus.and_then(|guest| guest.exchange) {
            exchange.abort();
        }
        let has_asked = Rc::new(Cell::new(false));
        let number = guests.borrow_mut().add(peer, Rc::clone(&has_asked));
        let (respond, all) = (Rc::clone(&respond), Rc::clone(&guests));
        let task = tokio::task::spawn_local(async move {
            let answer = |request: &Request<Incoming>| {
                has_asked.set(true);
                respond(request)
            };
            // An error of a client ends its connection and affects no other client.
            let _ = tokio::time::timeout(EXCHANGE_MAX, exchange(stream, &answer)).await;
            all.borrow_mut().remove(number);
        });
        guests.borrow_mut().set_exchange(number, task.abort_handle());
    }
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    respond: &dyn Fn(&Request<Incoming>) -> Answer,
) -> hyper::Result<()> {
    let service =
        service_fn(|request| async move { Ok::<Response<Body>, Infallible>(respond(&request)) });
    http1::Builder::new()
        .keep_alive(false)
        .half_close(true)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(FIELDS_MAX)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

#[cfg(test)]
mod tests {
    //! Proves: which connection is closed at the limit: one of the client with the most, first one
    //! without a request. How: examples.

    use super::*;

    /// Makes clients by the last byte of their address, in the order of arrival; true: its request
    /// has arrived.
    fn guests(all: &[(u8, bool)]) -> Guests {
        let mut guests = Guests::default();
        for (last, has_asked) in all {
            guests.add(Some([10, 0, 0, *last].into()), Rc::new(Cell::new(*has_asked)));
        }
        guests
    }

    #[test]
    fn who_goes_for_one_more() {
        for (all, goes) in [
            (&[(1, false), (2, false), (2, false)][..], 2),
            (&[(1, false), (2, true), (2, false)], 3),
            (&[(1, false), (2, true), (2, true)], 2),
            (&[(1, true), (2, true), (3, false)], 3),
            (&[(1, true), (2, true), (3, true)], 1),
            (&[(1, false), (1, false), (1, false)], 1),
        ] {
            let mut guests = guests(all);
            assert_eq!(
                guests.take_surplus(all.len()).map(|guest| guest.number),
                Some(goes),
                "{all:?}"
            );
            assert!(guests.all.len() == all.len() - 1 && guests.take_surplus(all.len()).is_none());
        }
    }

    #[test]
    fn who_has_gone_makes_room() {
        let mut guests = guests(&[(1, false), (2, false)]);
        guests.remove(1);
        assert!(guests.take_surplus(2).is_none());
        assert_eq!(guests.take_surplus(1).map(|guest| guest.number), Some(2));
    }
}
