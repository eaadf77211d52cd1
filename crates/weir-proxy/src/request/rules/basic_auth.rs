//! `users` of a route: the users that may use it, by name and password (RFC 7617).
//!
//! Compiled by weir-config, held by the rules of the route. Credentials are verified outside the
//! workers (`client/visitors.rs`); here are the challenge and the fate of the field.
//! docs/basic-auth.md.

use std::path::Path;
use std::sync::Arc;

use crate::forward::credentials::challenge;

/// The users of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasicAuth {
    /// The file with their names and hashed passwords, as `weir passwd` writes it.
    pub users: Arc<Path>,
    /// The realm of the challenge (RFC 9110 §11.5). Default `weir`.
    pub realm: Box<str>,
    /// Whether Authorization is forwarded to the server unchanged. Default: it is removed.
    pub passes_on: bool,
}

impl BasicAuth {
    /// The value of WWW-Authenticate (RFC 9110 §11.6.1).
    pub(crate) fn challenge(&self) -> String {
        challenge(&self.realm)
    }
}
