//! How the tools of the laboratory use TLS as clients: which certificates they trust, what they
//! offer, and whether they resume sessions.
//!
//! Called by `weir bomb` and `weir probe` before anything is sent, and by the threads of the
//! generator for each connection. A client offers `http/1.1`, or `h2` alone (RFC 7301), and the
//! name of the URL when it is not an address (RFC 6066 §3). Bound: [`TICKETS_MAX`] sessions kept.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::client::{
    ClientConfig, ClientConnection, ClientSessionStore, Resumption, Tls12ClientSessionValue,
    Tls13ClientSessionValue,
};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{ALL_CIPHER_SUITES, ALL_KX_GROUPS};
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{NamedGroup, SupportedProtocolVersion};
pub use weir_tls::Trust;
use weir_tls::{Cipher, Roots};

/// Sessions that are kept to be resumed. TLS 1.3 uses each once, and servers give one or two for
/// each connection.
pub const TICKETS_MAX: usize = 8192;

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// What a client offers and accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wishes {
    /// The accepted certificates, which have to be for the name in the URL; or all certificates.
    pub trust: Trust,
    /// The only version that is offered; None: 1.3 and 1.2.
    pub version: Option<Version>,
    /// The only cipher suite, by its name in IANA's registry; None: all supported ones.
    pub suite: Option<String>,
    /// The only group for the key exchange, by its name in IANA's registry; None: all supported
    /// ones.
    pub group: Option<String>,
    /// Sessions are resumed where the server has given a ticket.
    pub resume: bool,
    /// HTTP/2 is the only offer; else HTTP/1.1 is.
    pub http2: bool,
}

impl Default for Wishes {
    /// Returns everything supported, with the system's trusted certificates.
    fn default() -> Wishes {
        Wishes {
            trust: Trust::System,
            version: None,
            suite: None,
            group: None,
            resume: false,
            http2: false,
        }
    }
}

/// Wishes that the library can fulfil.
#[derive(Debug, Clone)]
pub struct Client {
    config: Arc<ClientConfig>,
    resume: bool,
}

/// Returns the names of the supported cipher suites.
pub fn suites() -> Vec<String> {
    ALL_CIPHER_SUITES.iter().map(|suite| suite_name(suite.suite().as_str())).collect()
}

/// Returns the names of the supported groups.
pub fn groups() -> Vec<String> {
    ALL_KX_GROUPS.iter().map(|group| group_name(group.name())).collect()
}

/// The library uses different names for those of TLS 1.3.
fn suite_name(of_library: Option<&str>) -> String {
    of_library.unwrap_or_default().replace("TLS13_", "TLS_")
}

fn group_name(group: NamedGroup) -> String {
    group.as_str().unwrap_or_default().to_owned()
}

