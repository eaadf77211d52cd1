//! `users` of a route: who may use it, by name and password (RFC 7617).
//!
//! Compiled by weir-config, held by the rules of the route. Whether credentials are good is found out beside the workers
//! (`client/visitors.rs`); here is what is asked for and what becomes of the field. docs/semantics.md §14.

use std::path::Path;
use std::sync::Arc;

use crate::forward::credentials::challenge;

/// Who may use a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasicAuth {
    /// The file with their names and hashed passwords, as `weir passwd` writes it.
    pub users: Arc<Path>,
    /// What the route calls itself when it asks (RFC 9110 §11.5). Default `weir`.
    pub realm: Box<str>,
    /// Authorization goes to the server as it came. Default: it is removed.
    pub passes_on: bool,
}

impl BasicAuth {
    /// What WWW-Authenticate says (RFC 9110 §11.6.1).
    pub(crate) fn challenge(&self) -> String {
        challenge(&self.realm)
    }
}
