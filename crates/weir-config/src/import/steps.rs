//! Rules that end a request before it comes to a server, for dialects whose rules have an order.
//!
//! Who is refused by address alone is kept out by `deny` of the routes that these requests take; what else ends gets a route of its own.
//! Bound: [`RULES_MAX`].

use super::cases::Case;
use super::draft::Draft;
use super::missing::Missing;
use super::notes::Kind;
use super::order::{RULES_MAX, common, same};
use super::route::{Route, To};
use super::tree::Node;

/// What becomes of the requests that a rule is about.
pub(super) enum Step {
    /// They end where this leads.
    End(Route),
    /// Only those go on whom its access lets in.
    Keep(Route),
}

impl Draft<'_> {
    /// A rule that refuses: by addresses, by leading where `base` leads, or nowhere.
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
                let why = format!("{}; until you say how, nobody may ask for this", Missing::Access.why());
                self.note(node.place, Kind::Closed, &node.shown(), why);
            }
            steps.push(Step::End(route));
        }
        steps
    }

    /// The parts of a route behind these steps, each to be looked at before those behind it.
    pub(super) fn through(&mut self, steps: &[Step], route: Route) -> Vec<Route> {
        let (mut done, mut rest) = (Vec::new(), vec![route]);
        for step in steps {
            match step {
                Step::End(end) => done.extend(rest.iter().filter_map(|one| {
                    let part = common(end, one)?;
                    Some(Route { access: one.access.clone(), ..part })
                })),
                Step::Keep(keep) if rest.len() <= RULES_MAX => {
                    rest = rest.into_iter().flat_map(|one| self.kept(keep, one)).collect();
                }
                // Too many; who counts them says so.
                Step::Keep(_) => {}
            }
        }
        done.extend(rest);
        done
    }

    /// A route, in front of it the part of it that not all may ask for.
    fn kept(&mut self, keep: &Route, route: Route) -> Vec<Route> {
        let Some(part) = common(keep, &route) else { return vec![route] };
        let access = keep.access.and(&route.access).filter(|access| access.fits());
        let Route { scheme, host, path, exact, methods, conditions, place, what, .. } = part;
        let mut part = Route { scheme, host, path, exact, methods, conditions, ..route.clone() };
        if let Some(access) = access {
            part.access = access;
        } else {
            let why = format!("{}; until you say how, nobody may ask for this", Missing::Access.why());
            self.note(place, Kind::Closed, &what, why);
            part.to = To::Closed;
        }
        if same(&part, &route) { vec![part] } else { vec![part, route] }
    }
}
