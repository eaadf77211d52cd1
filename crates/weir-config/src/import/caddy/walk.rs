//! Follows the directives of a site in their effective order, as Caddy does for a request.
//!
//! Where a directive changes requests that only some of them match, the rest of the site is
//! followed twice. Bounds: [`STEPS_MAX`] directives of one site, [`DEPTH_MAX`] such places within
//! each other; beyond them the requests are closed.

use weir_proxy::request::rules::edits::Side;

use super::super::cases::Effect;
use super::super::missing::Missing;
use super::super::notes::Kind;
use super::super::order::RULES_MAX;
use super::super::own_answer::Content;
use super::super::route::{Route, Scheme, To};
use super::fate::Turn;
use super::fold::{Deed, Event, fold};
use super::matcher::Test;
use super::order::{Role, role};
use super::pieces::{Piece, located, meet};
use super::{Caddy, GUARDS, Scope};

/// Directives that are followed for one site.
pub(super) const STEPS_MAX: usize = 5000;
/// Changes of some requests within each other.
const DEPTH_MAX: usize = 32;

/// The text of routes for what no directive handles.
pub(super) const REST: &str = "no directive handles this";

/// Directives of a block that are to come, the next one last.
#[derive(Clone, Default)]
pub(super) struct Frame {
    rest: Vec<usize>,
    /// One of its `handle` blocks has been taken.
    is_handled: bool,
    /// One of its `rewrite` directives has been taken.
    is_rewritten: bool,
}

/// What follows a directive.
enum Next {
    /// The other directives.
    Go,
    /// Nothing: it takes all requests.
    End,
}

