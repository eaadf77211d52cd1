//! How a verb fails: a text for standard error and an exit code. Used by all verbs, read by `main`.
//!
//! Codes: 1 failed while running, 2 usage, 65 an import that is not the same, 77 a missing
//! privilege, 78 bad configuration (sysexits.h), so that a service manager can recognize failures
//! that a restart cannot repair. `weir lab link -- COMMAND` has the command's code.

use std::fmt::{self, Display};
use std::io;

use weir_config::Errors;

use crate::terminal;

/// Why a verb failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An external failure: code 1.
    Running(String),
    /// The command line is wrong: code 2.
    Usage(String),
    /// The result of an import does not do the same as the source; it has been printed: code 65.
    Unlike(String),
    /// The operating system forbids it; the text names the capability: code 77.
    Privilege(String),
    /// The configuration is wrong; the report is complete: code 78.
    Configuration(String),
    /// A command ended with this code, which becomes the code of weir; the command has printed the
    /// reason.
    Command(u8),
}

impl Failure {
    /// Returns the exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Running(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Unlike(_) => 65,
            Failure::Privilege(_) => 77,
            Failure::Configuration(_) => 78,
            Failure::Command(code) => *code,
        }
    }

    /// Returns the failure of another process, by its exit code.
    pub(crate) fn of(code: u8, text: String) -> Failure {
        match code {
            2 => Failure::Usage(text),
            77 => Failure::Privilege(text),
            78 => Failure::Configuration(text),
            _ => Failure::Running(text),
        }
    }

    /// Returns the failure of a listener that could not be bound; the text of the error names
    /// address and cause.
    pub(crate) fn binding(error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::PermissionDenied => Failure::Privilege(format!("weir: {error}\n")),
            _ => Failure::Running(format!("weir: {error}\n")),
        }
    }
}

impl From<Errors> for Failure {
    fn from(errors: Errors) -> Failure {
        Failure::Configuration(terminal::render(&errors))
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Running(text)
            | Failure::Usage(text)
            | Failure::Unlike(text)
            | Failure::Privilege(text)
            | Failure::Configuration(text) => f.write_str(text),
            Failure::Command(_) => Ok(()),
        }
    }
}
