//! The file of users, as `weir passwd` writes it: lines `name:hash`. Empty lines and lines that
//! begin with `#` are ignored. Used by `verify` and `passwd`, and by weir-config to check a
//! configuration.
//!
//! Bounds: [`BYTES_MAX`] of the file, [`NAME_BYTES_MAX`] of a name.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use weir_proxy::forward::lookup::User;

use super::hash::scheme_of;
use super::stamp::Stamp;
use crate::log::{Event, Line};

/// Largest file, in bytes; about 100,000 users.
const BYTES_MAX: u64 = 16 << 20;
/// Longest name, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// Largest number of reported errors of one file.
const ERRORS_MAX: usize = 10;

/// The errors of a file: a line for each, with its place.
#[derive(Debug)]
pub(crate) struct BadUsers(Vec<String>);

/// Returns the number of users in a file with this content.
///
/// # Errors
/// Its errors, up to [`ERRORS_MAX`], and the number of further ones.
pub(crate) fn check(path: &Path, bytes: &[u8]) -> Result<usize, Vec<String>> {
    parse(bytes, path, &Users::default()).map(|users| users.entries.len()).map_err(|bad| bad.0)
}

impl fmt::Display for BadUsers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| writeln!(f, "weir: {line}"))
    }
}

/// A user with its hash.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) hash: Arc<str>,
    pub(crate) user: Arc<User>,
}

/// The content of a file at some time.
#[derive(Debug, Default)]
pub(crate) struct Users {
    entries: HashMap<Box<str>, Entry>,
    /// Users that still have connections but are no longer in the file: their limits continue if
    /// they return.
    gone: HashMap<Box<str>, Arc<User>>,
    /// The hash of one user. Unknown names are compared with it, so that they take as long as known
    /// ones.
    dummy: Option<Arc<str>>,
    stamp: Option<Stamp>,
    /// Users other than the owner and its group may read it.
    pub(crate) is_open: bool,
}

impl Users {
    /// Reads a file. A user with the same hash in `before` keeps its object; with another hash its
    /// limits continue.
    ///
    /// # Errors
    /// Its errors, up to [`ERRORS_MAX`].
    pub(crate) fn read(path: &Path, before: &Users) -> Result<Users, BadUsers> {
        let failed = |error: io::Error| {
            BadUsers(vec![format!("cannot read the users in {}: {error}", path.display())])
        };
        let file = weir_io::open_regular(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        let mut users = parse(&bytes, path, before).map_err(|mut bad| {
            let way_out =
                format!("rewrite a line with `weir passwd {} NAME`, or delete it", path.display());
            bad.0.push(way_out);
            bad
        })?;
        users.stamp = Some(Stamp::of(&metadata));
        users.is_open = metadata.mode() & 0o004 != 0;
        Ok(users)
    }

    /// Finds a user by name.
    pub(crate) fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Returns a hash to compare with if the user has none. None: the file is empty.
    pub(crate) fn dummy(&self) -> Option<&Arc<str>> {
        self.dummy.as_ref()
    }

    /// Returns the object for a line of the next version of this file.
    fn next(&self, name: &str, hash: &str) -> Arc<User> {
        match (self.entries.get(name), self.gone.get(name)) {
            (Some(entry), _) if *entry.hash == *hash => Arc::clone(&entry.user),
            (Some(Entry { user, .. }), _) | (None, Some(user)) => Arc::new(user.renewed()),
            (None, None) => Arc::new(User::new(name)),
        }
    }

    /// Revokes all users that are missing from the next version of this file, or have another hash
    /// there.
    pub(crate) fn end(&self, next: &Users) {
        for (name, Entry { user, .. }) in &self.entries {
            if !next.find(name).is_some_and(|entry| Arc::ptr_eq(&entry.user, user)) {
                user.revoke();
            }
        }
    }
}

/// Returns the error in a name; None: it is valid.
pub(crate) fn name_error(name: &str) -> Option<String> {
    if name.is_empty() {
        Some("the name is empty".to_owned())
    } else if name.len() > NAME_BYTES_MAX {
        Some(format!("the name has {} bytes, but may have at most {NAME_BYTES_MAX}", name.len()))
    } else if name.contains(':') || name.chars().any(char::is_control) || name.starts_with('#') {
        Some("a name has no colon and no control characters, and does not begin with #".to_owned())
    } else {
        None
    }
}

/// Parses the content of a file.
fn parse(bytes: &[u8], path: &Path, before: &Users) -> Result<Users, BadUsers> {
    let path = path.display();
    if bytes.len() as u64 > BYTES_MAX {
        return Err(BadUsers(vec![format!(
            "the users in {path} are more than {} MiB",
            BYTES_MAX >> 20
        )]));
    }
    let mut users = Users::default();
    let mut errors = Vec::new();
    for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let added = match std::str::from_utf8(line) {
            Ok(line) if line.trim().is_empty() || line.starts_with('#') => continue,
            Ok(line) => add(line, &mut users, before),
            Err(_) => Err("this is not UTF-8 text".to_owned()),
        };
        if let Err(what) = added {
            errors.push(format!("{path}:{}: {what}", at + 1));
        }
    }
    if errors.is_empty() {
        let all =
            before.entries.iter().map(|(name, entry)| (name, &entry.user)).chain(&before.gone);
        let gone =
            all.filter(|(name, user)| user.connections() > 0 && !users.entries.contains_key(*name));
        users.gone = gone.map(|(name, user)| (name.clone(), Arc::clone(user))).collect();
        return Ok(users);
    }
    if errors.len() > ERRORS_MAX {
        let more = errors.len() - ERRORS_MAX;
        errors.truncate(ERRORS_MAX);
        errors.push(format!("{path} has {more} more errors"));
    }
    Err(BadUsers(errors))
}

