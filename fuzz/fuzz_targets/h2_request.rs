//! Header lists of HTTP/2 to requests: the strict grammar judges the text that would leave.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_check::{Rules, StrictRequests};
use weir_http::fuzzing::h2;

fuzz_target!(|data: &[u8]| {
    let Some(out) = h2::forwarded(&h2::list(data)) else { return };
    let mut judge = StrictRequests::new(Rules { via: false, ..Rules::default() });
    if let Err(violation) = judge.feed(&out) {
        panic!("{violation:?}: {}", out.escape_ascii());
    }
});
