//! TLS servers for tests: CAs and certificates made by `openssl`, and a front that adds TLS to
//! every server of the kit.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};

use super::tls::{Files, cross};
use super::{Scratch, bounded, eventually, run};

fn openssl(arguments: &[&str]) {
    let output = run("openssl", arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a CA of this name.
pub fn ca(scratch: &Scratch, name: &str) -> Files {
    let [certificate, key] = ["pem", "key"].map(|end| scratch.path(&format!("{name}.{end}")));
    let text = |path: &std::path::Path| path.display().to_string();
    let new = [
        "req",
        "-x509",
        "-nodes",
        "-days",
        "9",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-subj",
    ];
    openssl(
        &[&new[..], &[&format!("/CN={name}"), "-keyout", &text(&key), "-out", &text(&certificate)]]
            .concat(),
    );
    Files { certificate, key }
}

/// Makes a self-signed certificate, as `openssl req` does with these arguments, which may name
/// another kind of key.
pub fn self_signed(scratch: &Scratch, stem: &str, arguments: &[&str]) -> Files {
    let [certificate, key] = ["pem", "key"].map(|end| scratch.path(&format!("{stem}.{end}")));
    let text = |path: &std::path::Path| path.display().to_string();
    let usual = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"];
    let kind = if arguments.contains(&"-newkey") { &[][..] } else { &usual };
    let subject = format!("/CN={stem}");
    let new = ["req", "-x509", "-nodes", "-days", "9", "-subj", &subject];
    let files = ["-keyout", &text(&key), "-out", &text(&certificate)];
    openssl(&[&new[..], kind, arguments, &files].concat());
    Files { certificate, key }
}

/// Makes a certificate signed by a CA, for these names (`DNS:a.test,IP:127.0.0.1`) and this many
/// days. Below 0 it has expired.
pub fn signed(scratch: &Scratch, ca: &Files, stem: &str, names: &str, days: i32) -> Files {
    let path = |end: &str| scratch.path(&format!("{stem}.{end}"));
    let [certificate, key, request] = ["pem", "key", "csr"].map(path);
    let text = |path: &std::path::Path| path.display().to_string();
    let extensions =
        scratch.write(&format!("{stem}.ext"), format!("subjectAltName={names}\n").as_bytes());
    let new = [
        "req",
        "-new",
        "-nodes",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-subj",
        "/CN=leaf",
    ];
    openssl(&[&new[..], &["-keyout", &text(&key), "-out", &text(&request)]].concat());
    let (days, ca_text, ca_key) = (days.to_string(), text(&ca.certificate), text(&ca.key));
    let sign =
        ["x509", "-req", "-CAcreateserial", "-days", &days, "-CA", &ca_text, "-CAkey", &ca_key];
    let files =
        ["-in", &text(&request), "-out", &text(&certificate), "-extfile", &text(&extensions)];
    openssl(&[&sign[..], &files].concat());
    Files { certificate, key }
}

/// Makes a revocation list of a CA with these certificates in it.
pub fn list(scratch: &Scratch, ca: &Files, stem: &str, revoked: &[&Files]) -> PathBuf {
    let of = |end: &str, text: &str| {
        scratch.write(&format!("{stem}.{end}"), text.as_bytes()).display().to_string()
    };
    let (index, number) = (of("index", ""), of("number", "01\n"));
    let extensions = "crl_extensions=e\n[e]\nauthorityKeyIdentifier=keyid\n";
    let text = format!(
        "[ca]\ndefault_ca=a\n[a]\ndatabase={index}\ncrlnumber={number}\ndefault_md=sha256\n\
            {extensions}"
    );
    let config = of("conf", &text);
    let out = scratch.path(&format!("{stem}.crl"));
    let text = |path: &std::path::Path| path.display().to_string();
    let (certificate, key) = (text(&ca.certificate), text(&ca.key));
    let by = ["ca", "-config", &config, "-cert", &certificate, "-keyfile", &key];
    for files in revoked {
        openssl(&[&by[..], &["-revoke", &text(&files.certificate)]].concat());
    }
    openssl(&[&by[..], &["-gencrl", "-crldays", "9", "-out", &text(&out)]].concat());
    out
}

/// Makes an OCSP response of a CA, valid for a day, about a certificate that it knows.
pub fn response(scratch: &Scratch, ca: &Files, about: &Files, stem: &str) -> PathBuf {
    let text = |path: &std::path::Path| path.display().to_string();
    let (certificate, out) = (text(&about.certificate), scratch.path(stem));
    let output = run("openssl", &["x509", "-noout", "-serial", "-in", &certificate]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let serial = said.trim().trim_start_matches("serial=");
    let row = format!("V\t990101000000Z\t\t{serial}\tunknown\t/CN=leaf\n");
    let index = text(&scratch.write(&format!("{stem}.index"), row.as_bytes()));
    let (by, key, path) = (text(&ca.certificate), text(&ca.key), text(&out));
    let of_ca = ["-CA", &by, "-rsigner", &by, "-rkey", &key, "-issuer", &by];
    openssl(
        &[
            &["ocsp", "-ndays", "1", "-index", &index],
            &of_ca[..],
            &["-cert", &certificate, "-respout", &path],
        ]
        .concat(),
    );
    out
}

/// Returns a server configuration with this certificate. With `clients` it requires a certificate
/// signed by this CA.
pub fn serving(files: &Files, clients: Option<&Files>) -> Arc<ServerConfig> {
    let certificates = |files: &Files| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_file_iter(&files.certificate)
            .expect("a file")
            .map(|one| one.expect("PEM"))
            .collect()
    };
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder =
        builder.with_safe_default_protocol_versions().expect("versions that the provider has");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            roots.add(certificates(ca)[0].clone()).expect("a CA");
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.expect("a verifier"))
        }
    };
    let key = PrivateKeyDer::from_pem_file(&files.key).expect("a key");
    Arc::new(builder.with_single_cert(certificates(files), key).expect("they fit"))
}

