//! Proves: limits hold exactly, with any number of threads that charge at the same time and in a
//! full table, and no client that owes something is forgotten. How: one account beside a textbook
//! bucket, the table beside a map of those, eight threads on the same accounts, full tables of
//! known debts, numbers at their ends.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use proptest::prelude::*;

use super::key::{Key, Prefix};
use super::limit::{Rate, Verdict, retry_after_s};
use super::table::{ACCOUNTS, Charged, Entered, Place, SLOTS, Table};

const SECOND_US: u64 = 1_000_000;
const START_US: u64 = 1_000 * SECOND_US;
const KEY: [u64; 2] = [7, 11];
const GROUP: u32 = 1;

fn client(number: u32) -> Key {
    Key::of(IpAddr::V4(Ipv4Addr::from_bits(number)), Prefix::default())
}

/// Returns the network `network` of the owner `owner`.
fn network(owner: u16, network: u16) -> Key {
    Key::of(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, owner, network, 0, 0, 0, 1)), Prefix::default())
}

fn per_second(count: u32, burst: u32) -> Rate {
    Rate::new(count, SECOND_US, burst, false)
}

/// Charges a client; returns the outcome and the place.
fn charge(table: &Table, key: Key, rate: &Rate, now_us: u64) -> (Option<bool>, Option<Place>) {
    match table.charge(&table.name(GROUP, key), None, 0, rate, now_us) {
        Charged::At(place, verdict) => (Some(verdict == Verdict::Passed), Some(place)),
        Charged::Untracked => (None, None),
    }
}

fn passes(table: &Table, key: Key, rate: &Rate, now_us: u64) -> bool {
    charge(table, key, rate, now_us).0 == Some(true)
}

/// A token bucket in whole numbers: a token has as many parts as the window has microseconds.
#[derive(Default)]
struct Model {
    missing: u128,
    since_us: u64,
}

impl Model {
    fn passes(&mut self, (count, window_us, burst): (u32, u64, u32), now_us: u64) -> bool {
        let refilled = u128::from(now_us - self.since_us) * u128::from(count);
        (self.missing, self.since_us) = (self.missing.saturating_sub(refilled), now_us);
        let after = self.missing + u128::from(window_us);
        let fits = after <= u128::from(burst) * u128::from(window_us);
        self.missing = if fits { after } else { self.missing };
        fits
    }
}

proptest! {
    /// Gaps that are whole parts are exact; then so is the table, client by client.
    #[test]
    fn the_table_is_a_map_of_buckets(
        count in prop::sample::select(vec![1u32, 2, 4, 5, 8, 10, 20, 50, 100, 200, 1000]),
        burst in 1u32..20,
        steps in prop::collection::vec((0u32..40, 0u64..300_000), 1..400),
    ) {
        let (table, rate) = (Table::new(1024, KEY), per_second(count, burst));
        let mut models = HashMap::<u32, Model>::new();
        let mut now_us = START_US;
        for (number, wait_us) in steps {
            now_us += wait_us;
            let model =
                models.entry(number).or_insert_with(|| Model { missing: 0, since_us: now_us });
            let expected = model.passes((count, SECOND_US, burst), now_us);
            // Looking gives the same verdict and changes nothing; a client without an account owes
            // nothing.
            let name = table.name(GROUP, client(number));
            let looked = table
                .look(&name, 0, &rate, now_us)
                .is_none_or(|(_, verdict)| verdict == Verdict::Passed);
            prop_assert_eq!(looked, expected);
            prop_assert_eq!(passes(&table, client(number), &rate, now_us), expected);
        }
    }

    /// For any rate: never more than the burst and what the time allows, and a client that waits as
    /// long as requested passes.
    #[test]
    fn never_more_than_burst_and_rate(
        count in 1u32..=1_000_000,
        window_us in prop::sample::select(vec![SECOND_US, 60 * SECOND_US, 3600 * SECOND_US]),
        burst in 1u32..=2000,
        waits in prop::collection::vec(0u64..2_000_000, 1..300),
    ) {
        let (table, rate) = (Table::new(1024, KEY), Rate::new(count, window_us, burst, false));
        let name = table.name(GROUP, client(1));
        let (mut now_us, mut passed) = (START_US, 0u128);
        for wait_us in waits {
            now_us += wait_us;
            match table.charge(&name, None, 0, &rate, now_us) {
                Charged::At(_, Verdict::Passed) => passed += 1,
                Charged::At(_, Verdict::Over { wait }) => {
                    let later_us = now_us + u64::from(retry_after_s(wait)) * SECOND_US;
                    if later_us - now_us < 100 * SECOND_US {
                        now_us = later_us;
                        prop_assert!(passes(&table, client(1), &rate, now_us));
                        passed += 1;
                    }
                }
                Charged::Untracked => prop_assert!(false, "there is room"),
            }
            let by_rate = u128::from(now_us - START_US) * u128::from(count) / u128::from(window_us);
            prop_assert!(passed <= u128::from(burst) + by_rate);
        }
    }
}

