//! Rows of `route`. Part of the option table.

use super::{POOLS, row};
use crate::schema::{BLOCK, Block, Default, Kind};
use crate::texts;

pub(super) const ROUTE: Block = Block {
    name: "route",
    help: "Which requests of clients of `listen` go where. The most specific wins: host, then longest path, then method.",
    positional: &[],
    options: &[
        row(
            "host",
            Kind::Text("`*`, a host name, or `*.` and a domain", texts::host_pattern),
            Default::Is("*"),
            "Which hosts, without port.",
        ),
        row(
            "path",
            Kind::Text("a path", texts::route_path),
            Default::Is("/"),
            "A prefix that ends on a segment: `/a` means `/a` and `/a/b`, not `/ab`.",
        ),
        row("methods", Kind::List("a method", texts::method), Default::Absent, "Which methods; without it all."),
        row(
            "proxy",
            Kind::Text("the name of an upstream", texts::upstream_name),
            Default::Required,
            "The upstream that answers.",
        ),
        row(
            "pool",
            Kind::Word(POOLS),
            Default::Absent,
            "Another `pool` than the upstream's for these requests: the same servers over connections of their own.",
        ),
    ],
    blocks: &[],
    repeats: true,
    ..BLOCK
};
