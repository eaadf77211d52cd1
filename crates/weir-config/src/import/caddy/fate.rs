//! Converts the directives of Caddy that are not terminal, and the global options.

use weir_proxy::request::rules::edits::Side;

use super::super::missing::Missing;
use super::super::tree::Node;
use super::{Caddy, Scope};
use crate::reverse::literal;
use crate::texts;
use crate::units::parse_time;

/// The meaning of `private_ranges`.
pub(super) const PRIVATE: [&str; 6] =
    ["192.168.0.0/16", "172.16.0.0/12", "10.0.0.0/8", "127.0.0.1/8", "fd00::/8", "::1"];

/// Why a path is not changed twice.
const ONCE: &str = "weir changes a path once, with the first `rewrite` that matches";

impl Caddy<'_, '_, '_> {
    /// Converts a directive of a site or a block.
    pub(super) fn tell(&mut self, at: usize, scope: &mut Scope) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        match node.name() {
            "header" => self.field_line(at, Side::Answer, scope),
            "request_header" => self.field_line(at, Side::Request, scope),
            "uri" => self.uri(node, scope),
            "rewrite" => self.rewrite(node, scope),
            "request_body" => self.body(at),
            "log" => self.log(at),
            "encode" => self.encode(at, scope),
            "file_server" | "root" | "try_files" | "templates" | "push" => {
                self.draft.missing(node, Missing::Files)
            }
            "php_fastcgi" => self.draft.missing(node, Missing::Gateway),
            "cache" => self.draft.missing(node, Missing::Cache),
            "rate_limit" => super::limits::limit(self, at, scope),
            "handle_errors" => self.draft.missing(node, Missing::Pages),
            "metrics" => self.draft.lost(
                node,
                "`metrics \"127.0.0.1:9100\"` at the top serves a page and OpenMetrics",
            ),
            "tls" | "bind" => {}
            name if name.starts_with('@') => {}
            _ => self.draft.missing(node, Missing::Nothing),
        }
    }

    fn uri(&mut self, node: &Node, scope: &mut Scope) {
        if !scope.changes.rewrites.is_empty() {
            return self.draft.lost(node, ONCE);
        }
        match (node.argument(1), &node.words[..]) {
            ("strip_prefix", [_, _, prefix]) if texts::route_path(prefix).is_ok() => {
                let prefix = prefix.trim_end_matches('/');
                let whole = scope.seen.only().map(|taken| format!("{taken}{prefix}"));
                let is_below = |whole: &String| {
                    scope.cases.iter().all(|case| super::covers_path(whole, &case.path()))
                };
                if let Some(whole) = whole.filter(is_below).filter(|_| !prefix.is_empty()) {
                    scope.changes.strip = Some(whole);
                    scope.seen.strip(prefix);
                } else {
                    scope
                        .changes
                        .rewrites
                        .push((format!("^{}/?", regex::escape(prefix)), "/".to_owned()));
                    scope.seen.may_strip(prefix);
                }
            }
            ("path_regexp", [_, _, regex, to]) => {
                scope.changes.rewrites.push((regex.clone(), groups(to)));
                scope.seen.rewrite();
            }
            _ => {
                self.draft.lost(node, "use `strip-prefix`, or `rewrite` with a regular expression")
            }
        }
    }

    /// Converts `rewrite * /prefix{uri}`.
    fn rewrite(&mut self, node: &Node, scope: &mut Scope) {
        if !scope.changes.rewrites.is_empty() {
            return self.draft.lost(node, ONCE);
        }
        let words: Vec<&str> = node.arguments().filter(|word| *word != "*").collect();
        let prefix = match words[..] {
            [to] => to.strip_suffix("{uri}").or_else(|| to.strip_suffix("{path}")),
            _ => None,
        };
        match prefix.filter(|prefix| texts::route_path(prefix).is_ok()) {
            Some(prefix) => {
                let to = format!("{}/", prefix.trim_end_matches('/').replace('$', "$$"));
                scope.changes.rewrites.push(("^/".to_owned(), to));
                scope.seen.rewrite();
            }
            None => self.draft.lost(node, "weir's `rewrite` takes a regular expression and a path"),
        }
    }

    fn body(&mut self, at: usize) {
        let tree = self.tree;
        for (_, line) in tree.children(at) {
            match (line.name(), size(line.argument(1))) {
                ("max_size", Some(bytes)) => self.draft.amount(None, line, "body-limit", bytes),
                _ => self.draft.lost(line, "use `body-limit` in `client`"),
            }
        }
    }

    /// Weir has one log.
    fn log(&mut self, at: usize) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let path =
            match tree.last(at, "output").map(|output| (output.argument(1), output.argument(2))) {
                Some(("file", path)) => path,
                Some(("discard", _)) => return self.draft.unneeded("log"),
                Some(("net", _)) => return self.draft.missing(node, Missing::Syslog),
                _ => "stdout",
            };
        for (_, line) in
            tree.children(at).filter(|(_, line)| !matches!(line.name(), "output" | "level"))
        {
            if line.shown() != "format json" {
                self.draft.different(
                    line,
                    "weir writes lines in its own `json` format; docs/access-log.md has other \
                        formats",
                );
            }
        }
        self.draft.access_log(node, path, " format=json");
    }

    /// Converts the global options.
    pub(super) fn global(&mut self, at: usize) {
        let tree = self.tree;
        for (inside, line) in tree.children(at) {
            let port = line.argument(1).parse();
            match (line.name(), port) {
                ("http_port", Ok(port)) => self.ports.0 = port,
                ("https_port", Ok(port)) => self.ports.1 = port,
                ("auto_https", _) => {
                    self.auto_https = line.argument(1) != "off";
                    self.redirects = line.argument(1) != "disable_redirects";
                }
                ("grace_period", _) => self.global_time(line, "drain"),
                ("shutdown_delay", _) => self.global_time(line, "delay"),
                ("servers", _) => self.servers(inside),
                (
                    "email" | "acme_ca" | "acme_ca_root" | "acme_eab" | "acme_dns" | "cert_issuer"
                    | "local_certs" | "on_demand_tls" | "key_type",
                    _,
                ) => {
                    self.draft.missing(line, Missing::Acme);
                }
                (
                    "admin" | "debug" | "log" | "order" | "storage" | "persist_config"
                    | "skip_install_trust",
                    _,
                ) => {
                    self.draft.unneeded(line.name());
                }
                _ => self.draft.missing(line, Missing::Nothing),
            }
        }
    }

    fn global_time(&mut self, line: &Node, name: &'static str) {
        match parse_time(line.argument(1)) {
            Ok(us) if name == "delay" => self.draft.amount(None, line, name, us),
            Ok(us) => self.draft.time_limit(None, line, name, own_default(us, name)),
            Err(why) => self.draft.lost(line, why),
        }
    }

    fn servers(&mut self, at: usize) {
        let tree = self.tree;
        for (inside, line) in tree.children(at) {
            match line.name() {
                "trusted_proxies" => self.trusted(line),
                "timeouts" => {
                    for (_, line) in tree.children(inside) {
                        match line.name() {
                            "read_header" => self.global_time(line, "head-timeout"),
                            "read_body" => self.global_time(line, "body-timeout"),
                            "write" => self.global_time(line, "send-timeout"),
                            "idle" => self.global_time(line, "idle-timeout"),
                            _ => self.draft.missing(line, Missing::Nothing),
                        }
                    }
                }
                "max_header_size" => match size(line.argument(1)) {
                    Some(bytes) => self.draft.amount(None, line, "head-limit", bytes),
                    None => self.draft.lost(line, "this is not a size"),
                },
                "listener_wrappers" => self.wrappers(inside),
                "client_ip_headers" if !is_forwarded_for(line) => {
                    self.others.believed = true;
                    self.draft.lost(line, "weir trusts X-Forwarded-For of `trusted-proxies`");
                }
                "protocols"
                | "metrics"
                | "name"
                | "keepalive_interval"
                | "trusted_proxies_strict"
                | "strict_sni_host"
                | "client_ip_headers" => self.draft.unneeded(line.name()),
                _ => self.draft.missing(line, Missing::Nothing),
            }
        }
    }

    /// Converts the layers between connections and HTTP.
    fn wrappers(&mut self, at: usize) {
        let tree = self.tree;
        for (_, line) in tree.children(at) {
            match line.name() {
                "proxy_protocol" => {
                    self.others.connections = true;
                    self.draft.missing(line, Missing::ProxyProtocol);
                }
                "tls" | "http_redirect" => self.draft.unneeded(line.name()),
                _ => self.draft.missing(line, Missing::Nothing),
            }
        }
    }

    fn trusted(&mut self, line: &Node) {
        if line.argument(1) != "static" {
            self.others.believed = true;
            return self.draft.lost(line, "weir's `trusted-proxies` takes only addresses");
        }
        let mut ranges = Vec::new();
        for word in line.arguments().skip(1) {
            let words = if word == "private_ranges" { PRIVATE.to_vec() } else { vec![word] };
            for word in words {
                match texts::network(word) {
                    Ok(range) => ranges.push(literal(&range)),
                    Err(why) => {
                        self.others.believed = true;
                        self.draft.lost(line, why);
                    }
                }
            }
        }
        if !ranges.is_empty() {
            let text = format!("trusted-proxies {}", ranges.join(" "));
            self.draft.client_lines.insert("trusted-proxies", (text, line.place));
        }
    }
}

