//! Proves: the limit of a server that does less the more it has is found from either side and is
//! left when it is no longer needed; every other server gets as many requests as there are, and
//! trials on it are rare. How: models of servers in made-up time, closed loops of clients and
//! arrivals by the clock.

use super::*;

const BOUNDS: Bounds = Bounds { floor: 32, most: 1024 };

/// A server, described by the time of an answer at each number of requests at once.
struct World {
    climb: Climb,
    now_us: u64,
    limit: u32,
    /// Requests that are there, answered or not.
    waiting: f64,
    lowest: u32,
    answers: f64,
    /// State of a random generator; 0: nothing varies.
    seed: u64,
}

impl World {
    fn new() -> World {
        World {
            climb: Climb::default(),
            now_us: 5_000_000,
            limit: 32,
            waiting: 0.0,
            lowest: u32::MAX,
            answers: 0.0,
            seed: 0,
        }
    }

    /// About normal, with mean 0 and deviation 1.
    fn random(&mut self) -> f64 {
        if self.seed == 0 {
            return 0.0;
        }
        let mut uniform = || {
            self.seed = self
                .seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.seed >> 40) as f64 / f64::from(1 << 24)
        };
        (0..12).map(|_| uniform()).sum::<f64>() - 6.0
    }

    /// Makes this many looks. Either `clients` is constant, or `arrivals` requests a second arrive.
    fn run(
        &mut self,
        looks: u32,
        clients: Option<f64>,
        arrivals: f64,
        took_us: impl Fn(f64) -> f64,
    ) -> &mut World {
        for _ in 0..looks {
            self.waiting = clients.unwrap_or(self.waiting + arrivals / 10.0);
            let at_once = self.waiting.min(self.limit.into());
            // Times of single answers vary by three times their mean.
            let took = took_us(at_once);
            let expected = at_once * 100_000.0 / took;
            let (some, other) = (self.random(), self.random());
            let varied = took * (1.0 + 3.0 * some / expected.max(1.0).sqrt()).max(0.2);
            // The answers of a tenth of a second; all other requests remain.
            let able = (expected + other * expected.sqrt()).max(0.0);
            let answers = if clients.is_some() { able } else { able.min(self.waiting) };
            self.waiting -= if clients.is_some() { 0.0 } else { answers };
            let binds = self.waiting > self.limit.into();
            self.now_us += LOOK_US;
            self.answers += answers;
            self.limit = self.climb.look(
                self.now_us,
                answers as u64,
                (answers * varied) as u64,
                binds,
                BOUNDS,
            );
            self.lowest = self.lowest.min(self.limit);
        }
        self
    }
}

/// Answers take 10 ms up to 32 at once, then fewer come the more there are.
fn lock(at_once: f64) -> f64 {
    let over = (at_once / 32.0).max(1.0);
    10_000.0 * over * over.sqrt()
}

/// 16 threads of 10 ms each.
fn threads(at_once: f64) -> f64 {
    10_000.0 * (at_once / 16.0).max(1.0)
}

#[test]
fn a_lock_is_found() {
    for clients in [60.0, 100.0, 256.0, 1_000.0, 4_000.0] {
        let mut world = World::new();
        world.run(300, Some(clients), 0.0, lock);
        assert!(world.limit <= 80, "{clients} {}", world.limit);
        let learned = world.climb.learned().expect("it is in force");
        assert!(
            learned.limit <= 64 && learned.before > learned.limit && learned.gain_percent >= 15,
            "{learned:?}"
        );
        // Near the best there is.
        world.answers = 0.0;
        world.run(300, Some(clients), 0.0, lock);
        assert!(world.answers >= 0.85 * 3_200.0 * 30.0, "{clients}: {}", world.answers);
    }
}

#[test]
fn twice_as_much_as_it_can_do() {
    let mut world = World::new();
    world.run(600, None, 6_400.0, lock);
    world.answers = 0.0;
    world.run(600, None, 6_400.0, lock);
    assert!(world.answers >= 0.85 * 3_200.0 * 60.0, "{}", world.answers);
}

#[test]
fn it_ends_with_the_load() {
    let mut world = World::new();
    world.run(300, Some(500.0), 0.0, lock);
    assert!(world.climb.learned().is_some());
    world.run(100, Some(10.0), 0.0, lock);
    assert!(world.climb.learned().is_none() && world.limit == 1_024, "{}", world.limit);
    // Without answers the limit ends, so waiting requests go on.
    world.run(300, Some(500.0), 0.0, lock);
    assert!(world.climb.learned().is_some());
    world.run(30, Some(500.0), 0.0, |_| 1e12);
    assert!(world.climb.learned().is_none() && world.limit == 1_024, "{}", world.limit);
    // After a pause.
    world.run(300, Some(500.0), 0.0, lock);
    assert!(world.climb.learned().is_some());
    world.now_us += 60_000_000;
    world.run(1, Some(500.0), 0.0, lock);
    assert!(world.climb.learned().is_none());
}

#[test]
fn it_rises_when_the_server_bears_more() {
    let mut world = World::new();
    world.run(300, Some(500.0), 0.0, lock);
    world.run(1_200, Some(500.0), 0.0, |at_once| lock(at_once / 8.0));
    assert!(world.limit >= 150, "{}", world.limit);
}

