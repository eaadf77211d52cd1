//! How the clients of a listener speak TLS: versions, certificates, tickets. Read by workers for each handshake, and exchanged as a whole
//! when certificates have changed; connections that exist keep what they have.

use std::fmt;
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

/// What is configured for a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Its certificates; at least one. The first is for clients that ask for none of their names.
    pub files: Vec<Files>,
    /// TLS 1.3 only; else 1.2, too.
    pub only_tls13: bool,
    /// Clients that ask for none of the names, or for no name, are refused.
    pub strict_names: bool,
    /// Clients may resume sessions for 12 hours. Those that show certificates never do: a session that is resumed would go on with a
    /// certificate that has expired or was revoked meanwhile.
    pub tickets: bool,
    /// Whether clients show certificates; None: they are not asked.
    pub clients: Option<WantedOfClients>,
}

impl Wanted {
    /// One certificate, and everything else by default.
    pub fn of(files: Files) -> Wanted {
        Wanted { files: vec![files], only_tls13: false, strict_names: false, tickets: true, clients: None }
    }

    fn resumes(&self) -> bool {
        self.tickets && self.clients.is_none()
    }
}

/// What the clients of a listener get.
pub struct Terms {
    wanted: Wanted,
    provider: Arc<CryptoProvider>,
    /// Of this listener alone: a ticket means nothing to another one.
    tickets: Option<Arc<dyn ProducesTickets>>,
    /// Taken for the time of a copy of the pointer.
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
    /// With these certificates, and this to judge those of clients by, which are what `wanted` names.
    ///
    /// # Errors
    /// The system has no randomness; the library takes no such configuration.
    pub fn new(
        wanted: Wanted,
        pairs: &[Pair],
        clients: Option<&ClientTrust>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Terms, BadPair> {
        let tickets = if wanted.resumes() { Some(Ticketer::new().map_err(|error| BadPair::of(&error))?) } else { None };
        let config = configure(&wanted, pairs, clients, &provider, tickets.as_ref())?;
        Ok(Terms { wanted, provider, tickets, now: RwLock::new(config) })
    }

    /// From the next handshake on with these. Tickets stay good.
    ///
    /// # Errors
    /// The library takes no such configuration: all stays as it is.
    pub fn renew(&self, pairs: &[Pair], clients: Option<&ClientTrust>) -> Result<(), BadPair> {
        let config = configure(&self.wanted, pairs, clients, &self.provider, self.tickets.as_ref())?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// What is configured.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }
}

fn configure(
    wanted: &Wanted,
    pairs: &[Pair],
    clients: Option<&ClientTrust>,
    provider: &Arc<CryptoProvider>,
    tickets: Option<&Arc<dyn ProducesTickets>>,
) -> Result<Arc<ServerConfig>, BadPair> {
    let versions = if wanted.only_tls13 { vec![&TLS13] } else { vec![&TLS13, &TLS12] };
    let builder = ServerConfig::builder_with_provider(Arc::clone(provider));
    let builder = builder.with_protocol_versions(&versions).map_err(|error| BadPair::of(&error))?;
    let names = Names::new(pairs, wanted.strict_names);
    let builder = match (&wanted.clients, clients) {
        (None, _) => builder.with_no_client_auth(),
        (Some(_), Some(trust)) => builder.with_client_cert_verifier(Arc::clone(&trust.verifier)),
        // Nobody may get in for that reason.
        (Some(_), None) => return Err(BadPair::new("there is nothing to judge clients by".to_owned())),
    };
    let mut config = builder.with_cert_resolver(Arc::new(names));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Sessions live in tickets, not in a table behind a lock.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    match tickets {
        Some(tickets) => config.ticketer = Arc::clone(tickets),
        None => config.send_tls13_tickets = 0,
    }
    Ok(Arc::new(config))
}

impl Seal for Terms {
    fn cipher(&self) -> Box<dyn Cipher> {
        Box::new(Rustls23::server(Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))))
    }
}
