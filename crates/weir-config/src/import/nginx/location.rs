//! `location` of nginx: what happens to its requests.
//!
//! A location that only some clients may use (by password, client certificate and the like) is
//! closed, because an import cannot tell these apart. So is one whose content weir cannot give.

use super::super::access::Access;
use super::super::missing::Missing;
use super::super::notes::Kind;
use super::super::route::To;
use super::super::tree::Node;
use super::phase::{Rule, apply, rule, with_case};
use super::test::Case;
use super::{Nginx, Server};

/// Directives that admit some clients, here or in a block around.
const GUARDS: [&str; 13] = [
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
    "js_access",
    "auth_gssapi",
];

/// Directives for content that weir cannot serve, each with a hint.
const HANDLERS: [(&str, Missing); 20] = [
    ("fastcgi_pass", Missing::Gateway),
    ("uwsgi_pass", Missing::Gateway),
    ("scgi_pass", Missing::Gateway),
    ("memcached_pass", Missing::Gateway),
    ("grpc_pass", Missing::Http2Servers),
    ("stub_status", Missing::Nothing),
    ("api", Missing::Nothing),
    ("status", Missing::Nothing),
    ("empty_gif", Missing::Nothing),
    ("js_content", Missing::Nothing),
    ("perl", Missing::Nothing),
    ("content_by_lua", Missing::Nothing),
    ("content_by_lua_block", Missing::Nothing),
    ("content_by_lua_file", Missing::Nothing),
    ("rewrite_by_lua_block", Missing::Nothing),
    ("rewrite_by_lua_file", Missing::Nothing),
    ("alias", Missing::Files),
    ("root", Missing::Files),
    ("autoindex", Missing::Files),
    ("dav_methods", Missing::Files),
];

/// Locations that lead to each other.
const JUMPS_MAX: usize = 8;
/// Locations that others lead to, of the whole configuration.
const JUMPED_MAX: usize = 5000;

