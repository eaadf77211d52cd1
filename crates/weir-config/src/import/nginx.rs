//! nginx: its `server` blocks become listeners and routes, its `upstream` blocks upstreams. Called
//! by `import`.
//!
//! A server that is the default of an address serves all hosts that no other one names, so its
//! routes have no host. Locations are in `nginx/location.rs`; the table of `nginx/fate.rs` has the
//! handling of each directive.

mod answer;
mod cache;
mod compress;
mod constants;
mod fate;
mod limits;
mod location;
mod names;
mod pass;
mod paths;
mod phase;
mod read;
mod server;
mod slots;
mod stream;
mod test;
mod upstream;

use std::collections::{BTreeMap, HashMap, HashSet};

use weir_proxy::plan::UNIX;

use super::draft::{Draft, ListenTls};
use super::keepalive;
use super::missing::Missing;
use super::tree::{Node, ROOT, Tree};
use crate::problem::Errors;
use crate::reverse::literal;

/// Puts the whole configuration into the draft.
pub(super) fn import(draft: &mut Draft<'_>) -> Result<(), Errors> {
    let tree = read::read(draft)?;
    let tops: Vec<usize> =
        [ROOT].into_iter().chain(tree.indices(ROOT, "http").iter().copied()).collect();
    let servers: Vec<usize> =
        tops.iter().flat_map(|top| tree.indices(*top, "server")).copied().collect();
    let names = names::Names::new(&tree, &servers, defaults(&tree, &servers));
    let tells_clients = answer::tells_clients(&tree);
    let (upstreams, served, tests) = (HashMap::new(), Vec::new(), HashSet::new());
    let (tree, groups) = (&tree, HashMap::new());
    let says_tls = |node: &Node| node.arguments().any(|word| word == "ssl");
    let all = servers.iter().flat_map(|at| tree.named(*at, "listen")).filter(|node| says_tls(node));
    let tls = all.map(|node| address(node.argument(1))).collect();
    let (jumps, jumped, ruled) = (0, 0, 0);
    let mut nginx = Nginx {
        tree,
        draft,
        tells_clients,
        upstreams,
        served,
        tests,
        tls,
        groups,
        jumps,
        jumped,
        ruled,
    };
    for at in &servers {
        nginx.listens_of(*at, &names);
    }
    for at in servers {
        nginx.server(at, &names);
    }
    let served = std::mem::take(&mut nginx.served);
    let places = limits::Places::new(tree, &names.defaults, &served);
    nginx.limits(&served, &places);
    nginx.draft.keep_names_apart();
    nginx.tell();
    stream::import(&mut nginx);
    Ok(())
}

/// The state of all parts.
struct Nginx<'t, 'd, 'a> {
    tree: &'t Tree,
    draft: &'d mut Draft<'a>,
    /// weir uses the same addresses of clients as nginx.
    tells_clients: bool,
    /// Upstreams by their name in `proxy_pass`, and whether by TLS; None: no usable one.
    upstreams: HashMap<(String, bool), Option<usize>>,
    /// Servers that take requests.
    served: Vec<limits::Served>,
    /// `if` blocks that were converted.
    tests: HashSet<usize>,
    /// Addresses with TLS.
    tls: HashSet<String>,
    /// The group of each server, and its listeners by address.
    groups: HashMap<usize, (usize, HashMap<String, Vec<usize>>)>,
    /// Locations that lead to each other, at the moment.
    jumps: usize,
    /// How many did.
    jumped: usize,
    /// Rules of all servers.
    ruled: usize,
}

/// A `server`.
struct Server {
    at: usize,
    group: usize,
    /// Its names, as far as weir has such hosts.
    names: Vec<String>,
}

/// Returns the server that is the default of each address.
fn defaults(tree: &Tree, servers: &[usize]) -> BTreeMap<String, usize> {
    // The server that is marked as the default, or the first.
    let mut of: BTreeMap<String, (usize, bool)> = BTreeMap::new();
    for at in servers {
        for (address, says_so) in listens(tree, *at) {
            let entry = of.entry(address).or_insert((*at, says_so));
            if says_so && !entry.1 {
                *entry = (*at, true);
            }
        }
    }
    of.into_iter().map(|(address, (at, _))| (address, at)).collect()
}

