//! Queries a running weir over its admin socket. Called by `weir status`, `weir server` and
//! `weir ban`.
//!
//! Tries the default places of the socket (`admin::place`), or the given one. Bounds: [`PATIENCE`]
//! for an exchange, [`ANSWER_BYTES_MAX`] for its response.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use crate::admin::document::{Error, VERSION};
use crate::admin::place::candidates;
use crate::failure::Failure;

/// How long weir may take to respond.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest response; thousands of servers are a few megabytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Characters that need no escape in a path.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b':').remove(b'[').remove(b']');

/// The sockets to try.
#[derive(Debug)]
pub(crate) struct Client {
    places: Vec<PathBuf>,
}

/// Why the query failed.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// Nothing runs there, or it cannot be reached.
    Away(String),
    /// weir refused: the message for people.
    Refused(String),
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Failure {
        let (Unanswered::Away(text) | Unanswered::Refused(text)) = unanswered;
        Failure::Running(format!("weir: {text}\n"))
    }
}

/// Returns the path of a server's document.
pub(crate) fn server_path(upstream: &str, server: &str) -> String {
    format!(
        "/v1/servers/{}/{}",
        utf8_percent_encode(upstream, PLAIN),
        utf8_percent_encode(server, PLAIN)
    )
}

/// Returns the path of bans of an address or a range.
pub(crate) fn bans_path(whom: &str) -> String {
    format!("/v1/bans/{}", utf8_percent_encode(whom, PLAIN))
}

/// Escapes a value in a query.
pub(crate) fn value(text: &str) -> impl std::fmt::Display {
    utf8_percent_encode(text, PLAIN)
}

impl Client {
    /// Uses this socket, or else the default places.
    pub(crate) fn new(place: Option<&Path>) -> Client {
        Client { places: place.map_or_else(candidates, |path| vec![path.to_owned()]) }
    }

    /// Gets a document, and its text.
    ///
    /// # Errors
    /// weir does not respond, or refuses, or has another version.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<(T, String), Unanswered> {
        self.exchange(&Method::GET, path)
    }

    /// Sends an order; the response is the state after it.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, Unanswered> {
        self.exchange(&Method::POST, path).map(|(document, _)| document)
    }

    fn exchange<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &str,
    ) -> Result<(T, String), Unanswered> {
        let (place, (status, text)) = self.first_answer(method, path)?;
        let place = place.display();
        if status != StatusCode::OK {
            let error: Error = serde_json::from_str(&text).unwrap_or_default();
            let message = if error.message.is_empty() {
                format!("{place} responds with {status}")
            } else {
                error.message
            };
            return Err(Unanswered::Refused(message));
        }
        let version = serde_json::from_str::<serde_json::Value>(&text)
            .ok()
            .and_then(|value| value["version"].as_u64());
        if version != Some(u64::from(VERSION)) {
            let theirs = version
                .map_or_else(|| "no version".to_owned(), |version| format!("version {version}"));
            return Err(Unanswered::Refused(format!(
                "the weir at {place} uses {theirs} of the status document, this program {VERSION}; \
                    use the program that runs there"
            )));
        }
        let document = serde_json::from_str(&text).map_err(|error| {
            Unanswered::Refused(format!("cannot parse the response of {place}: {error}"))
        })?;
        Ok((document, text))
    }

    /// Returns the first place with a response.
    fn first_answer(
        &self,
        method: &Method,
        path: &str,
    ) -> Result<(&Path, (StatusCode, String)), Unanswered> {
        let mut why = Vec::new();
        for place in &self.places {
            match ask(place, method, path) {
                Ok(answer) => return Ok((place, answer)),
                Err(error) => why.push(format!("{}: {}", place.display(), explain(&error))),
            }
        }
        Err(Unanswered::Away(format!(
            "no running weir found\n  {}\n  help: is it running? Its option `admin` names the \
                socket: --admin PATH, or $WEIR_ADMIN",
            why.join("\n  ")
        )))
    }
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "no such socket".to_owned(),
        ErrorKind::ConnectionRefused => "no process listens there; its weir has ended".to_owned(),
        ErrorKind::PermissionDenied => "belongs to another user; try with sudo".to_owned(),
        ErrorKind::TimedOut => format!("no response within {} s", PATIENCE.as_secs()),
        _ => error.to_string(),
    }
}

fn ask(place: &Path, method: &Method, path: &str) -> io::Result<(StatusCode, String)> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let answer = runtime
        .block_on(async { tokio::time::timeout(PATIENCE, exchange(place, method, path)).await });
    answer.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

async fn exchange(place: &Path, method: &Method, path: &str) -> io::Result<(StatusCode, String)> {
    let stream = tokio::net::UnixStream::connect(place).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let request = Request::builder().method(method).uri(path).header(hyper::header::HOST, "weir");
    let request = request.body(Empty::<Bytes>::new()).map_err(io::Error::other)?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(io::Error::other)?;
        String::from_utf8(body.to_bytes().into())
            .map_err(io::Error::other)
            .map(|text| (status, text))
    };
    // The connection does the work; it ends when the response has arrived.
    let mut connection = std::pin::pin!(connection);
    let mut answer = std::pin::pin!(answer);
    let mut over = false;
    std::future::poll_fn(|context| {
        if !over {
            over = connection.as_mut().poll(context).is_ready();
        }
        answer.as_mut().poll(context)
    })
    .await
}
