//! The TLS options of `weir bomb` and `weir probe`: which certificates to trust, what to offer.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use weir_lab::tls::{Client, Trust, Version, Wishes};

/// How TLS is spoken with a server, when its URL begins with https.
#[derive(Args, Debug, Clone)]
pub(crate) struct TlsArgs {
    /// With https: accept any certificate
    #[arg(short = 'k', long, conflicts_with = "cacert")]
    insecure: bool,
    /// With https: accept certificates of authorities in this file (PEM) [default: those that the
    /// system trusts]
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// With https: use only this version [default: both]
    #[arg(long, value_enum, value_name = "VERSION")]
    tls_version: Option<TlsVersion>,
    /// With https: use only this cipher suite, such as TLS_AES_128_GCM_SHA256 [default: all]
    #[arg(long, value_name = "SUITE")]
    tls_suite: Option<String>,
    /// With https: use only this key exchange group, such as X25519 [default: all]
    #[arg(long, value_name = "GROUP")]
    tls_group: Option<String>,
    /// With https: resume sessions instead of making only full handshakes
    #[arg(long)]
    tls_resume: bool,
}

/// A version of TLS.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum TlsVersion {
    #[value(name = "1.2")]
    Tls12,
    #[value(name = "1.3")]
    Tls13,
}

impl TlsArgs {
    /// Returns the client for these options, given whether the server uses TLS; it offers `http2`,
    /// or HTTP/1.1.
    ///
    /// # Errors
    /// An option that is impossible or has no effect; in one line.
    pub(crate) fn client(&self, is_tls: bool, http2: bool) -> Result<Option<Client>, String> {
        if !is_tls {
            return self
                .first_given()
                .map_or(Ok(None), |name| Err(format!("{name} is for URLs with https://")));
        }
        let trust = match (self.insecure, &self.cacert) {
            (true, _) => Trust::Anybody,
            (false, Some(file)) => Trust::File(file.clone()),
            (false, None) => Trust::System,
        };
        let version = self.tls_version.map(|version| match version {
            TlsVersion::Tls12 => Version::Tls12,
            TlsVersion::Tls13 => Version::Tls13,
        });
        let (suite, group) = (self.tls_suite.clone(), self.tls_group.clone());
        Client::new(&Wishes { trust, version, suite, group, resume: self.tls_resume, http2 })
            .map(Some)
    }

    fn first_given(&self) -> Option<&'static str> {
        let all = [
            ("--insecure", self.insecure),
            ("--cacert", self.cacert.is_some()),
            ("--tls-version", self.tls_version.is_some()),
            ("--tls-suite", self.tls_suite.is_some()),
            ("--tls-group", self.tls_group.is_some()),
            ("--tls-resume", self.tls_resume),
        ];
        all.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }
}
