//! Values that limits count by: told apart by their lengths, changed by nothing else, and another one is the last.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weir_proxy::shield::by::fuzzing::head(data));
