//! Sets of names in rules: how a pattern is written, and whether a host is in a set of 100,000 of
//! them.
//!
//! Compiled by [`super::Policy::new`]. A lookup scans the host once, from its end, and probes a
//! hash table at each dot, for at most as many labels as the longest name of the set has. So the
//! number of names doesn't count. (`HashMap` with SipHash of each suffix took 200 to 300 ns for a
//! host of four labels, this takes 50 to 80.)

use super::host::{self, Host, HostError};

/// A name in a rule: `example.com` means it and all names below it (so does `.example.com`, as in
/// Squid's lists), `*.example.com` only those below, `=example.com` only itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    name: Box<str>,
    reach: Reach,
}

/// The names that a pattern means: at least one of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reach {
    itself: bool,
    below: bool,
}

/// Why a text is not a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatternError {
    /// An address; names of hosts don't match it.
    Address,
    /// A `*` elsewhere than at the start.
    Star,
    /// Not a name.
    Host(HostError),
}

impl Pattern {
    /// Parses a pattern in ASCII, in any case, with or without a trailing dot.
    ///
    /// # Errors
    /// The operator's: the problem with the pattern.
    pub fn parse(text: &str) -> Result<Pattern, PatternError> {
        let (name, itself, below) = match text.as_bytes() {
            [b'=', ..] => (&text[1..], true, false),
            [b'*', b'.', ..] => (&text[2..], false, true),
            [b'.', ..] => (&text[1..], true, true),
            _ => (text, true, true),
        };
        match host::parse(name.as_bytes()) {
            Ok(Host::Name(name)) => {
                Ok(Pattern { name: name.into(), reach: Reach { itself, below } })
            }
            Ok(Host::Address(_)) => Err(PatternError::Address),
            Err(_) if name.contains('*') => Err(PatternError::Star),
            Err(error) => Err(PatternError::Host(error)),
        }
    }

    /// The text of the pattern.
    pub fn text(&self) -> String {
        match self.reach {
            Reach { itself: true, below: true } => self.name.to_string(),
            Reach { itself: true, below: false } => format!("={}", self.name),
            Reach { itself: false, .. } => format!("*.{}", self.name),
        }
    }
}

/// Many patterns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NameSet {
    /// All names, concatenated.
    bytes: Vec<u8>,
    names: Vec<Name>,
    /// A power of two, at least twice the number of names; empty without names.
    slots: Box<[Slot]>,
    /// The labels of the name with the most.
    labels_max: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Name {
    start: usize,
    end: usize,
    reach: Reach,
}

/// A slot of the table; a name is in the first free slot from its hash on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Slot {
    /// High half of the hash, so that other names need not be compared.
    tag: u32,
    /// One more than the index of the name; zero: free.
    number: u32,
}

/// FNV-1a. Its key is no secret: the operator chooses the names in the table, and clients can only
/// look them up.
#[derive(Clone, Copy)]
struct Hash(u64);

impl Hash {
    const START: Hash = Hash(0xcbf2_9ce4_8422_2325);

