//! One criterion of an ACL of HAProxy, such as `path_beg -i /a /b`, as effects that routes can
//! express. Pure; called by `acl`.

use super::super::cases::Effect;
use super::super::route::{Condition, refused};
use super::seen::{Field, Path, Seen};
use crate::texts;

/// Suffixes of fetches, and words behind `-m`, that say how values are compared.
const HOW: [&str; 7] = ["str", "beg", "end", "sub", "reg", "dom", "dir"];
/// Suffixes and words for other comparisons, of which routes have at most `found`.
const OTHER: [&str; 7] = ["found", "cnt", "val", "len", "int", "ip", "bool"];
/// Parts of paths that no path has as weir compares them.
const ODD_IN_PATHS: [&str; 6] = ["..", "//", "/./", "%", r"\.\.", r"\./"];
/// The note that is made once about all paths.
const DECODED: &str = "weir compares paths decoded, without dot segments and empty ones: `/%61` is \
    `/a` for it, and `//a` as well";
/// The note that is made once about all ends of names.
const WHOLE_NAMES: &str =
    "weir compares whole labels of names: `a.test` and `b.a.test`, but not `xa.test` as here";
/// The note that is made once about expressions for names.
const DOTS: &str = "a `.` in an expression for a name is only a dot in weir";
/// The note that is made once about all names.
const PORTS: &str = "weir compares names without their port and without case";
/// The note that is made once about members of queries.
const MEMBERS: &str = "weir compares members of a query decoded, and also those without `=`";
/// Longest expression of one condition, bytes.
const REGEX_BYTES_MAX: usize = 16_384;
/// Beginnings of paths that become an effect each, rather than one expression.
const PREFIXES_MAX: usize = 4;
/// Values of one criterion that become an effect each.
const EFFECTS_MAX: usize = 200;

/// The part of a request that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Path,
    /// Path and query.
    Url,
    /// Host and path.
    Base,
    Method,
    Host,
    Header,
    Query,
    Cookie,
}

/// A criterion, parsed.
pub(super) struct Criterion<'w> {
    what: What,
    /// The name of a field, a member of the query, a cookie.
    name: &'w str,
    how: &'w str,
    any_case: bool,
    /// The value is converted in a way that routes cannot express.
    converted: bool,
    /// Values of a field are separated by commas.
    is_list: bool,
    pub(super) values: Vec<String>,
    /// Files with more values.
    pub(super) files: Vec<&'w str>,
}

