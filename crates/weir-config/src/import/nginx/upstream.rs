//! `upstream` of nginx, and servers that `proxy_pass` names directly.

use weir_proxy::plan::UNIX;

use super::super::draft::{Server, with_port};
use super::super::missing::Missing;
use super::super::notes::Kind;
use super::super::tree::{Node, ROOT, Tree};
use super::{Nginx, time};
use crate::units::time_text;

/// How many losses within which time (microseconds) suspend a server; None: not set.
pub(super) type Losses = Option<(u64, u64)>;

/// Returns the block with this name.
fn block(tree: &Tree, name: &str) -> Option<usize> {
    let tops = [ROOT].into_iter().chain(tree.indices(ROOT, "http").iter().copied());
    tops.flat_map(|top| tree.indices(top, "upstream"))
        .copied()
        .find(|at| tree.nodes[*at].argument(1) == name)
}

impl Nginx<'_, '_, '_> {
    /// Returns the upstream for the text behind `http://` or `https://`; `node`: the `proxy_pass`.
    pub(super) fn upstream(
        &mut self,
        node: &Node,
        authority: &str,
        over_tls: bool,
    ) -> Option<usize> {
        let key = (authority.to_owned(), over_tls);
        if let Some(known) = self.upstreams.get(&key) {
            return *known;
        }
        let block = block(self.tree, authority);
        let name = if over_tls && block.is_some() {
            format!("{authority}-tls")
        } else {
            authority.to_owned()
        };
        let place = block.map_or(node.place, |at| self.tree.nodes[at].place);
        let upstream = self.draft.upstream(place, &name);
        let port = if over_tls { 443 } else { 80 };
        match block {
            Some(at) => self.servers(upstream, at, port),
            None => self.draft.server(upstream, node, plain(node, address(authority, port))),
        }
        let is_empty = self.draft.upstreams[upstream].servers.is_empty();
        let found = (!is_empty).then_some(upstream);
        self.upstreams.insert(key, found);
        found
    }

    fn servers(&mut self, upstream: usize, at: usize, port: u16) {
        let tree = self.tree;
        // If servers differ, nothing is written.
        let mut losses: Option<Losses> = None;
        for (_, node) in tree.children(at) {
            if node.name() == "server" {
                if let Some(said) = self.server_line(upstream, node, port) {
                    losses = if losses.is_none_or(|other| other == said) {
                        Some(said)
                    } else {
                        Some(None)
                    };
                }
            } else {
                self.method(upstream, node);
            }
        }
        if let Some(Some((limit, window))) = losses {
            let line = format!(
                "failover \"lost\" limit={} window=\"{}\"",
                limit.min(10_000),
                time_text(window)
            );
            self.draft.upstreams[upstream].lines.push(line);
        }
        let servers = &mut self.draft.upstreams[upstream].servers;
        if servers.iter().all(|server| server.backup) {
            servers.iter_mut().for_each(|server| server.backup = false);
        }
    }

    /// Adds one server; returns its losses, if weir can use the server.
    pub(super) fn server_line(
        &mut self,
        upstream: usize,
        node: &Node,
        port: u16,
    ) -> Option<Losses> {
        let mut server = plain(node, address(node.argument(1), port));
        let (mut fails, mut window) = (None, None);
        for word in node.arguments().skip(1) {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            match (name, value.parse::<u64>()) {
                ("weight", Ok(weight)) => server.weight = weight,
                ("max_conns", Ok(most)) => {
                    server.connections = (most > 0).then_some(most);
                    self.draft.different(
                        node,
                        "weir counts requests over all its workers, and those beyond the number \
                            wait; `queue-timeout` bounds the wait",
                    );
                }
                ("max_fails", Ok(most)) => fails = Some(most),
                ("fail_timeout", _) => window = time(value),
                ("backup", _) => server.backup = true,
                ("down", _) => {
                    self.draft.lost(
                        node,
                        "it is marked as down; use `weir server disable` while weir runs",
                    );
                    return None;
                }
                ("resolve" | "service", _) => {
                    self.draft.note(node.place, Kind::Different, word, Missing::Discovery.why())
                }
                _ => self.draft.note(node.place, Kind::Lost, word, Missing::Nothing.why()),
            }
        }
        self.draft.server(upstream, node, server);
        let said = fails.is_some() || window.is_some();
        let (fails, window) = (fails.unwrap_or(1), window.unwrap_or(10_000_000));
        Some((said && fails > 0).then_some((fails, window.clamp(1_000, 86_400_000_000))))
    }

    /// Converts load balancing, and the rest.
    fn method(&mut self, upstream: usize, node: &Node) {
        let line = match (node.name(), node.argument(1)) {
            ("least_conn" | "random", _) => "balance least",
            ("least_time", _) => "balance dynamic",
            ("ip_hash", _) | ("hash", "$remote_addr" | "$binary_remote_addr") => {
                "balance hash key=\"client-ip\""
            }
            ("hash", "$request_uri" | "$uri") => "balance hash key=\"uri\"",
            ("hash", key) => return self.hash(upstream, node, key),
            (
                "keepalive" | "keepalive_requests" | "keepalive_timeout" | "keepalive_time"
                | "zone",
                _,
            ) => {
                return self.draft.unneeded(node.name());
            }
            _ => return self.draft.missing(node, Missing::Nothing),
        };
        self.draft.upstreams[upstream].lines.push(line.to_owned());
    }

    fn hash(&mut self, upstream: usize, node: &Node, key: &str) {
        let key = match (key.strip_prefix("$http_"), key.strip_prefix("$cookie_")) {
            (Some(field), _) => format!("header:{}", field.replace('_', "-")),
            (_, Some(cookie)) => format!("cookie:{cookie}"),
            _ => {
                return self
                    .draft
                    .lost(node, "weir hashes by `uri`, `client-ip`, a header or a cookie");
            }
        };
        match crate::texts::balance_key(&key) {
            Ok(key) => self.draft.upstreams[upstream]
                .lines
                .push(format!("balance hash key={}", crate::reverse::literal(&key))),
            Err(why) => self.draft.lost(node, why),
        }
    }
}

/// Returns the address of a server: unix sockets have no port.
fn address(text: &str, port: u16) -> String {
    if text.starts_with(UNIX) { text.to_owned() } else { with_port(text, port) }
}

pub(super) fn plain(node: &Node, address: String) -> Server {
    Server { place: node.place, address, weight: 0, backup: false, connections: None }
}
