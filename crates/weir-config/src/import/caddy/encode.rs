//! `encode` of Caddy as `compress`.

use weir_proxy::base::encoder::Coding;

use super::super::compress::Compress;
use super::super::missing::Missing;
use super::super::tree::Node;
use super::{Caddy, Scope};

/// Bytes of the smallest response, by default.
const LENGTH_MIN: u64 = 512;
/// Codings, by default.
const CODINGS: [Coding; 2] = [Coding::Zstd, Coding::Gzip];

impl Caddy<'_, '_, '_> {
    /// Converts the compression of a block.
    pub(super) fn encode(&mut self, at: usize, scope: &mut Scope) {
        let tree = self.tree;
        let node = &tree.nodes[at];
        if node.argument(1).starts_with(['/', '@']) {
            return self.draft.lost(
                node,
                "weir compresses all responses of a route; write a route for these requests",
            );
        }
        let mut compress = Compress { length_min: LENGTH_MIN, ..Compress::default() };
        for word in node.arguments().filter(|word| *word != "*") {
            self.coding(node, word, "", &mut compress);
        }
        for (inside, line) in tree.children(at) {
            match (line.name(), line.argument(1)) {
                ("minimum_length", text) => match text.parse() {
                    Ok(bytes) => compress.length_min = bytes,
                    Err(_) => self.draft.lost(line, "this is not a length"),
                },
                ("match", _) => {
                    let types = tree
                        .named(inside, "header")
                        .filter(|line| line.argument(1).eq_ignore_ascii_case("content-type"));
                    let mut types: Vec<String> =
                        types.map(|line| line.argument(2).to_owned()).collect();
                    types.extend(
                        (line.argument(1).eq_ignore_ascii_case("header"))
                            .then(|| line.argument(3).to_owned()),
                    );
                    compress.types = Some(types).filter(|types| !types.is_empty());
                }
                (word, level) => self.coding(line, word, level, &mut compress),
            }
        }
        if compress.codings.is_empty() {
            compress.codings.extend(CODINGS.map(|coding| (coding, None)));
        }
        if compress.types.is_none() {
            self.draft.different_once(
                node,
                "weir has its own list of media types to compress: see `types` of `compress`",
            );
        }
        scope.changes.compress = self.draft.compress(node, compress);
    }

    fn coding(&mut self, node: &Node, word: &str, level: &str, compress: &mut Compress) {
        let coding = Coding::ALL.into_iter().find(|coding| coding.word() == word);
        let Some(coding) = coding else { return self.draft.missing(node, Missing::Compress) };
        let level = match level {
            "fastest" => Some(1),
            "better" => Some(7),
            "best" => Some(9),
            level => level.parse().ok(),
        };
        compress.codings.push((coding, level));
    }
}
