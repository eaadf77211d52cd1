//! Matchers of Caddy: `*`, a path, or `@name` with its definition, as a [`Test`].

use super::super::access::address;
use super::super::cases::Effect;
use super::super::route::{Condition, Scheme, refused};
use super::super::tree::Node;
use super::fate::PRIVATE;
use super::{Caddy, expression};
use crate::texts;

/// A condition for requests, as Caddy sees them where it is written.
#[derive(Debug, Clone)]
pub(super) enum Test {
    /// All of these; empty: always.
    All(Vec<Test>),
    /// One of these; empty: never.
    Any(Vec<Test>),
    Not(Box<Test>),
    /// A pattern of a path, in any case.
    Path(String),
    /// A regular expression for a path.
    Regex(String),
    /// Another condition that routes can express.
    Is(Effect),
    /// The handshake of a WebSocket. Routes cannot match Upgrade; they match a field that comes
    /// with it.
    Socket,
    /// A condition that routes cannot express.
    Unsaid,
}

impl Test {
    /// Whether it is true for all requests.
    pub(super) fn is_always(&self) -> bool {
        match self {
            Test::All(all) => all.iter().all(Test::is_always),
            Test::Any(any) => any.iter().any(Test::is_always),
            Test::Not(inner) => matches!(&**inner, Test::Any(any) if any.is_empty()),
            Test::Path(path) => path == "*" || path == "/*",
            _ => false,
        }
    }

    /// Returns it for a directive that keeps clients out: for that, a handshake is more than what
    /// routes can match.
    pub(super) fn without_sockets(self) -> Test {
        let each = |all: Vec<Test>| all.into_iter().map(Test::without_sockets).collect();
        match self {
            Test::All(all) => Test::All(each(all)),
            Test::Any(any) => Test::Any(each(any)),
            Test::Not(inner) => Test::Not(Box::new(inner.without_sockets())),
            Test::Socket => Test::Unsaid,
            other => other,
        }
    }

    pub(super) fn constant(is_true: bool) -> Test {
        if is_true { Test::All(Vec::new()) } else { Test::Any(Vec::new()) }
    }
}

/// Returns the condition that a path matches an expression; None: the table refuses it.
pub(super) fn path_condition(regex: String) -> Option<Condition> {
    let condition = Condition::of_path(regex, false);
    refused(&condition).is_none().then_some(condition)
}

/// Returns the expression for a pattern of a path; None: weir's paths have lost what it sees.
pub(super) fn path_regex(pattern: &str) -> Option<String> {
    if pattern.contains(['%', '{']) || pattern.contains("//") {
        return None;
    }
    let stars = pattern.matches('*').count();
    let simple = match (pattern.strip_prefix('*'), pattern.strip_suffix('*'), stars) {
        (Some(inner), Some(_), 2) => Some(regex::escape(inner.strip_suffix('*')?)),
        (Some(end), _, 1) => Some(format!("{}$", regex::escape(end))),
        (_, Some(start), 1) => Some(format!("^{}", regex::escape(start))),
        _ => None,
    };
    match simple {
        Some(simple) => Some(format!("(?i){simple}")),
        None => Some(format!("(?i)^{}$", glob(pattern)?)),
    }
}

/// Returns the expression for a pattern in which `*` and `?` stand for anything but `/`.
fn glob(pattern: &str) -> Option<String> {
    let mut out = String::new();
    for c in pattern.chars() {
        match c {
            '*' => out.push_str("[^/]*"),
            '?' => out.push_str("[^/]"),
            // A class, or an escaped character.
            '[' | '\\' => return None,
            c => out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
        }
    }
    Some(out)
}

/// Whether a path matches a pattern; None: unknown.
pub(super) fn path_matches(pattern: &str, path: &str) -> Option<bool> {
    regex_matches(&path_regex(pattern)?, path)
}

