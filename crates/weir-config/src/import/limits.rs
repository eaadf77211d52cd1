//! Limits for each client, as `limit` of `shield`. Filled by the dialects, settled and written at
//! the end. Bounds: those of the compiler, [`LIMITS_MAX`] and [`IN_PROGRESS_MAX`].

use std::collections::BTreeSet;
use std::fmt::Write as _;

use weir_proxy::plan::{IN_PROGRESS_MAX, LIMITS_MAX};

use super::cases::Case;
use super::draft::Draft;
use super::notes::{Kind, harmless};
use super::route::Route;
use super::tree::{Node, Place};
use crate::reverse::literal;
use crate::texts;
use crate::units::time_text;

/// The highest number that weir accepts.
pub(super) const AMOUNT_MAX: u64 = 1_000_000;
/// Clients that a table has room for by default, and at most.
const CLIENTS: u64 = 65_536;
const CLIENTS_MAX: u64 = 16 << 20;

/// All limits.
#[derive(Debug, Default)]
pub(super) struct Limits {
    list: Vec<Limit>,
    /// Clients that are remembered at a time in the source.
    clients: u64,
    /// Clients that are exempt from all limits.
    allow: BTreeSet<String>,
    /// How long refusals wait, microseconds; None: weir's default.
    tarpit_us: Option<u64>,
}

/// One limit.
#[derive(Debug, Clone)]
pub(super) struct Limit {
    pub(super) place: Place,
    pub(super) what: String,
    /// Its name, which is common to all that count together.
    pub(super) name: String,
    pub(super) measure: Measure,
    /// The responses that count, as written; empty: it does not count responses.
    pub(super) status: &'static str,
    /// The key that it counts by, as written; empty: each client.
    pub(super) by: String,
    /// The consequence of exceeding it, as written; None: 429.
    pub(super) over: Option<String>,
    /// No client is refused.
    pub(super) observe: bool,
    /// A refused client has to be silent first.
    pub(super) hammer: bool,
    pub(super) requests: Requests,
}

/// What is counted, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measure {
    /// A number in a number of seconds, and a burst.
    Rate { count: &'static str, number: u64, seconds: u64, burst: u64 },
    /// A number at a time.
    Number { count: &'static str, max: u64 },
}

/// The requests: those for one of the hosts and one of the paths, with one of the methods. Empty:
/// all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Requests {
    pub(super) hosts: BTreeSet<String>,
    /// These paths alone.
    pub(super) exact: BTreeSet<String>,
    /// These paths with all below.
    pub(super) prefixes: BTreeSet<String>,
    /// With one of these methods.
    pub(super) methods: BTreeSet<String>,
}

impl Measure {
    pub(super) fn count(&self) -> &'static str {
        match self {
            Measure::Rate { count, .. } | Measure::Number { count, .. } => count,
        }
    }

    /// Whether in the long run no more of the same pass than with the other one.
    fn is_slower(&self, other: &Measure) -> bool {
        match (self, other) {
            (
                Measure::Rate { number, seconds, .. },
                Measure::Rate { number: others, seconds: theirs, .. },
            ) => number.saturating_mul(*theirs) <= others.saturating_mul(*seconds),
            (Measure::Number { max, .. }, Measure::Number { max: other, .. }) => max <= other,
            _ => false,
        }
    }

    /// Whether everything that passes this also passes the other one.
    pub(super) fn shadows(&self, other: &Measure) -> bool {
        let at_once = |measure: &Measure| match measure {
            Measure::Rate { burst, .. } => *burst,
            Measure::Number { max, .. } => *max,
        };
        self.count() == other.count() && self.is_slower(other) && at_once(self) <= at_once(other)
    }

    fn written(&self) -> String {
        match self {
            Measure::Rate { count, number, seconds, burst } => {
                let unit = match seconds {
                    1 => "s",
                    60 => "min",
                    _ => "h",
                };
                format!("count=\"{count}\" rate=\"{number}/{unit}\" burst={burst}")
            }
            Measure::Number { count, max } => format!("count=\"{count}\" max={max}"),
        }
    }
}

