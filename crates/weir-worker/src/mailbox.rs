//! Mail between workers: one bounded single-producer ring for each ordered pair.
//!
//! Posts that do not fit remain with the sender, in order, and are tried again in its next turn;
//! nothing is lost or blocked. Beside each ring is one for connections that change workers
//! ([`crate::moves`]). Each connection in it counts as a busy worker until it is taken out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rtrb::{Consumer, Producer, RingBuffer};
use weir_io::Waker;
use weir_proxy::cross::mail::Post;

use crate::moves::Moved;

/// Posts under way between two workers.
const POSTS_MAX: usize = 256;
/// Connections under way between two workers.
const MOVED_MAX: usize = 64;

/// One worker's end of the rings.
pub struct Mailbox {
    inbound: Vec<(u16, Consumer<Post>)>,
    outbound: Vec<Option<Producer<Post>>>,
    coming: Vec<Consumer<Box<Moved>>>,
    going: Vec<Option<Producer<Box<Moved>>>>,
    wakers: Arc<Vec<OnceLock<Arc<dyn Waker>>>>,
    /// Workers that still have clients, once all drain, and connections under way.
    busy: Arc<AtomicUsize>,
    /// This worker has said that it has no clients left.
    has_said: bool,
    worker: usize,
}

/// The mailboxes of this number of workers, by number.
pub fn mailboxes(workers: u16) -> Vec<Mailbox> {
    mailboxes_of(workers, POSTS_MAX)
}

/// The same with room for `posts_max` posts between two workers, at least 1: smaller rings are full
/// more often.
pub fn mailboxes_of(workers: u16, posts_max: usize) -> Vec<Mailbox> {
    let wakers: Arc<Vec<OnceLock<Arc<dyn Waker>>>> =
        Arc::new((0..workers).map(|_| OnceLock::new()).collect());
    let count = usize::from(workers);
    let busy = Arc::new(AtomicUsize::new(count));
    let mut boxes: Vec<Mailbox> = (0..count)
        .map(|worker| Mailbox {
            inbound: Vec::new(),
            outbound: Vec::new(),
            coming: Vec::new(),
            going: Vec::new(),
            wakers: Arc::clone(&wakers),
            busy: Arc::clone(&busy),
            has_said: false,
            worker,
        })
        .collect();
    for from in 0..count {
        for to in 0..count {
            if from == to {
                boxes[from].outbound.push(None);
                boxes[from].going.push(None);
            } else {
                let (producer, consumer) = RingBuffer::new(posts_max);
                boxes[from].outbound.push(Some(producer));
                boxes[to].inbound.push((from as u16, consumer));
                let (producer, consumer) = RingBuffer::new(posts_max.min(MOVED_MAX));
                boxes[from].going.push(Some(producer));
                boxes[to].coming.push(consumer);
            }
        }
    }
    boxes
}

impl Mailbox {
    /// Lets others wake this worker.
    pub fn set_waker(&self, waker: Arc<dyn Waker>) {
        // A second worker under the same number would be a bug of the caller; the first one is
        // kept.
        let _ = self.wakers[self.worker].set(waker);
    }

    /// The next post for this worker, and its sender.
    pub fn receive(&mut self) -> Option<(u16, Post)> {
        self.inbound.iter_mut().find_map(|(from, ring)| ring.pop().ok().map(|post| (*from, post)))
    }

    /// Sends a post and wakes its receiver.
    ///
    /// # Errors
    /// The post, when the ring is full.
    pub fn send(&mut self, to: u16, post: Post) -> Result<(), Post> {
        let Some(ring) = self.outbound[usize::from(to)].as_mut() else { return Err(post) };
        ring.push(post).map_err(|rtrb::PushError::Full(post)| post)?;
        if let Some(waker) = self.wakers[usize::from(to)].get() {
            waker.wake();
        }
        Ok(())
    }

    /// Gives a connection to another worker and wakes it.
    ///
    /// # Errors
    /// The connection, when the ring is full.
    pub(crate) fn give(&mut self, to: u16, moved: Box<Moved>) -> Result<(), Box<Moved>> {
        let Some(ring) = self.going.get_mut(usize::from(to)).and_then(Option::as_mut) else {
            return Err(moved);
        };
        if ring.is_abandoned() {
            return Err(moved);
        }
        // Before any worker can take it out.
        self.busy.fetch_add(1, Ordering::AcqRel);
        if let Err(rtrb::PushError::Full(moved)) = ring.push(moved) {
            // This worker is busy itself, so that it is not the last.
            self.busy.fetch_sub(1, Ordering::AcqRel);
            return Err(moved);
        }
        if let Some(waker) = self.wakers[usize::from(to)].get() {
            waker.wake();
        }
        Ok(())
    }

    /// The next connection for this worker. If it has said that it has no clients left, that no
    /// longer holds.
    pub(crate) fn take_given(&mut self) -> Option<Box<Moved>> {
        let moved = self.coming.iter_mut().find_map(|ring| ring.pop().ok())?;
        if !std::mem::take(&mut self.has_said) {
            self.busy.fetch_sub(1, Ordering::AcqRel);
        }
        Some(moved)
    }

    /// This worker has no clients left. Its connections still serve the clients of others.
    pub fn say_drained(&mut self) {
        let says_now = !std::mem::replace(&mut self.has_said, true);
        if says_now && self.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.wakers.iter().filter_map(OnceLock::get).for_each(|waker| waker.wake());
        }
    }

    /// Whether no worker has clients left.
    pub fn all_drained(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0
    }

    /// Workers in all.
    pub fn workers(&self) -> u16 {
        self.outbound.len() as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_gives_the_post_back() {
        let mut boxes = mailboxes(2);
        let mut sent = 0;
        while boxes[0].send(1, Post { bytes: vec![sent as u8], ..Post::default() }).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, POSTS_MAX);
        for expected in 0..sent {
            assert_eq!(
                boxes[1].receive().map(|(from, post)| (from, post.bytes)),
                Some((0, vec![expected as u8]))
            );
        }
        assert!(boxes[1].receive().is_none());
        assert!(boxes[0].send(1, Post::default()).is_ok());
    }
}
