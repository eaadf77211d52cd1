//! Proves: header blocks read as RFC 7541 says, and nothing else is read. How: all of its appendix
//! C, a table of faults, and another implementation (loona-hpack) beside ours on random lists, both
//! ways.

use proptest::collection::vec;
use proptest::prelude::*;
use weir_http::h2::hpack::{Decoder, HpackError, encode};

type List = Vec<(Vec<u8>, Vec<u8>)>;

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<List, HpackError> {
    let mut list = List::new();
    let take = |name: &[u8], value: &[u8]| {
        list.push((name.to_vec(), value.to_vec()));
        true
    };
    decoder.decode(block, &mut Vec::new(), take)?;
    Ok(list)
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .bytes()
        .filter(u8::is_ascii_hexdigit)
        .map(|digit| (digit as char).to_digit(16).unwrap() as u8)
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn words(list: &List) -> String {
    let field = |(name, value): &(Vec<u8>, Vec<u8>)| {
        format!("{}={}", name.escape_ascii(), value.escape_ascii())
    };
    list.iter().map(field).collect::<Vec<_>>().join("|")
}

/// RFC 7541 appendix C.2 to C.6: blocks of one connection each. The last two sections are for a
/// table of 256 bytes, which a size update gives.
#[test]
fn appendix_c() {
    let first = ":method=GET|:scheme=http|:path=/|:authority=www.example.com";
    let second =
        ":method=GET|:scheme=http|:path=/|:authority=www.example.com|cache-control=no-cache";
    let third = ":method=GET|:scheme=https|:path=/index.html|:authority=www.example.com|\
        custom-key=custom-value";
    let date = "date=Mon, 21 Oct 2013 20:13:21 GMT|location=https://www.example.com";
    let (found, moved) = (
        format!(":status=302|cache-control=private|{date}"),
        format!(":status=307|cache-control=private|{date}"),
    );
    let last = ":status=200|cache-control=private|date=Mon, 21 Oct 2013 20:13:22 \
                GMT|location=https://www.example.com|\
                content-encoding=gzip|set-cookie=foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; \
                version=1";
    let connections: Vec<Vec<(&str, &str)>> = vec![
        vec![(
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            "custom-key=custom-header",
        )],
        vec![("040c 2f73 616d 706c 652f 7061 7468", ":path=/sample/path")],
        vec![("1008 7061 7373 776f 7264 0673 6563 7265 74", "password=secret")],
        vec![("82", ":method=GET")],
        vec![
            ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", first),
            ("8286 84be 5808 6e6f 2d63 6163 6865", second),
            ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", third),
        ],
        vec![
            ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", first),
            ("8286 84be 5886 a8eb 1064 9cbf", second),
            ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", third),
        ],
        vec![
            (
                "3fe101 4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 \
                 3133 2032 303a 3133 3a32 3120 474d \
                 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
                &found,
            ),
            ("4803 3330 37c1 c0bf", &moved),
            (
                "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d \
                 54c0 5a04 677a 6970 7738 666f 6f3d \
                 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 \
                 2d61 6765 3d33 3630 303b 2076 6572 \
                 7369 6f6e 3d31",
                last,
            ),
        ],
        vec![
            (
                "3fe101 4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 \
                 82a6 2d1b ff6e 919d 29ad 1718 63c7 \
                 8f0b 97c8 e9ae 82ae 43d3",
                &found,
            ),
            ("4883 640e ffc1 c0bf", &moved),
            (
                "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab \
                 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b \
                 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
                last,
            ),
        ],
    ];
    for connection in connections {
        let mut decoder = Decoder::default();
        for (hex, expected) in connection {
            assert_eq!(words(&decode(&mut decoder, &bytes(hex)).unwrap()), expected, "{hex}");
        }
    }
}

#[test]
fn faults() {
    for (section, block, fault) in [
        ("2.3.3 index 0", "80", HpackError::Index),
        ("2.3.3 no such index", "be", HpackError::Index),
        ("2.3.3 no such name", "7f00 00", HpackError::Index),
        ("5.1 endless number", "ff80 8080 8080 8000", HpackError::Number),
        ("5.1 number too large", "ffff ffff ffff 7f", HpackError::Number),
        ("5.1 number cut", "ff", HpackError::Truncated),
        ("5.2 text cut", "0003 6162", HpackError::Truncated),
        ("5.2 value missing", "0001 61", HpackError::Truncated),
        ("5.2 padding of zeros", "0001 6181 18", HpackError::Huffman),
        ("5.2 padding of a byte", "0001 6182 1fff", HpackError::Huffman),
        ("5.2 end of text in it", "0001 6184 ffff fffc", HpackError::Huffman),
        ("4.2 above the limit", "3fe2 1f", HpackError::SizeUpdate),
        ("4.2 behind a field", "8220", HpackError::SizeUpdate),
        ("4.2 three", "2020 20", HpackError::SizeUpdate),
    ] {
        assert_eq!(decode(&mut Decoder::default(), &bytes(block)), Err(fault), "{section}");
    }
    assert_eq!(
        decode(&mut Decoder::default(), &bytes("203f e11f 82")).map(|list| list.len()),
        Ok(1),
        "two updates"
    );
    let stopped = Decoder::default().decode(&[0x82, 0x82], &mut Vec::new(), |_, _| false);
    assert_eq!(stopped, Err(HpackError::Stopped));
    assert!(HpackError::Stopped.word() != HpackError::Index.word());
}

/// RFC 7541 §4.4: a field larger than the table empties it, and is passed on all the same.
#[test]
fn a_field_larger_than_the_table() {
    let mut decoder = Decoder::default();
    decode(&mut decoder, b"\x40\x01a\x01b").unwrap();
    let large = [&b"\x40\x01c\x7f\xa1\x1f"[..], &[b'x'; 4128]].concat();
    assert_eq!(decode(&mut decoder, &large).unwrap()[0].1.len(), 4128);
    assert_eq!(decode(&mut decoder, b"\xbe"), Err(HpackError::Index));
    assert!(decoder.memory() <= 512 + 64, "{}", decoder.memory());
}

fn names() -> impl Strategy<Value = Vec<u8>> {
    let known = ["accept", "cookie", "content-type", "date", "set-cookie", "x-a", "x-b"];
    prop_oneof![
        proptest::sample::select(known.to_vec()).prop_map(|name| name.as_bytes().to_vec()),
        "[a-z0-9-]{1,20}".prop_map(String::into_bytes),
    ]
}

fn lists() -> impl Strategy<Value = Vec<List>> {
    let value = prop_oneof!["[ -~]{0,30}".prop_map(String::into_bytes), vec(any::<u8>(), 0..200)];
    vec(vec((names(), value), 0..12), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Our decoder reads the output of the other encoder, with its table.
    #[test]
    fn their_blocks(lists in lists()) {
        let (mut theirs, mut ours) = (loona_hpack::Encoder::new(), Decoder::default());
        for list in lists {
            let block = theirs.encode(list.iter().map(|(name, value)| (&name[..], &value[..])));
            prop_assert_eq!(decode(&mut ours, &block), Ok(list));
        }
    }

    /// The other decoder reads our output.
    #[test]
    fn our_blocks(lists in lists(), status in 100u16..1000) {
        let mut theirs = loona_hpack::Decoder::new();
        for list in lists {
            let mut block = vec![encode::EMPTY_TABLE];
            encode::put_status(&mut block, status);
            list.iter().for_each(|(name, value)| encode::put_field(&mut block, name, value));
            let head = (b":status".to_vec(), status.to_string().into_bytes());
            let expected: List = std::iter::once(head).chain(list).collect();
            prop_assert_eq!(theirs.decode(&block).ok(), Some(expected));
        }
    }

    /// Any bytes: when both read them, both read the same. Ours rejects more, never less of what is
    /// right.
    #[test]
    fn any_blocks(
        blocks in vec(
            vec(prop_oneof![any::<u8>(), 0x80..0xc2u8, 0x40..0x48u8, 0..6u8], 0..40),
            1..6
        ),
    ) {
        let (mut theirs, mut ours) = (loona_hpack::Decoder::new(), Decoder::default());
        for block in blocks {
            match (theirs.decode(&block), decode(&mut ours, &block)) {
                (Ok(theirs), Ok(ours)) => prop_assert_eq!(theirs, ours),
                // A size update and no field: the other decoder requires a field after it, the RFC
                // does not.
                (Err(_), Ok(ours)) if ours.is_empty() => break,
                (Err(_), Ok(ours)) => {
                    prop_assert!(false, "only we read {:?}: {}", block, words(&ours))
                }
                (_, Err(_)) => break,
            }
        }
    }
}
