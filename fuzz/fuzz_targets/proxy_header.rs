//! Headers of the PROXY protocol: the same however they are cut, and whom they name is written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weir_io::proxy_header_fuzzing::read(data));
