//! `location` of nginx: a route for each of its server's hosts.
//!
//! A location that only some clients may use (by address, password or client certificate) is closed
//! if weir cannot tell these apart.

use weir_proxy::plan::UNIX;
use weir_proxy::request::rules::edits::Side;

use super::super::access::Access;
use super::super::missing::{EXACT, Missing, SEGMENTS};
use super::super::notes::Kind;
use super::super::route::{Edit, Route, To};
use super::super::tree::Node;
use super::{Nginx, Server, refusal, time};
use crate::reverse::literal;

/// Fields that weir writes automatically, as nginx is usually configured to.
const BY_ITSELF: [&str; 6] = [
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-forwarded-host",
    "connection",
    "upgrade",
    "x-forwarded-scheme",
];

/// Directives that admit some clients, here or in a block around.
const GUARDS: [&str; 11] = [
    "auth_basic",
    "auth_request",
    "auth_jwt",
    "auth_oidc",
    "auth_pam",
    "auth_ldap",
    "auth_digest",
    "access_by_lua",
    "access_by_lua_block",
    "access_by_lua_file",
    "secure_link",
];

/// Subjects of tests that keep some requests out; other tests may admit some.
const OF_REQUESTS: [&str; 11] = [
    "$http_user_agent",
    "$http_referer",
    "$invalid_referer",
    "$request_uri",
    "$uri",
    "$args",
    "$query_string",
    "$request_method",
    "$host",
    "$http_host",
    "$scheme",
];

/// An expression that keeps some requests out of a server.
pub(super) struct Expression {
    /// The block of its location.
    block: usize,
    /// The common prefix of all its paths, and whether in any case.
    prefix: String,
    any_case: bool,
    guard: usize,
}

impl Expression {
    /// Whether it may match some paths with this prefix.
    fn takes(&self, path: &str) -> bool {
        let start = path.as_bytes().get(..self.prefix.len());
        start.is_some_and(|start| {
            start == self.prefix.as_bytes()
                || self.any_case && start.eq_ignore_ascii_case(self.prefix.as_bytes())
        })
    }
}

/// The effect of a location.
struct Does {
    /// The directive that keeps some clients out.
    guard: Option<usize>,
    answer: Option<usize>,
    /// The block of `proxy_pass`, and that directive.
    proxy: Option<(usize, usize)>,
}

