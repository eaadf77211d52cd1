//! Caddy: sites become listeners and routes, each `reverse_proxy` an upstream. Called by `import`.
//!
//! Directives of a site have their own order: refusals come first and `reverse_proxy` last, more
//! specific paths before others; `order` converts it to weir's. Matchers are in `caddy/matcher.rs`,
//! `reverse_proxy` is in `caddy/proxy.rs`, all other directives in `caddy/fate.rs`.

mod answer;
mod encode;
mod fate;
mod limits;
mod matcher;
mod proxy;
mod read;
mod seen;

use std::cmp::Ordering;
use std::collections::HashMap;

use weir_proxy::plan::UNIX;
use weir_proxy::request::rules::edits::Side;

use self::seen::Seen;
use super::cases::{Case, Effect, Term, and_all, refused, said};
use super::draft::{Draft, ListenTls};
use super::missing::Missing;
use super::notes::Kind;
use super::order::{RULES_MAX, by_specificity, covers_path};
use super::route::Route;
use super::steps::Step;
use super::tree::{Node, ROOT, Tree};
use crate::problem::Errors;
use crate::reverse::literal;
use crate::texts;

/// Directives that group others.
const BLOCKS: [&str; 3] = ["handle", "handle_path", "route"];
/// Directives that keep some clients out.
const GUARDS: [&str; 6] =
    ["basic_auth", "basicauth", "forward_auth", "authorize", "authenticate", "jwtauth"];

/// Puts the whole configuration into the draft.
pub(super) fn import(draft: &mut Draft<'_>) -> Result<(), Errors> {
    let tree = read::read(draft)?;
    let mut caddy = Caddy::new(&tree, draft);
    for (at, node) in tree.children(ROOT) {
        match node.name() {
            "" => caddy.global(at),
            name if name.starts_with("&(") => caddy.draft.lost(node, "weir has no named routes"),
            _ => {}
        }
    }
    for (at, _) in tree
        .children(ROOT)
        .filter(|(_, node)| !node.name().is_empty() && !node.name().starts_with("&("))
    {
        caddy.site(at);
    }
    caddy.draft.keep_names_apart();
    Ok(())
}

/// The state of all parts.
struct Caddy<'t, 'd, 'a> {
    tree: &'t Tree,
    draft: &'d mut Draft<'a>,
    /// The ports of HTTP and of HTTPS.
    ports: (u16, u16),
    auto_https: bool,
    /// Clients without TLS are redirected to TLS.
    redirects: bool,
    /// Whether weir uses other addresses of clients than Caddy.
    others: Others,
    /// Upstreams by all of their settings; None: no usable one.
    upstreams: HashMap<String, Option<usize>>,
    /// The number of zones of `rate_limit` so far.
    zones: usize,
}

/// The addresses of clients that differ from weir's.
#[derive(Default)]
struct Others {
    /// Those of connections: a PROXY header names them.
    connections: bool,
    /// Those that proxies name: other proxies are trusted, or another field.
    believed: bool,
}

/// An address of a site.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    /// Empty: all hosts.
    host: String,
    port: u16,
    over_tls: bool,
}

/// The requests that a block of directives matches, and changes to them.
#[derive(Clone, Default)]
struct Scope {
    cases: Vec<Case>,
    seen: Seen,
    changes: Route,
}

