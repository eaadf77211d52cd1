//! `shield` -> plan: limits for each client, with checks for impossible limits, for limits without
//! effect, and for room. Called by [`super::compile`].

use std::path::Path;

use weir_proxy::plan::{
    BanPlan, BanScope, BanVia, IN_PROGRESS_MAX, LIMITS_MAX, LimitPlan, ListenerPlan, Over,
    PathMatch, RequestMatch, ShieldPlan, Terms,
};
use weir_proxy::shield::by::{By, Part};
use weir_proxy::shield::key::Prefix;
use weir_proxy::shield::limit::Rate;
use weir_proxy::shield::table::ACCOUNTS;

use super::route::host_match;
use super::{Compiler, narrow, network};
use crate::check::Checked;
use crate::problem::Problem;
use crate::texts::shield::{over_of, parts_of, rate_of, statuses_of};
use crate::units::time_text;

/// New clients a second that the table should have room for.
const CLIENTS_PER_SECOND: u64 = 1000;

/// A limit as written.
struct Written<'a> {
    block: &'a Checked,
    plan: LimitPlan,
    /// How many, in how many microseconds, and how many at once; without a rate its `max` at once.
    measure: (u32, u64, u32),
}

/// Returns the limits for each client.
pub(super) fn shield(
    compiler: &mut Compiler<'_>,
    document: &Checked,
    listeners: &[ListenerPlan],
) -> Option<ShieldPlan> {
    let block = compiler.only(document, "shield")?;
    if block.all("limit").next().is_none() {
        let problem = Problem::new("missing-value", &block.span, "`shield` has no `limit`");
        compiler.push(problem.help("limit \"rate\" count=\"requests\" rate=\"200/s\" burst=200"));
    }
    compiler.at_most(block, "limit", LIMITS_MAX);
    let accounts = accounts(compiler, block);
    let blocks: Vec<&Checked> = block.all("limit").take(LIMITS_MAX).collect();
    let limits: Vec<Written<'_>> =
        blocks.into_iter().filter_map(|block| shield_limit(compiler, block)).collect();
    check_limits(compiler, &limits);
    check_tarpit(compiler, block, &limits);
    let ban = ban(compiler, block, &limits);
    warn_of_values(compiler, &limits);
    warn_of_memory(compiler, &limits, accounts);
    if listeners.iter().all(|listener| listener.tls.is_none()) {
        warn_of_handshakes(compiler, &limits);
    }
    let prefix = block.all("prefix").next();
    let bits = |name: &str, usual: u8| {
        prefix.map_or(usual, |prefix| u8::try_from(prefix.number(name)).unwrap_or(usual))
    };
    let mut plan = ShieldPlan::new(limits.into_iter().map(|limit| limit.plan).collect(), accounts);
    plan.ban = ban;
    plan.observe = block.word("mode") == "observe";
    plan.prefix = Prefix { v4: bits("v4", 32), v6: bits("v6", 64) };
    plan.aggregate = block.flag("aggregate");
    plan.tarpit_us = block.number("tarpit");
    plan.tarpit_max = narrow(block.number("tarpit-max"));
    plan.allow = block.texts("allow").into_iter().filter_map(network).collect();
    Some(plan)
}

/// Reports options of a tarpit that no limit uses.
fn check_tarpit(compiler: &mut Compiler<'_>, shield: &Checked, limits: &[Written<'_>]) {
    if limits.iter().any(|limit| limit.plan.over == Over::Tarpit) {
        return;
    }
    for name in ["tarpit", "tarpit-max"]
        .into_iter()
        .filter(|name| shield.chosen(name).is_some_and(|chosen| chosen.span.is_some()))
    {
        let message = format!("`{name}` has no effect: no limit has over=\"tarpit\"");
        compiler.warnings.push(Problem::new("no-effect", &shield.place(name), message));
    }
}

