//! What would happen to a request that asks the cache, and why: for operators, in the order of the
//! decisions (docs/cache.md).
//!
//! Called by the control plane with the plan and the store of running workers; changes nothing, and
//! counts nothing as a hit. Uses the same functions that decide about requests, so that the two
//! can't disagree.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use weir_cache::{
    Answer, Object, Options, Place, Reason, Request, Store, Usage, bypass, explain, judge_usage,
    stored_fields, url_of,
};
use weir_http::{FieldName, Fields, RequestHead, parse_request};

use super::seen::Seen;
use super::told::Told;
use crate::forward::credentials;
use crate::forward::lookup::User;
use crate::plan::{CacheRules, ListenerPlan, Plan};
use crate::request::route::path::settled;
use crate::request::route::{Asked, Routed, Target};
use crate::request::rules::{Known, Ruled};

/// A GET that a client might send.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Its client speaks TLS.
    pub sealed: bool,
    /// Host and port.
    pub authority: &'a str,
    /// Path and query.
    pub path: &'a str,
    /// Its fields, each `Name: value`.
    pub fields: &'a [String],
}

/// The prediction for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outlook {
    /// A word: `fresh`, `stale`, `validate`, `fetch`, `bypass`, `uncached` or `refused`.
    pub verdict: &'static str,
    /// The reasons, as names and texts, in the order of the decisions.
    pub lines: Vec<(&'static str, String)>,
    /// The URL of its key; None: it has no key.
    pub url: Option<Vec<u8>>,
}

