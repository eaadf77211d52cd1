//! `cache`: the size of the store, and the rules of a route, with checks for rules without effect
//! and for private responses that would be shared. Called by `compile` and `compile::route`.

use std::sync::Arc;

use weir_cache::{Directive, DirectiveSet, KeyRules, Options, RequestDirectivesMode, is_kept_from_fetches};
use weir_http::FieldName;
use weir_proxy::plan::{CachePlan, CacheRules, Network, SnapshotPlan, ToldTo, UpstreamPlan};
use weir_proxy::request::rules::edits::FieldEdits;
use weir_proxy::request::rules::text::Whose;

use super::{Compiler, narrow, network};
use crate::check::Checked;
use crate::problem::{Problem, Span};
use crate::texts::cache::tag_field_of;
use crate::units::time_text;

const SECOND_US: u64 = 1_000_000;
/// The most of the store that one response may take: a quarter.
const OBJECTS_MIN: u64 = 4;
/// The default share of the store for a snapshot: a quarter, and no more than a disk writes in a
/// moment.
const SNAPSHOTS_MIN: u64 = 4;
const SNAPSHOT_BYTES_USUAL_MAX: u64 = 1 << 30;
/// Directives without which one client may get the response of another.
const SECRETS: [Directive; 2] = [Directive::NoStore, Directive::Private];

/// Returns the store, if any route has `cache`.
pub(super) fn cache_store(compiler: &mut Compiler<'_>, document: &Checked) -> Option<CachePlan> {
    let block = compiler.only(document, "cache");
    let plan = store(block);
    if let Some(block) = block
        && plan.object_bytes_max > plan.size_bytes / OBJECTS_MIN
        && plan.size_bytes > 0
    {
        let message = "one answer could take more than a quarter of the store";
        let problem = Problem::new("conflict", &block.place("object-limit"), message);
        let problem = problem.help("a larger `size`, or a smaller `object-limit`");
        compiler.push(problem.related(&block.place("size"), "this is the store"));
    }
    if let Some(block) = block {
        check_snapshot(compiler, block, &plan);
    }
    let is_wanted = document.all("route").any(|route| route.all("cache").next().is_some());
    if let Some(block) = block.filter(|_| !is_wanted) {
        let message = "no route has `cache`: nothing is stored";
        let problem = Problem::new("no-effect", &block.span, message);
        compiler.warnings.push(problem.help("write `cache` in a route: route { proxy \"app\"; cache; }"));
    }
    is_wanted.then_some(plan)
}

/// Reports what is wrong with the snapshot of the store.
fn check_snapshot(compiler: &mut Compiler<'_>, block: &Checked, plan: &CachePlan) {
    let Some(snapshot) = &plan.snapshot else {
        for name in ["snapshot-size", "snapshot-interval"] {
            if block.chosen(name).is_some_and(|chosen| chosen.span.is_some()) {
                let message = format!("no `snapshot` says where: `{name}` does nothing");
                let problem = Problem::new("no-effect", &block.place(name), message);
                compiler.warnings.push(problem.help("add snapshot \"/var/lib/weir/cache.snapshot\""));
            }
        }
        return;
    };
    if snapshot.bytes_max > plan.size_bytes {
        let message = "the snapshot could be larger than the store";
        let problem = Problem::new("conflict", &block.place("snapshot-size"), message).help("at most `size`");
        compiler.push(problem.related(&block.place("size"), "this is the store"));
    }
    if let Err(why) = (compiler.world.experts.keeps)(&snapshot.path) {
        let message = format!("nothing is kept over a restart: {why}");
        let help = "a directory that exists and belongs to weir's user, such as /var/lib/weir";
        compiler.warnings.push(Problem::new("unwritable", &block.place("snapshot"), message).help(help));
    }
}

