//! Sizes of a driver, and the choice between drivers. Called by the start-up of each worker.

/// Which driver the user asked for (`--io`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IoChoice {
    /// io_uring where it works, epoll elsewhere.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// epoll.
    Epoll,
}

/// Sizes of one driver. The defaults suit a worker with 20,000 sockets. Memory of buffers is
/// touched only when used, and given back when a burst is over; at most it is `small_count *
/// small_bytes + large_count * large_bytes` (28 MiB).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Receive buffers of [`crate::Class::Small`]: 1 to 32,768.
    pub small_count: u16,
    /// Bytes in a small buffer. 4 KiB by default.
    pub small_bytes: u32,
    /// Receive buffers of [`crate::Class::Large`]: 1 to 32,768.
    pub large_count: u16,
    /// Bytes in a large buffer. 64 KiB by default.
    pub large_bytes: u32,
    /// Small buffers that the kernel holds at a time (io_uring): a power of two up to 32,768. The
    /// kernel takes them first in, first out, so all of these become resident and share the caches;
    /// more are handed over as they are used. When one call uses them up, receives end early and
    /// are armed again, which costs one more operation each.
    pub small_armed: u16,
    /// Large buffers that the kernel holds at a time (io_uring): a power of two up to 32,768.
    pub large_armed: u16,
    /// Operations that can be queued before they are submitted early (io_uring): 64 B each, all of
    /// which become resident.
    pub queue_entries: u32,
    /// Completions that the kernel can hold in shared memory (io_uring), 16 B each; beyond, it
    /// queues them itself, slowly. Also sets the size of its table for cancellations.
    pub completion_entries: u32,
    /// Completions after which a turn stops asking the kernel for more.
    pub completions_per_turn: usize,
    /// Bytes received into small buffers after which a turn receives no more into them. As many as
    /// the kernel holds of such buffers (io_uring) or one buffer (epoll) may come on top. Bounds
    /// the work that client data causes in a turn.
    pub small_bytes_per_turn: usize,
    /// Receives of one socket in one turn (epoll), so that a busy socket does not starve the rest.
    pub receives_per_turn: u32,
    /// Connections accepted by one listener in one turn (epoll; io_uring when listeners are
    /// shared).
    pub accepts_per_turn: u32,
    /// Other drivers accept from the same listening sockets (copies of one, not SO_REUSEPORT): the
    /// driver that turns next gets a new connection, never one that is busy. epoll does that
    /// anyway; io_uring otherwise accepts on behalf of a driver whether it turns or not.
    pub shared_listeners: bool,
    /// Bytes that all relays together move in one turn before others are served (and up to what a
    /// pipe holds more): they continue in the next one.
    pub relay_bytes_per_turn: u64,
    /// Pipes that relays may have open at a time, two descriptors each; without a pipe bytes are
    /// copied. 0: everything is copied. A relay holds one for a direction only while its reader is
    /// slower than its writer.
    pub relay_pipes: u32,
    /// Bytes that a pipe may hold, 64 KiB to 1 MiB. Without privilege Linux gives all pipes of a
    /// user together 64 MiB (`fs.pipe-user-pages-soft`) and each at most 1 MiB
    /// (`fs.pipe-max-size`); when it gives less, 64 KiB will do.
    pub relay_pipe_bytes: u32,
    /// Pause after accepting failed for lack of a resource, microseconds.
    pub accept_pause_us: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            small_count: 1024,
            small_bytes: 4096,
            large_count: 384,
            large_bytes: 65536,
            small_armed: 64,
            large_armed: 16,
            queue_entries: 1024,
            completion_entries: 4096,
            completions_per_turn: 512,
            small_bytes_per_turn: 256 * 1024,
            receives_per_turn: 4,
            accepts_per_turn: 64,
            shared_listeners: false,
            relay_bytes_per_turn: 1024 * 1024,
            relay_pipes: 32,
            relay_pipe_bytes: 1024 * 1024,
            accept_pause_us: 100_000,
        }
    }
}
