//! Purges of more than one response: predicates with a serial, checked when a response is looked
//! up.
//!
//! A purge is one entry, however many responses it covers, and holds from the moment it is added.
//! It also covers responses that are being fetched, because each has the serial from the start of
//! its fetch. A lookup checks only the bans that were added since the last check of the response.
//! After a sweep has checked all stored responses, old bans can be dropped. Bound: [`BANS_MAX`].

use std::collections::VecDeque;

use crate::key::url_of;

/// Most bans that are kept at a time.
pub const BANS_MAX: usize = 1024;

/// The number of bans at the last check of a response; at first, at the start of its fetch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Serial(pub(crate) u64);

/// The origin of a response: what to drop when a connection turns out to be out of step with its
/// requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceMark {
    /// A name of the connection that is unique in the process.
    pub connection: u64,
    /// The position among its responses, counted from the first.
    pub position: u64,
}

/// The responses that are purged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// All.
    All,
    /// Those of one authority, as in keys: lower case, without the default port.
    Host(Vec<u8>),
    /// Those whose URL has this prefix, as in keys.
    Prefix(Vec<u8>),
    /// Those that have this tag, of one authority, or of all if that is None.
    Tag {
        /// The tag.
        tag: Vec<u8>,
        /// The authority. Groups of RFC 9875 belong to one origin.
        host: Option<Vec<u8>>,
    },
    /// Those of one URL, as in keys.
    Url(Vec<u8>),
    /// Those that arrived over one connection, from this one on.
    Source(SourceMark),
}

impl Target {
    /// Whether it covers a response, by key, sorted tags and origin.
    pub fn is_met(&self, key: &[u8], tags: &[Vec<u8>], source: SourceMark) -> bool {
        match self {
            Self::All => true,
            Self::Host(host) => host_of(key) == host,
            Self::Prefix(prefix) => url_of(key).starts_with(prefix),
            Self::Tag { tag, host } => {
                host.as_ref().is_none_or(|host| host_of(key) == host)
                    && tags.binary_search(tag).is_ok()
            }
            Self::Url(url) => url_of(key) == url,
            Self::Source(from) => {
                source.connection == from.connection && source.position >= from.position
            }
        }
    }
}

/// Returns the authority in a key.
pub(crate) fn host_of(key: &[u8]) -> &[u8] {
    let url = url_of(key);
    let at = url.windows(3).position(|window| window == b"://").map_or(0, |at| at + 3);
    url[at..].split(|byte| matches!(byte, b'/' | b'*')).next().unwrap_or_default()
}

/// The effect of bans on a response.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// No ban covers it.
    Stays,
    /// A soft ban does: it is stale from now on.
    Stale,
    /// It is removed.
    Gone,
    /// It is removed because its source cannot be trusted.
    Withdrawn,
}

/// [`BANS_MAX`] is reached: wait for the sweep, or purge all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyBans;

/// The purges that some stored response has not been checked against.
#[derive(Clone, Debug, Default)]
pub struct Bans {
    /// Oldest first; the serial of the first one is `first`.
    list: VecDeque<(Target, Verdict)>,
    first: u64,
}

impl Bans {
    /// Returns the serial of a response whose fetch begins now, or that was just checked.
    pub fn now(&self) -> Serial {
        Serial(self.first + self.list.len() as u64)
    }

    /// Purges stored responses and those that are being fetched. `is_soft`: they become stale
    /// instead of being removed. Purging all that is not soft never fails, because it replaces all
    /// other bans.
    ///
    /// # Errors
    /// The operator purges faster than the store is swept.
    pub fn add(&mut self, target: Target, is_soft: bool) -> Result<(), TooManyBans> {
        if target == Target::All && !is_soft {
            self.first += self.list.len() as u64;
            self.list.clear();
        }
        if self.list.len() == BANS_MAX {
            return Err(TooManyBans);
        }
        let verdict = match target {
            Target::Source(_) => Verdict::Withdrawn,
            _ if is_soft => Verdict::Stale,
            _ => Verdict::Gone,
        };
        self.list.push_back((target, verdict));
        Ok(())
    }

    /// Returns the verdict on a response that was last checked when `seen` was [`Bans::now`]. If it
    /// is kept, remember [`Bans::now`] for it.
    ///
    /// Bans that were dropped are not needed for it: they were dropped because no older serial was
    /// left. If everything was purged, that ban covers all responses that are older.
    pub fn judge(&self, seen: Serial, key: &[u8], tags: &[Vec<u8>], source: SourceMark) -> Verdict {
        let skipped = seen.0.saturating_sub(self.first).min(self.list.len() as u64) as usize;
        let met = self.list.range(skipped..).filter(|(target, _)| target.is_met(key, tags, source));
        met.map(|(_, verdict)| *verdict).max().unwrap_or(Verdict::Stays)
    }

    /// Drops the bans that all responses with serials from `oldest` on have been checked against:
    /// the lowest serial of stored responses and of those that are being fetched.
    pub fn retire(&mut self, oldest: Serial) {
        while self.first < oldest.0 && self.list.pop_front().is_some() {
            self.first += 1;
        }
    }

    /// Purges all in place of a list that may be incomplete.
    pub(crate) fn forget_all(&mut self) {
        self.first += self.list.len() as u64;
        self.list = VecDeque::from([(Target::All, Verdict::Gone)]);
    }

    /// Returns the number of bans.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: &[u8] = b"http://a.example:8080/dir/x?y\nupstream\n";
    const SOURCE: SourceMark = SourceMark { connection: 7, position: 5 };