impl Client {
    /// Makes the client that these wishes describe.
    ///
    /// # Errors
    /// A suite or group that doesn't exist or doesn't match the version, a file without
    /// certificates; in one line.
    pub fn new(wishes: &Wishes) -> Result<Client, String> {
        let provider = Arc::new(provider(wishes)?);
        let versions: &[&SupportedProtocolVersion] = match wishes.version {
            None => &[&TLS13, &TLS12],
            Some(Version::Tls12) => &[&TLS12],
            Some(Version::Tls13) => &[&TLS13],
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions);
        let builder = builder.map_err(|_| {
            let (suite, group) = (wishes.suite.as_deref(), wishes.group.as_deref());
            let asked: Vec<&str> = [suite, group].into_iter().flatten().collect();
            format!("{} does not work with that version of TLS", asked.join(" with "))
        })?;
        let roots = Roots::read(&wishes.trust).and_then(|roots| roots.verifier(&provider));
        let verifier = roots.map_err(|bad| match wishes.trust {
            Trust::System => format!("{bad}; use --cacert FILE or --insecure instead"),
            _ => bad.to_string(),
        })?;
        let mut config =
            builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        config.alpn_protocols =
            vec![if wishes.http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        config.resumption = Resumption::disabled();
        // The first random bytes of a process take tens of milliseconds, which must not count for a
        // handshake.
        let mut first = [0; 1];
        provider
            .secure_random
            .fill(&mut first)
            .map_err(|_| "the system has no random numbers".to_owned())?;
        Ok(Client { config: Arc::new(config), resume: wishes.resume })
    }

    /// Returns a configuration with a separate store of sessions.
    fn config(&self) -> Arc<ClientConfig> {
        if !self.resume {
            return Arc::clone(&self.config);
        }
        let mut config = ClientConfig::clone(&self.config);
        config.resumption = Resumption::store(Arc::new(Tickets::default()));
        Arc::new(config)
    }
}

/// A client with the server that it connects to.
#[derive(Debug, Clone)]
pub struct Caller {
    client: Client,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Caller {
    /// Makes a caller with a separate store of sessions; `host` is that of a URL: a name, or an
    /// address without brackets.
    ///
    /// # Errors
    /// No certificate can have that name, in one line.
    pub fn new(client: &Client, host: &str) -> Result<Caller, String> {
        Ok(Caller { client: client.clone(), config: client.config(), name: server_name(host)? })
    }

    /// Returns the same with a separate store of sessions, for another thread.
    pub(crate) fn fork(&self) -> Caller {
        Caller {
            client: self.client.clone(),
            config: self.client.config(),
            name: self.name.clone(),
        }
    }

    /// The client's end of a new connection, for a driver.
    pub(crate) fn cipher(&self) -> Box<dyn Cipher> {
        weir_tls::client_end(Arc::clone(&self.config), self.name.clone())
    }

    /// The client's end of a new connection.
    ///
    /// # Errors
    /// The library can't make one.
    pub(crate) fn connection(&self) -> io::Result<ClientConnection> {
        ClientConnection::new(Arc::clone(&self.config), self.name.clone()).map_err(io::Error::other)
    }
}

/// Returns the name that a certificate has to have, for a host in a URL: a name, or an address
/// without brackets.
///
/// # Errors
/// It is neither, in one line.
fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned())
        .map_err(|_| format!("`{host}` is a name that no certificate can have"))
}

/// Returns the wanted part of what is supported.
fn provider(wishes: &Wishes) -> Result<CryptoProvider, String> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    if let Some(wanted) = &wishes.suite {
        provider.cipher_suites = ALL_CIPHER_SUITES
            .iter()
            .copied()
            .filter(|suite| suite_name(suite.suite().as_str()).eq_ignore_ascii_case(wanted))
            .collect();
        if provider.cipher_suites.is_empty() {
            return Err(format!("unknown cipher suite `{wanted}`; known: {}", suites().join(", ")));
        }
    }
    if let Some(wanted) = &wishes.group {
        provider.kx_groups = ALL_KX_GROUPS
            .iter()
            .copied()
            .filter(|group| group_name(group.name()).eq_ignore_ascii_case(wanted))
            .collect();
        if provider.kx_groups.is_empty() {
            return Err(format!("unknown group `{wanted}`; known: {}", groups().join(", ")));
        }
    }
    Ok(provider)
}

/// Sessions with one server. The library's own store keeps eight, which is too few for many
/// connections at a time.
#[derive(Default)]
struct Tickets(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// The group that the server accepted last.
    group: Option<NamedGroup>,
    /// Session of TLS 1.2; it may be used again and again.
    session: Option<Tls12ClientSessionValue>,
    /// Tickets of TLS 1.3, the oldest first; each is used once.
    tickets: VecDeque<Tls13ClientSessionValue>,
}

impl Tickets {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets")
            .field("tickets", &self.kept().tickets.len())
            .finish_non_exhaustive()
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.kept().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.kept().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.kept().session = Some(session);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.kept().session.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.kept().session = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let mut kept = self.kept();
        if kept.tickets.len() == TICKETS_MAX {
            kept.tickets.pop_front();
        }
        kept.tickets.push_back(ticket);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.kept().tickets.pop_back()
    }
}

#[cfg(test)]
mod tests;
