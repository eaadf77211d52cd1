//! Checks of text values of `compress`.

use weir_proxy::base::encoder::Coding;

use super::is_token;

/// A coding that weir has.
pub(crate) fn coding(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    if Coding::ALL.iter().any(|coding| coding.word() == lower) {
        return Ok(lower);
    }
    Err(match &*lower {
        "brotli" => "write `br`, as in Accept-Encoding".to_owned(),
        "zstandard" => "write `zstd`, as in Accept-Encoding".to_owned(),
        "deflate" => "weir has no `deflate`, because clients disagree about its format; use `gzip`"
            .to_owned(),
        _ => format!("unknown coding `{text}`: write `zstd`, `br` or `gzip`"),
    })
}

/// A pattern of media types.
pub(crate) fn media_type(text: &str) -> Result<String, String> {
    let is_pattern = |part: &str| part.matches('*').count() <= 1 && is_token(part);
    match text.split_once('/') {
        _ if text == "*" => Ok("*/*".to_owned()),
        _ if text.contains(';') => {
            Err("parameters such as `charset` are not compared: write only the media type"
                .to_owned())
        }
        Some((kind, part)) if is_pattern(kind) && is_pattern(part) => Ok(text.to_ascii_lowercase()),
        _ => Err(format!(
            "`{text}` is not a media type: write for example text/html, text/* or \
                application/*+json"
        )),
    }
}
