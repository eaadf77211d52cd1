//! `compression` of HAProxy as `compress`.

use weir_proxy::base::encoder::Coding;

use super::super::compress::Compress;
use super::super::tree::Node;
use super::Haproxy;

/// The level of HAProxy unless `tune.comp.maxlevel` sets another.
const LEVEL: u64 = 1;

impl<'t> Haproxy<'t, '_, '_> {
    /// Returns the compression of a backend, or else of its frontend.
    pub(super) fn compress(&mut self, (frontend, backend): (usize, usize)) -> Option<Vec<String>> {
        let find = |word: &str| {
            let lines = |section: usize| self.one(section, &["compression", word]);
            lines(backend).or_else(|| lines(frontend))
        };
        let (algorithm, types) =
            (find("algo").or_else(|| find("algo-res"))?, find("type").or_else(|| find("type-res")));
        let of: Vec<&str> = algorithm.arguments().skip(1).collect();
        if !of.contains(&"gzip") {
            self.draft.lost(
                algorithm,
                "weir compresses with `gzip`, `br` and `zstd`, not with `deflate`",
            );
            return None;
        }
        if of.len() > 1 {
            self.draft.different(algorithm, "weir supports only `gzip` of these");
        }
        let types = match types {
            Some(line) => line.arguments().skip(1).map(str::to_owned).collect(),
            None => vec!["*".to_owned()],
        };
        let level =
            self.one_of_global("tune.comp.maxlevel").and_then(|line| line.argument(1).parse().ok());
        let codings = vec![(Coding::Gzip, Some(level.unwrap_or(LEVEL)))];
        self.draft.compress(algorithm, Compress { codings, types: Some(types), length_min: 0 })
    }

    /// Whether servers are not asked for compressed responses.
    pub(super) fn offloads(&self, section: usize) -> bool {
        self.one(section, &["compression", "offload"]).is_some()
    }

    fn one_of_global(&self, name: &str) -> Option<&'t Node> {
        let tree = self.tree;
        tree.indices(super::ROOT, "global")
            .iter()
            .find_map(|section| tree.named(*section, name).next_back())
    }
}
