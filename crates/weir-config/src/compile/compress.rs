//! `compress`: at the top and of a route. Called by `compile::route`.

use weir_proxy::base::encoder::Coding;
use weir_proxy::request::rules::compress::{Compress, TYPES};

use super::narrow;
use crate::check::Checked;
use crate::problem::Problem;

impl super::Compiler<'_> {
    /// Returns the compression of a route's responses: its own block, or else that of the document.
    pub(super) fn compress(&mut self, route: &Checked, document: &Checked) -> Option<Compress> {
        let block = self.only(route, "compress").or_else(|| document.all("compress").next())?;
        block.flag("on").then(|| compress(block))
    }

    /// Checks that the block at the top makes sense there.
    pub(super) fn check_compress(&mut self, document: &Checked) {
        if let Some(block) = self.only(document, "compress").filter(|block| !block.flag("on")) {
            let message = "`compress #false` at the top has no effect: weir compresses only where \
                `compress` is set";
            self.push(
                Problem::new("conflict", &block.span, message)
                    .help("remove the line, or write `compress #false` in a route"),
            );
        }
    }
}

fn compress(block: &Checked) -> Compress {
    let level = |coding: Coding| {
        let name = match coding {
            Coding::Zstd => "zstd-level",
            Coding::Br => "br-level",
            Coding::Gzip => "gzip-level",
        };
        (coding, narrow(block.number(name)))
    };
    let all = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let (written, types) = (block.texts("codings"), block.texts("types"));
    // The written ones, in their order, each once.
    let mut codings: Vec<Coding> = Vec::new();
    for coding in written
        .iter()
        .filter_map(|word| Coding::ALL.into_iter().find(|coding| coding.word() == *word))
    {
        if !codings.contains(&coding) {
            codings.push(coding);
        }
    }
    let codings = if codings.is_empty() { Coding::ALL.to_vec() } else { codings };
    Compress {
        codings: codings.into_iter().map(level).collect(),
        types: if types.is_empty() { all(TYPES.to_vec()) } else { all(types) },
        length_min: block.number("min-length"),
    }
}