/// Returns the addresses of a server, each with whether it is marked as the default there.
fn listens(tree: &Tree, at: usize) -> Vec<(String, bool)> {
    let says_so = |node: &Node| node.arguments().any(|word| word.starts_with("default"));
    let all = tree.named(at, "listen").map(|node| (address(node.argument(1)), says_so(node)));
    let all: Vec<(String, bool)> = all.collect();
    if all.is_empty() { vec![(address("80"), false)] } else { all }
}

/// Returns the value of `listen`, as weir writes it.
fn address(text: &str) -> String {
    if text.starts_with(UNIX) {
        return text.to_owned();
    }
    let (host, port) = match text.rsplit_once(':') {
        _ if text.bytes().all(|byte| byte.is_ascii_digit()) => ("*", text),
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (text, "80"),
    };
    match host {
        "*" => format!("0.0.0.0:{port}"),
        "localhost" => format!("127.0.0.1:{port}"),
        _ => format!("{host}:{port}"),
    }
}

impl<'t> Nginx<'t, '_, '_> {
    /// Returns the effective directives with a name in a block: its own, else those of the nearest
    /// block around it.
    fn effective(&self, at: usize, name: &str) -> &'t [usize] {
        self.tree.effective(at, name)
    }

    /// Returns the last of these.
    fn one(&self, at: usize, name: &str) -> Option<&'t Node> {
        self.effective(at, name).last().map(|at| &self.tree.nodes[*at])
    }

    /// Adds an address of a server; returns its listeners.
    fn listen(&mut self, at: usize, group: usize, node: &Node) -> Vec<usize> {
        let has = |word: &str| node.arguments().skip(1).any(|other| other == word);
        if has("quic") {
            self.draft.lost(node, "weir does not speak HTTP/3 yet");
            return Vec::new();
        }
        if has("proxy_protocol") {
            self.draft.missing(node, Missing::ProxyProtocol);
            return Vec::new();
        }
        let address = address(node.argument(1));
        let is_on = self.one(at, "ssl").is_some_and(|node| node.argument(1) == "on");
        let tls = if has("ssl") || is_on {
            let Some(tls) = self.listen_tls(at) else {
                let why = "weir cannot use its certificates, or what it requires of clients";
                self.draft.lost(node, why);
                return Vec::new();
            };
            Some(tls)
        } else {
            // TLS of another server at the address applies to this server as well.
            self.tls.contains(&address).then(|| self.listen_tls(at)).flatten()
        };
        let mut all = vec![address.clone()];
        if has("ipv6only=off") {
            all.extend(address.strip_prefix("[::]").map(|port| format!("0.0.0.0{port}")));
        }
        let mut found = Vec::new();
        for address in all {
            let before = self.draft.groups[group].listens.len();
            self.draft.listen(group, node, &address, tls.clone());
            let own = &self.draft.groups[group].listens;
            if own.len() > before {
                found.extend(own.last());
            } else {
                found.extend(self.listener(&address));
            }
            if address.starts_with(UNIX) {
                // As nginx creates it.
                self.draft.rights(node, &address, Some("0666"), None);
            } else if let Some(text) = keepalive::of_listen(self.draft, node, time) {
                self.draft.ask(&address, &text);
            }
        }
        found
    }

    /// Returns the listener of an address.
    fn listener(&self, address: &str) -> Option<usize> {
        self.draft.listens.iter().position(|listen| listen.address.to_string() == address)
    }

    fn listen_tls(&mut self, at: usize) -> Option<ListenTls> {
        let tree = self.tree;
        let mut tls = ListenTls::default();
        let keys = self.effective(at, "ssl_certificate_key");
        for (place, certificate) in self.effective(at, "ssl_certificate").iter().enumerate() {
            let key = keys.get(place).map(|key| &tree.nodes[*key]);
            let certificate = self.file(&tree.nodes[*certificate]);
            let key = key.and_then(|key| self.file(key));
            if let Some(certificate) = certificate {
                tls.certificates.push((certificate, key));
            }
        }
        if let Some(node) = self.one(at, "ssl_protocols") {
            if node.arguments().any(|word| matches!(word, "TLSv1" | "TLSv1.1" | "SSLv3")) {
                self.draft.different(node, "weir supports only TLS 1.2 and 1.3");
            }
            if !node.arguments().any(|word| word == "TLSv1.2") {
                tls.options.insert("min-version", "\"1.3\"".to_owned());
            }
        }
        let auth = match self.one(at, "ssl_verify_client").map(|node| node.argument(1)) {
            None | Some("off") => "",
            Some("optional") => "optional",
            _ => "require",
        };
        let authority = self.one(at, "ssl_client_certificate").and_then(|node| self.file(node));
        if !auth.is_empty() {
            // Without the required certificates it would be open.
            let authority = authority?;
            tls.options.insert("client-auth", literal(auth));
            tls.options.insert("client-ca", literal(&authority));
            if let Some(list) = self.one(at, "ssl_crl").and_then(|node| self.file(node)) {
                tls.options.insert("client-crl", literal(&list));
            }
        }
        if self.one(at, "ssl_session_tickets").is_some_and(|node| node.argument(1) == "off") {
            tls.options.insert("tickets", "#false".to_owned());
        }
        (!tls.certificates.is_empty()).then_some(tls)
    }

    /// Returns the path behind a directive.
    fn file(&mut self, node: &Node) -> Option<String> {
        let path = node.argument(1);
        if path.contains('$')
            || path.starts_with("engine:")
            || path.starts_with("store:")
            || path.starts_with("data:")
        {
            self.draft
                .lost(node, "weir reads certificates and keys only from files with plain paths");
            return None;
        }
        self.draft.file(node, path)
    }
}

