//! Chunked bodies: whole and in pieces alike, and encoded bytes decode to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weir_http::fuzzing::chunked(data));
