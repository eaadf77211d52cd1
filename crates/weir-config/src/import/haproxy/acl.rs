//! Conditions of HAProxy: ACLs by name or in braces, joined by `and` and `or`, as cases that routes
//! can express. One criterion is in `haproxy/criterion.rs`.
//!
//! Bounds: that of `cases`; [`VALUES_MAX`] values of one file.

use super::super::access::address;
use super::super::cases::{CASES_MAX, Case, Effect, Term, and_all};
use super::super::missing::Missing;
use super::super::notes::Kind;
use super::super::route::Scheme;
use super::super::tree::Node;
use super::Haproxy;
use super::criterion::Criterion;
use super::seen::Seen;

/// Values of one file of an ACL.
const VALUES_MAX: usize = 1000;
/// The note on conditions about load and rates, which are never true here.
const LOAD: &str = "weir has no conditions about load or rates: here this is never true; see \
    `limit` of `shield`, and `concurrency` of servers";

impl Haproxy<'_, '_, '_> {
    /// Returns the cases of a line for a request as rules have left it. None: too many.
    pub(super) fn all_cases(
        &mut self,
        section: usize,
        line: &Node,
        seen: &Seen,
    ) -> Option<Vec<Case>> {
        let (negated, words) = condition(line);
        self.unsaid.clear();
        let alternatives = self.alternatives(section, line, words, seen);
        if negated { none_of(&alternatives) } else { one_of(&alternatives) }
    }

    /// Returns the cases of some words of a condition; None: too many.
    pub(super) fn cases_of(
        &mut self,
        section: usize,
        line: &Node,
        words: &[String],
    ) -> Option<Vec<Case>> {
        one_of(&self.alternatives(section, line, words, &Seen::default()))
    }

    /// Returns the condition as a list of lists: one of them, all of it.
    fn alternatives(
        &mut self,
        section: usize,
        line: &Node,
        words: &[String],
        seen: &Seen,
    ) -> Vec<Vec<Term>> {
        let mut all = vec![Vec::new()];
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            if matches!(word.as_str(), "or" | "||") {
                all.push(Vec::new());
                continue;
            }
            if word == "and" {
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
                self.effects((section, line), &inside, seen)
            } else {
                self.named(section, name, seen)
            };
            if let Some(terms) = all.last_mut() {
                terms.push(Term { not, any });
            }
        }
        all
    }

    /// Returns the conditions of an ACL with this name.
    fn named(&mut self, section: usize, name: &str, seen: &Seen) -> Vec<Effect> {
        let tree = self.tree;
        let acls: Vec<&Node> =
            tree.named(section, "acl").filter(|acl| acl.argument(1) == name).collect();
        if acls.is_empty() {
            let known = self.known(name);
            if matches!(known, Effect::Unsaid) {
                name.clone_into(&mut self.unsaid);
            }
            return vec![known];
        }
        acls.into_iter()
            .flat_map(|acl| {
                let words: Vec<&str> = acl.arguments().skip(1).collect();
                self.effects((section, acl), &words, seen)
            })
            .collect()
    }

    /// Returns the conditions of a criterion with its values: one of them.
    pub(super) fn effects(
        &mut self,
        (section, line): (usize, &Node),
        words: &[&str],
        seen: &Seen,
    ) -> Vec<Effect> {
        let effects = match self.of_connection((section, line), words) {
            Some(effect) => vec![effect],
            None => self.of_request((section, line), words, seen),
        };
        if effects.iter().any(|effect| matches!(effect, Effect::Unsaid | Effect::Among(_))) {
            self.unsaid = words.join(" ");
        }
        effects
    }

    /// Returns the condition of a criterion about the client, or about HAProxy itself.
    fn of_connection(&mut self, (section, line): (usize, &Node), words: &[&str]) -> Option<Effect> {
        let (fetch, values) = words.split_first()?;
        let is_true = || matches!(values, [] | ["1"] | ["eq", "1"] | ["-m", "bool"]);
        let is_few = matches!(values, ["lt" | "le", _] | ["eq", "0"] | ["0"]);
        let is_many = matches!(values, ["gt" | "ge", _]);
        let bare = fetch.split(['(', ',']).next().unwrap_or_default();
        Some(match bare {
            "ssl_fc" if *fetch == "ssl_fc" && is_true() => match self.speaks_tls(section) {
                (true, false) => Effect::Always,
                (false, true) => Effect::Never,
                _ => Effect::Scheme(Scheme::Https),
            },
            _ if bare.starts_with("ssl_fc") || bare.starts_with("ssl_c_") => {
                match self.speaks_tls(section) {
                    (false, true) => Effect::Never,
                    _ => Effect::Among(Box::new(Effect::Scheme(Scheme::Https))),
                }
            }
            "src" if *fetch == "src" => self.clients(line, values),
            "always_true" => Effect::Always,
            "always_false" => Effect::Never,
            "nbsrv" if is_few => self.never(line),
            "nbsrv" if is_many => Effect::Always,
            _ if is_many && (is_load(bare) || fetch.contains(",table_")) => self.never(line),
            _ => return None,
        })
    }

    fn never(&mut self, line: &Node) -> Effect {
        self.draft.note(line.place, Kind::Lost, &line.shown(), LOAD);
        Effect::Never
    }

    /// Whether a frontend has listeners with TLS, and others; neither: it is no frontend.
    fn speaks_tls(&self, section: usize) -> (bool, bool) {
        let has = |is_tls: bool| {
            let mut binds = self.tree.named(section, "bind");
            binds.any(|bind| bind.arguments().any(|word| word == "ssl") == is_tls)
        };
        (has(true), has(false))
    }

    /// Returns the conditions of a criterion about the request.
    fn of_request(
        &mut self,
        (section, line): (usize, &Node),
        words: &[&str],
        seen: &Seen,
    ) -> Vec<Effect> {
        let [first, rest @ ..] = words else { return vec![Effect::Unsaid] };
        // A variable has the value of the expression in the line that sets it.
        if let Some(name) = first.strip_prefix("var(").and_then(|name| name.strip_suffix(')')) {
            // A variable may have been made of others: not more than one is followed.
            let is_nested = std::mem::replace(&mut self.is_in_variable, true);
            let known =
                if is_nested { None } else { self.of_variable((section, line), name, rest, seen) };
            self.is_in_variable = is_nested;
            return known.unwrap_or_else(|| vec![Effect::Unsaid]);
        }
        let Some(mut criterion) = Criterion::read(words) else { return vec![Effect::Unsaid] };
        for file in std::mem::take(&mut criterion.files) {
            match self.values_in(line, file) {
                Some(values) => criterion.values.extend(values),
                None => return vec![Effect::Unsaid],
            }
        }
        if let Some(why) = criterion.difference() {
            self.draft.different_once(line, why);
        }
        criterion.effects(seen)
    }

    /// Returns the conditions of a variable that only one line sets. None: they are unknown.
    fn of_variable(
        &mut self,
        (section, line): (usize, &Node),
        name: &str,
        rest: &[&str],
        seen: &Seen,
    ) -> Option<Vec<Effect>> {
        // A change in between would show the wrong values.
        if *seen != Seen::default() {
            return None;
        }
        let tree = self.tree;
        let starts = [format!("set-var({name})"), format!("set-var({name},")];
        let sets = |node: &&Node| {
            node.arguments().any(|word| word == starts[0] || word.starts_with(&starts[1]))
        };
        let mut lines = tree.nodes.iter().filter(sets);
        let (Some(set), None) = (lines.next(), lines.next()) else { return None };
        // What else changes it, or ends the phase before it is set.
        let others = [format!("unset-var({name})"), format!("set-var-fmt({name}")];
        let changes = |node: &Node| {
            let mut words = node.arguments();
            words.any(|word| others.iter().any(|other| word.starts_with(other.as_str())))
        };
        let lasts = ["sess.", "proc."].iter().any(|scope| name.starts_with(scope));
        let allows = |node: &Node| {
            node.parent == section && node.argument(1) == "allow" && node.place < set.place
        };
        if lasts || tree.nodes.iter().any(|node| changes(node) || allows(node)) {
            return None;
        }
        let is_ours = set.parent == section && set.name() == "http-request";
        if !is_ours || set.place >= line.place || set.argument(1) != starts[0] {
            return None;
        }
        let value = set.argument(2);
        let (negated, words) = condition(set);
        // Of several values it has the last, and routes take any.
        let has_one = ["path", "url", "method", "src", "base", "ssl_fc"]
            .iter()
            .any(|fetch| value.split([',', '(']).next() == Some(*fetch));
        if words.is_empty() && !has_one {
            return None;
        }
        if words.is_empty() {
            let criterion: Vec<&str> = std::iter::once(value).chain(rest.iter().copied()).collect();
            return Some(self.effects((section, set), &criterion, seen));
        }
        let is_flag = matches!(value, "bool(true)" | "bool(1)" | "int(1)" | "str(1)");
        let asks =
            matches!(rest, [] | ["-m", "bool" | "found"] | ["1"] | ["-m", "str" | "int", "1"]);
        if negated || !is_flag || !asks {
            return None;
        }
        // One of them, each alone.
        let all = self.alternatives(section, set, words, seen);
        let single = |mut terms: Vec<Term>| terms.pop().filter(|one| terms.is_empty() && !one.not);
        let any: Option<Vec<Term>> = all.into_iter().map(single).collect();
        Some(any?.into_iter().flat_map(|term| term.any).collect())
    }

    /// Returns the lines of a file of values. None: it cannot be read, which has been noted.
    pub(super) fn values_in(&mut self, line: &Node, file: &str) -> Option<Vec<String>> {
        let sources = &self.draft.sources;
        let path = sources.beside(file);
        let bytes = (sources.outside.read)(path.as_ref());
        let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let values = text.map(|text| {
            let lines = text.lines().map(str::trim);
            let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
            lines.take(VALUES_MAX + 1).map(str::to_owned).collect::<Vec<_>>()
        });
        match values.filter(|values| values.len() <= VALUES_MAX) {
            Some(values) => {
                let why = format!("weir has the values of `{file}` as they are now");
                self.draft.different(line, why);
                Some(values)
            }
            None => {
                let why =
                    format!("the import cannot read `{file}`, or it has more values than fit");
                self.draft.lost(line, why);
                None
            }
        }
    }

    /// Converts clients by their addresses, unless another line changes these.
    fn clients(&mut self, line: &Node, words: &[&str]) -> Effect {
        let changes = |line: &Node| line.arguments().any(|word| SOURCES.contains(&word));
        if self.tree.nodes.iter().any(changes) {
            return Effect::Unsaid;
        }
        let mut whom = Vec::new();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "-f" => match self.values_in(line, words.next().copied().unwrap_or_default()) {
                    Some(values) => whom.extend(values),
                    None => return Effect::Unsaid,
                },
                "-n" | "--" => {}
                word => whom.push(word.to_owned()),
            }
        }
        let whom: Option<Vec<String>> = whom.iter().map(|text| address(text)).collect();
        whom.filter(|whom| !whom.is_empty()).map_or(Effect::Unsaid, Effect::Clients)
    }

    /// Returns the effect of a predefined ACL.
    fn known(&mut self, name: &str) -> Effect {
        let method =
            |names: &[&str]| Effect::Methods(names.iter().map(|name| (*name).to_owned()).collect());
        match name {
            "TRUE" | "HTTP" | "WAIT_END" => Effect::Always,
            "FALSE" | "HTTP_0.9" | "REQ_PROTO_HTTP_0" => Effect::Never,
            "LOCALHOST" => self.clients(&Node::default(), &["127.0.0.0/8", "::1"]),
            "METH_CONNECT" => method(&["CONNECT"]),
            "METH_GET" => method(&["GET", "HEAD"]),
            "METH_HEAD" => method(&["HEAD"]),
            "METH_OPTIONS" => method(&["OPTIONS"]),
            "METH_POST" => method(&["POST"]),
            "METH_PUT" => method(&["PUT"]),
            "METH_DELETE" => method(&["DELETE"]),
            "METH_TRACE" => method(&["TRACE"]),
            _ => Effect::Unsaid,
        }
    }

    /// Returns why a line covers more than in the source.
    pub(super) fn vague(&self) -> String {
        let what = &self.unsaid;
        let why = Missing::Criteria.why();
        if what.contains("http_auth") {
            return "weir reads users from a file of `weir passwd`: until `users` is in these \
                routes, it rejects all requests for them"
                .to_owned();
        }
        if what.is_empty() {
            return format!("its condition has too many cases; {why}");
        }
        let what = super::super::notes::short(what);
        format!(
            "weir has no equivalent of `{what}`, and rejects all requests that this may be \
            about; {why}"
        )
    }
}

