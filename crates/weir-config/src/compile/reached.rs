//! Finds routes that are never reached because an earlier one takes all of their requests. Called
//! by [`super::route`] for one route after another.
//!
//! Bound: a route is compared only with earlier ones of the same scheme, host, path and method, and
//! only with routes that are reached.

use std::collections::HashMap;

use weir_proxy::request::route::{HostMatch, Route};

use crate::problem::Span;
use crate::steps;

/// The scope of a route without methods and conditions: listener (none: all), scheme, host, path,
/// and whether it is that path alone.
type Place = (Option<usize>, u8, HostMatch, String, bool);

/// Routes without conditions that are reached.
#[derive(Default)]
pub(super) struct Reached(HashMap<Place, Takers>);

/// Routes of one place.
#[derive(Default)]
struct Takers {
    /// A route without `methods`.
    all: Option<Span>,
    /// Routes with `methods`, by each of them: all their methods.
    by_method: HashMap<String, Vec<(Vec<String>, Span)>>,
}

impl Reached {
    /// Adds a route. Returns the earlier one that hides it: that takes all its requests, at the
    /// same host and path.
    pub(super) fn add(&mut self, route: &Route, span: &Span) -> Option<Span> {
        if !route.conditions.is_empty() {
            return None;
        }
        let any = route.listeners.is_empty().then_some(None);
        let listeners = any.into_iter().chain(route.listeners.iter().copied().map(Some));
        let mut hidden = None;
        let mut is_reached = false;
        for listener in listeners {
            let scheme = route.scheme.map_or(0, |scheme| scheme as u8 + 1);
            let (host, path) = (route.host.clone(), route.path.clone());
            let takers = self.0.entry((listener, scheme, host, path, route.exact)).or_default();
            match takers.hides(route.methods.as_deref()) {
                Some(span) => hidden = Some(span),
                None => {
                    is_reached = true;
                    takers.add(route.methods.as_deref(), span);
                }
            }
        }
        hidden.filter(|_| !is_reached)
    }
}

impl Takers {
    /// Returns the route that takes all requests of a route with these methods (None: without
    /// `methods`). Routes with methods precede those without, in any order of the text, so only
    /// routes of the same kind hide each other.
    fn hides(&self, methods: Option<&[String]>) -> Option<Span> {
        let Some(methods) = methods else { return self.all.clone() };
        // A route that takes all methods also takes the one with the fewest takers.
        let of = |method: &String| self.by_method.get(method).map_or(&[][..], Vec::as_slice);
        let near = methods.iter().map(of).min_by_key(|takers| takers.len())?;
        let takes = |(taken, _): &&(Vec<String>, Span)| {
            steps::add(1);
            methods.iter().all(|method| taken.contains(method))
        };
        near.iter().find(takes).map(|(_, span)| span.clone())
    }

    fn add(&mut self, methods: Option<&[String]>, span: &Span) {
        let Some(methods) = methods else {
            self.all = Some(span.clone());
            return;
        };
        for method in methods {
            self.by_method
                .entry(method.clone())
                .or_default()
                .push((methods.to_vec(), span.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a route is hidden exactly by an earlier one of the same place that takes all its
    //! requests. How: all pairs of a few lists of methods, against the results of the route table.

    use weir_http::Fields;
    use weir_proxy::request::route::{Asked, RouteTable, Scheme, Target};

    use super::*;

    fn route(methods: &[&str]) -> Route {
        let methods =
            (!methods.is_empty()).then(|| methods.iter().map(|one| (*one).to_owned()).collect());
        Route { methods, ..Route::default() }
    }

    /// Whether a request with this method reaches the second upstream.
    fn leads_to_second(table: &RouteTable, method: &str) -> bool {
        let (fields, method) = (&Fields::default(), method.as_bytes());
        let asked = Asked {
            listener: None,
            sealed: false,
            host: b"a",
            path: b"/",
            method,
            fields,
            bytes: b"",
        };
        let found = table.find(&asked, &mut Vec::new()).expect("a path");
        found.and_then(|to| to.target.upstream()) == Some(1)
    }

    #[test]
    fn routes_of_the_same_place_hide_others() {
        let lists: [&[&str]; 6] =
            [&[], &["GET"], &["PUT"], &["GET", "PUT"], &["PUT", "GET", "POST"], &["POST"]];
        for (earlier, later) in lists.iter().flat_map(|a| lists.iter().map(move |b| (a, b))) {
            let mut reached = Reached::default();
            assert_eq!(reached.add(&route(earlier), &(1..2)), None);
            let second = Route { target: Target::Upstream(1), ..route(later) };
            let table = RouteTable::new(vec![route(earlier), second]);
            let is_hidden = !["GET", "PUT", "POST", "OPTIONS"]
                .iter()
                .any(|method| leads_to_second(&table, method));
            assert_eq!(
                reached.add(&route(later), &(3..4)),
                is_hidden.then_some(1..2),
                "{earlier:?} {later:?}"
            );
        }
    }

    #[test]
    fn routes_of_other_places_hide_nothing() {
        let places = [
            route(&[]),
            Route { scheme: Some(Scheme::Http), ..route(&[]) },
            Route { scheme: Some(Scheme::Https), ..route(&[]) },
            Route { host: HostMatch::Exact("a".to_owned()), ..route(&[]) },
            Route { host: HostMatch::Suffix("a".to_owned()), ..route(&[]) },
            Route { path: "/a".to_owned(), ..route(&[]) },
            Route { path: "/a".to_owned(), exact: true, ..route(&[]) },
            Route { listeners: vec![0, 1], ..route(&[]) },
        ];
        let mut reached = Reached::default();
        assert!(places.iter().all(|place| reached.add(place, &(0..1)).is_none()));
        assert!(places.iter().all(|place| reached.add(place, &(2..3)) == Some(0..1)));
        // Reached by the clients of one of its listeners.
        let both = |listeners| Route { listeners, ..route(&[]) };
        assert_eq!(reached.add(&both(vec![1, 2]), &(3..4)), None);
        assert_eq!(reached.add(&both(vec![2]), &(4..5)), Some(3..4));
    }
}
