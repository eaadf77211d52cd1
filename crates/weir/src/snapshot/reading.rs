//! Reads the last snapshot into the store, while weir already serves clients. Called by the keeper
//! (`snapshot`) when this process has become the owner of the file.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use weir_cache::{Changed, PREFACE_BYTES, Preface, Records, Restored};

use super::file::{self, Refused};
use super::tail::Tail;
use super::{BUFFER_BYTES, Snapshots, Wish, moment};
use crate::bans::wall_us;
use crate::log::Event;

/// Responses that are read between two checks for invalidations.
const LOOK_AFTER: usize = 64;

impl Snapshots {
    /// Stores the responses of the last run again.
    pub(super) fn read(&self) {
        let Some(wish) = self.lock().wish.clone() else { return };
        // From now on purges also apply to responses that are being read.
        let restoring = wish.store.begin_restoring();
        let path = wish.plan.path.display();
        let begun = self.begin_reading(&wish);
        let mut book = self.lock();
        book.is_read = true;
        let (file, preface, changed) = match begun {
            Ok(begun) => begun,
            Err(Refused::Missing) => {
                book.told(&wish, None);
                return;
            }
            Err(Refused::Unusable(why)) => {
                if !book.has_file() {
                    return;
                }
                // The file lacks later invalidations, so it must not be read later either.
                book.write_at = Some(Instant::now());
                let left =
                    file::remove_last(&wish.plan.path).err().map(|error| format!("; {error}"));
                book.told(
                    &wish,
                    Some(format!(
                        "the snapshot {path} is not used: {why}{}",
                        left.unwrap_or_default()
                    )),
                );
                return;
            }
        };
        drop(book);
        let mut records = Records::new(BufReader::with_capacity(BUFFER_BYTES, file), &preface);
        let mut counts = Counts::default();
        let flaw = loop {
            match wish.store.restore(&restoring, &mut records, (&preface, &changed), moment()) {
                Ok(Some(restored)) => counts.add(restored),
                Ok(None) => break None,
                Err(flaw) => break Some(flaw),
            }
            if counts.all().is_multiple_of(LOOK_AFTER as u64) {
                let mut book = self.lock();
                book.flush();
                if book.ends || !book.has_file() {
                    book.is_partly_read = true;
                    return;
                }
            }
        };
        let damage = flaw.map(|flaw| {
            let (at, left) = (records.offset(), preface.answers.saturating_sub(counts.all()));
            format!(
                "the snapshot {path}: {flaw}, at byte {at}; skipped {left} responses from there on"
            )
        });
        let others = counts.others();
        let line = Event::SnapshotRestored
            .says(format_args!("restored responses from the snapshot{others}"));
        line.with("file", &path).with("responses", counts.kept).log();
        let mut book = self.lock();
        book.write_at = Some(Instant::now() + Duration::from_micros(wish.plan.every_us));
        let figures = &mut book.figures;
        (figures.restored, figures.left_out) =
            (counts.kept, preface.answers.saturating_sub(counts.kept));
        (figures.written_s, figures.answers) = (preface.written_us / 1_000_000, preface.answers);
        figures.bytes = preface.end;
        book.told(&wish, damage);
    }

    /// Opens the snapshot; from then on changes are appended to it.
    fn begin_reading(&self, wish: &Wish) -> Result<(At, Preface, Changed), Refused> {
        let mut file = file::open(&wish.plan.path)?;
        let preface = file::preface(&mut file)?;
        if preface.rules != wish.rules {
            return Err(Refused::Unusable(
                "`cache` of a route, or its changes to requests, were different".to_owned(),
            ));
        }
        if preface.written_us > wall_us() {
            let why = "it was written in the future: the age of its responses is unknown after the \
                clock was set back";
            return Err(Refused::Unusable(why.to_owned()));
        }
        let mut book = self.lock();
        // Changes that the store noted before this process owned the file apply to it as well.
        let (_, bytes) = file::changes(&mut file, &preface)?;
        book.last = Some(Tail::after(file.try_clone()?, bytes));
        book.is_read = true;
        book.flush();
        if book.last.is_none() {
            return Err(Refused::Unusable(
                "weir cannot append later invalidations to it".to_owned(),
            ));
        }
        let (changed, _) = file::changes(&mut file, &preface)?;
        Ok((At { file, at: PREFACE_BYTES as u64 }, preface, changed))
    }
}

/// The fates of a snapshot's responses.
#[derive(Debug, Default)]
struct Counts {
    kept: u64,
    stale: u64,
    purged: u64,
    present: u64,
    no_room: u64,
}

impl Counts {
    fn add(&mut self, restored: Restored) {
        let count = match restored {
            Restored::Kept => &mut self.kept,
            Restored::Stale => &mut self.stale,
            Restored::Purged => &mut self.purged,
            Restored::Present => &mut self.present,
            Restored::NoRoom => &mut self.no_room,
        };
        *count += 1;
    }

    fn all(&self) -> u64 {
        self.kept + self.stale + self.purged + self.present + self.no_room
    }

    /// Returns text for people about the responses that were not stored.
    fn others(&self) -> String {
        let words = [
            (self.stale, "stale"),
            (self.purged, "purged"),
            (self.present, "already stored"),
            (self.no_room, "without room"),
        ];
        let said = words
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"));
        let said: Vec<String> = said.collect();
        if said.is_empty() {
            String::new()
        } else {
            format!("; others skipped: {}", said.join(", "))
        }
    }
}

/// Reads a file that grows meanwhile.
#[derive(Debug)]
struct At {
    file: File,
    at: u64,
}

impl Read for At {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(bytes, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
