//! Times, sizes, and rates, statuses and keys of `shield`: a simple calculation agrees, and
//! accepted values read back.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| weir_config::fuzzing::units(data));
