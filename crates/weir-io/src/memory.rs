//! Memory that the allocator keeps for later. Called after much was needed once, at the start.

// Links the C library of the program's allocator.
use libmimalloc_sys as _;

// SAFETY: as mimalloc.h declares it. It takes no pointer, and may be called at any time by any
// thread.
unsafe extern "C" {
    safe fn mi_collect(force: bool);
}

/// Gives memory that this thread has freed back to the system, where mimalloc is the allocator of
/// the program; otherwise it does nothing. Unasked the allocator does so only when the thread frees
/// more, which an idle thread does not.
pub fn give_back_memory() {
    mi_collect(true);
}
