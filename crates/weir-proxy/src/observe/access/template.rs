//! The format of a line, compiled once: literal pieces and the values between them.
//!
//! Called when the configuration is read. Bounds: [`TEMPLATE_BYTES_MAX`], [`FIELDS_MAX`].

use std::fmt;

use super::name::Name;

/// Longest format text.
pub const TEMPLATE_BYTES_MAX: usize = 16 * 1024;
/// Different request fields that one format may name.
pub const FIELDS_MAX: usize = 32;

/// The format of the preset `combined`.
pub const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status \
                            $body_bytes_sent \
                            \"$http_referer\" \"$http_user_agent\"";
/// The format of the preset `common`.
pub const COMMON: &str =
    "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
/// The members of a line of `json`, in their order.
pub const JSON: &[&str] = &[
    "time_iso8601_msec",
    "remote_addr",
    "remote_port",
    "remote_user",
    "scheme",
    "host",
    "request_method",
    "request_uri",
    "server_protocol",
    "request_id",
    "trace_id",
    "status",
    "cache",
    "request_length",
    "bytes_sent",
    "body_bytes_sent",
    "request_time",
    "body_time",
    "queue_time",
    "upstream_connect_time",
    "retry_time",
    "upstream_header_time",
    "upstream_response_time",
    "send_time",
    "upstream_name",
    "upstream_addr",
    "upstream_connection",
    "upstream_reuse",
    "upstream_worker",
    "worker",
    "tries",
    "glitches",
    "ended_by",
    "phase",
    "reason",
    "http_referer",
    "http_user_agent",
];

/// How values are written, so that nothing from a client can look like the end of a value or of a
/// line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escape {
    /// `"`, `\`, control characters and everything above ASCII as `\xHH`, as nginx does; `-` for
    /// unknown values.
    Default,
    /// For the inside of JSON strings in a custom format; nothing for unknown values.
    Json,
    /// Whole JSON values: strings with their quotes, numbers, `null` for unknown values.
    JsonValue,
}

/// A value in a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item {
    Named(Name),
    /// A request field, by its place in [`Template::fields`].
    Field(u16),
}

/// A compiled format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// One value each, with the literal text in front of it.
    pub(super) segments: Vec<(Box<[u8]>, Item)>,
    /// Literal text behind the last value, with the line end.
    pub(super) tail: Box<[u8]>,
    pub(super) escape: Escape,
    /// Names of request fields that are kept for the line, in lower case.
    pub(super) fields: Vec<String>,
}

/// Why a format is invalid. The text is the user's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateError {
    /// No `$name` at all, so that every line would be the same.
    NoName,
    /// Longer than [`TEMPLATE_BYTES_MAX`].
    TooLong,
    /// A control character: a line end would make two lines of one.
    Control,
    /// A `$` with no name behind it.
    LoneDollar,
    /// A `${` without its `}`.
    OpenBrace,
    /// No value has this name.
    Unknown(String),
    /// More than [`FIELDS_MAX`] request fields.
    TooManyFields,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TemplateError::NoName => {
                f.write_str("a format needs at least one variable, such as `$status`")
            }
            TemplateError::TooLong => {
                write!(f, "a format can have at most {TEMPLATE_BYTES_MAX} bytes")
            }
            TemplateError::Control => {
                f.write_str("a format cannot contain line ends or other control characters")
            }
            TemplateError::LoneDollar => {
                f.write_str("no name follows a `$`: write `$$` for the character")
            }
            TemplateError::OpenBrace => f.write_str("a `${` has no closing `}`"),
            TemplateError::Unknown(name) => write!(f, "unknown variable `${name}`"),
            TemplateError::TooManyFields => {
                write!(f, "a format can contain at most {FIELDS_MAX} request headers")
            }
        }
    }
}

impl Template {
    /// Returns the preset with this name: `combined`, `common` or `json`.
    pub fn preset(word: &str) -> Option<Template> {
        match word {
            "combined" => Template::compile(COMBINED, Escape::Default).ok(),
            "common" => Template::compile(COMMON, Escape::Default).ok(),
            "json" => Template::json().ok(),
            _ => None,
        }
    }

    /// Compiles a custom format: `$name` or `${name}`, `$$` for a dollar sign.
    ///
    /// # Errors
    /// The mistake in the text.
    pub fn compile(text: &str, escape: Escape) -> Result<Template, TemplateError> {
        let (found, tail) = pieces(text)?;
        if found.is_empty() {
            return Err(TemplateError::NoName);
        }
        let mut template =
            Template { segments: Vec::new(), tail: Box::default(), escape, fields: Vec::new() };
        for (literal, name) in found {
            let item = template.item(name)?;
            template.segments.push((literal.into(), item));
        }
        template.tail = [&tail[..], b"\n"].concat().into();
        Ok(template)
    }

    fn json() -> Result<Template, TemplateError> {
        let mut template = Template {
            segments: Vec::new(),
            tail: b"}\n"[..].into(),
            escape: Escape::JsonValue,
            fields: Vec::new(),
        };
        for (at, name) in JSON.iter().enumerate() {
            let open = if at == 0 { '{' } else { ',' };
            let item = template.item(name)?;
            template.segments.push((format!("{open}\"{name}\":").into_bytes().into(), item));
        }
        Ok(template)
    }

