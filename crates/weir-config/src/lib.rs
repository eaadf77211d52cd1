//! Configuration: KDL or JSON text, checked against one option table, compiled into an immutable
//! [`Plan`].
//!
//! Text -> tree (`kdl_text`, `json_text`, with `expand` for variables) -> checked tree (`check`
//! with the table in `options`) -> plan (`compile`); the checked tree prints itself (`print`). All
//! problems are found in one pass, each with its place (`problem`). Called by the command line.
//! Semantics: unknown words, values out of range and unusable files are errors; nothing is applied
//! unless everything is valid.
#![forbid(unsafe_code)]

mod check;
mod compile;
mod difference;
mod expand;
mod file;
mod foreign;
mod forward;
pub mod fuzzing;
mod habits;
mod import;
mod intercept;
mod json_text;
mod kdl_shape;
mod kdl_text;
mod man_page;
mod options;
mod print;
mod problem;
mod reference;
mod reverse;
mod schema;
mod servers;
mod steps;
mod texts;
mod tree;
mod units;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use weir_proxy::plan::{DiscoveryPlan, Plan};

pub use compile::{collide, is_same_place};
pub use file::{FILE_BYTES_MAX, LIST_BYTES_MAX, find_path, load};
pub use forward::Forward;
pub use import::{Dialect, Imported, Kind as NoteKind, Note, Outside, import, import_in};
pub use intercept::Interception;
pub use man_page::manual;
pub use problem::{Errors, PROBLEMS_MAX, Problem, closest};
pub use reference::reference;
pub use reverse::{Common, Reverse};
pub use servers::{parse_server, parse_servers};
pub use units::{parse_time, time_text};

/// A checked configuration.
#[derive(Debug)]
pub struct Config {
    /// The plan for the workers.
    pub plan: Plan,
    /// Number of workers; None: one for each available core.
    pub workers: Option<u32>,
    /// The interface to the kernel.
    pub io: IoChoice,
    /// How workers are bound to cores.
    pub pinning: PinningChoice,
    /// The rule for assigning a new connection to a worker.
    pub accept_by: AcceptBy,
    /// The path of the admin socket.
    pub admin: AdminChoice,
    /// The address of the metrics listener; None: no metrics.
    pub metrics: Option<SocketAddr>,
    /// The user that weir becomes after the start; None: it keeps its own.
    pub user: Option<UserChoice>,
    /// Valid parts that are probably not intended.
    pub warnings: Option<Errors>,
    /// The written options, with all defaults.
    pub tree: Tree,
}

/// `io` of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoChoice {
    /// io_uring where it works, epoll elsewhere.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// epoll.
    Epoll,
}

/// `pinning` of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PinningChoice {
    /// Each to its own core, which it may leave while another task uses that.
    #[default]
    Soft,
    /// Each to its own core.
    Hard,
    /// To none.
    None,
}

/// `accept-by` of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AcceptBy {
    /// A worker that has time for it.
    #[default]
    Even,
    /// The worker selected by a hash of addresses and ports.
    Hash,
}

/// `admin` of the document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AdminChoice {
    /// In the directory for such sockets, if one exists and is writable.
    #[default]
    Auto,
    /// No socket.
    Off,
    /// At this path.
    At(PathBuf),
}

/// `user` of the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserChoice {
    /// A user's name or number.
    pub name: String,
    /// A group's; None: that of the user.
    pub group: Option<String>,
    /// It may listen on ports below 1024 later as well.
    pub privileged_ports: bool,
}

impl AdminChoice {
    /// Parses the value of `admin`.
    ///
    /// # Errors
    /// The user's fault: the mistake in the path.
    pub fn read(text: &str) -> Result<AdminChoice, String> {
        match text {
            "auto" => Ok(AdminChoice::Auto),
            "off" => Ok(AdminChoice::Off),
            path => texts::socket_path(path).map(|path| AdminChoice::At(path.into())),
        }
    }
}

/// The effective configuration: every option with its value.
#[derive(Debug, Clone)]
pub struct Tree {
    document: check::Checked,
}

