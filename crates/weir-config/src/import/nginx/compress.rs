//! `gzip` of nginx, and `brotli` of its module, as `compress`.

use weir_proxy::base::encoder::Coding;

use super::super::compress::Compress;
use super::{Nginx, size};

/// Each coding with the prefix of its directives, and its default level there.
const CODINGS: [(Coding, &str, u64); 2] = [(Coding::Br, "brotli", 6), (Coding::Gzip, "gzip", 1)];
/// Bytes of the smallest response, by default.
const LENGTH_MIN: u64 = 20;

impl Nginx<'_, '_, '_> {
    /// Returns the compression of responses of a block, as options are written; None: no
    /// compression.
    pub(super) fn compress(&mut self, at: usize) -> Option<Vec<String>> {
        let mut compress = Compress::default();
        let mut first = None;
        for (coding, name, level) in CODINGS {
            let Some(node) = self.one(at, name).filter(|node| node.argument(1) == "on") else {
                continue;
            };
            let level = self
                .one(at, &format!("{name}_comp_level"))
                .map_or(Some(level), |node| node.argument(1).parse().ok());
            compress.codings.push((coding, level));
            let length = self.one(at, &format!("{name}_min_length"));
            let length = length
                .map_or(Some(LENGTH_MIN), |node| size(node.argument(1)))
                .unwrap_or(LENGTH_MIN);
            // HTML is always among them.
            let mut types = vec!["text/html".to_owned()];
            let others = self
                .one(at, &format!("{name}_types"))
                .into_iter()
                .flat_map(|node| node.arguments());
            types.extend(others.filter(|one| *one != "text/html").map(str::to_owned));
            if types.iter().any(|one| one == "*") {
                types = vec!["*".to_owned()];
            }
            let differs = first.is_some()
                && (compress.types.as_ref() != Some(&types) || compress.length_min != length);
            if differs {
                self.draft.different(
                    node,
                    "all codings of a route have the same types and minimum length in weir, those \
                        of the first",
                );
            }
            if first.is_none() {
                (compress.types, compress.length_min, first) = (Some(types), length, Some(node));
            }
        }
        self.draft.compress(first?, compress)
    }
}
