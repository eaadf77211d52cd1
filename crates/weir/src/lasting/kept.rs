//! A file that keeps a list over a restart: whether this process may read and write it, when it is
//! written, and its last problem. The owners of such lists (`bans`, `verdicts`) read and write the
//! contents.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Hold, Taken, Turn};

/// The default place of a file: this name in the state directory of the service, if the service has
/// one.
pub(crate) fn usual_place(name: &str) -> Option<PathBuf> {
    let given = std::env::var("STATE_DIRECTORY").ok().filter(|list| !list.is_empty())?;
    // Several are separated by colons (systemd.exec(5)).
    Some(PathBuf::from(given.split(':').next()?).join(name))
}

/// Words for messages about a file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Words {
    /// The contents, as the subject of `... are not kept over a restart`.
    pub(crate) what: &'static str,
    /// The option that names it.
    pub(crate) option: &'static str,
}

/// The file, and its state.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    words: Words,
    pub(crate) hold: Hold,
    pub(crate) file: Option<PathBuf>,
    pub(crate) problem: Option<String>,
    /// The file lacks changes, and the earliest time to write them.
    pub(crate) is_unsaved: bool,
    pub(crate) save_at: Option<Instant>,
    /// Shortest time between two writes.
    save_every: Duration,
}

impl Kept {
    /// Without a file. `waits`: the previous process owns the file until [`Hold::enter`].
    pub(crate) fn new(words: Words, save_every: Duration, waits: bool) -> Kept {
        let hold = Hold::new(waits);
        Kept {
            words,
            hold,
            file: None,
            problem: None,
            is_unsaved: false,
            save_at: None,
            save_every,
        }
    }

    /// Sets the place of the file. Returns which process may use it, if the place has changed.
    pub(crate) fn want(&mut self, place: Option<PathBuf>) -> Option<Turn> {
        if place == self.file {
            return None;
        }
        self.hold.let_go();
        self.hold.want(place.as_deref());
        self.file = place;
        Some(self.hold.turn())
    }

    /// Takes the file if this process may use it and no other program does, and warns the operator
    /// of problems. True: this process owns it from now on, and the caller reads it.
    pub(crate) fn take(&mut self, warn: impl FnMut(String)) -> bool {
        if self.file.is_none() {
            return false;
        }
        match self.hold.take() {
            Taken::Before => false,
            Taken::Now(note) => {
                note.into_iter().for_each(warn);
                self.problem = None;
                true
            }
            // The caller tries again, because the other program may end.
            Taken::Others(who) => {
                let Words { what, option } = self.words;
                let line = format!(
                    "{what} are neither read nor stored: {who}: name another file in `{option}`, \
                        or end that program"
                );
                (self.problem.as_deref() != Some(&*who)).then_some(line).into_iter().for_each(warn);
                self.problem = Some(who);
                false
            }
        }
    }

    /// Whether this process owns it.
    pub(crate) fn is_ours(&self) -> bool {
        self.file.is_some() && self.hold.is_ours()
    }

    /// The file cannot be read, so weir does not replace it either. Returns a message for the
    /// operator.
    pub(crate) fn is_unreadable(&mut self, error: &io::Error) -> String {
        let path = self.file.take().unwrap_or_default();
        self.problem = Some(error.to_string());
        self.hold.let_go();
        format!("{} are neither read nor stored: {}: {error}", self.words.what, path.display())
    }

    /// The path to write, if there are changes and a write is due or `at_once`.
    pub(crate) fn take_unsaved(&mut self, now: Instant, at_once: bool) -> Option<PathBuf> {
        let is_time = at_once || self.save_at.is_none_or(|at| now >= at);
        let path = self.file.clone().filter(|_| self.is_unsaved && self.is_ours() && is_time)?;
        self.is_unsaved = false;
        self.save_at = Some(now + self.save_every);
        Some(path)
    }

    /// Notes the outcome of a write. Returns a message for the operator.
    pub(crate) fn saved(&mut self, path: &Path, outcome: io::Result<()>) -> Option<String> {
        let problem = outcome.err().map(|error| error.to_string());
        self.is_unsaved |= problem.is_some();
        let is_news = problem.is_some() && problem != self.problem;
        self.problem = problem;
        let problem = self.problem.as_ref().filter(|_| is_news)?;
        Some(format!("{} do not survive a restart: {}: {problem}", self.words.what, path.display()))
    }
}
