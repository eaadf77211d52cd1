//! Recognises the configuration of another program, so that its user sees that instead of a hundred
//! unknown words. Called by `lib`, only for a text that is known to be wrong: a valid one is never
//! examined.
//!
//! Bound: one pass over the lines.

use crate::habits;
use crate::problem::{Problem, Span};

/// Words that begin a line in one program's configuration and in no other, including weir's.
const WORDS: [(&str, &[&str]); 3] = [
    (
        "an nginx configuration",
        &[
            "worker_processes",
            "worker_connections",
            "proxy_pass",
            "proxy_set_header",
            "server_name",
            "fastcgi_pass",
            "location",
        ],
    ),
    (
        "an HAProxy configuration",
        &["frontend", "backend", "default_backend", "use_backend", "global", "defaults", "bind"],
    ),
    ("a Caddyfile", &["reverse_proxy", "file_server", "php_fastcgi", "handle_path", "encode"]),
];

/// The names for `weir import`.
const PROGRAMS: [(&str, &str); 3] = [
    ("an nginx configuration", "nginx"),
    ("an HAProxy configuration", "haproxy"),
    ("a Caddyfile", "caddy"),
];

/// Returns the program that the configuration is for, if it is clearly one of these, and what to
/// write instead.
pub(crate) fn recognise(text: &str) -> Option<Problem> {
    if text.trim_start().starts_with('{') {
        let at = text.len() - text.trim_start().len();
        let problem = Problem::new(
            "foreign",
            &(at..at + 1),
            "this looks like JSON, but the file's name does not end in .json",
        );
        return Some(
            problem.help(
                "rename it to NAME.json: weir reads such files as JSON, and all others as KDL",
            ),
        );
    }
    let (what, span) = by_words(text).or_else(|| by_shape(text))?;
    let problem = Problem::new(
        "foreign",
        &span,
        format!("this looks like {what}; weir's configuration is written in KDL"),
    );
    // The span begins with the first word.
    let word = text[span].split(|c: char| c.is_whitespace() || c == ';').next().unwrap_or_default();
    let label = habits::option(word).map_or_else(
        || "because of this".to_owned(),
        |say| format!("because of this; in weir this is {say}"),
    );
    let program = PROGRAMS.iter().find(|(other, _)| *other == what);
    let help = program.map_or_else(
        || crate::START.to_owned(),
        |(_, program)| format!("`weir import {program} FILE` converts it; {}", crate::START),
    );
    Some(problem.label(label).help(help))
}

/// Returns the lines with content, and the place of the content.
fn lines(text: &str) -> impl Iterator<Item = (&str, Span)> {
    let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1));
    text.split('\n').zip(starts).filter_map(|(line, start)| {
        let words = line.trim();
        let at = start + line.len() - line.trim_start().len();
        (!words.is_empty() && !words.starts_with(['#', '/'])).then(|| (words, at..at + words.len()))
    })
}

/// Returns a program with two different words, or with one in a form that only it uses.
fn by_words(text: &str) -> Option<(&'static str, Span)> {
    WORDS.iter().find_map(|(what, words)| {
        let mut found: Vec<(&str, Span)> = Vec::new();
        for (line, span) in lines(text) {
            let word =
                line.split(|c: char| c.is_whitespace() || c == ';').next().unwrap_or_default();
            // Such words have no quotes behind them; in weir's configuration they would.
            if words.contains(&word)
                && !line.contains('"')
                && found.iter().all(|(other, _)| *other != word)
            {
                found.push((word, span));
            }
        }
        let strong = found.iter().any(|(word, _)| word.contains('_'));
        (strong || found.len() > 1).then(|| found.swap_remove(0)).map(|(_, span)| (*what, span))
    })
}

/// Most lines are `key: value` or `- item` (YAML), or `key = value` or `[section]` (TOML).
fn by_shape(text: &str) -> Option<(&'static str, Span)> {
    let (mut all, mut yaml, mut toml) = (0, Vec::new(), Vec::new());
    for (line, span) in lines(text) {
        all += 1;
        if is_yaml(line) {
            yaml.push(span);
        } else if is_toml(line) {
            toml.push(span);
        }
    }
    let most = |lines: Vec<Span>| {
        (lines.len() > 1 && lines.len() * 3 > all * 2).then(|| lines.into_iter().next())?
    };
    let yaml = most(yaml).map(|span| ("YAML", span));
    yaml.or_else(|| most(toml).map(|span| ("TOML", span)))
}

fn is_yaml(line: &str) -> bool {
    let line = line.strip_prefix("- ").unwrap_or(line);
    let key = line.split_once(": ").map(|(key, _)| key).or_else(|| line.strip_suffix(':'));
    line == "---" || key.is_some_and(is_key) || line.starts_with("- ")
}

fn is_toml(line: &str) -> bool {
    let key = line.split_once('=').map(|(key, _)| key.trim_end());
    line.starts_with('[') && line.ends_with(']') || key.is_some_and(is_key)
}

fn is_key(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    //! Proves: the text of other programs is recognised, weir's with mistakes is not. How: short
    //! examples; long ones are in the corpus.

    use super::*;

    #[test]
    fn others_are_recognised() {
        for (text, what) in [
            (
                "server {\n  listen 80;\n  location / {\n    proxy_pass http://app;\n  }\n}\n",
                "nginx",
            ),
            ("frontend a\n  bind :80\n  mode http\n", "HAProxy"),
            ("example.com {\n\treverse_proxy localhost:9000\n}\n", "Caddyfile"),
            ("listen: 127.0.0.1:80\nupstream:\n  - server: a:1\n", "YAML"),
            ("[server]\nlisten = \"127.0.0.1:80\"\n", "TOML"),
            ("\n{ \"listen\": 1 }", "JSON"),
        ] {
            let found = recognise(text).unwrap_or_else(|| panic!("{text}"));
            assert!(found.message.contains(what), "{text}: {}", found.message);
        }
    }

    #[test]
    fn weirs_own_with_mistakes_is_not() {
        for text in [
            "",
            "listen \"a\"",
            "listen 127.0.0.1:80\n",
            "upstream app {\n server a:80\n weight = 5\n}\nroute { proxy app }\n",
            "listen \"127.0.0.1:80\"\nbackend \"app\" { server \"a:1\"; }\n",
            "upstream \"a\" {\n server: \"a:1\"\n balance=ratio\n}\nroute { proxy \"a\" }\n",
            "# frontend\n# backend\nlisten 1\n",
        ] {
            assert_eq!(recognise(text), None, "{text}");
        }
    }
}
