//! The text that all matches of a regular expression begin with: requests that two expressions
//! cannot both match need no route. Called by `apart` and by nginx.

/// The beginning of all matches.
pub(super) struct Begin {
    /// In lower case if that does not matter.
    pub(super) text: String,
    pub(super) any_case: bool,
    /// The expression says nothing else.
    pub(super) is_all: bool,
}

impl Begin {
    /// Returns it, if the expression is bound to the beginning of a text. None: it is not known.
    pub(super) fn of(expression: &str) -> Option<Begin> {
        let flags = [("(?i)", true), ("(?i-u)", true), ("(?-u)", false)];
        let flagged = |(flag, any_case)| Some((any_case, expression.strip_prefix(flag)?));
        let (any_case, rest) = flags.into_iter().find_map(flagged).unwrap_or((false, expression));
        let rest = rest.strip_prefix('^').filter(|rest| !has_alternatives(rest))?;
        let (mut text, mut chars) = (String::new(), rest.chars());
        let is_all = loop {
            match chars.next() {
                None => break true,
                Some('\\') => match chars.next() {
                    Some(c) if !c.is_alphanumeric() => text.push(c),
                    _ => break false,
                },
                // The character in front may be missing.
                Some('?' | '*' | '{') => {
                    text.pop();
                    break false;
                }
                Some('.' | '[' | ']' | '(' | ')' | '+' | '}' | '$' | '^') => break false,
                Some(c) => text.push(c),
            }
        };
        let text = if any_case { text.to_lowercase() } else { text };
        Some(Begin { text, any_case, is_all })
    }
}

/// Returns the text that every match of an expression begins with; empty: none is known.
pub(super) fn begin_of(expression: &str) -> String {
    let known = Begin::of(expression).filter(|begin| !begin.any_case);
    known.map_or_else(String::new, |begin| begin.text)
}

/// Whether an expression is one of several, outside of groups.
pub(super) fn has_alternatives(expression: &str) -> bool {
    let (mut depth, mut in_class) = (0_usize, false);
    let mut chars = expression.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth = depth.saturating_sub(1),
            '|' if !in_class && depth == 0 => return true,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_of_expressions() {
        for (expression, begin) in [
            ("^/admin", "/admin"),
            ("^/admin/$", "/admin/"),
            ("^/api/v[0-9]+/in", "/api/v"),
            ("^/a/bc?", "/a/b"),
            ("^/a\\.b\\d", "/a.b"),
            ("^/(a|b)/", "/"),
            ("^/a|^/b", ""),
            ("^/a(x|y)b", "/a"),
            ("^/ab+", "/ab"),
            ("/admin", ""),
            ("(?i)^/a", ""),
            ("(?-u)^/a/.*", "/a/"),
        ] {
            assert_eq!(begin_of(expression), begin, "{expression}");
        }
    }
}
