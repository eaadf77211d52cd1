//! Checked tree -> plan, with the checks that need more than one block: names, addresses,
//! conflicts. Called by `lib`.
//!
//! Names of servers are not resolved: the caller's function reports those that cannot be, for a
//! check of a configuration.

mod cache;
mod compress;
mod destination;
mod discovery;
mod fallback;
mod forward;
mod health;
mod http2;
mod identity;
mod listen;
mod metrics;
mod names;
mod own_answer;
mod pool;
mod reached;
mod requirements;
mod route;
mod shield;
mod shutdown;
mod sockets;
mod split;
mod sticky;
mod tcp;
mod tls;
mod upgrade;
mod user;
mod users;
mod warn;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

pub(crate) use discovery::servers;
pub use listen::{collide, is_same_place};
use weir_http::{Limits, Pseudonym};
use weir_proxy::observe::access::{AccessPlan, Destination, Escape, Template};
use weir_proxy::placement::balance::{Key, Method, Statistic};
use weir_proxy::plan::{
    AddressField, AllDown, ClientPlan, LoopField, Network, PipelineMode, Plan, Pool, RetryPlan,
    ServerPlan, Share, Sharing, ShutdownPlan, UNIX, UNLOCATED, UpgradePlan, UpstreamPlan,
};
use weir_proxy::request::nonidempotent::{Rule, Rules, TargetMatch};

use crate::check::{Checked, Chosen};
use crate::problem::{Problem, Span};
use crate::schema::{Default, Setting};
use crate::units::time_text;
use crate::{AcceptBy, AdminChoice, IoChoice, PinningChoice, UserChoice, World};

pub(crate) use cache::unforwarded;
pub(crate) use route::{RULES_MAX, unseen};

/// Listeners, certificates of one, upstreams, servers of one, routes: more than this is a mistake
/// or an attack.
const BLOCKS_MAX: usize = 10_000;

/// The compiled document.
pub(crate) struct Compiled {
    pub(crate) plan: Plan,
    pub(crate) workers: Option<u32>,
    pub(crate) io: IoChoice,
    pub(crate) pinning: PinningChoice,
    pub(crate) accept_by: AcceptBy,
    pub(crate) admin: AdminChoice,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) user: Option<UserChoice>,
    pub(crate) warnings: Vec<Problem>,
}

/// Compiles the document. Problems are pushed; the result is only meaningful without any.
pub(crate) fn compile(
    document: &Checked,
    world: World<'_>,
    problems: &mut Vec<Problem>,
) -> Compiled {
    let mut compiler = Compiler::new(world, problems);
    compiler.count(document);
    let listeners = compiler.listeners(document);
    let mut upstreams = compiler.upstreams(document);
    fallback::fallbacks(&mut compiler, document, &mut upstreams);
    compiler.check_compress(document);
    let routes = compiler.routes(document, &mut upstreams);
    let cache = cache::cache_store(&mut compiler, document);
    let tcp = tcp::tcp(&mut compiler, document, &mut upstreams);
    compiler.check_private(document);
    identity::check_identity(&mut compiler, document);
    compiler.warn(document);
    let forward = compiler.forward(document, &listeners, &mut upstreams);
    let shield = shield::shield(&mut compiler, document, &listeners);
    let mut plan = Plan {
        listeners,
        upstreams,
        routes,
        tcp,
        client: document
            .all("client")
            .next()
            .map_or_else(ClientPlan::default, |client| compiler.client(client)),
        access_log: document.all("access-log").next().and_then(|log| compiler.access_log(log)),
        forward,
        shield,
        cache,
        shutdown: document
            .all("shutdown")
            .next()
            .map_or_else(ShutdownPlan::default, shutdown::plan),
        discovery: compiler.discovery(document),
        upgrade: document.all("upgrade").next().map_or_else(UpgradePlan::default, upgrade::plan),
        users: compiler.users.clone(),
        pipeline_state: pool::pipeline_state(&mut compiler, document),
        metrics_hosts: document.texts("metrics-hosts").into_iter().map(str::to_owned).collect(),
        ..Plan::default()
    };
    users::warn_of_passwords(&mut compiler, document, &plan);
    plan.client.judged = plan.tells_certificates();
    let io = match document.word("io") {
        "uring" => IoChoice::Uring,
        "epoll" => IoChoice::Epoll,
        _ => IoChoice::Auto,
    };
    let pinning = match document.word("pinning") {
        "hard" => PinningChoice::Hard,
        "none" => PinningChoice::None,
        _ => PinningChoice::Soft,
    };
    let accept_by =
        if document.word("accept-by") == "hash" { AcceptBy::Hash } else { AcceptBy::Even };
    // A name or a path that was wrong has been reported.
    plan.client.via_name = Some(document.text_or_word("via-name"))
        .filter(|name| *name != "auto")
        .and_then(Pseudonym::new);
    let admin = AdminChoice::read(document.text_or_word("admin")).unwrap_or_default();
    let metrics = compiler.metrics(document, &plan);
    let user = user::user(&mut compiler, document);
    let workers = document.count_or_none("workers").map(narrow);
    Compiled {
        plan,
        workers,
        io,
        pinning,
        accept_by,
        admin,
        metrics,
        user,
        warnings: compiler.warnings,
    }
}

