//! Rules that end a request before it reaches a server, for dialects whose rules have an order.
//!
//! Clients that are refused only by address are kept out by `deny` of the routes for these
//! requests; any other end gets its own route. Bound: [`RULES_MAX`].

use super::cases::Case;
use super::draft::Draft;
use super::missing::Missing;
use super::notes::Kind;
use super::order::{RULES_MAX, common, same};
use super::route::{Route, To};
use super::tree::Node;

/// The fate of the requests that a rule matches.
pub(super) enum Step {
    /// They end at the target of this route.
    End(Route),
    /// Only clients that its access allows continue.
    Keep(Route),
}

impl Draft<'_> {
    /// Converts a rule that refuses: by addresses, by the target of `base`, or by leading nowhere.
    pub(super) fn refuse(&mut self, node: &Node, cases: Vec<Case>, base: &Route) -> Vec<Step> {
        let mut steps = Vec::new();
        for case in cases {
            let access = case.access();
            let to = if access.is_some() { base.to } else { To::Closed };
            let access = access.unwrap_or_default();
            let route = Route { to, ..case.route(base.clone()) };
            if !access.is_open() {
                steps.push(Step::Keep(Route { access, ..route }));
                continue;
            }
            if to == To::Closed {
                let why = format!(
                    "{}; until you add that, weir rejects all requests for this",
                    Missing::Access.why()
                );
                self.note(node.place, Kind::Closed, &node.shown(), why);
            }
            steps.push(Step::End(route));
        }
        steps
    }

    /// Returns the parts of a route behind these steps, each to be checked before those behind it.
    pub(super) fn through(&mut self, steps: &[Step], route: Route) -> Vec<Route> {
        let (mut done, mut rest) = (Vec::new(), vec![route]);
        for step in steps {
            match step {
                Step::End(end) => done.extend(rest.iter().filter_map(|one| {
                    let part = common(end, one)?;
                    Some(Route { access: one.access.clone(), ..part })
                })),
                // A closed route is closed whatever follows.
                Step::Keep(keep) => {
                    let has_room = rest.len() <= RULES_MAX;
                    for one in std::mem::take(&mut rest) {
                        let (closed, others) = self.kept(keep, one, has_room);
                        done.extend(closed);
                        rest.extend(others);
                    }
                }
            }
        }
        done.extend(rest);
        done
    }

    /// Returns the part of a route that is denied to all clients, and the rest: in front the part
    /// that is denied to some. Without room for that one all of it is closed.
    fn kept(&mut self, keep: &Route, route: Route, has_room: bool) -> (Option<Route>, Vec<Route>) {
        let Some(part) = common(keep, &route) else { return (None, vec![route]) };
        let Route { scheme, host, path, exact, methods, conditions, place, what, .. } = part;
        if !has_room {
            self.note(
                place,
                Kind::Closed,
                &what,
                "there are too many rules; weir rejects all requests to what this is part of",
            );
            return (Some(Route { to: To::Closed, ..route }), Vec::new());
        }
        let access = keep.access.and(&route.access).filter(|access| access.fits());
        let part = Route { scheme, host, path, exact, methods, conditions, ..route.clone() };
        let rest = if same(&part, &route) { None } else { Some(route) };
        let Some(access) = access else {
            let why = format!(
                "{}; until you add that, weir rejects all requests for this",
                Missing::Access.why()
            );
            self.note(place, Kind::Closed, &what, why);
            return (Some(Route { to: To::Closed, ..part }), rest.into_iter().collect());
        };
        (None, [Route { access, ..part }].into_iter().chain(rest).collect())
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a client that a rule keeps out is kept out, even without room for a separate part.
    //! How: examples.

    use super::super::access::Access;
    use super::super::tree::Sources;
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

    fn keep(path: &str) -> Step {
        let access = Access::without(&["10.0.0.0/8".to_owned()], true);
        Step::Keep(Route { access, ..route(path) })
    }

    /// Returns the last parts of a route behind these steps, and the notes.
    fn last(steps: &[Step], count: usize) -> (Vec<(String, To)>, usize) {
        let outside = Outside {
            variables: &|_| None,
            matching: &|_| Ok(Vec::new()),
            read: &|_| Ok(Vec::new()),
        };
        let mut draft = Draft::new(Sources::open("x".as_ref(), outside).unwrap());
        let parts = draft.through(steps, route("/"));
        let parts = parts.into_iter().rev().take(count).map(|part| (part.path, part.to)).collect();
        (parts, draft.into_notes().0.len())
    }

    #[test]
    fn too_many_parts_are_closed() {
        let steps: Vec<Step> = (0..=RULES_MAX).map(|at| keep(&format!("/{at}"))).collect();
        assert_eq!(last(&steps[..RULES_MAX], 1), (vec![("/".to_owned(), To::Upstream(0))], 0));
        let steps: Vec<Step> =
            steps.into_iter().chain([keep("/x"), Step::End(route("/"))]).collect();
        let (parts, notes) = last(&steps, usize::MAX);
        assert_eq!(
            parts.iter().filter(|(path, _)| path == "/").collect::<Vec<_>>(),
            [&("/".to_owned(), To::Closed)]
        );
        assert_eq!(notes, 1);
    }

    #[test]
    fn what_is_closed_has_no_other_end() {
        // Two lists that allow some clients cannot be expressed as one.
        let end = Step::End(Route { to: To::Answer(0), ..route("/") });
        let (parts, notes) = last(&[keep("/"), keep("/a"), end], 3);
        let at = |path: &str, to| (path.to_owned(), to);
        assert_eq!(parts, [at("/", To::Upstream(0)), at("/", To::Answer(0)), at("/a", To::Closed)]);
        assert_eq!(notes, 1);
    }
}
