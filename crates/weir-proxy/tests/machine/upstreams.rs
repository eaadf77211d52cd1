//! Rows E of docs/hostile.md: what hostile and broken servers do, each with victims' requests
//! around it in random order.
//!
//! The client must see the result in the row; every victim gets its own response, once and in
//! order; doubts are counted and trust falls as docs/connections.md#trust-in-a-server says.
//! `Alone`, `Queued` and `Pipelined` are the circumstances of the catalogue.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use weir_check::upstreams::{
    Asker, Closing, Company, Ending, HostileUpstream, Outcome, Step, Trust, by_id, catalogue,
    check_honest, closings,
};
use weir_proxy::plan::PipelineMode;

use crate::world::{Cut, Do, Rng, Seen, World, answer, plan};

const NONCE: &str = "aaaa0000";
const SEEDS: u64 = 8;

/// Returns the actions of the server of a row for a request.
fn script(row: &HostileUpstream, asker: usize, seen: &Seen<'_>) -> Option<Vec<Do>> {
    if !seen.request.target.starts_with("/trigger") {
        return seen.complete.then(|| vec![Do::Answer(answer(seen.request))]);
    }
    // An early response is one that does not wait for the body.
    if !seen.complete && row.letter != "E9" {
        return None;
    }
    let mut first = true;
    let mut steps: Vec<Do> = Vec::new();
    for step in &row.steps {
        steps.push(match step {
            Step::Send(bytes) => {
                let bytes = Step::bytes(bytes, seen.request.nonce());
                if std::mem::take(&mut first) { Do::Answer(bytes) } else { Do::Bytes(bytes) }
            }
            Step::AwaitDelivered => Do::AwaitReply(asker),
            Step::Fin => Do::Fin,
            Step::Rst => Do::Rst,
        });
    }
    Some(steps)
}

struct Play {
    world: World,
    /// The requests of each client, in order.
    asked: Vec<(usize, String)>,
    victims: Vec<usize>,
    rng: Rng,
}

impl Play {
    fn new(row: &HostileUpstream, company: Company, seed: u64) -> (Play, usize) {
        let mut rng = Rng(seed ^ 0xe0e0);
        let connections = if row.letter == "E10" { 4 } else { 1 + rng.below(3) as u32 };
        let mut plan = plan(1, connections);
        plan.upstreams[0].pipeline = match company {
            Company::Pipelined => PipelineMode::Depth(16),
            _ => PipelineMode::Off,
        };
        let workers = 1 + (seed % 2) as u16;
        let mut world = World::started(plan, workers, seed);
        world.shuffled = rng.one_in(2);
        world.shared = rng.one_in(2);
        let mut node = || rng.below(u64::from(workers)) as usize;
        let victims = (0..6).map(|_| world.client_of(node())).collect();
        let asker = world.client_of(node());
        let owned = row.clone();
        world.serve(move |seen| script(&owned, asker, seen));
        let mut play = Play { world, asked: Vec::new(), victims, rng };
        if company == Company::Pipelined {
            play.earn_trust();
        }
        (play, asker)
    }

    /// Gives 64 clean responses over two connections.
    fn earn_trust(&mut self) {
        for _ in 0..100 {
            self.ask(8);
            self.world.settle();
        }
        self.world.measure_depth();
        self.ask(24);
        self.world.settle();
        assert!(self.world.depth() > 1, "trust is not earned");
    }

    fn ask(&mut self, count: u64) {
        for _ in 0..count {
            let victim = self.victims[self.rng.below(self.victims.len() as u64) as usize];
            let nonce = format!("{:08}", self.asked.len());
            self.world.get(victim, &nonce);
            self.asked.push((victim, nonce));
        }
    }

    /// Checks that every victim has its own responses, in order.
    fn check_victims(&self, name: &str) {
        let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
        for (victim, nonce) in &self.asked {
            let at = taken.entry(*victim).or_default();
            let client = &self.world.clients[*victim];
            let reply = client
                .replies
                .get(*at)
                .unwrap_or_else(|| panic!("{name}: victim {nonce} got nothing"));
            check_honest(nonce, reply).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            *at += 1;
        }
        let replies: usize =
            self.victims.iter().map(|victim| self.world.clients[*victim].replies.len()).sum();
        assert_eq!(replies, self.asked.len(), "{name}: answers too many");
    }

    /// Returns how deep requests follow each other now.
    fn depth_now(&mut self) -> usize {
        self.world.run_for(1_500_000);
        self.world.measure_depth();
        self.ask(20);
        self.world.settle();
        self.world.depth()
    }
}

