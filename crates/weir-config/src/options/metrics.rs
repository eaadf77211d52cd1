//! Rows of the document about the metrics listener: its address, and the hosts that it answers to.
//! Part of the option table.

use super::row;
use crate::schema::{Default, Kind, Row};
use crate::texts;

/// The address of the metrics listener.
pub(super) const METRICS: Row = row(
    "metrics",
    Kind::Or("off", &Kind::Text("ADDRESS:PORT", texts::listen_address)),
    Default::Is("off"),
    "Address that serves the live page (`/`), `/metrics` (OpenMetrics), `/healthz` and `/readyz` \
        to every program that can connect.",
);

/// Host names that browsers may use for it.
pub(super) const HOSTS: Row = row(
    "metrics-hosts",
    Kind::List("`*`, a host name, or `*.` and a domain", texts::host_pattern),
    Default::Absent,
    "Host names by which browsers may request `metrics`, besides addresses, names without a dot \
        and the name of this machine. Other names get 421, so that no foreign page can read them \
        (DNS rebinding). Programs may use any name.",
);
