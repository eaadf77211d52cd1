//! Handshakes that are cut and damaged yield nothing but the client's own bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_fuzz::tls_terms;

fuzz_target!(|data: &[u8]| weir_tls::fuzzing::damaged(tls_terms(), data));