/// Returns which clients are banned, and for how long.
fn ban(compiler: &mut Compiler<'_>, shield: &Checked, limits: &[Written<'_>]) -> Option<BanPlan> {
    let Some(block) = compiler.only(shield, "ban") else {
        if let Some(limit) = limits.iter().find(|limit| limit.plan.over == Over::Ban) {
            let message = format!(
                "the limit `{}` bans clients, but `shield` does not say for how long",
                limit.plan.name
            );
            let problem = Problem::new("missing-value", &limit.block.place("over"), message);
            compiler.push(problem.help("add to `shield`: ban for=\"10m\""));
        }
        return None;
    };
    let (after, seconds) =
        (narrow(block.number("after")), |name| block.number(name).div_ceil(1_000_000));
    let (for_s, max_s) = (seconds("for"), seconds("max"));
    if for_s > max_s {
        let message = "the first ban (`for`) is longer than the longest (`max`)";
        let problem = Problem::new("conflict", &block.place("for"), message)
            .help("raise `max`, or lower `for`");
        compiler.push(problem.related(&block.place("max"), "the longest ban"));
    }
    let interfaces = block.texts("interface");
    if let Some(twice) =
        (1..interfaces.len()).find(|at| interfaces[..*at].contains(&interfaces[*at]))
    {
        let message = format!("the interface `{}` is listed twice", interfaces[twice]);
        compiler.push(Problem::new("duplicate", &block.place("interface"), message));
    }
    let state = block.text("state");
    if !state.is_empty()
        && let Err(why) = (compiler.world.experts.keeps)(Path::new(state))
    {
        let message = format!("weir cannot keep bans across restarts: {why}");
        let help = "choose a separate file in a directory that belongs to weir's user, such as \
            /var/lib/weir/bans";
        compiler
            .warnings
            .push(Problem::new("unwritable", &block.place("state"), message).help(help));
    }
    Some(BanPlan {
        offences: Rate::new(after, block.number("within"), after, false),
        for_s,
        grow: narrow(block.number("grow")),
        max_s,
        bans_max: usize::try_from(block.number("bans-max")).unwrap_or(usize::MAX),
        via: match block.word("via") {
            "user" => BanVia::User,
            "xdp" => BanVia::Xdp(interfaces.into_iter().map(Into::into).collect()),
            _ => BanVia::Nft,
        },
        scope: if block.word("scope") == "host" { BanScope::Host } else { BanScope::Listeners },
        state: Some(state).filter(|state| !state.is_empty()).map(|state| Path::new(state).into()),
    })
}

/// Returns the number of accounts.
fn accounts(compiler: &mut Compiler<'_>, block: &Checked) -> usize {
    let accounts = usize::try_from(block.number("table")).unwrap_or_default();
    if accounts > 0 && !accounts.is_power_of_two() {
        let larger = accounts.next_power_of_two();
        let message = format!("{accounts} is not a power of two");
        let help = format!("write {} or {larger}", larger / 2);
        compiler.push(Problem::new("bad-value", &block.place("table"), message).help(help));
    }
    accounts.clamp(*ACCOUNTS.start(), *ACCOUNTS.end())
}

