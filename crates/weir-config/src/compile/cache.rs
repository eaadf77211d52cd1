//! `cache`: the size of the store, and the rules of a route, with checks for rules without effect
//! and for private responses that would be shared. Called by `compile` and `compile::route`.

use std::sync::Arc;

use weir_cache::{
    Directive, DirectiveSet, KeyRules, Options, RequestDirectivesMode, is_kept_from_fetches,
};
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
        let message = "one response could take more than a quarter of the store";
        let problem = Problem::new("conflict", &block.place("object-limit"), message);
        let problem = problem.help("raise `size`, or lower `object-limit`");
        compiler.push(problem.related(&block.place("size"), "size of the store"));
    }
    if let Some(block) = block {
        check_snapshot(compiler, block, &plan);
    }
    let is_wanted = document.all("route").any(|route| route.all("cache").next().is_some());
    if let Some(block) = block.filter(|_| !is_wanted) {
        let message = "no route has `cache`: weir stores nothing";
        let problem = Problem::new("no-effect", &block.span, message);
        compiler
            .warnings
            .push(problem.help("write `cache` in a route: route { proxy \"app\"; cache; }"));
    }
    is_wanted.then_some(plan)
}

/// Reports what is wrong with the snapshot of the store.
fn check_snapshot(compiler: &mut Compiler<'_>, block: &Checked, plan: &CachePlan) {
    let Some(snapshot) = &plan.snapshot else {
        for name in ["snapshot-size", "snapshot-interval"] {
            if block.chosen(name).is_some_and(|chosen| chosen.span.is_some()) {
                let message = format!("`{name}` has no effect without `snapshot`");
                let problem = Problem::new("no-effect", &block.place(name), message);
                compiler
                    .warnings
                    .push(problem.help("add snapshot \"/var/lib/weir/cache.snapshot\""));
            }
        }
        return;
    };
    if snapshot.bytes_max > plan.size_bytes {
        let message = "`snapshot-size` is larger than the store";
        let problem = Problem::new("conflict", &block.place("snapshot-size"), message)
            .help("lower it to at most `size`");
        compiler.push(problem.related(&block.place("size"), "size of the store"));
    }
    if let Err(why) = (compiler.world.experts.keeps)(&snapshot.path) {
        let message = format!("weir cannot keep the cache across restarts: {why}");
        let help =
            "choose an existing directory that belongs to weir's user, such as /var/lib/weir";
        compiler
            .warnings
            .push(Problem::new("unwritable", &block.place("snapshot"), message).help(help));
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
        let message = "`cache` has no effect here: weir answers these requests itself";
        let problem = Problem::new("conflict", &block.span, message);
        compiler.push(problem.help("remove `cache`, or use `proxy` with an upstream"));
    }
    let methods = route.texts("methods");
    if !methods.is_empty() && !methods.contains(&"GET") {
        let message =
            "`cache` has no effect: weir stores only responses to GET, which `methods` excludes";
        let problem = Problem::new("conflict", &block.span, message);
        compiler.push(problem.related(&route.place("methods"), "methods of the route"));
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
        bypass_cookies: compiler
            .only(block, "bypass")
            .map_or_else(Vec::new, |bypass| bytes(&bypass.texts("cookie"))),
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
fn purge_from(
    compiler: &mut Compiler<'_>,
    block: &Checked,
    (route, document): (&Checked, &Checked),
) -> Vec<Network> {
    let texts = block.texts("purge-from");
    let is_for_all = texts.iter().any(|text| text.ends_with("/0"));
    if is_for_all {
        let message = "any client can purge everything that is stored, as often as it likes";
        let problem = Problem::new("exposed", &block.place("purge-from"), message);
        compiler
            .warnings
            .push(problem.help("name only clients that change the content, such as 127.0.0.1"));
    }
    let methods = route.texts("methods");
    if !texts.is_empty() && !methods.is_empty() && !methods.contains(&"PURGE") {
        let message = "this route never receives PURGE: add it to `methods`";
        let problem = Problem::new("no-effect", &block.place("purge-from"), message);
        compiler.warnings.push(problem.related(&route.place("methods"), "methods of the route"));
    }
    let networks: Vec<Network> = texts.into_iter().filter_map(network).collect();
    if !is_for_all {
        warn_of_proxies(compiler, block, document, &networks);
    }
    networks
}

/// Warns of a trusted proxy that may purge by its own address. A request in which it names no
/// client may come from any client, so the proxy itself may not purge.
fn warn_of_proxies(
    compiler: &mut Compiler<'_>,
    block: &Checked,
    document: &Checked,
    networks: &[Network],
) {
    let Some(client) = document.all("client").next() else { return };
    let is_both = |text: &&str| {
        network(text).is_some_and(|proxy| networks.iter().any(|one| one.overlaps(&proxy)))
    };
    let Some(proxy) = client.texts("trusted-proxies").into_iter().find(is_both) else { return };
    let message = format!(
        "weir rejects a PURGE from `{proxy}` itself with 403: it is a trusted proxy and may act \
            for any client"
    );
    let problem = Problem::new("conflict", &block.place("purge-from"), message);
    let problem = problem
        .help("name the clients behind it that may purge: weir knows them by their own addresses");
    compiler.warnings.push(problem.related(&client.place("trusted-proxies"), "trusted proxies"));
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
            _ if upstream.is_destination() => {
                "its server is the original destination of each client"
            }
            _ if upstream.sticky.is_some() => {
                "it is `sticky`, which keeps each client at one server"
            }
            _ if upstream.pool.is_private() => {
                "its `pool` gives each client or request its own connections"
            }
            _ => continue,
        };
        let message = format!(
            "weir stores no responses from the upstream `{}`: {why}",
            upstream.written_name()
        );
        let problem = Problem::new("conflict", &block.span, message);
        compiler.push(
            problem.help("use `cache` only with an upstream that is the same for all clients"),
        );
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
                let message = format!("{status} already has a `{name}`");
                let problem = Problem::new("duplicate", &one.place("status"), message);
                compiler.push(problem.related(&earlier.clone(), "the earlier one"));
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
        let message = format!(
            "`{name}`: {} is not a whole number of seconds, which caches need",
            time_text(us)
        );
        compiler.push(Problem::new("bad-value", place, message));
    }
    narrow(us / SECOND_US)
}

