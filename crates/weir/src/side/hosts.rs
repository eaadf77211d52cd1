//! The table of the system: `/etc/hosts` (hosts(5)). weir does not query name servers for a name in
//! it, for neither kind of address. Called by `names` for each unknown name, and by `discovery`.
//!
//! Bounds: the first [`BYTES_MAX`] of the file; it is read again when it has changed, checked once
//! in [`LOOK_EVERY`].

use std::collections::HashMap;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::stamp::Stamp;

/// Its path.
pub(crate) const HOSTS: &str = "/etc/hosts";
/// Bytes of the file that are read.
const BYTES_MAX: u64 = 4 << 20;
/// How often the file is checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Names and addresses of a file.
#[derive(Debug)]
pub(crate) struct Hosts {
    path: PathBuf,
    stamp: Option<Stamp>,
    looked: Option<Instant>,
    /// By name in lower case, in the order of the file.
    table: HashMap<Box<str>, Vec<IpAddr>>,
}

impl Hosts {
    /// For a file that may be missing.
    pub(crate) fn new(path: &str) -> Hosts {
        Hosts { path: path.into(), stamp: None, looked: None, table: HashMap::new() }
    }

    /// Returns the addresses of a name (lower case), if it is in the file.
    pub(crate) fn find(&mut self, name: &str, now: Instant) -> Option<&[IpAddr]> {
        if self.looked.is_none_or(|looked| now.duration_since(looked) >= LOOK_EVERY) {
            self.looked = Some(now);
            self.look();
        }
        self.table.get(name).map(Vec::as_slice)
    }

    fn look(&mut self) {
        // An unreadable file has no names.
        let stamp = Stamp::at(&self.path).ok();
        if stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        let mut bytes = Vec::new();
        let read = weir_io::open_regular(&self.path)
            .and_then(|file| file.take(BYTES_MAX).read_to_end(&mut bytes));
        self.table =
            if read.is_ok() { parse(&String::from_utf8_lossy(&bytes)) } else { HashMap::new() };
    }
}

/// Parses lines `address name ...`; other lines are ignored.
fn parse(text: &str) -> HashMap<Box<str>, Vec<IpAddr>> {
    let mut table: HashMap<Box<str>, Vec<IpAddr>> = HashMap::new();
    for line in text.lines() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else {
            continue;
        };
        for name in words {
            let list =
                table.entry(name.trim_end_matches('.').to_ascii_lowercase().into()).or_default();
            if !list.contains(&address.to_canonical()) {
                list.push(address.to_canonical());
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    //! Proves: the format of hosts(5) is parsed, and a changed file is read again. How: a table as
    //! text, and a real file.

    use super::*;

    #[test]
    fn names_have_the_addresses_of_all_their_lines() {
        let table = parse(
            "127.0.0.1 localhost Me # not\n::1\tlocalhost\n\n# 9.9.9.9 no\nbad name\n10.0.0.1 db.\n\
                10.0.0.1 db\n",
        );
        let of = |name: &str| {
            table.get(name).map(|list| list.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(of("localhost").unwrap(), ["127.0.0.1", "::1"]);
        assert_eq!(of("me").unwrap(), ["127.0.0.1"]);
        assert_eq!(of("db").unwrap(), ["10.0.0.1"]);
        assert_eq!((of("not"), of("no"), of("name")), (None, None, None));
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let path = std::env::temp_dir().join(format!("weir-hosts-{}", std::process::id()));
        std::fs::write(&path, "10.0.0.1 db\n").unwrap();
        let mut hosts = Hosts::new(path.to_str().unwrap());
        let start = Instant::now();
        assert_eq!(hosts.find("db", start).map(<[IpAddr]>::len), Some(1));
        std::fs::write(&path, "10.0.0.1 db\n10.0.0.2 db\n").unwrap();
        assert_eq!(hosts.find("db", start).map(<[IpAddr]>::len), Some(1), "looked at too often");
        assert_eq!(hosts.find("db", start + LOOK_EVERY).map(<[IpAddr]>::len), Some(2));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(hosts.find("db", start + LOOK_EVERY * 2), None);
    }
}
