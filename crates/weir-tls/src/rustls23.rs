//! [`Cipher`] on rustls 0.23, with its unbuffered interface: an idle connection holds no buffer,
//! and records are opened in place.
//!
//! Both roles share the same code. That interface leaves three things to its caller.
//!
//! Unused bytes must be shown again in *every* call, even when bytes are only to be sealed: rustls
//! keeps positions of incomplete handshake messages, and panics when they are outside of the bytes
//! that it is shown. After an error the alert is in the next call, and only there: with more calls
//! the bad bytes would be examined again. Only the code that chooses the certificate sees the name
//! that a client asks for (SNI): [`crate::names`] leaves it for us.

use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, UnbufferedStatus, WriteTraffic,
};
use rustls::{
    CertificateError, CipherSuite, ClientConfig, CommonState, Error, HandshakeKind,
    ProtocolVersion, ServerConfig,
};

use crate::cipher::{Cipher, Facts, Failure, HANDSHAKE_RECORD, Opened, RECORD_BYTES_MAX, State};
use crate::names;
use crate::terms::HTTP2;

/// Slices shorter than this are put into one record with their neighbours.
const GATHER_BYTES_MAX: usize = 4096;
/// Overhead of a record beside its plaintext: header, explicit nonce (TLS 1.2), content type, tag.
const RECORD_OVERHEAD: usize = 5 + 8 + 1 + 16;
/// First byte of a record that only some middleboxes need (RFC 8446 §5).
const CHANGE_CIPHER_SPEC: u8 = 0x14;
/// Records of a flight that may precede an alert.
const BEFORE_ALERT_MAX: usize = 4;
/// A fatal alert `unrecognized_name` (RFC 6066 §3) in a record that is not encrypted.
const UNRECOGNIZED_NAME: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 112];

/// One end of a connection in rustls: its types for clients and servers do the same, but share no
/// trait.
pub(crate) trait End {
    type Data;

    /// What rustls calls `process_tls_records`.
    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    fn common(&self) -> &CommonState;

    /// The certificate that a client has shown; None at the client's end.
    fn shown(&self) -> Option<&[u8]>;
}

impl End for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        bytes: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, ServerConnectionData> {
        self.process_tls_records(bytes)
    }

    fn common(&self) -> &CommonState {
        self
    }

    fn shown(&self) -> Option<&[u8]> {
        self.peer_certificates()?.first().map(AsRef::as_ref)
    }
}

impl End for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        bytes: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, ClientConnectionData> {
        self.process_tls_records(bytes)
    }

    fn common(&self) -> &CommonState {
        self
    }

    fn shown(&self) -> Option<&[u8]> {
        None
    }
}

/// The server's or the client's end of a connection.
pub(crate) struct Rustls23<E> {
    /// None: it could not be made.
    connection: Option<E>,
    /// The name that the client asked for; None at the client's end.
    name: Option<Box<str>>,
}

/// The client's end of a connection, with the caller's configuration: without early data.
pub fn client_end(config: Arc<ClientConfig>, name: ServerName<'static>) -> Box<dyn Cipher> {
    Box::new(Rustls23::client(config, name))
}

/// The request that one call of rustls returns.
enum Step {
    /// Call again.
    Again,
    /// The other side announced that nothing follows; call again.
    Ended,
    /// Nothing is left to do with these bytes.
    Rest,
    Failed(Error),
}

impl Rustls23<UnbufferedServerConnection> {
    pub(crate) fn server(config: Arc<ServerConfig>) -> Self {
        Rustls23 { connection: UnbufferedServerConnection::new(config).ok(), name: None }
    }
}

impl Rustls23<UnbufferedClientConnection> {
    pub(crate) fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Self {
        Rustls23 { connection: UnbufferedClientConnection::new(config, name).ok(), name: None }
    }
}

impl<E: End> Rustls23<E> {
    /// Appends the alert that follows from an error. If no alert is waiting, the bytes shown are
    /// examined once more; so nothing is shown after the alert.
    fn alert(connection: &mut E, rest: &mut [u8], out: &mut Vec<u8>) {
        for _ in 0..BEFORE_ALERT_MAX {
            let start = out.len();
            let UnbufferedStatus { state: Ok(ConnectionState::EncodeTlsData(mut data)), .. } =
                connection.process(rest)
            else {
                return;
            };
            append(out, |into| data.encode(into));
            if !matches!(out.get(start), Some(&(CHANGE_CIPHER_SPEC | HANDSHAKE_RECORD))) {
                return;
            }
        }
    }

