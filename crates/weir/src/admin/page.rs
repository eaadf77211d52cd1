//! The live page at `/` of the metrics listener: one self-contained file.
//! docs/status-metrics.md#the-live-page.
//!
//! Called by `routes`. A browser runs only the script and uses only the style in the file: the
//! policy of the response has their digests. The data comes from `/live.json`, and enters the page
//! only as text.

use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

/// The whole file.
pub(crate) const PAGE: &str = include_str!("page.html");

/// Returns what the page may do: use its own style and script, and send requests to its origin.
pub(crate) fn policy() -> &'static str {
    static POLICY: OnceLock<String> = OnceLock::new();
    POLICY.get_or_init(|| {
        let [style, script] = ["style", "script"].map(|tag| digest(between(tag)));
        format!(
            "default-src 'none'; style-src '{style}'; script-src '{script}'; connect-src 'self'; \
             img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
    })
}

/// Returns the content of the page's only element of this name.
fn between(tag: &str) -> &'static str {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let inner = PAGE.split_once(&open).and_then(|(_, rest)| rest.split_once(&close));
    inner.map_or("", |(inner, _)| inner)
}

fn digest(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    //! Proves: the page is self-contained, and inserts only text into itself. How: its words. A
    //! browser in `tests/e2e/page.rs` shows that its policy lets it work.

    use super::*;

    #[test]
    fn it_needs_nothing_else() {
        for word in [
            "http://",
            "https://",
            "src=",
            "@import",
            "url(\"",
            "import(",
            "<link rel=\"stylesheet",
        ] {
            // The name space of SVG is a name, not an address.
            let page = PAGE.replace("http://www.w3.org/2000/svg", "");
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn it_takes_in_nothing_but_text() {
        for word in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            " style=",
        ] {
            assert!(!PAGE.contains(word), "{word}");
        }
    }

    #[test]
    fn its_policy_has_one_style_and_one_script() {
        assert_eq!((PAGE.matches("<style").count(), PAGE.matches("<script").count()), (1, 1));
        assert!(between("style").len() > 100 && between("script").len() > 100);
        assert_eq!(policy().matches("'sha256-").count(), 2);
        assert!(!policy().contains("unsafe"));
    }
}
