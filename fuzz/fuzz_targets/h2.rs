//! Connections of HTTP/2: the same however they are cut, and heads that are text of HTTP/1.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weir_http::fuzzing::h2::connection(data));
