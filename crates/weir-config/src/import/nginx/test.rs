//! The test of an `if` of nginx, as conditions of routes.
//!
//! nginx compares the first value of a field or parameter; weir looks at all of them. A request
//! that a test keeps out is kept out with any of its values. Maps and address lists (`map`, `geo`)
//! are looked up where they have one source. Bound: [`CASES_MAX`] cases of one test.

use std::net::IpAddr;

use super::super::access::address;
use super::super::begin::begin_of;
use super::super::route::{Condition, Scheme, refused};
use super::super::tree::{Node, ROOT};
use super::paths::expression;
use super::{Nginx, Server, constants::variable};
use crate::texts;

/// Cases of one test.
const CASES_MAX: usize = 64;

/// The requests for which an `if` acts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Test {
    /// Those of one of these.
    Cases(Vec<Case>),
    /// Those with another method.
    OtherMethods(Vec<String>),
    /// Those for some hosts.
    Host(HostTest),
    /// Those from these addresses, or from all others if true.
    Clients(Vec<String>, bool),
    Always,
    Never,
    /// Routes cannot tell.
    Unsaid,
}

impl Test {
    /// Whether it looks at the path.
    pub(super) fn is_of_path(&self) -> bool {
        match self {
            Test::Cases(cases) => cases
                .iter()
                .flat_map(|case| &case.conditions)
                .any(|condition| condition.subject == "path"),
            _ => false,
        }
    }
}

/// A test of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostTest {
    /// A text, or an expression if true.
    pub(super) text: String,
    is_expression: bool,
    not: bool,
}

impl HostTest {
    /// Whether requests for a host fit. None: some may.
    pub(super) fn fits(&self, host: &str) -> Option<bool> {
        if !self.is_expression && self.text == host {
            return Some(!self.not);
        }
        if host.starts_with('*') {
            // A name without `*` has a separate route.
            return if self.is_expression { None } else { Some(self.not) };
        }
        let fits = if self.is_expression {
            regex::Regex::new(&self.text).ok()?.is_match(host)
        } else {
            self.text == host
        };
        Some(fits != self.not)
    }

    /// Returns the only name that it asks for.
    pub(super) fn name(&self) -> Option<&str> {
        (!self.is_expression).then_some(&*self.text)
    }
}

/// The attributes of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) scheme: Option<Scheme>,
    pub(super) methods: Vec<String>,
    pub(super) conditions: Vec<Condition>,
}

impl Case {
    fn of(conditions: Vec<Condition>) -> Case {
        Case { conditions, ..Case::default() }
    }
}

/// How a value is compared, without `!`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equals,
    /// An expression; true: in any case.
    Matches(bool),
}

