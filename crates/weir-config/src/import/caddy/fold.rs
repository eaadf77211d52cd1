//! Turns what the directives of a block do, in their order, into routes of which the first match
//! holds. Called by `walk`.
//!
//! Bound: [`RULES_MAX`] routes; beyond it, exceptions of a matcher are closed.

use super::super::draft::Draft;
use super::super::notes::Kind;
use super::super::order::{RULES_MAX, common, same};
use super::super::route::{Edit, Route, To};
use super::pieces::{Piece, located};
use super::walk::REST;

/// Why a matcher closes what it may cover.
pub(super) const UNSAID: &str =
    "weir cannot express its matcher, and rejects all requests that it may cover";
/// Why clients are kept out whom the source serves in another way.
const CLIENTS: &str = "weir does not choose routes by client address, and rejects these clients";

/// What a directive does with its requests.
pub(super) enum Deed {
    /// They end at a target. True: it keeps clients out.
    End(To, bool),
    /// They take these routes, which cover them all.
    Go(Vec<Route>),
    /// Fields of requests and of responses change, each behind this many earlier changes.
    Change((usize, Vec<Edit>), (usize, Vec<Edit>)),
}

/// A directive.
pub(super) struct Event {
    pub(super) pieces: Vec<Piece>,
    pub(super) deed: Deed,
    pub(super) base: Route,
}

impl Event {
    /// Returns how many routes it makes at least.
    pub(super) fn count(&self) -> usize {
        match &self.deed {
            Deed::Go(routes) => routes.len(),
            Deed::End(..) | Deed::Change(..) => self.pieces.len(),
        }
    }
}

/// Returns the routes of these directives, with `rest` behind them.
pub(super) fn fold(draft: &mut Draft<'_>, events: Vec<Event>, rest: Vec<Route>) -> Vec<Route> {
    let mut rest = rest;
    for Event { pieces, mut deed, base } in events.into_iter().rev() {
        for piece in pieces.iter().rev() {
            rest = step(draft, piece, &mut deed, &base, rest);
        }
    }
    rest
}

fn step(
    draft: &mut Draft<'_>,
    piece: &Piece,
    deed: &mut Deed,
    base: &Route,
    rest: Vec<Route>,
) -> Vec<Route> {
    let region = located(&piece.case, base.clone());
    let mut out: Vec<Route> = Vec::new();
    for except in &piece.except {
        let Some(part) = common(&region, &located(except, Route::default())) else { continue };
        out.extend(rest.iter().filter_map(|other| common(other, &part)));
    }
    let mut has_room = true;
    if !piece.except.is_empty() && out.len() + rest.len() > RULES_MAX {
        draft.note(base.place, Kind::Closed, &base.what, "its matcher has too many exceptions");
        out.clear();
        has_room = false;
    }
    let access = piece.case.access().filter(|_| has_room);
    let Some(access) = access else {
        if let Deed::Change(..) = deed {
            out.extend(rest);
            return out;
        }
        let to = if let Deed::End(_, true) = deed { To::Denied } else { To::Closed };
        draft.note(base.place, Kind::Closed, &base.what, UNSAID);
        out.push(Route { to, ..region });
        out.extend(rest);
        return out;
    };
    let is_for_all = access.is_open();
    match deed {
        Deed::End(to, true) if !is_for_all => {
            if !is_forbidden(draft, *to) {
                draft.note(base.place, Kind::Different, &base.what, "these clients get 403");
            }
            out.extend(kept(draft, &Route { access, ..region }, rest));
            return out;
        }
        Deed::End(to, _) if is_for_all => out.push(Route { to: *to, ..region }),
        Deed::Go(routes) if is_for_all => out.append(routes),
        Deed::Change(request, answer) => {
            for other in rest {
                out.extend(changed(&region, &other, request, answer));
                let is_whole = common(&other, &region).is_some_and(|part| same(&part, &other));
                out.extend((!is_whole || other.to.is_closed()).then_some(other));
            }
            return out;
        }
        Deed::End(..) | Deed::Go(_) => {
            let routes = match deed {
                Deed::Go(routes) => std::mem::take(routes),
                Deed::End(to, _) => vec![Route { to: *to, ..region.clone() }],
                Deed::Change(..) => Vec::new(),
            };
            if others_are_refused(draft, &region, &rest) {
                let own = piece.case.own_access().unwrap_or_default();
                for route in routes {
                    let access = own.and(&route.access).filter(|access| access.fits());
                    let to = if access.is_some() { route.to } else { To::Denied };
                    let access = access.unwrap_or_default();
                    out.push(Route { access, to, ..route });
                }
            } else {
                draft.note(base.place, Kind::Closed, &base.what, CLIENTS);
                out.extend(kept(draft, &Route { access, ..region }, rest));
                return out;
            }
        }
    }
    out.extend(rest);
    out
}

/// Returns the part of a route whose fields change.
fn changed(
    region: &Route,
    route: &Route,
    (in_request, request): &(usize, Vec<Edit>),
    (in_answer, answer): &(usize, Vec<Edit>),
) -> Option<Route> {
    if route.to.is_closed() {
        return None;
    }
    let mut part = common(route, region)?;
    let at = (*in_request).min(part.request.len());
    part.request.splice(at..at, request.iter().cloned());
    let at = (*in_answer).min(part.answer.len());
    part.answer.splice(at..at, answer.iter().cloned());
    Some(part)
}

/// Returns routes that only the clients of `keep` reach, where it covers them.
fn kept(draft: &mut Draft<'_>, keep: &Route, rest: Vec<Route>) -> Vec<Route> {
    let mut out = Vec::new();
    for route in rest {
        if route.to.is_closed() {
            out.push(route);
        } else {
            out.extend(draft.kept_by(keep, route));
        }
    }
    out
}

/// Whether all requests of a route are refused by what is behind it.
fn others_are_refused(draft: &Draft<'_>, region: &Route, rest: &[Route]) -> bool {
    for other in rest {
        let Some(part) = common(other, region) else { continue };
        // A request without a directive has an empty response, which nobody misses.
        if other.what != REST && !is_refusal(draft, other.to) {
            return false;
        }
        if same(&part, region) {
            return true;
        }
    }
    false
}

/// Whether a target refuses all requests.
fn is_refusal(draft: &Draft<'_>, to: To) -> bool {
    let says = |at: usize| {
        let line = &draft.answers[at].line;
        line.starts_with("respond 4") || line.starts_with("respond 5")
    };
    to.is_closed() || matches!(to, To::Answer(at) if says(at))
}

fn is_forbidden(draft: &Draft<'_>, to: To) -> bool {
    match to {
        To::Denied => true,
        To::Answer(at) => draft.answers[at].line.starts_with("respond 403"),
        _ => false,
    }
}
