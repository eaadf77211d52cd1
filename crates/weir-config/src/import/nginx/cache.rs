//! `proxy_cache` of nginx as `cache`, as far as both are equivalent; the rest is noted.
//!
//! Never looser than weir's own rules: a response that nginx would store although its server
//! forbids it is still forbidden.

use super::super::route::{Route, To};
use super::super::tree::Node;
use super::{Nginx, time};
use crate::compile::unforwarded;
use crate::reverse::literal;
use crate::texts;
use crate::units::time_text;

const SECOND_US: u64 = 1_000_000;
/// The longest lifetime that a route accepts.
const TTL_US_MAX: u64 = 3_650 * 86_400 * SECOND_US;
/// The longest lifetime of errors by default.
const ERROR_TTL_US: u64 = 10 * SECOND_US;
/// The statuses of `proxy_cache_valid` without any.
const VALID_STATUSES: [&str; 3] = ["200", "301", "302"];
/// Parts that every key of weir has, or that make no difference between stored responses.
const IN_EVERY_KEY: [&str; 9] = [
    "scheme",
    "proxy_host",
    "host",
    "http_host",
    "server_name",
    "request_method",
    "server_port",
    "is_args",
    "document_uri",
];

/// Converts `cache` of a location, if it stores responses of a server.
pub(super) fn cache_of(nginx: &mut Nginx<'_, '_, '_>, route: &mut Route, at: usize) {
    let is_asked = nginx.one(at, "proxy_cache").is_some_and(|node| node.argument(1) != "off");
    if is_asked && matches!(route.to, To::Upstream(_)) {
        route.cache = Some(cache(nginx, route, at));
    }
}

/// Returns options of `cache`, as they are written.
fn cache(nginx: &mut Nginx<'_, '_, '_>, route: &Route, at: usize) -> Vec<String> {
    // nginx guesses no lifetimes.
    let mut lines = vec!["heuristic #false".to_owned()];
    valid(nginx, at, &mut lines);
    let key =
        nginx.one(at, "proxy_cache_key").map_or_else(Vec::new, |node| key(nginx, route, node));
    if !key.is_empty() {
        lines.push(format!("key{}", key.concat()));
    }
    let cookies = bypass(nginx, at);
    if !cookies.is_empty() {
        lines.push(format!("bypass{}", list("cookie", &cookies)));
    }
    lines
}

/// Converts lifetimes by status.
fn valid(nginx: &mut Nginx<'_, '_, '_>, at: usize, lines: &mut Vec<String>) {
    let tree = nginx.tree;
    let (mut seen, mut errors_us) = (Vec::new(), 0);
    for node in tree.effective(at, "proxy_cache_valid").iter().map(|at| &tree.nodes[*at]) {
        let words: Vec<&str> = node.arguments().collect();
        let Some((last, statuses)) = words.split_last() else { continue };
        let Some(us) = time(last) else {
            nginx.draft.lost(node, "this is not a time");
            continue;
        };
        let us = (us - us % SECOND_US).min(TTL_US_MAX);
        let statuses = if statuses.is_empty() { &VALID_STATUSES[..] } else { statuses };
        let mut fine = Vec::new();
        for status in statuses {
            match texts::cache::status(status) {
                // The first one holds.
                Ok(status) if seen.contains(&status) => {}
                Ok(status) => fine.push(status),
                Err(_) if *status == "any" => {
                    nginx
                        .draft
                        .lost(node, "`ttl` needs each status by name; `any` means all of them");
                }
                Err(why) => nginx.draft.lost(node, why),
            }
        }
        seen.extend(fine.iter().cloned());
        if us == 0 || fine.is_empty() {
            continue;
        }
        if fine.iter().any(|status| status.as_str() >= "400") {
            errors_us = us.max(errors_us);
        }
        lines.push(format!("ttl \"{}\"{}", time_text(us), list("status", &fine)));
    }
    if errors_us > ERROR_TTL_US {
        lines.push(format!("error-ttl \"{}\"", time_text(errors_us)));
    }
}

