//! `return` of nginx, and its other responses and refusals: `if` that leads to https or away from a
//! name, `allow` and `deny`.
//!
//! nginx runs `return` before access control, so it reaches all clients.

use super::super::access::{Access, address};
use super::super::notes::Kind;
use super::super::order::covers_host;
use super::super::own_answer::Content;
use super::super::route::{Route, Scheme, To};
use super::super::tree::{Node, Tree};
use super::location::refuses;
use super::{Nginx, Server};

/// Statuses of `return` with an address behind.
const REDIRECTS: [&str; 5] = ["301", "302", "303", "307", "308"];

/// The requests that an `if` of a server matches.
pub(super) enum Test {
    /// Those of one scheme.
    Scheme(Scheme),
    /// Those for one name.
    Host(String),
}

impl Nginx<'_, '_, '_> {
    /// Returns the responses of `return`, one for each scheme if they differ, or one for both;
    /// empty: it has been noted.
    pub(super) fn answers(
        &mut self,
        server: &Server,
        at: usize,
        node: &Node,
    ) -> Vec<(Option<Scheme>, To)> {
        let (status, text) = match node.argument(1) {
            url if !url.bytes().all(|byte| byte.is_ascii_digit()) => ("302", url),
            status => (status, node.argument(2)),
        };
        if status == "444" {
            self.draft.note(
                node.place,
                Kind::Closed,
                &node.shown(),
                "weir always answers, here with 502",
            );
            return vec![(None, To::Closed)];
        }
        if REDIRECTS.contains(&status) && !text.is_empty() {
            return self.redirects(server, node, status, text);
        }
        let says_more = text.contains('$');
        if says_more && refuses(node) {
            self.draft.different(node, "its text has variables, so it is left out");
        } else if says_more {
            self.draft
                .lost(node, "the text of `respond` is the same for all clients, without variables");
            return Vec::new();
        }
        let media_type = self.one(at, "default_type").map_or("text/plain", |node| node.argument(1));
        let text = if says_more { "" } else { text };
        let content = Content { text, media_type, ..Content::default() };
        let to = self.draft.respond(node, status, content);
        let to = to.or_else(|| {
            refuses(node).then(|| {
                self.draft.note(
                    node.place,
                    Kind::Closed,
                    &node.shown(),
                    "it rejects requests here; weir rejects them with 502",
                );
                To::Closed
            })
        });
        to.map(|to| (None, to)).into_iter().collect()
    }

    fn redirects(
        &mut self,
        server: &Server,
        node: &Node,
        status: &str,
        to: &str,
    ) -> Vec<(Option<Scheme>, To)> {
        let mut to = to.to_owned();
        if to.contains("$http_host") {
            self.draft
                .different(node, "`$host` has no port, as clients of port 80 and 443 send none");
            to = to.replace("$http_host", "$host");
        }
        if let Some(name) = server.names.first() {
            to = to.replace("$server_name", name);
        }
        let Some(rest) = to.strip_prefix("$scheme") else {
            return self
                .draft
                .redirect(node, status, &to)
                .map(|to| (None, to))
                .into_iter()
                .collect();
        };
        let schemes: Vec<Scheme> = self.draft.schemes_of(server.group).collect();
        let led = |scheme: Scheme| {
            self.draft
                .redirect(node, status, &format!("{}{rest}", scheme.word()))
                .map(|to| (Some(scheme), to))
        };
        schemes.into_iter().filter_map(led).collect()
    }

    /// Converts an `if` of a server, whose `return` applies to all requests that it matches;
    /// returns whether that was possible.
    pub(super) fn server_test(&mut self, server: &mut Server, at: usize) -> bool {
        let tree = self.tree;
        let (Some(test), [only]) = (self.test_of(at), &tree.nodes[at].children[..]) else {
            return false;
        };
        let answer = &tree.nodes[*only];
        if answer.name() != "return" {
            return false;
        }
        let (schemes, hosts) = match test {
            Test::Scheme(scheme) => (vec![scheme], server.hosts.clone()),
            Test::Host(host) if server.names.iter().any(|name| covers_host(name, &host)) => {
                (Scheme::ALL.to_vec(), vec![host])
            }
            // Another server has it, or this one has it as the default.
            Test::Host(_) => return false,
        };
        let answers = self.answers(server, at, answer);
        for (scheme, to) in &answers {
            let scheme = match (scheme, &schemes[..]) {
                (Some(scheme), some) if !some.contains(scheme) => continue,
                (None, [scheme]) => Some(*scheme),
                (scheme, _) => *scheme,
            };
            self.answer_all(server, &hosts, (at, answer), (scheme, *to));
        }
        // All requests for this name have a response.
        if schemes.len() > 1 && !answers.is_empty() {
            server.hosts.retain(|host| !hosts.contains(host));
        }
        !answers.is_empty()
    }

    /// Adds routes for all requests of these hosts.
    pub(super) fn answer_all(
        &mut self,
        server: &Server,
        hosts: &[String],
        (at, node): (usize, &Node),
        (scheme, to): (Option<Scheme>, To),
    ) {
        let mut route = Route {
            group: server.group,
            place: node.place,
            what: node.shown(),
            scheme,
            path: "/".to_owned(),
            to,
            ..Route::default()
        };
        self.answer_changes(&mut route, at);
        for host in hosts {
            let route = Route { host: host.clone(), ..route.clone() };
            let twins: Vec<Route> =
                server.refusals.iter().filter_map(|refusal| refusal.twin(&route)).collect();
            twins.into_iter().chain([route]).for_each(|route| self.draft.route(route));
        }
    }

    /// Returns what `if` tests. None: routes cannot express it.
    pub(super) fn test_of(&self, at: usize) -> Option<Test> {
        let words = self.tree.nodes[at].arguments().collect::<Vec<_>>().join(" ");
        let inside = words.strip_prefix('(')?.strip_suffix(')')?.trim();
        let end = inside.find([' ', '=', '!'])?;
        let (name, rest) = (&inside[..end], inside[end..].trim_start());
        let (is, value) = match rest.strip_prefix("!=") {
            Some(value) => (false, value.trim()),
            None => (true, rest.strip_prefix('=')?.trim()),
        };
        match (name, value) {
            ("$scheme", "http" | "https") => {
                Some(Test::Scheme(Scheme::of((value == "https") == is)))
            }
            ("$host", _) if is => {
                crate::texts::host_pattern(value).ok().filter(|host| host != "*").map(Test::Host)
            }
            _ => None,
        }
    }

    /// Converts changes to responses, whatever their source.
    pub(super) fn answer_changes(&mut self, route: &mut Route, at: usize) {
        self.answer_fields(route, at);
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
    let trusts = all().any(|node| node.name() == "set_real_ip_from");
    let mut fields = all().filter(|node| node.name() == "real_ip_header").peekable();
    let names = |node: &Node| node.argument(1).eq_ignore_ascii_case("x-forwarded-for");
    !trusts || fields.peek().is_some() && fields.all(names)
}
