//! `bind` of HAProxy: addresses with ports, and TLS.

use weir_proxy::plan::UNIX;

use super::super::draft::ListenTls;
use super::super::missing::Missing;
use super::super::tree::Node;
use super::Haproxy;
use crate::reverse::literal;

/// Options of `bind` with a value that need no counterpart in weir.
const WITH_VALUE: [&str; 20] = [
    "mode",
    "group",
    "gid",
    "user",
    "uid",
    "name",
    "interface",
    "maxconn",
    "mss",
    "nice",
    "process",
    "thread",
    "shards",
    "tcp-ut",
    "alpn",
    "npn",
    "proto",
    "level",
    "id",
    "namespace",
];
/// Such options without a value.
const WITHOUT_VALUE: [&str; 8] = [
    "ssl",
    "transparent",
    "defer-accept",
    "tfo",
    "v4v6",
    "v6only",
    "no-sslv3",
    "prefer-client-ciphers",
];
/// The note on `interface`.
pub(super) const ONE_INTERFACE: &str = "weir listens on addresses: it now accepts clients from \
    other interfaces; write the address of this one";
/// The note on `namespace`.
pub(super) const OWN_NAMESPACE: &str =
    "weir uses only the network namespace in which it starts: use `ip netns exec NAME weir run`";
/// Ports of one range.
const PORTS_MAX: u32 = 100;

impl Haproxy<'_, '_, '_> {
    /// Adds the listeners of a `bind` line.
    pub(super) fn bind(&mut self, group: usize, node: &Node) {
        let has = |word: &str| node.arguments().any(|other| other == word);
        if has("accept-proxy") || has("accept-netscaler-cip") {
            return self.draft.missing(node, Missing::ProxyProtocol);
        }
        let tls = if has("ssl") {
            let Some(tls) = self.bind_tls(node) else { return };
            Some(tls)
        } else {
            None
        };
        if has("interface") {
            self.draft.different(node, ONE_INTERFACE);
        }
        if has("namespace") {
            self.draft.different(node, OWN_NAMESPACE);
        }
        let proto = node.arguments().skip_while(|word| *word != "proto").nth(1);
        if proto == Some("h2") && tls.is_none() {
            let why = "weir speaks HTTP/1.1 without TLS: write `protocols \"h2c\"` in the `listen`";
            self.draft.different(node, why);
        }
        for text in node.argument(1).split(',') {
            if let Some(at) = text.find('@').filter(|at| !matches!(&text[..*at], "ipv4" | "ipv6")) {
                match text.strip_prefix("unix@") {
                    Some(path) => self.bind_unix(group, node, path, tls.clone()),
                    None => self.draft.lost(
                        node,
                        format!("weir listens on ports and unix sockets, not on `{}`", &text[..at]),
                    ),
                }
                continue;
            }
            if text.starts_with('/') {
                self.bind_unix(group, node, text, tls.clone());
                continue;
            }
            match addresses(text, has("v4v6")) {
                Some(all) => all
                    .iter()
                    .for_each(|address| self.draft.listen(group, node, address, tls.clone())),
                None => self
                    .draft
                    .lost(node, "weir can listen only on an address with one port or a few"),
            }
        }
    }

    /// Adds a unix socket.
    fn bind_unix(&mut self, group: usize, node: &Node, path: &str, tls: Option<ListenTls>) {
        let words: Vec<&str> = node.arguments().collect();
        let value = |name: &str| {
            words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1).copied())
        };
        let address = format!("{UNIX}{path}");
        self.draft.listen(group, node, &address, tls);
        self.draft.rights(node, &address, value("mode"), value("group").or(value("gid")));
        if value("user").or(value("uid")).is_some() {
            self.draft.lost(
                node,
                "a socket belongs to weir's user; `mode` and `group` decide who can connect",
            );
        }
    }

    /// Returns the TLS of a line; None: it cannot be converted, which has been noted.
    fn bind_tls(&mut self, node: &Node) -> Option<ListenTls> {
        let mut tls = ListenTls::default();
        let (mut verify, mut authority, mut list) = ("none", None, None);
        let mut words = node.arguments().skip(1);
        while let Some(word) = words.next() {
            match word {
                "crt" => tls
                    .certificates
                    .extend(self.certificate(node, words.next().unwrap_or_default())),
                "crt-list" => {
                    words.next();
                    self.draft.lost(node, "add a `certificate` for each line of the list");
                }
                "ca-file" => authority = words.next().map(str::to_owned),
                "crl-file" => list = words.next().map(str::to_owned),
                "verify" => verify = words.next().unwrap_or_default(),
                "ssl-min-ver" => {
                    if words.next() == Some("TLSv1.3") {
                        tls.options.insert("min-version", "\"1.3\"".to_owned());
                    }
                }
                "strict-sni" => drop(tls.options.insert("strict-sni", "#true".to_owned())),
                "no-tls-tickets" => drop(tls.options.insert("tickets", "#false".to_owned())),
                "ciphers" | "ciphersuites" | "curves" | "ecdhe" | "ssl-max-ver"
                | "tls-ticket-keys" => {
                    words.next();
                    self.draft.lost(node, format!("weir handles `{word}` in its own way"));
                }
                _ if WITH_VALUE.contains(&word) => drop(words.next()),
                _ if WITHOUT_VALUE.contains(&word) => {}
                _ => self.draft.lost(node, format!("weir has no equivalent of `{word}`")),
            }
        }
        if verify != "none" {
            let Some(authority) = authority else {
                self.draft.lost(node, "it asks clients for certificates, but names no CA");
                return None;
            };
            tls.options.insert(
                "client-auth",
                literal(if verify == "optional" { "optional" } else { "require" }),
            );
            tls.options.insert("client-ca", literal(&self.draft.file(node, &authority)?));
            if let Some(list) = list {
                tls.options.insert("client-crl", literal(&self.draft.file(node, &list)?));
            }
        }
        if tls.certificates.is_empty() {
            self.draft.lost(node, "it has no certificate that weir could use");
            return None;
        }
        Some(tls)
    }

    fn certificate(&mut self, node: &Node, path: &str) -> Option<(String, Option<String>)> {
        if path.is_empty() || path.ends_with('/') || !path.contains('.') {
            let why = format!(
                "`{path}` seems to be a directory: name each certificate, as in `certificate \
                    \"{path}/NAME.pem\"`"
            );
            self.draft.lost(node, why);
            return None;
        }
        // The key is in the same file in HAProxy as well.
        self.draft.file(node, path).map(|path| (path, None))
    }
}

