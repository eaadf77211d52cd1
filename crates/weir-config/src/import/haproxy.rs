//! HAProxy: frontends become listeners and routes, backends upstreams. Called by `import`.
//!
//! `use_backend` rules have an order, weir's routes are chosen by specificity: `order` converts one
//! to the other. Expressions of ACLs are in `haproxy/acl.rs`, addresses and servers in
//! `haproxy/bind.rs`, `haproxy/backend.rs` and `haproxy/server.rs`, all other lines in
//! `haproxy/fate.rs`.

mod acl;
mod backend;
mod bind;
mod compress;
mod fate;
mod limits;
mod read;
mod rules;
mod server;
mod tcp;

use std::collections::{BTreeSet, HashMap, HashSet};

use weir_proxy::request::rules::edits::Side;

use super::cases::Case;
use super::draft::Draft;
use super::notes::Kind;
use super::order::{RULES_MAX, by_specificity};
use super::route::{Edit, Route, To};
use super::steps::Step;
use super::tree::{NESTING_MAX, Node, Place, ROOT, Tree};
use crate::problem::Errors;

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
        any_case: false,
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
    /// The changes of routes from a frontend to a backend.
    changes: HashMap<(usize, usize), Route>,
    /// `backend` and `listen` sections by name.
    named: HashMap<&'t str, usize>,
    /// Upstreams of `backend` and `listen` sections; None: no usable one.
    backends: HashMap<usize, Option<usize>>,
    /// Upstreams of those in `mode tcp`.
    passed: HashMap<usize, Option<usize>>,
    /// Whether the last condition had paths that match in any case.
    any_case: bool,
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
        if tree
            .named(at, "stats")
            .any(|line| line.argument(1) == "enable" || line.argument(1) == "uri")
            && tree.indices(at, "server").is_empty()
        {
            return self.draft.lost(
                node,
                "`metrics \"127.0.0.1:9100\"` at the top serves a page and OpenMetrics",
            );
        }
        let group = self.draft.group(node.place, &node.shown());
        for bind in tree.named(at, "bind") {
            self.bind(group, bind);
        }
        let mut rules = Vec::new();
        let mut kept: Vec<Step> = Vec::new();
        // Rules of `defaults` come first.
        let sections: Vec<usize> =
            self.defaults.get(&at).copied().flatten().into_iter().chain([at]).collect();
        let lines = || {
            sections
                .iter()
                .flat_map(|section| tree.children(*section).map(|(_, line)| (*section, line)))
        };
        let mut lines: Vec<(usize, &Node)> =
            lines().filter(|(_, line)| turn(line).is_some()).collect();
        lines.sort_by_key(|(_, line)| turn(line));
        let is_long = lines.len() > RULES_MAX;
        for (section, line) in lines.into_iter().take(RULES_MAX) {
            if line.name() == "use_backend" {
                let cases = self.cases(section, line);
                self.lead((at, &kept), group, line, (line.argument(1), cases), &mut rules);
                continue;
            }
            if self.limit(at, section, line) {
                continue;
            }
            for step in self.steps((section, group), line) {
                match step {
                    Step::End(route) => rules.extend(self.draft.through(&kept, route)),
                    Step::Keep(_) => kept.push(step),
                }
            }
        }
        let whole = vec![Case::default()];
        if let Some(line) = self.one(at, &["default_backend"]) {
            self.lead((at, &kept), group, line, (line.argument(1), whole), &mut rules);
        } else if !tree.indices(at, "server").is_empty()
            && let Some(upstream) = self.backend(at)
        {
            let routes = self.routes(at, group, (node, at), (To::Upstream(upstream), whole));
            routes.into_iter().for_each(|route| rules.extend(self.draft.through(&kept, route)));
        }
        let ordered = by_specificity(rules);
        if is_long || !ordered.complete {
            self.draft.lost(
                node,
                "too many rules to convert to weir's order; some requests may go elsewhere",
            );
        }
        let leads = |other: &Route| ordered.routes.iter().any(|route| route.place == other.place);
        for route in ordered.unreached.iter().filter(|other| !leads(other)) {
            let why = "no request reaches this rule: earlier rules take them all";
            self.draft.note(route.place, Kind::Lost, &route.what, why);
        }
        ordered.routes.into_iter().for_each(|route| self.draft.route(route));
    }

    /// Converts rules that lead to a backend.
    fn lead(
        &mut self,
        (at, kept): (usize, &[Step]),
        group: usize,
        line: &'t Node,
        (name, cases): (&str, Vec<Case>),
        rules: &mut Vec<Route>,
    ) {
        let Some(backend) = self.named.get(name).copied() else {
            return self.draft.lost(
                line,
                "no backend has this name; weir cannot choose a backend by the content \
                    of a request",
            );
        };
        if cases.is_empty() {
            return;
        }
        let Some(upstream) = self.backend(backend) else {
            return self.draft.lost(line, "none of its servers could be carried over");
        };
        let mut steps = Vec::new();
        for (section, own) in self.own_rules(at, backend) {
            steps.extend(self.steps((section, group), own));
        }
        for route in self.routes(at, group, (line, backend), (To::Upstream(upstream), cases)) {
            for part in self.draft.through(kept, route) {
                rules.extend(self.draft.through(&steps, part));
            }
            if rules.len() > RULES_MAX {
                break;
            }
        }
    }

    /// Returns the rules of a backend, which follow those of the frontend; those of its own
    /// `defaults` come first, each with its section.
    fn own_rules(&self, at: usize, backend: usize) -> Vec<(usize, &'t Node)> {
        let tree = self.tree;
        let defaults = |section: usize| self.defaults.get(&section).copied().flatten();
        let own = defaults(backend).filter(|own| Some(*own) != defaults(at));
        let sections = own.into_iter().chain([backend]).filter(|_| backend != at);
        let lines = sections
            .flat_map(|section| tree.children(section).map(move |(_, line)| (section, line)));
        let mut lines: Vec<(usize, &Node)> =
            lines.filter(|(_, line)| turn(line).is_some()).collect();
        lines.sort_by_key(|(_, line)| turn(line));
        lines
    }

    /// Returns a route for each case; fields are changed by the frontend, then by the backend.
    fn routes(
        &mut self,
        frontend: usize,
        group: usize,
        (line, backend): (&'t Node, usize),
        (to, cases): (To, Vec<Case>),
    ) -> Vec<Route> {
        let key = (frontend, backend);
        if !self.changes.contains_key(&key) {
            let changes = self.changes_of(frontend, backend);
            self.changes.insert(key, changes);
        }
        let changes = &self.changes[&key];
        let base = Route { group, place: line.place, what: line.shown(), to, ..changes.clone() };
        cases.into_iter().map(|case| case.route(base.clone())).collect()
    }

    /// Returns the changes to requests and responses, in an otherwise empty route.
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
        let all: Vec<usize> = sections.into_iter().flat_map(with_defaults).collect();
        let mut seen = HashSet::new();
        for section in all.into_iter().filter(|section| seen.insert(*section)) {
            for (_, line) in self.tree.children(section) {
                match (line.name(), line.argument(1)) {
                    ("http-request", "set-header")
                        if line.argument(2).eq_ignore_ascii_case("host") =>
                    {
                        changes.server_host = self.host_field(line);
                    }
                    ("http-request", "replace-path" | "replace-uri" | "set-path") => {
                        let is_first = changes.rewrites.is_empty();
                        changes.rewrites.extend(self.rewrite(line, is_first));
                    }
                    ("http-request", _) => changes.request.extend(self.edit(line, Side::Request)),
                    ("http-response", _) => changes.answer.extend(self.edit(line, Side::Answer)),
                    _ => {}
                }
            }
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

    /// Converts `http-request replace-path REGEX TO`.
    fn rewrite(&mut self, line: &Node, is_first: bool) -> Option<(String, String)> {
        if !is_first {
            self.draft
                .lost(line, "weir changes a path once, with the first `rewrite` that matches");
            return None;
        }
        if line.argument(1) != "replace-path" || line.words.len() != 4 {
            self.draft.lost(
                line,
                "weir rewrites paths with `rewrite`, which is like `replace-path` \
                    without a condition",
            );
            return None;
        }
        // Groups are `\1` in HAProxy.
        let mut to = String::new();
        let mut rest = line.argument(3).chars();
        while let Some(c) = rest.next() {
            match c {
                '\\' => to.extend(std::iter::once('$').chain(rest.next())),
                '$' => to.push_str("$$"),
                c => to.push(c),
            }
        }
        Some((format!("^(?:{})$", line.argument(2)), to))
    }

    fn host_field(&mut self, line: &Node) -> Option<String> {
        let value = line.argument(3);
        if line.words.len() == 4 && crate::texts::probe_host(value).is_ok() {
            return Some(value.to_owned());
        }
        self.draft.different(line, "servers see the host that the client requested");
        None
    }

    /// Converts an unconditional change of a field.
    fn edit(&mut self, line: &Node, side: Side) -> Option<Edit> {
        let verb = match line.argument(1) {
            "set-header" => "set",
            "add-header" => "add",
            "del-header" => "remove",
            _ => return None,
        };
        let name = line.argument(2);
        if matches!(
            name.to_ascii_lowercase().as_str(),
            "x-forwarded-proto" | "x-forwarded-for" | "x-forwarded-host"
        ) {
            self.draft.unneeded(&format!("{} {name}", line.argument(1)));
            return None;
        }
        let count = if verb == "remove" { 3 } else { 4 };
        if line.words.len() > count {
            self.draft.lost(
                line,
                "weir changes headers for all requests of a route; write a route with \
                    this condition",
            );
            return None;
        }
        match text(line.argument(3)) {
            Ok(value) => self.draft.edit(line, side, verb, (name, &value)),
            Err(what) => {
                self.draft.lost(line, format!("weir's texts have no equivalent of `{what}`"));
                None
            }
        }
    }
}

/// Returns the position of a line in the order of evaluation, if it affects routing.
fn turn(line: &Node) -> Option<usize> {
    ["monitor-uri", "tcp-request", "block", "http-request", "redirect", "use_backend"]
        .iter()
        .position(|name| *name == line.name())
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

/// Returns a log-format text as a text of weir's. Err: the part that weir does not have.
fn text(theirs: &str) -> Result<String, String> {
    const NAMES: [(&str, &str); 10] = [
        ("src", "$remote_addr"),
        ("ci", "$remote_addr"),
        ("method", "$request_method"),
        ("url", "$request_uri"),
        ("pathq", "$request_uri"),
        ("capture.req.uri", "$request_uri"),
        ("req.hdr(host)", "$host"),
        ("hdr(host)", "$host"),
        ("HM", "$request_method"),
        ("b", "$upstream_name"),
    ];
    let mut out = String::new();
    let mut rest = theirs;
    while let Some(at) = rest.find(['%', '$']) {
        out.push_str(&rest[..at]);
        let behind = &rest[at + 1..];
        if rest[at..].starts_with('$') {
            out.push_str("$$");
            rest = behind;
            continue;
        }
        if let Some(behind) = behind.strip_prefix('%') {
            out.push('%');
            rest = behind;
            continue;
        }
        let (name, behind) =
            match behind.strip_prefix('[').and_then(|inside| inside.split_once(']')) {
                Some(found) => found,
                None => behind.split_at(
                    behind.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(behind.len()),
                ),
            };
        let field = name
            .strip_prefix("req.hdr(")
            .or_else(|| name.strip_prefix("hdr("))
            .and_then(|rest| rest.strip_suffix(')'));
        let known =
            NAMES.iter().find(|(known, _)| *known == name).map(|(_, ours)| (*ours).to_owned());
        let known = known.or_else(|| {
            field.map(|field| format!("$http_{}", field.to_ascii_lowercase().replace('-', "_")))
        });
        // Braces separate it from the text behind.
        let known = known.ok_or_else(|| name.to_owned())?;
        out.push_str(&format!("${{{}}}", &known[1..]));
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_names() {
        assert_eq!(text("%[src]x%%").unwrap(), "${remote_addr}x%");
        assert_eq!(text("%ci %[req.hdr(X-Id)] $1").unwrap(), "${remote_addr} ${http_x_id} $$1");
        assert_eq!(text("%[ssl_fc_sni]").unwrap_err(), "ssl_fc_sni");
        assert_eq!(text("%[open").unwrap_err(), "");
    }
}
