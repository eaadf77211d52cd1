//! Whether the conditions of a route exclude each other. Called by `order` for the requests that
//! two routes have in common.

use super::begin::Begin;
use super::route::{Condition, PATH, Route};

/// The start of the paths that a route takes by one of its conditions.
struct Start {
    begin: Begin,
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
    let begin = Begin { text: route.path.clone(), any_case: false, is_all: true };
    let own = Start { begin, is_whole: route.exact };
    let of_path = conditions.iter().filter_map(|one| Some((one.not, start(one)?)));
    let starts: Vec<(bool, Start)> = of_path.chain([(false, own)]).collect();
    let mut pairs =
        starts.iter().enumerate().flat_map(|(at, a)| starts[..at].iter().map(move |b| (a, b)));
    pairs.any(|(a, b)| excludes(a, b))
}

fn excludes((not, one): &(bool, Start), (other_not, other): &(bool, Start)) -> bool {
    let (a, b) = (&one.begin, &other.begin);
    let lower = |begin: &Begin, any: bool| {
        if any { begin.text.to_lowercase() } else { begin.text.clone() }
    };
    let any = a.any_case || b.any_case;
    let (x, y) = (lower(a, any), lower(b, any));
    match (not, other_not) {
        (false, false) => {
            (other.is_whole || !x.starts_with(&y)) && (one.is_whole || !y.starts_with(&x)) && x != y
        }
        (false, true) => b.is_all && (b.any_case || !a.any_case) && x.starts_with(&y),
        (true, false) => a.is_all && (a.any_case || !b.any_case) && y.starts_with(&x),
        (true, true) => false,
    }
}

/// Returns the start of the paths of a condition; None: it is not known.
fn start(condition: &Condition) -> Option<Start> {
    let (PATH, Some(("regex", regex))) = (condition.subject, &condition.matches) else {
        return None;
    };
    Some(Start { begin: Begin::of(regex)?, is_whole: false })
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
