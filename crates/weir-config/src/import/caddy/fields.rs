//! Changes of fields: `header`, `request_header`, `header_up` and `header_down` of Caddy.
//!
//! Caddy changes responses in three turns: what `header_down` says of the server's response, then
//! what `header` puts beside its fields, then what `header` has deferred. Until they are settled,
//! the verbs of edits say in which turn they are.

use weir_proxy::request::rules::edits::Side;

use super::super::route::{Edit, Route, To};
use super::super::tree::Node;
use super::fold::{Deed, Event};
use super::matcher::is_matcher;
use super::pieces::Piece;
use super::proxy::scheme;
use super::seen::Seen;
use super::{Caddy, Scope};
use crate::texts;

/// Fields that weir writes automatically, with Caddy's values for the same.
const BY_ITSELF: [(&str, &str); 3] = [
    ("x-forwarded-for", "remote_host"),
    ("x-forwarded-proto", "scheme"),
    ("x-forwarded-host", "host"),
];
/// What applications read beside them.
const FORWARDED: [&str; 16] = [
    "X-Forwarded-User",
    "X-Forwarded-Email",
    "X-Forwarded-Groups",
    "X-Forwarded-Preferred-Username",
    "X-Forwarded-Access-Token",
    "X-Forwarded-Client-Cert",
    "X-Forwarded-Port",
    "X-Forwarded-Prefix",
    "X-Forwarded-Server",
    "X-Forwarded-Scheme",
    "X-Forwarded-Ssl",
    "X-Forwarded-Protocol",
    "X-Forwarded-Method",
    "X-Forwarded-Uri",
    "X-Forwarded-Path",
    "X-Forwarded-By",
];

/// The verbs of the turns, in their order: a change of the server's response, one beside it, one
/// behind it.
const TURNS: [(&str, &str, &str); 3] =
    [("down set", "put", "set"), ("down add", "plus", "add"), ("down remove", "remove", "remove")];

fn verb(of: &str, turn: usize) -> &'static str {
    let row = TURNS.iter().find(|row| row.2 == of).unwrap_or(&TURNS[0]);
    [row.0, row.1, row.2][turn]
}

/// Returns the changes of a response in weir's words.
fn settled(edits: Vec<Edit>, to: To) -> Vec<Edit> {
    let turn = |edit: &Edit| match edit.verb {
        "put" | "plus" => 1,
        verb if verb.starts_with("down") => 0,
        _ => 2,
    };
    let has_server = matches!(to, To::Upstream(_));
    let mut out: Vec<Edit> = Vec::new();
    for edit in edits {
        if edit.verb == "put" {
            let is_same = |other: &Edit| turn(other) == 1 && has_name(other, &edit.name);
            out.retain(|other| !is_same(other));
        }
        if has_server || turn(&edit) > 0 {
            out.push(edit);
        }
    }
    out.sort_by_key(turn);
    for edit in &mut out {
        edit.verb = match edit.verb {
            // A server's field of this name remains beside it.
            "put" if has_server && !has_name(edit, "content-type") => "add",
            "put" | "down set" => "set",
            "plus" | "down add" => "add",
            "down remove" => "remove",
            verb => verb,
        };
    }
    out
}

fn has_name(edit: &Edit, name: &str) -> bool {
    edit.name.eq_ignore_ascii_case(name)
}

/// Settles the changes of a route's responses.
pub(super) fn settle(route: Route) -> Route {
    Route { answer: settled(route.answer, route.to), ..route }
}

