//! The requests that tests match, as pieces: a case that routes can express, without other cases.
//!
//! Bound: [`PIECES_MAX`] pieces of one matcher.

use super::super::cases::{CASES_MAX, Case, Effect, Term, and_all};
use super::super::order::covers_path;
use super::super::route::Route;
use super::matcher::{Test, condition, path_condition, path_regex};

/// Pieces of one matcher.
const PIECES_MAX: usize = CASES_MAX;

/// The requests of a case except some. Its path is one of Caddy, which ignores case.
#[derive(Debug, Clone, Default)]
pub(super) struct Piece {
    pub(super) case: Case,
    /// Requests of these are not part of it.
    pub(super) except: Vec<Case>,
}

impl Piece {
    /// Whether routes can express it.
    pub(super) fn is_said(&self) -> bool {
        self.case.access().is_some()
    }

    /// Whether it has no exceptions, and is for all clients.
    pub(super) fn is_plain(&self) -> bool {
        self.except.is_empty() && self.case.access().is_some_and(|access| access.is_open())
    }

    /// Returns it for all clients, without its exceptions and what routes cannot express.
    pub(super) fn whole(&self) -> Piece {
        Piece { case: self.case.widest(), except: Vec::new() }
    }

    /// Returns it with a condition that routes cannot express.
    pub(super) fn unsaid(&self) -> Piece {
        Piece { case: self.case.all_but_some(), except: self.except.clone() }
    }

    fn and(&self, effect: Effect, not: bool) -> Option<Piece> {
        let cases = and_all(vec![self.case.clone()], &[Term { not, any: vec![effect] }])?;
        let case = cases.into_iter().next()?;
        Some(Piece { case, except: self.except.clone() })
    }

    fn without(&self, effect: Effect) -> Option<Piece> {
        let cases = and_all(vec![Case::default()], &[Term { not: false, any: vec![effect] }])?;
        let mut except = self.except.clone();
        except.extend(cases);
        Some(Piece { case: self.case.clone(), except })
    }
}

/// Returns a route for the requests of a case that otherwise equals this one.
pub(super) fn located(case: &Case, base: Route) -> Route {
    let mut route = case.route(base);
    if !route.path.contains(char::is_alphabetic) {
        return route;
    }
    let end = if route.exact { "$" } else { "" };
    let condition = path_condition(format!("(?i)^{}{end}", regex::escape(&route.path)));
    let Some(condition) = condition else { return route };
    route.conditions.insert(0, condition);
    Route { path: "/".to_owned(), exact: false, ..route }
}

/// Returns the requests of these pieces for which a test is true, or false with `not`. None: they
/// have too many pieces.
pub(super) fn meet(pieces: Vec<Piece>, test: &Test, not: bool) -> Option<Vec<Piece>> {
    let each = |piece: Piece, effect: Effect| piece.and(effect, not).into_iter().collect();
    let found: Vec<Piece> = match (test, not) {
        (Test::Not(inner), _) => return meet(pieces, inner, !not),
        (Test::All(all), false) | (Test::Any(all), true) => {
            let mut pieces = pieces;
            for test in all {
                pieces = meet(pieces, test, not)?;
            }
            pieces
        }
        (Test::Any(any), false) | (Test::All(any), true) => {
            let mut found = Vec::new();
            for test in any {
                found.extend(meet(pieces.clone(), test, not)?);
                if found.len() > PIECES_MAX {
                    return None;
                }
            }
            found
        }
        (Test::Path(pattern), _) => {
            pieces.into_iter().filter_map(|piece| path(&piece, pattern, not)).collect()
        }
        (Test::Regex(regex), _) => {
            let effect = path_condition(regex.clone()).map_or(Effect::Unsaid, Effect::Condition);
            pieces.into_iter().flat_map(|piece| -> Vec<_> { each(piece, effect.clone()) }).collect()
        }
        // A name below two labels fits in weir, not here.
        (Test::Is(Effect::Host(host)), true) if host.starts_with("*.") => {
            return meet(pieces, &Test::Unsaid, true);
        }
        (Test::Is(effect @ (Effect::Host(_) | Effect::Methods(_))), true) => {
            pieces.iter().filter_map(|piece| piece.without(effect.clone())).collect()
        }
        (Test::Is(effect), _) => {
            pieces.into_iter().flat_map(|piece| -> Vec<_> { each(piece, effect.clone()) }).collect()
        }
        (Test::Socket, false) => {
            let key = condition("header", "Sec-WebSocket-Key", None);
            let has_it = |piece: &Piece| {
                piece.case.conditions.iter().any(|one| one.name == "Sec-WebSocket-Key")
            };
            if pieces.iter().any(has_it) { pieces } else { return meet(pieces, &key, false) }
        }
        (Test::Unsaid | Test::Socket, _) => {
            pieces.into_iter().flat_map(|piece| -> Vec<_> { each(piece, Effect::Unsaid) }).collect()
        }
    };
    (found.len() <= PIECES_MAX).then_some(found)
}

