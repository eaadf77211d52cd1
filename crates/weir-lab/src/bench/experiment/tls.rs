//! The experiment `tls`: what clients and contenders agree on, and how much there is of it. Upstreams are plain.
//!
//! Read by `cells.rs` and `catalogue.rs`. All contenders have the same certificate, and all connections the same version, suite and group, whatever
//! their libraries would choose: what differs is who does the same work.

use crate::certificate::KeyKind;

/// The only version that is spoken.
pub(crate) const VERSION: &str = "1.3";
/// The only cipher suite.
pub(crate) const SUITE: &str = "TLS_AES_128_GCM_SHA256";
/// The only group for the key exchange.
pub(crate) const GROUP: &str = "X25519";
/// Connections at a time that do nothing but handshakes, in a flood of them.
pub(crate) const FLOOD_CONNECTIONS: u32 = 64;
/// Established clients beside that, and their requests a second.
pub(crate) const BESIDE: (u32, u32) = (64, 1000);
/// Idle connections: each has to be made by a handshake.
pub(crate) const IDLE: u32 = 5000;
/// The same for those in a hurry.
pub(crate) const IDLE_QUICK: u32 = 1000;

/// How the clients of a cell speak TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Secure {
    /// Of the certificate.
    pub(crate) key: KeyKind,
    /// Connections go on with sessions of earlier ones.
    pub(crate) resumes: bool,
}

/// A full handshake for each connection.
pub(crate) const ECDSA: Secure = Secure { key: KeyKind::EcdsaP256, resumes: false };
/// The same with the slower key.
pub(crate) const RSA: Secure = Secure { key: KeyKind::Rsa2048, resumes: false };
/// Handshakes that go on with an earlier session.
pub(crate) const RESUMED: Secure = Secure { key: KeyKind::EcdsaP256, resumes: true };