impl Tree {
    /// Returns KDL that reads back to the same plan.
    pub fn to_kdl(&self) -> String {
        print::kdl(&self.document)
    }

    /// Returns the differences in `other`, a line for each block or option. Empty: none.
    pub fn difference(&self, other: &Tree) -> Vec<String> {
        difference::lines(&self.document, &other.document)
    }

    /// Returns JSON (indented, with a final line end) that reads back to the same plan.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(&self.document).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// The access of a configuration to the world outside its text.
#[derive(Clone, Copy)]
pub struct World<'a> {
    /// Returns the value of a variable.
    pub variables: &'a dyn Fn(&str) -> Option<String>,
    /// Reads a file that the configuration names, at most [`LIST_BYTES_MAX`].
    pub read: &'a dyn Fn(&Path) -> io::Result<Vec<u8>>,
    /// The experts for other files.
    pub experts: Experts<'a>,
}

/// Experts for things that this crate does not understand: files, names of servers, users of this
/// machine.
#[derive(Clone, Copy)]
pub struct Experts<'a> {
    /// Checks a file of users.
    pub users: CheckUsers<'a>,
    /// Checks files for TLS.
    pub tls: CheckTls<'a>,
    /// Checks that names of servers can be looked up.
    pub names: CheckNames<'a>,
    /// Checks that weir can become a user.
    pub account: CheckAccount<'a>,
    /// Returns the number of a group of this machine.
    pub group: FindGroup<'a>,
    /// Checks that the calling process could keep a file at a path.
    pub keeps: CheckPlace<'a>,
    /// Checks how packets arrive at this machine.
    pub arrival: CheckArrival<'a>,
}

impl Experts<'static> {
    /// No checks: all files and names are good.
    pub const NOBODY: Experts<'static> = Experts {
        users: &|_, _| Ok(1),
        tls: &|_| Ok(Vec::new()),
        names: &|_, _| Vec::new(),
        account: &|_| Ok(()),
        group: &|_| Ok(0),
        keeps: &|_| Ok(()),
        arrival: &|_| None,
    };
}

/// Files for TLS, grouped as they belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFiles<'a> {
    /// The certificate of a listener and its key.
    Certificate {
        /// The chain in PEM.
        certificate: &'a Path,
        /// The key in PEM, maybe in the same file.
        key: &'a Path,
    },
    /// The certificate that weir shows to servers, and its key.
    Shown {
        /// The chain in PEM.
        certificate: &'a Path,
        /// The key in PEM, maybe in the same file.
        key: &'a Path,
    },
    /// An OCSP response for a certificate.
    Ocsp {
        /// The response in DER.
        response: &'a Path,
        /// The chain in PEM.
        certificate: &'a Path,
        /// Its key in PEM.
        key: &'a Path,
    },
    /// The CAs that may have signed certificates of servers; None: those that the system trusts.
    Authorities(Option<&'a Path>),
    /// The files for the verification of clients.
    Clients {
        /// The CAs that may have signed their certificates.
        authorities: &'a Path,
        /// Lists of those that were revoked.
        revocations: Option<&'a Path>,
    },
    /// Keys of tickets.
    TicketKeys(&'a Path),
}

/// Returns warnings for the operator about these files, or the error in them.
pub type CheckTls<'a> = &'a dyn Fn(TlsFiles<'_>) -> Result<Vec<String>, String>;

/// Returns how many users are in a file with this content, or its errors: a line of text for each,
/// which begins with path and line. Only the caller understands passwords.
pub type CheckUsers<'a> = &'a dyn Fn(&Path, &[u8]) -> Result<usize, Vec<String>>;

/// Looks names of servers up (`host:port`). Returns an error or None for each name; missing entries
/// at the end are good.
pub type CheckNames<'a> = &'a dyn Fn(&DiscoveryPlan, &[&str]) -> Vec<Option<String>>;

/// Checks whether this process runs as a user, or can become it.
pub type CheckAccount<'a> = &'a dyn Fn(&UserChoice) -> Result<(), Account>;

/// Returns the number of the group with this name.
pub type FindGroup<'a> = &'a dyn Fn(&str) -> Result<u32, Account>;

/// Returns why no file can be kept at a path: its directory does not exist, or is not writable.
pub type CheckPlace<'a> = &'a dyn Fn(&Path) -> Result<(), String>;

/// Returns what is wrong with the arrival of packets at this machine, as far as known, and the
/// solution.
pub type CheckArrival<'a> = &'a dyn Fn(Arrival) -> Option<(String, String)>;

/// The requirements of a configuration on the arrival of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arrival {
    /// Packets of IPv4, or of IPv6, for other machines are routed to sockets here.
    ToSockets {
        /// Packets of IPv6.
        is_ipv6: bool,
    },
    /// Both sides of a connection have the same addresses and ports.
    WithKeptPorts,
}

/// A problem with an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The option at fault: `name` or `group`.
    pub word: &'static str,
    /// The problem.
    pub message: String,
    /// The solution.
    pub help: String,
}

