//! The cache, in random worlds: readers of a few keys, an origin that puts key and version into
//! each body, purges, and all kinds of faults elsewhere. docs/simulation.md.
//!
//! - invariant 1: no client gets a body of another key, of other selecting fields, or one that is
//!   only for another client.
//! - invariant 2: stale responses are served only with a licence: a window that the response
//!   opened, and for stale-if-error a failure.
//! - invariant 3: over all workers, one request at a time fetches a key; plus one for each worker
//!   that was reborn.
//! - invariant 4: a request after a purge or a change gets nothing that was fetched before.
//! - invariant 5: live bytes are within `size`, and nothing is left when everything is purged and
//!   sent.
//! - invariant 6: every client that does not leave is answered, or cut off, whatever happens to
//!   fetches, connections and workers.
//! - invariant 7: the responses of a connection are in the order of its requests.
//!
//! And a server that shifts its responses by one: once that is known, no client is served what it
//! brought before.

mod memory;
mod origin;
mod reader;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use weir_cache::{Store, Target};
use weir_io::sim::{Actor, Conn, Faults, Net, Rng, START_US, Settings};
use weir_proxy::plan::{CachePlan, CacheRules, PipelineMode};
use weir_proxy::request::route::{Route, RouteTable};
use weir_proxy::request::rules::RouteRules;

use self::memory::{Counts, Memory, Purge, Question, Resource, Shared, Whose, tag};
use self::origin::{Origin, Ways};
use self::reader::{Reader, Step};
use super::client::Manners;
use super::run::Run;
use super::scenario::{Kind, Scenario, listen_address, server_address, set_connections};
use super::{each_seed, seeds_of};

const SECOND: u64 = 1_000_000;
/// How long readers keep beginning to ask.
const ASKING_US: u64 = 40 * SECOND;

/// A run with its judge.
struct World {
    run: Run,
    memory: Shared,
    store: Arc<Store>,
    rng: Rng,
    readers: usize,
}

/// A scenario whose only route has a cache of a random size. [`World::new`] adds its servers.
fn scenario(name: &'static str, kind: Kind, seed: u64, workers: u16, faults: Faults) -> Scenario {
    let rng = &mut Rng::new(seed ^ 0xcac4e);
    let mut scenario = Scenario::of(Kind::Hostile, seed, workers);
    (scenario.name, scenario.kind) = (name, kind);
    scenario.settings = Settings::random(seed, faults);
    scenario.settings.window_bytes = 1 << rng.between(12, 18);
    scenario.styles.clear();
    (scenario.clients, scenario.manners) = (0, Manners::quiet(0));
    let size_bytes = *rng.pick(&[1 << 20, 4 << 20, 64 << 20]);
    let object_bytes_max = size_bytes / *rng.pick(&[4, 16]);
    let plan = scenario.plan_mut();
    plan.upstreams[0].echo = None;
    plan.upstreams[0].queue_size = 10_000;
    let mut cache =
        CachePlan { size_bytes, object_bytes_max, variants_max: 4, store: None, snapshot: None };
    cache.open([seed, 7], usize::from(workers));
    plan.cache = Some(cache);
    let rules =
        RouteRules { cache: Some(Arc::new(CacheRules::default())), ..RouteRules::default() };
    plan.routes = RouteTable::new(vec![Route { rules: Some(Arc::new(rules)), ..Route::default() }]);
    scenario
}

fn resource(rng: &mut Rng, bytes_max: usize) -> Resource {
    let shift = rng.below(8);
    Resource {
        max_age_s: *rng.pick(&[0, 1, 3, 20]),
        renewed_s: *rng.pick(&[0, 0, 4]),
        on_error_s: *rng.pick(&[0, 0, 10]),
        has_etag: rng.chance(600),
        no_cache: rng.chance(100),
        must_revalidate: rng.chance(200),
        varies: rng.chance(300),
        is_private: rng.chance(100),
        bytes_min: 0,
        bytes_max: bytes_max >> shift,
    }
}