impl<'t> Caddy<'t, '_, '_> {
    /// Applies `header` or `request_header` to some requests or to all of a scope.
    pub(super) fn fields(
        &mut self,
        at: usize,
        side: Side,
        (pieces, is_all): (Vec<Piece>, bool),
        scope: &mut Scope,
    ) -> Vec<Event> {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let skipped = 1 + usize::from(is_matcher(node.argument(1)));
        let mut lines: Vec<&[String]> =
            tree.children(at).map(|(_, line)| &line.words[..]).collect();
        lines.extend(node.words.get(skipped..).filter(|words| !words.is_empty()));
        let edits = match self.edits(node, side, &lines, &scope.seen) {
            Ok(edits) => edits,
            Err(why) => return vec![self.closes(at, pieces, scope, &why)],
        };
        let is_request = matches!(side, Side::Request);
        if is_request {
            for line in &lines {
                tell_seen(&mut scope.seen, line, is_all);
            }
        }
        if is_all {
            let fields =
                if is_request { &mut scope.changes.request } else { &mut scope.changes.answer };
            fields.extend(edits);
            return Vec::new();
        }
        let is_open = |piece: &Piece| piece.case.access().is_some_and(|access| access.is_open());
        let (said, others): (Vec<Piece>, Vec<Piece>) = pieces.into_iter().partition(is_open);
        let base = Route { place: node.place, what: node.shown(), ..scope.changes.clone() };
        let counts = (scope.changes.request.len(), scope.changes.answer.len());
        let event = |pieces: Vec<Piece>, edits: Vec<Edit>| {
            let (request, answer) =
                if is_request { (edits, Vec::new()) } else { (Vec::new(), edits) };
            let deed = Deed::Change((counts.0, request), (counts.1, answer));
            Event { pieces, deed, base: base.clone() }
        };
        let mut events = Vec::new();
        if !others.is_empty() && is_request {
            let why = "weir cannot express its matcher, and removes these headers for all requests \
                that it may cover";
            self.draft.different(node, why);
            let remove = |edit: &Edit| Edit {
                verb: "remove",
                name: edit.name.clone(),
                value: String::new(),
            };
            let edits = edits.iter().filter(|edit| edit.verb != "add").map(remove).collect();
            events.push(event(others.iter().map(Piece::whole).collect(), edits));
        } else if !others.is_empty() {
            self.draft.lost(node, "weir cannot express its matcher");
        }
        if !said.is_empty() {
            events.push(event(said, edits));
        }
        events
    }

    /// Returns the changes of a directive. Err: weir would let clients set what it removes.
    fn edits(
        &mut self,
        node: &'t Node,
        side: Side,
        lines: &[&[String]],
        seen: &Seen,
    ) -> Result<Vec<Edit>, String> {
        let is_late = |line: &&[String]| {
            line[0] == "defer" || line[0].starts_with(['-', '>']) || line.len() > 2
        };
        let turn = if lines.iter().any(is_late) { 2 } else { 1 };
        let mut edits = Vec::new();
        for line in lines.iter().filter(|line| line[0] != "defer" && line[0] != "match") {
            edits.extend(self.field(node, side, line, seen)?);
        }
        // Caddy adds first, and removes last.
        edits.sort_by_key(|edit| ["add", "set", "remove"].iter().position(|one| *one == edit.verb));
        if matches!(side, Side::Answer) {
            edits.iter_mut().for_each(|edit| edit.verb = verb(edit.verb, turn));
        }
        if lines.iter().any(|line| line[0] == "match") {
            self.draft.different(node, "weir changes all responses, whatever `match` says");
        }
        Ok(edits)
    }

    /// Converts `header_up` and `header_down`.
    pub(super) fn proxy_fields(
        &mut self,
        at: usize,
        scope: &Scope,
        changes: &mut Route,
    ) -> Result<(), String> {
        let tree = self.tree;
        let mut up: Vec<Edit> = Vec::new();
        for line in tree.named(at, "header_up").filter(|line| line.words.len() > 1) {
            if line.argument(1).trim_end_matches(':').eq_ignore_ascii_case("host") {
                self.host(at, line, changes, &scope.seen);
            } else {
                up.extend(self.field(line, Side::Request, &line.words[1..], &scope.seen)?);
            }
        }
        up.sort_by_key(|edit| ["add", "set", "remove"].iter().position(|one| *one == edit.verb));
        changes.request.extend(up);
        for line in tree.named(at, "header_down").filter(|line| line.words.len() > 1) {
            let down = self.field(line, Side::Answer, &line.words[1..], &scope.seen)?;
            let down = down.into_iter().map(|edit| Edit { verb: verb(edit.verb, 0), ..edit });
            changes.answer.extend(down);
        }
        Ok(())
    }

