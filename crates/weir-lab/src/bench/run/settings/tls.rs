//! The same settings with listeners that use TLS: they change nothing else, so the difference to a
//! plain run is TLS.
//!
//! Called by `stage.rs`.

use std::io;
use std::path::{Path, PathBuf};

use crate::bench::experiment::contenders::What;
use crate::bench::experiment::tls::{GROUP, SUITE};

/// A certificate with its key, as files.
#[derive(Debug, Clone)]
pub(in crate::bench::run) struct Files {
    /// The certificate.
    pub(in crate::bench::run) certificate: PathBuf,
    /// Its key.
    pub(in crate::bench::run) key: PathBuf,
    /// Both in one.
    pub(in crate::bench::run) both: PathBuf,
}

/// Returns the text of a contender's settings, with TLS for its clients.
///
/// # Errors
/// It has no listener that could use it, which would be a bug.
pub(in crate::bench::run) fn sealed(what: What, text: &str, files: &Files) -> io::Result<String> {
    let sealed = match what {
        What::Nginx => nginx(text, files),
        What::Haproxy => haproxy(text, &files.both),
        What::Envoy => envoy(text, files),
        What::Weir(_) => weir(text, files),
        _ => None,
    };
    sealed.ok_or_else(|| io::Error::other(format!("{what:?} can't be set to speak TLS")))
}

fn nginx(text: &str, files: &Files) -> Option<String> {
    let (certificate, key) = (files.certificate.display(), files.key.display());
    let listen = " reuseport backlog=65535;\n";
    text.contains(listen).then(|| {
        let sealed = format!(
            " ssl reuseport backlog=65535;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_protocols TLSv1.3;
        ssl_conf_command Ciphersuites {SUITE};
        ssl_ecdh_curve {GROUP};
        ssl_session_cache off;
        ssl_session_tickets on;
"
        );
        text.replace(listen, &sealed)
    })
}

fn haproxy(text: &str, both: &Path) -> Option<String> {
    let listen = " backlog 65535 shards by-thread\n";
    text.contains(listen).then(|| {
        let both = both.display();
        let sealed = format!(
            " backlog 65535 shards by-thread ssl crt {both} ssl-min-ver TLSv1.3 ciphersuites \
                {SUITE} curves {GROUP}\n"
        );
        text.replace(listen, &sealed)
    })
}

fn envoy(text: &str, files: &Files) -> Option<String> {
    let mut tree: serde_json::Value = serde_json::from_str(text).ok()?;
    let chain =
        tree.pointer_mut("/static_resources/listeners/0/filter_chains/0")?.as_object_mut()?;
    let kind = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
    // Its library has no setting for the suites of TLS 1.3: the generator's is the only one in
    // common.
    let context = serde_json::json!({
        "@type": kind,
        "common_tls_context": {
            "tls_params": {
                "tls_minimum_protocol_version": "TLSv1_3",
                "tls_maximum_protocol_version": "TLSv1_3",
                "ecdh_curves": [GROUP],
            },
            "tls_certificates": [{
                "certificate_chain": {"filename": files.certificate},
                "private_key": {"filename": files.key},
            }],
            "alpn_protocols": ["http/1.1"],
        },
    });
    chain.insert(
        "transport_socket".to_owned(),
        serde_json::json!({"name": "envoy.transport_sockets.tls", "typed_config": context}),
    );
    Some(tree.to_string())
}

fn weir(text: &str, files: &Files) -> Option<String> {
    let (certificate, key) = (files.certificate.display(), files.key.display());
    let line = text.lines().find(|line| line.starts_with("listen "))?;
    let block = format!(
        "{line} {{
    tls min-version=\"1.3\" {{
        certificate \"{certificate}\" key=\"{key}\"
    }}
}}"
    );
    Some(text.replacen(line, &block, 1))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::super::{
        Shape, envoy as plain_envoy, haproxy as plain_haproxy, nginx_proxy, weir as plain_weir,
    };
    use super::*;
    use crate::bench::experiment::contenders::WEIR;

    #[test]
    fn each_has_the_certificate_and_what_is_agreed_on() {
        let (listen, to) =
            (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([127, 0, 0, 1], 65_000)));
        let files = Files {
            certificate: "/d/c.pem".into(),
            key: "/d/k.pem".into(),
            both: "/d/b.pem".into(),
        };
        let shape = Shape { processes: 1, threads: 2 };
        let all = [
            (What::Nginx, nginx_proxy(Path::new("/d"), listen, &[to], (2, 20_000)), "/d/c.pem"),
            (What::Haproxy, plain_haproxy(listen, &[to], shape, 20_000), "/d/b.pem"),
            (What::Envoy, plain_envoy(listen, &[to]), "/d/c.pem"),
            (What::Weir(WEIR), plain_weir(listen, to, 2, WEIR), "/d/c.pem"),
        ];
        for (what, plain, file) in all {
            let text = sealed(what, &plain, &files).unwrap();
            assert!(text.contains(file) && text.contains("65000"), "{text}");
            assert!(text.contains("1.3") || text.contains("TLSv1_3"), "{text}");
        }
        assert!(sealed(What::Direct, "", &files).is_err());
    }

    #[test]
    fn what_weir_gets_is_a_configuration() {
        let (listen, to) =
            (SocketAddr::from(([127, 0, 0, 1], 1)), SocketAddr::from(([127, 0, 0, 1], 65_000)));
        let files = Files {
            certificate: "/d/c.pem".into(),
            key: "/d/k.pem".into(),
            both: "/d/b.pem".into(),
        };
        let text = sealed(What::Weir(WEIR), &plain_weir(listen, to, 2, WEIR), &files).unwrap();
        let config = weir_config::parse(&text, "tls.kdl").unwrap();
        assert!(config.plan.listeners[0].tls.as_ref().is_some_and(|tls| tls.only_tls13));
    }
}
