//! Header blocks of HPACK: a block reads the same after it is encoded again, and another
//! implementation reads it alike.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_http::fuzzing::h2;

fuzz_target!(|data: &[u8]| {
    h2::blocks(data);
    let mut theirs = loona_hpack::Decoder::new();
    h2::blocks_beside(data, |block| theirs.decode(block).ok());
});
