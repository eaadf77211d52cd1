//! The configuration of nginx, HAProxy or Caddy as one of weir, with a list of what could not be carried over. Called by the command line.
//!
//! Text -> directives (`tree`; each dialect has its own reader) -> `draft`, which knows what weir can do -> text (`write`). What a
//! configuration keeps people out by, and weir can't say, becomes a route that leads nowhere: nothing that was closed is opened.
//! No well-kept library reads any of the three grammars. Bounds: [`FILE_BYTES_MAX`](crate::FILE_BYTES_MAX) for a file, and those of
//! `tree`; nothing here recurses.

mod access;
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
mod steps;
mod tcp;
mod tree;
mod write;

use std::io;
use std::path::{Path, PathBuf};

pub use notes::{Kind, Note};

use crate::problem::Errors;
use draft::Draft;
use tree::Sources;

/// Whose configuration it is.
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
    /// What it is called on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Dialect::Nginx => "nginx",
            Dialect::Haproxy => "haproxy",
            Dialect::Caddy => "caddy",
        }
    }
}

/// What an import may ask of the world outside its text.
#[derive(Clone, Copy)]
pub struct Outside<'a> {
    /// The value of a variable of the environment.
    pub variables: &'a dyn Fn(&str) -> Option<String>,
    /// The files that a path with `*` and `?` stands for, in order.
    pub matching: &'a dyn Fn(&Path) -> io::Result<Vec<PathBuf>>,
    /// What is in one, at most one byte more than [`FILE_BYTES_MAX`](crate::FILE_BYTES_MAX).
    pub read: &'a dyn Fn(&Path) -> io::Result<Vec<u8>>,
}

/// What has become of a configuration.
#[derive(Debug)]
pub struct Imported {
    /// The one of weir, as KDL; empty when nothing could be carried over.
    pub text: String,
    /// What is to be known of it, in the order of the source.
    pub notes: Vec<Note>,
    /// More of these than are kept.
    pub dropped: usize,
    /// Directives that weir needs no counterpart of, by name, each once.
    pub unneeded: Vec<String>,
    /// What `weir check` has against the text, which is a mistake of weir.
    pub faults: Option<Errors>,
}

/// Reads the file and those that it includes, and writes the equivalent.
///
/// # Errors
/// The user's fault: a file that can't be read or understood, with its line.
pub fn import(dialect: Dialect, path: &Path) -> Result<Imported, Errors> {
    let variables = |name: &str| std::env::var(name).ok();
    let outside = Outside { variables: &variables, matching: &files::matching, read: &files::read };
    import_in(dialect, path, outside)
}

/// The same in a world of the caller's making.
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
    let faults = if text.is_empty() { None } else { crate::fuzzing::check(&text).err() };
    let (notes, dropped, unneeded) = draft.into_notes();
    Ok(Imported { text, notes, dropped, unneeded, faults })
}
