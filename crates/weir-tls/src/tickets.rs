//! Tickets (RFC 5077, RFC 8446 §4.6.1) that other weir hosts understand: sealed with keys of a file
//! that all of them have.
//!
//! A file has one key a line, 80 bytes in base64, the newest last. Each of the last three opens
//! tickets, and the last but one seals them. So you can append a new key on one host after the
//! other, and hosts that do not have it yet still understand all tickets. HAProxy reads such files
//! in the same way (`tls-ticket-keys`); it does not understand the tickets themselves, nor does
//! other software.
//!
//! ```text
//!   name 16 | nonce 12 | AES-256-GCM( issued 8 | session ) with its tag 16
//! ```
//!
//! Key and name are derived from the line and from the listener's properties ([`Place`]): its port,
//! its kind of service, the names of its certificates and which clients it takes. So a session is
//! resumed only where it could have begun, on this host or on another host with the same
//! configuration. Bounds: [`LIFETIME_S`], [`KEYS_MAX`], [`FILE_BYTES_MAX`](crate::FILE_BYTES_MAX).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::server::ProducesTickets;
use rustls_pki_types::UnixTime;

use crate::pairs::{self, BadPair};

/// Bytes of a key in the file.
pub const KEY_BYTES: usize = 80;
/// Keys at the end of the file that are used.
pub const KEYS_MAX: usize = 3;
/// How long a ticket is valid, seconds: 12 hours, whichever weir host has issued it.
pub const LIFETIME_S: u64 = 12 * 3600;
/// How far the clock of the issuing weir host may be ahead of ours, seconds.
const AHEAD_S_MAX: u64 = 60;

const NAME_BYTES: usize = 16;
const TIME_BYTES: usize = 8;

/// Describes the listener that tickets belong to: other listeners do not understand them. Its
/// address does not count, because it differs between hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    /// Its port.
    pub(crate) port: u16,
    /// The kind of service for its clients, as a word.
    pub(crate) role: &'a str,
    /// All names that its certificates are for.
    pub(crate) names: Vec<String>,
    /// It takes TLS 1.3 only.
    pub(crate) only_tls13: bool,
    /// It refuses clients that ask for none of the names.
    pub(crate) strict_names: bool,
}

impl Place<'_> {
    /// The same bytes for the same place only. A renewed certificate has the same names as the
    /// previous one.
    fn bytes(&self) -> Vec<u8> {
        let mut names: Vec<&str> = self.names.iter().map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        let mut bytes = self.port.to_be_bytes().to_vec();
        bytes.extend([self.only_tls13, self.strict_names].map(u8::from));
        // No name contains a zero.
        [self.role].iter().chain(&names).for_each(|text| bytes.extend(text.bytes().chain([0])));
        bytes
    }
}

/// The keys of a file.
#[derive(Clone)]
pub struct TicketKeys {
    path: PathBuf,
    /// At most [`KEYS_MAX`], the newest last; at least one.
    keys: Vec<[u8; KEY_BYTES]>,
    is_open: bool,
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKeys").field("len", &self.keys.len()).finish_non_exhaustive()
    }
}

impl TicketKeys {
    /// Reads a file.
    ///
    /// # Errors
    /// It can't be read, or contains something other than keys; messages don't show what.
    pub fn read(path: &Path) -> Result<TicketKeys, BadPair> {
        let (bytes, is_open) = pairs::read(path, "the keys of tickets")?;
        let shown = path.display();
        let mut keys = Vec::new();
        for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let key =
                STANDARD.decode(line).ok().and_then(|key| <[u8; KEY_BYTES]>::try_from(key).ok());
            let Some(key) = key else {
                let how = "`openssl rand 80 | openssl base64 -A` makes one";
                let text = format!(
                    "line {} of {shown} is not a key: write {KEY_BYTES} bytes in base64; {how}",
                    at + 1
                );
                return Err(BadPair::new(text));
            };
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(BadPair::new(format!(
                "{shown} has no key: write one per line, {KEY_BYTES} bytes in base64"
            )));
        }
        keys.drain(..keys.len().saturating_sub(KEYS_MAX));
        Ok(TicketKeys { path: path.into(), keys, is_open })
    }

    /// Warnings for the operator.
    pub fn warnings(&self) -> Vec<String> {
        let file = self.path.display();
        let text =
            || format!("all users of this host may read the keys in {file}: run `chmod o= {file}`");
        self.is_open.then(text).into_iter().collect()
    }

    /// How many keys are used.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Never: there is at least one.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The code that makes and accepts tickets at a listener.
    ///
    /// # Errors
    /// The library rejects these keys.
    pub(crate) fn ring(&self, place: &Place<'_>) -> Result<Arc<dyn ProducesTickets>, BadPair> {
        let place = place.bytes();
        let keys: Result<Vec<_>, _> = self.keys.iter().map(|key| Key::new(key, &place)).collect();
        let keys =
            keys.map_err(|_| BadPair::new("the keys of tickets can't be used".to_owned()))?;
        Ok(Arc::new(Ring { sealing: keys.len().saturating_sub(2), keys }))
    }
}

struct Key {
    name: [u8; NAME_BYTES],
    aead: RandomizedNonceKey,
}

impl Key {
    /// `place`: of [`Place::bytes`].
    fn new(secret: &[u8; KEY_BYTES], place: &[u8]) -> Result<Key, aws_lc_rs::error::Unspecified> {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let made = |what: &[u8]| hmac::sign(&secret, &[what, place].concat());
        let mut name = [0; NAME_BYTES];
        name.copy_from_slice(&made(b"weir ticket name 2").as_ref()[..NAME_BYTES]);
        Ok(Key {
            name,
            aead: RandomizedNonceKey::new(&AES_256_GCM, made(b"weir ticket key 2").as_ref())?,
        })
    }
}

