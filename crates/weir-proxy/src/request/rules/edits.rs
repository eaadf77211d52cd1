//! Fields that a route sets, adds and removes, in requests or in responses.
//!
//! Consecutive edits are combined when they are compiled: for each name, whether the received lines
//! remain, and which lines are added. So each line needs one lookup, whatever was configured; and
//! fields that weir writes itself can't be named at all ([`refusal`]).

use std::ops::Range;

use weir_http::FieldName;

use super::text::{Text, Whose};
use super::{Known, RENDERED_BYTES_MAX, RuleFault};

/// Most names that a block may change.
pub const EDITS_MAX: usize = 64;

/// The heads that a rule changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Those of requests.
    Request,
    /// Those of responses.
    Answer,
}

/// An edit of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// This line in place of all received ones.
    Set(Text),
    /// This line besides the received ones.
    Add(Text),
    /// No line.
    Remove,
}

/// All edits, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldEdits {
    list: Vec<FieldEdit>,
}

/// The combined edits of one name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldEdit {
    /// As configured.
    name: Box<[u8]>,
    /// Whether the received lines are removed.
    removes: bool,
    /// Added lines.
    lines: Vec<FieldLine>,
}

/// An added line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldLine {
    text: Text,
    /// The text that a cache key has in place of its value: the same for all requests. None: its
    /// value.
    in_key: Option<Box<[u8]>>,
}

/// The values of one request, in the order of the lines of [`FieldEdits`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Rendered {
    text: Vec<u8>,
    values: Vec<Range<usize>>,
}

/// Why rules can't change a field, for the operator; None: they can.
pub fn refusal(name: &str, side: Side, adds: bool) -> Option<&'static str> {
    let known = FieldName::of(name.as_bytes());
    let conditions = [
        FieldName::IfMatch,
        FieldName::IfNoneMatch,
        FieldName::IfModifiedSince,
        FieldName::IfUnmodifiedSince,
        FieldName::IfRange,
        FieldName::Range,
    ];
    let told = [FieldName::XForwardedFor, FieldName::XForwardedProto, FieldName::XForwardedHost];
    match known {
        FieldName::ContentLength | FieldName::TransferEncoding | FieldName::Trailer => {
            Some("it says where a message ends, so only weir writes it")
        }
        _ if known.is_hop_by_hop() => Some("it is a hop-by-hop header, and weir writes its own"),
        FieldName::Host if side == Side::Request => {
            Some("the option `host` sets the Host that servers get")
        }
        FieldName::Via => Some("weir writes it; `via` of `client` switches that off"),
        FieldName::CdnLoop => Some("weir writes it; `loop-field` of `client` switches that off"),
        FieldName::Host => Some("responses have no Host"),
        FieldName::Date if side == Side::Answer => {
            Some("caches compute ages from it; weir adds it where it is missing")
        }
        FieldName::Expect if side == Side::Request => {
            Some("weir itself forwards it or responds to it")
        }
        FieldName::MaxForwards if side == Side::Request => Some("weir itself responds to it"),
        FieldName::ClientCert | FieldName::ClientCertChain if side == Side::Request => {
            Some("it identifies a client; `client-cert-field` of `tls` sets it")
        }
        _ if side == Side::Request && told.contains(&known) => {
            Some("weir sets it from the connection, and keeps only that of `trusted-proxies`")
        }
        _ if side == Side::Request && adds && conditions.contains(&known) => {
            Some("the client did not request the response that it causes, such as 304 or 206")
        }
        _ => None,
    }
}

impl FieldEdits {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Appends an edit. The name is a token that [`refusal`] permits.
    pub fn push(&mut self, name: &str, edit: Edit) {
        let at =
            self.list.iter().position(|other| other.name.eq_ignore_ascii_case(name.as_bytes()));
        let at = at.unwrap_or_else(|| {
            self.list.push(FieldEdit {
                name: name.as_bytes().into(),
                removes: false,
                lines: Vec::new(),
            });
            self.list.len() - 1
        });
        let FieldEdit { removes, lines, .. } = &mut self.list[at];
        match edit {
            Edit::Add(text) => lines.push(FieldLine::new(name, text)),
            Edit::Set(text) => (*removes, *lines) = (true, vec![FieldLine::new(name, text)]),
            Edit::Remove => (*removes, *lines) = (true, Vec::new()),
        }
    }

    /// Whether lines of this name are set, added or removed.
    pub fn names(&self, name: &str) -> bool {
        self.list.iter().any(|edit| edit.name.eq_ignore_ascii_case(name.as_bytes()))
    }

