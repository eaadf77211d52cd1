//! `concurrency` of a server: how many requests it works on at once, over all workers.
//!
//! A request is sent under a *permit*. There is one pool of them for a server, so that none rests
//! at one worker while a request waits at another:
//!
//! ```text
//! share    a request has ended: hands its permit to a worker that waits and has fewer
//! take     for each request to be sent: an unused one, or one of the pool
//! settle   after that: gives back what is not used, and wakes a worker that waits; notes whether
//!          this one does, because requests wait and there is no permit
//! ```
//!
//! Whoever waits looks at the pool after it has noted that, and whoever gives back looks at the
//! notes after that: one of them sees the other (all of it is sequentially consistent). So no
//! permit is left lying while anybody waits; and because a worker shares before it sends its own
//! next request, all that wait have the same number in the end. What a worker was handed and cannot
//! use goes to the pool, and while there is any nobody waits: so none goes round in circles. Bound:
//! two numbers for each worker, where `concurrency` is set.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, OnceLock};

/// The permits of one server.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    /// How many the workers have.
    used: AtomicU32,
    workers: OnceLock<Box<[Holder]>>,
}

/// What one worker has.
#[derive(Debug, Default)]
struct Holder {
    /// Others add to it, and only the worker itself takes from it.
    held: AtomicU32,
    waits: AtomicBool,
}

/// The permits of a server as one worker sees them.
#[derive(Debug, Clone)]
pub(crate) struct MyPermits {
    all: Arc<Permits>,
    worker: usize,
    /// The most that may be in use, over all workers.
    most: u32,
}

impl Permits {
    /// Another server has the slot. Only while no worker uses either.
    pub(crate) fn forget(&self) {
        self.used.store(0, SeqCst);
        for holder in self.holders() {
            holder.held.store(0, SeqCst);
            holder.waits.store(false, SeqCst);
        }
    }

    fn holders(&self) -> &[Holder] {
        self.workers.get().map_or(&[], |workers| workers)
    }
}

impl MyPermits {
    /// A worker begins without any, also one that has lost its engine.
    pub(crate) fn new(all: Arc<Permits>, (worker, workers): (u16, u16), most: u32) -> MyPermits {
        all.workers.get_or_init(|| (0..workers).map(|_| Holder::default()).collect());
        let permits = MyPermits { all, worker: worker.into(), most };
        permits.mine().waits.store(false, SeqCst);
        permits.all.used.fetch_sub(permits.mine().held.swap(0, SeqCst), SeqCst);
        permits
    }

    fn mine(&self) -> &Holder {
        &self.all.holders()[self.worker]
    }

    /// How many permits this worker has.
    pub(crate) fn held(&self) -> u32 {
        self.mine().held.load(SeqCst)
    }

    /// The most that may be in use, over all workers.
    pub(crate) fn most(&self) -> u32 {
        self.most
    }

    /// Whether one more request may be sent now, beside `working`; if so its permit is taken. Those
    /// whose clients have begun to read again need theirs first.
    pub(crate) fn take(&self, working: u32) -> bool {
        while self.held() <= working {
            if !self.add() {
                return false;
            }
            self.mine().held.fetch_add(1, SeqCst);
        }
        true
    }

    /// How many more requests might be sent now, beside `working`.
    pub(crate) fn available(&self, working: u32) -> u32 {
        let free = self.most.saturating_sub(self.all.used.load(SeqCst));
        (self.held() + free).saturating_sub(working)
    }

    /// A request has ended: hands permits that `working` requests do not use to workers that wait
    /// and have fewer; each is woken. Not to be called for that, or one would go round in circles.
    pub(crate) fn share(&self, working: u32, mut wake: impl FnMut(u16)) {
        while self.held() > working
            && let Some(worker) = self.waiting(|holder| holder.held.load(SeqCst) < self.held())
        {
            self.hand_to(worker);
            wake(worker as u16);
        }
    }

    /// Gives back what `working` requests do not use, and wakes a worker that waits for each.
    /// `waits`: other requests wait here. Wakes this worker if there is a permit after all.
    pub(crate) fn settle(&self, working: u32, waits: bool, mut wake: impl FnMut(u16)) {
        while self.held() > working {
            self.mine().held.fetch_sub(1, SeqCst);
            self.all.used.fetch_sub(1, SeqCst);
            self.wake_one(&mut wake);
        }
        let waits = waits && self.available(working) == 0;
        self.mine().waits.store(waits, SeqCst);
        if !waits {
            // This worker may have been woken for one that it does not need.
            if self.all.used.load(SeqCst) < self.most {
                self.wake_one(&mut wake);
            }
        } else if self.available(working) > 0 {
            // Given back before it was noted that this worker waits.
            wake(self.worker as u16);
        }
    }

