//! Values that limits count by: their lengths separate them, unrelated fields don't change them,
//! and an added value is the last.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weir_proxy::shield::by::fuzzing::head(data));
