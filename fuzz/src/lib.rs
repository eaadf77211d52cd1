//! Code that fuzz targets share.

use std::sync::OnceLock;

use weir_tls::{Files, Materials, Pair, Terms, Wanted, provider};

/// Returns the TLS terms of a listener: TLS 1.2 and 1.3 with a certificate for `a.example`, made
/// once.
pub fn tls_terms() -> &'static Terms {
    static TERMS: OnceLock<Terms> = OnceLock::new();
    TERMS.get_or_init(|| {
        let names = ["a.example".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let pair = Pair::of_texts("made", chain.as_bytes(), key.as_bytes(), &provider());
        let pair = pair.expect("a pair");
        let nowhere = Files { certificate: "made.pem".into(), key: "made.key".into() };
        Terms::new(Wanted::of(nowhere), Materials::of(&[pair]), provider()).expect("terms")
    })
}
