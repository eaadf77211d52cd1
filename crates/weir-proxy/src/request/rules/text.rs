//! A text with `$names`, as rules write it into fields: the names of the access log that are known
//! when a request is routed.
//!
//! Compiled once, rendered for each request. Input from a client can't end a line: the parser has
//! refused control characters, and the remaining ones (tabs) become spaces here. Bounds:
//! [`TEMPLATE_BYTES_MAX`], [`TEXT_NAMES_MAX`]. RFC 9110 §5.5.

use std::fmt;
use std::io::Write as _;

use weir_http::Version;

use super::Known;
use crate::observe::access::{Name, TEMPLATE_BYTES_MAX, TemplateError, pieces};
use crate::plan::Shown;
use crate::request::identity::Identity;
use crate::request::route::bare_host;

/// Most names in one text.
pub const TEXT_NAMES_MAX: usize = 32;

/// The placeholder for a value that is left out. No text, and no value that is written into one,
/// has a control character.
const LEFT_OUT: u8 = 0x1a;

/// The names of the access log that rules know, besides `$http_NAME`.
pub const KNOWN: [Name; 11] = [
    Name::RemoteAddr,
    Name::RealipRemoteAddr,
    Name::RequestMethod,
    Name::RequestUri,
    Name::ServerProtocol,
    Name::Scheme,
    Name::Host,
    Name::UpstreamName,
    Name::RequestId,
    Name::TraceId,
    Name::RemoteUser,
];

/// A compiled text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// A value each, with the literal text in front of it.
    segments: Vec<(Box<[u8]>, Item)>,
    /// Literal text behind the last value.
    tail: Box<[u8]>,
}

/// The value of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    /// One of [`KNOWN`].
    Named(Name),
    /// A field of the request, in lower case.
    Field(Box<[u8]>),
}

/// The subject of a text that identifies nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// A single request, by its identifiers.
    Request,
    /// The address of a client, perhaps with the identifiers of the request.
    Address,
    /// A user, with anything else.
    User,
}

/// Why a text is invalid. The operator's fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextError {
    /// As a format of the access log.
    Template(TemplateError),
    /// The access log has this name, but it is not known yet when a request is routed.
    Late(Name),
    /// More than [`TEXT_NAMES_MAX`] names.
    TooManyNames,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextError::Template(TemplateError::TooLong) => {
                write!(f, "a text can have at most {TEMPLATE_BYTES_MAX} bytes")
            }
            TextError::Template(TemplateError::Control) => {
                f.write_str("a text cannot contain line ends or other control characters")
            }
            TextError::Template(error) => error.fmt(f),
            TextError::Late(name) => {
                write!(f, "`${}` is not known when a request is routed; known are", name.word())?;
                KNOWN.iter().try_for_each(|name| write!(f, " ${}", name.word()))?;
                f.write_str(" and $http_NAME for any request header")
            }
            TextError::TooManyNames => {
                write!(f, "a text can have at most {TEXT_NAMES_MAX} variables")
            }
        }
    }
}

impl Text {
    /// Compiles `$name` or `${name}`, `$$` for a dollar sign. A text without names is fine.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn compile(text: &str) -> Result<Text, TextError> {
        let (found, tail) = pieces(text).map_err(TextError::Template)?;
        if found.len() > TEXT_NAMES_MAX {
            return Err(TextError::TooManyNames);
        }
        let segments =
            found.into_iter().map(|(literal, name)| Ok((literal.into(), Item::of(name)?)));
        Ok(Text { segments: segments.collect::<Result<_, TextError>>()?, tail: tail.into() })
    }

    /// The subject of the text; None: another one, or it is the same for all.
    pub(crate) fn whose(&self) -> Option<Whose> {
        let has = |names: &[Name]| {
            let is_one = |item: &Item| matches!(item, Item::Named(name) if names.contains(name));
            self.segments.iter().filter(|(_, item)| is_one(item)).count()
        };
        let (of_user, of_address) =
            (has(&[Name::RemoteUser]), has(&[Name::RemoteAddr, Name::RealipRemoteAddr]));
        let is_all = |count| count == self.segments.len();
        match has(&[Name::RequestId, Name::TraceId]) {
            _ if of_user > 0 => Some(Whose::User),
            of_request if is_all(of_request) && of_request > 0 => Some(Whose::Request),
            of_request if is_all(of_request + of_address) && of_address > 0 => Some(Whose::Address),
            _ => None,
        }
    }

    /// The part that is the same for all requests, with [`LEFT_OUT`] in place of each value.
    pub(super) fn without_values(&self) -> Box<[u8]> {
        let mut out = Vec::new();
        for (literal, _) in &self.segments {
            out.extend_from_slice(literal);
            out.push(LEFT_OUT);
        }
        out.extend_from_slice(&self.tail);
        out.into()
    }

    /// Appends the text for this request, without white space around it. Returns whether it is not
    /// empty.
    pub(super) fn write(&self, out: &mut Vec<u8>, known: &Known<'_>) -> bool {
        let start = out.len();
        for (literal, item) in &self.segments {
            out.extend_from_slice(literal);
            item.write(out, known);
        }
        out.extend_from_slice(&self.tail);
        out[start..]
            .iter_mut()
            .filter(|byte| byte.is_ascii_control())
            .for_each(|byte| *byte = b' ');
        let blank = |byte: &u8| *byte == b' ';
        let end =
            out[start..].iter().rposition(|byte| !blank(byte)).map_or(start, |at| start + at + 1);
        out.truncate(end);
        let blanks = out[start..].iter().take_while(|byte| blank(byte)).count();
        out.drain(start..start + blanks);
        out.len() > start
    }
}