pub(super) fn regex_matches(regex: &str, text: &str) -> Option<bool> {
    regex::bytes::Regex::new(regex).ok().map(|regex| regex.is_match(text.as_bytes()))
}

/// Whether a value of a field meets a condition.
pub(super) fn value_matches(matches: Option<&(&'static str, String)>, value: &str) -> Option<bool> {
    Some(match matches {
        None => true,
        Some(("eq", text)) => value == text,
        Some(("prefix", text)) => value.starts_with(text.as_str()),
        Some(("suffix", text)) => value.ends_with(text.as_str()),
        Some(("regex", text)) => return regex_matches(text, value),
        Some(_) => return None,
    })
}

/// The start of a matcher.
pub(super) fn is_matcher(word: &str) -> bool {
    word.starts_with(['/', '@']) || word == "*"
}

/// Tests of one kind, of which one has to be true.
struct Kinds(Vec<(String, Vec<Test>)>);

impl Kinds {
    fn push(&mut self, kind: String, test: Test) {
        match self.0.iter_mut().find(|(known, _)| *known == kind && !kind.is_empty()) {
            Some((_, tests)) => tests.push(test),
            None => self.0.push((kind, vec![test])),
        }
    }

    fn test(self) -> Test {
        Test::All(self.0.into_iter().map(|(_, any)| Test::Any(any)).collect())
    }
}

impl<'t> Caddy<'t, '_, '_> {
    /// Returns the requests that a directive matches.
    pub(super) fn matcher(&mut self, at: usize) -> Test {
        let node = &self.tree.nodes[at];
        let has_matcher = match node.name() {
            "rewrite" | "method" | "root" => node.words.len() > 2,
            // The file of an `import` that cannot be read holds for all.
            "try_files" | "import" => false,
            _ => true,
        };
        match node.argument(1) {
            path if path.starts_with('/') && has_matcher => Test::Path(path.to_owned()),
            name if name.starts_with('@') => self.named(at, name),
            _ => Test::All(Vec::new()),
        }
    }

    /// Returns the path of a directive, if its matcher has exactly one; empty otherwise.
    pub(super) fn only_path(&self, at: usize) -> &'t str {
        let tree = self.tree;
        let name = tree.nodes[at].argument(1);
        if !name.starts_with('@') {
            return if name.starts_with('/') { name } else { "" };
        }
        let Some(found) = self.definition(at, name) else { return "" };
        let node = &tree.nodes[found];
        let mut paths: Vec<&str> = tree.named(found, "path").flat_map(Node::arguments).collect();
        if node.argument(1) == "path" {
            paths.extend(node.arguments().skip(1));
        }
        if let [only] = paths[..] { only } else { "" }
    }

    /// Returns the definition of a name, in the block of the directive or one around it.
    fn definition(&self, at: usize, name: &str) -> Option<usize> {
        let mut block = at;
        while block != 0 {
            block = self.tree.nodes[block].parent;
            if let Some(found) = self.tree.indices(block, name).last() {
                return Some(*found);
            }
        }
        None
    }

    fn named(&mut self, at: usize, name: &str) -> Test {
        let tree = self.tree;
        let Some(found) = self.definition(at, name) else {
            self.draft.lost(&tree.nodes[at], format!("unknown matcher {name}"));
            return Test::Unsaid;
        };
        let words = &tree.nodes[found].words[1..];
        match (words.split_first(), tree.nodes[found].is_block) {
            (None, true) => self.terms(found),
            (Some((kind, [])), true) if kind == "not" => Test::Not(Box::new(self.terms(found))),
            (Some((text, [])), false) if text.contains(['(', '{', '=']) => {
                self.expression(found, text)
            }
            (Some(_), false) => {
                let mut kinds = Kinds(Vec::new());
                self.line(found, words, &mut kinds);
                kinds.test()
            }
            // `expression` and the like with a block.
            _ => Test::Unsaid,
        }
    }

    /// Returns the conditions of the lines of a block together.
    pub(super) fn terms(&mut self, block: usize) -> Test {
        let tree = self.tree;
        let mut kinds = Kinds(Vec::new());
        for (inside, line) in tree.children(block) {
            self.line(inside, &line.words, &mut kinds);
        }
        kinds.test()
    }

    /// One line of a definition.
    fn line(&mut self, at: usize, words: &[String], kinds: &mut Kinds) {
        let Some((kind, values)) = words.split_first() else { return };
        let all = |kinds: &mut Kinds, tests: Vec<Test>| {
            tests.into_iter().for_each(|test| kinds.push(kind.clone(), test));
        };
        match (kind.as_str(), values) {
            ("not", []) if self.tree.nodes[at].is_block => {
                let inner = self.terms(at);
                kinds.push(String::new(), Test::Not(Box::new(inner)));
            }
            ("not", [_, ..]) => {
                let mut inner = Kinds(Vec::new());
                self.line(at, values, &mut inner);
                kinds.push(String::new(), Test::Not(Box::new(inner.test())));
            }
            ("path", values) => {
                // An unset variable leaves nothing.
                let test = |path: &String| {
                    if path.is_empty() { Test::Unsaid } else { Test::Path(path.clone()) }
                };
                all(kinds, values.iter().map(test).collect());
            }
            ("host", values) => all(kinds, values.iter().map(|host| host_test(host)).collect()),
            ("method", values) => {
                let methods: Vec<String> =
                    values.iter().map(|method| method.to_ascii_uppercase()).collect();
                let is_fine = methods.iter().all(|method| texts::method(method).is_ok());
                let test = if is_fine { Test::Is(Effect::Methods(methods)) } else { Test::Unsaid };
                kinds.push(kind.clone(), test);
            }
            ("path_regexp", [regex] | [_, regex]) => {
                kinds.push(String::new(), Test::Regex(regex.clone()));
            }
            ("header", [name]) => kinds.push(format!("header {name}"), header(name, None)),
            ("header", [name, value]) => {
                let key = format!("header {}", name.to_ascii_lowercase());
                let test = header(name, Some(value));
                if matches!(test, Test::Socket) {
                    let why = "weir recognizes a WebSocket handshake by Sec-WebSocket-Key";
                    self.draft.different_once(&self.tree.nodes[at], why);
                }
                kinds.push(key, test);
            }
            ("header_regexp", [name, regex] | [_, name, regex]) => {
                let test = condition("header", name, Some(("regex", regex.clone())));
                kinds.push(String::new(), test);
            }
            ("query", values) => {
                for pair in values {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, "*"));
                    kinds.push(format!("query {name}"), query(name, value));
                }
            }
            ("remote_ip" | "client_ip", values) => {
                let test = self.clients(kind, values).map_or(Test::Unsaid, Test::Is);
                kinds.push(kind.clone(), test);
            }
            ("protocol", [scheme]) if scheme == "https" || scheme == "http" => {
                kinds.push(String::new(), Test::Is(Effect::Scheme(Scheme::of(scheme == "https"))));
            }
            ("protocol", [grpc]) if grpc == "grpc" => {
                let value = ("prefix", "application/grpc".to_owned());
                kinds.push(String::new(), condition("header", "Content-Type", Some(value)));
            }
            ("expression", [text]) => kinds.push(String::new(), self.expression(at, text)),
            ("expression", [_, _, ..]) => {
                kinds.push(String::new(), self.expression(at, &values.join(" ")));
            }
            _ => kinds.push(String::new(), Test::Unsaid),
        }
    }

    fn expression(&mut self, at: usize, text: &str) -> Test {
        let mut function = |words: &[String]| {
            let mut kinds = Kinds(Vec::new());
            let is_matcher = words[0] != "not" && words[0] != "expression";
            if is_matcher {
                self.line(at, words, &mut kinds);
            }
            if kinds.0.is_empty() { Test::Unsaid } else { kinds.test() }
        };
        expression::test(text, &mut function).unwrap_or(Test::Unsaid)
    }

    /// Converts clients by their addresses. If proxies are trusted, weir uses other addresses than
    /// those of connections. If Caddy gets addresses from elsewhere, none of its addresses are
    /// those of weir.
    fn clients(&self, kind: &str, values: &[String]) -> Option<Effect> {
        let mut whom = Vec::new();
        for value in values {
            match value.as_str() {
                "private_ranges" => whom.extend(PRIVATE.iter().filter_map(|range| address(range))),
                value => whom.push(address(value)?),
            }
        }
        let is_other = match kind {
            "remote_ip" => self.draft.client_lines.contains_key("trusted-proxies"),
            _ => self.others.believed,
        };
        let is_other = is_other || self.others.connections;
        (!whom.is_empty() && !is_other).then_some(Effect::Clients(whom))
    }
}