    /// Calls `write` with the means to seal bytes, if the connection is ready for that.
    fn writing(
        &mut self,
        rest: &mut [u8],
        write: impl FnOnce(&mut WriteTraffic<'_, E::Data>, &mut Vec<u8>) -> Result<(), Failure>,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let connection = self.connection.as_mut().ok_or(Failure::Internal)?;
        loop {
            match connection.process(rest).state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    append(out, |into| data.encode(into))
                }
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => {}
                Ok(ConnectionState::WriteTraffic(mut traffic)) => return write(&mut traffic, out),
                _ => return Err(Failure::Internal),
            }
        }
    }
}

/// Does what one call of rustls asks for. Adds to `discard` the further bytes that may be
/// discarded.
fn follow<D>(
    state: ConnectionState<'_, '_, D>,
    plain: &mut Vec<u8>,
    out: &mut Vec<u8>,
    discard: &mut usize,
) -> Step {
    match state {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                match record {
                    Ok(record) => {
                        plain.extend_from_slice(record.payload);
                        *discard += record.discard;
                    }
                    Err(error) => return Step::Failed(error),
                }
            }
            Step::Again
        }
        ConnectionState::EncodeTlsData(mut data) => {
            append(out, |into| data.encode(into));
            Step::Again
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Step::Again
        }
        ConnectionState::PeerClosed => Step::Ended,
        ConnectionState::BlockedHandshake
        | ConnectionState::WriteTraffic(_)
        | ConnectionState::Closed => Step::Rest,
        // Early data is off, so it can't arrive.
        _ => Step::Failed(Error::HandshakeNotComplete),
    }
}

/// Appends the output of a function of rustls; it reports how much room it needs when it has too
/// little.
fn append(out: &mut Vec<u8>, mut write: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>) {
    let start = out.len();
    let mut written = write(&mut []);
    if let Err(EncodeError::InsufficientSize(needed)) = &written {
        out.resize(start + needed.required_size, 0);
        written = write(&mut out[start..]);
    }
    out.truncate(start + written.unwrap_or(0));
}

/// The same for encrypted output: with room that is nearly always enough.
fn encrypt(
    out: &mut Vec<u8>,
    room: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, EncryptError>,
) -> Result<(), Failure> {
    let start = out.len();
    out.resize(start + room, 0);
    let mut written = write(&mut out[start..]);
    if let Err(EncryptError::InsufficientSize(needed)) = &written {
        out.resize(start + needed.required_size, 0);
        written = write(&mut out[start..]);
    }
    out.truncate(start + *written.as_ref().unwrap_or(&0));
    written.map(|_| ()).map_err(|_| Failure::Internal)
}

/// Room for this number of bytes as records.
fn room(bytes: usize) -> usize {
    bytes + (bytes / RECORD_BYTES_MAX + 1) * RECORD_OVERHEAD
}

impl<E: End> Cipher for Rustls23<E> {
    fn open(&mut self, bytes: &mut [u8], plain: &mut Vec<u8>, out: &mut Vec<u8>) -> Opened {
        let Some(connection) = &mut self.connection else {
            return Opened { used: 0, state: Err(Failure::Internal) };
        };
        let (mut used, mut ended, begin) = (0, false, out.len());
        loop {
            let UnbufferedStatus { mut discard, state } = connection.process(&mut bytes[used..]);
            let step = match state {
                Ok(state) => follow(state, plain, out, &mut discard),
                Err(error) => Step::Failed(error),
            };
            used += discard;
            if let Some(asked) = names::take_asked() {
                self.name = asked.name;
                if asked.is_refused {
                    // rustls has its own alert for that, which is less specific.
                    out.truncate(begin);
                    out.extend_from_slice(&UNRECOGNIZED_NAME);
                    return Opened { used, state: Err(Failure::UnknownName) };
                }
            }
            match step {
                Step::Again => {}
                Step::Ended => ended = true,
                Step::Rest => {
                    let state = match (connection.common().is_handshaking(), ended) {
                        (true, true) => Err(Failure::Left),
                        (true, false) => Ok(State::Handshaking),
                        (false, true) => Ok(State::Ended),
                        (false, false) => Ok(State::Open),
                    };
                    return Opened { used, state };
                }
                Step::Failed(error) => {
                    // A side that sent an alert itself gets none.
                    if !matches!(error, Error::AlertReceived(_)) {
                        Self::alert(connection, &mut bytes[used..], out);
                    }
                    return Opened { used, state: Err(failure(&error)) };
                }
            }
        }
    }

