//! `map $ssl_preread_server_name` of nginx, as `sni` of a `tcp`.

use super::super::super::tcp::{Lead, Tcp, has_room};
use super::super::super::tree::Node;
use super::Stream;
use crate::texts;

/// The variable with the name that a client asks for.
const ASKED: &str = "$ssl_preread_server_name";

/// Lines of a `map` that are no values.
const OPTIONS: [&str; 3] = ["hostnames", "volatile", "include"];

impl<'t> Stream<'_, 't, '_, '_> {
    /// Sets the targets of a server whose `proxy_pass` is a variable.
    pub(super) fn by_name(&mut self, tcp: &mut Tcp, at: usize, pass: &'t Node, variable: &str) {
        let tree = self.nginx.tree;
        let variable = format!("${}", variable.trim_start_matches('{').trim_end_matches('}'));
        let mut maps = self.tops.iter().flat_map(|top| tree.indices(*top, "map")).copied();
        let map = maps.rfind(|map| tree.nodes[*map].argument(2) == variable);
        let Some(map) = map.filter(|map| tree.nodes[*map].argument(1) == ASKED) else {
            let why = format!(
                "weir chooses servers of connections only by the TLS name: a `map` of `{ASKED}`"
            );
            return self.nginx.draft.lost(pass, why);
        };
        self.maps.insert(map);
        if !self.is_on(at, "ssl_preread") {
            let why = "without `ssl_preread on`, no name is known: all connections go to `default`";
            self.nginx.draft.different(pass, why);
        } else if has_room(self.nginx.draft, tree.nodes[map].children.len()) {
            self.names(tcp, at, map);
        } else {
            self.nginx
                .draft
                .lost(pass, "there are too many names already: all connections go to `default`");
        }
        let default = tree.last(map, "default");
        tcp.to = default.and_then(|node| self.value(at, node));
        if let Some(nameless) = tree
            .last(map, "")
            .filter(|node| default.is_none_or(|one| one.argument(1) != node.argument(1)))
        {
            let why = "weir treats clients without a name like clients that request another name";
            self.nginx.draft.different(nameless, why);
        }
        if !tcp.leads_somewhere() {
            self.nginx.draft.lost(pass, "none of the values of its `map` could be carried over");
        }
    }

    /// Adds all names except the default: exact names first, then domains, as in weir.
    fn names(&mut self, tcp: &mut Tcp, at: usize, map: usize) {
        let tree = self.nginx.tree;
        let knows_domains = !tree.indices(map, "hostnames").is_empty();
        let mut domains: Vec<(String, &Node)> = Vec::new();
        let mut exact: Vec<(String, &Node)> = Vec::new();
        for (_, node) in tree.children(map) {
            // `\default` is a name.
            let name = node.name().strip_prefix('\\').unwrap_or(node.name()).to_ascii_lowercase();
            if matches!(node.name(), "default" | "")
                || OPTIONS.contains(&node.name()) && node.words.len() < 2
            {
                continue;
            }
            let domain =
                name.strip_prefix("*.").or(name.strip_prefix('.')).filter(|_| knows_domains);
            let patterns = match domain {
                Some(domain) if name.starts_with('.') => {
                    vec![domain.to_owned(), format!("*.{domain}")]
                }
                Some(domain) => vec![format!("*.{domain}")],
                None => vec![name.clone()],
            };
            for pattern in patterns {
                let is_domain = pattern.starts_with("*.");
                match texts::host_pattern(&pattern) {
                    Ok(_) if name.starts_with('~') || is_domain && domain.is_none() => {
                        self.no_name(node, &name)
                    }
                    Ok(pattern) if is_domain => domains.push((pattern, node)),
                    Ok(pattern) if pattern != "*" => exact.push((pattern, node)),
                    _ => self.no_name(node, &name),
                }
            }
        }
        // The longest domain also counts in nginx; of equals nginx takes one.
        domains.sort_by_key(|(domain, _)| std::cmp::Reverse(domain.len()));
        for (name, node) in exact.into_iter().chain(domains) {
            let lead = self.value(at, node);
            if !tcp.name(&name, lead.unwrap_or(Lead::Closed)) {
                self.nginx
                    .draft
                    .lost(node, format!("`{name}` is listed twice; weir uses the first one"));
            }
        }
    }

    fn no_name(&mut self, node: &Node, name: &str) {
        let why = format!(
            "weir does not support the name `{name}`: it takes names and `*.` with a domain; \
                clients that request it go to `default`"
        );
        self.nginx.draft.lost(node, why);
    }

    /// Returns the target of a line of a `map`; None: it has none that weir could use, which has
    /// been noted.
    fn value(&mut self, at: usize, node: &Node) -> Option<Lead> {
        let target = node.argument(1);
        if target.is_empty() {
            return None;
        }
        let upstream = if target.contains('$') { None } else { self.upstream(node, target, at) };
        if upstream.is_none() {
            let why = "none of its servers could be carried over: weir resets these connections";
            self.nginx.draft.lost(node, why);
        }
        upstream.map(Lead::Upstream)
    }
}
