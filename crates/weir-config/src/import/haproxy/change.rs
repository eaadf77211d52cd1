//! Rules of HAProxy that change a request: its fields, its path, its host. Called by `flow`, for
//! requests that earlier rules left in the same way.
//!
//! A field whose value weir cannot express is removed, so that no client sets it. Requests whose
//! path, query or method would have to be changed in a way that weir cannot express are closed.

use weir_proxy::request::rules::edits::Side;

use super::super::route::Edit;
use super::super::tree::Node;
use super::Haproxy;
use super::flow::Flow;
use super::seen::{Path, Seen, text};

/// A change of a request.
pub(super) enum Change {
    /// A field. `lines`: its only lines behind a `set`, or the line that is added; None: unknown.
    Field { edit: Option<Edit>, name: String, verb: &'static str, line: Option<String> },
    /// Fields that have no single name.
    Fields,
    /// The Host that servers see.
    Host(String),
    /// The path: an expression with its replacement, and the path that later rules see.
    Path((String, String), Path),
    /// weir cannot express it.
    Closes(&'static str),
}

/// Fields that weir sets itself.
const OWN: [&str; 3] = ["x-forwarded-proto", "x-forwarded-for", "x-forwarded-host"];
/// Why a path change closes.
const PATHS: &str = "weir changes a path with one `rewrite`, and cannot express this; servers \
    would get another path than here, so weir rejects these requests; write the `route` yourself";
/// Why a change of the query or the method closes.
const REQUESTS: &str = "weir changes neither queries nor methods, so it rejects these requests; \
    write a `route` for what servers may get";
/// Why a change of the host closes.
const HOSTS: &str = "weir cannot express this Host, so that clients could choose another one: it \
    rejects these requests; write `host` in the `request` of a `route`";

impl Haproxy<'_, '_, '_> {
    /// Returns the change of a line of `http-request`; None: it changes nothing that weir knows.
    pub(super) fn change(&mut self, group: usize, line: &Node, seen: &Seen) -> Option<Change> {
        let (action, name) = (line.argument(1), line.argument(2));
        Some(match action {
            "set-header" | "replace-header" | "replace-value"
                if name.eq_ignore_ascii_case("host") =>
            {
                let value = line.argument(3);
                let is_said = action == "set-header" && crate::texts::probe_host(value).is_ok();
                if is_said { Change::Host(value.to_owned()) } else { Change::Closes(HOSTS) }
            }
            "set-header" | "add-header" => self.field(group, line, seen)?,
            "replace-header" | "replace-value" => self.replaced(line),
            "del-header" if line.words.iter().any(|word| word == "-m") => {
                let why = "weir removes fields by their whole names: write `remove` for each";
                self.draft.lost(line, why);
                Change::Fields
            }
            "del-header" => {
                let edit = self.removal(line);
                Change::Field { edit, name: name.to_owned(), verb: "remove", line: None }
            }
            "replace-path" => path(replaced_path(name, line.argument(3))),
            "set-path" => path(set_path(name, "%[path]", "path")),
            "replace-uri" | "replace-pathq" if is_of_path(name, line.argument(3)) => {
                path(replaced_path(name, line.argument(3)))
            }
            "set-uri" => path(set_path(name, "%[url]", "url")),
            "set-pathq" => path(set_path(name, "%[pathq]", "pathq")),
            "replace-uri" | "replace-pathq" => Change::Closes(PATHS),
            "set-query" | "set-method" => Change::Closes(REQUESTS),
            _ => return None,
        })
    }

    /// Converts `set-header` and `add-header`.
    fn field(&mut self, group: usize, line: &Node, seen: &Seen) -> Option<Change> {
        let (verb, name) =
            (if line.argument(1) == "add-header" { "add" } else { "set" }, line.argument(2));
        let lower = name.to_ascii_lowercase();
        if OWN.contains(&lower.as_str()) {
            self.own_field(group, line, &lower);
            return None;
        }
        let value = line.argument(3);
        let port = self.port(group).map(|port| value.replace("%[dst_port]", &port));
        let value = port.as_deref().unwrap_or(value);
        let constant = (!value.contains('%')).then(|| value.to_owned());
        let edit = match text(value, seen) {
            Ok(value) => self.draft.edit(line, Side::Request, verb, (name, &value)),
            Err(what) if verb == "set" => self.unset(line, &what),
            Err(what) => {
                self.draft.lost(line, format!("weir's texts have no equivalent of `{what}`"));
                None
            }
        };
        Some(Change::Field { edit, name: name.to_owned(), verb, line: constant })
    }

    /// Removes a field whose value cannot be expressed.
    fn unset(&mut self, line: &Node, what: &str) -> Option<Edit> {
        let name = line.argument(2);
        let why = format!(
            "weir's texts have no equivalent of `{what}`: it removes `{name}`, so that clients \
                cannot set it"
        );
        self.draft.different(line, why);
        self.removal(line)
    }

    pub(super) fn removal(&mut self, line: &Node) -> Option<Edit> {
        let name = line.argument(2);
        if OWN.contains(&name.to_ascii_lowercase().as_str()) {
            let why = "weir sets this field itself, from the connection";
            self.draft.different(line, why);
            return None;
        }
        self.draft.edit(line, Side::Request, "remove", (name, ""))
    }

    /// Converts a change of parts of a field.
    fn replaced(&mut self, line: &Node) -> Change {
        let name = line.argument(2).to_owned();
        let why = format!(
            "weir sets whole fields: it removes `{name}`, so that servers do not get what this \
                replaces"
        );
        self.draft.different(line, why);
        let edit = self.removal(line);
        Change::Field { edit, name, verb: "set", line: None }
    }

    /// Notes if weir sets one of its own fields to a different value.
    fn own_field(&mut self, group: usize, line: &Node, name: &str) {
        let condition = line.words[4.min(line.words.len())..].join(" ");
        let says = |scheme: &str| match condition.as_str() {
            "" => {
                let all = &self.draft.groups[group].listens;
                let is_tls = |at: &usize| self.draft.listens[*at].tls.is_some();
                all.iter().all(|at| is_tls(at) == (scheme == "https"))
            }
            "if { ssl_fc }" | "unless !{ ssl_fc }" => scheme == "https",
            "if !{ ssl_fc }" | "if ! { ssl_fc }" | "unless { ssl_fc }" => scheme == "http",
            _ => false,
        };
        let is_same = match (name, line.argument(3)) {
            ("x-forwarded-for", "%[src]" | "%ci") => condition.is_empty(),
            ("x-forwarded-host", "%[req.hdr(host)]" | "%[hdr(host)]" | "%[req.hdr(Host)]") => {
                condition.is_empty()
            }
            ("x-forwarded-proto", "%[ssl_fc,iif(https,http)]") => condition.is_empty(),
            ("x-forwarded-proto", value @ ("http" | "https")) => says(value),
            _ => false,
        };
        if is_same {
            return self.draft.unneeded(&format!("{} {}", line.argument(1), line.argument(2)));
        }
        let why = "weir sets this field itself, from the connection, and keeps only that of \
            `trusted-proxies`";
        self.draft.different(line, why);
    }

    /// Returns the port of all listeners of a group, if they have one in common.
    fn port(&self, group: usize) -> Option<String> {
        let port = |at: &usize| Some(self.draft.listens[*at].address.network()?.port());
        let mut all = self.draft.groups[group].listens.iter().map(port);
        let first = all.next()??;
        all.all(|other| other == Some(first)).then(|| first.to_string())
    }
}

impl Change {
    /// Makes it to a request. Err: why its requests are closed.
    pub(super) fn apply(&self, flow: &mut Flow) -> Result<(), &'static str> {
        match self {
            Change::Field { edit, name, verb, line } => {
                flow.route.request.extend(edit.clone());
                match *verb {
                    "add" => flow.seen.add(name, line.as_deref()),
                    "remove" => flow.seen.set(name, Some(Vec::new())),
                    _ => flow.seen.set(name, line.clone().map(|line| vec![line])),
                }
            }
            Change::Fields => flow.seen.forget_fields(),
            Change::Host(host) => {
                flow.route.server_host = Some(host.clone());
                flow.seen.set("host", Some(vec![host.clone()]));
            }
            Change::Path(..) if !flow.route.rewrites.is_empty() && flow.is_moved() => {
                return Err(PATHS);
            }
            Change::Path(rewrite, path) => {
                flow.route.rewrites = vec![rewrite.clone()];
                flow.seen.path = path.clone();
            }
            Change::Closes(why) => return Err(why),
        }
        Ok(())
    }

