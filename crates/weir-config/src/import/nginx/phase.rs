//! What nginx does before it looks for access control and content: `if`, `return`, `rewrite` of a
//! server or a location, in their order.
//!
//! Each becomes a rule for some requests, in front of those that follow. An `if` whose test cannot
//! be said closes what it may cover.

use super::super::access::Access;
use super::super::begin::begin_of;
use super::super::notes::Kind;
use super::super::route::{Condition, Route, To};
use super::super::tree::Node;
use super::paths::{expression, prefix, spanning};
use super::test::{Case, HostTest, Test};
use super::{Nginx, Server};

/// A route of a server for all of its hosts, or some.
#[derive(Debug, Clone, Default)]
pub(super) struct Rule {
    pub(super) route: Route,
    pub(super) host: Option<HostTest>,
}

/// One of these, in order.
#[derive(Debug)]
pub(super) enum Step {
    Rule(Box<Rule>),
    /// What follows is only for these methods; others have these rules.
    Only(Vec<String>, Vec<Rule>),
    /// What follows is only for these clients.
    Clients(Access),
}

/// Usual expressions that match every path.
const ALL_PATHS: [&str; 11] =
    ["^", "^/", "/", ".*", "(.*)", "^.*$", "^(.*)", "^(.*)$", "^/(.*)", "^/.*$", "^/(.*)$"];

impl Step {
    fn of(rule: Rule) -> Step {
        Step::Rule(Box::new(rule))
    }
}

/// The steps of a block.
#[derive(Debug, Default)]
pub(super) struct Phase {
    pub(super) steps: Vec<Step>,
    /// No request gets behind them.
    pub(super) ends: bool,
    /// Changes of the path for the content of the location.
    pub(super) breaks: Vec<(String, String)>,
    /// Whether later ones apply to what each of these writes.
    open: Vec<bool>,
    /// Rules for requests that go on to another location behind all steps.
    late: Vec<Rule>,
    /// No request gets behind those.
    ends_late: bool,
    /// An earlier `rewrite` may have changed the path.
    is_changed: bool,
}

/// What follows a `rewrite` in its block.
#[derive(Debug, Clone, Copy)]
struct After<'s> {
    /// nginx looks for no other location.
    stops: bool,
    /// Directives behind it.
    rest: &'s [usize],
    /// It is in an `if`.
    is_tested: bool,
}

impl Phase {
    /// Adds a change of the path; false: it also changes what an earlier one wrote, in a way that
    /// cannot be said.
    fn add_break(&mut self, regex: String, to: String, is_last: bool) -> bool {
        let begin = begin_of(&regex);
        for ((_, theirs), _) in
            self.breaks.iter_mut().zip(&self.open).filter(|(_, is_open)| **is_open)
        {
            let known = theirs.split('$').next().unwrap_or_default();
            let both = known.len().min(begin.len());
            if known.as_bytes()[..both] != begin.as_bytes()[..both] {
                continue;
            }
            let bare = regex.strip_prefix("(?-u)").unwrap_or(&regex);
            let rest = bare.strip_prefix(&format!("^{}", regex::escape(&begin)));
            let rest = rest.or_else(|| bare.strip_prefix(&format!("^{begin}")));
            let is_plain = matches!(rest, Some("(.*)$" | "(.*)")) && known.len() >= begin.len();
            if !is_plain || to.matches('$').count() != 1 || !to.contains("$1") {
                return false;
            }
            *theirs = to.replace("$1", &theirs[begin.len()..]);
        }
        self.breaks.push((regex, to));
        self.open.push(!is_last);
        true
    }
}

