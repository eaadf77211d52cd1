//! The log: lines of a running weir on standard error. Each begins with an event, which has a
//! stable name; a sentence follows, and facts as `key=value`. docs/log-events.md lists all events.

use std::fmt::{self, Display, Write as _};
use std::io;
use std::sync::OnceLock;

use jiff::Timestamp;
use weir_worker::LogTrouble;

use crate::terminal::print_error;

/// How urgent a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Info,
    Warning,
    Error,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }

    /// Its number for the journal (sd-daemon(3)).
    fn number(self) -> u8 {
        match self {
            Level::Info => 6,
            Level::Warning => 4,
            Level::Error => 3,
        }
    }
}

/// Declares the events: variant, name, level, keys of the facts, and the help for the reference.
macro_rules! events {
    (
        $(
            $(#[doc = $help:literal])+
            $event:ident = $name:literal $level:ident [$($key:literal),*];
        )+
    ) => {
        /// What a line reports.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Event {
            $($(#[doc = $help])+ $event,)+
        }

        impl Event {
            /// Returns its name, which stays the same from version to version.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Event::$event => $name,)+ }
            }

            fn level(self) -> Level {
                match self { $(Event::$event => Level::$level,)+ }
            }

            /// Returns the keys of the facts that a line of it may have.
            fn keys(self) -> &'static [&'static str] {
                match self { $(Event::$event => &[$($key),*],)+ }
            }
        }

        /// All events, with the help of each.
        #[cfg(test)]
        const ALL: &[(Event, &str)] = &[$((Event::$event, concat!($($help),+).trim_ascii()),)+];
    };
}

