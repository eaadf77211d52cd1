//! `compress` of a route, in an import. Filled by the dialects; checked by the option table's
//! functions.

use weir_proxy::base::encoder::Coding;

use super::draft::Draft;
use super::tree::Node;
use crate::reverse::literal;
use crate::texts;
use crate::units::size_text;

/// The compression settings of a dialect.
#[derive(Debug, Default)]
pub(super) struct Compress {
    /// The best coding first, each with its level in the dialect; None: weir's own.
    pub(super) codings: Vec<(Coding, Option<u64>)>,
    /// None: weir's own.
    pub(super) types: Option<Vec<String>>,
    pub(super) length_min: u64,
}

impl Draft<'_> {
    /// Returns its options, as they are written. None: weir has none of its codings.
    pub(super) fn compress(&mut self, node: &Node, compress: Compress) -> Option<Vec<String>> {
        if compress.codings.is_empty() {
            return None;
        }
        let words = |words: &[String]| {
            words.iter().map(|word| format!(" {}", literal(word))).collect::<String>()
        };
        let codings: Vec<String> =
            compress.codings.iter().map(|(coding, _)| coding.word().to_owned()).collect();
        let mut lines = vec![format!("codings{}", words(&codings))];
        if let Some(theirs) = compress.types {
            let mut types = Vec::new();
            for one in theirs {
                match texts::compress::media_type(&one) {
                    Ok(one) => types.push(one),
                    Err(why) => self.lost(node, why),
                }
            }
            if types.is_empty() {
                return None;
            }
            lines.push(format!("types{}", words(&types)));
        }
        let length_min = compress.length_min.min(1 << 20);
        lines.push(format!("min-length \"{}\"", size_text(length_min)));
        for (coding, level) in compress.codings {
            let (name, least, most) = match coding {
                Coding::Zstd => ("zstd-level", 1, 9),
                Coding::Br => ("br-level", 0, 6),
                Coding::Gzip => ("gzip-level", 1, 9),
            };
            lines.extend(level.map(|level| format!("{name} {}", level.clamp(least, most))));
        }
        Some(lines)
    }
}
