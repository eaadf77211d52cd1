//! `reverse_proxy` of Caddy: servers, load balancing, health checks, changes to messages.

use std::collections::BTreeMap;

use weir_proxy::plan::UNIX;
use weir_proxy::request::rules::edits::Side;

use super::super::draft::{Server, with_port};
use super::super::missing::Missing;
use super::super::route::{Edit, Route, To};
use super::super::tree::Node;
use super::Caddy;
use super::fate::own_default;
use crate::reverse::literal;
use crate::texts;
use crate::units::{parse_time, time_text};

/// Fields that weir writes automatically.
const BY_ITSELF: [&str; 3] = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"];

/// Settings of servers, until they are written.
#[derive(Default)]
struct Said {
    probes: BTreeMap<&'static str, String>,
    losses: BTreeMap<&'static str, String>,
    tls: Option<BTreeMap<&'static str, String>>,
    connections: Option<u64>,
    /// The version of the PROXY protocol, and its place.
    header: Option<(&'static str, usize)>,
}

impl<'t> Caddy<'t, '_, '_> {
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
    fn addresses(&self, at: usize) -> Vec<String> {
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
        self.draft.server(
            upstream,
            node,
            Server { place: node.place, address, weight: 0, backup: false, connections },
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
            "to" | "header_up" | "header_down" => return,
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
            | "stream_close_delay" | "lb_try_duration" | "lb_try_interval" | "trusted_proxies" => {
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

    /// Converts `header_up` and `header_down`.
    pub(super) fn proxy_fields(&mut self, at: usize, changes: &mut Route) {
        let tree = self.tree;
        for line in tree.named(at, "header_up") {
            let (name, value) = (line.argument(1), line.argument(2));
            if name.eq_ignore_ascii_case("host") {
                match value {
                    "{upstream_hostport}" | "{http.reverse_proxy.upstream.hostport}" => {
                        changes.server_host =
                            self.addresses(at).first().map(|word| scheme(word).1.to_owned());
                    }
                    "{host}" | "{http.request.host}" | "{hostport}" => {}
                    _ if texts::probe_host(value).is_ok() => {
                        changes.server_host = Some(value.to_owned())
                    }
                    _ => {
                        self.draft.different(line, "servers see the host that the client requested")
                    }
                }
            } else if BY_ITSELF.contains(&name.to_ascii_lowercase().as_str()) {
                self.draft.unneeded(&format!("header_up {name}"));
            } else {
                changes.request.extend(self.field(line, Side::Request, &line.words[1..]));
            }
        }
        for line in tree.named(at, "header_down") {
            changes.answer.extend(self.field(line, Side::Answer, &line.words[1..]));
        }
    }

    /// Converts `NAME VALUE`, `+NAME VALUE` or `-NAME`.
    pub(super) fn field(&mut self, node: &'t Node, side: Side, words: &[String]) -> Option<Edit> {
        let (name, rest) = words.split_first()?;
        let (verb, name) = match name.as_bytes() {
            [b'+', ..] => ("add", &name[1..]),
            [b'-', ..] => ("remove", &name[1..]),
            [b'?' | b'>', ..] => ("", &name[1..]),
            _ => ("set", name.as_str()),
        };
        let value = match (verb, rest) {
            ("remove", []) => Ok(String::new()),
            ("set" | "add", [value]) => text(value),
            _ => Err("weir can only set, add or remove a header".to_owned()),
        };
        match value {
            Ok(value) => self.draft.edit(node, side, verb, (name, &value)),
            Err(why) => {
                self.draft.lost(node, why);
                None
            }
        }
    }
}

/// Returns whether a server uses TLS, and its address.
fn scheme(word: &str) -> (bool, &str) {
    let (scheme, rest) = word.split_once("://").unwrap_or(("", word));
    (scheme == "https", rest.strip_suffix('/').unwrap_or(rest))
}

/// Returns a text with placeholders as one of weir's.
pub(super) fn text(theirs: &str) -> Result<String, String> {
    const NAMES: [(&str, &str); 12] = [
        ("remote_host", "remote_addr"),
        ("client_ip", "remote_addr"),
        ("http.request.remote.host", "remote_addr"),
        ("host", "host"),
        ("http.request.host", "host"),
        ("method", "request_method"),
        ("http.request.method", "request_method"),
        ("uri", "request_uri"),
        ("http.request.uri", "request_uri"),
        ("scheme", "scheme"),
        ("http.request.scheme", "scheme"),
        ("http.request.proto", "server_protocol"),
    ];
    let mut out = String::new();
    let mut rest = theirs;
    while let Some(at) = rest.find(['{', '$']) {
        out.push_str(&rest[..at]);
        let behind = &rest[at + 1..];
        let Some((name, after)) = behind.split_once('}').filter(|_| rest[at..].starts_with('{'))
        else {
            out.push_str(if rest[at..].starts_with('$') { "$$" } else { "{" });
            rest = behind;
            continue;
        };
        let field =
            name.strip_prefix("header.").or_else(|| name.strip_prefix("http.request.header."));
        let known =
            NAMES.iter().find(|(known, _)| *known == name).map(|(_, ours)| (*ours).to_owned());
        let known = known.or_else(|| {
            field.map(|field| format!("http_{}", field.to_ascii_lowercase().replace('-', "_")))
        });
        match known {
            Some(known) => out.push_str(&format!("${{{known}}}")),
            None => return Err(format!("weir's texts have no equivalent of `{{{name}}}`")),
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_placeholders() {
        assert_eq!(
            text("a {remote_host}{header.X-Id} $1 {").unwrap(),
            "a ${remote_addr}${http_x_id} $$1 {"
        );
        assert!(text("{http.auth.user.id}").is_err());
    }
}
