//! TLS for tests: certificates made by `openssl`, and a bridge that lets every client of the kit
//! use TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, Error, SignatureScheme,
};

use super::{Scratch, patient, run};

/// A certificate and its key.
#[derive(Debug, Clone)]
pub struct Files {
    /// The chain.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
}

impl Files {
    /// Returns them as a row of `tls`.
    pub fn row(&self) -> String {
        format!("certificate \"{}\" key=\"{}\"\n", self.certificate.display(), self.key.display())
    }

    /// Replaces these files with another certificate, as renewing programs do: one after the other.
    pub fn replace_by(&self, other: &Files) {
        for (from, to) in [(&other.key, &self.key), (&other.certificate, &self.certificate)] {
            let new = to.with_extension("new");
            std::fs::copy(from, &new).expect("a writable directory");
            std::fs::rename(new, to).expect("a writable directory");
        }
    }
}

/// Makes a certificate that is valid for this many days, for 127.0.0.1 and these names, with a key
/// of this kind: `rsa` or `ec`.
pub fn certificate(scratch: &Scratch, kind: &str, names: &[&str], days: i32) -> Files {
    let stem = format!("{kind}-{}-{days}", names.join("-").replace('*', "any"));
    let path = |end: &str| scratch.path(&format!("{stem}.{end}"));
    let [certificate, key, request, extensions] = ["pem", "key", "csr", "ext"].map(path);
    let text = |path: &PathBuf| path.display().to_string();
    let list: String = names.iter().map(|name| format!(",DNS:{name}")).collect();
    scratch
        .write(&format!("{stem}.ext"), format!("subjectAltName=IP:127.0.0.1{list}\n").as_bytes());
    let of_kind: &[&str] = if kind == "rsa" {
        &["-newkey", "rsa:2048"]
    } else {
        &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    };
    let openssl = |arguments: &[&str]| {
        let output = run("openssl", arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let (key_text, request_text) = (text(&key), text(&request));
    let new =
        ["req", "-new", "-nodes", "-subj", "/CN=weir", "-keyout", &key_text, "-out", &request_text];
    openssl(&[&new, of_kind].concat());
    let days = days.to_string();
    let sign =
        ["x509", "-req", "-days", &days, "-in", &request_text, "-signkey", &key_text, "-out"];
    openssl(&[&sign[..], &[&text(&certificate), "-extfile", &text(&extensions)]].concat());
    Files { certificate, key }
}

/// Accepts every certificate: separate tests check them with real programs.
#[derive(Debug)]
struct Anybody;

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
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Returns a client's configuration, before it connects.
pub fn config() -> Arc<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder =
        builder.with_safe_default_protocol_versions().expect("versions that the provider has");
    let mut config = builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

/// Returns the client's end of a connection that asks for this name.
pub fn connection(config: &Arc<ClientConfig>, name: &str) -> ClientConnection {
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    ClientConnection::new(Arc::clone(config), name).expect("a configuration that works")
}

/// Shakes hands. Returns the server's certificate, in DER.
///
/// # Errors
/// What went wrong.
pub fn handshake(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    name: &str,
) -> std::io::Result<Vec<u8>> {
    let mut stream = patient(TcpStream::connect(address)?);
    let mut connection = connection(config, name);
    while connection.is_handshaking() {
        connection.complete_io(&mut stream)?;
    }
    Ok(connection.peer_certificates().expect("a server has one")[0].to_vec())
}

/// Accepts plain connections and makes each a TLS connection to `to`. Returns the address. An
/// orderly end on one side becomes one on the other; an abort becomes a reset.
pub fn bridge(to: SocketAddr) -> SocketAddr {
    bridge_behind(to, Vec::new())
}

/// The same with these bytes in front of each TLS connection.
pub fn bridge_behind(to: SocketAddr, header: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let config = config();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let (connection, header) = (connection(&config, "bridge.test"), header.clone());
            std::thread::spawn(move || {
                let mut far = TcpStream::connect(to).expect("weir accepts");
                far.write_all(&header).expect("weir reads");
                if cross(&near, &far, connection.into(), true).is_err() {
                    // Both ends learn of the abort.
                    for stream in [&near, &far] {
                        let _ = socket2::SockRef::from(stream)
                            .set_linger(Some(std::time::Duration::ZERO));
                    }
                }
            });
        }
    });
    address
}

/// Bytes that wait for a side before more are read for it.
const HELD_MAX: usize = 64 << 10;

/// Moves bytes until both directions have ended. `says_so`: the end of the plain side is announced
/// on the other.
pub(super) fn cross(
    mut near: &TcpStream,
    mut far: &TcpStream,
    mut tls: Connection,
    says_so: bool,
) -> std::io::Result<()> {
    near.set_nonblocking(true)?;
    far.set_nonblocking(true)?;
    let (mut to_near, mut near_ended, mut far_ended, mut told) = (Vec::new(), false, false, false);
    tls.set_buffer_limit(Some(HELD_MAX));
    // Data that came with the end of the handshake.
    let state = tls.process_new_packets().map_err(std::io::Error::other)?;
    to_near.resize(state.plaintext_bytes_to_read(), 0);
    tls.reader().read_exact(&mut to_near)?;
    far_ended |= state.peer_has_closed();
    let mut buffer = vec![0; 16 << 10];
    loop {
        if !near_ended && !tls.is_handshaking() && !tls.wants_write() {
            match near.read(&mut buffer) {
                Ok(0) => {
                    near_ended = true;
                    if !says_so {
                        return far.shutdown(Shutdown::Write);
                    }
                    tls.send_close_notify();
                }
                Ok(count) => tls.writer().write_all(&buffer[..count])?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        while tls.wants_write() {
            match tls.write_tls(&mut far) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if !far_ended && to_near.len() < HELD_MAX {
            match tls.read_tls(&mut far) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {
                    let state = tls.process_new_packets().map_err(std::io::Error::other)?;
                    let from = to_near.len();
                    to_near.resize(from + state.plaintext_bytes_to_read(), 0);
                    tls.reader().read_exact(&mut to_near[from..])?;
                    far_ended = state.peer_has_closed();
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        while !to_near.is_empty() {
            match near.write(&to_near) {
                Ok(count) => drop(to_near.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if far_ended && to_near.is_empty() && !std::mem::replace(&mut told, true) {
            near.shutdown(Shutdown::Write)?;
        }
        if near_ended && told && !tls.wants_write() {
            return Ok(());
        }
        let flags = |read: bool, write: bool| {
            let read = if read { PollFlags::IN } else { PollFlags::empty() };
            read | if write { PollFlags::OUT } else { PollFlags::empty() }
        };
        let reads_near = !near_ended && !tls.is_handshaking() && !tls.wants_write();
        let mut sockets = [
            PollFd::new(near, flags(reads_near, !to_near.is_empty())),
            PollFd::new(far, flags(!far_ended && to_near.len() < HELD_MAX, tls.wants_write())),
        ];
        poll(&mut sockets, None)?;
    }
}
