//! The name by which a proxy identifies itself in Via (RFC 9110 §7.6.3). It distinguishes one proxy
//! from the next, so that only a message that comes back to the same proxy is a loop.

use crate::scan::is_token;

/// Longest name in bytes.
const BYTES_MAX: usize = 32;

/// A token of at most 32 bytes. The default is `weir`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pseudonym {
    bytes: [u8; BYTES_MAX],
    len: u8,
}

impl Pseudonym {
    /// Returns None for a name that is not a token, or too long.
    pub fn new(name: &str) -> Option<Pseudonym> {
        let mut bytes = [0; BYTES_MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        is_token(name.as_bytes()).then_some(Pseudonym { bytes, len: name.len() as u8 })
    }

    /// The name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Default for Pseudonym {
    fn default() -> Pseudonym {
        let mut bytes = [0; BYTES_MAX];
        bytes[..4].copy_from_slice(b"weir");
        Pseudonym { bytes, len: 4 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_tokens() {
        assert_eq!(Pseudonym::new("weir"), Some(Pseudonym::default()));
        assert_eq!(Pseudonym::new("edge-1.a").unwrap().as_bytes(), b"edge-1.a");
        assert!(Pseudonym::new(&"x".repeat(32)).is_some());
        for bad in ["", "a b", "a,b", "a(b", "\u{e9}", "a:80", &"x".repeat(33)] {
            assert_eq!(Pseudonym::new(bad), None, "{bad}");
        }
    }
}
