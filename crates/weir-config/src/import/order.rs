//! Converts rules of which the first match holds to routes of which the most specific holds.
//!
//! If an earlier rule and a more specific later one can match the same request, a route for their
//! common requests is inserted. It leads to the target of the earlier one. Called by dialects whose
//! rules have an order. Bound: [`RULES_MAX`].

use super::apart::is_impossible;
use super::route::Route;

/// Routes of one group, including inserted ones.
pub(super) const RULES_MAX: usize = 1000;

/// The converted rules.
pub(super) struct Ordered {
    pub(super) routes: Vec<Route>,
    /// Rules that no request ever reached.
    pub(super) unreached: Vec<Route>,
    /// Whether all necessary routes were inserted.
    pub(super) complete: bool,
}

/// Converts `rules`: the first match holds.
pub(super) fn by_specificity(rules: Vec<Route>) -> Ordered {
    let mut complete = rules.len() <= RULES_MAX;
    let mut all: Vec<(usize, Route)> = rules.into_iter().take(RULES_MAX).enumerate().collect();
    let mut is_hidden = vec![false; all.len()];
    let mut at = 0;
    while at < all.len() {
        for other in 0..at {
            // Routes from one rule have the same target.
            if is_hidden[at] || is_hidden[other] || all[at].0 == all[other].0 {
                continue;
            }
            let (first, second) = if all[other].0 < all[at].0 { (other, at) } else { (at, other) };
            if rank(&all[second].1) < rank(&all[first].1) {
                continue;
            }
            let Some(common) = common(&all[first].1, &all[second].1) else { continue };
            let order = all[first].0;
            let stands_for = |known: usize| {
                !is_hidden[known] && all[known].0 <= order && same(&common, &all[known].1)
            };
            let are_equal = rank(&all[second].1) == rank(&all[first].1);
            if same(&common, &all[second].1) {
                is_hidden[second] = true;
            } else if are_equal || all[first].1.does_the_same(&all[second].1) {
                // Of equal ones weir takes the first, and otherwise either may take these requests.
            } else if all.len() >= RULES_MAX {
                complete = false;
            } else if !(0..all.len()).any(stands_for) {
                all.push((order, common));
                is_hidden.push(false);
            }
        }
        at += 1;
    }
    let mut whole: Vec<(usize, Route, bool)> = all
        .into_iter()
        .zip(is_hidden)
        .map(|((order, route), hidden)| (order, route, hidden))
        .collect();
    whole.sort_by_key(|(order, ..)| *order);
    let (unreached, routes): (Vec<_>, Vec<_>) = whole.into_iter().partition(|(.., hidden)| *hidden);
    let bare =
        |all: Vec<(usize, Route, bool)>| all.into_iter().map(|(_, route, _)| route).collect();
    Ordered { routes: bare(routes), unreached: bare(unreached), complete }
}

/// Returns the values that weir compares when both match.
pub(super) fn rank(route: &Route) -> (usize, usize, bool, bool, usize) {
    let host = match route.host.as_str() {
        "*" => 0,
        host if host.starts_with("*.") => host.len(),
        _ => usize::MAX,
    };
    (host, route.path.len(), route.exact, !route.methods.is_empty(), route.conditions.len())
}

/// Whether both are for the same requests, as they are written.
pub(super) fn same(a: &Route, b: &Route) -> bool {
    (a.scheme, &a.host) == (b.scheme, &b.host)
        && (&a.path, a.exact) == (&b.path, b.exact)
        && a.methods.len() == b.methods.len()
        && a.methods.iter().all(|method| b.methods.contains(method))
        && a.conditions.len() == b.conditions.len()
        && a.conditions.iter().all(|condition| b.conditions.contains(condition))
}

/// Returns the route for requests that both match, with the target of the first one.
pub(super) fn common(first: &Route, second: &Route) -> Option<Route> {
    if first.scheme.zip(second.scheme).is_some_and(|(one, other)| one != other) {
        return None;
    }
    let host = narrower(&first.host, &second.host, covers_host)?;
    let path = narrower(&first.path, &second.path, covers_path)?;
    let is_exact = |route: &Route| route.exact && route.path == path;
    if first.exact && !is_exact(first) || second.exact && !is_exact(second) {
        return None;
    }
    let exact = is_exact(first) || is_exact(second);
    let methods = match (&first.methods[..], &second.methods[..]) {
        ([], methods) | (methods, []) => methods.to_vec(),
        (a, b) => a.iter().filter(|method| b.contains(method)).cloned().collect(),
    };
    if methods.is_empty() && !(first.methods.is_empty() && second.methods.is_empty()) {
        return None;
    }
    let mut conditions = first.conditions.clone();
    conditions.extend(
        second.conditions.iter().filter(|other| !first.conditions.contains(other)).cloned(),
    );
    let both = Route {
        scheme: first.scheme.or(second.scheme),
        host,
        path,
        exact,
        methods,
        conditions,
        ..first.clone()
    };
    (!is_impossible(&both)).then_some(both)
}

