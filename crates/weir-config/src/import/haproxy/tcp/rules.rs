//! `tcp-request` and the conditions of `use_backend` in `mode tcp` of HAProxy: which clients are
//! kept out, and the server names of TLS clients.
//!
//! `tcp` does not check addresses. A client that a rule keeps out is admitted, and noted; if a rule
//! keeps all but some out, no connection is passed on.

use super::super::super::access::address;
use super::super::super::draft::BLOCKS_MAX;
use super::super::super::missing::Missing;
use super::super::super::notes::Kind;
use super::super::super::tcp::{CLOSES, LET_IN, Lead, Tcp, has_room};
use super::super::super::tree::Node;
use super::super::Haproxy;
use super::super::acl::condition;
use super::super::fate::time;
use crate::texts;

/// The server name of a TLS client, and whether it uses TLS.
const ASKED: [&str; 2] = ["req.ssl_sni", "req_ssl_sni"];
const HELLO: [&str; 2] = ["req.ssl_hello_type", "req_ssl_hello_type"];

/// Refusals by the rules of a frontend that have no counterpart.
#[derive(Default)]
pub(super) struct Refuses<'t> {
    /// All but some.
    pub(super) closes: bool,
    /// The line that refuses clients without TLS.
    not_tls: Option<&'t Node>,
    /// The line that limits the time for the bytes that rules inspect.
    delay: Option<&'t Node>,
}

/// A part of a condition: whether it is negated, and criteria of which one must hold.
struct Part<'t> {
    not: bool,
    any: Vec<Vec<&'t str>>,
}

impl Part<'_> {
    /// Whether all of it inspects one of these, with any converters.
    fn is_about(&self, names: &[&str]) -> bool {
        let fetch = |words: &Vec<&str>| {
            words.first().and_then(|first| first.split(',').next()).unwrap_or_default().to_owned()
        };
        !self.any.is_empty() && self.any.iter().all(|words| names.contains(&fetch(words).as_str()))
    }

    /// Whether all of it is that the client uses TLS: its first message is a ClientHello.
    fn is_hello(&self) -> bool {
        self.is_about(&HELLO) && self.any.iter().all(|words| words[1..] == ["1"])
    }
}

/// Returns the alternatives of a condition, each with its parts.
fn alternatives<'t>(
    haproxy: &mut Haproxy<'t, '_, '_>,
    section: usize,
    line: &'t Node,
) -> Vec<Vec<Part<'t>>> {
    let tree = haproxy.tree;
    let mut all = vec![Vec::new()];
    let mut rest = condition(line).1.iter().map(String::as_str);
    while let Some(word) = rest.next() {
        if matches!(word, "or" | "||") {
            all.push(Vec::new());
            continue;
        }
        let (not, name) = word.strip_prefix('!').map_or((false, word), |name| (true, name));
        let name = if not && name.is_empty() { rest.next().unwrap_or_default() } else { name };
        let any: Vec<Vec<&str>> = if name == "{" {
            vec![rest.by_ref().take_while(|word| *word != "}").collect()]
        } else {
            let acls = || tree.named(section, "acl").filter(|acl| acl.argument(1) == name);
            let has_room = has_room(haproxy.draft, acls().map(|acl| acl.words.len()).sum());
            acls().filter(|_| has_room).map(|acl| acl.arguments().skip(1).collect()).collect()
        };
        if let Some(last) = all.last_mut() {
            last.push(Part { not, any });
        }
    }
    all
}

/// Returns the names that a `use_backend` or a `reject` is about. None: it is about something else
/// as well.
pub(super) fn names<'t>(
    haproxy: &mut Haproxy<'t, '_, '_>,
    section: usize,
    line: &'t Node,
) -> Option<Vec<String>> {
    if condition(line).0 {
        return None;
    }
    let mut found = Vec::new();
    for mut parts in alternatives(haproxy, section, line) {
        // A client that asks for a name uses TLS.
        parts.retain(|part| part.not || !part.is_hello());
        let [Part { not: false, any }] = &parts[..] else { return None };
        if any.is_empty() {
            // Predefined in HAProxy, or beyond the available room.
            return None;
        }
        let asked: Option<Vec<Vec<(String, bool)>>> =
            any.iter().map(|words| asked(words)).collect();
        for (name, is_wide) in asked?.into_iter().flatten() {
            if is_wide {
                let why = format!(
                    "`{name}` matches this name and all below it, but no other names with this \
                        ending"
                );
                haproxy.draft.different(line, why);
            }
            found.push(name);
        }
    }
    let all = found.iter().map(|name| texts::host_pattern(name));
    all.collect::<Result<Vec<String>, String>>()
        .ok()
        .filter(|all| !all.is_empty() && all.iter().all(|name| name != "*"))
}

