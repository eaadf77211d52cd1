//! `use_backend %[req.hdr(host),map(FILE,DEFAULT)]` of HAProxy: a backend by a file of keys and
//! names. Called by `flow`.
//!
//! Bound: that of files of ACLs.

use super::super::cases::{Case, Effect};
use super::Haproxy;
use super::acl::condition;
use super::criterion::split;
use super::flow::{Act, At, Flow};
use super::seen::Seen;

/// Why a backend by a text is closed.
const TEXTS: &str = "weir cannot choose a backend by a text, and the import cannot tell which it \
    would be: it rejects these requests; write a `route` for each of them";

/// A file of keys.
struct Map<'t> {
    /// The words of a criterion in front of a key.
    words: Vec<String>,
    file: &'t str,
    /// Empty: none.
    default: &'t str,
}

impl<'t> Haproxy<'t, '_, '_> {
    /// Applies a line that chooses a backend by a text.
    pub(super) fn by_text(&mut self, at: At<'t>, mut flows: Vec<Flow>) -> Vec<Flow> {
        let map = read(at.line.argument(1)).filter(|_| condition(at.line).1.is_empty());
        let lines = map.as_ref().and_then(|map| self.values_in(at.line, map.file));
        let (Some(map), Some(mut lines)) = (map, lines) else {
            return self.turn_by(at, flows, &mut |haproxy, seen| {
                Some((Act::Close(TEXTS), haproxy.cases(at, seen)))
            });
        };
        if map.words.iter().any(|word| word == "beg") {
            // The longest key holds.
            let length = |line: &String| line.split_whitespace().next().map_or(0, str::len);
            lines.sort_by_key(|line| std::cmp::Reverse(length(line)));
        }
        for line in &lines {
            let Some((key, name)) = line.split_once(char::is_whitespace) else { continue };
            let words: Vec<&str> = map.words.iter().map(String::as_str).chain([key]).collect();
            flows = self.turn_by(at, flows, &mut |haproxy, seen| {
                let effects = haproxy.effects((at.section, at.line), &words, seen);
                Some((haproxy.to(name.trim()), cases(&effects)))
            });
        }
        if map.default.is_empty() {
            return flows;
        }
        self.turn_by(at, flows, &mut |haproxy, _: &Seen| {
            Some((haproxy.to(map.default), vec![Case::all()]))
        })
    }

    fn to(&self, name: &str) -> Act<'t> {
        Act::Lead { backend: self.named.get(name).copied(), is_last: false }
    }
}

fn cases(effects: &[Effect]) -> Vec<Case> {
    effects.iter().map(Case::of).collect()
}

/// Returns the file of a text that is a single lookup. None: it is something else.
fn read(text: &str) -> Option<Map<'_>> {
    let inside = text.strip_prefix("%[")?.strip_suffix(']')?;
    let parts: Vec<&str> = split(inside).collect();
    let (last, chain) = parts.split_last()?;
    let (kind, arguments) = last.strip_suffix(')')?.split_once('(')?;
    let how = match kind {
        "map" | "map_str" => "str",
        _ => kind.strip_prefix("map_")?,
    };
    let (file, default) = arguments.split_once(',').unwrap_or((arguments, ""));
    let words = [&chain.join(","), "-m", how].map(str::to_owned).to_vec();
    (!chain.is_empty()).then_some(Map { words, file, default })
}
