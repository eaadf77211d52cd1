//! Starts one program of a stage: by its name, nginx with a configuration, or weir's origin.
//!
//! Called by `stage.rs` and by loads that start their own.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use super::process::Process;
use super::programs::Programs;

/// Starts a program by its name.
///
/// # Errors
/// It is not installed, or does not start.
pub(super) fn start_program(
    programs: &Programs,
    name: &str,
    words: &[&str],
    log: &Path,
) -> io::Result<Process> {
    let missing = || {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("{name} is not installed (scripts/setup installs it)"),
        )
    };
    Process::start(&programs.path(name).ok_or_else(missing)?, words, log)
}

/// Starts nginx with a configuration, in a directory for what it writes.
///
/// # Errors
/// As [`start_program`].
pub(super) fn start_nginx(
    programs: &Programs,
    file: &Path,
    directory: &Path,
    log: &Path,
) -> io::Result<Process> {
    let (file, directory) = (file.to_string_lossy(), directory.to_string_lossy());
    start_program(programs, "nginx", &["-p", &directory, "-e", "stderr", "-c", &file], log)
}

/// Starts weir's origin with this many threads, and these further arguments.
pub(super) fn start_origin(
    weir: &Path,
    address: SocketAddr,
    threads: usize,
    more: &[&str],
    log: &Path,
) -> io::Result<Process> {
    let (listen, threads) = (address.to_string(), threads.to_string());
    let words = ["origin", "--listen", &listen, "--threads", &threads];
    Process::start(weir, &[&words[..], more].concat(), log)
}
