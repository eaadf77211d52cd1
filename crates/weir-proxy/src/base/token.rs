//! Tokens: 64-bit names that the driver, the worker and the timers use.
//!
//! ```text
//!  63      56 55              32 31               0
//! +----------+------------------+------------------+
//! |   kind   |    generation    |      number      |
//! +----------+------------------+------------------+
//! ```
//!
//! A token may come back long after the thing that it names is gone; the generation shows that.

use super::keys::{ClientKey, ConnKey, FlowKey, Key, ServerIndex};

/// Bits of the number of a slot, a server or a listener.
const NUMBER_BITS: u32 = u32::BITS;
/// Bits of a generation that fit into a token.
const GENERATION_BITS: u32 = 24;
/// Where the kind begins.
const KIND_SHIFT: u32 = NUMBER_BITS + GENERATION_BITS;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;

// 0 is unused.
const CLIENT: u8 = 1;
const CONN: u8 = 2;
const LISTENER: u8 = 3;
const PROBE: u8 = 4;
const RETRY: u8 = 5;
const FLOW: u8 = 6;
const FLOW_SERVER: u8 = 7;
const LIMIT: u8 = 8;

const _: () = {
    assert!(KIND_SHIFT + u8::BITS == u64::BITS, "kind, generation and number fill a token");
    let kinds = [0, CLIENT, CONN, LISTENER, PROBE, RETRY, FLOW, FLOW_SERVER, LIMIT];
    let mut at = 1;
    while at < kinds.len() {
        assert!(kinds[at] == kinds[at - 1] + 1, "kinds differ");
        at += 1;
    }
};

/// The lowest 24 bits of a generation: a token that returns after 2^24 occupants of its slot is
/// mistaken for one of the last.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ShortGeneration(u32);

impl ShortGeneration {
    /// The part of a generation that a token keeps.
    #[inline]
    pub const fn of(generation: u32) -> ShortGeneration {
        ShortGeneration(generation & GENERATION_MASK)
    }

    /// Below 2^24.
    #[inline]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The thing that a token names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Token {
    /// A client's connection.
    Client {
        /// Its slot.
        key: ClientKey,
        /// The occupant of the slot.
        generation: ShortGeneration,
    },
    /// A connection to a server, for requests.
    Conn {
        /// Its slot.
        key: ConnKey,
        /// The occupant of the slot.
        generation: ShortGeneration,
    },
    /// A listener of the worker's.
    Listener {
        /// Its position in the plan, from 0.
        index: u32,
    },
    /// A connection to a server for a probe, or the pause before one.
    Probe {
        /// Which server.
        server: ServerIndex,
        /// Which probe or pause of this server.
        generation: ShortGeneration,
    },
    /// A client whose request waits until its private connections are tried again: only for timers,
    /// never for sockets.
    Retry {
        /// Its slot.
        key: ClientKey,
    },
    /// The client's connection of a flow of plain TCP, and its timers.
    Flow {
        /// Its slot.
        key: FlowKey,
        /// The occupant of the slot.
        generation: ShortGeneration,
    },
    /// The server's connection of such a flow.
    FlowServer {
        /// Its slot.
        key: FlowKey,
        /// The occupant of the slot.
        generation: ShortGeneration,
    },
    /// A server for which requests wait: its limit is examined, and how long they have waited. Only
    /// for timers, never for sockets.
    Limit {
        /// Which server.
        server: ServerIndex,
    },
}

impl Token {
    /// The token as the driver and the timers keep it.
    #[inline]
    pub fn pack(self) -> u64 {
        let (kind, generation, number) = match self {
            Token::Client { key, generation } => (CLIENT, generation, key.number()),
            Token::Conn { key, generation } => (CONN, generation, key.number()),
            Token::Listener { index } => (LISTENER, ShortGeneration::of(0), index),
            Token::Probe { server, generation } => (PROBE, generation, server.number()),
            Token::Retry { key } => (RETRY, ShortGeneration::of(0), key.number()),
            Token::Flow { key, generation } => (FLOW, generation, key.number()),
            Token::FlowServer { key, generation } => (FLOW_SERVER, generation, key.number()),
            Token::Limit { server } => (LIMIT, ShortGeneration::of(0), server.number()),
        };
        u64::from(kind) << KIND_SHIFT | u64::from(generation.0) << NUMBER_BITS | u64::from(number)
    }

    /// The token that [`Token::pack`] made these bits of; None: it makes no such bits.
    #[inline]
    pub fn unpack(bits: u64) -> Option<Token> {
        let (number, generation) = (bits as u32, ShortGeneration::of((bits >> NUMBER_BITS) as u32));
        match (bits >> KIND_SHIFT) as u8 {
            CLIENT => Some(Token::Client { key: ClientKey::new(number), generation }),
            CONN => Some(Token::Conn { key: ConnKey::new(number), generation }),
            LISTENER if generation.0 == 0 => Some(Token::Listener { index: number }),
            PROBE => Some(Token::Probe { server: ServerIndex::new(number), generation }),
            RETRY if generation.0 == 0 => Some(Token::Retry { key: ClientKey::new(number) }),
            FLOW => Some(Token::Flow { key: FlowKey::new(number), generation }),
            FLOW_SERVER => Some(Token::FlowServer { key: FlowKey::new(number), generation }),
            LIMIT if generation.0 == 0 => Some(Token::Limit { server: ServerIndex::new(number) }),
            _ => None,
        }
    }