fn add(line: &str, users: &mut Users, before: &Users) -> Result<(), String> {
    let Some((name, hash)) = line.split_once(':') else {
        return Err("a colon is missing between a name and a hash".to_owned());
    };
    if let Some(error) = name_error(name) {
        return Err(error);
    }
    let hash = hash.trim_end();
    scheme_of(hash).map_err(|what| format!("the hash of `{name}` {what}"))?;
    if users.entries.contains_key(name) {
        return Err(format!("`{name}` is in the file twice"));
    }
    let hash: Arc<str> = hash.into();
    users.dummy.get_or_insert_with(|| Arc::clone(&hash));
    let user = before.next(name, &hash);
    users.entries.insert(name.into(), Entry { hash, user });
    Ok(())
}

/// A file that is read again when it changes.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: Arc<Path>,
    pub(crate) now: Arc<Users>,
    /// The bad version of the file that was reported; an inner None: the file was missing.
    bad: Option<Option<Stamp>>,
}

impl Source {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// See [`Users::read`].
    pub(crate) fn open(path: &Path) -> Result<Source, BadUsers> {
        let now = Arc::new(Users::read(path, &Users::default())?);
        Ok(Source { path: path.into(), now, bad: None })
    }

    /// Returns a warning for the operator about the file.
    pub(crate) fn note(&self) -> Option<String> {
        let path = self.path.display();
        let note = format!(
            "all users of this host may read the hashed passwords in {path}; `chmod o= {path}` \
                prevents that"
        );
        self.now.is_open.then_some(note)
    }