    /// Wakes another worker that waits. It notes that anew if it has to, so that each of several
    /// permits wakes another one.
    fn wake_one(&self, wake: &mut impl FnMut(u16)) {
        while let Some(worker) = self.waiting(|_| true) {
            if self.all.holders()[worker].waits.swap(false, SeqCst) {
                return wake(worker as u16);
            }
        }
    }

    /// Whether another worker waits.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting(|_| true).is_some()
    }

    fn hand_to(&self, worker: usize) {
        self.mine().held.fetch_sub(1, SeqCst);
        self.all.holders()[worker].held.fetch_add(1, SeqCst);
    }

    /// The next other worker that waits, of those that are `good`.
    fn waiting(&self, good: impl Fn(&Holder) -> bool) -> Option<usize> {
        let all = self.all.holders();
        let mut others = (1..all.len()).map(|after| (self.worker + after) % all.len());
        others.find(|worker| all[*worker].waits.load(SeqCst) && good(&all[*worker]))
    }

    fn add(&self) -> bool {
        let add = |used: u32| (used < self.most).then(|| used + 1);
        self.all.used.fetch_update(SeqCst, SeqCst, add).is_ok()
    }
}

#[cfg(test)]
mod tests {
    //! Proves: there are never more in use than permitted, none is lost, who waits is woken, and
    //! all that wait get the same share. How: steps, and threads that are woken only as workers
    //! are.

    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    fn workers(count: u16, most: u32) -> Vec<MyPermits> {
        let all = Arc::new(Permits::default());
        (0..count).map(|worker| MyPermits::new(all.clone(), (worker, count), most)).collect()
    }

    /// One response ends, others wait here; then all permits are used. Returns who is woken.
    fn next(permits: &MyPermits, working: &mut u32) -> Vec<u16> {
        let mut woken = Vec::new();
        *working -= 1;
        permits.share(*working, |worker| woken.push(worker));
        while permits.take(*working) {
            *working += 1;
        }
        permits.settle(*working, true, |worker| woken.push(worker));
        woken
    }

    #[test]
    fn who_is_alone_has_all_and_who_waits_gets_the_same() {
        let all = workers(2, 4);
        assert!((0..4).all(|working| all[0].take(working)));
        assert!(!all[0].take(4) && !all[1].take(0));
        let none = |_| panic!("there is none");
        (0..2).for_each(|worker| all[worker].settle([4, 0][worker], true, none));
        assert_eq!((all[0].available(4), all[1].available(0)), (0, 0));
        let mut working = [4, 0];
        for (held, woken) in [([3, 1], vec![1]), ([2, 2], vec![1]), ([2, 2], vec![])] {
            assert_eq!(next(&all[0], &mut working[0]), woken);
            while all[1].take(working[1]) {
                working[1] += 1;
            }
            all[1].settle(working[1], true, none);
            assert_eq!([all[0].held(), all[1].held()], held);
        }
        // The other one has nothing more to do.
        let mut woken = Vec::new();
        all[1].settle(0, false, |worker| woken.push(worker));
        assert_eq!((woken, all[0].available(2)), (vec![0], 2));
        assert!(all[0].take(2) && all[0].take(3));
        // An engine is lost: what it had is there for others.
        let reborn = MyPermits::new(all[0].all.clone(), (0, 2), 4);
        assert_eq!((reborn.held(), all[1].available(0)), (0, 4));
    }

    #[test]
    fn one_permit_goes_round() {
        let all = workers(3, 1);
        assert!(all[0].take(0) && !all[1].take(0) && !all[2].take(0));
        (0..3).for_each(|worker| all[worker].settle(u32::from(worker == 0), true, |_| {}));
        let mut working = [1, 0, 0];
        for turn in 0..9 {
            let [from, to] = [turn % 3, (turn + 1) % 3];
            assert_eq!(next(&all[from], &mut working[from]), [to as u16]);
            assert!(all[to].take(0), "{turn}");
            working[to] = 1;
        }
    }

    #[test]
    fn what_is_taken_and_not_used_is_given_back() {
        let all = workers(2, 1);
        assert!(all[0].take(0) && all[0].take(0) && !all[1].take(0));
        all[1].settle(0, true, |_| panic!("there is none"));
        let mut woken = Vec::new();
        all[0].settle(0, true, |worker| woken.push(worker));
        assert_eq!(woken, [1], "this one has something else to wait for");
        assert!(all[1].take(0));
    }

