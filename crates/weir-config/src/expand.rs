//! `${VAR}` and `${VAR:-default}` in values. Called by the text readers for each string value, once: what a variable
//! contains is never expanded again. `$${` stands for a literal `${`. Bound: the result is at most [`EXPANDED_MAX`].

use weir_proxy::observe::access::Name;

/// Longest value after expansion, bytes.
const EXPANDED_MAX: usize = 64 * 1024;

/// Where values of variables come from; the process environment outside of tests.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The value with its variables replaced.
///
/// # Errors
/// What is wrong, for the user: a variable that is not set and has no default, or broken syntax.
pub(crate) fn expand(text: &str, lookup: Lookup<'_>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            out.push_str(&rest[..at - 1]);
            out.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        out.push_str(&rest[..at]);
        let inside = &rest[at + 2..];
        let close = inside.find('}').ok_or("`${` has no closing brace (write `$${` for a literal `${`)")?;
        out.push_str(&variable(&inside[..close], lookup)?);
        rest = &inside[close + 1..];
        if out.len() > EXPANDED_MAX {
            return Err(format!("the value is longer than {EXPANDED_MAX} bytes after its variables were expanded"));
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// What stands between the braces: `VAR` or `VAR:-default`.
fn variable(inside: &str, lookup: Lookup<'_>) -> Result<String, String> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let valid = !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !valid {
        return Err(format!("`{name}` is no name of a variable (write `$${{` for a literal `${{`)"));
    }
    // As in a shell, `:-` also stands in for a variable that is set but empty.
    match (lookup(name), default) {
        (Some(value), Some(default)) if value.is_empty() => Ok(default.to_owned()),
        (Some(value), _) => Ok(value),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) if Name::ALL.iter().any(|(_, word, _)| *word == name) => Err(format!(
            "the variable {name} is not set; what the access log calls so is written `${name}`, or `$${{{name}}}` in front of a letter"
        )),
        (None, None) => Err(format!("the variable {name} is not set and has no default")),
    }
}

/// The text that expands to `value`.
pub(crate) fn escape(value: &str) -> String {
    value.replace("${", "$${")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(name: &str) -> Option<String> {
        match name {
            "HOST" => Some("10.0.0.1".to_owned()),
            "TRICK" => Some("${HOST}".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn variables_and_defaults() {
        assert_eq!(expand("${HOST}:80", &lookup).unwrap(), "10.0.0.1:80");
        assert_eq!(expand("${NONE:-a}${HOST:-b}${EMPTY:-c}${EMPTY}", &lookup).unwrap(), "a10.0.0.1c");
        assert_eq!(expand("plain $HOST $", &lookup).unwrap(), "plain $HOST $");
        assert_eq!(expand("${NONE:-}", &lookup).unwrap(), "");
    }

    #[test]
    fn expanded_data_is_not_expanded_again() {
        assert_eq!(expand("${TRICK}", &lookup).unwrap(), "${HOST}");
    }

    #[test]
    fn unset_and_broken_are_errors() {
        assert!(expand("${NONE}", &lookup).unwrap_err().contains("NONE is not set"));
        assert!(expand("${HOST", &lookup).unwrap_err().contains("closing brace"));
        assert!(expand("${a b}", &lookup).is_err());
        assert!(expand("${}", &lookup).is_err());
        assert!(expand("${1A}", &lookup).is_err());
    }

    #[test]
    fn a_literal_is_possible_and_escape_reads_back() {
        assert_eq!(expand("$${HOST}", &lookup).unwrap(), "${HOST}");
        for value in ["${HOST}", "a${", "$$", "$${x}", "$", "$$${"] {
            assert_eq!(expand(&escape(value), &lookup).unwrap(), value, "{value}");
        }
    }
}
