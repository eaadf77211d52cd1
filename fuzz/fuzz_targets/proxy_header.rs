//! Headers of the PROXY protocol: the same however they are cut, and the addresses in them survive
//! writing and reading.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weir_io::proxy_header_fuzzing::read(data));