    /// Converts `header_up Host`.
    fn host(&mut self, at: usize, line: &Node, changes: &mut Route, seen: &Seen) {
        let servers = self.addresses(at);
        let first = servers.first().map(|word| scheme(word).1.to_owned());
        match line.argument(2) {
            "{upstream_hostport}" | "{http.reverse_proxy.upstream.hostport}" => {
                changes.server_host = first;
            }
            "{upstream_host}" | "{http.reverse_proxy.upstream.host}" => {
                let name = |first: String| {
                    let end = first.rfind(':').filter(|at| !first[*at..].contains(']'));
                    first[..end.unwrap_or(first.len())].to_owned()
                };
                changes.server_host = first.map(name);
            }
            "{host}" | "{http.request.host}" | "{hostport}" | "{http.request.hostport}"
                if seen.has_same_field("host") =>
            {
                return;
            }
            value if texts::probe_host(value).is_ok() => {
                changes.server_host = Some(value.to_owned());
            }
            _ => {
                let why = "servers see the host that the client requested";
                return self.draft.different(line, why);
            }
        }
        let is_odd =
            changes.server_host.as_ref().is_some_and(|host| texts::probe_host(host).is_err());
        if is_odd {
            changes.server_host = None;
            self.draft.different(line, "servers see the host that the client requested");
        } else if servers.len() > 1 && line.argument(2).contains("upstream") {
            self.draft.different(line, "all servers get the name of the first one");
        }
    }

    /// Converts `NAME VALUE`, `+NAME VALUE`, `-NAME` and the like. Err: weir would let clients set
    /// what it removes.
    fn field(
        &mut self,
        node: &Node,
        side: Side,
        words: &[String],
        seen: &Seen,
    ) -> Result<Vec<Edit>, String> {
        let Some((name, rest)) = words.split_first() else { return Ok(Vec::new()) };
        let (mark, name) = mark(name);
        let is_request = matches!(side, Side::Request);
        if is_request && name.eq_ignore_ascii_case("host") {
            return Err("weir cannot set Host here".to_owned());
        }
        if name.contains('*') {
            return self.wildcard(node, side, name);
        }
        if let Some((_, own)) =
            BY_ITSELF.iter().find(|(known, _)| is_request && name.eq_ignore_ascii_case(known))
        {
            let is_own = |value: &String| value == &format!("{{{own}}}");
            if mark == ' ' && rest.len() == 1 && rest.iter().all(is_own) {
                self.draft.unneeded(&format!("header_up {name}"));
            } else {
                let why = format!("weir sets `{name}` from the connection");
                self.draft.different(node, why);
            }
            return Ok(Vec::new());
        }
        let value = match (mark, rest) {
            ('?', _) => Err("weir cannot set a header only where it is missing".to_owned()),
            ('-', _) | (_, []) => {
                return Ok(self.draft.edit(node, side, "remove", (name, "")).into_iter().collect());
            }
            (_, [value]) => self.text(value, seen, false),
            _ => Err("weir cannot replace a part of a header".to_owned()),
        };
        let verb = if mark == '+' { "add" } else { "set" };
        let edit = match value {
            Ok(value) => self.draft.edit(node, side, verb, (name, &value)),
            Err(why) if is_request && verb == "set" => {
                let why = format!("{why}; weir removes `{name}`, so that clients cannot set it");
                self.draft.different(node, why);
                self.draft.edit(node, side, "remove", (name, ""))
            }
            Err(why) => {
                self.draft.lost(node, why);
                None
            }
        };
        Ok(edit.into_iter().collect())
    }

    /// Converts `-NAME*`. Err: clients could set such a field.
    fn wildcard(&mut self, node: &Node, side: Side, name: &str) -> Result<Vec<Edit>, String> {
        if matches!(side, Side::Answer) {
            self.draft.different(node, "weir removes headers by their whole name");
            return Ok(Vec::new());
        }
        if !name.eq_ignore_ascii_case("x-forwarded-*") {
            let why = "weir removes headers by their whole name, and rejects these requests, so \
                that clients cannot set them";
            return Err(why.to_owned());
        }
        let why = "weir removes headers by their whole name: it sets X-Forwarded-For, -Proto and \
            -Host itself, and removes the known others";
        self.draft.different(node, why);
        Ok(FORWARDED
            .iter()
            .filter_map(|name| self.draft.edit(node, side, "remove", (name, "")))
            .collect())
    }