/// Converts `*:80`, `:8000-8005`, `[::]:443`, `ipv6@:::80` to weir's form.
pub(super) fn addresses(text: &str, both: bool) -> Option<Vec<String>> {
    let is_v6 = text.starts_with("ipv6@");
    let text = text.rsplit('@').next().unwrap_or(text);
    let (host, ports) = text.rsplit_once(':')?;
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
    if first > last || u32::from(last) - u32::from(first) >= PORTS_MAX {
        return None;
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let hosts = match bare {
        "" | "*" if is_v6 => vec!["[::]".to_owned()],
        "" | "*" => vec!["0.0.0.0".to_owned()],
        "::" if both => vec!["0.0.0.0".to_owned(), "[::]".to_owned()],
        "localhost" => vec!["127.0.0.1".to_owned()],
        _ if bare.contains(':') => vec![format!("[{bare}]")],
        _ => vec![bare.to_owned()],
    };
    Some(
        (first..=last)
            .flat_map(|port| hosts.iter().map(move |host| format!("{host}:{port}")))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_weir_writes_them() {
        for (text, both, ours) in [
            ("*:80", false, &["0.0.0.0:80"][..]),
            (":8000-8001", false, &["0.0.0.0:8000", "0.0.0.0:8001"]),
            ("[::]:443", true, &["0.0.0.0:443", "[::]:443"]),
            (":::443", false, &["[::]:443"]),
            ("ipv4@10.0.0.1:1", false, &["10.0.0.1:1"]),
        ] {
            assert_eq!(addresses(text, both).unwrap(), ours, "{text}");
        }
        for text in ["80", "*:x", ":2-1", ":1-65535", ":70000"] {
            assert!(addresses(text, false).is_none(), "{text}");
        }
    }
}