impl Nginx<'_, '_, '_> {
    /// Converts a location to routes, or to a note.
    pub(super) fn location(&mut self, server: &Server, at: usize) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let (kind, path) = path(node);
        if path.starts_with('@') {
            return;
        }
        let is_expression = kind == "~" || kind == "~*";
        let Does { guard, answer, proxy } = self.does(server, at, is_expression);
        // If an expression and a prefix match, the expression holds.
        let other = Some(())
            .filter(|()| kind.is_empty())
            .and_then(|()| self.expression_over(server, at, path));
        let guard = guard.or(other);
        let answer = answer.map(|answer| &tree.nodes[answer]);
        if guard.is_none() && proxy.is_none() && answer.is_none() {
            return;
        }
        let path = if is_expression {
            // What it keeps out is kept out, with all paths of that prefix.
            let Some(prefix) = guard.and_then(|_| begins_with(path)) else {
                let opens = if guard.is_some() {
                    "; other routes now accept what this rejects"
                } else {
                    ""
                };
                return self.draft.lost(node, format!("{}{opens}", Missing::PathMatch.why()));
            };
            prefix
        } else {
            path
        };
        if kind == "=" && path == "/" && guard.is_none() {
            return self.draft.lost(node, Missing::PathMatch.why());
        }
        self.tell_of_path(node, (kind, path));
        if is_expression {
            self.tell_of_expression(node, (kind, path));
        }
        if server.hosts.is_empty() {
            return self.draft.lost(node, "its server has no name that weir could match");
        }
        let mut base = Route {
            group: server.group,
            place: node.place,
            what: node.shown(),
            path: path.to_owned(),
            exact: kind == "=",
            ..Route::default()
        };
        let refusals = refusal::of_location(self, server, at);
        let routes = match (guard, answer, proxy) {
            (Some(guard), ..) => {
                self.closed(guard, path);
                vec![base]
            }
            (None, Some(answer), _) => {
                self.answer_changes(&mut base, at);
                let answers = self.answers(server, at, answer);
                answers
                    .into_iter()
                    .map(|(scheme, to)| Route { scheme, to, ..base.clone() })
                    .collect()
            }
            (None, None, Some((named, pass))) => {
                let [own, other] = [at, named].map(|at| self.access(at).unwrap_or_default());
                let Some(access) =
                    (if at == named { Some(own) } else { own.and(&other) }).filter(Access::fits)
                else {
                    self.deny(at).into_iter().for_each(|deny| self.closed(deny, path));
                    return self.route_of(server, node, (&base, &refusals));
                };
                base.access = access;
                self.proxy(base, named, &tree.nodes[pass]).into_iter().collect()
            }
            (None, None, None) => return,
        };
        for route in &routes {
            self.route_of(server, node, (route, &refusals));
        }
    }

    fn does(&self, server: &Server, at: usize, is_expression: bool) -> Does {
        let answer = self.tree.indices(at, "return").first().copied();
        let proxy = self.proxied(server, at).filter(|_| answer.is_none());
        let guard = match answer {
            Some(_) => self.answer_guard(at, is_expression),
            None => self.proxy_guard(at, proxy.map(|(named, _)| named), is_expression),
        };
        let by_name = || {
            self.named(server, at)
                .and_then(|named| self.tree.indices(named, "return").first().copied())
        };
        let by_name = || {
            by_name()
                .filter(|at| answer.is_none() && proxy.is_none() && refuses(&self.tree.nodes[*at]))
        };
        Does { guard: guard.or_else(by_name), answer, proxy }
    }

    /// Returns the expression of a location that keeps some clients out, if it has one with a
    /// literal prefix.
    pub(super) fn expression(&self, server: &Server, at: usize) -> Option<Expression> {
        let node = &self.tree.nodes[at];
        let (kind, path) = path(node);
        let prefix = begins_with(path).filter(|_| kind == "~" || kind == "~*")?.to_owned();
        let guard = self.does(server, at, true).guard?;
        Some(Expression { block: node.parent, prefix, any_case: kind == "~*", guard })
    }

    /// Returns the directive that keeps some clients out of a location by the expression of
    /// another, which holds although this one's path is longer.
    fn expression_over(&self, server: &Server, at: usize, path: &str) -> Option<usize> {
        let is_around = |block: usize| {
            let mut of = at;
            while of != server.at && of != block {
                of = self.tree.nodes[of].parent;
            }
            of == block
        };
        let mut all = server.expressions.iter();
        all.find(|other| other.takes(path) && is_around(other.block)).map(|other| other.guard)
    }

    /// Notes what is admitted that an expression kept out, because its paths become those of one
    /// prefix.
    fn tell_of_expression(&mut self, node: &Node, (kind, path): (&str, &str)) {
        if kind == "~*" {
            self.draft.different(
                node,
                format!(
                    "weir's paths are case-sensitive: it now accepts other spellings of `{path}`"
                ),
            );
        }
        if !path.ends_with('/') && !node.shown().ends_with('$') {
            let why = format!(
                "weir's paths match whole segments: it accepts `{path}x` and the like, which this \
                    may reject"
            );
            self.draft.different(node, why);
        }
    }

    /// Returns the directive that keeps some clients out of a location with its own response. A
    /// refusal by an expression applies to all paths of its prefix.
    fn answer_guard(&self, at: usize, is_expression: bool) -> Option<usize> {
        let first = |name: &str| self.tree.indices(at, name).first().copied();
        let refusal = first("return").filter(|at| is_expression && refuses(&self.tree.nodes[*at]));
        first("internal").or_else(|| self.tested(at)).or(refusal)
    }

    /// Returns the directive that keeps some clients out of any other location, and of the one that
    /// it passes requests on to. Without such a location, or with an expression, weir cannot
    /// express access by address, so any `deny` counts.
    fn proxy_guard(&self, at: usize, named: Option<usize>, is_expression: bool) -> Option<usize> {
        let both = [Some(at), named].into_iter().flatten();
        let denied = || {
            both.clone().find_map(|at| self.deny(at)).filter(|_| is_expression || named.is_none())
        };
        both.clone().find_map(|at| self.guard(at)).or_else(denied)
    }

    fn tell_of_path(&mut self, node: &Node, (kind, path): (&str, &str)) {
        let is_prefix = !matches!(kind, "=" | "~" | "~*");
        if kind == "=" && path.ends_with('/') {
            self.draft.different(node, EXACT);
        } else if is_prefix && !path.ends_with('/') {
            self.draft.different_once(node, SEGMENTS);
        }
    }

    /// Adds a route for each host of its server.
    fn route_of(
        &mut self,
        server: &Server,
        node: &Node,
        (route, own): (&Route, &[refusal::Refusal]),
    ) {
        for host in &server.hosts {
            if self.draft.is_full() {
                return self.draft.lost(node, "there are too many routes already");
            }
            let route = Route { host: host.clone(), ..route.clone() };
            let refusals = server.refusals.iter().chain(own);
            let twins: Vec<Route> = refusals.filter_map(|refusal| refusal.twin(&route)).collect();
            twins.into_iter().chain([route]).for_each(|route| self.draft.route(route));
        }
    }

    fn closed(&mut self, guard: usize, path: &str) {
        let guard = &self.tree.nodes[guard];
        let why = format!(
            "{}; until you add that, weir rejects all requests for `{path}`",
            Missing::Access.why()
        );
        self.draft.note(guard.place, Kind::Closed, &guard.shown(), why);
    }

    /// Returns the location with the effective `proxy_pass`, and that directive: its own, or that
    /// of the location that ends `try_files`.
    fn proxied(&self, server: &Server, at: usize) -> Option<(usize, usize)> {
        let pass = |at: usize| self.tree.indices(at, "proxy_pass").last().map(|pass| (at, *pass));
        let answers = |at: &usize| !self.tree.indices(*at, "return").is_empty();
        pass(at).or_else(|| self.named(server, at).filter(|named| !answers(named)).and_then(pass))
    }

    /// Returns the location that ends `try_files`.
    fn named(&self, server: &Server, at: usize) -> Option<usize> {
        let name =
            self.tree.last(at, "try_files")?.words.last().filter(|name| name.starts_with('@'))?;
        let others = self.tree.indices(server.at, "location");
        others.iter().find(|other| self.tree.nodes[**other].argument(1) == name).copied()
    }

    /// Returns the directive that keeps some clients out, if any.
    fn guard(&self, at: usize) -> Option<usize> {
        let effective = GUARDS.into_iter().find_map(|name| {
            self.effective(at, name)
                .last()
                .filter(|node| self.tree.nodes[**node].argument(1) != "off")
        });
        let own = ["internal", "limit_except"]
            .into_iter()
            .find_map(|name| self.tree.indices(at, name).first());
        let found = effective.or(own).copied();
        found.or_else(|| self.denied(at)).or_else(|| self.tested(at))
    }

    /// Returns an `if` that admits some clients, of the location or a block around it.
    fn tested(&self, at: usize) -> Option<usize> {
        let mut block = at;
        while block != 0 {
            let mut tests = self.tree.indices(block, "if").iter().copied();
            let found = tests
                .find(|test| self.is_refusal(*test) && !keeps_some_out(&self.tree.nodes[*test]));
            if found.is_some() {
                return found;
            }
            block = self.tree.nodes[block].parent;
        }
        None
    }

    /// Whether an `if` refuses the requests that it matches.
    pub(super) fn is_refusal(&self, test: usize) -> bool {
        self.tree.named(test, "return").any(refuses) || !self.tree.indices(test, "deny").is_empty()
    }

    /// Returns what keeps some clients out by address in a way that weir cannot express.
    fn denied(&self, at: usize) -> Option<usize> {
        self.deny(at).filter(|_| self.access(at).is_none())
    }

    /// Returns `deny` of the nearest block with access control by address.
    fn deny(&self, at: usize) -> Option<usize> {
        self.tree.indices(self.access_block(at), "deny").first().copied()
    }

    /// Converts the handling of the requests of a location.
    fn proxy(&mut self, mut route: Route, at: usize, pass: &Node) -> Option<Route> {
        let url = pass.argument(1);
        let url =
            url.strip_suffix("$request_uri").or_else(|| url.strip_suffix("$uri")).unwrap_or(url);
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let socket = rest.strip_prefix(UNIX);
        let (authority, uri) = match socket {
            // The path of a unix socket ends with a colon, or with the text.
            Some(path) => match path.split_once(':') {
                Some((path, uri)) => (&rest[..UNIX.len() + path.len()], uri),
                None => (rest, ""),
            },
            None => rest.find('/').map_or((rest, ""), |end| rest.split_at(end)),
        };
        let why = match scheme {
            _ if rest.contains('$') => Some(Missing::Discovery.why()),
            "http" | "https" => None,
            _ => Some("weir needs `http://` or `https://` and a name here"),
        };
        if let Some(why) = why {
            self.draft.lost(pass, why);
            return None;
        }
        let Some(upstream) = self.upstream(pass, authority, scheme == "https") else {
            self.draft.lost(pass, "none of its servers could be carried over");
            return None;
        };
        if scheme == "https" {
            self.server_tls(upstream, at, pass);
        }
        self.upstream_options(upstream, at);
        route.to = To::Upstream(upstream);
        if !self.rewrites(&mut route, at) {
            replace_path(&mut route, uri);
        }
        route.server_host = Some(socket.map_or(authority, |_| "localhost").to_owned());
        self.request_fields(&mut route, at);
        route.buffering = self.one(at, "proxy_request_buffering").and_then(buffering);
        self.answer_changes(&mut route, at);
        self.body_limit(at);
        Some(route)
    }

    /// Converts TLS to servers; nginx verifies only if configured.
    fn server_tls(&mut self, upstream: usize, at: usize, pass: &Node) {
        let verifies =
            self.one(at, "proxy_ssl_verify").is_some_and(|node| node.argument(1) == "on");
        let mut options = std::collections::BTreeMap::new();
        if !verifies {
            options.insert("verify", "#false".to_owned());
            let why = "nginx verifies certificates of servers only on request, so `verify=#false`: \
                an attacker in between can read everything; remove it if the certificates are \
                valid";
            self.draft.different(pass, why);
        }
        for (theirs, ours) in [
            ("proxy_ssl_trusted_certificate", "ca"),
            ("proxy_ssl_certificate", "certificate"),
            ("proxy_ssl_certificate_key", "key"),
        ] {
            let wanted = ours != "ca" || verifies;
            if let Some(path) =
                self.one(at, theirs).filter(|_| wanted).and_then(|node| self.file(node))
            {
                options.insert(ours, literal(&path));
            }
        }
        // A key without a certificate is useless.
        if !options.contains_key("certificate") {
            options.remove("key");
        }
        if let Some(node) = self.one(at, "proxy_ssl_name") {
            match crate::texts::peer_name(node.argument(1)) {
                Ok(name) => drop(options.insert("name", literal(&name))),
                Err(why) => self.draft.lost(node, why),
            }
        }
        let tls = &mut self.draft.upstreams[upstream].tls;
        if tls.get_or_insert_with(|| options.clone()) != &options {
            self.draft
                .different(pass, "weir uses one TLS setting for a group of servers, the first one");
        }
    }

    /// Converts time-outs and repetitions.
    fn upstream_options(&mut self, upstream: usize, at: usize) {
        // nginx has one time-out for the wait for a response and for a pause within it.
        for (theirs, ours) in [
            ("proxy_connect_timeout", "connect-timeout"),
            ("proxy_read_timeout", "forward-timeout"),
            ("proxy_read_timeout", "answer-timeout"),
        ] {
            if let Some(node) = self.one(at, theirs) {
                match time(node.argument(1)) {
                    Some(us) => self.draft.amount(Some(upstream), node, ours, us),
                    None => self.draft.lost(node, "this is not a time"),
                }
            }
        }
        let mut lines = Vec::new();
        if let Some(node) = self.one(at, "proxy_next_upstream") {
            let has = |word: &str| node.arguments().any(|other| other == word);
            if has("off") {
                lines.push("forward-retries 0".to_owned());
            }
            if has("non_idempotent") {
                lines.push("retry-nonidempotent #true".to_owned());
            }
            if node.arguments().any(|word| word.starts_with("http_")) {
                self.draft.different(
                    node,
                    "weir retries after lost connections, and forwards \
                    responses unchanged; `failover \"5xx\"` suspends servers that send these",
                );
            }
        }
        if let Some(tries) = self
            .one(at, "proxy_next_upstream_tries")
            .and_then(|node| node.argument(1).parse::<u64>().ok())
            && (1..=101).contains(&tries)
        {
            lines.push(format!("forward-retries {}", tries - 1));
        }
        let ours = &mut self.draft.upstreams[upstream].lines;
        for line in lines {
            let word = line.split(' ').next().unwrap_or_default();
            if !ours.iter().any(|other| other.starts_with(word)) {
                ours.push(line);
            }
        }
    }

    /// Converts `rewrite ... break` of the location; returns whether it has one.
    fn rewrites(&mut self, route: &mut Route, at: usize) -> bool {
        let mut found = false;
        for node in self.tree.named(at, "rewrite") {
            let (regex, to, flag) = (node.argument(1), node.argument(2), node.argument(3));
            if matches!(flag, "redirect" | "permanent")
                || to.starts_with("http")
                || to.contains("$scheme")
            {
                self.draft.missing(node, Missing::Redirect);
            } else if flag == "last" {
                self.draft.lost(
                    node,
                    "weir chooses a route once; write the rewrite into the target route",
                );
            } else {
                route.rewrites.push((regex.to_owned(), to.to_owned()));
                found = true;
            }
        }
        found
    }

    fn request_fields(&mut self, route: &mut Route, at: usize) {
        let tree = self.tree;
        for node in self.effective(at, "proxy_set_header").iter().map(|at| &tree.nodes[*at]) {
            let (name, value) = (node.argument(1), node.argument(2));
            if name.eq_ignore_ascii_case("host") {
                self.host_field(route, node, value);
            } else if BY_ITSELF.contains(&name.to_ascii_lowercase().as_str()) {
                self.draft.unneeded(&format!("proxy_set_header {name}"));
            } else {
                let verb = if value.is_empty() { "remove" } else { "set" };
                let value = self.text(at, value);
                route.request.extend(self.draft.edit(node, Side::Request, verb, (name, &value)));
            }
        }
    }

    fn host_field(&mut self, route: &mut Route, node: &Node, value: &str) {
        match value {
            "$host" | "$http_host" | "$host:$server_port" | "$host:$proxy_port" => {
                route.server_host = None
            }
            "$proxy_host" => {}
            _ if value.contains('$') || crate::texts::probe_host(value).is_err() => {
                route.server_host = None;
                self.draft.different(node, "servers see the host that the client requested");
            }
            _ => route.server_host = Some(value.to_owned()),
        }
    }

    /// Converts a text with variables: `$proxy_host` is known here, the table handles the rest.
    fn text(&self, at: usize, value: &str) -> String {
        let name = self.tree.last(at, "proxy_pass").map_or("", |pass| pass.argument(1));
        let name = name
            .split_once("://")
            .map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
        value.replace("$proxy_host", name).replace("$binary_remote_addr", "$remote_addr")
    }

    pub(super) fn answer_fields(&mut self, route: &mut Route, at: usize) {
        let tree = self.tree;
        let mut edits: Vec<Option<Edit>> = Vec::new();
        for node in self.effective(at, "proxy_hide_header").iter().map(|at| &tree.nodes[*at]) {
            edits.push(self.draft.edit(node, Side::Answer, "remove", (node.argument(1), "")));
        }
        for node in self.effective(at, "add_header").iter().map(|at| &tree.nodes[*at]) {
            let value = self.text(at, node.argument(2));
            edits.push(self.draft.edit(node, Side::Answer, "add", (node.argument(1), &value)));
        }
        route.answer.extend(edits.into_iter().flatten());
    }

    /// Converts the largest request body; nginx also has a limit by default.
    fn body_limit(&mut self, at: usize) {
        match self.one(at, "client_max_body_size") {
            Some(node) => match super::size(node.argument(1)) {
                Some(0) => self.draft.amount(None, node, "body-limit", u64::MAX),
                Some(bytes) => self.draft.amount(None, node, "body-limit", bytes),
                None => self.draft.lost(node, "this is not a size"),
            },
            None => self.draft.amount(None, &self.tree.nodes[at], "body-limit", 1 << 20),
        }
    }
}

