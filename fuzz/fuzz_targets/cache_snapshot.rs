//! Any bytes as a snapshot of the cache, as they are and with checksums that are right.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weir_cache::fuzzing::snapshot(data));
