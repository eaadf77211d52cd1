//! Checks of text values of `cache`.

use weir_cache::{Directive, TagField};
use weir_http::FieldName;

use crate::problem::nearest;

/// Returns the names of all directives of responses.
fn directives() -> impl Iterator<Item = &'static str> {
    Directive::all().filter_map(|directive| std::str::from_utf8(directive.name()).ok())
}

/// A directive of Cache-Control.
pub(crate) fn directive(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    if Directive::of(lower.as_bytes()).is_some() {
        return Ok(lower);
    }
    Err(match nearest(&lower, directives()) {
        Some(near) => format!("unknown directive `{text}`; did you mean `{near}`?"),
        None => format!(
            "unknown directive `{text}`: {} are known",
            directives().collect::<Vec<_>>().join(", ")
        ),
    })
}

/// A field that contains tags.
pub(crate) fn tag_field(text: &str) -> Result<String, String> {
    match tag_field_of(text) {
        Some(_) => Ok(text.to_ascii_lowercase()),
        None => Err(format!(
            "`{text}` is not a header with tags: write `Cache-Groups`, `Surrogate-Key`, \
                `Cache-Tag` or `xkey`"
        )),
    }
}

/// Returns the field of tags with this name.
pub(crate) fn tag_field_of(text: &str) -> Option<TagField> {
    let is_it = |field: &&TagField| field.name().eq_ignore_ascii_case(text.as_bytes());
    TagField::ALL.iter().find(is_it).copied()
}

/// The status of stored responses.
pub(crate) fn status(text: &str) -> Result<String, String> {
    match text.parse::<u16>() {
        Ok(206 | 304) => {
            Err(format!("responses with {text} are not complete, so weir never stores them alone"))
        }
        Ok(200..=599) if text.len() == 3 => Ok(text.to_owned()),
        _ => Err(format!(
            "weir cannot store responses with `{text}`: write a status from 200 to 599"
        )),
    }
}

/// A field that is not stored.
pub(crate) fn strip(text: &str) -> Result<String, String> {
    let name = super::route::field(text)?;
    let known = FieldName::of(name.as_bytes());
    let why = match known {
        FieldName::ContentLength
        | FieldName::ContentEncoding
        | FieldName::ContentType
        | FieldName::ContentRange => "it describes the content",
        FieldName::Date | FieldName::Age => "weir computes the age from it",
        FieldName::Vary => "it says which requests the response fits",
        _ if known.is_hop_by_hop() => "it is a hop-by-hop header, which weir never stores",
        _ => return Ok(name),
    };
    Err(format!("weir cannot strip `{text}` from responses: {why}"))
}

/// The file of a snapshot.
pub(crate) fn snapshot(text: &str) -> Result<String, String> {
    let text = super::forward::file(text)?;
    if !text.starts_with('/') || text.ends_with('/') {
        return Err(
            "a snapshot needs an absolute path, such as /var/lib/weir/cache.snapshot".to_owned()
        );
    }
    Ok(text)
}

/// A parameter of a query, or the beginning of some.
pub(crate) fn parameter(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('*').unwrap_or(text);
    let is_fine = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'&' | b'=' | b'#' | b'*');
    match text {
        "*" => {
            Err("the key would ignore all parameters: one response would serve every query"
                .to_owned())
        }
        _ if name.is_empty() || !name.bytes().all(is_fine) => Err(format!(
            "`{text}` is not the name of a parameter: write it as in URLs, such as utm_source or \
                utm_*"
        )),
        _ => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(directive("No-Cache"), Ok("no-cache".to_owned()));
        assert!(directive("nocache").unwrap_err().ends_with("did you mean `no-cache`?"));
        assert!(directive("x").unwrap_err().contains("stale-if-error"));
        assert_eq!(tag_field("XKEY"), Ok("xkey".to_owned()));
        assert!(tag_field("tag").is_err());
        assert_eq!(snapshot("/var/lib/weir/cache"), Ok("/var/lib/weir/cache".to_owned()));
        assert!(["", "cache", "/var/lib/", "/a\n"].iter().all(|bad| snapshot(bad).is_err()));
        assert_eq!(parameter("utm_*"), Ok("utm_*".to_owned()));
        for bad in ["", "*", "a*b", "a=b", "a&b", "a b"] {
            assert!(parameter(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn statuses() {
        assert_eq!(status("404"), Ok("404".to_owned()));
        for bad in ["206", "304", "100", "199", "600", "2xx", "0200", "+20", ""] {
            assert!(status(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn fields_that_stay() {
        assert_eq!(strip("Set-Cookie"), Ok("Set-Cookie".to_owned()));
        for bad in ["Vary", "date", "Content-Type", "Connection", "a b", "x_y"] {
            assert!(strip(bad).is_err(), "{bad}");
        }
    }
}
