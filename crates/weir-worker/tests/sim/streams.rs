//! Clients of HTTP/2 beside those of HTTP/1.1, at the same listener and the same connections to
//! servers.

use weir_io::sim::Rng;
use weir_proxy::plan::Pool;

use super::book::{Asked, GATHER_BYTES_MAX};
use super::http2::{Ask, GivesUp, Habits, Http2Client};
use super::run::Run;
use super::scenario::{Kind, Scenario, listen_address, set_connections};
use super::{each_seed, seeds_of};

/// Streams and requests of HTTP/1.1 on the same connections to servers, in all kinds of worlds.
#[test]
fn clients_of_both_versions_keep_their_answers() {
    for workers in [1, 2] {
        each_seed(seeds_of(60), |seed| {
            Run::new(Scenario::new(seed, workers).with_http2()).finish();
        });
    }
}

#[test]
fn streams_notice_no_outage() {
    each_seed(seeds_of(30), |seed| {
        Run::new(Scenario::of(Kind::Outages, seed, 1 + (seed % 3) as u16).with_http2()).finish();
    });
}

/// Bodies of about the size that is too large to be held, which end while their requests wait for
/// connections.
#[test]
fn bodies_end_whenever_they_end() {
    each_seed(seeds_of(20), |seed| {
        let mut scenario = Scenario::of(Kind::Calm, seed * 4, 1 + (seed % 2) as u16).with_http2();
        scenario.clients = 0;
        let run = Run::new(scenario);
        for number in 0..4 {
            let rng = &mut Rng::new(seed << 8 | number);
            let asks = (0..10).map(|index| {
                let body = vec![b'x'; GATHER_BYTES_MAX - rng.index(3)];
                Ask::new(Asked { method: "PUT", body, ..get(&format!("{number:04x}{index:04x}")) })
            });
            let (asks, habits) = (asks.collect(), Habits::quiet(10));
            run.add(|book| {
                Http2Client::scripted(listen_address(), 0, book, habits, asks, rng.fork(1))
            });
        }
        run.finish();
    });
}

/// More large bodies at once than the window of their connection holds, and one connection to take
/// them: those that wait leave room for the body that is being sent.
#[test]
fn bodies_that_wait_leave_room() {
    each_seed(seeds_of(10), |seed| {
        let mut scenario = Scenario::of(Kind::Calm, seed * 4, 1 + (seed % 2) as u16).with_http2();
        (scenario.clients, scenario.settings.window_bytes) = (0, 256 << 10);
        let upstream = &mut scenario.plan_mut().upstreams[0];
        upstream.pool = Pool::Pipelined;
        upstream.servers.iter_mut().for_each(|server| {
            (server.connections_min, server.connections_max) = (1, 1);
            set_connections(server, 1);
        });
        let run = Run::new(scenario);
        run.add(|book| {
            let body = vec![b'x'; 200_000];
            let asks = (0..60).map(|index| {
                Ask::new(Asked {
                    method: "PUT",
                    body: body.clone(),
                    ..get(&format!("aaaa{index:04x}"))
                })
            });
            let (asks, rng) = (asks.collect(), Rng::new(seed));
            Http2Client::scripted(listen_address(), 0, book, Habits::quiet(60), asks, rng)
        });
        run.finish();
    });
}

/// Streams that their client gave up count until their servers have answered, and no longer.
#[test]
fn who_gives_up_streams_may_ask_again() {
    const STREAMS: usize = 20;
    each_seed(seeds_of(20), |seed| {
        let mut scenario = Scenario::of(Kind::Calm, seed * 4, 1 + (seed % 2) as u16).with_http2();
        scenario.clients = 0;
        scenario.plan_mut().client.http2.streams_max = STREAMS as u32;
        scenario.plan_mut().upstreams[0].pool = Pool::Pipelined;
        scenario.styles.iter_mut().for_each(|style| style.delay_us_max = 200_000);
        let run = Run::new(scenario);
        run.add(|book| {
            let asks = (0..3 * STREAMS).map(|index| {
                let gives_up =
                    if index < 2 * STREAMS { GivesUp::After(20_000) } else { GivesUp::Never };
                Ask { gives_up, ..Ask::new(get(&format!("aaaa{index:04x}"))) }
            });
            let (asks, rng) = (asks.collect(), Rng::new(seed));
            Http2Client::scripted(listen_address(), 0, book, Habits::quiet(STREAMS), asks, rng)
        });
        run.finish();
    });
}

/// docs/hostile.md: weir ends a connection that causes useless work, and gives the reason although
/// responses are on their way.
#[test]
fn who_chatters_is_told_why() {
    each_seed(0..20, |seed| {
        let mut scenario = Scenario::of(Kind::Calm, seed * 4, 1).with_http2();
        scenario.clients = 0;
        let run = Run::new(scenario);
        run.book.borrow_mut().has_offenders = true;
        run.add(|book| {
            let habits = Habits {
                window: 1_000,
                oddities: 1_000,
                settings_max: 10_000,
                ..Habits::quiet(10)
            };
            let large = |nonce: &String| get(nonce).expected().body.len() > 60_000;
            let nonces = (0..).map(|number| format!("aaaa{number:04x}")).filter(large).take(40);
            let asks = nonces.map(|nonce| Ask::new(get(&nonce))).collect();
            Http2Client::scripted(listen_address(), 0, book, habits, asks, Rng::new(seed))
        });
        let pool = run.scenario.plan.upstreams[0].pool;
        run.pass(60_000_000, || run.book.borrow().clients_done == 1);
        const ENHANCE_YOUR_CALM: u32 = 11;
        let goaways = run.book.borrow().goaways.clone();
        if !pool.is_private() && goaways != [ENHANCE_YOUR_CALM] {
            run.fail(&format!("a client that chatters got GOAWAY {goaways:?}"));
        }
    });
}

fn get(nonce: &str) -> Asked {
    Asked {
        nonce: nonce.to_owned(),
        method: "GET",
        conditional: false,
        body: Vec::new(),
        trigger: None,
    }
}

/// docs/hostile.md K3.
#[test]
fn a_panic_costs_streams_of_one_worker() {
    each_seed(seeds_of(30), |seed| {
        let run = Run::new(Scenario::of(Kind::Panicking, seed, 1 + (seed % 3) as u16).with_http2());
        run.panic(1 + (seed % 6) as u32, 300);
        run.finish();
    });
}
