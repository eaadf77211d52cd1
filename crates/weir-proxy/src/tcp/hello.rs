//! Finds the server name (SNI, RFC 6066 §3) in the first message of a TLS client without consuming
//! it. Pure.
//!
//! All bytes so far are read again, but only once as many are there as the message must at least
//! have ([`Found::More`]). So a client that sends byte by byte costs one comparison each. The
//! message may span any number of records (RFC 8446 §5.1), each of any length. Nothing here decides
//! whether a client speaks TLS correctly: the server does, which gets all of it unchanged. Bound:
//! [`HELLO_BYTES_MAX`].

/// Bytes, with the heads of records, after which the search ends. With post-quantum groups and a
/// long ticket a message has 2 to 4 KiB.
pub(crate) const HELLO_BYTES_MAX: usize = 16 * 1024;

/// A record's type, version and length.
const RECORD_HEAD_BYTES: usize = 5;
/// A message's type and length.
const MESSAGE_HEAD_BYTES: usize = 4;
/// Most bytes of a record that is not encrypted.
const RECORD_BYTES_MAX: usize = 1 << 14;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: usize = 0;
const HOST_NAME: u8 = 0;
/// Bytes of a DNS name (RFC 1035 §2.3.4).
const NAME_BYTES_MAX: usize = 253;

/// The result for the beginning of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// At least this many bytes in all are needed to say more.
    More(usize),
    /// It asks for this name, in lower case.
    Name(Box<str>),
    /// It is no such message, asks for no name, or for one that cannot be valid.
    Nothing,
}

/// Reads all bytes so far.
pub(crate) fn read(bytes: &[u8]) -> Found {
    let mut message = Vec::new();
    let mut at = 0;
    loop {
        let Some(head) = bytes.get(at..at + RECORD_HEAD_BYTES) else {
            return if is_record(&bytes[at..]) {
                more(at + RECORD_HEAD_BYTES)
            } else {
                Found::Nothing
            };
        };
        let len = number(&head[3..]);
        if !is_record(head) || len == 0 || len > RECORD_BYTES_MAX {
            return Found::Nothing;
        }
        let start = at + RECORD_HEAD_BYTES;
        at = start + len;
        message.extend_from_slice(&bytes[start..at.min(bytes.len())]);
        if message.first().is_some_and(|first| *first != CLIENT_HELLO) {
            return Found::Nothing;
        }
        // The missing bytes of the message, as far as known: the rest of this record, or the head
        // of the next one and a byte.
        let whole =
            message.get(..MESSAGE_HEAD_BYTES).map(|head| MESSAGE_HEAD_BYTES + number(&head[1..]));
        if let Some(message) = whole.and_then(|whole| message.get(MESSAGE_HEAD_BYTES..whole)) {
            return name(message).map_or(Found::Nothing, Found::Name);
        }
        if at > bytes.len() {
            let missing = whole.unwrap_or(MESSAGE_HEAD_BYTES) - message.len();
            return more(at.min(bytes.len() + missing));
        }
    }
}

/// Asks for more bytes, unless that exceeds the bound.
fn more(bytes: usize) -> Found {
    if bytes > HELLO_BYTES_MAX { Found::Nothing } else { Found::More(bytes) }
}

/// Whether this may be the head of a handshake record, as far as it reaches.
fn is_record(head: &[u8]) -> bool {
    head.first().is_none_or(|kind| *kind == HANDSHAKE)
        && head.get(1).is_none_or(|major| *major == 3)
}

/// Returns a big-endian number of one to three bytes.
fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Takes `count` bytes from the front.
fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (front, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(front)
}

/// Takes the bytes behind a length of `len_bytes` bytes.
fn take_vector<'a>(bytes: &mut &'a [u8], len_bytes: usize) -> Option<&'a [u8]> {
    let len = number(take(bytes, len_bytes)?);
    take(bytes, len)
}

/// The name that a ClientHello asks for (RFC 8446 §4.1.2).
fn name(mut message: &[u8]) -> Option<Box<str>> {
    // Version and random; session, suites, compression.
    take(&mut message, 2 + 32)?;
    take_vector(&mut message, 1)?;
    take_vector(&mut message, 2)?;
    take_vector(&mut message, 1)?;
    let mut extensions = take_vector(&mut message, 2)?;
    while !extensions.is_empty() {
        let kind = number(take(&mut extensions, 2)?);
        let mut extension = take_vector(&mut extensions, 2)?;
        if kind == SERVER_NAME {
            let mut names = take_vector(&mut extension, 2)?;
            // A list has one name of each kind, and the only kind is this.
            let is_host = take(&mut names, 1)? == [HOST_NAME];
            return take_vector(&mut names, 2).filter(|_| is_host).and_then(host);
        }
    }
    None
}

