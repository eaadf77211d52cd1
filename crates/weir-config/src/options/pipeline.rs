//! The rows of `pipeline`. Part of the option table.

use super::row;
use crate::schema::{BLOCK, Block, Default, Kind, Row};
use crate::texts;

pub(super) const STATE: Row = row(
    "pipeline-state",
    Kind::Or("auto", &Kind::Or("off", &Kind::Text("a path", texts::forward::file))),
    Default::Is("auto"),
    "File that remembers across restarts which servers weir does not pipeline until `weir server \
        clear`; weir writes it as its user. `auto`: `pipelining` in $STATE_DIRECTORY, which \
        systemd sets, else none. `off`: none.",
);

pub(super) const PIPELINE: Block = Block {
    name: "pipeline",
    help: "How requests follow each other on a connection before the responses arrive. Only with \
        `pool pipelined`.",
    positional: &[row(
        "mode",
        Kind::Word(&["adaptive", "off"]),
        Default::Unless("adaptive", "depth"),
        "Whether requests share a connection. `adaptive`: they share where weir has found that \
            this costs them no time. `off`: one request at a time.",
    )],
    options: &[
        row(
            "depth",
            Kind::Or("adaptive", &Kind::Count(1, 1_000_000)),
            Default::Absent,
            "Always pipeline up to this depth, instead of a mode, whatever that costs.",
        ),
        row(
            "share",
            Kind::Word(&["all", "client"]),
            Default::Is("all"),
            "Whose requests may follow each other: those of all clients, or only those of one \
                client connection.",
        ),
        row(
            "echo",
            Kind::Or("off", &Kind::Text("a field name", texts::echo_field)),
            Default::Is("off"),
            "A field in which the server sends back an identifier; weir replaces a response with a \
                different identifier by 502.",
        ),
        row(
            "rehearse",
            Kind::Or("auto", &Kind::Text("a path", texts::probe_path)),
            Default::Is("auto"),
            "A path that weir may request to see whether the server copes with several requests at \
                once, before weir pipelines to it. `auto`: a path that clients have just got \
                without credentials, or repeatedly if it has a query or was requested with a \
                cookie. Not used with `depth`.",
        ),
        row(
            "escape",
            Kind::Flag,
            Default::Absent,
            "Requests that wait behind a response far slower than usual are sent again on another \
                connection, at most one in five. Behind a response that has gone on for a second, \
                all requests are sent again. The server then works on these requests twice. \
                Without this option weir does so where `depth` is given, because only there \
                requests may wait behind arbitrary others.",
        ),
    ],
    blocks: &[],
    repeats: false,
    with: Some(("pool", &["pipelined", "fresh"])),
    ..BLOCK
};
