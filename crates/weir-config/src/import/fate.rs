//! What becomes of directives that need no code of their own: a table for each dialect, read here.

use super::draft::Draft;
use super::missing::Missing;
use super::tree::Node;
use crate::reverse::literal;
use crate::texts;

/// What becomes of a directive.
pub(super) enum Fate {
    /// Another place has seen to it.
    Done,
    /// Weir does the sense of it without being told.
    Unneeded,
    /// Weir has none of it.
    Missing(Missing),
    /// The same, with a reason of its own.
    Lost(&'static str),
}

/// By how a directive begins: whole words, or with `*` behind it any that begins so. The first that fits holds.
pub(super) type Fates = &'static [(&'static [&'static str], Fate)];

impl Draft<'_> {
    /// Who may connect to a unix socket that is listened on.
    pub(super) fn rights(&mut self, node: &Node, address: &str, mode: Option<&str>, group: Option<&str>) {
        let Some(at) = self.listens.iter().position(|listen| listen.address.to_string() == address) else { return };
        let checked = [("mode", mode.map(texts::socket_mode)), ("group", group.map(texts::account))];
        for (word, text) in checked {
            match text {
                Some(Ok(text)) => drop(self.listens[at].rights.insert(word, literal(&text))),
                Some(Err(why)) => self.lost(node, why),
                None => {}
            }
        }
    }

    /// The path of a file that a directive names, if it is one.
    pub(super) fn file(&mut self, node: &Node, path: &str) -> Option<String> {
        match texts::forward::file(&self.sources.beside(path)) {
            Ok(path) => Some(path),
            Err(why) => {
                self.lost(node, why);
                None
            }
        }
    }

    /// Says what becomes of a directive. `words`: how many of them say which one it is.
    pub(super) fn tell_by(&mut self, fates: Fates, node: &Node, words: usize) {
        let shown = node.shown();
        let fits = |start: &&str| match start.strip_suffix('*') {
            Some(start) => shown.starts_with(start),
            None => shown.strip_prefix(*start).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')),
        };
        match fates.iter().find(|(starts, _)| starts.iter().any(fits)).map(|(_, fate)| fate) {
            Some(Fate::Done) => {}
            Some(Fate::Unneeded) => self.unneeded(&node.words[..node.words.len().min(words)].join(" ")),
            Some(Fate::Missing(what)) => self.missing(node, *what),
            Some(Fate::Lost(why)) => self.lost(node, *why),
            None => self.missing(node, Missing::Nothing),
        }
    }
}