    #[test]
    fn whom_targets_mean() {
        let tags = [b"one".to_vec(), b"two".to_vec()];
        let is_met = |target: Target| target.is_met(KEY, &tags, SOURCE);
        let tag = |tag: &str, host: Option<&str>| Target::Tag {
            tag: tag.into(),
            host: host.map(Into::into),
        };
        assert!(is_met(Target::All));
        assert!(is_met(Target::Host(b"a.example:8080".to_vec())));
        assert!(!is_met(Target::Host(b"a.example".to_vec())));
        assert!(is_met(Target::Prefix(b"http://a.example:8080/dir/".to_vec())));
        assert!(!is_met(Target::Prefix(b"http://a.example:8080/dir/x?y\nu".to_vec())));
        assert!(is_met(tag("two", None)) && is_met(tag("two", Some("a.example:8080"))));
        assert!(is_met(Target::Url(b"http://a.example:8080/dir/x?y".to_vec())));
        assert!(!is_met(Target::Url(b"http://a.example:8080/dir/x?".to_vec())));
        let source = |connection, position| Target::Source(SourceMark { connection, position });
        assert!(is_met(source(7, 5)) && is_met(source(7, 0)));
        assert!(!is_met(source(7, 6)) && !is_met(source(8, 0)));
        assert!(!is_met(tag("two", Some("b.example"))) && !is_met(tag("tw", None)));
    }

    #[test]
    fn what_is_fetched_meanwhile_is_purged() {
        let mut bans = Bans::default();
        let before = bans.now();
        bans.add(Target::Prefix(b"http://a.example:8080/dir".to_vec()), false).expect("room");
        assert_eq!(bans.judge(before, KEY, &[], SOURCE), Verdict::Gone);
        assert_eq!(bans.judge(bans.now(), KEY, &[], SOURCE), Verdict::Stays);
        assert_eq!(bans.judge(before, b"http://b/\n\n", &[], SOURCE), Verdict::Stays);
        bans.add(Target::Host(b"a.example:8080".to_vec()), true).expect("room");
        assert_eq!(bans.judge(before, KEY, &[], SOURCE), Verdict::Gone);
        let between = Serial(before.0 + 1);
        assert_eq!(bans.judge(between, KEY, &[], SOURCE), Verdict::Stale);
        bans.retire(between);
        assert_eq!(bans.len(), 1);
        assert_eq!(bans.judge(between, KEY, &[], SOURCE), Verdict::Stale);
        bans.retire(bans.now());
        assert!(bans.is_empty());
        assert_eq!(bans.judge(bans.now(), KEY, &[], SOURCE), Verdict::Stays);
    }

    #[test]
    fn a_full_list_is_told_and_all_always_works() {
        let mut bans = Bans::default();
        let before = bans.now();
        for _ in 0..BANS_MAX {
            assert_eq!(bans.add(Target::Host(b"b".to_vec()), false), Ok(()));
        }
        assert_eq!(bans.add(Target::Host(b"b".to_vec()), false), Err(TooManyBans));
        assert_eq!(bans.add(Target::All, true), Err(TooManyBans));
        assert_eq!(bans.judge(before, KEY, &[], SOURCE), Verdict::Stays);
        assert_eq!(bans.add(Target::All, false), Ok(()));
        assert_eq!((bans.len(), bans.judge(before, KEY, &[], SOURCE)), (1, Verdict::Gone));
        assert_eq!(bans.judge(bans.now(), KEY, &[], SOURCE), Verdict::Stays);
    }

    proptest! {
        /// Equal to purging every response at the moment of the purge.
        #[test]
        fn like_purging_at_once(
            steps in prop::collection::vec((0u8..5, 0usize..4, any::<bool>()), 0..60),
        ) {
            let keys: [&[u8]; 4] =
                [b"http://a/1\n\n", b"http://a/2\n\n", b"http://b/1\n\n", b"http://b/2\n\n"];
            let mut bans = Bans::default();
            // For each response: the serial it has seen, and the expected verdict.
            let mut stored: [Option<(Serial, Verdict)>; 4] = [None; 4];
            for (step, which, is_soft) in steps {
                let purge = match step {
                    0 => {
                        stored[which] = Some((bans.now(), Verdict::Stays));
                        None
                    }
                    1 => {
                        if let Some((seen, expected)) = stored[which] {
                            prop_assert_eq!(bans.judge(seen, keys[which], &[], SOURCE), expected);
                            stored[which] =
                                (expected == Verdict::Stays).then(|| (bans.now(), expected));
                        }
                        None
                    }
                    2 => {
                        let oldest = stored
                            .iter()
                            .flatten()
                            .map(|(seen, _)| *seen)
                            .min()
                            .unwrap_or(bans.now());
                        bans.retire(oldest);
                        None
                    }
                    3 => Some(Target::Host(keys[which][7..8].to_vec())),
                    _ if which == 0 => Some(Target::All),
                    _ => Some(Target::Prefix(keys[which][..10].to_vec())),
                };
                if let Some(target) = purge {
                    for (key, stored) in keys.iter().zip(&mut stored) {
                        if let Some((_, expected)) = stored
                            && target.is_met(key, &[], SOURCE)
                        {
                            *expected = (*expected).max(if is_soft {
                                Verdict::Stale
                            } else {
                                Verdict::Gone
                            });
                        }
                    }
                    prop_assert_eq!(bans.add(target, is_soft), Ok(()));
                }
            }
        }
    }
}