    /// Whether no line of this name remains.
    pub fn takes_away(&self, name: &str) -> bool {
        let is_it = |edit: &&FieldEdit| edit.name.eq_ignore_ascii_case(name.as_bytes());
        self.list.iter().find(is_it).is_some_and(|edit| edit.removes && edit.lines.is_empty())
    }

    /// Makes the values for a request.
    ///
    /// # Errors
    /// [`RuleFault::TooLarge`].
    pub(crate) fn render(&self, known: &Known<'_>) -> Result<Rendered, RuleFault> {
        let mut rendered = Rendered::default();
        for line in self.list.iter().flat_map(|edit| &edit.lines) {
            let start = rendered.text.len();
            line.text.write(&mut rendered.text, known);
            rendered.values.push(start..rendered.text.len());
            if rendered.text.len() > RENDERED_BYTES_MAX {
                return Err(RuleFault::TooLarge);
            }
        }
        Ok(rendered)
    }

    /// Names whose received lines are all removed.
    pub(crate) fn removed(&self) -> Vec<&[u8]> {
        self.list.iter().filter(|edit| edit.removes).map(|edit| &*edit.name).collect()
    }

    /// Added lines, name and value: those that [`FieldEdits::render`] gave. A line without a value
    /// is left out.
    pub(crate) fn lines<'a>(
        &'a self,
        rendered: &'a Rendered,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let lines = self.names_and_lines().zip(&rendered.values);
        lines
            .map(|((name, _), value)| (name, &rendered.text[value.clone()]))
            .filter(|(_, value)| !value.is_empty())
    }

    /// The same for a cache key: without the values that all servers get with each request and its
    /// client.
    pub(crate) fn key_lines<'a>(
        &'a self,
        rendered: &'a Rendered,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let lines = self.names_and_lines().zip(&rendered.values);
        let lines = lines.map(|((name, line), value)| {
            (name, line.in_key.as_deref().unwrap_or(&rendered.text[value.clone()]))
        });
        lines.filter(|(_, value)| !value.is_empty())
    }

    /// Names of fields that identify a client, so that each client has separate responses in a
    /// cache; and for each what it identifies.
    pub fn of_clients(&self) -> impl Iterator<Item = (&str, Whose)> {
        let lines = self.names_and_lines().filter(|(_, line)| line.in_key.is_none());
        lines.filter_map(|(name, line)| Some((std::str::from_utf8(name).ok()?, line.text.whose()?)))
    }

    fn names_and_lines(&self) -> impl Iterator<Item = (&[u8], &FieldLine)> {
        self.list.iter().flat_map(|edit| edit.lines.iter().map(|line| (&*edit.name, line)))
    }
}

impl FieldLine {
    /// Every server gets the address of a client in the forwarding fields, and the identifiers of
    /// each request. A key with such a value would never be found again, so it has only the text
    /// around it.
    fn new(name: &str, text: Text) -> FieldLine {
        let is_told_anyway = match text.whose() {
            Some(Whose::Request) => true,
            Some(Whose::Address) => FieldName::of(name.as_bytes()).is_forwarding(),
            Some(Whose::User) | None => false,
        };
        let in_key = is_told_anyway.then(|| text.without_values());
        FieldLine { text, in_key }
    }
}

impl Rendered {
    /// All values, concatenated.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    //! Proves: consecutive edits combine to their meaning, whatever the case of names; fields that
    //! weir writes itself are refused. How: tables.

    use super::*;

    fn put_together(all: &[(&str, &str, &str)]) -> Vec<String> {
        let mut edits = FieldEdits::default();
        for (verb, name, value) in all {
            let text = Text::compile(value).unwrap();
            edits.push(
                name,
                match *verb {
                    "set" => Edit::Set(text),
                    "add" => Edit::Add(text),
                    _ => Edit::Remove,
                },
            );
        }
        let name = |edit: &FieldEdit| String::from_utf8(edit.name.to_vec()).unwrap();
        edits
            .list
            .iter()
            .map(|edit| {
                format!(
                    "{}{}{}",
                    name(edit),
                    if edit.removes { '=' } else { '+' },
                    edit.lines.len()
                )
            })
            .collect()
    }

    #[test]
    fn one_after_the_other() {
        for (all, expected) in [
            (&[("set", "A", "1"), ("add", "a", "2"), ("set", "B", "3")][..], &["A=2", "B=1"][..]),
            (&[("add", "A", "1"), ("set", "A", "2")], &["A=1"]),
            (&[("add", "A", "1"), ("remove", "a", "")], &["A=0"]),
            (&[("remove", "A", ""), ("add", "A", "1")], &["A=1"]),
            (&[("add", "A", "1"), ("add", "A", "2")], &["A+2"]),
        ] {
            assert_eq!(put_together(all), expected, "{all:?}");
        }
    }

