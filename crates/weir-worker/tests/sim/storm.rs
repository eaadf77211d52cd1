//! All hostile servers of docs/hostile.md at once: every row in random order and place, under the
//! load of 64 clients whose requests carry nonces, with pipelining on. No client receives another's
//! response.
//!
//! One world is one burst: the servers earn their depth with clean responses, then all clients
//! pipeline at the same time. Most rows are played while requests of other clients wait behind them
//! on the same connection. A row that ends its client's connection comes last there. Half of the
//! worlds also have servers that close after some number of responses, and servers that are killed.
//! weir's own errors (502, 503, 504) are no harm to an asker; no victim gets one.
//!
//! `make sim` plays each row at least [`PLAYS_MIN`] times, fails when one falls short, and prints
//! how often.

mod closings;
mod forgers;
mod idle;
mod killer;
mod overtakers;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use weir_check::upstreams::{
    Asker, Company, HostileUpstream, Outcome as Seen, by_id, catalogue, closings,
};
use weir_io::sim::{Faults, Rng, START_US, Settings};
use weir_proxy::plan::{PipelineMode, ServerPlan, Share};
use weir_proxy::upstream::trust::CLEAN_ANSWERS_MIN;

use super::book::{Asked, Book, Entry, Outcome, Played};
use super::client::{Act, Client, Manners};
use super::outage::{How, Outage};
use super::run::Run;
use super::scenario::{Kind, Scenario, listen_address, server_address, set_connections};
use super::server::{KILLER, Style};
use super::{SEEDS, each_seed, seeds_of};

const CLIENTS: usize = 64;
/// When the burst begins, in world time.
const BURST_US: u64 = START_US + 2_000_000;
/// Ordinary requests of each client in the burst.
const VICTIMS: usize = 5;

/// Plays of each row that `make sim` promises.
const PLAYS_MIN: u64 = 1_000;
/// The default number of seeds of `make sim`, where [`SEEDS`] are usual.
const SIM_SEEDS: u64 = 2_000;

/// A network that only delays, honest servers with room for deep pipelines, and no clients yet.
fn scenario(name: &'static str, seed: u64, servers: usize) -> Scenario {
    let rng = &mut Rng::new(seed ^ 0x57f0);
    let mut scenario = Scenario::of(Kind::Hostile, seed, 1 + (seed % 2) as u16);
    scenario.name = name;
    scenario.settings =
        Settings::random(seed, Faults { jitter_us: rng.below(500), ..Faults::none() });
    // A reset discards bytes that don't fit in the window, also of responses to other clients.
    scenario.settings.window_bytes = 16 << 20;
    let style = Style { delay_us_max: *rng.pick(&[200, 1_000, 4_000]), ..Style::honest() };
    scenario.styles = vec![style; servers];
    (scenario.clients, scenario.manners) = (0, Manners::quiet(0));
    let upstream =
        &mut Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet").upstreams[0];
    upstream.servers =
        (0..servers).map(|index| ServerPlan::new("server", server_address(index))).collect();
    upstream
        .servers
        .iter_mut()
        .for_each(|server| set_connections(server, 2 + rng.below(3) as u32 * 2));
    upstream.pipeline = PipelineMode::Depth(16);
    // All requests at a time, also when one connection is left.
    upstream.queue_size = 10_000;
    (upstream.share, upstream.echo) = (Share::All, None);
    scenario
}

type Row = &'static HostileUpstream;

/// The script of one client: earns, waits for the burst, then sends everything at once in a random
/// order.
struct Script<'a> {
    number: usize,
    rng: &'a mut Rng,
    acts: VecDeque<Act>,
    asked: Vec<Asked>,
    burst: Vec<u8>,
    /// Methods to draw from in the burst.
    methods: &'static [&'static str],
}

/// Safe methods, and an unsafe one: nothing is sent behind it.
const MIXED: &[&str] = &["GET", "GET", "GET", "GET", "GET", "GET", "HEAD", "DELETE"];

