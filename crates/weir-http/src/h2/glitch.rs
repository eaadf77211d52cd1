//! Events that are strange or cost work for nothing, as words to be counted.

/// Declares the kinds with their words.
macro_rules! glitches {
    ($($(#[$help:meta])+ $kind:ident: $word:literal;)+) => {
        /// Something strange on a connection. Most are legal; too many of some end the connection.
        #[repr(u8)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum Glitch {
            $($(#[$help])+ $kind,)+
        }

        impl Glitch {
            /// All kinds, in the order of their discriminants.
            pub const ALL: &[Glitch] = &[$(Glitch::$kind),+];

            /// Short word for log and counters.
            pub fn word(self) -> &'static str {
                match self {
                    $(Glitch::$kind => $word,)+
                }
            }
        }
    };
}

glitches! {
    /// The client reset a request before its response began.
    ResetEarly: "h2-reset-early";
    /// An error of the client made us reset a stream.
    ForcedReset: "h2-forced-reset";
    /// More streams at once than were announced.
    Refused: "h2-refused";
    /// PING, SETTINGS, PRIORITY, unknown frames or window updates that were useless, after the
    /// budget for them had run out.
    Chatter: "h2-chatter";
    /// A header block in several frames.
    Continuation: "h2-continuation";
    /// DATA or a part of a header block without a byte.
    EmptyFrame: "h2-empty-data";
    /// A frame for a stream that is closed.
    ClosedStream: "h2-closed-stream";
    /// SETTINGS made windows smaller.
    WindowShrunk: "h2-window-shrunk";
    /// PRIORITY of RFC 7540, which is ignored.
    Priority: "h2-priority";
    /// A header list that is not a request, or a body that does not match its head: against
    /// RFC 9113 §8.
    Malformed: "h2-pseudo";
    /// Trailers, which are not passed on.
    TrailerDropped: "trailer-dropped";
}

/// How often each happened since the last query.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Glitches {
    counts: [u16; Glitch::ALL.len()],
}

impl Glitches {
    /// Nothing happened.
    pub fn is_empty(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    /// Returns how often this happened; at most 65,535.
    pub fn count(&self, kind: Glitch) -> u16 {
        self.counts[kind as usize]
    }

    /// Returns those that happened, with how often.
    pub fn iter(&self) -> impl Iterator<Item = (Glitch, u16)> {
        Glitch::ALL
            .iter()
            .zip(self.counts)
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| (*kind, count))
    }

    pub(super) fn add(&mut self, kind: Glitch) {
        let count = &mut self.counts[kind as usize];
        *count = count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_by_kind() {
        let mut glitches = Glitches::default();
        assert!(glitches.is_empty() && glitches.iter().next().is_none());
        glitches.add(Glitch::Chatter);
        glitches.add(Glitch::Chatter);
        assert_eq!(glitches.iter().collect::<Vec<_>>(), [(Glitch::Chatter, 2)]);
        assert_eq!((glitches.count(Glitch::Chatter), glitches.count(Glitch::Refused)), (2, 0));
        assert!(Glitch::ALL.iter().enumerate().all(|(at, kind)| *kind as usize == at));
    }
}
