//! The faults of the simulated network, and how often they occur.

use super::rng::Rng;

/// Dials of the simulated network. Probabilities are thousandths of the occasions named; 0 is
/// never.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// One way through the network, microseconds.
    pub latency_us: u64,
    /// Added to each way, 0 to this, microseconds. Order within a connection is kept.
    pub jitter_us: u64,
    /// A connect from an address and port that the caller chooses finds that port taken. Never
    /// drawn.
    pub port_taken: u32,
    /// A driver takes a random part of the arrived bytes, for each receive.
    pub short_read: u32,
    /// The kernel takes a random part of the bytes that it has room for, for each write of a
    /// driver.
    pub short_write: u32,
    /// Written bytes arrive in two or more pieces at different times, for each write.
    pub split: u32,
    /// A piece is held up for up to `stall_us`, for each piece.
    pub stall: u32,
    /// Longest hold-up, microseconds.
    pub stall_us: u64,
    /// Both sides get a reset instead of the piece, for each piece.
    pub reset: u32,
    /// An actor's connection ends its sending direction where the rest of its bytes would have been
    /// sent, for each piece.
    pub half_close: u32,
    /// A reset overtakes the bytes sent before it, for each reset.
    pub reset_overtakes: u32,
    /// A driver's connect is refused, for each connect.
    pub connect_refused: u32,
    /// A driver's connect is never answered (the kernel gives up after 127 s), for each connect.
    pub connect_lost: u32,
    /// No descriptor is left for a driver's connect, for each connect.
    pub connect_failed: u32,
    /// Accepting fails for lack of descriptors and is tried again 10 to 100 ms later, for each
    /// accept.
    pub accept_failed: u32,
    /// Receiving of a driver's socket pauses for up to 5 ms as if no buffer were free, for each
    /// receive.
    pub buffers_out: u32,
    /// A completion is handed out a turn later than it could be, for each completion and turn.
    /// Order within one direction of one socket is kept.
    pub late_completion: u32,
    /// The network continues although a driver has something to do, for each step.
    pub late_turn: u32,
    /// Bytes on their way to a socket arrive just before the driver closes it (so the close becomes
    /// a reset), or the send that was queued just before is sent, for each close.
    pub close_race: u32,
    /// Arrived bytes are still received in the old way after the driver got the command to stop (or
    /// to receive once), for each such command.
    pub late_off: u32,
    /// Bytes that have arrived before a receive was armed are received a turn later than they could
    /// be, for each change of how a socket is read.
    pub late_arm: u32,
}

impl Faults {
    /// A network without faults in which each way takes 50 microseconds.
    pub fn none() -> Faults {
        Faults {
            latency_us: 50,
            jitter_us: 0,
            port_taken: 0,
            short_read: 0,
            short_write: 0,
            split: 0,
            stall: 0,
            stall_us: 0,
            reset: 0,
            half_close: 0,
            reset_overtakes: 0,
            connect_refused: 0,
            connect_lost: 0,
            connect_failed: 0,
            accept_failed: 0,
            buffers_out: 0,
            late_completion: 0,
            late_turn: 0,
            close_race: 0,
            late_off: 0,
            late_arm: 0,
        }
    }

    /// Nothing that a correct program could notice in its results: pieces, delays, order. No
    /// connection is harmed.
    pub fn harmless(seed: u64) -> Faults {
        let rng = &mut Rng::new(seed);
        Faults {
            latency_us: rng.between(1, 2_000),
            jitter_us: some(rng, 3_000),
            short_read: dial(rng, 500),
            short_write: dial(rng, 500),
            split: dial(rng, 700),
            stall: dial(rng, 20),
            stall_us: rng.between(1, 50_000),
            buffers_out: dial(rng, 100),
            late_completion: dial(rng, 400),
            late_turn: dial(rng, 400),
            close_race: dial(rng, 700),
            late_off: dial(rng, 700),
            late_arm: dial(rng, 700),
            ..Faults::none()
        }
    }

    /// Everything, each dial drawn from the seed; about half of the dials are off in each draw, so
    /// that single faults are seen alone as well as together.
    pub fn random(seed: u64) -> Faults {
        let rng = &mut Rng::new(seed ^ 0xfa17);
        Faults {
            stall_us: rng.between(1, 2_000_000),
            reset: dial(rng, 20),
            half_close: dial(rng, 10),
            reset_overtakes: dial(rng, 500),
            connect_refused: dial(rng, 200),
            connect_lost: dial(rng, 50),
            connect_failed: dial(rng, 50),
            accept_failed: dial(rng, 100),
            ..Faults::harmless(seed)
        }
    }
}

fn dial(rng: &mut Rng, most: u64) -> u32 {
    u32::try_from(some(rng, most)).unwrap_or(0)
}

/// 0 half of the time, else up to `most`.
fn some(rng: &mut Rng, most: u64) -> u64 {
    if rng.chance(500) { 0 } else { rng.between(1, most) }
}

#[cfg(test)]
mod tests {
    use super::Faults;

    #[test]
    fn draws_differ_by_seed_and_reach_both_ends_of_a_dial() {
        assert_eq!(Faults::random(3), Faults::random(3));
        assert_ne!(Faults::random(3), Faults::random(4));
        let resets = (0..64).filter(|seed| Faults::random(*seed).reset > 0).count();
        assert!((16..48).contains(&resets), "{resets}");
        assert!((0..64).all(|seed| Faults::harmless(seed).reset == 0));
    }
}
