//! Bytes that are not TLS yield nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_fuzz::tls_terms;

fuzz_target!(|data: &[u8]| weir_tls::fuzzing::strange(tls_terms(), data));