    /// Makes it to requests of which only some should have it. Err: why they are closed.
    pub(super) fn apply_to_some(&self, flow: &mut Flow) -> Result<(), &'static str> {
        match self {
            Change::Field { name, verb, .. } => {
                if matches!(*verb, "set" | "remove") {
                    let is_own = OWN.contains(&name.to_ascii_lowercase().as_str());
                    let name = name.clone();
                    flow.route.request.extend((!is_own).then(|| Edit {
                        verb: "remove",
                        name,
                        value: String::new(),
                    }));
                }
                flow.seen.set(name, None);
            }
            Change::Fields => flow.seen.forget_fields(),
            Change::Host(_) => return Err(HOSTS),
            Change::Path(..) => return Err(PATHS),
            Change::Closes(why) => return Err(why),
        }
        Ok(())
    }

    /// Returns what happens where only some requests should have it.
    pub(super) fn of_some(&self) -> Option<&'static str> {
        match self {
            Change::Field { verb: "add", .. } => {
                Some("routes cannot express this condition: weir adds nothing")
            }
            Change::Field { .. } => Some(
                "routes cannot express this condition: weir removes the field in all requests that \
                    this may be about, so that clients cannot set it",
            ),
            _ => None,
        }
    }
}

fn path(change: Option<((String, String), Path)>) -> Change {
    change.map_or(Change::Closes(PATHS), |(rewrite, seen)| Change::Path(rewrite, seen))
}