fn play(row: &HostileUpstream, company: Company, seed: u64) {
    let name = format!("{} {company:?} seed {seed}", row.id);
    let (mut play, asker) = Play::new(row, company, seed);
    if company != Company::Alone {
        let before = play.rng.below(8);
        play.ask(before);
    }
    let upgrade = row.trigger.fields.contains("Upgrade");
    play.world.expect(asker, row.trigger.method, false, upgrade);
    play.world.send(asker, &row.trigger.bytes("a", NONCE));
    if company != Company::Alone {
        let behind = play.rng.below(8);
        play.ask(behind);
    }
    play.world.clients[asker].leaves = row.asker == Asker::Leaves;
    // Longer than forward-timeout: rows without any response.
    play.world.run_for(if row.letter == "E10" { 61_000_000 } else { 100_000 });
    let blamed = play.world.count(|counters| counters.demotions.get());
    let surplus = play.world.count(|counters| counters.surplus.get());
    let doubts = play.world.count(|counters| counters.doubts.iter().map(|doubt| doubt.get()).sum());
    let conn = play
        .world
        .conns
        .iter()
        .rposition(|conn| conn.requests.iter().any(|it| it.nonce() == NONCE));
    let closed = conn.is_none_or(|conn| play.world.conns[conn].closed);
    let client = &play.world.clients[asker];
    let seen = Outcome { nonce: NONCE, replies: &client.replies, end: client.end.as_ref() };
    row.asker.check(seen).unwrap_or_else(|fault| panic!("{name}: {fault}"));
    match row.trust {
        Trust::Kept => assert!(
            (blamed, surplus) == (0, 0) && !closed,
            "{name}: blamed {blamed}, closed {closed}"
        ),
        Trust::Any => {}
        Trust::Either => assert_eq!((blamed, surplus), (0, 0), "{name}"),
        Trust::Rude => {
            assert!(surplus == 0 && closed, "{name}: surplus {surplus}, closed {closed}")
        }
        Trust::Closed => assert!(
            (blamed, surplus) == (0, 0) && closed,
            "{name}: blamed {blamed}, closed {closed}"
        ),
        Trust::Doubt if row.letter == "E9" => {
            assert!(doubts > 0 && closed, "{name}: {doubts} doubts")
        }
        Trust::Doubt => assert!(
            blamed > 0 && surplus == 0 && closed,
            "{name}: blamed {blamed} {surplus} {closed}"
        ),
        Trust::Surplus => {
            assert!(surplus > 0 && closed, "{name}: surplus {surplus}, closed {closed}")
        }
    }
    if company == Company::Pipelined {
        let depth = play.depth_now();
        let falls = blamed > 0 || surplus > 0;
        assert_eq!(depth == 1, falls, "{name}: depth {depth}");
    }
    play.ask(10);
    play.world.run_for(1_000_000);
    play.check_victims(&name);
    play.world.finish();
}

fn play_row(row: &HostileUpstream) {
    for company in [Company::Alone, Company::Queued, Company::Pipelined] {
        if company <= row.company {
            (0..SEEDS).for_each(|seed| play(row, company, seed));
        }
    }
}

fn play_letter(letter: &str) {
    let rows: Vec<_> = catalogue().iter().filter(|row| row.letter == letter).collect();
    assert!(!rows.is_empty(), "no row {letter}");
    rows.into_iter().for_each(play_row);
}

macro_rules! letters {
    ($($name:ident $letter:literal,)+) => {
        $(#[test]
        fn $name() {
            play_letter($letter);
        })+
    };
}

letters! {
    e0_honest_servers_are_not_blamed "E0",
    e1_second_answer_at_once "E1",
    e2_second_answer_later "E2",
    e3_stray_line_ends "E3",
    e4_head_with_a_body "E4",
    e5_no_content_with_a_body "E5",
    e6_not_modified_with_a_body "E6",
    e7_interim_answers "E7",
    e8_switching_unasked "E8",
    e9_early_answers "E9",
    e10_late_answers "E10",
    e11_client_leaves "E11",
    e12_truncated "E12",
    e13_both_framings "E13",
    e14_lists_of_lengths "E14",
    e15_unknown_codings "E15",
    e16_chunk_sizes "E16",
    e17_grammar "E17",
    e21_split_answers "E21",
    e28_ends_by_close "E28",
}

