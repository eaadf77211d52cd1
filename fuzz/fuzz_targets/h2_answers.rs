//! Connections of HTTP/2 as clients see them: the same however they are cut.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weir_http::fuzzing::h2::answers(data));
