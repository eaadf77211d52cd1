//! The file that keeps verdicts on servers over a restart.

use std::path::Path;

/// The file of servers that may not be pipelined ([`crate::cross::verdict`]).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PipelineState {
    /// A file in the state directory of the service; without such a directory none.
    #[default]
    Auto,
    /// None.
    Off,
    /// This file.
    File(Box<Path>),
}
