//! Conditions of HAProxy: ACLs by name or in braces, joined by `and` and `or`, as cases that routes
//! can express.
//!
//! Bound: that of `cases`.

use super::super::access::address;
use super::super::cases::{CASES_MAX, Case, Effect, Term, and_all, said};
use super::super::missing::{CASE, EXACT, Missing, SEGMENTS};
use super::super::route::{Condition, Scheme, refused};
use super::super::tree::Node;
use super::Haproxy;

impl Haproxy<'_, '_, '_> {
    /// Returns the cases of a terminal line; those that cannot be expressed are noted and left out.
    pub(super) fn cases(&mut self, section: usize, line: &Node) -> Vec<Case> {
        let (said, lost) = said(self.all_cases(section, line).unwrap_or_default());
        if lost {
            self.draft.missing(line, Missing::Criteria);
        }
        said
    }

    /// Whether the condition of a line is only about TLS.
    pub(super) fn asks_only_for_tls(&self, section: usize, line: &Node) -> bool {
        let condition = condition(line).1;
        let is_tls = |word: &str| {
            let word = word.trim_start_matches('!');
            let named =
                || self.tree.named(section, "acl").filter(move |acl| acl.argument(1) == word);
            matches!(word, "{" | "}" | "or" | "||" | "-i" | "https" | "http" | "0" | "1" | "eq")
                || is_about_tls(word)
                || named().next().is_some() && named().all(|acl| is_about_tls(acl.argument(2)))
        };
        condition.iter().all(|word| is_tls(word))
    }

    /// Returns the cases of a line; None: too many, which has been noted.
    pub(super) fn all_cases(&mut self, section: usize, line: &Node) -> Option<Vec<Case>> {
        let (negated, words) = condition(line);
        self.any_case = false;
        let alternatives = self.alternatives(section, line, words);
        let cases = if negated { none_of(&alternatives) } else { one_of(&alternatives) };
        if cases.is_none() {
            self.draft.lost(line, "this condition has too many cases");
        }
        cases
    }

    /// Returns the cases of some words of a condition; None: too many.
    pub(super) fn cases_of(
        &mut self,
        section: usize,
        line: &Node,
        words: &[String],
    ) -> Option<Vec<Case>> {
        one_of(&self.alternatives(section, line, words))
    }

    /// Returns the condition as a list of lists: one of them, all of it.
    fn alternatives(&mut self, section: usize, line: &Node, words: &[String]) -> Vec<Vec<Term>> {
        let mut all = vec![Vec::new()];
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            if matches!(word.as_str(), "or" | "||") {
                all.push(Vec::new());
                continue;
            }
            let (not, name) =
                word.strip_prefix('!').map_or((false, word.as_str()), |name| (true, name));
            // `! name` is the same as `!name`.
            let name =
                if not && name.is_empty() { rest.next().map_or("", String::as_str) } else { name };
            let any = if name == "{" {
                let inside: Vec<&str> =
                    rest.by_ref().take_while(|word| *word != "}").map(String::as_str).collect();
                self.effects(line, &inside)
            } else {
                self.named(section, name)
            };
            if let Some(terms) = all.last_mut() {
                terms.push(Term { not, any });
            }
        }
        all
    }

    /// Returns the conditions of an ACL with this name.
    fn named(&mut self, section: usize, name: &str) -> Vec<Effect> {
        let tree = self.tree;
        let acls: Vec<&Node> =
            tree.named(section, "acl").filter(|acl| acl.argument(1) == name).collect();
        if acls.is_empty() {
            return vec![known(name)];
        }
        acls.into_iter()
            .flat_map(|acl| {
                let words: Vec<&str> = acl.arguments().skip(1).collect();
                self.effects(acl, &words)
            })
            .collect()
    }

    /// Returns the conditions of a criterion with its values: one of them.
    fn effects(&mut self, line: &Node, words: &[&str]) -> Vec<Effect> {
        match words {
            ["ssl_fc"] => return vec![Effect::Scheme(Scheme::Https)],
            ["src", whom @ ..] => return vec![self.clients(whom)],
            _ => {}
        }
        let Some(criterion) = Criterion::read(words) else { return vec![Effect::Unsaid] };
        match (criterion.what, criterion.how) {
            ("path", "beg") if criterion.values.iter().any(|path| !path.ends_with('/')) => {
                self.draft.different_once(line, SEGMENTS);
            }
            ("path", "str") if criterion.values.iter().any(|path| path.ends_with('/')) => {
                self.draft.different(line, EXACT);
            }
            _ => {}
        }
        if criterion.any_case && matches!((criterion.what, criterion.how), ("path", "beg" | "str"))
        {
            self.any_case = true;
            self.draft.different_once(line, CASE);
        }
        let mut effects = criterion.effects();
        for effect in &mut effects {
            let Effect::Condition(condition) = effect else { continue };
            if let Some(why) = refused(condition) {
                self.draft.lost(line, why);
                *effect = Effect::Unsaid;
            }
        }
        effects
    }

    /// Converts clients by their addresses, unless another line changes these.
    fn clients(&self, whom: &[&str]) -> Effect {
        let changes = |line: &Node| line.arguments().any(|word| SOURCES.contains(&word));
        let whom: Option<Vec<String>> = whom.iter().map(|text| address(text)).collect();
        match whom.filter(|whom| !whom.is_empty() && !self.tree.nodes.iter().any(changes)) {
            Some(whom) => Effect::Clients(whom),
            None => Effect::Unsaid,
        }
    }
}