/// E0: depth 1 until 64 clean responses over two connections; nothing ever follows HEAD.
#[test]
fn e0_depth_is_earned() {
    let mut limited = plan(1, 2);
    limited.upstreams[0].pipeline = PipelineMode::Depth(8);
    let mut world = World::started(limited, 1, 1);
    let client = world.client();
    let ask = |world: &mut World, method: &str| {
        world.measure_depth();
        let mut all = Vec::new();
        for n in 0..16 {
            world.expect(client, method, false, false);
            all.extend(format!("{method} /v?n={n:08} HTTP/1.1\r\nHost: a\r\n\r\n").bytes());
        }
        world.send(client, &all);
        world.settle();
        world.depth()
    };
    for _ in 0..4 {
        assert_eq!(ask(&mut world, "GET"), 1, "trusted too early");
    }
    assert!(ask(&mut world, "GET") > 1);
    for _ in 0..6 {
        assert_eq!(ask(&mut world, "HEAD"), 1, "something behind HEAD");
    }
    assert!(ask(&mut world, "GET") > 1);
    world.finish();
}

/// E1, E2 at the moment of reuse: a response that is here before its request was sent was meant for
/// no one.
#[test]
fn e2_second_answer_in_the_turn_of_the_next_request() {
    for mode in [PipelineMode::Off, PipelineMode::Depth(8)] {
        let mut limited = plan(1, 1);
        limited.upstreams[0].pipeline = mode;
        let mut world = World::started(limited, 1, 1);
        let row = by_id("e2_second_answer_later");
        let Some(Step::Send(second)) = row.steps.last().cloned() else { panic!() };
        let (client, victim) = (world.client(), world.client());
        world.get(client, "00000001");
        world.settle();
        // Both arrive in the same turn, the request first.
        world.get(victim, "00000002");
        world.say(0, Do::Bytes(second));
        world.settle();
        world.run_for(100_000);
        check_honest("00000002", &world.clients[victim].replies[0]).unwrap();
        assert!(world.conns[0].closed);
        assert_eq!(world.count(|counters| counters.surplus.get()), 1);
        assert_eq!(world.times_served("00000002"), 1);
        world.finish();
    }
}

/// E18, E27: requests that a server has left unanswered when it closes are sent again, if they may
/// be, and nothing is lost.
fn play_closing(row: &Closing, seed: u64) {
    let name = format!("{} seed {seed}", row.id);
    let mut rng = Rng(seed);
    let mut limited = plan(1, 1 + rng.below(3) as u32);
    limited.upstreams[0].pipeline = PipelineMode::Depth(128);
    let mut world = World::started(limited, 1, seed);
    world.cut_upstream = if rng.one_in(2) { Cut::Whole } else { Cut::Random };
    world.shuffled = rng.one_in(2);
    let closing = Rc::new(RefCell::new(false));
    let (armed, row_answers, how) = (Rc::clone(&closing), row.answers, row.how);
    let counts: RefCell<BTreeMap<usize, usize>> = RefCell::default();
    world.serve(move |seen| {
        let whole = answer(seen.request);
        let mut counts = counts.borrow_mut();
        let count = counts.entry(seen.conn).or_default();
        if !*armed.borrow() {
            return Some(vec![Do::Answer(whole)]);
        }
        *count += 1;
        if *count > row_answers {
            let half = whole[..whole.len() / 2].to_vec();
            return Some(if how == Ending::HalfAnswer {
                vec![Do::Bytes(half), Do::Fin, Do::Silence]
            } else {
                Vec::new()
            });
        }
        if *count < row_answers {
            return Some(vec![Do::Answer(whole)]);
        }
        Some(match how {
            Ending::Fin => vec![Do::Answer(whole), Do::Fin, Do::Silence],
            Ending::Rst | Ending::Unread => vec![Do::Answer(whole), Do::Rst],
            Ending::HalfAnswer => vec![Do::Answer(whole)],
            Ending::Announced => {
                let text = String::from_utf8(whole).unwrap().replacen(
                    "X-Nonce",
                    "Connection: close\r\nX-Nonce",
                    1,
                );
                vec![Do::Answer(text.into_bytes()), Do::Fin, Do::Silence]
            }
        })
    });
    let clients: Vec<usize> = (0..16).map(|_| world.client()).collect();
    let mut asked = Vec::new();
    let mut ask = |world: &mut World, rng: &mut Rng, count: usize| {
        for _ in 0..count {
            let client = clients[rng.below(16) as usize];
            let nonce = format!("{:08}", asked.len());
            world.get(client, &nonce);
            asked.push((client, nonce));
        }
    };
    for _ in 0..25 {
        ask(&mut world, &mut rng, 8);
        world.settle();
    }
    *closing.borrow_mut() = true;
    for _ in 0..4 {
        ask(&mut world, &mut rng, 150);
        world.run_for(rng.below(20_000));
    }
    world.run_for(30_000_000);
    let mut taken: BTreeMap<usize, usize> = BTreeMap::new();
    // Half of a response whose head was delivered cannot be taken back: its client sees the end of
    // the connection.
    let mut cut = 0;
    for (client, nonce) in &asked {
        let at = taken.entry(*client).or_default();
        let Some(reply) = world.clients[*client].replies.get(*at) else {
            assert!(
                how == Ending::HalfAnswer && world.clients[*client].end.is_some(),
                "{name}: {nonce} unanswered"
            );
            cut += 1;
            continue;
        };
        check_honest(nonce, reply).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        *at += 1;
    }
    assert!(cut < asked.len() / 2, "{name}: {cut} of {} cut", asked.len());
    assert_eq!(world.count(|counters| counters.demotions.get()), 0, "{name}");
    world.finish();
}

