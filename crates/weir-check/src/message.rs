//! Messages as the checkers saw them: plain owned data for assertions.

use crate::body::Body;

/// Field lines in the order of the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fields(pub Vec<(String, String)>);

impl Fields {
    /// Values of every field of this name (any case), in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(given, _)| given.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// Value of the first field of this name.
    pub fn first(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// Whether a field of this name is there.
    pub fn has(&self, name: &str) -> bool {
        self.first(name).is_some()
    }
}

/// One request that weir sent upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Bytes of the connection before it.
    pub offset: u64,
    /// The method token.
    pub method: String,
    /// Origin-form or `*`.
    pub target: String,
    /// Field lines.
    pub fields: Fields,
    /// What followed the head, decoded; complete unless taken from
    /// [`crate::StrictRequests::current`].
    pub body: Body,
}

impl Request {
    /// Value of a query parameter of the target.
    pub fn query(&self, key: &str) -> Option<&str> {
        let (_, query) = self.target.split_once('?')?;
        query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
    }

    /// The nonce of the request: parameter `n`, or empty.
    pub fn nonce(&self) -> &str {
        self.query("n").unwrap_or_default()
    }

    /// Whether anything may follow it on the connection before it is answered
    /// (docs/connections.md: safe and without a body).
    pub fn may_be_followed(&self) -> bool {
        matches!(self.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PROPFIND")
            && !self.has_body()
            && !self.fields.has("expect")
            && !self.fields.has("upgrade")
    }

    /// Whether a careless server may send more than one response to it
    /// (docs/connections.md#trust-in-a-server).
    pub fn invites_surplus(&self) -> bool {
        let conditional = self.fields.has("if-none-match") || self.fields.has("if-modified-since");
        let target = self.target.to_ascii_lowercase();
        self.method == "HEAD" || conditional || target.contains("%0d") || target.contains("%0a")
    }

    /// Whether the head announces a body of at least one byte (or of unknown length).
    pub fn has_body(&self) -> bool {
        self.fields.has("transfer-encoding")
            || self.fields.first("content-length").is_some_and(|length| length != "0")
    }
}

/// One final response that weir sent to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Bytes of the connection before it.
    pub offset: u64,
    /// Three digits, 200-599, or 101.
    pub status: u16,
    /// Interim responses (1xx) that came before it.
    pub interim: Vec<u16>,
    /// Field lines.
    pub fields: Fields,
    /// What followed the head, decoded.
    pub body: Body,
    /// Field lines after a chunked body.
    pub trailers: Fields,
    /// It announces that the connection ends here.
    pub closes: bool,
}
