//! Operators' words for stored objects: URLs, hosts, fields of requests. Checked where they are
//! typed and where they arrive. Pure.

/// The longest URL, bytes: more than any listener accepts.
const URL_BYTES_MAX: usize = 1 << 20;

/// Returns a URL in the form of keys: scheme and host in lower case, without the usual port, with a
/// path.
///
/// # Errors
/// Why it cannot be stored.
pub(crate) fn url(text: &str) -> Result<String, String> {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest))
            if ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) =>
        {
            (scheme.to_ascii_lowercase(), rest)
        }
        Some((scheme, _)) => {
            return Err(format!("the cache stores no `{scheme}`: write http:// or https://"));
        }
        None => {
            return Err(format!(
                "`{text}` is not a whole URL: write it as https://example.org/page"
            ));
        }
    };
    if text.len() > URL_BYTES_MAX {
        return Err("no URL is that long".to_owned());
    }
    if rest.contains('#') {
        return Err("the part behind `#` is never sent: remove it".to_owned());
    }
    if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(
            "a URL has only ASCII and no spaces: write other characters as %XX, as clients \
                send them"
                .to_owned(),
        );
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    let host = authority(host)?;
    let usual = if scheme == "https" { ":443" } else { ":80" };
    let slash = if path.starts_with('/') { "" } else { "/" };
    Ok(format!("{scheme}://{}{slash}{path}", host.strip_suffix(usual).unwrap_or(&host)))
}

/// Returns host and port in lower case.
///
/// # Errors
/// Why it is invalid.
pub(crate) fn authority(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    let is_one = !lower.contains('@') && lower.parse::<hyper::http::uri::Authority>().is_ok();
    if is_one {
        Ok(lower)
    } else {
        Err(format!("`{text}` is not a host: write it as example.org or example.org:8080"))
    }
}

/// Parses a field of a request, as `Name: value`.
///
/// # Errors
/// Why it is invalid.
pub(crate) fn header(text: &str) -> Result<String, String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("`{text}` is not a header: write it as 'Name: value'"))?;
    let is_fine = hyper::header::HeaderName::from_bytes(name.as_bytes()).is_ok()
        && hyper::header::HeaderValue::from_str(value.trim()).is_ok();
    if is_fine {
        Ok(format!("{name}: {}", value.trim()))
    } else {
        Err(format!("`{text}` is not allowed in a request"))
    }
}

/// Returns scheme, host and the rest of a URL that [`url`] returned.
pub(crate) fn parts(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.find('/')?;
    Some((scheme, &rest[..end], &rest[end..]))
}
