//! The text that all matches of a regular expression begin with: what two expressions cannot both
//! match needs no common route.

/// Returns the text that every match of an expression begins with; empty: none is known.
pub(super) fn begin_of(expression: &str) -> String {
    let rest = expression.strip_prefix("(?-u)").unwrap_or(expression);
    let Some(rest) = rest.strip_prefix('^') else { return String::new() };
    if has_alternatives(rest) {
        return String::new();
    }
    let mut found = String::new();
    let mut chars = rest.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c) if !c.is_ascii_alphanumeric() => found.push(c),
                _ => break,
            },
            '?' | '*' | '{' => {
                found.pop();
                break;
            }
            '.' | '[' | ']' | '(' | ')' | '+' | '}' | '$' | '^' => break,
            c => found.push(c),
        }
    }
    found
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