/// Returns one limit. None: a part of it was wrong, which has been reported.
fn shield_limit<'a>(compiler: &mut Compiler<'_>, block: &'a Checked) -> Option<Written<'a>> {
    let max = block.count_or_none("max").map(narrow);
    let rate = rate_of(block.text("rate"));
    let burst = block.count_or_none("burst").map(narrow).or(rate.map(|(count, _)| count));
    let as_rate = || {
        let ((count, window_us), burst) = (rate?, burst?);
        Some(Rate::new(count, window_us, burst, block.flag("hammer")))
    };
    let terms = match block.word("count") {
        "connections" => Terms::Connections(as_rate()?),
        "requests" => Terms::Requests(as_rate()?),
        "open" => Terms::Open(max?),
        "in-progress" => Terms::InProgress(max?),
        "answers" => Terms::Answers(as_rate()?),
        "glitches" => Terms::Glitches(as_rate()?),
        "timeouts" => Terms::Timeouts(as_rate()?),
        "handshakes" => Terms::Handshakes(as_rate()?),
        "handshakes-failed" => Terms::HandshakesFailed(as_rate()?),
        _ => return None,
    };
    let name = block.text("name");
    let mut plan = LimitPlan::new(name, terms);
    plan.observe = block.flag("observe");
    if let Some(over) = over_of(block.text("over")) {
        plan.over = over;
    }
    let unasked = match plan.over {
        Over::Status(status) => Some(format!("weir cannot answer a connection with {status}")),
        Over::Tarpit => Some("weir cannot delay the response to a connection".to_owned()),
        Over::Close | Over::Reset | Over::Ban => None,
    };
    if let Some(message) = unasked.filter(|_| terms.is_of_connections()) {
        let message = format!("{message}: it carries no request yet");
        compiler
            .push(Problem::new("conflict", &block.place("over"), message).help("over=\"reset\""));
    }
    plan.requests = requests(compiler, block, terms);
    plan.by =
        By { parts: parts_of(block.text("by")), falls_back: block.word("missing") == "client" };
    check_by(compiler, block, &plan);
    plan.answers = statuses_of(block.text("status"));
    let (count, window_us) = rate.unwrap_or((0, 1));
    let measure = (count, window_us, burst.or(max).unwrap_or_default());
    Some(Written { block, plan, measure })
}

/// Reports values that a limit cannot count by, and clients that cannot be banned.
fn check_by(compiler: &mut Compiler<'_>, block: &Checked, plan: &LimitPlan) {
    let place = block.place("by");
    if plan.terms.is_of_connections() && !plan.by.is_client() {
        let message = format!(
            "weir checks `{}` when a client connects and knows only its address then",
            plan.terms.word()
        );
        compiler.push(
            Problem::new("conflict", &place, message)
                .help("leave `by` out, or write count=\"requests\""),
        );
    } else if plan.by.falls_back && plan.by.parts.iter().all(|part| *part == Part::Client) {
        let message = "`missing` has no effect: the address of a client is never missing";
        let help = "leave it out, or name in `by` a value that may be missing";
        compiler.push(Problem::new("conflict", &block.place("missing"), message).help(help));
    } else if plan.over == Over::Ban && !plan.by.has_client() {
        let message = "weir cannot ban by values in requests: any client can send them";
        let help = "write by=\"client,...\", or choose another `over`";
        compiler.push(
            Problem::new("conflict", &block.place("over"), message)
                .related(&place, "this")
                .help(help),
        );
    }
}

/// Returns the requests that a limit counts.
fn requests(compiler: &mut Compiler<'_>, limit: &Checked, terms: Terms) -> RequestMatch {
    let Some(block) = compiler.only(limit, "match") else { return RequestMatch::default() };
    if terms.is_of_connections() {
        let message = format!(
            "weir checks `{}` when a client connects and knows only its address then",
            terms.word()
        );
        compiler.push(
            Problem::new("conflict", &block.span, message)
                .help("leave `match` out, or write count=\"requests\""),
        );
    }
    let texts = |name: &str| block.texts(name).into_iter().map(str::to_owned);
    let paths =
        texts("path").map(PathMatch::Exact).chain(texts("prefix").map(PathMatch::Prefix)).collect();
    let hosts = block.texts("host").into_iter().map(host_match).collect();
    let requests = RequestMatch { hosts, paths, methods: texts("methods").collect() };
    if requests.is_everything() {
        let problem = Problem::new(
            "missing-value",
            &block.span,
            "`match` is empty: the limit would count all requests",
        );
        compiler.push(problem.help(
            "leave it out if you want that, or write for example: match \
                path=\"/login\" methods=\"POST\"",
        ));
    }
    requests
}

