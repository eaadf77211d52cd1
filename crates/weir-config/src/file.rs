//! Finds and reads configuration files. Called by the command line. Bounds: [`FILE_BYTES_MAX`],
//! [`LIST_BYTES_MAX`].

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::problem::{Errors, Problem};
use crate::{Config, Experts, parse_with};

/// Largest configuration that is read.
pub const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Largest file that a configuration names: some millions of names.
pub const LIST_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// `O_NONBLOCK` of Linux, as on all processors that weir runs on.
const NONBLOCK: i32 = 0o4000;

/// How long the writer of a configuration on a pipe may take.
const PIPE_MAX: Duration = Duration::from_secs(10);

/// How often the pipe is polled.
const PIPE_EVERY: Duration = Duration::from_millis(10);

/// The paths that are tried when neither `-c` nor `$WEIR_CONFIG` names a configuration.
const PLACES: [&str; 2] = ["weir.kdl", "/etc/weir/weir.kdl"];

/// Returns the configuration file: the argument, else `$WEIR_CONFIG`, else ./weir.kdl, else
/// /etc/weir/weir.kdl.
///
/// # Errors
/// The user's fault: no file was named and none exists.
pub fn find_path(argument: Option<&Path>) -> Result<PathBuf, Errors> {
    let variable =
        std::env::var_os("WEIR_CONFIG").filter(|value| !value.is_empty()).map(PathBuf::from);
    let named = argument.map(Path::to_path_buf).or(variable);
    let existing = || PLACES.iter().map(PathBuf::from).find(|path| path.exists());
    named.or_else(existing).ok_or_else(|| {
        let places = PLACES.map(|place| format!("`{place}`")).join(", ");
        let message = format!("no configuration: none of {places} exists");
        let help =
            "name a file with -c FILE or $WEIR_CONFIG, or run `weir reverse --listen ADDRESS:PORT \
                --to HOST:PORT`";
        Errors::new("weir", "", vec![Problem::of_file("no-file", message).help(help)])
    })
}

/// Reads and checks a file; one that ends in `.json` is JSON.
///
/// # Errors
/// The user's fault: an unreadable file, or everything that is wrong in it.
pub fn load(path: &Path, experts: Experts<'_>) -> Result<Config, Errors> {
    let name = path.display().to_string();
    let text = read(path).map_err(|problem| Errors::new(&name, "", vec![*problem]))?;
    match String::from_utf8(text) {
        Ok(text) => parse_with(&text, &name, experts),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            let problem = Problem::new("syntax", &(at..at + 1), "this is not UTF-8 text");
            Err(Errors::new(&name, &text, vec![problem]))
        }
    }
}

/// Reads a file that a configuration names.
///
/// # Errors
/// The user's fault: it cannot be read, or is larger than [`LIST_BYTES_MAX`].
pub(crate) fn read_list(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = read_up_to(path, LIST_BYTES_MAX)?;
    if bytes.len() as u64 > LIST_BYTES_MAX {
        return Err(io::Error::other(format!("it is larger than {LIST_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

/// Reads a regular file, which is opened without waiting. One byte beyond the limit shows that
/// there is more.
pub(crate) fn read_up_to(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return Err(io::Error::other(
            "it is a pipe, a socket or a device, and weir reads regular files only",
        ));
    }
    let mut bytes = Vec::new();
    // Reading a directory fails with an error of the operating system.
    file.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Otherwise a FIFO without a writer would block.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path)
}

/// Reads the configuration itself, which may come through a pipe: its writer has at most
/// [`PIPE_MAX`].
fn read_any(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    if file.metadata()?.file_type().is_file() {
        return read_up_to(path, limit);
    }
    let (mut file, mut bytes, begun) = (file.take(limit + 1), Vec::new(), Instant::now());
    loop {
        match file.read_to_end(&mut bytes) {
            Ok(_) if bytes.is_empty() => {
                return Err(io::Error::other("no program writes to this pipe or device"));
            }
            Ok(_) => return Ok(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock && begun.elapsed() < PIPE_MAX => {
                std::thread::sleep(PIPE_EVERY);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let why = format!(
                    "the writer of this pipe did not finish within {} s",
                    PIPE_MAX.as_secs()
                );
                return Err(io::Error::new(ErrorKind::TimedOut, why));
            }
            Err(error) => return Err(error),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Box<Problem>> {
    let unreadable = |error: io::Error| {
        Box::new(Problem::of_file("unreadable", format!("can't be read: {error}")))
    };
    let bytes = read_any(path, FILE_BYTES_MAX).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let problem =
            Problem::of_file("too-large", format!("is larger than {FILE_BYTES_MAX} bytes"));
        return Err(Box::new(problem));
    }
    Ok(bytes)
}
