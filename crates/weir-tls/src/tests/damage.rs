//! Proves: however a client's bytes are changed, cut or replaced, the library of the product
//! outputs only what the client has said, ends nothing twice, and never panics; the bytes that it
//! is shown again are never more than a record. How: real handshakes of both versions with
//! generated damage, and bytes that are no TLS at all, as the fuzz targets choose them.

use std::sync::OnceLock;

use proptest::prelude::*;

use super::files::Scratch;
use super::wire::terms;
use crate::fuzzing;
use crate::terms::Terms;

/// One certificate for all cases: each one costs a process.
fn server() -> &'static Terms {
    static TERMS: OnceLock<Terms> = OnceLock::new();
    TERMS.get_or_init(|| terms(&[Scratch::new().pair("ec", &["a.example"])], |_| ()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn what_is_damaged_gives_nothing_else(choices in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzzing::damaged(server(), &choices);
    }

    #[test]
    fn what_is_no_tls_gives_nothing(choices in prop::collection::vec(any::<u8>(), 0..2_000)) {
        fuzzing::strange(server(), &choices);
    }
}