impl Script<'_> {
    fn add(&mut self, method: &'static str, trigger: Option<Row>) -> Vec<u8> {
        let nonce = format!("{:04x}{:04x}", self.number, self.asked.len());
        let bytes = match trigger {
            Some(row) => row.trigger.bytes("weir.test", &nonce),
            None => format!("{method} /v{nonce}?n={nonce} HTTP/1.1\r\nHost: weir.test\r\n\r\n")
                .into_bytes(),
        };
        self.acts.push_back(Act::Ask(self.asked.len()));
        self.asked.push(Asked {
            nonce,
            method: trigger.map_or(method, |row| row.trigger.method),
            conditional: false,
            body: trigger.map_or(Vec::new(), |row| row.trigger.body.clone()),
            trigger: trigger.map(|row| row.id.to_owned()),
        });
        bytes
    }

    fn earn(&mut self, method: &'static str, times: usize) {
        for index in 0..times {
            let bytes = self.add(method, None);
            self.acts.extend([Act::Send(bytes), Act::AwaitAnswers(index + 1)]);
        }
        let at_us = BURST_US + self.rng.below(2_000);
        self.acts.push_back(Act::Until(at_us));
    }

    /// Sends `victims` ordinary requests with the rows among them, and `last` behind them all.
    fn burst(&mut self, rows: &[Row], victims: usize, last: Option<Row>) {
        let mut order: Vec<Option<Row>> = rows.iter().copied().map(Some).collect();
        order.resize(rows.len() + victims, None);
        for at in (1..order.len()).rev() {
            order.swap(at, self.rng.index(at + 1));
        }
        for row in order.into_iter().chain(last.map(Some)) {
            let method = *self.rng.pick(self.methods);
            let bytes = self.add(method, row);
            self.burst.extend(bytes);
        }
        let burst = std::mem::take(&mut self.burst);
        self.acts.push_back(Act::Send(burst));
        if last.is_some_and(|row| row.asker == Asker::Leaves) {
            self.acts.extend([
                Act::AwaitAnswers(self.asked.len() - 1),
                Act::LeaveAtFirstBytes,
                Act::Reset,
            ]);
        }
    }
}

/// Rows to deal: each comes as often as the others, in a random order for this world.
struct Deck {
    rows: Vec<Row>,
    left: Vec<Row>,
    rng: Rng,
}

impl Deck {
    fn new(rows: impl Iterator<Item = Row>, seed: u64) -> Deck {
        Deck { rows: rows.collect(), left: Vec::new(), rng: Rng::new(seed ^ 0xdec4) }
    }

    fn deal(&mut self) -> Row {
        if self.left.is_empty() {
            self.left.clone_from(&self.rows);
        }
        let at = self.rng.index(self.left.len());
        self.left.swap_remove(at)
    }
}

/// Whether the connection of its client ends after it.
fn ends_client(row: &HostileUpstream) -> bool {
    matches!(row.asker, Asker::Truncated | Asker::Leaves) || row.trigger.is_incomplete()
}