/// Converts `replace-path`: where the expression matches any part of a path, the text replaces all
/// of it.
fn replaced_path(regex: &str, to: &str) -> Option<((String, String), Path)> {
    let ours = replacement(to)?;
    let has_start = regex.starts_with('^') && !regex.contains('|');
    let is_whole = regex.ends_with("(.*)") || regex.ends_with('$') && !regex.ends_with("\\$");
    let whole = match (has_start, is_whole && !regex.contains('|')) {
        (true, true) => regex.to_owned(),
        (true, false) => format!("{regex}.*$"),
        (false, true) => format!("^.*?{regex}"),
        (false, false) => format!("^.*?(?:{regex}).*$"),
    };
    fits(&whole, &ours)?;
    Some(((whole, ours), moved(regex, to)))
}

/// Returns the path that later rules see.
fn moved(regex: &str, to: &str) -> Path {
    let from = regex
        .strip_prefix('^')
        .and_then(|rest| rest.strip_suffix("(.*)").or_else(|| rest.strip_suffix("(.*)$")));
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '~');
    match (from, to.strip_suffix("\\1")) {
        (Some(from), Some(to)) if from.chars().all(plain) && to.chars().all(plain) => {
            Path::Moved(from.to_owned(), to.to_owned())
        }
        _ => Path::Unknown,
    }
}

