//! A cipher that survives its library: a panic in it ends one connection and not the worker.
//!
//! Clients choose the bytes that a library reads, and its unbuffered interface panics where it is
//! not used exactly as required.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cipher::{Cipher, Facts, Failure, Opened};

/// None: it has panicked, and must not be called again.
pub(crate) struct Guarded(Option<Box<dyn Cipher>>);

impl Guarded {
    /// Wraps this cipher.
    pub(crate) fn around(cipher: Box<dyn Cipher>) -> Box<dyn Cipher> {
        Box::new(Guarded(Some(cipher)))
    }

    /// The result of the call; None: it panicked, now or before.
    fn call<T>(&mut self, call: impl FnOnce(&mut dyn Cipher) -> T) -> Option<T> {
        let cipher = self.0.as_deref_mut()?;
        let result = catch_unwind(AssertUnwindSafe(|| call(cipher)));
        if result.is_err() {
            self.0 = None;
        }
        result.ok()
    }
}

impl Cipher for Guarded {
    fn open(&mut self, bytes: &mut [u8], plain: &mut Vec<u8>, out: &mut Vec<u8>) -> Opened {
        let (was_plain, was_out) = (plain.len(), out.len());
        let opened = self.call(|cipher| cipher.open(bytes, plain, out));
        opened.unwrap_or_else(|| {
            plain.truncate(was_plain);
            out.truncate(was_out);
            Opened { used: 0, state: Err(Failure::Internal) }
        })
    }

    fn seal(
        &mut self,
        rest: &mut [u8],
        parts: &[&[u8]],
        record_max: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        self.call(|cipher| cipher.seal(rest, parts, record_max, out))
            .unwrap_or(Err(Failure::Internal))
    }

    fn close(&mut self, rest: &mut [u8], out: &mut Vec<u8>) {
        let was_out = out.len();
        if self.call(|cipher| cipher.close(rest, out)).is_none() {
            out.truncate(was_out);
        }
    }

    fn facts(&self) -> Facts {
        self.0.as_ref().map(|cipher| cipher.facts()).unwrap_or_default()
    }

    fn has_worked(&self) -> Option<bool> {
        self.0.as_ref()?.has_worked()
    }
}