events! {
    /// weir is ready to accept clients.
    Started = "started" Info ["workers"];
    /// weir advises a change of the configuration that it has read.
    ConfigurationWarning = "configuration-warning" Warning [];
    /// weir advises a change of how it is started.
    Advice = "advice" Warning [];
    /// weir runs without the admin socket and metrics.
    AdminUnavailable = "admin-unavailable" Warning ["error"];
    /// A port is in use, and weir tries to bind it again for some seconds.
    BindRetry = "bind-retry" Warning ["seconds"];
    /// The unix socket of a listener does not have the configured rights.
    SocketRights = "socket-rights" Warning ["error"];
    /// weir does not use a socket that the service manager has opened.
    SocketUnused = "socket-unused" Warning ["listen"];
    /// Some workers cannot accept clients on a new listener.
    ListenerIncomplete = "listener-incomplete" Warning ["error"];
    /// `user` cannot read a file that weir has read as root.
    FileUnreadable = "file-unreadable" Warning ["user", "file"];
    /// `user` cannot create a new access log after a rotation.
    FolderUnwritable = "folder-unwritable" Warning ["user", "folder"];

    /// A new configuration is in force; a line `configuration-change` follows for each change.
    Reloaded = "reloaded" Info ["changes"];
    /// One difference between the previous configuration and the one in force.
    ConfigurationChange = "configuration-change" Info [];
    /// A reload failed; a line `reload-error` follows for each error.
    ReloadFailed = "reload-failed" Warning [];
    /// One line of the report on a reload that failed.
    ReloadError = "reload-error" Warning [];
    /// weir found servers that it cannot use; lines `reload-error` follow.
    ServersNotInForce = "servers-not-in-force" Warning [];
    /// weir does not carry out what a signal asks for.
    SignalIgnored = "signal-ignored" Warning ["signal"];
    /// The new program of an upgrade accepts clients, and the old one finishes its work.
    Upgraded = "upgraded" Info ["pid", "clients"];
    /// The old program has handed its listeners over.
    TookOver = "took-over" Info ["pid"];
    /// An upgrade failed; a line `upgrade-error` follows for each error.
    UpgradeFailed = "upgrade-failed" Warning [];
    /// One line of the report on an upgrade that failed.
    UpgradeError = "upgrade-error" Warning [];
    /// A server that an operator added to the old program is not in the new one.
    OrderLost = "order-lost" Warning [];

    /// weir ends; it is no longer ready, or no longer waits for new clients.
    ShuttingDown = "shutting-down" Info ["seconds"];
    /// weir accepts no new clients and waits for those that are connected.
    Draining = "draining" Info ["seconds", "clients"];
    /// The time to drain is over, and weir closes connections that are still open.
    DrainTimeout = "drain-timeout" Warning ["seconds", "clients"];
    /// The old program of an upgrade closes all clients except tunnels.
    TunnelsOnly = "tunnels-only" Info ["seconds"];
    /// weir has ended after all clients were served.
    Drained = "drained" Info ["seconds"];

    /// A worker panicked and serves again.
    WorkerRestarted = "worker-restarted" Error ["worker"];
    /// A worker makes no progress.
    WorkerSlow = "worker-slow" Error ["worker"];
    /// A worker is stuck, and weir aborts.
    WorkerStuck = "worker-stuck" Error ["worker"];
    /// A worker ended unexpectedly, and weir ends.
    WorkerEnded = "worker-ended" Error [];
    /// Other programs use the core of a worker.
    CoreBusy = "core-busy" Warning ["worker", "core"];
    /// Clients wait to be accepted because descriptors are scarce.
    DescriptorsScarce = "descriptors-scarce" Warning ["held-back"];

    /// weir sends a server nothing new until it has shown that it works.
    ServerSuspended = "server-suspended" Warning ["upstream", "server"];
    /// A suspended server works again.
    ServerRecovered = "server-recovered" Info ["upstream", "server"];
    /// An operator enabled a server.
    ServerEnabled = "server-enabled" Info ["upstream", "server"];
    /// An operator drains a server.
    ServerDraining = "server-draining" Info ["upstream", "server"];
    /// An operator disabled a server.
    ServerDisabled = "server-disabled" Info ["upstream", "server"];
    /// weir has no connection to a server and cannot make one.
    ServerUnreachable = "server-unreachable" Warning ["upstream", "server"];
    /// A server accepts connections again.
    ServerReachable = "server-reachable" Info ["upstream", "server"];
    /// weir sends a server one request at a time after a doubt.
    ServerDoubted = "server-doubted" Warning ["upstream", "server"];
    /// A server is not pipelined until an operator clears it.
    ServerUnfit = "server-unfit" Warning ["upstream", "server"];
    /// A server sent a response that no request asked for.
    ServerSurplus = "server-surplus" Warning ["upstream", "server"];
    /// An operator changed the weight of a server.
    ServerWeight = "server-weight" Info ["upstream", "server", "weight"];
    /// Requests wait because all connections to a server are in use.
    ConnectionsScarce = "connections-scarce" Warning
        ["upstream", "server", "waited", "requests", "connections-max", "needed"];
    /// Requests wait because a server answers fewer of them when it has more at once.
    ServerSaturated = "server-saturated" Warning
        ["upstream", "server", "waited", "requests", "needed"];
    /// Further changes of servers in one second have no lines.
    ServersHidden = "servers-hidden" Info ["count"];
    /// A stored verdict still keeps a server from being pipelined.
    VerdictRestored = "verdict-restored" Info ["upstream", "server"];
    /// Further stored verdicts have no lines.
    VerdictsHidden = "verdicts-hidden" Info ["count"];
    /// Verdicts on servers are not read, not stored, or incomplete.
    VerdictsFile = "verdicts-file" Warning [];

    /// A name cannot be resolved.
    NameFailed = "name-failed" Warning ["name"];
    /// A name can be resolved again.
    NameResolved = "name-resolved" Info ["name"];
    /// weir has no name servers to ask.
    ResolverMissing = "resolver-missing" Warning ["error"];
    /// A list of servers cannot be read.
    ListFailed = "list-failed" Warning ["file"];
    /// weir has read a list of servers again.
    ListRead = "list-read" Info ["file", "servers"];

    /// weir has read a certificate, a CA file or ticket keys again.
    TlsFileRead = "tls-file-read" Info [];
    /// A certificate, a CA file or ticket keys cannot be used, and the previous ones remain.
    TlsFileBad = "tls-file-bad" Warning [];
    /// A certificate or a revocation list has expired, or expires soon.
    TlsExpiry = "tls-expiry" Warning [];
    /// weir has read the users and passwords again.
    UsersRead = "users-read" Info ["file", "users"];
    /// A file of users cannot be used, or is readable for all; the previous users remain.
    UsersBad = "users-bad" Warning ["file"];
    /// The access log cannot be written, and weir tries again.
    AccessLogFailed = "access-log-failed" Warning ["error"];
    /// Lines of the access log are lost because its destination does not accept them.
    AccessLogLost = "access-log-lost" Warning ["lines"];
    /// weir does not know the time zone, so the access log is in UTC.
    ZoneUnknown = "zone-unknown" Warning [];

    /// weir banned a client.
    BanAdded = "ban-added" Info ["network", "seconds", "count"];
    /// A client is no longer banned before its time.
    BanRemoved = "ban-removed" Info ["network"];
    /// Further changes of bans in one second have no lines.
    BansHidden = "bans-hidden" Info ["count"];
    /// Bans are not read, not stored, or incomplete.
    BansFile = "bans-file" Warning [];
    /// Which part of the system enforces bans.
    BansEnforced = "bans-enforced" Info [];
    /// weir does not know the addresses of this machine, so a limit may ban one.
    AddressesUnknown = "addresses-unknown" Warning ["error"];

    /// weir has restored responses from the snapshot of the cache.
    SnapshotRestored = "snapshot-restored" Info ["file", "responses"];
    /// A snapshot of the cache cannot be used, stored or removed.
    SnapshotFailed = "snapshot-failed" Warning [];

    /// Something on this machine hinders `weir intercept`.
    InterceptObstacle = "intercept-obstacle" Warning [];
    /// weir no longer holds first packets, so it connects to servers in another order.
    InterceptOrder = "intercept-order" Warning [];
    /// `weir intercept` leads connections through weir.
    Intercepting = "intercepting" Info [];
    /// A part of interception works in a slower way, or not at all.
    InterceptFallback = "intercept-fallback" Info [];
    /// New connections bypass weir for a while.
    InterceptBypass = "intercept-bypass" Warning [];
    /// weir intercepts new connections again.
    InterceptResumed = "intercept-resumed" Info [];
    /// Counts of connections, at the end of `weir intercept`.
    Intercepted = "intercepted" Info
        ["connections", "bypassed", "options", "nat", "unserved"];
    /// `weir status --watch` gets no answer from a running weir.
    StatusAway = "status-away" Info [];
}

