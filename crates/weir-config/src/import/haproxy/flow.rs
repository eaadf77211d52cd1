//! The rules of a frontend and its backends in their order, as a list of routes of which the first
//! match holds. Called by `haproxy` for each frontend.
//!
//! The list begins with one entry for all requests. Each line splits the entries that it matches:
//! in front the requests that it is about, then the others. So a condition is compared with the
//! request as earlier lines have left it, and a request that a line ends is never seen by a later
//! one. A line whose condition routes cannot express closes what it may be about. Bounds:
//! [`FLOWS_MAX`] entries, [`SPLITS_MAX`] comparisons; what is left then is closed.

use super::super::access::Access;
use super::super::cases::Case;
use super::super::notes::Kind;
use super::super::order::{common, same};
use super::super::route::{Edit, Route, Scheme, To};
use super::super::tree::Node;
use super::Haproxy;
use super::change::Change;
use super::seen::{Path, Seen};

/// Entries of one list.
pub(super) const FLOWS_MAX: usize = 600;
/// Comparisons of entries with conditions, for one frontend.
const SPLITS_MAX: usize = 200_000;

/// Why requests are closed that only some clients may make.
const CLIENTS: &str = "weir cannot express which clients this is about, and rejects all: write \
    `allow` and `deny` in a `route`";

/// Requests that have had the same fate so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Flow {
    /// Which requests, and their changes so far.
    pub(super) route: Route,
    /// How later rules see them.
    pub(super) seen: Seen,
    /// Clients that no rule of this kind rejects any more.
    exempt: Vec<String>,
    /// Rules of this kind no longer apply.
    is_past: bool,
    /// This line has been applied.
    is_turned: bool,
    /// Their fate is decided.
    pub(super) is_done: bool,
}

/// The effect of a line on the requests that it matches.
pub(super) enum Act<'t> {
    /// They are rejected, by this target.
    Refuse(To),
    /// weir responds. To TLS: a redirect that may be for more requests.
    Answer {
        to: To,
        edits: Vec<Edit>,
        rewrite: Option<(String, String)>,
        to_tls: bool,
    },
    /// They go to a backend; None: to none, and are closed. Whether other rules follow.
    Lead {
        backend: Option<usize>,
        is_last: bool,
    },
    Change(Change),
    /// No further rule of this kind applies.
    Pass,
    /// They are closed.
    Close(&'t str),
}

/// The effect of a line, in its cases; None: it has none.
type Plan<'t> = Option<(Act<'t>, Vec<Case>)>;

/// A line with its section, the group of its frontend and the frontend.
#[derive(Clone, Copy)]
pub(super) struct At<'t> {
    pub(super) line: &'t Node,
    pub(super) section: usize,
    pub(super) group: usize,
    pub(super) frontend: usize,
}

impl Flow {
    /// All requests to a frontend.
    pub(super) fn all(group: usize) -> Flow {
        let (host, path) = ("*".to_owned(), "/".to_owned());
        Flow { route: Route { group, host, path, ..Route::default() }, ..Flow::default() }
    }

    /// Decides their fate, by this line.
    pub(super) fn end(mut self, line: &Node, to: To) -> Flow {
        let mut route = self.route;
        if to.is_closed() {
            // Nothing else has an effect on these.
            let Route { group, scheme, host, path, exact, methods, conditions, .. } = route;
            let (listens, base) = (route.listens, Route::default());
            route =
                Route { group, listens, scheme, host, path, exact, methods, conditions, ..base };
        }
        if !matches!(to, To::Upstream(_)) {
            route.request.clear();
            route.server_host = None;
        }
        self.route = Route { place: line.place, what: line.shown(), to, ..route };
        self.is_done = true;
        self
    }

    /// Whether an earlier change of paths may be about them.
    pub(super) fn is_moved(&self) -> bool {
        let path = &self.route.path;
        match &self.seen.path {
            Path::Received => false,
            Path::Moved(from, _) => from.starts_with(path) || path.starts_with(from),
            Path::Unknown => true,
        }
    }

    /// Returns the requests behind those that a line took. If it took all of one scheme, only those
    /// of the other remain.
    fn behind(mut self, part: &Route) -> Flow {
        if self.route.scheme.is_none() {
            self.route.scheme = part.scheme;
            let is_rest = same(part, &self.route);
            self.route.scheme = part.scheme.filter(|_| is_rest).map(Scheme::other);
        }
        self
    }