/// Returns the names that one criterion is about, each with whether it also matches names that weir
/// cannot express.
fn asked(words: &[&str]) -> Option<Vec<(String, bool)>> {
    let (fetch, rest) = words.split_first()?;
    let mut parts = fetch.split(',');
    if !ASKED.contains(&parts.next()?) || parts.any(|converter| converter != "lower") {
        return None;
    }
    let (mut how, mut values, mut rest) = ("str", Vec::new(), rest.iter());
    while let Some(word) = rest.next() {
        match *word {
            _ if !values.is_empty() => values.push(*word),
            "-i" => {}
            "-m" => how = rest.next()?,
            "--" => values.extend(rest.by_ref()),
            flag if flag.starts_with('-') && flag.len() == 2 => return None,
            value => values.push(value),
        }
    }
    let mut found = Vec::new();
    for value in values {
        let value = value.to_ascii_lowercase();
        if value.contains('*') {
            // Such a letter is ordinary in HAProxy, and in no name.
            return None;
        }
        match (how, value.strip_prefix('.')) {
            ("str", None) => found.push((value, false)),
            ("end" | "dom", Some(domain)) => found.push((format!("*.{domain}"), false)),
            ("end" | "dom", None) => {
                found.extend([(value.clone(), true), (format!("*.{value}"), false)])
            }
            _ => return None,
        }
    }
    Some(found)
}

/// Returns the clients of a condition that is only about addresses: all but these, or these.
fn sources<'t>(
    haproxy: &mut Haproxy<'t, '_, '_>,
    section: usize,
    line: &'t Node,
) -> Option<(bool, Vec<String>)> {
    let all = alternatives(haproxy, section, line);
    let [parts] = &all[..] else { return None };
    let [part] = &parts[..] else { return None };
    let whom = part.any.iter().flat_map(|words| words.iter().skip(1)).map(|text| address(text));
    let whom: Vec<String> = whom.collect::<Option<_>>().filter(|_| part.is_about(&["src"]))?;
    Some((condition(line).0 != part.not, whom)).filter(|(_, whom)| !whom.is_empty())
}

/// Whether a line of a frontend makes connections begin with a PROXY protocol header.
pub(super) fn expects_header(haproxy: &Haproxy<'_, '_, '_>, at: usize) -> bool {
    let sections = haproxy.defaults.get(&at).copied().flatten().into_iter().chain([at]);
    let mut lines = sections.flat_map(|section| haproxy.tree.named(section, "tcp-request"));
    lines.any(|line| line.argument(2) == "expect-proxy")
}

/// Applies `tcp-request` to a frontend.
pub(super) fn requests<'t>(
    haproxy: &mut Haproxy<'t, '_, '_>,
    at: usize,
    tcp: &mut Tcp,
) -> Refuses<'t> {
    let tree = haproxy.tree;
    let sections: Vec<usize> =
        haproxy.defaults.get(&at).copied().flatten().into_iter().chain([at]).collect();
    let mut refuses = Refuses::default();
    // Whether some are admitted before a refusal, and whether those are the TLS clients.
    let mut accepted: Option<bool> = None;
    for section in sections {
        for line in tree.named(section, "tcp-request").take(BLOCKS_MAX) {
            match (line.argument(1), line.argument(2)) {
                ("inspect-delay", text) => match time(text) {
                    Some(us) => {
                        refuses.delay = Some(line);
                        tcp.time(haproxy.draft, line, "hello-timeout", us);
                    }
                    None => haproxy.draft.lost(line, "this is not a time"),
                },
                (_, "accept") => {
                    let is_tls = is_about_tls(haproxy, section, line) == Some(true);
                    accepted = Some(accepted.unwrap_or(true) && is_tls);
                }
                (_, "reject" | "silent-drop") => {
                    refuse(haproxy, (at, section), line, tcp, (&mut refuses, accepted))
                }
                ("connection", "expect-proxy") => {
                    if let Some((false, whom)) = sources(haproxy, section, line) {
                        tcp.trusted.extend(whom);
                    }
                }
                (_, word) if word.starts_with("track-sc") => {
                    if !haproxy.tracks.contains(&line.place) {
                        haproxy.draft.missing(line, Missing::Rates);
                    }
                }
                _ => haproxy.draft.missing(line, Missing::Nothing),
            }
        }
    }
    refuses
}

