//! Opens the files that a configuration names without blocking: a FIFO without a writer would block
//! a thread for good.
//!
//! Called by the readers of certificates, users and lists. Links are followed: Kubernetes and
//! certbot put the files that they write behind some. Files that weir itself writes and trusts
//! later are opened with more care (`weir/src/lasting/own.rs`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Opens a regular file to be read.
///
/// # Errors
/// The operating system's, and the kind of file that is there in place of a regular one.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    check_regular(&file)?;
    Ok(file)
}

/// Checks that a file is a regular one.
///
/// # Errors
/// It is not: the kind of file, and what to do about it.
pub fn check_regular(file: &File) -> io::Result<()> {
    let kind = file.metadata()?.file_type();
    let what = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::other(format!(
        "it is {what}, but weir reads only regular files: name another path"
    )))
}

#[cfg(test)]
mod tests {
    //! Proves: anything but a regular file is rejected at once, even a FIFO without a writer, and a
    //! link to a regular file is accepted. How: a directory of the test.

    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let directory = std::env::temp_dir().join(format!("weir-file-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a directory");
        let [file, link, pipe, dangling] =
            ["file", "link", "pipe", "dangling"].map(|name| directory.join(name));
        std::fs::write(&file, "text").expect("a file");
        symlink(&file, &link).expect("a link");
        symlink(directory.join("nothing"), &dangling).expect("a link");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .expect("a FIFO");
        assert!(open_regular(&file).is_ok() && open_regular(&link).is_ok());
        for (path, what) in
            [(&pipe, "a pipe"), (&directory, "a directory"), (&"/dev/null".into(), "a device")]
        {
            let error = open_regular(path).expect_err(what);
            assert!(error.to_string().contains(what), "{error}");
        }
        assert_eq!(
            open_regular(&dangling).map_err(|error| error.kind()).err(),
            Some(io::ErrorKind::NotFound)
        );
        std::fs::remove_dir_all(&directory).expect("it is there");
    }
}
