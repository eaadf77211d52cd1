//! Expressions of Caddy's matchers (CEL), as far as routes can express them: `&&`, `||`, `!`,
//! parentheses, functions with the names of matchers, and comparisons of a placeholder with texts.
//!
//! Bound: [`NESTING_MAX`] levels; each token is read once.

use super::super::access::address;
use super::super::cases::Effect;
use super::super::route::Scheme;
use super::super::tree::NESTING_MAX;
use super::matcher::{Test, condition, host_test};

/// A part of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// A name or a sign.
    Word(String),
    Text(String),
    /// A placeholder, without its braces.
    Placeholder(String),
}

/// Returns the test of an expression, and functions with the words of a matcher in `function`.
/// None: routes cannot express it.
pub(super) fn test(text: &str, function: &mut dyn FnMut(&[String]) -> Test) -> Option<Test> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0, function };
    let test = parser.any(0)?;
    (parser.at == parser.tokens.len()).then_some(test)
}

fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(c) = rest.chars().next() {
        let end = match c {
            '\'' | '"' => {
                let inside = &rest[1..];
                let end = inside.find(c)?;
                if inside[..end].contains(['\\', '{']) {
                    return None;
                }
                tokens.push(Token::Text(inside[..end].to_owned()));
                end + 2
            }
            '{' if rest[1..].starts_with(|c: char| c.is_ascii_alphabetic()) => {
                let end = rest.find('}')?;
                tokens.push(Token::Placeholder(rest[1..end].to_owned()));
                end + 1
            }
            c if c.is_ascii_alphabetic() || c == '_' => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                tokens.push(Token::Word(rest[..end].to_owned()));
                end
            }
            _ => {
                const SIGNS: [&str; 14] =
                    ["&&", "||", "==", "!=", "!", "(", ")", "[", "]", "{", "}", ",", ".", ":"];
                let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign))?;
                tokens.push(Token::Word((*sign).to_owned()));
                sign.len()
            }
        };
        rest = rest[end..].trim_start();
    }
    Some(tokens)
}

struct Parser<'f> {
    tokens: Vec<Token>,
    at: usize,
    function: &'f mut dyn FnMut(&[String]) -> Test,
}

impl Parser<'_> {
    fn takes(&mut self, sign: &str) -> bool {
        let is_it = self.tokens.get(self.at) == Some(&Token::Word(sign.to_owned()));
        self.at += usize::from(is_it);
        is_it
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at)?.clone();
        self.at += 1;
        Some(token)
    }

    fn any(&mut self, depth: usize) -> Option<Test> {
        let mut any = vec![self.all(depth)?];
        while self.takes("||") {
            any.push(self.all(depth)?);
        }
        Some(Test::Any(any))
    }

    fn all(&mut self, depth: usize) -> Option<Test> {
        let mut all = vec![self.one(depth)?];
        while self.takes("&&") {
            all.push(self.one(depth)?);
        }
        Some(Test::All(all))
    }

    fn one(&mut self, depth: usize) -> Option<Test> {
        if depth > NESTING_MAX {
            return None;
        }
        if self.takes("!") {
            return Some(Test::Not(Box::new(self.one(depth + 1)?)));
        }
        if self.takes("(") {
            let inner = self.any(depth + 1)?;
            return self.takes(")").then_some(inner);
        }
        match self.next()? {
            Token::Word(name) => self.call(name),
            Token::Placeholder(name) => self.compared(&name),
            Token::Text(_) => None,
        }
    }

    /// A function; its arguments are texts or one map of texts.
    fn call(&mut self, name: String) -> Option<Test> {
        if !self.takes("(") {
            return None;
        }
        let mut words = vec![name];
        let is_map = self.takes("{");
        loop {
            let Token::Text(text) = self.next()? else { return None };
            if is_map {
                let Token::Text(value) = self.takes(":").then(|| self.next())?? else {
                    return None;
                };
                match words[0].as_str() {
                    "header" => words.extend([text, value]),
                    "query" => words.push(format!("{text}={value}")),
                    _ => return None,
                }
            } else {
                words.push(text);
            }
            if !self.takes(",") {
                break;
            }
        }
        if is_map && !self.takes("}") || !self.takes(")") {
            return None;
        }
        // A map of several fields would be several lines of a matcher.
        (words[0] != "header" || words.len() == 3).then(|| (self.function)(&words))
    }

    /// A placeholder and what it is compared with.
    fn compared(&mut self, name: &str) -> Option<Test> {
        if self.takes(".") {
            let Token::Word(how) = self.next()? else { return None };
            let text = if self.takes("(") { self.next()? } else { return None };
            let Token::Text(text) = text else { return None };
            return if self.takes(")") { self.compare(name, &how, &text) } else { None };
        }
        for (sign, is_same) in [("==", true), ("!=", false)] {
            if self.takes(sign) {
                let Token::Text(text) = self.next()? else { return None };
                let test = self.compare(name, "==", &text)?;
                return Some(if is_same { test } else { Test::Not(Box::new(test)) });
            }
        }
        if !self.takes("in") || !self.takes("[") {
            return None;
        }
        let mut any = Vec::new();
        loop {
            let Token::Text(text) = self.next()? else { return None };
            any.push(self.compare(name, "==", &text)?);
            if !self.takes(",") {
                break;
            }
        }
        self.takes("]").then_some(Test::Any(any))
    }

    fn compare(&mut self, name: &str, how: &str, text: &str) -> Option<Test> {
        let kind = match name.strip_prefix("http.request.").unwrap_or(name) {
            "remote_host" | "remote.host" => "remote_ip",
            "client_ip" => "client_ip",
            _ => return compared(name, how, text),
        };
        address(text).filter(|_| how == "==")?;
        Some((self.function)(&[kind.to_owned(), text.to_owned()]))
    }
}

