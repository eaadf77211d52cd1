//! Handshakes that are cut and damaged give nothing but what the client has said.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_fuzz::tls_terms;

fuzz_target!(|data: &[u8]| weir_tls::fuzzing::damaged(tls_terms(), data));