impl Outlook {
    fn end(
        verdict: &'static str,
        mut lines: Vec<(&'static str, String)>,
        why: impl Into<String>,
    ) -> Outlook {
        lines.push((verdict, why.into()));
        Outlook { verdict, lines, url: None }
    }
}

/// Predicts what would happen to a request at this time: microseconds of the monotonic clock.
/// `store` None: no store is configured.
pub fn outlook(
    plan: &Plan,
    store: Option<&Store>,
    question: &Question<'_>,
    now_us: u64,
) -> Outlook {
    let text = text_of(question, plan);
    let mut fields = Fields::default();
    let head = match parse_request(&text, &plan.client.head, &mut fields) {
        Ok(Some(head)) => head,
        Ok(None) => return Outlook::end("refused", Vec::new(), "it is not a complete request"),
        Err(error) => {
            return Outlook::end(
                "refused",
                Vec::new(),
                format!("weir rejects it: {}", error.word()),
            );
        }
    };
    let asked = Asked {
        listener: listener(question, plan),
        sealed: question.sealed,
        host: head.authority.of(&text),
        path: head.path.of(&text),
        method: b"GET",
        fields: &fields,
        bytes: &text,
    };
    let routed = match plan.routes.find(&asked, &mut Vec::new()) {
        Ok(Some(routed)) => routed,
        Ok(None) => return Outlook::end("refused", Vec::new(), "no route matches it"),
        Err(_) => return Outlook::end("refused", Vec::new(), "its path can be read in two ways"),
    };
    led(plan, store, routed, question, (&head, &fields, &text), now_us)
}

/// Returns the listener that a client of this URL would connect to: the first with its port.
fn listener(question: &Question<'_>, plan: &Plan) -> Option<usize> {
    let written = question.authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let port: u16 = written.unwrap_or(if question.sealed { 443 } else { 80 });
    let is_this = |one: &ListenerPlan| one.address.network().is_some_and(|at| at.port() == port);
    plan.listeners.iter().position(is_this)
}

fn text_of(question: &Question<'_>, plan: &Plan) -> Vec<u8> {
    let settled = settled(question.path.as_bytes(), &mut Vec::new()).filter(|_| plan.reads_paths());
    let path = settled.as_deref().unwrap_or(question.path.as_bytes());
    let mut text = [b"GET ", path].concat();
    text.extend_from_slice(format!(" HTTP/1.1\r\nHost: {}\r\n", question.authority).as_bytes());
    question
        .fields
        .iter()
        .for_each(|field| text.extend_from_slice(format!("{field}\r\n").as_bytes()));
    text.extend_from_slice(b"\r\n");
    text
}

/// Explains where its route leads.
fn led(
    plan: &Plan,
    store: Option<&Store>,
    routed: &Routed,
    question: &Question<'_>,
    came: (&RequestHead, &Fields, &[u8]),
    now_us: u64,
) -> Outlook {
    let mut lines = Vec::new();
    let Some(upstream) = routed.target.upstreams().next() else {
        return Outlook::end(
            "uncached",
            lines,
            "weir responds itself, and stores no such response",
        );
    };
    let plan_of = &plan.upstreams[upstream];
    let share = match &routed.target {
        Target::Split(_) => ", or another upstream of `split`, each with its own responses",
        Target::Upstream(_) | Target::Here(_) => "",
    };
    lines.push(("upstream", format!("{}{share}", plan_of.written_name())));
    let rules = routed.rules.as_ref().and_then(|rules| Some((rules, rules.cache.as_deref()?)));
    let (Some((rules, cached)), Some(store)) = (rules, store) else {
        return Outlook::end("uncached", lines, "its route has no `cache`");
    };
    let (head, fields, bytes) = came;
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let user = rules.users.as_ref().and_then(|_| user_of(fields, bytes));
    let known = Known {
        head,
        fields,
        bytes,
        client: here,
        peer: here,
        sealed: question.sealed,
        identity: None,
        upstream: &plan_of.name,
        user: user.as_ref(),
    };
    let Ok(ruled) = Ruled::new(rules, &known) else {
        return Outlook::end(
            "refused",
            lines,
            "the rules of its route leave no request that weir could send",
        );
    };
    let Ok(seen) = Seen::of(Some(&ruled), false, came) else {
        return Outlook::end("bypass", lines, "weir cannot tell how its server would read it");
    };
    let request = seen.as_deref().map_or(Request { input: bytes, head, fields }, Seen::request);
    let scheme: &[u8] = if question.sealed { b"https" } else { b"http" };
    if let Some(why) = bypass(request, scheme, &cached.options) {
        return Outlook::end("bypass", lines, format!("the cache ignores it: {}", why.word()));
    }
    let path = ruled.path().unwrap_or_else(|| head.path.of(bytes));
    let authority = head.authority.of(bytes);
    let place = Place { upstream: plan_of.name.as_bytes(), scheme, authority, path };
    let mut key = Vec::new();
    Told { ruled: Some(&ruled), shown: None }.put_key(&mut key, place, &cached.keys, request);
    lines.push(("key", shown(&key)));
    let mut outlook = stored(store, cached, &key, request, lines, now_us);
    outlook.url = Some(url_of(&key).to_vec());
    outlook
}

/// Returns the user that a request would have if its password is correct.
fn user_of(fields: &Fields, bytes: &[u8]) -> Option<Arc<User>> {
    let shown = credentials::shown(fields, FieldName::Authorization, bytes).ok()?;
    Some(Arc::new(User::new(&credentials::read_basic(shown)?.name)))
}

/// Formats a key as one line.
fn shown(key: &[u8]) -> String {
    let parts = key.split(|byte| *byte == b'\n').filter(|part| !part.is_empty());
    parts.map(|part| part.escape_ascii().to_string()).collect::<Vec<_>>().join(" | ")
}

/// Explains what is stored under its key.
fn stored(
    store: &Store,
    rules: &CacheRules,
    key: &[u8],
    request: Request<'_>,
    mut lines: Vec<(&'static str, String)>,
    now_us: u64,
) -> Outlook {
    let all = store.variants(key, now_us);
    let others = store.keys_of(url_of(key)).into_iter().filter(|other| other != key).count();
    if others > 0 {
        lines.push(("beside it", format!("{others} other keys of this URL")));
    }
    let Some((selector, object)) = all.iter().find(|(selector, _)| selector.matches(request))
    else {
        let why = match all.first() {
            None => "nothing is stored under this key".to_owned(),
            Some((newest, _)) => {
                let names: Vec<String> =
                    newest.names().map(|name| name.escape_ascii().to_string()).collect();
                format!(
                    "{} responses of this key, all for other values of {}",
                    all.len(),
                    names.join(", ")
                )
            }
        };
        return Outlook::end("fetch", lines, why);
    };
    let names: Vec<String> = selector.names().map(|name| name.escape_ascii().to_string()).collect();
    let by = if names.is_empty() {
        "for all".to_owned()
    } else {
        format!("selected by {}", names.join(", "))
    };
    lines.push(("stored", format!("{} of this key; the one for this request is {by}", all.len())));
    used(object, rules, request, lines, now_us)
}

/// Explains whether the stored response may be used.
fn used(
    object: &Object,
    rules: &CacheRules,
    request: Request<'_>,
    mut lines: Vec<(&'static str, String)>,
    now_us: u64,
) -> Outlook {
    let terms = object.terms();
    let (status, bytes, hits) = (terms.status, object.body_bytes(), object.hits());
    lines
        .push(("answer", format!("status {status}, {bytes} bytes of content, found {hits} times")));
    if !object.tags().is_empty() {
        let tags: Vec<String> =
            object.tags().iter().map(|tag| tag.escape_ascii().to_string()).collect();
        lines.push(("tags", tags.join(" ")));
    }
    lines.extend(arithmetic(object, &rules.options, now_us));
    if object.is_purged_softly() {
        lines.push(("purged", "softly: its lifetime has ended".to_owned()));
    }
    let usage =
        judge_usage(&terms, &request.directives(), &rules.options, now_us, object.checked_us());
    let (verdict, why) = match usage {
        Usage::Fresh => ("fresh", "weir serves it from the store"),
        Usage::StaleWhileRevalidate => {
            ("stale", "weir serves it from the store, and fetches it again at the same time")
        }
        Usage::StaleAccepted => {
            ("stale", "weir serves it from the store, because the client accepts it stale")
        }
        Usage::Validate(Reason::Stale) => {
            ("validate", "weir revalidates it at its server: its lifetime has ended")
        }
        Usage::Validate(Reason::NoCache) => {
            ("validate", "weir revalidates it at its server: it has no-cache")
        }
        Usage::Validate(Reason::Request) => {
            ("validate", "weir revalidates it at its server: the client wants it fresher")
        }
        Usage::GatewayTimeout => {
            ("refused", "504: the client accepts only a stored response, and none may be used")
        }
    };
    Outlook::end(verdict, lines, why)
}

/// Explains how its lifetime and age are computed.
fn arithmetic(object: &Object, options: &Options, now_us: u64) -> Vec<(&'static str, String)> {
    let terms = object.terms();
    let answer =
        Answer::read(terms.status, stored_fields(object.lines()), options, terms.received_s);
    explain(&answer, &terms, options, now_us)
}
