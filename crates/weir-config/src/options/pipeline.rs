//! The rows of `pipeline`. Part of the option table.

use super::row;
use crate::schema::{BLOCK, Block, Default, Kind, Row};
use crate::texts;

pub(super) const STATE: Row = row(
    "pipeline-state",
    Kind::Or("auto", &Kind::Or("off", &Kind::Text("a path", texts::forward::file))),
    Default::Is("auto"),
    "File that keeps over a restart which servers weir does not pipeline until `weir server clear`; weir writes it as its user. `auto`: `pipelining` in $STATE_DIRECTORY, which systemd sets, else none. `off`: none.",
);

pub(super) const PIPELINE: Block = Block {
    name: "pipeline",
    help: "How requests follow each other on a connection before the answers are there. Only with `pool pipelined`.",
    positional: &[row(
        "mode",
        Kind::Word(&["adaptive", "off"]),
        Default::Unless("adaptive", "depth"),
        "`adaptive`: requests share a connection where that was found to cost them no time. `off`: one request at a time.",
    )],
    options: &[
        row(
            "depth",
            Kind::Or("adaptive", &Kind::Count(1, 1_000_000)),
            Default::Absent,
            "Always up to this depth, in place of a mode, whatever that costs.",
        ),
        row(
            "share",
            Kind::Word(&["all", "client"]),
            Default::Is("all"),
            "Whose requests may follow each other: those of all clients, or only those of one client connection.",
        ),
        row(
            "echo",
            Kind::Or("off", &Kind::Text("a field name", texts::echo_field)),
            Default::Is("off"),
            "A field in which the server sends back an identifier; an answer with another one is refused with 502.",
        ),
        row(
            "rehearse",
            Kind::Or("auto", &Kind::Text("a path", texts::probe_path)),
            Default::Is("auto"),
            "A path that weir may ask for to see whether the server bears several requests at once, before it is pipelined. `auto`: one that clients have just got without credentials, or again and again if it has a query or was asked for with a cookie. Not looked at with `depth`.",
        ),
        row(
            "escape",
            Kind::Flag,
            Default::Absent,
            "Requests that wait behind an answer far slower than usual are sent again on another connection, at most one in five; behind one that has gone on for a second all. The server then works on them twice. Without it: where `depth` is given, because only there requests stand behind any others.",
        ),
    ],
    blocks: &[],
    repeats: false,
    with: Some(("pool", &["pipelined", "fresh"])),
    ..BLOCK
};