impl Requests {
    /// Whether it covers all paths.
    pub(super) fn has_all_paths(&self) -> bool {
        self.exact.is_empty() && self.prefixes.is_empty()
    }

    fn is_everything(&self) -> bool {
        self.hosts.is_empty() && self.has_all_paths() && self.methods.is_empty()
    }

    /// Returns the requests of a case, and the clients that it exempts. None: `match` cannot
    /// express it.
    pub(super) fn of(case: &Case) -> Option<(Requests, &[String])> {
        let route = case.route(Route::default());
        let exempt = case.exempt()?;
        if route.scheme.is_some() || !route.conditions.is_empty() {
            return None;
        }
        let mut requests =
            Requests { methods: route.methods.into_iter().collect(), ..Requests::default() };
        requests.hosts.extend(Some(route.host).filter(|host| host != "*"));
        let paths = if route.exact { &mut requests.exact } else { &mut requests.prefixes };
        paths.extend(Some(route.path).filter(|path| path != "/" || route.exact));
        (!requests.is_refused()).then_some((requests, exempt))
    }

    /// Whether the table refuses a part of it.
    fn is_refused(&self) -> bool {
        let paths =
            self.exact.iter().chain(&self.prefixes).any(|path| texts::route_path(path).is_err());
        paths
            || self.hosts.iter().any(|host| texts::host_pattern(host).is_err())
            || self.methods.iter().any(|method| texts::method(method).is_err())
    }

    /// Adds the others, if both can be expressed as one.
    fn join(&mut self, others: &Requests) -> bool {
        if self.methods != others.methods {
            return false;
        }
        if self.hosts == others.hosts {
            if self.has_all_paths() || others.has_all_paths() {
                (self.exact, self.prefixes) = Default::default();
            } else {
                self.exact.extend(others.exact.iter().cloned());
                self.prefixes.extend(others.prefixes.iter().cloned());
            }
            return true;
        }
        if self.exact != others.exact || self.prefixes != others.prefixes {
            return false;
        }
        if self.hosts.is_empty() || others.hosts.is_empty() {
            self.hosts.clear();
        } else {
            self.hosts.extend(others.hosts.iter().cloned());
        }
        true
    }
}