struct Compiler<'a> {
    world: World<'a>,
    problems: &'a mut Vec<Problem>,
    warnings: Vec<Problem>,
    /// Servers that are written as names, and their places.
    names: Vec<(String, Span)>,
    /// Files of users, each once.
    users: Vec<Arc<Path>>,
    users_known: HashSet<Arc<Path>>,
    derived: pool::Derived,
}

impl<'a> Compiler<'a> {
    fn new(world: World<'a>, problems: &'a mut Vec<Problem>) -> Compiler<'a> {
        let (warnings, names) = (Vec::new(), Vec::new());
        let (users, users_known, derived) = (Vec::new(), HashSet::new(), pool::Derived::new());
        Compiler { world, problems, warnings, names, users, users_known, derived }
    }
}

impl Compiler<'_> {
    fn push(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Checks that the document has something to do, and not absurdly much.
    fn count(&mut self, document: &Checked) {
        let has = |word: &str| document.all(word).next().is_some();
        let only_forwards = !has("listen") && !has("route") && (has("forward") || has("tcp"));
        for (word, example) in
            [("listen", "listen \"127.0.0.1:8080\""), ("route", "route { proxy \"app\" }")]
        {
            if !has(word) && !only_forwards {
                self.push(
                    Problem::of_file("nothing-to-do", format!("the configuration has no `{word}`"))
                        .help(example),
                );
            }
        }
        ["upstream", "route"].into_iter().for_each(|word| self.at_most(document, word, BLOCKS_MAX));
    }

    /// Reports a list that is longer than `max`; its compiler takes no more.
    fn at_most(&mut self, block: &Checked, name: &str, max: usize) {
        if let Some(extra) = block.all(name).nth(max) {
            let within = if block.block.name.is_empty() { "the file" } else { "one block" };
            self.push(Problem::new(
                "too-many",
                &extra.span,
                format!("more than {max} of `{name}` in {within}"),
            ));
        }
    }

    fn client(&mut self, block: &Checked) -> ClientPlan {
        if block.word("client-address") == "forwarded" && block.texts("trusted-proxies").is_empty()
        {
            let message = "`client-address` has an effect only with `trusted-proxies`: weir trusts \
                this header only from them";
            self.push(Problem::new("conflict", &block.place("client-address"), message));
        }
        ClientPlan {
            head: self.limits(block),
            body_bytes_max: block.count_or_none("body-limit"),
            head_timeout_us: block.number("head-timeout"),
            body_timeout_us: block.number("body-timeout"),
            body_rate_min: block.number("body-rate"),
            idle_timeout_us: block.number("idle-timeout"),
            send_timeout_us: block.number("send-timeout"),
            tunnel_timeout_us: block.number("tunnel-timeout"),
            serves_half_closed: block.word("half-closed") == "serve",
            requests_queued_max: narrow(block.number("queue")),
            connections_max: block.count_or_none("connections").map(narrow),
            compress_bytes_max: block.number("compress-memory"),
            glitches_max: block.count_or_none("glitches-limit").map(narrow),
            via: block.flag("via"),
            loop_field: match (block.word("loop-field"), block.flag("via")) {
                ("cdn-loop", _) | ("auto", true) => LoopField::CdnLoop,
                ("via", _) => LoopField::Via,
                _ => LoopField::Off,
            },
            via_name: None,
            underscores: block.flag("underscores"),
            judged: false,
            trusted_proxies: block
                .texts("trusted-proxies")
                .iter()
                .filter_map(|text| network(text))
                .collect(),
            address_field: match block.word("client-address") {
                "forwarded" => AddressField::Forwarded,
                _ => AddressField::XForwardedFor,
            },
            request_id: Some(block.text("request-id"))
                .filter(|name| !name.is_empty())
                .map(Into::into),
            trace_context: block.flag("trace-context"),
            http2: http2::limits(block),
        }
    }

    fn access_log(&mut self, block: &Checked) -> Option<AccessPlan> {
        let (format, escape) = (block.text("format"), block.word("escape"));
        let preset = Template::preset(format);
        if preset.is_some() && escape == "json" {
            let message =
                format!("`escape` applies only to a custom format; `{format}` has its own");
            self.push(Problem::new("conflict", &block.place("escape"), message));
        }
        let escape = if escape == "json" { Escape::Json } else { Escape::Default };
        let destination = match block.text("destination") {
            // Off, or wrong and reported.
            "" => return None,
            "stdout" => Destination::Stdout,
            path => Destination::File(path.into()),
        };
        // A format that was wrong has been reported.
        let template = preset.or_else(|| Template::compile(format, escape).ok())?;
        Some(AccessPlan { destination, template })
    }

    /// Returns the three limits of a head; a first line is part of its head.
    fn limits(&mut self, block: &Checked) -> Limits {
        let (line, head) = (block.number("line-limit"), block.number("head-limit"));
        if head > 0 && line > head {
            let message = "`line-limit` is larger than `head-limit`, which counts the line too";
            self.push(Problem::new("conflict", &block.place("line-limit"), message));
        }
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Limits {
            line_bytes_max: size(line),
            head_bytes_max: size(head),
            fields_max: size(block.number("fields-limit")),
            ..Limits::default()
        }
    }

    fn upstreams(&mut self, document: &Checked) -> Vec<UpstreamPlan> {
        let mut seen: HashMap<&str, Span> = HashMap::new();
        let mut upstreams = Vec::new();
        for block in document.all("upstream").take(BLOCKS_MAX) {
            let name = block.text("name");
            if let Some(span) = seen.get(name).filter(|_| !name.is_empty()) {
                let problem = Problem::new(
                    "duplicate",
                    &block.place("name"),
                    format!("upstream `{name}` is defined twice"),
                );
                self.push(problem.related(span, "first here"));
            }
            seen.entry(name).or_insert_with(|| block.place("name"));
            upstreams.push(self.upstream(block));
        }
        upstreams
    }

    fn upstream(&mut self, block: &Checked) -> UpstreamPlan {
        let plan = UpstreamPlan {
            name: block.text("name").to_owned(),
            servers: self.servers(block),
            tls: self.server_tls(block),
            balance: block.all("balance").next().map_or(Method::Ratio, method),
            slow_start_us: block.number("slow-start"),
            sticky: block.all("sticky").next().map(|sticky| sticky::sticky(self, sticky, block)),
            queue_size: narrow(block.number("queue-size")),
            queue_timeout_us: self.queue_timeout(block),
            retry: RetryPlan {
                per_request_max: narrow(block.number("forward-retries")),
                budget_percent: narrow(block.number("retry-budget")),
                nonidempotent: block.flag("retry-nonidempotent"),
                connect_retries: narrow(block.number("connect-retries")),
            },
            forward_timeout_us: block.number("forward-timeout"),
            answer_timeout_us: block.number("answer-timeout"),
            connect_timeout_us: block.number("connect-timeout"),
            required: block.flag("required"),
            head: self.limits(block),
            glitches_max: block.count_or_none("glitches-limit").map(narrow),
            failover: health::failover(self, block),
            health: health::health(self, block),
            all_down: if block.word("all-down") == "refuse" {
                AllDown::Refuse
            } else {
                AllDown::TryAll
            },
            nonidempotent: Rules::new(
                block.all("nonidempotent").filter_map(|rule| self.rule(rule)).collect(),
            ),
            pool: pool::pool(block.word("pool")).unwrap_or_default(),
            dial: pool::dial(block),
            ..UpstreamPlan::default()
        };
        pool::check_announced(self, block, &plan, plan.pool);
        pool::check_counted(self, block, &plan, plan.pool);
        sockets::check_servers(self, block);
        match block.all("pipeline").next() {
            Some(pipeline) if Pool::PIPELINED.contains(&plan.pool) => self.pipeline(pipeline, plan),
            // Options without effect have been reported.
            _ if Pool::PIPELINED.contains(&plan.pool) => plan,
            _ => UpstreamPlan { pipeline: PipelineMode::Off, ..plan },
        }
    }

    /// Returns `queue-timeout`, which must be less than `forward-timeout` to mean anything.
    fn queue_timeout(&mut self, block: &Checked) -> Option<u64> {
        let timeout_us = block.count_or_none("queue-timeout")?;
        let forward_us = block.number("forward-timeout");
        // A wrong time has been reported, and is 0 here.
        if forward_us > 0 && timeout_us >= forward_us {
            let message = format!(
                "`queue-timeout` has no effect: `forward-timeout` is {}, no more than that",
                time_text(forward_us)
            );
            self.push(
                Problem::new("conflict", &block.place("queue-timeout"), message)
                    .help("lower `queue-timeout`, or leave it out"),
            );
        }
        Some(timeout_us)
    }

    fn pipeline(&mut self, block: &Checked, plan: UpstreamPlan) -> UpstreamPlan {
        let depth = block.count_or_none("depth").map(narrow);
        if let Some(depth) = depth.filter(|depth| plan.queue_size > 0 && *depth > plan.queue_size) {
            let message =
                format!("depth {depth} cannot be reached: `queue-size` is {}", plan.queue_size);
            self.push(
                Problem::new("conflict", &block.place("depth"), message)
                    .help("raise `queue-size` or lower `depth`"),
            );
        }
        let pipeline = match (depth, block.word("mode")) {
            (Some(depth), _) => PipelineMode::Depth(depth),
            (None, "off") => PipelineMode::Off,
            (None, _) => PipelineMode::Adaptive,
        };
        let share = if block.word("share") == "client" { Share::Client } else { Share::All };
        let echo = Some(block.text("echo")).filter(|name| !name.is_empty()).map(str::to_owned);
        let rehearse =
            Some(block.text("rehearse")).filter(|path| !path.is_empty()).map(str::to_owned);
        if rehearse.is_some() && pipeline != PipelineMode::Adaptive {
            let problem = Problem::new(
                "conflict",
                &block.place("rehearse"),
                "`rehearse` is for `pipeline adaptive`",
            );
            self.push(
                problem.help("leave it out: with `depth` and `off`, weir tests no server first"),
            );
        }
        let sharing = Sharing { rehearse, escape: block.flag_or_none("escape") };
        UpstreamPlan { pipeline, share, echo, sharing, ..plan }
    }

    fn servers(&mut self, upstream: &Checked) -> Vec<ServerPlan> {
        let servers = self.listed(upstream, upstream.all("tls").next().is_some());
        if upstream.all("server").next().is_none() && upstream.text("servers-from").is_empty() {
            let message = format!("upstream `{}` has no `server`", upstream.text("name"));
            let problem = Problem::new("missing-value", &upstream.span, message);
            self.push(problem.help("server \"127.0.0.1:9090\""));
        }
        self.backups(upstream);
        servers
    }

    /// Returns all `server` of a block.
    fn listed(&mut self, block: &Checked, speaks_tls: bool) -> Vec<ServerPlan> {
        self.at_most(block, "server", BLOCKS_MAX);
        let mut seen: HashMap<&str, Span> = HashMap::new();
        let mut servers = Vec::new();
        for block in block.all("server").take(BLOCKS_MAX) {
            let name = block.text("address");
            if let Some(span) = seen.get(name).filter(|_| !name.is_empty()) {
                let problem = Problem::new(
                    "duplicate",
                    &block.place("address"),
                    format!("server `{name}` is listed twice"),
                );
                self.push(
                    problem
                        .related(span, "first here")
                        .help("for a larger share of requests, raise its `weight`"),
                );
            }
            seen.entry(name).or_insert_with(|| block.place("address"));
            servers.extend(self.server(block, speaks_tls));
        }
        servers
    }

    /// A backup needs another server to stand in for, and its weight another backup.
    fn backups(&mut self, upstream: &Checked) {
        let backups: Vec<&Checked> =
            upstream.all("server").filter(|server| server.flag("backup")).collect();
        let [first, others @ ..] = &backups[..] else { return };
        if backups.len() == upstream.all("server").count()
            && upstream.text("servers-from").is_empty()
        {
            let message =
                format!("all servers of upstream `{}` are backups", upstream.text("name"));
            let problem = Problem::new("conflict", &first.place("backup"), message);
            self.push(
                problem.help("leave `backup` out for each server that weir should always use"),
            );
        }
        // The effective configuration has a weight for every server.
        let weight = first.number("weight").to_string();
        let usual = |chosen: &Chosen| match chosen.row.default {
            Default::Is(text) => chosen.settings.is_empty() || text == weight,
            _ => false,
        };
        if others.is_empty() && !first.chosen("weight").is_none_or(usual) {
            let message =
                "`weight` has no effect on the only backup: once in use, it gets all traffic";
            self.push(Problem::new("conflict", &first.place("weight"), message));
        }
    }

    fn server(&mut self, block: &Checked, speaks_tls: bool) -> Option<ServerPlan> {
        let name = block.text("address");
        // An address that was wrong has been reported; it is not looked up.
        if name.is_empty() {
            return None;
        }
        if name.ends_with(":443") && !name.starts_with(UNIX) && !speaks_tls {
            let message =
                "port 443 usually expects TLS, and without `tls` weir sends plain text there";
            let help = "add a `tls` block to the upstream, or use a port where the server speaks \
                plain HTTP";
            self.warnings
                .push(Problem::new("plain-text", &block.place("address"), message).help(help));
        }
        let (connections_min, connections, connections_max) = self.connections(block);
        let weight = narrow(block.number("weight"));
        let backup = block.flag("backup");
        let plan = ServerPlan::read(name).unwrap_or_else(|| {
            self.names.push((name.to_owned(), block.place("address")));
            ServerPlan::new(name, UNLOCATED)
        });
        let concurrency = block.count_or_none("concurrency").map(narrow);
        let tcp_connections_max = block.count_or_none("tcp-connections").map(narrow);
        Some(ServerPlan {
            connections_min,
            connections,
            connections_max,
            concurrency,
            tcp_connections_max,
            weight,
            backup,
            ..plan
        })
    }

    /// Returns how many connections are kept, made for requests that share them, and made at all.
    fn connections(&mut self, block: &Checked) -> (u32, u32, u32) {
        let [min, usual, max] = ["connections-min", "connections", "connections-max"]
            .map(|name| narrow(block.number(name)));
        // A wrong number has been reported, and is 0 here.
        if usual > 0 && min > usual {
            let message =
                format!("`connections-min` is {min}, but `connections` allows at most {usual}");
            let problem = Problem::new("conflict", &block.place("connections-min"), message);
            self.push(problem.help(format!("write connections={min}, or lower `connections-min`")));
        }
        if max > 0 && usual > max {
            let message = format!("`connections-max` is {max}, less than `connections` ({usual})");
            let problem = Problem::new("conflict", &block.place("connections-max"), message);
            self.push(problem.help(
                "lower `connections`, or leave `connections-max` out: it grows with `connections`",
            ));
        }
        (min, usual, max)
    }

    fn rule(&mut self, block: &Checked) -> Option<Rule> {
        let given: Vec<&str> =
            MATCHES.into_iter().filter(|name| block.chosen(name).is_some()).collect();
        let [kind] = given[..] else {
            let message = "exactly one match is required: `any`, eq=, prefix=, suffix= or regex=";
            let span =
                given.get(1).map_or_else(|| block.span.clone(), |second| block.place(second));
            self.push(Problem::new("bad-value", &span, message));
            return None;
        };
        Some(Rule { method: block.text("method").to_owned(), target: target_match(block, kind)? })
    }
}