impl Caddy<'_, '_, '_> {
    /// Returns the routes of a block, of which the first match holds. They take all requests of
    /// the scope.
    pub(super) fn follow(&mut self, block: usize, mut scope: Scope) -> Vec<Route> {
        let frame = self.open(block, &mut scope);
        self.run(scope, vec![frame], 0)
    }

    /// Returns the directives of a block, and applies those that hold for all of it.
    fn open(&mut self, block: usize, scope: &mut Scope) -> Frame {
        let mut rest = Vec::new();
        for (at, node) in self.tree.children(block) {
            match role(node.name()) {
                Role::Quiet => self.tell(at, scope),
                Role::Acts => rest.push(at),
            }
        }
        if self.tree.nodes[block].name() != "route" {
            rest = self.in_order(rest);
        }
        rest.reverse();
        Frame { rest, ..Frame::default() }
    }

    fn run(&mut self, mut scope: Scope, mut frames: Vec<Frame>, depth: usize) -> Vec<Route> {
        let mut events = Vec::new();
        let mut is_open = true;
        while let Some(at) = self.next(&mut frames) {
            let node = &self.tree.nodes[at];
            self.steps += 1;
            let count: usize = events.iter().map(Event::count).sum();
            if self.steps > STEPS_MAX || depth > DEPTH_MAX || count > RULES_MAX {
                let base = self.base(at, &scope);
                let why = "there are too many rules in front of it; weir rejects all requests that \
                    come here";
                self.draft.note(node.place, Kind::Closed, &node.shown(), why);
                let pieces = scope.pieces.clone();
                events.push(Event { pieces, deed: Deed::End(To::Closed, false), base });
                is_open = false;
                break;
            }
            let test = self.matcher(at);
            let test = if self.is_guard(at) { test.without_sockets() } else { test };
            let test = scope.seen.asked(test);
            let is_all = test.is_always();
            let pieces = self.pieces(at, &scope, &test, is_all);
            if pieces.is_empty() {
                continue;
            }
            let next = match node.name() {
                "header" | "request_header" => {
                    let side = if node.name() == "header" { Side::Answer } else { Side::Request };
                    events.extend(self.fields(at, side, (pieces, is_all), &mut scope));
                    Next::Go
                }
                "rewrite" | "uri" | "method" | "try_files" => {
                    let place = (pieces, is_all, depth);
                    self.turn_off(at, place, &mut scope, &mut frames, &mut events)
                }
                "handle" | "handle_path" | "route" => {
                    let place = (pieces, is_all, depth);
                    self.enter(at, place, &mut scope, &mut frames, &mut events)
                }
                _ => {
                    events.extend(self.ends(at, pieces, &scope));
                    if is_all { Next::End } else { Next::Go }
                }
            };
            if matches!(next, Next::End) {
                is_open = false;
                break;
            }
        }
        let rest = if is_open { self.unhandled(&scope) } else { Vec::new() };
        fold(self.draft, events, rest)
    }

    /// Returns the next directive.
    fn next(&self, frames: &mut Vec<Frame>) -> Option<usize> {
        loop {
            let frame = frames.last_mut()?;
            let Some(at) = frame.rest.pop() else {
                frames.pop();
                continue;
            };
            let is_over = match self.tree.nodes[at].name() {
                "handle" | "handle_path" => frame.is_handled,
                "rewrite" => frame.is_rewritten,
                _ => false,
            };
            if !is_over {
                return Some(at);
            }
        }
    }

    /// Returns the requests of a scope that a directive matches. If there are too many pieces, all
    /// of them may match.
    fn pieces(&mut self, at: usize, scope: &Scope, test: &Test, is_all: bool) -> Vec<Piece> {
        if is_all {
            return scope.pieces.clone();
        }
        meet(scope.pieces.clone(), test, false).unwrap_or_else(|| {
            self.draft.lost(&self.tree.nodes[at], "its matcher has too many cases");
            scope.pieces.iter().map(Piece::unsaid).collect()
        })
    }

    fn base(&self, at: usize, scope: &Scope) -> Route {
        let node = &self.tree.nodes[at];
        Route {
            place: node.place,
            what: node.shown(),
            rewrites: scope.seen.rewrites(),
            ..scope.changes.clone()
        }
    }

    /// Caddy sends an empty response where no directive handles a request.
    fn unhandled(&mut self, scope: &Scope) -> Vec<Route> {
        let to = self.draft.respond(&self.tree.nodes[0], "200", Content::default());
        let to = to.unwrap_or_default();
        let base = Route { what: REST.to_owned(), to, ..scope.changes.clone() };
        scope.pieces.iter().map(|piece| located(&piece.case, base.clone())).collect()
    }

    /// Follows the rest of the site for some requests. Those of which routes cannot tell whether
    /// they are among them are closed.
    fn split(
        &mut self,
        at: usize,
        pieces: Vec<Piece>,
        inner: &Scope,
        (frames, depth): (&[Frame], usize),
    ) -> Vec<Event> {
        let base = self.base(at, inner);
        let (said, unsaid): (Vec<Piece>, Vec<Piece>) = pieces.into_iter().partition(Piece::is_said);
        let (plain, others): (Vec<Piece>, Vec<Piece>) = said.into_iter().partition(Piece::is_plain);
        let mut events = Vec::new();
        let refuses = self.is_guard(at);
        if !unsaid.is_empty() {
            let deed = Deed::End(To::Closed, refuses);
            events.push(Event { pieces: unsaid, deed, base: base.clone() });
        }
        let parts = others.into_iter().map(|piece| vec![piece]);
        for part in [plain].into_iter().filter(|plain| !plain.is_empty()).chain(parts) {
            let pieces = part.iter().map(Piece::whole).collect();
            let scope = Scope { pieces, ..inner.clone() };
            let routes = self.run(scope, frames.to_vec(), depth + 1);
            let pieces = part.into_iter().take(1).collect();
            events.push(Event { pieces, deed: Deed::Go(routes), base: base.clone() });
        }
        events
    }

    /// Follows a block: its requests never take another `handle` beside it.
    fn enter(
        &mut self,
        at: usize,
        (pieces, is_all, depth): (Vec<Piece>, bool, usize),
        scope: &mut Scope,
        frames: &mut Vec<Frame>,
        events: &mut Vec<Event>,
    ) -> Next {
        let node = &self.tree.nodes[at];
        let mut inner = Scope { pieces: pieces.clone(), ..scope.clone() };
        let mut odd = Vec::new();
        if node.name() == "handle_path" {
            let pattern = node.argument(1);
            let prefix = pattern.trim_end_matches('*');
            let stripped = prefix.trim_end_matches('/');
            // Caddy also strips parts of segments, and no server understands the rest.
            if prefix == stripped && pattern.ends_with('*') {
                odd = self.pieces(at, scope, &self.cut(scope, stripped), false);
            }
            let is_simple = !stripped.contains(['*', '?', '{', '%', '[']);
            let is_stripped = stripped.is_empty() || is_simple && inner.seen.strip(stripped);
            if !is_stripped {
                odd.clone_from(&pieces);
            }
        }
        if !odd.is_empty() {
            events.push(self.closes(at, odd, scope, "weir cannot express this change of the path"));
        }
        let frame = self.open(at, &mut inner);
        let is_handle = node.name() != "route";
        if is_all {
            if let Some(outer) = frames.last_mut() {
                outer.is_handled |= is_handle;
            }
            frames.push(frame);
            *scope = inner;
            return Next::Go;
        }
        let mut inside = frames.clone();
        if let Some(outer) = inside.last_mut() {
            outer.is_handled |= is_handle;
        }
        inside.push(frame);
        events.extend(self.split(at, pieces, &inner, (&inside, depth)));
        Next::Go
    }

    /// Returns the test for paths that a prefix would be cut from within a segment.
    pub(super) fn cut(&self, scope: &Scope, prefix: &str) -> Test {
        let whole = [prefix.to_owned(), format!("{prefix}/*")];
        let whole = Test::Any(whole.into_iter().map(Test::Path).collect());
        let all = Test::Path(format!("{prefix}*"));
        scope.seen.asked(Test::All(vec![all, Test::Not(Box::new(whole))]))
    }

    /// Closes requests, and notes why.
    pub(super) fn closes(
        &mut self,
        at: usize,
        pieces: Vec<Piece>,
        scope: &Scope,
        why: &str,
    ) -> Event {
        let node = &self.tree.nodes[at];
        self.draft.note(node.place, Kind::Closed, &node.shown(), why);
        Event { pieces, deed: Deed::End(To::Closed, false), base: self.base(at, scope) }
    }

    /// Follows what changes the path or the method of requests.
    fn turn_off(
        &mut self,
        at: usize,
        (pieces, is_all, depth): (Vec<Piece>, bool, usize),
        scope: &mut Scope,
        frames: &mut [Frame],
        events: &mut Vec<Event>,
    ) -> Next {
        let mut inner = Scope { pieces, ..scope.clone() };
        let turn = self.turn(at, &mut inner);
        let is_rewrite = self.tree.nodes[at].name() == "rewrite";
        match turn {
            Turn::All if is_all => {
                scope.seen = inner.seen;
                if let Some(frame) = frames.last_mut() {
                    frame.is_rewritten |= is_rewrite;
                }
                Next::Go
            }
            Turn::All => {
                let mut inside = frames.to_vec();
                if let Some(frame) = inside.last_mut() {
                    frame.is_rewritten |= is_rewrite;
                }
                let pieces = inner.pieces.clone();
                events.extend(self.split(at, pieces, &inner, (&inside, depth)));
                Next::Go
            }
            Turn::Some(test, odd) => {
                let some = self.pieces(at, &inner, &test, false);
                let odd = self.pieces(at, &inner, &odd, false);
                if !odd.is_empty() {
                    let why = "Caddy cuts such a path within a segment";
                    events.push(self.closes(at, odd, scope, why));
                }
                events.extend(self.split(at, some, &inner, (frames, depth)));
                Next::Go
            }
            Turn::Closed(why) => {
                let pieces = inner.pieces.clone();
                events.push(self.closes(at, pieces, scope, why));
                if is_all { Next::End } else { Next::Go }
            }
            Turn::ClosedFor(test, why) => {
                let pieces = self.pieces(at, &inner, &test, false);
                if !pieces.is_empty() {
                    events.push(self.closes(at, pieces, scope, why));
                }
                Next::Go
            }
        }
    }

    /// Returns what a directive does that ends requests.
    fn ends(&mut self, at: usize, pieces: Vec<Piece>, scope: &Scope) -> Vec<Event> {
        let node = &self.tree.nodes[at];
        let mut base = self.base(at, scope);
        let refuses = self.is_guard(at);
        let closed = if refuses { To::Denied } else { To::Closed };
        let ends: Vec<(Option<Scheme>, To)> = match node.name() {
            "redir" => self.redir(at, scope).unwrap_or_default(),
            "respond" | "error" => self.respond(at).map(|to| vec![(None, to)]).unwrap_or_default(),
            "abort" => vec![(None, To::Denied)],
            "reverse_proxy" if !refuses => {
                let found = self.proxy(at).filter(|_| !self.drops_too_much(at));
                match self.proxy_fields(at, scope, &mut base) {
                    Ok(()) => found.map(|to| vec![(None, to)]).unwrap_or_default(),
                    Err(why) => {
                        self.draft.lost(node, why);
                        Vec::new()
                    }
                }
            }
            _ => Vec::new(),
        };
        if ends.is_empty() {
            let why = self.why_closed(at);
            self.draft.note(node.place, Kind::Closed, &node.shown(), why);
            let deed = Deed::End(closed, refuses);
            return vec![Event { pieces, deed, base }];
        }
        let event = |(scheme, to): (Option<Scheme>, To)| {
            let base = base.clone();
            let of_scheme = |piece: &Piece| match scheme {
                Some(scheme) => self.of_scheme(piece, scheme),
                None => Some(piece.clone()),
            };
            let pieces = pieces.iter().filter_map(of_scheme).collect();
            Event { pieces, deed: Deed::End(to, refuses), base }
        };
        ends.into_iter().map(event).collect()
    }

    fn of_scheme(&self, piece: &Piece, scheme: Scheme) -> Option<Piece> {
        let test = Test::Is(Effect::Scheme(scheme));
        meet(vec![piece.clone()], &test, false)?.pop()
    }

    /// Whether it keeps some clients out: `respond 403` and similar, authentication, or a block
    /// with such directives.
    pub(super) fn is_guard(&self, at: usize) -> bool {
        let refuses = |at: usize| {
            let node = &self.tree.nodes[at];
            let code = || {
                node.arguments()
                    .find(|word| word.len() == 3 && word.bytes().all(|byte| byte.is_ascii_digit()))
            };
            match node.name() {
                "abort" | "error" => true,
                "respond" => code().is_some_and(|code| code.starts_with(['4', '5'])),
                "reverse_proxy" => self.asks_first(at),
                name => GUARDS.contains(&name),
            }
        };
        match self.tree.nodes[at].name() {
            "handle" | "handle_path" | "route" => self.tree.below(at).into_iter().any(refuses),
            _ => refuses(at),
        }
    }

    /// Whether a `reverse_proxy` only asks a server whether a request may continue.
    fn asks_first(&self, at: usize) -> bool {
        const ENDS: [&str; 8] = [
            "respond",
            "error",
            "redir",
            "abort",
            "copy_response",
            "file_server",
            "reverse_proxy",
            "invoke",
        ];
        self.tree.indices(at, "handle_response").iter().any(|block| {
            !self
                .tree
                .below(*block)
                .into_iter()
                .any(|at| ENDS.contains(&self.tree.nodes[at].name()))
        })
    }

    /// Returns why a directive closes its requests.
    fn why_closed(&self, at: usize) -> &'static str {
        match self.tree.nodes[at].name() {
            name if GUARDS.contains(&name) => Missing::Access.why(),
            "file_server" | "try_files" | "templates" => Missing::Files.why(),
            "php_fastcgi" => Missing::Gateway.why(),
            "reverse_proxy" => "weir cannot forward these requests as Caddy does",
            "redir" | "respond" | "error" => {
                "weir cannot express this response, and rejects these requests"
            }
            "metrics" => "`metrics \"127.0.0.1:9100\"` at the top serves a page and OpenMetrics",
            _ => "weir has no equivalent, and rejects all requests that come here",
        }
    }
}
