//! Matchers of Caddy: `*`, a path, or `@name` with its definition.

use super::super::access::address;
use super::super::cases::{Effect, Term};
use super::super::missing::{CASE, EXACT, SEGMENTS};
use super::super::route::{Condition, Scheme};
use super::super::tree::Node;
use super::Caddy;
use super::fate::PRIVATE;

impl<'t> Caddy<'t, '_, '_> {
    /// Returns the requests that a directive matches; empty: all. None: its matcher is not defined.
    pub(super) fn matcher(&mut self, at: usize) -> Option<Vec<Term>> {
        let tree = self.tree;
        let node = &tree.nodes[at];
        match node.argument(1) {
            path if path.starts_with('/') => {
                Some(vec![Term { not: false, any: vec![self.path(node, path)] }])
            }
            name if name.starts_with('@') => self.named(at, name),
            _ => Some(Vec::new()),
        }
    }

    /// Returns the path of a directive, if its matcher has exactly one; empty otherwise.
    pub(super) fn only_path(&self, at: usize) -> &'t str {
        let tree = self.tree;
        let name = tree.nodes[at].argument(1);
        if !name.starts_with('@') {
            return if name.starts_with('/') { name } else { "" };
        }
        let mut block = at;
        while block != 0 {
            block = tree.nodes[block].parent;
            let Some(found) = tree.indices(block, name).last() else { continue };
            let node = &tree.nodes[*found];
            let mut paths: Vec<&str> =
                tree.named(*found, "path").flat_map(Node::arguments).collect();
            if node.argument(1) == "path" {
                paths.extend(node.arguments().skip(1));
            }
            return if let [only] = paths[..] { only } else { "" };
        }
        ""
    }

    /// Returns the definition of a name, in the block of the directive or one around it.
    fn named(&mut self, at: usize, name: &str) -> Option<Vec<Term>> {
        let tree = self.tree;
        let mut block = at;
        while block != 0 {
            block = tree.nodes[block].parent;
            let Some(found) = tree.indices(block, name).last() else { continue };
            let node = &tree.nodes[*found];
            if !node.is_block {
                return Some(self.line(node, &node.words[1..], false).into_iter().collect());
            }
            return Some(self.terms(*found));
        }
        self.draft.lost(&tree.nodes[at], format!("unknown matcher {name}"));
        None
    }

    /// Returns the conditions of the lines of a block together.
    pub(super) fn terms(&mut self, block: usize) -> Vec<Term> {
        let tree = self.tree;
        let mut terms: Vec<Term> = Vec::new();
        let mut seen: Vec<&str> = Vec::new();
        for (inside, line) in tree.children(block) {
            // Several lines of one kind are one set.
            let kind = line.name();
            let again = seen
                .iter()
                .position(|other| *other == kind && matches!(kind, "path" | "host" | "method"));
            if kind == "not" && line.is_block {
                let lines = tree
                    .children(inside)
                    .flat_map(|(_, line)| self.line(line, &line.words, true))
                    .collect::<Vec<_>>();
                // No single case can express the negation of several conditions.
                let one = if lines.len() == 1 {
                    lines
                } else {
                    vec![Term { not: true, any: vec![Effect::Unsaid] }]
                };
                terms.extend(one);
                seen.push(kind);
            } else if let Some(term) = self.line(line, &line.words, false) {
                match again {
                    Some(first) if first < terms.len() => terms[first].any.extend(term.any),
                    _ => {
                        terms.push(term);
                        seen.push(kind);
                    }
                }
            }
        }
        terms
    }

    /// One line of a definition.
    fn line(&mut self, node: &Node, words: &[String], not: bool) -> Option<Term> {
        let (kind, values) = words.split_first()?;
        if kind == "not" {
            return self.simple(node, values).map(|term| Term { not: !not, ..term });
        }
        self.simple(node, words).map(|term| Term { not, ..term })
    }

    fn simple(&mut self, node: &Node, words: &[String]) -> Option<Term> {
        let (kind, values) = words.split_first()?;
        let any = match (kind.as_str(), values) {
            ("path", values) => values.iter().map(|path| self.path(node, path)).collect(),
            ("host", values) => {
                values.iter().map(|host| Effect::Host(host.to_ascii_lowercase())).collect()
            }
            ("method", values) => {
                vec![Effect::Methods(
                    values.iter().map(|method| method.to_ascii_uppercase()).collect(),
                )]
            }
            ("header", [name]) => vec![header(name, None)],
            ("header", [name, value]) => vec![header(name, Some(value))],
            ("header_regexp", [.., name, regex]) => {
                vec![condition("header", name, Some(("regex", regex.clone())))]
            }
            ("query", values) => values.iter().map(|pair| query(pair)).collect(),
            ("remote_ip" | "client_ip", values) => vec![self.clients(kind, values)],
            ("protocol", [scheme]) if scheme == "https" || scheme == "http" => {
                vec![Effect::Scheme(Scheme::of(scheme == "https"))]
            }
            _ => vec![Effect::Unsaid],
        };
        Some(Term { not: false, any })
    }

    /// Converts clients by their addresses. If proxies are trusted, weir uses other addresses than
    /// those of connections. If Caddy gets addresses from elsewhere, none of its addresses are
    /// those of weir.
    fn clients(&self, kind: &str, values: &[String]) -> Effect {
        let mut whom = Vec::new();
        for value in values {
            match value.as_str() {
                "private_ranges" => whom.extend(PRIVATE.iter().filter_map(|range| address(range))),
                value => match address(value) {
                    Some(range) => whom.push(range),
                    None => return Effect::Unsaid,
                },
            }
        }
        let is_other = match kind {
            "remote_ip" => self.draft.client_lines.contains_key("trusted-proxies"),
            _ => self.others.believed,
        };
        let is_other = is_other || self.others.connections;
        if whom.is_empty() || is_other { Effect::Unsaid } else { Effect::Clients(whom) }
    }

    /// Converts a path, which may end with `*`.
    fn path(&mut self, node: &Node, path: &str) -> Effect {
        let prefix = path.strip_suffix('*').unwrap_or(path);
        if prefix.contains(['*', '{', '%']) || !prefix.starts_with('/') {
            return Effect::Unsaid;
        }
        if prefix.contains(|c: char| c.is_alphabetic()) {
            self.draft.different_once(node, CASE);
        }
        if prefix == path && !path.ends_with('/') {
            return Effect::Exactly(path.to_owned());
        }
        if prefix == path {
            self.draft.different(node, EXACT);
        } else if !prefix.ends_with('/') {
            self.draft.different_once(node, SEGMENTS);
        }
        Effect::Path(prefix.to_owned())
    }
}

