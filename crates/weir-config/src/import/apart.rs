//! Whether the conditions of a route exclude each other. Called by `order` for the requests that
//! two routes have in common.

use super::route::{Condition, Route};

/// The start of the paths that an expression matches.
struct Start {
    /// In lower case if that does not matter.
    text: String,
    any_case: bool,
    /// The expression says nothing else.
    is_all: bool,
    /// It is the whole path.
    is_whole: bool,
}

/// Whether no request meets all conditions of a route. False: perhaps some do.
pub(super) fn is_impossible(route: &Route) -> bool {
    let opposite = |a: &Condition, b: &Condition| {
        a.not != b.not && (a.subject, &a.name, &a.matches) == (b.subject, &b.name, &b.matches)
    };
    let conditions = &route.conditions;
    let mut pairs = conditions
        .iter()
        .enumerate()
        .flat_map(|(at, a)| conditions[..at].iter().map(move |b| (a, b)));
    if pairs.any(|(a, b)| opposite(a, b)) {
        return true;
    }
    let own =
        Start { text: route.path.clone(), any_case: false, is_all: true, is_whole: route.exact };
    let of_path = conditions.iter().filter_map(|one| Some((one.not, start(one)?)));
    let starts: Vec<(bool, Start)> = of_path.chain([(false, own)]).collect();
    let mut pairs =
        starts.iter().enumerate().flat_map(|(at, a)| starts[..at].iter().map(move |b| (a, b)));
    pairs.any(|(a, b)| excludes(a, b))
}

fn excludes((not, a): &(bool, Start), (other_not, b): &(bool, Start)) -> bool {
    let lower = |start: &Start, any: bool| {
        if any { start.text.to_lowercase() } else { start.text.clone() }
    };
    let any = a.any_case || b.any_case;
    let (x, y) = (lower(a, any), lower(b, any));
    match (not, other_not) {
        (false, false) => {
            (b.is_whole || !x.starts_with(&y)) && (a.is_whole || !y.starts_with(&x)) && x != y
        }
        (false, true) => b.is_all && (b.any_case || !a.any_case) && x.starts_with(&y),
        (true, false) => a.is_all && (a.any_case || !b.any_case) && y.starts_with(&x),
        (true, true) => false,
    }
}

/// Returns the text that all paths of a condition begin with; None: it is not known.
fn start(condition: &Condition) -> Option<Start> {
    let ("path", Some(("regex", regex))) = (condition.subject, &condition.matches) else {
        return None;
    };
    let flags = [("(?i)", true), ("(?i-u)", true), ("(?-u)", false)];
    let flagged = |(flag, any_case)| Some((any_case, regex.strip_prefix(flag)?));
    let (any_case, rest) = flags.into_iter().find_map(flagged).unwrap_or((false, regex));
    let rest = rest.strip_prefix('^')?;
    if rest.contains('|') {
        return None;
    }
    let mut text = String::new();
    let mut characters = rest.chars().peekable();
    let mut is_all = true;
    while let Some(c) = characters.next() {
        let c = match c {
            '\\' => match characters.next() {
                Some(c) if !c.is_alphanumeric() => c,
                _ => {
                    is_all = false;
                    break;
                }
            },
            '.' | '[' | '(' | '$' | '^' | '*' | '+' | '?' | '{' => {
                is_all = false;
                break;
            }
            c => c,
        };
        // A repeated character may be missing.
        if matches!(characters.peek(), Some('*' | '?' | '{')) {
            is_all = false;
            break;
        }
        text.push(c);
    }
    let text = if any_case { text.to_lowercase() } else { text };
    Some(Start { text, any_case, is_all, is_whole: false })
}

#[cfg(test)]
mod tests {
    //! Proves: two routes have nothing in common only if no request meets both. How: examples.

    use super::super::order::common;
    use super::*;

    fn route(path: &str, conditions: &[&str]) -> Route {
        let condition = |text: &&str| {
            let (not, text) = text.strip_prefix('!').map_or((false, *text), |rest| (true, rest));
            let matches = Some(("regex", text.to_owned()));
            Condition { subject: "path", name: String::new(), matches, not }
        };
        let conditions = conditions.iter().map(condition).collect();
        Route { path: path.to_owned(), conditions, ..Route::default() }
    }

    #[test]
    fn paths_that_exclude_each_other() {
        for (one, other) in [
            (route("/", &["(?i)^/a/"]), route("/", &["(?i)^/b/"])),
            (route("/", &["(?i)^/a/"]), route("/", &["(?i)^/A\\.b"])),
            (route("/", &["^/a/"]), route("/b/", &[])),
            (route("/", &["(?i)^/a/x"]), route("/", &["!(?i)^/a/"])),
            (route("/", &["x$"]), route("/", &["!x$"])),
            (route("/", &["(?i)^/a"]), Route { exact: true, ..route("/", &[]) }),
            (route("/", &["(?i-u)^/a/.*"]), route("/", &["(?-u)^/B/.*"])),
        ] {
            assert!(
                common(&one, &other).is_none() && common(&other, &one).is_none(),
                "{one:?} {other:?}"
            );
        }
        for (one, other) in [
            (route("/", &["(?i)^/a/"]), route("/A/b/", &[])),
            (route("/", &["(?i)^/a/"]), route("/", &["^/A/b*"])),
            (route("/", &["^/a/b"]), route("/", &["!^/a/b$"])),
            (route("/", &["(?i)^/a/"]), route("/", &["!^/a/"])),
            (route("/", &["x$"]), route("/", &["(?i)^/a"])),
            (route("/", &["^/a|^/b"]), route("/", &["^/b"])),
            (route("/a/", &[]), route("/a", &[])),
            (route("/", &["(?i)^/a"]), Route { exact: true, ..route("/A/b", &[]) }),
        ] {
            assert!(
                common(&one, &other).is_some() && common(&other, &one).is_some(),
                "{one:?} {other:?}"
            );
        }
    }
}