/// Checks how limits affect each other.
fn check_limits(compiler: &mut Compiler<'_>, limits: &[Written<'_>]) {
    for (at, limit) in limits.iter().enumerate() {
        let earlier = &limits[..at];
        let (name, place) = (&limit.plan.name, limit.block.place("name"));
        if let Some(other) = earlier.iter().find(|other| other.plan.name == *name) {
            let problem =
                Problem::new("duplicate", &place, format!("limit `{name}` is defined twice"));
            compiler.push(problem.related(&other.block.place("name"), "first here"));
        } else if let Some(other) = earlier.iter().find(|other| other.shadows(limit)) {
            let message = format!(
                "the limit `{name}` never acts: `{}` counts the same and acts first",
                other.plan.name
            );
            compiler.push(
                Problem::new("conflict", &limit.block.span, message)
                    .related(&other.block.span, "the earlier one"),
            );
        }
    }
    for (word, most) in [("open", 1), ("in-progress", IN_PROGRESS_MAX)] {
        let mut same = limits.iter().filter(|limit| limit.plan.terms.word() == word);
        if let Some(extra) = same.nth(most) {
            let message = format!("too many limits with count=\"{word}\": at most {most}");
            compiler.push(Problem::new("too-many", &extra.block.span, message));
        }
    }
}

/// Warns that a client passes a limit on values by sending another value each time.
fn warn_of_values(compiler: &mut Compiler<'_>, limits: &[Written<'_>]) {
    let is_of_clients =
        |limit: &&Written<'_>| limit.plan.by.has_client() && !limit.plan.terms.is_of_connections();
    let chosen =
        |limit: &&Written<'_>| !limit.plan.by.has_client() && !limit.plan.by.parts.is_empty();
    if limits.iter().any(|limit| is_of_clients(&limit)) {
        return;
    }
    if let Some(limit) = limits.iter().find(chosen) {
        let message =
            format!("`{}` stops no client that sends a new value each time", limit.plan.name);
        let help = "add a limit by client: limit \"rate\" count=\"requests\" rate=\"200/s\"";
        compiler
            .warnings
            .push(Problem::new("no-client-limit", &limit.block.place("by"), message).help(help));
    }
}

/// Warns of limits on handshakes if no listener speaks TLS.
fn warn_of_handshakes(compiler: &mut Compiler<'_>, limits: &[Written<'_>]) {
    for limit in limits.iter().filter(|limit| limit.plan.terms.is_of_handshakes()) {
        let message = format!("`{}` counts nothing: no `listen` has `tls`", limit.plan.name);
        let help = "remove it, or add a certificate to a `listen`: tls { certificate \"FILE\" \
            key=\"FILE\"; }";
        compiler
            .warnings
            .push(Problem::new("no-effect", &limit.block.place("count"), message).help(help));
    }
}

/// Little's law: the number of remembered clients is the number that arrive in a second times how
/// long each is remembered.
fn warn_of_memory(compiler: &mut Compiler<'_>, limits: &[Written<'_>], accounts: usize) {
    for limit in limits {
        let Some(memory_us) = limit.plan.terms.rate().map(Rate::memory_us) else { continue };
        let stands = accounts as u64 * 1_000_000 / memory_us.max(1);
        if stands >= CLIENTS_PER_SECOND {
            continue;
        }
        let needed = CLIENTS_PER_SECOND.saturating_mul(memory_us) / 1_000_000;
        let needed = needed.next_power_of_two().min(*ACCOUNTS.end() as u64);
        let message = format!(
            "`{}` remembers each client for {}: the table has room for {stands} new clients a \
                second; weir does not limit others",
            limit.plan.name,
            time_text(memory_us),
        );
        let help = format!("for {CLIENTS_PER_SECOND} new clients a second, write: table {needed}");
        compiler
            .warnings
            .push(Problem::new("small-table", &limit.block.place("rate"), message).help(help));
    }
}

impl Written<'_> {
    /// Whether everything that passes this limit also passes the later one.
    fn shadows(&self, later: &Written<'_>) -> bool {
        let ((count, window_us, burst), (later_count, later_us, later_burst)) =
            (self.measure, later.measure);
        let is_slower = u64::from(count) * later_us <= u64::from(later_count) * window_us;
        let acts = !self.plan.observe || later.plan.observe;
        self.plan.terms.word() == later.plan.terms.word()
            && self.plan.by == later.plan.by
            && self.plan.requests == later.plan.requests
            && self.plan.answers == later.plan.answers
            && acts
            && is_slower
            && burst <= later_burst
    }
}
