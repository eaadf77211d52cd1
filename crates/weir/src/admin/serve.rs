//! HTTP of the control thread: accepts, reads one request, writes one answer, closes.
//!
//! Called by `admin`; what is answered is `routes`. Whoever connects can cost little: [`CONNECTIONS_MAX`] at a time for
//! each listener, a head of [`HEAD_BYTES_MAX`], [`EXCHANGE_MAX`] from accept to close. One request a connection makes that
//! bound simple, and a scraper once in 15 s does not mind.

use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

use super::routes::{Answer, Body};

/// Connections of one listener at a time; further ones wait in the kernel's queue.
pub(crate) const CONNECTIONS_MAX: usize = 64;
/// Longest head; over it 431.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Most fields; over it 431.
const FIELDS_MAX: usize = 64;
/// From accept to close.
const EXCHANGE_MAX: Duration = Duration::from_secs(10);
/// For the whole head to arrive.
const HEAD_MAX: Duration = Duration::from_secs(5);
/// Pause after a failed accept: it fails for want of descriptors, and would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers a request; the path may hold anything.
pub(crate) type Respond = dyn Fn(&Request<Incoming>) -> Answer;

/// Whatever connections come from.
pub(crate) trait Accept {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// The next one.
    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>>;
}

impl Accept for tokio::net::UnixListener {
    type Stream = tokio::net::UnixStream;

    async fn next(&self) -> io::Result<tokio::net::UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Accept for tokio::net::TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn next(&self) -> io::Result<tokio::net::TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// Serves for ever. Call it inside a `LocalSet`.
pub(crate) async fn serve(listener: impl Accept, respond: Rc<Respond>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Never closed, so this always gives a place.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.next().await {
            Ok(stream) => {
                let respond = Rc::clone(&respond);
                tokio::task::spawn_local(async move {
                    // What a client does wrong ends its connection and concerns nobody else.
                    let _ = tokio::time::timeout(EXCHANGE_MAX, exchange(stream, respond.as_ref())).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn exchange(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, respond: &Respond) -> hyper::Result<()> {
    let service = service_fn(|request| async move { Ok::<Response<Body>, Infallible>(respond(&request)) });
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
