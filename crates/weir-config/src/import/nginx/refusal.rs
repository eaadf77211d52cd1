//! `if ($http_user_agent ~ ...) { return 403; }` of nginx: each route of its server or location
//! gets a twin with one more condition, which responds. nginx runs it before access control, so it
//! reaches all clients.
//!
//! Only for tests of what requests say about themselves, which keep some out: a test of anything
//! else may admit some.

use super::super::route::{Condition, Route, Scheme, To, refused};
use super::super::tree::{Node, Place, Tree};
use super::{Nginx, Server};

/// The subjects of tests, with their fields.
const SUBJECTS: [(&str, &str); 2] =
    [("$http_user_agent", "User-Agent"), ("$http_referer", "Referer")];

/// Requests that an `if` responds to.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) place: Place,
    /// It covers all paths of its server, including those below an exact one.
    is_wide: bool,
    /// The attributes of a twin.
    twin: Route,
}

impl Refusal {
    /// Returns the twin of a route; None: it covers none of its requests.
    pub(super) fn twin(&self, route: &Route) -> Option<Route> {
        let Route { scheme, conditions, methods, place, what, to, answer, compress, .. } =
            self.twin.clone();
        let scheme = match (scheme, route.scheme) {
            (Some(one), Some(other)) if one != other => return None,
            (one, other) => one.or(other),
        };
        let methods = if methods.is_empty() { route.methods.clone() } else { methods };
        let conditions = route.conditions.iter().cloned().chain(conditions).collect();
        let Route { group, host, path, exact, .. } = route.clone();
        let of = Route { group, host, path, exact: exact && !self.is_wide, ..Route::default() };
        Some(Route { scheme, conditions, methods, place, what, to, answer, compress, ..of })
    }
}

/// Returns the refusals of an `if`; empty: routes cannot express it, and nothing has been noted.
pub(super) fn refusals(nginx: &mut Nginx<'_, '_, '_>, server: &Server, at: usize) -> Vec<Refusal> {
    let tree = nginx.tree;
    let node = &tree.nodes[at];
    let [only] = node.children[..] else { return Vec::new() };
    let answer = &tree.nodes[only];
    let Some(alternatives) = criterion(node).filter(|_| answer.name() == "return") else {
        return Vec::new();
    };
    let answers: Vec<(Option<Scheme>, To)> = nginx.answers(server, at, answer);
    let mut found = Vec::new();
    for (scheme, to) in answers {
        let (place, what) = (node.place, node.shown());
        let mut base = Route { place, what, scheme, to, ..Route::default() };
        nginx.answer_changes(&mut base, at);
        found.extend(alternatives.iter().map(|asked| Refusal {
            place,
            is_wide: tree.nodes[node.parent].name() == "server",
            twin: Route {
                methods: asked.methods.clone(),
                conditions: asked.conditions.clone(),
                ..base.clone()
            },
        }));
    }
    if !found.is_empty() {
        nginx.tests.insert(at);
    }
    found
}

/// Returns those of a location: only of its own `if`, in front of its `return`.
pub(super) fn of_location(
    nginx: &mut Nginx<'_, '_, '_>,
    server: &Server,
    at: usize,
) -> Vec<Refusal> {
    let tree: &Tree = nginx.tree;
    let end = tree.named(at, "return").next().map(|node| node.place);
    let tests = tree.indices(at, "if").iter().copied();
    let tests: Vec<usize> =
        tests.filter(|test| end.is_none_or(|end| tree.nodes[*test].place < end)).collect();
    tests.into_iter().flat_map(|test| refusals(nginx, server, test)).collect()
}

/// Methods and conditions of one route.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    methods: Vec<String>,
    conditions: Vec<Condition>,
}

