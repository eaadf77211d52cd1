//! Converts the directives of Caddy that change requests or hold for a whole block, and the global
//! options.

use super::super::cases::Effect;
use super::super::missing::Missing;
use super::super::tree::{Node, ROOT};
use super::matcher::{Test, is_matcher};
use super::{Caddy, Scope};
use crate::reverse::literal;
use crate::texts;
use crate::units::parse_time;

/// The meaning of `private_ranges`.
pub(super) const PRIVATE: [&str; 6] =
    ["192.168.0.0/16", "172.16.0.0/12", "10.0.0.0/8", "127.0.0.1/8", "fd00::/8", "::1"];

/// Why a `rewrite` is closed.
const REWRITE: &str =
    "weir's `rewrite` takes a regular expression and a path; weir rejects what comes behind this";

/// What a directive does with the path or the method of requests.
pub(super) enum Turn {
    /// It changes them all, or none.
    All,
    /// It changes those of the first test, and the second ones in a way that no server understands.
    Some(Test, Test),
    /// weir cannot do it.
    Closed(&'static str),
    /// weir cannot do it for these.
    ClosedFor(Test, &'static str),
}

impl Caddy<'_, '_, '_> {
    /// Converts a directive that holds for a whole block.
    pub(super) fn tell(&mut self, at: usize, scope: &mut Scope) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        match node.name() {
            "encode" => self.encode(at, scope),
            _ if !self.told.insert(at) => {}
            "request_body" => self.body(at),
            "log" => self.log(at),
            "push" => self.draft.missing(node, Missing::Files),
            "cache" => self.draft.missing(node, Missing::Cache),
            "rate_limit" => super::limits::limit(self, at, scope),
            "handle_errors" | "intercept" => {
                self.draft.different(node, Missing::Pages.why());
            }
            "tls" | "bind" | "root" | "log_skip" | "skip_log" | "log_name" | "log_append"
            | "tracing" | "fs" => {}
            name if name.starts_with('@') => {}
            _ => self.draft.missing(node, Missing::Nothing),
        }
    }

    /// Applies a directive to the requests of a scope.
    pub(super) fn turn(&mut self, at: usize, scope: &mut Scope) -> Turn {
        let node = &self.tree.nodes[at];
        let skipped = match node.name() {
            "rewrite" | "method" => node.words.len() > 2,
            _ => is_matcher(node.argument(1)),
        };
        let words: Vec<&str> = node.arguments().skip(usize::from(skipped)).collect();
        match (node.name(), &words[..]) {
            ("rewrite", [to]) => rewrite(to, scope),
            ("uri", ["strip_prefix", prefix]) => self.strip(prefix, scope),
            ("uri", ["strip_suffix", suffix]) if !suffix.contains('{') => {
                let is_fine = scope.seen.change(&format!("(?i){}$", regex::escape(suffix)), "");
                changed(is_fine)
            }
            ("uri", ["path_regexp", regex, to]) if !groups(to).contains('{') => {
                let why = "weir replaces the first match of a path, and this all matches";
                self.draft.different(node, why);
                let is_fine = texts::regex(regex).is_ok();
                changed(is_fine && scope.seen.change(regex, &groups(to)))
            }
            ("uri", ["replace", from, to]) if !to.contains('{') && !from.contains('{') => {
                let why = "weir replaces the first match in the path, and this all matches, also \
                    in the query";
                self.draft.different(node, why);
                let to = to.replace('$', "$$");
                changed(scope.seen.change(&regex::escape(from), &to))
            }
            ("method", [method]) => {
                let method = method.to_ascii_uppercase();
                let same = Test::Is(Effect::Methods(vec![method]));
                Turn::ClosedFor(Test::Not(Box::new(same)), "weir does not change methods")
            }
            _ => Turn::Closed(
                "weir cannot express this change of the request, and rejects what comes behind it",
            ),
        }
    }

    /// Applies `uri strip_prefix`.
    fn strip(&mut self, prefix: &str, scope: &mut Scope) -> Turn {
        let prefix = prefix.trim_end_matches('/');
        let prefix = if prefix.starts_with('/') { prefix.to_owned() } else { format!("/{prefix}") };
        if prefix == "/" {
            return Turn::All;
        }
        if prefix.contains(['*', '?', '[', '{', '%']) || texts::route_path(&prefix).is_err() {
            return Turn::Closed("weir cannot strip this");
        }
        if scope.seen.is_apart_from(&prefix) {
            return Turn::All;
        }
        if scope.seen.is_below(&prefix, &scope.pieces) {
            return changed(scope.seen.strip(&prefix));
        }
        let whole = [prefix.clone(), format!("{prefix}/*")].map(Test::Path).to_vec();
        let whole = scope.seen.asked(Test::Any(whole));
        let odd = self.cut(scope, &prefix);
        if scope.seen.strip(&prefix) { Turn::Some(whole, odd) } else { changed(false) }
    }

    fn body(&mut self, at: usize) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        let is_for_all = !is_matcher(node.argument(1)) || node.argument(1) == "*";
        let sites = tree.children(ROOT).filter(|(_, node)| super::is_site(node)).count();
        if !is_for_all || sites > 1 || tree.nodes[node.parent].parent != ROOT {
            let why = "weir has one `body-limit`, which also limits all other requests";
            self.draft.different(node, why);
        }
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
                ("order", _) => self.global_order(line),
                ("default_bind", _) => {
                    self.default_bind = line.arguments().map(str::to_owned).collect();
                }
                ("servers", _) => self.servers(inside, !line.argument(1).is_empty()),
                (
                    "email" | "acme_ca" | "acme_ca_root" | "acme_eab" | "acme_dns" | "cert_issuer"
                    | "local_certs" | "on_demand_tls" | "key_type",
                    _,
                ) => {
                    self.draft.missing(line, Missing::Acme);
                }
                (
                    "admin" | "debug" | "log" | "storage" | "persist_config" | "skip_install_trust",
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

    /// `is_one`: they are for one listener alone.
    fn servers(&mut self, at: usize, is_one: bool) {
        let tree = self.tree;
        for (inside, line) in tree.children(at) {
            match line.name() {
                "trusted_proxies" if is_one => {
                    self.others.believed = true;
                    self.draft.lost(line, "weir trusts proxies at all of its listeners, or none");
                }
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

fn changed(is_fine: bool) -> Turn {
    if is_fine {
        Turn::All
    } else {
        Turn::Closed("weir cannot express this change of the path together with earlier ones")
    }
}

/// Applies `rewrite`: to `/prefix{uri}`, or to one path.
fn rewrite(to: &str, scope: &mut Scope) -> Turn {
    let prefix = to.strip_suffix("?{query}").unwrap_or(to);
    let prefix = prefix.strip_suffix("{uri}").or_else(|| prefix.strip_suffix("{path}"));
    if let Some(prefix) = prefix {
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if prefix.is_empty() {
            return Turn::All;
        }
        let is_fine = !prefix.contains(['{', '?', '*', '%']) && texts::route_path(prefix).is_ok();
        if !is_fine {
            return Turn::Closed(REWRITE);
        }
        return changed(scope.seen.put_in_front(prefix));
    }
    if to.contains(['{', '?', '*', '%', ';']) || texts::route_path(to).is_err() {
        return Turn::Closed(REWRITE);
    }
    scope.seen.fix(to);
    Turn::All
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
