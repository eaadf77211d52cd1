//! Counts of events by kind, where the kinds are an enumeration: each has a word for people and its
//! own counter.

use crate::observe::counters::{Counter, Kind, Sample};

/// An enumeration with a word for each of its values.
pub trait Kinds: Copy + Eq + 'static {
    /// Returns all values, in a fixed order.
    fn all() -> Box<[Self]>;

    /// Returns the word in counters, log and status; different for each value.
    fn word(self) -> &'static str;
}

/// Declares an enumeration with its words; the list of all values is generated from the same lines.
macro_rules! worded {
    // If another enumeration is part of it, no list exists at compile time.
    (@all $name:ident [$($inner:ident)+] $($kind:ident)+) => {};
    (@all $name:ident [] $($kind:ident)+) => {
        impl $name {
            /// All values, in the order of their discriminants.
            pub const ALL: [$name; [$(stringify!($kind)),+].len()] = [$($name::$kind),+];
        }
    };
    (
        $(#[$about:meta])*
        enum $name:ident;
        $(with $(#[$inner_about:meta])+ $wrap:ident($inner:ident);)*
        $($(#[$help:meta])+ $kind:ident: $word:literal;)+
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$inner_about])+ $wrap($inner),)*
            $($(#[$help])+ $kind,)+
        }

        impl $crate::observe::kinds::Kinds for $name {
            fn all() -> Box<[$name]> {
                let own = [$($name::$kind),+].into_iter();
                $(
                    let inner = <$inner as $crate::observe::kinds::Kinds>::all().into_iter();
                    let own = inner.map($name::$wrap).chain(own);
                )*
                own.collect()
            }

            fn word(self) -> &'static str {
                $name::word(self)
            }
        }

        $crate::observe::kinds::worded!(@all $name [$($inner)*] $($kind)+);

        impl $name {
            /// Returns the word in counters, log and status.
            pub fn word(self) -> &'static str {
                match self {
                    $($name::$wrap(inner) => inner.word(),)*
                    $($name::$kind => $word,)+
                }
            }
        }
    };
}
pub(crate) use worded;

/// Counts of the occurrences of some kinds.
#[derive(Debug)]
pub struct CountByKind<K>(Box<[(K, Counter)]>);

impl<K: Kinds> Default for CountByKind<K> {
    fn default() -> CountByKind<K> {
        CountByKind(K::all().into_iter().map(|kind| (kind, Counter::default())).collect())
    }
}

impl<K: Kinds> CountByKind<K> {
    /// Counts one occurrence. Only the owner may call it. Looks through the kinds: for refusals and
    /// ends, not for every request.
    pub fn count(&self, kind: K) {
        self.0
            .iter()
            .filter(|(known, _)| *known == kind)
            .for_each(|(_, counter)| counter.increment());
    }

    /// Counts `amount` at once, as [`CountByKind::count`] does.
    pub fn count_many(&self, kind: K, amount: u64) {
        self.0
            .iter()
            .filter(|(known, _)| *known == kind)
            .for_each(|(_, counter)| counter.add(amount));
    }

    /// Returns the occurrences of the kind with this word.
    pub fn get(&self, word: &str) -> u64 {
        self.iter().find(|(known, _)| *known == word).map_or(0, |(_, count)| count)
    }

    /// Returns the occurrences of all kinds.
    pub fn sum(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum()
    }

    /// Calls `visit` with the count of each kind that has occurred.
    pub(crate) fn each(
        &self,
        name: &'static str,
        help: &'static str,
        visit: &mut impl FnMut(Sample),
    ) {
        for (word, value) in self.iter() {
            visit(Sample { name, label: Some(("word", word)), kind: Kind::Total, help, value });
        }
    }

    /// Returns the words of kinds that have occurred, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0
            .iter()
            .map(|(kind, counter)| (kind.word(), counter.get()))
            .filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: every kind is counted separately, with its own word. How: each kind as often as its
    //! place says.

    use super::*;
    use crate::cause::Cause;
    use crate::ending::{
        ClientEnd, FlowEnd, Held, ServerTlsFailure, Timeout, TlsFailure, UpstreamEnd,
    };

    fn each_counts<K: Kinds + std::fmt::Debug>() {
        let (tally, all) = (CountByKind::<K>::default(), K::all());
        assert_eq!((tally.iter().count(), tally.sum()), (0, 0));
        for (place, kind) in all.iter().enumerate() {
            (0..place).for_each(|_| tally.count(*kind));
            tally.count_many(*kind, 1);
        }
        for (place, kind) in all.iter().enumerate() {
            assert_eq!(tally.get(kind.word()), place as u64 + 1, "{kind:?}");
        }
        assert_eq!((tally.iter().count(), tally.get("nothing")), (all.len(), 0));
        assert_eq!(tally.sum(), (1..=all.len() as u64).sum());
    }

    #[test]
    fn each_kind_has_its_own_counter() {
        each_counts::<Cause>();
        each_counts::<ClientEnd>();
        each_counts::<FlowEnd>();
        each_counts::<Held>();
        each_counts::<UpstreamEnd>();
        each_counts::<Timeout>();
        each_counts::<TlsFailure>();
        each_counts::<ServerTlsFailure>();
    }
}