/// Whether X-Forwarded-For alone is trusted.
fn is_forwarded_for(line: &Node) -> bool {
    matches!(&line.words[1..], [name] if name.eq_ignore_ascii_case("x-forwarded-for"))
}

/// Converts groups of an expression, `$1` and `${1}` in Caddy; any other `$` is kept.
fn groups(to: &str) -> String {
    let mut out = String::new();
    let mut rest = to;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let bare = rest
            .strip_prefix('{')
            .and_then(|inside| inside.split_once('}'))
            .filter(|(name, _)| name.len() == 1);
        match bare {
            Some((digit, behind)) if digit.bytes().all(|byte| byte.is_ascii_digit()) => {
                out.push_str(&format!("${digit}"));
                rest = behind;
            }
            _ if rest.starts_with(|c: char| c.is_ascii_digit()) => out.push('$'),
            _ => out.push_str("$$"),
        }
    }
    out.push_str(rest);
    out
}

/// Returns Caddy's meaning of a time: 0 means its default, if it has one.
pub(super) fn own_default(us: u64, name: &str) -> u64 {
    match (us, name) {
        (0, "head-timeout") => 60_000_000,
        (0, "idle-timeout") => 300_000_000,
        (0, "connect-timeout") => 3_000_000,
        _ => us,
    }
}

/// Parses a size of Caddy, `10MB` or `10MiB`: bytes.
fn size(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let scale = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_groups() {
        assert_eq!(
            ["10MB", "1 KiB", "5", "x", "1tb"].map(size),
            [Some(10_000_000), Some(1024), Some(5), None, None]
        );
        assert_eq!(groups("/a/$1/${2}$x$"), "/a/$1/$2$$x$$");
    }
}
