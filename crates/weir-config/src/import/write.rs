//! The text of an import: weir's configuration, each block with the line of its origin. Called by
//! `draft` at the end.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Dialect;
use super::draft::{Draft, Listen, Server, Upstream};
use super::limits;
use super::notes::harmless;
use super::route::{Condition, Edit, PATH, Route, To};
use super::tcp::{self, Lead};
use super::tree::Place;
use crate::reverse::literal;

/// The upstream for connections that would be passed on unchanged, and are not: they were for some
/// clients only, or their servers could not be carried over. No other upstream may have the name.
pub(super) const CLOSED_TCP: &str = "closed-tcp";

/// Returns the whole text.
pub(super) fn write(draft: &Draft<'_>, dialect: Dialect) -> String {
    let mut out = format!(
        "// Written by `weir import {}`, which listed on standard error what it could not carry \
            over.\n",
        dialect.word()
    );
    write_client(&mut out, draft);
    if let Some((log, place)) = &draft.log {
        let _ = writeln!(out, "\n{}\n{log}", comment(draft, *place));
    }
    let names = Names::of(draft);
    for at in draft.listened() {
        write_listen(&mut out, draft, &draft.listens[at], names.of_listener(at));
    }
    let leads = tcp::leads(draft);
    for (at, upstream) in draft.upstreams.iter().enumerate() {
        if draft.routes.iter().any(|route| route.to == To::Upstream(at))
            || leads.contains(&Lead::Upstream(at))
        {
            write_upstream(&mut out, draft, upstream);
        }
    }
    if leads.contains(&Lead::Closed) {
        let _ = write!(
            out,
            "\n// Connections only for some clients, or to servers that could not be carried over, \
                lead here, where nothing listens: weir resets them.\n\
                upstream \"{CLOSED_TCP}\" {{\n    server \"127.0.0.1:1\"\n}}\n"
        );
    }
    let compress = common_compress(draft);
    if compress.is_some() {
        out.push('\n');
    }
    write_options(&mut out, "", "compress", compress);
    for route in &draft.routes {
        write_route(&mut out, draft, route, (&names, compress.is_some()));
    }
    tcp::write(&mut out, draft);
    limits::write(&mut out, draft);
    out
}

/// Names of listeners, where routes differ in theirs.
#[derive(Default)]
struct Names(BTreeMap<usize, String>);

impl Names {
    fn of(draft: &Draft<'_>) -> Names {
        let all = draft.listened();
        if draft.routes.iter().all(|route| route.listens.len() == all.len()) {
            return Names::default();
        }
        let (mut names, mut counts) = (BTreeMap::new(), BTreeMap::new());
        for at in all {
            let listen = &draft.listens[at];
            let base = match listen.address.network().map(|address| address.port()) {
                Some(80) if listen.tls.is_none() => "http".to_owned(),
                Some(443) if listen.tls.is_some() => "https".to_owned(),
                Some(port) => format!("port-{port}"),
                None => "socket".to_owned(),
            };
            let count = counts.entry(base.clone()).or_insert(0_usize);
            *count += 1;
            names.insert(at, if *count == 1 { base } else { format!("{base}-{count}") });
        }
        Names(names)
    }

    fn of_listener(&self, at: usize) -> Option<&str> {
        self.0.get(&at).map(String::as_str)
    }

    /// Returns the listeners of a route as they are written; None: all, or the same for all.
    fn of_route(&self, route: &Route) -> Option<String> {
        let names: Vec<String> =
            route.listens.iter().filter_map(|at| Some(literal(self.0.get(at)?))).collect();
        (!names.is_empty()).then(|| names.join(" "))
    }
}

fn comment(draft: &Draft<'_>, place: Place) -> String {
    format!("// {}", draft.sources.short(place))
}

fn write_client(out: &mut String, draft: &Draft<'_>) {
    let of_client = draft.client.lines().chain(draft.client_lines.values().cloned()).collect();
    for (name, lines) in
        [("client", of_client), ("shutdown", draft.shutdown.lines().collect::<Vec<_>>())]
    {
        if !lines.is_empty() {
            let _ = writeln!(out, "\n{name} {{");
            for (line, place) in lines {
                let _ = writeln!(out, "    {line} {}", comment(draft, place));
            }
            out.push_str("}\n");
        }
    }
}

