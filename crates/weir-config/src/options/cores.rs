//! Rows that bind workers to cores. Part of the option table.

use super::row;
use crate::schema::{Default, Kind, Row};

pub(super) const PINNING: Row = row(
    "pinning",
    Kind::Word(&["soft", "hard", "none"]),
    Default::Is("soft"),
    "How workers are bound to cores. `soft`: each worker has its own core. When other programs \
        take more than a fifth of that core's time, the worker may run on all cores, as long as \
        another core has time. It returns when its core has been calm for 10 s. `hard`: a worker \
        never leaves its core. `none`: the kernel decides.",
);
