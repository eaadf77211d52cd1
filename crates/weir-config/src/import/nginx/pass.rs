//! `proxy_pass` of nginx: the servers of a route, its path, its fields.

use weir_proxy::plan::UNIX;
use weir_proxy::request::rules::edits::Side;

use super::super::begin::begin_of;
use super::super::route::{Condition, Edit, Route, Scheme, To};
use super::super::tree::Node;
use super::paths::{How, expression, how, spanning};
use super::phase::{Rule, has_names, in_groups, rule};
use super::{Nginx, Server, time};
use crate::reverse::literal;

/// What a `proxy_pass` leads to.
struct Pass {
    over_tls: bool,
    authority: String,
    /// The path in place of that of the location; empty: none.
    uri: String,
    is_socket: bool,
}

impl Nginx<'_, '_, '_> {
    /// Returns the rules of a `proxy_pass`. `breaks`: changes of the path in front of it.
    pub(super) fn passed(
        &mut self,
        server: &Server,
        at: usize,
        pass: usize,
        breaks: &[(String, String)],
    ) -> Vec<Rule> {
        let node = &self.tree.nodes[pass];
        let pass = match self.pass_of(server, at, node) {
            Ok(pass) => pass,
            Err(why) => return vec![self.unserved(node, why)],
        };
        let Some(upstream) = self.upstream(node, &pass.authority, pass.over_tls) else {
            return vec![self.unserved(node, "none of its servers could be carried over")];
        };
        if pass.over_tls {
            self.server_tls(upstream, at, node);
        }
        self.upstream_options(upstream, at);
        let mut route = rule(&self.tree.nodes[self.around(at)], To::Upstream(upstream)).route;
        let host = if pass.is_socket { "localhost" } else { &pass.authority };
        if crate::texts::probe_host(host).is_ok() {
            route.server_host = Some(host.to_owned());
        } else {
            self.draft.different(node, "servers see the host that the client requested");
        }
        self.request_fields(&mut route, server, at);
        route.buffering = self.one(at, "proxy_request_buffering").and_then(buffering);
        self.answer_changes(&mut route, server, at);
        self.body_limit(at);
        self.tell_of_pass(node, at);
        self.with_path(node, (at, &pass.uri), route, breaks)
    }

    /// Returns a route with its changes of the path, as rules for different paths.
    fn with_path(
        &mut self,
        node: &Node,
        (at, uri): (usize, &str),
        route: Route,
        breaks: &[(String, String)],
    ) -> Vec<Rule> {
        let mut plain = route.clone();
        let is_fine = self.replace_path(&mut plain, at, uri);
        let of = |route| Rule { route, host: None };
        let mut rules = Vec::new();
        if uri.is_empty() && !breaks.is_empty() {
            // The first that matches holds, as here.
            let rewrites = breaks.iter().map(|(regex, to)| (spanning(regex), to.clone()));
            return vec![of(Route { rewrites: rewrites.collect(), ..route })];
        }
        for (regex, to) in breaks {
            let conditions = if self.takes_all_of(at, regex) {
                Vec::new()
            } else {
                vec![Condition::of_path(regex.clone(), false)]
            };
            let is_last = conditions.is_empty();
            let rewrites = vec![(spanning(regex), to.clone())];
            rules.push(of(Route { rewrites, conditions, ..route.clone() }));
            if is_last {
                return rules;
            }
        }
        if is_fine {
            rules.push(of(plain));
        } else {
            rules.push(self.unserved(node, "weir cannot write this path"));
        }
        rules
    }

    /// Whether an expression matches all paths of a location.
    fn takes_all_of(&self, at: usize, regex: &str) -> bool {
        let (how, text) = how(&self.tree.nodes[self.around(at)]);
        let Some(begin) = Some(begin_of(regex)).filter(|begin| !begin.is_empty()) else {
            return matches!(regex, "^" | "^(.*)$" | "^.*$" | "^(.*)");
        };
        let regex = regex.strip_prefix("(?-u)").unwrap_or(regex);
        let rest = regex.strip_prefix(&format!("^{}", regex::escape(&begin))).unwrap_or("x");
        let rest = if rest == "x" {
            regex.strip_prefix(&format!("^{begin}")).unwrap_or("x")
        } else {
            rest
        };
        matches!(how, How::Prefix | How::Only | How::Exact)
            && text.starts_with(&begin)
            && matches!(rest, "" | "(.*)$" | "(.*)" | ".*" | ".*$")
    }

    /// Returns the location of a block, or the block itself.
    fn around(&self, at: usize) -> usize {
        let node = &self.tree.nodes[at];
        if matches!(node.name(), "if" | "limit_except") { node.parent } else { at }
    }

    /// Parses a `proxy_pass`. Err: why weir cannot follow it.
    fn pass_of(&self, server: &Server, at: usize, node: &Node) -> Result<Pass, &'static str> {
        let url = self.resolve(server, at, node.argument(1));
        let url = url.replace("${", "$").replace('}', "").replace("$document_uri", "$uri");
        let of_server: Vec<Scheme> = self.draft.schemes_of(server.group).collect();
        let url = match (url.strip_prefix("$scheme://"), &of_server[..]) {
            (Some(rest), [one]) => format!("{}://{rest}", one.word()),
            _ => url,
        };
        let url = url.strip_suffix("$is_args$args").unwrap_or(&url);
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let over_tls = match scheme {
            "http" => false,
            "https" => true,
            _ => return Err("weir needs `http://` or `https://` and a name here"),
        };
        if let Some(path) = rest.strip_prefix(UNIX) {
            // The path of a unix socket ends with a colon, or with the text.
            let (socket, uri) = path.split_once(':').unwrap_or((path, ""));
            let authority = format!("{UNIX}{socket}");
            return Ok(Pass { over_tls, authority, uri: uri.to_owned(), is_socket: true });
        }
        let end = rest
            .find('/')
            .or_else(|| ["$request_uri", "$uri"].iter().filter_map(|name| rest.find(name)).min());
        let (authority, uri) = rest.split_at(end.unwrap_or(rest.len()));
        if authority.contains('$') || authority.is_empty() {
            return Err("weir cannot choose a server by a variable; write its address");
        }
        let (authority, uri) = (authority.to_owned(), uri.to_owned());
        Ok(Pass { over_tls, authority, uri, is_socket: false })
    }

    /// Applies a path of `proxy_pass`; false: weir cannot write it.
    fn replace_path(&mut self, route: &mut Route, at: usize, uri: &str) -> bool {
        let (how, text) = how(&self.tree.nodes[self.around(at)]);
        let whole = uri.strip_suffix("$request_uri").or_else(|| uri.strip_suffix("$uri"));
        if let Some(before) = whole {
            // The path of the request behind another one.
            let before = before.trim_end_matches('/');
            if !before.is_empty() {
                route.rewrites.push(("^".to_owned(), before.to_owned()));
            }
            return !before.contains(['$', '?']);
        }
        if uri.contains('?') {
            return false;
        }
        if uri.contains('$') {
            let How::Regex(any_case) = how else { return false };
            let path = in_groups(text, uri);
            let Some(ours) = expression(text, any_case).filter(|_| !has_names(&path)) else {
                return false;
            };
            route.rewrites.push((spanning(&ours), path));
            return true;
        }
        match how {
            _ if uri.is_empty() || uri == text => {}
            // nginx takes no path there.
            How::Regex(_) | How::Named => {}
            How::Exact => route.rewrites.push(("^.*$".to_owned(), uri.to_owned())),
            _ if uri == "/" && text.ends_with('/') => {
                if text != "/" {
                    route.strip = Some(text.to_owned());
                }
            }
            _ => {
                let to = uri.replace('$', "$$");
                route.rewrites.push((format!("^{}", regex::escape(text)), to));
            }
        }
        true
    }

    /// Notes defaults of nginx that weir does not have.
    fn tell_of_pass(&mut self, node: &Node, at: usize) {
        let is_off = self.one(at, "proxy_redirect").is_some_and(|node| node.argument(1) == "off");
        if !is_off {
            let why = "nginx replaces the address of its server in `Location` and `Refresh`, weir \
                does not: let the application use the address of its clients";
            self.draft.different_once(node, why);
        }
        let why = "nginx obeys X-Accel-Redirect and the like of servers; weir forwards them";
        self.draft.different_once(node, why);
        let upgrades = self
            .effective(at, "proxy_set_header")
            .iter()
            .any(|at| self.tree.nodes[*at].argument(1).eq_ignore_ascii_case("upgrade"));
        if !upgrades {
            let why = "weir forwards `Upgrade`, as of WebSocket, and the method TRACE; nginx does \
                not unless told to";
            self.draft.different_once(node, why);
        }
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

    fn request_fields(&mut self, route: &mut Route, server: &Server, at: usize) {
        let tree = self.tree;
        if self.one(at, "proxy_pass_request_headers").is_some_and(|node| node.argument(1) == "off")
        {
            let node = self.one(at, "proxy_pass_request_headers");
            for name in ["Cookie", "Authorization"] {
                let edit = node
                    .and_then(|node| self.draft.edit(node, Side::Request, "remove", (name, "")));
                route.request.extend(edit);
            }
            if let Some(node) = node {
                let why = "weir removes only Cookie and Authorization";
                self.draft.different(node, why);
            }
        }
        for node in self.effective(at, "proxy_set_header").iter().map(|at| &tree.nodes[*at]) {
            let (name, value) = (node.argument(1), self.text(server, at, node.argument(2)));
            if name.eq_ignore_ascii_case("host") {
                self.host_field(route, server, node, &value);
            } else if let Some(alike) = self.own_field(server, &name.to_ascii_lowercase(), &value) {
                match alike {
                    Ok(()) => self.draft.unneeded(&format!("proxy_set_header {name}")),
                    Err(why) => self.draft.different(node, why),
                }
            } else {
                let verb = if value.is_empty() { "remove" } else { "set" };
                route.request.extend(self.draft.edit(node, Side::Request, verb, (name, &value)));
            }
        }
    }

    /// Whether weir itself writes a field as nginx would. None: the field is none of those. Err:
    /// how it differs.
    fn own_field(
        &self,
        server: &Server,
        name: &str,
        value: &str,
    ) -> Option<Result<(), &'static str>> {
        let schemes: Vec<Scheme> = self.draft.schemes_of(server.group).collect();
        let is_fine = match name {
            "x-forwarded-for" => matches!(value, "$proxy_add_x_forwarded_for" | "$remote_addr"),
            "x-forwarded-proto" => {
                let own = matches!(schemes[..], [one] if one.word() == value);
                own || value == "$scheme"
            }
            "x-forwarded-host" => {
                matches!(value, "$host" | "$http_host") || value.starts_with("$host:")
            }
            "upgrade" => value == "$http_upgrade",
            "connection" => true,
            _ => return None,
        };
        if matches!(value, "$http_x_forwarded_proto" | "$http_x_forwarded_for") {
            return Some(Err(
                "weir forwards what `trusted-proxies` send in it, and replaces what others send: \
                    name the proxy in front there",
            ));
        }
        Some(if is_fine {
            Ok(())
        } else {
            Err("weir writes this field itself, from the connection of the client")
        })
    }

    fn host_field(&mut self, route: &mut Route, server: &Server, node: &Node, value: &str) {
        let with_port = self.port(server).map(|port| format!("$host:{port}"));
        match value {
            "$host" | "$http_host" | "$host:$server_port" | "$host:$proxy_port" => {
                route.server_host = None
            }
            _ if with_port.as_deref() == Some(value) => route.server_host = None,
            "$proxy_host" => {}
            _ if value.contains('$') || crate::texts::probe_host(value).is_err() => {
                route.server_host = None;
                self.draft.different(node, "servers see the host that the client requested");
            }
            _ => route.server_host = Some(value.to_owned()),
        }
    }

    /// Converts a text with variables: those with one value are known here, the table handles the
    /// rest.
    fn text(&self, server: &Server, at: usize, value: &str) -> String {
        let pass = self.one(at, "proxy_pass").map_or("", |pass| pass.argument(1));
        let name = pass
            .split_once("://")
            .map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
        let name = self.resolve(server, at, name);
        let value = if name.contains('$') || name.is_empty() {
            value.to_owned()
        } else {
            value.replace("$proxy_host", &name)
        };
        let value = value.replace("$binary_remote_addr", "$remote_addr");
        self.resolve(server, at, &value)
    }

    pub(super) fn answer_fields(&mut self, route: &mut Route, server: &Server, at: usize) {
        let tree = self.tree;
        let mut edits: Vec<Option<Edit>> = Vec::new();
        for node in self.effective(at, "proxy_hide_header").iter().map(|at| &tree.nodes[*at]) {
            edits.push(self.draft.edit(node, Side::Answer, "remove", (node.argument(1), "")));
        }
        for node in self.effective(at, "add_header").iter().map(|at| &tree.nodes[*at]) {
            let value = self.text(server, at, node.argument(2));
            if node.argument(3) != "always" {
                let why = "without `always`, nginx adds this only to some statuses, and not to \
                    errors; weir adds it to all";
                self.draft.different_once(node, why);
            }
            if !value.is_empty() {
                edits.push(self.draft.edit(node, Side::Answer, "add", (node.argument(1), &value)));
            }
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

/// Returns whether bodies of requests are buffered; None: neither value.
fn buffering(node: &Node) -> Option<&'static str> {
    ["on", "off"].into_iter().find(|word| *word == node.argument(1))
}