/// Returns the rules of a route. `edits` are its changes to fields of requests.
pub(super) fn cache(
    compiler: &mut Compiler<'_>,
    route: &Checked,
    document: &Checked,
    edits: &FieldEdits,
) -> Option<Arc<CacheRules>> {
    let block = compiler.only(route, "cache")?;
    if route.chosen("proxy").is_none() {
        let message = "there is nothing to store: weir answers these requests itself";
        let problem = Problem::new("conflict", &block.span, message);
        compiler.push(problem.help("take the `cache` away, or write `proxy` and an upstream"));
    }
    let methods = route.texts("methods");
    if !methods.is_empty() && !methods.contains(&"GET") {
        let message = "nothing is ever stored: only answers to GET are, and `methods` has none";
        let problem = Problem::new("conflict", &block.span, message);
        compiler.push(problem.related(&route.place("methods"), "these are the route's"));
    }
    warn_of_sharing(compiler, block);
    warn_of_clients(compiler, block, (route, document), edits);
    check_told(compiler, block, document);
    let [error_ttl, while_revalidate, if_error, max_stale] =
        ["error-ttl", "stale-while-revalidate", "stale-if-error", "max-stale"]
            .map(|name| seconds(compiler, block.number(name), name, &block.place(name)));
    let options = Options {
        heuristic: block.flag("heuristic"),
        lifetimes: lifetimes(compiler, block, "ttl"),
        forced_lifetimes: lifetimes(compiler, block, "ttl-force"),
        error_lifetime_max_s: error_ttl,
        stale_while_revalidate_s: while_revalidate,
        stale_if_error_s: if_error,
        max_stale_s: max_stale,
        request_directives: match block.word("request-directives") {
            "obey" => RequestDirectivesMode::Obey,
            "ignore" => RequestDirectivesMode::Ignore,
            _ => RequestDirectivesMode::Validate,
        },
        stores_set_cookie: block.word("set-cookie") == "store",
        strip: lower(&block.texts("strip")),
        ignored: DirectiveSet::of(&directives(block)),
        bypass_cookies: compiler.only(block, "bypass").map_or_else(Vec::new, |bypass| bytes(&bypass.texts("cookie"))),
        object_bytes_max: store(document.all("cache").next()).object_bytes_max,
        ..Options::default()
    };
    let mut rules = CacheRules {
        options,
        keys: keys(compiler, block, route, edits),
        told: match block.word("cache-status") {
            "on" => ToldTo::Everybody,
            "trusted" => ToldTo::Trusted,
            _ => ToldTo::Nobody,
        },
        hit_for_miss_us: block.number("hit-for-miss"),
        purge_from: purge_from(compiler, block, (route, document)),
        ..CacheRules::default()
    };
    let mut tags = Vec::new();
    for tag in block.texts("tags").into_iter().filter_map(tag_field_of) {
        if !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    if !tags.is_empty() {
        rules.tags = tags;
    }
    Some(Arc::new(rules))
}

/// Returns the clients that may purge.
fn purge_from(compiler: &mut Compiler<'_>, block: &Checked, (route, document): (&Checked, &Checked)) -> Vec<Network> {
    let texts = block.texts("purge-from");
    let is_for_all = texts.iter().any(|text| text.ends_with("/0"));
    if is_for_all {
        let message = "anybody can have all that is stored fetched again, as often as he likes";
        let problem = Problem::new("exposed", &block.place("purge-from"), message);
        compiler.warnings.push(problem.help("the addresses of those who change what is stored, such as 127.0.0.1"));
    }
    let methods = route.texts("methods");
    if !texts.is_empty() && !methods.is_empty() && !methods.contains(&"PURGE") {
        let message = "no PURGE comes here: `methods` does not have it";
        let problem = Problem::new("no-effect", &block.place("purge-from"), message);
        compiler.warnings.push(problem.related(&route.place("methods"), "these are the route's"));
    }
    let networks: Vec<Network> = texts.into_iter().filter_map(network).collect();
    if !is_for_all {
        warn_of_proxies(compiler, block, document, &networks);
    }
    networks
}

/// Warns of a trusted proxy that may purge by its own address. A request in which it names no
/// client may come from any client, so the proxy itself may not purge.
fn warn_of_proxies(compiler: &mut Compiler<'_>, block: &Checked, document: &Checked, networks: &[Network]) {
    let Some(client) = document.all("client").next() else { return };
    let is_both = |text: &&str| network(text).is_some_and(|proxy| networks.iter().any(|one| one.overlaps(&proxy)));
    let Some(proxy) = client.texts("trusted-proxies").into_iter().find(is_both) else { return };
    let message = format!("a PURGE of `{proxy}` itself gets 403: it is a trusted proxy, and may speak for anybody");
    let problem = Problem::new("conflict", &block.place("purge-from"), message);
    let problem = problem.help("clients behind it are known by their own addresses: name those of them who may");
    compiler.warnings.push(problem.related(&client.place("trusted-proxies"), "these speak for others"));
}

/// Reports upstreams whose responses are never for all clients: a route would serve one client's
/// response to another.
pub(super) fn check_upstreams<'u>(
    compiler: &mut Compiler<'_>,
    route: &Checked,
    upstreams: impl Iterator<Item = &'u UpstreamPlan>,
) {
    let Some(block) = route.all("cache").next() else { return };
    for upstream in upstreams {
        let why = match upstream {
            _ if upstream.is_destination() => "its server is where each client was going",
            _ if upstream.sticky.is_some() => "it is `sticky`: each client has a server of its own",
            _ if upstream.pool.is_private() => "clients or requests have connections of their own to it (`pool`)",
            _ => continue,
        };
        let message = format!("nothing of the upstream `{}` is stored: {why}", upstream.written_name());
        let problem = Problem::new("conflict", &block.span, message);
        compiler.push(problem.help("a route with `cache` leads to an upstream that is the same for all"));
    }
}

