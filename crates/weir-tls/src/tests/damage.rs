//! Proves: whatever is changed in what a client says, wherever it is cut, and whatever comes instead of it, the library of the product gives
//! out nothing but what the client has said, ends nothing twice, and never panics; what it is shown again stays within a record. How: real
//! handshakes of both versions with generated damage, and bytes that are no TLS at all.

use std::sync::OnceLock;

use proptest::prelude::*;
use proptest::sample::Index;
use rustls::version::{TLS12, TLS13};

use super::files::Scratch;
use super::wire::{Wire, any_client, terms};
use crate::cipher::State;
use crate::sealed::HANDSHAKE_BYTES_MAX;
use crate::terms::Terms;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
/// Flights of a client in one conversation here, one more than it has.
const FLIGHTS: usize = 4;

/// One certificate for all cases: each would cost a process.
fn server() -> &'static Terms {
    static TERMS: OnceLock<Terms> = OnceLock::new();
    TERMS.get_or_init(|| terms(&[Scratch::new().pair("ec", &["a.example"])], |_| ()))
}

/// Something that happens to a flight.
#[derive(Debug, Clone)]
enum Damage {
    Flip(Index, u8),
    Drop(Index),
    Repeat(Index, Index),
    Insert(Index, Vec<u8>),
}

impl Damage {
    fn do_to(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let at = |index: &Index| index.index(bytes.len());
        match self {
            Damage::Flip(index, mask) => {
                let at = at(index);
                bytes[at] ^= mask;
            }
            Damage::Drop(index) => drop(bytes.remove(at(index))),
            Damage::Repeat(from, to) => {
                let (from, to) = (at(from).min(at(to)), at(from).max(at(to)));
                let again = bytes[from..to].to_vec();
                bytes.splice(to..to, again);
            }
            Damage::Insert(index, new) => {
                let at = at(index);
                bytes.splice(at..at, new.iter().copied());
            }
        }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<Index>;
    prop_oneof![
        (index(), 1u8..).prop_map(|(at, mask)| Damage::Flip(at, mask)),
        index().prop_map(Damage::Drop),
        (index(), index()).prop_map(|(from, to)| Damage::Repeat(from, to)),
        (index(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, new)| Damage::Insert(at, new)),
    ]
}

/// The server hears this in pieces. False: it has ended the connection.
fn hear(wire: &mut Wire, bytes: &[u8], cuts: &[Index]) -> bool {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    cuts.sort_unstable();
    let mut from = 0;
    for to in cuts.into_iter().chain([bytes.len()]) {
        wire.hear(&bytes[from..to]);
        from = to;
        if wire.state.is_err() {
            return false;
        }
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_damaged_gives_nothing_else(
        is_old: bool,
        damages in prop::collection::vec((0..FLIGHTS, damage()), 0..4),
        cuts in prop::collection::vec(any::<Index>(), 0..6),
    ) {
        let version = if is_old { &TLS12 } else { &TLS13 };
        let mut wire = Wire::new(server(), &any_client(&[version]), "a.example");
        wire.write(REQUEST);
        for flight in 0..FLIGHTS {
            let mut bytes = wire.said();
            damages.iter().filter(|(at, _)| *at == flight).for_each(|(_, damage)| damage.do_to(&mut bytes));
            if !hear(&mut wire, &bytes, &cuts) || wire.answer().is_err() {
                break;
            }
            prop_assert!(wire.unused() <= HANDSHAKE_BYTES_MAX, "{} bytes", wire.unused());
        }
        prop_assert!(REQUEST.starts_with(&wire.got), "{:?}", wire.got.escape_ascii().to_string());
        if damages.is_empty() {
            prop_assert_eq!((wire.state, &wire.got[..]), (Ok(State::Open), REQUEST));
        }
    }

    #[test]
    fn what_is_no_tls_gives_nothing(
        begin in prop::sample::select(vec![&b""[..], b"\x16\x03\x01", b"\x16\x03\x03\x00\x20\x01\x00", b"\x17\x03\x03", b"\x15\x03\x03"]),
        rest in prop::collection::vec(any::<u8>(), 0..2_000),
        cuts in prop::collection::vec(any::<Index>(), 0..6),
    ) {
        let mut wire = Wire::new(server(), &any_client(&[&TLS13]), "a.example");
        hear(&mut wire, &[begin, &rest].concat(), &cuts);
        prop_assert!(wire.got.is_empty() && wire.state != Ok(State::Open) && wire.out.len() < 100);
    }
}