impl Item {
    /// The item of this name.
    ///
    /// # Errors
    /// No such name exists, or its value is not known in time.
    pub(super) fn of(name: &str) -> Result<Item, TextError> {
        if let Some(known) = Name::of(name) {
            return if KNOWN.contains(&known) {
                Ok(Item::Named(known))
            } else {
                Err(TextError::Late(known))
            };
        }
        let field = name.strip_prefix("http_").filter(|field| !field.is_empty());
        let field =
            field.ok_or_else(|| TextError::Template(TemplateError::Unknown(name.to_owned())))?;
        Ok(Item::Field(field.to_ascii_lowercase().replace('_', "-").into_bytes().into()))
    }

    /// Appends its value.
    pub(super) fn write(&self, out: &mut Vec<u8>, known: &Known<'_>) {
        let Known { head, fields, bytes, .. } = known;
        let text: &[u8] = match self {
            Item::Named(name @ (Name::RemoteAddr | Name::RealipRemoteAddr)) => {
                let address = if *name == Name::RemoteAddr { known.client } else { known.peer };
                // Writing to a vector can't fail.
                let _ = write!(out, "{}", Shown(address));
                return;
            }
            Item::Named(Name::RequestMethod) => head.method_span.of(bytes),
            Item::Named(Name::RequestUri) => head.target.of(bytes),
            Item::Named(Name::ServerProtocol) => match head.version {
                Version::Http10 => b"HTTP/1.0",
                Version::Http11 => b"HTTP/1.1",
                Version::Http2 => b"HTTP/2.0",
            },
            Item::Named(Name::Scheme) => {
                if known.sealed {
                    b"https"
                } else {
                    b"http"
                }
            }
            Item::Named(Name::Host) => {
                let mut buffer = [0; 255];
                out.extend_from_slice(
                    bare_host(head.authority.of(bytes), &mut buffer).unwrap_or_default(),
                );
                return;
            }
            Item::Named(Name::RequestId) => known.identity.map(Identity::id).unwrap_or_default(),
            Item::Named(Name::RemoteUser) => {
                known.user.map_or(&b""[..], |user| user.name.as_bytes())
            }
            Item::Named(Name::TraceId) => known.identity.map(Identity::trace).unwrap_or_default(),
            Item::Named(_) => known.upstream.as_bytes(),
            // With absolute-form the Host field does not count (RFC 9112 §3.2.2).
            Item::Field(name) if **name == *b"host" => head.authority.of(bytes),
            Item::Field(name) => fields.get(bytes, name).unwrap_or_default(),
        };
        out.extend_from_slice(text);
    }
}

#[cfg(test)]
mod tests {
    //! Proves: which texts are valid, and their values for a request. How: tables.

    use std::sync::Arc;

    use weir_http::{Fields, Limits};

    use super::*;
    use crate::forward::lookup::User;

    fn written(text: &str, request: &str, client: &str) -> String {
        let mut fields = Fields::default();
        let bytes = request.as_bytes();
        let head =
            weir_http::parse_request(bytes, &Limits::default(), &mut fields).unwrap().unwrap();
        let known = Known {
            head: &head,
            fields: &fields,
            bytes,
            client: client.parse().unwrap(),
            peer: "192.0.2.9".parse().unwrap(),
            sealed: false,
            identity: None,
            upstream: "app",
            user: Some(&Arc::new(User::new("ann"))),
        };
        let mut out = b"before".to_vec();
        let is_there = Text::compile(text).unwrap().write(&mut out, &known);
        assert_eq!(is_there, out.len() > 6);
        String::from_utf8(out).unwrap().split_off(6)
    }

    #[test]
    fn what_texts_say() {
        let request =
            "GET http://B.Example:81/a?b HTTP/1.1\r\nHost: c\r\nX-A:  1\t2 \r\nx-a: 3\r\n\r\n";
        for (text, expected) in [
            ("plain", "plain"),
            ("  $$ ${http_x_a}  ", "$ 1 2"),
            ("$http_x_none", ""),
            (" $http_x_none ", ""),
            (
                "$request_method $request_uri $server_protocol",
                "GET http://B.Example:81/a?b HTTP/1.1",
            ),
            ("$scheme://$host", "http://b.example"),
            ("$http_host", "B.Example:81"),
            ("[$remote_user]", "[ann]"),
            ("$upstream_name$remote_addr $realip_remote_addr", "app10.0.0.9 192.0.2.9"),
        ] {
            assert_eq!(written(text, request, "::ffff:10.0.0.9"), expected, "{text}");
        }
        assert_eq!(written("[$remote_addr]", request, "2001:db8::1"), "[2001:db8::1]");
        assert_eq!(written("$host$http_host", "GET / HTTP/1.0\r\n\r\n", "::1"), "");
    }

    #[test]
    fn what_is_no_text() {
        let template = |error| Err(TextError::Template(error));
        assert_eq!(Text::compile("$status"), Err(TextError::Late(Name::Status)));
        assert_eq!(Text::compile("$statu"), template(TemplateError::Unknown("statu".to_owned())));
        assert_eq!(Text::compile("a\nb"), template(TemplateError::Control));
        assert_eq!(Text::compile("$"), template(TemplateError::LoneDollar));
        assert_eq!(
            Text::compile(&"$host".repeat(TEXT_NAMES_MAX + 1)),
            Err(TextError::TooManyNames)
        );
    }
}
