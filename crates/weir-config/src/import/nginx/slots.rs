//! The locations of a server in the order in which nginx looks for them, each with the requests
//! that reach it.
//!
//! nginx takes the single path (`=`), else the longest prefix. Unless that is `^~`, the first
//! expression that matches takes the request instead. So each expression gets a slot in front of
//! each prefix that it can meet. Nested locations come before the one around them, with the same
//! rules. Bounds: [`SLOTS_MAX`], [`NESTING_MAX`](super::super::tree::NESTING_MAX) levels.

use std::cmp::Reverse;

use super::super::begin::begin_of;
use super::super::route::{Condition, Route};
use super::super::tree::Tree;
use super::paths::{How, exactly, expression, how, prefix};

/// Slots of one server.
pub(super) const SLOTS_MAX: usize = 1000;

/// What happens to the requests of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    /// This location has them, or the server itself.
    Location(usize),
    /// nginx appends a slash, because this location has the path with one.
    Slash(usize),
    /// The location may have them: its expression cannot be said.
    Unsaid(usize),
}

/// Some requests of a server.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    /// Has path and conditions.
    pub(super) route: Route,
    pub(super) take: Take,
}

/// Returns all slots, the first match holds; false: there are too many.
pub(super) fn slots(tree: &Tree, server: usize) -> (Vec<Slot>, bool) {
    let mut order = Order { tree, found: Vec::new(), is_complete: true };
    let all = Given { path: "/".to_owned(), ..Given::default() };
    order.take(server, &all, &[], 0);
    (order.found, order.is_complete)
}

/// What is known about the path of a request.
#[derive(Debug, Clone, Default)]
struct Given {
    /// The path of a route.
    path: String,
    /// The condition of the longest prefix.
    prefix: Option<Condition>,
    expressions: Vec<Condition>,
    /// The path begins with this.
    begin: String,
    is_unsaid: bool,
}

impl Given {
    fn below(&self, text: &str) -> Option<Given> {
        if self.begin.starts_with(text) {
            return Some(self.clone());
        }
        let (path, condition) = Some(prefix(text)).filter(|_| text.starts_with(&self.begin))?;
        let path = if path.len() < self.path.len() { self.path.clone() } else { path };
        Some(Given { path, prefix: condition, begin: text.to_owned(), ..self.clone() })
    }

    /// Returns the part that an expression matches. None: it matches nothing here.
    fn matching(&self, text: &str, any_case: bool) -> Option<Given> {
        let begin = begin_of(text);
        let fits = |one: &str, other: &str| {
            let both = one.len().min(other.len());
            let [one, other] = [&one.as_bytes()[..both], &other.as_bytes()[..both]];
            if any_case { one.eq_ignore_ascii_case(other) } else { one == other }
        };
        if !fits(&begin, &self.begin) {
            return None;
        }
        let mut given = self.clone();
        match expression(text, any_case) {
            Some(ours) => {
                let condition = Condition::of_path(ours, false);
                if !given.expressions.contains(&condition) {
                    given.expressions.push(condition);
                }
                // It says as much as the prefix.
                if !any_case && begin.starts_with(&self.begin) {
                    given.prefix = None;
                }
            }
            None => {
                given.is_unsaid = true;
                let begin = if any_case { String::new() } else { begin };
                if begin.len() > self.begin.len() {
                    return self.below(&begin).map(|given| Given { is_unsaid: true, ..given });
                }
            }
        }
        Some(given)
    }

    fn route(&self) -> Route {
        let conditions = self.prefix.iter().chain(&self.expressions).cloned().collect();
        Route { path: self.path.clone(), conditions, ..Route::default() }
    }
}

struct Order<'t> {
    tree: &'t Tree,
    found: Vec<Slot>,
    is_complete: bool,
}

impl<'t> Order<'t> {
    /// Returns the locations directly inside of a block.
    fn inside(&self, block: usize) -> Vec<(usize, How, &'t str)> {
        let all = self.tree.indices(block, "location").iter();
        all.map(|at| {
            let (how, text) = how(&self.tree.nodes[*at]);
            (*at, how, text)
        })
        .collect()
    }

    /// Adds the slots of a block for the requests that reach it. `outer`: blocks around, whose
    /// expressions come after its own. Recurses as deep as blocks are nested.
    fn take(&mut self, block: usize, given: &Given, outer: &[usize], depth: usize) {
        if depth > super::super::tree::NESTING_MAX {
            self.is_complete = false;
            return;
        }
        let inside = self.inside(block);
        for (at, _, text) in inside.iter().filter(|(_, how, _)| *how == How::Exact) {
            self.exact(given, text, Take::Location(*at));
        }
        let mut prefixes: Vec<(usize, How, &str)> = inside
            .iter()
            .filter(|(_, how, text)| {
                matches!(how, How::Only | How::Prefix) && text.starts_with('/')
            })
            .copied()
            .collect();
        prefixes.sort_by_key(|(.., text)| Reverse(text.len()));
        for (at, how, text) in
            inside.iter().filter(|(_, how, _)| matches!(how, How::Only | How::Prefix | How::Exact))
        {
            let path = text.strip_suffix('/').filter(|path| !path.is_empty());
            let Some(path) = path.filter(|_| self.passes_on(*at)) else { continue };
            let is_there = |other: &(usize, How, &str)| {
                other.2 == path && matches!(other.1, How::Exact | How::Only | How::Prefix)
            };
            let is_second = *how == How::Exact && prefixes.iter().any(|one| one.2 == *text);
            if !inside.iter().any(is_there) && !is_second {
                self.exact(given, path, Take::Slash(*at));
            }
        }
        // One of them takes all requests of this block.
        let is_covered =
            prefixes.iter().any(|(.., text)| *text == "/" || given.begin.starts_with(text));
        for (at, how, text) in prefixes {
            let Some(part) = given.below(text) else { continue };
            let mut around: Vec<usize> = if how == How::Only { Vec::new() } else { vec![block] };
            around.extend(outer);
            self.take(at, &part, &around, depth + 1);
        }
        if is_covered {
            return;
        }
        for around in [block].iter().chain(outer) {
            for (at, how, text) in self.inside(*around) {
                let How::Regex(any_case) = how else { continue };
                if let Some(part) = given.matching(text, any_case) {
                    self.take(at, &part, &[], depth + 1);
                }
            }
        }
        let take = if given.is_unsaid { Take::Unsaid(block) } else { Take::Location(block) };
        self.add(Slot { route: given.route(), take });
    }

    fn exact(&mut self, given: &Given, text: &str, take: Take) {
        if !text.starts_with(&given.begin) && !given.begin.is_empty() {
            return;
        }
        let (path, exact, condition) = exactly(text);
        let conditions = condition.iter().chain(&given.expressions).cloned().collect();
        let take = match take {
            Take::Location(at) if given.is_unsaid => Take::Unsaid(at),
            take => take,
        };
        self.add(Slot { route: Route { path, exact, conditions, ..Route::default() }, take });
    }

    fn add(&mut self, slot: Slot) {
        if self.found.len() < SLOTS_MAX { self.found.push(slot) } else { self.is_complete = false }
    }

    /// Whether nginx appends a slash for a location.
    fn passes_on(&self, at: usize) -> bool {
        ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass", "memcached_pass"]
            .iter()
            .any(|name| !self.tree.indices(at, name).is_empty())
    }
}
