//! Chooses the response to each request. Called by `serve`, on the control thread.
//!
//! The admin socket may do everything; the metrics listener only what is harmless. Errors are JSON
//! with a word for programs and a sentence for people.

mod cache;

use std::cell::{RefCell, RefMut};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use weir_proxy::cross::standing::Order;
use weir_proxy::shield::bans::Block;
use weir_worker::Command;

use super::document::{Ban, BanList, Error, JobStatus, Left, Status, VERSION};
use super::exposition::Format;
use super::live::live;
use super::metrics::metrics;
use super::page;
use super::reading::{Reader, Reading};
use super::status::{Facts, server_status, status};
use super::strangers::{self, Known, Meant};
use crate::bans::{NeverBanned, Shown};
use crate::names::meant;
use crate::reload::{self, Added, Desk, Job};

/// A body in memory.
pub(crate) type Body = Full<Bytes>;
/// A response.
pub(crate) type Answer = Response<Body>;

/// The source of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// The admin socket: its owner.
    Admin,
    /// The metrics listener: any client.
    Metrics,
}

/// Paths of the metrics listener that are for programs.
const FOR_PROGRAMS: [&str; 3] = ["/metrics", "/healthz", "/readyz"];

/// How long all viewers of the live page get the same data: so the workers report twice a second,
/// however many viewers there are.
const LIVE_FRESH: Duration = Duration::from_millis(500);

/// How many clients close to limits are shown by default, and at most.
const SHIELD_MOST: usize = 10;
const SHIELD_MOST_MAX: usize = 1000;
/// The longest ban, seconds: ten years.
const BAN_S_MAX: u64 = 3650 * 86_400;

/// Makes the responses.
#[derive(Debug)]
pub(crate) struct Routes {
    reader: RefCell<Reader>,
    facts: Facts,
    desk: Desk,
    started: Instant,
    /// The last data for the live page, and its time.
    live: RefCell<Option<(Instant, Bytes)>>,
}

/// Why a request is rejected.
struct Refusal {
    status: StatusCode,
    word: &'static str,
    message: String,
}

type Outcome = Result<Answer, Refusal>;

fn refusal(status: StatusCode, word: &'static str, message: impl Into<String>) -> Refusal {
    Refusal { status, word, message: message.into() }
}

impl Routes {
    /// For workers that have just started.
    pub(crate) fn new(reader: Reader, facts: Facts, desk: Desk, started: Instant) -> Rc<Routes> {
        Rc::new(Routes {
            reader: RefCell::new(reader),
            facts,
            desk,
            started,
            live: RefCell::default(),
        })
    }

    /// Records the past.
    pub(crate) fn tick(&self) {
        self.reader().tick();
    }

    /// Marks a second.
    pub(crate) fn mark(&self) {
        self.reader().mark();
    }

