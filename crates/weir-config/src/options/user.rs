//! The rows of `user`. Part of the option table.

use super::row;
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

pub(super) const USER: Block = Block {
    name: "user",
    help: "The user that weir becomes when it was started as root, once it has bound its listeners \
        and read its keys (docs/privileges.md).",
    positional: &[row(
        "name",
        Kind::Text("a user", texts::account),
        Default::Required,
        "A name in /etc/passwd, or a number. With `root` weir remains root, and does not warn of \
            that.",
    )],
    options: &[
        row(
            "group",
            Kind::Text("a group", texts::account),
            Default::Absent,
            "A name in /etc/group, or a number. Without this option the group of the user; other \
                groups are those of the user.",
        ),
        row(
            "privileged-ports",
            Kind::Flag,
            Default::Is("#false"),
            "Keep the right to listen on ports below 1024 (CAP_NET_BIND_SERVICE), so that a reload \
                can add such listeners.",
        ),
    ],
    ..BLOCK
};
