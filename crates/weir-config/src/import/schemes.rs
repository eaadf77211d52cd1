//! Clients with TLS and without, in an import: a route of a group that only one kind reaches is for
//! that kind only. Called by `draft`.
//!
//! weir's routes hold for each listener, and `scheme` of a route comes before hosts and paths. So
//! with listeners of both kinds, a route of a group that has both needs a twin wherever another
//! group's route of one kind would be taken instead.

use std::collections::BTreeSet;

use super::draft::Draft;
use super::notes::Kind;
use super::order::{common, rank};
use super::route::{Route, Scheme};

impl Draft<'_> {
    /// Returns the schemes of the clients of a group.
    pub(super) fn schemes_of(&self, group: usize) -> impl Iterator<Item = Scheme> {
        let has = move |scheme: &Scheme| {
            self.groups[group]
                .listens
                .iter()
                .any(|at| Scheme::of(self.listens[*at].tls.is_some()) == *scheme)
        };
        Scheme::ALL.into_iter().filter(has)
    }

    /// Returns the only scheme of the clients of a group; None: both, or no clients.
    pub(super) fn scheme_of(&self, group: usize) -> Option<Scheme> {
        let mut schemes = self.schemes_of(group);
        schemes.next().filter(|_| schemes.next().is_none())
    }

    /// When all listeners are known: removes schemes if only one is in use, otherwise ensures that
    /// no group's requests reach another.
    pub(super) fn settle_schemes(&mut self) {
        let of_groups: Vec<BTreeSet<Scheme>> =
            (0..self.groups.len()).map(|group| self.schemes_of(group).collect()).collect();
        let is_led_to = |route: &Route| {
            route.scheme.is_none_or(|scheme| of_groups[route.group].contains(&scheme))
        };
        let (kept, gone): (Vec<Route>, Vec<Route>) =
            std::mem::take(&mut self.routes).into_iter().partition(is_led_to);
        self.routes = kept;
        for route in gone.iter().filter(|route| !of_groups[route.group].is_empty()) {
            self.note(
                route.place,
                Kind::Lost,
                &route.what,
                "it has no `listen` that could be carried over",
            );
        }
        let served: BTreeSet<Scheme> =
            self.served().into_iter().flat_map(|group| of_groups[group].iter().copied()).collect();
        if served.len() < 2 {
            return self.routes.iter_mut().for_each(|route| route.scheme = None);
        }
        let [http, https] = Scheme::ALL.map(|scheme| self.twins(scheme));
        let both: BTreeSet<usize> = http
            .iter()
            .map(|(of, _)| *of)
            .filter(|of| https.iter().any(|(other, _)| other == of))
            .collect();
        let mut at = 0;
        self.routes.retain(|_| {
            at += 1;
            !both.contains(&(at - 1))
        });
        self.routes.extend(http.into_iter().chain(https).map(|(_, twin)| twin));
        if let Some((_, place)) = self.client_lines.get("trusted-proxies") {
            let why = "routes match the `scheme` that `trusted-proxies` send in X-Forwarded-Proto; \
                here it is the listener's";
            self.note(*place, Kind::Different, "trusted proxies", why);
        }
    }

    /// Returns routes for both schemes as routes for this one, if others of this scheme would be
    /// taken instead of any of them. Each has the place of its twin.
    fn twins(&self, scheme: Scheme) -> Vec<(usize, Route)> {
        let of_scheme: Vec<&Route> =
            self.routes.iter().filter(|route| route.scheme == Some(scheme)).collect();
        let for_both =
            || self.routes.iter().enumerate().filter(|(_, route)| route.scheme.is_none());
        let meets = |other: &Route, route: &Route| common(other, route).is_some();
        let is_needed = for_both().any(|(_, route)| {
            of_scheme.iter().any(|other| other.group != route.group && meets(other, route))
        });
        let mut twins: Vec<(usize, Route)> = Vec::new();
        for (at, route) in for_both().filter(|_| is_needed) {
            let twin = Route { scheme: Some(scheme), ..route.clone() };
            // Routes of the same group are taken instead of it on purpose.
            let is_meant = |other: &&Route| {
                other.group == route.group && rank(other) < rank(&twin) && meets(other, &twin)
            };
            let is_there = of_scheme.iter().any(|other| other.hides(&twin));
            if !is_there && !of_scheme.iter().any(is_meant) {
                twins.push((at, twin));
            }
        }
        twins
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a client with one scheme never reaches routes of a group without a listener for
    //! that, and the routes of a group for both still hold for both. How: requests of a small
    //! world, for routes at random.

    use std::collections::BTreeMap;
    use std::net::SocketAddr;

    use proptest::prelude::*;

    use super::super::draft::{Group, Listen, ListenTls};
    use super::super::order::covers_host;
    use super::super::route::To;
    use super::super::tree::{Place, Sources};
    use super::*;
    use crate::import::Outside;

    /// Returns routes of groups without TLS, with it, and with both.
    fn draft(routes: &[(usize, &'static str, &'static str)]) -> Vec<Route> {
        let outside = Outside {
            variables: &|_| None,
            matching: &|_| Ok(Vec::new()),
            read: &|_| Ok(Vec::new()),
        };
        let mut draft = Draft::new(Sources::open("x".as_ref(), outside).unwrap());
        for (port, tls) in [(80, None), (443, Some(ListenTls::default()))] {
            let address = SocketAddr::from(([127, 0, 0, 1], port)).into();
            draft.listens.push(Listen {
                place: Place::default(),
                address,
                rights: BTreeMap::new(),
                tls,
            });
        }
        draft.groups.extend(
            [vec![0], vec![1], vec![0, 1]].map(|listens| Group { listens, ..Group::default() }),
        );
        for (at, (group, host, path)) in routes.iter().enumerate() {
            let (host, path, to) = ((*host).to_owned(), (*path).to_owned(), To::Upstream(at));
            draft.route(Route { group: *group, host, path, to, ..Route::default() });
        }
        draft.settle_schemes();
        draft.routes
    }

    fn covers(route: &Route, scheme: Scheme, host: &str, path: &str) -> bool {
        route.scheme.is_none_or(|one| one == scheme)
            && covers_host(&route.host, host)
            && path.starts_with(&route.path)
    }

    proptest! {
        #[test]
        fn groups_keep_their_clients(
            written in prop::collection::vec(
                (
                    0..3_usize,
                    prop::sample::select(vec!["*", "a", "b"]),
                    prop::sample::select(vec!["/", "/x"])
                ),
                1..7,
            ),
        ) {
            let routes = draft(&written);
            let groups = [&[Scheme::Http][..], &[Scheme::Https], &Scheme::ALL];
            for scheme in Scheme::ALL {
                for (host, path) in [("a", "/"), ("a", "/x"), ("b", "/x"), ("c", "/x")] {
                    let rank = |host: &str, path: &str| (host != "*", path.len());
                    let found =
                        routes.iter().rev().filter(|route| covers(route, scheme, host, path));
                    let found = found.max_by_key(|route| {
                        (route.scheme.is_some(), rank(&route.host, &route.path))
                    });
                    let expected = written.iter().filter(|(group, of, prefix)| {
                        groups[*group].contains(&scheme)
                            && covers_host(of, host)
                            && path.starts_with(prefix)
                    });
                    let expected = expected.max_by_key(|(_, of, prefix)| rank(of, prefix));
                    // With one kind of listener schemes have no meaning.
                    let served = written
                        .iter()
                        .flat_map(|(group, ..)| groups[*group])
                        .any(|one| *one == scheme);
                    if served {
                        prop_assert_eq!(
                            found.map(|route| rank(&route.host, &route.path)),
                            expected.map(|(_, of, prefix)| rank(of, prefix)),
                            "{:?} {} {}",
                            scheme,
                            host,
                            path
                        );
                        prop_assert!(
                            found.is_none_or(|route| groups[route.group].contains(&scheme))
                        );
                    }
                }
            }
        }
    }
}
