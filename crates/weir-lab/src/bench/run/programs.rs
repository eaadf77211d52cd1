//! Where the programs of contenders are: where users say, in the path, or where Debian has servers.
//!
//! Called by everything that starts one of them or reads its version.

use std::path::{Path, PathBuf};

/// Where to look.
#[derive(Debug, Clone)]
pub(crate) struct Programs(Vec<(String, PathBuf)>);

impl Programs {
    /// With those that users gave by path.
    pub(crate) fn new(given: &[(String, PathBuf)]) -> Programs {
        Programs(given.to_vec())
    }

    /// Where a program is; None: it is not installed.
    pub(crate) fn path(&self, name: &str) -> Option<PathBuf> {
        if let Some(given) = self.given(name) {
            return Some(given.to_owned());
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directories = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
        directories.map(|directory| directory.join(name)).find(|file| file.is_file())
    }

    /// Returns where users said that it is.
    pub(crate) fn given(&self, name: &str) -> Option<&Path> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, path)| path.as_path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_say_goes_before_what_is_installed() {
        let programs = Programs::new(&[("sh".to_owned(), PathBuf::from("/opt/sh"))]);
        assert_eq!(programs.path("sh"), Some(PathBuf::from("/opt/sh")));
        assert!(Programs::new(&[]).path("sh").unwrap().ends_with("sh"));
        assert_eq!(programs.path("no-such-program"), None);
        assert_eq!(
            (programs.given("sh"), programs.given("true")),
            (Some(Path::new("/opt/sh")), None)
        );
    }
}