impl Nginx<'_, '_, '_> {
    /// Returns the test of an `if`.
    pub(super) fn test(&mut self, server: &Server, at: usize) -> Test {
        let words = self.tree.nodes[at].arguments().collect::<Vec<_>>().join(" ");
        let inside = words.strip_prefix('(').and_then(|words| words.strip_suffix(')'));
        let Some(inside) = inside.map(str::trim) else { return Test::Unsaid };
        match inside.split_once(' ').map(|(word, _)| word) {
            // weir has no files.
            Some("!-f" | "!-d" | "!-e" | "!-x") => return Test::Always,
            Some("-f" | "-d" | "-e" | "-x") => return Test::Never,
            _ => {}
        }
        if !inside.starts_with('$') {
            return Test::Unsaid;
        }
        let (whole, name) = variable(inside);
        let rest = inside[whole.len()..].trim_start();
        let operators = ["!~*", "!~", "!=", "~*", "~", "="];
        let Some(operator) = operators.into_iter().find(|operator| rest.starts_with(operator))
        else {
            return if rest.is_empty() { self.is_set(server, at, name) } else { Test::Unsaid };
        };
        let value = rest[operator.len()..].trim();
        let not = operator.starts_with('!');
        let operator = match operator.trim_start_matches('!') {
            "=" => Operator::Equals,
            kind => Operator::Matches(kind == "~*"),
        };
        let value = match operator {
            Operator::Equals => self.resolve(server, at, value),
            Operator::Matches(_) => value.to_owned(),
        };
        if operator == Operator::Equals && value.contains('$') {
            return Test::Unsaid;
        }
        self.compared(server, at, name, (operator, not, &value))
    }

    /// Tests whether a variable is neither empty nor 0.
    fn is_set(&mut self, server: &Server, at: usize, name: &str) -> Test {
        if let Some(value) = self.known(server, at, name) {
            let value = self.resolve(server, at, &value);
            return match value.as_str() {
                "" | "0" => Test::Never,
                _ if value.contains('$') => Test::Unsaid,
                _ => Test::Always,
            };
        }
        if name == "https" {
            return Test::Cases(vec![Case { scheme: Some(Scheme::Https), ..Case::default() }]);
        }
        if let Some(found) = self.looked_up(server, at, name, |value| !matches!(value, "" | "0")) {
            return found;
        }
        let Some((subject, name)) = field(name) else { return Test::Unsaid };
        let one = |matches: (&'static str, &str), not| Condition {
            subject,
            name: name.clone(),
            matches: Some((matches.0, matches.1.to_owned())),
            not,
        };
        cases(vec![vec![one(("regex", "."), false), one(("eq", "0"), true)]])
    }

    fn compared(
        &mut self,
        server: &Server,
        at: usize,
        name: &str,
        (operator, not, value): (Operator, bool, &str),
    ) -> Test {
        if let Some(known) = self.known(server, at, name) {
            let known = self.resolve(server, at, &known);
            return match fits(operator, value, &known) {
                Some(fits) if !known.contains('$') => {
                    if fits == not {
                        Test::Never
                    } else {
                        Test::Always
                    }
                }
                _ => Test::Unsaid,
            };
        }
        let scheme = |over_tls: bool| {
            let scheme = Some(Scheme::of(over_tls != not));
            Test::Cases(vec![Case { scheme, ..Case::default() }])
        };
        match (name, operator) {
            ("request_method", _) => methods(operator, not, value),
            ("scheme" | "http_x_forwarded_proto" | "http_x_forwarded_scheme", Operator::Equals)
                if matches!(value, "http" | "https") =>
            {
                if name != "scheme" {
                    let why = "weir takes the scheme from X-Forwarded-Proto only of \
                        `trusted-proxies`: name the proxy in front there";
                    self.draft.different(&self.tree.nodes[at], why);
                }
                scheme(value == "https")
            }
            ("https", Operator::Equals) if matches!(value, "on" | "") => scheme(value == "on"),
            // With a port or in another case it is not the same text.
            ("http_host", _) if not => Test::Unsaid,
            ("host" | "http_host", _) => host(operator, not, value),
            ("remote_addr" | "binary_remote_addr", Operator::Equals)
                if value.parse::<IpAddr>().is_ok() && self.tells_clients =>
            {
                address(value).map_or(Test::Unsaid, |one| Test::Clients(vec![one], not))
            }
            ("uri" | "document_uri", _) => path(operator, not, value),
            ("request_uri", Operator::Matches(any_case)) => {
                // It is as the client wrote it, with the query: more ways of writing a path can
                // only be rejected by what begins it.
                let bare = value.trim_end_matches("(.*)").trim_end_matches(".*").replace('\\', "");
                let is_begin = bare.strip_prefix('^') == Some(&begin_of(value));
                let is_path = begin_of(value).starts_with('/') && !any_case && !not && is_begin;
                if is_path { path(operator, not, value) } else { Test::Unsaid }
            }
            _ => {
                let asked =
                    |text: &str| fits(operator, value, text).is_some_and(|fits| fits != not);
                match self.looked_up(server, at, name, asked) {
                    Some(found) => found,
                    None => of_field(name, (operator, not, value)),
                }
            }
        }
    }

    /// Tests a variable of a `map` or `geo`. None: there is no such block.
    fn looked_up(
        &mut self,
        server: &Server,
        at: usize,
        name: &str,
        asked: impl Fn(&str) -> bool,
    ) -> Option<Test> {
        let tree = self.tree;
        let tops = [ROOT].into_iter().chain(tree.indices(ROOT, "http").iter().copied());
        let is_it =
            |node: &Node| node.words.last().and_then(|word| word.strip_prefix('$')) == Some(name);
        let mut blocks = tops.flat_map(|top| tree.nodes[top].children.iter().copied());
        let block = blocks.find(|block| {
            let node = &tree.nodes[*block];
            matches!(node.name(), "map" | "geo") && is_it(node)
        })?;
        self.tests.insert(block);
        let node = &tree.nodes[block];
        let entries: Vec<&Node> = tree.children(block).map(|(_, node)| node).collect();
        let value_of = |node: &Node| node.argument(1).to_owned();
        if entries.iter().any(|node| value_of(node).contains('$')) {
            return Some(Test::Unsaid);
        }
        let default = entries.iter().find(|node| node.name() == "default");
        let by_default = asked(&default.map(|node| value_of(node)).unwrap_or_default());
        let (others, same): (Vec<&Node>, Vec<&Node>) = entries
            .into_iter()
            .filter(|node| node.name() != "default")
            .partition(|node| asked(&value_of(node)) != by_default);
        // An entry like the default may be an exception of another one.
        let has_odd = others.iter().chain(&same).any(|node| {
            matches!(
                node.name(),
                "include"
                    | "hostnames"
                    | "volatile"
                    | "ranges"
                    | "proxy"
                    | "delete"
                    | "proxy_recursive"
            )
        });
        let is_regex = |node: &&Node| node.name().starts_with('~');
        let is_ordered = !same.is_empty() && others.iter().chain(&same).any(is_regex);
        let is_nested = !same.is_empty() && (by_default || node.name() == "geo");
        if has_odd || is_ordered || is_nested {
            return Some(Test::Unsaid);
        }
        if others.is_empty() {
            return Some(if by_default { Test::Always } else { Test::Never });
        }
        if node.name() == "geo" {
            let addresses = others.iter().map(|node| address(node.name())).collect();
            let addresses: Option<Vec<String>> = addresses;
            let is_plain = node.words.len() == 2 && self.tells_clients;
            let addresses = addresses.filter(|_| is_plain);
            return Some(addresses.map_or(Test::Unsaid, |all| Test::Clients(all, by_default)));
        }
        let source = node.argument(1);
        let (whole, source_name) = variable(source);
        if whole != source || source_name == name {
            return Some(Test::Unsaid);
        }
        let is_known = self.known(server, at, source_name).is_some();
        if is_known {
            return Some(Test::Unsaid);
        }
        Some(of_entries(&others, source_name, by_default))
    }

    /// Returns the value of a variable that is the same in all of its server, and set before a
    /// block.
    fn known(&self, server: &Server, at: usize, name: &str) -> Option<String> {
        let value = self.constant(server, at, name)?;
        let is_set =
            |node: &&Node| node.name() == "set" && node.argument(1).strip_prefix('$') == Some(name);
        let below = self.tree.below(server.at);
        let mut sets = below.iter().map(|at| &self.tree.nodes[*at]).filter(is_set);
        let before = self.tree.nodes[at].place;
        let first = sets.clone().next().map(|node| node.argument(2));
        let is_same = |node: &Node| Some(node.argument(2)) == first && node.place < before;
        sets.all(is_same).then_some(value)
    }
}