/// Returns lifetimes by status, seconds.
fn lifetimes(compiler: &mut Compiler<'_>, block: &Checked, name: &str) -> Vec<(u16, u32)> {
    compiler.at_most(block, name, super::RULES_MAX);
    let mut seen: Vec<(u16, u32, Span)> = Vec::new();
    for one in block.all(name).take(super::RULES_MAX) {
        let seconds = seconds(compiler, one.number("time"), name, &one.place("time"));
        for status in one.texts("status").into_iter().filter_map(|status| status.parse().ok()) {
            if let Some((.., earlier)) = seen.iter().find(|(other, ..)| *other == status) {
                let message = format!("{status} has a `{name}` already");
                let problem = Problem::new("duplicate", &one.place("status"), message);
                compiler.push(problem.related(&earlier.clone(), "this one"));
                continue;
            }
            seen.push((status, seconds, one.place("status")));
        }
    }
    seen.into_iter().map(|(status, seconds, _)| (status, seconds)).collect()
}

/// Returns a time in whole seconds: caches count nothing smaller.
fn seconds(compiler: &mut Compiler<'_>, us: u64, name: &str, place: &Span) -> u32 {
    if !us.is_multiple_of(SECOND_US) {
        let message = format!("`{name}`: caches count whole seconds, and {} is none", time_text(us));
        compiler.push(Problem::new("bad-value", place, message));
    }
    narrow(us / SECOND_US)
}

fn keys(compiler: &mut Compiler<'_>, block: &Checked, route: &Checked, edits: &FieldEdits) -> KeyRules {
    let Some(key) = compiler.only(block, "key") else { return KeyRules::default() };
    for name in key.texts("header") {
        let is_removed = edits.takes_away(name).then_some("`request` of this route removes it");
        if let Some(why) = unforwarded(name).or(is_removed) {
            let message = format!("no server sees `{name}` of clients: {why}");
            let mut problem = Problem::new("conflict", &key.place("header"), message).help("leave it out");
            if is_removed.is_some()
                && let Some(request) = route.all("request").next()
            {
                problem = problem.related(&request.span, "here");
            }
            compiler.push(problem);
        }
    }
    let rules = KeyRules {
        ignored_parameters: bytes(&key.texts("query-ignore")),
        sorts_query: key.flag("query-sort"),
        fields: lower(&key.texts("header")),
        cookies: bytes(&key.texts("cookie")),
    };
    if rules == KeyRules::default() {
        let message = "this `key` changes nothing";
        let problem = Problem::new("missing-value", &key.span, message);
        compiler.push(problem.help(
            "write what makes no difference, key query-ignore=\"utm_*\", or what makes one, key header=\"X-Device\"",
        ));
    }
    rules
}

/// Warns of options by which one client may get the response of another.
fn warn_of_sharing(compiler: &mut Compiler<'_>, block: &Checked) {
    let stores = block.word("set-cookie") == "store";
    let strips = block.texts("strip").iter().any(|name| name.eq_ignore_ascii_case("set-cookie"));
    if let (Some(force), true, false) = (block.all("ttl-force").next(), stores, strips) {
        let message = "everybody would get the cookies that were meant for whoever asked first";
        let problem = Problem::new("conflict", &force.span, message);
        let problem = problem.help("add strip \"Set-Cookie\", or leave `set-cookie` at \"refuse\"");
        compiler.push(problem.related(&block.place("set-cookie"), "answers with cookies are stored"));
    } else if stores && !strips {
        let message = "who gets a stored answer gets its cookies: with that of a session he is somebody else";
        let help = "`refuse`, which is the default, unless no answer to GET begins a session";
        compiler.warnings.push(Problem::new("exposed", &block.place("set-cookie"), message).help(help));
    }
    for secret in directives(block).into_iter().filter(|directive| SECRETS.contains(directive)) {
        let name = String::from_utf8_lossy(secret.name()).into_owned();
        let message = format!("what servers mark with `{name}` is for one client, and everybody gets it");
        let help = "better have the servers say what may be stored, by CDN-Cache-Control for example";
        compiler.warnings.push(Problem::new("exposed", &block.place("ignore"), message).help(help));
    }
}