    /// Two clients did not read, others got their permits, and now they read on.
    #[test]
    fn what_has_no_permit_needs_one_first() {
        let all = workers(1, 4);
        assert!(all[0].take(0) && all[0].take(1));
        assert_eq!(all[0].available(4), 0);
        assert!(!all[0].take(4), "four are at work");
        assert!(all[0].take(3), "one has ended");
        assert_eq!(all[0].held(), 4);
    }

    /// Two permits come back at once, and each of two workers needs one.
    #[test]
    fn each_permit_wakes_another_worker() {
        let all = workers(3, 2);
        assert!(all[0].take(0) && all[0].take(1) && !all[1].take(0) && !all[2].take(0));
        all[1..].iter().for_each(|one| one.settle(0, true, |_| panic!("there is none")));
        let mut woken = Vec::new();
        all[0].settle(0, false, |worker| woken.push(worker));
        assert_eq!(woken, [1, 2]);
    }

    /// Who is woken and needs none any more wakes the next one.
    #[test]
    fn a_wake_is_passed_on() {
        let all = workers(3, 1);
        assert!(all[0].take(0) && !all[1].take(0) && !all[2].take(0));
        all[1..].iter().for_each(|one| one.settle(0, true, |_| panic!("there is none")));
        let mut woken = Vec::new();
        all[0].settle(0, false, |worker| woken.push(worker));
        all[1].settle(0, false, |worker| woken.push(worker));
        assert_eq!(woken, [1, 2]);
        all[2].settle(0, true, |_| panic!("nobody else waits"));
        assert!(all[2].take(0));
    }

    /// Neither can use what it is handed: it goes to the pool, and nobody is woken for ever.
    #[test]
    fn who_can_use_none_waits_for_none() {
        let all = workers(2, 2);
        assert!(all[0].take(0) && all[0].take(1));
        all[1].settle(0, true, |_| panic!("there is none"));
        let mut woken = Vec::new();
        all[0].share(0, |worker| woken.push(worker));
        assert_eq!((woken, all[1].held()), (vec![1], 1));
        for _ in 0..2 {
            all[1].settle(0, true, |_| panic!("nobody waits"));
            all[0].settle(0, true, |_| panic!("nobody waits"));
        }
        assert_eq!((all[1].held(), all[0].available(0)), (0, 2));
    }

    /// Each thread has requests to send, one after the other as permits allow, and sleeps until a
    /// request of its own ends or another thread wakes it.
    #[test]
    fn nobody_sleeps_while_there_is_one() {
        const EACH: u32 = 300;
        const PATIENCE: Duration = Duration::from_secs(60);
        for (count, most) in [(2, 1), (4, 2), (4, 7), (8, 3)] {
            let all = workers(count, most);
            let [at_once, done] = [AtomicU32::new(0), AtomicU32::new(0)];
            let (wake, sleep): (Vec<Sender<()>>, Vec<_>) = (0..count).map(|_| channel()).unzip();
            std::thread::scope(|scope| {
                for (permits, sleep) in all.iter().cloned().zip(sleep) {
                    let (wake, at_once, done) = (wake.clone(), &at_once, &done);
                    scope.spawn(move || {
                        let wake = |worker: u16| {
                            let _ = wake[usize::from(worker)].send(());
                        };
                        let (mut left, mut working) = (EACH, 0);
                        while left + working > 0 {
                            permits.share(working, wake);
                            while left > 0 && permits.take(working) {
                                (left, working) = (left - 1, working + 1);
                                assert!(at_once.fetch_add(1, SeqCst) < most, "too many");
                            }
                            permits.settle(working, left > 0, wake);
                            if working > 0 {
                                working -= 1;
                                at_once.fetch_sub(1, SeqCst);
                            } else if left > 0 {
                                sleep.recv_timeout(PATIENCE).expect("it is woken");
                            }
                        }
                        permits.settle(0, false, wake);
                        done.fetch_add(1, SeqCst);
                        // What is still handed to it goes on to others, as in a worker.
                        for _ in 0..PATIENCE.as_millis() {
                            if done.load(SeqCst) == count.into() {
                                break;
                            }
                            let _ = sleep.recv_timeout(Duration::from_millis(1));
                            permits.settle(0, false, wake);
                        }
                    });
                }
            });
            let held: u32 = all.iter().map(MyPermits::held).sum();
            assert_eq!(all[0].all.used.load(SeqCst), held);
        }
    }
}
