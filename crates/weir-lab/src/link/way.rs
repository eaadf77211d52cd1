//! One direction of a link: what happens to each packet, and when. Called by `carry.rs`; pure,
//! since the time is passed in.
//!
//! ```text
//! offer -> queue -> line (rate) -> loss -> delay, jitter -> order -> take
//!            |                      |
//!         dropped                 lost
//! ```
//!
//! The queue and the line are one number, the moment when the line is free: the queue in front of a
//! packet is the time left until then. So the fate of a packet, and the moment when it leaves, are
//! known as soon as it comes. Always: `packets_in = packets_out + lost + dropped + refused + held`.
//! Bound: [`HELD_BYTES_MAX`]. Times are nanoseconds, since a packet may take less than a
//! microsecond.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::loss::Loss;
use super::terms::{Queue, Terms};
use crate::random::Random;

/// Bytes of packets that are on their way at a time.
pub(super) const HELD_BYTES_MAX: u64 = 128 << 20;
/// Memory of a packet besides its bytes.
const PACKET_OVERHEAD_BYTES: u64 = 64;

/// Figures of packets so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// Packets that came to the link.
    pub packets_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Packets that left it.
    pub packets_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Lost, as configured.
    pub lost: u64,
    /// Found no room in the queue, or in memory.
    pub dropped: u64,
    /// Not accepted by the kernel at the other end.
    pub refused: u64,
    /// Delayed further, so that others overtake them.
    pub reordered: u64,
    /// On their way.
    pub held: u64,
    /// Dropped by the kernel before the link had read them; in none of the other figures.
    pub overrun: u64,
    /// By how much all that left were late, in total, nanoseconds.
    pub late_ns: u64,
    /// The largest such distance.
    pub late_max_ns: u64,
}

/// A packet on its way.
#[derive(Debug)]
struct Held {
    due_ns: u64,
    /// The packet's number: among those that are due at the same time, the first one goes first.
    number: u64,
    packet: Box<[u8]>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Way {
    terms: Terms,
    loss: Loss,
    jitter: Random,
    reorder: Random,
    /// When the line has sent everything that it was given.
    free_at_ns: u64,
    /// When the last packet leaves that keeps its place in the order.
    last_due_ns: u64,
    held: BinaryHeap<Held>,
    held_bytes: u64,
    figures: Figures,
}

impl Way {
    /// Draws everything random from this.
    pub(super) fn new(terms: Terms, random: &Random) -> Way {
        Way {
            terms,
            loss: Loss::new(terms.loss, terms.burst, random.fork(1)),
            jitter: random.fork(2),
            reorder: random.fork(3),
            free_at_ns: 0,
            last_due_ns: 0,
            held: BinaryHeap::new(),
            held_bytes: 0,
            figures: Figures::default(),
        }
    }

    /// Accepts a packet; its time is not before that of the previous one.
    pub(super) fn offer(&mut self, now_ns: u64, packet: &[u8]) {
        let bytes = packet.len() as u64;
        self.figures.packets_in += 1;
        self.figures.bytes_in += bytes;
        // Drawn for each, so that the fate of a packet depends only on the seed and its number,
        // whatever happens to others.
        let is_lost = self.loss.next();
        let jitter_ns = (self.jitter.fraction() * self.terms.jitter_ns as f64) as u64;
        let is_reordered = self.reorder.fraction() < self.terms.reorder;
        let has_memory = self.held_bytes + bytes + PACKET_OVERHEAD_BYTES <= HELD_BYTES_MAX;
        let Some(sent_ns) = self.send(now_ns, bytes).filter(|_| has_memory) else {
            self.figures.dropped += 1;
            return;
        };
        self.free_at_ns = sent_ns;
        if is_lost {
            self.figures.lost += 1;
            return;
        }
        let mut due_ns = sent_ns + self.terms.delay_ns + jitter_ns;
        if is_reordered {
            due_ns += self.terms.reorder_ns;
            self.figures.reordered += 1;
        } else {
            due_ns = due_ns.max(self.last_due_ns);
            self.last_due_ns = due_ns;
        }
        self.held_bytes += bytes + PACKET_OVERHEAD_BYTES;
        self.figures.held += 1;
        self.held.push(Held { due_ns, number: self.figures.packets_in, packet: packet.into() });
    }

    /// Returns when the line has sent it; None: the queue has no room.
    fn send(&self, now_ns: u64, bytes: u64) -> Option<u64> {
        let Some(rate) = self.terms.rate else { return Some(now_ns) };
        let wait_ns = self.free_at_ns.saturating_sub(now_ns);
        let has_place = match self.terms.queue {
            Queue::Time(most_ns) => wait_ns <= most_ns,
            Queue::Bytes(most) => {
                let waiting = (u128::from(wait_ns) * u128::from(rate)).div_ceil(8_000_000_000);
                waiting == 0 || waiting + u128::from(bytes) <= u128::from(most)
            }
        };
        // Rounded up, so that the rate is never exceeded.
        has_place.then(|| now_ns + wait_ns + (bytes * 8_000_000_000).div_ceil(rate))
    }

    /// When the next packet leaves.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        self.held.peek().map(|held| held.due_ns)
    }

    /// Returns a packet that leaves now, if any.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<Box<[u8]>> {
        if self.next_due_ns()? > now_ns {
            return None;
        }
        let Held { due_ns, packet, .. } = self.held.pop()?;
        let (bytes, figures) = (packet.len() as u64, &mut self.figures);
        self.held_bytes -= bytes + PACKET_OVERHEAD_BYTES;
        figures.held -= 1;
        figures.packets_out += 1;
        figures.bytes_out += bytes;
        figures.late_ns += now_ns - due_ns;
        figures.late_max_ns = figures.late_max_ns.max(now_ns - due_ns);
        Some(packet)
    }

    /// Counts a packet that was taken but could not be handed over.
    pub(super) fn refuse(&mut self, packet: &[u8]) {
        self.figures.packets_out -= 1;
        self.figures.bytes_out -= packet.len() as u64;
        self.figures.refused += 1;
    }

    pub(super) fn figures(&self) -> Figures {
        self.figures
    }
}

impl Figures {
    /// Returns the changes since then; lateness and `held` as they are now.
    pub fn since(&self, before: &Figures) -> Figures {
        Figures {
            packets_in: self.packets_in - before.packets_in,
            bytes_in: self.bytes_in - before.bytes_in,
            packets_out: self.packets_out.saturating_sub(before.packets_out),
            bytes_out: self.bytes_out.saturating_sub(before.bytes_out),
            lost: self.lost - before.lost,
            dropped: self.dropped - before.dropped,
            refused: self.refused - before.refused,
            reordered: self.reordered - before.reordered,
            overrun: self.overrun.saturating_sub(before.overrun),
            ..*self
        }
    }

    /// Returns how late packets left, on average, nanoseconds.
    pub fn late_mean_ns(&self) -> u64 {
        self.late_ns / (self.packets_out + self.refused).max(1)
    }
}

impl Ord for Held {
    /// The one that leaves first is the greatest.
    fn cmp(&self, other: &Held) -> Ordering {
        (other.due_ns, other.number).cmp(&(self.due_ns, self.number))
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Held) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Held) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Held {}

#[cfg(test)]
mod tests;