fn write_listen(out: &mut String, draft: &Draft<'_>, listen: &Listen, name: Option<&str>) {
    let _ = write!(
        out,
        "\n{}\nlisten {}",
        comment(draft, listen.place),
        literal(&listen.address.to_string())
    );
    if let Some(name) = name {
        let _ = write!(out, " name={}", literal(name));
    }
    for (word, value) in &listen.rights {
        let _ = write!(out, " {word}={value}");
    }
    let Some(tls) = &listen.tls else {
        out.push('\n');
        return;
    };
    out.push_str(" {\n    tls {\n");
    for (name, value) in &tls.options {
        let _ = writeln!(out, "        {name} {value}");
    }
    for (file, key) in &tls.certificates {
        let key = key.as_ref().map_or_else(String::new, |key| format!(" key={}", literal(key)));
        let _ = writeln!(out, "        certificate {}{key}", literal(file));
    }
    out.push_str("    }\n}\n");
}

fn write_upstream(out: &mut String, draft: &Draft<'_>, upstream: &Upstream) {
    let _ = writeln!(
        out,
        "\n{}\nupstream {} {{",
        comment(draft, upstream.place),
        literal(&upstream.name)
    );
    for (line, _) in upstream.amounts.lines() {
        let _ = writeln!(out, "    {line}");
    }
    if let Some(options) = &upstream.tls {
        let options: String =
            options.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        let _ = writeln!(out, "    tls{options}");
    }
    for line in &upstream.lines {
        let _ = writeln!(out, "    {line}");
    }
    let weights = Weights::of(&upstream.servers);
    for server in &upstream.servers {
        let _ = writeln!(
            out,
            "    server {}{} {}",
            literal(&server.address),
            options(server, &weights, upstream.is_tcp),
            comment(draft, server.place)
        );
    }
    out.push_str("}\n");
}

/// The scale of weights to 1 to 100.
struct Weights {
    /// Whether they matter: one differs from the others.
    matter: bool,
    most: u64,
    /// A single backup takes everything.
    lone_backup: bool,
}

impl Weights {
    fn of(servers: &[Server]) -> Weights {
        let weight = |server: &Server| server.weight.max(1);
        let first = servers.first().map_or(1, weight);
        Weights {
            matter: servers.iter().any(|server| weight(server) != first),
            most: servers.iter().map(weight).max().unwrap_or(1),
            lone_backup: servers.iter().filter(|server| server.backup).count() == 1,
        }
    }

    fn scaled(&self, weight: u64) -> u64 {
        if self.most <= 100 { weight } else { (weight.saturating_mul(100) / self.most).max(1) }
    }
}

fn options(server: &Server, weights: &Weights, is_tcp: bool) -> String {
    let mut out = String::new();
    if weights.matter && !(server.backup && weights.lone_backup) {
        let _ = write!(out, " weight={}", weights.scaled(server.weight.max(1)));
    }
    if server.backup {
        out.push_str(" backup=#true");
    }
    if let Some(most) = server.connections.filter(|_| is_tcp) {
        let _ = write!(out, " tcp-connections={}", most.clamp(1, 1_000_000));
    } else if let Some(most) = server.connections {
        let _ = write!(out, " concurrency={}", most.clamp(1, 65_535));
    }
    out
}

