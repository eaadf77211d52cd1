//! Lines of HAProxy that decide about requests, each as an effect: `deny` and similar, `return`,
//! `redirect`, `monitor-uri`, `stats`, `use_backend`. Called by `flow`.

use weir_proxy::request::rules::edits::Side;

use super::super::cases::{Case, Effect};
use super::super::missing::Missing;
use super::super::own_answer::Content;
use super::super::route::{Condition, To};
use super::super::tree::Node;
use super::Haproxy;
use super::flow::{Act, At};
use super::seen::{Seen, text};

/// The response that a line describes.
#[derive(Default)]
struct Said<'l> {
    status: &'l str,
    content: Content<'l>,
    fields: Vec<(&'l str, &'l str)>,
    /// A part that weir cannot express.
    other: Option<&'l str>,
}

/// A redirect that a line describes.
#[derive(Default)]
struct Redirect<'l> {
    status: &'l str,
    /// `scheme`, `prefix` or `location`, with its text.
    to: Option<(&'l str, &'l str)>,
    cookie: Option<String>,
    drops_query: bool,
    appends_slash: bool,
    other: Option<&'l str>,
}

/// The note on connections that HAProxy ends without a response.
const RESPONDS: &str = "weir responds with 403 here, and keeps the connection";
/// Why the page of HAProxy is closed.
const STATS: &str = "weir has no page at this path: `metrics \"127.0.0.1:9100\"` at the top serves \
    one, and `weir status` shows it in the terminal";

impl<'t> Haproxy<'t, '_, '_> {
    /// Returns the effect of a line, for requests that earlier lines left like this. None: it has
    /// none on requests.
    pub(super) fn act(&mut self, at: At<'t>, seen: &Seen) -> Option<Act<'t>> {
        let line = at.line;
        match (line.name(), line.argument(1)) {
            ("monitor-uri", _) => Some(self.monitor(at.section, line)),
            ("stats", _) => Some(Act::Close(STATS)),
            ("use_backend", name) => {
                let backend = self.named.get(name).copied();
                Some(Act::Lead { backend, is_last: self.is_last(at) })
            }
            ("tcp-request", _) => self.of_connections(line),
            ("redirect", _) | ("http-request", "redirect") => self.redirect(line, seen),
            ("http-request", "return") => self.returned(line, seen),
            ("http-request", "allow") => Some(Act::Pass),
            ("http-request", "use-service") => {
                Some(Act::Close("weir has no services of its own: it rejects these requests"))
            }
            ("http-request", "auth") => Some(Act::Refuse(To::Denied)),
            ("http-request", "deny" | "tarpit") => Some(Act::Refuse(self.denial(line))),
            ("http-request", "reject" | "silent-drop") => {
                self.draft.different(line, RESPONDS);
                Some(Act::Refuse(To::Denied))
            }
            ("block", _) => Some(Act::Refuse(To::Denied)),
            ("http-request", _) => self.change(at.group, line, seen).map(Act::Change),
            _ => None,
        }
    }

    /// Returns the cases of a line that has its condition in another form. None: it has not.
    pub(super) fn own_cases(&mut self, at: At<'t>) -> Option<Vec<Case>> {
        let effect = match at.line.name() {
            "monitor-uri" => Effect::Exactly(at.line.argument(1).to_owned()),
            "stats" => {
                let uri = self.one(at.section, &["stats", "uri"]);
                let uri = uri.map_or("/haproxy?stats", |line| line.argument(2));
                match uri.split_once('?') {
                    None => Effect::Prefix(uri.to_owned()),
                    Some((path, member)) => Effect::All(vec![
                        Effect::Exactly(path.to_owned()),
                        Effect::Condition(Condition {
                            subject: "query",
                            name: member.split('=').next().unwrap_or_default().to_owned(),
                            matches: None,
                            not: false,
                        }),
                    ]),
                }
            }
            _ => return None,
        };
        Some(vec![Case::of(&effect)])
    }

    /// Whether no later line leads requests anywhere.
    fn is_last(&self, at: At<'_>) -> bool {
        let later = |node: &Node| node.place > at.line.place;
        self.one(at.frontend, &["default_backend"]).is_none()
            && !self.tree.named(at.frontend, "use_backend").any(later)
            && self.tree.indices(at.frontend, "server").is_empty()
    }

    /// Converts `monitor-uri PATH`.
    fn monitor(&mut self, section: usize, line: &Node) -> Act<'t> {
        let content = Content { text: "OK\n", ..Content::default() };
        let to = self.draft.respond(line, "200", content);
        match to.filter(|_| self.tree.named(section, "monitor").next().is_none()) {
            Some(to) => Act::Answer { to, edits: Vec::new(), rewrite: None, to_tls: false },
            None => Act::Close("weir cannot express when this fails: it rejects these requests"),
        }
    }