/// Terminates TLS in front of a server.
pub struct Front {
    /// Where it listens.
    pub address: SocketAddr,
    config: Arc<Mutex<Arc<ServerConfig>>>,
    names: Arc<Mutex<Vec<Option<String>>>>,
}

impl Front {
    /// Starts a front of `to`.
    pub fn start(to: SocketAddr, config: Arc<ServerConfig>) -> Front {
        Front::start_as(to, config, true)
    }

    /// Starts a front that never announces the end of its data (close_notify).
    pub fn start_mute(to: SocketAddr, config: Arc<ServerConfig>) -> Front {
        Front::start_as(to, config, false)
    }

    fn start_as(to: SocketAddr, config: Arc<ServerConfig>, says_so: bool) -> Front {
        let listener = TcpListener::bind(("127.0.0.1", super::free_port())).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (config, names) = (Arc::new(Mutex::new(config)), Arc::<Mutex<Vec<_>>>::default());
        let front = Front { address, config: Arc::clone(&config), names: Arc::clone(&names) };
        std::thread::spawn(move || {
            for far in listener.incoming().flatten() {
                let config = Arc::clone(&config.lock().expect("no panic"));
                let names = Arc::clone(&names);
                std::thread::spawn(move || {
                    if serve(&far, to, config, &names, says_so).is_err() {
                        let _ = socket2::SockRef::from(&far).set_linger(Some(Duration::ZERO));
                    }
                });
            }
        });
        front
    }

    /// Uses this configuration for new connections from now on.
    pub fn set(&self, config: Arc<ServerConfig>) {
        *self.config.lock().expect("no panic") = config;
    }

    /// Returns the server names of complete handshakes.
    pub fn names(&self) -> Vec<Option<String>> {
        self.names.lock().expect("no panic").clone()
    }

    /// Waits for this many complete handshakes.
    pub fn wait(&self, handshakes: usize) {
        eventually("handshakes", || self.names().len() >= handshakes);
    }
}

fn serve(
    mut far: &TcpStream,
    to: SocketAddr,
    config: Arc<ServerConfig>,
    names: &Mutex<Vec<Option<String>>>,
    says_so: bool,
) -> std::io::Result<()> {
    far.set_nodelay(true)?;
    bounded(far);
    let mut tls = ServerConnection::new(config).map_err(std::io::Error::other)?;
    while tls.is_handshaking() {
        if let Err(error) = tls.complete_io(&mut far) {
            // The client gets the alert that says what is wrong.
            let _ = tls.write_tls(&mut far);
            return far.shutdown(std::net::Shutdown::Write).and(Err(error));
        }
    }
    names.lock().expect("no panic").push(tls.server_name().map(str::to_owned));
    let near = TcpStream::connect(to)?;
    cross(&near, far, tls.into(), says_so)
}