impl Nginx<'_, '_, '_> {
    /// Returns the steps of a server or a location.
    pub(super) fn phase(&mut self, server: &Server, at: usize) -> Phase {
        let tree = self.tree;
        let mut phase = Phase::default();
        let own: Vec<usize> = tree.nodes[at].children.clone();
        for (number, child) in own.iter().enumerate() {
            let node = &tree.nodes[*child];
            match node.name() {
                "if" => self.if_block(server, *child, &own[number + 1..], &mut phase),
                "return" => {
                    let found = self.answered(server, at, node);
                    phase.steps.extend(found.into_iter().map(Step::of));
                    phase.ends = true;
                }
                "rewrite" => {
                    let stops = own[number + 1..].iter().any(|next| {
                        let next = &tree.nodes[*next];
                        next.name() == "break"
                            || next.name() == "rewrite" && next.argument(3) == "break"
                    });
                    let rest = &own[number + 1..];
                    let after = After { stops, rest, is_tested: false };
                    self.rewrite(server, (at, node), after, &mut phase);
                }
                _ => {}
            }
            if phase.ends {
                return phase;
            }
        }
        phase.ends = phase.ends_late;
        phase.steps.extend(std::mem::take(&mut phase.late).into_iter().map(Step::of));
        phase
    }

    fn if_block(&mut self, server: &Server, at: usize, rest: &[usize], phase: &mut Phase) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let does = |name: &str| tree.indices(at, name).first().copied();
        let is_location = tree.nodes[node.parent].name() == "location";
        self.tests.insert(at);
        let mut test = self.test(server, at);
        if phase.is_changed && test.is_of_path() {
            test = Test::Unsaid;
        }
        if test == Test::Never {
            let refuses = |at: usize| tree.nodes[at].argument(1).starts_with('4');
            let is_file = node.argument(1).trim_start_matches('(').starts_with('-');
            if !is_file {
                return;
            }
            if !does("return").is_some_and(refuses) {
                return self.draft.lost(node, "weir looks at no files, and never does this");
            }
            test = Test::Unsaid;
        }
        let rules = if let Some(answer) = does("return") {
            self.answered(server, at, &tree.nodes[answer])
        } else if let Some(pass) = does("proxy_pass").filter(|_| is_location) {
            // What follows an `if` may still end the request otherwise.
            let why = "weir cannot choose servers by this; write a route with its condition";
            vec![self.refused(&tree.nodes[pass], why)]
        } else if let Some(change) = does("rewrite") {
            let mut inner = Phase::default();
            let change = &tree.nodes[change];
            let stops = change.argument(3) == "break" || does("break").is_some();
            let after = After { stops, rest, is_tested: true };
            self.rewrite(server, (at, change), after, &mut inner);
            let mut rules = inner.late;
            rules.extend(inner.steps.into_iter().filter_map(|step| match step {
                Step::Rule(rule) => Some(*rule),
                _ => None,
            }));
            if !inner.breaks.is_empty() && is_location {
                rules.extend(self.content(server, node.parent, &inner.breaks));
            }
            rules
        } else if tree.children(at).any(|(_, node)| has_content(node)) {
            vec![self.refused(node, "weir cannot express what this does")]
        } else {
            self.lost_changes(at);
            return;
        };
        let steps = self.tested(node, test, rules);
        let always = matches!(&steps[..], [Step::Rule(rule)] if is_for_all(rule));
        phase.ends |= always;
        phase.steps.extend(steps);
    }

    /// Returns what the rules of an `if` become by its test.
    fn tested(&mut self, node: &Node, test: Test, rules: Vec<Rule>) -> Vec<Step> {
        match test {
            Test::Never => Vec::new(),
            Test::Always => rules.into_iter().map(Step::of).collect(),
            Test::Cases(cases) => {
                let both = |rule: &Rule, case: &Case| with_case(rule.clone(), case);
                let all = rules.iter().flat_map(|rule| {
                    cases.iter().filter_map(|case| both(rule, case)).collect::<Vec<_>>()
                });
                all.map(Step::of).collect()
            }
            Test::OtherMethods(methods) => vec![Step::Only(methods, rules)],
            Test::Host(host) => {
                let of_host = |rule: Rule| Rule { host: Some(host.clone()), ..rule };
                rules.into_iter().map(|rule| Step::of(of_host(rule))).collect()
            }
            Test::Clients(whom, is_rest) if self.all_refuse(&rules) => {
                let [rule, ..] = &rules[..] else { return Vec::new() };
                if rule.route.to != To::Denied {
                    self.draft.different(node, "weir answers these clients with 403");
                }
                vec![Step::Clients(Access::without(&whom, is_rest))]
            }
            Test::Clients(..) | Test::Unsaid => {
                let why = "routes cannot test this";
                vec![Step::of(self.refused(node, why))]
            }
        }
    }

    fn all_refuse(&self, rules: &[Rule]) -> bool {
        let refuses = |rule: &Rule| match rule.route.to {
            To::Denied | To::Closed | To::Nothing => true,
            To::Answer(at) => self.draft.answers[at].line.starts_with("respond 4"),
            To::Upstream(_) => false,
        };
        let is_plain = |rule: &Rule| rule.host.is_none() && is_for_all(rule);
        rules.iter().all(|rule| refuses(rule) && is_plain(rule))
    }

    /// Returns a rule that rejects all requests, and notes it.
    pub(super) fn refused(&mut self, node: &Node, why: &str) -> Rule {
        let why = format!("{why}; until you change that, weir rejects all requests for this");
        self.draft.note(node.place, Kind::Closed, &node.shown(), why);
        rule(node, To::Denied)
    }

    /// Returns a rule that answers no request, and notes it.
    pub(super) fn unserved(&mut self, node: &Node, why: &str) -> Rule {
        self.draft.note(node.place, Kind::Closed, &node.shown(), why);
        rule(node, To::Closed)
    }

    /// Returns the rules of a `return`.
    fn answered(&mut self, server: &Server, at: usize, node: &Node) -> Vec<Rule> {
        if let Some(rules) = self.by_error_page(server, at, node) {
            return rules;
        }
        let mut base = Route { place: node.place, what: node.shown(), ..Route::default() };
        base.path = "/".to_owned();
        self.answer_changes(&mut base, server, at);
        let found = self.answers(server, at, node);
        if found.is_empty() {
            let why = "weir cannot give this answer";
            return vec![if super::location::refuses(node) {
                self.refused(node, why)
            } else {
                self.unserved(node, why)
            }];
        }
        let of = |one: super::answer::Own| Rule {
            route: Route { scheme: one.scheme, to: one.to, rewrites: one.rewrites, ..base.clone() },
            host: None,
        };
        found.into_iter().map(of).collect()
    }

    /// Returns the content of the named location that `error_page` has for the status.
    fn by_error_page(&mut self, server: &Server, at: usize, node: &Node) -> Option<Vec<Rule>> {
        let tree = self.tree;
        let status = node.argument(1);
        let pages = tree.effective(at, "error_page").iter().map(|at| &tree.nodes[*at]);
        let mut pages = pages.filter(|page| page.arguments().any(|word| word == status));
        let name = pages.next()?.words.last()?;
        let others = tree.indices(server.at, "location");
        let named = others.iter().find(|at| tree.nodes[**at].argument(1) == name)?;
        // Only this trick is common; other statuses refuse.
        (status == "418").then(|| self.inner(server, *named))
    }

    /// Converts a `rewrite`.
    fn rewrite(
        &mut self,
        server: &Server,
        (at, node): (usize, &Node),
        after: After<'_>,
        phase: &mut Phase,
    ) {
        let (regex, flag) = (node.argument(1), node.argument(3));
        let to = self.resolve(server, at, node.argument(2));
        let Some(ours) = expression(regex, false) else {
            let why = "weir does not support this expression";
            let rule = self.refused(node, why);
            let begin = begin_of(regex);
            let (path, condition) = prefix(if begin.is_empty() { "/" } else { &begin });
            let conditions = condition.into_iter().collect();
            let route = Route { path, conditions, ..rule.route };
            return phase.steps.push(Step::of(Rule { route, ..rule }));
        };
        let takes_all = ALL_PATHS.contains(&regex);
        let conditions =
            if takes_all { Vec::new() } else { vec![Condition::of_path(ours.clone(), false)] };
        let is_redirect = matches!(flag, "redirect" | "permanent")
            || to.starts_with("http://")
            || to.starts_with("https://")
            || to.starts_with("$scheme");
        let with = |rule: Rule| {
            let mut route = rule.route;
            let new = conditions.iter().filter(|one| !route.conditions.contains(one)).cloned();
            route.conditions.extend(new.collect::<Vec<_>>());
            Rule { route, ..rule }
        };
        if is_redirect {
            let status = if flag == "permanent" { "301" } else { "302" };
            let rules = self.redirected(server, at, node, (status, &ours, &to));
            phase.ends |= takes_all;
            return phase.steps.extend(rules.into_iter().map(|rule| Step::of(with(rule))));
        }
        let is_server = self.tree.nodes[at].name() == "server"
            || self.tree.nodes[self.tree.nodes[at].parent].name() == "server"
                && self.tree.nodes[at].name() == "if";
        let path = self.target_path(node, &to);
        let path = path.map(|path| in_groups(regex, &path)).filter(|path| !has_names(path));
        let Some(path) = path else {
            let rule = self.unserved(node, "weir cannot write this target");
            phase.ends |= takes_all;
            return phase.steps.push(Step::of(with(rule)));
        };
        let goes_on = !matches!(flag, "last" | "break");
        if (after.stops || flag == "break") && flag != "last" && !is_server {
            phase.is_changed |= goes_on;
            let is_last = flag == "break";
            if phase.add_break(ours, path, is_last) {
                return;
            }
            phase.ends = true;
            let why = "weir applies one rewrite to a path";
            return phase.steps.push(Step::of(self.unserved(node, why)));
        }
        if !goes_on {
            let rules = self.elsewhere(server, node, (&ours, &path));
            phase.ends |= takes_all;
            return phase.steps.extend(rules.into_iter().map(|rule| Step::of(with(rule))));
        }
        // What follows applies to the new path as well.
        phase.is_changed = true;
        if self.is_apart(after, &ours, &path) {
            let rules = self.elsewhere(server, node, (&ours, &path));
            phase.ends_late |= takes_all;
            return phase.late.extend(rules.into_iter().map(with));
        }
        let rule = self.unserved(node, "what follows it would have to apply to the new path");
        phase.ends |= takes_all;
        phase.steps.push(Step::of(with(rule)));
    }

    /// Returns the path of the target of a `rewrite`; None: it has a query.
    fn target_path(&mut self, node: &Node, to: &str) -> Option<String> {
        match to.split_once('?') {
            None => Some(to.to_owned()),
            Some((path, "")) => {
                let why = "weir keeps the query, which the last `?` drops here";
                self.draft.different(node, why);
                Some(path.to_owned())
            }
            Some(_) => None,
        }
    }

    /// Whether directives behind a `rewrite` do the same for the old path and for the new one.
    fn is_apart(&self, after: After<'_>, regex: &str, path: &str) -> bool {
        let known = path.split('$').next().unwrap_or_default();
        let is_other = |one: &str, other: &str| {
            let both = one.len().min(other.len());
            one.as_bytes()[..both] != other.as_bytes()[..both]
        };
        after.rest.iter().map(|at| &self.tree.nodes[*at]).all(|node| match node.name() {
            "if" | "return" if after.is_tested => false,
            "rewrite" => {
                let theirs = begin_of(node.argument(1));
                !after.is_tested && is_other(&theirs, known) && is_other(&theirs, &begin_of(regex))
            }
            "if" => node.children.iter().all(|at| self.tree.nodes[*at].name() != "rewrite"),
            _ => true,
        })
    }

    /// Returns the rules of a `rewrite` that redirects.
    fn redirected(
        &mut self,
        server: &Server,
        at: usize,
        node: &Node,
        (status, regex, to): (&str, &str, &str),
    ) -> Vec<Rule> {
        let mut base = Route { place: node.place, what: node.shown(), ..Route::default() };
        base.path = "/".to_owned();
        self.answer_changes(&mut base, server, at);
        let found = self.led(server, node, (status, &in_groups(regex, to)), Some(regex));
        if found.is_empty() {
            return vec![self.unserved(node, "weir cannot write this target")];
        }
        let of = |one: super::answer::Own| Rule {
            route: Route { scheme: one.scheme, to: one.to, rewrites: one.rewrites, ..base.clone() },
            host: None,
        };
        found.into_iter().map(of).collect()
    }

    /// Returns the rules of the location that has a path after a `rewrite`.
    pub(super) fn elsewhere(
        &mut self,
        server: &Server,
        node: &Node,
        (regex, path): (&str, &str),
    ) -> Vec<Rule> {
        let begin = path.split('$').next().unwrap_or_default().trim_end_matches('{');
        let found = self.locate(server.at, begin, begin == path);
        let rules = found.map(|at| self.inner(server, at)).unwrap_or_default();
        let is_plain = |rule: &Rule| {
            rule.route.conditions.iter().all(|condition| condition.subject != "path")
                && rule.host.is_none()
        };
        let led: Option<Vec<Rule>> = rules
            .into_iter()
            .map(|rule| Some(rule).filter(is_plain).and_then(|rule| behind(rule, (regex, path))))
            .collect();
        match led.filter(|rules| !rules.is_empty()) {
            Some(rules) => rules,
            None => {
                let why = "weir chooses a route once; write the rewrite into the route of its \
                    target";
                vec![self.unserved(node, why)]
            }
        }
    }

    /// Returns the only location that can take paths with this beginning, or exactly this path.
    fn locate(&self, server: usize, begin: &str, is_whole: bool) -> Option<usize> {
        use super::paths::{How, how};
        let tree = self.tree;
        let all = tree.indices(server, "location").iter();
        let all: Vec<(usize, How, &str)> = all
            .map(|at| {
                let (how, text) = how(&tree.nodes[*at]);
                (*at, how, text)
            })
            .collect();
        let exact = all.iter().find(|(_, how, text)| *how == How::Exact && *text == begin);
        if let Some((at, ..)) = exact.filter(|_| is_whole) {
            return Some(*at);
        }
        let is_prefix = |how: How| matches!(how, How::Prefix | How::Only);
        let may_be_longer = |(_, how, text): &(usize, How, &str)| {
            !is_whole
                && matches!(how, How::Prefix | How::Only | How::Exact)
                && text.starts_with(begin)
                && *text != begin
        };
        if all.iter().any(may_be_longer) {
            return None;
        }
        let fitting =
            all.iter().filter(|(_, how, text)| is_prefix(*how) && begin.starts_with(text));
        let (at, how, _) = *fitting.max_by_key(|(.., text)| text.len())?;
        let may_match = |(_, how, text): &(usize, How, &str)| match how {
            How::Regex(any_case) => match expression(text, *any_case) {
                Some(ours) if is_whole => regex::bytes::Regex::new(&ours)
                    .map_or(true, |one| one.is_match(begin.as_bytes())),
                _ => {
                    let theirs = begin_of(text);
                    *any_case || theirs.starts_with(begin) || begin.starts_with(&theirs)
                }
            },
            _ => false,
        };
        if how != How::Only && all.iter().any(may_match) {
            return None;
        }
        // Which of nested ones takes it is not looked at.
        tree.indices(at, "location").is_empty().then_some(at)
    }

    /// Notes an `if` that changes only fields and the like.
    fn lost_changes(&mut self, at: usize) {
        let node = &self.tree.nodes[at];
        let harmless = |name: &str| matches!(name, "set" | "break" | "access_log");
        if self.tree.children(at).all(|(_, node)| harmless(node.name())) {
            return;
        }
        self.draft.lost(node, "weir cannot change fields by such a test; write a route for it");
    }
}