/// Logs a problem with the access log.
pub(crate) fn of_access_log(trouble: LogTrouble) {
    let line = match trouble {
        LogTrouble::Zone(why) => Event::ZoneUnknown.says(why),
        LogTrouble::Failed(error) => {
            Event::AccessLogFailed.says("cannot write it; trying again").with("error", error)
        }
        LogTrouble::Unwritten => {
            Event::AccessLogLost.says("weir ends and loses the last lines of the access log")
        }
        LogTrouble::Lost(lines) => Event::AccessLogLost
            .says("lines are lost so far: the destination does not accept them")
            .with("lines", lines),
    };
    line.log();
}

impl Event {
    /// Begins a line.
    pub(crate) fn says(self, sentence: impl Display) -> Line {
        // One line each: a file name or a server's text may contain line breaks.
        let sentence = sentence.to_string().replace(['\n', '\r'], " ");
        Line { event: self, sentence, facts: Vec::new() }
    }

    /// Returns a line for each line of a report, as the command line prints it.
    pub(crate) fn report(self, report: &str) -> impl Iterator<Item = Line> {
        let lines = report.lines().filter(|line| !line.trim().is_empty());
        lines.map(move |line| self.says(line.strip_prefix("weir: ").unwrap_or(line)))
    }
}

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    event: Event,
    sentence: String,
    facts: Vec<(&'static str, String)>,
}

