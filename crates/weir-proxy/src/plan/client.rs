//! The compiled `client`: limits and behaviour towards clients. Times are microseconds, sizes
//! bytes.

use std::net::IpAddr;

use weir_http::h2::Limits;

use super::{AddressField, Network, SECOND_US};

/// Limits and behaviour towards clients.
#[derive(Debug, Clone)]
pub struct ClientPlan {
    /// Limits of a request head.
    pub head: weir_http::Limits,
    /// Largest request body; None is unlimited (the default). Over it: 413.
    pub body_bytes_max: Option<u64>,
    /// From the first byte (or the accept) to a complete head. Default 10 s; over it: 408.
    pub head_timeout_us: u64,
    /// Between two reads of a request body. Default 30 s; over it: 408.
    pub body_timeout_us: u64,
    /// Slowest acceptable request body, bytes per second, judged over each 10 s that begin with a
    /// byte of it; `body_timeout_us` judges the time in which nothing arrives. Default 100; 0
    /// switches it off. Over it: 408.
    pub body_rate_min: u64,
    /// A connection without a request. Default 75 s; then it is closed in silence.
    pub idle_timeout_us: u64,
    /// For a client that reads slowly to take one send (at most 256 KiB). Default 60 s; then it is
    /// closed.
    pub send_timeout_us: u64,
    /// A tunnel (after 101) without a byte either way. Default 1 h.
    pub tunnel_timeout_us: u64,
    /// A client that has ended its sending direction gets the responses to all earlier requests.
    /// Otherwise, as by default, it counts as gone as soon as weir has nothing to send it for a
    /// tenth of a second.
    pub serves_half_closed: bool,
    /// Unanswered requests of one client connection; then it is not read further. Default 64.
    pub requests_queued_max: u32,
    /// Client connections of one worker; above it new ones are closed at once. None: as many as
    /// descriptors allow.
    pub connections_max: Option<u32>,
    /// Bytes of memory of one worker for responses that it compresses, up to 1 TiB; responses
    /// beyond that are sent uncompressed. Default 128 MiB.
    pub compress_bytes_max: u64,
    /// Glitches of one connection, 1-1,000,000; above that it is closed behind the responses to its
    /// requests. None, the default: any number.
    pub glitches_max: Option<u32>,
    /// Add Via with the name of `head` to responses, and to requests of the forward proxy. Default
    /// true.
    pub via: bool,
    /// The mark of requests to servers of the configuration by which a loop is detected. Default
    /// [`LoopField::CdnLoop`].
    pub loop_field: LoopField,
    /// The configured name; None, the default: the program that runs the plan chooses one at
    /// random. The name in use is in `head`.
    pub via_name: Option<weir_http::Pseudonym>,
    /// Forward fields whose name contains `_`. Default false.
    pub underscores: bool,
    /// Client-Cert and Client-Cert-Chain of clients are removed: [`Plan::tells_certificates`].
    /// Default false.
    pub judged: bool,
    /// Sources whose X-Forwarded-* and Forwarded fields are trusted. Default none.
    pub trusted_proxies: Vec<Network>,
    /// The field in which they name the client. Default [`AddressField::XForwardedFor`].
    pub address_field: AddressField,
    /// The field of requests to servers that carries an identifier, a token; None, the default: no
    /// identifier.
    pub request_id: Option<Box<str>>,
    /// Requests belong to a trace (W3C Trace Context), which starts here unless they bring one.
    /// Default false.
    pub trace_context: bool,
    /// Limits of a connection of HTTP/2.
    pub http2: Http2Plan,
}

/// Limits of a client connection of HTTP/2, besides those of any client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http2Plan {
    /// Requests in progress at once, also those that were reset while their server does not know
    /// that yet, 1-1000. Default 100.
    pub streams_max: u32,
    /// Bytes of a request's body in flight or unread, 16,384-1,048,576. Default 65,536.
    pub window_bytes: u32,
    /// Bytes of the bodies of all requests of a connection that may be in flight,
    /// 65,536-16,777,216. Default 1,048,576.
    pub connection_window_bytes: u32,
}

impl Default for Http2Plan {
    fn default() -> Http2Plan {
        let Limits { streams_max, window_bytes, connection_window_bytes, .. } = Limits::default();
        Http2Plan { streams_max, window_bytes, connection_window_bytes }
    }
}

/// The mark of a request by which weir detects that it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopField {
    /// Nothing: a loop continues until something fails.
    Off,
    /// `CDN-Loop` (RFC 8586), for which no server disables compression.
    CdnLoop,
    /// `Via` (RFC 9110 §7.6.3): nginx (`gzip_proxied`) and IIS send responses to such requests
    /// without compression.
    Via,
}

impl ClientPlan {
    /// Whether requests have an identifier or a trace.
    #[inline]
    pub(crate) fn names_requests(&self) -> bool {
        self.request_id.is_some() || self.trace_context
    }

    /// Whether this is a trusted proxy.
    #[inline]
    pub fn trusts(&self, address: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|network| network.has_client(address))
    }

    /// Returns the names in Via and CDN-Loop of an outgoing request. `strangers`: its client has
    /// chosen the server, by the forward proxy or as its own destination (RFC 9110 §7.6.3).
    pub(crate) fn loop_marks(
        &self,
        strangers: bool,
    ) -> (Option<weir_http::Pseudonym>, Option<weir_http::Pseudonym>) {
        let us = Some(self.head.pseudonym);
        match self.loop_field {
            _ if strangers => (self.pseudonym(), None),
            LoopField::Off => (None, None),
            LoopField::Via => (us, None),
            LoopField::CdnLoop => (None, us),
        }
    }

    /// Returns the name in Via of responses.
    pub fn pseudonym(&self) -> Option<weir_http::Pseudonym> {
        self.via.then_some(self.head.pseudonym)
    }
}

impl Default for ClientPlan {
    fn default() -> ClientPlan {
        ClientPlan {
            head: weir_http::Limits::default(),
            body_bytes_max: None,
            head_timeout_us: 10 * SECOND_US,
            body_timeout_us: 30 * SECOND_US,
            body_rate_min: 100,
            idle_timeout_us: 75 * SECOND_US,
            send_timeout_us: 60 * SECOND_US,
            tunnel_timeout_us: 3600 * SECOND_US,
            serves_half_closed: false,
            requests_queued_max: 64,
            connections_max: None,
            compress_bytes_max: 128 << 20,
            glitches_max: None,
            via: true,
            loop_field: LoopField::CdnLoop,
            via_name: None,
            underscores: false,
            judged: false,
            trusted_proxies: Vec::new(),
            address_field: AddressField::XForwardedFor,
            request_id: None,
            trace_context: false,
            http2: Http2Plan::default(),
        }
    }
}
