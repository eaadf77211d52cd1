//! Variables of nginx whose value is the same for every request: `set $app 127.0.0.1;`.
//!
//! Bounds: [`DEPTH_MAX`] variables within variables, [`TEXT_MAX`] bytes of a text.

use super::super::tree::{ROOT, Tree};
use super::{Nginx, Server};

/// Variables within variables.
const DEPTH_MAX: usize = 8;
/// Bytes of a text with values in place of names.
const TEXT_MAX: usize = 4096;

impl Nginx<'_, '_, '_> {
    /// Returns a text with constant variables replaced by their values.
    pub(super) fn resolve(&self, server: &Server, at: usize, text: &str) -> String {
        let mut text = text.to_owned();
        for _ in 0..DEPTH_MAX {
            let next = self.replaced(server, at, &text);
            if next == text || next.len() > TEXT_MAX {
                break;
            }
            text = next;
        }
        text
    }

    fn replaced(&self, server: &Server, at: usize, text: &str) -> String {
        let (mut out, mut rest) = (String::new(), text);
        while let Some(start) = rest.find('$') {
            out.push_str(&rest[..start]);
            let (whole, name) = variable(&rest[start..]);
            match self.constant(server, at, name) {
                Some(value) => out.push_str(&value),
                None => out.push_str(whole),
            }
            rest = &rest[start + whole.len()..];
        }
        out.push_str(rest);
        out
    }

    /// Returns the value of a variable that has only one, as it is written. None: it may have
    /// several.
    pub(super) fn constant(&self, server: &Server, at: usize, name: &str) -> Option<String> {
        match name {
            "" => return None,
            "server_name" => {
                return server.names.first().filter(|name| !name.starts_with('*')).cloned();
            }
            "server_port" => return self.port(server).map(|port| port.to_string()),
            _ => {}
        }
        let own = self.location_of(at);
        let blocks = [own, server.at];
        let mut found = None;
        for block in blocks {
            let (value, is_sure) = last_set(self.tree, block, name);
            if !is_sure {
                return None;
            }
            found = found.or(value);
        }
        found.filter(|value| !value.contains(&format!("${name}")))
    }

    /// Returns the location or server around a block.
    fn location_of(&self, at: usize) -> usize {
        let mut block = at;
        while block != ROOT && !matches!(self.tree.nodes[block].name(), "location" | "server") {
            block = self.tree.nodes[block].parent;
        }
        block
    }

    /// Returns the only port of a server. None: it has several.
    pub(super) fn port(&self, server: &Server) -> Option<u16> {
        let listens = &self.draft.groups[server.group].listens;
        let mut ports = listens
            .iter()
            .map(|at| self.draft.listens[*at].address.network().map(|address| address.port()));
        let first = ports.next()??;
        ports.all(|port| port == Some(first)).then_some(first)
    }
}

/// Returns what the last `set` of a block gives a variable, and whether nothing else may give it a
/// value there.
fn last_set(tree: &Tree, block: usize, name: &str) -> (Option<String>, bool) {
    let is_it = |at: &usize| {
        let theirs = tree.nodes[*at].argument(1);
        theirs.strip_prefix('$').is_some_and(|theirs| theirs == name)
    };
    let last = tree.indices(block, "set").iter().rev().find(|at| is_it(at));
    let tests = tree.indices(block, "if").iter();
    let sets = ["set", "auth_request_set", "set_by_lua", "set_by_lua_block", "js_set", "perl_set"];
    let is_tested = tests
        .flat_map(|test| tree.children(*test))
        .any(|(at, node)| node.name() == "set" && is_it(&at));
    let by_others = sets[1..].iter().flat_map(|word| tree.indices(block, word)).any(is_it);
    (last.map(|at| tree.nodes[*at].argument(2).to_owned()), !is_tested && !by_others)
}

/// Returns the variable at the beginning of a text, and its name.
pub(super) fn variable(text: &str) -> (&str, &str) {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if let Some(inside) = text.strip_prefix("${") {
        return match inside.find('}') {
            Some(end) => (&text[..end + 3], &inside[..end]),
            None => (text, ""),
        };
    }
    let name = text.strip_prefix('$').unwrap_or(text);
    let end = name.find(|c| !is_name(c)).unwrap_or(name.len());
    // A group of an expression has one digit.
    let end = if name.starts_with(|c: char| c.is_ascii_digit()) { 1 } else { end };
    (&text[..=end], &name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_texts() {
        for (text, whole, name) in [
            ("$a.b", "$a", "a"),
            ("${a}b", "${a}", "a"),
            ("$12", "$1", "1"),
            ("$", "$", ""),
            ("${a", "${a", ""),
            ("$a_1$b", "$a_1", "a_1"),
        ] {
            assert_eq!(variable(text), (whole, name), "{text}");
        }
    }
}