fn condition(subject: &'static str, name: &str, matches: Option<(&'static str, String)>) -> Effect {
    Effect::Condition(Condition { subject, name: name.to_owned(), matches, not: false })
}

/// Converts a field, whose value may begin or end with `*`; `!` in front: it is absent.
fn header(name: &str, value: Option<&str>) -> Effect {
    let Some(value) = value else {
        let Some(absent) = name.strip_prefix('!') else { return condition("header", name, None) };
        return Effect::Condition(Condition {
            subject: "header",
            name: absent.to_owned(),
            matches: None,
            not: true,
        });
    };
    let matches = match (value.strip_prefix('*'), value.strip_suffix('*')) {
        (Some(""), _) => None,
        (Some(rest), Some(_)) => Some(("regex", regex::escape(rest.trim_end_matches('*')))),
        (Some(suffix), None) => Some(("suffix", suffix.to_owned())),
        (None, Some(prefix)) => Some(("prefix", prefix.to_owned())),
        (None, None) => Some(("eq", value.to_owned())),
    };
    condition("header", name, matches)
}

fn query(pair: &str) -> Effect {
    let (name, value) = pair.split_once('=').unwrap_or((pair, "*"));
    condition("query", name, (value != "*").then(|| ("eq", value.to_owned())))
}
