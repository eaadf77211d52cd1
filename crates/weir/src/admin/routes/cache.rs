//! `/v1/cache`: what is stored, why a response comes from there or not, and purges. Called by
//! `routes`.

use hyper::{Method, StatusCode};
use weir_cache::{By, KeyRules, Place, Store, Target, url};
use weir_proxy::client::outlook::{Outlook, Question, outlook};
use weir_proxy::plan::Plan;

use super::{Outcome, Refusal, Routes, json, known, options, post, read, refusal};
use crate::admin::cache::{Cache, CacheTop, Explained, Line, Purged, figures, missed, store, top};
use crate::admin::cache_words::{authority, header, parts, url as whole_url};
use crate::admin::document::VERSION;
use crate::admin::reading::of_hits;
use crate::admin::routes::Door;
use crate::bans::wall_us;

/// How many keys are shown by default, and at most.
const MOST: usize = 10;
const MOST_MAX: usize = 1000;

impl Routes {
    /// Responds to a request for a path below `/v1/cache`.
    pub(super) fn cache(&self, method: &Method, below: &[&str], query: &str) -> Outcome {
        let reader = self.reader();
        let plan = reader.plan();
        let asked = |names: &'static [&'static str]| read_query(query, names);
        match below {
            [] => read(method, || {
                asked(&[])?;
                let figures =
                    figures(plan, &of_hits(reader.handle().views())).ok_or_else(no_cache)?;
                Ok(json(StatusCode::OK, &Cache { version: VERSION, figures }))
            }),
            ["top"] => read(method, || {
                let list = top_of(store(plan).ok_or_else(no_cache)?, &asked(&["by", "most"])?)?;
                Ok(json(StatusCode::OK, &list))
            }),
            ["explain"] => read(method, || explain(plan, &asked(&["url", "header"])?)),
            ["purge"] => post(method, || {
                let store = store(plan).ok_or_else(no_cache)?;
                let named = asked(&["url", "prefix", "host", "tag", "all", "soft"])?;
                let soft = named.iter().any(|(name, value)| name == "soft" && value == "on");
                let (targets, what) = targets(plan, &named)?;
                for target in targets {
                    store.ban(target, soft).map_err(|weir_cache::TooManyBans| {
                        let message =
                            "too many purges are in progress; try again in a moment, or purge all";
                        refusal(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
                    })?;
                }
                if !self.facts.snapshots.settle() {
                    let message = "another program is taking over or has done so: repeat the \
                        command, so that it reaches the new program";
                    return Err(refusal(StatusCode::SERVICE_UNAVAILABLE, "taken-over", message));
                }
                Ok(json(StatusCode::OK, &Purged { version: VERSION, what, soft }))
            }),
            _ => Err(refusal(StatusCode::NOT_FOUND, "not-found", known(Door::Admin))),
        }
    }
}

fn no_cache() -> Refusal {
    refusal(
        StatusCode::NOT_FOUND,
        "no-cache",
        "no route of the configuration has `cache`: nothing is stored",
    )
}

fn bad(message: impl Into<String>) -> Refusal {
    refusal(StatusCode::BAD_REQUEST, "bad-query", message)
}

/// Returns the members of a query, all of these names.
fn read_query(query: &str, names: &[&str]) -> Result<Vec<(String, String)>, Refusal> {
    let all = options(query).ok_or_else(|| bad("cannot parse the query"))?;
    match all.iter().find(|(name, _)| !names.contains(&name.as_str())) {
        None => Ok(all),
        Some((name, _)) if names.is_empty() => {
            Err(bad(format!("this path takes no parameters, but the request has `{name}`")))
        }
        Some((name, _)) => {
            Err(bad(format!("unknown parameter `{name}`; known: {}", names.join(", "))))
        }
    }
}

