//! Whether a file is this process's to read and to write, when it is written, and what is wrong with it. Called by those who keep lists in
//! files (`bans`, `verdicts`), who say what there is to read and to write.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Hold, Taken, Turn};

/// Where a file is that nobody has named: by this name in the state directory of the service, if it has one.
pub(crate) fn usual_place(name: &str) -> Option<PathBuf> {
    let given = std::env::var("STATE_DIRECTORY").ok().filter(|list| !list.is_empty())?;
    // Several are separated by colons (systemd.exec(5)).
    Some(PathBuf::from(given.split(':').next()?).join(name))
}

/// What is told of a file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Words {
    /// What is in it, as the subject of `... are not kept over a restart`.
    pub(crate) what: &'static str,
    /// The option that names it.
    pub(crate) option: &'static str,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    words: Words,
    pub(crate) hold: Hold,
    pub(crate) file: Option<PathBuf>,
    pub(crate) problem: Option<String>,
    /// The file does not know yet, and when it may.
    pub(crate) is_unsaved: bool,
    pub(crate) save_at: Option<Instant>,
    /// It is written at most so often.
    save_every: Duration,
}

impl Kept {
    /// Of no file yet. `waits`: the process before has it until [`Hold::enter`].
    pub(crate) fn new(words: Words, save_every: Duration, waits: bool) -> Kept {
        let hold = Hold::new(waits);
        Kept { words, hold, file: None, problem: None, is_unsaved: false, save_at: None, save_every }
    }

    /// The file is to be here from now on. Whose turn it is, if that is another place than before.
    pub(crate) fn want(&mut self, place: Option<PathBuf>) -> Option<Turn> {
        if place == self.file {
            return None;
        }
        self.hold.let_go();
        self.hold.want(place.as_deref());
        self.file = place;
        Some(self.hold.turn())
    }

    /// Takes the file, if it is this process's turn and no other program has it, and says what the operator should know. True: it is this
    /// process's from now on, and what is in it is to be read.
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
            // It is tried again: the other one may end.
            Taken::Others(who) => {
                let Words { what, option } = self.words;
                let line = format!(
                    "{what} are neither read nor kept: {who}: name another file in `{option}`, or end that program"
                );
                (self.problem.as_deref() != Some(&*who)).then_some(line).into_iter().for_each(warn);
                self.problem = Some(who);
                false
            }
        }
    }

    /// It is this process's.
    pub(crate) fn is_ours(&self) -> bool {
        self.file.is_some() && self.hold.is_ours()
    }

    /// It can't be read, and is not replaced by one with less in it. What the operator should know.
    pub(crate) fn is_unreadable(&mut self, error: &io::Error) -> String {
        let path = self.file.take().unwrap_or_default();
        self.problem = Some(error.to_string());
        self.hold.let_go();
        format!("{} are neither read nor kept: {}: {error}", self.words.what, path.display())
    }

    /// Where it is to be written, if there is something to write, and it is time or to be done at once.
    pub(crate) fn take_unsaved(&mut self, now: Instant, at_once: bool) -> Option<PathBuf> {
        let is_time = at_once || self.save_at.is_none_or(|at| now >= at);
        let path = self.file.clone().filter(|_| self.is_unsaved && self.is_ours() && is_time)?;
        self.is_unsaved = false;
        self.save_at = Some(now + self.save_every);
        Some(path)
    }

    /// It was written, or not. What the operator should know.
    pub(crate) fn saved(&mut self, path: &Path, outcome: io::Result<()>) -> Option<String> {
        let problem = outcome.err().map(|error| error.to_string());
        self.is_unsaved |= problem.is_some();
        let is_news = problem.is_some() && problem != self.problem;
        self.problem = problem;
        let problem = self.problem.as_ref().filter(|_| is_news)?;
        Some(format!("{} are not kept over a restart: {}: {problem}", self.words.what, path.display()))
    }
}