#[test]
fn a_burst_and_then_the_rate() {
    let (table, rate) = (Table::new(1024, KEY), per_second(10, 5));
    let passed = |now_us| (0..100).filter(|_| passes(&table, client(1), &rate, now_us)).count();
    assert_eq!(
        [passed(START_US), passed(START_US + 99_999), passed(START_US + 100_000)],
        [5, 0, 1]
    );
    assert_eq!(passed(START_US + 60 * SECOND_US), 5);
    assert!(passes(&table, client(2), &rate, START_US), "another client is another account");
}

#[test]
fn when_to_come_again() {
    let (table, rate) = (Table::new(1024, KEY), Rate::new(5, 60 * SECOND_US, 1, false));
    let name = table.name(GROUP, client(1));
    assert!(passes(&table, client(1), &rate, START_US));
    for (after_us, expected) in [(0, 12), (1, 12), (SECOND_US, 11), (12 * SECOND_US - 1, 1)] {
        let Charged::At(_, Verdict::Over { wait }) =
            table.charge(&name, None, 0, &rate, START_US + after_us)
        else {
            panic!("it is one too many");
        };
        assert_eq!(retry_after_s(wait), expected, "after {after_us}");
    }
    assert!(passes(&table, client(1), &rate, START_US + 12 * SECOND_US));
}

/// A refused client is not punished, unless the limit says so.
#[test]
fn hammering() {
    for hammer in [false, true] {
        let (table, rate) = (Table::new(1024, KEY), Rate::new(10, SECOND_US, 2, hammer));
        let times = (0..1000).map(|step| START_US + step * 10_000);
        let passed = times.filter(|now_us| passes(&table, client(1), &rate, *now_us)).count();
        assert_eq!(passed, if hammer { 2 } else { 101 });
        assert!(passes(&table, client(1), &rate, START_US + 10_100_000), "after a gap of silence");
    }
}

/// Limits of one group share an account and nothing else.
#[test]
fn limits_of_a_group() {
    let (table, rate) = (Table::new(1024, KEY), per_second(1, 3));
    let name = table.name(GROUP, client(1));
    for slot in 0..SLOTS {
        let passed = |_: &u32| {
            matches!(
                table.charge(&name, None, slot, &rate, START_US),
                Charged::At(_, Verdict::Passed)
            )
        };
        assert_eq!((0..10).filter(passed).count(), 3);
    }
    let other = table.name(GROUP + 1, client(1));
    assert!(matches!(
        table.charge(&other, None, 0, &rate, START_US),
        Charged::At(_, Verdict::Passed)
    ));
    assert_eq!(table.used(START_US), 2);
    assert_eq!(table.used(START_US + 3 * SECOND_US), 0, "what is past is as good as none");
}

// ---- many at a time ----

