//! Configuration: KDL or JSON text, checked against one option table, compiled into an immutable [`Plan`].
//!
//! Text -> tree (`kdl_text`, `json_text`, with `expand` for variables) -> checked tree (`check` with the table in
//! `options`) -> plan (`compile`); the checked tree prints itself (`print`). All problems are found in one go, each with
//! its place (`problem`). Called by the command line. semantics: unknown words, values out of range and files that
//! can't be used are errors; nothing is applied unless everything is valid.
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
    /// What the workers read.
    pub plan: Plan,
    /// How many workers; None: one for each core that may be used.
    pub workers: Option<u32>,
    /// How to talk to the kernel.
    pub io: IoChoice,
    /// How workers are bound to cores.
    pub pinning: PinningChoice,
    /// Which worker gets a new connection.
    pub accept_by: AcceptBy,
    /// Where the admin socket is.
    pub admin: AdminChoice,
    /// Where metrics are served; None: nowhere.
    pub metrics: Option<SocketAddr>,
    /// Who weir is to be after the start; None: who it is.
    pub user: Option<UserChoice>,
    /// What is allowed and probably not meant.
    pub warnings: Option<Errors>,
    /// What was written, with all defaults.
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
    /// Each to a core of its own, which it may leave while something else takes it.
    #[default]
    Soft,
    /// Each to a core of its own.
    Hard,
    /// To none.
    None,
}

/// `accept-by` of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AcceptBy {
    /// One that has time for it.
    #[default]
    Even,
    /// The one that the hash of its addresses and ports names.
    Hash,
}

/// `admin` of the document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AdminChoice {
    /// In the directory for such sockets, if there is one that may be written to.
    #[default]
    Auto,
    /// Nowhere.
    Off,
    /// Here.
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
    /// Reads what stands behind `admin`.
    ///
    /// # Errors
    /// The user's fault: what is wrong with the path.
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
    /// As KDL that reads back to the same plan.
    pub fn to_kdl(&self) -> String {
        print::kdl(&self.document)
    }

    /// What is different in `other`, a line for each block or option. Empty: nothing.
    pub fn difference(&self, other: &Tree) -> Vec<String> {
        difference::lines(&self.document, &other.document)
    }

    /// As JSON (indented, with a final line end) that reads back to the same plan.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(&self.document).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// What a configuration may ask of the world outside its text.
#[derive(Clone, Copy)]
pub struct World<'a> {
    /// The value of a variable.
    pub variables: &'a dyn Fn(&str) -> Option<String>,
    /// What is in a file that the configuration names, at most [`LIST_BYTES_MAX`].
    pub read: &'a dyn Fn(&Path) -> io::Result<Vec<u8>>,
    /// Who looks into other files.
    pub experts: Experts<'a>,
}

/// Who knows what it is not the business of this crate to understand: files, names of servers, users of this machine.
#[derive(Clone, Copy)]
pub struct Experts<'a> {
    /// Whether a file of users is good.
    pub users: CheckUsers<'a>,
    /// Whether files that TLS needs are.
    pub tls: CheckTls<'a>,
    /// Whether names of servers can be looked up.
    pub names: CheckNames<'a>,
    /// Whether weir can become somebody.
    pub account: CheckAccount<'a>,
    /// The number of a group of this machine.
    pub group: FindGroup<'a>,
    /// Whether whoever asks could keep a file there.
    pub keeps: CheckPlace<'a>,
    /// How packets come here.
    pub arrival: CheckArrival<'a>,
}

impl Experts<'static> {
    /// Nobody looks: all files and names are good.
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

/// Files that TLS needs, as far as they belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFiles<'a> {
    /// The certificate of a listener and its key.
    Certificate {
        /// The chain in PEM.
        certificate: &'a Path,
        /// The key in PEM, maybe in the same file.
        key: &'a Path,
    },
    /// The same of the certificate that weir shows to servers.
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
    /// What clients are judged by.
    Clients {
        /// The CAs that may have signed their certificates.
        authorities: &'a Path,
        /// Lists of those that were revoked.
        revocations: Option<&'a Path>,
    },
    /// Keys of tickets.
    TicketKeys(&'a Path),
}

/// What the operator should know of these files, or what is wrong with them.
pub type CheckTls<'a> = &'a dyn Fn(TlsFiles<'_>) -> Result<Vec<String>, String>;

/// How many users are in a file with this content, or what is wrong with it: a line of text for each error, which begins with
/// path and line. Knowing passwords is the business of whoever asks for them.
pub type CheckUsers<'a> = &'a dyn Fn(&Path, &[u8]) -> Result<usize, Vec<String>>;

/// Looks names of servers up (`host:port`). By name what is wrong with it, if anything is; names at the end that are not spoken of are good.
pub type CheckNames<'a> = &'a dyn Fn(&DiscoveryPlan, &[&str]) -> Vec<Option<String>>;

/// Whether this process is somebody, or can become him.
pub type CheckAccount<'a> = &'a dyn Fn(&UserChoice) -> Result<(), Account>;

/// The number of a group that is named so.
pub type FindGroup<'a> = &'a dyn Fn(&str) -> Result<u32, Account>;

/// Says why no file can be kept at a path: its directory is not there, or not writable.
pub type CheckPlace<'a> = &'a dyn Fn(&Path) -> Result<(), String>;

/// Says what is wrong with how packets come to this machine, as far as that can be known, and the way out.
pub type CheckArrival<'a> = &'a dyn Fn(Arrival) -> Option<(String, String)>;

/// What a configuration needs of how packets come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arrival {
    /// Those of IPv4, or of IPv6, that are for others are led to sockets here.
    ToSockets {
        /// Those of IPv6.
        is_ipv6: bool,
    },
    /// Both sides of a connection have the same addresses and ports.
    WithKeptPorts,
}

/// What is wrong with an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The option that is to blame: `name` or `group`.
    pub word: &'static str,
    /// What is wrong.
    pub message: String,
    /// The way out.
    pub help: String,
}

/// Checks and compiles a configuration. `name` is what messages call it; one that ends in `.json` holds JSON.
///
/// Variables come from the environment of the process. What is in files of users and certificates is not looked at, and no name is
/// looked up.
///
/// # Errors
/// The user's fault: everything that is wrong, with places.
pub fn parse(text: &str, name: &str) -> Result<Config, Errors> {
    parse_with(text, name, Experts::NOBODY)
}

/// The same with these experts, who may block.
///
/// # Errors
/// As [`parse`].
pub fn parse_with(text: &str, name: &str, experts: Experts<'_>) -> Result<Config, Errors> {
    let variables = |variable: &str| std::env::var(variable).ok();
    parse_in(text, name, World { variables: &variables, read: &file::read_list, experts })
}

/// Like [`parse`], in a world of the caller's making.
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
    let foreign = |problems: &[Problem]| (!is_json && !problems.is_empty()).then(|| foreign::recognise(text)).flatten();
    if let Some(problem) = foreign(&problems) {
        return Err(Errors::new(name, text, vec![problem]));
    }
    if broken || entries.is_empty() {
        // Without a tree all further messages would be about things that are only unreadable.
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
    let warnings = (!compiled.warnings.is_empty()).then(|| Errors::warnings(name, text, compiled.warnings));
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
const START: &str =
    "for a start: listen \"127.0.0.1:8080\"; upstream \"app\" { server \"127.0.0.1:9090\"; }; route { proxy \"app\"; }";