/// Warns if servers learn the client's identity, which is part of the key: then no client gets a
/// response that was stored for another.
fn warn_of_clients(
    compiler: &mut Compiler<'_>,
    block: &Checked,
    (route, document): (&Checked, &Checked),
    edits: &FieldEdits,
) {
    for (name, whose) in edits.of_clients() {
        let (each, help) = match whose {
            Whose::User => ("user", "servers that answer all users alike need no field with their names"),
            _ => ("client address", "servers get the address in X-Forwarded-For, which is not part of the key"),
        };
        let message = format!("each {each} has stored answers of its own: `request` sets `{name}` from it");
        let problem = Problem::new("apart", &block.span, message).help(help);
        let request = route.all("request").next().map(|request| request.span.clone());
        compiler.warnings.push(match request {
            Some(span) => problem.related(&span, "servers are told here"),
            None => problem,
        });
    }
    let shows = |tls: &&Checked| tls.flag("client-cert-field");
    if let Some(tls) = document.all("listen").flat_map(|listen| listen.all("tls")).find(shows) {
        let message = "each client certificate has stored answers of its own: servers are told of it";
        let problem = Problem::new("apart", &block.span, message);
        let problem = problem.help("`client-cert-field=#false` where no server needs the certificate");
        compiler.warnings.push(problem.related(&tls.place("client-cert-field"), "servers are told here"));
    }
}

fn check_told(compiler: &mut Compiler<'_>, block: &Checked, document: &Checked) {
    let trusts = document.all("client").any(|client| !client.texts("trusted-proxies").is_empty());
    if block.word("cache-status") == "trusted" && !trusts {
        let message = "nobody is told: `client` has no `trusted-proxies`";
        compiler.warnings.push(Problem::new("no-effect", &block.place("cache-status"), message));
    }
}

/// Returns the size of the store.
fn store(block: Option<&Checked>) -> CachePlan {
    let Some(block) = block else { return CachePlan::default() };
    let size_bytes = block.number("size");
    let usual = CachePlan::default().object_bytes_max.min(size_bytes / OBJECTS_MIN);
    CachePlan {
        size_bytes,
        object_bytes_max: block.count_or_none("object-limit").unwrap_or(usual),
        variants_max: narrow(block.number("variants-max")),
        snapshot: snapshot(block, size_bytes),
        store: None,
    }
}

fn snapshot(block: &Checked, size_bytes: u64) -> Option<SnapshotPlan> {
    let path = Some(block.text("snapshot")).filter(|path| !path.is_empty())?;
    let usual = (size_bytes / SNAPSHOTS_MIN).min(SNAPSHOT_BYTES_USUAL_MAX);
    let bytes_max = block.count_or_none("snapshot-size").unwrap_or(usual);
    Some(SnapshotPlan { path: path.into(), bytes_max, every_us: block.number("snapshot-interval") })
}

/// Returns why a field from clients does not reach servers; None: it does.
pub(crate) fn unforwarded(name: &str) -> Option<&'static str> {
    let known = FieldName::of(name.as_bytes());
    match known {
        FieldName::Host => Some("it is part of every key already"),
        _ if known.is_hop_by_hop() => Some("it is between two neighbours, and passes no proxy"),
        _ if known.is_forwarding() => Some("weir writes it itself, another one for each client"),
        _ if is_kept_from_fetches(known) => Some("what is stored is fetched without it"),
        _ => None,
    }
}

fn directives(block: &Checked) -> Vec<Directive> {
    block.texts("ignore").into_iter().filter_map(|name| Directive::of(name.as_bytes())).collect()
}

fn bytes(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn lower(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.to_ascii_lowercase().into_bytes()).collect()
}