/// Returns what a `map` tests: entries whose values differ from that of the default.
fn of_entries(others: &[&Node], source_name: &str, by_default: bool) -> Test {
    let mut all: Vec<Case> = Vec::new();
    for entry in others {
        let text = entry.name();
        let (operator, text) = match (text.strip_prefix("~*"), text.strip_prefix('~')) {
            (Some(text), _) => (Operator::Matches(true), text.to_owned()),
            (_, Some(text)) => (Operator::Matches(false), text.to_owned()),
            _ if text.is_empty() => (Operator::Equals, String::new()),
            _ => (
                Operator::Matches(true),
                format!("^{}$", regex::escape(text.trim_start_matches('\\'))),
            ),
        };
        // The source is a field here, and no further list.
        let found = match source_name {
            "uri" | "document_uri" => path(operator, by_default, &text),
            "request_method" if operator == Operator::Equals => return Test::Unsaid,
            _ => of_field(source_name, (operator, by_default, &text)),
        };
        let Test::Cases(found) = found else { return Test::Unsaid };
        if by_default {
            // None of them may match.
            let [one] = &found[..] else { return Test::Unsaid };
            if all.is_empty() {
                all.push(Case::default());
            }
            all[0].conditions.extend(one.conditions.clone());
        } else {
            all.extend(found);
        }
    }
    if all.len() <= CASES_MAX { Test::Cases(all) } else { Test::Unsaid }
}

