//! A file of lines that keeps something over a restart: read line by line, and written as a whole
//! beside the old version, which it then replaces ([`Next`]). Used by the owners of such files
//! (`bans`, `verdicts`).
//!
//! Bound: set by the caller; an unreadable line is left out and reported by its number.

use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;

use super::{Next, own};

/// Unreadable lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) count: u64,
    /// The number of the first.
    pub(crate) first: u64,
}

/// Reads a file line by line, up to this many bytes. `each` returns whether it can read a line. A
/// missing file has no lines; a file that another user may have written is an error.
///
/// # Errors
/// The operating system's, or why the file is not trusted.
pub(crate) fn read(
    path: &Path,
    bytes_max: u64,
    mut each: impl FnMut(&[u8]) -> bool,
) -> io::Result<Broken> {
    let mut broken = Broken::default();
    let mut file = match own::open(path, OpenOptions::new().read(true)) {
        Ok(file) => BufReader::new(file.take(bytes_max)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(broken),
        Err(error) => return Err(error),
    };
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if file.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if !each(line.trim_ascii_end()) && line != b"\n" {
            broken.count += 1;
            broken.first = if broken.count == 1 { number } else { broken.first };
        }
    }
    Ok(broken)
}

/// Replaces the file with a text: writes parts until one is empty.
///
/// # Errors
/// The operating system's: the old file is still in place.
pub(crate) fn write(path: &Path, mut parts: impl FnMut(&mut Vec<u8>)) -> io::Result<()> {
    let next = Next::create(path)?;
    let mut text = Vec::new();
    loop {
        text.clear();
        parts(&mut text);
        if text.is_empty() {
            break;
        }
        next.file().write_all(&text)?;
    }
    next.file().sync_data()?;
    next.take_its_place()
}