    /// Converts `tcp-request`.
    fn of_connections(&mut self, line: &Node) -> Option<Act<'t>> {
        match line.argument(2) {
            "reject" | "silent-drop" => {
                self.draft.different(line, RESPONDS);
                Some(Act::Refuse(To::Denied))
            }
            "accept" => Some(Act::Pass),
            _ => None,
        }
    }

    /// Returns the response of a `deny` or a `tarpit`.
    fn denial(&mut self, line: &Node) -> To {
        let Said { status, content, other, .. } = said(line, 2);
        if other.is_some() {
            self.draft.different(line, "its response has no content in weir, or a different one");
        }
        let is_tarpit = line.argument(1) == "tarpit";
        if is_tarpit {
            let why = "weir responds at once: `tarpit` of `shield` makes clients wait";
            self.draft.different(line, why);
        }
        let is_plain = content.text.is_empty() && content.file.is_empty();
        let status = match status {
            "" if is_tarpit => "500",
            "" => "403",
            status => status,
        };
        if status == "403" && is_plain {
            return To::Denied;
        }
        self.draft.respond(line, status, content).unwrap_or(To::Denied)
    }

    /// Converts `return`; with the status of an error it rejects.
    fn returned(&mut self, line: &Node, seen: &Seen) -> Option<Act<'t>> {
        let Said { status, content, fields, other } = said(line, 2);
        if let Some(other) = other {
            self.draft.lost(
                line,
                format!(
                    "weir's `respond` takes a text or a file, the same for all clients, and no \
                    `{other}`"
                ),
            );
            return Some(Act::Close("weir cannot express its response: it rejects these requests"));
        }
        let status = if status.is_empty() { "200" } else { status };
        let Some(to) = self.draft.respond(line, status, content) else {
            return Some(Act::Close("weir cannot express its response: it rejects these requests"));
        };
        let mut edits = Vec::new();
        for (name, value) in fields {
            match text(value, seen) {
                Ok(value) => {
                    edits.extend(self.draft.edit(line, Side::Answer, "add", (name, &value)))
                }
                Err(what) => {
                    self.draft.lost(line, format!("weir's texts have no equivalent of `{what}`"))
                }
            }
        }
        if edits.is_empty() && status.starts_with(['4', '5']) {
            return Some(Act::Refuse(to));
        }
        Some(Act::Answer { to, edits, rewrite: None, to_tls: false })
    }

    /// Converts `redirect` with a scheme, a prefix or a location.
    fn redirect(&mut self, line: &Node, seen: &Seen) -> Option<Act<'t>> {
        let said = redirected(line);
        let closes = Act::Close(
            "weir cannot express this redirect: it rejects these requests; write `redirect` in a \
                `route`",
        );
        if let Some(other) = said.other {
            self.draft.lost(
                line,
                format!("{}; weir has no equivalent of its `{other}`", Missing::Redirect.why()),
            );
            return Some(closes);
        }
        let Some((kind, value)) = said.to else { return Some(closes) };
        let to_tls = kind == "scheme" && value == "https";
        let target = match kind {
            "scheme" => Ok(format!("{value}://$host$request_uri")),
            "prefix" => text(value, seen).map(|prefix| {
                if prefix == "/" {
                    "$request_uri".to_owned()
                } else {
                    format!("{prefix}$request_uri")
                }
            }),
            _ => self.location(line, value, seen),
        };
        let target = match target {
            Ok(target) => target,
            Err(what) => {
                self.draft.lost(line, format!("weir's texts have no equivalent of `{what}`"));
                return Some(closes);
            }
        };
        if said.drops_query && kind != "location" {
            self.draft.different(line, "weir's redirects keep the query here");
        }
        let Some(to) = self.draft.redirect(line, said.status, &target) else { return Some(closes) };
        if to_tls || target.contains("$host") {
            let why = "`$host` does not contain the port that a client requests";
            self.draft.different_once(line, why);
        }
        let slash = || ("([^/])$".to_owned(), "$1/".to_owned());
        let mut edits = Vec::new();
        if let Some(cookie) = said.cookie {
            edits.extend(self.draft.edit(line, Side::Answer, "add", ("Set-Cookie", &cookie)));
        }
        let rewrite = said.appends_slash.then(slash);
        Some(Act::Answer { to, edits, rewrite, to_tls })
    }

    /// Returns the target of `location`. A path of the request is only known with its query.
    fn location(&mut self, line: &Node, value: &str, seen: &Seen) -> Result<String, String> {
        let whole = value
            .strip_suffix("%[path]?%[query]")
            .or_else(|| value.strip_suffix("%[path]"))
            .filter(|front| !front.contains("%[path"));
        let Some(front) = whole else { return text(value, seen) };
        if !value.ends_with("%[query]") {
            self.draft.different(line, "weir's redirects keep the query here");
        }
        Ok(format!("{}{}", text(front, seen)?, text("%[url]", seen)?))
    }
}