    fn item(&mut self, name: &str) -> Result<Item, TemplateError> {
        if let Some(known) = Name::of(name) {
            return Ok(Item::Named(known));
        }
        let field = name.strip_prefix("http_").filter(|field| !field.is_empty());
        let field = field.ok_or_else(|| TemplateError::Unknown(name.to_owned()))?;
        let field = field.to_ascii_lowercase().replace('_', "-");
        let place = self.fields.iter().position(|known| *known == field).unwrap_or_else(|| {
            self.fields.push(field);
            self.fields.len() - 1
        });
        if place >= FIELDS_MAX {
            Err(TemplateError::TooManyFields)
        } else {
            Ok(Item::Field(place as u16))
        }
    }
}

/// A text with names, taken apart.
type Pieces<'a> = (Vec<(Vec<u8>, &'a str)>, Vec<u8>);

/// Returns the names in a text (`$name` or `${name}`), each with the literal text in front of it,
/// and the text behind the last one. `$$` is a dollar sign.
///
/// # Errors
/// The mistake in the text; whether a name is known is not checked.
pub(crate) fn pieces(text: &str) -> Result<Pieces<'_>, TemplateError> {
    if text.len() > TEMPLATE_BYTES_MAX {
        return Err(TemplateError::TooLong);
    }
    if text.chars().any(char::is_control) {
        return Err(TemplateError::Control);
    }
    let (mut found, mut literal, mut rest) = (Vec::new(), Vec::new(), text);
    while let Some(at) = rest.find('$') {
        literal.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('$') {
            literal.push(b'$');
            rest = behind;
            continue;
        }
        let (name, behind) = split_name(rest)?;
        found.push((std::mem::take(&mut literal), name));
        rest = behind;
    }
    literal.extend_from_slice(rest.as_bytes());
    Ok((found, literal))
}

/// Returns the name at the start of the text, and the text behind it.
fn split_name(text: &str) -> Result<(&str, &str), TemplateError> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (name, behind) = match text.strip_prefix('{') {
        Some(inside) => inside.split_once('}').ok_or(TemplateError::OpenBrace)?,
        None => text.split_at(text.find(|c| !is_part(c)).unwrap_or(text.len())),
    };
    match name {
        "" => Err(TemplateError::LoneDollar),
        _ if !name.chars().all(is_part) => Err(TemplateError::Unknown(name.to_owned())),
        _ => Ok((name, behind)),
    }
}

#[cfg(test)]
mod tests {
    //! Proves: which formats compile and to what, and that all others are refused with the reason.
    //! How: examples.

    use super::*;

    fn literals(template: &Template) -> Vec<&str> {
        let text = |bytes| std::str::from_utf8(bytes).expect("from a str");
        template
            .segments
            .iter()
            .map(|(before, _)| text(before))
            .chain([text(&template.tail)])
            .collect()
    }

    #[test]
    fn names_braces_and_dollars() {
        let template =
            Template::compile("a$$b ${status}x$host-$http_X_Id $http_x_id$$", Escape::Default)
                .unwrap();
        assert_eq!(literals(&template), ["a$b ", "x", "-", " ", "$\n"]);
        let items: Vec<Item> = template.segments.iter().map(|(_, item)| *item).collect();
        assert_eq!(
            items,
            [Item::Named(Name::Status), Item::Named(Name::Host), Item::Field(0), Item::Field(0)]
        );
        assert_eq!(template.fields, ["x-id"]);
    }

    #[test]
    fn what_is_refused() {
        for (text, error) in [
            ("", TemplateError::NoName),
            ("plain $$", TemplateError::NoName),
            ("$status $", TemplateError::LoneDollar),
            ("$-", TemplateError::LoneDollar),
            ("${}", TemplateError::LoneDollar),
            ("${status", TemplateError::OpenBrace),
            ("${sta tus}", TemplateError::Unknown("sta tus".to_owned())),
            ("$statuss", TemplateError::Unknown("statuss".to_owned())),
            ("$http_", TemplateError::Unknown("http_".to_owned())),
            ("$status\n", TemplateError::Control),
            ("$status\u{85}", TemplateError::Control),
        ] {
            assert_eq!(Template::compile(text, Escape::Default), Err(error), "{text:?}");
        }
        let many: String = (0..=FIELDS_MAX).map(|n| format!("$http_f{n} ")).collect();
        assert_eq!(Template::compile(&many, Escape::Default), Err(TemplateError::TooManyFields));
        let long = format!("$status{}", "x".repeat(TEMPLATE_BYTES_MAX));
        assert_eq!(Template::compile(&long, Escape::Default), Err(TemplateError::TooLong));
    }

    #[test]
    fn presets() {
        for word in ["combined", "common", "json"] {
            assert!(Template::preset(word).is_some(), "{word}");
        }
        assert_eq!(Template::preset("Combined"), None);
        assert_eq!(Template::preset("json").unwrap().fields, ["referer", "user-agent"]);
    }
}