    /// Returns the reader, which follows the plan in force.
    fn reader(&self) -> RefMut<'_, Reader> {
        let mut reader = self.reader.borrow_mut();
        reader.follow(&self.desk);
        reader
    }

    /// Responds to a request.
    pub(crate) fn respond(&self, door: Door, request: &Request<Incoming>) -> Answer {
        let accept =
            request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let admitted = self.admit(door, request.uri(), request.headers());
        admitted
            .and_then(|()| self.answer(door, request.method(), request.uri(), accept))
            .unwrap_or_else(Refusal::answer)
    }

    /// Rejects requests that a foreign page makes a browser send. Browsers cannot reach the admin
    /// socket.
    fn admit(&self, door: Door, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        if door == Door::Admin {
            return Ok(());
        }
        let meant =
            if FOR_PROGRAMS.contains(&uri.path()) { Meant::Program } else { Meant::Browser };
        let (reader, machine) = (self.reader(), weir_io::host_name());
        let known = Known { hosts: &reader.plan().metrics_hosts, machine: &machine };
        match strangers::refused(meant, uri, headers, known) {
            Some(why) => Err(refusal(StatusCode::MISDIRECTED_REQUEST, "foreign-host", why)),
            None => Ok(()),
        }
    }

    fn answer(&self, door: Door, method: &Method, uri: &Uri, accept: &str) -> Outcome {
        let segments: Option<Vec<String>> = uri.path().split('/').skip(1).map(plain).collect();
        let segments = segments.unwrap_or_default();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        match (door, &segments[..]) {
            (Door::Metrics, [""]) => read(method, || Ok(live_page())),
            (Door::Metrics, ["live.json"]) => read(method, || Ok(self.live())),
            (_, ["metrics"]) => read(method, || Ok(self.metrics(door, accept))),
            (_, ["healthz"]) => read(method, || Ok(text(StatusCode::OK, "ok\n".to_owned()))),
            (_, ["readyz"]) => read(method, || Ok(self.ready(door))),
            (Door::Admin, ["v1", "status"]) => read(method, || Ok(self.status())),
            (Door::Admin, ["v1", "servers", upstream, server]) => {
                read(method, || self.server(upstream, server))
            }
            (Door::Admin, ["v1", "servers", upstream, server, "left"]) => {
                read(method, || self.left(upstream, server))
            }
            (Door::Admin, ["v1", "servers", upstream, server, "add"]) => {
                post(method, || self.add(upstream, server, uri.query().unwrap_or_default()))
            }
            (Door::Admin, ["v1", "servers", upstream, server, "remove"]) => {
                post(method, || self.remove(upstream, server))
            }
            (Door::Admin, ["v1", "servers", upstream, server, order]) => match command(order) {
                Some(_) if method != Method::POST => Err(wrong_method("POST")),
                Some(command) => self.order(upstream, server, command),
                None => {
                    let message = format!(
                        "unknown command `{order}`: a server can drain, disable, enable, clear, \
                            add or remove"
                    );
                    Err(refusal(StatusCode::NOT_FOUND, "unknown-order", message))
                }
            },
            (Door::Admin, ["v1", "servers", upstream, server, "weight", weight]) => {
                post(method, || self.weigh(upstream, server, weight))
            }
            (Door::Admin, ["v1", "bans"]) => read(method, || Ok(self.bans())),
            (Door::Admin, ["v1", "bans", "remove"]) => post(method, || self.unban(None)),
            (Door::Admin, ["v1", "bans", whom]) => read(method, || self.ban_of(whom)),
            (Door::Admin, ["v1", "bans", whom, "add"]) => {
                post(method, || self.ban(whom, uri.query().unwrap_or_default()))
            }
            (Door::Admin, ["v1", "bans", whom, "remove"]) => {
                post(method, || self.unban(Some(whom)))
            }
            (Door::Admin, ["v1", "shield"]) => {
                read(method, || self.shield(uri.query().unwrap_or_default()))
            }
            (Door::Admin, ["v1", "cache", below @ ..]) => {
                self.cache(method, below, uri.query().unwrap_or_default())
            }
            (Door::Admin, ["v1", "reload"]) => post(method, || self.job(Job::Reload)),
            (Door::Admin, ["v1", "upgrade"]) => post(method, || self.job(Job::Upgrade)),
            (Door::Admin, ["v1", "reload", "dry-run"]) => post(method, || self.job(Job::DryRun)),
            (Door::Admin, ["v1", "jobs", number]) => read(method, || self.outcome(number)),
            (Door::Admin, ["v1", "suspects", "forgive"]) => post(method, || {
                self.tell(&Command::Forgive)?;
                Ok(self.status())
            }),
            _ => Err(refusal(StatusCode::NOT_FOUND, "not-found", known(door))),
        }
    }

    /// Returns a reading: the owner gets the present state, others do not disturb the workers each
    /// time.
    fn reading(&self, door: Door) -> Arc<Reading> {
        let mut reader = self.reader();
        if door == Door::Admin { reader.read() } else { reader.recent() }
    }

    fn metrics(&self, door: Door, accept: &str) -> Answer {
        let reading = self.reading(door);
        let format = Format::accepted(accept);
        let told = self.desk.told();
        let body = metrics(
            &reading,
            self.reader.borrow().plan(),
            &self.facts,
            &told,
            self.started.elapsed(),
            format,
        );
        answer(StatusCode::OK, format.content_type(), body)
    }

    fn ready(&self, door: Door) -> Answer {
        let unready = self.reading(door).unready(self.reader.borrow().plan());
        match unready {
            None => text(StatusCode::OK, "ready\n".to_owned()),
            Some((word, what)) => text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{}\n", format!("{word} {what}").trim_end()),
            ),
        }
    }

    fn status(&self) -> Answer {
        json(StatusCode::OK, &self.status_of(&self.reading(Door::Admin)))
    }

    fn status_of(&self, reading: &Reading) -> Status {
        let told = self.desk.told();
        status(reading, self.reader.borrow().plan(), &self.facts, &told, self.started.elapsed())
    }

    fn live(&self) -> Answer {
        let kept = self.live.borrow().clone().filter(|(at, _)| at.elapsed() < LIVE_FRESH);
        let body = kept.map_or_else(
            || {
                let reading = self.reading(Door::Metrics);
                let shown =
                    live(self.status_of(&reading), &reading, self.reader.borrow().samples());
                let body = Bytes::from(line(&shown));
                *self.live.borrow_mut() = Some((Instant::now(), body.clone()));
                body
            },
            |(_, body)| body,
        );
        answer(StatusCode::OK, JSON, body)
    }

    fn server(&self, upstream: &str, server: &str) -> Outcome {
        let slot = self.find(upstream, server)?;
        let reading = self.reading(Door::Admin);
        let found = reading.servers.iter().find(|server| server.slot == slot);
        let gone = || {
            refusal(StatusCode::NOT_FOUND, "unknown-server", "the configuration has just lost it")
        };
        Ok(json(
            StatusCode::OK,
            &server_status(found.ok_or_else(gone)?, self.reader.borrow().plan()),
        ))
    }

    /// Puts a job on the desk, and responds with its number.
    fn job(&self, job: Job) -> Outcome {
        let number = self.desk.ask(job).map_err(|unwanted| {
            refusal(StatusCode::SERVICE_UNAVAILABLE, unwanted.word(), unwanted.to_string())
        })?;
        Ok(json(StatusCode::OK, &JobStatus { version: VERSION, number, ..JobStatus::default() }))
    }

    fn outcome(&self, number: &str) -> Outcome {
        let number = number.parse().unwrap_or(0);
        let status = JobStatus { version: VERSION, number, ..JobStatus::default() };
        match self.desk.answer(number) {
            reload::Answer::Open => Ok(json(StatusCode::OK, &status)),
            reload::Answer::Done(reload::Outcome { code, text }) => {
                Ok(json(StatusCode::OK, &JobStatus { done: true, code, text, ..status }))
            }
            reload::Answer::Unknown => {
                Err(refusal(StatusCode::NOT_FOUND, "unknown-job", "unknown job"))
            }
        }
    }

    fn weigh(&self, upstream: &str, server: &str, weight: &str) -> Outcome {
        self.find(upstream, server)?;
        let weight = match weight.parse() {
            Ok(weight @ 1..=100) => Some(weight),
            _ if weight == "configured" => None,
            _ => {
                let message = format!("a weight is 1 to 100, or `configured`, not `{weight}`");
                return Err(refusal(StatusCode::NOT_FOUND, "bad-weight", message));
            }
        };
        self.job(Job::Weigh { upstream: upstream.to_owned(), server: server.to_owned(), weight })
    }

    /// Returns all bans in force.
    fn bans(&self) -> Answer {
        let bans = self.facts.bans.list(None, false);
        json(
            StatusCode::OK,
            &BanList { version: VERSION, bans: bans.iter().map(ban).collect(), never: None },
        )
    }

    /// Returns the bans that apply to an address, or to any part of a range, including past ones
    /// that count.
    fn ban_of(&self, whom: &str) -> Outcome {
        // An address means itself alone here, not its client.
        let block = Block::read(whom, 32, 128).ok_or_else(|| no_address(whom))?;
        let bans = self.facts.bans.list(Some(block), true);
        let never = self
            .facts
            .bans
            .block(whom)
            .and_then(|block| self.facts.bans.why_spared(block))
            .map(str::to_owned);
        Ok(json(
            StatusCode::OK,
            &BanList { version: VERSION, bans: bans.iter().map(ban).collect(), never },
        ))
    }

    fn ban(&self, whom: &str, query: &str) -> Outcome {
        let block = self.facts.bans.block(whom).ok_or_else(|| no_address(whom))?;
        let bad = |message: &str| refusal(StatusCode::BAD_REQUEST, "bad-ban", message);
        let (mut for_s, mut reason, mut mine, mut insists) = (None, String::new(), None, false);
        for (name, value) in options(query).ok_or_else(|| bad("cannot parse the query"))? {
            match &name[..] {
                "for" => {
                    for_s = value.parse().ok().filter(|seconds| (1..=BAN_S_MAX).contains(seconds))
                }
                "reason" => reason = value,
                "mine" => mine = value.parse().ok(),
                "force" => insists = value == "on",
                _ => {
                    return Err(bad(
                        "known parameters of a ban: for, in seconds, reason, mine (an address that \
                            the ban must not contain) and force=on",
                    ));
                }
            }
        }
        let for_s =
            for_s.ok_or_else(|| bad("`for` is missing: a number of seconds, up to ten years"))?;
        let added = self.facts.bans.add(block, for_s, &reason, mine, insists).map_err(
            |NeverBanned(why)| {
                let message = format!(
                    "{block} is not banned: it contains an address that is {why}; force=on bans \
                    it anyway"
                );
                refusal(StatusCode::CONFLICT, "never-banned", message)
            },
        )?;
        Ok(json(
            StatusCode::OK,
            &BanList { version: VERSION, bans: vec![ban(&added)], never: None },
        ))
    }

    fn unban(&self, whom: Option<&str>) -> Outcome {
        let of = whom
            .map(|whom| self.facts.bans.block(whom).ok_or_else(|| no_address(whom)))
            .transpose()?;
        let freed = self.facts.bans.remove(of);
        if let (Some(of), true) = (of, freed.is_empty()) {
            let message = format!("no bans within {of}; `weir ban list` shows all bans");
            return Err(refusal(StatusCode::NOT_FOUND, "not-banned", message));
        }
        let bans = freed
            .iter()
            .map(|block| Ban { network: block.to_string(), ..Ban::default() })
            .collect();
        Ok(json(StatusCode::OK, &BanList { version: VERSION, bans, never: None }))
    }

    /// Returns what limits do, and which clients are close to one.
    fn shield(&self, query: &str) -> Outcome {
        let bad = |message: &str| refusal(StatusCode::BAD_REQUEST, "bad-query", message);
        let (mut limit, mut most) = (None, SHIELD_MOST);
        for (name, value) in options(query).ok_or_else(|| bad("cannot parse the query"))? {
            match &name[..] {
                "limit" => limit = Some(value),
                "most" => {
                    let count = value.parse().ok().filter(|count| *count <= SHIELD_MOST_MAX);
                    most = count.ok_or_else(|| bad("`most` is a number up to 1000"))?;
                }
                _ => return Err(bad("known parameters: limit, and most, a number up to 1000")),
            }
        }
        let reader = self.reader();
        let plan = reader.plan();
        let Some(shield) = &plan.shield else {
            let message = "the configuration has no `shield`, so it has no limits";
            return Err(refusal(StatusCode::NOT_FOUND, "no-shield", message));
        };
        if let Some(name) =
            limit.as_ref().filter(|name| !shield.limits.iter().any(|limit| *limit.name == ***name))
        {
            let message = meant("limit", name, shield.limits.iter().map(|limit| &*limit.name));
            return Err(refusal(StatusCode::NOT_FOUND, "unknown-limit", message));
        }
        Ok(json(
            StatusCode::OK,
            &super::status::shield(plan, shield, &self.facts, limit.as_deref(), most),
        ))
    }

    fn add(&self, upstream: &str, server: &str, query: &str) -> Outcome {
        let added = options(query).ok_or_else(|| "cannot parse the query".to_owned());
        let added = added.and_then(|options| Added::read(server, &options));
        let added =
            added.map_err(|message| refusal(StatusCode::BAD_REQUEST, "bad-server", message))?;
        self.find_upstream(upstream)?;
        self.job(Job::Add { upstream: upstream.to_owned(), server: Box::new(added) })
    }

    /// The job knows which servers can be removed.
    fn remove(&self, upstream: &str, server: &str) -> Outcome {
        self.find_upstream(upstream)?;
        self.job(Job::Remove { upstream: upstream.to_owned(), server: server.to_owned() })
    }

    /// Returns the rest at a removed server.
    fn left(&self, upstream: &str, server: &str) -> Outcome {
        let reading = self.reading(Door::Admin);
        let reader = self.reader.borrow();
        let plan = reader.plan();
        let all = || plan.upstreams.iter().filter(|plan| plan.written_name() == upstream);
        if all().next().is_none() {
            let others = plan
                .upstreams
                .iter()
                .filter(|plan| !plan.is_retired() && plan.name == plan.written_name());
            let message = meant("upstream", upstream, others.map(|plan| plan.name.as_str()));
            return Err(refusal(StatusCode::NOT_FOUND, "unknown-upstream", message));
        }
        if all()
            .filter(|plan| !plan.is_retired())
            .any(|plan| plan.present().any(|one| one.name == server))
        {
            let message = format!(
                "server `{server}` serves in upstream `{upstream}`: it was not removed, or was \
                    added again"
            );
            return Err(refusal(StatusCode::CONFLICT, "still-there", message));
        }
        Ok(json(
            StatusCode::OK,
            &Left { version: VERSION, left: reading.leaving_of(upstream, server, plan) },
        ))
    }

    /// Gives the workers an order, and responds with the state of the server after it.
    fn order(&self, upstream: &str, server: &str, command: fn(u32) -> Command) -> Outcome {
        let command = command(self.find(upstream, server)? as u32);
        if matches!(command, Command::Clear { .. }) {
            self.facts.verdicts.clear(upstream, server);
        }
        self.tell(&command)?;
        self.server(upstream, server)
    }

    fn tell(&self, command: &Command) -> Result<(), Refusal> {
        let told = self.reader.borrow().handle().command(command);
        told.map_err(|weir_worker::Busy| {
            let message = "the workers still have too many pending commands; try again";
            refusal(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
        })
    }

    /// Rejects an upstream that the plan in force does not have.
    fn find_upstream(&self, upstream: &str) -> Result<(), Refusal> {
        reload::known_upstream(self.reader().plan(), upstream)
            .map_err(|message| refusal(StatusCode::NOT_FOUND, "unknown-upstream", message))
    }

    /// Returns the index of a server over all upstreams.
    fn find(&self, upstream: &str, server: &str) -> Result<usize, Refusal> {
        let found = reload::slot(self.reader().plan(), upstream, server);
        found.map_err(|(word, message)| refusal(StatusCode::NOT_FOUND, word, message))
    }
}

