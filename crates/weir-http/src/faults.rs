//! One table for an enumeration of faults: status, word and text are beside the variant, and
//! nothing can be left out of the list.

/// Declares an enumeration of faults with `ALL`, `status`, `word` and `Display`. Each line:
/// variant, status, word, text. `from` names another enumeration of faults that is part of it.
macro_rules! faults {
    (
        $(#[$about:meta])*
        enum $name:ident;
        $(from $(#[$inner_about:meta])+ $wrap:ident($inner:ident);)?
        $($(#[$help:meta])+ $fault:ident: $status:literal, $word:literal, $text:literal;)+
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum $name {
            $($(#[$inner_about])+ $wrap($inner),)?
            $($(#[$help])+ $fault,)+
        }

        impl $name {
            const OWN: &[$name] = &[$($name::$fault),+];

            /// All faults, in a fixed order.
            pub fn all() -> impl Iterator<Item = $name> {
                let own = $name::OWN.iter().copied();
                $(let own = $inner::all().map($name::$wrap).chain(own);)?
                own
            }

            /// The status for a client that sent it.
            pub fn status(self) -> u16 {
                match self {
                    $(Self::$wrap(fault) => fault.status(),)?
                    $(Self::$fault => $status,)+
                }
            }

            /// Short word for log and counters.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$wrap(fault) => fault.word(),)?
                    $(Self::$fault => $word,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $(Self::$wrap(fault) => return fault.fmt(f),)?
                    $(Self::$fault => $text,)+
                })
            }
        }

        impl std::error::Error for $name {}
    };
}
pub(crate) use faults;