    /// Whether bits name a connection to a server, for requests or for a probe.
    #[inline]
    pub fn is_upstream(bits: u64) -> bool {
        matches!(Token::unpack(bits), Some(Token::Conn { .. } | Token::Probe { .. }))
    }

    /// Whether bits name a connection of a flow of plain TCP.
    #[inline]
    pub fn is_flow(bits: u64) -> bool {
        matches!((bits >> KIND_SHIFT) as u8, FLOW | FLOW_SERVER)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: packing and unpacking yields the same token, and no two tokens are equal. How: an
    //! example of each kind with its bits, at the edges; generated tokens and generated bits.

    use super::*;
    use proptest::prelude::*;

    const LAST: ShortGeneration = ShortGeneration::of(u32::MAX);

    fn client(number: u32, generation: u32) -> Token {
        Token::Client { key: ClientKey::new(number), generation: ShortGeneration::of(generation) }
    }

    fn conn(number: u32, generation: u32) -> Token {
        Token::Conn { key: ConnKey::new(number), generation: ShortGeneration::of(generation) }
    }

    fn probe(server: u32, generation: u32) -> Token {
        Token::Probe {
            server: ServerIndex::new(server),
            generation: ShortGeneration::of(generation),
        }
    }

    fn flow(number: u32, generation: u32) -> Token {
        Token::Flow { key: FlowKey::new(number), generation: ShortGeneration::of(generation) }
    }

    fn flow_server(number: u32, generation: u32) -> Token {
        Token::FlowServer { key: FlowKey::new(number), generation: ShortGeneration::of(generation) }
    }

    fn token() -> impl Strategy<Value = Token> {
        // Small numbers as well, so that tokens of different kinds agree in them.
        let number = || prop_oneof![0..3u32, any::<u32>()];
        prop_oneof![
            (number(), number()).prop_map(|(number, generation)| client(number, generation)),
            (number(), number()).prop_map(|(number, generation)| conn(number, generation)),
            number().prop_map(|index| Token::Listener { index }),
            (number(), number()).prop_map(|(server, generation)| probe(server, generation)),
            number().prop_map(|number| Token::Retry { key: ClientKey::new(number) }),
            number().prop_map(|number| Token::Limit { server: ServerIndex::new(number) }),
            (number(), number()).prop_map(|(number, generation)| flow(number, generation)),
            (number(), number()).prop_map(|(number, generation)| flow_server(number, generation)),
        ]
    }

    #[test]
    fn each_kind_comes_back() {
        for (token, bits) in [
            (client(0, 0), 0x0100_0000_0000_0000),
            (client(u32::MAX, u32::MAX), 0x01ff_ffff_ffff_ffff),
            (conn(5, 0x0300_0004), 0x0200_0004_0000_0005),
            (conn(u32::MAX, u32::MAX), 0x02ff_ffff_ffff_ffff),
            (Token::Listener { index: 0 }, 0x0300_0000_0000_0000),
            (Token::Listener { index: u32::MAX }, 0x0300_0000_ffff_ffff),
            (probe(1, 2), 0x0400_0002_0000_0001),
            (probe(u32::MAX, u32::MAX), 0x04ff_ffff_ffff_ffff),
            (Token::Retry { key: ClientKey::new(7) }, 0x0500_0000_0000_0007),
            (flow(1, 2), 0x0600_0002_0000_0001),
            (flow_server(u32::MAX, u32::MAX), 0x07ff_ffff_ffff_ffff),
            (Token::Limit { server: ServerIndex::new(9) }, 0x0800_0000_0000_0009),
        ] {
            assert_eq!(token.pack(), bits, "{token:?}");
            assert_eq!(Token::unpack(bits), Some(token));
        }
        assert_eq!(LAST.number(), 0x00ff_ffff);
    }

    #[test]
    fn others_are_none() {
        for bits in [
            0,
            1,
            0x0000_0001_0000_0000,
            0x0300_0001_0000_0000,
            0x0500_0001_0000_0000,
            0x0800_0001_0000_0000,
            0x0900_0000_0000_0000,
            u64::MAX,
        ] {
            assert_eq!(Token::unpack(bits), None, "{bits:x}");
        }
    }

    #[test]
    fn those_of_servers_are_upstream() {
        assert!(
            [conn(0, 0), probe(0, 0)].into_iter().all(|token| Token::is_upstream(token.pack()))
        );
        assert!(
            !Token::is_upstream(client(0, 0).pack())
                && !Token::is_upstream(Token::Listener { index: 0 }.pack())
        );
        assert!(!Token::is_upstream(0) && !Token::is_upstream(flow_server(0, 0).pack()));
        assert!(
            [flow(0, 0), flow_server(3, 1)].into_iter().all(|token| Token::is_flow(token.pack()))
        );
        assert!(
            ![conn(0, 0), client(0, 0), probe(1, 1)]
                .into_iter()
                .any(|token| Token::is_flow(token.pack()))
        );
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(token in token()) {
            prop_assert_eq!(Token::unpack(token.pack()), Some(token));
        }

        #[test]
        fn different_tokens_pack_differently(one in token(), other in token()) {
            prop_assert_eq!(one == other, one.pack() == other.pack());
        }

        #[test]
        fn what_is_unpacked_is_packed(bits in any::<u64>(), kind in 0..10u64) {
            for bits in [bits, kind << KIND_SHIFT | bits >> u8::BITS, kind << KIND_SHIFT | bits & 3]
            {
                prop_assert!(Token::unpack(bits).is_none_or(|token| token.pack() == bits));
            }
        }
    }
}
