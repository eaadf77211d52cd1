//! Facts about a message that are strange although legal, so that they can be counted.
//!
//! Noted by the parsers and the chunked decoder where the odd branch is taken anyway: a usual
//! message pays for one look at an empty set. Rejected messages are not counted here: their errors
//! have separate words.

/// Something strange about a head that is accepted.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Oddity {
    /// In a request: an empty line in front of it (RFC 9112 §2.2).
    LeadingLine,
    /// A field name contains `_`.
    Underscore,
    /// In a reply: white space before a colon, which is removed (RFC 9112 §5.1).
    SpacedName,
    /// In a reply: a folded line, which is unfolded (RFC 9112 §5.2).
    Folded,
    /// Connection lists a field that is framing, identity or forwarding, which is kept
    /// (RFC 9110 §7.6.1).
    ListedInVain,
    /// A field that may occur once occurs more often (RFC 9110 §5.3).
    Repeated,
    /// In a request: Host differs from the authority of the target, which wins (RFC 9112 §3.2.2).
    OtherHost,
    /// In a request: an Upgrade that is not passed on, because it is invalid, h2c, has a body or is
    /// not named by Connection.
    VainUpgrade,
    /// In a request: a field `Proxy`, which no program sends but CGI takes for its configuration
    /// (CVE-2016-5385).
    ProxyField,
}

impl Oddity {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Oddity; 9] = [
        Oddity::LeadingLine,
        Oddity::Underscore,
        Oddity::SpacedName,
        Oddity::Folded,
        Oddity::ListedInVain,
        Oddity::Repeated,
        Oddity::OtherHost,
        Oddity::VainUpgrade,
        Oddity::ProxyField,
    ];
}

/// The oddities of one head, each at most once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Oddities(u16);

impl Oddities {
    /// Nothing strange.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether this was seen.
    pub fn has(self, oddity: Oddity) -> bool {
        self.0 & 1 << oddity as u8 != 0
    }

    /// Those that were seen.
    pub fn iter(self) -> impl Iterator<Item = Oddity> {
        Oddity::ALL.into_iter().filter(move |oddity| self.has(*oddity))
    }

    #[inline]
    pub(crate) fn insert(&mut self, oddity: Oddity) {
        self.0 |= 1 << oddity as u8;
    }
}

const _: () = assert!(Oddity::ALL.len() <= 16);

/// Oddities of a chunked body since the last query.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BodyOddities {
    /// Chunks with an extension (RFC 9112 §7.1.1).
    pub extensions: u16,
    /// Times that many very small chunks came at once, which their sender could have joined.
    pub crumbs: u8,
    /// Trailers that are not passed on.
    pub trailers: u8,
}

#[cfg(test)]
mod tests {
    //! Proves: a set has what was put into it and nothing else. How: every pair.

    use super::*;

    #[test]
    fn sets() {
        for (at, one) in Oddity::ALL.into_iter().enumerate() {
            assert_eq!(one as usize, at);
            for other in Oddity::ALL {
                let mut set = Oddities::default();
                assert!(set.is_empty() && !set.has(one));
                set.insert(one);
                set.insert(other);
                assert!(!set.is_empty());
                let expected: Vec<_> =
                    Oddity::ALL.into_iter().filter(|it| *it == one || *it == other).collect();
                assert_eq!(set.iter().collect::<Vec<_>>(), expected);
            }
        }
    }
}