/// Whether a known text fits. None: the expression cannot be said.
fn fits(operator: Operator, value: &str, known: &str) -> Option<bool> {
    match operator {
        Operator::Equals => Some(value == known),
        Operator::Matches(any_case) => {
            let ours = expression(value, any_case)?;
            Some(regex::bytes::Regex::new(&ours).ok()?.is_match(known.as_bytes()))
        }
    }
}

/// Returns subject and name of the condition for a variable.
fn field(name: &str) -> Option<(&'static str, String)> {
    let dashed = |name: &str| {
        name.split('_')
            .map(|word| {
                let mut word = word.to_owned();
                if let Some(first) = word.get_mut(..1) {
                    first.make_ascii_uppercase();
                }
                word
            })
            .collect::<Vec<_>>()
            .join("-")
    };
    if name == "content_type" {
        return Some(("header", "Content-Type".to_owned()));
    }
    let (kind, name) = name.split_once('_')?;
    Some(match kind {
        "http" => ("header", dashed(name)),
        "cookie" => ("cookie", name.to_owned()),
        "arg" => ("query", name.to_owned()),
        _ => return None,
    })
}

/// Returns cases of conditions, unless the table refuses one.
fn cases(all: Vec<Vec<Condition>>) -> Test {
    if all.iter().flatten().any(|one| refused(one).is_some()) {
        return Test::Unsaid;
    }
    Test::Cases(all.into_iter().map(Case::of).collect())
}

fn of_field(name: &str, (operator, not, value): (Operator, bool, &str)) -> Test {
    let Some((subject, name)) = field(name) else { return Test::Unsaid };
    let matches = match operator {
        Operator::Equals if value.is_empty() => ("regex", "^$".to_owned()),
        Operator::Equals => ("eq", value.to_owned()),
        Operator::Matches(any_case) => match expression(value, any_case) {
            Some(ours) => ("regex", ours),
            None => return Test::Unsaid,
        },
    };
    let takes_none = match &matches {
        ("regex", text) => {
            let Ok(compiled) = regex::bytes::Regex::new(text) else { return Test::Unsaid };
            compiled.is_match(b"")
        }
        _ => false,
    };
    let condition = |matches, not| Condition { subject, name: name.clone(), matches, not };
    let own = condition(Some(matches), not);
    // An absent field is an empty text in nginx, and none here.
    cases(match (takes_none, not) {
        (false, _) => vec![vec![own]],
        (true, false) => vec![vec![own], vec![condition(None, true)]],
        (true, true) => vec![vec![condition(None, false), own]],
    })
}

fn path(operator: Operator, not: bool, value: &str) -> Test {
    let ours = match operator {
        Operator::Equals => Some(format!("^{}$", regex::escape(value))),
        Operator::Matches(any_case) => expression(value, any_case),
    };
    ours.map_or(Test::Unsaid, |ours| cases(vec![vec![Condition::of_path(ours, not)]]))
}

fn host(operator: Operator, not: bool, value: &str) -> Test {
    let (text, is_expression) = match operator {
        Operator::Equals => match texts::host_pattern(value) {
            Ok(host) if !host.starts_with('*') => (host, false),
            _ => return Test::Unsaid,
        },
        Operator::Matches(any_case) => match expression(value, any_case) {
            Some(ours) if regex::Regex::new(&ours).is_ok() => (ours, true),
            _ => return Test::Unsaid,
        },
    };
    Test::Host(HostTest { text, is_expression, not })
}