/// Where answers take less than 5 ms with few at once, processors are what they wait for.
#[test]
fn quick_servers_have_no_limit() {
    let mut world = World::new();
    world.run(600, Some(1_000.0), 0.0, |at_once| lock(at_once) / 10.0);
    assert!(world.climb.learned().is_none() && world.limit == 1_024, "{}", world.limit);
}

/// A server that works on any number at once, or on few in turn, loses nothing by more of them.
#[test]
fn others_have_what_is_asked_of_them() {
    for (clients, took_us) in [
        (50.0, (|_| 500_000.0) as fn(f64) -> f64),
        (500.0, |_| 500_000.0),
        (900.0, |_| 2_000.0),
        (60.0, threads),
        (500.0, threads),
    ] {
        let mut world = World::new();
        world.run(600, Some(clients), 0.0, took_us);
        assert!(world.climb.learned().is_none(), "{clients}");
        world.answers = 0.0;
        world.run(3_000, Some(clients), 0.0, took_us);
        let best = clients.min(1_024.0) * 300e6 / took_us(clients);
        assert!(world.answers >= 0.995 * best, "{clients}: {} of {best}", world.answers);
    }
}

/// Pages that take longer are no overload: trials become rare.
#[test]
fn slower_pages_are_tried_rarely() {
    let mut world = World::new();
    world.run(100, None, 2_000.0, |_| 50_000.0);
    assert_eq!(world.lowest, 32);
    let (mut below, mut looks) = (0, 0);
    for minute in 0..20 {
        for _ in 0..600 {
            world.run(1, None, 2_000.0, |_| 200_000.0);
            looks += 1;
            below += u32::from(world.limit < 400 && minute > 0);
        }
    }
    assert!(world.climb.learned().is_none());
    assert!(below * 100 < looks, "{below} of {looks}");
}

/// Random variation is hardly ever taken for an overload, and not for long.
#[test]
fn chance_is_no_overload() {
    for (clients, took_us) in
        [(500.0, (|_| 500_000.0) as fn(f64) -> f64), (200.0, |_| 20_000.0), (500.0, threads)]
    {
        let mut world = World { seed: 7, ..World::new() };
        let (mut held, mut below) = (0, 0);
        for _ in 0..36_000 {
            world.run(1, Some(clients), 0.0, took_us);
            held += u32::from(world.climb.learned().is_some());
            below += u32::from(f64::from(world.limit) < clients);
        }
        assert!(held < 720 && below < 1_800, "{clients}: {held}, {below}");
    }
}

/// And an overload is found in spite of it.
#[test]
fn a_lock_is_found_whatever_varies() {
    let mut world = World { seed: 7, ..World::new() };
    world.run(600, Some(500.0), 0.0, lock);
    world.answers = 0.0;
    world.run(3_000, Some(500.0), 0.0, lock);
    assert!(world.answers >= 0.75 * 3_200.0 * 300.0, "{}", world.answers);
}

/// Long polls: no answers say anything.
#[test]
fn without_answers_nothing_is_learned() {
    let mut world = World::new();
    world.run(600, Some(1_000.0), 0.0, |_| 1e12);
    assert_eq!((world.limit, world.lowest), (1_024, 32), "but in the first look");
}

#[test]
fn workers_count_together() {
    let limit = Limit::default();
    assert_eq!(limit.get(BOUNDS), 32);
    let mut now_us = 7_000_000;
    let ended_us = now_us + 27 * LOOK_US;
    limit.look(now_us, BOUNDS);
    let mut look = |answers: u32, took_us: u64| {
        now_us += LOOK_US;
        // Two workers, one with a waiting request.
        let busy_us = u64::from(answers / 2) * took_us;
        limit.on_answers(answers / 2, busy_us, now_us - 2, BOUNDS);
        limit.on_answers(answers / 2, busy_us, now_us - 1, BOUNDS);
        assert_eq!(limit.on_waiting(now_us, BOUNDS), now_us + LOOK_US);
        (limit.get(BOUNDS), limit.is_held())
    };
    let first: Vec<_> = (0..5).map(|_| look(300, 10_000)).collect();
    assert!(first.iter().all(|seen| *seen == (1_024, false)), "{first:?}");
    // 300 at once, which take 100 ms; then 150 and 75, of which twice as many are answered in the
    // same time.
    let seen: Vec<_> = (0..2).map(|_| look(300, 100_000)).collect();
    assert_eq!(seen[1], (150, false));
    let seen: Vec<_> = (0..20).map(|_| look(600, 25_000)).collect();
    assert!(seen.contains(&(150, true)), "{seen:?}");
    assert!(
        limit
            .learned(ended_us)
            .is_some_and(|learned| learned.before == 300 && learned.gain_percent == 100)
    );
    assert_eq!(limit.learned(ended_us + STALE_US), None, "there is no load");
    limit.forget();
    assert_eq!((limit.get(BOUNDS), limit.is_held()), (32, false));
    // Where both are the same nothing is to be learned.
    for bounds in [Bounds { floor: 1, most: 1 }, Bounds { floor: 0, most: 0 }] {
        assert_eq!(Limit::default().get(bounds), 1);
    }
}
