//! Received bytes and the way back to the pool they came from.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;

use crate::pool::Shared;

/// Received bytes up to this number are copied by [`RecvBuf::into_bytes`]: an allocation is needed
/// in any case, and a short text must not keep a whole buffer of the pool from being used.
const COPY_BYTES_MAX: usize = 1024;

/// Bytes that were received. Dereferences to the slice. Give it back with
/// [`crate::Driver::recycle`] (cheapest), drop it, or turn it into [`Bytes`] to keep it or to hand
/// it to another core.
pub struct RecvBuf {
    inner: Inner,
}

enum Inner {
    Owned(Vec<u8>),
    Shared(Bytes),
    Pooled(Pooled),
}

/// A lease of one buffer. Exclusive from the moment the kernel reported it until it is given back.
struct Pooled {
    /// None only while it is dismantled.
    lease: Option<Arc<Shared>>,
    data: NonNull<u8>,
    len: u32,
    id: u16,
}

// SAFETY: the bytes are plain memory that only this value refers to, and giving it back is
// synchronised by the pool.
unsafe impl Send for Pooled {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Pooled {}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.give_back(self.id);
        }
    }
}

impl RecvBuf {
    /// A buffer with separate memory (simulation, tests).
    pub fn from_vec(bytes: Vec<u8>) -> RecvBuf {
        RecvBuf { inner: Inner::Owned(bytes) }
    }

    /// A buffer with memory that has its own owner (the simulation counts what comes back).
    pub(crate) fn from_shared(bytes: Bytes) -> RecvBuf {
        RecvBuf { inner: Inner::Shared(bytes) }
    }

    pub(crate) fn pooled(lease: Arc<Shared>, id: u16, len: u32) -> RecvBuf {
        let data = lease.address(id);
        RecvBuf { inner: Inner::Pooled(Pooled { lease: Some(lease), data, len, id }) }
    }

    /// The bytes, to be changed in place. Those that others may hold as well are copied first.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if let Inner::Shared(bytes) = &self.inner {
            self.inner = Inner::Owned(bytes.to_vec());
        }
        match &mut self.inner {
            Inner::Owned(bytes) => bytes,
            Inner::Pooled(pooled) => pooled.as_mut(),
            Inner::Shared(_) => &mut [],
        }
    }

    /// Keeps the first `len` bytes; with fewer it does nothing.
    pub fn truncate(&mut self, len: usize) {
        match &mut self.inner {
            Inner::Owned(bytes) => bytes.truncate(len),
            Inner::Shared(bytes) => bytes.truncate(len),
            Inner::Pooled(pooled) => {
                pooled.len = pooled.len.min(u32::try_from(len).unwrap_or(u32::MAX))
            }
        }
    }

    /// Whether it was lent by this pool.
    pub(crate) fn is_of(&self, pool: &Arc<Shared>) -> bool {
        match &self.inner {
            Inner::Owned(_) | Inner::Shared(_) => false,
            Inner::Pooled(pooled) => {
                pooled.lease.as_ref().is_some_and(|lease| Arc::ptr_eq(lease, pool))
            }
        }
    }

    /// Ends the lease without the detour over the pool's inbox.
    pub(crate) fn into_lease(self) -> Option<(Arc<Shared>, u16)> {
        match self.inner {
            Inner::Owned(_) | Inner::Shared(_) => None,
            Inner::Pooled(mut pooled) => pooled.lease.take().map(|lease| (lease, pooled.id)),
        }
    }

    /// Keeps the bytes until the last slice of them is dropped, on any thread. One small
    /// allocation; up to 1 KiB is copied, more remains in place and keeps its buffer out of the
    /// pool.
    pub fn into_bytes(self) -> Bytes {
        if self.len() <= COPY_BYTES_MAX {
            return Bytes::copy_from_slice(&self);
        }
        match self.inner {
            Inner::Owned(bytes) => Bytes::from(bytes),
            Inner::Shared(bytes) => bytes,
            Inner::Pooled(pooled) => Bytes::from_owner(pooled),
        }
    }
}

impl Pooled {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_ref`; and a lease is not copied, so a mutable reference to it is the
        // only access to the bytes.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len as usize) }
    }
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the kernel wrote `len` bytes here before it reported them, and neither it nor the
        // pool touches them while the lease exists, which is as long as `self`.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len as usize) }
    }
}

impl Deref for RecvBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.inner {
            Inner::Owned(bytes) => bytes,
            Inner::Shared(bytes) => bytes,
            Inner::Pooled(pooled) => pooled.as_ref(),
        }
    }
}

impl fmt::Debug for RecvBuf {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "RecvBuf({} bytes)", self.len())
    }
}