fn command(word: &str) -> Option<fn(u32) -> Command> {
    match word {
        "drain" => Some(|server| Command::Order { server, order: Order::Drain }),
        "disable" => Some(|server| Command::Order { server, order: Order::Disable }),
        "enable" => Some(|server| Command::Order { server, order: Order::Enable }),
        "clear" => Some(|server| Command::Clear { server }),
        _ => None,
    }
}

fn ban(shown: &Shown) -> Ban {
    Ban {
        network: shown.block.to_string(),
        since_seconds: shown.since_s,
        until_seconds: shown.until_s,
        left_seconds: shown.left_s,
        count: shown.count,
        reason: shown.reason.clone(),
        forced: shown.forced,
    }
}

/// Rejects what [`Block::read`] cannot parse.
fn no_address(whom: &str) -> Refusal {
    let address = whom.split_once('/').and_then(|(address, _)| address.parse::<IpAddr>().ok());
    let message = match address.map(|address| address.to_canonical().is_ipv4()) {
        Some(is_v4) => {
            let most = if is_v4 { 32 } else { 128 };
            format!("`{whom}` is not a range: the number behind `/` is 1 to {most}")
        }
        None => format!(
            "`{whom}` is neither an address nor a range such as 192.0.2.0/24 or 2001:db8::/48"
        ),
    };
    refusal(StatusCode::BAD_REQUEST, "bad-address", message)
}

