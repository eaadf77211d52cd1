//! `reverse_proxy` of Caddy: servers, load balancing, health checks, changes to messages.

use std::collections::BTreeMap;

use super::super::draft::{Server, with_port};
use super::super::missing::Missing;
use super::super::route::To;
use super::super::tree::Node;
use super::Caddy;
use super::fate::own_default;
use crate::reverse::literal;
use crate::texts;
use crate::units::{parse_time, time_text};
use weir_proxy::plan::UNIX;

/// Settings of servers, until they are written.
#[derive(Default)]
struct Said {
    probes: BTreeMap<&'static str, String>,
    losses: BTreeMap<&'static str, String>,
    tls: Option<BTreeMap<&'static str, String>>,
    connections: Option<u64>,
    /// The first server that works takes all requests.
    takes_first: bool,
    /// The version of the PROXY protocol, and its place.
    header: Option<(&'static str, usize)>,
}

impl Caddy<'_, '_, '_> {
    /// Returns the upstream of a `reverse_proxy`.
    pub(super) fn proxy(&mut self, at: usize) -> Option<To> {
        let tree = self.tree;
        let servers = self.addresses(at);
        let mut key = format!("{servers:?}");
        for inside in tree.below(at) {
            key.push_str(&format!("\n{:?}", tree.nodes[inside].words));
        }
        if let Some(known) = self.upstreams.get(&key) {
            return known.map(To::Upstream);
        }
        let node = &tree.nodes[at];
        let (_, first) = servers.first().map_or((false, ""), |word| scheme(word));
        let upstream = self.draft.upstream(node.place, first);
        let mut said = Said::default();
        for (inside, line) in tree.children(at) {
            self.option(upstream, inside, line, &mut said);
        }
        for word in &servers {
            self.server(upstream, node, word, &mut said);
        }
        if let Some((version, line)) = said.header {
            self.draft.announce(upstream, &tree.nodes[line], version);
        }
        let ours = &mut self.draft.upstreams[upstream];
        ours.tls = said.tls;
        let options = |said: &BTreeMap<&'static str, String>| -> String {
            said.iter().map(|(name, value)| format!(" {name}={value}")).collect()
        };
        if !said.probes.is_empty() {
            ours.lines.push(format!("health{}", options(&said.probes)));
        }
        if !said.losses.is_empty() {
            ours.lines.push(format!("failover \"lost\"{}", options(&said.losses)));
        }
        let found = (!ours.servers.is_empty()).then_some(upstream);
        if found.is_none() {
            self.draft.lost(node, "none of its servers could be carried over");
        }
        self.upstreams.insert(key, found);
        found.map(To::Upstream)
    }

    /// Returns the addresses behind the directive, without its matcher, and behind `to`.
    pub(super) fn addresses(&self, at: usize) -> Vec<String> {
        let node = &self.tree.nodes[at];
        let behind = node.arguments().filter(|word| !word.starts_with(['/', '@']) && *word != "*");
        let to = self.tree.named(at, "to").flat_map(Node::arguments);
        // An unset variable leaves nothing.
        behind.chain(to).filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    fn server(&mut self, upstream: usize, node: &Node, word: &str, said: &mut Said) {
        if word.starts_with("h2c://") || word.starts_with("unix+h2c/") {
            self.draft.missing(node, Missing::Http2Servers);
        }
        if word.starts_with("srv+") || word.contains('{') {
            return self.draft.missing(node, Missing::Discovery);
        }
        let (over_tls, rest) = scheme(word);
        if over_tls {
            said.tls.get_or_insert_default();
        }
        let port = if said.tls.is_some() { 443 } else { 80 };
        let rest = if rest.starts_with(':') { format!("127.0.0.1{rest}") } else { rest.to_owned() };
        let socket = rest.strip_prefix("unix/").or_else(|| rest.strip_prefix("unix+h2c/"));
        let address = socket.map_or_else(|| with_port(&rest, port), |path| format!("{UNIX}{path}"));
        let connections = said.connections;
        let backup = said.takes_first && !self.draft.upstreams[upstream].servers.is_empty();
        self.draft.server(
            upstream,
            node,
            Server { place: node.place, address, weight: 0, backup, connections },
        );
    }

    /// Converts a line of its block.
    fn option(&mut self, upstream: usize, at: usize, line: &Node, said: &mut Said) {
        let value = line.argument(1);
        let time = |text: &str, least| {
            let us = parse_time(text).ok()?;
            Some(format!("\"{}\"", time_text(us.clamp(least, 86_400_000_000))))
        };
        let quoted = |checked: Result<String, String>| checked.ok().map(|text| literal(&text));
        let count =
            |most: u64| value.parse::<u64>().ok().map(|count| count.clamp(1, most).to_string());
        let (of, name, written) = match line.name() {
            "to" | "header_up" | "header_down" | "rewrite" | "method" => return,
            name if name.starts_with('@') => return,
            "handle_response" | "replace_status" => {
                let why = "weir sends the response of the server as it is";
                return self.draft.different(line, why);
            }
            "trusted_proxies" => {
                let why = "`trusted-proxies` of `client` names the proxies that weir trusts";
                return self.draft.different(line, why);
            }
            "lb_policy" if value == "first" => return said.takes_first = true,
            "lb_policy" => return self.policy(upstream, line),
            "transport" => return self.transport(upstream, at, said),
            "health_uri" | "health_path" => {
                (&mut said.probes, "path", quoted(texts::probe_path(value)))
            }
            "health_interval" => (&mut said.probes, "interval", time(value, 100_000)),
            "health_timeout" => (&mut said.probes, "timeout", time(value, 1_000)),
            "health_status" => (&mut said.probes, "expect-status", quoted(texts::codes(value))),
            "health_passes" => (&mut said.probes, "rise", count(100)),
            "health_fails" => (&mut said.probes, "fall", count(100)),
            "health_method" => {
                let method = matches!(value, "GET" | "HEAD" | "OPTIONS").then(|| value.to_owned());
                (&mut said.probes, "method", method)
            }
            "max_fails" => (&mut said.losses, "limit", count(10_000)),
            "fail_duration" => (&mut said.losses, "window", time(value, 1_000)),
            "flush_interval" | "request_buffers" | "response_buffers" | "stream_timeout"
            | "stream_close_delay" | "lb_try_duration" | "lb_try_interval" => {
                return self.draft.unneeded(line.name());
            }
            "dynamic" => return self.draft.missing(line, Missing::Discovery),
            _ => return self.draft.missing(line, Missing::Nothing),
        };
        match written {
            Some(written) => drop(of.insert(name, written)),
            None => self.draft.lost(line, format!("weir's `{name}` does not take this value")),
        }
    }

    fn policy(&mut self, upstream: usize, line: &Node) {
        let key = |kind: &str| texts::balance_key(&format!("{kind}:{}", line.argument(2))).ok();
        let written = match line.argument(1) {
            "round_robin" | "weighted_round_robin" if line.words.len() == 2 => return,
            "least_conn" | "random" | "random_choose" => Some("balance least".to_owned()),
            "ip_hash" | "client_ip_hash" => Some("balance hash key=\"client-ip\"".to_owned()),
            "uri_hash" => Some("balance hash key=\"uri\"".to_owned()),
            "header" => key("header").map(|key| format!("balance hash key={}", literal(&key))),
            "cookie" => {
                let name = if line.argument(2).is_empty() { "lb" } else { line.argument(2) };
                texts::cookie_name(name)
                    .ok()
                    .map(|name| format!("sticky cookie={}", literal(&name)))
            }
            _ => None,
        };
        match written {
            Some(written) => self.draft.upstreams[upstream].lines.push(written),
            None => self.draft.lost(
                line,
                "see `balance`: weir takes turns by weight, picks the least loaded \
                    server, or hashes",
            ),
        }
    }

    /// Converts `transport http { ... }`.
    fn transport(&mut self, upstream: usize, at: usize, said: &mut Said) {
        let tree = self.tree;
        if tree.nodes[at].argument(1) != "http" {
            return self.draft.missing(&tree.nodes[at], Missing::Gateway);
        }
        for (inside, line) in tree.children(at) {
            let value = line.argument(1);
            let mut tls = |name, value: Option<String>| {
                said.tls.get_or_insert_default().extend(value.map(|value| (name, literal(&value))));
            };
            match line.name() {
                "tls" => drop(said.tls.get_or_insert_default()),
                "tls_insecure_skip_verify" => {
                    said.tls.get_or_insert_default().insert("verify", "#false".to_owned());
                    self.draft.different(
                        line,
                        "`verify=#false` as here: an attacker between weir and the server can read \
                            everything",
                    );
                }
                "tls_server_name" if texts::peer_name(value).is_ok() => {
                    tls("name", Some(value.to_owned()))
                }
                "tls_trust_pool" if value == "file" => {
                    tls("ca", self.draft.file(line, line.argument(2)));
                }
                "tls_trusted_ca_certs" => tls("ca", self.draft.file(line, value)),
                "tls_client_auth" if line.words.len() == 3 => {
                    let [certificate, key] =
                        [1, 2].map(|word| self.draft.file(line, line.argument(word)));
                    if certificate.is_some() && key.is_some() {
                        tls("certificate", certificate);
                        tls("key", key);
                    }
                }
                "proxy_protocol" if value == "v1" => said.header = Some(("v1", inside)),
                "proxy_protocol" if value == "v2" => said.header = Some(("v2", inside)),
                "dial_timeout" => self.upstream_time(upstream, line, "connect-timeout"),
                "response_header_timeout" => self.upstream_time(upstream, line, "forward-timeout"),
                "read_timeout" => self.upstream_time(upstream, line, "answer-timeout"),
                "max_conns_per_host" => {
                    said.connections = value.parse().ok().filter(|most| *most > 0)
                }
                "versions" if line.arguments().any(|word| word == "h2c") => {
                    self.draft.missing(line, Missing::Http2Servers)
                }
                "versions"
                | "keepalive"
                | "keepalive_idle_conns"
                | "keepalive_idle_conns_per_host"
                | "compression"
                | "read_buffer"
                | "write_buffer"
                | "write_timeout"
                | "dial_fallback_delay" => {
                    self.draft.unneeded(line.name());
                }
                "resolvers" => self.draft.missing(line, Missing::Discovery),
                _ => self.draft.missing(line, Missing::Nothing),
            }
        }
    }

    fn upstream_time(&mut self, upstream: usize, line: &Node, name: &'static str) {
        match parse_time(line.argument(1)) {
            Ok(us) => self.draft.time_limit(Some(upstream), line, name, own_default(us, name)),
            Err(why) => self.draft.lost(line, why),
        }
    }

    /// Whether a `reverse_proxy` changes requests in a way that weir cannot express.
    pub(super) fn drops_too_much(&self, at: usize) -> bool {
        let odd = |line: &Node| match line.name() {
            "rewrite" | "method" | "dynamic" => true,
            "transport" => line.argument(1) != "http",
            _ => false,
        };
        self.tree.children(at).any(|(_, line)| odd(line))
    }
}

/// Returns whether a server uses TLS, and its address.
pub(super) fn scheme(word: &str) -> (bool, &str) {
    let (scheme, rest) = word.split_once("://").unwrap_or(("", word));
    (scheme == "https", rest.strip_suffix('/').unwrap_or(rest))
}