impl<'t, 'd, 'a> Caddy<'t, 'd, 'a> {
    fn new(tree: &'t Tree, draft: &'d mut Draft<'a>) -> Caddy<'t, 'd, 'a> {
        Caddy {
            tree,
            draft,
            ports: (80, 443),
            auto_https: true,
            redirects: true,
            others: Others::default(),
            upstreams: HashMap::new(),
            zones: 0,
        }
    }

    fn site(&mut self, at: usize) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let group = self.draft.group(node.place, &node.shown());
        let addresses: Vec<Address> = node
            .words
            .iter()
            .flat_map(|word| word.split(','))
            .filter(|word| !word.is_empty())
            .filter_map(|word| {
                let found = self.address(word, tree.last(at, "tls").is_some());
                if found.is_none() {
                    self.draft.lost(node, format!("weir cannot listen on `{word}`"));
                }
                found
            })
            .collect();
        for address in &addresses {
            self.listen(at, group, address);
        }
        self.redirect_to_tls(at, &addresses);
        let hosts: Vec<Term> = vec![Term {
            not: false,
            any: addresses
                .iter()
                .map(|address| {
                    if address.host.is_empty() {
                        Effect::Always
                    } else {
                        Effect::Host(address.host.clone())
                    }
                })
                .collect(),
        }];
        let cases =
            if addresses.is_empty() { None } else { and_all(vec![Case::default()], &hosts) };
        let rules =
            self.rules(group, at, Scope { cases: cases.unwrap_or_default(), ..Scope::default() });
        let is_long = rules.len() > RULES_MAX;
        let ordered = by_specificity(rules);
        if is_long || !ordered.complete {
            self.draft.lost(
                node,
                "too many rules to convert to weir's order; some requests may go elsewhere",
            );
        }
        let leads = |other: &Route| ordered.routes.iter().any(|route| route.place == other.place);
        for route in ordered.unreached.iter().filter(|other| !leads(other)) {
            self.draft.note(
                route.place,
                Kind::Lost,
                &route.what,
                "no request reaches this: earlier rules take them all",
            );
        }
        ordered.routes.into_iter().for_each(|route| self.draft.route(route));
    }

    /// Parses `example.com:8443`, `http://example.com`, `:80`, `localhost`.
    fn address(&self, word: &str, has_tls: bool) -> Option<Address> {
        let (scheme, rest) = word.split_once("://").unwrap_or(("", word));
        let rest = rest.strip_suffix('/').unwrap_or(rest);
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
        Some(Address { host, port, over_tls })
    }

