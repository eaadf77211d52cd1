//! `route`: the requests that it matches, their upstream, and the rules for them; weir's own
//! responses are in `own_answer`. Called by [`super::compile`].

use std::sync::Arc;

use weir_proxy::plan::UpstreamPlan;
use weir_proxy::request::nonidempotent::TargetMatch;
use weir_proxy::request::route::{HostMatch, Route, RouteTable, Scheme, Target};
use weir_proxy::request::rules::RouteRules;
use weir_proxy::request::rules::access::{Access, NETWORKS_MAX};
use weir_proxy::request::rules::buffering::Buffering;
use weir_proxy::request::rules::edits::{EDITS_MAX, Edit, FieldEdits, Side, refusal};
use weir_proxy::request::rules::matching::{Condition, Subject};
use weir_proxy::request::rules::path::{PathRules, Replacement, Rewrite};
use weir_proxy::request::rules::text::Text;

use super::names::{ListenerNames, Names};
use super::own_answer::no_single_goal;
use super::reached::Reached;
use super::requirements::requirements;
use super::split::split;
use super::users::basic_auth;
use super::{BLOCKS_MAX, Compiler, network, pool, target_match};
use crate::check::Checked;
use crate::problem::Problem;
use crate::texts;

/// Conditions of one route, rewrites of one, lines of `allow` and `deny` of one, pages of one,
/// edits of one block.
pub(crate) const RULES_MAX: usize = 100;