/// Compares a placeholder with a text.
fn compared(name: &str, how: &str, text: &str) -> Option<Test> {
    let name = name.strip_prefix("http.request.").unwrap_or(name);
    if text.is_empty() {
        return None;
    }
    let escaped = regex::escape(text);
    let field = |subject: &'static str, name: &str| {
        let matches = match how {
            "==" => ("eq", text.to_owned()),
            "startsWith" => ("prefix", text.to_owned()),
            "endsWith" => ("suffix", text.to_owned()),
            "contains" => ("regex", escaped.clone()),
            "matches" => ("regex", text.to_owned()),
            _ => return None,
        };
        Some(condition(subject, name, Some(matches)))
    };
    if let Some(header) = name.strip_prefix("header.") {
        return field("header", header);
    }
    let query = name.strip_prefix("query.").or_else(|| name.strip_prefix("uri.query."));
    if let Some(query) = query {
        return field("query", query);
    }
    match (name, how) {
        ("path" | "uri.path", "==") => Some(Test::Regex(format!("^{escaped}$"))),
        ("path" | "uri.path", "startsWith") => Some(Test::Regex(format!("^{escaped}"))),
        ("path" | "uri.path", "endsWith") => Some(Test::Regex(format!("{escaped}$"))),
        ("path" | "uri.path", "contains") => Some(Test::Regex(escaped)),
        ("path" | "uri.path", "matches") => Some(Test::Regex(text.to_owned())),
        ("method", "==") => Some(Test::Is(Effect::Methods(vec![text.to_owned()]))),
        ("host", "==") => Some(host_test(text)),
        ("scheme", "==") if text == "http" || text == "https" => {
            Some(Test::Is(Effect::Scheme(Scheme::of(text == "https"))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(test: &Test) -> String {
        let list = |all: &[Test], sign: &str| {
            let all: Vec<String> = all.iter().map(shown).collect();
            if all.len() == 1 { all.concat() } else { format!("({})", all.join(sign)) }
        };
        match test {
            Test::All(all) => list(all, " and "),
            Test::Any(any) => list(any, " or "),
            Test::Not(inner) => format!("not {}", shown(inner)),
            Test::Path(path) => path.clone(),
            Test::Regex(regex) => format!("~{regex}"),
            Test::Is(_) => "other".to_owned(),
            Test::Socket | Test::Unsaid => "unsaid".to_owned(),
        }
    }

    #[test]
    fn expressions() {
        let mut function = |words: &[String]| Test::Path(words[1..].join("+"));
        let mut of = |text: &str| test(text, &mut function).map(|test| shown(&test));
        for (text, expected) in [
            ("{path}.startsWith('/ex/') && {method} == 'GET'", Some("(~^/ex/ and other)")),
            ("!(path('/a', '/b') || {query.x} != \"1\")", Some("not (/a+/b or not other)")),
            ("header({'X-A': 'b'})", Some("X-A+b")),
            ("{host} in ['a.test', 'b.test']", Some("(other or other)")),
            ("{path}.startsWith('/ex/') ? true : false", None),
            ("{header.X} == ''", None),
            ("{remote_host} == '10.0.0.1'", Some("10.0.0.1")),
            ("{remote_host} == 'a'", None),
            ("{path} == {uri}", None),
            ("int({query.x}) > 3", None),
        ] {
            assert_eq!(of(text).as_deref(), expected, "{text}");
        }
        let deep = format!("{}path('/a')", "!".repeat(100_000));
        assert!(of(&deep).is_none());
    }
}
