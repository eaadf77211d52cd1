//! Rules of HAProxy that refuse clients with a high count in a `stick-table`, as limits of
//! `shield`.
//!
//! Covers rules of a frontend with a condition on one counter of the client's address, and
//! otherwise only conditions that `match` can express. Called for each line that keeps some clients
//! out; those without a counter are not changed.

use super::super::cases::Case;
use super::super::limits::{AMOUNT_MAX, Limit, Measure, Requests, per_unit};
use super::super::missing::Missing;
use super::super::tree::{Node, ROOT};
use super::acl::{SOURCES, condition};
use super::fate::time;
use super::{Haproxy, PROXIES};
use crate::texts;

/// Counters of responses, with the statuses that they count.
const STATUSES: [(&str, &str); 2] =
    [("http_err_rate", "400-499"), ("http_fail_rate", "500,502-504,506-599")];

/// A counter that a line compares: of a client, in a table.
struct Counter<'t> {
    /// As in `store`, without its time.
    name: &'t str,
    /// The section with its table.
    table: usize,
    /// The line that makes it count.
    track: &'t Node,
    /// The highest value that passes.
    most: u64,
}

/// A comparison of a line with a number: the counter as it is written, and the highest value that
/// passes.
struct Comparison<'t> {
    fetch: &'t str,
    most: u64,
    /// The rest of the condition.
    rest: Vec<String>,
}

impl<'t> Haproxy<'t, '_, '_> {
    /// Makes a limit of a line of a frontend, if it refuses by a counter.
    pub(super) fn limit(&mut self, frontend: usize, section: usize, line: &'t Node) -> bool {
        if !super::is_refusal(line) {
            return false;
        }
        let Some(comparison) = self.comparison(section, line) else { return false };
        if !self.limit_by(frontend, section, line, &comparison) {
            self.draft.lost(
                line,
                format!("{}; weir now accepts what this rejected", Missing::Rates.why()),
            );
        }
        true
    }

    /// Carries it over; returns whether that was possible.
    fn limit_by(
        &mut self,
        frontend: usize,
        section: usize,
        line: &'t Node,
        comparison: &Comparison<'t>,
    ) -> bool {
        let Some(counter) = self.counter(frontend, section, comparison) else { return false };
        let Some((measure, size)) = self.measure(line, &counter) else { return false };
        let is_of_connections = !matches!(measure.count(), "requests" | "answers");
        if is_of_connections && !comparison.rest.is_empty()
            || self.tree.nodes.iter().any(changes_sources)
        {
            return false;
        }
        let Some((all, exempt)) = self.requests_of(section, line, &comparison.rest) else {
            return false;
        };
        if !exempt.is_empty() {
            self.draft.different(line, "no limit applies to clients in `allow` of `shield`");
            self.draft.exempt(exempt);
        }
        let counts_all = condition(counter.track).1.is_empty();
        if counts_all && all.iter().any(|requests| *requests != Requests::default()) {
            let why = "HAProxy counts all requests of a client, weir only those that match this";
            self.draft.different(line, why);
        }
        let name = format!("{}-{}", self.tree.nodes[counter.table].argument(1), measure.count());
        let over = self.over(section, line, &measure);
        let status = STATUSES
            .iter()
            .find(|(name, _)| *name == counter.name)
            .map_or("", |(_, status)| status);
        // A refusal is one more error in HAProxy.
        let is_of_errors = counter.name == "http_err_rate";
        if is_of_errors {
            let why = "HAProxy also counts requests that its rules reject; weir does not count \
                those that its limits reject";
            self.draft.different_once(line, why);
        }
        let is_rate = matches!(measure, Measure::Rate { .. });
        let hammer = is_rate && (status.is_empty() || is_of_errors);
        if is_rate {
            let why = "HAProxy counts requests within the time in `store`; weir accepts that many \
                at once, and then that many spread evenly over this time";
            self.draft.different_once(line, why);
        }
        if self.tree.children(ROOT).filter(|(_, node)| PROXIES.contains(&node.name())).count() > 1 {
            self.draft.different_once(line, "weir's limits apply to every `listen`");
        }
        self.tables.insert(counter.table);
        self.tracks.extend([counter.track.place]);
        self.draft.remembers(size);
        for requests in all {
            // A refused request counts as well, so the client has to be silent first.
            let (place, what, name, over) = (line.place, line.shown(), name.clone(), over.clone());
            self.draft.limit(Limit {
                place,
                what,
                name,
                measure,
                status,
                by: String::new(),
                over,
                observe: false,
                hammer,
                requests,
            });
        }
        true
    }