/// `compresses`: a block at the top compresses the responses of all routes.
fn write_route(
    out: &mut String,
    draft: &Draft<'_>,
    route: &Route,
    (names, compresses): (&Names, bool),
) {
    let what: String = harmless(route.what.chars().take(80)).collect();
    let _ = write!(out, "\n{} {what}\nroute", comment(draft, route.place));
    let own_compress = route.compress.as_ref().filter(|_| !compresses);
    if route.host != "*" {
        let _ = write!(out, " host={}", literal(&route.host));
    }
    if route.exact {
        let _ = write!(out, " path-exact={}", literal(&route.path));
    } else if route.path != "/" {
        let _ = write!(out, " path={}", literal(&route.path));
    }
    out.push_str(" {\n");
    if let Some(listens) = names.of_route(route) {
        let _ = writeln!(out, "    listen {listens}");
    }
    if !route.methods.is_empty() {
        let methods: Vec<String> = route.methods.iter().map(|method| literal(method)).collect();
        let _ = writeln!(out, "    methods {}", methods.join(" "));
    }
    for Condition { subject, name, matches, not } in &route.conditions {
        let how = matches
            .as_ref()
            .map_or_else(String::new, |(kind, text)| format!(" {kind}={}", literal(text)));
        let not = if *not { " not=#true" } else { "" };
        if let (&PATH, Some((_, text))) = (subject, matches) {
            let _ = writeln!(out, "    path-regex {}{not}", literal(text));
            continue;
        }
        let _ = writeln!(out, "    {subject} {}{how}{not}", literal(name));
    }
    for (word, whom) in route.access.lines().filter(|_| !route.to.is_closed()) {
        let whom: Vec<String> = whom.iter().map(|address| literal(address)).collect();
        let _ = writeln!(out, "    {word} {}", whom.join(" "));
    }
    match route.to {
        To::Upstream(at) => {
            write_paths(out, route);
            let host =
                route.server_host.as_ref().map(|host| format!("        host {}\n", literal(host)));
            write_edits(out, "request", host, &route.request);
            write_edits(out, "answer", None, &route.answer);
            write_options(out, "    ", "compress", own_compress);
            // A route without GET stores nothing.
            let stores =
                route.methods.is_empty() || route.methods.iter().any(|method| method == "GET");
            write_options(out, "    ", "cache", route.cache.as_ref().filter(|_| stores));
            if let Some(buffering) = route.buffering {
                let _ = writeln!(out, "    request-buffering \"{buffering}\"");
            }
            let _ = writeln!(out, "    proxy {}\n}}", literal(&draft.upstreams[at].name));
        }
        To::Answer(at) => {
            let answer = &draft.answers[at];
            if answer.is_redirect {
                write_paths(out, route);
            }
            write_edits(out, "answer", None, &route.answer);
            write_options(out, "    ", "compress", own_compress);
            let _ = writeln!(out, "    {}\n}}", answer.line);
        }
        To::Closed => out.push_str("    respond 503 \"not imported\"\n}\n"),
        To::Denied => out.push_str("    respond 403\n}\n"),
        To::Nothing => out.push_str("    respond 404\n}\n"),
    }
}

/// Returns the common compression of all routes with responses; None: they have none in common.
fn common_compress<'d>(draft: &'d Draft<'_>) -> Option<&'d Vec<String>> {
    let mut all =
        draft.routes.iter().filter(|route| !route.to.is_closed()).map(|route| &route.compress);
    let first = all.next()?;
    if all.all(|other| other == first) { first.as_ref() } else { None }
}

fn write_options(out: &mut String, indent: &str, name: &str, options: Option<&Vec<String>>) {
    let Some(options) = options else { return };
    let _ = writeln!(out, "{indent}{name} {{");
    for option in options {
        let _ = writeln!(out, "{indent}    {option}");
    }
    let _ = writeln!(out, "{indent}}}");
}

fn write_paths(out: &mut String, route: &Route) {
    if let Some(prefix) = &route.strip {
        let _ = writeln!(out, "    strip-prefix {}", literal(prefix));
    }
    for (regex, to) in &route.rewrites {
        let _ = writeln!(out, "    rewrite {} {}", literal(regex), literal(to));
    }
}

fn write_edits(out: &mut String, block: &str, host: Option<String>, edits: &[Edit]) {
    if host.is_none() && edits.is_empty() {
        return;
    }
    let _ = writeln!(out, "    {block} {{");
    out.push_str(&host.unwrap_or_default());
    for Edit { verb, name, value } in edits {
        let value = if *verb == "remove" { String::new() } else { format!(" {}", literal(value)) };
        let _ = writeln!(out, "        {verb} {}{value}", literal(name));
    }
    out.push_str("    }\n");
}