/// Returns the requests for which all terms of one of these are true; None: too many cases.
fn one_of(alternatives: &[Vec<Term>]) -> Option<Vec<Case>> {
    let mut cases = Vec::new();
    for terms in alternatives {
        cases.extend(and_all(vec![Case::default()], terms)?);
        if cases.len() > CASES_MAX {
            return None;
        }
    }
    Some(cases)
}

/// Returns the requests for which each of these has at least one term that is not true; None: too
/// many cases.
fn none_of(alternatives: &[Vec<Term>]) -> Option<Vec<Case>> {
    let mut cases = vec![Case::default()];
    for terms in alternatives {
        let mut without = Vec::new();
        for term in terms {
            let not = Term { not: !term.not, ..term.clone() };
            without.extend(and_all(cases.clone(), &[not])?);
            if without.len() > CASES_MAX {
                return None;
            }
        }
        cases = without;
    }
    Some(cases)
}

/// Returns whether it is `unless`, and the words behind it or behind `if`.
pub(super) fn condition(line: &Node) -> (bool, &[String]) {
    match line.words.iter().position(|word| word == "if" || word == "unless") {
        Some(at) => (line.words[at] == "unless", &line.words[at + 1..]),
        None => (false, &[]),
    }
}

fn is_about_tls(word: &str) -> bool {
    word.starts_with("ssl_fc")
        || word.starts_with("dst_port")
        || word.to_ascii_lowercase().contains("x-forwarded-proto")
}

/// Predefined ACLs of HAProxy.
fn known(name: &str) -> Effect {
    let method =
        |names: &[&str]| Effect::Methods(names.iter().map(|name| (*name).to_owned()).collect());
    match name {
        "TRUE" => Effect::Always,
        "METH_GET" => method(&["GET", "HEAD"]),
        "METH_HEAD" => method(&["HEAD"]),
        "METH_OPTIONS" => method(&["OPTIONS"]),
        "METH_POST" => method(&["POST"]),
        "METH_PUT" => method(&["PUT"]),
        "METH_DELETE" => method(&["DELETE"]),
        _ => Effect::Unsaid,
    }
}