/// Returns the condition of an `if`, one of these. None: routes cannot express it.
fn criterion(node: &Node) -> Option<Vec<Asked>> {
    let words = node.arguments().collect::<Vec<_>>().join(" ");
    let inside = words.strip_prefix('(')?.strip_suffix(')')?.trim();
    let end = inside.find([' ', '=', '!', '~'])?;
    let (subject, rest) = (&inside[..end], inside[end..].trim_start());
    let operators = ["!~*", "!~", "!=", "~*", "~", "="];
    let operator = operators.into_iter().find(|operator| rest.starts_with(operator))?;
    let value = rest[operator.len()..].trim();
    if subject == "$request_method" {
        let methods = methods(operator, value)?;
        return Some(vec![Asked { methods, conditions: Vec::new() }]);
    }
    let (_, name) = SUBJECTS.iter().find(|(theirs, _)| *theirs == subject)?;
    let matches = match operator.trim_start_matches('!') {
        "=" if value.is_empty() => ("regex", "^$".to_owned()),
        "=" => ("eq", value.to_owned()),
        "~" => ("regex", value.to_owned()),
        _ => ("regex", format!("(?i){value}")),
    };
    let takes_none = match matches {
        ("regex", ref text) => regex::Regex::new(text).ok()?.is_match(""),
        _ => false,
    };
    let not = operator.starts_with('!');
    let condition =
        |matches, not| Condition { subject: "header", name: (*name).to_owned(), matches, not };
    let own = condition(Some(matches), not);
    if refused(&own).is_some() {
        return None;
    }
    let asked = |conditions| Asked { methods: Vec::new(), conditions };
    // An absent field is an empty text in nginx, and none here.
    Some(match (takes_none, not) {
        (false, _) => vec![asked(vec![own])],
        (true, false) => vec![asked(vec![own]), asked(vec![condition(None, true)])],
        (true, true) => vec![asked(vec![condition(None, false), own])],
    })
}

/// Parses `= TRACE`, `~ ^(TRACE|TRACK)$`.
fn methods(operator: &str, value: &str) -> Option<Vec<String>> {
    let value = match operator {
        "=" => value,
        "~" => value.strip_prefix('^').unwrap_or(value).strip_suffix('$').unwrap_or(value),
        _ => return None,
    };
    let value = value.strip_prefix('(').and_then(|value| value.strip_suffix(')')).unwrap_or(value);
    let all: Vec<String> = value.split('|').map(str::to_owned).collect();
    let is_plain = |method: &String| {
        !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase())
    };
    (all.iter().all(is_plain) && (operator != "=" || all.len() == 1)).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tests_ask_for() {
        let shown = |words: &[&str]| {
            let words =
                std::iter::once("if").chain(words.iter().copied()).map(str::to_owned).collect();
            let all = criterion(&Node { words, ..Node::default() })?;
            let condition =
                |one: &Condition| format!("{}{:?}", if one.not { "!" } else { "" }, one.matches);
            let one = |asked: Asked| {
                format!(
                    "{:?}{:?}",
                    asked.methods,
                    asked.conditions.iter().map(condition).collect::<Vec<_>>()
                )
            };
            Some(all.into_iter().map(one).collect::<Vec<_>>().join(" or "))
        };
        for (words, ours) in [
            (
                &["($http_user_agent", "~*", "bot|crawl", ")"][..],
                r#"[]["Some((\"regex\", \"(?i)bot|crawl\"))"]"#,
            ),
            (&["($http_referer", "!=", "x)"], r#"[]["!Some((\"eq\", \"x\"))"]"#),
            (&["($http_user_agent", "=", ")"], r#"[]["Some((\"regex\", \"^$\"))"] or []["!None"]"#),
            (&["($http_user_agent", "!~", "^$)"], r#"[]["None", "!Some((\"regex\", \"^$\"))"]"#),
            (&["($request_method", "~", "^(TRACE|TRACK)$)"], r#"["TRACE", "TRACK"][]"#),
            (&["($request_method", "=", "PUT)"], r#"["PUT"][]"#),
        ] {
            assert_eq!(shown(words).as_deref(), Some(ours), "{words:?}");
        }
        for none in [
            &["($http_user_agent)"][..],
            &["($http_x_key", "!=", "secret)"],
            &["($request_method", "!~", "^(GET|HEAD)$)"],
            &["($request_method", "~*", "get)"],
            &["($http_user_agent", "~", "a(?=b))"],
            &["($remote_addr", "=", "10.0.0.1)"],
        ] {
            assert_eq!(shown(none), None, "{none:?}");
        }
    }
}