impl<'w> Criterion<'w> {
    /// None: routes cannot express it.
    pub(super) fn read(words: &[&'w str]) -> Option<Criterion<'w>> {
        let (chain, rest) = words.split_first()?;
        let mut parts = split(chain);
        let fetch = parts.next()?;
        // Paths and queries are compared decoded, and hosts without port.
        let base = chain.strip_prefix("req.").unwrap_or(chain);
        let is_decoded = ["path", "url", "pathq", "query", "urlp"];
        let is_decoded = is_decoded.iter().any(|name| base.starts_with(name));
        let is_host = base.to_ascii_lowercase().contains("(host)");
        let (mut any_case, mut converted) = (false, false);
        for converter in parts {
            match converter {
                "lower" | "upper" => any_case = true,
                "url_dec" if is_decoded => {}
                "host_only" | "field(1,:)" | "word(1,:)" if is_host => {}
                _ => converted = true,
            }
        }
        let (fetch, name) =
            fetch.strip_suffix(')').and_then(|fetch| fetch.split_once('(')).unwrap_or((fetch, ""));
        let bare = fetch.strip_prefix("req.").unwrap_or(fetch);
        let is_suffix = |how: &str| HOW.contains(&how) || OTHER.contains(&how);
        let (base, mut how) =
            bare.rsplit_once('_').filter(|(_, how)| is_suffix(how)).unwrap_or((bare, "str"));
        // Which of several values: routes take any.
        let (name, which) = name.split_once(',').unwrap_or((name, ""));
        converted |= !which.is_empty();
        let what = match base {
            "path" => What::Path,
            "url" | "pathq" => What::Url,
            "base" => What::Base,
            "method" | "capture.req.method" => What::Method,
            "hdr" | "fhdr" if name.eq_ignore_ascii_case("host") => What::Host,
            "hdr" | "fhdr" | "shdr" if !name.is_empty() => What::Header,
            "url_param" | "urlp" if !name.is_empty() => What::Query,
            "cook" if !name.is_empty() => What::Cookie,
            _ => return None,
        };
        let (mut values, mut files) = (Vec::new(), Vec::new());
        let mut rest = rest.iter();
        while let Some(word) = rest.next() {
            match *word {
                _ if !values.is_empty() => values.push((*word).to_owned()),
                "-i" => any_case = true,
                "-n" => {}
                "-m" => how = rest.next()?,
                "-f" => files.push(*rest.next()?),
                "--" => values.extend(rest.by_ref().map(|word| (*word).to_owned())),
                flag if flag.starts_with('-') && flag.len() == 2 => return None,
                value => values.push(value.to_owned()),
            }
        }
        let is_list = base == "hdr";
        let has_values = !values.is_empty() || !files.is_empty() || how == "found";
        (is_suffix(how) && has_values).then_some(Criterion {
            what,
            name,
            how,
            any_case,
            converted,
            is_list,
            values,
            files,
        })
    }

    /// Returns the effects of which one has to be true, for a request as rules have left it.
    pub(super) fn effects(&self, seen: &Seen) -> Vec<Effect> {
        match self.what {
            What::Header | What::Query | What::Cookie => vec![self.of_field(seen)],
            _ if self.converted || OTHER.contains(&self.how) => self.of_presence(),
            What::Path => self.of_path(seen),
            What::Url if !seen.query => self.of_url(seen),
            What::Base if self.how == "beg" || self.how == "str" => self.of_base(seen),
            What::Method if self.how == "str" && !seen.method => {
                vec![self.methods()]
            }
            What::Host => self.of_host(seen),
            _ => vec![Effect::Unsaid],
        }
    }

    /// Returns how routes compare its values differently, if they do.
    pub(super) fn difference(&self) -> Option<&'static str> {
        let has_dots = self.values.iter().all(|value| value.starts_with('.'));
        match (self.what, self.how) {
            (
                What::Path | What::Url | What::Base,
                "str" | "beg" | "end" | "sub" | "dir" | "reg",
            ) => Some(DECODED),
            (What::Host, "end") if !has_dots => Some(WHOLE_NAMES),
            (What::Host, "reg") => Some(DOTS),
            (What::Host, "str" | "end") => Some(PORTS),
            (What::Query, _) => Some(MEMBERS),
            _ => None,
        }
    }

    /// Every request has a path and a method.
    fn of_presence(&self) -> Vec<Effect> {
        match (self.what, self.how) {
            (What::Path | What::Url | What::Method, "found") => vec![Effect::Always],
            // weir rejects requests with several.
            (What::Host, "cnt") if !self.converted && self.is_above_one() => vec![Effect::Never],
            _ => vec![Effect::Unsaid],
        }
    }

    fn is_above_one(&self) -> bool {
        let words: Vec<&str> = self.values.iter().map(String::as_str).collect();
        matches!(words[..], ["gt", "1"] | ["ge", "2"])
    }

    fn methods(&self) -> Effect {
        let all: Vec<String> = self.values.iter().map(|value| value.to_ascii_uppercase()).collect();
        if all.iter().all(|method| texts::method(method).is_ok()) {
            Effect::Methods(all)
        } else {
            Effect::Unsaid
        }
    }

    fn of_path(&self, seen: &Seen) -> Vec<Effect> {
        match &seen.path {
            Path::Received => self.of_received(),
            Path::Unknown => vec![Effect::Unsaid],
            Path::Moved(from, to) => {
                let moved = self.values.iter().map(|value| self.moved(value, from, to));
                let moved: Option<Vec<Vec<Effect>>> = moved.collect();
                moved.map_or_else(|| vec![Effect::Unsaid], |all| all.concat())
            }
        }
    }

    /// Returns the paths that become this one, or that begin with it, when `to` replaces `from` at
    /// their beginning. None: they cannot be expressed.
    fn moved(&self, value: &str, from: &str, to: &str) -> Option<Vec<Effect>> {
        let of = |path: String| Criterion { values: vec![path], files: Vec::new(), ..*self };
        if !matches!(self.how, "beg" | "str") || self.any_case || from.starts_with(value) {
            return None;
        }
        let mut effects = Vec::new();
        if let Some(rest) = value.strip_prefix(to) {
            effects.extend(of(format!("{from}{rest}")).of_received());
        } else if self.how == "beg" && to.starts_with(value) {
            effects.extend(of(from.to_owned()).of_received());
        }
        // Other paths are as they were.
        if !value.starts_with(from) {
            effects.extend(of(value.to_owned()).of_received());
        }
        Some(if effects.is_empty() { vec![Effect::Never] } else { effects })
    }

    /// Returns the effects for the path as the client sent it.
    fn of_received(&self) -> Vec<Effect> {
        let Some(values) =
            self.values.iter().map(|value| decoded(value)).collect::<Option<Vec<_>>>()
        else {
            return vec![Effect::Unsaid];
        };
        let is_plain = !self.any_case && values.iter().all(|path| texts::route_path(path).is_ok());
        let is_few = values.len() <= EFFECTS_MAX;
        match self.how {
            "str" if is_plain && is_few => values.into_iter().map(Effect::Exactly).collect(),
            "beg" if is_plain && is_few && values.iter().all(|path| path.ends_with('/')) => {
                values.into_iter().map(Effect::Path).collect()
            }
            "beg" if is_plain && values.len() <= PREFIXES_MAX => {
                values.into_iter().map(Effect::Prefix).collect()
            }
            "dom" => vec![Effect::Unsaid],
            // weir compares paths without what this looks for.
            _ if values.iter().any(|text| ODD_IN_PATHS.iter().any(|odd| text.contains(odd))) => {
                vec![Effect::Unsaid]
            }
            how => {
                let regex = pattern(how, &values, self.any_case, false);
                let condition = regex.map(|regex| Condition::of_path(regex, false));
                let fits = condition.filter(|condition| refused(condition).is_none());
                fits.map_or_else(
                    || values.iter().map(|value| among(how, value)).collect(),
                    |condition| vec![Effect::Condition(condition)],
                )
            }
        }
    }

    /// Returns the effects for path and query: only the beginning is that of the path.
    fn of_url(&self, seen: &Seen) -> Vec<Effect> {
        let is_path =
            self.values.iter().all(|value| value.starts_with('/') && !value.contains('?'));
        match self.how {
            "beg" if is_path => self.of_path(seen),
            "str" if is_path => {
                let wide = self.of_path(seen);
                wide.into_iter().map(|effect| Effect::Among(Box::new(effect))).collect()
            }
            how if seen.path == Path::Received => {
                self.values.iter().map(|value| among(how, value)).collect()
            }
            _ => vec![Effect::Unsaid],
        }
    }

    /// Returns the effects for host and path, if the values have a whole host.
    fn of_base(&self, seen: &Seen) -> Vec<Effect> {
        let of = |value: &String| {
            let (name, rest) = value.split_once('/')?;
            if seen.field("host") != Field::Received || texts::host_pattern(name).is_err() {
                return None;
            }
            let path = Criterion {
                what: What::Path,
                values: vec![format!("/{rest}")],
                files: Vec::new(),
                ..*self
            };
            let host = Effect::Host(host(name));
            let all = path.of_path(seen).into_iter();
            Some(all.map(|path| Effect::All(vec![host.clone(), path])).collect::<Vec<_>>())
        };
        self.values.iter().flat_map(|value| of(value).unwrap_or(vec![Effect::Unsaid])).collect()
    }

    fn of_host(&self, seen: &Seen) -> Vec<Effect> {
        match seen.field("host") {
            Field::Received => {}
            Field::Lines(lines) => return vec![self.decided(lines)],
            Field::Unknown => return vec![Effect::Unsaid],
        }
        let of = |value: &String| -> Vec<Effect> {
            let name = host(value);
            match self.how {
                "str" if texts::host_pattern(&name).is_ok() => vec![Effect::Host(name)],
                "end" if name.starts_with('.') && texts::host_pattern(&name[1..]).is_ok() => {
                    vec![Effect::Host(format!("*{name}"))]
                }
                "end" if texts::host_pattern(&name).is_ok() => {
                    vec![Effect::Host(format!("*.{name}")), Effect::Host(name)]
                }
                "reg" => names(value).map_or_else(
                    || vec![Effect::Unsaid],
                    |all| all.into_iter().map(Effect::Host).collect(),
                ),
                _ => vec![Effect::Unsaid],
            }
        };
        self.values.iter().flat_map(of).collect()
    }

    /// Returns the condition on a field, a member of the query or a cookie.
    fn of_field(&self, seen: &Seen) -> Effect {
        let field = match self.what {
            What::Header => seen.field(self.name),
            What::Cookie => seen.field("cookie"),
            _ if seen.query => Field::Unknown,
            _ => Field::Received,
        };
        match field {
            Field::Received => {}
            Field::Lines(lines) if self.what == What::Header && !self.converted => {
                return self.decided(lines);
            }
            _ => return Effect::Unsaid,
        }
        let is_there = self.condition(None);
        if refused(&is_there).is_some() {
            return Effect::Unsaid;
        }
        match self.how {
            "found" if !self.converted => return Effect::Condition(is_there),
            "cnt" if !self.converted => return self.counted(is_there),
            _ => {}
        }
        let exact = self.value().map(|value| self.condition(Some(value)));
        match exact.filter(|condition| refused(condition).is_none()) {
            Some(condition) => Effect::Condition(condition),
            // Requests without the field never match.
            None => Effect::Among(Box::new(Effect::Condition(is_there))),
        }
    }

    /// Returns the values of a field as a condition compares them.
    fn value(&self) -> Option<(&'static str, String)> {
        if self.converted || OTHER.contains(&self.how) {
            return None;
        }
        let values = match self.what {
            // Members are compared decoded.
            What::Query => self.values.iter().map(|value| decoded(value)).collect::<Option<_>>()?,
            _ => self.values.clone(),
        };
        let is_list = self.what == What::Header && self.is_list;
        match (&values[..], self.how) {
            ([value], "str") if !is_list && !self.any_case => Some(("eq", value.clone())),
            ([value], "beg") if !is_list && !self.any_case => Some(("prefix", value.clone())),
            ([value], "end") if !is_list && !self.any_case => Some(("suffix", value.clone())),
            _ => pattern(self.how, &values, self.any_case, is_list).map(|regex| ("regex", regex)),
        }
    }

    /// Returns the condition on how often a field occurs, as far as presence says it.
    fn counted(&self, is_there: Condition) -> Effect {
        let words: Vec<&str> = self.values.iter().map(String::as_str).collect();
        let none = Condition { not: true, ..is_there.clone() };
        match words[..] {
            ["gt", "0"] | ["ge", "1"] => Effect::Condition(is_there),
            ["0"] | ["eq" | "le", "0"] | ["lt", "1"] => Effect::Condition(none),
            ["gt" | "ge" | "eq", _] | [_] => Effect::Among(Box::new(Effect::Condition(is_there))),
            _ => Effect::Unsaid,
        }
    }

    /// Returns whether known lines match.
    fn decided(&self, lines: &[String]) -> Effect {
        let is_list = self.what == What::Header && self.is_list;
        if self.how == "found" {
            return if lines.is_empty() { Effect::Never } else { Effect::Always };
        }
        if lines.is_empty() && self.how != "cnt" {
            return Effect::Never;
        }
        let regex = pattern(self.how, &self.values, self.any_case, is_list);
        match regex.and_then(|regex| regex::Regex::new(&regex).ok()) {
            Some(_) if self.converted => Effect::Unsaid,
            Some(regex) if lines.iter().any(|line| regex.is_match(line)) => Effect::Always,
            Some(_) => Effect::Never,
            None => Effect::Unsaid,
        }
    }

    fn condition(&self, matches: Option<(&'static str, String)>) -> Condition {
        let subject = match self.what {
            What::Query => "query",
            What::Cookie => "cookie",
            _ => "header",
        };
        Condition { subject, name: self.name.to_owned(), matches, not: false }
    }
}

/// Returns the expression for one of these values; `is_list`: for an element between commas. None:
/// there is none.
fn pattern(how: &str, values: &[String], any_case: bool, is_list: bool) -> Option<String> {
    let (start, end) = if is_list { (r"(?:^|,)[ \t]*", r"[ \t]*(?:,|$)") } else { ("^", "$") };
    let alternatives = |of: &dyn Fn(&str) -> String| match values {
        [value] => of(value),
        _ => format!("(?:{})", values.iter().map(|value| of(value)).collect::<Vec<_>>().join("|")),
    };
    let escaped =
        |trimmed: &[char]| alternatives(&|value| regex::escape(value.trim_matches(trimmed)));
    let text = match how {
        "str" => format!("{start}{}{end}", escaped(&[])),
        "beg" => format!("{start}{}", escaped(&[])),
        "end" => format!("{}{end}", escaped(&[])),
        "sub" => escaped(&[]),
        "dir" => format!("(?:^|/){}(?:[/?]|$)", escaped(&['/'])),
        "dom" => {
            format!(r"(?:^|[/.:?,])[ \t]*{}[ \t]*(?:[/.:?,]|$)", escaped(&['/', '.', ':', '?']))
        }
        "reg" if !is_list => match values {
            [value] => value.clone(),
            _ => values.iter().map(|one| format!("(?:{one})")).collect::<Vec<_>>().join("|"),
        },
        "reg" => {
            let all: Option<Vec<String>> =
                values.iter().map(|value| element(value, start, end)).collect();
            let all = all?;
            if all.len() == 1 { all.concat() } else { format!("(?:{})", all.join("|")) }
        }
        _ => return None,
    };
    let text = if any_case { format!("(?i){text}") } else { text };
    (text.len() <= REGEX_BYTES_MAX).then_some(text)
}

/// Returns an expression for an element of a list as one for the whole line. None: there is none.
fn element(regex: &str, start: &str, end: &str) -> Option<String> {
    let inner = regex.strip_prefix('^').unwrap_or(regex);
    let (inner, is_end) = match inner.strip_suffix('$') {
        Some(inner) if !inner.ends_with('\\') => (inner, true),
        _ => (inner, false),
    };
    if inner.contains(['^', '$']) || inner.len() < regex.len() && inner.contains('|') {
        return None;
    }
    let front = if regex.starts_with('^') { start } else { "" };
    Some(format!("{front}{inner}{}", if is_end { end } else { "" }))
}

/// Returns the requests among which are all that match an expression of a path.
fn among(how: &str, value: &str) -> Effect {
    let prefix = match how {
        "reg" => literal(value),
        "beg" | "str" => value
            .split('?')
            .next()
            .and_then(decoded)
            .filter(|path| path.starts_with('/') && texts::route_path(path).is_ok()),
        _ => None,
    };
    prefix.map_or(Effect::Unsaid, |prefix| Effect::Among(Box::new(Effect::Prefix(prefix))))
}

/// Returns the text that all matches of an expression begin with, at the beginning of a path.
fn literal(regex: &str) -> Option<String> {
    let rest = regex.strip_prefix('^')?;
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_');
    let end = rest.find(|c| !fine(c)).unwrap_or(rest.len());
    // A character that may be missing is no part of it.
    let is_optional = rest[end..].starts_with(['?', '*', '{', '|']);
    let text = &rest[..if is_optional { end.saturating_sub(1) } else { end }];
    let fits = text.starts_with('/') && text.len() > 1 && !regex.contains('|');
    (fits && texts::route_path(text).is_ok()).then(|| text.to_owned())
}

/// Returns a path with its escapes decoded. None: the result is no text.
fn decoded(path: &str) -> Option<String> {
    let mut out = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((byte, behind)) = rest.split_first() {
        let digit = |at: usize| behind.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push(u8::try_from(high * 16 + low).ok()?);
                rest = &behind[2..];
            }
            _ => {
                out.push(*byte);
                rest = behind;
            }
        }
    }
    String::from_utf8(out).ok()
}

