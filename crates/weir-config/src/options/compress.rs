//! Rows of `compress`: the responses that are compressed, and how. Part of the option table.

use super::{MIB, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

pub(super) const COMPRESS: Block = Block {
    name: "compress",
    help: "Compresses responses for clients that accept it (`Accept-Encoding`); a bare `compress` \
        is enough. At the top of the file it is for all routes, in a `route` for that route, \
        instead of the block at the top. Read about secrets in docs/compression.md first. At \
        most one.",
    positional: &[row(
        "on",
        Kind::Flag,
        Default::Is("#true"),
        "`compress #false` in a `route`: no compression there, whatever the top of the file says.",
    )],
    options: &[
        row(
            "codings",
            Kind::List("`zstd`, `br` or `gzip`", texts::compress::coding),
            Default::Absent,
            "The codings, in order of preference, which decides between those that a client likes \
                equally. Without this option `zstd`, `br` and `gzip`.",
        ),
        row(
            "types",
            Kind::List("a media type, perhaps with one `*`", texts::compress::media_type),
            Default::Absent,
            "The media types (`Content-Type`), as `text/*`, instead of the usual ones: texts, \
                scripts, JSON, XML, SVG, WebAssembly, fonts that are not compressed yet.",
        ),
        row(
            "min-length",
            Kind::Size(0, MIB),
            Default::Is("1KiB"),
            "Responses whose length is known to be less stay uncompressed.",
        ),
        row("gzip-level", Kind::Count(1, 9), Default::Is("5"), "Compression level of gzip."),
        row("br-level", Kind::Count(0, 6), Default::Is("4"), "Compression level of br."),
        row("zstd-level", Kind::Count(1, 9), Default::Is("3"), "Compression level of zstd."),
    ],
    repeats: true,
    ..BLOCK
};