    fn seal(
        &mut self,
        rest: &mut [u8],
        parts: &[&[u8]],
        record_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let mut scratch = Vec::new();
        let gathers = parts.len() > 1;
        self.writing(
            rest,
            |traffic, out| {
                let mut seal = |bytes: &[u8]| {
                    encrypt(out, room(bytes.len()), |into| traffic.encrypt(bytes, into))
                };
                for piece in parts.iter().flat_map(|part| part.chunks(record_max)) {
                    let is_short = gathers && piece.len() < GATHER_BYTES_MAX;
                    let fits = is_short && scratch.len() + piece.len() <= record_max;
                    if !scratch.is_empty() && !fits {
                        seal(&scratch)?;
                        scratch.clear();
                    }
                    if is_short {
                        scratch.extend_from_slice(piece);
                    } else {
                        seal(piece)?;
                    }
                }
                if scratch.is_empty() { Ok(()) } else { seal(&scratch) }
            },
            out,
        )
    }

    fn close(&mut self, rest: &mut [u8], out: &mut Vec<u8>) {
        // A broken connection has nothing more to send.
        let _ = self.writing(
            rest,
            |traffic, out| {
                encrypt(out, RECORD_OVERHEAD + 2, |into| traffic.queue_close_notify(into))
            },
            out,
        );
    }

    fn facts(&self) -> Facts {
        let Some(connection) = self.connection.as_ref().map(End::common) else {
            return Facts::default();
        };
        Facts {
            version: match connection.protocol_version() {
                Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
                Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "",
            },
            suite: connection
                .negotiated_cipher_suite()
                .map_or("", |suite| suite_name(suite.suite())),
            name: self.name.clone(),
            resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
            http2: connection.alpn_protocol() == Some(HTTP2),
            certificate: self.connection.as_ref().and_then(End::shown).map(Into::into),
        }
    }

    fn has_worked(&self) -> Option<bool> {
        let connection = self.connection.as_ref()?.common();
        match connection.handshake_kind()? {
            HandshakeKind::Full => Some(true),
            HandshakeKind::Resumed => Some(false),
            // The client is asked for another share first, which costs nothing; then it may still
            // resume.
            HandshakeKind::FullWithHelloRetryRequest => {
                connection.negotiated_key_exchange_group().map(|_| true)
            }
        }
    }
}

/// Its name in IANA's registry.
fn suite_name(suite: CipherSuite) -> &'static str {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        other => other.as_str().unwrap_or_default(),
    }
}

/// Maps an error of rustls to ours.
fn failure(error: &Error) -> Failure {
    match error {
        Error::AlertReceived(_) => Failure::Alert,
        Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Failure::NothingInCommon,
        Error::InappropriateMessage { .. }
        | Error::InappropriateHandshakeMessage { .. }
        | Error::InvalidMessage(_)
        | Error::DecryptError
        | Error::PeerMisbehaved(_)
        | Error::PeerSentOversizedRecord => Failure::Misbehaved,
        Error::InvalidCertificate(why) => certificate_failure(why),
        Error::NoCertificatesPresented => Failure::NoCertificate,
        _ => Failure::Internal,
    }
}

/// Maps what is wrong with a certificate of the other side.
fn certificate_failure(error: &CertificateError) -> Failure {
    match error {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Failure::WrongName
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Failure::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            Failure::NotYetValid
        }
        CertificateError::UnknownIssuer => Failure::UnknownCa,
        CertificateError::Revoked => Failure::Revoked,
        CertificateError::UnknownRevocationStatus
        | CertificateError::ExpiredRevocationList
        | CertificateError::ExpiredRevocationListContext { .. } => Failure::Unlisted,
        // The failures that `known` reports.
        CertificateError::Other(other) => {
            other.0.downcast_ref().copied().unwrap_or(Failure::BadCertificate)
        }
        _ => Failure::BadCertificate,
    }
}