/// Returns the redirect of a line.
fn redirected(line: &Node) -> Redirect<'_> {
    let first = if line.name() == "redirect" { 0 } else { 1 };
    let mut said = Redirect { status: "302", ..Redirect::default() };
    let mut words =
        line.arguments().skip(first).take_while(|word| !matches!(*word, "if" | "unless"));
    while let Some(word) = words.next() {
        match word {
            "scheme" | "prefix" | "location" => {
                said.to = words.next().map(|value| (word, value));
            }
            "code" => said.status = words.next().unwrap_or_default(),
            "drop-query" => said.drops_query = true,
            "append-slash" => said.appends_slash = true,
            "ignore-empty" | "keep-query" => {}
            "set-cookie" => {
                let cookie = words.next().unwrap_or_default();
                said.cookie = Some(format!("{}; path=/;", cookie.replace('$', "$$")));
            }
            "clear-cookie" => {
                let cookie = words.next().unwrap_or_default().trim_end_matches('=');
                let cookie = cookie.replace('$', "$$");
                said.cookie = Some(format!("{cookie}=; path=/; Max-Age=0;"));
            }
            word => said.other = Some(word),
        }
    }
    said
}

/// Returns the response behind this many words of a line.
fn said(line: &Node, words: usize) -> Said<'_> {
    let mut said = Said::default();
    let mut rest =
        line.arguments().skip(words - 1).take_while(|word| !matches!(*word, "if" | "unless"));
    while let Some(word) = rest.next() {
        let mut value = || rest.next().unwrap_or_default();
        match word {
            "status" | "deny_status" => said.status = value(),
            "content-type" => said.content.media_type = value(),
            "string" => said.content.text = value(),
            "lf-string" => match value() {
                text if text.contains('%') => said.other = Some("lf-string"),
                text => said.content.text = text,
            },
            "file" => said.content.file = value(),
            "hdr" => said.fields.push((value(), value())),
            "default-errorfiles" => {}
            word => {
                said.other = Some(word);
                value();
            }
        }
    }
    said
}
