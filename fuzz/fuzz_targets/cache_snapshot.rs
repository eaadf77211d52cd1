//! Reads any bytes as a snapshot of the cache, as they are and with correct checksums.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weir_cache::fuzzing::snapshot(data));