impl Draft<'_> {
    /// Adds a limit; if it counts the same together with an existing one, it becomes part of that.
    pub(super) fn limit(&mut self, limit: Limit) {
        let is_same = |other: &Limit| {
            (other.measure, other.status, &other.by, &other.over, other.observe)
                == (limit.measure, limit.status, &limit.by, &limit.over, limit.observe)
        };
        let mut together = self.limits.list.iter_mut().filter(|other| other.name == limit.name);
        if together.any(|other| is_same(other) && other.requests.join(&limit.requests)) {
            return;
        }
        let is_together =
            |other: &Limit| other.name == limit.name && other.requests != limit.requests;
        let is_shared = self.limits.list.iter().any(is_together);
        let mut same =
            self.limits.list.iter().filter(|other| other.measure.count() == limit.measure.count());
        let why = match limit.measure.count() {
            _ if self.limits.list.len() >= LIMITS_MAX => {
                format!("weir takes at most {LIMITS_MAX} limits")
            }
            "in-progress" if same.nth(IN_PROGRESS_MAX - 1).is_some() => {
                format!("weir takes at most {IN_PROGRESS_MAX} limits of requests in progress")
            }
            "open" if same.next().is_some() => {
                "weir takes one limit of open connections".to_owned()
            }
            _ => {
                if is_shared {
                    let why = format!(
                        "`{}` counts these together here; each limit of weir counts separately",
                        limit.name
                    );
                    self.note(limit.place, Kind::Different, &limit.what, why);
                }
                return self.limits.list.push(limit);
            }
        };
        self.note(limit.place, Kind::Lost, &limit.what, why);
    }

    /// Exempts these addresses from all limits.
    pub(super) fn exempt(&mut self, whom: Vec<String>) {
        self.limits.allow.extend(whom);
    }

    /// Sets the waiting time of refusals.
    pub(super) fn tarpits(&mut self, node: &Node, us: u64) {
        let fit = us.clamp(1_000_000, 60_000_000);
        if fit != us {
            self.different(node, "`tarpit` has the nearest value that weir allows");
        }
        let longest = self.limits.tarpit_us.map_or(fit, |other| other.max(fit));
        if self.limits.tarpit_us.is_some_and(|other| other != fit) {
            self.different(node, "weir has one `tarpit` for all limits, and uses the longest");
        }
        self.limits.tarpit_us = Some(longest);
    }

    /// Notes how many clients are remembered at a time in the source of a limit.
    pub(super) fn remembers(&mut self, clients: u64) {
        self.limits.clients = self.limits.clients.max(clients);
    }

    /// Removes limits that would never refuse a client, and gives each a unique name.
    pub(super) fn settle_limits(&mut self) {
        let mut kept: Vec<Limit> = Vec::new();
        for mut limit in std::mem::take(&mut self.limits.list) {
            let hides = |other: &&Limit| {
                let acts = !other.observe || limit.observe;
                let same = other.requests == limit.requests
                    && other.status == limit.status
                    && other.by == limit.by;
                acts && same && other.measure.shadows(&limit.measure)
            };
            if let Some(other) = kept.iter().find(hides) {
                let why = format!("`{}` limits the same requests and rejects first", other.name);
                self.note(limit.place, Kind::Lost, &limit.what, why);
                continue;
            }
            let fine = |c: char| {
                if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' }
            };
            let base: String = limit.name.chars().map(fine).take(48).collect();
            let base = if base.is_empty() { "limit".to_owned() } else { base };
            let mut names =
                std::iter::once(base.clone()).chain((2..).map(|number| format!("{base}-{number}")));
            let free = names.find(|name| kept.iter().all(|other| other.name != *name));
            limit.name = free.unwrap_or(base);
            kept.push(limit);
        }
        self.limits.list = kept;
    }
}

/// Converts a number in this time to a rate that weir accepts: the number, and the seconds.
pub(super) fn per_unit(most: u64, window_us: u64) -> Option<(u64, u64)> {
    let number = |seconds: u64| most.checked_mul(seconds)?.checked_mul(1_000_000);
    let is_whole =
        |seconds: &u64| number(*seconds).is_some_and(|all| window_us > 0 && all % window_us == 0);
    let seconds = [1, 60, 3600].into_iter().find(is_whole).unwrap_or(3600);
    let number = number(seconds).filter(|_| window_us > 0)?.div_ceil(window_us);
    (number <= AMOUNT_MAX).then_some((number, seconds))
}

/// Writes `shield`, if any limit exists.
pub(super) fn write(out: &mut String, draft: &Draft<'_>) {
    if draft.limits.list.is_empty() {
        return;
    }
    out.push_str("\nshield {\n");
    let clients = draft.limits.clients.clamp(CLIENTS, CLIENTS_MAX).next_power_of_two();
    if clients > CLIENTS {
        let _ = writeln!(out, "    table {clients}");
    }
    if let Some(us) = draft.limits.tarpit_us {
        let _ = writeln!(out, "    tarpit \"{}\"", time_text(us));
    }
    if !draft.limits.allow.is_empty() {
        let _ = writeln!(out, "    allow{}", words(&draft.limits.allow));
    }
    for limit in &draft.limits.list {
        let what: String = harmless(limit.what.chars().take(80)).collect();
        let _ = writeln!(out, "    // {} {what}", draft.sources.short(limit.place));
        let _ = write!(out, "    limit {} {}", literal(&limit.name), limit.measure.written());
        if !limit.status.is_empty() {
            let _ = write!(out, " status={}", literal(limit.status));
        }
        if !limit.by.is_empty() {
            let _ = write!(out, " by={}", literal(&limit.by));
        }
        if let Some(over) = &limit.over {
            let _ = write!(out, " over={}", literal(over));
        }
        if limit.hammer {
            out.push_str(" hammer=#true");
        }
        if limit.observe {
            out.push_str(" observe=#true");
        }
        write_match(out, &limit.requests);
    }
    out.push_str("}\n");
}

