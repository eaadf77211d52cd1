//! Header blocks of HPACK: what is read reads the same when written anew.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weir_http::fuzzing::h2::blocks(data));
