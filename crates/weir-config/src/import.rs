//! Converts the configuration of nginx, HAProxy or Caddy to one of weir, with a list of what could
//! not be carried over. Called by the command line.
//!
//! Text -> directives (`tree`; each dialect has its own reader) -> `draft`, which knows the
//! features of weir -> text (`write`). What weir cannot express becomes a route that rejects:
//! nothing that was closed is opened, and no request reaches another application. No well-kept
//! library reads any of the three grammars. Bounds: [`FILE_BYTES_MAX`](crate::FILE_BYTES_MAX) for a
//! file, and those of `tree`; nothing here recurses.

mod access;
mod apart;
mod begin;
mod caddy;
mod cases;
mod compress;
mod draft;
mod fate;
mod files;
mod haproxy;
mod keepalive;
mod limits;
mod missing;
mod nginx;
mod notes;
mod order;
mod own_answer;
mod route;
mod schemes;
mod tcp;
mod tree;
mod write;

use std::io;
use std::path::{Path, PathBuf};

pub use notes::{Kind, Note};

use crate::problem::Errors;
use draft::Draft;
use tree::Sources;

/// The program of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// nginx.
    Nginx,
    /// HAProxy.
    Haproxy,
    /// Caddy, as a Caddyfile.
    Caddy,
}

impl Dialect {
    /// Returns its name on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Dialect::Nginx => "nginx",
            Dialect::Haproxy => "haproxy",
            Dialect::Caddy => "caddy",
        }
    }
}

/// The access of an import to the world outside its text.
#[derive(Clone, Copy)]
pub struct Outside<'a> {
    /// Returns the value of an environment variable.
    pub variables: &'a dyn Fn(&str) -> Option<String>,
    /// Returns the files that match a path with `*` and `?`, in order.
    pub matching: &'a dyn Fn(&Path) -> io::Result<Vec<PathBuf>>,
    /// Reads a file, at most one byte more than [`FILE_BYTES_MAX`](crate::FILE_BYTES_MAX).
    pub read: &'a dyn Fn(&Path) -> io::Result<Vec<u8>>,
}

/// The result of an import.
#[derive(Debug)]
pub struct Imported {
    /// The configuration of weir, as KDL; empty when nothing could be carried over.
    pub text: String,
    /// The number of routes and of `tcp` that lead to servers or have a response.
    pub carried: usize,
    /// Notes about it, in the order of the source.
    pub notes: Vec<Note>,
    /// The number of further notes, which are not kept.
    pub dropped: usize,
    /// Directives without need for a counterpart in weir, by name, each once.
    pub unneeded: Vec<String>,
    /// The errors of `weir check` in the text, which are a mistake of weir.
    pub faults: Option<Errors>,
}

/// Reads the file and those that it includes, and writes the equivalent.
///
/// # Errors
/// The user's fault: a file that cannot be read or understood, with its line.
pub fn import(dialect: Dialect, path: &Path) -> Result<Imported, Errors> {
    let variables = |name: &str| std::env::var(name).ok();
    let outside = Outside { variables: &variables, matching: &files::matching, read: &files::read };
    import_in(dialect, path, outside)
}

/// Imports in a world that the caller provides.
///
/// # Errors
/// As [`import`].
pub fn import_in(dialect: Dialect, path: &Path, outside: Outside<'_>) -> Result<Imported, Errors> {
    let sources = Sources::open(path, outside)?;
    let mut draft = Draft::new(sources);
    match dialect {
        Dialect::Nginx => nginx::import(&mut draft)?,
        Dialect::Haproxy => haproxy::import(&mut draft)?,
        Dialect::Caddy => caddy::import(&mut draft)?,
    }
    let text = draft.finish(dialect);
    let carried = draft.carried();
    let faults = if text.is_empty() { None } else { crate::fuzzing::check(&text).err() };
    let (notes, dropped, unneeded) = draft.into_notes();
    Ok(Imported { text, carried, notes, dropped, unneeded, faults })
}
