//! Everything that is visible from outside: counters, histograms, the report, the access log,
//! events, glitches, use by destination and user. Fed by [`crate::engine`]; decides nothing.

pub mod access;
pub mod accounting;
pub mod arms;
pub mod counters;
pub mod glitch;
pub mod histogram;
pub(crate) mod hits;
pub mod kinds;
pub mod report;
pub mod secured;
pub mod server_event;
pub mod server_stats;
