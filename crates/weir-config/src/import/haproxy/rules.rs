//! Rules of HAProxy that end a request before it reaches a server: `deny` and similar, `return`,
//! `redirect`, `monitor-uri`.

use weir_proxy::request::rules::edits::Side;

use super::super::cases::{Case, Effect, Term, and_all, refused, sent_to_tls};
use super::super::missing::Missing;
use super::super::own_answer::Content;
use super::super::route::{Edit, Route, To};
use super::super::steps::Step;
use super::super::tree::Node;
use super::{Haproxy, text};

/// The response that a line describes.
#[derive(Default)]
struct Said<'l> {
    status: &'l str,
    content: Content<'l>,
    fields: Vec<(&'l str, &'l str)>,
    /// A part that weir cannot express.
    other: Option<&'l str>,
}

impl Haproxy<'_, '_, '_> {
    /// Returns the effect of a line of a section.
    pub(super) fn steps(&mut self, (section, group): (usize, usize), line: &Node) -> Vec<Step> {
        let base = Route { group, place: line.place, what: line.shown(), ..Route::default() };
        match (line.name(), line.argument(1)) {
            ("monitor-uri", path) => self.monitor(section, line, path, base).into_iter().collect(),
            ("redirect", _) | ("http-request", "redirect") => self.redirect(section, line, &base),
            ("http-request", "return") => {
                let Some((to, answer)) = self.returned(line) else { return Vec::new() };
                let base = Route { to, answer, ..base };
                self.cases(section, line)
                    .into_iter()
                    .map(|case| Step::End(case.route(base.clone())))
                    .collect()
            }
            _ if super::is_refusal(line) => self.refusal(section, line, base),
            _ => Vec::new(),
        }
    }

    /// Converts `monitor-uri PATH`.
    fn monitor(&mut self, section: usize, line: &Node, path: &str, base: Route) -> Option<Step> {
        if self.tree.named(section, "monitor").next().is_some() {
            self.draft.missing(line, Missing::Respond);
            return None;
        }
        let to = self.draft.respond(line, "200", Content { text: "OK\n", ..Content::default() })?;
        let terms = [Term { not: false, any: vec![Effect::Exactly(path.to_owned())] }];
        let case = and_all(vec![Case::default()], &terms)?.pop()?;
        Some(Step::End(case.route(Route { to, ..base })))
    }

    /// Converts a refusal: by addresses, with a response, or by leading nowhere.
    fn refusal(&mut self, section: usize, line: &Node, base: Route) -> Vec<Step> {
        let all = self.all_cases(section, line);
        let (cases, lost) = refused(all.unwrap_or_else(|| vec![Case::default().all_but_some()]));
        if lost {
            self.draft.lost(
                line,
                format!("{}; weir now accepts what this rejected", Missing::Criteria.why()),
            );
        }
        if self.any_case {
            self.draft.lost(
                line,
                "weir's paths are case-sensitive: it now accepts other spellings \
                that this rejected",
            );
        }
        let mut to = To::Closed;
        if line.argument(1) == "deny" && cases.iter().any(|case| case.access().is_some()) {
            to = self.denial(line);
        }
        self.draft.refuse(line, cases, &Route { to, ..base })
    }

    /// Returns the response of a `deny`.
    fn denial(&mut self, line: &Node) -> To {
        let Said { status, content, other, .. } = said(line, 2);
        if other.is_some() {
            self.draft.different(line, "its response has no content in weir, or a different one");
        }
        let status = if status.is_empty() { "403" } else { status };
        self.draft.respond(line, status, content).unwrap_or_default()
    }

    /// Returns the response of a `return`, with its fields. None: it has been noted.
    fn returned(&mut self, line: &Node) -> Option<(To, Vec<Edit>)> {
        let Said { status, content, fields, other } = said(line, 2);
        if let Some(other) = other {
            self.draft.lost(
                line,
                format!(
                    "weir's `respond` takes a text or a file, the same for all clients, and no \
                    `{other}`"
                ),
            );
            return None;
        }
        let status = if status.is_empty() { "200" } else { status };
        let to = self.draft.respond(line, status, content)?;
        let mut edits = Vec::new();
        for (name, value) in fields {
            match text(value) {
                Ok(value) => {
                    edits.extend(self.draft.edit(line, Side::Answer, "add", (name, &value)))
                }
                Err(what) => {
                    self.draft.lost(line, format!("weir's texts have no equivalent of `{what}`"))
                }
            }
        }
        Some((to, edits))
    }

    /// Converts `redirect` with a scheme, a prefix or a location. Clients that were redirected to
    /// TLS and no longer can be are not served without it.
    fn redirect(&mut self, section: usize, line: &Node, base: &Route) -> Vec<Step> {
        let first = if line.name() == "redirect" { 1 } else { 2 };
        let (mut status, mut to, mut other) = ("302", None, None);
        let mut words =
            line.arguments().skip(first - 1).take_while(|word| !matches!(*word, "if" | "unless"));
        while let Some(word) = words.next() {
            match word {
                "scheme" => {
                    to =
                        words.next().map(|scheme| (scheme, format!("{scheme}://$host$request_uri")))
                }
                "prefix" => {
                    to = words.next().map(|prefix| ("", self.located(prefix, "$request_uri")))
                }
                "location" => to = words.next().map(|place| ("", self.located(place, ""))),
                "code" => status = words.next().unwrap_or_default(),
                word => other = Some(word),
            }
        }
        let is_to_tls = to.as_ref().is_some_and(|(scheme, _)| *scheme == "https");
        let led = match (to, other) {
            (Some((_, to)), None) => self.draft.redirect(line, status, &to),
            (_, other) => {
                let what = other.unwrap_or("address");
                self.draft.lost(
                    line,
                    format!("{}; weir has no equivalent of its `{what}`", Missing::Redirect.why()),
                );
                None
            }
        };
        let asks_less =
            line.words.iter().any(|word| word == "if") && !self.asks_only_for_tls(section, line);
        let cases = match led {
            Some(_) if is_to_tls => self.sent_to_tls(section, line),
            Some(_) => self.cases(section, line),
            None => Vec::new(),
        };
        self.draft.groups[base.group].only_tls |= is_to_tls && cases.is_empty() && !asks_less;
        let Some(to) = led else { return Vec::new() };
        let has_port = |at: &usize| {
            self.draft.listens[*at]
                .address
                .network()
                .is_some_and(|address| !matches!(address.port(), 80 | 443))
        };
        if is_to_tls && self.draft.groups[base.group].listens.iter().any(has_port) {
            self.draft.different(line, "`$host` does not contain the port that a client requests");
        }
        cases.into_iter().map(|case| Step::End(case.route(Route { to, ..base.clone() }))).collect()
    }

    /// Returns the cases of a redirect to TLS.
    fn sent_to_tls(&mut self, section: usize, line: &Node) -> Vec<Case> {
        let all = self.all_cases(section, line);
        let (cases, is_more, lost) =
            sent_to_tls(all.unwrap_or_else(|| vec![Case::default().all_but_some()]));
        if lost {
            self.draft.missing(line, Missing::Criteria);
        }
        if is_more {
            let why = "routes cannot express the exceptions of this: weir now redirects all \
                clients without TLS to https; write a `route` for the exceptions";
            self.draft.different(line, why);
        }
        cases
    }

    /// Returns a text with the part behind it; unknown variables are kept in it and refused with
    /// the redirect.
    fn located(&self, theirs: &str, behind: &str) -> String {
        let text = text(theirs).unwrap_or_else(|_| theirs.to_owned());
        if text == "/" && !behind.is_empty() {
            behind.to_owned()
        } else {
            format!("{text}{behind}")
        }
    }
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
