//! Hashes of passwords: argon2id (RFC 9106) and bcrypt. Called by `users` (parse), `verify`
//! (compare) and `passwd` (make).
//!
//! Bounds: the cost of one comparison, so that a line of the file cannot stop the proxy:
//! [`MEMORY_KIB_MAX`], [`WORK_KIB_MAX`], [`COST_MAX`].

use argon2::password_hash::{PasswordHash, Salt};
use argon2::{Algorithm, Argon2, Params, PasswordHasher as _, PasswordVerifier as _, Version};

/// Largest memory of one argon2 computation.
const MEMORY_KIB_MAX: u32 = 256 * 1024;
/// Largest product of memory and passes of one argon2 computation; that takes about a second.
const WORK_KIB_MAX: u32 = 512 * 1024;
/// Largest cost of bcrypt; each step doubles its time, and this takes about a second.
const COST_MAX: u32 = 14;
/// Cost of new bcrypt hashes: the minimum that OWASP recommends, about 80 ms; with 12 a hundred
/// users that come at once would take half a minute.
const COST: u32 = 10;
/// Bytes of a password that bcrypt uses, without the zero at its end.
pub(crate) const BCRYPT_BYTES_MAX: usize = 71;

/// A usable hash scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Scheme {
    Argon2id,
    Bcrypt,
}

/// Returns the scheme of a hash, if it can be used.
///
/// # Errors
/// What is wrong with it, as in "the hash of `ann` ...".
pub(crate) fn scheme_of(hash: &str) -> Result<Scheme, &'static str> {
    if hash.starts_with("$argon2id$") {
        let parsed = PasswordHash::new(hash).map_err(|_| "is damaged")?;
        let params = Params::try_from(&parsed).map_err(|_| "is damaged")?;
        if parsed.salt.is_none() || parsed.hash.is_none() {
            return Err("is damaged");
        }
        let work = params.m_cost().saturating_mul(params.t_cost());
        let fits = params.m_cost() <= MEMORY_KIB_MAX && work <= WORK_KIB_MAX;
        return if fits {
            Ok(Scheme::Argon2id)
        } else {
            Err("costs too much (at most m=262144, and m times t 524288)")
        };
    }
    if ["$2a$", "$2b$", "$2y$"].iter().any(|start| hash.starts_with(start)) {
        let parts = hash.parse::<bcrypt::HashParts>().map_err(|_| "is damaged")?;
        return match parts.get_cost() {
            4..=COST_MAX => Ok(Scheme::Bcrypt),
            _ => Err("costs too much or nothing (cost 4 to 14)"),
        };
    }
    Err(unusable(hash))
}

/// Describes a hash that cannot be used.
fn unusable(hash: &str) -> &'static str {
    let known = [
        ("$apr1$", "is MD5, which is easy to guess"),
        ("$1$", "is MD5, which is easy to guess"),
        ("{SHA}", "is SHA-1 without salt, which is easy to guess"),
        ("$5$", "is SHA-crypt, which weir does not know"),
        ("$6$", "is SHA-crypt, which weir does not know"),
        ("$2x$", "is from a version of bcrypt with a bug"),
        ("$argon2", "is of a variant of argon2 that weir does not know"),
        ("$y$", "is yescrypt, which weir does not know"),
    ];
    let found = known.iter().find(|(start, _)| hash.starts_with(start));
    found.map_or(
        "is neither argon2id nor bcrypt; perhaps it is crypt or the plain password",
        |(_, text)| text,
    )
}

/// Whether a password belongs to a hash that [`scheme_of`] accepts. Takes milliseconds.
pub(crate) fn matches(password: &[u8], hash: &str) -> bool {
    match scheme_of(hash) {
        Ok(Scheme::Argon2id) => PasswordHash::new(hash)
            .is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok()),
        Ok(Scheme::Bcrypt) => bcrypt::verify(password, hash).unwrap_or(false),
        Err(_) => false,
    }
}

