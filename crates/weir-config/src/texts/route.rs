//! Checks of text values of `route`: names and texts of its rules.

use weir_proxy::observe::access::TemplateError;
use weir_proxy::request::own_answer::{CONTENT_BYTES_MAX, REDIRECTS};
use weir_proxy::request::rules::location::{Location, LocationError};
use weir_proxy::request::rules::path::Replacement;
use weir_proxy::request::rules::text::{KNOWN, Text, TextError};

use super::is_token;
use crate::problem::nearest;

/// Groups of an expression that a text may name; the expression decides whether it has as many.
const GROUPS_MAX: usize = 9;

/// The name of a field, a member of a query or a cookie.
pub(crate) fn name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 256 || text.contains(char::is_control) {
        return Err("a name must have 1 to 256 bytes and no control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// A text that values are compared with.
pub(crate) fn value(text: &str) -> Result<String, String> {
    if text.contains(char::is_control) {
        return Err("a value must not contain control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// The name of a field that is written.
pub(crate) fn field(text: &str) -> Result<String, String> {
    match text {
        _ if !is_token(text) => Err(format!("`{text}` is not a header name")),
        _ if text.contains('_') => {
            Err(format!("servers read `_` in names as `-`: write {}", text.replace('_', "-")))
        }
        _ => Ok(text.to_owned()),
    }
}

/// The value of a field.
pub(crate) fn text(text: &str) -> Result<String, String> {
    match Text::compile(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(TextError::Template(TemplateError::Unknown(name))) => Err(unknown(&name)),
        Err(error) => Err(error.to_string()),
    }
}

fn unknown(name: &str) -> String {
    // `nearest` compares words in the form of options.
    let words = KNOWN.map(|name| name.word().replace('_', "-"));
    match nearest(name, words.iter().map(String::as_str)) {
        Some(near) => {
            format!("unknown variable `${name}`; did you mean `${}`?", near.replace('-', "_"))
        }
        None => {
            let all = KNOWN.map(|name| format!("${}", name.word())).join(" ");
            format!(
                "unknown variable `${name}`; known are {all} and $http_NAME for any request header"
            )
        }
    }
}

/// Addresses that a route takes requests from, or does not.
pub(crate) fn address(text: &str) -> Result<String, String> {
    if text == "all" { Ok(text.to_owned()) } else { super::peers(text) }
}

/// The target of a redirect.
pub(crate) fn location(text: &str) -> Result<String, String> {
    match Location::compile(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(LocationError::Text(TextError::Template(TemplateError::Unknown(name)))) => {
            Err(unknown(&name))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// The status of a redirect.
pub(crate) fn redirect_status(text: &str) -> Result<String, String> {
    if REDIRECTS.iter().any(|status| status.to_string() == text) {
        return Ok(text.to_owned());
    }
    Err(format!("`{text}` is not a status of redirects: write 301, 302, 303, 307 or 308"))
}

/// The content of a response.
pub(crate) fn content(text: &str) -> Result<String, String> {
    if text.len() > CONTENT_BYTES_MAX {
        return Err(format!("the content may have at most {CONTENT_BYTES_MAX} bytes"));
    }
    Ok(text.to_owned())
}

/// Parses a share, in hundredths of a percent.
pub(crate) fn hundredths(text: &str) -> Option<u32> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || whole.len() > 3 || part.len() > 2 {
        return None;
    }
    let part = part.parse::<u32>().ok()? * if part.len() == 1 { 10 } else { 1 };
    Some(whole.parse::<u32>().ok()? * 100 + part).filter(|share| *share <= 10_000)
}

/// A share of requests.
pub(crate) fn percent(text: &str) -> Result<String, String> {
    match hundredths(text) {
        Some(_) => Ok(text.to_owned()),
        None => {
            Err(format!("`{text}` is not a share: write a number from 0 to 100, such as 5 or 0.25"))
        }
    }
}

/// The path of a file with content.
pub(crate) fn file(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_control) {
        return Err("a path must not be empty or contain control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// A media type, RFC 9110 §8.3.1.
pub(crate) fn media_type(text: &str) -> Result<String, String> {
    let kind = text.split(';').next().unwrap_or_default().trim_end();
    let is_type = kind.split_once('/').is_some_and(|(one, other)| is_token(one) && is_token(other));
    if is_type && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
        return Ok(text.to_owned());
    }
    Err(format!("`{text}` is not a media type such as `text/html` or `text/plain; charset=utf-8`"))
}

/// Short names for media types.
const SHORT: [(&str, &str); 7] = [
    ("json", "application/json"),
    ("xml", "application/xml"),
    ("form", "application/x-www-form-urlencoded"),
    ("urlencoded", "application/x-www-form-urlencoded"),
    ("multipart", "multipart/form-data"),
    ("form-data", "multipart/form-data"),
    ("text", "text/*"),
];

/// A pattern for the content type of requests.
pub(crate) fn content_type(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    match SHORT.iter().find(|(short, _)| *short == lower) {
        Some((_, long)) => Err(format!("`{text}` is not a media type: write {long}")),
        None => super::compress::media_type(text),
    }
}

/// The replacement of a part of a path.
pub(crate) fn replacement(text: &str) -> Result<String, String> {
    Replacement::compile(text, GROUPS_MAX).map(|_| text.to_owned())
}