/// Parses a query. None: it is malformed.
fn options(query: &str) -> Option<Vec<(String, String)>> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let option = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((plain(name)?, plain(value)?))
    };
    pairs.map(option).collect()
}

/// Decodes a part of a path or query.
fn plain(part: &str) -> Option<String> {
    Some(percent_decode_str(part).decode_utf8().ok()?.into_owned())
}

fn read(method: &Method, answer: impl FnOnce() -> Outcome) -> Outcome {
    if method == Method::GET || method == Method::HEAD {
        answer()
    } else {
        Err(wrong_method("GET"))
    }
}

fn post(method: &Method, answer: impl FnOnce() -> Outcome) -> Outcome {
    if method == Method::POST { answer() } else { Err(wrong_method("POST")) }
}

fn wrong_method(allowed: &'static str) -> Refusal {
    refusal(StatusCode::METHOD_NOT_ALLOWED, "wrong-method", allowed)
}

fn known(door: Door) -> &'static str {
    match door {
        Door::Metrics => "known paths: / (the live page), /live.json, /metrics, /healthz, /readyz",
        Door::Admin => {
            "known paths: /v1/status, /v1/servers/UPSTREAM/SERVER, the same with /drain, /disable, \
             /enable, /clear, /weight/N, \
             /add?OPTION=VALUE or /remove for POST and /left for GET, \
             /v1/bans, /v1/bans/NETWORK (the `/` of a range is %2F), the same with \
             /add?for=SECONDS or /remove for POST, \
             /v1/bans/remove for POST, \
             /v1/shield?limit=NAME&most=COUNT, /v1/cache, /v1/cache/top?by=hits&most=COUNT, \
             /v1/cache/explain?url=URL&header=FIELD, \
             /v1/cache/purge?url=URL (or prefix, host, tag, all=on; &soft=on) for POST, \
             /v1/reload, /v1/reload/dry-run and /v1/upgrade for POST, /v1/jobs/NUMBER, \
             /v1/suspects/forgive for POST, /metrics, /healthz, /readyz"
        }
    }
}