fn keys(
    compiler: &mut Compiler<'_>,
    block: &Checked,
    route: &Checked,
    edits: &FieldEdits,
) -> KeyRules {
    let Some(key) = compiler.only(block, "key") else { return KeyRules::default() };
    for name in key.texts("header") {
        let is_removed = edits.takes_away(name).then_some("`request` of this route removes it");
        if let Some(why) = unforwarded(name).or(is_removed) {
            let message = format!("no server receives `{name}` from clients: {why}");
            let mut problem =
                Problem::new("conflict", &key.place("header"), message).help("leave it out");
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
        let message = "this `key` has no effect";
        let problem = Problem::new("missing-value", &key.span, message);
        compiler.push(problem.help(
            "name what the key ignores, such as key query-ignore=\"utm_*\", or what it adds, such \
                as key header=\"X-Device\"",
        ));
    }
    rules
}

/// Warns of options by which one client may get the response of another.
fn warn_of_sharing(compiler: &mut Compiler<'_>, block: &Checked) {
    let stores = block.word("set-cookie") == "store";
    let strips = block.texts("strip").iter().any(|name| name.eq_ignore_ascii_case("set-cookie"));
    if let (Some(force), true, false) = (block.all("ttl-force").next(), stores, strips) {
        let message = "all clients would get the cookies that were set for the first one";
        let problem = Problem::new("conflict", &force.span, message);
        let problem = problem.help("add strip \"Set-Cookie\", or leave `set-cookie` at \"refuse\"");
        compiler.push(
            problem.related(&block.place("set-cookie"), "this stores responses with cookies"),
        );
    } else if stores && !strips {
        let message = "a client that gets a stored response gets its cookies: a session cookie \
            makes it another user";
        let help = "use `refuse`, the default, unless no response to GET begins a session";
        compiler
            .warnings
            .push(Problem::new("exposed", &block.place("set-cookie"), message).help(help));
    }
    for secret in directives(block).into_iter().filter(|directive| SECRETS.contains(directive)) {
        let name = String::from_utf8_lossy(secret.name()).into_owned();
        let message = format!(
            "servers mark responses for one client with `{name}`, but every client gets them"
        );
        let help = "let the servers say what weir may store, for example with CDN-Cache-Control";
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
            Whose::User => ("user", "remove this header if servers answer all users alike"),
            _ => (
                "client address",
                "servers already get the address in X-Forwarded-For, which is not part of the key",
            ),
        };
        let message = format!(
            "weir stores responses separately for each {each}: `request` sets `{name}` from it"
        );
        let problem = Problem::new("apart", &block.span, message).help(help);
        let request = route.all("request").next().map(|request| request.span.clone());
        compiler.warnings.push(match request {
            Some(span) => problem.related(&span, "sent to servers here"),
            None => problem,
        });
    }
    let shows = |tls: &&Checked| tls.flag("client-cert-field");
    if let Some(tls) = document.all("listen").flat_map(|listen| listen.all("tls")).find(shows) {
        let message = "weir stores responses separately for each client certificate: it sends the \
            certificate to servers";
        let problem = Problem::new("apart", &block.span, message);
        let problem =
            problem.help("write `client-cert-field=#false` if no server needs the certificate");
        compiler
            .warnings
            .push(problem.related(&tls.place("client-cert-field"), "sent to servers here"));
    }
}

fn check_told(compiler: &mut Compiler<'_>, block: &Checked, document: &Checked) {
    let trusts = document.all("client").any(|client| !client.texts("trusted-proxies").is_empty());
    if block.word("cache-status") == "trusted" && !trusts {
        let message = "`cache-status \"trusted\"` has no effect: `client` has no `trusted-proxies`";
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
        _ if known.is_hop_by_hop() => {
            Some("it is a hop-by-hop header, which proxies do not forward")
        }
        _ if known.is_forwarding() => {
            Some("weir sets it itself, with another value for each client")
        }
        _ if is_kept_from_fetches(known) => Some("weir fetches content for the store without it"),
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
