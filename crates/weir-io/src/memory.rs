//! Memory that the allocator keeps for later. Called where much was needed once, at the start.

// Brings the C library that the program's allocator is made of.
use libmimalloc_sys as _;

// SAFETY: as mimalloc.h declares it. It takes no pointer, and may be called at any time by any thread.
unsafe extern "C" {
    safe fn mi_collect(force: bool);
}

/// Gives memory that this thread has freed back to the system, where mimalloc is the allocator of the program; else it does nothing. The
/// allocator does so by itself only when the thread frees more, which one that rests does not.
pub fn give_back_memory() {
    mi_collect(true);
}