    fn listen(&mut self, at: usize, group: usize, address: &Address) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let mut tls = None;
        if address.over_tls {
            let Some(found) = self.tls(at, &address.host) else { return };
            tls = Some(found);
        }
        let ips: Vec<&str> = tree
            .last(at, "bind")
            .map_or_else(|| vec!["0.0.0.0"], |bind| bind.arguments().collect());
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
            let ip = if ip.contains(':') && !ip.starts_with('[') {
                format!("[{ip}]")
            } else {
                ip.to_owned()
            };
            self.draft.listen(group, node, &format!("{ip}:{}", address.port), tls.clone());
        }
    }

    /// Redirects clients without TLS at names of a site to TLS, unless another site handles them.
    fn redirect_to_tls(&mut self, at: usize, addresses: &[Address]) {
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
        let is_served = self.draft.groups.last().is_some_and(|group| !group.listens.is_empty());
        if !self.auto_https || !self.redirects || led.is_empty() || !is_served {
            return;
        }
        let what = format!("http:// of {}", node.shown());
        let group = self.draft.group(node.place, &what);
        self.listen(
            at,
            group,
            &Address { host: String::new(), port: self.ports.0, over_tls: false },
        );
        for Address { host, port, .. } in led {
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

    /// Returns the rules of a site in their effective order.
    fn rules(&mut self, group: usize, site: usize, scope: Scope) -> Vec<Route> {
        let tree = self.tree;
        let (mut rules, mut kept) = (Vec::new(), Vec::new());
        // Blocks and directives to come, the next one last.
        let mut rest: Vec<(usize, Scope)> = self.inside(site, scope);
        while let Some((at, scope)) = rest.pop() {
            if rules.len() > RULES_MAX {
                break;
            }
            let node = &tree.nodes[at];
            let Some(cases) = self.matched(at, &scope) else { continue };
            let scope = Scope { cases, ..scope };
            if BLOCKS.contains(&node.name()) {
                let inside = self.block(at, scope);
                rest.extend(inside);
                continue;
            }
            let base = Route { group, place: node.place, what: node.shown(), ..scope.changes };
            for step in self.steps(at, scope.cases, base) {
                match step {
                    Step::End(route) => rules.extend(self.draft.through(&kept, route)),
                    Step::Keep(_) => kept.push(step),
                }
            }
        }
        rules
    }

    /// Returns the effect of a directive on its requests.
    fn steps(&mut self, at: usize, cases: Vec<Case>, mut base: Route) -> Vec<Step> {
        let node = &self.tree.nodes[at];
        let name = node.name();
        if is_refusal(node) {
            let (cases, lost) = refused(cases);
            if lost {
                self.draft.lost(
                    node,
                    format!("{}; weir now accepts what this rejected", Missing::Criteria.why()),
                );
            }
            if matches!(name, "respond" | "error") {
                base.to = self.respond(at).unwrap_or_default();
            }
            return self.draft.refuse(node, cases, &base);
        }
        let led = match name {
            "redir" => self.redir(at, &base),
            "respond" => self.respond(at).map(|to| vec![(None, to)]),
            _ => self.proxy(at).map(|to| vec![(None, to)]),
        };
        let Some(led) = led else { return Vec::new() };
        if name == "reverse_proxy" {
            self.proxy_fields(at, &mut base);
        }
        let (cases, lost) = said(cases);
        if lost {
            self.draft.lost(node, Missing::Criteria.why());
        }
        let mut steps = Vec::new();
        for (scheme, to) in led {
            let of_scheme = |case: &Case| case.route(Route { to, ..base.clone() });
            let routes = cases.iter().map(of_scheme).filter(|route| {
                scheme.is_none() || route.scheme.is_none_or(|one| Some(one) == scheme)
            });
            steps.extend(
                routes.map(|route| Step::End(Route { scheme: route.scheme.or(scheme), ..route })),
            );
        }
        steps
    }

    /// Returns the contents of a `handle` or similar; `handle_path` strips its path.
    fn block(&mut self, at: usize, mut scope: Scope) -> Vec<(usize, Scope)> {
        let node = &self.tree.nodes[at];
        if node.name() == "handle_path" {
            let prefix = node.argument(1).trim_end_matches('*').trim_end_matches('/');
            if !prefix.is_empty() {
                let whole = format!("{}{prefix}", scope.seen.only().unwrap_or_default());
                scope.changes.strip = Some(whole);
                scope.seen.strip(prefix);
            }
        }
        self.inside(at, scope)
    }

    /// Returns the terminal directives inside a block, the first one last, each with the changes of
    /// the others.
    fn inside(&mut self, block: usize, mut scope: Scope) -> Vec<(usize, Scope)> {
        let tree = self.tree;
        let is_route = tree.nodes[block].name() == "route";
        let before = scope.clone();
        let mut found: Vec<(usize, usize, Scope)> = Vec::new();
        for (at, node) in tree.children(block) {
            match kind(node.name()) {
                Some(kind) => found.push((kind, at, scope.clone())),
                None => self.tell(at, &mut scope),
            }
        }
        if !is_route {
            // All terminal directives come behind those that change something, except `redir`,
            // which comes before paths are changed.
            for (kind, _, of) in &mut found {
                *of = scope.clone();
                if *kind == 0 {
                    let Route { strip, rewrites, .. } = before.changes.clone();
                    of.changes = Route { strip, rewrites, ..scope.changes.clone() };
                    of.seen = before.seen.clone();
                }
            }
            found = self.in_order(found);
        }
        found.into_iter().rev().map(|(_, at, scope)| (at, scope)).collect()
    }

    /// Sorts directives. Within a kind, longer paths come first if both have one path, and
    /// directives without a matcher behind those with one; otherwise the order of the text remains.
    /// Because this is no total order, directives are inserted one by one, as Caddy does it.
    fn in_order(&self, found: Vec<(usize, usize, Scope)>) -> Vec<(usize, usize, Scope)> {
        let tree = self.tree;
        let mut found: Vec<((usize, usize, Scope), &str)> = found
            .into_iter()
            .map(|one| (self.only_path(one.1), one))
            .map(|(path, one)| (one, path))
            .collect();
        found.sort_by_key(|((kind, ..), _)| *kind);
        // More than this are too many, which is noted.
        let last = found.len().min(RULES_MAX);
        for start in 1..last {
            for at in (1..=start).rev() {
                let [one, other] = [&found[at], &found[at - 1]];
                let has_matcher = |at: usize| tree.nodes[at].argument(1).starts_with(['/', '@']);
                let is_first = match (one.1, other.1) {
                    _ if one.0.0 != other.0.0 => false,
                    (one, other) if !one.is_empty() && !other.is_empty() => {
                        by_length(one, other) == Ordering::Less
                    }
                    _ => has_matcher(one.0.1) && !has_matcher(other.0.1),
                };
                if !is_first {
                    break;
                }
                found.swap(at, at - 1);
            }
        }
        found.into_iter().map(|(one, _)| one).collect()
    }

    /// Returns the cases of a directive in its block; None: its matcher never matches. With too
    /// many cases, a directive that keeps some clients out keeps all out.
    fn matched(&mut self, at: usize, within: &Scope) -> Option<Vec<Case>> {
        let node = &self.tree.nodes[at];
        let terms = self.matcher(at)?;
        let terms = within.seen.asked(terms, is_refusal(node));
        if is_refusal(node) {
            self.tell_of_case(node, &terms);
        }
        if let Some(cases) = and_all(within.cases.clone(), &terms) {
            if cases.is_empty() && !within.cases.is_empty() {
                self.draft.lost(node, "its matcher fits no request of weir's route for its block");
            }
            return Some(cases);
        }
        self.draft.lost(node, "its matcher has too many cases");
        let (tree, is_block) = (self.tree, BLOCKS.contains(&node.name()));
        let inside = if is_block { tree.below(at) } else { Vec::new() };
        let refuses = inside.into_iter().chain([at]).any(|at| is_refusal(&tree.nodes[at]));
        refuses.then(|| within.cases.iter().map(Case::all_but_some).collect())
    }

    /// Notes what is admitted that a refusal by path kept out: other spellings of it.
    fn tell_of_case(&mut self, node: &Node, terms: &[Term]) {
        let mut all = terms.iter().filter(|term| !term.not).flat_map(|term| &term.any);
        let path = all.find_map(|effect| match effect {
            Effect::Path(path) | Effect::Exactly(path) if path.contains(char::is_alphabetic) => {
                Some(path)
            }
            _ => None,
        });
        if let Some(path) = path {
            let other = if path.contains(char::is_lowercase) {
                path.to_uppercase()
            } else {
                path.to_lowercase()
            };
            let why = format!(
                "weir's paths are case-sensitive: it accepts `{other}` and the like, which this \
                    rejects"
            );
            self.draft.different(node, why);
        }
    }

    /// Converts fields that a block changes in all of its responses or requests.
    fn field_line(&mut self, at: usize, side: Side, scope: &mut Scope) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let (path, words) = match node.argument(1) {
            first if first.starts_with('/') => (first, &node.words[2..]),
            "*" => ("", &node.words[2..]),
            _ => ("", node.words.get(1..).unwrap_or_default()),
        };
        let prefix = path.trim_end_matches('*');
        let is_whole = path.is_empty()
            || path.ends_with('*')
                && scope.cases.iter().all(|case| covers_path(prefix, &case.path()));
        if !is_whole || node.argument(1).starts_with('@') {
            return self.draft.lost(
                node,
                "weir changes headers for all requests of a route; write a route for \
                    these requests",
            );
        }
        let mut lines: Vec<&[String]> =
            tree.children(at).map(|(_, line)| &line.words[..]).collect();
        if !words.is_empty() {
            lines.push(words);
        }
        for line in lines {
            let edit = self.field(node, side, line);
            match side {
                Side::Request => scope.changes.request.extend(edit),
                Side::Answer => scope.changes.answer.extend(edit),
            }
        }
    }
}

