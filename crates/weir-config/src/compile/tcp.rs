//! `tcp`: the upstream of connections that are passed on unchanged, and the options of that
//! upstream that have no meaning then. Called by [`super::compile`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use weir_proxy::placement::balance::{Key, Method};
use weir_proxy::plan::{NamesPlan, PipelineMode, Pool, Serves, TcpPlan, UpstreamPlan};

use super::names::Names;
use super::{Compiler, destination, sockets};
use crate::check::{Checked, Chosen, default_of};
use crate::options::SOCKETS;
use crate::problem::Problem;
use crate::schema::Default;

/// Options of an upstream that have a meaning for connections that are passed on unchanged.
const OF_UPSTREAM: [&str; 9] = [
    "name",
    "proxy-protocol",
    "servers-from",
    "slow-start",
    "connect-timeout",
    "source",
    "congestion",
    "required",
    "all-down",
];
/// Such options of a server.
const OF_SERVER: [&str; 4] = ["address", "tcp-connections", "weight", "backup"];
/// Such options of `health`.
const OF_HEALTH: [&str; 4] = ["interval", "timeout", "rise", "fall"];
/// Blocks of an upstream that have none.
const OF_HTTP: [(&str, &str); 4] = [
    (
        "sticky",
        "plain TCP has no cookies; `balance hash key=\"client-ip\"` keeps clients at their servers",
    ),
    (
        "failover",
        "plain TCP has no statuses; weir always suspends a server that refuses connections",
    ),
    ("nonidempotent", "plain TCP has no requests"),
    ("tls", "weir forwards bytes unchanged; clients negotiate TLS with the server"),
];

/// Returns the names of upstreams that `tcp` leads to.
pub(super) fn led_to(document: &Checked) -> impl Iterator<Item = &str> {
    let all = document.all("tcp").flat_map(|tcp| tcp.all("sni").chain([tcp]));
    all.map(|block| block.text("proxy"))
}

/// Returns the listeners of all blocks, with what they serve.
pub(super) fn listeners(document: &Checked) -> impl Iterator<Item = (&Checked, Serves)> {
    let blocks = document.all("tcp").enumerate();
    blocks
        .flat_map(|(at, tcp)| tcp.all("listen").map(move |listen| (listen, Serves::Tcp(at as u16))))
}

/// Reports options for HTTP on a listener without HTTP.
pub(super) fn check_listener(compiler: &mut Compiler<'_>, listen: &Checked, serves: Serves) {
    if !matches!(serves, Serves::Tcp(_)) {
        return;
    }
    if let Some(tls) = listen.all("tls").next() {
        let message =
            "`tcp` forwards all bytes unchanged, including TLS: weir uses no certificates here";
        compiler.push(
            Problem::new("conflict", &tls.span, message)
                .help("leave `tls` out; the server has the certificate"),
        );
    }
    if listen.chosen("protocols").is_some() {
        let message = "`protocols` has no effect in `tcp`, which forwards any protocol";
        compiler.push(Problem::new("conflict", &listen.place("protocols"), message));
    }
}