/// More threads than buckets would need, on few clients, so that accounts are made, charged and
/// given away at the same time.
#[test]
fn eight_threads_pass_no_more_than_one_would() {
    let (table, rate) = (Table::new(1024, KEY), per_second(100, 50));
    let passed: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(0)).collect();
    let clock = AtomicU64::new(START_US);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (table, rate, passed, clock) = (&table, &rate, &passed, &clock);
            scope.spawn(move || {
                let mut random = thread + 1;
                for _ in 0..30_000 {
                    random = crate::base::stamp::mix(random);
                    let number = random as u32 % 64;
                    // Each thread sees the time a bit late.
                    let now_us = clock.fetch_add(7, SeqCst) - random % 100;
                    if passes(table, client(number), rate, now_us) {
                        passed[number as usize].fetch_add(1, SeqCst);
                    }
                }
            });
        }
    });
    let passed: Vec<u32> = passed.into_iter().map(AtomicU32::into_inner).collect();
    let elapsed_us = clock.into_inner() - START_US;
    let most = 50 + (elapsed_us * 100 / SECOND_US) as u32 + 1;
    assert!(passed.iter().all(|passed| *passed <= most), "{most}: {passed:?}");
    // A thread that is late by 100 us may be one short.
    assert!(passed.iter().all(|passed| *passed >= most - 3), "{most}: {passed:?}");
}

/// Accounts change hands all the time here, because each is as good as none a moment later. A
/// charge that was meant for a predecessor shows in an account until it is taken back, however long
/// the scheduler makes that: a client may be refused for it, but not for longer than each of the
/// other threads can have such a charge on the way.
#[test]
fn accounts_that_change_hands_are_exact() {
    const THREADS: u32 = 8;
    let (table, rate) = (Table::new(16, KEY), per_second(1, 1));
    let [stuck, tracked] = [AtomicU32::new(0), AtomicU32::new(0)];
    let round = AtomicU64::new(0);
    // No other thread is this client, and its debt of an earlier round is paid.
    let charge_next = |key: Key| {
        let now_us = START_US + round.fetch_add(1, SeqCst) * SECOND_US;
        charge(&table, key, &rate, now_us).0
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (charge_next, stuck, tracked) = (&charge_next, &stuck, &tracked);
            scope.spawn(move || {
                for number in 0..20_000u32 {
                    let key = client((thread << 20) | (number % 3));
                    let mut tries = (0..THREADS).map(|_| charge_next(key));
                    match tries.find(|passed| *passed != Some(false)) {
                        Some(Some(_)) => tracked.fetch_add(1, SeqCst),
                        None => stuck.fetch_add(1, SeqCst),
                        // Who holds the latch may need this processor.
                        Some(None) => {
                            std::thread::yield_now();
                            0
                        }
                    };
                }
            });
        }
    });
    let tracked = tracked.into_inner();
    assert_eq!(stuck.into_inner(), 0, "{tracked} passed");
    assert!(tracked > 40_000, "{tracked}");
    assert_eq!((table.used(START_US + 2_000_000 * SECOND_US), table.open_sum()), (0, 0));
}

#[test]
fn what_eight_threads_open_they_give_back() {
    let table = Table::new(64, KEY);
    let most = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (table, most) = (&table, &most);
            scope.spawn(move || {
                let (mut random, mut held) = (thread + 1, Vec::new());
                for _ in 0..20_000 {
                    random = crate::base::stamp::mix(random);
                    if random % 2 == 0 || held.len() > 8 {
                        held.pop().into_iter().for_each(|place| table.leave(place));
                        continue;
                    }
                    let name = table.name(GROUP, client((random >> 8) as u32 % 40));
                    if let Entered::At(place, count) = table.enter(&name, None, 5, START_US) {
                        most.fetch_max(count, SeqCst);
                        held.push(place);
                    }
                }
                held.into_iter().for_each(|place| table.leave(place));
            });
        }
    });
    assert_eq!(table.open_sum(), 0);
    assert!((2..=5).contains(&most.into_inner()));
}

// ---- who gives way ----

/// Fills all 16 places of the smallest table; returns the clients. Each owes a number of gaps more
/// than the one before.
fn full_table(rate: &Rate) -> (Table, Vec<Key>) {
    let table = Table::new(16, KEY);
    let mut inside = Vec::new();
    for number in 0..16 {
        for _ in 0..=number {
            assert_ne!(charge(&table, client(number), rate, START_US).0, None);
        }
        inside.push(client(number));
    }
    assert_eq!(table.used(START_US), 16);
    (table, inside)
}