/// Converts the parts of the key beyond those of every key of weir.
fn key(nginx: &mut Nginx<'_, '_, '_>, route: &Route, node: &Node) -> Vec<String> {
    let text: String = node.arguments().collect();
    let (mut headers, mut cookies, mut has_query, mut others) =
        (Vec::new(), Vec::new(), false, Vec::new());
    for name in text.split('$').skip(1) {
        let name = name.strip_prefix('{').unwrap_or(name);
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        let name = &name[..end];
        has_query |= matches!(name, "request_uri" | "args" | "query_string");
        match name.split_once('_') {
            _ if IN_EVERY_KEY.contains(&name) => {}
            _ if matches!(name, "request_uri" | "uri" | "args" | "query_string") => {}
            Some(("cookie", cookie)) if texts::cookie_name(cookie).is_ok() => {
                cookies.push(cookie.to_owned())
            }
            Some(("http", header)) if is_seen(route, &header.replace('_', "-")) => {
                headers.push(header.replace('_', "-"))
            }
            _ => others.push(name.to_owned()),
        }
    }
    if !others.is_empty() {
        let names = others.iter().map(|name| format!("`${name}`")).collect::<Vec<_>>().join(", ");
        nginx.draft.different(
            node,
            format!(
                "weir's keys cannot contain {names}; if responses differ by that, remove \
                `cache` from the route"
            ),
        );
    }
    if !has_query {
        nginx.draft.different(
            node,
            "weir's keys contain the query; name parameters that make no difference in \
                `query-ignore` of `key`",
        );
    }
    [("header", headers), ("cookie", cookies)]
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(option, names)| list(option, &names))
        .collect()
}

/// Returns cookies with which requests bypass the cache.
fn bypass(nginx: &mut Nginx<'_, '_, '_>, at: usize) -> Vec<String> {
    let mut cookies = Vec::new();
    for name in ["proxy_cache_bypass", "proxy_no_cache"] {
        let Some(node) = nginx.one(at, name) else { continue };
        let mut others = Vec::new();
        for word in node.arguments() {
            match word.strip_prefix("$cookie_").filter(|cookie| texts::cookie_name(cookie).is_ok())
            {
                Some(cookie) if !cookies.iter().any(|one| one == cookie) => {
                    cookies.push(cookie.to_owned())
                }
                Some(_) => {}
                None => others.push(word),
            }
        }
        if !others.is_empty() {
            let what = others.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
            nginx.draft.lost(
                node,
                format!(
                    "requests bypass the cache only with a cookie (`bypass`), not with {what}; \
                    use a route without `cache` for them"
                ),
            );
        }
    }
    cookies
}

/// Notes the handling of a directive about caching anywhere. `false`: it is none.
pub(super) fn tell_of_cache(nginx: &mut Nginx<'_, '_, '_>, node: &Node) -> bool {
    match node.name() {
        // Those of a location have been handled.
        "proxy_cache" | "proxy_cache_valid" | "proxy_cache_key" | "proxy_cache_bypass"
        | "proxy_no_cache" => {}
        "proxy_cache_lock" | "proxy_cache_revalidate" if node.argument(1) != "off" => {
            nginx.draft.unneeded(node.name());
        }
        "proxy_cache_lock" => nginx.draft.different(
            node,
            "in weir, requests for a response that \
            is being fetched wait for it",
        ),
        "proxy_cache_lock_timeout" | "proxy_cache_lock_age" | "proxy_cache_max_range_offset" => {
            nginx.draft.unneeded(node.name());
        }
        "proxy_cache_revalidate" => nginx.draft.different(
            node,
            "weir revalidates stale responses \
            where it can",
        ),
        "proxy_cache_path" => nginx.draft.different(
            node,
            "weir stores in memory, not in files, and keeps what is used more: set the size with \
                `cache { size \"256MiB\"; }` at the top",
        ),
        "proxy_cache_use_stale" | "proxy_cache_background_update" => nginx.draft.lost(
            node,
            "set the time: `stale-if-error` for failing servers, `stale-while-revalidate` for the \
                time of a new fetch",
        ),
        "proxy_cache_methods"
            if node.arguments().all(|method| matches!(method, "GET" | "HEAD")) =>
        {
            nginx.draft.unneeded(node.name());
        }
        "proxy_cache_methods" => nginx.draft.lost(node, "weir stores only responses to GET"),
        "proxy_cache_min_uses" if node.argument(1) == "1" => {}
        "proxy_cache_min_uses" => nginx.draft.lost(node, "weir evicts what is used least"),
        "proxy_cache_purge" => nginx.draft.lost(node, "use `weir cache purge` to purge responses"),
        "proxy_cache_convert_head" if node.argument(1) == "on" => {}
        "proxy_ignore_headers" => nginx.draft.lost(
            node,
            "weir obeys what servers forbid; override it with `ttl-force`, `ignore` and \
                `set-cookie` of `cache`",
        ),
        _ => return false,
    }
    true
}

/// Whether servers see a client's value of a field.
fn is_seen(route: &Route, name: &str) -> bool {
    let is_changed = route.request.iter().any(|edit| edit.name.eq_ignore_ascii_case(name));
    texts::route::field(name).is_ok() && unforwarded(name).is_none() && !is_changed
}

fn list(option: &str, items: &[String]) -> String {
    format!(" {option}={}", literal(&items.join(",")))
}