/// Returns the host without a port.
fn host(value: &str) -> String {
    let bare = value
        .rsplit_once(':')
        .filter(|(_, port)| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    bare.map_or(value, |(host, _)| host).to_ascii_lowercase()
}

/// Returns the names that an expression like `^(www\.|m\.)?a\.test$` matches. None: it has another
/// form, or there are many.
fn names(regex: &str) -> Option<Vec<String>> {
    let bare = regex.strip_prefix("(?i)").unwrap_or(regex);
    let mut rest = bare.strip_prefix('^')?.strip_suffix('$')?;
    let mut all = vec![String::new()];
    while let Some(c) = rest.chars().next() {
        let parts: Vec<String> = if c == '(' {
            let end = rest.find(')')?;
            let inside = &rest[1..end];
            let inside = inside.strip_prefix("?:").unwrap_or(inside);
            rest = &rest[end + 1..];
            let mut parts = inside.split('|').map(plain).collect::<Option<Vec<String>>>()?;
            if let Some(behind) = rest.strip_prefix('?') {
                rest = behind;
                parts.push(String::new());
            }
            parts
        } else {
            let end = rest.find('(').unwrap_or(rest.len());
            let part = plain(&rest[..end])?;
            rest = &rest[end..];
            vec![part]
        };
        let joined =
            all.iter().flat_map(|one| parts.iter().map(move |part| format!("{one}{part}")));
        all = joined.take(EFFECTS_MAX + 1).collect();
        if all.len() > EFFECTS_MAX {
            return None;
        }
    }
    let fits = |name: &String| texts::host_pattern(name).is_ok();
    all.iter().all(fits).then_some(all)
}

/// Returns the text that an expression without special characters but dots matches.
fn plain(regex: &str) -> Option<String> {
    let mut out = String::new();
    let mut rest = regex.chars();
    while let Some(c) = rest.next() {
        match c {
            '\\' => out.push(rest.next().filter(|c| matches!(c, '.' | '-'))?),
            c if c.is_ascii_alphanumeric() || c == '-' || c == '.' => {
                out.push(c.to_ascii_lowercase())
            }
            _ => return None,
        }
    }
    Some(out)
}

/// Splits a fetch and its converters: the parts between commas outside of parentheses.
pub(super) fn split(chain: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    chain.split(move |c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    })
}

