//! Lists of servers in files (`servers-from`): read again when they have changed. Called by
//! [`super`] at each check.
//!
//! A bad list changes nothing. weir reports it if it is still bad at the next check, because its
//! writer may be half done; a list that is bad from the beginning is reported at once. Bound: each
//! check reads the metadata of each file, and up to [`LIST_BYTES_MAX`] of a changed one.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use weir_config::parse_servers;
use weir_proxy::plan::ServerPlan;

use crate::log::{Event, Line};
use crate::side::stamp::Stamp;

/// Largest file, in bytes: some thousands of servers, and weir has hardly room for more.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// The state of a file, for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListShown {
    pub(crate) file: String,
    /// Servers of it in use, as written.
    pub(crate) servers: usize,
    /// Why the present file is not used.
    pub(crate) problem: Option<String>,
}

#[derive(Debug, Default)]
struct List {
    /// Of the version read last; None: none was read, or the file is missing.
    stamp: Option<Stamp>,
    servers: Vec<ServerPlan>,
    problem: Option<String>,
    is_told: bool,
    is_read: bool,
}

/// All wanted files.
#[derive(Debug, Default)]
pub(super) struct Lists {
    lists: BTreeMap<PathBuf, List>,
}

impl Lists {
    /// Sets the wanted files.
    pub(super) fn want(&mut self, files: BTreeSet<PathBuf>) {
        self.lists.retain(|path, _| files.contains(path));
        files.into_iter().for_each(|path| _ = self.lists.entry(path).or_default());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Reads changed files.
    pub(super) fn look(&mut self) -> Vec<Line> {
        self.lists.iter_mut().filter_map(|(path, list)| list.look(path)).collect()
    }

    /// Returns the servers in use.
    pub(super) fn known(&self) -> BTreeMap<PathBuf, Vec<ServerPlan>> {
        self.lists.iter().map(|(path, list)| (path.clone(), list.servers.clone())).collect()
    }

    /// Returns the names among them.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let servers = self.lists.values().flat_map(|list| &list.servers);
        servers.filter(|server| server.is_name()).map(|server| server.written.as_str())
    }

    /// Returns the state of all files.
    pub(super) fn shown(&self) -> Vec<ListShown> {
        let of = |(path, list): (&PathBuf, &List)| ListShown {
            file: path.display().to_string(),
            servers: list.servers.len(),
            problem: list.problem.clone(),
        };
        self.lists.iter().map(of).collect()
    }
}

impl List {
    fn look(&mut self, path: &Path) -> Option<Line> {
        let stamp = Stamp::at(path).ok();
        let (is_first, is_same) = (!self.is_read, stamp.is_some() && stamp == self.stamp);
        if !is_same {
            // A write during the read changes the stamp, so the file is read again.
            (self.stamp, self.is_read) = (stamp, true);
            match read(path) {
                Ok(servers) => {
                    let was_told = std::mem::take(&mut self.is_told);
                    (self.servers, self.problem) = (servers, None);
                    let line = Event::ListRead.says("reread the list of servers");
                    let line = line.with("file", path.display());
                    let line = line.with("servers", self.servers.len());
                    return (was_told || !is_first).then_some(line);
                }
                Err(why) => {
                    let is_new = self.problem.replace(why).is_none();
                    if is_new && !is_first {
                        return None;
                    }
                }
            }
        }
        let problem = self.problem.as_ref().filter(|_| !self.is_told)?;
        self.is_told = true;
        let line = Event::ListFailed
            .says(format_args!("{problem}; the servers read before remain in use"));
        Some(line.with("file", path.display()))
    }
}

fn read(path: &Path) -> Result<Vec<ServerPlan>, String> {
    let name = path.display().to_string();
    let mut bytes = Vec::new();
    let done = weir_io::open_regular(path)
        .and_then(|file| file.take(LIST_BYTES_MAX + 1).read_to_end(&mut bytes));
    let done = match done {
        Ok(size) if size as u64 > LIST_BYTES_MAX => {
            Err(io::Error::other(format!("more than {LIST_BYTES_MAX} bytes")))
        }
        done => done,
    };
    done.map_err(|error| format!("cannot read {name}: {error}"))?;
    parse_servers(&bytes, &name).map_err(|errors| {
        let text = errors.to_string();
        text.lines().next().unwrap_or_default().to_owned()
    })
}

#[cfg(test)]
mod tests {
    //! Proves: a list is in use until another good one replaces it, and an error is reported once,
    //! not during a write. How: a real file.

    use super::*;

    #[test]
    fn a_list_is_in_use_until_there_is_another() {
        let path = std::env::temp_dir().join(format!("weir-lists-{}.kdl", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut lists = Lists::default();
        lists.want([path.clone()].into());
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        let is =
            |news: &[Line], name: &str| news.len() == 1 && news[0].to_string().starts_with(name);
        let lost = |news: Vec<Line>| is(&news, "list-failed: ");
        let back = |news: Vec<Line>| is(&news, "list-read: ");
        assert!(lost(lists.look()), "there is none");
        assert_eq!(lists.look(), []);
        write("server \"10.0.0.1:80\"; server \"a.test:80\"");
        assert!(back(lists.look()));
        assert_eq!(
            (lists.known()[&path].len(), lists.names().collect::<Vec<_>>()),
            (2, vec!["a.test:80"])
        );
        assert_eq!(lists.look(), []);
        write("server \"10.0.0.1:80\"; server \"a.te");
        assert_eq!(lists.look(), [], "somebody may be writing");
        assert!(lists.shown()[0].problem.is_some());
        assert!(lost(lists.look()), "nobody is");
        assert_eq!((lists.look(), lists.known()[&path].len()), (vec![], 2));
        write("server \"10.0.0.1:800\"");
        assert!(back(lists.look()));
        assert_eq!((lists.known()[&path].len(), &lists.shown()[0].problem), (1, &None));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(lists.look(), []);
        assert!(lost(lists.look()));
        assert_eq!((lists.look(), lists.known()[&path].len()), (vec![], 1));
        lists.want(BTreeSet::new());
        assert!(lists.is_empty());
    }
}
