//! The cells of the experiment `block`. Named by `catalogue.rs`.
//!
//! A contender that drops packets in another way is listed in [`DROPPING`] and in `contenders.rs`,
//! and takes part wherever it can be compared.

use super::block::Attack;
use super::cells::{Axes, Cell, Load, Origin};

/// The attacked contenders: each program without a limit, then with each of its ways to refuse
/// clients. A client whose packets the kernel drops has no connection on which to send requests.
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

/// Other contenders that drop packets.
const KNOWN: &[&str] = &["haproxy-nft"];

/// Classes of attackers beside users, with the name of each cell and the contenders other than
/// weir, with all limits that a contender has. nginx has no limit for clients that never send a
/// complete valid head. No limit per client helps against ever new addresses.
pub(crate) const CLASSES: &[(Attack, &str, &str, &[&str])] = &[
    (
        Attack::ConnectFlood,
        "connect-flood",
        "connections that are closed at once",
        &["haproxy-guard"],
    ),
    (Attack::Hold, "hold", "connections on which nothing comes", &["haproxy-guard"]),
    (Attack::SlowHead, "slow-head", "heads that come a byte a second", &["haproxy-guard"]),
    (
        Attack::SlowBody,
        "slow-body",
        "content that comes a byte a second",
        &["nginx-guard", "haproxy-guard"],
    ),
    (
        Attack::SlowReader,
        "slow-reader",
        "answers of 1 MiB that are read 4 KiB a second",
        &["nginx-guard", "haproxy-guard"],
    ),
    (Attack::Malformed, "malformed", "malformed requests", &["haproxy-guard"]),
    (Attack::Oversized, "oversized", "heads of 256 KiB", &["haproxy-guard"]),
    (Attack::Fuzz, "fuzz", "valid and odd requests", &["nginx-guard", "haproxy-guard"]),
    (Attack::Many, "many", "connections with a request, each from another address", &[]),
];

/// Returns all cells.
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
        cell(
            "memory",
            "memory of weir without bans, with 10,000 and with 65,536",
            Load::BanMemory,
            &banning,
        ),
        cell("recovery", "from the end of a ban to the first answer", Load::Recovery, &banning),
    ];
    let weir = &["weir", "weir-guard", "weir-guard-ban"];
    cells.extend(CLASSES.iter().map(|(attack, name, title, others)| {
        cell(
            name,
            &format!("users beside {title}"),
            Load::Block(*attack),
            &[weir, *others].concat(),
        )
    }));
    cells
}

fn cell(name: &str, title: &str, load: Load, contenders: &[&'static str]) -> Cell {
    Cell::new(name, title, load, contenders).from(Origin::None)
}
