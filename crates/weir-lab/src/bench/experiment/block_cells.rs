//! The cells of the experiment `block`. Named by `catalogue.rs`.
//!
//! A contender that drops packets by another way stands in [`DROPPING`] and in `contenders.rs`, and takes part wherever that can be compared.

use super::block::Attack;
use super::cells::{Axes, Cell, Load, Origin};

/// Who is attacked: each program without a limit, then with each of its ways to turn clients away. Whose packets the kernel drops has no connection
/// on which to ask.
const LIMITING: &[&str] = &[
    "weir",
    "weir-observe",
    "weir-429",
    "weir-reset",
    "weir-ban",
    "nginx",
    "nginx-429",
    "nginx-444",
    "haproxy",
    "haproxy-429",
    "haproxy-reject",
];
/// weir with bans that drop packets.
const DROPPING: &[&str] = &["weir-drop"];

/// All of them.
pub(crate) fn cells(_: &Axes) -> Vec<Cell> {
    let dropping = [LIMITING, DROPPING].concat();
    let banning = [&["weir-ban"], DROPPING].concat();
    vec![
        cell(
            "requests",
            "users beside ten times as many requests on kept connections",
            Load::Block(Attack::Requests),
            LIMITING,
        ),
        cell(
            "connections",
            "users beside ten times as many connections, a request on each",
            Load::Block(Attack::Connections),
            &dropping,
        ),
        cell("memory", "memory of weir without bans, with 10,000 and with 65,536", Load::BanMemory, &banning),
        cell("recovery", "from the end of a ban to the first answer", Load::Recovery, &banning),
    ]
}

fn cell(name: &str, title: &str, load: Load, contenders: &[&'static str]) -> Cell {
    Cell::new(name, title, load, contenders).from(Origin::None)
}