/// Returns the first keys in the requested order; None of [`By`]: by misses.
fn top_of(store: &Store, named: &[(String, String)]) -> Result<CacheTop, Refusal> {
    let (mut by, mut most) = (Some(By::Hits), MOST);
    for (name, value) in named {
        match (name.as_str(), value.as_str()) {
            ("by", "hits") => by = Some(By::Hits),
            ("by", "bytes") => by = Some(By::Bytes),
            ("by", "answers") => by = Some(By::Variants),
            ("by", "misses") => by = None,
            ("by", _) => return Err(bad("`by` is hits, bytes, answers or misses")),
            (_, value) => {
                let count = value.parse().ok().filter(|count| *count <= MOST_MAX);
                most = count.ok_or_else(|| bad(format!("`most` is a number up to {MOST_MAX}")))?;
            }
        }
    }
    Ok(match by {
        Some(by) => {
            CacheTop { version: VERSION, keys: top(store, by, most), ..CacheTop::default() }
        }
        None => CacheTop { version: VERSION, missed: missed(store, most), ..CacheTop::default() },
    })
}

/// Returns what to purge, with its name.
fn targets(plan: &Plan, named: &[(String, String)]) -> Result<(Vec<Target>, Vec<String>), Refusal> {
    let mut what = named.iter().filter(|(name, _)| name != "soft");
    let (Some((name, value)), None) = (what.next(), what.next()) else {
        return Err(bad("one of these has to say what to purge: url, prefix, host, tag, all=on"));
    };
    let text = |text: String| (text.clone().into_bytes(), text);
    let one = |target: fn(Vec<u8>) -> Target, (bytes, text)| (vec![target(bytes)], vec![text]);
    Ok(match name.as_str() {
        "url" => {
            let urls = urls_of(plan, &whole_url(value).map_err(bad)?);
            let shown = urls.iter().map(|url| url.escape_ascii().to_string()).collect();
            (urls.into_iter().map(Target::Url).collect(), shown)
        }
        "prefix" => one(Target::Prefix, text(whole_url(value).map_err(bad)?)),
        "host" => one(Target::Host, text(authority(value).map_err(bad)?)),
        "tag" if !value.is_empty() => {
            one(|tag| Target::Tag { tag, host: None }, text(value.clone()))
        }
        "tag" => return Err(bad("a tag is not empty")),
        _ if value == "on" => (vec![Target::All], Vec::new()),
        _ => return Err(bad("to purge everything, use all=on")),
    })
}

/// Returns the URLs that a URL has in keys: as requested, and as its route forwards it without the
/// ignored parts of the query.
fn urls_of(plan: &Plan, asked: &str) -> Vec<Vec<u8>> {
    let mut urls = vec![asked.as_bytes().to_vec()];
    if let Some((scheme, authority, path)) = parts(asked) {
        let question = Question { sealed: scheme == "https", authority, path, fields: &[] };
        let found = outlook(plan, store(plan).map(|store| &**store), &question, now_us());
        let place = Place {
            upstream: b"",
            scheme: scheme.as_bytes(),
            authority: authority.as_bytes(),
            path: path.as_bytes(),
        };
        urls.extend(found.url);
        urls.push(url(place, &KeyRules::default()));
    }
    urls.sort_unstable();
    urls.dedup();
    urls
}

fn explain(plan: &Plan, named: &[(String, String)]) -> Outcome {
    let mut asked = None;
    let mut fields = Vec::new();
    for (name, value) in named {
        match name.as_str() {
            "url" => asked = Some(whole_url(value).map_err(bad)?),
            _ => fields.push(header(value).map_err(bad)?),
        }
    }
    let asked = asked.ok_or_else(|| bad("`url` is missing: the URL of the request"))?;
    let (scheme, authority, path) = parts(&asked).ok_or_else(|| bad("this is no URL"))?;
    let question = Question { sealed: scheme == "https", authority, path, fields: &fields };
    let Outlook { verdict, lines, .. } =
        outlook(plan, store(plan).map(|store| &**store), &question, now_us());
    let lines =
        lines.into_iter().map(|(name, text)| Line { name: name.to_owned(), text }).collect();
    Ok(json(StatusCode::OK, &Explained { version: VERSION, verdict: verdict.to_owned(), lines }))
}

/// Returns the monotonic clock of the workers, microseconds.
fn now_us() -> u64 {
    wall_us().saturating_add_signed(weir_worker::wall_offset_us().saturating_neg())
}
