//! Which connection gets a request by default: servers with quick and slow responses, and a server
//! that dies when requests share a connection.
//!
//! Each world begins with clients that ask at the same moments for quick responses, until the
//! server is rehearsed and requests share connections. Then others ask for slow ones. No quick
//! request waits for a slow response, a request reaches the server once unless its connection
//! ended, and a server that dies of company dies of it twice at most.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_io::sim::{Faults, START_US, Settings};
use weir_proxy::cross::doubt::Doubt;
use weir_proxy::plan::{PipelineMode, Share};

use super::book::{Asked, Outcome};
use super::client::{Act, Client, Manners};
use super::run::Run;
use super::scenario::{Kind, Scenario, listen_address, set_connections};
use super::server::{REHEARSAL_PATH, SLOW_US, Style};
use super::{each_seed, seeds_of};

const SECOND: u64 = 1_000_000;
/// Clients that ask at the same moment.
const CROWD: usize = 8;
/// Such moments until all is learned, and the time between them.
const LESSONS: u64 = 150;
const BEAT_US: u64 = 20_000;
/// Moments in which some of the crowd ask for what is slow.
const ROUNDS: u64 = 30;
/// A quick response takes less than this, with a connect.
const PROMPT_US: u64 = SLOW_US / 4;

fn scenario(seed: u64, style: Style) -> Scenario {
    let mut scenario = Scenario::of(Kind::Hostile, seed, 1 + (seed % 2) as u16);
    scenario.name = "placing";
    scenario.settings = Settings::random(seed, Faults::none());
    scenario.settings.window_bytes = 1 << 20;
    scenario.styles = vec![style];
    (scenario.clients, scenario.manners) = (0, Manners::quiet(1));
    let upstream =
        &mut Arc::get_mut(&mut scenario.plan).expect("nobody shares it yet").upstreams[0];
    upstream.servers.truncate(1);
    (upstream.echo, upstream.share, upstream.pipeline) = (None, Share::All, PipelineMode::Adaptive);
    upstream.sharing.rehearse = Some(REHEARSAL_PATH.to_owned());
    let server = &mut upstream.servers[0];
    (server.connections_min, server.connections_max) = (1, 1024);
    set_connections(server, 4);
    scenario
}

fn asked(nonce: String) -> Asked {
    Asked { nonce, method: "GET", conditional: false, body: Vec::new(), trigger: None }
}

/// A client that sends one request at a moment, and leaves when it is answered.
fn add(run: &Run, path: &str, nonce: String, at_us: u64) {
    let head = format!("GET {path}?n={nonce} HTTP/1.1\r\nHost: weir.test\r\n\r\n");
    let acts = [
        Act::Until(START_US + at_us),
        Act::Ask(0),
        Act::Send(head.into_bytes()),
        Act::AwaitAnswers(1),
    ];
    run.add(|book| {
        Client::scripted(listen_address(), 0, book, VecDeque::from(acts), vec![asked(nonce)], false)
    });
}

/// A nonce whose response is small: requests with large responses never share a connection.
fn small(prefix: &str) -> String {
    let fits = |nonce: &String| {
        let expected = asked(nonce.clone()).expected();
        expected.status == 200 && expected.body.len() < 10_000
    };
    (0..).map(|n| format!("{prefix}{n:03x}")).find(fits).expect("one of many")
}

/// Clients that ask for quick responses, [`LESSONS`] times a whole crowd at once, from `from_us`
/// on.
fn teach(run: &Run, letter: char, from_us: u64) {
    for lesson in 0..LESSONS {
        for client in 0..CROWD {
            add(
                run,
                "/v",
                small(&format!("{letter}{lesson:03x}{client:01x}")),
                from_us + lesson * BEAT_US,
            );
        }
    }
}

fn answered(run: &Run, nonces: &[String]) -> usize {
    let book = run.book.borrow();
    nonces.iter().filter(|nonce| book.entries[*nonce].outcome == Outcome::Answered).count()
}

/// A world in which requests share connections, at the time at which they do.
fn shared(seed: u64, style: Style) -> (Run, u64) {
    let run = Run::new(scenario(seed, style));
    teach(&run, 'a', 0);
    let now_us = LESSONS * BEAT_US + SECOND;
    run.pass(now_us, || false);
    if run.book.borrow().depth_max < 2 {
        let of = |name: &str| run.book.borrow().played.get(name).map_or(0, |played| played.times);
        run.fail(&format!("requests share no connection after {} rehearsals", of("rehearsed") / 3));
    }
    (run, now_us)
}

/// Every request has reached the server once: no connection ends in these worlds.
fn once(run: Run) {
    run.finish_with(|book| {
        match book.entries.iter().find(|(_, entry)| entry.arrivals.len() != 1) {
            Some((nonce, entry)) => {
                Err(format!("{nonce} reached servers {} times", entry.arrivals.len()))
            }
            None => Ok(()),
        }
    });
}