/// Whether a fetch is about load, or counts what clients do.
fn is_load(fetch: &str) -> bool {
    let counts = fetch.starts_with("sc") && fetch.contains('_') || fetch.starts_with("src_");
    let is_port = matches!(fetch, "src_port" | "src_is_local");
    let ends = ["_conn", "_sess_rate", "_req_rate", "_conn_rate", "_queue", "_cur", "_cnt"];
    let is_ours = ["fe_", "be_", "srv_", "avg_queue", "queue", "connslots"]
        .iter()
        .any(|start| fetch.starts_with(start));
    counts && !is_port
        || fetch == "avg_queue"
        || fetch == "queue"
        || fetch == "connslots"
        || is_ours && ends.iter().any(|end| fetch.ends_with(end))
}

/// Returns the requests for which all terms of one of these are true; None: too many cases.
fn one_of(alternatives: &[Vec<Term>]) -> Option<Vec<Case>> {
    let mut cases = Vec::new();
    for terms in alternatives {
        cases.extend(and_all(vec![Case::all()], terms)?);
        if cases.len() > CASES_MAX {
            return None;
        }
    }
    Some(cases)
}

/// Returns the requests for which each of these has at least one term that is not true; None: too
/// many cases.
fn none_of(alternatives: &[Vec<Term>]) -> Option<Vec<Case>> {
    let mut cases = vec![Case::all()];
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

/// Words of lines by which the address of a client differs from that of its connection.
pub(super) const SOURCES: [&str; 5] =
    ["set-src", "accept-proxy", "accept-netscaler-cip", "expect-proxy", "expect-netscaler-cip"];

#[cfg(test)]
mod tests {
    //! Proves: how alternatives are joined, also where none of them may be true. How: examples.

    use super::*;

    fn asks(words: &[&str]) -> Term {
        let criterion = Criterion::read(words).unwrap();
        Term { not: false, any: criterion.effects(&Seen::default()) }
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
            [vec!["!a", "!b"], vec!["!b"]]
        );
        assert_eq!(shown(one_of(&[vec![a, b.clone()], vec![b]])), [vec!["a", "b"], vec!["b"]]);
        // Two to the eighth.
        let many: Vec<Vec<Term>> = (0..8)
            .map(|at| {
                let [one, other] = ["x", "y"].map(|name| format!("hdr({name}{at})"));
                [one, other].map(|name| asks(&[&name, "-m", "found"])).to_vec()
            })
            .collect();
        assert!(none_of(&many).is_none());
    }
}