/// Parses `= TRACE`, `~ ^(TRACE|TRACK)$`.
fn methods(operator: Operator, not: bool, value: &str) -> Test {
    let whole = value.strip_prefix('^').and_then(|inside| inside.strip_suffix('$'));
    let inside = match (operator, whole) {
        (Operator::Equals, _) => value,
        (Operator::Matches(false), Some(inside)) => inside,
        _ => return Test::Unsaid,
    };
    // `^GET|PUT$` has two alternatives, each with one end.
    if operator != Operator::Equals && inside.contains('|') && !inside.starts_with('(') {
        return Test::Unsaid;
    }
    let inside =
        inside.strip_prefix('(').and_then(|inside| inside.strip_suffix(')')).unwrap_or(inside);
    let inside = inside.strip_prefix("?:").unwrap_or(inside);
    let all: Vec<String> = inside.split('|').map(str::to_owned).collect();
    let is_plain = |method: &String| {
        !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase())
    };
    if !all.iter().all(is_plain) || operator == Operator::Equals && all.len() > 1 {
        return Test::Unsaid;
    }
    if not {
        return Test::OtherMethods(all);
    }
    Test::Cases(vec![Case { methods: all, ..Case::default() }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(test: &Test) -> String {
        let condition = |one: &Condition| {
            let not = if one.not { "!" } else { "" };
            match &one.matches {
                Some((kind, text)) => format!("{not}{} {kind} {text}", one.name),
                None => format!("{not}{}", one.name),
            }
        };
        match test {
            Test::Cases(all) => all
                .iter()
                .map(|case| {
                    let all: Vec<String> = case.conditions.iter().map(condition).collect();
                    format!("{}{}", case.methods.join(" "), all.join(", "))
                })
                .collect::<Vec<_>>()
                .join(" or "),
            Test::OtherMethods(all) => format!("not {}", all.join(" ")),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn what_tests_ask_for() {
        let (matches, any_case) = (Operator::Matches(false), Operator::Matches(true));
        for (test, ours) in [
            (
                of_field("http_user_agent", (any_case, false, "bot|crawl")),
                "User-Agent regex (?i)bot|crawl",
            ),
            (of_field("http_x_key", (Operator::Equals, true, "s")), "!X-Key eq s"),
            (of_field("arg_a", (Operator::Equals, false, "1")), "a eq 1"),
            (of_field("cookie_a", (matches, false, "^x")), "a regex ^x"),
            (
                of_field("http_referer", (Operator::Equals, false, "")),
                "Referer regex ^$ or !Referer",
            ),
            (of_field("http_referer", (matches, true, "^$")), "Referer, !Referer regex ^$"),
            (of_field("http_referer", (matches, true, "a(?=b)")), "Unsaid"),
            (of_field("http_upgrade", (matches, false, "a")), "Unsaid"),
            (of_field("remote_user", (matches, false, "a")), "Unsaid"),
            (methods(matches, false, "^(TRACE|TRACK)$"), "TRACE TRACK"),
            (methods(matches, true, "^(GET|HEAD)$"), "not GET HEAD"),
            (methods(Operator::Equals, true, "GET"), "not GET"),
            (methods(any_case, false, "get"), "Unsaid"),
        ] {
            assert_eq!(shown(&test), ours);
        }
    }

    #[test]
    fn hosts_that_a_test_asks_for() {
        let www = HostTest { text: "^www\\.".to_owned(), is_expression: true, not: false };
        assert_eq!(
            ["www.a.org", "a.org", "*"].map(|host| www.fits(host)),
            [Some(true), Some(false), None]
        );
        let not = HostTest { text: "a.org".to_owned(), is_expression: false, not: true };
        assert_eq!(
            ["a.org", "b.org", "*"].map(|host| not.fits(host)),
            [Some(false), Some(true), Some(true)]
        );
    }
}