    fn with(self, byte: u8) -> Hash {
        Hash((self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// From its end, as hosts are scanned.
    fn of(name: &[u8]) -> Hash {
        name.iter().rev().fold(Hash::START, |hash, &byte| hash.with(byte))
    }

    fn tag(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The multiplication only moves bits up, so this brings the high ones down.
    fn slot(self, slots: usize) -> usize {
        (self.0 ^ self.0 >> 32) as usize & (slots - 1)
    }
}

impl NameSet {
    pub(super) fn new(patterns: &[Pattern]) -> NameSet {
        let slots = if patterns.is_empty() { 0 } else { (patterns.len() * 2).next_power_of_two() };
        let mut set = NameSet { slots: vec![Slot::default(); slots].into(), ..NameSet::default() };
        for pattern in patterns {
            set.insert(pattern);
        }
        set
    }

    fn insert(&mut self, Pattern { name, reach }: &Pattern) {
        self.labels_max = self.labels_max.max(name.split('.').count());
        let hash = Hash::of(name.as_bytes());
        let at = self.find(name.as_bytes(), hash);
        if let Some(known) = self.slots[at].number.checked_sub(1) {
            let known = &mut self.names[known as usize].reach;
            *known =
                Reach { itself: known.itself || reach.itself, below: known.below || reach.below };
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name.as_bytes());
        self.names.push(Name { start, end: self.bytes.len(), reach: *reach });
        // A set is made of a text in memory: far less than 2^32 names.
        self.slots[at] = Slot { tag: hash.tag(), number: self.names.len() as u32 };
    }

    /// The slot of the name, or the free slot where it would be. The table must not be empty; half
    /// of its slots are free.
    fn find(&self, name: &[u8], hash: Hash) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash.slot(self.slots.len());
        loop {
            let slot = self.slots[at];
            if slot.number == 0 || slot.tag == hash.tag() && self.bytes_of(slot) == name {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    fn bytes_of(&self, slot: Slot) -> &[u8] {
        let name = &self.names[slot.number as usize - 1];
        &self.bytes[name.start..name.end]
    }

    fn reach(&self, name: &[u8], hash: Hash) -> Option<Reach> {
        let number = self.slots[self.find(name, hash)].number.checked_sub(1)?;
        Some(self.names[number as usize].reach)
    }

    /// Whether the host (lower case, without a trailing dot) is in the set.
    pub(super) fn contains(&self, host: &[u8]) -> bool {
        let mut labels_left = self.labels_max;
        let mut hash = Hash::START;
        for (at, &byte) in host.iter().enumerate().rev() {
            if labels_left == 0 {
                return false;
            }
            if byte == b'.' {
                if self.reach(&host[at + 1..], hash).is_some_and(|reach| reach.below) {
                    return true;
                }
                labels_left -= 1;
            }
            hash = hash.with(byte);
        }
        labels_left > 0 && self.reach(host, hash).is_some_and(|reach| reach.itself)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each kind of pattern, and that sets find the same as a plain comparison. How:
    //! examples, and generated names of few letters against a loop over all patterns.

    use super::*;
    use proptest::prelude::*;

    fn set(patterns: &[&str]) -> NameSet {
        NameSet::new(&patterns.iter().map(|text| Pattern::parse(text).unwrap()).collect::<Vec<_>>())
    }

    #[test]
    fn each_kind_of_pattern() {
        for (pattern, inside, outside) in [
            (
                "example.com",
                &["example.com", "a.example.com", "a.b.example.com"][..],
                &["xexample.com", "com", ""][..],
            ),
            (".Example.com.", &["example.com", "a.example.com"], &["example.org"]),
            (
                "*.example.com",
                &["a.example.com", "a.b.example.com"],
                &["example.com", "aexample.com"],
            ),
            ("=example.com", &["example.com"], &["a.example.com", "com"]),
            ("com", &["com", "example.com"], &["org", "acom"]),
        ] {
            let set = set(&[pattern]);
            inside
                .iter()
                .for_each(|host| assert!(set.contains(host.as_bytes()), "{pattern} {host}"));
            outside
                .iter()
                .for_each(|host| assert!(!set.contains(host.as_bytes()), "{pattern} {host}"));
        }
    }

    #[test]
    fn two_patterns_of_one_name_add_up() {
        let set = set(&["=a.b", "*.a.b"]);
        assert!(set.contains(b"a.b") && set.contains(b"c.a.b") && !set.contains(b"b"));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for (text, error) in [
            ("10.0.0.1", PatternError::Address),
            ("[::1]", PatternError::Address),
            ("*", PatternError::Star),
            ("a.*.b", PatternError::Star),
            ("*a.b", PatternError::Star),
            ("", PatternError::Host(HostError::Empty)),
            ("=", PatternError::Host(HostError::Empty)),
            ("*.", PatternError::Host(HostError::Empty)),
            ("..a", PatternError::Host(HostError::EmptyLabel)),
            ("http://a", PatternError::Host(HostError::Character)),
            ("bücher.example", PatternError::Host(HostError::Character)),
            ("127.1", PatternError::Host(HostError::Numeric)),
        ] {
            assert_eq!(Pattern::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn many_names_in_a_set() {
        let names: Vec<String> =
            (0..100_000).map(|number| format!("host-{number}.blocked.example")).collect();
        let set = NameSet::new(
            &names.iter().map(|name| Pattern::parse(name).unwrap()).collect::<Vec<_>>(),
        );
        assert!(names.iter().all(|name| set.contains(name.as_bytes())));
        assert!(
            set.contains(b"a.b.host-7.blocked.example")
                && !set.contains(b"host-100000.blocked.example")
        );
        assert!(!set.contains(b"blocked.example"));
        // Clusters in the table stay short.
        let free = set.slots.iter().map(|slot| slot.number == 0);
        let longest =
            free.collect::<Vec<_>>().split(|free| *free).map(<[bool]>::len).max().unwrap();
        assert!(longest < 100, "{longest}");
    }

    fn name() -> impl Strategy<Value = String> {
        prop::collection::vec("[ab]{1,2}", 1..5).prop_map(|labels| labels.join("."))
    }

    proptest! {
        #[test]
        fn a_set_is_all_its_patterns(
            patterns in prop::collection::vec(
                (prop::sample::select(vec!["", "=", "*.", "."]), name()),
                0..8
            ),
            host in name(),
        ) {
            let texts: Vec<String> =
                patterns.iter().map(|(kind, name)| format!("{kind}{name}")).collect();
            let naive = patterns.iter().any(|(kind, name)| {
                let below = host.ends_with(&format!(".{name}"));
                (host == *name && *kind != "*.") || (below && *kind != "=")
            });
            let set = set(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            prop_assert_eq!(set.contains(host.as_bytes()), naive);
        }

        #[test]
        fn what_is_written_reads_back(
            kind in prop::sample::select(vec!["", "=", "*.", "."]),
            name in name(),
        ) {
            let pattern = Pattern::parse(&format!("{kind}{name}")).unwrap();
            prop_assert_eq!(Pattern::parse(&pattern.text()), Ok(pattern));
        }
    }
}
