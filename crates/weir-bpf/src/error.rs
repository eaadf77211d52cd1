//! The ways in which loading programs can fail, in words.

use std::fmt;
use std::io;

use aya::maps::{Map, MapError};
use aya::programs::ProgramError;
use aya::programs::tc::TcError;
use aya::{Ebpf, EbpfError};
use rustix::io::Errno;

/// Why the kernel runs no programs.
#[derive(Debug)]
pub enum BpfError {
    /// The required capabilities are missing: CAP_BPF and CAP_NET_ADMIN.
    NotPermitted,
    /// Any other error of the kernel.
    Kernel(String),
}

impl fmt::Display for BpfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BpfError::NotPermitted => write!(f, "weir has no CAP_BPF and CAP_NET_ADMIN"),
            BpfError::Kernel(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for BpfError {}

pub(crate) fn kernel(why: &str) -> BpfError {
    BpfError::Kernel(why.to_owned())
}

/// Takes a map of this type out of the object.
pub(crate) fn map<M: TryFrom<Map, Error = MapError>>(
    object: &mut Ebpf,
    name: &str,
) -> Result<M, BpfError> {
    let map =
        object.take_map(name).ok_or_else(|| kernel(&format!("the object has no map {name}")))?;
    M::try_from(map).map_err(of_map)
}

/// Converts the kernel's error.
pub(crate) fn io_error(error: MapError) -> io::Error {
    match error {
        MapError::SyscallError(error) => error.io_error,
        MapError::KeyNotFound => io::ErrorKind::NotFound.into(),
        error => io::Error::other(error),
    }
}

pub(crate) fn of_io(error: &io::Error) -> BpfError {
    match Errno::from_io_error(error) {
        // EACCES: the kernel rejects the program.
        Some(Errno::PERM) => BpfError::NotPermitted,
        _ => BpfError::Kernel(error.to_string()),
    }
}

pub(crate) fn of_map(error: MapError) -> BpfError {
    of_io(&io_error(error))
}

pub(crate) fn of_object(error: EbpfError) -> BpfError {
    match error {
        EbpfError::MapError(MapError::CreateError { io_error, .. }) => of_io(&io_error),
        EbpfError::MapError(error) => of_map(error),
        error => BpfError::Kernel(error.to_string()),
    }
}

pub(crate) fn of_program(error: ProgramError) -> BpfError {
    match error {
        ProgramError::LoadError { io_error, verifier_log } => match of_io(&io_error) {
            BpfError::Kernel(why) => {
                let log = verifier_log.to_string();
                // Statistics follow the reason.
                let is_count = |line: &&str| {
                    ["processed ", "stack depth ", "verification time "]
                        .iter()
                        .any(|word| line.starts_with(word))
                };
                let last = log
                    .lines()
                    .rev()
                    .find(|line| !line.trim().is_empty() && !is_count(line))
                    .unwrap_or_default();
                BpfError::Kernel(format!("{why}: {last}"))
            }
            error => error,
        },
        ProgramError::SyscallError(error) => of_io(&error.io_error),
        ProgramError::TcError(TcError::IoError(error)) => of_io(&error),
        error => BpfError::Kernel(error.to_string()),
    }
}