/// Returns a rule for all requests.
pub(super) fn rule(node: &Node, to: To) -> Rule {
    let route = Route {
        place: node.place,
        what: node.shown(),
        path: "/".to_owned(),
        to,
        ..Route::default()
    };
    Rule { route, host: None }
}

fn is_for_all(rule: &Rule) -> bool {
    let Route { scheme, methods, conditions, path, .. } = &rule.route;
    rule.host.is_none()
        && scheme.is_none()
        && methods.is_empty()
        && conditions.is_empty()
        && path == "/"
}

/// Whether a directive gives an `if` content, or keeps some clients out.
fn has_content(node: &Node) -> bool {
    let name = node.name();
    name.ends_with("_pass")
        || name.starts_with("content_by")
        || name.starts_with("access_by")
        || name.starts_with("rewrite_by")
        || matches!(name, "deny" | "allow" | "auth_basic" | "auth_request" | "error_page")
}

/// Returns a rule only for requests of a case. None: there are none.
pub(super) fn with_case(mut rule: Rule, case: &Case) -> Option<Rule> {
    let route = &mut rule.route;
    route.scheme = match (route.scheme, case.scheme) {
        (Some(one), Some(other)) if one != other => return None,
        (one, other) => one.or(other),
    };
    if !case.methods.is_empty() {
        route.methods = both_methods(&route.methods, &case.methods)?;
    }
    for condition in &case.conditions {
        if !route.conditions.contains(condition) {
            route.conditions.push(condition.clone());
        }
    }
    Some(rule)
}