/// Checks and compiles a configuration. `name` is its name in messages; one that ends in `.json`
/// contains JSON.
///
/// Variables come from the environment of the process. The contents of files of users and
/// certificates are not checked, and no name is looked up.
///
/// # Errors
/// The user's fault: everything that is wrong, with places.
pub fn parse(text: &str, name: &str) -> Result<Config, Errors> {
    parse_with(text, name, Experts::NOBODY)
}

/// Checks and compiles a configuration with these experts, which may block.
///
/// # Errors
/// As [`parse`].
pub fn parse_with(text: &str, name: &str, experts: Experts<'_>) -> Result<Config, Errors> {
    let variables = |variable: &str| std::env::var(variable).ok();
    parse_in(text, name, World { variables: &variables, read: &file::read_list, experts })
}

/// Checks and compiles a configuration like [`parse`], in a world that the caller provides.
///
/// # Errors
/// As [`parse`].
pub fn parse_in(text: &str, name: &str, world: World<'_>) -> Result<Config, Errors> {
    let mut problems = Vec::new();
    let is_json = name.to_ascii_lowercase().ends_with(".json");
    let read = if is_json { json_text::read } else { kdl_text::read };
    let entries = read(text, world.variables, &mut problems);
    let broken = problems.iter().any(|problem| problem.code == "syntax");
    if entries.is_empty() && !broken {
        problems.push(Problem::of_file("nothing-to-do", "the configuration is empty").help(START));
    }
    let foreign = |problems: &[Problem]| {
        (!is_json && !problems.is_empty()).then(|| foreign::recognise(text)).flatten()
    };
    if let Some(problem) = foreign(&problems) {
        return Err(Errors::new(name, text, vec![problem]));
    }
    if broken || entries.is_empty() {
        // Without a tree all further messages would only follow from that.
        return Err(Errors::new(name, text, problems));
    }
    let whole = tree::Entry { entries, ..tree::Entry::default() };
    let document = check::check(&options::DOCUMENT, &whole, &mut problems);
    if let Some(problem) = foreign(&problems) {
        return Err(Errors::new(name, text, vec![problem]));
    }
    let compiled = compile::compile(&document, world, &mut problems);
    if !problems.is_empty() {
        return Err(Errors::new(name, text, problems));
    }
    let warnings =
        (!compiled.warnings.is_empty()).then(|| Errors::warnings(name, text, compiled.warnings));
    Ok(Config {
        plan: compiled.plan,
        workers: compiled.workers,
        io: compiled.io,
        pinning: compiled.pinning,
        accept_by: compiled.accept_by,
        admin: compiled.admin,
        metrics: compiled.metrics,
        user: compiled.user,
        warnings,
        tree: Tree { document },
    })
}

/// Help for an empty file.
const START: &str = "start with: listen \"127.0.0.1:8080\"; upstream \"app\" { server \
    \"127.0.0.1:9090\"; }; route { proxy \"app\"; }";
