//! `return` of nginx, and its access control by address: `allow` and `deny`.
//!
//! nginx runs `return` before access control, so it reaches all clients. It makes a path in
//! `Location` absolute, unless told otherwise.

use super::super::access::{Access, address};
use super::super::own_answer::Content;
use super::super::route::{Route, Scheme, To};
use super::super::tree::{Node, Tree};
use super::phase::has_names;
use super::{Nginx, Server};

/// Statuses of `return` with an address behind.
const REDIRECTS: [&str; 5] = ["301", "302", "303", "307", "308"];

/// A response of weir itself.
#[derive(Debug, Clone)]
pub(super) struct Own {
    pub(super) scheme: Option<Scheme>,
    pub(super) to: To,
    /// Changes of the path that it leads to.
    pub(super) rewrites: Vec<(String, String)>,
}

/// Where a redirect leads to.
struct Target {
    /// None: to the same host, by the scheme of the client.
    authority: Option<(String, String)>,
    /// Path and query.
    path: String,
    rewrites: Vec<(String, String)>,
}

impl Nginx<'_, '_, '_> {
    /// Returns the responses of `return`, one for each scheme if they differ, or one for both;
    /// empty: weir cannot give it.
    pub(super) fn answers(&mut self, server: &Server, at: usize, node: &Node) -> Vec<Own> {
        let (status, text) = match node.argument(1) {
            url if !url.bytes().all(|byte| byte.is_ascii_digit()) => ("302", url),
            status => (status, node.argument(2)),
        };
        let text = self.resolve(server, at, text);
        let plain = |to| vec![Own { scheme: None, to, rewrites: Vec::new() }];
        if status == "444" {
            self.draft.different(node, "weir always answers, here with 403");
            return plain(To::Denied);
        }
        if REDIRECTS.contains(&status) && !text.is_empty() {
            return self.led(server, node, (status, &text), None);
        }
        let says_more = text.contains('$');
        if says_more {
            self.draft.different(node, "its text has variables, so it is left out");
        }
        let media_type = self.one(at, "default_type").map_or("text/plain", |node| node.argument(1));
        let text = if says_more { "" } else { &text };
        let content = Content { text, media_type, ..Content::default() };
        self.draft.respond(node, status, content).map(plain).unwrap_or_default()
    }

    /// Returns the redirects to a target with groups of an expression.
    pub(super) fn led(
        &mut self,
        server: &Server,
        node: &Node,
        (status, to): (&str, &str),
        expression: Option<&str>,
    ) -> Vec<Own> {
        let Some(target) = self.target(node, to, expression) else { return Vec::new() };
        let schemes: Vec<Scheme> = self.draft.schemes_of(server.group).collect();
        let is_absolute =
            self.one(server.at, "absolute_redirect").is_none_or(|node| node.argument(1) != "off");
        let own_host = || {
            let by_name = self
                .one(server.at, "server_name_in_redirect")
                .is_some_and(|node| node.argument(1) == "on");
            server.names.first().filter(|_| by_name).map_or("$host", String::as_str).to_owned()
        };
        let all: Vec<(Option<Scheme>, String)> = match (&target.authority, &schemes[..]) {
            (Some((scheme, host)), _) if scheme != "$scheme" => {
                vec![(None, format!("{scheme}://{host}"))]
            }
            (Some((_, host)), [one]) => vec![(None, format!("{}://{host}", one.word()))],
            (Some((_, host)), both) => {
                both.iter().map(|one| (Some(*one), format!("{}://{host}", one.word()))).collect()
            }
            (None, [one]) if is_absolute => {
                vec![(
                    None,
                    format!("{}://{}{}", one.word(), own_host(), self.port_of(server, *one)),
                )]
            }
            (None, _) => vec![(None, String::new())],
        };
        let mut found = Vec::new();
        for (scheme, start) in all {
            let path = match (&start[..], target.path.strip_prefix('/')) {
                ("", None) => format!("/{}", target.path),
                _ => target.path.clone(),
            };
            let Some(to) = self.draft.redirect(node, status, &format!("{start}{path}")) else {
                return Vec::new();
            };
            found.push(Own { scheme, to, rewrites: target.rewrites.clone() });
        }
        found
    }

    /// Returns the port that nginx appends to its own host.
    fn port_of(&self, server: &Server, scheme: Scheme) -> String {
        let is_off = |node: &Node| node.argument(1) == "off";
        let usual = if scheme == Scheme::Http { 80 } else { 443 };
        match self.port(server) {
            Some(port)
                if port != usual
                    && !self.one(server.at, "port_in_redirect").is_some_and(is_off) =>
            {
                format!(":{port}")
            }
            _ => String::new(),
        }
    }

    /// Parses the target of a redirect. None: weir cannot write it.
    fn target(&mut self, node: &Node, to: &str, expression: Option<&str>) -> Option<Target> {
        let to = to.replace("${", "$").replace('}', "").replace("$document_uri", "$uri");
        let (authority, path) = match to.split_once("://") {
            Some((scheme @ ("http" | "https" | "$scheme"), rest)) => {
                let ends = ["/", "?", "$request_uri", "$uri", "$1", "$is_args"];
                let end = ends.iter().filter_map(|name| rest.find(name)).min();
                let (host, path) = rest.split_at(end.unwrap_or(rest.len()));
                if host.contains("$http_host") {
                    let why = "`$host` has no port, as clients of port 80 and 443 send none";
                    self.draft.different(node, why);
                }
                (Some((scheme.to_owned(), host.replace("$http_host", "$host"))), path.to_owned())
            }
            Some(_) => return None,
            None => (None, to),
        };
        let mut target = Target { authority, path: String::new(), rewrites: Vec::new() };
        // `?` at the end of a `rewrite` drops the query that nginx would append.
        let (path, has_query) = match path.strip_suffix("$is_args$args") {
            Some(path) => (path, true),
            None => {
                match path.strip_suffix("?$args").or_else(|| path.strip_suffix("?$query_string")) {
                    Some(path) => (path, true),
                    None => match path.strip_suffix('?') {
                        Some(path) => (path, false),
                        None => (&*path, expression.is_some() && !path.contains('?')),
                    },
                }
            }
        };
        let keeps = "weir keeps the query, which is dropped here";
        if let Some(before) = path.strip_suffix("$request_uri") {
            target.path = format!("{before}$request_uri");
            return (!before.contains('$')).then_some(target);
        }
        if let Some(before) = path.strip_suffix("$uri").filter(|before| !before.contains('$')) {
            if !has_query {
                self.draft.different(node, keeps);
            }
            target.path = format!("{before}$request_uri");
            return Some(target);
        }
        let groups = path.contains('$') && !has_names(path);
        match expression {
            Some(regex) if groups && !path.contains('?') => {
                if !has_query {
                    self.draft.different(node, keeps);
                }
                let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
                // The group has the slash that a path begins with.
                let has_slash = regex.starts_with("^(/") || regex.starts_with("^(.*)");
                let path = if path == "/$1" && has_slash { "$1".to_owned() } else { path };
                target.rewrites = vec![(super::paths::spanning(regex), path)];
                target.path = "$request_uri".to_owned();
            }
            _ if has_query && !path.contains(['$', '?']) && !path.is_empty() => {
                target.rewrites = vec![("^.*$".to_owned(), path.to_owned())];
                target.path = "$request_uri".to_owned();
            }
            _ if groups => return None,
            _ => {
                target.path = path.to_owned();
                // What weir cannot write, `redirect` refuses.
                if path.is_empty() && target.authority.is_none() {
                    target.path = "/".to_owned();
                }
            }
        }
        Some(target)
    }

    /// Converts changes to responses, whatever their source.
    pub(super) fn answer_changes(&mut self, route: &mut Route, server: &Server, at: usize) {
        self.answer_fields(route, server, at);
        route.compress = self.compress(at);
        super::cache::cache_of(self, route, at);
    }

    /// Returns the access control of a location by `allow` and `deny` of the nearest block that has
    /// one. None: it is not by addresses.
    pub(super) fn access(&self, at: usize) -> Option<Access> {
        let tree = self.tree;
        let block = self.access_block(at);
        let mut access = Access::default();
        for (_, node) in
            tree.children(block).filter(|(_, node)| matches!(node.name(), "allow" | "deny"))
        {
            match node.argument(1) {
                // None of weir's listeners has such clients.
                "unix:" => {}
                "all" => access.push(node.name() == "allow", "all".to_owned()),
                text => access.push(node.name() == "allow", address(text)?),
            }
        }
        (access.is_open() || access.fits() && self.tells_clients).then_some(access)
    }

    /// Returns the nearest block with `allow` or `deny`, or the file.
    pub(super) fn access_block(&self, at: usize) -> usize {
        let says = |block: usize| {
            ["allow", "deny"].iter().any(|name| !self.tree.indices(block, name).is_empty())
        };
        let mut block = at;
        while block != super::ROOT && !says(block) {
            block = self.tree.nodes[block].parent;
        }
        block
    }
}

/// Whether weir uses the same addresses of clients as nginx.
pub(super) fn tells_clients(tree: &Tree) -> bool {
    let all = || tree.below(super::ROOT).into_iter().map(|at| &tree.nodes[at]);
    let mut trusting = all().filter(|node| node.name() == "set_real_ip_from").peekable();
    let trusts = trusting.peek().is_some();
    // weir believes them everywhere.
    let is_inside =
        |node: &Node| node.parent != super::ROOT && tree.nodes[node.parent].name() != "http";
    if trusting.any(is_inside) {
        return false;
    }
    let mut fields = all().filter(|node| node.name() == "real_ip_header").peekable();
    let names = |node: &Node| node.argument(1).eq_ignore_ascii_case("x-forwarded-for");
    !trusts || fields.peek().is_some() && fields.all(names)
}