/// `earn_with`: HEAD earns the servers depth behind HEAD too. Each server earns it from each
/// worker.
fn add_clients(
    run: &Run,
    seed: u64,
    earn_with: &'static str,
    mut script: impl FnMut(usize, &mut Script<'_>),
) {
    let Scenario { workers, styles, .. } = &run.scenario;
    // A quarter more than necessary, because not all get the same share.
    let warm = usize::from(*workers) * styles.len() * CLEAN_ANSWERS_MIN as usize * 5 / 4 / CLIENTS;
    let rng = &mut Rng::new(seed ^ 0xc11e);
    for number in 0..CLIENTS {
        let start_us = rng.below(10_000);
        let (acts, asked, burst) = (VecDeque::new(), Vec::new(), Vec::new());
        let mut one = Script { number, rng, acts, asked, burst, methods: MIXED };
        one.earn(earn_with, warm);
        script(number, &mut one);
        let (acts, asked) = (one.acts, one.asked);
        run.add(|book| Client::scripted(listen_address(), start_us, book, acts, asked, false));
    }
}

/// Checks that no client was harmed, and that at most `refused_percent_max` of a hundred victims
/// were refused. `cut_may_be`: servers were killed, which may end a response that had begun.
fn judge(book: &Book, cut_may_be: bool, refused_percent_max: usize) -> Result<(), String> {
    let mut ended = None;
    let mut refused = 0;
    for (nonce, entry) in &book.entries {
        let excused = ended == Some(&nonce[..4]);
        let row = entry.asked.trigger.as_deref().filter(|id| *id != KILLER).map(by_id);
        let fine = match (row, &entry.outcome) {
            (_, Outcome::Cut) if excused || cut_may_be && entry.delivered => true,
            (Some(row), _) => {
                asker_is_served(row, entry).map_err(|text| format!("{} {nonce}: {text}", row.id))?
            }
            (None, Outcome::Refused(502..=504)) => {
                refused += 1;
                true
            }
            (None, outcome) => *outcome == Outcome::Answered,
        };
        if !fine {
            return Err(format!("the victim {nonce} got {:?}", entry.outcome));
        }
        if entry.outcome == Outcome::Cut || row.is_some_and(ends_client) {
            ended = Some(&nonce[..4]);
        }
    }
    let victims = book.entries.values().filter(|entry| entry.asked.trigger.is_none()).count();
    match refused * 100 > victims * refused_percent_max {
        true => Err(format!("{refused} of {victims} victims were refused")),
        false => Ok(()),
    }
}

/// Checks that it got what the row says, or an error of weir because others broke the connection
/// again and again.
fn asker_is_served(row: &HostileUpstream, entry: &Entry) -> Result<bool, String> {
    // A client that never sends the rest of a body may get 408 first.
    let own_error =
        |status: u16| (502..=504).contains(&status) || status == 408 && row.trigger.is_incomplete();
    if let [reply] = entry.replies.as_slice()
        && own_error(reply.status)
        && !reply.fields.has("x-nonce")
    {
        return Ok(true);
    }
    // A complete response counts, whatever happens to the connection afterwards.
    let end = entry.end.as_ref().filter(|_| entry.replies.is_empty());
    let seen = Seen { nonce: &entry.asked.nonce, replies: &entry.replies, end };
    row.asker.check(seen).map(|()| true)
}

type Counts = Mutex<BTreeMap<String, Played>>;

fn count(counts: &Counts, book: &Book) {
    let mut counts = counts.lock().expect("no test panics while it counts");
    for (id, played) in &book.played {
        let sum = counts.entry(id.clone()).or_default();
        sum.times += played.times;
        sum.followed += played.followed;
    }
}

/// Prints what the worlds of a test played: `usual` worlds where [`SEEDS`] are usual. Fails when
/// one of the `rows` was played less often than its share of [`PLAYS_MIN`], or one of the
/// `followed` with requests of others behind it.
fn settle<'a>(
    name: &str,
    usual: u64,
    counts: Counts,
    rows: impl Iterator<Item = &'a str>,
    followed: impl Iterator<Item = &'a str>,
) {
    let counts = counts.into_inner().expect("no test panics while it counts");
    let worlds = seeds_of(usual).len() as u64;
    println!("{name}, {worlds} worlds: row, times played, with requests of others behind it");
    counts
        .iter()
        .for_each(|(id, played)| println!("  {id:36} {:7} {:7}", played.times, played.followed));
    let least = PLAYS_MIN * worlds * SEEDS / (usual * SIM_SEEDS);
    // With fewer, the result would be chance.
    if least >= PLAYS_MIN / 10 {
        let played = |id: &&str| counts.get(*id).copied().unwrap_or_default();
        let seldom: Vec<&str> = rows.filter(|id| played(id).times < least).collect();
        let alone: Vec<&str> = followed.filter(|id| played(id).followed < least).collect();
        assert!(seldom.is_empty(), "played less than {least} times in {worlds} worlds: {seldom:?}");
        assert!(alone.is_empty(), "played less than {least} times with others behind: {alone:?}");
    }
}

/// A promise about `make sim` is one about its default.
#[test]
fn make_sim_asks_for_enough_seeds() {
    let makefile = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Makefile"))
        .expect("the Makefile");
    assert!(makefile.contains(&format!("\nSEEDS ?= {SIM_SEEDS}\n")));
}

/// Rows of the storm, some more than once. weir sends nothing behind HEAD and conditional requests;
/// where servers have earned depth there, a body that is a response is a forged one inside a
/// running pipeline.
fn stormy(earn_with: &str) -> impl Iterator<Item = Row> {
    let earned = earn_with == "HEAD";
    let times = move |row: &Row| match row.letter {
        "E4" | "E6" if forges(row) => {
            if earned {
                0
            } else {
                2
            }
        }
        "E4" | "E6" if earned => 3,
        _ => 1,
    };
    pipelined().flat_map(move |row| std::iter::repeat_n(row, times(&row)))
}

