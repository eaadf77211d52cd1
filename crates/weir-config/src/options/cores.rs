//! What binds workers to cores. Part of the option table.

use super::row;
use crate::schema::{Default, Kind, Row};

pub(super) const PINNING: Row = row(
    "pinning",
    Kind::Word(&["soft", "hard", "none"]),
    Default::Is("soft"),
    "How workers are bound to cores. `soft`: each to a core of its own, but one whose core other programs take for more than a fifth of the time may run on all of them as long as another core has time, and returns when it has been calm for 10 s. `hard`: it never leaves its core. `none`: the kernel decides.",
);
