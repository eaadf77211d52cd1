//! HAProxy: frontends become listeners and routes, backends upstreams. Called by `import`.
//!
//! Rules have an order, weir's routes are chosen by specificity: `haproxy/flow.rs` makes a list of
//! routes of which the first match holds, and `order` converts that. Expressions of ACLs are in
//! `haproxy/acl.rs`, addresses and servers in `haproxy/bind.rs`, `haproxy/backend.rs` and
//! `haproxy/server.rs`, all other lines in `haproxy/fate.rs`.

mod acl;
mod backend;
mod bind;
mod change;
mod compress;
mod criterion;
mod fate;
mod flow;
mod limits;
mod map;
mod read;
mod rules;
mod seen;
mod server;
mod tcp;

use std::collections::{BTreeSet, HashMap, HashSet};

use weir_proxy::request::rules::edits::Side;

use super::draft::Draft;
use super::notes::Kind;
use super::order::{RULES_MAX, by_specificity};
use super::own_answer::Content;
use super::route::{Edit, Route, Scheme, To};
use super::tree::{NESTING_MAX, Node, Place, ROOT, Tree};
use crate::problem::Errors;
use crate::reverse::literal;
use flow::{At, Flow};
use seen::Seen;

/// The note on a section that HAProxy does not run.
const DISABLED: &str = "it is `disabled`, so it is left out";
/// Sections that carry traffic.
const PROXIES: [&str; 2] = ["frontend", "listen"];

/// Puts the whole configuration into the draft.
pub(super) fn import(draft: &mut Draft<'_>) -> Result<(), Errors> {
    let tree = read::read(draft)?;
    let mut defaults = HashMap::new();
    // The last `defaults` above a section applies to it.
    let mut current = None;
    for (at, node) in tree.children(ROOT) {
        if node.name() == "defaults" {
            current = Some(at);
        }
        // `frontend NAME from DEFAULTS`.
        let from = node
            .words
            .iter()
            .position(|word| word == "from")
            .and_then(|from| node.words.get(from + 1));
        let named = from.and_then(|name| {
            tree.named(ROOT, "defaults").position(|other| other.argument(1) == name)
        });
        let named = named.map(|number| tree.indices(ROOT, "defaults")[number]);
        defaults.insert(at, named.or(current).filter(|other| *other != at));
    }
    let mut named = HashMap::new();
    for (at, node) in
        tree.children(ROOT).filter(|(_, node)| matches!(node.name(), "backend" | "listen"))
    {
        named.entry(node.argument(1)).or_insert(at);
    }
    let (changes, backends, passed) = (HashMap::new(), HashMap::new(), HashMap::new());
    let inherited = HashMap::new();
    let (tables, tracks) = (BTreeSet::new(), BTreeSet::new());
    let mut haproxy = Haproxy {
        tree: &tree,
        draft,
        defaults,
        inherited,
        changes,
        named,
        backends,
        passed,
        unsaid: String::new(),
        explained: String::new(),
        is_in_variable: false,
        splits: 0,
        tables,
        tracks,
    };
    for (at, node) in tree.children(ROOT) {
        if PROXIES.contains(&node.name()) {
            haproxy.frontend(at);
        }
    }
    haproxy.tell();
    Ok(())
}

/// The state of all parts.
struct Haproxy<'t, 'd, 'a> {
    tree: &'t Tree,
    draft: &'d mut Draft<'a>,
    /// The `defaults` of each section.
    defaults: HashMap<usize, Option<usize>>,
    /// The settings of servers below a `defaults`, in `mode tcp` or not.
    inherited: HashMap<(usize, bool), server::Settings<'t>>,
    /// The changes that all routes from a frontend to a backend have in common.
    changes: HashMap<(usize, usize), Route>,
    /// `backend` and `listen` sections by name.
    named: HashMap<&'t str, usize>,
    /// Upstreams of `backend` and `listen` sections; None: no usable one.
    backends: HashMap<usize, Option<usize>>,
    /// Upstreams of those in `mode tcp`.
    passed: HashMap<usize, Option<usize>>,
    /// The last criterion that routes cannot express.
    unsaid: String,
    /// Why the last line covers more than in the source.
    explained: String,
    /// The condition of a variable is being read.
    is_in_variable: bool,
    /// Comparisons for the last frontend, for a bound.
    splits: usize,
    /// Sections whose tables became limits, and the lines that count in them.
    tables: BTreeSet<usize>,
    tracks: BTreeSet<Place>,
}

