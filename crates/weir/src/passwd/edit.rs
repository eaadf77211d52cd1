//! Changes a file of users: its text, and the file as a whole, so that readers see either the old
//! or the new version. Called by `passwd`.
//!
//! The new file is written beside the old one and renamed over it; owner and mode remain. Several
//! writers at once wait for each other (a lock on the directory). Lines that are not changed remain
//! as they are, including comments.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Gid, Mode, Uid, fchmod, fchown, flock};

use crate::failure::Failure;

/// Mode of a new file.
const MODE: u32 = 0o600;

/// Returns the hash of a user in a text.
pub(super) fn hash_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim_end)
}

fn is_of(line: &str, name: &str) -> bool {
    line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'))
}

/// Returns the text with this hash of a user: in place of its first line, or at the end.
pub(super) fn with(text: &str, name: &str, hash: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut is_there = false;
    for line in text.lines() {
        if !is_of(line, name) {
            lines.push(line.to_owned());
        } else if !std::mem::replace(&mut is_there, true) {
            lines.push(format!("{name}:{hash}"));
        }
    }
    if !is_there {
        lines.push(format!("{name}:{hash}"));
    }
    lines.join("\n") + "\n"
}

/// Returns the text without a user; None: the user is not in it.
pub(super) fn without(text: &str, name: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().filter(|line| !is_of(line, name)).collect();
    let is_there = lines.len() < text.lines().count();
    is_there.then(|| lines.iter().map(|line| format!("{line}\n")).collect())
}

/// Returns the text of a file.
///
/// # Errors
/// It cannot be read.
pub(super) fn read(path: &Path) -> Result<String, Failure> {
    weir_io::open_regular(path)
        .and_then(io::read_to_string)
        .map_err(|error| failed("read", path, &error))
}

/// Changes a file, or makes it if `may_make`. False: there is nothing to change.
///
/// # Errors
/// It cannot be read or written; then it is unchanged.
pub(super) fn change(
    path: &Path,
    may_make: bool,
    how: impl FnOnce(&str) -> Option<String>,
) -> Result<bool, Failure> {
    // A link remains a link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let lock = File::open(&folder).map_err(|error| failed("open", &folder, &error))?;
    flock(&lock, FlockOperation::LockExclusive)
        .map_err(|error| failed("lock", &folder, &error.into()))?;
    let before = match fs::metadata(&path) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound && may_make => None,
        Err(error) => return Err(failed("read", &path, &error)),
    };
    let text = if before.is_some() { read(&path)? } else { String::new() };
    let Some(text) = how(&text) else { return Ok(false) };
    replace(&path, &folder, before.as_ref(), text.as_bytes())
        .map_err(|error| failed("write", &path, &error))?;
    lock.sync_all().map_err(|error| failed("write", &folder, &error))?;
    Ok(true)
}

fn replace(
    path: &Path,
    folder: &Path,
    before: Option<&fs::Metadata>,
    bytes: &[u8],
) -> io::Result<()> {
    let name =
        path.file_name().ok_or_else(|| io::Error::other("it has no name"))?.to_string_lossy();
    let beside = folder.join(format!(".{name}.{}.new", std::process::id()));
    // A program with the same process id was killed here: the folder is locked, so nobody writes
    // it.
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&beside)?;
    let written = (|| {
        if let Some(before) = before {
            let (owner, group) = (Uid::from_raw(before.uid()), Gid::from_raw(before.gid()));
            let is_other = file
                .metadata()
                .is_ok_and(|now| (now.uid(), now.gid()) != (before.uid(), before.gid()));
            if is_other {
                fchown(&file, Some(owner), Some(group)).map_err(|_| {
                    io::Error::other(format!(
                        "it belongs to user {}, and only root can preserve that; run this as \
                            that user",
                        before.uid()
                    ))
                })?;
            }
            fchmod(&file, Mode::from_raw_mode(before.mode() & 0o7777))?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    })();
    if written.is_err() {
        // The file is useless then, whether or not it can be removed.
        let _ = fs::remove_file(&beside);
    }
    written
}

fn failed(verb: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::Running(format!("weir: cannot {verb} {}: {error}\n", path.display()))
}

#[cfg(test)]
mod tests {
    //! Proves: only the lines of one user change. How: texts.

    use super::*;

    const TEXT: &str = "# users\n\nann:1\nanna:2\n  # odd: line\nann:3\nbob:4";

    #[test]
    fn a_user_is_replaced_where_he_stood() {
        assert_eq!(with(TEXT, "ann", "9"), "# users\n\nann:9\nanna:2\n  # odd: line\nbob:4\n");
        assert_eq!(with(TEXT, "eve", "9"), format!("{TEXT}\neve:9\n"));
        assert_eq!(with("", "eve", "9"), "eve:9\n");
    }

    #[test]
    fn a_file_that_a_killed_program_left_is_no_obstacle() {
        let folder = std::env::temp_dir().join(format!("weir-edit-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (path, beside) =
            (folder.join("users"), folder.join(format!(".users.{}.new", std::process::id())));
        fs::write(&path, TEXT).unwrap();
        fs::write(&beside, "half").unwrap();
        assert!(change(&path, false, |text| without(text, "ann")).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), without(TEXT, "ann").unwrap());
        assert!(!beside.exists());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_user_is_deleted() {
        assert_eq!(without(TEXT, "ann").unwrap(), "# users\n\nanna:2\n  # odd: line\nbob:4\n");
        assert_eq!(without("ann:1\n", "ann").unwrap(), "");
        assert_eq!(without(TEXT, "an"), None);
        assert_eq!(without("", "ann"), None);
    }

    #[test]
    fn a_user_is_found_by_his_whole_name() {
        assert_eq!(
            (hash_of(TEXT, "ann"), hash_of(TEXT, "bob"), hash_of(TEXT, "an")),
            (Some("1"), Some("4"), None)
        );
        assert_eq!(hash_of("a:b\r\n", "a"), Some("b"));
    }
}