/// Converts `set-path`: a text in front of the path, a text alone, or a replacement in the path.
fn set_path(format: &str, whole: &str, name: &str) -> Option<((String, String), Path)> {
    let plain = |text: &str| !text.contains(['%', '$', '?', '\\']) && !text.is_empty();
    if let Some(front) = format.strip_suffix(whole).filter(|front| plain(front)) {
        let to = Some(front.to_owned()).filter(|front| front.starts_with('/'))?;
        fits("^", &to)?;
        // A path begins with a slash.
        let seen = Path::Moved("/".to_owned(), format!("{to}/"));
        return Some((("^".to_owned(), to), seen));
    }
    if plain(format) && format.starts_with('/') && name == "path" {
        fits("^.*$", format)?;
        return Some((("^.*$".to_owned(), format.to_owned()), Path::Unknown));
    }
    let inside = format.strip_prefix("%[path,regsub(").filter(|_| name == "path")?;
    let inside = inside.strip_suffix(")]")?;
    let mut parts = inside.split(',');
    let (regex, to, flags) = (parts.next()?, parts.next()?, parts.next().unwrap_or_default());
    let unquoted = |text: &str| text.trim_matches(|c| c == '\'' || c == '"').to_owned();
    let (regex, to) = (unquoted(regex), replacement(&unquoted(to))?);
    let regex = match flags {
        "" => regex,
        "i" => format!("(?i){regex}"),
        _ => return None,
    };
    let is_whole = parts.next().is_none() && !inside.contains('(');
    fits(&regex, &to).filter(|()| is_whole)?;
    let from = regex.strip_prefix('^');
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '~');
    let seen = match from.filter(|from| from.chars().all(plain) && to.chars().all(plain)) {
        Some(from) => Path::Moved(from.to_owned(), to.clone()),
        None => Path::Unknown,
    };
    Some(((regex, to), seen))
}

/// Whether a replacement of path and query changes only the path, and leaves the query as it is.
fn is_of_path(regex: &str, to: &str) -> bool {
    regex.starts_with("^/")
        && regex.ends_with("(.*)")
        && !regex.contains(['?', '=', '&', '|'])
        && to.ends_with("\\1")
        && regex.matches('(').count() == 1
        && !to.contains('?')
}

/// Returns a replacement as weir writes it: groups are `\1` in HAProxy.
fn replacement(theirs: &str) -> Option<String> {
    let mut to = String::new();
    let mut rest = theirs.chars();
    while let Some(c) = rest.next() {
        match c {
            '\\' => to.extend(['$', rest.next().filter(char::is_ascii_digit)?]),
            '$' => to.push_str("$$"),
            '%' => match rest.next()? {
                '%' => to.push('%'),
                _ => return None,
            },
            c => to.push(c),
        }
    }
    Some(to)
}

/// Returns something if weir takes an expression and its replacement.
fn fits(regex: &str, to: &str) -> Option<()> {
    use super::super::route::Route;
    let rewrites = vec![(regex.to_owned(), to.to_owned())];
    let (host, path) = ("*".to_owned(), "/".to_owned());
    Route { host, path, rewrites, ..Route::default() }.refused().is_none().then_some(())
}

#[cfg(test)]
mod tests {
    //! Proves: changes of paths become one expression with its replacement, or nothing. How: a
    //! table.

    use super::*;

    #[test]
    fn paths() {
        let shown = |change: Option<((String, String), Path)>| {
            change.map(|((regex, to), seen)| format!("{regex} -> {to} {seen:?}"))
        };
        for (regex, to, ours) in [
            ("^/x/(.*)", "/\\1", r#"^/x/(.*) -> /$1 Moved("/x/", "/")"#),
            ("/a/(.*)", "/\\1", "^.*?/a/(.*) -> /$1 Unknown"),
            ("/a/([0-9]+)", "/n\\1$", "^.*?(?:/a/([0-9]+)).*$ -> /n$1$$ Unknown"),
            ("^/a|/b$", "/c", "^.*?(?:^/a|/b$).*$ -> /c Unknown"),
        ] {
            assert_eq!(shown(replaced_path(regex, to)).unwrap(), ours);
        }
        for (regex, to) in [("(", "/"), ("(?=a)", "/"), ("^/a", "\\9"), ("^/a", "/%[src]")] {
            assert_eq!(shown(replaced_path(regex, to)), None, "{regex}");
        }
        for (format, ours) in [
            ("/pre%[path]", Some(r#"^ -> /pre Moved("/", "/pre/")"#)),
            ("/one", Some("^.*$ -> /one Unknown")),
            ("%[path,regsub(^/v1/,/)]", Some(r#"^/v1/ -> / Moved("/v1/", "/")"#)),
            ("%[path,regsub(a,b,g)]", None),
            ("/x%[var(a)]", None),
            ("%[path]x", None),
        ] {
            assert_eq!(shown(set_path(format, "%[path]", "path")).as_deref(), ours, "{format}");
        }
    }
}