fn narrower(a: &str, b: &str, covers: fn(&str, &str) -> bool) -> Option<String> {
    match (covers(a, b), covers(b, a)) {
        (true, _) => Some(b.to_owned()),
        (_, true) => Some(a.to_owned()),
        _ => None,
    }
}

/// Whether each host of the second pattern is one of the first.
pub(super) fn covers_host(wide: &str, narrow: &str) -> bool {
    let below = wide
        .strip_prefix('*')
        .is_some_and(|suffix| narrow.len() > suffix.len() && narrow.ends_with(suffix));
    wide == "*" || wide == narrow || below
}

/// Whether each path of the second prefix is one of the first.
pub(super) fn covers_path(wide: &str, narrow: &str) -> bool {
    let rest = narrow.strip_prefix(wide);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || wide.ends_with('/'))
}

#[cfg(test)]
mod tests {
    //! Proves: each request reaches the target of the first rule that matches it. How: all requests
    //! of a small world, for rules at random.

    use proptest::prelude::*;

    use super::super::route::{Condition, Scheme, To};
    use super::*;

    fn rule() -> impl Strategy<Value = Route> {
        let host = prop::sample::select(vec!["*", "*.a", "b.a", "c"]);
        let path = prop::sample::select(vec!["/", "/x", "/x/", "/x/y", "/z"]);
        let methods =
            prop::sample::select(vec![vec![], vec!["GET"], vec!["GET", "PUT"], vec!["PUT"]]);
        let conditions = prop::collection::btree_set(prop::sample::select(vec!["p", "q"]), 0..=2);
        let scheme =
            prop::sample::select(vec![None, None, Some(Scheme::Http), Some(Scheme::Https)]);
        let kinds = (scheme, host, path, any::<bool>(), methods, conditions);
        kinds.prop_map(|(scheme, host, path, exact, methods, conditions)| Route {
            scheme,
            host: host.to_owned(),
            path: path.to_owned(),
            exact: exact && !path.ends_with('/'),
            methods: methods.into_iter().map(str::to_owned).collect(),
            conditions: conditions
                .into_iter()
                .map(|name| Condition {
                    subject: "query",
                    name: name.to_owned(),
                    matches: None,
                    not: false,
                })
                .collect(),
            ..Route::default()
        })
    }

    /// Matches as `RouteTable` does.
    fn matches(
        route: &Route,
        (scheme, host, path, method, has): (Scheme, &str, &str, &str, &str),
    ) -> bool {
        route.scheme.is_none_or(|one| one == scheme)
            && covers_host(&route.host, host)
            && covers_path(&route.path, path)
            && (!route.exact || route.path == path)
            && (route.methods.is_empty() || route.methods.iter().any(|one| one == method))
            && route.conditions.iter().all(|condition| has.contains(&condition.name))
    }

    proptest! {
        #[test]
        fn the_first_rule_holds(rules in prop::collection::vec(rule(), 0..7)) {
            let rules: Vec<Route> = rules
                .into_iter()
                .enumerate()
                .map(|(at, rule)| Route { to: To::Upstream(at % 4), ..rule })
                .collect();
            let ordered = by_specificity(rules.clone());
            prop_assert!(ordered.complete);
            for (scheme, host) in [
                (Scheme::Http, "b.a"),
                (Scheme::Http, "d.a"),
                (Scheme::Https, "c"),
                (Scheme::Https, "b.a"),
                (Scheme::Http, "e"),
            ] {
                for path in ["/", "/x", "/x/", "/x/y/w", "/xy", "/z"] {
                    for method in ["GET", "PUT", "HEAD"] {
                        for has in ["", "p", "q", "pq"] {
                            let asked = (scheme, host, path, method, has);
                            // Requests without a rule are refused.
                            let first = rules.iter().find(|rule| matches(rule, asked));
                            let first = first.map_or(To::Closed, |rule| rule.to);
                            // `RouteTable` takes the most specific, of equals the first.
                            let fits = ordered.routes.iter().filter(|route| matches(route, asked));
                            let best = fits
                                .rev()
                                .max_by_key(|route| rank(route))
                                .map_or(To::Closed, |route| route.to);
                            prop_assert_eq!(best, first, "{:?}", asked);
                        }
                    }
                }
            }
        }
    }
}