    /// Returns a text with placeholders as one of weir's. In a redirect, `$request_uri` is the path
    /// as it was changed, otherwise as the client sent it.
    pub(super) fn text(
        &self,
        theirs: &str,
        seen: &Seen,
        is_redirect: bool,
    ) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = theirs;
        while let Some(at) = rest.find(['{', '$']) {
            out.push_str(&rest[..at]);
            let behind = &rest[at + 1..];
            let Some((name, after)) =
                behind.split_once('}').filter(|_| rest[at..].starts_with('{'))
            else {
                out.push_str(if rest[at..].starts_with('$') { "$$" } else { "{" });
                rest = behind;
                continue;
            };
            match self.placeholder(name, seen, is_redirect) {
                Some(known) => out.push_str(&format!("${{{known}}}")),
                None => return Err(format!("weir's texts have no equivalent of `{{{name}}}`")),
            }
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }

    fn placeholder(&self, name: &str, seen: &Seen, is_redirect: bool) -> Option<String> {
        let short = name.strip_prefix("http.request.").unwrap_or(name);
        let has_same_path = seen.has_same_path();
        let known = match short {
            "remote_host" | "remote.host" if self.others.connections => return None,
            "remote_host" | "remote.host" => {
                let trusts = self.draft.client_lines.contains_key("trusted-proxies");
                if trusts { "realip_remote_addr" } else { "remote_addr" }
            }
            "client_ip" | "http.vars.client_ip" => {
                (!self.others.believed && !self.others.connections).then_some("remote_addr")?
            }
            "host" => "host",
            "hostport" => "http_host",
            "method" => "request_method",
            "uri" if has_same_path || is_redirect => "request_uri",
            "orig_uri" if has_same_path || !is_redirect => "request_uri",
            "scheme" => "scheme",
            "proto" => "server_protocol",
            "uuid" => "request_id",
            _ => {
                let field =
                    short.strip_prefix("header.").filter(|name| seen.has_same_field(name))?;
                return Some(format!("http_{}", field.to_ascii_lowercase().replace('-', "_")));
            }
        };
        Some(known.to_owned())
    }
}

/// Returns the mark in front of a name, or a space, and the name.
fn mark(name: &str) -> (char, &str) {
    let name = name.strip_suffix(':').unwrap_or(name);
    match name.chars().next() {
        Some(mark @ ('+' | '-' | '?' | '>')) => (mark, &name[1..]),
        _ => (' ', name),
    }
}

/// Records what matchers see of a field behind a change.
fn tell_seen(seen: &mut Seen, line: &[String], is_all: bool) {
    let Some((name, rest)) = line.split_first() else { return };
    let (mark, name) = mark(name);
    let values = match (mark, rest) {
        ('-', _) => Some(Vec::new()),
        (' ' | '>', [value]) if !value.contains('{') => Some(vec![value.clone()]),
        _ => None,
    };
    seen.set_field(name, values.filter(|_| is_all));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_of_responses() {
        let edit = |verb, name: &str, value: &str| Edit {
            verb,
            name: name.to_owned(),
            value: value.to_owned(),
        };
        let edits = || {
            vec![
                edit("put", "X-A", "1"),
                edit("plus", "X-A", "2"),
                edit("set", "X-B", "3"),
                edit("put", "x-a", "4"),
                edit("down remove", "X-A", ""),
            ]
        };
        let shown = |to| -> Vec<String> {
            settled(edits(), to).iter().map(|one| format!("{} {}", one.verb, one.value)).collect()
        };
        assert_eq!(shown(To::Upstream(0)), ["remove ", "add 4", "set 3"]);
        assert_eq!(shown(To::Answer(0)), ["set 4", "set 3"]);
    }
}
