//! Sites of Caddy: their addresses, certificates, and the redirect to TLS.

use super::super::draft::ListenTls;
use super::super::missing::Missing;
use super::super::route::Route;
use super::super::tree::{Node, ROOT};
use super::Caddy;
use crate::reverse::literal;
use crate::texts;
use weir_proxy::plan::UNIX;

/// An address of a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// Empty: all hosts.
    pub(super) host: String,
    /// A pattern; empty: all paths.
    pub(super) path: String,
    pub(super) port: u16,
    pub(super) over_tls: bool,
}

impl Caddy<'_, '_, '_> {
    /// Parses `example.com:8443`, `http://example.com`, `:80`, `localhost`.
    pub(super) fn address(&self, word: &str, has_tls: bool) -> Option<Address> {
        let (scheme, rest) = word.split_once("://").unwrap_or(("", word));
        let (rest, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let path = if path == "/" { "" } else { path };
        let port_at = rest.rfind(':').filter(|at| !rest[*at..].contains(']'));
        let (host, port) = port_at.map_or((rest, ""), |at| (&rest[..at], &rest[at + 1..]));
        let (http, https) = self.ports;
        let port = match (port, scheme) {
            ("", "http") => http,
            ("", _) => https,
            (port, _) => port.parse().ok()?,
        };
        let named = !host.is_empty() && self.auto_https && port != http;
        let over_tls = match scheme {
            "http" => false,
            "https" => true,
            "" => named || has_tls || port == https,
            _ => return None,
        };
        let host = if host.is_empty() || host == "*" {
            String::new()
        } else {
            texts::host_pattern(host).ok()?
        };
        Some(Address { host, path: path.to_owned(), port, over_tls })
    }

    pub(super) fn listen(&mut self, at: usize, group: usize, address: &Address) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let mut tls = None;
        if address.over_tls {
            let Some(found) = self.tls(at, &address.host) else { return };
            tls = Some(found);
        }
        let mut ips: Vec<String> =
            tree.named(at, "bind").flat_map(Node::arguments).map(str::to_owned).collect();
        if ips.is_empty() {
            ips.clone_from(&self.default_bind);
        }
        if ips.is_empty() {
            ips.push("0.0.0.0".to_owned());
        }
        if ips == ["0.0.0.0"] {
            self.draft.different_once(
                node,
                "weir listens only on IPv4 here; add a second `listen \"[::]:PORT\"` for IPv6",
            );
        }
        for ip in ips {
            if let Some(socket) = ip.strip_prefix("unix/") {
                let (path, mode) = socket
                    .split_once('|')
                    .map_or((socket, None), |(path, mode)| (path, Some(mode)));
                let address = format!("{UNIX}{path}");
                self.draft.listen(group, node, &address, tls.clone());
                // As Caddy creates them.
                self.draft.rights(node, &address, mode.or(Some("0200")), None);
                continue;
            }
            let ip = if ip.contains(':') && !ip.starts_with('[') { format!("[{ip}]") } else { ip };
            let is_one = ip != "0.0.0.0" && ip != "[::]";
            let before = std::mem::take(&mut self.draft.groups[group].listens);
            self.draft.listen(group, node, &format!("{ip}:{}", address.port), tls.clone());
            let ours = &mut self.draft.groups[group].listens;
            if is_one {
                self.bound.extend(ours.iter().map(|at| (group, *at)));
            }
            ours.extend(before);
            ours.sort_unstable();
            ours.dedup();
        }
    }

    /// Redirects clients without TLS at names of a site to TLS, unless another site handles them.
    pub(super) fn redirect_to_tls(&mut self, at: usize, addresses: &[Address]) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let sites = || {
            tree.children(ROOT)
                .flat_map(|(_, node)| node.words.iter())
                .flat_map(|word| word.split(','))
        };
        let is_plain = |host: &str| {
            let mut all = sites().filter_map(|word| self.address(word, false));
            all.any(|other| other.host == host && other.port == self.ports.0)
        };
        let is_led = |address: &&Address| {
            address.over_tls && !address.host.is_empty() && !is_plain(&address.host)
        };
        let led: Vec<&Address> = addresses.iter().filter(is_led).collect();
        let takes_all = is_plain("");
        let is_served = self.draft.groups.last().is_some_and(|group| !group.listens.is_empty());
        if !self.auto_https || !self.redirects || led.is_empty() || !is_served {
            return;
        }
        let what = format!("http:// of {}", node.shown());
        let group = self.draft.group(node.place, &what);
        self.listen(
            at,
            group,
            &Address {
                host: String::new(),
                path: String::new(),
                port: self.ports.0,
                over_tls: false,
            },
        );
        // Caddy redirects all names, unless a site takes them.
        let rest = led.last().map(|last| Address { host: "*".to_owned(), ..(*last).clone() });
        let rest = rest.filter(|_| !takes_all);
        for Address { host, port, .. } in led.into_iter().chain(&rest) {
            let port = if *port == 443 { String::new() } else { format!(":{port}") };
            let Some(to) =
                self.draft.redirect(node, "308", &format!("https://$host{port}$request_uri"))
            else {
                return;
            };
            let (host, what, path) = (host.clone(), what.clone(), "/".to_owned());
            self.draft.route(Route {
                group,
                place: node.place,
                what,
                host,
                path,
                to,
                ..Route::default()
            });
        }
    }

    /// Returns the certificate that `tls` names, or a placeholder for it; None: it requires
    /// something of clients that weir cannot check.
    fn tls(&mut self, at: usize, host: &str) -> Option<ListenTls> {
        let tree = self.tree;
        let mut tls = ListenTls::default();
        for (inside, line) in tree.indices(at, "tls").iter().flat_map(|tls| tree.children(*tls)) {
            match line.name() {
                "client_auth" => self.client_auth(inside, line, &mut tls)?,
                "protocols" if line.argument(1) == "tls1.3" => {
                    tls.options.insert("min-version", "\"1.3\"".to_owned());
                }
                _ => self.draft.missing(line, Missing::Nothing),
            }
        }
        if let Some(line) = tree.last(at, "tls").filter(|line| line.words.len() > 2) {
            let [certificate, key] = [1, 2].map(|word| self.draft.file(line, line.argument(word)));
            tls.certificates.push((certificate?, Some(key?)));
        } else {
            let name = match host.strip_prefix("*.") {
                Some(domain) => format!("wildcard.{domain}"),
                None if host.is_empty() => "default".to_owned(),
                None => host.trim_matches(['[', ']']).replace(':', "-"),
            };
            let path = format!("/etc/weir/certificates/{name}.pem");
            let node = tree.last(at, "tls").unwrap_or(&tree.nodes[at]);
            self.draft.different(
                node,
                format!(
                    "{}: the certificate with its key is expected in {path}",
                    Missing::Acme.why()
                ),
            );
            tls.certificates.push((path, None));
        }
        Some(tls)
    }

    /// Converts the client certificates that are required; None: weir cannot require them, and the
    /// address is left out.
    fn client_auth(&mut self, at: usize, node: &Node, tls: &mut ListenTls) -> Option<()> {
        let tree = self.tree;
        let mut authority = None;
        for (_, line) in tree.children(at) {
            authority = match (line.name(), line.argument(1)) {
                ("trusted_ca_cert_file", path) => Some(path),
                ("trust_pool", "file") => Some(line.argument(2)),
                _ => authority,
            };
        }
        let Some(authority) = authority.filter(|path| !path.is_empty()) else {
            self.draft.lost(
                node,
                "weir reads the CAs of client certificates only from a file; this \
                    address is left out",
            );
            return None;
        };
        let mode = tree.last(at, "mode").map_or("", |mode| mode.argument(1));
        let auth =
            if matches!(mode, "request" | "verify_if_given") { "optional" } else { "require" };
        tls.options.insert("client-auth", literal(auth));
        tls.options.insert("client-ca", literal(&self.draft.file(node, authority)?));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::draft::Draft;
    use super::super::super::tree::{Sources, Tree};
    use super::*;
    use crate::import::Outside;

    #[test]
    fn addresses_of_sites() {
        let outside = Outside {
            variables: &|_| None,
            matching: &|_| Ok(Vec::new()),
            read: &|_| Ok(Vec::new()),
        };
        let sources = Sources::open("Caddyfile".as_ref(), outside).unwrap();
        let (tree, mut draft) = (Tree::new(), Draft::new(sources));
        let caddy = Caddy::new(&tree, &mut draft);
        for (word, host, port, over_tls) in [
            ("example.com", "example.com", 443, true),
            ("http://example.com", "example.com", 80, false),
            ("example.com:80", "example.com", 80, false),
            (":8080", "", 8080, false),
            (":443", "", 443, true),
            ("localhost:8443", "localhost", 8443, true),
            ("https://*.a.test/", "*.a.test", 443, true),
            ("[::1]:81", "[::1]", 81, true),
        ] {
            assert_eq!(
                caddy.address(word, false),
                Some(Address { host: host.to_owned(), path: String::new(), port, over_tls }),
                "{word}"
            );
        }
        for word in ["ftp://a", "a:x", "a:70000"] {
            assert_eq!(caddy.address(word, false), None, "{word}");
        }
    }
}
