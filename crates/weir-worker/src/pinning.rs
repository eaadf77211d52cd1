//! Decides when a worker is unpinned from its core, and when it is pinned to it again (`pinning
//! "soft"`).
//!
//! A pinned worker keeps its caches warm, but can't escape when something else takes its core: a
//! program of higher priority, an interrupt storm, another pinned thread. A worker that is starved
//! of its core for [`HOLDS`], while another core has time, may run on all cores; the kernel moves a
//! thread that wants to run to an idle core within milliseconds. When it has been calm there for
//! [`CALM`] it is pinned again. Where a sandbox hides /proc/stat, it is unpinned to find out, and
//! returns after [`CALM_FULL`]. Called by the main thread at each of its looks, because a starved
//! worker can't do that itself. Bound: a read of /proc/stat in [`WINDOW`], and none while no worker
//! is starved and all are pinned.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use weir_io::board::STARVED_PERMILLE as STARVED;
use weir_io::set_cores;

use crate::scheduling::{Ticks, ticks_of};

/// How long it must be starved, at each look, before it is unpinned.
const HOLDS: Duration = Duration::from_millis(500);
/// How long it must not be starved, while its core has time, before it is pinned again.
const CALM: Duration = Duration::from_secs(10);
/// The same while its core has no time, for example because all cores are full of workers.
const CALM_FULL: Duration = Duration::from_secs(120);
/// A core has time when it is idle for this share of its time, in thousandths.
const IDLE: u64 = 250;
/// Time between two looks at what cores do; the kernel counts it in ticks of 10 ms.
const WINDOW: Duration = Duration::from_millis(500);

/// How workers are bound to cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pinning {
    /// Each to a separate core, which it may leave while something else takes it.
    #[default]
    Soft,
    /// Each to a separate core.
    Hard,
    /// To none.
    None,
}

/// How one worker is bound, for observers.
#[derive(Debug, Default)]
pub struct Place {
    /// The core that it is pinned to, or will be again, plus one; 0: none.
    home: AtomicU32,
    is_free: AtomicBool,
    times: AtomicU32,
}

impl Place {
    /// From now on it is pinned to this core, or to none.
    pub(crate) fn set_home(&self, core: Option<usize>) {
        self.home.store(core.and_then(|core| u32::try_from(core + 1).ok()).unwrap_or(0), Relaxed);
    }

    /// The core that it is pinned to, or will be again; None: it may always run on all of them.
    pub fn home(&self) -> Option<usize> {
        self.home.load(Relaxed).checked_sub(1).map(|core| core as usize)
    }

    /// Whether it is pinned to its core now.
    pub fn is_pinned(&self) -> bool {
        self.home().is_some() && !self.is_free.load(Relaxed)
    }

    /// How often it was unpinned.
    pub fn times_let_go(&self) -> u32 {
        self.times.load(Relaxed)
    }

    /// For status.
    pub fn word(&self) -> &'static str {
        match (self.home(), self.is_pinned()) {
            (None, _) => "not pinned",
            (_, true) => "pinned",
            (_, false) => "let go",
        }
    }
}

/// A worker whose binding changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Its number.
    pub worker: usize,
    /// The core from which it was unpinned, or to which it is pinned again.
    pub core: usize,
    /// It was unpinned.
    pub is_free: bool,
}

/// Looks after all workers.
#[derive(Debug)]
pub(crate) struct Pins {
    pins: Vec<Pin>,
    /// Cores that this process may use.
    allowed: Vec<usize>,
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Pin {
    thread: i32,
    place: Arc<Place>,
    /// It is to be unpinned when it is starved.
    is_soft: bool,
    /// Since when it has been starved at each look, or, after it was unpinned, not starved.
    since: Option<Duration>,
}

/// A snapshot of the cores' activity.
#[derive(Debug)]
struct Seen {
    at: Duration,
    /// By core that may be used.
    ticks: Vec<Option<Ticks>>,
    /// How much of the time before that they were idle, in thousandths; None: unknown.
    idle: Vec<Option<u64>>,
}

impl Seen {
    /// Whether this core has enough time that a returning worker is not starved there at once
    /// (`is_home`), or another core has some. Where a sandbox hides what cores do, another core is
    /// tried.
    fn has_time(&self, allowed: &[usize], core: usize, is_home: bool) -> bool {
        let is_hidden = self.ticks.iter().all(Option::is_none);
        let mut cores =
            self.idle.iter().zip(allowed).filter(|(_, other)| (**other == core) == is_home);
        let least = if is_home { 1000 - u64::from(STARVED) } else { IDLE };
        is_hidden && !is_home || cores.any(|(idle, _)| idle.is_some_and(|idle| idle >= least))
    }
}

impl Pins {
    /// For threads with these numbers (gettid), by worker, bound as `places` and `pinning` say, in
    /// a process that may use these cores.
    pub(crate) fn new(
        threads: &[i32],
        places: &[Arc<Place>],
        pinning: Pinning,
        allowed: Vec<usize>,
    ) -> Pins {
        let pin = |(thread, place): (&i32, &Arc<Place>)| {
            let is_soft = pinning == Pinning::Soft && place.is_pinned() && allowed.len() > 1;
            Pin { thread: *thread, place: Arc::clone(place), is_soft, since: None }
        };
        Pins { pins: threads.iter().zip(places).map(pin).collect(), allowed, seen: None }
    }

