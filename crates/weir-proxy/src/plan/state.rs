//! Where verdicts on servers are kept over a restart.

use std::path::Path;

/// Which file keeps the servers that may not be pipelined ([`crate::cross::verdict`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PipelineState {
    /// One in the state directory of the service; without such a directory none.
    #[default]
    Auto,
    /// None.
    Off,
    /// This one.
    File(Box<Path>),
}
