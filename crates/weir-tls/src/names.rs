//! Chooses the certificate for a client, by the name that it asks for (RFC 6066 §3) and the
//! signatures that it can check.
//!
//! A name is looked up as it is, then with its first label replaced by `*`; otherwise the first
//! certificate of the listener is used, or the client is rejected. rustls asks on the thread that
//! works on the handshake and passes the name to no other code. So it is left here for
//! [`crate::rustls23`], which takes it when that call returns.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::SignatureAlgorithm;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::pairs::Pair;

/// The request of a client.
pub(crate) struct Asked {
    /// In lower case.
    pub(crate) name: Option<Box<str>>,
    /// No certificate has that name.
    pub(crate) is_refused: bool,
}

thread_local! {
    static ASKED: RefCell<Option<Asked>> = const { RefCell::new(None) };
}

/// The request of the last client hello on this thread, once.
pub(crate) fn take_asked() -> Option<Asked> {
    ASKED.with_borrow_mut(Option::take)
}

/// The keys of one name, of different kinds.
type Keys = Vec<Arc<CertifiedKey>>;

/// The certificates of a listener.
#[derive(Debug)]
pub(crate) struct Names {
    /// By name in lower case; a wildcard with its `*`.
    by_name: BTreeMap<Box<str>, Keys>,
    /// Those for the first certificate's names, or only that certificate.
    first: Keys,
    is_strict: bool,
}

impl Names {
    /// For these certificates, of which the first is for clients that ask for none of the names. If
    /// two have the same name and kind of key, the first counts.
    pub(crate) fn new(pairs: &[Pair], is_strict: bool) -> Names {
        let mut by_name: BTreeMap<Box<str>, Keys> = BTreeMap::new();
        for pair in pairs {
            for name in &pair.names {
                add(by_name.entry(name.clone()).or_default(), &pair.key);
            }
        }
        let mut first = Vec::new();
        for pair in pairs.iter().filter(|pair| pair.names == pairs[0].names) {
            add(&mut first, &pair.key);
        }
        Names { by_name, first, is_strict }
    }

    fn of(&self, name: Option<&str>) -> Option<&Keys> {
        let exact = name.and_then(|name| self.by_name.get(name));
        let wild = || {
            let (_, parent) = name?.split_once('.')?;
            self.by_name.get(format!("*.{parent}").as_str())
        };
        exact.or_else(wild).or((!self.is_strict).then_some(&self.first))
    }
}

/// Keys with faster signatures come first.
fn add(keys: &mut Keys, key: &Arc<CertifiedKey>) {
    let rank = |key: &CertifiedKey| match key.key.algorithm() {
        SignatureAlgorithm::ECDSA => 0,
        SignatureAlgorithm::ED25519 => 1,
        _ => 2,
    };
    if !keys.iter().any(|known| known.key.algorithm() == key.key.algorithm()) {
        keys.push(Arc::clone(key));
        keys.sort_by_key(|key| rank(key));
    }
}

impl ResolvesServerCert for Names {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name: Option<Box<str>> =
            hello.server_name().map(|name| name.to_ascii_lowercase().into());
        let keys = self.of(name.as_deref());
        ASKED.set(Some(Asked { name, is_refused: keys.is_none() }));
        let keys = keys?;
        let fits =
            |key: &&Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        // Without a suitable one rustls tells the client.
        keys.iter().find(fits).or(keys.first()).cloned()
    }
}
