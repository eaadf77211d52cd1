//! `forward`: its rules, the upstream that represents all destinations, the PAC file. Called by
//! [`super::compile`].
//!
//! Files are read here, once, by the caller's function.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use weir_proxy::forward::policy::{LISTED_ABOVE, Pattern, Policy, Rule};
use weir_proxy::plan::{
    ForwardPlan, ListenerPlan, PipelineMode, Pool, ServerPlan, Serves, UpstreamPlan,
};

use super::users::realm;
use super::{BLOCKS_MAX, Compiler, narrow, network};
use crate::check::Checked;
use crate::problem::{Problem, Span};
use crate::texts::forward::{hours_of, pattern, port_range, since_s, until_s};

/// The name of the upstream that represents all destinations.
const NAME: &str = "forward";
/// Wrong lines of one file that are reported.
const LINES_TOLD_MAX: usize = 3;
/// Options that are lists and criteria: a rule with an empty one would match more than intended.
const CRITERIA: [&str; 7] = ["name", "address", "port", "method", "user", "client", "hours"];
/// All criteria.
const ALL_CRITERIA: [&str; 10] = [
    "name",
    "names-file",
    "address",
    "port",
    "method",
    "user",
    "client",
    "since",
    "until",
    "hours",
];

impl Compiler<'_> {
    /// Returns the forward proxy, and adds its upstream behind all others.
    pub(super) fn forward(
        &mut self,
        document: &Checked,
        listeners: &[ListenerPlan],
        upstreams: &mut Vec<UpstreamPlan>,
    ) -> Option<ForwardPlan> {
        let block = document.all("forward").next()?;
        if let Some(second) = document.all("forward").nth(1) {
            let problem = Problem::new("duplicate", &second.span, "`forward` may occur only once");
            self.push(problem.related(&block.span, "first here"));
        }
        if block.all("listen").next().is_none() {
            let problem = Problem::new("missing-value", &block.span, "`forward` has no `listen`");
            self.push(problem.help("listen \"127.0.0.1:3128\""));
        }
        if let Some(taken) = document.all("upstream").find(|upstream| upstream.text("name") == NAME)
        {
            let message =
                format!("the name `{NAME}` is reserved for the upstream of the forward proxy");
            self.push(
                Problem::new("conflict", &taken.place("name"), message).help("choose another name"),
            );
        }
        let own = listeners
            .iter()
            .filter_map(|listener| listener.address.network())
            .chain(document.text("metrics").parse().ok());
        let own: Vec<SocketAddr> = own.collect();
        let rules = self.forward_rules(block);
        self.warn_if_open(block);
        upstreams.push(self.forward_upstream(block));
        Some(ForwardPlan {
            upstream: upstreams.len() - 1,
            policy: Policy::new(rules, own),
            users: self.users(block),
            realm: realm(block),
            destinations_max: block.count_or_none("destinations").map_or(1, narrow),
            user_connections_max: block.count_or_none("user-connections").map(narrow),
            user_rate_max: block.count_or_none("user-rate").map(narrow),
            resolvers: block
                .texts("resolver")
                .iter()
                .filter_map(|text| text.parse().ok())
                .collect(),
            pac: self.pac(block, listeners).map(Into::into),
        })
    }

    fn forward_upstream(&mut self, block: &Checked) -> UpstreamPlan {
        let anywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        UpstreamPlan {
            name: NAME.to_owned(),
            servers: vec![ServerPlan {
                connections_min: 0,
                connections: 0,
                ..ServerPlan::new(NAME, anywhere)
            }],
            pool: if block.text("pool") == "per-request" { Pool::PerRequest } else { Pool::Pinned },
            pipeline: PipelineMode::Off,
            forward_timeout_us: block.number("forward-timeout"),
            answer_timeout_us: block.number("answer-timeout"),
            connect_timeout_us: block.number("connect-timeout"),
            head: self.limits(block),
            ..UpstreamPlan::default()
        }
    }

    pub(super) fn file(&mut self, path: &str, place: &Span) -> Option<Vec<u8>> {
        match (self.world.read)(path.as_ref()) {
            Ok(bytes) => Some(bytes),
            Err(error) => {
                self.push(Problem::new(
                    "unreadable",
                    place,
                    format!("`{path}` can't be read: {error}"),
                ));
                None
            }
        }
    }

    fn forward_rules(&mut self, block: &Checked) -> Vec<Rule> {
        let has_users = !block.text("users").is_empty();
        let mut last: Option<&Checked> = None;
        let mut rules = Vec::new();
        for rule in block.all("rule") {
            if let Some(last) = last {
                let problem = Problem::new("conflict", &rule.span, "this rule is never reached");
                self.push(problem.related(&last.span, "this rule matches everything"));
                break;
            }
            if ALL_CRITERIA.iter().all(|name| rule.chosen(name).is_none()) {
                last = Some(rule);
            }
            if rule.chosen("user").is_some() && !has_users {
                let problem = Problem::new(
                    "conflict",
                    &rule.place("user"),
                    "rules with `user` never match: `users` is not set",
                );
                self.push(problem.help("users \"/etc/weir/users\""));
            }
            rules.push(self.forward_rule(rule));
        }
        rules
    }

    fn forward_rule(&mut self, block: &Checked) -> Rule {
        self.empty_criteria(block);
        let networks = |name: &str| block.texts(name).into_iter().filter_map(network).collect();
        let texts = |name: &str| block.texts(name).into_iter().map(str::to_owned).collect();
        let rule = Rule {
            allow: block.word("verdict") == "allow",
            names: self.rule_names(block),
            addresses: networks("address"),
            ports: block.texts("port").into_iter().filter_map(port_range).collect(),
            methods: texts("method"),
            users: texts("user"),
            clients: networks("client"),
            since_s: since_s(block.text("since")),
            until_s: until_s(block.text("until")),
            hours: block.texts("hours").into_iter().filter_map(hours_of).collect(),
        };
        if let (Some(since), Some(until)) = (rule.since_s, rule.until_s)
            && since >= until
        {
            self.push(Problem::new(
                "conflict",
                &block.place("until"),
                "the rule never holds: `until` is not after `since`",
            ));
        }
        let never_tunnels =
            !rule.methods.is_empty() && !rule.methods.iter().any(|method| method == "CONNECT");
        let is_closed = |ports: &std::ops::RangeInclusive<u16>| {
            *ports.end() <= LISTED_ABOVE && !ports.contains(&80)
        };
        if rule.allow && never_tunnels && !rule.ports.is_empty() && rule.ports.iter().all(is_closed)
        {
            let message = format!(
                "the rule allows nothing: up to port {LISTED_ABOVE}, plain requests may go only to \
                    port 80"
            );
            self.push(
                Problem::new("conflict", &block.place("port"), message)
                    .help("tunnels may go to any port: method=\"CONNECT\""),
            );
        }
        rule
    }

    fn empty_criteria(&mut self, block: &Checked) {
        for chosen in CRITERIA.iter().filter_map(|name| block.chosen(name)) {
            let place = chosen.span.as_ref().unwrap_or(&block.span);
            let is_told = self.problems.iter().any(|problem| problem.span.as_ref() == Some(place));
            if chosen.settings.is_empty() && !is_told {
                let message = format!(
                    "`{}` is empty: the rule would then match any value of it",
                    chosen.row.name
                );
                self.push(
                    Problem::new("missing-value", place, message)
                        .help("leave it out if you want that"),
                );
            }
        }
    }

    /// Returns the names of the rule and of its file; None when it has neither.
    fn rule_names(&mut self, block: &Checked) -> Option<Vec<Pattern>> {
        let mut names: Vec<Pattern> =
            block.texts("name").into_iter().filter_map(|text| pattern(text).ok()).collect();
        let path = block.text("names-file");
        if !path.is_empty() {
            let place = block.place("names-file");
            let bytes = self.file(path, &place).unwrap_or_default();
            names.extend(self.names_of(path, &bytes, &place));
        }
        let is_criterion = block.chosen("name").is_some() || block.chosen("names-file").is_some();
        is_criterion.then_some(names)
    }

    /// Returns the names in a file.
    fn names_of(&mut self, path: &str, bytes: &[u8], place: &Span) -> Vec<Pattern> {
        let mut names = Vec::new();
        let mut wrong = 0;
        for (line, bytes) in bytes.split(|&byte| byte == b'\n').enumerate() {
            let text = String::from_utf8_lossy(bytes);
            let text = text.split('#').next().unwrap_or_default().trim();
            match if text.is_empty() { continue } else { pattern(text) } {
                Ok(pattern) => names.push(pattern),
                Err(message) => {
                    wrong += 1;
                    if wrong <= LINES_TOLD_MAX {
                        self.push(Problem::new(
                            "bad-value",
                            place,
                            format!("{path}:{}: {message}", line + 1),
                        ));
                    }
                }
            }
        }
        if wrong > LINES_TOLD_MAX {
            let message = format!("{path}: {} more lines have errors", wrong - LINES_TOLD_MAX);
            self.push(Problem::new("bad-value", place, message));
        }
        names
    }

    /// Warns if a client that no rule covers may use it from another network.
    fn warn_if_open(&mut self, block: &Checked) {
        let is_everybody = |rule: &&Checked| {
            let others = ALL_CRITERIA.iter().filter(|name| **name != "client");
            let clients = rule.texts("client");
            others.clone().all(|name| rule.chosen(name).is_none())
                && (rule.chosen("client").is_none()
                    || clients.iter().any(|range| range.ends_with("/0")))
        };
        let verdict =
            block.all("rule").find(is_everybody).map_or("allow", |rule| rule.word("verdict"));
        if !block.text("users").is_empty() || verdict == "deny" {
            return;
        }
        for listen in block.all("listen").take(BLOCKS_MAX) {
            let address = listen.text("address").parse::<SocketAddr>().ok();
            let Some(address) = address.filter(|address| !address.ip().is_loopback()) else {
                continue;
            };
            let message = format!("any client that can connect to {address} may use the proxy");
            let help = "restrict it with `users \"/etc/weir/users\"`, or with `allow \
                client=\"192.168.0.0/16\"` and `deny` as the last rule";
            self.warnings
                .push(Problem::new("open-proxy", &listen.place("address"), message).help(help));
        }
    }

    /// Returns the response to `/proxy.pac`.
    fn pac(&mut self, block: &Checked, listeners: &[ListenerPlan]) -> Option<Vec<u8>> {
        let place = block.place("pac");
        match (block.word("pac"), block.text("pac")) {
            ("auto", _) => {
                let proxies = self.proxies(block, listeners, &place);
                Some(pac_text(&proxies).into_bytes())
            }
            (_, "") => None,
            (_, path) => self.file(path, &place),
        }
    }

    /// Returns each listener as clients reach it: `PROXY host:port`, over TLS `HTTPS host:port`.
    fn proxies(
        &mut self,
        block: &Checked,
        listeners: &[ListenerPlan],
        place: &Span,
    ) -> Vec<String> {
        let host = block.text("pac-host");
        let listeners = listeners.iter().filter(|listener| listener.serves == Serves::Forward);
        let listeners: Vec<(&str, SocketAddr)> = listeners
            .filter_map(|listener| {
                Some((
                    if listener.tls.is_some() { "HTTPS" } else { "PROXY" },
                    listener.address.network()?,
                ))
            })
            .collect();
        if host.is_empty() && listeners.iter().any(|(_, address)| address.ip().is_unspecified()) {
            let message = "the address for clients is unknown: the proxy listens on all addresses";
            self.push(
                Problem::new("conflict", place, message).help("pac-host \"proxy.example.org\""),
            );
        }
        let name = |address: &SocketAddr| {
            if host.is_empty() { address.to_string() } else { format!("{host}:{}", address.port()) }
        };
        let mut proxies: Vec<String> =
            listeners.iter().map(|(how, address)| format!("{how} {}", name(address))).collect();
        proxies.dedup();
        proxies
    }
}

/// Returns a proxy auto-configuration file: everything is sent to the proxy except hosts without a
/// dot, which are in the local network.
fn pac_text(proxies: &[String]) -> String {
    let mut choice = String::new();
    for proxy in proxies {
        let comma = if choice.is_empty() { "" } else { "; " };
        let _ = write!(choice, "{comma}{proxy}");
    }
    format!(
        "function FindProxyForURL(url, host) {{\n    if (isPlainHostName(host)) return \
            \"DIRECT\";\n    return \"{choice}\";\n}}\n"
    )
}