impl World {
    /// `under_way_us`: how long a response of an origin may be on its way.
    fn new(
        scenario: Scenario,
        resources: Vec<Resource>,
        ways: Ways,
        readers: usize,
        under_way_us: u64,
    ) -> World {
        let (seed, servers) = (scenario.seed, scenario.plan.upstreams[0].servers.len());
        let cache = scenario.plan.cache.as_ref().expect("a cache");
        let (store, bytes_max) =
            (Arc::clone(cache.store.as_ref().expect("a store")), cache.size_bytes);
        let memory = Memory::new(resources, &store, bytes_max, under_way_us);
        let run = Run::new(scenario);
        for index in 0..servers {
            run.world.actor(Origin::new(server_address(index), &memory, ways, readers));
        }
        World { run, memory, store, rng: Rng::new(seed ^ 0x9ead), readers }
    }

    /// Adds readers that ask for anything. `leaves`: thousandths of steps before which a reader
    /// leaves, or stops reading for a while.
    fn add_readers(&mut self, leaves: u32, must_be_answered: bool) {
        let keys = self.memory.borrow().resources.len();
        for reader in 0..self.readers {
            let rng = &mut self.rng;
            let (asks, burst) = (1 + rng.index(40), *rng.pick(&[1, 2, 6]));
            let mut at_us = START_US + rng.below(ASKING_US / 2);
            let mut steps = VecDeque::from([Step::Until(at_us)]);
            let mut unanswered = 0;
            for index in 0..asks {
                if unanswered > rng.index(burst) {
                    steps.push_back(Step::Await);
                    unanswered = 0;
                }
                if rng.chance(300) {
                    at_us += rng.below(8 * SECOND) >> rng.below(8);
                    steps.push_back(Step::Until(at_us));
                }
                if rng.chance(leaves) {
                    steps.push_back(Step::StopReading(rng.between(1, 5 * SECOND)));
                }
                if rng.chance(leaves) {
                    steps.push_back(Step::Until(at_us + rng.below(300_000)));
                    steps.push_back(Step::Leave);
                    break;
                }
                steps.push_back(Step::Ask(question(rng, reader, index, keys)));
                unanswered += 1;
            }
            self.add(steps, must_be_answered);
        }
    }

    fn add(&self, steps: VecDeque<Step>, must_be_answered: bool) {
        self.run
            .add(|book| Reader::new(listen_address(), book, &self.memory, steps, must_be_answered));
    }

    /// Adds `count` purges of all kinds.
    fn add_purges(&mut self, count: usize) {
        let keys = self.memory.borrow().resources.len();
        let rng = &mut self.rng;
        let mut one = || {
            let key = rng.index(keys);
            let whose =
                *rng.pick(&[Whose::All, Whose::Group(key), Whose::Key(key), Whose::Key(key)]);
            let at_us = START_US + rng.below(ASKING_US);
            Purge { at_us, of_us: at_us, whose, is_soft: rng.chance(300) }
        };
        let purges = (0..count).map(|_| one()).collect();
        self.run.world.actor(Purger { purges, memory: self.memory.clone() });
    }

    /// Runs from the first reader to the last byte.
    fn finish(self) -> Counts {
        let World { run, memory, store, .. } = self;
        let judged = memory.clone();
        run.finish_with(move |_| {
            let violations = &judged.borrow().violations;
            if violations.is_empty() {
                Ok(())
            } else {
                Err(format!("promises were broken:\n  {}", violations.join("\n  ")))
            }
        });
        let counts = memory.borrow().counts;
        drop(memory);
        store.ban(Target::All, false).expect("always works");
        // Each turn has one shard, and bans end when all shards are done.
        (0..64).for_each(|_| store.sweep(usize::MAX, u64::MAX));
        let report = store.report();
        assert_eq!(
            (report.live_bytes, report.fill_bytes, report.fills, report.objects),
            (0, 0, 0, 0),
            "invariant 5: {report:?}"
        );
        counts
    }
}

