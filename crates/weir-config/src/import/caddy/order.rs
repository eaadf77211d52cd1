//! The order in which Caddy applies the directives of a block, whatever their order in the text.

use std::cmp::Ordering;

use super::super::tree::Node;
use super::{Caddy, GUARDS};

/// Directives that are put in order; more than these keep the order of the text.
const SORTED_MAX: usize = 1000;

/// Caddy's own order. `handle_path` is in it as `handle`, and the first ones are those that it does
/// not know: they may keep clients out.
pub(super) const ORDER: [&str; 29] = [
    "header",
    "redir",
    "method",
    "rewrite",
    "uri",
    "try_files",
    "basicauth",
    "basic_auth",
    "forward_auth",
    "request_header",
    "encode",
    "push",
    "intercept",
    "templates",
    "invoke",
    "handle",
    "route",
    "abort",
    "error",
    "copy_response",
    "respond",
    "metrics",
    "reverse_proxy",
    "php_fastcgi",
    "file_server",
    "acme_server",
    "log",
    "root",
    "vars",
];

/// The place of a directive.
pub(super) enum Role {
    /// It does not affect the target of a request, or applies to a whole block.
    Quiet,
    /// It has, where its turn comes.
    Acts,
}

/// Returns the place of a directive.
pub(super) fn role(name: &str) -> Role {
    const QUIET: [&str; 22] = [
        "tls",
        "bind",
        "root",
        "vars",
        "map",
        "fs",
        "tracing",
        "log",
        "log_append",
        "log_name",
        "log_skip",
        "skip_log",
        "push",
        "cache",
        "encode",
        "brotli",
        "intercept",
        "handle_errors",
        "request_body",
        "rate_limit",
        "copy_response",
        "copy_response_headers",
    ];
    let is_quiet = name.starts_with('@') || QUIET.contains(&name);
    if is_quiet { Role::Quiet } else { Role::Acts }
}

impl Caddy<'_, '_, '_> {
    /// Converts `order NAME before NAME` and the like.
    pub(super) fn global_order(&mut self, line: &Node) {
        let name = normal(line.argument(1)).to_owned();
        let order = &mut self.order;
        order.retain(|other| *other != name);
        let place = |order: &[String], other: &str| {
            order.iter().position(|known| *known == normal(other)).unwrap_or(0)
        };
        let at = match line.argument(2) {
            "last" => order.len(),
            "before" => place(order, line.argument(3)),
            "after" => (place(order, line.argument(3)) + 1).min(order.len()),
            _ => 0,
        };
        order.insert(at, name);
    }

    /// Returns the place of a directive in the order; those that it does not have come first.
    pub(super) fn place(&self, name: &str) -> usize {
        let name = normal(name);
        self.order.iter().position(|known| known == name).map_or(0, |at| at + 1)
    }

    /// Sorts directives. Within a kind, longer paths come first if both have one path, and
    /// directives without a matcher behind those with one; otherwise the order of the text remains.
    /// Because this is no total order, directives are inserted one by one, as Caddy does it.
    pub(super) fn in_order(&self, found: Vec<usize>) -> Vec<usize> {
        let tree = self.tree;
        let mut found: Vec<(usize, usize, &str)> = found
            .into_iter()
            .map(|at| (self.place(tree.nodes[at].name()), at, self.only_path(at)))
            .collect();
        found.sort_by_key(|(place, ..)| *place);
        let last = found.len().min(SORTED_MAX);
        for start in 1..last {
            for at in (1..=start).rev() {
                let [one, other] = [found[at], found[at - 1]];
                let has_matcher = |at: usize| tree.nodes[at].argument(1).starts_with(['/', '@']);
                let is_first = match (one.2, other.2) {
                    _ if one.0 != other.0 => false,
                    (one, other) if !one.is_empty() && !other.is_empty() => {
                        by_length(one, other) == Ordering::Less
                    }
                    _ => has_matcher(one.1) && !has_matcher(other.1),
                };
                if !is_first {
                    break;
                }
                found.swap(at, at - 1);
            }
        }
        found.into_iter().map(|(_, at, _)| at).collect()
    }
}

fn normal(name: &str) -> &str {
    match name {
        "handle_path" => "handle",
        name if name == GUARDS[1] => GUARDS[0],
        name => name,
    }
}

/// Orders the longer path first; of two that differ in a final `*` the one without it.
fn by_length(one: &str, other: &str) -> Ordering {
    let [a, b] = [one, other].map(|path| path.strip_suffix('*').unwrap_or(path));
    if a == b {
        return one.len().cmp(&other.len());
    }
    b.len().cmp(&a.len()).then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_paths_are_first() {
        let mut all = ["/a*", "/b", "/a", "/a/b/*", "/a/*"];
        all.sort_by(|one, other| by_length(one, other));
        assert_eq!(all, ["/a/b/*", "/a/*", "/a", "/a*", "/b"]);
    }
}