/// Whether a `return` refuses.
pub(super) fn refuses(node: &Node) -> bool {
    node.argument(1).starts_with('4')
}

/// Whether an `if` tests what requests say, and so keeps some out; others, such as one about
/// addresses, admit some.
pub(super) fn keeps_some_out(test: &Node) -> bool {
    OF_REQUESTS.contains(&test.argument(1).trim_start_matches('(').trim_end_matches(')'))
}

/// Returns whether bodies of requests are buffered; None: neither value.
fn buffering(node: &Node) -> Option<&'static str> {
    ["on", "off"].into_iter().find(|word| *word == node.argument(1))
}

/// Returns how paths are compared, and with which text.
pub(super) fn path(node: &Node) -> (&str, &str) {
    let (first, second) = (node.argument(1), node.argument(2));
    if !second.is_empty() {
        return (first, second);
    }
    let kind = ["^~", "~*", "~", "="].into_iter().find(|kind| first.starts_with(kind));
    kind.map_or(("", first), |kind| (kind, &first[kind.len()..]))
}

/// Returns the whole segments that begin all paths of an expression; None: it has none.
pub(super) fn begins_with(expression: &str) -> Option<&str> {
    let literal = expression.strip_prefix('^')?;
    let end = literal
        .find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '/' | '-' | '_'))
        .unwrap_or(literal.len());
    // The text in front of `?` and similar may be missing.
    let end =
        if matches!(&literal[end..], "" | "$") { end } else { literal[..end].rfind('/')? + 1 };
    Some(&literal[..end]).filter(|prefix| prefix.len() > 1 && prefix.starts_with('/'))
}

/// Applies `proxy_pass` with a path: that replaces the location's path.
fn replace_path(route: &mut Route, uri: &str) {
    if uri.is_empty() || uri == route.path {
        return;
    }
    if uri == "/" {
        route.strip = Some(route.path.clone());
    } else {
        route.rewrites.push((format!("^{}", regex::escape(&route.path)), uri.replace('$', "$$")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_an_expression_begins_with() {
        for (expression, prefix) in [
            ("^/admin", Some("/admin")),
            ("^/admin/$", Some("/admin/")),
            ("^/api/v[0-9]+/in", Some("/api/")),
            ("^/a/bc?", Some("/a/")),
            ("^/(a|b)/", None),
            ("^/adm(in)?", None),
            ("/admin", None),
            ("\\.php$", None),
            ("^admin/x", None),
        ] {
            assert_eq!(begins_with(expression), prefix, "{expression}");
        }
    }
}
