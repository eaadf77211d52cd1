//! A request as the rules of HAProxy up to some line have left it: what later conditions and texts
//! see. Pure; called by `acl`, `criterion`, `change` and `rules`.

use std::collections::BTreeMap;

/// The path that later rules see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Path {
    /// As the client sent it.
    #[default]
    Received,
    /// Paths that begin with the first text begin with the second one instead.
    Moved(String, String),
    /// Nothing is known about it.
    Unknown,
}

/// A field that later rules see.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Field<'s> {
    /// As the client sent it.
    Received,
    /// Its only lines.
    Lines(&'s [String]),
    /// Nothing is known about it.
    Unknown,
}

/// The whole request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) path: Path,
    /// Whether the query was changed.
    pub(super) query: bool,
    /// Whether the method was changed.
    pub(super) method: bool,
    /// Changed fields by name in lower case, with their only lines. None: nothing is known.
    fields: BTreeMap<String, Option<Vec<String>>>,
    /// Any field may have been changed.
    any_field: bool,
}

impl Seen {
    /// Returns what later rules see of a field.
    pub(super) fn field(&self, name: &str) -> Field<'_> {
        match self.fields.get(&name.to_ascii_lowercase()) {
            Some(Some(lines)) => Field::Lines(lines),
            Some(None) => Field::Unknown,
            None if self.any_field => Field::Unknown,
            None => Field::Received,
        }
    }

    /// Records the lines of a field. None: nothing is known about them.
    pub(super) fn set(&mut self, name: &str, lines: Option<Vec<String>>) {
        self.fields.insert(name.to_ascii_lowercase(), lines);
    }

    /// Records a line that was added to a field.
    pub(super) fn add(&mut self, name: &str, line: Option<&str>) {
        let lines = match (self.field(name), line) {
            (Field::Lines(lines), Some(line)) => {
                Some(lines.iter().cloned().chain([line.to_owned()]).collect())
            }
            _ => None,
        };
        self.set(name, lines);
    }

    /// Records that any field may have been changed.
    pub(super) fn forget_fields(&mut self) {
        self.any_field = true;
        self.fields.clear();
    }
}

/// Names of HAProxy that have the value of one of weir's.
const NAMES: [(&str, &str); 11] = [
    ("src", "remote_addr"),
    ("ci", "remote_addr"),
    ("method", "request_method"),
    ("HM", "request_method"),
    ("url", "request_uri"),
    ("pathq", "request_uri"),
    ("capture.req.uri", "request_uri"),
    ("req.hdr(host)", "host"),
    ("hdr(host)", "host"),
    ("unique-id", "request_id"),
    ("b", "upstream_name"),
];

/// Returns a log-format text as a text of weir's. Err: the part that weir does not have.
pub(super) fn text(theirs: &str, seen: &Seen) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = theirs;
    while let Some(at) = rest.find(['%', '$']) {
        out.push_str(&rest[..at]);
        let behind = &rest[at + 1..];
        if rest[at..].starts_with('$') {
            out.push_str("$$");
            rest = behind;
            continue;
        }
        if let Some(behind) = behind.strip_prefix('%') {
            out.push('%');
            rest = behind;
            continue;
        }
        // `%{+Q}[src]`: flags.
        let bare = behind.strip_prefix('{').and_then(|flags| flags.split_once('}'));
        let bare = bare.map_or(behind, |(_, bare)| bare);
        let (name, behind) = match bare.strip_prefix('[').and_then(|inside| inside.split_once(']'))
        {
            Some(found) => found,
            None => {
                bare.split_at(bare.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(bare.len()))
            }
        };
        out.push_str(&value(name, seen).ok_or_else(|| name.to_owned())?);
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}

/// Returns the value of a name as weir writes it, if it is still that of the client's request.
fn value(name: &str, seen: &Seen) -> Option<String> {
    let field = name.strip_prefix("req.hdr(").or_else(|| name.strip_prefix("hdr("));
    let field = field.and_then(|rest| rest.strip_suffix(')'));
    if let Some(field) = field {
        match seen.field(field) {
            Field::Received => {}
            Field::Lines(lines) => {
                return Some(lines.last().map(|line| line.replace('$', "$$")).unwrap_or_default());
            }
            Field::Unknown => return None,
        }
    }
    let known = NAMES.iter().find(|(known, _)| *known == name).map(|(_, ours)| (*ours).to_owned());
    let known = known.or_else(|| {
        field
            .filter(|field| !field.contains(','))
            .map(|field| format!("http_{}", field.to_ascii_lowercase().replace('-', "_")))
    })?;
    let is_changed = match known.as_str() {
        "request_uri" => seen.query || seen.path != Path::Received,
        "request_method" => seen.method,
        _ => false,
    };
    // Braces separate it from the text behind.
    (!is_changed).then(|| format!("${{{known}}}"))
}

#[cfg(test)]
mod tests {
    //! Proves: texts become weir's, and never have the client's value of what a rule has replaced.
    //! How: examples.

    use super::*;

    #[test]
    fn texts_with_names() {
        let text = |theirs: &str| text(theirs, &Seen::default());
        assert_eq!(text("%[src]x%%").unwrap(), "${remote_addr}x%");
        assert_eq!(text("%ci %[req.hdr(X-Id)] $1").unwrap(), "${remote_addr} ${http_x_id} $$1");
        assert_eq!(text("%{+Q}[ssl_c_s_dn(cn)]").unwrap_err(), "ssl_c_s_dn(cn)");
        assert_eq!(text("%[ssl_fc_sni]").unwrap_err(), "ssl_fc_sni");
        assert_eq!(text("%[req.hdr(a,-1)]").unwrap_err(), "req.hdr(a,-1)");
        assert_eq!(text("%[open").unwrap_err(), "");
    }

    #[test]
    fn values_that_were_replaced() {
        let mut seen = Seen::default();
        seen.set("X-A", Some(vec!["1".to_owned()]));
        seen.add("x-a", Some("2$"));
        seen.add("X-B", Some("1"));
        assert_eq!(text("%[hdr(x-a)]", &seen).unwrap(), "2$$");
        assert_eq!(text("%[hdr(x-b)]", &seen).unwrap_err(), "hdr(x-b)");
        assert_eq!(seen.field("X-C"), Field::Received);
        seen.forget_fields();
        assert_eq!((seen.field("x-a"), seen.field("X-C")), (Field::Unknown, Field::Unknown));
        let moved = Path::Moved("/a/".to_owned(), "/".to_owned());
        let seen = Seen { path: moved, ..Seen::default() };
        assert_eq!(text("%[url]", &seen).unwrap_err(), "url");
    }
}