fn write_match(out: &mut String, requests: &Requests) {
    if requests.is_everything() {
        return out.push('\n');
    }
    out.push_str(" {\n        match {\n");
    let lines = [
        ("host", &requests.hosts),
        ("path", &requests.exact),
        ("prefix", &requests.prefixes),
        ("methods", &requests.methods),
    ];
    for (name, texts) in lines.into_iter().filter(|(_, texts)| !texts.is_empty()) {
        let _ = writeln!(out, "            {name}{}", words(texts));
    }
    out.push_str("        }\n    }\n");
}

fn words(texts: &BTreeSet<String>) -> String {
    texts.iter().map(|text| format!(" {}", literal(text))).collect()
}

#[cfg(test)]
mod tests {
    //! Proves: requests of two limits become those of one only if that has exactly these. How: a
    //! table, judged by membership.

    use super::*;

    fn requests(hosts: &[&str], exact: &[&str], prefixes: &[&str]) -> Requests {
        let set = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Requests {
            hosts: set(hosts),
            exact: set(exact),
            prefixes: set(prefixes),
            methods: BTreeSet::new(),
        }
    }

    fn has(requests: &Requests, host: &str, path: &str) -> bool {
        let of_path = requests.has_all_paths()
            || requests.exact.contains(path)
            || requests.prefixes.iter().any(|prefix| path.starts_with(prefix.as_str()));
        of_path && (requests.hosts.is_empty() || requests.hosts.contains(host))
    }

    #[test]
    fn joined_requests_are_those_of_both() {
        let all = [
            requests(&[], &[], &[]),
            requests(&["a"], &[], &[]),
            requests(&["b"], &[], &[]),
            requests(&["a"], &["/x"], &[]),
            requests(&["a"], &[], &["/y"]),
            requests(&["b"], &["/x"], &[]),
            requests(&[], &["/x"], &["/y"]),
        ];
        let mut joined = 0;
        for one in &all {
            for other in &all {
                let mut both = one.clone();
                if !both.join(other) {
                    assert_eq!(both, *one);
                    continue;
                }
                joined += 1;
                for host in ["a", "b", "c"] {
                    for path in ["/x", "/x/1", "/y", "/y/1", "/z"] {
                        let expected = has(one, host, path) || has(other, host, path);
                        assert_eq!(
                            has(&both, host, path),
                            expected,
                            "{one:?} {other:?} {host} {path}"
                        );
                    }
                }
            }
        }
        assert!(joined > all.len());
    }

    #[test]
    fn measures() {
        let rate =
            |number, seconds, burst| Measure::Rate { count: "requests", number, seconds, burst };
        assert!(
            rate(60, 60, 1).is_slower(&rate(1, 1, 5)) && rate(1, 1, 5).is_slower(&rate(60, 60, 1))
        );
        assert!(rate(1, 1, 1).shadows(&rate(2, 1, 1)) && !rate(1, 1, 2).shadows(&rate(2, 1, 1)));
        assert!(!rate(2, 1, 1).shadows(&rate(60, 60, 9)));
        let number = |count, max| Measure::Number { count, max };
        assert!(
            number("open", 1).shadows(&number("open", 1))
                && !number("open", 1).shadows(&number("in-progress", 1))
        );
        assert!(!number("open", 1).is_slower(&rate(1, 1, 1)));
    }

    #[test]
    fn rates_in_units_of_weir() {
        let second = 1_000_000;
        for (most, window_us, expected) in [
            (100, 10 * second, Some((10, 1))),
            (20, 3 * second, Some((400, 60))),
            (5, 3600 * second, Some((5, 3600))),
            (10, 7 * second, Some((5143, 3600))),
            (1, 86_400 * second, Some((1, 3600))),
            (1_000_000, 1, None),
            (1, 0, None),
        ] {
            assert_eq!(per_unit(most, window_us), expected, "{most} in {window_us}");
        }
    }
}