/// Compiles all blocks, in their order. Upstreams that they lead to have no other use.
pub(super) fn tcp(
    compiler: &mut Compiler<'_>,
    document: &Checked,
    upstreams: &mut [UpstreamPlan],
) -> Vec<Arc<TcpPlan>> {
    let blocks: Vec<&Checked> = document.all("upstream").take(upstreams.len()).collect();
    let names = Names::of_upstreams(document);
    let mut plans = Vec::new();
    let (users, mut plain) = (users(document), HashSet::new());
    for block in document.all("tcp").take(usize::from(u16::MAX)) {
        if block.all("listen").next().is_none() {
            let problem = Problem::new("missing-value", &block.span, "`tcp` has no `listen`");
            compiler.push(problem.help("listen \"0.0.0.0:5432\""));
        }
        let mut lead = |block: &Checked| {
            let target = compiler.upstream_named(block, "proxy", &names)?;
            if !upstreams[target].is_tcp() {
                check_upstream(compiler, blocks[target], &upstreams[target]);
                // Clients of port 443 speak TLS themselves.
                plain.extend(blocks[target].all("server").map(|server| server.place("address")));
                check_alone(compiler, &users, block, names.at(target));
                (upstreams[target].pool, upstreams[target].pipeline) =
                    (Pool::Tcp, PipelineMode::Off);
            }
            Some(target as u16)
        };
        let upstream = lead(block);
        let by_name: Vec<_> = block.all("sni").filter_map(|sni| Some((sni, lead(sni)?))).collect();
        if block.chosen("proxy").is_none() && block.all("sni").next().is_none() {
            let problem =
                Problem::new("missing-value", &block.span, "`tcp` has neither `proxy` nor `sni`");
            compiler.push(problem.help("proxy \"db\""));
        }
        check_destinations(
            compiler,
            block,
            by_name.iter().map(|(_, to)| *to).chain(upstream),
            &blocks,
        );
        plans.push(Arc::new(TcpPlan {
            upstream,
            names: (!by_name.is_empty()).then(|| named(compiler, block, &by_name)),
            idle_timeout_us: block.number("idle-timeout"),
            half_close_timeout_us: block.number("half-close-timeout"),
        }));
    }
    let is_plain =
        |problem: &Problem| problem.span.as_ref().is_some_and(|span| plain.contains(span));
    compiler.warnings.retain(|problem| problem.code != "plain-text" || !is_plain(problem));
    destination::check(compiler, document, &blocks, upstreams);
    blocks
        .iter()
        .zip(upstreams.iter())
        .for_each(|(block, plan)| check_congestion(compiler, block, plan));
    for (block, plan) in blocks.iter().zip(upstreams.iter()).filter(|(_, plan)| !plan.is_tcp()) {
        let limits = block.all("server").filter_map(|server| server.chosen("tcp-connections"));
        for chosen in limits.filter(|chosen| is_unusual(chosen)) {
            let message = format!(
                "`tcp-connections` has no effect: no `tcp` uses the upstream `{}`",
                plan.name
            );
            let place = chosen.span.as_ref().unwrap_or(&block.span);
            compiler.push(
                Problem::new("conflict", place, message).help("use `connections-max` for requests"),
            );
        }
    }
    plans
}

/// Reports original destinations for listeners whose connections cannot have another destination
/// than this machine.
fn check_destinations(
    compiler: &mut Compiler<'_>,
    tcp: &Checked,
    to: impl Iterator<Item = u16>,
    blocks: &[&Checked],
) {
    let mut servers = to.filter_map(|at| destination::original(blocks.get(usize::from(at))?));
    let Some(server) = servers.next() else { return };
    for listen in tcp.all("listen").filter(|listen| !listen.flag("transparent")) {
        let message = "`original-destination` needs `transparent=#true` here: these clients have \
            connected to this machine";
        let problem = Problem::new("conflict", &listen.place("address"), message);
        let problem = problem.related(&server.place("address"), "here");
        compiler.push(problem.help(
            "add `transparent=#true`, and route the clients' packets to this machine \
                    (docs/transparent.md)",
        ));
    }
}

/// Checks that congestion controls of an upstream can be compared.
fn check_congestion(compiler: &mut Compiler<'_>, block: &Checked, plan: &UpstreamPlan) {
    if !plan.is_tcp() {
        sockets::check_undivided(compiler, block, "an upstream that `tcp` uses");
    }
    sockets::check_arms(compiler, block);
}

/// Returns the upstreams of names, one for each.
fn named(compiler: &mut Compiler<'_>, block: &Checked, by_name: &[(&Checked, u16)]) -> NamesPlan {
    let mut plan = NamesPlan { timeout_us: block.number("hello-timeout"), ..NamesPlan::default() };
    for (sni, upstream) in by_name {
        for text in sni.texts("name") {
            let (map, name) = match text.strip_prefix("*.") {
                Some(domain) => (&mut plan.below, domain),
                None => (&mut plan.exact, text),
            };
            let is_new = map.insert(name.to_ascii_lowercase().into(), *upstream).is_none();
            let why = match text {
                "*" => Some("use `proxy` in `tcp` for all other names"),
                _ if !is_new => Some("this name is listed twice"),
                _ => None,
            };
            if let Some(why) = why {
                compiler.push(Problem::new(
                    "conflict",
                    &sni.place("name"),
                    format!("`{text}`: {why}"),
                ));
            }
        }
    }
    plan
}

