//! Opens files that weir has written and later trusts: any other user that can write them could
//! speak in weir's name.
//!
//! Used by the owners of files (`bans`, `snapshot`). It follows no link, never waits, and checks
//! the opened file, not the name.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::WARY;

/// Opens a file if no other user can have written it.
///
/// # Errors
/// The operating system's, `NotFound` among them; or why the file is not trusted, with a remedy.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file =
        options.custom_flags(WARY).open(path).map_err(|error| match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => io::Error::other(
                "it is a symbolic link, which weir does not follow: name the file itself",
            ),
            // A FIFO without a reader, opened for writing, or a socket.
            Some(code) if code == rustix::io::Errno::NXIO.raw_os_error() => {
                io::Error::other("it is not a regular file")
            }
            _ => error,
        })?;
    weir_io::check_regular(&file)?;
    judge(&file.metadata()?, rustix::process::geteuid().as_raw()).map_err(io::Error::other)?;
    Ok(file)
}

/// Returns why this user does not trust a file.
fn judge(about: &Metadata, us: u32) -> Result<(), String> {
    let owner = about.uid();
    if owner != us && owner != 0 {
        return Err(format!(
            "it belongs to user {owner}, but weir runs as user {us}: a user that can write it \
                decides for weir; run `chown {us}` if it is weir's, or remove it"
        ));
    }
    if about.mode() & 0o022 != 0 {
        return Err(format!(
            "others may write it (mode {:o}): run `chmod 600` if no other user has written it",
            about.mode() & 0o777
        ));
    }
    Ok(())
}

/// Returns why the file that is at a path now would not be trusted, for any owner; None: it would
/// be, or is missing.
pub(crate) fn misfit(path: &Path) -> Option<String> {
    let about = std::fs::symlink_metadata(path).ok()?;
    if about.is_symlink() {
        return Some(format!("{} is a symbolic link, which weir does not follow", path.display()));
    }
    if !about.is_file() {
        return Some(format!("{} is not a regular file", path.display()));
    }
    judge(&about, about.uid()).err().map(|why| format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    //! Proves: only a regular file that no other user can have written is opened, without waiting.
    //! How: a separate directory.

    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;
    use crate::lasting::tests::Directory;

    #[test]
    fn what_others_may_have_written_is_refused() {
        let directory = Directory::new("own");
        let file = directory.path("file");
        let why = |path: &Path, writes: bool| {
            let opened = open(path, OpenOptions::new().read(true).write(writes));
            opened.err().map_or_else(String::new, |error| error.to_string())
        };
        assert_eq!(
            open(&file, OpenOptions::new().read(true)).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        std::fs::write(&file, "mine").unwrap();
        let mode =
            |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        for good in [0o600, 0o640, 0o644, 0o444] {
            mode(good);
            assert_eq!((why(&file, false), misfit(&file)), (String::new(), None), "{good:o}");
        }
        for bad in [0o620, 0o602, 0o666] {
            mode(bad);
            assert!(
                why(&file, false).contains(&format!("others may write it (mode {bad:o})")),
                "{bad:o}"
            );
            assert!(
                misfit(&file).is_some_and(|why| why.contains("others may write it")),
                "{bad:o}"
            );
        }
        mode(0o600);
        let [link, pipe] = ["link", "pipe"].map(|name| directory.path(name));
        symlink(&file, &link).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        for writes in [false, true] {
            assert!(why(&link, writes).contains("symbolic link"), "{}", why(&link, writes));
            assert!(why(&pipe, writes).contains("it is a pipe"), "{}", why(&pipe, writes));
        }
        assert!(why(Path::new("/dev/null"), false).contains("it is a device"));
        assert!([link, pipe].iter().all(|path| misfit(path).is_some()));
        if rustix::process::geteuid().is_root() {
            chown(&file, Some(65_534), None).unwrap();
            assert!(
                why(&file, false).starts_with("it belongs to user 65534, but weir runs as user 0")
            );
        }
    }

    #[test]
    fn root_is_believed_by_everybody() {
        let directory = Directory::new("own-root");
        let file = directory.path("file");
        std::fs::write(&file, "").unwrap();
        let about = std::fs::metadata(&file).unwrap();
        let (owner, other) = (about.uid(), about.uid() + 1);
        assert_eq!(judge(&about, owner), Ok(()));
        assert_eq!(judge(&about, other).is_ok(), owner == 0);
    }
}