/// Converts a line that refuses.
fn refuse<'t>(
    haproxy: &mut Haproxy<'t, '_, '_>,
    (at, section): (usize, usize),
    line: &'t Node,
    tcp: &mut Tcp,
    (refuses, accepted): (&mut Refuses<'t>, Option<bool>),
) {
    if haproxy.limit(at, section, line) {
        return;
    }
    let is_unconditional = condition(line).1.is_empty();
    if is_about_tls(haproxy, section, line) == Some(false)
        || is_unconditional && accepted == Some(true)
    {
        refuses.not_tls = Some(line);
        return;
    }
    if let Some(names) = names(haproxy, section, line) {
        if accepted == Some(true) {
            return haproxy.draft.lost(
                line,
                "no connection reaches this rule: an earlier rule takes all TLS connections",
            );
        }
        for name in names {
            tcp.name(&name, Lead::Closed);
        }
        return;
    }
    let from = sources(haproxy, section, line);
    if let Some((true, whom)) =
        from.as_ref().filter(|_| line.argument(1) == "connection" && tcp.is_announced())
    {
        // These are the load balancers: addresses of clients are not known yet at this point.
        return tcp.trusted.extend(whom.iter().cloned());
    }
    let is_for_rest = is_unconditional || accepted == Some(false);
    let closes = match from {
        None if is_for_rest => closed(haproxy, line),
        _ => keeps_out(haproxy, section, line),
    };
    refuses.closes |= closes;
}

/// Notes a line that keeps some out by a condition that cannot be expressed; returns whether these
/// are all but some, so that no client is admitted.
pub(super) fn keeps_out<'t>(
    haproxy: &mut Haproxy<'t, '_, '_>,
    section: usize,
    line: &'t Node,
) -> bool {
    let has_not = alternatives(haproxy, section, line).iter().flatten().any(|part| part.not);
    let from = sources(haproxy, section, line);
    if from.map_or(condition(line).0 || has_not, |(is_rest, _)| is_rest) {
        return closed(haproxy, line);
    }
    haproxy.draft.lost(line, LET_IN);
    false
}

fn closed(haproxy: &mut Haproxy<'_, '_, '_>, line: &Node) -> bool {
    haproxy.draft.note(line.place, Kind::Closed, &line.shown(), CLOSES);
    true
}

/// Returns the first line of a backend that refuses connections, if it differs from that of the
/// frontend that leads there.
pub(super) fn refusal<'t>(
    haproxy: &Haproxy<'t, '_, '_>,
    frontend: usize,
    section: usize,
) -> Option<&'t Node> {
    let tree = haproxy.tree;
    let defaults = |section: usize| haproxy.defaults.get(&section).copied().flatten();
    let own = [section].into_iter().filter(|section| *section != frontend);
    let before = defaults(section).filter(|before| defaults(frontend) != Some(*before));
    let mut lines =
        before.into_iter().chain(own).flat_map(|section| tree.named(section, "tcp-request"));
    lines.find(|line| matches!(line.argument(2), "reject" | "silent-drop"))
}

/// Returns whether a condition is only about TLS: Some(true): clients that use it, Some(false):
/// those that do not.
fn is_about_tls<'t>(
    haproxy: &mut Haproxy<'t, '_, '_>,
    section: usize,
    line: &'t Node,
) -> Option<bool> {
    let all = alternatives(haproxy, section, line);
    let [parts] = &all[..] else { return None };
    let [part] = &parts[..] else { return None };
    part.is_hello().then_some(part.not == condition(line).0)
}

/// Notes the differences where names decide.
pub(super) fn tell_of_names(haproxy: &mut Haproxy<'_, '_, '_>, tcp: &Tcp, refuses: &Refuses<'_>) {
    if tcp.to.is_none() {
        return;
    }
    if let Some(line) = refuses.not_tls {
        let why = "weir now accepts clients without TLS: they go to `proxy`, like clients that \
            request another name";
        haproxy.draft.lost(line, why);
    }
    if let Some(line) = refuses.delay.filter(|_| tcp.has_names()) {
        let why = "weir resets a client that is silent for this time; here its connection goes to \
            the default";
        haproxy.draft.different(line, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_asked_for() {
        let shown = |words: &[&str]| {
            asked(words).map(|all| all.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        };
        assert_eq!(
            shown(&["req.ssl_sni", "-i", "A.test", "b.test"]).unwrap(),
            ["a.test", "b.test"]
        );
        assert_eq!(shown(&["req_ssl_sni,lower", "-m", "end", ".a.test"]).unwrap(), ["*.a.test"]);
        assert_eq!(
            shown(&["req.ssl_sni", "-m", "dom", "-i", "a.test"]).unwrap(),
            ["a.test", "*.a.test"]
        );
        for none in [
            &["req.ssl_sni", "-m", "found"][..],
            &["req.ssl_sni", "-m", "reg", "^a"],
            &["req.ssl_sni", "-f", "file"],
            &["req.ssl_sni,map(x)", "a.test"],
            &["req.ssl_sni", ".a.test"],
            &["src", "10.0.0.1"],
        ] {
            assert!(shown(none).is_none_or(|names| names.is_empty()), "{none:?}");
        }
    }
}