/// The keys of a file for one listener.
struct Ring {
    keys: Vec<Key>,
    /// The key that seals.
    sealing: usize,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("len", &self.keys.len()).finish_non_exhaustive()
    }
}

impl Ring {
    /// A ticket of this session at this time, seconds since 1970.
    fn seal(&self, session: &[u8], now: u64) -> Option<Vec<u8>> {
        let Key { name, aead } = self.keys.get(self.sealing)?;
        let mut sealed = [&now.to_be_bytes()[..], session].concat();
        let nonce = aead.seal_in_place_append_tag(Aad::from(name), &mut sealed).ok()?;
        Some([&name[..], nonce.as_ref(), &sealed].concat())
    }

    /// The session of a ticket; None: it is none of ours, or too old.
    fn open(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_at_checked(NAME_BYTES)?;
        let (nonce, sealed) = rest.split_at_checked(NONCE_LEN)?;
        let key = self.keys.iter().find(|key| key.name == name)?;
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let plain = key.aead.open_in_place(nonce, Aad::from(name), &mut sealed).ok()?;
        let (issued, session) = plain.split_at_checked(TIME_BYTES)?;
        let issued = u64::from_be_bytes(issued.try_into().ok()?);
        let is_in_time =
            now.saturating_sub(issued) < LIFETIME_S && issued <= now.saturating_add(AHEAD_S_MAX);
        is_in_time.then(|| session.to_vec())
    }
}

impl ProducesTickets for Ring {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME_S as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal(plain, UnixTime::now().as_secs())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.open(cipher, UnixTime::now().as_secs())
    }
}

#[cfg(test)]
mod tests {
    //! Proves: tickets are understood wherever their key and their port are used, for their time,
    //! and no other bytes are; a key can be exchanged on one host after the other. How: rings of
    //! keys made here.

    use super::*;

    fn keys(numbers: &[u8]) -> TicketKeys {
        let keys = numbers[numbers.len().saturating_sub(KEYS_MAX)..]
            .iter()
            .map(|number| [*number; KEY_BYTES]);
        TicketKeys { path: PathBuf::new(), keys: keys.collect(), is_open: false }
    }

    fn ring_at(numbers: &[u8], place: &Place<'_>) -> Ring {
        let place = place.bytes();
        let keys: Vec<Key> =
            keys(numbers).keys.iter().map(|key| Key::new(key, &place).unwrap()).collect();
        Ring { sealing: keys.len().saturating_sub(2), keys }
    }

    fn place(port: u16, names: &[&str]) -> Place<'static> {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Place { port, role: "reverse", names, only_tls13: false, strict_names: false }
    }

    fn ring(numbers: &[u8], port: u16) -> Ring {
        ring_at(numbers, &place(port, &["a.test"]))
    }

    const NOW: u64 = 1_800_000_000;

    #[test]
    fn a_key_is_exchanged_on_one_host_after_the_other() {
        let steps = [&[1][..], &[1, 2], &[1, 2, 3], &[2, 3, 4], &[3, 4, 5]];
        for (at, numbers) in steps.iter().enumerate() {
            let here = ring(numbers, 443);
            assert_eq!(
                here.open(&here.seal(b"session", NOW).unwrap(), NOW).as_deref(),
                Some(&b"session"[..])
            );
            if let Some(numbers) = steps.get(at + 1) {
                let there = ring(numbers, 443);
                for (one, other) in [(&here, &there), (&there, &here)] {
                    assert_eq!(
                        one.open(&other.seal(b"s", NOW).unwrap(), NOW).as_deref(),
                        Some(&b"s"[..]),
                        "{numbers:?}"
                    );
                }
            }
        }
        let old = ring(&[1, 2], 443).seal(b"s", NOW).unwrap();
        assert!(ring(&[1, 2, 3], 443).open(&old, NOW).is_some());
        assert_eq!(ring(&[2, 3, 4], 443).open(&old, NOW), None);
    }

    #[test]
    fn another_listener_understands_nothing() {
        let here = place(443, &["a.test", "b.test"]);
        let ticket = ring_at(&[1], &here).seal(b"session", NOW).unwrap();
        let opens = |place: &Place<'_>| ring_at(&[1], place).open(&ticket, NOW).is_some();
        // On another host, and with a renewed certificate that has the names in another order.
        assert!(opens(&here) && opens(&place(443, &["b.test", "a.test", "b.test"])));
        for other in [
            place(444, &["a.test", "b.test"]),
            place(443, &["a.test"]),
            place(443, &["a.test", "b.test", "c.test"]),
            place(443, &["a.testb.test"]),
            place(443, &[]),
            Place { role: "forward", ..here.clone() },
            Place { only_tls13: true, ..here.clone() },
            Place { strict_names: true, ..here.clone() },
        ] {
            assert!(!opens(&other), "{other:?}");
        }
    }

    #[test]
    fn only_here_only_in_time_and_only_whole() {
        let here = ring(&[1, 2], 443);
        let ticket = here.seal(b"session", NOW).unwrap();
        assert_ne!(here.seal(b"session", NOW).unwrap(), ticket, "a nonce of its own");
        assert_eq!(ring(&[1, 2], 8443).open(&ticket, NOW), None);
        for (now, is_good) in [
            (NOW + LIFETIME_S - 1, true),
            (NOW + LIFETIME_S, false),
            (NOW - AHEAD_S_MAX, true),
            (NOW - AHEAD_S_MAX - 1, false),
        ] {
            assert_eq!(here.open(&ticket, now).is_some(), is_good, "{now}");
        }
        for at in 0..ticket.len() {
            assert_eq!(here.open(&ticket[..at], NOW), None);
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(here.open(&changed, NOW), None, "{at}");
        }
    }
}
