//! Where a benchmark was run and with which programs: the head of each report and the first line of
//! the raw file.
//!
//! Filled by `run/circumstances.rs`.

use serde::Serialize;

/// The machine and the programs on it.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Circumstances {
    /// What weir this is: version and commit.
    pub(crate) weir: String,
    /// When it began, in the form of RFC 9110.
    pub(crate) date: String,
    /// Cores that generator, proxy and origin share.
    pub(crate) cores: usize,
    /// What they are.
    pub(crate) processor: String,
    /// Memory of the machine, MiB.
    pub(crate) memory_mib: u64,
    /// Release of the kernel.
    pub(crate) kernel: String,
    /// Maximum number of descriptors of a process.
    pub(crate) descriptors: u64,
    /// Other facts that make a machine faster or slower, by name.
    pub(crate) environment: Vec<(String, String)>,
    /// What each program says of itself.
    pub(crate) programs: Vec<String>,
    /// Where clients use TLS: the library of each program, with its version.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) libraries: Vec<(String, String)>,
    /// What each weir says when it starts: which driver runs and why. By contender.
    pub(crate) said: Vec<(String, String)>,
}
