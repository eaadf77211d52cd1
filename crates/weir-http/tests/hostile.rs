//! Rows of docs/hostile.md that parsing decides, each as a test named after its letter: accepted
//! inputs, and the word of each rejection. Separate tests below check what must be *read* from
//! accepted heads.

use weir_http::fuzzing::corpus::{self, HeadCase};
use weir_http::fuzzing::decode_pieces;
use weir_http::{Fields, Limits, ReplyContext, parse_reply, parse_request};

fn check(case: &HeadCase, outcome: Result<Option<usize>, &'static str>) {
    let shown = case.input[..case.input.len().min(200)].escape_ascii();
    match (case.expected, outcome) {
        (Ok(()), Ok(Some(bytes))) => assert!(case.input[..bytes].ends_with(b"\r\n\r\n"), "{shown}"),
        (Err(expected), Err(word)) => assert_eq!(word, expected, "{shown}"),
        (expected, outcome) => panic!("{outcome:?} instead of {expected:?}: {shown}"),
    }
}

/// All cases of a row; there must be some.
fn requests(row: &str) {
    let cases: Vec<HeadCase> =
        corpus::requests().into_iter().filter(|case| case.row == row).collect();
    assert!(!cases.is_empty());
    for case in cases {
        let parsed = parse_request(&case.input, &Limits::default(), &mut Fields::default());
        check(&case, parsed.map(|head| head.map(|head| head.bytes)).map_err(|fault| fault.word()));
    }
}

fn replies(row: &str) {
    let cases: Vec<HeadCase> =
        corpus::replies().into_iter().filter(|case| case.row == row).collect();
    assert!(!cases.is_empty());
    for case in cases {
        let parsed = parse_reply(
            &case.input,
            &Limits::default(),
            ReplyContext::default(),
            &mut Fields::default(),
        );
        check(&case, parsed.map(|head| head.map(|head| head.bytes)).map_err(|fault| fault.word()));
    }
}

fn chunked(row: &str) {
    let cases: Vec<_> = corpus::chunked().into_iter().filter(|case| case.row == row).collect();
    assert!(!cases.is_empty());
    for case in cases {
        let decoded = decode_pieces(&case.input, false, [case.input.len()].into_iter());
        let shown = case.input[..case.input.len().min(200)].escape_ascii();
        match &case.expected {
            Ok(body) => {
                assert!(decoded.consumed.is_some() && decoded.body == *body, "{decoded:?} {shown}")
            }
            Err(word) => {
                assert_eq!(decoded.fault.map(|fault| fault.word()), Some(*word), "{shown}")
            }
        }
    }
}

macro_rules! rows {
    ($($name:ident: $kind:ident $row:literal)*) => {
        $(#[test]
        fn $name() {
            $kind($row);
        })*
    };
}

rows! {
    ordinary_requests: requests "ok"
    ordinary_replies: replies "ok"
    ordinary_bodies: chunked "ok"
    a1_length_then_coding: requests "a1"
    a2_coding_then_length: requests "a2"
    a3_codings_in_disguise: requests "a3"
    a5_hidden_lengths: requests "a5"
    a6_body_on_options: requests "a6"
    a7_content_length_forms: requests "a7"
    a8_chunk_sizes: chunked "a8"
    a9_chunk_extensions: chunked "a9"
    a10_chunk_ends: chunked "a10"
    a11_trailers: chunked "a11"
    a12_http10: requests "a12"
    a13_body_where_unusual: requests "a13"
    a16_expectations: requests "a16"
    b1_bare_lf: requests "b1"
    b2_bare_cr: requests "b2"
    b3_control_bytes: requests "b3"
    b4_folds: requests "b4"
    b5_space_before_colon: requests "b5"
    b6_names: requests "b6"
    b7_underscores: requests "b7"
    b8_first_lines: requests "b8"
    b9_limits: requests "b9"
    b11_connection_lists: requests "b11"
    b12_loops: requests "b12"
    c1_hosts: requests "c1"
    c2_absolute_form: requests "c2"
    c3_target_forms: requests "c3"
    c4_encoded_paths: requests "c4"
    c8_methods: requests "c8"
    e13_both_framings: replies "e13"
    e14_lengths: replies "e14"
    e15_codings: replies "e15"
    e16_chunk_size: chunked "e16"
    e17_grammar: replies "e17"
}

#[test]
fn every_row_of_the_corpus_has_a_test() {
    let here = include_str!("hostile.rs");
    let heads = corpus::requests().into_iter().map(|case| ("requests", case.row));
    let replies = corpus::replies().into_iter().map(|case| ("replies", case.row));
    let chunked = corpus::chunked().into_iter().map(|case| ("chunked", case.row));
    for (kind, row) in heads.chain(replies).chain(chunked) {
        assert!(here.contains(&format!(": {kind} \"{row}\"\n")), "{kind} {row}");
    }
}
