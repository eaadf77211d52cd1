//! Properties over many inputs: the fuzz targets' functions on their seeds, on seeded changes of
//! them and on generated connections.

use proptest::collection::vec;
use proptest::prelude::*;
use weir_check::{Rules, StrictRequests};
use weir_http::fuzzing::{Mutator, h2};
use weir_http::h2::frame::Kind;

use crate::kit::{frame, headers};

#[test]
fn seeds() {
    h2::seeds().iter().for_each(|seed| h2::connection(seed));
    h2::block_seeds().iter().for_each(|seed| h2::blocks(seed));
}

#[test]
fn smoke_connections() {
    let (mut mutator, seeds) = (Mutator::new(4), h2::seeds());
    for _ in 0..3_000 {
        h2::connection(&mutator.next(&seeds));
    }
}

#[test]
fn smoke_answers() {
    let (mut mutator, seeds) = (Mutator::new(6), h2::answer_seeds());
    seeds.iter().for_each(|seed| h2::answers(seed));
    for _ in 0..1_500 {
        h2::answers(&mutator.next(&seeds));
    }
}

#[test]
fn smoke_blocks() {
    let (mut mutator, seeds) = (Mutator::new(5), h2::block_seeds());
    for _ in 0..50_000 {
        h2::blocks(&mutator.next(&seeds));
    }
}

/// Header lists out of changed seeds: accepted ones satisfy a grammar that was written without our
/// parser.
#[test]
fn smoke_lists() {
    let (mut mutator, seeds) = (Mutator::new(7), h2::list_seeds());
    let leaves = |seed: &[u8]| h2::forwarded(&h2::list(seed)).map(|out| judged(&out)).is_some();
    let left = seeds.iter().filter(|seed| leaves(seed)).count();
    assert_eq!(left, 4, "of {} seeds", seeds.len());
    let left = (0..20_000).filter(|_| leaves(&mutator.next(&seeds))).count();
    assert!(left > 500, "{left} of all");
}

fn judged(out: &[u8]) {
    let mut judge = StrictRequests::new(Rules { via: false, ..Rules::default() });
    assert!(judge.feed(out).is_ok(), "{}", out.escape_ascii());
}

/// Header blocks beside another implementation, as the fuzz target has it.
#[test]
fn smoke_blocks_beside() {
    let (mut mutator, seeds) = (Mutator::new(8), h2::block_seeds());
    for _ in 0..10_000 {
        let mut theirs = loona_hpack::Decoder::new();
        h2::blocks_beside(&mutator.next(&seeds), |block| theirs.decode(block).ok());
    }
}

/// A frame that is mostly right.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let stream = prop_oneof![Just(0u32), (0..6u32).prop_map(|at| 1 + 2 * at), 0..9u32];
    let kind = prop_oneof![
        Just(Kind::Data),
        Just(Kind::Headers),
        Just(Kind::Priority),
        Just(Kind::RstStream),
        Just(Kind::Settings),
        Just(Kind::Ping),
        Just(Kind::WindowUpdate),
        Just(Kind::Continuation),
        Just(Kind::PriorityUpdate),
        Just(Kind::Unknown(60)),
    ];
    let odd = (kind, any::<u8>(), stream.clone(), vec(any::<u8>(), 0..20));
    let list = vec(("[:a-z-]{1,8}|host|cookie|te|:path", "[ -~]{0,9}"), 0..4);
    let request = ((0..6u32), any::<bool>(), list);
    let body = ((0..6u32), 0..2u8, 0..400usize);
    prop_oneof![
        odd.prop_map(|(kind, flags, stream, payload)| frame(kind, flags & 0x2d, stream, &payload)),
        stream.prop_map(|stream| frame(Kind::WindowUpdate, 0, stream, &[0, 0, 1, 0])),
        request.prop_map(|(at, end, list)| {
            let mut all =
                vec![(":method", "GET"), (":scheme", "http"), (":path", "/x"), (":authority", "a")];
            all.extend(list.iter().map(|(name, value)| (name.as_str(), value.as_str())));
            headers(1 + 2 * at, u8::from(end), &all)
        }),
        body.prop_map(|(at, flags, bytes)| frame(
            Kind::Data,
            flags,
            1 + 2 * at,
            &vec![b'b'; bytes]
        )),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn generated_connections(frames in vec(frames(), 0..14)) {
        let settings = frame(Kind::Settings, 0, 0, &[]);
        h2::connection(&[settings, frames.concat()].concat());
    }

    #[test]
    fn any_bytes(data in vec(any::<u8>(), 0..200)) {
        h2::connection(&data);
        h2::answers(&data);
        h2::blocks(&data);
    }

    /// The encoding of any accepted head satisfies a grammar that was written without our parser.
    #[test]
    fn what_leaves_is_strict(
        method in "GET|POST|FOO|[A-Z]{1,5}",
        path in "/[ -~\r\n]{0,20}|/[a-z?%0-9]{0,20}",
        authority in "[a-z0-9.:@,]{0,9}",
        fields in vec(
            (
                "[a-zA-Z_-]{1,9}|host|content-length|connection|te|transfer-encoding|cookie|via",
                "[ -~\r\n\t]{0,12}|[0-9]{1,3}"
            ),
            0..6
        ),
    ) {
        let mut list = vec![
            (":method", &method[..]),
            (":scheme", "http"),
            (":path", &path),
            (":authority", &authority),
        ];
        list.extend(fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let list: h2::List = list
            .iter()
            .map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .collect();
        let Some(out) = h2::forwarded(&list) else { return Ok(()) };
        judged(&out);
    }
}
