//! The experiment `tls`: what clients and contenders agree on, and the amounts. Upstreams are
//! plain.
//!
//! Read by `cells.rs` and `catalogue.rs`. All contenders have the same certificate, and all
//! connections the same version, suite and group, whatever their libraries would choose: only the
//! program that does the work differs.

use crate::certificate::KeyKind;

/// The only TLS version in use.
pub(crate) const VERSION: &str = "1.3";
/// The only cipher suite.
pub(crate) const SUITE: &str = "TLS_AES_128_GCM_SHA256";
/// The only group for the key exchange.
pub(crate) const GROUP: &str = "X25519";
/// Connections at a time that do nothing but handshakes, in a flood of them.
pub(crate) const FLOOD_CONNECTIONS: u32 = 64;
/// Established clients beside the flood, and their requests a second.
pub(crate) const BESIDE: (u32, u32) = (64, 1000);
/// Idle connections: each has to be made by a handshake.
pub(crate) const IDLE: u32 = 5000;
/// The same for a quick run.
pub(crate) const IDLE_QUICK: u32 = 1000;

/// How the clients of a cell use TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Secure {
    /// Kind of the certificate's key.
    pub(crate) key: KeyKind,
    /// Connections resume earlier sessions.
    pub(crate) resumes: bool,
}

/// A full handshake for each connection.
pub(crate) const ECDSA: Secure = Secure { key: KeyKind::EcdsaP256, resumes: false };
/// The same with the slower key.
pub(crate) const RSA: Secure = Secure { key: KeyKind::Rsa2048, resumes: false };
/// Handshakes that resume an earlier session.
pub(crate) const RESUMED: Secure = Secure { key: KeyKind::EcdsaP256, resumes: true };
