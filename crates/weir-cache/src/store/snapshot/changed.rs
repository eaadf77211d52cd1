//! Invalidations since a snapshot was written, so that each of its responses is judged by a few
//! lookups, however many they are. Called when it is read (`restore`). Pure. Bound: the contents of
//! the bytes behind the records, once.

use std::collections::{BTreeMap, BTreeSet};

use super::super::changes::Change;
use super::format::{Flaw, read_changes};
use crate::bans::{SourceMark, Target, Verdict, host_of};
use crate::key::url_of;

/// See the module.
#[derive(Debug)]
pub struct Changed {
    /// For all responses.
    all: Verdict,
    urls: BTreeMap<Vec<u8>, Verdict>,
    hosts: BTreeMap<Vec<u8>, Verdict>,
    prefixes: BTreeMap<Vec<u8>, Verdict>,
    /// The lengths of these: a URL has one beginning of each length.
    prefix_lengths: BTreeSet<usize>,
    /// By the tag, then by the authority.
    tags: BTreeMap<Vec<u8>, BTreeMap<Option<Vec<u8>>, Verdict>>,
    /// By connection, then by first affected response; a later one is kept only if it is worse.
    sources: BTreeMap<u64, BTreeMap<u64, Verdict>>,
}

impl Default for Changed {
    fn default() -> Self {
        Self {
            all: Verdict::Stays,
            urls: BTreeMap::new(),
            hosts: BTreeMap::new(),
            prefixes: BTreeMap::new(),
            prefix_lengths: BTreeSet::new(),
            tags: BTreeMap::new(),
            sources: BTreeMap::new(),
        }
    }
}

impl Changed {
    /// Reads the bytes behind the records.
    ///
    /// # Errors
    /// They are damaged: nothing of the snapshot may be used.
    pub fn read(bytes: &[u8]) -> Result<Self, Flaw> {
        let mut changed = Self::default();
        read_changes(bytes)?.into_iter().for_each(|change| changed.add(change));
        Ok(changed)
    }

    fn add(&mut self, Change { target, is_soft }: Change) {
        let verdict = if is_soft { Verdict::Stale } else { Verdict::Gone };
        let worst = match target {
            Target::All => &mut self.all,
            Target::Url(url) => self.urls.entry(url).or_insert(verdict),
            Target::Host(host) => self.hosts.entry(host).or_insert(verdict),
            Target::Prefix(prefix) => {
                self.prefix_lengths.insert(prefix.len());
                self.prefixes.entry(prefix).or_insert(verdict)
            }
            Target::Tag { tag, host } => {
                self.tags.entry(tag).or_default().entry(host).or_insert(verdict)
            }
            Target::Source(SourceMark { connection, position }) => {
                let of_connection = self.sources.entry(connection).or_default();
                if of_connection.range(..=position).any(|(_, before)| *before >= verdict) {
                    return;
                }
                of_connection.retain(|later, other| *later < position || *other > verdict);
                of_connection.entry(position).or_insert(verdict)
            }
        };
        *worst = verdict.max(*worst);
    }

    /// Returns the verdict on a response: by its key, its tags, and its origin.
    pub(super) fn judge(&self, key: &[u8], tags: &[Vec<u8>], source: SourceMark) -> Verdict {
        let (url, host) = (url_of(key), host_of(key));
        let beginnings =
            self.prefix_lengths.iter().filter_map(|length| self.prefixes.get(url.get(..*length)?));
        let of_tag = |hosts: &BTreeMap<Option<Vec<u8>>, Verdict>| {
            let of_host = hosts.get(&Some(host.to_vec()));
            hosts.get(&None).max(of_host).copied()
        };
        let of_tags = tags.iter().filter_map(|tag| of_tag(self.tags.get(tag)?));
        let of_source = self.sources.get(&source.connection);
        let of_source = of_source
            .into_iter()
            .flat_map(|from| from.range(..=source.position))
            .map(|(_, verdict)| *verdict);
        let one =
            self.urls.get(url).into_iter().chain(self.hosts.get(host)).chain(beginnings).copied();
        one.chain(of_tags).chain(of_source).fold(self.all, Verdict::max)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: a response is judged as if each change were checked against it. How: random changes
    //! and responses of few names.

    use proptest::prelude::*;

    use super::*;

    fn target() -> impl Strategy<Value = Target> {
        let text = |pattern: &'static str| pattern.prop_map(String::into_bytes);
        let source = (0u64..3, 0u64..4)
            .prop_map(|(connection, position)| SourceMark { connection, position });
        prop_oneof![
            1 => Just(Target::All),
            4 => text("[ab]").prop_map(Target::Host),
            4 => text("(http://[ab](/[xy]{0,2})?)?").prop_map(Target::Prefix),
            4 => text("http://[ab]/[xy]{0,2}").prop_map(Target::Url),
            8 => (text("[st]"), prop::option::of(text("[ab]")))
                .prop_map(|(tag, host)| Target::Tag { tag, host }),
            8 => source.prop_map(Target::Source),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn like_one_after_the_other(
            changes in prop::collection::vec((target(), any::<bool>()), 0..8),
            key in "http://[ab]/[xy]{0,2}\n(app|x/y)\n",
            tags in prop::collection::btree_set("[stu]", 0..3),
            (connection, position) in (0u64..3, 0u64..4),
        ) {
            let tags: Vec<Vec<u8>> = tags.into_iter().map(String::into_bytes).collect();
            let source = SourceMark { connection, position };
            let mut changed = Changed::default();
            let mut expected = Verdict::Stays;
            for (target, is_soft) in changes {
                if target.is_met(key.as_bytes(), &tags, source) {
                    expected = expected.max(if is_soft { Verdict::Stale } else { Verdict::Gone });
                }
                changed.add(Change { target, is_soft });
            }
            prop_assert_eq!(changed.judge(key.as_bytes(), &tags, source), expected);
        }
    }

    #[test]
    fn what_is_said_again_takes_no_room() {
        let mut changed = Changed::default();
        for position in (0..1000).rev().chain(0..1000) {
            let target = Target::Source(SourceMark { connection: 1, position });
            changed.add(Change { target, is_soft: position % 2 == 0 });
        }
        assert!(changed.sources[&1].len() <= 2, "{changed:?}");
    }
}