/// Returns a name in lower case, if it can be valid.
fn host(name: &[u8]) -> Option<Box<str>> {
    let is_fine = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    let is_name = !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.iter().all(is_fine);
    let text = str::from_utf8(name).ok().filter(|_| is_name)?;
    Some(text.to_ascii_lowercase().into())
}

#[cfg(test)]
mod tests {
    //! Proves: the name is found however the message is cut into records and segments, never before
    //! it is complete, and nothing else is taken for it; the bytes asked for next are never too
    //! many. How: a message that is written here, all its cuts, and any bytes.

    use super::*;
    use proptest::prelude::*;

    fn vector(len_bytes: usize, bytes: &[u8]) -> Vec<u8> {
        let len = (bytes.len() as u32).to_be_bytes();
        [&len[4 - len_bytes..], bytes].concat()
    }

    fn extension(kind: u16, bytes: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &vector(2, bytes)].concat()
    }

    /// Returns the message, with an extension in front of the name.
    fn message(name: Option<&[u8]>) -> Vec<u8> {
        let mut extensions = extension(43, &[2, 3, 4]);
        if let Some(name) = name {
            extensions.extend(extension(0, &vector(2, &[&[0][..], &vector(2, name)].concat())));
        }
        extensions.extend(extension(51, &[9; 300]));
        let body = [
            &[3, 3][..],
            &[7; 32],
            &vector(1, &[8; 32]),
            &vector(2, &[0x13, 1, 0x13, 2]),
            &vector(1, &[0]),
            &vector(2, &extensions),
        ]
        .concat();
        [&[CLIENT_HELLO][..], &vector(3, &body)].concat()
    }

    /// Returns the message in records of `each` bytes.
    fn records(message: &[u8], each: usize) -> Vec<u8> {
        let record = |part: &[u8]| [&[HANDSHAKE, 3, 1][..], &vector(2, part)].concat();
        message.chunks(each).flat_map(record).collect()
    }

    #[test]
    fn names_are_found_in_records_of_any_length() {
        for each in [1, 2, 3, 4, 5, 63, 64, 200, 10_000] {
            let all = records(&message(Some(b"Www.Example.ORG")), each);
            assert_eq!(read(&all), Found::Name("www.example.org".into()), "{each}");
            assert_eq!(
                read(&[&all[..], b"and more"].concat()),
                Found::Name("www.example.org".into())
            );
            for cut in 0..all.len() {
                let Found::More(want) = read(&all[..cut]) else {
                    panic!("{each}: {cut} of {}", all.len())
                };
                assert!(want > cut && want <= all.len(), "{each}: {want} at {cut}");
            }
        }
    }

    #[test]
    fn what_has_no_name_has_none() {
        for name in [None, Some(&b""[..]), Some(b"a b"), Some(b"\xff"), Some(&[b'a'; 254])] {
            assert_eq!(read(&records(&message(name), 100)), Found::Nothing, "{name:?}");
        }
        for other in [
            &b"SSH-2.0-x"[..],
            b"GET / HTTP/1.1\r\n",
            b"\x15\x03\x01\0\x02\x01\0",
            b"\x16\x02\0\0\x05aaaaa",
        ] {
            assert_eq!(read(other), Found::Nothing);
        }
        // A server's message; an empty record; a record that is too long; a message that is too
        // long.
        assert_eq!(read(b"\x16\x03\x03\0\x05\x02\0\0\x01\0"), Found::Nothing);
        assert_eq!(read(b"\x16\x03\x03\0\0"), Found::Nothing);
        assert_eq!(read(b"\x16\x03\x03\x40\x01\x01"), Found::Nothing);
        assert_eq!(
            read(&records(&[&[CLIENT_HELLO][..], &vector(3, &[0; 20_000])].concat(), 8000)),
            Found::Nothing
        );
    }

    proptest! {
        #[test]
        fn any_bytes_end_or_ask_for_more_than_there_are(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            damaged in any::<bool>(),
            at in 0..400usize,
        ) {
            let mut all = if damaged { records(&message(Some(b"a.test")), 90) } else { Vec::new() };
            let at = at.min(all.len());
            all.splice(at..at, bytes);
            for cut in 0..=all.len() {
                match read(&all[..cut]) {
                    Found::More(want) => prop_assert!(want > cut && want <= HELLO_BYTES_MAX),
                    Found::Name(name) => {
                        prop_assert!(!name.is_empty() && name.len() <= NAME_BYTES_MAX)
                    }
                    Found::Nothing => {}
                }
            }
        }
    }
}
