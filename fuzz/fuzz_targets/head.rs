//! Request and reply heads, streams of replies: properties of the parsers, with the strict grammar
//! as judge of the bytes that would leave.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_check::{Rules, StrictRequests};

fuzz_target!(|data: &[u8]| {
    weir_http::fuzzing::head(data);
    weir_http::fuzzing::replies(data);
    if let Some(out) = weir_http::fuzzing::encoded_request(data) {
        let mut judge = StrictRequests::new(Rules { via: false, ..Rules::default() });
        if let Err(violation) = judge.feed(&out) {
            panic!("{violation:?}: {}", out.escape_ascii());
        }
    }
});