    /// Returns the part that only these clients reach, or all but these. None: it cannot be said.
    fn without(&self, clients: Option<(bool, &[String])>) -> Option<Flow> {
        let mut access = Access::default();
        self.exempt.iter().for_each(|whom| access.push(true, whom.clone()));
        match clients {
            Some((is_rest, whom)) => {
                whom.iter().for_each(|whom| access.push(is_rest, whom.clone()));
                if is_rest {
                    access.push(false, "all".to_owned());
                }
            }
            None => access.push(false, "all".to_owned()),
        }
        let access = self.route.access.and(&access).filter(Access::fits)?;
        Some(Flow { route: Route { access, ..self.route.clone() }, ..self.clone() })
    }
}

impl<'t> Haproxy<'t, '_, '_> {
    /// Applies lines in their order; those of one kind are a phase.
    pub(super) fn follow(&mut self, lines: &[(usize, At<'t>)], mut flows: Vec<Flow>) -> Vec<Flow> {
        let mut last = None;
        for (phase, at) in lines {
            if last != Some(*phase) {
                last = Some(*phase);
                flows.iter_mut().filter(|flow| !flow.is_done).for_each(|flow| {
                    flow.is_past = false;
                    flow.exempt.clear();
                });
            }
            // Limits are for all requests, so those of a backend would be for too many.
            let above = self.defaults.get(&at.frontend).copied().flatten();
            let is_of_front = at.section == at.frontend || above == Some(at.section);
            if is_of_front && self.limit(at.frontend, at.section, at.line) {
                continue;
            }
            flows = self.turn(*at, flows);
            if flows.len() > FLOWS_MAX || self.splits > SPLITS_MAX {
                return self.give_up(at.line, flows);
            }
        }
        flows.iter_mut().for_each(|flow| flow.is_past = false);
        flows
    }

    /// Closes all requests whose fate is not decided.
    fn give_up(&mut self, line: &Node, flows: Vec<Flow>) -> Vec<Flow> {
        let why = "too many rules to convert to weir's order: weir rejects all requests that this \
            and later rules are about; import them in parts";
        self.draft.note(line.place, Kind::Closed, &line.shown(), why);
        let end = |flow: Flow| if flow.is_done { flow } else { flow.end(line, To::Closed) };
        flows.into_iter().map(end).collect()
    }

    /// Applies one line.
    fn turn(&mut self, at: At<'t>, flows: Vec<Flow>) -> Vec<Flow> {
        if at.line.name() == "use_backend" && at.line.argument(1).contains('%') {
            return self.by_text(at, flows);
        }
        self.turn_by(at, flows, &mut |haproxy, seen| {
            let act = haproxy.act(at, seen)?;
            Some((act, haproxy.cases(at, seen)))
        })
    }

    /// Applies the effect of a line in its cases, for requests that have been left like this.
    pub(super) fn turn_by(
        &mut self,
        at: At<'t>,
        flows: Vec<Flow>,
        plan: &mut dyn FnMut(&mut Self, &Seen) -> Plan<'t>,
    ) -> Vec<Flow> {
        let mut known: Option<(Seen, Plan<'t>)> = None;
        let mut out = Vec::new();
        for flow in flows {
            if flow.is_done || flow.is_past {
                out.push(flow);
                continue;
            }
            // Most requests have been left in the same way.
            if known.as_ref().is_none_or(|(seen, _)| *seen != flow.seen) {
                known = Some((flow.seen.clone(), plan(self, &flow.seen)));
            }
            let Some((_, Some((act, cases)))) = &known else {
                out.push(flow);
                continue;
            };
            let mut parts = vec![flow];
            for case in cases {
                let mut next = Vec::new();
                for part in parts {
                    self.splits += 1;
                    self.split(at, (act, case), part, &mut next);
                }
                parts = next;
            }
            out.extend(parts.into_iter().map(|part| Flow { is_turned: false, ..part }));
        }
        out
    }

    /// Returns the cases of a line.
    pub(super) fn cases(&mut self, at: At<'t>, seen: &Seen) -> Vec<Case> {
        if let Some(cases) = self.own_cases(at) {
            return cases;
        }
        let all = self.all_cases(at.section, at.line, seen);
        let cases = all.unwrap_or_else(|| {
            self.unsaid.clear();
            vec![Case::all().all_but_some()]
        });
        self.explained = self.vague();
        cases
    }

    /// Applies a line to the requests of one case among these: in front those that it leaves out,
    /// then those that it is about, then the others.
    fn split(
        &mut self,
        at: At<'t>,
        (act, case): (&Act<'t>, &Case),
        flow: Flow,
        out: &mut Vec<Flow>,
    ) {
        let scope = case.route(Route::default());
        let part = if flow.is_done || flow.is_past || flow.is_turned {
            None
        } else {
            common(&flow.route, &scope)
        };
        let Some(part) = part else { return out.push(flow) };
        let mut others = Vec::new();
        for effect in case.except.iter().flatten() {
            let left = Case::of(effect).route(Route::default());
            let Some(left) = common(&part, &left) else { continue };
            if same(&left, &part) {
                return out.push(flow);
            }
            others.push(Flow { route: left, ..flow.clone() });
        }
        let is_all = same(&part, &flow.route);
        let taken = part.clone();
        let part = Flow { route: part, ..flow.clone() };
        let before = out.len();
        out.extend(others);
        match act {
            Act::Refuse(to) => self.refuse(at, *to, case, part, out),
            Act::Answer { .. } => self.answer(at, (act, case), part, out),
            Act::Lead { backend, is_last } => {
                self.lead(at, (*backend, *is_last), case, part, out);
            }
            Act::Change(change) => out.push(self.changed(at.line, change, case, part)),
            Act::Pass => match case.clients() {
                // Requests that may not have passed meet the further rules.
                _ if case.is_vague() => {
                    out.truncate(before);
                    return out.push(flow);
                }
                None => out.push(Flow { is_past: true, ..part }),
                Some((false, whom)) => {
                    let exempt = part.exempt.iter().chain(whom).cloned().collect();
                    out.push(Flow { exempt, ..part });
                }
                Some((true, _)) => {
                    out.truncate(before);
                    return out.push(flow);
                }
            },
            Act::Close(why) => {
                self.draft.note(at.line.place, Kind::Closed, &at.line.shown(), *why);
                out.push(part.end(at.line, To::Closed));
            }
        }
        if !is_all {
            out.push(flow.behind(&taken));
        }
    }

    /// Closes requests, because routes cannot express a condition about them.
    fn close(&mut self, line: &Node, case: &Case, part: Flow, to: To) -> Flow {
        let why = if case.is_vague() { &self.explained } else { CLIENTS }.to_owned();
        self.draft.note(line.place, Kind::Closed, &line.shown(), why);
        part.end(line, to)
    }

    fn refuse(&mut self, at: At<'t>, to: To, case: &Case, part: Flow, out: &mut Vec<Flow>) {
        if case.is_vague() {
            return out.push(self.close(at.line, case, part, To::Denied));
        }
        if case.clients().is_none() && part.exempt.is_empty() {
            return out.push(part.end(at.line, to));
        }
        let is_last = case.clients().is_none();
        match part.without(case.clients()) {
            // Only clients remain that no further rule of this kind is about.
            Some(rest) => out.push(Flow { is_past: rest.is_past || is_last, ..rest }),
            None => out.push(self.close(at.line, case, part, To::Denied)),
        }
    }

    fn answer(
        &mut self,
        at: At<'t>,
        (act, case): (&Act<'t>, &Case),
        part: Flow,
        out: &mut Vec<Flow>,
    ) {
        let Act::Answer { to, edits, rewrite, to_tls } = act else { return };
        let is_exact = !case.is_vague() && case.clients().is_none() && part.exempt.is_empty();
        if !is_exact && *to_tls {
            let why = "routes cannot express the exceptions of this: weir now redirects all \
                clients without TLS to https; write a `route` for the exceptions";
            self.draft.different(at.line, why);
            let http = Route { scheme: Some(Scheme::Http), ..all_of(&part.route) };
            let Some(http) = common(&part.route, &http) else { return out.push(part) };
            let is_all = same(&http, &part.route);
            let redirected = Flow { route: http.clone(), ..part.clone() };
            out.push(ended(redirected, at.line, (*to, edits, rewrite)));
            if !is_all {
                out.push(part.behind(&http));
            }
            return;
        }
        if !is_exact {
            return out.push(self.close(at.line, case, part, To::Closed));
        }
        out.push(ended(part, at.line, (*to, edits, rewrite)));
    }

    fn lead(
        &mut self,
        at: At<'t>,
        (backend, is_last): (Option<usize>, bool),
        case: &Case,
        part: Flow,
        out: &mut Vec<Flow>,
    ) {
        if case.is_vague() {
            return out.push(self.close(at.line, case, part, To::Closed));
        }
        let Some((is_rest, whom)) = case.clients() else {
            return out.extend(self.through_backend(at, backend, part));
        };
        // Routes do not go by addresses: one of both kinds of clients is rejected.
        let why = "routes cannot choose by the address of a client: weir rejects those clients \
            here that the fewer addresses are about; write a `route` on another `listen` for them";
        self.draft.note(at.line.place, Kind::Closed, &at.line.shown(), why);
        match part.without(Some((!is_rest && is_last, whom))) {
            Some(rest) if is_rest || is_last => out.extend(self.through_backend(at, backend, rest)),
            Some(rest) => out.push(rest),
            None => out.push(part.end(at.line, To::Closed)),
        }
    }

    fn changed(&mut self, line: &Node, change: &Change, case: &Case, mut part: Flow) -> Flow {
        let is_exact = !case.is_vague() && case.clients().is_none() && part.exempt.is_empty();
        let done = if is_exact { change.apply(&mut part) } else { change.apply_to_some(&mut part) };
        if let Some(why) = change.of_some().filter(|_| !is_exact) {
            self.draft.different(line, why);
        }
        match done {
            Ok(()) => Flow { is_turned: true, ..part },
            Err(why) => {
                self.draft.note(line.place, Kind::Closed, &line.shown(), why);
                part.end(line, To::Closed)
            }
        }
    }

    /// Returns the parts of requests that go to a backend, behind its own rules.
    pub(super) fn through_backend(
        &mut self,
        at: At<'t>,
        backend: Option<usize>,
        part: Flow,
    ) -> Vec<Flow> {
        let line = at.line;
        let led = backend.map(|section| (section, self.backend(section)));
        let Some((section, Some(upstream))) = led else {
            let why = match led {
                Some(_) => "none of its servers could be carried over: weir rejects its requests",
                None => "no backend has this name: weir rejects its requests",
            };
            self.draft.note(line.place, Kind::Closed, &line.shown(), why);
            return vec![part.end(line, To::Closed)];
        };
        let own = self.own_rules(at.frontend, section);
        let of = |(phase, section, line)| (phase, At { line, section, ..at });
        let own: Vec<(usize, At<'t>)> = own.into_iter().map(of).collect();
        let flows = self.follow(&own, vec![Flow { exempt: Vec::new(), ..part }]);
        let common = self.common_changes(at.frontend, section);
        let end = |flow: Flow| {
            if flow.is_done {
                return flow;
            }
            let mut flow = flow.end(line, To::Upstream(upstream));
            flow.route.request.extend(common.request.iter().cloned());
            flow.route.answer.extend(common.answer.iter().cloned());
            flow.route.compress.clone_from(&common.compress);
            flow.route.buffering = common.buffering;
            if common.to == To::Denied {
                flow.route.to = To::Denied;
            }
            flow
        };
        flows.into_iter().map(end).collect()
    }
}

/// Returns a route for all requests of the host and path of another.
fn all_of(route: &Route) -> Route {
    let (group, host, path) = (route.group, "*".to_owned(), "/".to_owned());
    Route { group, host, path, ..Route::default() }
}

/// Returns requests that weir itself responds to.
fn ended(
    part: Flow,
    line: &Node,
    (to, edits, rewrite): (To, &[Edit], &Option<(String, String)>),
) -> Flow {
    let mut flow = part.end(line, to);
    flow.route.answer.extend(edits.iter().cloned());
    if let Some(rewrite) = rewrite.as_ref().filter(|_| flow.route.rewrites.is_empty()) {
        flow.route.rewrites.push(rewrite.clone());
    }
    flow
}