/// `path_beg -i /a /b`, parsed.
struct Criterion<'w> {
    /// `path`, `method`, `host`, `header`, `query`, `cookie`.
    what: &'static str,
    /// The name of a field, a member of the query, a cookie.
    name: &'w str,
    /// `str`, `beg`, `end`, `sub`, `reg`, `dom` or `found`.
    how: &'w str,
    any_case: bool,
    values: Vec<&'w str>,
}

impl<'w> Criterion<'w> {
    /// None: routes cannot express it.
    fn read(words: &[&'w str]) -> Option<Criterion<'w>> {
        let (chain, rest) = words.split_first()?;
        let mut parts = split(chain);
        let fetch = parts.next()?;
        // Converters without an effect for weir, except on case.
        let mut any_case = false;
        if !parts.all(|converter| {
            any_case |= converter == "lower";
            matches!(converter, "lower" | "host_only" | "field(1,:)" | "word(1,:)")
        }) {
            return None;
        }
        let (fetch, name) =
            fetch.strip_suffix(')').and_then(|fetch| fetch.split_once('(')).unwrap_or((fetch, ""));
        let bare = fetch.strip_prefix("req.").unwrap_or(fetch);
        let (base, mut how) =
            bare.rsplit_once('_').filter(|(_, how)| HOW.contains(how)).unwrap_or((bare, "str"));
        let what = match base {
            "path" => "path",
            "method" => "method",
            "hdr" if name.eq_ignore_ascii_case("host") => "host",
            "hdr" if !name.is_empty() && !name.contains(',') => "header",
            "url_param" | "urlp" => "query",
            "cook" => "cookie",
            _ => return None,
        };
        let mut values = Vec::new();
        let mut rest = rest.iter();
        while let Some(word) = rest.next() {
            match *word {
                _ if !values.is_empty() => values.push(*word),
                "-i" => any_case = true,
                "-m" => how = rest.next()?,
                "--" => values.extend(rest.by_ref()),
                flag if flag.starts_with('-') && flag.len() == 2 => return None,
                value => values.push(value),
            }
        }
        let known = how == "found" || HOW.contains(&how) || how == "str";
        (known && (how == "found" || !values.is_empty())).then_some(Criterion {
            what,
            name,
            how,
            any_case,
            values,
        })
    }

    fn effects(&self) -> Vec<Effect> {
        match (self.what, self.how) {
            ("method", "str") => {
                vec![Effect::Methods(
                    self.values.iter().map(|value| value.to_ascii_uppercase()).collect(),
                )]
            }
            ("path", "str") => {
                self.values.iter().map(|value| Effect::Exactly((*value).to_owned())).collect()
            }
            ("path", "beg") => {
                self.values.iter().map(|value| Effect::Path((*value).to_owned())).collect()
            }
            ("host", "str") => self.values.iter().map(|value| Effect::Host(host(value))).collect(),
            ("host", "end" | "dom") => self.values.iter().flat_map(|value| below(value)).collect(),
            ("header" | "query" | "cookie", "found") => vec![self.condition(None)],
            ("header" | "query" | "cookie", "str" | "beg" | "end" | "sub" | "reg") => {
                self.values.iter().map(|value| self.condition(Some(self.matches(value)))).collect()
            }
            _ => vec![Effect::Unsaid],
        }
    }

    fn condition(&self, matches: Option<(&'static str, String)>) -> Effect {
        Effect::Condition(Condition {
            subject: self.what,
            name: self.name.to_owned(),
            matches,
            not: false,
        })
    }

    fn matches(&self, value: &str) -> (&'static str, String) {
        let escaped = regex::escape(value);
        match (self.how, self.any_case) {
            ("str", false) => ("eq", value.to_owned()),
            ("beg", false) => ("prefix", value.to_owned()),
            ("end", false) => ("suffix", value.to_owned()),
            ("str", true) => ("regex", format!("(?i)^{escaped}$")),
            ("beg", true) => ("regex", format!("(?i)^{escaped}")),
            ("end", true) => ("regex", format!("(?i){escaped}$")),
            ("sub", any) => ("regex", format!("{}{escaped}", if any { "(?i)" } else { "" })),
            (_, any) => ("regex", format!("{}{value}", if any { "(?i)" } else { "" })),
        }
    }
}

/// Words of lines by which the address of a client differs from that of its connection.
pub(super) const SOURCES: [&str; 5] =
    ["set-src", "accept-proxy", "accept-netscaler-cip", "expect-proxy", "expect-netscaler-cip"];

/// Suffixes of criteria that say how values are compared.
const HOW: [&str; 6] = ["beg", "end", "sub", "reg", "dom", "dir"];

/// Splits a fetch and its converters: the parts between commas outside of parentheses.
fn split(chain: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    chain.split(move |c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
}

/// Returns the host without a port.
fn host(value: &str) -> String {
    let bare =
        value.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    bare.map_or(value, |(host, _)| host).to_ascii_lowercase()
}

/// Returns a domain with all names below it, or those alone.
fn below(value: &str) -> Vec<Effect> {
    let value = host(value);
    match value.strip_prefix('.') {
        Some(_) => vec![Effect::Host(format!("*{value}"))],
        None => vec![Effect::Host(format!("*.{value}")), Effect::Host(value)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn criteria_are_taken_apart() {
        let shown = |words: &[&str]| {
            Criterion::read(words)
                .map_or("none".to_owned(), |criterion| format!("{:?}", criterion.effects()))
        };
        assert_eq!(shown(&["path_beg", "/a", "/b"]), r#"[Path("/a"), Path("/b")]"#);
        assert_eq!(shown(&["hdr(host)", "-i", "A.test:80"]), r#"[Host("a.test")]"#);
        assert_eq!(
            shown(&["req.hdr(Host),lower,field(1,:)", "-m", "end", ".a.test"]),
            r#"[Host("*.a.test")]"#
        );
        assert_eq!(shown(&["method", "get"]), r#"[Methods(["GET"])]"#);
        assert!(shown(&["hdr_sub(user-agent)", "-i", "bot"]).contains("(?i)bot"));
        assert!(shown(&["req.cook(a)", "-m", "found"]).contains("cookie"));
        for none in [
            &["src", "10.0.0.0/8"][..],
            &["path", "-f", "file"],
            &["path_beg"],
            &["hdr(a,1)", "b"],
            &["path,map(x)", "y"],
        ] {
            assert_eq!(shown(none), "none", "{none:?}");
        }
        assert_eq!(shown(&["path_reg", "^/a"]), "[Unsaid]");
    }

    fn asks(words: &[&str]) -> Term {
        Term { not: false, any: Criterion::read(words).unwrap().effects() }
    }

    #[test]
    fn unless_none_of_the_alternatives() {
        let (a, b) = (asks(&["hdr(a)", "-m", "found"]), asks(&["hdr(b)", "-m", "found"]));
        let shown = |cases: Option<Vec<Case>>| -> Vec<Vec<String>> {
            let name = |case: &Case| {
                case.conditions
                    .iter()
                    .map(|one| format!("{}{}", if one.not { "!" } else { "" }, one.name))
                    .collect()
            };
            cases.unwrap().iter().map(name).collect()
        };
        assert_eq!(shown(none_of(&[vec![a.clone()], vec![b.clone()]])), [["!a", "!b"]]);
        assert_eq!(shown(none_of(&[vec![a.clone(), b.clone()]])), [["!a"], ["!b"]]);
        assert_eq!(
            shown(none_of(&[vec![a.clone(), b.clone()], vec![b.clone()]])),
            [["!a", "!b"], ["!b", "!b"]]
        );
        assert_eq!(
            shown(one_of(&[vec![a.clone(), b.clone()], vec![b.clone()]])),
            [vec!["a", "b"], vec!["b"]]
        );
        // Two to the eighth.
        assert!(none_of(&vec![vec![a, b]; 8]).is_none());
    }
}
