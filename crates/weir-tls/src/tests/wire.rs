//! Both ends of a connection in memory: a client of rustls, and the cipher of a server, with each byte between them in our hands.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WantsClientCert};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, DigitallySignedStruct, Error, SignatureScheme,
    SupportedProtocolVersion,
};

use crate::cipher::{Cipher, Failure, RECORD_BYTES_MAX, Seal, State};
use crate::clients::ClientTrust;
use crate::pairs::Pair;
use crate::terms::{Materials, Terms, Wanted, provider};
use crate::tickets::TicketKeys;

/// Takes every certificate that was signed in one of these ways.
#[derive(Debug)]
struct Anybody(Vec<SignatureScheme>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

pub(super) const RSA: SignatureScheme = SignatureScheme::RSA_PSS_SHA256;
pub(super) const ECDSA: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;

fn builder(
    versions: &[&'static SupportedProtocolVersion],
    schemes: &[SignatureScheme],
) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(schemes.to_vec())))
}

/// A client that can check these signatures.
pub(super) fn client_config(
    versions: &[&'static SupportedProtocolVersion],
    schemes: &[SignatureScheme],
) -> ClientConfig {
    builder(versions, schemes).with_no_client_auth()
}

/// A client that shows this certificate to whoever asks, whatever names of CAs it is told.
pub(super) fn client_with(version: &'static SupportedProtocolVersion, pair: &Pair) -> Arc<ClientConfig> {
    Arc::new(builder(&[version], &[ECDSA, RSA]).with_client_cert_resolver(Arc::new(Shown(Arc::clone(&pair.key)))))
}

#[derive(Debug)]
struct Shown(Arc<CertifiedKey>);

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

pub(super) fn any_client(versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
    Arc::new(client_config(versions, &[ECDSA, RSA]))
}

pub(super) fn wanted() -> Wanted {
    Wanted {
        files: Vec::new(),
        only_tls13: false,
        strict_names: false,
        tickets: true,
        clients: None,
        ticket_keys: None,
        port: 443,
        http1: true,
        http2: false,
    }
}

pub(super) fn terms(pairs: &[Pair], change: impl FnOnce(&mut Wanted)) -> Terms {
    let mut wanted = wanted();
    change(&mut wanted);
    let clients = wanted.clients.as_ref().map(|wanted| ClientTrust::read(wanted, &provider()).unwrap());
    let keys = wanted.ticket_keys.as_ref().map(|path| TicketKeys::read(path).unwrap());
    let materials = Materials { pairs, clients: clients.as_ref(), ticket_keys: keys.as_ref() };
    Terms::new(wanted, materials, provider()).unwrap()
}

/// A connection in memory.
pub(super) struct Wire {
    pub(super) client: ClientConnection,
    pub(super) server: Box<dyn Cipher>,
    /// Bytes that the server has received and not used.
    rest: Vec<u8>,
    pub(super) state: Result<State, Failure>,
    /// Plain bytes that the server got.
    pub(super) got: Vec<u8>,
    /// Plain bytes that the client got.
    read: Vec<u8>,
    /// Bytes from the server that the client has not seen.
    pub(super) out: Vec<u8>,
}

impl Wire {
    pub(super) fn new(terms: &Terms, config: &Arc<ClientConfig>, name: &str) -> Wire {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let client = ClientConnection::new(Arc::clone(config), name).unwrap();
        let state = Ok(State::Handshaking);
        Wire {
            client,
            server: terms.cipher(),
            rest: Vec::new(),
            state,
            got: Vec::new(),
            read: Vec::new(),
            out: Vec::new(),
        }
    }

    /// What the client has to say.
    pub(super) fn said(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// The server receives these.
    pub(super) fn hear(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let opened = self.server.open(&mut self.rest, &mut self.got, &mut self.out);
        self.rest.drain(..opened.used);
        self.state = opened.state;
    }

    /// Bytes that the server has received and not used.
    pub(super) fn unused(&self) -> usize {
        self.rest.len()
    }

    /// The client receives what the server has said.
    pub(super) fn answer(&mut self) -> Result<(), Error> {
        let bytes = std::mem::take(&mut self.out);
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            self.client.read_tls(&mut bytes).unwrap();
            let state = self.client.process_new_packets()?;
            let from = self.read.len();
            self.read.resize(from + state.plaintext_bytes_to_read(), 0);
            self.client.reader().read_exact(&mut self.read[from..]).unwrap();
        }
        Ok(())
    }

    /// Until both have nothing to say; each flight of the client is heard in pieces as `cut` makes them of its number and length.
    pub(super) fn run_in_pieces(&mut self, mut cut: impl FnMut(usize, usize) -> Vec<usize>) -> Result<(), Error> {
        for flight in 0.. {
            let bytes = self.said();
            let mut from = 0;
            for to in cut(flight, bytes.len()).into_iter().chain([bytes.len()]) {
                self.hear(&bytes[from..to]);
                from = to;
            }
            if bytes.is_empty() && self.out.is_empty() {
                break;
            }
            self.answer()?;
        }
        Ok(())
    }

    pub(super) fn run(&mut self) -> Result<(), Error> {
        self.run_in_pieces(|_, _| Vec::new())
    }

    /// The server sends these.
    pub(super) fn send(&mut self, parts: &[&[u8]]) {
        self.send_in(parts, RECORD_BYTES_MAX);
    }

    /// The same in records that hold at most so many bytes.
    pub(super) fn send_in(&mut self, parts: &[&[u8]], record_max: usize) {
        self.server.seal(&mut self.rest, parts, record_max, &mut self.out).unwrap();
    }

    pub(super) fn close(&mut self) {
        self.server.close(&mut self.rest, &mut self.out);
    }

    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.client.writer().write_all(bytes).unwrap();
    }

    /// Plain bytes that the client has got, and whether the end was said.
    pub(super) fn read(&mut self) -> (Vec<u8>, bool) {
        let ended = self.client.reader().read(&mut [0]).is_ok_and(|count| count == 0);
        (std::mem::take(&mut self.read), ended)
    }
}