/// Its body is a response, and only the framing in its head tells the two apart.
fn forges(row: &Row) -> bool {
    matches!(row.letter, "E4" | "E6") && row.id.ends_with("with_an_answer_as_body")
}

/// Rows whose fault shows with requests of others behind it. A 204 with a body is such a row,
/// whatever the body looks like, because its head gives it away.
fn pipelined() -> impl Iterator<Item = Row> {
    let shows =
        |row: &Row| row.company == Company::Pipelined || row.id == "e5_204_with_an_answer_as_body";
    catalogue().iter().filter(shows)
}

fn storm(seed: u64, counts: &Counts) {
    let rng = &mut Rng::new(seed ^ 0x0570);
    let mut scenario = scenario("storm", seed, *rng.pick(&[4, 12, 12]));
    let burst_us = BURST_US - START_US;
    if rng.chance(900) {
        // All servers collect garbage: pipelines are full when they go on.
        let pause = Outage { how: How::Frozen, at_us: burst_us - 1_000, for_us: 5_000 };
        scenario.styles.iter_mut().for_each(|style| style.outages = vec![pause]);
    }
    let harsh = rng.chance(500);
    if harsh {
        scenario.styles[0].closing = Some(*rng.pick(&closings()));
        let at_us = burst_us + rng.below(20_000);
        scenario.styles[1].outages =
            vec![Outage { how: How::Killed, at_us, for_us: rng.between(1_000, 500_000) }];
    }
    let run = Run::new(scenario);
    let earn_with = if (seed / 2).is_multiple_of(2) { "GET" } else { "HEAD" };
    let mut rows = Deck::new(stormy(earn_with).filter(|row| !ends_client(row)), seed);
    let mut last = Deck::new(stormy(earn_with).filter(|row| ends_client(row)), seed);
    add_clients(&run, seed, earn_with, |_, script| {
        let mine: Vec<Row> = (0..2 + script.rng.index(2)).map(|_| rows.deal()).collect();
        script.burst(&mine, VICTIMS, Some(last.deal()));
    });
    run.finish_with(|book| {
        count(counts, book);
        judge(book, harsh, REFUSED_PERCENT_MAX)
    });
}

/// Most victims of a storm that may be refused, of a hundred: the retry budget covers everything
/// that is lost at once here, and other servers have room whatever happens to one.
const REFUSED_PERCENT_MAX: usize = 0;
/// Worlds of the storm where a hundred seeds are usual.
const STORMS: u64 = 120;

/// E0 to E9, E11 to E18, E26 to E28: 0 responses to the wrong client.
#[test]
fn in_a_storm_of_hostile_servers_nobody_gets_anothers_answer() {
    let counts = Counts::default();
    each_seed(seeds_of(STORMS), |seed| storm(seed, &counts));
    // weir sends nothing behind a body that is still coming, nor behind HEAD and conditional
    // requests.
    let may_be_followed = |row: &Row| row.letter != "E9" && !forges(row);
    let ids = |row: Row| row.id;
    settle(
        "storm",
        STORMS,
        counts,
        pipelined().map(ids),
        pipelined().filter(may_be_followed).map(ids),
    );
}

/// Worlds of late responses where a hundred seeds are usual.
const LATE: u64 = 4;

/// E10: responses that come after weir's timeout. Requests behind such a response wait as long, and
/// may get 504 as well.
#[test]
fn e10_late_answers_reach_nobody() {
    let counts = Counts::default();
    each_seed(seeds_of(LATE), |seed| {
        let run = Run::new(scenario("late answers", seed, 2));
        let row = by_id("e10_late_answer");
        add_clients(&run, seed, "HEAD", |_, script| script.burst(&[row], VICTIMS, None));
        run.finish_with(|book| {
            count(&counts, book);
            let wrong = |entry: &&Entry| match &entry.outcome {
                Outcome::Answered => false,
                outcome => *outcome != Outcome::Refused(504) && *outcome != Outcome::Refused(502),
            };
            match book.entries.values().find(wrong) {
                Some(entry) => Err(format!("{} got {:?}", entry.asked.nonce, entry.outcome)),
                None => Ok(()),
            }
        });
    });
    settle("late answers", LATE, counts, ["e10_late_answer"].into_iter(), [].into_iter());
}
