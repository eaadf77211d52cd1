//! `redirect` and `respond` of a `route`, which are weir's own responses; and `error-page`. Called
//! by `route`; reads the files with content.

use std::path::Path;
use std::sync::Arc;

use weir_proxy::request::own_answer::{
    CONTENT_BYTES_MAX, ErrorPage, Fixed, OwnAnswer, has_content,
};
use weir_proxy::request::rules::location::Location;
use weir_proxy::upstream::health::Codes;

use super::Compiler;
use super::route::RULES_MAX;
use crate::World;
use crate::check::Checked;
use crate::problem::{Problem, Span};

/// Media types by file name extension, and whether they are text.
const TYPES: &[(&str, &str, bool)] = &[
    ("html", "text/html", true),
    ("htm", "text/html", true),
    ("txt", "text/plain", true),
    ("css", "text/css", true),
    ("csv", "text/csv", true),
    ("js", "text/javascript", true),
    ("json", "application/json", false),
    ("xml", "application/xml", false),
    ("svg", "image/svg+xml", false),
    ("png", "image/png", false),
    ("jpg", "image/jpeg", false),
    ("jpeg", "image/jpeg", false),
    ("gif", "image/gif", false),
    ("webp", "image/webp", false),
    ("ico", "image/vnd.microsoft.icon", false),
    ("pdf", "application/pdf", false),
];

impl Compiler<'_> {
    /// Returns weir's own response to the requests of a route without an upstream. None: it was
    /// wrong and is reported.
    pub(super) fn own_answer(&mut self, route: &Checked) -> Option<OwnAnswer> {
        let redirect = route.all("redirect").next();
        let useless: &[&str] = if redirect.is_some() {
            &["pool", "request"]
        } else {
            &["pool", "request", "strip-prefix", "rewrite"]
        };
        for name in useless {
            let option = route
                .options
                .iter()
                .find(|chosen| chosen.row.name == *name)
                .and_then(|one| one.span.clone());
            let blocks = route.all(name).map(|block| block.span.clone());
            for span in option.into_iter().chain(blocks) {
                let message =
                    format!("`{name}` has no effect here: these requests go to no server");
                self.push(Problem::new("conflict", &span, message));
            }
        }
        match redirect {
            Some(block) => redirection(block),
            None => respond(self, route.all("respond").next()?),
        }
    }

    /// Returns the pages of a route for errors.
    pub(super) fn error_pages(&mut self, route: &Checked) -> Vec<Arc<ErrorPage>> {
        self.at_most(route, "error-page", RULES_MAX);
        route
            .all("error-page")
            .take(RULES_MAX)
            .filter_map(|block| error_page(self, block))
            .map(Arc::new)
            .collect()
    }
}

fn respond(compiler: &mut Compiler<'_>, block: &Checked) -> Option<OwnAnswer> {
    let status = u16::try_from(block.number("status")).ok()?;
    if status == 206 {
        let message = "206 answers a request for a part, and says which part: write 200";
        compiler.push(Problem::new("bad-value", &block.place("status"), message));
    }
    let given: Vec<&str> =
        ["text", "file"].into_iter().filter(|name| block.chosen(name).is_some()).collect();
    if let [_, second] = given[..] {
        let message = "`respond` takes a text or a file, not both";
        compiler.push(Problem::new("conflict", &block.place(second), message));
    }
    let without = match given.first() {
        Some(first) if !has_content(status) => {
            Some((*first, format!("a response with {status} has no content")))
        }
        None if !block.text("type").is_empty() => {
            Some(("type", "`type` has no effect without `text` or `file`".to_owned()))
        }
        _ => None,
    };
    if let Some((name, message)) = without {
        compiler.push(Problem::new("conflict", &block.place(name), message));
    }
    let content = match block.text("file") {
        "" => block.text("text").as_bytes().to_vec(),
        _ => content(compiler.world, block).map_err(|problem| compiler.push(*problem)).ok()?,
    };
    let media_type = match block.text("type") {
        _ if given.is_empty() => None,
        "" => Some(media_type(block.text("file"), &content)),
        media_type => Some(media_type.to_owned()),
    };
    let media_type = media_type.map(|media_type| media_type.into_bytes().into());
    Some(OwnAnswer::Fixed(Arc::new(Fixed { status, media_type, content: content.into() })))
}

