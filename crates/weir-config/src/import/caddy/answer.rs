//! `redir`, `respond` and `error` of Caddy.

use super::super::own_answer::Content;
use super::super::route::{Scheme, To};
use super::super::tree::Node;
use super::matcher::is_matcher;
use super::{Caddy, Scope};

/// Returns the words behind a directive and its matcher.
fn words(node: &Node) -> Vec<&str> {
    node.arguments().skip(usize::from(is_matcher(node.argument(1)))).collect()
}

impl Caddy<'_, '_, '_> {
    /// Returns the target of a `redir`, for each scheme where that matters. None: it has been
    /// noted.
    pub(super) fn redir(&mut self, at: usize, scope: &Scope) -> Option<Vec<(Option<Scheme>, To)>> {
        let node = &self.tree.nodes[at];
        let (to, status) = match words(node)[..] {
            [to] => (to, "302"),
            [to, "permanent"] => (to, "301"),
            [to, "temporary"] => (to, "302"),
            [to, status] => (to, status),
            _ => ("", ""),
        };
        let (schemes, rest) = match to.strip_prefix("{scheme}") {
            Some(rest) => (self.draft.schemes_of(scope.changes.group).map(Some).collect(), rest),
            None => (vec![None], to),
        };
        let rest = match self.text(rest, &scope.seen, true) {
            Ok(rest) => rest,
            Err(why) => {
                self.draft.lost(node, why);
                return None;
            }
        };
        let led = |scheme: Option<Scheme>| {
            let to = format!("{}{rest}", scheme.map_or("", Scheme::word));
            self.draft.redirect(node, status, &to).map(|to| (scheme, to))
        };
        schemes.into_iter().map(led).collect()
    }

    /// Returns the response of a `respond` or an `error`. None: it has been noted.
    pub(super) fn respond(&mut self, at: usize) -> Option<To> {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let is_status =
            |word: &str| word.len() == 3 && word.bytes().all(|byte| byte.is_ascii_digit());
        let is_error = node.name() == "error";
        let (body, status) = match words(node)[..] {
            [one] if is_status(one) => ("", one),
            [body] => (body, if is_error { "500" } else { "200" }),
            [body, status] => (body, status),
            _ => ("", if is_error { "500" } else { "200" }),
        };
        let body = tree.last(at, "body").map_or(body, |line| line.argument(1));
        // The text of an error is for its handler.
        let body = if is_error { "" } else { body };
        if has_placeholder(body) {
            self.draft.lost(
                node,
                "the text of `respond` is the same for all clients, without placeholders",
            );
            return None;
        }
        if let Some(line) = tree.last(at, "close") {
            self.draft.different(line, "weir keeps connections open");
        }
        let media_type = if body.starts_with(['{', '[']) { "application/json" } else { "" };
        self.draft.respond(node, status, Content { text: body, media_type, ..Content::default() })
    }
}

/// Whether a text contains a placeholder such as `{host}`.
fn has_placeholder(text: &str) -> bool {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '$')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-$".contains(c))
    };
    text.split('{').skip(1).any(|rest| rest.split_once('}').is_some_and(|(name, _)| is_name(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders() {
        assert!(
            ["{host}", "a {http.request.uri} b", "{$X}"].iter().all(|text| has_placeholder(text))
        );
        assert!(
            ["{\"ok\": true}", "{}", "{ host }", "a"].iter().all(|text| !has_placeholder(text))
        );
    }
}
