//! All hostile servers of the catalogue at once: every row in random order and place, under the load of 64 clients whose
//! requests carry nonces, with pipelining on. Nobody receives another's answer.
//!
//! One world is one burst: the servers earn their depth with clean answers, then all clients pipeline at the same time, and
//! most rows are played while requests of others stand behind them on the same connection. A row that ends its client's
//! connection comes last there. Half of the worlds also have servers that close after so many answers, and servers
//! that are killed. What weir may say for itself (502, 503, 504) is no harm, but must be rare.
//!
//! `make sim` plays each row more than a thousand times and prints how often.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use weir_check::upstreams::{Asker, Company, HostileUpstream, Outcome as Seen, by_id, catalogue, closings};
use weir_io::sim::{Faults, Rng, Settings};
use weir_proxy::plan::{PipelineMode, ServerPlan, Share};

use super::book::{Asked, Book, Entry, Outcome, Played};
use super::client::{Act, Client, Manners, SAFE};
use super::outage::{How, Outage};
use super::run::Run;
use super::scenario::{Kind, Scenario, listen_address, server_address};
use super::server::{ECHO_FIELD, KILLER, Style};
use super::{each_seed, seeds_of};

const CLIENTS: usize = 64;
/// Requests of each client that earn the servers their depth, also behind HEAD.
const WARM: usize = 8;
/// When the burst begins.
const BURST_US: u64 = 3_000_000;
/// Where servers close that would close after 99 answers.
const LATE_ANSWER: usize = 15;
/// Ordinary requests of each client in the burst.
const VICTIMS: usize = 5;

/// A network that only delays, two honest servers with room for deep pipelines, and no clients yet.
fn scenario(name: &'static str, seed: u64) -> Scenario {
    let rng = &mut Rng::new(seed ^ 0x57f0);
    let mut scenario = Scenario::of(Kind::Hostile, seed, 1 + (seed % 2) as u16);
    scenario.name = name;
    scenario.settings = Settings::random(seed, Faults { jitter_us: rng.below(500), ..Faults::none() });
    scenario.settings.window_bytes = 256 << 10;
    let style = Style { delay_us_max: *rng.pick(&[200, 1_000, 4_000]), ..Style::honest() };
    scenario.styles = vec![style; 2];
    (scenario.clients, scenario.manners) = (0, Manners::quiet(0));
    let upstream = &mut Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet").upstreams[0];
    upstream.servers = (0..2).map(|index| ServerPlan::new("server", server_address(index))).collect();
    upstream.servers.iter_mut().for_each(|server| server.connections = 2 + rng.below(3) as u32 * 2);
    upstream.pipeline = PipelineMode::Depth(16);
    (upstream.share, upstream.echo) = (Share::All, None);
    scenario
}

/// What one client does: earns, waits for the burst, then sends everything at once in a random order.
struct Script<'a> {
    number: usize,
    rng: &'a mut Rng,
    acts: VecDeque<Act>,
    asked: Vec<Asked>,
    burst: Vec<u8>,
    /// To draw from in the burst.
    methods: &'static [&'static str],
}

/// Safe, and one that is not: nothing is sent behind it.
const MIXED: &[&str] = &["GET", "GET", "GET", "GET", "GET", "GET", "HEAD", "DELETE"];

impl Script<'_> {
    fn add(&mut self, method: &'static str, trigger: Option<&HostileUpstream>) -> Vec<u8> {
        let nonce = format!("{:04x}{:04x}", self.number, self.asked.len());
        let bytes = match trigger {
            Some(row) => row.trigger.bytes("weir.test", &nonce),
            None => format!("{method} /v{nonce}?n={nonce} HTTP/1.1\r\nHost: weir.test\r\n\r\n").into_bytes(),
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

    fn earn(&mut self, method: &'static str) {
        for index in 0..WARM {
            let bytes = self.add(method, None);
            self.acts.extend([Act::Send(bytes), Act::AwaitAnswers(index + 1)]);
        }
        let at_us = BURST_US + self.rng.below(2_000);
        self.acts.push_back(Act::Until(at_us));
    }

    /// Victims with the rows among them, and `last` behind them all.
    fn burst(&mut self, rows: &[HostileUpstream], last: Option<&HostileUpstream>) {
        let mut order: Vec<Option<&HostileUpstream>> = rows.iter().map(Some).collect();
        order.extend([None; VICTIMS]);
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
            self.acts.extend([Act::AwaitAnswers(self.asked.len() - 1), Act::LeaveAtFirstBytes, Act::Reset]);
        }
    }
}