    /// Returns the counter of the whole condition, with the rest of it.
    fn comparison(&self, section: usize, line: &'t Node) -> Option<Comparison<'t>> {
        let (false, words) = condition(line) else { return None };
        let (mut found, mut rest) = (None, Vec::new());
        let mut at = 0;
        while at < words.len() {
            let end = if words[at] == "{" {
                at + 1 + words[at..].iter().position(|word| word == "}")?
            } else {
                at + 1
            };
            let part = &words[at..end];
            let inside: Vec<&'t str> = match part {
                [_, inside @ .., _] => inside.iter().map(String::as_str).collect(),
                [name] if name == "or" || name == "||" => return None,
                _ => self.acl(section, &part[0]),
            };
            at = end;
            match compared(&inside) {
                Some(comparison) if found.is_none() => found = Some(comparison),
                _ => rest.extend(part.iter().cloned()),
            }
        }
        found.map(|(fetch, most)| Comparison { fetch, most, rest })
    }

    /// Returns the condition of the only ACL with this name; empty: it has several.
    fn acl(&self, section: usize, name: &str) -> Vec<&'t str> {
        let mut acls = self.tree.named(section, "acl").filter(|acl| acl.argument(1) == name);
        match (acls.next(), acls.next()) {
            (Some(acl), None) => acl.arguments().skip(1).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the requests of a client that count, and the clients that are exempt. None: `match`
    /// cannot express it.
    fn requests_of(
        &mut self,
        section: usize,
        line: &Node,
        rest: &[String],
    ) -> Option<(Vec<Requests>, Vec<String>)> {
        let cases = if rest.is_empty() {
            vec![Case::default()]
        } else {
            self.cases_of(section, line, rest)?
        };
        let mut exempt: Vec<String> = Vec::new();
        let mut all: Vec<Requests> = Vec::new();
        for case in &cases {
            let (requests, whom) = Requests::of(case)?;
            exempt.extend_from_slice(whom);
            all.push(requests);
        }
        Some((all, exempt))
    }

    /// Returns where a counter is, and the line that counts.
    fn counter(
        &self,
        frontend: usize,
        section: usize,
        comparison: &Comparison<'t>,
    ) -> Option<Counter<'t>> {
        let (fetch, most) = (comparison.fetch, comparison.most);
        let (fetch, arguments) =
            match fetch.strip_suffix(')').and_then(|fetch| fetch.split_once('(')) {
                Some((fetch, arguments)) => (fetch, arguments),
                None => (fetch, ""),
            };
        if let Some(name) = fetch.strip_prefix("src_") {
            let table = self.table(frontend, arguments)?;
            // Only a counter of all requests of a client equals weir's.
            let mut lines = self
                .tree
                .children(section)
                .chain(self.tree.children(frontend))
                .map(|(_, node)| node);
            let counts = |node: &&Node| {
                let own = tracked(node, &comparison.rest, |word| word.starts_with("track-sc"));
                own.is_some_and(|own| self.table(frontend, own) == Some(table))
            };
            return Some(Counter { name, table, track: lines.find(counts)?, most });
        }
        // `sc_NAME(0)`, `sc_NAME(0,TABLE)`, `sc0_NAME`, `sc0_NAME(TABLE)`.
        let rest = fetch.strip_prefix("sc")?;
        let (digit, name) = rest.split_once('_')?;
        let (digit, named) = match digit {
            "" => arguments.split_once(',').unwrap_or((arguments, "")),
            digit => (digit, arguments),
        };
        let word = format!("track-sc{digit}");
        let mut lines = self.tree.children(section).map(|(_, node)| node);
        let track = lines.find(|node| node.arguments().any(|other| other == word))?;
        let own = tracked(track, &comparison.rest, |other| other == word)?;
        let table = self.table(frontend, if named.is_empty() { own } else { named })?;
        Some(Counter { name, table, track, most })
    }

    /// Returns the section whose table has this name; empty: the frontend.
    fn table(&self, frontend: usize, name: &str) -> Option<usize> {
        let mut sections = self.tree.children(ROOT);
        let is_meant = |node: &Node| node.argument(1) == name && node.name() != "defaults";
        if name.is_empty() {
            Some(frontend)
        } else {
            sections.find(|(_, node)| is_meant(node)).map(|(at, _)| at)
        }
    }