/// Slow requests beside quick ones, of another path that no worker knows yet.
#[test]
fn no_quick_request_waits_for_a_slow_one() {
    each_seed(seeds_of(10), |seed| {
        let (run, now_us) = shared(seed, Style { delay_us_max: 1_000, ..Style::honest() });
        for round in 0..ROUNDS {
            let at_us = now_us + round * SLOW_US / 2;
            let nonces: Vec<String> =
                (0..CROWD).map(|client| small(&format!("b{round:03x}{client:01x}"))).collect();
            for (client, nonce) in nonces.iter().enumerate() {
                let slow = small(&format!("c{round:03x}{client:01x}"));
                // In the same turn, and a moment before.
                add(&run, "/slow", slow, at_us - if client % 2 == 0 { 0 } else { 5_000 });
                add(&run, "/v", nonce.clone(), at_us);
            }
            run.pass((START_US + at_us + PROMPT_US).saturating_sub(run.world.now_us()), || false);
            let answered = answered(&run, &nonces);
            if answered < CROWD {
                run.fail(&format!("{} quick requests of round {round} wait", CROWD - answered));
            }
        }
        once(run);
    });
}

/// Slow responses to a few requests of one path: as soon as that is known, its requests are alone.
#[test]
fn requests_that_may_be_slow_ride_alone() {
    each_seed(seeds_of(10), |seed| {
        let (run, now_us) = shared(seed, Style { delay_us_max: 1_000, ..Style::honest() });
        for lesson in 0..LESSONS {
            for client in 0..CROWD {
                let nonce = small(&format!("d{lesson:03x}{client:01x}"));
                add(&run, "/odd", nonce, now_us + lesson * BEAT_US);
            }
        }
        let now_us = now_us + LESSONS * BEAT_US + SECOND;
        run.pass((START_US + now_us).saturating_sub(run.world.now_us()), || false);
        run.book.borrow_mut().depth_max = 0;
        for round in 0..ROUNDS {
            for client in 0..CROWD {
                add(
                    &run,
                    "/odd",
                    small(&format!("e{round:03x}{client:01x}")),
                    now_us + round * BEAT_US,
                );
            }
        }
        run.pass(ROUNDS * BEAT_US + SECOND, || false);
        let depth = run.book.borrow().depth_max;
        if depth > 1 {
            run.fail(&format!(
                "{depth} requests were on one connection, of which each may be slow"
            ));
        }
        once(run);
    });
}

/// However many clients ask, of whichever worker, and however their requests share connections.
#[test]
fn a_server_has_no_more_at_once_than_configured() {
    each_seed(seeds_of(20), |seed| {
        let style = Style { delay_us_max: 20_000, ..Style::honest() };
        let mut scenario = scenario(seed, style);
        scenario.workers = 1 + (seed % 3) as u16;
        let concurrency = 1 + (seed / 3 % 5) as u32;
        let upstream = &mut scenario.plan_mut().upstreams[0];
        upstream.servers[0].concurrency = Some(concurrency);
        // What is sent again elsewhere counts once.
        upstream.sharing.escape = Some(false);
        upstream.pipeline = match seed % 4 {
            0 => PipelineMode::Off,
            1 => PipelineMode::Depth(8),
            _ => PipelineMode::Adaptive,
        };
        let run = Run::new(scenario);
        for round in 0..40 {
            for client in 0..CROWD {
                let path = if client == 0 { "/odd" } else { "/v" };
                add(&run, path, small(&format!("a{round:03x}{client:01x}")), round * BEAT_US);
            }
        }
        run.pass(40 * SECOND, || run.book.borrow().clients_done == 40 * CROWD);
        let most = run.book.borrow().at_once_max;
        if most != concurrency as usize {
            run.fail(&format!("{most} requests at once, and {concurrency} are configured"));
        }
        run.finish_with(|book| {
            let lost = book.entries.iter().find(|(_, entry)| entry.outcome != Outcome::Answered);
            lost.map_or(Ok(()), |(nonce, entry)| Err(format!("{nonce} got {:?}", entry.outcome)))
        });
    });
}

/// A server that bears its rehearsal, and dies when requests of clients share a connection.
#[test]
fn a_server_that_dies_of_company_dies_twice_at_most() {
    each_seed(seeds_of(10), |seed| {
        let style = Style { delay_us_max: 1_000, dies_shared: true, ..Style::honest() };
        let (run, now_us) = shared(seed, style);
        for again in 1..4u8 {
            // After the first penalty, which is 60 s, and the second, if there were one.
            teach(&run, char::from(b'a' + again), now_us + u64::from(again) * 130 * SECOND);
        }
        run.pass(5 * 130 * SECOND, || false);
        let deaths = run.book.borrow().played.get("killed").map_or(0, |played| played.times);
        if !(1..=2).contains(&deaths) {
            let doubts = run.count(|counters| counters.doubts[Doubt::DiesShared as usize].get());
            run.fail(&format!(
                "the server died {deaths} times, and was doubted {doubts} times for that"
            ));
        }
        run.finish_with(|book| {
            let lost = book
                .entries
                .iter()
                .find(|(_, entry)| !matches!(entry.outcome, Outcome::Answered | Outcome::Cut));
            lost.map_or(Ok(()), |(nonce, entry)| Err(format!("{nonce} got {:?}", entry.outcome)))
        });
    });
}