    /// Looks at `now` (of any clock that never runs backwards), given how much each worker is
    /// starved, in thousandths, and a reader of /proc/stat. Returns the workers whose binding
    /// changed.
    pub(crate) fn look(
        &mut self,
        now: Duration,
        starved: impl Fn(usize) -> u32,
        stat: impl FnOnce() -> Option<String>,
    ) -> Vec<Change> {
        let of_interest = |(worker, pin): (usize, &Pin)| {
            pin.is_soft && (!pin.place.is_pinned() || starved(worker) > STARVED)
        };
        if !self.pins.iter().enumerate().any(of_interest) {
            self.pins.iter_mut().for_each(|pin| pin.since = None);
            self.seen = None;
            return Vec::new();
        }
        let is_new = self.seen.as_ref().is_none_or(|seen| now.saturating_sub(seen.at) >= WINDOW);
        if is_new {
            let text = stat().unwrap_or_default();
            self.see(now, &text);
        }
        let Some(seen) = &self.seen else { return Vec::new() };
        let allowed = &self.allowed;
        let change = |(worker, pin): (usize, &mut Pin)| {
            let core = pin.place.home().filter(|_| pin.is_soft)?;
            let has_time = |is_home: bool| is_new && seen.has_time(allowed, core, is_home);
            let is_free = pin.is_to_be_free(now, starved(worker), has_time)?;
            let cores = if is_free { &allowed[..] } else { &[core][..] };
            // Rejected by a sandbox: it remains as it is.
            if set_cores(pin.thread, cores).is_err() {
                pin.is_soft = false;
                return None;
            }
            pin.place.is_free.store(is_free, Relaxed);
            pin.place.times.fetch_add(u32::from(is_free), Relaxed);
            pin.since = None;
            Some(Change { worker, core, is_free })
        };
        self.pins.iter_mut().enumerate().filter_map(change).collect()
    }

    fn see(&mut self, at: Duration, stat: &str) {
        let ticks: Vec<Option<Ticks>> =
            self.allowed.iter().map(|core| ticks_of(stat, Some(*core))).collect();
        let before = self.seen.take().map(|seen| seen.ticks).unwrap_or_default();
        let idle = |(at, now): (usize, &Option<Ticks>)| (*now)?.idle_since((*before.get(at)?)?);
        let idle = ticks.iter().enumerate().map(idle).collect();
        self.seen = Some(Seen { at, ticks, idle });
    }
}

impl Pin {
    /// Whether it may run everywhere from now on, if that changes. `has_time` tells whether its own
    /// core (true) has time, or another core (false).
    fn is_to_be_free(
        &mut self,
        now: Duration,
        starved: u32,
        has_time: impl Fn(bool) -> bool,
    ) -> Option<bool> {
        let is_pinned = self.place.is_pinned();
        if (starved > STARVED) != is_pinned {
            self.since = None;
            return None;
        }
        let held = now.saturating_sub(*self.since.get_or_insert(now));
        let changes = if is_pinned {
            held >= HOLDS && has_time(false)
        } else {
            held >= CALM_FULL || held >= CALM && has_time(true)
        };
        changes.then_some(is_pinned)
    }
}

#[cfg(test)]
mod tests {
    //! Proves: only a worker that is starved for a while is unpinned, only if another core has
    //! time, and it returns when it has been calm. How: made-up cores and times, and a thread with
    //! a core that others take; the kernel says where the thread may run.

