//! Which public keys weir can use, so that a certificate with another one is rejected by name and
//! not as "bad". Called where a certificate was rejected, and by checks of files. Pure. RFC 3279
//! §2.3, RFC 4055 §1.2, RFC 5480 §2.1, RFC 8410 §3.

use std::fmt;

use crate::der::{self, Reader};

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OBJECT_IDENTIFIER: u8 = 0x06;

/// rsaEncryption, 1.2.840.113549.1.1.1.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
/// id-RSASSA-PSS, 1.2.840.113549.1.1.10.
const RSA_PSS: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10];
/// id-ecPublicKey, 1.2.840.10045.2.1.
const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
/// id-Ed25519, 1.3.101.112.
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
/// P-256, P-384 and P-521.
const CURVES: [&[u8]; 3] = [
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7],
    &[0x2b, 0x81, 4, 0, 0x22],
    &[0x2b, 0x81, 4, 0, 0x23],
];

/// Sizes of an RSA modulus that the cryptography of the product accepts, bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// Why a key can't be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyFlaw {
    /// RSA with a modulus of this number of bits.
    RsaBits(usize),
    /// RSA for PSS only.
    RsaPss,
    /// A curve that weir does not support.
    Curve,
    /// Another algorithm.
    Other,
}

impl fmt::Display for KeyFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (min, max) = (RSA_BITS.start(), RSA_BITS.end());
        match self {
            KeyFlaw::RsaBits(bits) => {
                write!(f, "its RSA key has {bits} bits, but weir accepts {min} to {max}")
            }
            KeyFlaw::RsaPss => f.write_str(
                "its key is for RSA-PSS only (id-RSASSA-PSS), which weir does not support: make a \
                 plain RSA key, which \
                 signs with PSS as well",
            ),
            KeyFlaw::Curve => f.write_str("its curve is not supported: use P-256, P-384 or P-521"),
            KeyFlaw::Other => f.write_str(
                "its kind of key is not supported: use ECDSA (P-256, P-384, P-521), \
                    RSA or Ed25519",
            ),
        }
    }
}

/// Why the key of a certificate can't be used; None: it can, or the certificate can't be read at
/// all.
pub(crate) fn flaw(certificate: &[u8]) -> Option<KeyFlaw> {
    let mut info = der::public_key(certificate)?;
    let mut algorithm = info.expect(SEQUENCE)?;
    let name = algorithm.expect(OBJECT_IDENTIFIER)?.0;
    if name == RSA {
        // The first byte counts unused bits.
        let key = info.expect(BIT_STRING)?.0.split_first()?.1;
        let bits = bits(Reader(key).expect(SEQUENCE)?.expect(INTEGER)?.0);
        return (!RSA_BITS.contains(&bits)).then_some(KeyFlaw::RsaBits(bits));
    }
    let curve = algorithm.expect(OBJECT_IDENTIFIER).map(|curve| curve.0);
    match name {
        ED25519 => None,
        EC if curve.is_some_and(|curve| CURVES.contains(&curve)) => None,
        EC => Some(KeyFlaw::Curve),
        RSA_PSS => Some(KeyFlaw::RsaPss),
        _ => Some(KeyFlaw::Other),
    }
}

/// Bits of a non-negative number.
fn bits(number: &[u8]) -> usize {
    let number = &number[number.iter().take_while(|byte| **byte == 0).count()..];
    number.first().map_or(0, |first| number.len() * 8 - first.leading_zeros() as usize)
}