impl<'t> Haproxy<'t, '_, '_> {
    /// Returns the `defaults` of a section, then those that these are `from` in turn. They are
    /// above it, as HAProxy requires: so none occurs twice.
    fn above(&self, section: usize) -> impl Iterator<Item = usize> {
        let next = |at: &usize| self.defaults.get(at).copied().flatten().filter(|above| above < at);
        std::iter::successors(next(&section), next).take(NESTING_MAX)
    }

    /// Returns the last line of a section, or of the nearest `defaults` that has one, that begins
    /// with these words.
    fn one(&self, section: usize, words: &[&str]) -> Option<&'t Node> {
        let tree = self.tree;
        let find = |at: usize| {
            let mut lines = tree.named(at, words[0]);
            lines.rfind(|line| {
                line.words.iter().zip(words).filter(|(a, b)| a == b).count() == words.len()
            })
        };
        find(section).or_else(|| self.above(section).find_map(find))
    }

    /// Whether the bodies of requests are buffered before a server gets the request.
    fn buffers_requests(&self, section: usize) -> bool {
        let is_on = self.one(section, &["option", "http-buffer-request"]).is_some();
        is_on && self.one(section, &["no", "option", "http-buffer-request"]).is_none()
    }

    /// Returns the mode of a section; without one it passes connections on unchanged.
    fn mode(&self, section: usize) -> &'t str {
        self.one(section, &["mode"]).map_or("tcp", |mode| mode.argument(1))
    }

    /// Whether HAProxy does not run a section: the last word about it counts.
    fn is_disabled(&self, section: usize) -> bool {
        let said = |at: usize| {
            let lines = self.tree.children(at).map(|(_, line)| line.name());
            lines.filter(|name| matches!(*name, "disabled" | "enabled")).last()
        };
        said(section).or_else(|| self.above(section).find_map(said)) == Some("disabled")
    }

    fn frontend(&mut self, at: usize) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        if self.is_disabled(at) {
            return self.draft.lost(node, DISABLED);
        }
        match self.mode(at) {
            "http" => {}
            "tcp" => return tcp::frontend(self, at),
            _ => {
                return self.draft.lost(node, "weir supports only `mode http` and `mode tcp`");
            }
        }
        let has_stats = self.one(at, &["stats"]).is_some();
        let leads = ["server", "server-template", "use_backend", "default_backend"];
        let leads_somewhere = self.one(at, &["default_backend"]).is_some()
            || leads.iter().any(|name| !tree.indices(at, name).is_empty());
        if has_stats && !leads_somewhere {
            return self.draft.lost(
                node,
                "`metrics \"127.0.0.1:9100\"` at the top serves a page and OpenMetrics",
            );
        }
        let group = self.draft.group(node.place, &node.shown());
        for bind in tree.named(at, "bind") {
            self.bind(group, bind);
        }
        let rules = self.rules(at, group);
        let ordered = by_specificity(rules);
        if !ordered.complete {
            let route = Route { place: node.place, what: node.shown(), ..Flow::all(group).route };
            let why = "too many rules to convert to weir's order: weir rejects all requests to \
                this; import it in parts";
            return self.draft.closed(route, why);
        }
        let leads = |other: &Route| ordered.routes.iter().any(|route| route.place == other.place);
        for route in ordered.unreached.iter().filter(|other| !leads(other)) {
            let why = "no request reaches this rule: earlier rules take them all";
            self.draft.note(route.place, Kind::Lost, &route.what, why);
        }
        let mut kept: Vec<Route> = Vec::new();
        for mut route in ordered.routes {
            // One for each scheme may take all of its requests together.
            let taken = |scheme: Scheme| {
                kept.iter().any(|other| {
                    other.hides(&route) && other.scheme.is_none_or(|one| one == scheme)
                })
            };
            let left: Vec<Scheme> = Scheme::ALL.into_iter().filter(|one| !taken(*one)).collect();
            match (route.scheme, &left[..]) {
                (_, []) => continue,
                (None, [scheme]) => route.scheme = Some(*scheme),
                _ => {}
            }
            kept.push(route);
        }
        kept.into_iter().for_each(|route| self.draft.route(route));
    }

    /// Returns the routes of a frontend; the first match holds.
    fn rules(&mut self, at: usize, group: usize) -> Vec<Route> {
        let tree = self.tree;
        let node = &tree.nodes[at];
        self.splits = 0;
        // Rules of `defaults` come first.
        let sections = self.defaults.get(&at).copied().flatten().into_iter().chain([at]);
        let lines = self.in_order(sections);
        let of = |(phase, section, line)| (phase, At { line, section, group, frontend: at });
        let lines: Vec<(usize, At<'t>)> = lines.into_iter().map(of).collect();
        let flows = self.follow(&lines, vec![Flow::all(group)]);
        let rest = self.one(at, &["default_backend"]);
        let mut rules = Vec::new();
        for flow in flows {
            let line = rest.unwrap_or(node);
            let at_end = At { line, section: at, group, frontend: at };
            let parts = match rest {
                _ if flow.is_done => vec![flow],
                Some(line) => {
                    let backend = self.named.get(line.argument(1)).copied();
                    self.through_backend(at_end, backend, flow)
                }
                None if leads_by_itself(tree, at) => self.through_backend(at_end, Some(at), flow),
                None => vec![self.nowhere(node, flow)],
            };
            rules.extend(parts.into_iter().map(|part| part.route));
        }
        if rules.len() > RULES_MAX {
            let why = "too many rules to convert to weir's order: weir rejects the requests that \
                later rules are about; import it in parts";
            self.draft.note(node.place, Kind::Closed, &node.shown(), why);
            rules.truncate(RULES_MAX - 1);
            rules.push(Flow::all(group).end(node, To::Closed).route);
        }
        rules
    }

    /// Ends requests that HAProxy leads nowhere: 503 there as well.
    fn nowhere(&mut self, node: &Node, flow: Flow) -> Flow {
        let to = self.draft.respond(node, "503", Content::default()).unwrap_or_default();
        let mut flow = flow.end(node, to);
        "all other requests".clone_into(&mut flow.route.what);
        flow
    }

    /// Returns the lines of sections that decide about requests, in their order of evaluation, each
    /// with its phase and its section.
    fn in_order(&self, sections: impl Iterator<Item = usize>) -> Vec<(usize, usize, &'t Node)> {
        let tree = self.tree;
        let mut lines: Vec<(usize, usize, &'t Node)> = Vec::new();
        for section in sections {
            for (_, line) in tree.children(section) {
                lines.extend(turn(line).map(|turn| (turn, section, line)));
            }
        }
        lines.sort_by_key(|(turn, ..)| *turn);
        // The page has one path, whatever its lines.
        let mut seen = HashSet::new();
        lines.retain(|(_, section, line)| line.name() != "stats" || seen.insert(*section));
        // `block` is an older word for rules of `http-request`.
        let phase = |turn: usize| if turn == BLOCK { BLOCK + 1 } else { turn };
        lines.into_iter().map(|(turn, section, line)| (phase(turn), section, line)).collect()
    }

    /// Returns the rules of a backend, which follow those of the frontend; those of its own
    /// `defaults` come first, each with its phase and its section.
    fn own_rules(&self, at: usize, backend: usize) -> Vec<(usize, usize, &'t Node)> {
        let defaults = |section: usize| self.defaults.get(&section).copied().flatten();
        let own = defaults(backend).filter(|own| Some(*own) != defaults(at));
        let sections = own.into_iter().chain([backend]).filter(|_| backend != at);
        let mut lines = self.in_order(sections);
        lines.retain(|(.., line)| !matches!(line.name(), "use_backend" | "monitor-uri"));
        lines
    }

    /// Returns the changes to all requests from a frontend to a backend and to their responses, in
    /// an otherwise empty route; denied: rules reject responses that routes cannot express.
    fn common_changes(&mut self, frontend: usize, backend: usize) -> Route {
        let key = (frontend, backend);
        if !self.changes.contains_key(&key) {
            let changes = self.changes_of(frontend, backend);
            self.changes.insert(key, changes);
        }
        self.changes[&key].clone()
    }

    fn changes_of(&mut self, frontend: usize, backend: usize) -> Route {
        let buffers = [frontend, backend].iter().any(|section| self.buffers_requests(*section));
        let buffering = buffers.then_some("on");
        let mut changes =
            Route { compress: self.compress((frontend, backend)), buffering, ..Route::default() };
        let mut sections = vec![frontend];
        sections.extend((backend != frontend).then_some(backend));
        let with_defaults = |section: usize| {
            self.defaults.get(&section).copied().flatten().into_iter().chain([section])
        };
        let all: Vec<usize> = sections.iter().copied().flat_map(with_defaults).collect();
        let mut seen = HashSet::new();
        for section in all.into_iter().filter(|section| seen.insert(*section)) {
            for (_, line) in self.tree.children(section) {
                let is_of_responses =
                    matches!(line.name(), "http-response" | "http-after-response");
                if is_of_responses && line.argument(1) == "deny" {
                    let why = "weir rejects no responses: it rejects all requests that this may be \
                        about";
                    self.draft.note(line.place, Kind::Closed, &line.shown(), why);
                    changes.to = To::Denied;
                } else if is_of_responses {
                    changes.answer.extend(self.edit(line));
                }
            }
        }
        if changes.to != To::Denied {
            changes.to = To::Closed;
        }
        for section in sections {
            let told = self.told(section);
            let is_new = |edit: &Edit| !changes.request.contains(edit);
            let told: Vec<Edit> = told.into_iter().filter(is_new).collect();
            changes.request.extend(told);
        }
        if self.offloads(frontend) || self.offloads(backend) {
            changes.request.push(Edit {
                verb: "remove",
                name: "Accept-Encoding".to_owned(),
                value: String::new(),
            });
        }
        changes
    }

    /// Returns the fields that options of a section set: `forwardfor`, `unique-id-header`.
    fn told(&mut self, section: usize) -> Vec<Edit> {
        let mut edits = Vec::new();
        let is_off = self.one(section, &["no", "option", "forwardfor"]).is_some();
        if let Some(line) = self.one(section, &["option", "forwardfor"]).filter(|_| !is_off) {
            let why = "weir sets X-Forwarded-For to the client's address, and keeps the client's \
                only of `trusted-proxies`";
            self.draft.different_once(line, why);
            let name = line.arguments().skip_while(|word| *word != "header").nth(1);
            let name = name.filter(|name| !name.eq_ignore_ascii_case("x-forwarded-for"));
            if let Some(name) = name {
                edits.extend(self.draft.edit(line, Side::Request, "set", (name, "$remote_addr")));
            }
            if line.words.iter().any(|word| matches!(word.as_str(), "except" | "if-none")) {
                self.draft.different(line, "weir sets it for all clients");
            }
        }
        if let Some(line) = self.one(section, &["unique-id-header"]) {
            let name = line.argument(1);
            let text = format!("request-id {}", literal(name));
            let lines = &mut self.draft.client_lines;
            if crate::texts::route::field(name).is_ok() {
                lines.entry("request-id").or_insert((text, line.place));
            }
            self.draft.different(line, "weir's identifiers have their own form, for all clients");
        }
        edits
    }

    /// Converts a change of a field of responses.
    fn edit(&mut self, line: &Node) -> Option<Edit> {
        let verb = match line.argument(1) {
            "set-header" => "set",
            "add-header" => "add",
            "del-header" => "remove",
            _ => return None,
        };
        let count = if verb == "remove" { 3 } else { 4 };
        let is_removed = verb == "remove" && !acl::condition(line).1.is_empty();
        if is_removed && !line.words.iter().any(|word| word == "-m") {
            self.draft.different(line, "weir removes it from all responses");
        } else if line.words.len() > count {
            self.draft.lost(
                line,
                "weir changes headers for all requests of a route; write a route with \
                    this condition",
            );
            return None;
        }
        match seen::text(line.argument(3), &Seen::default()) {
            _ if verb == "remove" => {
                self.draft.edit(line, Side::Answer, verb, (line.argument(2), ""))
            }
            Ok(value) => self.draft.edit(line, Side::Answer, verb, (line.argument(2), &value)),
            Err(what) => {
                self.draft.lost(line, format!("weir's texts have no equivalent of `{what}`"));
                None
            }
        }
    }
}

/// Whether a section has servers.
fn leads_by_itself(tree: &Tree, at: usize) -> bool {
    ["server", "server-template"].iter().any(|name| !tree.indices(at, name).is_empty())
}

/// The position of `block` in the order of evaluation.
const BLOCK: usize = 4;

/// Returns the position of a line in the order of evaluation, if it decides about requests.
fn turn(line: &Node) -> Option<usize> {
    Some(match (line.name(), line.argument(1)) {
        ("tcp-request", "connection") => 0,
        ("tcp-request", "session") => 1,
        ("tcp-request", _) => 2,
        ("monitor-uri", _) => 3,
        ("block", _) => BLOCK,
        ("http-request", _) => BLOCK + 1,
        ("stats", _) => 6,
        ("redirect", _) => 7,
        ("use_backend", _) => 8,
        _ => return None,
    })
}

/// Whether a line keeps some clients out.
fn is_refusal(line: &Node) -> bool {
    match (line.name(), line.argument(1)) {
        ("http-request", "deny" | "reject" | "silent-drop" | "tarpit" | "auth") | ("block", _) => {
            true
        }
        ("tcp-request", _) => line.arguments().any(|word| matches!(word, "reject" | "silent-drop")),
        _ => false,
    }
}
