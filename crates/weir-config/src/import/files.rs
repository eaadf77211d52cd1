//! Files that a configuration includes: their paths and contents. The only place of an import that
//! accesses the system.
//!
//! Bound: [`MATCHES_MAX`] files of one pattern.

use std::io;
use std::path::{Component, Path, PathBuf};

use crate::FILE_BYTES_MAX;
use crate::file::read_up_to;

/// Files that one pattern may match.
const MATCHES_MAX: usize = 1000;

/// Reads a file, at most one byte more than is allowed.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_up_to(path, FILE_BYTES_MAX)
}

/// Returns the files that match a path with `*` and `?`, sorted. A path without these characters is
/// returned as it is, whether the file exists or not.
pub(super) fn matching(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![PathBuf::new()];
    for part in pattern.components() {
        let name = part.as_os_str().to_string_lossy();
        if !matches!(part, Component::Normal(_)) || !name.contains(['*', '?']) {
            found.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        let mut next = Vec::new();
        for folder in &found {
            let Ok(entries) = std::fs::read_dir(folder) else { continue };
            for entry in entries {
                let entry = entry?;
                let other = entry.file_name();
                let other = other.to_string_lossy();
                // As in glob(7), only a dot matches a leading dot.
                if (!other.starts_with('.') || name.starts_with('.')) && fits(&name, &other) {
                    next.push(entry.path());
                }
                if next.len() > MATCHES_MAX {
                    return Err(io::Error::other(format!("more than {MATCHES_MAX} files")));
                }
            }
        }
        found = next;
    }
    found.sort();
    Ok(found)
}

/// Whether a name fits a pattern. Backtracks to the last `*` only, which is enough: time is the
/// product of the lengths.
fn fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match &mut star {
                Some((at, from)) => {
                    *from += 1;
                    (p, n) = (*at + 1, *from);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_names() {
        for (pattern, name) in
            [("*.conf", "a.conf"), ("*", "a"), ("a?c*", "abc"), ("*a*b", "xaxxab"), ("", "")]
        {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("*.conf", "a.conf~"), ("?", ""), ("a*b", "ac"), ("*a*b", "b"), ("", "a")]
        {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }
}