impl Compiler<'_> {
    /// Routes with their own pool get their own upstream, behind all others.
    pub(super) fn routes(
        &mut self,
        document: &Checked,
        upstreams: &mut Vec<UpstreamPlan>,
    ) -> RouteTable {
        let names = Names::of_upstreams(document);
        let listeners = ListenerNames::new(self, document);
        let (mut routes, mut reached) = (Vec::new(), Reached::default());
        for block in document.all("route").take(BLOCKS_MAX) {
            let Some(target) = self.target(block, &names, upstreams) else { continue };
            let rules = self.rules(block, document, &leads_to(&target, upstreams));
            super::cache::check_upstreams(self, block, target.upstreams().map(|at| &upstreams[at]));
            let methods = block.texts("methods");
            check_paths(self, block);
            let (path, exact) = path_of(block);
            let route = Route {
                listeners: listeners.of_route(self, block),
                scheme: match block.word("scheme") {
                    "http" => Some(Scheme::Http),
                    "https" => Some(Scheme::Https),
                    _ => None,
                },
                host: host_match(block.text("host")),
                path: path.to_owned(),
                exact,
                conditions: self.conditions(block),
                methods: (!methods.is_empty())
                    .then(|| methods.iter().map(|one| (*one).to_owned()).collect()),
                target,
                rules,
            };
            if let Some(span) = reached.add(&route, &block.span) {
                let message = "this route is never reached: an earlier one takes the same host, \
                    path and methods";
                self.push(
                    Problem::new("conflict", &block.span, message)
                        .related(&span, "the earlier one"),
                );
            }
            routes.push(route);
        }
        RouteTable::new(routes)
    }

    /// Returns the target. None: it was wrong, which has been reported.
    fn target(
        &mut self,
        block: &Checked,
        names: &Names<'_>,
        upstreams: &mut Vec<UpstreamPlan>,
    ) -> Option<Target> {
        if let Some(problem) = no_single_goal(block) {
            self.push(problem);
            return None;
        }
        if block.chosen("proxy").is_none() {
            if let Some(split) = block.all("split").next() {
                let message = "`split` takes a share of the requests for `proxy`, which this route \
                    does not have";
                self.push(
                    Problem::new("conflict", &split.place("upstream"), message)
                        .help("proxy \"app\""),
                );
            }
            return self.own_answer(block).map(|own| Target::Here(Arc::new(own)));
        }
        let target = self.upstream_named(block, "proxy", names)?;
        let target = pool::pooled(self, block, target, upstreams);
        let split = split(self, block, target, names, upstreams);
        Some(split.map_or(Target::Upstream(target), |split| Target::Split(Arc::new(split))))
    }

    fn conditions(&mut self, route: &Checked) -> Vec<Condition> {
        self.at_most(route, "path-regex", RULES_MAX);
        self.at_most(route, "condition", RULES_MAX);
        let of_path = route.all("path-regex").take(RULES_MAX).filter_map(|block| {
            let value = target_match(block, "regex")?;
            Some(Condition { subject: Subject::Path, value, not: block.flag("not") })
        });
        let mut conditions: Vec<Condition> = of_path.collect();
        let others = route.all("condition").take(RULES_MAX);
        conditions.extend(others.filter_map(|block| self.condition(block)));
        conditions
    }

    fn condition(&mut self, block: &Checked) -> Option<Condition> {
        let name = block.text("name").to_owned();
        let (subject, refused) = match block.word("subject") {
            "header" => (Subject::Header(name.to_ascii_lowercase()), unseen(&name)),
            "query" => (Subject::Query(name), None),
            _ => (Subject::Cookie(name.clone()), texts::cookie_name(&name).err()),
        };
        if let Some(why) = refused.filter(|_| !block.text("name").is_empty()) {
            self.push(Problem::new("bad-value", &block.place("name"), why));
        }
        let given = ["eq", "prefix", "suffix", "regex"]
            .into_iter()
            .filter(|name| block.chosen(name).is_some());
        let value = match given.collect::<Vec<_>>()[..] {
            [] => TargetMatch::Any,
            [one] => target_match(block, one)?,
            [_, second, ..] => {
                let message = "at most one match is allowed: eq=, prefix=, suffix= or regex=";
                self.push(Problem::new("conflict", &block.place(second), message));
                return None;
            }
        };
        Some(Condition { subject, value, not: block.flag("not") })
    }

    /// Returns the changes of a route. `leads_to`: the upstreams that may get its requests.
    fn rules(
        &mut self,
        route: &Checked,
        document: &Checked,
        leads_to: &[&UpstreamPlan],
    ) -> Option<Arc<RouteRules>> {
        let [request, answer] = ["request", "answer"].map(|name| self.only(route, name));
        let host = request.map(|block| block.text("host")).filter(|host| !host.is_empty());
        let mut rules = RouteRules {
            access: self.access(route),
            requirements: requirements(self, route),
            users: basic_auth(self, route),
            path: self.path_rules(route),
            host: host.map(|host| host.as_bytes().into()),
            request: request
                .map_or_else(FieldEdits::default, |block| self.edits(block, Side::Request)),
            answer: answer
                .map_or_else(FieldEdits::default, |block| self.edits(block, Side::Answer)),
            pages: self.error_pages(route),
            compress: self.compress(route, document),
            cache: None,
            buffering: buffering(route),
        };
        rules.cache = super::cache::cache(self, route, document, &rules.request);
        let mut echoes = leads_to.iter().filter_map(|upstream| upstream.echo.as_ref());
        let echo = echoes.find(|echo| rules.request.names(echo));
        if let (Some(block), Some(echo)) = (request, echo) {
            let message = format!(
                "`{echo}` is the `echo` header of `pipeline`: weir sets it to detect responses to \
                    other requests"
            );
            self.push(Problem::new("conflict", &block.span, message));
        }
        (!rules.is_empty()).then(|| Arc::new(rules))
    }

    /// Returns the clients that a route accepts.
    fn access(&mut self, route: &Checked) -> Access {
        self.at_most(route, "access", RULES_MAX);
        let mut access = Access::default();
        let mut denies = false;
        for block in route.all("access").take(RULES_MAX) {
            let allows = block.word("verdict") == "allow";
            denies |= !allows;
            for address in block.texts("address") {
                // An address that is no range is `all`.
                access.push(allows, network(address));
            }
            if access.len() > NETWORKS_MAX {
                let message =
                    format!("more than {NETWORKS_MAX} addresses in `allow` and `deny` of a route");
                self.push(Problem::new("too-many", &block.span, message));
                break;
            }
        }
        if let (Some(block), false) = (route.all("access").next(), denies) {
            let message =
                "`allow` alone rejects no client: weir accepts addresses that no line names";
            let problem = Problem::new("conflict", &block.span, message);
            self.push(problem.help("write `deny \"all\"` as the last line"));
        }
        access
    }

    /// Returns the block with this name, which may occur once.
    pub(super) fn only<'b>(&mut self, route: &'b Checked, name: &'b str) -> Option<&'b Checked> {
        let (first, second) = (route.all(name).next()?, route.all(name).nth(1));
        if let Some(second) = second {
            let within = match route.block.name {
                "" => "the file".to_owned(),
                around => format!("a {around}"),
            };
            let problem = Problem::new(
                "duplicate",
                &second.span,
                format!("`{name}` may occur only once in {within}"),
            );
            self.push(problem.related(&first.span, "first here"));
        }
        Some(first)
    }

    fn path_rules(&mut self, route: &Checked) -> PathRules {
        let (path, strip) = (path_of(route).0, route.text("strip-prefix"));
        let prefix = strip.strip_suffix('/').unwrap_or(strip);
        let is_below =
            path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if !path.is_empty() && !is_below {
            let message = format!(
                "requests of this route need not begin with `{strip}`: its `path` is `{path}`"
            );
            let problem = Problem::new("conflict", &route.place("strip-prefix"), message);
            self.push(problem.help(format!("write path=\"{strip}\", or a path below it")));
        }
        self.at_most(route, "rewrite", RULES_MAX);
        PathRules {
            strip: (!prefix.is_empty()).then(|| prefix.as_bytes().into()),
            rewrites: route
                .all("rewrite")
                .take(RULES_MAX)
                .filter_map(|block| self.rewrite(block))
                .collect(),
        }
    }

    fn rewrite(&mut self, block: &Checked) -> Option<Rewrite> {
        // Wrong values have been reported.
        let regex = Some(block.text("regex")).filter(|text| !text.is_empty());
        let regex = regex.and_then(|text| regex::bytes::Regex::new(text).ok())?;
        match Replacement::compile(block.text("to"), regex.captures_len() - 1) {
            Ok(to) => Some(Rewrite { regex, to }),
            Err(message) => {
                self.push(Problem::new(
                    "bad-value",
                    &block.place("to"),
                    format!("`to`: {message}"),
                ));
                None
            }
        }
    }

    fn edits(&mut self, block: &Checked, side: Side) -> FieldEdits {
        self.at_most(block, "edit", RULES_MAX);
        let mut edits = FieldEdits::default();
        for edit in block.all("edit").take(RULES_MAX) {
            let (name, verb) = (edit.text("name"), edit.word("verb"));
            if let Some(why) = refusal(name, side, verb != "remove").filter(|_| !name.is_empty()) {
                let message = format!("rules cannot change `{name}`: {why}");
                self.push(Problem::new("bad-value", &edit.place("name"), message));
                continue;
            }
            let text = || Text::compile(edit.text("value")).ok();
            let edit = match verb {
                "set" => text().map(Edit::Set),
                "add" => text().map(Edit::Add),
                _ => Some(Edit::Remove),
            };
            // A name or a text that was wrong has been reported.
            if let (Some(edit), false) = (edit, name.is_empty()) {
                edits.push(name, edit);
            }
        }
        if edits.len() > EDITS_MAX {
            self.push(Problem::new(
                "too-many",
                &block.span,
                format!("more than {EDITS_MAX} headers in one block"),
            ));
        }
        edits
    }
}

