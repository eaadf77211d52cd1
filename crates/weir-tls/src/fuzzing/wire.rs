//! Both ends of a connection in memory: a client of rustls, and the cipher of a server. The test
//! controls each byte between them.

use std::io::{Read as _, Write as _};
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, DigitallySignedStruct, Error, SignatureScheme,
    SupportedProtocolVersion,
};

use crate::cipher::{Cipher, Failure, Seal, State};
use crate::terms::{Terms, provider};

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

pub(crate) const RSA: SignatureScheme = SignatureScheme::RSA_PSS_SHA256;
pub(crate) const ECDSA: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;

/// A builder for a client that can check these signatures and trusts every certificate.
pub(crate) fn client_builder(
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
pub(crate) fn client_config(
    versions: &[&'static SupportedProtocolVersion],
    schemes: &[SignatureScheme],
) -> ClientConfig {
    client_builder(versions, schemes).with_no_client_auth()
}

pub(crate) fn any_client(versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
    Arc::new(client_config(versions, &[ECDSA, RSA]))
}

/// A connection in memory.
pub(crate) struct Wire {
    pub(crate) client: ClientConnection,
    pub(crate) server: Box<dyn Cipher>,
    /// Bytes that the server has received and not used.
    pub(crate) rest: Vec<u8>,
    pub(crate) state: Result<State, Failure>,
    /// Plain bytes that the server got.
    pub(crate) got: Vec<u8>,
    /// Plain bytes that the client got.
    pub(crate) read: Vec<u8>,
    /// Bytes from the server that the client has not seen.
    pub(crate) out: Vec<u8>,
}

impl Wire {
    pub(crate) fn new(terms: &Terms, config: &Arc<ClientConfig>, name: &str) -> Wire {
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

    /// Takes the bytes that the client has to send.
    pub(crate) fn said(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// The server receives these.
    pub(crate) fn hear(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let opened = self.server.open(&mut self.rest, &mut self.got, &mut self.out);
        self.rest.drain(..opened.used);
        self.state = opened.state;
    }

    /// Bytes that the server has received and not used.
    pub(crate) fn unused(&self) -> usize {
        self.rest.len()
    }

    /// The client receives the server's bytes.
    pub(crate) fn answer(&mut self) -> Result<(), Error> {
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

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.client.writer().write_all(bytes).unwrap();
    }
}
