//! The handling of directives that need no specific code: a table for each dialect, read here.

use super::draft::Draft;
use super::missing::Missing;
use super::tree::Node;
use crate::reverse::literal;
use crate::texts;

/// The handling of a directive.
pub(super) enum Fate {
    /// Another part of the code handles it.
    Done,
    /// weir fulfils its purpose by default.
    Unneeded,
    /// weir has no counterpart.
    Missing(Missing),
    /// weir has no counterpart, with a specific reason.
    Lost(&'static str),
}

/// By the beginning of a directive: whole words, or with a final `*` any with this prefix. The
/// first match holds.
pub(super) type Fates = &'static [(&'static [&'static str], Fate)];

impl Draft<'_> {
    /// Sets which users may connect to a unix socket of a listener.
    pub(super) fn rights(
        &mut self,
        node: &Node,
        address: &str,
        mode: Option<&str>,
        group: Option<&str>,
    ) {
        let Some(at) = self.listens.iter().position(|listen| listen.address.to_string() == address)
        else {
            return;
        };
        let checked =
            [("mode", mode.map(texts::socket_mode)), ("group", group.map(texts::account))];
        for (word, text) in checked {
            match text {
                Some(Ok(text)) => drop(self.listens[at].rights.insert(word, literal(&text))),
                Some(Err(why)) => self.lost(node, why),
                None => {}
            }
        }
    }

    /// Returns the path of a file that a directive names, if it is valid.
    pub(super) fn file(&mut self, node: &Node, path: &str) -> Option<String> {
        match texts::forward::file(&self.sources.beside(path)) {
            Ok(path) => Some(path),
            Err(why) => {
                self.lost(node, why);
                None
            }
        }
    }

    /// Notes the handling of a directive. `words`: how many of its words identify it.
    pub(super) fn tell_by(&mut self, fates: Fates, node: &Node, words: usize) {
        let shown = node.shown();
        let fits = |start: &&str| match start.strip_suffix('*') {
            Some(start) => shown.starts_with(start),
            None => shown
                .strip_prefix(*start)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')),
        };
        match fates.iter().find(|(starts, _)| starts.iter().any(fits)).map(|(_, fate)| fate) {
            Some(Fate::Done) => {}
            Some(Fate::Unneeded) => {
                self.unneeded(&node.words[..node.words.len().min(words)].join(" "))
            }
            Some(Fate::Missing(what)) => self.missing(node, *what),
            Some(Fate::Lost(why)) => self.lost(node, *why),
            None => self.missing(node, Missing::Nothing),
        }
    }
}