impl Nginx<'_, '_, '_> {
    /// Returns the rules of a location for its requests, or those of a server for the requests of
    /// no location. The first match holds.
    pub(super) fn fates(&mut self, server: &Server, at: usize) -> Vec<Rule> {
        let node = &self.tree.nodes[at];
        if !self.tree.indices(at, "internal").is_empty() {
            return vec![rule(node, To::Nothing)];
        }
        if node.name() == "server" {
            return self.content(server, at, &[]);
        }
        self.inner(server, at)
    }

    /// Returns the rules of a location for requests that nginx leads there itself.
    pub(super) fn inner(&mut self, server: &Server, at: usize) -> Vec<Rule> {
        let node = &self.tree.nodes[at];
        self.jumped += usize::from(self.jumps > 0);
        if self.jumps >= JUMPS_MAX || self.jumped > JUMPED_MAX {
            return vec![self.unserved(node, "locations lead to each other")];
        }
        self.jumps += 1;
        let phase = self.phase(server, at);
        let rest = if phase.ends { Vec::new() } else { self.content(server, at, &phase.breaks) };
        self.jumps -= 1;
        let mut rules = apply(phase.steps, rest);
        for Rule { route, .. } in &mut rules {
            (route.place, route.what) = (node.place, node.shown());
        }
        rules
    }

    /// Returns the rules of a location behind its `if`, `rewrite` and `return`.
    pub(super) fn content(
        &mut self,
        server: &Server,
        at: usize,
        breaks: &[(String, String)],
    ) -> Vec<Rule> {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let is_any = self.one(at, "satisfy").is_some_and(|node| node.argument(1) == "any");
        let access = self.access(at);
        let guard = self.guard(at);
        if let Some(guard) = guard {
            let why = format!(
                "{}; until you add that, weir rejects all requests for this",
                Missing::Access.why()
            );
            let by = &tree.nodes[guard];
            self.draft.note(by.place, Kind::Closed, &by.shown(), why);
            // By address alone some may still come in.
            let some = access
                .clone()
                .filter(|access| is_any && self.deny(at).is_some() && !access.is_open());
            return match some {
                Some(access) => for_clients(self.served_by(server, at, breaks), &access),
                None => vec![rule(node, To::Denied)],
            };
        }
        let Some(access) = access else {
            let by = self.deny(at).map_or(node, |deny| &tree.nodes[deny]);
            return vec![self.refused(by, "weir learns the addresses of clients in another way")];
        };
        if denies_all(&access) {
            return vec![rule(node, To::Denied)];
        }
        let rules = self.served_by(server, at, breaks);
        let rules = for_clients(rules, &access);
        self.excepted(at, rules)
    }

    /// Applies `limit_except`.
    fn excepted(&mut self, at: usize, rules: Vec<Rule>) -> Vec<Rule> {
        let tree = self.tree;
        let Some(except) = tree.indices(at, "limit_except").first().copied() else { return rules };
        let node = &tree.nodes[except];
        let mut methods: Vec<String> = node.arguments().map(str::to_owned).collect();
        if methods.iter().any(|method| method == "GET") {
            methods.push("HEAD".to_owned());
        }
        let is_plain =
            tree.children(except).all(|(_, node)| matches!(node.name(), "allow" | "deny"));
        let others = match self.access(except).filter(|_| is_plain) {
            Some(access) if denies_all(&access) => vec![rule(&tree.nodes[at], To::Denied)],
            Some(access) => for_clients(rules.clone(), &access),
            None => vec![self.refused(node, Missing::Access.why())],
        };
        let case = Case { methods, ..Case::default() };
        let mut all: Vec<Rule> =
            rules.into_iter().filter_map(|rule| with_case(rule, &case)).collect();
        all.extend(others);
        all
    }

    /// Returns the rules that give content.
    fn served_by(&mut self, server: &Server, at: usize, breaks: &[(String, String)]) -> Vec<Rule> {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let passes = tree.indices(at, "proxy_pass").last();
        // `try_files` decides before it.
        if let Some(pass) = passes.filter(|_| tree.last(at, "try_files").is_none()) {
            return self.passed(server, at, *pass, breaks);
        }
        if let Some(named) = self.named(server, at) {
            return self.inner(server, named);
        }
        let own = HANDLERS
            .iter()
            .find_map(|(name, why)| Some((tree.indices(at, name).first().copied()?, why)));
        if let Some((by, why)) = own.filter(|(by, _)| tree.nodes[*by].argument(1) != "off") {
            return vec![self.unserved(&tree.nodes[by], why.why())];
        }
        let tries = tree.last(at, "try_files");
        let last = tries.and_then(|tries| tries.words.last()).cloned().unwrap_or_default();
        if let Some(tries) = tries.filter(|_| last.starts_with('/')) {
            let path = self.resolve(server, at, last.split('?').next().unwrap_or_default());
            return self.elsewhere(server, tries, ("^.*$", &path));
        }
        let files = ["root", "alias"].iter().find_map(|name| self.one(at, name));
        match files.or(tries) {
            Some(files) => {
                let why = Missing::Files.why();
                self.draft.note(files.place, Kind::Closed, &files.shown(), why);
                vec![rule(node, To::Closed)]
            }
            None => vec![rule(node, To::Nothing)],
        }
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
        effective.copied()
    }

    /// Returns `deny` of the nearest block with access control by address.
    fn deny(&self, at: usize) -> Option<usize> {
        self.tree.indices(self.access_block(at), "deny").first().copied()
    }

    /// Whether a location keeps some clients out.
    pub(super) fn keeps_out(&self, at: usize) -> bool {
        self.tree.named(at, "return").any(refuses)
            || self.guard(at).is_some()
            || self.deny(at).is_some()
    }
}

/// Returns rules only for some clients.
fn for_clients(rules: Vec<Rule>, access: &Access) -> Vec<Rule> {
    let one = |mut rule: Rule| {
        match rule.route.access.and(access).filter(Access::fits) {
            Some(both) => rule.route.access = both,
            None => rule.route.to = To::Denied,
        }
        rule
    };
    rules.into_iter().map(one).collect()
}

/// Whether a `return` refuses.
pub(super) fn refuses(node: &Node) -> bool {
    node.argument(1).starts_with(['4', '5'])
}

/// Whether no client is allowed.
fn denies_all(access: &Access) -> bool {
    let first = access.lines().next();
    first.is_some_and(|(word, whom)| word == "deny" && whom.first().is_some_and(|one| one == "all"))
}
