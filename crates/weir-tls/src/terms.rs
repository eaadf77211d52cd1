//! How the clients of a listener speak TLS: versions, certificates, tickets. Workers read it for
//! each handshake; it is replaced as a whole when certificates have changed, without effect on
//! existing connections.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::version::{TLS12, TLS13};

use crate::cipher::{Cipher, Seal};
use crate::clients::{ClientTrust, WantedOfClients};
use crate::names::Names;
use crate::pairs::{BadPair, Files, Pair};
use crate::rustls23::Rustls23;
use crate::tickets::{Place, TicketKeys};

/// The name of HTTP/2 (RFC 9113 §3.1).
pub(crate) const HTTP2: &[u8] = b"h2";

/// The configuration of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its certificates; at least one. The first is for clients that ask for none of their names.
    pub files: Vec<Files>,
    /// TLS 1.3 only; otherwise 1.2 as well.
    pub only_tls13: bool,
    /// Clients that ask for none of the names, or for no name, are rejected.
    pub strict_names: bool,
    /// Clients may resume sessions for 12 hours. Those that show certificates never do: a resumed
    /// session would continue with a certificate that has expired or was revoked meanwhile.
    pub tickets: bool,
    /// They may speak HTTP/1.1.
    pub http1: bool,
    /// They may speak HTTP/2, and do if they can (RFC 7301 §3.2).
    pub http2: bool,
    /// Whether clients show certificates; None: weir does not ask for them.
    pub clients: Option<WantedOfClients>,
    /// A file with the keys of tickets, shared by several weir hosts; None: keys of this process
    /// alone, new every 6 hours.
    pub ticket_keys: Option<PathBuf>,
    /// The port of the listener: with keys from a file, a session is resumed only at the same port.
    pub port: u16,
    /// The kind of service for its clients, as a word: with keys from a file, a session is resumed
    /// only where that is the same.
    pub role: &'static str,
}

/// The content of the files of a listener.
#[derive(Debug, Clone, Copy)]
pub struct Materials<'a> {
    /// Its certificates.
    pub pairs: &'a [Pair],
    /// What clients are verified against; only if they are verified.
    pub clients: Option<&'a ClientTrust>,
    /// Keys of tickets; only if they come from a file.
    pub ticket_keys: Option<&'a TicketKeys>,
}

impl<'a> Materials<'a> {
    /// Certificates, and nothing else.
    pub fn of(pairs: &'a [Pair]) -> Materials<'a> {
        Materials { pairs, clients: None, ticket_keys: None }
    }
}

impl Wanted {
    /// One certificate, and everything else by default.
    pub fn of(files: Files) -> Wanted {
        Wanted {
            files: vec![files],
            only_tls13: false,
            strict_names: false,
            tickets: true,
            clients: None,
            ticket_keys: None,
            port: 0,
            role: "",
            http1: true,
            http2: false,
        }
    }

    fn resumes(&self) -> bool {
        self.tickets && self.clients.is_none()
    }
}

/// The settings for the clients of a listener.
pub struct Terms {
    wanted: Wanted,
    provider: Arc<CryptoProvider>,
    /// For this listener alone: its tickets mean nothing to other listeners. None: tickets are off,
    /// or a file has the keys.
    tickets: Option<Arc<dyn ProducesTickets>>,
    /// Locked only while the pointer is copied.
    now: RwLock<Arc<ServerConfig>>,
}

impl fmt::Debug for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terms").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

/// The cryptography of the product.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

impl Terms {
    /// With the content of the files that `wanted` names.
    ///
    /// # Errors
    /// The system has no randomness; the library rejects the configuration.
    pub fn new(
        wanted: Wanted,
        materials: Materials<'_>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Terms, BadPair> {
        let tickets = if wanted.resumes() && wanted.ticket_keys.is_none() {
            Some(Ticketer::new().map_err(|error| BadPair::of(&error))?)
        } else {
            None
        };
        let config = configure(&wanted, materials, &provider, tickets.as_ref())?;
        Ok(Terms { wanted, provider, tickets, now: RwLock::new(config) })
    }

    /// Applies these from the next handshake on. Tickets remain valid as long as their key is still
    /// there.
    ///
    /// # Errors
    /// The library rejects the configuration: everything remains as it is.
    pub fn renew(&self, materials: Materials<'_>) -> Result<(), BadPair> {
        let config = configure(&self.wanted, materials, &self.provider, self.tickets.as_ref())?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// The configuration.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }
}

fn configure(
    wanted: &Wanted,
    materials: Materials<'_>,
    provider: &Arc<CryptoProvider>,
    tickets: Option<&Arc<dyn ProducesTickets>>,
) -> Result<Arc<ServerConfig>, BadPair> {
    let versions = if wanted.only_tls13 { vec![&TLS13] } else { vec![&TLS13, &TLS12] };
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider));
    let builder = builder.with_protocol_versions(&versions).map_err(|error| BadPair::of(&error))?;
    let names = Names::new(materials.pairs, wanted.strict_names);
    let builder = match (&wanted.clients, materials.clients) {
        (None, _) => builder.with_no_client_auth(),
        (Some(_), Some(trust)) => builder.with_client_cert_verifier(Arc::clone(&trust.verifier)),
        // No client may get in for that reason.
        (Some(_), None) => {
            return Err(BadPair::new("there is nothing to judge clients by".to_owned()));
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(names));
    let protocols = [(wanted.http2, HTTP2), (wanted.http1, b"http/1.1")];
    config.alpn_protocols =
        protocols.into_iter().filter(|(may, _)| *may).map(|(_, name)| name.to_vec()).collect();
    // Sessions are kept in tickets, not in a table behind a lock.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    match (tickets, materials.ticket_keys) {
        (Some(tickets), _) => config.ticketer = Arc::clone(tickets),
        (None, Some(keys)) if wanted.resumes() => {
            config.ticketer = keys.ring(&place(wanted, materials.pairs))?
        }
        _ => config.send_tls13_tickets = 0,
    }
    Ok(Arc::new(config))
}

/// The properties of a listener that its tickets depend on.
fn place<'a>(wanted: &'a Wanted, pairs: &[Pair]) -> Place<'a> {
    let names = pairs.iter().flat_map(|pair| pair.names.iter().map(ToString::to_string)).collect();
    let Wanted { port, role, only_tls13, strict_names, .. } = wanted;
    Place { port: *port, role, names, only_tls13: *only_tls13, strict_names: *strict_names }
}

impl Seal for Terms {
    fn cipher(&self) -> Box<dyn Cipher> {
        Box::new(Rustls23::server(Arc::clone(
            &self.now.read().unwrap_or_else(PoisonError::into_inner),
        )))
    }
}
