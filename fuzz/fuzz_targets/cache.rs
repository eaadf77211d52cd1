//! Runs a request and its response through all rules of the cache.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weir_cache::fuzzing::exchange(data));