/// By name of an upstream: the first block whose requests use it, and the option.
type Users<'a> = HashMap<&'a str, (&'a Checked, &'static str)>;

/// Returns all of them.
fn users(document: &Checked) -> Users<'_> {
    let routes = document.all("route").flat_map(|route| {
        let splits = route.all("split").map(|split| (split, "upstream"));
        splits.chain([(route, "proxy")])
    });
    let fallbacks = document.all("upstream").map(|upstream| (upstream, "fallback"));
    let mut users = Users::new();
    routes
        .chain(fallbacks)
        .for_each(|(user, option)| _ = users.entry(user.text(option)).or_insert((user, option)));
    users
}

/// Reports an upstream that is used both for connections and for requests.
fn check_alone(compiler: &mut Compiler<'_>, users: &Users<'_>, tcp: &Checked, name: &str) {
    if let Some((other, option)) = users.get(name) {
        let message =
            format!("upstream `{name}` is used by `tcp`, so it cannot take requests, too");
        let problem = Problem::new("conflict", &other.place(option), message);
        let problem = problem.related(&tcp.place("proxy"), "`tcp` uses it here");
        compiler.push(problem.help("define a second upstream with the same servers"));
    }
}

/// Reports options of an upstream that have no meaning for connections that are passed on
/// unchanged.
fn check_upstream(compiler: &mut Compiler<'_>, block: &Checked, plan: &UpstreamPlan) {
    for (word, why) in OF_HTTP {
        if let Some(inner) = block.all(word).next() {
            let message = format!(
                "`{word}` needs requests, but `tcp` uses the upstream `{}`: {why}",
                plan.name
            );
            compiler.push(Problem::new("conflict", &inner.span, message));
        }
    }
    let by_request = match &plan.balance {
        Method::Dynamic(_) | Method::Predict { .. } => Some("plain TCP has no response times"),
        Method::Hash(Key::Uri | Key::Header(_) | Key::Cookie(_)) => {
            Some("plain TCP shows only the client's address")
        }
        Method::Hash(Key::ClientIp) | Method::Ratio | Method::Least => None,
    };
    if let (Some(why), Some(balance)) = (by_request, block.all("balance").next()) {
        let message = format!(
            "upstream `{}` is used by `tcp`, which cannot use this `balance`: {why}",
            plan.name
        );
        let help = "use `ratio`, `least`, or `hash key=\"client-ip\"`";
        compiler.push(Problem::new("conflict", &balance.place("mode"), message).help(help));
    }
    let rows = |block: &'_ Checked, known: &'static [&'static str]| -> Vec<Chosen> {
        let is_known = |name| known.contains(&name) || SOCKETS.iter().any(|row| row.name == name);
        let all = block.block.rows().filter(|row| !is_known(row.name));
        all.filter_map(|row| block.chosen(row.name))
            .filter(|chosen| is_unusual(chosen))
            .cloned()
            .collect()
    };
    let mut without: Vec<Chosen> = rows(block, &OF_UPSTREAM);
    without.extend(block.all("server").flat_map(|server| rows(server, &OF_SERVER)));
    without.extend(block.all("health").flat_map(|health| rows(health, &OF_HEALTH)));
    without.extend(block.all("pipeline").flat_map(|pipeline| rows(pipeline, &[])));
    for chosen in without {
        let message = format!(
            "`{}` has no effect: it is for requests, but `tcp` uses the upstream `{}`",
            chosen.row.name, plan.name
        );
        let place = chosen.span.as_ref().unwrap_or(&block.span);
        compiler.push(Problem::new("conflict", place, message).help("leave it out"));
    }
}

/// Whether a value other than the default is written. The effective configuration has the defaults.
pub(super) fn is_unusual(chosen: &Chosen) -> bool {
    let is = |text: &str| default_of(chosen.row, text).settings == chosen.settings;
    let is_usual = match chosen.row.default {
        Default::Is(text) | Default::AtLeast(text, _) | Default::Unless(text, _) => is(text),
        Default::Beside(one, _, other) => is(one) || is(other),
        Default::Required
        | Default::Absent
        | Default::With(..)
        | Default::Without(..)
        | Default::Given(..) => chosen.settings.is_empty(),
    };
    chosen.span.is_some() && !is_usual
}