impl Line {
    /// Adds a fact. The event's declaration lists its keys.
    pub(crate) fn with(mut self, key: &'static str, value: impl Display) -> Line {
        debug_assert!(self.event.keys().contains(&key), "{key} of {}", self.event.name());
        self.facts.push((key, value.to_string()));
        self
    }

    /// Writes it to standard error, with time and level, or without the time to the systemd
    /// journal, which adds it. A reader that has gone is no reason to end (`eprintln!` would
    /// panic).
    pub(crate) fn log(&self) {
        let level = self.event.level();
        if is_journal() {
            print_error(&format!("<{}>{self}\n", level.number()));
        } else {
            print_error(&format!("{:.3} {} weir: {self}\n", Timestamp::now(), level.word()));
        }
    }
}

impl Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.event.name(), self.sentence)?;
        for (key, value) in &self.facts {
            write!(f, " {key}={}", Value(value))?;
        }
        Ok(())
    }
}

/// A value, in quotes where it would be read as more than one.
struct Value<'a>(&'a str);

impl Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '=');
        if !self.0.is_empty() && self.0.chars().all(is_plain) {
            return f.write_str(self.0);
        }
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() => f.write_char(' ')?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// Whether standard error is connected to the journal (systemd.exec(5), `$JOURNAL_STREAM`).
fn is_journal() -> bool {
    static IS_IT: OnceLock<bool> = OnceLock::new();
    *IS_IT.get_or_init(|| {
        let named = std::env::var("JOURNAL_STREAM").unwrap_or_default();
        rustix::fs::fstat(io::stderr())
            .is_ok_and(|file| named == format!("{}:{}", file.st_dev, file.st_ino))
    })
}

#[cfg(test)]
mod tests {
    //! Proves: a line is one line whose facts can be told apart, and the reference lists all
    //! events. How: examples; the page is compared.

    use super::*;

    #[test]
    fn a_line_has_its_event_a_sentence_and_facts() {
        let line = Event::Reloaded.says("the new configuration is in force").with("changes", 3);
        assert_eq!(line.to_string(), "reloaded: the new configuration is in force changes=3");
        let odd = Event::ListFailed.says("cannot read a\nb").with("file", "/a b\"c\\\n=");
        assert_eq!(odd.to_string(), "list-failed: cannot read a b file=\"/a b\\\"c\\\\ =\"");
        let empty = Event::NameFailed.says("x").with("name", "");
        assert_eq!(empty.to_string(), "name-failed: x name=\"\"");
    }

    #[test]
    fn each_line_of_a_report_is_one() {
        let lines = Event::ReloadError.report("weir: a\n\n  help: b\n");
        let lines: Vec<String> = lines.map(|line| line.to_string()).collect();
        assert_eq!(lines, ["reload-error: a", "reload-error:   help: b"]);
    }

    #[test]
    fn names_are_unlike_and_keys_are_words() {
        let mut names: Vec<&str> = ALL.iter().map(|(event, _)| event.name()).collect();
        let is_word = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        assert!(names.iter().all(|name| is_word(name)));
        assert!(ALL.iter().all(|(event, _)| event.keys().iter().all(|key| is_word(key))));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn the_reference_lists_all_events() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/log-events.md");
        let page = std::fs::read_to_string(path).expect("the page");
        let told: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        let known: Vec<String> = ALL
            .iter()
            .map(|(event, help)| {
                let keys: Vec<String> = event.keys().iter().map(|key| format!("`{key}`")).collect();
                let (name, level) = (event.name(), event.level().word());
                format!("| `{name}` | {level} | {help} | {} |", keys.join(", "))
            })
            .collect();
        assert_eq!(told, known, "write into docs/log-events.md:\n{}", known.join("\n"));
    }
}
