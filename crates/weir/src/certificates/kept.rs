//! A value that was read from files, in force until they have changed into another good version.
//!
//! Called by [`super`] at each check. Bad files change nothing. weir reports them if they are still
//! bad at the next check, because their replacement may be half done. Bound: each check reads the
//! metadata of each file, and the content of changed files once.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use weir_tls::{
    BadPair, ClientTrust, EXPIRES_SOON_S, Files, Pair, Roots, Staple, TicketKeys, Trust,
    WantedOfClients, provider,
};

use crate::log::{Event, Line};
use crate::side::stamp::Stamp;

/// How close a value is to its expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Age {
    Fine,
    Soon,
    Over,
}

/// A value that is read from files.
pub(super) trait Source {
    type Value: Debug;

    /// Text behind the error when its files are bad.
    const STAYS: &'static str;

    /// Returns all of its files.
    fn files(&self) -> Vec<&Path>;

    /// Reads them.
    ///
    /// # Errors
    /// What is wrong with them.
    fn read(&self) -> Result<Self::Value, BadPair>;

    /// Returns the message after its files were read again.
    fn told(&self, value: &Self::Value) -> String;

    /// Returns how close it is to its expiry at this time, seconds since 1970.
    fn age(_: &Self::Value, _: i64) -> Age {
        Age::Fine
    }

    /// Returns the message about its expiry.
    fn age_text(_: &Self::Value, _: i64) -> Option<String> {
        None
    }
}

impl Source for Files {
    type Value = Pair;

    const STAYS: &'static str = "the previous certificate remains in force";

    fn files(&self) -> Vec<&Path> {
        vec![&self.certificate, &self.key]
    }

    fn read(&self) -> Result<Pair, BadPair> {
        Pair::read(self, &provider())
    }

    fn told(&self, pair: &Pair) -> String {
        let day = weir_tls::day_text(pair.not_after);
        format!("read the certificate in {} again; it expires on {day}", self.certificate.display())
    }

    fn age(pair: &Pair, now: i64) -> Age {
        match pair.not_after - now {
            ..0 => Age::Over,
            0..EXPIRES_SOON_S => Age::Soon,
            _ => Age::Fine,
        }
    }

    fn age_text(pair: &Pair, now: i64) -> Option<String> {
        pair.out_of_time(now).or_else(|| pair.warnings(now).into_iter().next())
    }
}

impl Source for Trust {
    type Value = Roots;

    const STAYS: &'static str = "the previous CAs remain trusted";

    fn files(&self) -> Vec<&Path> {
        match self {
            Trust::File(path) => vec![path],
            Trust::System | Trust::Anybody => Vec::new(),
        }
    }

    fn read(&self) -> Result<Roots, BadPair> {
        Roots::read(self)
    }

    fn told(&self, roots: &Roots) -> String {
        let file = self.files().first().map(|path| path.display().to_string()).unwrap_or_default();
        format!("reread the CA certificates in {file}: {}", roots.len())
    }
}

impl Source for WantedOfClients {
    type Value = ClientTrust;

    const STAYS: &'static str = "weir still judges clients by the previous content";

    fn files(&self) -> Vec<&Path> {
        std::iter::once(self.authorities.as_path()).chain(self.revocations.as_deref()).collect()
    }

    fn read(&self) -> Result<ClientTrust, BadPair> {
        ClientTrust::read(self, &provider())
    }

    fn told(&self, trust: &ClientTrust) -> String {
        let (file, count, lists) = (self.authorities.display(), trust.authorities, trust.lists);
        format!(
            "reread the CA file for client certificates, {file}: {count} certificates, {lists} \
                revocation lists"
        )
    }

    fn age(trust: &ClientTrust, now: i64) -> Age {
        if trust.out_of_time(now).is_some() { Age::Over } else { Age::Fine }
    }

    fn age_text(trust: &ClientTrust, now: i64) -> Option<String> {
        trust.out_of_time(now)
    }
}

/// A file with the keys of tickets.
#[derive(Debug)]
pub(super) struct KeyFile(pub(super) PathBuf);

impl Source for KeyFile {
    type Value = TicketKeys;

    const STAYS: &'static str = "weir still seals tickets with the previous keys";

    fn files(&self) -> Vec<&Path> {
        vec![&self.0]
    }

    fn read(&self) -> Result<TicketKeys, BadPair> {
        TicketKeys::read(&self.0)
    }

    fn told(&self, keys: &TicketKeys) -> String {
        format!("reread the ticket keys in {}: {} of them are used", self.0.display(), keys.len())
    }
}

/// A file with an OCSP response.
#[derive(Debug)]
pub(super) struct OcspFile(pub(super) PathBuf);

impl Source for OcspFile {
    type Value = Staple;

    const STAYS: &'static str = "clients still get the previous response";

    fn files(&self) -> Vec<&Path> {
        vec![&self.0]
    }

    fn read(&self) -> Result<Staple, BadPair> {
        Staple::read(&self.0)
    }

    fn told(&self, _: &Staple) -> String {
        format!("read the OCSP response in {} again", self.0.display())
    }
}

/// Versions of files; None: a file is missing.
type Stamps = Vec<Option<Stamp>>;

fn stamps(source: &impl Source) -> Stamps {
    source.files().into_iter().map(|path| Stamp::at(path).ok()).collect()
}

/// The value in force, and its files.
#[derive(Debug)]
pub(super) struct Kept<S: Source> {
    pub(super) source: S,
    pub(super) value: S::Value,
    /// Of the files that it was read from.
    read: Stamps,
    /// Of bad files, and whether they were reported.
    bad: Option<(Stamps, bool)>,
    /// What is wrong with the files now.
    pub(super) problem: Option<String>,
    /// The reported age.
    age: Age,
}

impl<S: Source> Kept<S> {
    /// Reads it at this time, seconds since 1970.
    pub(super) fn open(source: S, now: i64) -> Result<Kept<S>, String> {
        let read = stamps(&source);
        let value = source.read().map_err(|bad| bad.to_string())?;
        let age = S::age(&value, now);
        Ok(Kept { source, value, read, bad: None, problem: None, age })
    }

    /// Reads the files again if they have changed. Reports once when the expiry is near, and once
    /// when it has come. True: the value is another one now.
    pub(super) fn look(&mut self, now: i64, tell: &mut dyn FnMut(Line)) -> bool {
        let is_new = self.renew(tell);
        let age = S::age(&self.value, now);
        if age > self.age {
            let text = S::age_text(&self.value, now);
            text.map(|text| Event::TlsExpiry.says(text)).into_iter().for_each(tell);
        }
        self.age = age;
        is_new
    }

    fn renew(&mut self, tell: &mut dyn FnMut(Line)) -> bool {
        let found = stamps(&self.source);
        if found == self.read {
            (self.bad, self.problem) = (None, None);
            return false;
        }
        let was_seen = match &self.bad {
            Some((before, true)) if *before == found => return false,
            Some((before, _)) => *before == found,
            None => false,
        };
        match self.source.read() {
            Ok(value) => {
                tell(Event::TlsFileRead.says(self.source.told(&value)));
                (self.value, self.read, self.bad, self.problem) = (value, found, None, None);
                self.age = Age::Fine;
                true
            }
            Err(bad) => {
                if was_seen {
                    tell(Event::TlsFileBad.says(format_args!("{bad}; {}", S::STAYS)));
                    self.problem = Some(bad.to_string());
                }
                self.bad = Some((found, was_seen));
                false
            }
        }
    }
}