/// Returns the requests of a piece whose paths match a pattern, or do not.
fn path(piece: &Piece, pattern: &str, not: bool) -> Option<Piece> {
    if pattern == "*" || pattern == "/*" {
        return (!not).then(|| piece.clone());
    }
    if !pattern.starts_with(['/', '*', '{', '[', '?']) {
        return not.then(|| piece.clone());
    }
    let simple = pattern.strip_suffix('*').filter(|prefix| prefix.ends_with('/'));
    let (prefix, exact) = simple.map_or((pattern, true), |prefix| (prefix, false));
    let is_simple = !prefix.contains(['*', '?', '[', '\\', '%', '{']) && !prefix.contains("//");
    if is_simple && !not && has_same_case(&piece.case.path(), prefix) {
        let prefix = prefix.to_owned();
        let effect = if exact { Effect::Exactly(prefix) } else { Effect::Path(prefix) };
        return piece.and(effect, false);
    }
    let condition = path_regex(pattern).and_then(path_condition);
    piece.and(condition.map_or(Effect::Unsaid, Effect::Condition), not)
}

/// Whether paths are related in the same way, whether or not case matters.
fn has_same_case(one: &str, other: &str) -> bool {
    let (lower, other_lower) = (one.to_lowercase(), other.to_lowercase());
    covers_path(one, other) == covers_path(&lower, &other_lower)
        && covers_path(other, one) == covers_path(&other_lower, &lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(test: &Test) -> Vec<String> {
        let pieces = meet(vec![Piece::default()], test, false).unwrap();
        let one = |piece: &Piece| {
            let route = located(&piece.case, Route::default());
            let mut text = route.path;
            text.push_str(if route.exact { " exactly" } else { "" });
            for condition in route.conditions {
                let not = if condition.not { "!" } else { "" };
                text.push_str(&format!(" {not}{}", condition.matches.unwrap().1));
            }
            text.push_str(if piece.is_said() { "" } else { " unsaid" });
            text.push_str(if piece.except.is_empty() { "" } else { " except" });
            text
        };
        pieces.iter().map(one).collect()
    }

    #[test]
    fn pieces_of_tests() {
        let path = |path: &str| Test::Path(path.to_owned());
        let not = |test: Test| Test::Not(Box::new(test));
        let methods = || Test::Is(Effect::Methods(vec!["GET".to_owned()]));
        assert_eq!(shown(&path("/1/*")), ["/1/"]);
        assert_eq!(shown(&path("/a")), ["/ (?i)^/a$"]);
        assert_eq!(shown(&Test::Any(vec![path("/a*"), path("/*")])), ["/ (?i)^/a", "/"]);
        assert_eq!(
            shown(&not(Test::Any(vec![path("/a"), path("*.b")]))),
            ["/ !(?i)^/a$ !(?i)\\.b$"]
        );
        assert_eq!(
            shown(&not(Test::All(vec![path("/a"), methods()]))),
            ["/ !(?i)^/a$", "/ except"]
        );
        assert_eq!(shown(&not(Test::All(Vec::new()))), [""; 0]);
        assert_eq!(
            shown(&Test::All(vec![Test::Unsaid, path("/A/*"), path("/a/b")])),
            ["/ (?i)^/A/ (?i)^/a/b$ unsaid"]
        );
        assert_eq!(shown(&Test::Regex("(?=x)".to_owned())), ["/ unsaid"]);
        assert_eq!(shown(&path("a")), [""; 0]);
    }
}