/// Returns the hash of a new password: argon2id with the first choice of OWASP's Password Storage
/// Cheat Sheet (19 MiB, two passes, one lane), or bcrypt.
///
/// # Errors
/// What is wrong with the password.
pub(crate) fn make(scheme: Scheme, password: &[u8], salt: [u8; 16]) -> Result<String, String> {
    match scheme {
        Scheme::Argon2id => {
            let params = Params::new(Params::DEFAULT_M_COST, 2, 1, None)
                .map_err(|error| error.to_string())?;
            let encoded = argon2::password_hash::SaltString::encode_b64(&salt)
                .map_err(|error| error.to_string())?;
            let salt: Salt<'_> = encoded.as_salt();
            let hasher = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
            hasher
                .hash_password(password, salt)
                .map(|hash| hash.to_string())
                .map_err(|error| error.to_string())
        }
        Scheme::Bcrypt if password.len() > BCRYPT_BYTES_MAX => Err(format!(
            "bcrypt uses only the first {BCRYPT_BYTES_MAX} bytes, but this password has {}; remove \
                --bcrypt",
            password.len()
        )),
        Scheme::Bcrypt => {
            let parts =
                bcrypt::hash_with_salt(password, COST, salt).map_err(|error| error.to_string())?;
            Ok(parts.format_for_version(bcrypt::Version::TwoY))
        }
    }
}

#[cfg(test)]
mod tests {
    //! Proves: hashes of other programs are read, new ones are as documented, and nothing else
    //! passes. How: published vectors.

    use super::*;

    /// From the test vectors of the bcrypt implementation by Solar Designer (crypt_blowfish 1.3),
    /// `$2a$05$...`.
    const BCRYPT: &str = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";

    #[test]
    fn a_bcrypt_hash_of_others_is_compared() {
        for version in ["$2a$", "$2y$", "$2b$"] {
            let hash = BCRYPT.replace("$2a$", version);
            assert_eq!(scheme_of(&hash), Ok(Scheme::Bcrypt));
            assert!(matches(b"U*U", &hash));
            assert!(!matches(b"U*V", &hash));
        }
    }

    #[test]
    fn new_hashes_are_as_documented() {
        let hash = make(Scheme::Argon2id, b"secret", [7; 16]).unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert!(matches(b"secret", &hash) && !matches(b"Secret", &hash));
        let hash = make(Scheme::Bcrypt, b"secret", [7; 16]).unwrap();
        assert!(hash.starts_with("$2y$10$"), "{hash}");
        assert!(matches(b"secret", &hash) && !matches(b"Secret", &hash));
        assert!(make(Scheme::Bcrypt, &[b'a'; 72], [7; 16]).unwrap_err().contains("--bcrypt"));
        assert!(make(Scheme::Bcrypt, &[b'a'; 71], [7; 16]).is_ok());
    }

    #[test]
    fn what_is_weak_damaged_or_dear_is_refused() {
        let dear = "$argon2id$v=19$m=4194304,t=2,p=1$c29tZXNhbHQ$aGFzaGhhc2hoYXNoaGFzaA";
        let slow = "$argon2id$v=19$m=65536,t=9,p=1$c29tZXNhbHQ$aGFzaGhhc2hoYXNoaGFzaA";
        for (hash, part) in [
            ("$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00", "MD5"),
            ("{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "SHA-1"),
            ("$6$salt$hash", "SHA-crypt"),
            ("rqXexS6ZhobKA", "perhaps it is crypt"),
            ("secret", "plain password"),
            ("", "neither"),
            ("$argon2i$v=19$m=4096,t=3,p=1$c29tZXNhbHQ$aGFzaGhhc2hoYXNoaGFzaA", "variant"),
            ("$argon2id$v=19$m=19456", "damaged"),
            ("$2y$05$short", "damaged"),
            ("$2y$31$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW", "cost"),
            (dear, "costs too much"),
            (slow, "costs too much"),
        ] {
            let refused = scheme_of(hash).unwrap_err();
            assert!(refused.contains(part), "{hash}: {refused}");
            assert!(!matches(b"secret", hash));
        }
    }
}
