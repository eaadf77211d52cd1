//! Names of slots and rows: each table has its own type for them, so that a name from one table
//! can't be used with another.

use std::fmt;
use std::ops::Add;

/// A name of a slot in a [`Slab`](super::slab::Slab), or of a row in a
/// [`Table`](super::table::Table).
pub(crate) trait Key: Copy {
    /// The slot with this number, from 0; `u32::MAX` is none.
    fn new(number: u32) -> Self;

    /// The number of the slot.
    fn number(self) -> u32;

    /// The same number, to index a list beside the table.
    #[inline]
    fn index(self) -> usize {
        self.number() as usize
    }
}

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(u32);

        impl fmt::Display for $name {
            fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(text)
            }
        }

        impl Key for $name {
            #[inline]
            fn new(number: u32) -> $name {
                $name(number)
            }

            #[inline]
            fn number(self) -> u32 {
                self.0
            }
        }
    )*};
}

keys! {
    /// The slot of a client's connection, from 0.
    ClientKey;
    /// The slot of an exchange (a request and its response), from 0, or [`ExchangeKey::NONE`].
    ExchangeKey;
    /// The slot of a connection to a server, from 0.
    ConnKey;
    /// The slot of a flow of plain TCP, from 0.
    FlowKey;
    /// The index of a server, from 0, among those of all upstreams of the plan, upstream after
    /// upstream.
    #[derive(Default)]
    ServerIndex;
}

impl ExchangeKey {
    /// No exchange.
    pub(crate) const NONE: ExchangeKey = ExchangeKey(u32::MAX);
}

impl Add<usize> for ServerIndex {
    type Output = ServerIndex;

    /// The server this many places after it.
    #[inline]
    fn add(self, places: usize) -> ServerIndex {
        ServerIndex(self.0 + places as u32)
    }
}
