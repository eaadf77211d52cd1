//! How a program was started and configured: what others need to measure the same.
//!
//! Filled by `run/rounds.rs` from the processes that run.

use serde::Serialize;

/// How a program was started and configured, in some cells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    /// The contender, or `origin`.
    pub(crate) of: String,
    /// Names of the cells with this configuration. Addresses are those of the first.
    pub(crate) cells: Vec<String>,
    /// The command line of each of its processes.
    pub(crate) commands: Vec<String>,
    /// Its configuration files, whole; where processes differ only in addresses, the file of the
    /// first.
    pub(crate) configurations: Vec<String>,
}

impl Setting {
    /// Whether the other setting differs only in addresses: they are free ports and namespaces of
    /// each start.
    pub(crate) fn is_like(&self, other: &Setting) -> bool {
        let bare =
            |texts: &[String]| texts.iter().map(|text| without_ports(text)).collect::<Vec<_>>();
        self.of == other.of
            && bare(&self.commands) == bare(&other.commands)
            && bare(&self.configurations) == bare(&other.configurations)
    }
}

/// The texts that precede the number of a port, or of the process or descriptor that holds a
/// network namespace.
const BEFORE_PORTS: [&str; 8] = [
    "127.0.0.1:",
    "127.0.0.2:",
    "127.0.0.3:",
    "127.0.0.4:",
    "port=",
    "\"port_value\":",
    "--net=/proc/",
    "/fd/",
];

/// Returns the text without the numbers of ports and such processes.
pub(crate) fn without_ports(text: &str) -> String {
    let mut bare = text.to_owned();
    for before in BEFORE_PORTS {
        let mut parts = bare.split(before);
        let first = parts.next().unwrap_or_default().to_owned();
        let rest = parts.map(|part| {
            format!("{before}*{}", part.trim_start_matches(|letter: char| letter.is_ascii_digit()))
        });
        bare = first + &rest.collect::<String>();
    }
    bare
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(configuration: &str) -> Setting {
        let (of, cells) = ("nginx".to_owned(), vec!["c64".to_owned()]);
        Setting {
            of,
            cells,
            commands: vec!["nginx".to_owned()],
            configurations: vec![configuration.to_owned()],
        }
    }

    #[test]
    fn ports_are_all_that_may_differ() {
        let one =
            setting("listen 127.0.0.1:4001; server 127.0.0.2:80; port=4001 \"port_value\":9,");
        assert!(one.is_like(&setting(
            "listen 127.0.0.1:4002; server 127.0.0.2:65000; port=1 \"port_value\":10,"
        )));
        assert!(!one.is_like(&setting(
            "listen 127.0.0.1:4001; server 127.0.0.2:80; port=4001 \"port_value\":9, keepalive 4;"
        )));
        assert!(!setting("queue-size 1000").is_like(&setting("queue-size 4096")));
        assert_eq!(without_ports("a 127.0.0.1:80 b"), "a 127.0.0.1:* b");
        assert_eq!(
            without_ports("nsenter --net=/proc/4711/ns/net x"),
            "nsenter --net=/proc/*/ns/net x"
        );
        assert_eq!(
            without_ports("nsenter --net=/proc/4711/fd/12 x"),
            "nsenter --net=/proc/*/fd/* x"
        );
    }
}