/// Parses a time of nginx: a bare number is in seconds. Microseconds.
fn time(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 8] = [
        ("ms", 1_000),
        ("s", 1_000_000),
        ("m", 60_000_000),
        ("h", 3_600_000_000),
        ("d", 86_400_000_000),
        ("w", 604_800_000_000),
        ("M", 2_592_000_000_000),
        ("y", 31_536_000_000_000),
    ];
    let (mut total, mut rest) = (0_u64, text);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let letters = rest[digits..].bytes().take_while(u8::is_ascii_alphabetic).count();
        let number: u64 = rest[..digits].parse().ok()?;
        let unit = &rest[digits..digits + letters];
        let (_, scale) =
            UNITS.iter().find(|(name, _)| *name == unit || unit.is_empty() && *name == "s")?;
        total = total.checked_add(number.checked_mul(*scale)?)?;
        rest = &rest[digits + letters..];
        if letters == 0 && !rest.is_empty() {
            return None;
        }
    }
    (!text.is_empty()).then_some(total)
}

/// Parses a size of nginx, bytes.
fn size(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let scale = match text[digits..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units() {
        let times =
            [("60", 60_000_000), ("500ms", 500_000), ("1m30s", 90_000_000), ("1h", 3_600_000_000)];
        assert!(times.iter().all(|(text, us)| time(text) == Some(*us)));
        assert!(
            ["", "s", "5x", "99999999999999999999", "1.5s", "18446744073709551615y"]
                .iter()
                .all(|text| time(text).is_none())
        );
        assert_eq!(["10m", "8K", "1", "0"].map(size), [10 << 20, 8 << 10, 1, 0].map(Some));
        assert_eq!(["", "m", "1t", "1kk", "18446744073709551615g"].map(size), [None; 5]);
    }

    #[test]
    fn addresses_as_weir_writes_them() {
        for (text, ours) in [
            ("80", "0.0.0.0:80"),
            ("*:8080", "0.0.0.0:8080"),
            ("10.0.0.1", "10.0.0.1:80"),
            ("[::]:443", "[::]:443"),
            ("[::1]", "[::1]:80"),
            ("localhost:81", "127.0.0.1:81"),
            ("unix:/run/weir.sock", "unix:/run/weir.sock"),
        ] {
            assert_eq!(address(text), ours);
        }
    }
}