#[cfg(test)]
mod tests {
    //! Proves: which effects a criterion has, for a request as it came and as rules left it. How:
    //! tables.

    use super::*;

    fn shown_of(effect: &Effect) -> String {
        match effect {
            Effect::Condition(Condition { subject, name, matches, not }) => {
                let (how, text) = matches.clone().unwrap_or(("", String::new()));
                format!("{}{subject} {name} {how} {text}", if *not { "!" } else { "" })
            }
            Effect::Among(wide) => format!("among {}", shown_of(wide)),
            Effect::All(all) => all.iter().map(shown_of).collect::<Vec<_>>().join(" + "),
            other => format!("{other:?}"),
        }
    }

    fn shown(words: &str, seen: &Seen) -> String {
        let words: Vec<&str> = words.split(' ').collect();
        let read = Criterion::read(&words);
        read.map_or("none".to_owned(), |criterion| {
            criterion.effects(seen).iter().map(shown_of).collect::<Vec<_>>().join("; ")
        })
    }

    #[test]
    fn criteria_are_taken_apart() {
        for (words, effects) in [
            ("path_beg /a/ /b/", r#"Path("/a/"); Path("/b/")"#),
            ("path_beg /a", r#"Prefix("/a")"#),
            ("path_beg /a /b/", r#"Prefix("/a"); Prefix("/b/")"#),
            ("path_beg /a /b /c /d /e", "path  regex ^(?:/a|/b|/c|/d|/e)"),
            ("path_beg -i /a/", "path  regex (?i)^/a/"),
            ("path /a /b/", r#"Exactly("/a"); Exactly("/b/")"#),
            ("path -i -m str /a", "path  regex (?i)^/a$"),
            ("path_end .php", r"path  regex \.php$"),
            ("path_dir /a/", "path  regex (?:^|/)a(?:[/?]|$)"),
            ("path_sub -- -i", r"path  regex \-i"),
            ("path_beg /a%20b/", r#"Path("/a b/")"#),
            ("path,url_dec -m reg ^/a", "path  regex ^/a"),
            ("path_reg ^/ab(?!c)", r#"among Prefix("/ab")"#),
            ("path_reg ^/ab?(?!c)", r#"among Prefix("/a")"#),
            ("path_reg a(?!c)", "Unsaid"),
            ("path,field(2,/) a", "Unsaid"),
            ("path_len gt 9", "Unsaid"),
            ("url_beg /a", r#"Prefix("/a")"#),
            ("url /a?b", r#"among Prefix("/a")"#),
            ("base_beg A.test/x", r#"Host("a.test") + Prefix("/x")"#),
            ("base_sub x", "Unsaid"),
            ("method get", r#"Methods(["GET"])"#),
            ("hdr(host) -i A.test:80", r#"Host("a.test")"#),
            ("req.hdr(Host),lower,field(1,:) -m end .a.test", r#"Host("*.a.test")"#),
            ("hdr_reg(host) ^(www\\.)?a\\.test$", r#"Host("www.a.test"); Host("a.test")"#),
            ("hdr_beg(host) www.", "Unsaid"),
            ("hdr_cnt(host) gt 1", "Never"),
            ("hdr_cnt(host) eq 1", "Unsaid"),
            ("hdr(x) a", r"header x regex (?:^|,)[ \t]*a[ \t]*(?:,|$)"),
            ("req.fhdr(x) a", "header x eq a"),
            ("hdr_reg(x) ^a", r"header x regex (?:^|,)[ \t]*a"),
            ("hdr_reg(x) ^a|b", "among header x  "),
            ("hdr(x,-1) a", "among header x  "),
            ("hdr_ip(x) 10.0.0.1", "among header x  "),
            ("hdr_cnt(x) gt 0", "header x  "),
            ("hdr_cnt(x) eq 0", "!header x  "),
            ("hdr_cnt(x) gt 1", "among header x  "),
            ("hdr(x-forwarded-for) a", "Unsaid"),
            ("hdr_sub(user-agent) -i bot", "header user-agent regex (?i)bot"),
            ("url_param(a) b%20c", "query a eq b c"),
            ("cook(a) -m found", "cookie a  "),
        ] {
            assert_eq!(shown(words, &Seen::default()), effects, "{words}");
        }
        for none in ["src 10.0.0.0/8", "path_beg", "path -x y", "hdr(a) -m odd y", "var(a) b"] {
            assert_eq!(shown(none, &Seen::default()), "none", "{none}");
        }
    }

    #[test]
    fn what_rules_left() {
        let mut seen = Seen::default();
        seen.set("x", Some(vec!["a, b".to_owned()]));
        seen.set("gone", Some(Vec::new()));
        seen.set("odd", None);
        seen.set("host", Some(vec!["a.test".to_owned()]));
        seen.path = Path::Moved("/x/".to_owned(), "/".to_owned());
        for (words, effects) in [
            ("hdr(x) b", "Always"),
            ("hdr(x) c", "Never"),
            ("hdr(gone) -m found", "Never"),
            ("hdr(gone) a", "Never"),
            ("hdr(odd) a", "Unsaid"),
            ("hdr(new) -m found", "header new  "),
            ("hdr(host) -i A.test", "Always"),
            ("hdr_beg(host) www.", "Never"),
            ("path_beg /admin/", r#"Path("/x/admin/"); Path("/admin/")"#),
            ("path_beg /x/admin/", r#"Path("/x/x/admin/")"#),
            ("path /a", r#"Exactly("/x/a"); Exactly("/a")"#),
            ("path_end .php", "Unsaid"),
            ("path_beg /", "Unsaid"),
        ] {
            assert_eq!(shown(words, &seen), effects, "{words}");
        }
    }

    #[test]
    fn names_of_expressions() {
        assert_eq!(names(r"^(?:www\.|m\.)a(b|c)\.test$").unwrap().len(), 4);
        assert_eq!(names("^a.test$").unwrap(), ["a.test"]);
        for none in ["a.test", r"^a\.test", r"^a+\.test$", "^(a$", r"^((a))\.t$"] {
            assert_eq!(names(none), None, "{none}");
        }
    }
}