    #[test]
    fn what_rules_may_not_touch() {
        let never = [
            "Content-Length",
            "transfer-encoding",
            "Connection",
            "Keep-Alive",
            "Proxy-Connection",
            "Proxy-Authorization",
            "TE",
            "Trailer",
            "Upgrade",
            "HTTP2-Settings",
            "Host",
            "Via",
            "CDN-Loop",
            "Proxy",
        ];
        for name in never {
            for side in [Side::Request, Side::Answer] {
                assert!(
                    refusal(name, side, true).is_some() && refusal(name, side, false).is_some(),
                    "{name}"
                );
            }
        }
        for (name, side, add, remove) in [
            ("X-Forwarded-For", Side::Request, true, true),
            ("X-Forwarded-Prefix", Side::Request, false, false),
            ("X-Real-IP", Side::Request, false, false),
            ("Client-Cert", Side::Request, true, true),
            ("Expect", Side::Request, true, true),
            ("Range", Side::Request, true, false),
            ("If-None-Match", Side::Request, true, false),
            ("If-None-Match", Side::Answer, false, false),
            ("Date", Side::Answer, true, true),
            ("Date", Side::Request, false, false),
            ("Server", Side::Answer, false, false),
            ("Set-Cookie", Side::Answer, false, false),
        ] {
            assert_eq!(refusal(name, side, true).is_some(), add, "{name}");
            assert_eq!(refusal(name, side, false).is_some(), remove, "{name}");
        }
    }

    /// Fields that identify each client, so that each has separate responses in a cache: not those
    /// that every server gets anyway.
    #[test]
    fn what_names_clients() {
        for (name, text, whose) in [
            ("X-Role", "staff", None),
            ("X-Agent", "$http_user_agent", None),
            ("X-Client", "$remote_addr", Some(Whose::Address)),
            ("X-Client", "$realip_remote_addr/$request_id", Some(Whose::Address)),
            ("X-Real-IP", "$remote_addr", None),
            ("X-Call", "$request_id", None),
            ("X-Call", "$request_id-$trace_id", None),
            ("X-User", "name=$remote_user", Some(Whose::User)),
            ("X-User", "$remote_user $request_id", Some(Whose::User)),
        ] {
            let mut edits = FieldEdits::default();
            edits.push(name, Edit::Set(Text::compile(text).unwrap()));
            let found: Vec<_> = edits.of_clients().collect();
            let expected: Vec<_> = whose.map(|whose| (name, whose)).into_iter().collect();
            assert_eq!(found, expected, "{name} {text}");
        }
    }

    /// A key has the whole line, or the text around values that all servers get. No client can
    /// write the placeholder for such a value.
    #[test]
    fn what_keys_have_of_lines() {
        let request = b"GET / HTTP/1.1\r\nHost: a\r\nX-Said: role=staff;rid=\t;\r\n\r\n";
        let (mut fields, limits) = (weir_http::Fields::default(), weir_http::Limits::default());
        let head = weir_http::parse_request(request, &limits, &mut fields).unwrap().unwrap();
        let client = "192.0.2.1".parse().unwrap();
        let known = Known {
            head: &head,
            fields: &fields,
            bytes: request,
            client,
            peer: client,
            sealed: false,
            identity: None,
            upstream: "app",
            user: None,
        };
        for (name, text, expected) in [
            ("X-Ctx", "role=staff;rid=$request_id;", "role=staff;rid=\x1a;"),
            ("X-Ctx", "$http_x_said", "role=staff;rid= ;"),
            ("X-Ctx", "$request_id-$trace_id;guest", "\x1a-\x1a;guest"),
            ("X-Ctx", "$request_id", "\x1a"),
            ("X-Ctx", "staff $remote_addr", "staff 192.0.2.1"),
            ("X-Real-IP", "staff $remote_addr", "staff \x1a"),
            ("X-Real-IP", "$http_host $remote_addr", "a 192.0.2.1"),
        ] {
            let value = Text::compile(text).unwrap();
            for edit in [Edit::Set(value.clone()), Edit::Add(value)] {
                let mut edits = FieldEdits::default();
                edits.push(name, edit);
                let rendered = edits.render(&known).unwrap();
                let lines: Vec<_> = edits.key_lines(&rendered).collect();
                assert_eq!(lines, [(name.as_bytes(), expected.as_bytes())], "{text}");
            }
        }
    }
}
