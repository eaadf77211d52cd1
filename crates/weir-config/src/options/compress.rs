//! Rows of `compress`: which answers are compressed, and how. Part of the option table.

use super::{MIB, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

pub(super) const COMPRESS: Block = Block {
    name: "compress",
    help: "Answers are compressed for clients that take it (`Accept-Encoding`); a bare `compress` will do. At the top of the file it is for all routes, in a `route` for that one, instead of what stands at the top. Read about secrets in docs/compression.md first. One at most.",
    positional: &[row(
        "on",
        Kind::Flag,
        Default::Is("#true"),
        "`compress #false` in a `route`: not there, whatever stands at the top.",
    )],
    options: &[
        row(
            "codings",
            Kind::List("`zstd`, `br` or `gzip`", texts::compress::coding),
            Default::Absent,
            "Which codings, the best first: that counts among those that a client likes equally. Without this option `zstd`, `br` and `gzip`.",
        ),
        row(
            "types",
            Kind::List("a media type, perhaps with one `*`", texts::compress::media_type),
            Default::Absent,
            "Which media types (`Content-Type`), as `text/*`, instead of the usual ones: texts, scripts, JSON, XML, SVG, WebAssembly, fonts that are not compressed yet.",
        ),
        row(
            "min-length",
            Kind::Size(0, MIB),
            Default::Is("1KiB"),
            "Answers whose length is known to be less stay as they are.",
        ),
        row("gzip-level", Kind::Count(1, 9), Default::Is("5"), "How hard gzip works."),
        row("br-level", Kind::Count(0, 6), Default::Is("4"), "How hard br works."),
        row("zstd-level", Kind::Count(1, 9), Default::Is("3"), "How hard zstd works."),
    ],
    repeats: true,
    ..BLOCK
};