fn error_page(compiler: &mut Compiler<'_>, block: &Checked) -> Option<ErrorPage> {
    let statuses: Vec<Codes> =
        block.texts("status").iter().filter_map(|text| Codes::parse(text)).collect();
    if statuses.iter().any(|codes| codes.first < 400) {
        let message = "`error-page` takes statuses from 400 to 599";
        compiler.push(Problem::new("bad-value", &block.place("status"), message));
    }
    // A path that was wrong has been reported.
    if block.text("file").is_empty() {
        return None;
    }
    let content = content(compiler.world, block).map_err(|problem| compiler.push(*problem)).ok()?;
    let media_type = match block.text("type") {
        "" => media_type(block.text("file"), &content),
        media_type => media_type.to_owned(),
    };
    Some(ErrorPage {
        statuses,
        media_type: media_type.into_bytes().into(),
        content: content.into(),
    })
}

/// Returns the problem of a route that has no response, or more than one.
pub(super) fn no_single_goal(route: &Checked) -> Option<Problem> {
    let proxy = route.chosen("proxy").map(|_| route.place("proxy"));
    let own = ["redirect", "respond"].into_iter().filter_map(|name| route.all(name).next());
    let spans: Vec<Span> = proxy.into_iter().chain(own.map(|block| block.span.clone())).collect();
    match &spans[..] {
        [] => {
            let message = "`route` needs `proxy`, `redirect` or `respond` to answer its requests";
            Some(Problem::new("missing-value", &route.span, message))
        }
        [_] => None,
        [first, second, ..] => {
            let message = "a route takes only one of `proxy`, `redirect` and `respond`";
            Some(Problem::new("conflict", second, message).related(first, "the other is here"))
        }
    }
}

/// Returns the content of the file of a response.
///
/// # Errors
/// The user's fault: it cannot be read, or is too large.
fn content(world: World<'_>, block: &Checked) -> Result<Vec<u8>, Box<Problem>> {
    let path = block.text("file");
    let (code, message) = match (world.read)(Path::new(path)) {
        Ok(content) if content.len() <= CONTENT_BYTES_MAX => return Ok(content),
        Ok(content) => (
            "too-large",
            format!(
                "`{path}` has {} bytes, but a response may have at most {CONTENT_BYTES_MAX}",
                content.len()
            ),
        ),
        Err(error) => ("unreadable", format!("`{path}` can't be read: {error}")),
    };
    Err(Box::new(Problem::new(code, &block.place("file"), message)))
}

/// Returns a redirect. Wrong values have been reported.
fn redirection(block: &Checked) -> Option<OwnAnswer> {
    let to = Location::compile(block.text("to")).ok()?;
    Some(OwnAnswer::Redirect { status: block.text("status").parse().ok()?, to })
}

/// Returns Content-Type for a content; without a file it is text.
fn media_type(file: &str, content: &[u8]) -> String {
    let ending = Path::new(file).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let known = TYPES.iter().find(|(known, ..)| known.eq_ignore_ascii_case(ending));
    let (name, is_text) = match known {
        Some((_, name, is_text)) => (*name, *is_text),
        None if file.is_empty() => ("text/plain", true),
        None => ("application/octet-stream", false),
    };
    // The coding of any other text is unknown.
    if is_text && std::str::from_utf8(content).is_ok() {
        format!("{name}; charset=utf-8")
    } else {
        name.to_owned()
    }
}

#[cfg(test)]
mod tests {
    //! Proves: which types contents have. How: examples.

    use super::media_type;

    #[test]
    fn types_follow_names() {
        for (file, content, expected) in [
            ("", &b"x"[..], "text/plain; charset=utf-8"),
            ("/a/b.HTML", "\u{e9}".as_bytes(), "text/html; charset=utf-8"),
            ("/a/b.html", b"\xe9", "text/html"),
            ("/a/b.json", b"{}", "application/json"),
            ("/a.html/b", b"", "application/octet-stream"),
        ] {
            assert_eq!(media_type(file, content), expected, "{file}");
        }
    }
}