/// The ways in which `nonidempotent` matches a target.
const MATCHES: [&str; 5] = ["match", "eq", "prefix", "suffix", "regex"];

/// Returns the meaning of one of those; None: it was wrong and is reported.
fn target_match(block: &Checked, kind: &str) -> Option<TargetMatch> {
    let text = block.text(kind).to_owned();
    Some(match kind {
        "eq" => TargetMatch::Eq(text),
        "prefix" => TargetMatch::Prefix(text),
        "suffix" => TargetMatch::Suffix(text),
        "regex" => TargetMatch::Regex(regex::bytes::Regex::new(&text).ok()?),
        _ => TargetMatch::Any,
    })
}

/// Values of options by name. An absent or wrong one reads as zero, empty or false: the problem is
/// known.
impl Checked {
    fn setting(&self, name: &str) -> Option<&Setting> {
        self.chosen(name).and_then(|chosen| chosen.settings.first())
    }

    fn number(&self, name: &str) -> u64 {
        self.count_or_none(name).unwrap_or(0)
    }

    fn count_or_none(&self, name: &str) -> Option<u64> {
        match self.setting(name) {
            Some(Setting::Time(value) | Setting::Size(value) | Setting::Count(value)) => {
                Some(*value)
            }
            _ => None,
        }
    }