    /// Returns the measure, and how many clients the table has room for.
    fn measure(&self, line: &Node, counter: &Counter<'_>) -> Option<(Measure, u64)> {
        let table = self.tree.last(counter.table, "stick-table")?;
        let behind = |word: &str| table.arguments().skip_while(|other| *other != word).nth(1);
        let most = Some(counter.most).filter(|most| (1..=AMOUNT_MAX).contains(most))?;
        if !matches!(behind("type"), Some("ip" | "ipv6")) {
            return None;
        }
        let is_of_connections = (line.name(), line.argument(1)) == ("tcp-request", "connection");
        let stored = behind("store")?.split(',').map(str::trim);
        let mut times = stored
            .filter_map(|one| one.strip_prefix(counter.name)?.strip_prefix('(')?.strip_suffix(')'));
        let mut rate = |count| {
            let (number, seconds) = per_unit(most, time(times.next()?)?)?;
            Some(Measure::Rate { count, number, seconds, burst: most })
        };
        let measure = match (counter.name, is_of_connections) {
            ("http_req_rate", false) if line.name() == "http-request" => rate("requests")?,
            ("http_err_rate" | "http_fail_rate", false) if line.name() == "http-request" => {
                rate("answers")?
            }
            ("conn_rate", true) => rate("connections")?,
            ("conn_cur", true) => Measure::Number { count: "open", max: most },
            _ => return None,
        };
        let size = behind("size").unwrap_or_default().to_ascii_lowercase();
        let digits = size.bytes().take_while(u8::is_ascii_digit).count();
        let scale = match &size[digits..] {
            "k" => 1 << 10,
            "m" => 1 << 20,
            _ => 1,
        };
        Some((measure, size[..digits].parse::<u64>().unwrap_or_default().saturating_mul(scale)))
    }

    /// Returns the consequence of exceeding the limit.
    fn over(&mut self, section: usize, line: &Node, measure: &Measure) -> Option<String> {
        if !matches!(measure.count(), "requests" | "answers") {
            return None;
        }
        let status =
            line.arguments().skip_while(|word| *word != "deny_status" && *word != "status").nth(1);
        match (line.argument(1), status.unwrap_or("403")) {
            ("deny", "429") => None,
            ("deny", status) if status.len() == 3 && texts::shield::over(status).is_ok() => {
                Some(status.to_owned())
            }
            ("tarpit", _) => {
                // Without its own time it has that of a connect.
                let said = self
                    .one(section, &["timeout", "tarpit"])
                    .or(self.one(section, &["timeout", "connect"]));
                match said.and_then(|said| Some((said, time(said.argument(2))?))) {
                    Some((said, us)) => self.draft.tarpits(said, us),
                    None => self.draft.different(
                        line,
                        "it waits for the `tarpit` time of `shield`, by default 10 s",
                    ),
                }
                if status != Some("429") {
                    self.draft.different_once(
                        line,
                        "weir answers with 429 where HAProxy answers with 500",
                    );
                }
                Some("tarpit".to_owned())
            }
            ("reject" | "silent-drop", _) => {
                self.draft.different(line, "weir resets the connection");
                Some("reset".to_owned())
            }
            _ => {
                self.draft.different(line, "weir rejects at once, with 429");
                None
            }
        }
    }
}

/// Returns the counter of a client that is compared, and the highest value that passes.
fn compared<'t>(words: &[&'t str]) -> Option<(&'t str, u64)> {
    let [fetch, how, number] = words else { return None };
    let bare = fetch.split('(').next().unwrap_or_default();
    let is_counter = (bare.starts_with("sc") || bare.starts_with("src_"))
        && ["_rate", "_cur", "_cnt"].iter().any(|end| bare.ends_with(end));
    let number = number.parse::<u64>().ok().filter(|_| is_counter)?;
    match *how {
        "gt" => Some((fetch, number)),
        "ge" => Some((fetch, number.saturating_sub(1))),
        _ => None,
    }
}

/// Returns the table in which a line counts each client, always or with this condition; empty: its
/// own. None: it does something else.
fn tracked<'l>(line: &'l Node, rest: &[String], is_word: impl Fn(&str) -> bool) -> Option<&'l str> {
    let (negated, words) = condition(line);
    if !words.is_empty() && (negated || words != rest) {
        return None;
    }
    let count = line.words.len() - words.len() - usize::from(!words.is_empty());
    let mut key = line.words[..count].iter().map(String::as_str);
    key.find(|word| is_word(word))?;
    match (key.next(), key.next(), key.next(), key.next()) {
        (Some("src"), None, ..) => Some(""),
        (Some("src"), Some("table"), Some(table), None) => Some(table),
        _ => None,
    }
}

/// Whether this line makes the address of a client differ from that of its connection.
fn changes_sources(line: &Node) -> bool {
    line.arguments().any(|word| SOURCES.contains(&word))
}