/// Rows that are dealt in turn, so that each is played as often as the others.
struct Deck {
    rows: Vec<HostileUpstream>,
    next: usize,
}

impl Deck {
    fn new(rows: impl Iterator<Item = HostileUpstream>, seed: u64) -> Deck {
        let rows: Vec<HostileUpstream> = rows.collect();
        // By a number that is prime to the count of rows, so that neighbours differ from world to world.
        let next = (seed as usize).wrapping_mul(7919) % rows.len();
        Deck { rows, next }
    }

    fn deal(&mut self) -> HostileUpstream {
        self.next = (self.next + 1) % self.rows.len();
        self.rows[self.next].clone()
    }
}

/// After it the connection of its client ends.
fn ends_client(row: &HostileUpstream) -> bool {
    matches!(row.asker, Asker::Truncated | Asker::Leaves) || row.trigger.is_incomplete()
}

/// `earn_with`: HEAD earns the servers depth behind HEAD too.
fn add_clients(run: &Run, seed: u64, earn_with: &'static str, mut script: impl FnMut(usize, &mut Script<'_>)) {
    let rng = &mut Rng::new(seed ^ 0xc11e);
    for number in 0..CLIENTS {
        let start_us = rng.below(10_000);
        let (acts, asked, burst) = (VecDeque::new(), Vec::new(), Vec::new());
        let mut one = Script { number, rng, acts, asked, burst, methods: MIXED };
        one.earn(earn_with);
        script(number, &mut one);
        let (acts, asked) = (one.acts, one.asked);
        run.add(|book| Client::scripted(listen_address(), start_us, book, acts, asked, false));
    }
}

/// Nobody was harmed; `cut_may_be`: servers were killed, which may end an answer that had begun.
fn judge(book: &Book, cut_may_be: bool) -> Result<(), String> {
    let mut ended = None;
    let mut refused = 0;
    for (nonce, entry) in &book.entries {
        let excused = ended == Some(&nonce[..4]);
        let row = entry.asked.trigger.as_deref().filter(|id| *id != KILLER).map(by_id);
        let fine = match (&row, &entry.outcome) {
            (_, Outcome::Cut) if excused || cut_may_be && entry.delivered => true,
            (Some(row), _) => asker_is_served(row, entry).map_err(|text| format!("{} {nonce}: {text}", row.id))?,
            (None, Outcome::Refused(502..=504)) => {
                refused += 1;
                true
            }
            (None, outcome) => *outcome == Outcome::Answered,
        };
        if !fine {
            return Err(format!("the victim {nonce} got {:?}", entry.outcome));
        }
        if entry.outcome == Outcome::Cut || row.as_ref().is_some_and(ends_client) {
            ended = Some(&nonce[..4]);
        }
    }
    let victims = book.entries.values().filter(|entry| entry.asked.trigger.is_none()).count();
    match refused * 2 > victims {
        true => Err(format!("{refused} of {victims} victims were refused")),
        false => Ok(()),
    }
}