#[test]
fn who_owes_least_gives_way_and_only_to_who_owes_more() {
    let rate = per_second(10, 100);
    let (table, _) = full_table(&rate);
    // A newcomer owes one gap, as does the client that owes least: the table has no room, and lets
    // the newcomer through.
    assert_eq!(charge(&table, client(99), &rate, START_US), (None, None));
    // A moment later that client owes a little less.
    assert_eq!(charge(&table, client(99), &rate, START_US + 1).0, Some(true));
    assert_eq!(table.used(START_US + 1), 16);
    // All others are remembered: each still owes what it did.
    for number in 1..16u32 {
        let left = (0..200).filter(|_| passes(&table, client(number), &rate, START_US + 1)).count();
        assert_eq!(left, 100 - (number as usize + 1), "{number}");
    }
}

#[test]
fn new_clients_push_nobody_out_who_is_over_a_limit() {
    let rate = per_second(1, 5);
    let table = Table::new(1024, KEY);
    let mut over = Vec::new();
    for number in 0..100 {
        (0..5).for_each(|_| assert!(passes(&table, client(number), &rate, START_US)));
        let (passed, place) = charge(&table, client(number), &rate, START_US);
        assert_eq!(passed, Some(false));
        table.offend(place.unwrap(), client(number), true, START_US);
        over.push(client(number));
    }
    // Each a bit later, so that some account always owes less: new clients push out new clients.
    for number in 1000..200_000 {
        charge(&table, client(number), &rate, START_US + u64::from(number));
    }
    assert_eq!(table.used(START_US + 200_000), 1024);
    assert!(over.iter().all(|key| !passes(&table, *key, &rate, START_US + 500_000)));
}

#[test]
fn what_is_open_stays() {
    let table = Table::new(16, KEY);
    let places: Vec<Place> = (0..16)
        .map(|number| match table.enter(&table.name(GROUP, client(number)), None, 1, START_US) {
            Entered::At(place, 1) => place,
            other => panic!("{other:?}"),
        })
        .collect();
    let newcomer = table.name(GROUP, client(99));
    assert_eq!(table.enter(&newcomer, None, 1, START_US), Entered::Untracked);
    let dear = Rate::new(1, 3600 * SECOND_US, 1, false);
    assert_eq!(table.charge(&newcomer, None, 0, &dear, START_US), Charged::Untracked);
    assert!(matches!(
        table.enter(&table.name(GROUP, client(3)), None, 1, START_US),
        Entered::Full(_)
    ));
    table.leave(places[3]);
    assert_eq!(table.enter(&newcomer, None, 1, START_US), Entered::At(places[3], 1));
    assert_eq!(table.open_sum(), 16);
}

/// So a value has at most twice as much open as its limit says, and values that share its cell take
/// nothing of its account.
#[test]
fn what_is_open_in_a_shared_account_stays_there() {
    let table = Table::new(16, KEY);
    let value = table.name_of_values(GROUP, b"value");
    let enter_both = || [table.enter_shared(&value, 2), table.enter(&value, None, 2, START_US)];
    let counts = |entered: [Entered; 2]| {
        entered.map(|entered| if let Entered::At(_, count) = entered { Some(count) } else { None })
    };
    let first = enter_both();
    assert_eq!(counts(first), [Some(1); 2]);
    assert_eq!(counts(enter_both()), [Some(2); 2]);
    assert_eq!((counts(enter_both()), table.open_sum()), ([None; 2], 4));
    for entered in first {
        if let Entered::At(place, _) = entered {
            table.leave(place);
        }
    }
    assert_eq!((counts(enter_both()), table.open_sum()), ([Some(2); 2], 4));
}

