//! Proves: the percentiles of `status` are those that clients measure
//! (docs/semantics.md#what-you-can-observe). How:
//! servers delay by a fixed distribution, clients take the time of each request. weir's time of a
//! request is between the server's delay and the client's time, and so is each percentile, on a
//! machine however busy. The two agree as far as the clients' own overshoot allows, and a bucket of
//! weir's histogram.

use std::time::{Duration, Instant};

use crate::kit::{Client, Gone, Io, Link, Server, Weir, app, nonce, on_both_drivers};
use serde_json::Value;
use weir_check::Request;

on_both_drivers!(
    ;
    alone:
    percentiles_are_what_clients_measure,
);

/// Delays in milliseconds, and how many of 1,000 requests have them: each reported percentile is
/// well inside one.
const DELAYS: [(u64, usize); 6] = [(5, 600), (10, 200), (20, 130), (30, 45), (60, 20), (100, 5)];
const CLIENTS: usize = 10;
/// As in `status`, in 10,000ths, with the delay that it must show.
const PERCENTILES: [(&str, usize, u64); 6] = [
    ("p50_us", 5_000, 5),
    ("p75_us", 7_500, 10),
    ("p90_us", 9_000, 20),
    ("p95_us", 9_500, 30),
    ("p99_us", 9_900, 60),
    ("p999_us", 9_990, 100),
];

/// Returns the delays of all requests, spread evenly: request `n` has that of rank `n * 7` mod
/// 1,000.
fn delays() -> Vec<u64> {
    let sorted: Vec<u64> = DELAYS.iter().flat_map(|(delay, count)| vec![*delay; *count]).collect();
    (0..sorted.len()).map(|n| sorted[n * 7 % sorted.len()]).collect()
}

/// Responds after the number of milliseconds in the request.
fn delayed(link: &mut Link, request: &Request) -> Result<(), Gone> {
    let delay =
        request.target.split("delay=").nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    std::thread::sleep(Duration::from_millis(delay));
    link.honest(request)
}

/// Returns a client's times of its requests, microseconds.
fn measure(weir: &Weir, delays: &[u64]) -> Vec<u64> {
    let mut client = Client::connect(weir.address);
    let ask = |delay: &u64| {
        let asked = Instant::now();
        client.get(&format!("/victim?n={}&delay={delay}", nonce()));
        assert_eq!(client.reply().status, 200);
        asked.elapsed().as_micros() as u64
    };
    delays.iter().map(ask).collect()
}

/// Returns the same rank as weir: the smallest value that this many of 10,000 do not exceed.
fn percentile(sorted: &[u64], of_10_000: usize) -> u64 {
    sorted[(sorted.len() * of_10_000).div_ceil(10_000).max(1) - 1]
}

fn percentiles_are_what_clients_measure(io: Io) {
    let server = Server::start(delayed);
    // A connection for each client: no request waits for another's response.
    let weir = Weir::start(io, 2, &app(&server, 2 * CLIENTS as u32, " pipeline \"off\"\n"));
    weir.answer(&["status", "--wait"]);
    let delays = delays();
    let mut measured: Vec<u64> = std::thread::scope(|scope| {
        let shares = delays.chunks(delays.len() / CLIENTS);
        let clients: Vec<_> = shares.map(|share| scope.spawn(|| measure(&weir, share))).collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    });
    measured.sort_unstable();
    let status: Value = serde_json::from_str(&weir.answer(&["status", "--json"])).expect("JSON");
    for latency in [
        &status["upstreams"][0]["servers"][0]["window"]["latency"],
        &status["clients"]["window"]["latency"],
    ] {
        assert_eq!(latency["count"], delays.len());
        for (name, of_10_000, delay) in PERCENTILES {
            let told = latency[name].as_u64().expect(name);
            let seen = percentile(&measured, of_10_000);
            let (least, most) = (delay * 1000, seen);
            // Half a bucket either way.
            assert!(
                told + told / 31 >= least && told - told / 31 <= most,
                "{name}: {told} not in {least}..={most}"
            );
        }
        let mean: u64 = measured.iter().sum::<u64>() / measured.len() as u64;
        assert!(latency["mean_us"].as_u64().expect("a mean") <= mean);
    }
    weir.stop();
    server.finish();
}