/// An operator that purges.
struct Purger {
    purges: Vec<Purge>,
    memory: Shared,
}

impl Actor for Purger {
    fn on_start(&mut self, net: &mut Net<'_>) {
        for (index, purge) in self.purges.iter().enumerate() {
            net.timer(purge.at_us.saturating_sub(net.now_us()), index as u64);
        }
    }

    fn on_data(&mut self, _: &mut Net<'_>, _: Conn, _: &[u8]) {}

    fn on_timer(&mut self, net: &mut Net<'_>, id: u64) {
        let now_us = net.now_us();
        let purge = Purge { at_us: now_us, of_us: now_us, ..self.purges[id as usize] };
        let target = match purge.whose {
            Whose::All => Target::All,
            Whose::Group(key) => Target::Tag { tag: tag(key).into_bytes(), host: None },
            Whose::Key(key) => Target::Url(format!("http://weir.test/k{key}").into_bytes()),
        };
        let memory = &mut *self.memory.borrow_mut();
        memory.store.ban(target, purge.is_soft).expect("few enough");
        memory.purges.push(purge);
    }
}

fn question(rng: &mut Rng, reader: usize, index: usize, keys: usize) -> Question {
    let method =
        *rng.pick(&["GET", "GET", "GET", "GET", "GET", "GET", "GET", "GET", "HEAD", "DELETE"]);
    let lines = match rng.below(20) {
        0 | 1 => format!("If-None-Match: \"v{}\"\r\n", rng.below(20)),
        2 => "Cache-Control: no-cache\r\n".to_owned(),
        3 => "Cache-Control: max-age=0\r\n".to_owned(),
        4 => "Cache-Control: only-if-cached\r\n".to_owned(),
        5 => "Cache-Control: no-store\r\n".to_owned(),
        6 => "Authorization: Basic YTpi\r\n".to_owned(),
        _ => String::new(),
    };
    let range = (method == "GET" && rng.chance(50)).then(|| {
        let first = rng.index(2_000);
        (first, first + rng.index(30_000))
    });
    let way = rng.chance(700).then(|| rng.below(3) as u8);
    Question {
        nonce: format!("{reader:03x}{index:04x}"),
        method,
        key: rng.index(keys),
        way,
        lines,
        range,
    }
}

fn sum(counts: &RefCell<Counts>, one: Counts) {
    let sum = &mut *counts.borrow_mut();
    sum.shared += one.shared;
    sum.own += one.own;
    sum.stale += one.stale;
    sum.failed += one.failed;
    sum.purged += one.purged;
}

/// Sizes and readers at random.
fn at_random(
    name: &'static str,
    kind: Kind,
    seed: u64,
    workers: u16,
    faults: Faults,
    ways: Ways,
) -> World {
    let under_way_us = if kind == Kind::Rough { 20 * SECOND } else { SECOND };
    let scenario = scenario(name, kind, seed, workers, faults);
    let rng = &mut Rng::new(seed ^ 0x4e50);
    let object_bytes_max =
        scenario.plan.cache.as_ref().map_or(0, |cache| cache.object_bytes_max) as usize;
    let keys = 1 + rng.index(6);
    // Some are too large.
    let resources =
        (0..keys).map(|_| resource(rng, object_bytes_max.min(1 << 20) / 10 * 12)).collect();
    let readers = 1 + rng.index(14);
    World::new(scenario, resources, ways, readers, under_way_us)
}

fn ways(rng: &mut Rng) -> Ways {
    Ways {
        delay_us_max: *rng.pick(&[0, 20_000, 600_000]),
        pieces: *rng.pick(&[0, 500]),
        chunked: *rng.pick(&[0, 300, 1_000]),
        ..Ways::default()
    }
}

/// All invariants but 3, and 6 in the strongest sense: where nothing breaks, no client gets an
/// error.
#[test]
fn where_nothing_breaks_everybody_gets_what_may_be_served() {
    for workers in [1, 2, 3] {
        let counts = RefCell::default();
        each_seed(seeds_of(60), |seed| {
            let rng = &mut Rng::new(seed ^ 0x0a11);
            let faults = if rng.chance(300) { Faults::none() } else { Faults::harmless(seed) };
            let mut world = at_random("cache", Kind::Hostile, seed, workers, faults, ways(rng));
            let purges = world.rng.index(8);
            world.add_readers(0, true);
            world.add_purges(purges);
            sum(&counts, world.finish());
        });
        let (counts, worlds) = (counts.into_inner(), seeds_of(60).len() as u64);
        let is_enough =
            counts.shared > 20 * worlds && counts.own > 20 * worlds && counts.purged > worlds;
        assert!(
            worlds == 1 || is_enough && counts.stale > worlds / 3,
            "{workers} workers: {counts:?}"
        );
    }
}

/// The same where servers fail, break off or stay silent, the network breaks, and readers leave or
/// stop reading for a while.
#[test]
fn whatever_breaks_nobody_gets_what_may_not_be_served() {
    for workers in [1, 2, 3] {
        let counts = RefCell::default();
        each_seed(seeds_of(60), |seed| {
            let rng = &mut Rng::new(seed ^ 0x0b11);
            let mut ways = ways(rng);
            (ways.fails, ways.breaks) = (*rng.pick(&[0, 100, 400]), *rng.pick(&[0, 30, 200]));
            (ways.silent, ways.closes) = (*rng.pick(&[0, 0, 20]), *rng.pick(&[0, 100]));
            let faults =
                if rng.chance(300) { Faults::harmless(seed) } else { Faults::random(seed) };
            let mut world = at_random("cache, rough", Kind::Rough, seed, workers, faults, ways);
            let (leaves, purges) = (*world.rng.pick(&[0, 30, 100]), world.rng.index(8));
            world.add_readers(leaves, false);
            world.add_purges(purges);
            sum(&counts, world.finish());
        });
        let (counts, worlds) = (counts.into_inner(), seeds_of(60).len() as u64);
        let is_enough =
            counts.shared > 5 * worlds && counts.own > 5 * worlds && counts.failed > worlds;
        assert!(worlds == 1 || is_enough, "{workers} workers: {counts:?}");
    }
}

/// The same where weir itself panics: lost responses are fetched again, and no client waits
/// forever.
#[test]
fn workers_that_begin_anew_keep_what_is_stored_and_nobody_waiting() {
    for workers in [1, 2, 3] {
        let counts = RefCell::default();
        each_seed(seeds_of(40), |seed| {
            let rng = &mut Rng::new(seed ^ 0x0c11);
            let mut world = at_random(
                "cache, panics",
                Kind::Panicking,
                seed,
                workers,
                Faults::harmless(seed),
                ways(rng),
            );
            world.add_readers(20, false);
            world.add_purges(3);
            world.run.panic(1 + (seed % 6) as u32, 300);
            sum(&counts, world.finish());
        });
        let (counts, worlds) = (counts.into_inner(), seeds_of(40).len() as u64);
        let is_enough = counts.shared > 5 * worlds && counts.failed > worlds / 2;
        assert!(worlds == 1 || is_enough, "{workers} workers: {counts:?}");
    }
}

/// Invariant 3. All clients ask for the same key at the same moment, again and again: one request
/// fetches or validates it, whichever client asks. A worker that is reborn, or whose fetch ends
/// unheard, adds one.
#[test]
fn a_herd_is_one_request_over_all_workers() {
    for (workers, panics) in [(1, 0), (2, 0), (3, 0), (2, 3), (3, 3)] {
        each_seed(seeds_of(20), |seed| {
            let rng = &mut Rng::new(seed ^ 0x3e4d);
            let kind = if panics > 0 { Kind::Panicking } else { Kind::Hostile };
            let mut scenario = scenario("herd", kind, seed, workers, Faults::harmless(seed));
            // Unanswered requests move to other connections when theirs is to be closed.
            scenario.settings.window_bytes = 256 << 10;
            let cache = CachePlan { size_bytes: 64 << 20, ..CachePlan::default() };
            let has_etag = rng.chance(500);
            let one = Resource { max_age_s: 5, has_etag, bytes_max: 20_000, ..Resource::default() };
            let plan = scenario.plan_mut();
            plan.cache = Some(CachePlan { store: None, ..cache });
            plan.cache.as_mut().expect("there").open([seed, 7], usize::from(workers));
            let ways = Ways { delay_us_max: 300_000, pieces: 300, chunked: 300, ..Ways::default() };
            let world = World::new(scenario, vec![one; 2], ways, 24, SECOND);
            for reader in 0..24 {
                let mut steps = VecDeque::new();
                for round in 0..6_u64 {
                    let shift = rng.below(20);
                    let at_us =
                        START_US + (round + 1) * 7 * SECOND + rng.below(1 + (400_000 >> shift));
                    let (nonce, key) = (format!("{reader:03x}{round:04x}"), rng.index(2));
                    let (method, way, lines, range) = ("GET", None, String::new(), None);
                    steps.push_back(Step::Until(at_us));
                    steps.push_back(Step::Ask(Question { nonce, method, key, way, lines, range }));
                }
                world.add(steps, panics == 0);
            }
            if panics > 0 {
                world.run.panic(panics, 300);
            }
            world.run.pass_clients();
            let lives = world.run.count(|counters| counters.rebirths.get());
            let open_max = u64::from(world.memory.borrow().open_max);
            if open_max > 1 + lives {
                world.run.fail(&format!(
                    "invariant 3: {open_max} requests for one key at a time, {lives} lives lost"
                ));
            }
            let counts = world.finish();
            assert!(panics > 0 || counts.shared > counts.own, "seed {seed}: {counts:?}");
        });
    }
}

/// Invariant 5. Many large responses at a time, of which few fit, to readers that take them slowly.
#[test]
fn what_lives_is_bounded_by_the_size() {
    each_seed(seeds_of(20), |seed| {
        let mut scenario =
            scenario("full", Kind::Hostile, seed, 1 + (seed % 2) as u16, Faults::harmless(seed));
        let workers = usize::from(scenario.workers);
        let mut cache = CachePlan {
            size_bytes: 1 << 20,
            object_bytes_max: 200_000,
            variants_max: 4,
            store: None,
            snapshot: None,
        };
        cache.open([seed, 7], workers);
        scenario.plan_mut().cache = Some(cache);
        let one = Resource {
            max_age_s: 20,
            bytes_min: 100_000,
            bytes_max: 220_000,
            ..Resource::default()
        };
        let ways = Ways { delay_us_max: 20_000, chunked: 300, ..Ways::default() };
        let world = World::new(scenario, vec![one; 12], ways, 24, SECOND);
        for reader in 0..24 {
            let mut steps = VecDeque::from([Step::Until(START_US + SECOND)]);
            for index in 0..6 {
                let (nonce, key) = (format!("{reader:03x}{index:04x}"), (reader + index * 5) % 12);
                steps.push_back(Step::StopReading(1_000_000));
                let (method, way, lines, range) = ("GET", None, String::new(), None);
                steps.push_back(Step::Ask(Question { nonce, method, key, way, lines, range }));
                steps.push_back(Step::Await);
            }
            world.add(steps, true);
        }
        world.finish();
    });
}

/// From a forged response until it is detected: a second until the connection has to run empty, and
/// the time that this takes.
const SHIFT_US_MAX: u64 = 2 * SECOND;

/// A server sends one response too many, so that each response behind it reaches the wrong request,
/// until that is detected. From then on, nothing that it has brought since is served, and only
/// responses that it brought within that time can have gone wrong.
#[test]
fn a_server_out_of_step_poisons_nothing_for_longer_than_it_takes_to_know() {
    let (went_astray, withdrawn) = (RefCell::new(0), RefCell::new(0));
    each_seed(seeds_of(24), |seed| {
        let rng = &mut Rng::new(seed ^ 0x5417);
        let mut scenario =
            scenario("shift", Kind::Hostile, seed, 1 + (seed % 2) as u16, Faults::none());
        scenario.settings.window_bytes = 1 << 20;
        let upstream = &mut scenario.plan_mut().upstreams[0];
        upstream.servers.truncate(1);
        upstream.pipeline =
            *rng.pick(&[PipelineMode::Depth(16), PipelineMode::Depth(2), PipelineMode::Off]);
        set_connections(&mut upstream.servers[0], 1 + rng.below(2) as u32);
        let max_age_s = *rng.pick(&[2, 20]);
        // Responses for one client each keep the connections busy.
        let one = |key| Resource {
            max_age_s,
            bytes_max: 3_000,
            is_private: key % 2 == 1,
            ..Resource::default()
        };
        let resources: Vec<Resource> = (0..60).map(one).collect();
        let keys = resources.len();
        let shifts_from_us = START_US + 3 * SECOND + rng.below(2 * SECOND);
        let is_even = rng.chance(500);
        let delay_us_max =
            *rng.pick(if is_even { &[500, 2_000, 4_000] } else { &[4_000, 12_000, 20_000] });
        let delay_us_min = if is_even { delay_us_max / 2 } else { 0 };
        let ways = Ways { delay_us_max, delay_us_min, shifts_from_us, ..Ways::default() };
        let mut world = World::new(scenario, resources, ways, 30, SECOND);
        world.memory.borrow_mut().collects_astray = true;
        for reader in 0..30 {
            let mut at_us = START_US;
            let mut steps = VecDeque::new();
            for index in 0..150 {
                at_us += world.rng.below(100_000);
                let (key, lines) = (world.rng.index(keys), String::new());
                let (nonce, method) = (format!("{reader:03x}{index:04x}"), "GET");
                steps.push_back(Step::Until(at_us));
                steps.push_back(Step::Ask(Question {
                    nonce,
                    method,
                    key,
                    way: None,
                    lines,
                    range: None,
                }));
            }
            world.add(steps, false);
        }
        let store = Arc::clone(&world.store);
        let is_known = || store.report().withdrawals > 0;
        if !world.run.pass(60 * SECOND, is_known) {
            world.run.fail("the answer too many was not noticed");
        }
        let known_us = world.run.world.now_us();
        world.run.pass_clients();
        for astray in &world.memory.borrow().astray {
            if astray.asked_us >= known_us {
                world
                    .run
                    .fail(&format!("served after it was known at {known_us}: {}", astray.told()));
            }
            // Where response times differ that much, weir can't know how long to wait for a surplus
            // response.
            if is_even && astray.fetched_us + SHIFT_US_MAX < known_us {
                world.run.fail(&format!(
                    "fetched long before it was known at {known_us}: {}",
                    astray.told()
                ));
            }
        }
        *went_astray.borrow_mut() += world.memory.borrow().astray.len();
        *withdrawn.borrow_mut() += world.store.report().withdrawn;
        world.finish();
    });
    let (counts, worlds) = ((went_astray.into_inner(), withdrawn.into_inner()), seeds_of(24).len());
    assert!(worlds == 1 || counts.0 > worlds && counts.1 > 0, "this proves nothing: {counts:?}");
}

#[test]
fn the_same_seed_gives_the_same_run_with_a_cache() {
    let hash = |seed| {
        let mut world = at_random(
            "cache",
            Kind::Rough,
            seed,
            2,
            Faults::random(seed),
            Ways { breaks: 30, ..Ways::default() },
        );
        world.add_readers(30, false);
        world.run.finish().trace_hash
    };
    for seed in 0..4 {
        assert_eq!(hash(seed), hash(seed), "seed {seed}");
    }
}
