//! weir's own responses in an import: `redirect` and `respond`. Called by the dialects; checked by
//! the option table's functions.

use weir_proxy::request::own_answer::has_content;

use super::draft::Draft;
use super::route::To;
use super::tree::Node;
use crate::reverse::literal;
use crate::texts;

/// A response of weir itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// As it is written.
    pub(super) line: String,
    /// Rules for paths have an effect on it.
    pub(super) is_redirect: bool,
}

/// The content of a response.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Content<'t> {
    /// A text, or a file with it; neither: none.
    pub(super) text: &'t str,
    pub(super) file: &'t str,
    /// Empty: weir's default.
    pub(super) media_type: &'t str,
}

impl Draft<'_> {
    /// Adds a redirect. None: weir cannot express it, which has been noted.
    pub(super) fn redirect(&mut self, node: &Node, status: &str, to: &str) -> Option<To> {
        let status = texts::route::redirect_status(status);
        match (status, texts::route::location(to)) {
            (Ok(status), Ok(to)) => {
                let status =
                    if status == "308" { String::new() } else { format!(" status=\"{status}\"") };
                Some(self.own(Answer {
                    line: format!("redirect {}{status}", literal(&to)),
                    is_redirect: true,
                }))
            }
            (Err(why), _) | (_, Err(why)) => {
                self.lost(node, why);
                None
            }
        }
    }

    /// Adds a response with a status and perhaps content. None as with [`Draft::redirect`].
    pub(super) fn respond(
        &mut self,
        node: &Node,
        status: &str,
        content: Content<'_>,
    ) -> Option<To> {
        let status = status
            .parse()
            .ok()
            .filter(|status: &u16| (200..600).contains(status) && *status != 206);
        let Some(status) = status else {
            self.lost(node, "weir's own responses have a status from 200 to 599, except 206");
            return None;
        };
        let mut line = format!("respond {status}");
        let is_empty = content.text.is_empty() && content.file.is_empty();
        if has_content(status) && !is_empty {
            let media_type = Some(content.media_type).filter(|media_type| !media_type.is_empty());
            let wrong =
                media_type.and_then(|media_type| texts::route::media_type(media_type).err());
            let wrong = wrong.or_else(|| texts::route::content(content.text).err());
            if let Some(why) = wrong {
                self.lost(node, why);
                return None;
            }
            if content.file.is_empty() {
                line.push_str(&format!(" {}", literal(content.text)));
            } else {
                line.push_str(&format!(" file={}", literal(&self.file(node, content.file)?)));
            }
            line.extend(media_type.map(|media_type| format!(" type={}", literal(media_type))));
        }
        Some(self.own(Answer { line, is_redirect: false }))
    }

    fn own(&mut self, answer: Answer) -> To {
        let known = self.answers.iter().position(|other| *other == answer);
        To::Answer(known.unwrap_or_else(|| {
            self.answers.push(answer);
            self.answers.len() - 1
        }))
    }
}
