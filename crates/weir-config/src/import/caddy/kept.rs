//! Rules that admit only some clients: parts of a route that are denied to others. Called by
//! `fold`.

use super::super::draft::Draft;
use super::super::missing::Missing;
use super::super::notes::Kind;
use super::super::order::{common, same};
use super::super::route::{Route, To};

impl Draft<'_> {
    /// Returns a route of which only the clients of `keep` reach the requests that both match: in
    /// front the part of these requests, which is closed if no lines can express who reaches it.
    pub(super) fn kept_by(&mut self, keep: &Route, route: Route) -> Vec<Route> {
        let Some(part) = common(keep, &route) else { return vec![route] };
        let Route { scheme, host, path, exact, methods, conditions, place, what, .. } = part;
        let access = keep.access.and(&route.access).filter(|access| access.fits());
        let mut part = Route { scheme, host, path, exact, methods, conditions, ..route.clone() };
        let rest = if same(&part, &route) { None } else { Some(route) };
        match access {
            Some(access) => part.access = access,
            None => {
                let why = format!(
                    "{}; until you add that, weir rejects all requests for this",
                    Missing::Access.why()
                );
                self.note(place, Kind::Closed, &what, why);
                part.to = To::Denied;
            }
        }
        [part].into_iter().chain(rest).collect()
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a client that a rule keeps out is kept out, also by two rules that no list of lines
    //! can express. How: examples.

    use super::super::super::access::Access;
    use super::super::super::tree::Sources;
    use super::*;
    use crate::import::Outside;

    fn route(path: &str) -> Route {
        Route {
            host: "*".to_owned(),
            path: path.to_owned(),
            to: To::Upstream(0),
            ..Route::default()
        }
    }

    #[test]
    fn two_lists_that_admit_some_close() {
        let outside = Outside {
            variables: &|_| None,
            matching: &|_| Ok(Vec::new()),
            read: &|_| Ok(Vec::new()),
        };
        let mut draft = Draft::new(Sources::open("x".as_ref(), outside).unwrap());
        let keep = |path: &str| {
            let access = Access::without(&["10.0.0.0/8".to_owned()], true);
            Route { access, ..route(path) }
        };
        let first = draft.kept_by(&keep("/a"), route("/"));
        let parts = |all: &[Route]| -> Vec<(String, To, bool)> {
            let of = |one: &Route| (one.path.clone(), one.to, one.access.is_open());
            all.iter().map(of).collect()
        };
        let part = |path: &str, to, is_open| (path.to_owned(), to, is_open);
        let rest = part("/", To::Upstream(0), true);
        assert_eq!(parts(&first), [part("/a", To::Upstream(0), false), rest]);
        let second = draft.kept_by(&keep("/a/b"), first[0].clone());
        let (closed, kept) = (part("/a/b", To::Denied, false), part("/a", To::Upstream(0), false));
        assert_eq!(parts(&second), [closed, kept]);
        assert_eq!(
            parts(&draft.kept_by(&keep("/b"), route("/a"))),
            [part("/a", To::Upstream(0), true)]
        );
        assert_eq!(draft.into_notes().0.len(), 1);
    }
}