impl Refusal {
    fn answer(self) -> Answer {
        let allowed = (self.status == StatusCode::METHOD_NOT_ALLOWED).then(|| self.message.clone());
        let message =
            if let Some(method) = &allowed { format!("use {method} here") } else { self.message };
        let mut answer = json(self.status, &Error { error: self.word.to_owned(), message });
        if let Some(value) = allowed.and_then(|method| method.parse().ok()) {
            answer.headers_mut().insert(ALLOW, value);
        }
        answer
    }
}

const JSON: &str = "application/json";

fn json(status: StatusCode, document: &impl Serialize) -> Answer {
    answer(status, JSON, line(document))
}

/// Returns JSON in one line.
fn line(document: &impl Serialize) -> String {
    // Maps have only text keys, so this cannot fail.
    serde_json::to_string(document).unwrap_or_default() + "\n"
}

fn text(status: StatusCode, body: String) -> Answer {
    answer(status, "text/plain; charset=utf-8", body)
}

fn live_page() -> Answer {
    let mut answer = answer(StatusCode::OK, "text/html; charset=utf-8", page::PAGE);
    let fields: [(HeaderName, &str); 2] =
        [(CONTENT_SECURITY_POLICY, page::policy()), (REFERRER_POLICY, "no-referrer")];
    for (name, value) in fields {
        answer.headers_mut().extend(HeaderValue::from_str(value).map(|value| (name, value)));
    }
    answer
}

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let policy = HeaderName::from_static("cross-origin-resource-policy");
    answer.headers_mut().insert(policy, HeaderValue::from_static("same-origin"));
    answer
}