/// With two buckets for each client, every client has a place while a quarter of them is free.
#[test]
fn there_is_room_for_most() {
    let (table, rate) = (Table::new(1 << 14, KEY), per_second(1, 1));
    let lost = |numbers: std::ops::Range<u32>| {
        numbers
            .filter(|number| charge(&table, client(*number), &rate, START_US).0.is_none())
            .count()
    };
    assert_eq!(lost(0..1 << 13), 0);
    assert_eq!(lost(1 << 13..3 << 12), 0, "three quarters");
}

// ---- larger networks ----

#[test]
fn many_networks_of_one_owner_become_one_client() {
    let (table, rate) = (Table::new(1024, KEY), per_second(1, 1));
    let refuse = |key: Key, now_us: u64| {
        while let (Some(true), _) = charge(&table, key, &rate, now_us) {}
        table.offend(charge(&table, key, &rate, now_us).1.unwrap(), key, true, now_us);
    };
    for number in 0..16 {
        refuse(network(1, number), START_US);
        refuse(network(1, number), START_US);
    }
    assert_eq!(table.client(network(1, 99), START_US), network(1, 99), "16 is not more than 16");
    refuse(network(1, 16), START_US);
    let owner = network(1, 0).aggregate().unwrap();
    assert_eq!(table.client(network(1, 99), START_US), owner);
    assert_eq!(table.client(network(2, 99), START_US), network(2, 99), "not another one");
    assert_eq!(table.client(client(1), START_US), client(1));
    // As long as it is refused, and a minute longer.
    refuse(owner, START_US + 50 * SECOND_US);
    assert_eq!(table.client(network(1, 99), START_US + 109 * SECOND_US), owner);
    assert_eq!(table.client(network(1, 99), START_US + 111 * SECOND_US), network(1, 99));
}

// ---- numbers at their ends ----

#[test]
fn extreme_rates_and_times() {
    for (count, window_us, burst) in [
        (1, u64::MAX, u32::MAX),
        (u32::MAX, 1, u32::MAX),
        (0, 0, 0),
        (1, 1, 1),
        (u32::MAX, u64::MAX, 1),
        (1, 3600 * SECOND_US, 1_000_000),
    ] {
        for hammer in [false, true] {
            let (table, rate) = (Table::new(1024, KEY), Rate::new(count, window_us, burst, hammer));
            for now_us in [0, 1, START_US, 1 << 51, u64::MAX - 1, u64::MAX] {
                (0..10).for_each(|_| _ = charge(&table, client(1), &rate, now_us));
            }
            assert!(
                passes(&table, client(2), &rate, u64::MAX),
                "the first of each passes: {count} {window_us} {burst}"
            );
        }
    }
    assert_eq!((retry_after_s(0), retry_after_s(u64::MAX)), (1, u32::MAX));
}

/// A worker whose clock is behind sees less room, never more.
#[test]
fn clocks_that_differ() {
    let (table, rate) = (Table::new(1024, KEY), per_second(10, 10));
    let passed: usize = (0..1000u64)
        .filter(|step| {
            let late_us = if step % 2 == 0 { 0 } else { 3_000 };
            passes(&table, client(1), &rate, START_US + step * 1_000 - late_us)
        })
        .count();
    assert!((19..=20).contains(&passed), "{passed}");
}

/// A reload may have made the limit narrower: a debt under the old one counts no more than the new
/// one allows to owe.
#[test]
fn a_narrower_limit_forgets_what_was_owed_beyond_it() {
    let (table, wide, narrow) =
        (Table::new(1024, KEY), Rate::new(1, 3600 * SECOND_US, 10, false), per_second(10, 10));
    (0..10).for_each(|_| assert!(passes(&table, client(1), &wide, START_US)));
    assert!(!passes(&table, client(1), &narrow, START_US));
    assert!(passes(&table, client(1), &narrow, START_US + SECOND_US));
}

#[test]
fn sizes() {
    for accounts in [*ACCOUNTS.start(), 1 << 16] {
        assert_eq!(Table::new(accounts, KEY).accounts(), accounts);
    }
    assert!(ACCOUNTS.end().is_power_of_two() && ACCOUNTS.start().is_power_of_two());
    assert_eq!(*ACCOUNTS.end() as u64, 16 << 20);
}
