//! The variables of an access log line: one row for each `$name`. Read by the template compiler and
//! the renderer; `docs/access-log.md` has the same table, and a test compares them.

/// Declares names once; the enumeration and the list are generated.
macro_rules! names {
    ($($(#[doc = $help:literal])+ $variant:ident = $word:literal,)+) => {
        /// A value that a line can have.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Name {
            $($(#[doc = $help])+ $variant,)+
        }

        impl Name {
            /// Every name: its word without the `$`, and its meaning.
            pub const ALL: &[(Name, &str, &str)] =
                &[$((Name::$variant, $word, concat!($($help),+).trim_ascii()),)+];
        }
    };
}

names! {
    /// When the exchange ended, as `21/Nov/2026:22:40:56 +0100`.
    TimeLocal = "time_local",
    /// The same, as `2026-11-21T22:40:56+01:00`.
    TimeIso8601 = "time_iso8601",
    /// The same, as `2026-11-21T22:40:56.123+01:00`.
    TimeIso8601Msec = "time_iso8601_msec",
    /// The same in seconds since 1970, as `1795297256.123`.
    Msec = "msec",
    /// When the request's head was complete, in seconds since 1970.
    StartMsec = "start_msec",
    /// The client's address: that of the connection, or the one that a trusted proxy has named.
    RemoteAddr = "remote_addr",
    /// The client's port; `-` where a trusted proxy has named the address.
    RemotePort = "remote_port",
    /// The address of the other end of the connection, which may be a trusted proxy.
    RealipRemoteAddr = "realip_remote_addr",
    /// The port of the other end of the connection.
    RealipRemotePort = "realip_remote_port",
    /// The verified user of the forward proxy, or of a route with `users`; otherwise `-`, because
    /// an unverified name is no fact.
    RemoteUser = "remote_user",
    /// The request line; of a rejected request the first line as it came.
    Request = "request",
    /// The method.
    RequestMethod = "request_method",
    /// The target as it came, with its query; where an option evaluates paths, with the path that
    /// is forwarded.
    RequestUri = "request_uri",
    /// `HTTP/2.0`, `HTTP/1.1` or `HTTP/1.0`; `TCP` of a connection of `tcp`, which has a line when
    /// it ends, without values of HTTP.
    ServerProtocol = "server_protocol",
    /// `https` over TLS, `http` without; `tcp` of a connection of `tcp`.
    Scheme = "scheme",
    /// The version of TLS, as `TLSv1.3`.
    TlsVersion = "tls_version",
    /// The cipher suite, as `TLS_AES_128_GCM_SHA256`.
    TlsCipher = "tls_cipher",
    /// The name that the client requested in the TLS handshake (SNI).
    TlsName = "tls_name",
    /// `r` where the connection resumed an earlier TLS session, `.` where not.
    TlsResumed = "tls_resumed",
    /// The subject of the certificate that the client has shown in the TLS handshake, as
    /// `CN=partner,O=Example,C=DE` (RFC 4514).
    TlsClientSubject = "tls_client_subject",
    /// The requested host, in small letters, without port.
    Host = "host",
    /// The identifier that servers get with `request-id` of `client`.
    RequestId = "request_id",
    /// The trace that the request belongs to, with `trace-context` of `client`.
    TraceId = "trace_id",
    /// Bytes of the request: head and body (without the framing of chunks); of a tunnel all that
    /// the client sent.
    RequestLength = "request_length",
    /// Status of the response; 499: the client left before it began; 444: the connection ended
    /// before it began.
    Status = "status",
    /// Bytes sent to the client after the head, with the framing of chunks.
    BodyBytesSent = "body_bytes_sent",
    /// Bytes sent to the client.
    BytesSent = "bytes_sent",
    /// The coding in which weir has compressed the response: `zstd`, `br` or `gzip`.
    CompressedBy = "compressed_by",
    /// Bytes of the response before compression for each byte after it, as `4.25`.
    CompressionRatio = "compression_ratio",
    /// What a request got of a route with `cache`: `hit`, `stale`, `revalidated`, `miss`,
    /// `collapsed`, `bypass` or `hit-for-miss`.
    Cache = "cache",
    /// From the complete head to the moment when the kernel had taken the last byte of the
    /// response.
    RequestTime = "request_time",
    /// From the complete head to the last byte of the request's body.
    BodyTime = "body_time",
    /// From when the request could be forwarded to when it was first put on a connection.
    QueueTime = "queue_time",
    /// The part of it in which that connection was not established yet.
    UpstreamConnectTime = "upstream_connect_time",
    /// From the first to the last time that the request was put on a connection; 0 without
    /// repetition.
    RetryTime = "retry_time",
    /// From the last time that the request was put on a connection to the head of the response.
    UpstreamHeaderTime = "upstream_header_time",
    /// The same to the end of the response.
    UpstreamResponseTime = "upstream_response_time",
    /// From the end of the server's response to when the kernel had taken its last byte for the
    /// client.
    SendTime = "send_time",
    /// Name of the upstream.
    UpstreamName = "upstream_name",
    /// Address of the server that the request was last sent to; of a destination of the forward
    /// proxy what its name resolved to.
    UpstreamAddr = "upstream_addr",
    /// The connection that it was last sent on, as `worker:slot:generation`.
    UpstreamConnection = "upstream_connection",
    /// Requests answered or waiting on that connection when this one was put on it; 0: it was the
    /// first.
    UpstreamReuse = "upstream_reuse",
    /// Worker that owns that connection; different from `$worker` when the request crossed.
    UpstreamWorker = "upstream_worker",
    /// Worker that owns the client's connection.
    Worker = "worker",
    /// How often the request was put on a connection; 0: never.
    Tries = "tries",
    /// Glitches of the client's connection so far: strange but legal events.
    Glitches = "glitches",
    /// Who ended the exchange before its time: `client`, `server` or `weir`; `none` when it is
    /// complete.
    EndedBy = "ended_by",
    /// Where it ended: `head`, `body`, `queue`, `connect`, `wait`, `answer`, `deliver`, `tunnel`,
    /// or `done`.
    Phase = "phase",
    /// Why it ended before its time, the word of the response and of the counters, such as
    /// `forward-timeout`.
    Reason = "reason",
}

impl Name {
    /// Returns the name with this word.
    pub fn of(word: &str) -> Option<Name> {
        Name::ALL.iter().find(|(_, known, _)| *known == word).map(|(name, _, _)| *name)
    }

    /// Returns its word.
    pub fn word(self) -> &'static str {
        Name::ALL[self as usize].1
    }
}

#[cfg(test)]
mod tests {
    //! Proves: every name is found by its word, and only by it. How: all of them.

    use super::*;

    #[test]
    fn words_and_names() {
        for (name, word, help) in Name::ALL {
            assert_eq!((Name::of(word), name.word()), (Some(*name), *word));
            assert!(help.ends_with('.'), "{word}: {help}");
        }
        assert_eq!(Name::of("Status"), None);
    }
}