/// Returns the position of terminal directives in the order of Caddy.
fn kind(name: &str) -> Option<usize> {
    match name {
        "redir" => Some(0),
        name if GUARDS.contains(&name) => Some(1),
        "handle" | "handle_path" => Some(2),
        "route" => Some(3),
        "abort" | "error" => Some(4),
        "respond" => Some(5),
        "reverse_proxy" => Some(6),
        _ => None,
    }
}

/// Orders the longer path first; of two that differ in a final `*` the one without it.
fn by_length(one: &str, other: &str) -> Ordering {
    if one.trim_end_matches('*') == other.trim_end_matches('*') {
        one.len().cmp(&other.len())
    } else {
        other.len().cmp(&one.len())
    }
}

/// Whether it keeps some clients out: `respond 403` and similar, and authentication.
fn is_refusal(node: &Node) -> bool {
    let name = node.name();
    let code = || {
        node.arguments()
            .find(|word| word.len() == 3 && word.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let says_so = || code().is_some_and(|code| code.starts_with('4'));
    GUARDS.contains(&name) || matches!(name, "abort" | "error") || name == "respond" && says_so()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::Outside;
    use crate::import::tree::Sources;

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
                Some(Address { host: host.to_owned(), port, over_tls }),
                "{word}"
            );
        }
        for word in ["ftp://a", "a:x", "a/b", "a:70000"] {
            assert_eq!(caddy.address(word, false), None, "{word}");
        }
    }
}