fn check_paths(compiler: &mut Compiler<'_>, route: &Checked) {
    // The default is no choice.
    if route.chosen("path-exact").is_some() && route.text("path") != "/" {
        let message = "`path-exact` is in place of `path`: a route has one of them";
        compiler.push(Problem::new("conflict", &route.place("path-exact"), message));
    }
}

/// Returns the path of a route, and whether it is meant alone.
fn path_of(route: &Checked) -> (&str, bool) {
    match route.chosen("path-exact") {
        Some(_) => (route.text("path-exact"), true),
        None => (route.text("path"), false),
    }
}

/// Returns when servers of a route get requests with an incomplete body.
fn buffering(route: &Checked) -> Buffering {
    match route.word("request-buffering") {
        "on" => Buffering::On,
        "off" => Buffering::Off,
        _ => Buffering::Auto,
    }
}

/// Returns the upstreams that may get requests with this target, including fallbacks.
fn leads_to<'u>(target: &Target, upstreams: &'u [UpstreamPlan]) -> Vec<&'u UpstreamPlan> {
    let next = |upstream: &&UpstreamPlan| upstream.fallback().map(|fallback| &upstreams[fallback]);
    let chain = |first: usize| std::iter::successors(Some(&upstreams[first]), next);
    target.upstreams().flat_map(chain).collect()
}

/// Returns why no route can match a field of requests; None: it can.
pub(crate) fn unseen(name: &str) -> Option<String> {
    if let Err(why) = texts::route::field(name) {
        return Some(why);
    }
    let known = weir_http::FieldName::of(name.as_bytes());
    if known == weir_http::FieldName::Host {
        return Some("use the option `host` to match Host".to_owned());
    }
    let why = match (known.is_hop_by_hop(), known.is_forwarding()) {
        (true, _) => "it is a hop-by-hop header, which proxies do not forward",
        (_, true) => "clients other than trusted proxies can write anything into it",
        _ => return None,
    };
    Some(format!("routes cannot match `{name}`: {why}"))
}

pub(super) fn host_match(text: &str) -> HostMatch {
    match text {
        "*" => HostMatch::Any,
        _ if text.starts_with("*.") => HostMatch::Suffix(text.to_owned()),
        _ => HostMatch::Exact(text.to_owned()),
    }
}