    fn flag_or_none(&self, name: &str) -> Option<bool> {
        match self.setting(name) {
            Some(Setting::Flag(flag)) => Some(*flag),
            _ => None,
        }
    }

    fn flag(&self, name: &str) -> bool {
        matches!(self.setting(name), Some(Setting::Flag(true)))
    }

    fn word(&self, name: &str) -> &'static str {
        match self.setting(name) {
            Some(Setting::Word(word)) => word,
            _ => "",
        }
    }

    fn text(&self, name: &str) -> &str {
        match self.setting(name) {
            Some(Setting::Text(text)) => text,
            _ => "",
        }
    }

    fn text_or_word(&self, name: &str) -> &str {
        match self.word(name) {
            "" => self.text(name),
            word => word,
        }
    }

    fn texts(&self, name: &str) -> Vec<&str> {
        let settings = self.chosen(name).map_or(&[][..], |chosen| &chosen.settings);
        settings
            .iter()
            .filter_map(
                |setting| {
                    if let Setting::Text(text) = setting { Some(text.as_str()) } else { None }
                },
            )
            .collect()
    }
}

/// Returns `balance` of an upstream. Wrong values have been reported.
fn method(block: &Checked) -> Method {
    let by = match block.word("by") {
        "min" => Statistic::Min,
        "max" => Statistic::Max,
        "p50" => Statistic::Percentile(5000),
        "p75" => Statistic::Percentile(7500),
        "p90" => Statistic::Percentile(9000),
        "p95" => Statistic::Percentile(9500),
        "p99" => Statistic::Percentile(9900),
        "p99.9" => Statistic::Percentile(9990),
        _ => Statistic::Avg,
    };
    match block.word("mode") {
        "dynamic" => Method::Dynamic(by),
        "predict" => {
            Method::Predict { by, past_us: block.number("past"), ahead_us: block.number("ahead") }
        }
        "least" => Method::Least,
        // A key that is missing has been reported.
        "hash" => Method::Hash(split::key_of(block.text("key")).unwrap_or(Key::ClientIp)),
        _ => Method::Ratio,
    }
}

/// The table keeps every such number far below 2^32.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn network(text: &str) -> Option<Network> {
    if text == UNIX {
        return Some(Network::LOCAL);
    }
    let (address, bits) = text.split_once('/')?;
    Some(Network { address: address.parse::<IpAddr>().ok()?, prefix_bits: bits.parse().ok()? })
}

#[cfg(test)]
mod tests;
