//! Properties that hold for any bytes from a client. Called by the fuzz targets `tls` and
//! `tls_strange` and by property tests.

use rustls::version::{TLS12, TLS13};

use crate::cipher::State;
use crate::sealed::HANDSHAKE_BYTES_MAX;
use crate::terms::Terms;
use wire::Wire;

pub(crate) mod wire;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
/// Flights of a client in one conversation here, one more than it has.
const FLIGHTS: usize = 4;
const DAMAGES_MAX: u8 = 4;
const CUTS_MAX: usize = 6;
/// The name that the client asks for.
const NAME: &str = "a.example";

/// A fault of a flight. Places are taken modulo its length.
enum Damage<'a> {
    Flip { at: usize, mask: u8 },
    Drop { at: usize },
    Repeat { from: usize, to: usize },
    Insert { at: usize, new: &'a [u8] },
}

impl Damage<'_> {
    fn do_to(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let length = bytes.len();
        match *self {
            Damage::Flip { at, mask } => bytes[at % length] ^= mask,
            Damage::Drop { at } => drop(bytes.remove(at % length)),
            Damage::Repeat { from, to } => {
                let (from, to) = (from % length, to % length);
                let again = bytes[from.min(to)..from.max(to)].to_vec();
                bytes.splice(from.max(to)..from.max(to), again);
            }
            Damage::Insert { at, new } => {
                drop(bytes.splice(at % length..at % length, new.iter().copied()))
            }
        }
    }
}

/// Reads choices from bytes; zeros when the bytes are used up.
struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    fn byte(&mut self) -> u8 {
        self.some(1).first().copied().unwrap_or(0)
    }

    fn place(&mut self) -> usize {
        usize::from(u16::from_be_bytes([self.byte(), self.byte()]))
    }

    fn some(&mut self, count: usize) -> &'a [u8] {
        let (some, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        some
    }

    /// A flight, and its fault.
    fn damage(&mut self) -> (usize, Damage<'a>) {
        let flight = usize::from(self.byte()) % FLIGHTS;
        let damage = match self.byte() % 4 {
            0 => Damage::Flip { at: self.place(), mask: self.byte().max(1) },
            1 => Damage::Drop { at: self.place() },
            2 => Damage::Repeat { from: self.place(), to: self.place() },
            _ => {
                let (at, count) = (self.place(), 1 + usize::from(self.byte() % 40));
                Damage::Insert { at, new: self.some(count) }
            }
        };
        (flight, damage)
    }
}

/// Plays a real handshake and a request. The first bytes of `data` choose the version, the damage
/// to flights of the client, and the places where the network cuts them. Whatever they choose, the
/// library of the product outputs only what the client has said, never panics, and the bytes that
/// it is shown again stay within bounds. Without damage the request arrives complete.
///
/// `terms` have a certificate for `a.example` and take TLS 1.2.
pub fn damaged(terms: &Terms, data: &[u8]) {
    let mut choices = Choices(data);
    let version = if choices.byte() & 1 == 0 { &TLS13 } else { &TLS12 };
    let damages: Vec<(usize, Damage<'_>)> =
        (0..choices.byte() % DAMAGES_MAX).map(|_| choices.damage()).collect();
    let cuts = cuts(&mut choices);
    let mut wire = Wire::new(terms, &wire::any_client(&[version]), NAME);
    wire.write(REQUEST);
    for flight in 0..FLIGHTS {
        let mut bytes = wire.said();
        damages
            .iter()
            .filter(|(at, _)| *at == flight)
            .for_each(|(_, damage)| damage.do_to(&mut bytes));
        if !hear(&mut wire, &bytes, &cuts) || wire.answer().is_err() {
            break;
        }
        assert!(wire.unused() <= HANDSHAKE_BYTES_MAX, "{} bytes", wire.unused());
    }
    assert!(REQUEST.starts_with(&wire.got), "{}", wire.got.escape_ascii());
    if damages.is_empty() {
        assert_eq!((wire.state, &wire.got[..]), (Ok(State::Open), REQUEST));
    }
}

/// Shows the library bytes that no TLS client has made: the first of them choose a beginning and
/// the cuts. No handshake completes, nothing is output, and the response is an alert at most.
///
/// `terms` as for [`damaged`].
pub fn strange(terms: &Terms, data: &[u8]) {
    const BEGINNINGS: [&[u8]; 5] =
        [b"", b"\x16\x03\x01", b"\x16\x03\x03\x00\x20\x01\x00", b"\x17\x03\x03", b"\x15\x03\x03"];
    let mut choices = Choices(data);
    let begin = BEGINNINGS[usize::from(choices.byte()) % BEGINNINGS.len()];
    let cuts = cuts(&mut choices);
    let mut wire = Wire::new(terms, &wire::any_client(&[&TLS13]), NAME);
    hear(&mut wire, &[begin, choices.0].concat(), &cuts);
    assert!(
        wire.got.is_empty()
            && wire.state != Ok(State::Open)
            && wire.out.len() < 2 * HANDSHAKE_BYTES_MAX
    );
}

fn cuts(choices: &mut Choices<'_>) -> Vec<usize> {
    (0..usize::from(choices.byte()) % (CUTS_MAX + 1)).map(|_| choices.place()).collect()
}

/// The server receives this in pieces. False: it has ended the connection.
fn hear(wire: &mut Wire, bytes: &[u8], cuts: &[usize]) -> bool {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
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
