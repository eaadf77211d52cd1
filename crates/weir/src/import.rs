//! `weir import`: translates the configuration of another program. The result goes to standard
//! output, what it lacks to standard error. Opens no socket.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use weir_config::{Dialect, Imported, NoteKind};

use crate::failure::Failure;
use crate::terminal;

/// `weir import`.
#[derive(Args, Debug)]
#[command(after_help = "\
Reads the file and its includes, and prints the equivalent configuration of weir; comments name \
the original lines. On standard error, reports what it could not convert, what works differently, \
and what it has closed: if the original admits only some clients, and weir cannot tell which, the \
result admits none, and what weir cannot serve it rejects. Exits with 65 while there is anything \
to report that `--accept` does not name. Does not look at server names and certificate files; \
`weir check` does.

Example:
  weir import nginx /etc/nginx/nginx.conf >weir.kdl
  weir check -c weir.kdl")]
pub(crate) struct ImportArgs {
    /// Program that the configuration is for
    #[arg(value_enum, value_name = "PROGRAM")]
    program: Program,
    /// Main file: nginx.conf, haproxy.cfg or Caddyfile
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Exit with 0 despite reports of this kind; may be repeated
    #[arg(long, value_enum, value_name = "KIND")]
    accept: Vec<Accepted>,
}

/// Reports that are no reason to fail. The variants have no help texts, so that clap lists them in
/// one line.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Accepted {
    Lost,
    Different,
    Closed,
    All,
}

impl Accepted {
    fn is_for(self, kind: NoteKind) -> bool {
        match self {
            Accepted::Lost => kind == NoteKind::Lost,
            Accepted::Different => kind == NoteKind::Different,
            Accepted::Closed => kind == NoteKind::Closed,
            Accepted::All => true,
        }
    }
}

/// The program that the configuration is for. The variants have no help texts, so that clap lists
/// them in one line.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Nginx,
    Haproxy,
    Caddy,
}

impl From<Program> for Dialect {
    fn from(program: Program) -> Dialect {
        match program {
            Program::Nginx => Dialect::Nginx,
            Program::Haproxy => Dialect::Haproxy,
            Program::Caddy => Dialect::Caddy,
        }
    }
}

/// Runs the verb.
///
/// # Errors
/// The configuration cannot be read, nothing of it could be carried over, or the result does not do
/// the same, which the user has not accepted.
pub(crate) fn import(arguments: &ImportArgs) -> Result<(), Failure> {
    let imported = weir_config::import(arguments.program.into(), &arguments.file)?;
    terminal::print(&imported.text);
    terminal::print_error(&told(&imported));
    if imported.text.is_empty() {
        let why = "weir: could not convert any part of it: it has no address and no server that \
            weir could use\n";
        return Err(Failure::Configuration(why.to_owned()));
    }
    match imported.faults {
        // The result on standard output is nearly right, and says so nowhere else.
        Some(faults) => Err(Failure::Configuration(terminal::render(&faults))),
        None => unaccepted(&imported, &arguments.accept),
    }
}

/// Fails while there are notes of a kind that is not accepted.
fn unaccepted(imported: &Imported, accepted: &[Accepted]) -> Result<(), Failure> {
    let is_open = |kind: &NoteKind| {
        let is_told = imported.notes.iter().any(|note| note.kind == *kind);
        // Those that are not shown may be of any kind.
        (is_told || imported.dropped > 0) && !accepted.iter().any(|one| one.is_for(*kind))
    };
    let open: Vec<&str> = KINDS
        .into_iter()
        .filter(is_open)
        .map(|kind| match kind {
            NoteKind::Lost => "--accept lost",
            NoteKind::Different => "--accept different",
            NoteKind::Closed => "--accept closed",
        })
        .collect();
    if open.is_empty() {
        return Ok(());
    }
    Err(Failure::Unlike(format!(
        "weir: the result is complete, but does not do the same; having read the lines above, \
            accept them with {}\n",
        open.join(" ")
    )))
}

/// All kinds of notes, as they are counted.
const KINDS: [NoteKind; 3] = [NoteKind::Lost, NoteKind::Different, NoteKind::Closed];

/// Returns a line for each note, and the number of notes.
fn told(imported: &Imported) -> String {
    let mut out: String = imported.notes.iter().map(|note| format!("{note}\n")).collect();
    let count = |kind: NoteKind| imported.notes.iter().filter(|note| note.kind == kind).count();
    let counts: Vec<String> =
        KINDS.into_iter().map(|kind| format!("{} {}", count(kind), kind.word())).collect();
    out.push_str(&format!("weir: {} carried over, {}", imported.carried, counts.join(", ")));
    if imported.dropped > 0 {
        out.push_str(&format!(", {} more not shown", imported.dropped));
    }
    if !imported.unneeded.is_empty() {
        out.push_str(&format!("; weir does not need: {}", imported.unneeded.join(", ")));
    }
    out.push('\n');
    out
}
