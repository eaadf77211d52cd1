//! `concurrency` of a server: how many requests it works on at once, over all workers.
//!
//! weir sends each request with a *permit*. All workers take permits from one pool, so that no
//! permit is idle at one worker while a request waits at another:
//!
//! ```text
//! share    when a request has ended: give its permit to a waiting worker that has fewer
//! take     for each request to send: use a spare permit, or take one from the pool
//! settle   afterwards: return spare permits and wake a waiting worker for each; then set `waits`
//!          if requests wait and no permit is available
//! ```
//!
//! A worker sets `waits` before it checks the pool again. A worker that returns a permit checks
//! `waits` afterwards. All accesses are sequentially consistent, so one of the two sees the other,
//! and no permit stays in the pool while a worker waits. A worker calls `share` before it sends its
//! own next request, so all waiting workers end up with the same number. A worker returns a permit
//! that it cannot use to the pool, and does not wait while the pool has permits, so permits do not
//! circulate. Bound: two numbers for each worker, where `concurrency` is set.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, OnceLock};

/// The permits of one server.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    /// Permits that the workers have.
    used: AtomicU32,
    workers: OnceLock<Box<[Holder]>>,
}

/// The state of one worker.
#[derive(Debug, Default)]
struct Holder {
    /// Permits. Other workers add to it; only the worker itself subtracts.
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
    /// Resets everything for another server in this slot. No worker may use either server.
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
    /// Returns the view of a worker, which begins without permits, also after a panic.
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

    /// Returns the number of permits of this worker.
    pub(crate) fn held(&self) -> u32 {
        self.mine().held.load(SeqCst)
    }

    /// The most that may be in use, over all workers.
    pub(crate) fn most(&self) -> u32 {
        self.most
    }

    /// Takes a permit for one more request beside `working`. False: none is available. Requests
    /// whose clients have resumed reading get their permits first.
    pub(crate) fn take(&self, working: u32) -> bool {
        while self.held() <= working {
            if !self.add() {
                return false;
            }
            self.mine().held.fetch_add(1, SeqCst);
        }
        true
    }

    /// Returns how many more requests have a permit now, beside `working`.
    pub(crate) fn available(&self, working: u32) -> u32 {
        let free = self.most.saturating_sub(self.all.used.load(SeqCst));
        (self.held() + free).saturating_sub(working)
    }

    /// Call it when a request has ended. Gives spare permits, beside `working`, to waiting workers
    /// that have fewer, and wakes each. A worker that was woken must not call it: it would give the
    /// permit back.
    pub(crate) fn share(&self, working: u32, mut wake: impl FnMut(u16)) {
        while self.held() > working
            && let Some(worker) = self.waiting(|holder| holder.held.load(SeqCst) < self.held())
        {
            self.hand_to(worker);
            wake(worker as u16);
        }
    }

    /// Returns spare permits, beside `working`, and wakes a waiting worker for each. `waits`:
    /// requests wait in this worker. Wakes this worker if a permit has become available.
    pub(crate) fn settle(&self, working: u32, waits: bool, mut wake: impl FnMut(u16)) {
        while self.held() > working {
            self.mine().held.fetch_sub(1, SeqCst);
            self.all.used.fetch_sub(1, SeqCst);
            self.wake_one(&mut wake);
        }
        let waits = waits && self.available(working) == 0;
        self.mine().waits.store(waits, SeqCst);
        if !waits {
            // This worker may not need the permit that it was woken for.
            if self.all.used.load(SeqCst) < self.most {
                self.wake_one(&mut wake);
            }
        } else if self.available(working) > 0 {
            // Another worker returned a permit before `waits` was set.
            wake(self.worker as u16);
        }
    }

    /// Wakes another waiting worker and clears its `waits`, so that several permits wake several
    /// workers. The woken worker sets it again if needed.
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

    /// Returns the next other worker that waits and is `good`.
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
    //! Proves: workers never use more permits than exist, lose no permit, wake each waiting worker,
    //! and get equal shares. How: single steps, and threads that sleep until they are woken.

    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    fn workers(count: u16, most: u32) -> Vec<MyPermits> {
        let all = Arc::new(Permits::default());
        (0..count).map(|worker| MyPermits::new(all.clone(), (worker, count), most)).collect()
    }

    /// Ends one response while requests wait, and uses all permits. Returns the woken workers.
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
        // The other worker is done.
        let mut woken = Vec::new();
        all[1].settle(0, false, |worker| woken.push(worker));
        assert_eq!((woken, all[0].available(2)), (vec![0], 2));
        assert!(all[0].take(2) && all[0].take(3));
        // After a panic, the permits of the worker are available again.
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

    /// Two clients paused, other requests got their permits, and now the two resume.
    #[test]
    fn what_has_no_permit_needs_one_first() {
        let all = workers(1, 4);
        assert!(all[0].take(0) && all[0].take(1));
        assert_eq!(all[0].available(4), 0);
        assert!(!all[0].take(4), "four are at work");
        assert!(all[0].take(3), "one has ended");
        assert_eq!(all[0].held(), 4);
    }

    /// One worker returns two permits at once, and two workers need one each.
    #[test]
    fn each_permit_wakes_another_worker() {
        let all = workers(3, 2);
        assert!(all[0].take(0) && all[0].take(1) && !all[1].take(0) && !all[2].take(0));
        all[1..].iter().for_each(|one| one.settle(0, true, |_| panic!("there is none")));
        let mut woken = Vec::new();
        all[0].settle(0, false, |worker| woken.push(worker));
        assert_eq!(woken, [1, 2]);
    }

    /// A woken worker that needs no permit wakes the next worker.
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

    /// Two workers that cannot use a permit return it to the pool and do not wake each other.
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

    /// Each thread sends its requests as permits allow. It sleeps until one of its requests ends or
    /// another thread wakes it.
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
                        // Another thread may still give it a permit, which it returns.
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