#[test]
fn e18_and_e27_servers_that_close() {
    for row in closings() {
        (0..SEEDS).for_each(|seed| play_closing(&row, seed));
    }
}

/// E18: a request that must not be repeated is not put on a connection with others, so that it
/// survives their end.
#[test]
fn e18_a_post_is_not_sent_twice() {
    for how in [vec![Do::Rst], vec![Do::Fin]] {
        let mut limited = plan(1, 1);
        limited.upstreams[0].pipeline = PipelineMode::Depth(8);
        let mut world = World::started(limited, 1, 1);
        let clients: Vec<usize> = (0..4).map(|_| world.client()).collect();
        for n in 0..80 {
            world.get(clients[0], &format!("{n:08}"));
            world.settle();
        }
        let mut first = true;
        let ending = how.clone();
        world.serve(move |seen| {
            if seen.request.nonce() == "aaaa0001" && std::mem::take(&mut first) {
                return Some([vec![Do::Delay(1000)], ending.clone()].concat());
            }
            seen.complete.then(|| vec![Do::Answer(answer(seen.request))])
        });
        world.get(clients[0], "aaaa0001");
        world.get(clients[1], "aaaa0002");
        world.post(clients[2], "aaaa0003", b"x");
        world.get(clients[3], "aaaa0004");
        world.run_for(1_000_000);
        let last = |client: usize| world.clients[clients[client]].replies.last().unwrap();
        assert_eq!(last(2).status, 200, "{how:?}");
        assert_eq!(world.times_served("aaaa0003"), 1);
        check_honest("aaaa0001", last(0)).unwrap();
        check_honest("aaaa0002", last(1)).unwrap();
        check_honest("aaaa0004", last(3)).unwrap();
        world.finish();
    }
}

/// Some servers process requests behind an announced end (`Connection: close`): one that must not
/// be repeated is never there.
#[test]
fn e28_nothing_unsafe_stands_behind_an_announced_end() {
    let mut limited = plan(1, 1);
    limited.upstreams[0].pipeline = PipelineMode::Depth(8);
    let mut world = World::started(limited, 1, 1);
    let (client, poster) = (world.client(), world.client());
    for n in 0..80 {
        world.get(client, &format!("{n:08}"));
        world.settle();
    }
    world.serve(|seen| {
        let whole = String::from_utf8(answer(seen.request)).unwrap();
        Some(match seen.request.nonce() {
            "aaaa0001" => {
                let text = whole.replacen("X-Nonce", "Connection: close\r\nX-Nonce", 1);
                vec![Do::Delay(1000), Do::Answer(text.into_bytes()), Do::Silence]
            }
            _ => vec![Do::Answer(whole.into_bytes())],
        })
    });
    world.get(client, "aaaa0001");
    world.post(poster, "aaaa0002", b"x");
    world.run_for(1_000_000);
    check_honest("aaaa0002", world.clients[poster].replies.last().unwrap()).unwrap();
    assert_eq!(world.count(|counters| counters.demotions.get()), 0);
    assert_eq!(
        world.count(|counters| counters.doubts
            [weir_proxy::cross::doubt::Doubt::NotPersistent as usize]
            .get()),
        0
    );
    assert_eq!(world.times_served("aaaa0002"), 1);
    world.finish();
}

/// E5 with requests behind it: a 204 that announces a body ends its connection, whatever the body
/// looks like.
#[test]
fn e5_no_content_with_an_answer_as_body_in_a_pipeline() {
    let row = by_id("e5_204_with_an_answer_as_body");
    for seed in 0..SEEDS {
        let (mut play, asker) = Play::new(row, Company::Pipelined, seed);
        play.ask(4);
        play.world.expect(asker, "GET", false, false);
        play.world.send(asker, &row.trigger.bytes("a", NONCE));
        play.ask(12);
        play.world.run_for(100_000);
        let client = &play.world.clients[asker];
        row.asker
            .check(Outcome { nonce: NONCE, replies: &client.replies, end: client.end.as_ref() })
            .unwrap();
        play.check_victims(&format!("seed {seed}"));
        assert_eq!(play.depth_now(), 1);
        play.world.finish();
    }
}