/// It got what the row says, or an error of weir's own because others broke the connection again and again.
fn asker_is_served(row: &HostileUpstream, entry: &Entry) -> Result<bool, String> {
    // Who never sends the rest of a body may be told so first.
    let own_error = |status: u16| (502..=504).contains(&status) || status == 408 && row.trigger.is_incomplete();
    if let [reply] = entry.replies.as_slice()
        && own_error(reply.status)
        && !reply.fields.has("x-nonce")
    {
        return Ok(true);
    }
    // A whole answer is one, whatever becomes of the connection afterwards.
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

fn print(name: &str, counts: Counts) -> BTreeMap<String, Played> {
    let counts = counts.into_inner().expect("no test panics while it counts");
    println!("{name}: row, times played, with requests of others behind it");
    counts.iter().for_each(|(id, played)| println!("  {id:36} {:7} {:7}", played.times, played.followed));
    counts
}

fn storm(seed: u64, counts: &Counts) {
    let mut scenario = scenario("storm", seed);
    let rng = &mut Rng::new(seed ^ 0x0570);
    let harsh = rng.chance(500);
    if harsh {
        let rows = closings();
        let mut closing = rows[(seed / 2) as usize % rows.len()];
        // A connection has no more answers than this in a burst.
        closing.answers = closing.answers.min(LATE_ANSWER);
        scenario.styles[0].closing = Some(closing);
        let at_us = BURST_US + rng.below(10_000);
        scenario.styles[1].outages = vec![Outage { how: How::Killed, at_us, for_us: rng.between(1_000, 500_000) }];
    }
    let run = Run::new(scenario);
    let earn_with = *rng.pick(&["GET", "HEAD"]);
    // With requests behind HEAD its body is a forged answer inside a running pipeline.
    let forges = |row: &HostileUpstream| earn_with == "HEAD" && row.id.ends_with("with_an_answer_as_body");
    let played = || catalogue().into_iter().filter(|row| row.company == Company::Pipelined && !forges(row));
    let mut rows = Deck::new(played().filter(|row| !ends_client(row)), seed);
    let mut last = Deck::new(played().filter(ends_client), seed);
    add_clients(&run, seed, earn_with, |_, script| {
        let mine: Vec<HostileUpstream> = (0..2 + script.rng.index(2)).map(|_| rows.deal()).collect();
        script.burst(&mine, Some(&last.deal()));
    });
    run.finish_with(|book| {
        count(counts, book);
        judge(book, harsh)
    });
}

/// E0 to E18, E26 to E28: 0 answers to the wrong client.
#[test]
fn in_a_storm_of_hostile_servers_nobody_gets_anothers_answer() {
    let counts = Counts::default();
    each_seed(seeds_of(44), |seed| storm(seed, &counts));
    let counts = print("storm", counts);
    if seeds_of(44).len() >= 40 {
        let missing =
            catalogue().into_iter().filter(|row| row.company == Company::Pipelined && !counts.contains_key(row.id));
        assert_eq!(missing.map(|row| row.id).collect::<Vec<_>>(), Vec::<&str>::new(), "rows that were not played");
        let followed: u64 = counts.values().map(|played| played.followed).sum();
        assert!(followed > 100, "{followed} faults had requests behind them: this is no pipelining");
    }
}

/// E10: answers that are later than the patience with them. Everybody behind one waits as long, and may get 504 as well.
#[test]
fn e10_late_answers_reach_nobody() {
    let counts = Counts::default();
    each_seed(seeds_of(12), |seed| {
        let run = Run::new(scenario("late answers", seed));
        let row = by_id("e10_late_answer");
        add_clients(&run, seed, "HEAD", |_, script| script.burst(std::slice::from_ref(&row), None));
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
    print("late answers", counts);
}

/// Most times that a request may reach servers which it kills: the first time, `forward-retries`, `PASSED_MAX` orderly ends when it
/// is the next one, and a few when it stands behind others, which are not its fault as far as weir can see.
const KILLER_ARRIVALS_MAX: usize = 1 + 5 + 2 + 4;

/// E19: a request that kills every server which reads it. It gets its error after a bounded number of tries, and those whose
/// connections it broke are answered elsewhere or later.
#[test]
fn e19_a_request_that_kills_is_alone_in_its_end() {
    let counts = Counts::default();
    each_seed(seeds_of(100), |seed| {
        let run = Run::new(scenario("killer", seed));
        let mut nonce = String::new();
        add_clients(&run, seed, "HEAD", |number, script| {
            script.burst(&[], None);
            if number == 7 {
                let bytes = script.add("GET", None);
                let asked = script.asked.last_mut().expect("just added");
                asked.trigger = Some(KILLER.to_owned());
                nonce = asked.nonce.clone();
                script.acts.push_back(Act::Send(bytes));
            }
        });
        run.finish_with(|book| {
            count(&counts, book);
            let killer = &book.entries[&nonce];
            let refused = killer.replies.iter().all(|reply| matches!(reply.status, 502 | 503));
            // An answer to its client that had begun may have been cut before.
            let ended = killer.replies.len() == 1 || killer.outcome == Outcome::Cut;
            if !ended || !refused || killer.arrivals.len() > KILLER_ARRIVALS_MAX {
                return Err(format!(
                    "the killer got {} replies after {} tries",
                    killer.replies.len(),
                    killer.arrivals.len()
                ));
            }
            judge(book, true)
        });
    });
    print("killer", counts);
}

/// What HTTP/1.1 can't show inside a running pipeline: E1 and E21 (a forged complete answer), E20 (answers in the wrong order).
fn forgers() -> Deck {
    Deck::new(["e1_second_answer", "e1_half_an_answer_behind", "e21_split_answer"].into_iter().map(by_id), 0)
}

fn forge(seed: u64, name: &'static str, counts: &Counts, protect: impl Fn(&mut Scenario)) -> Vec<(String, String)> {
    let mut scenario = scenario(name, seed);
    // One or the other: each of them soon ends all pipelines.
    let swaps = if seed.is_multiple_of(2) { 50 } else { 0 };
    scenario.styles.iter_mut().for_each(|style| style.swaps = swaps);
    protect(&mut scenario);
    let run = Run::new(scenario);
    run.book.borrow_mut().collects_misdelivered = true;
    let mut rows = forgers();
    add_clients(&run, seed, "HEAD", |number, script| {
        // A request that nothing may follow would be followed when weir takes a forged answer for its own.
        script.methods = SAFE;
        let mine: Vec<HostileUpstream> = (number % 2 == 0 && swaps == 0).then(|| rows.deal()).into_iter().collect();
        script.burst(&mine, None);
    });
    let mut harmed = Vec::new();
    run.finish_with(|book| {
        count(counts, book);
        harmed = book.misdelivered.iter().map(|one| (one.nonce.clone(), one.got.clone())).collect();
        Ok(())
    });
    harmed
}

/// With `pipeline echo` an answer that does not carry its request's identifier back is nobody's.
#[test]
fn e20_e21_with_echo_nobody_is_harmed() {
    let counts = Counts::default();
    each_seed(seeds_of(80), |seed| {
        let harmed = forge(seed, "forgers, echo", &counts, |scenario| {
            scenario.styles.iter_mut().for_each(|style| style.echo = true);
            let plan = Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet");
            plan.upstreams[0].echo = Some(ECHO_FIELD.to_owned());
        });
        assert_eq!(harmed, [], "seed {seed}");
    });
    print("forgers, echo", counts);
}

/// With `share="client"` who asks a forger harms nobody else: what goes wrong stays on a connection that is the asker's until
/// it is empty.
#[test]
fn e20_e21_with_share_client_only_the_asker_is_harmed() {
    let counts = Counts::default();
    each_seed(seeds_of(80), |seed| {
        let harmed = forge(seed, "forgers, share client", &counts, |scenario| {
            let plan = Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet");
            plan.upstreams[0].share = Share::Client;
        });
        // Every second client asks forgers.
        let other = |(nonce, got): &&(String, String)| {
            let own = nonce[..4] == got[..got.len().min(4)];
            let asks = usize::from_str_radix(&nonce[..4], 16).is_ok_and(|number| number % 2 == 0);
            !(own || asks && got == "SURPLUS")
        };
        assert_eq!(harmed.iter().find(other), None, "seed {seed}");
    });
    print("forgers, share client", counts);
}

/// Without either, one forged answer in a running pipeline shifts the answers of its connection. The sync point ends that
/// within about a second, finds the answer too many, and the server is not pipelined again.
#[test]
fn a_forged_answer_harms_until_the_sync_point_and_is_detected() {
    let harmed: usize = seeds_of(10).into_iter().map(shift).sum();
    assert!(harmed > 0, "the forged answer went to nobody: this proves nothing");
}

/// Until when the sync point must have been, after the forged answer: [`SYNC_US`] of weir-proxy, and the time that a full
/// connection takes to run empty.
const SHIFT_US_MAX: u64 = 1_500_000;

fn shift(seed: u64) -> usize {
    let mut scenario = scenario("shift", seed);
    scenario.styles.truncate(1);
    scenario.workers = 1;
    scenario.styles[0].delay_us_max = 500;
    let upstream = &mut Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet").upstreams[0];
    upstream.servers.truncate(1);
    let run = Run::new(scenario);
    run.book.borrow_mut().collects_misdelivered = true;
    let row = by_id("e1_second_answer");
    add_clients(&run, seed, "HEAD", |number, script| {
        // Enough to keep the connections busy for seconds.
        for at in 0..60 {
            let trigger = (number == 5 && at == 10).then_some(&row);
            let bytes = script.add("GET", trigger);
            let time_us = script.rng.below(100_000);
            script.acts.extend([Act::Send(bytes), Act::Wait(time_us)]);
        }
    });
    let forged = || run.book.borrow().played.contains_key(row.id);
    assert!(run.pass(100 * BURST_US, forged), "seed {seed}: nothing was forged");
    run.pass(SHIFT_US_MAX, || false);
    let so_far = run.book.borrow().misdelivered.len();
    let detected = run.count(|counters| counters.surplus.get() + counters.demotions.get());
    if detected == 0 {
        run.fail("the answer too many was not detected");
    }
    run.book.borrow_mut().depth_max = 0;
    run.finish_with(|book| match (book.misdelivered.len() - so_far, book.depth_max) {
        (0, 0 | 1) => Ok(()),
        (late, depth) => Err(format!("{late} answers went wrong after the sync point, then {depth} requests deep")),
    });
    so_far
}
