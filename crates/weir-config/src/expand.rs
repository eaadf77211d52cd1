//! `${VAR}` and `${VAR:-default}` in values. Called by the text readers once for each string value:
//! the content of a variable is never expanded again. `$${` is a literal `${`. Bound: the result is
//! at most [`EXPANDED_MAX`].

use weir_proxy::observe::access::Name;

/// Longest value after expansion, bytes.
const EXPANDED_MAX: usize = 64 * 1024;

/// The source of variables; the process environment outside of tests.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Options and rules whose values contain names of the access log, which are known for each
/// request.
const WITH_NAMES: [&str; 4] = ["format", "set", "add", "value"];

/// Returns the value of `option` with its variables replaced. A name of the access log is kept
/// where such names are valid.
///
/// # Errors
/// The mistake, for the user: a variable that is not set and has no default, or broken syntax.
pub(crate) fn expand(text: &str, option: &str, lookup: Lookup<'_>) -> Result<String, String> {
    let keeps_names = WITH_NAMES.contains(&option);
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
        let close =
            inside.find('}').ok_or("`${` has no closing brace (write `$${` for a literal `${`)")?;
        match &inside[..close] {
            name if keeps_names && is_name(name) && lookup(name).is_none() => {
                out.push_str(&format!("${{{name}}}"))
            }
            name => out.push_str(&variable(name, lookup)?),
        }
        rest = &inside[close + 1..];
        if out.len() > EXPANDED_MAX {
            return Err(format!(
                "the value is longer than {EXPANDED_MAX} bytes after its variables were expanded"
            ));
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Whether this is a name of the access log.
fn is_name(name: &str) -> bool {
    Name::of(name).is_some() || name.strip_prefix("http_").is_some_and(|field| !field.is_empty())
}

/// Expands the text between the braces: `VAR` or `VAR:-default`.
fn variable(inside: &str, lookup: Lookup<'_>) -> Result<String, String> {
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    let valid = !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !valid {
        return Err(format!(
            "`{name}` is not the name of a variable (write `$${{` for a literal `${{`)"
        ));
    }
    // As in a shell, `:-` also replaces a variable that is set but empty.
    match (lookup(name), default) {
        (Some(value), Some(default)) if value.is_empty() => Ok(default.to_owned()),
        (Some(value), _) => Ok(value),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(format!("the variable {name} is not set and has no default")),
    }
}

/// Returns the text that expands to `value`.
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
        assert_eq!(expand("${HOST}:80", "option", &lookup).unwrap(), "10.0.0.1:80");
        assert_eq!(
            expand("${NONE:-a}${HOST:-b}${EMPTY:-c}${EMPTY}", "option", &lookup).unwrap(),
            "a10.0.0.1c"
        );
        assert_eq!(expand("plain $HOST $", "option", &lookup).unwrap(), "plain $HOST $");
        assert_eq!(expand("${NONE:-}", "option", &lookup).unwrap(), "");
    }

    #[test]
    fn expanded_data_is_not_expanded_again() {
        assert_eq!(expand("${TRICK}", "option", &lookup).unwrap(), "${HOST}");
    }

    #[test]
    fn unset_and_broken_are_errors() {
        assert!(expand("${NONE}", "option", &lookup).unwrap_err().contains("NONE is not set"));
        assert!(expand("${HOST", "option", &lookup).unwrap_err().contains("closing brace"));
        assert!(expand("${a b}", "option", &lookup).is_err());
        assert!(expand("${}", "option", &lookup).is_err());
        assert!(expand("${1A}", "option", &lookup).is_err());
    }

    #[test]
    fn names_of_the_access_log_stay_where_they_may_stand() {
        assert_eq!(expand("${host}x ${http_a}", "set", &lookup).unwrap(), "${host}x ${http_a}");
        assert_eq!(expand("${HOST} ${status}", "format", &lookup).unwrap(), "10.0.0.1 ${status}");
        for (text, option) in [("${host}", "path"), ("${hots}", "format"), ("${http_}", "add")] {
            assert!(expand(text, option, &lookup).unwrap_err().contains("is not set"), "{text}");
        }
    }

    #[test]
    fn a_literal_is_possible_and_escape_reads_back() {
        assert_eq!(expand("$${HOST}", "option", &lookup).unwrap(), "${HOST}");
        for value in ["${HOST}", "a${", "$$", "$${x}", "$", "$$${"] {
            assert_eq!(expand(&escape(value), "option", &lookup).unwrap(), value, "{value}");
        }
    }
}
