//! Glitches: strange but legal events on a connection, by kind.
//!
//! A single one says nothing; many on one connection come from a program with a bug, or from a
//! search for one. They are counted for each connection and in all, and `glitches-limit` ends
//! connections that make too many (`client/glitches.rs`). docs/status-glitches.md#glitches has the
//! same tables. A refused event is no glitch: it has its own word and ends the connection at once.

/// Declares the kinds of one side once; the enumeration, the list and the words follow.
macro_rules! kinds {
    (
        $(#[doc = $about:literal])+
        $side:ident { $($(#[doc = $help:literal])+ $variant:ident = $word:literal,)+ }
    ) => {
        $(#[doc = $about])+
        #[repr(u8)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $side {
            $($(#[doc = $help])+ $variant,)+
        }

        impl $side {
            /// Every kind in the order of discriminants: its word, and the event.
            pub const ALL: &[($side, &str, &str)] =
                &[$(($side::$variant, $word, concat!($($help),+).trim_ascii()),)+];

            /// The number of kinds.
            pub const COUNT: usize = Self::ALL.len();

            /// Returns the word for log and counters.
            pub fn word(self) -> &'static str {
                Self::ALL[self as usize].1
            }
        }
    };
}

kinds! {
    /// A glitch of a client.
    ClientGlitch {
        /// An empty line before a request line.
        LeadingLine = "leading-line",
        /// 16 pieces of less than 64 bytes each for one head.
        HeadPieces = "head-pieces",
        /// A target with UTF-8 in it that is not percent-encoded; it is encoded.
        TargetRaw = "target-raw",
        /// A field that is dropped because its name contains `_`.
        Underscore = "underscore",
        /// Connection lists a field that may not be removed, such as Host or Cookie.
        ConnectionList = "connection-list",
        /// A field twice that has one value, such as Authorization, Cookie or Content-Type.
        FieldRepeated = "field-repeated",
        /// A target with a different host than Host.
        OtherHost = "other-host",
        /// An Upgrade that is ignored: invalid, h2c, with a body, in HTTP/1.0 or not named by
        /// Connection.
        UpgradeIgnored = "upgrade-ignored",
        /// A field `Proxy`, which CGI programs take for their configuration; it is dropped.
        ProxyField = "proxy-field",
        /// A body with GET, HEAD, DELETE or TRACE.
        BodyUnexpected = "body-unexpected",
        /// `Expect: 100-continue`, and the body without waiting for it.
        BodyUnawaited = "body-unawaited",
        /// A chunk with an extension, which is dropped.
        ChunkExtension = "chunk-extension",
        /// 128 chunks of less than 8 bytes each that came together.
        ChunkCrumbs = "chunk-crumbs",
        /// A trailer, which is dropped.
        TrailerDropped = "trailer-dropped",
        /// A stream of HTTP/2 that its client reset before its response began.
        ResetEarly = "h2-reset-early",
        /// A stream of HTTP/2 that weir reset because of an error of the client.
        ForcedReset = "h2-forced-reset",
        /// More streams of HTTP/2 at once than were announced.
        StreamRefused = "h2-refused",
        /// Needless frames of HTTP/2, such as PING, more than now and then.
        Chatter = "h2-chatter",
        /// A head in several frames of HTTP/2.
        Continuation = "h2-continuation",
        /// A frame of HTTP/2 without a byte of the body or head that it is for.
        EmptyFrame = "h2-empty-frame",
        /// A frame for a stream of HTTP/2 that is closed.
        ClosedStream = "h2-closed-stream",
        /// SETTINGS of HTTP/2 that make windows smaller.
        WindowShrunk = "h2-window-shrunk",
        /// A priority of HTTP/2 that is out of use or can't be read.
        Priority = "h2-priority",
        /// A head of HTTP/2 that is no request, or a body that is not as long as it says: 400.
        Malformed = "h2-malformed",
    }
}

kinds! {
    /// A glitch of a server.
    UpstreamGlitch {
        /// Line ends after a response that do not belong to it.
        BlankLine = "blank-line",
        /// 100 Continue for a request that does not ask for it.
        ContinueUnasked = "continue-unasked",
        /// The fifth interim response (1xx) to one request, or a later one.
        InterimMany = "interim-many",
        /// A folded field line, which is unfolded.
        LineFold = "line-fold",
        /// White space between a field's name and its colon, which is removed.
        NameSpaced = "name-spaced",
        /// Connection lists a field that may not be removed, such as Set-Cookie or Content-Length.
        ConnectionList = "connection-list",
        /// A field twice that has one value, such as Content-Type, Date or Location.
        FieldRepeated = "field-repeated",
        /// A chunk with an extension, which is dropped.
        ChunkExtension = "chunk-extension",
        /// 128 chunks of less than 8 bytes each that came together.
        ChunkCrumbs = "chunk-crumbs",
        /// A field that may not be a trailer, such as Content-Type; it is dropped.
        TrailerDropped = "trailer-dropped",
    }
}

#[cfg(test)]
mod tests {
    //! Proves: each kind has its own word, at the index of its discriminant. How: all of them.

    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn words_are_different_and_in_order() {
        let clients = ClientGlitch::ALL
            .iter()
            .map(|(glitch, word, help)| (*glitch as usize, glitch.word(), *word, *help));
        let servers = UpstreamGlitch::ALL
            .iter()
            .map(|(glitch, word, help)| (*glitch as usize, glitch.word(), *word, *help));
        for side in [clients.collect::<Vec<_>>(), servers.collect()] {
            let mut words = BTreeSet::new();
            for (at, (place, word, told, help)) in side.into_iter().enumerate() {
                assert_eq!((place, word), (at, told));
                assert!(help.ends_with('.'), "{word}: {help}");
                assert!(words.insert(word), "{word}");
            }
        }
    }
}
