//! The file of a snapshot: who may have written it, and how the next one replaces it. Called by the
//! keeper (`snapshot`).
//!
//! A snapshot is written beside the last one, and gets its name when it is complete and on the disk
//! ([`Next`]). Any user that can write the file decides what clients get, so weir uses it only if
//! no other user can.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use weir_cache::{Changed, Flaw, PREFACE_BYTES, Preface, SNAPSHOT_MAGIC};

use crate::lasting::{Next, WARY, own, remove};

/// Longest changes behind the responses, in bytes.
pub(super) const CHANGES_BYTES_MAX: u64 = 4 << 20;

/// Why a file is not used.
#[derive(Debug)]
pub(super) enum Refused {
    /// It does not exist.
    Missing,
    /// The reason, for people.
    Unusable(String),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        if error.kind() == io::ErrorKind::NotFound {
            Refused::Missing
        } else {
            Refused::Unusable(error.to_string())
        }
    }
}

impl From<Flaw> for Refused {
    fn from(flaw: Flaw) -> Refused {
        Refused::Unusable(flaw.to_string())
    }
}

/// Opens a snapshot to read and to extend it.
pub(super) fn open(path: &Path) -> Result<File, Refused> {
    Ok(own::open(path, OpenOptions::new().read(true).write(true))?)
}

/// Reads the beginning of a file.
pub(super) fn preface(file: &mut File) -> Result<Preface, Refused> {
    let mut bytes = [0; PREFACE_BYTES];
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut bytes).map_err(Flaw::from)?;
    Ok(Preface::decode(&bytes)?)
}

/// Reads the later invalidations. Returns them with their number of bytes. The file is then at its
/// end.
pub(super) fn changes(file: &mut File, preface: &Preface) -> Result<(Changed, u64), Refused> {
    let end = file.seek(SeekFrom::End(0))?;
    let behind = end.checked_sub(preface.end).ok_or(Flaw::Cut)?;
    if behind > CHANGES_BYTES_MAX {
        return Err(Refused::Unusable(
            "more responses became invalid since it was written than weir records".to_owned(),
        ));
    }
    file.seek(SeekFrom::Start(preface.end))?;
    let mut bytes = Vec::new();
    file.take(behind).read_to_end(&mut bytes)?;
    Ok((Changed::read(&bytes)?, behind))
}

/// Begins the next snapshot, empty.
pub(super) fn create(path: &Path) -> io::Result<Next> {
    ours(path)?;
    Next::create(path)
}

/// Replaces the last snapshot; durably once the directory is synced.
pub(super) fn take_its_place(next: Next, path: &Path) -> io::Result<()> {
    ours(path)?;
    next.take_its_place()
}

/// Syncs the directory of a file to the disk.
pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// Opens a file to read or write it, if it is one of weir's snapshots or empty. None: it does not
/// exist.
fn opened(path: &Path, options: &mut OpenOptions) -> io::Result<Option<File>> {
    let mut file = match options.read(true).custom_flags(WARY).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let about = file.metadata()?;
    let mut begin = [0; SNAPSHOT_MAGIC.len()];
    let is_snapshot =
        about.len() == 0 || (file.read_exact(&mut begin).is_ok() && begin == *SNAPSHOT_MAGIC);
    if about.is_file() && about.uid() == rustix::process::geteuid().as_raw() && is_snapshot {
        return Ok(Some(file));
    }
    let why = "the file is not a snapshot of this user, so weir does not change it: \
        name another file, or remove it";
    Err(io::Error::other(why))
}

/// Checks that weir may remove or overwrite the file.
fn ours(path: &Path) -> io::Result<()> {
    opened(path, &mut OpenOptions::new()).map(drop)
}

/// Removes the last snapshot, durably even if the machine stops in the next moment. Touches only
/// snapshots.
pub(super) fn remove_last(path: &Path) -> io::Result<()> {
    let Some(file) = opened(path, OpenOptions::new().write(true))? else { return Ok(()) };
    if remove(path).and_then(|()| sync_directory(path)).is_ok() {
        return Ok(());
    }
    // After a crash the name may be back, but the file is empty.
    file.set_len(0)?;
    file.sync_data()
}

/// Returns why weir cannot keep a snapshot at a path, for `weir check`.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let shown = directory.display();
    if !directory.is_dir() {
        return Err(format!("no directory {shown}"));
    }
    let access =
        rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(directory, access)
        .map_err(|error| format!("this user cannot read and write in {shown}: {error}"))?;
    own::misfit(path).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    //! Proves: a file that others may have written is rejected with the reason, and a link is not
    //! followed. How: files in a separate directory.

    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::lasting::tests::Directory;

    #[test]
    fn whom_it_belongs_to() {
        let directory = Directory::new("snapshot");
        let path = directory.path("cache");
        let why = |path: &Path| match open(path) {
            Ok(_) => String::new(),
            Err(Refused::Missing) => "missing".to_owned(),
            Err(Refused::Unusable(why)) => why,
        };
        assert_eq!(why(&path), "missing");
        let next = create(&path).unwrap();
        assert_eq!(why(&path), "missing", "it is not whole yet");
        take_its_place(next, &path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(why(&path), "");
        assert!(matches!(
            preface(&mut open(&path).unwrap()),
            Err(Refused::Unusable(why)) if why.contains("ends too early")
        ));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o620)).unwrap();
        assert!(why(&path).starts_with("others may write it (mode 620)"), "{}", why(&path));
        let link = directory.path("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(why(&link).contains("symbolic link"), "{}", why(&link));
        let itself = directory.path("");
        assert_eq!(
            why(&itself),
            std::io::Error::from_raw_os_error(21).to_string(),
            "a directory is not written"
        );
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            assert!(why(&path).starts_with("it belongs to user 65534"), "{}", why(&path));
        }
        assert_eq!(check(&path), Ok(()));
        let other = directory.path("weir.kdl");
        std::fs::write(&other, "listen \":80\"").unwrap();
        assert!(create(&other).unwrap_err().to_string().contains("does not change it"));
        assert!(
            take_its_place(create(&directory.path("new")).unwrap(), &other).is_err()
                && remove_last(&other).is_err()
        );
        assert_eq!(std::fs::read(&other).unwrap(), b"listen \":80\"");
        std::fs::write(&other, [&SNAPSHOT_MAGIC[..], b"of another version"].concat()).unwrap();
        remove_last(&other).unwrap();
        assert!(!other.exists());
        remove_last(&other).unwrap();
        assert!(check(Path::new("/nowhere/cache")).unwrap_err().contains("no directory /nowhere"));
    }
}