pub(super) fn host_test(host: &str) -> Test {
    match texts::host_pattern(&host.to_ascii_lowercase()) {
        Ok(host) => Test::Is(Effect::Host(host)),
        Err(_) => Test::Unsaid,
    }
}

pub(super) fn condition(
    subject: &'static str,
    name: &str,
    matches: Option<(&'static str, String)>,
) -> Test {
    let condition = Condition { subject, name: name.to_owned(), matches, not: false };
    let has_placeholder =
        condition.matches.as_ref().is_some_and(|(kind, text)| *kind != "regex" && is_open(text));
    if has_placeholder || refused(&condition).is_some() {
        Test::Unsaid
    } else {
        Test::Is(Effect::Condition(condition))
    }
}

/// Whether a text may contain a placeholder.
fn is_open(text: &str) -> bool {
    text.contains('{')
}

/// Converts a field. Its value may begin or end with `*`; with `!` in front it is absent.
fn header(name: &str, value: Option<&str>) -> Test {
    let Some(value) = value else {
        return match name.strip_prefix('!') {
            Some(absent) => Test::Not(Box::new(condition("header", absent, None))),
            None => condition("header", name, None),
        };
    };
    let is_socket = match name.to_ascii_lowercase().as_str() {
        "connection" => value.trim_matches('*').eq_ignore_ascii_case("upgrade"),
        "upgrade" => value.trim_matches('*').eq_ignore_ascii_case("websocket"),
        _ => false,
    };
    if is_socket {
        return Test::Socket;
    }
    let matches = match (value.strip_prefix('*'), value.strip_suffix('*')) {
        (Some(""), _) => None,
        (Some(rest), Some(_)) => {
            Some(("regex", regex::escape(rest.strip_suffix('*').unwrap_or(rest))))
        }
        (Some(suffix), None) => Some(("suffix", suffix.to_owned())),
        (None, Some(prefix)) => Some(("prefix", prefix.to_owned())),
        (None, None) => Some(("eq", value.to_owned())),
    };
    let is_placeholder = is_open(value);
    if is_placeholder { Test::Unsaid } else { condition("header", name, matches) }
}

fn query(name: &str, value: &str) -> Test {
    condition("query", name, (value != "*").then(|| ("eq", value.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_paths() {
        for (pattern, regex) in [
            ("/a/*", Some("(?i)^/a/")),
            ("/a*", Some("(?i)^/a")),
            ("*.php", Some("(?i)\\.php$")),
            ("*x*", Some("(?i)x")),
            ("/a/*/c", Some("(?i)^/a/[^/]*/c$")),
            ("/a/*/c*", Some("(?i)^/a/[^/]*/c[^/]*$")),
            ("/a", Some("(?i)^/a$")),
            ("/a%2f", None),
            ("/{x}", None),
            ("/a//b", None),
            ("/[ab]", None),
        ] {
            assert_eq!(path_regex(pattern).as_deref(), regex, "{pattern}");
        }
        assert_eq!(path_matches("/A/*", "/a/b"), Some(true));
        assert_eq!(path_matches("/a", "/a/"), Some(false));
    }
}