    /// Reads the file again if it has changed. Returns lines for the operator. A bad file is
    /// reported once, and the users stay as they were.
    pub(crate) fn look(&mut self) -> Vec<Line> {
        let stamp = Stamp::at(&self.path).ok();
        if stamp == self.now.stamp {
            self.bad = None;
            return Vec::new();
        }
        if self.bad == Some(stamp) {
            return Vec::new();
        }
        let about = |line: Line| line.with("file", self.path.display());
        match Users::read(&self.path, &self.now) {
            Ok(users) => {
                let line = about(Event::UsersRead.says("reread the users"));
                let line = line.with("users", users.entries.len());
                (self.now, self.bad) = (Arc::new(users), None);
                vec![line]
            }
            Err(bad) => {
                self.bad = Some(stamp);
                let stays = Event::UsersBad.says("the previous users remain in force");
                Event::UsersBad.report(&bad.to_string()).chain([stays]).map(about).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: what a file may contain, how errors are reported, and that users outlive changes of
    //! it. How: texts and real files.

    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    const HASH: &str = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";

    /// A file that is removed with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, text: &str) -> Scratch {
            let path =
                std::env::temp_dir().join(format!("weir-users-{}-{name}", std::process::id()));
            std::fs::write(&path, text).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn lines_are_names_and_hashes() {
        let text = format!("# users\n\nann:{HASH}\r\nb\u{f6}b s:{HASH}\n");
        let users = parse(text.as_bytes(), Path::new("u"), &Users::default()).unwrap();
        assert_eq!(&*users.find("ann").unwrap().hash, HASH);
        assert_eq!(&*users.find("b\u{f6}b s").unwrap().user.name, "b\u{f6}b s");
        assert!(users.find("# users").is_none() && users.find("").is_none());
        assert_eq!(users.dummy().map(|hash| &**hash), Some(HASH));
        assert!(parse(b"", Path::new("u"), &Users::default()).unwrap().dummy().is_none());
    }

    #[test]
    fn each_error_has_its_line() {
        let text = format!("ann:{HASH}\nbob\ncat:$apr1$x$y\nann:{HASH}\n:{HASH}\nd\u{e9}");
        let mut bytes = text.into_bytes();
        bytes.pop();
        let errors = check(Path::new("/etc/u"), &bytes).unwrap_err();
        for (error, part) in errors.iter().zip([
            "/etc/u:2: a colon is missing",
            "/etc/u:3: the hash of `cat` is MD5",
            "/etc/u:4: `ann` is in the file twice",
            "/etc/u:5: the name is empty",
            "/etc/u:6: this is not UTF-8",
        ]) {
            assert!(error.starts_with(part), "{part} in {error}");
        }
        assert_eq!(errors.len(), 5);
        let many = check(Path::new("u"), &b"x\n".repeat(50)).unwrap_err();
        assert!(many.len() == 11 && many[10].contains("40 more"), "{many:?}");
        assert!(check(Path::new("u"), &vec![b'\n'; 17 << 20]).unwrap_err()[0].contains("16 MiB"));
        assert_eq!(check(Path::new("u"), format!("ann:{HASH}\nbob:{HASH}").as_bytes()), Ok(2));
        assert_eq!(check(Path::new("u"), b"# nobody\n"), Ok(0));
    }

    #[test]
    fn names_are_limited() {
        let long = "a".repeat(256);
        for bad in ["", "a:b", "a\nb", "a\u{7f}", "#a", &long] {
            assert!(name_error(bad).is_some(), "{bad:?}");
        }
        for good in ["a", "a b", "ann@example.org", "m\u{fc}ller", &long[1..]] {
            assert_eq!(name_error(good), None, "{good:?}");
        }
    }

    #[test]
    fn users_outlive_changes_and_bad_files() {
        let file = Scratch::new("change", &format!("ann:{HASH}\nbob:{HASH}\n"));
        let mut source = Source::open(&file.0).unwrap();
        let (ann, bob) =
            ["ann", "bob"].map(|name| Arc::clone(&source.now.find(name).unwrap().user)).into();
        assert!(ann.enter(None));
        let all =
            |lines: Vec<Line>| lines.iter().map(Line::to_string).collect::<Vec<_>>().join("\n");
        assert_eq!(source.look(), []);

        std::fs::write(&file.0, format!("bob:{HASH}\ncat:{HASH}\n# longer\n")).unwrap();
        assert!(all(source.look()).ends_with("users=2"));
        assert!(source.now.find("ann").is_none());
        assert!(Arc::ptr_eq(&source.now.find("bob").unwrap().user, &bob));

        std::fs::write(&file.0, "bob:secret\n").unwrap();
        let told = all(source.look());
        assert!(
            told.contains(":1: the hash of `bob`")
                && told.contains("weir passwd")
                && told.contains("previous users remain in force"),
            "{told}"
        );
        assert_eq!(source.look(), [], "told once");
        assert!(source.now.find("cat").is_some());

        std::fs::remove_file(&file.0).unwrap();
        assert!(all(source.look()).contains("No such file"));
        assert_eq!(source.look(), [], "told once");

        std::fs::write(&file.0, format!("ann:{HASH}\n")).unwrap();
        assert!(all(source.look()).ends_with("users=1"));
        let again = &source.now.find("ann").unwrap().user;
        assert!(
            !Arc::ptr_eq(again, &ann) && again.connections() == 1,
            "he had a connection all the time"
        );
        assert_eq!(source.look(), []);
    }

    #[test]
    fn who_goes_or_has_another_hash_is_revoked() {
        let read =
            |text: &str, before: &Users| parse(text.as_bytes(), Path::new("u"), before).unwrap();
        let other = HASH.replace("$05$", "$06$");
        let users = read(&format!("ann:{HASH}\nbob:{HASH}\ncat:{HASH}\n"), &Users::default());
        let [ann, bob, cat] =
            ["ann", "bob", "cat"].map(|name| Arc::clone(&users.find(name).unwrap().user));
        assert!(ann.enter(None));
        let next = read(&format!("cat:{HASH}\nann:{other}\n"), &users);
        assert!(!ann.is_revoked(), "not before the file is used");
        users.end(&next);
        assert_eq!([&ann, &bob, &cat].map(|user| user.is_revoked()), [true, true, false]);
        let again = &next.find("ann").unwrap().user;
        assert!(!again.is_revoked() && again.connections() == 1);
        // The old hash returns: a client with the old password has to show it again.
        let last = read(&format!("ann:{HASH}\n"), &next);
        next.end(&last);
        assert!(
            again.is_revoked() && ann.is_revoked() && !last.find("ann").unwrap().user.is_revoked()
        );
    }

    #[test]
    fn who_else_may_read_the_file_is_seen() {
        let file = Scratch::new("mode", &format!("ann:{HASH}\n"));
        for (mode, is_open) in [(0o600, false), (0o640, false), (0o644, true), (0o604, true)] {
            std::fs::set_permissions(&file.0, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                Users::read(&file.0, &Users::default()).unwrap().is_open,
                is_open,
                "{mode:o}"
            );
        }
        assert!(
            Source::open(Path::new("/does/not/exist"))
                .unwrap_err()
                .to_string()
                .contains("/does/not/exist")
        );
    }
}
