//! How records are shown: figures as text, judged targets, charts, and the files made of them.

pub(super) mod drawing;
pub(super) mod failover;
pub(super) mod figures;
pub(super) mod keepalive;
pub(super) mod limits;
pub(super) mod markdown;
pub(super) mod method;
pub(super) mod numbers;
pub(super) mod page;
pub(super) mod progress;
pub(super) mod tunnel;
