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
const DROPPING: &[&str] = &["weir-drop", "weir-xdp"];

/// What others have that drops packets.
const KNOWN: &[&str] = &["haproxy-nft"];

/// Classes of attackers beside users, with the name of each cell and who takes part besides weir, with all limits that a contender has. nginx has
/// none for who sends no whole head that is right, and against ever new addresses no limit of a client helps.
pub(crate) const CLASSES: &[(Attack, &str, &str, &[&str])] = &[
    (Attack::ConnectFlood, "connect-flood", "connections that are closed at once", &["haproxy-guard"]),
    (Attack::Hold, "hold", "connections on which nothing comes", &["haproxy-guard"]),
    (Attack::SlowHead, "slow-head", "heads that come a byte a second", &["haproxy-guard"]),
    (Attack::SlowBody, "slow-body", "content that comes a byte a second", &["nginx-guard", "haproxy-guard"]),
    (
        Attack::SlowReader,
        "slow-reader",
        "answers of 1 MiB that are read 4 KiB a second",
        &["nginx-guard", "haproxy-guard"],
    ),
    (Attack::Malformed, "malformed", "what is no request", &["haproxy-guard"]),
    (Attack::Oversized, "oversized", "heads of 256 KiB", &["haproxy-guard"]),
    (Attack::Fuzz, "fuzz", "valid and odd requests", &["nginx-guard", "haproxy-guard"]),
    (Attack::Many, "many", "connections with a request, each from another address", &[]),
];

/// All of them.
pub(crate) fn cells(_: &Axes) -> Vec<Cell> {
    let dropping = [LIMITING, DROPPING, KNOWN].concat();
    let banning = [&["weir-ban"], DROPPING].concat();
    let mut cells = vec![
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
    ];
    let weir = &["weir", "weir-guard", "weir-guard-ban"];
    cells.extend(CLASSES.iter().map(|(attack, name, title, others)| {
        cell(name, &format!("users beside {title}"), Load::Block(*attack), &[weir, *others].concat())
    }));
    cells
}

fn cell(name: &str, title: &str, load: Load, contenders: &[&'static str]) -> Cell {
    Cell::new(name, title, load, contenders).from(Origin::None)
}