/// Returns the methods that are in both, where none means all. None: there are none.
fn both_methods(one: &[String], other: &[String]) -> Option<Vec<String>> {
    if one.is_empty() {
        return Some(other.to_vec());
    }
    let both: Vec<String> = one.iter().filter(|one| other.contains(one)).cloned().collect();
    (!both.is_empty()).then_some(both)
}

/// Returns the rules behind the steps of a block, and those of the steps.
pub(super) fn apply(steps: Vec<Step>, rest: Vec<Rule>) -> Vec<Rule> {
    let mut rules = rest;
    for step in steps.into_iter().rev() {
        match step {
            Step::Rule(rule) => rules.insert(0, *rule),
            Step::Only(methods, others) => {
                let case = Case { methods, ..Case::default() };
                rules = rules.into_iter().filter_map(|rule| with_case(rule, &case)).collect();
                rules.extend(others);
            }
            Step::Clients(access) => {
                for Rule { route, .. } in &mut rules {
                    match route.access.and(&access).filter(Access::fits) {
                        Some(both) => route.access = both,
                        None => route.to = To::Denied,
                    }
                }
            }
        }
    }
    rules
}

/// Returns a text with numbers in place of the names of an expression's groups.
pub(super) fn in_groups(expression: &str, text: &str) -> String {
    let Ok(compiled) = regex::bytes::Regex::new(expression) else { return text.to_owned() };
    let mut out = text.to_owned();
    for (number, name) in compiled.capture_names().enumerate().skip(1) {
        if let Some(name) = name.filter(|_| number < 10) {
            out = out.replace(&format!("${{{name}}}"), &format!("${number}"));
            out = out.replace(&format!("${name}"), &format!("${number}"));
        }
    }
    out
}

/// Whether a text has variables other than groups.
pub(super) fn has_names(text: &str) -> bool {
    text.split('$').skip(1).any(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Returns a rule for requests whose path is replaced before. None: its own changes of the path
/// cannot be joined with that.
fn behind(rule: Rule, (regex, path): (&str, &str)) -> Option<Rule> {
    let mut route = rule.route;
    let to = match (&route.strip, &route.rewrites[..]) {
        (None, []) => path.to_owned(),
        (Some(strip), []) => {
            let rest = path.strip_prefix(strip.trim_end_matches('/'))?;
            if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") }
        }
        (None, [(theirs, to)]) => {
            let begin = begin_of(theirs);
            let is_plain = *theirs == format!("^{}", regex::escape(&begin));
            let rest = path.strip_prefix(&begin).filter(|_| is_plain)?;
            format!("{to}{rest}")
        }
        _ => return None,
    };
    let is_redirect = matches!(route.to, To::Answer(_));
    if matches!(route.to, To::Upstream(_)) {
        (route.strip, route.rewrites) = (None, vec![(spanning(regex), to)]);
    } else if is_redirect && !route.rewrites.is_empty() {
        return None;
    }
    Some(Rule { route, ..rule })
}
