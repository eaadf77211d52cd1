//! Configuration text: nothing panics, errors can be drawn, and accepted text prints and reads
//! back.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weir_config::fuzzing::config(data));