    use std::sync::mpsc;
    use std::time::Instant;

    use weir_io::{Board, available_cores, pin_to};

    use super::*;
    use crate::scheduling::core_of;
    use crate::starvation::Starvation;

    const LOOK: Duration = Duration::from_millis(50);

    /// Two cores, each idle for a given number of 1,000 ticks in each window.
    struct Machine {
        pin: Pin,
        pins: Pins,
        looks: u32,
        ticks: [(u64, u64); 2],
        is_hidden: bool,
    }

    impl Machine {
        fn new() -> Machine {
            let place = Arc::new(Place::default());
            place.set_home(Some(0));
            let pin =
                |thread, is_soft| Pin { thread, place: Arc::clone(&place), is_soft, since: None };
            // This number is of no thread: decisions are asked of `pin`, and `pins` has no soft one
            // except within `look`.
            let pins = Pins { pins: vec![pin(i32::MAX, false)], allowed: vec![0, 1], seen: None };
            Machine {
                pin: pin(i32::MAX, true),
                pins,
                looks: 0,
                ticks: [(0, 0); 2],
                is_hidden: false,
            }
        }

        /// The decisions at the looks within this time.
        fn run(&mut self, time: Duration, starved: u32, idle: [u64; 2]) -> Vec<bool> {
            let mut decided = Vec::new();
            for _ in 0..time.as_millis() / LOOK.as_millis() {
                self.looks += 1;
                let now = LOOK * self.looks;
                for (ticks, idle) in self.ticks.iter_mut().zip(idle) {
                    *ticks = (ticks.0 + idle, ticks.1 + 1000 - idle);
                }
                let is_new = self.pins.seen.as_ref().is_none_or(|seen| now - seen.at >= WINDOW);
                if is_new {
                    let line = |(core, (idle, user)): (usize, &(u64, u64))| {
                        format!("cpu{core} {user} 0 0 {idle} 0 0 0 0\n")
                    };
                    let text: String = self.ticks.iter().enumerate().map(line).collect();
                    self.pins.see(now, if self.is_hidden { "" } else { &text });
                }
                let seen = self.pins.seen.as_ref().expect("it was looked");
                let has_time = |is_home: bool| is_new && seen.has_time(&[0, 1], 0, is_home);
                if let Some(is_free) = self.pin.is_to_be_free(now, starved, has_time) {
                    self.pin.place.is_free.store(is_free, Relaxed);
                    self.pin.since = None;
                    decided.push(is_free);
                }
            }
            decided
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn it_flees_when_another_core_has_time() {
        for (starved, other_idle, decided) in [
            (201, 250, vec![true]),
            (201, 249, vec![]),
            (200, 1000, vec![]),
            (1000, 1000, vec![true]),
        ] {
            let mut machine = Machine::new();
            assert_eq!(
                machine.run(2 * SECOND, starved, [0, other_idle]),
                decided,
                "{starved} {other_idle}"
            );
        }
    }

    #[test]
    fn a_moment_is_no_reason() {
        let mut machine = Machine::new();
        for _ in 0..20 {
            assert_eq!(machine.run(9 * LOOK, 900, [0, 900]), []);
            assert_eq!(machine.run(LOOK, 100, [0, 900]), []);
        }
    }

    #[test]
    fn it_comes_back_when_it_has_been_calm() {
        let mut machine = Machine::new();
        assert_eq!(machine.run(2 * SECOND, 900, [0, 900]), [true]);
        assert_eq!(machine.run(9 * SECOND, 0, [900, 900]), [], "too early");
        assert_eq!(machine.run(SECOND / 2, 900, [900, 900]), [], "not calm");
        assert_eq!(machine.run(9 * SECOND, 0, [900, 900]), [], "anew");
        assert_eq!(machine.run(2 * SECOND, 0, [900, 900]), [false]);
        // Its core is still taken: it tries again much later.
        assert_eq!(machine.run(2 * SECOND, 900, [0, 900]), [true]);
        assert_eq!(machine.run(119 * SECOND, 0, [0, 900]), []);
        assert_eq!(machine.run(2 * SECOND, 0, [0, 900]), [false]);
    }

    #[test]
    fn where_nothing_is_told_of_cores_it_tries_and_stays_for_long() {
        let mut machine = Machine { is_hidden: true, ..Machine::new() };
        assert_eq!(machine.run(9 * LOOK, 900, [0, 0]), []);
        assert_eq!(machine.run(SECOND, 900, [0, 0]), [true]);
        assert_eq!(machine.run(119 * SECOND, 0, [900, 900]), []);
        assert_eq!(machine.run(2 * SECOND, 0, [900, 900]), [false]);
    }

    #[test]
    fn nothing_is_read_while_all_is_well() {
        let mut pins = Machine::new().pins;
        pins.pins[0].is_soft = true;
        for look in 0..100 {
            let read = || panic!("nobody is starved");
            assert_eq!(pins.look(LOOK * look, |_| STARVED, read), []);
        }
        let mut reads = 0;
        for look in 100..200 {
            let read = || {
                reads += 1;
                Some("cpu0 9 0 0 9 0 0 0 0\n".to_owned())
            };
            assert_eq!(pins.look(LOOK * look, |_| STARVED + 1, read), [], "the other core is off");
        }
        assert_eq!(reads, 10);
    }

    #[test]
    fn who_is_hard_or_not_pinned_stays_so() {
        for (pinning, home, allowed, word) in [
            (Pinning::Hard, Some(7), vec![3, 7], "pinned"),
            (Pinning::None, None, vec![3, 7], "not pinned"),
            // Binding is forbidden; no other core is available.
            (Pinning::Soft, None, vec![3, 7], "not pinned"),
            (Pinning::Soft, Some(7), vec![7], "pinned"),
        ] {
            let place = Arc::new(Place::default());
            place.set_home(home);
            let mut pins = Pins::new(&[i32::MAX], &[Arc::clone(&place)], pinning, allowed);
            assert_eq!(pins.look(SECOND, |_| 1000, || panic!("nobody is to be let go")), []);
            assert_eq!((place.home(), place.word()), (home, word));
        }
    }

    /// A thread spins on a core that three others occupy. The other cores are reported as idle,
    /// whatever else runs there.
    #[test]
    fn the_kernel_is_told() {
        let allowed = available_cores();
        let [home, .., _] = allowed[..] else {
            return eprintln!("skipped: there is one core only");
        };
        let (over, calm) = (AtomicBool::new(false), AtomicBool::new(false));
        let (number, numbers) = mpsc::channel();
        let spin = |until: &AtomicBool| {
            assert!(pin_to(home));
            number.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("heard");
            while !until.load(Relaxed) {
                std::hint::spin_loop();
            }
        };
        std::thread::scope(|scope| {
            let spin = &spin;
            let (over, calm) = (&over, &calm);
            scope.spawn(move || spin(over));
            let worker = numbers.recv().expect("a number");
            for _ in 0..3 {
                scope.spawn(move || spin(calm));
                numbers.recv().expect("a number");
            }
            let (place, board) = (Arc::new(Place::default()), Board::new(1));
            place.set_home(Some(home));
            let mut pins =
                Pins::new(&[worker], &[Arc::clone(&place)], Pinning::Soft, allowed.clone());
            let mut starvation = Starvation::new(&[worker]);
            let begun = Instant::now();
            let mut ticks = 0_u64;
            // Time runs faster while it is calm.
            let mut wait_for = |word: &str, later: Duration| {
                while place.word() != word && begun.elapsed() < Duration::from_secs(60) {
                    starvation.look(&board);
                    ticks += 1000;
                    let line = |core: &usize| format!("cpu{core} 0 0 0 {ticks} 0 0 0 0\n");
                    // Whether a busy machine leaves it calm then is not the subject of this test.
                    let starved = |_| {
                        if later.is_zero() {
                            board.line(0).starved_permille.load(Relaxed)
                        } else {
                            0
                        }
                    };
                    let speed = if later.is_zero() { 1 } else { 100 };
                    pins.look(begun.elapsed() * speed + later, starved, || {
                        Some(allowed.iter().map(line).collect())
                    });
                    std::thread::yield_now();
                }
                (place.word(), place.is_pinned(), core_of(worker))
            };
            let let_go = wait_for("let go", Duration::ZERO);
            calm.store(true, Relaxed);
            let pinned = wait_for("pinned", SECOND);
            over.store(true, Relaxed);
            assert_eq!(let_go, ("let go", false, None));
            assert_eq!(pinned, ("pinned", true, Some(home)));
            assert_eq!(place.times_let_go(), 1);
        });
    }
}
