//! Proves: a verdict on a server to which weir does not pipeline outlives a restart, a reload and
//! an upgrade. It is in the log and the status, and holds until an operator clears it; then weir
//! rehearses the server again.
//!
//! How: the real binary and servers that die when weir pipelines to them, or respond twice.
//! docs/pipelining-trust.md#verdicts

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use weir_check::Request;
use weir_check::upstreams::check_honest;

use crate::kit::{Client, Io, Link, Scratch, Server, Weir, eventually, on_both_drivers, status};

on_both_drivers!(
    a_server_that_dies_when_it_is_pipelined_is_left_alone_until_it_is_cleared,
    what_is_found_is_kept,
);

/// The target of clients' requests and of rehearsals.
const PAGE: &str = "/page?n=verdict0";

fn config(server: &Server, state: &std::path::Path) -> String {
    format!(
        "pipeline-state \"{}\"\nupstream \"app\" {{\n server \"{}\" connections-min=2 \
            connections=2\n pipeline rehearse=\"{PAGE}\"\n}}\nroute {{ proxy \"app\" }}\n",
        state.display(),
        server.address
    )
}

fn trust(weir: &Weir) -> String {
    let status = status(weir);
    status["upstreams"][0]["servers"][0]["trust"].as_str().expect("a word").to_owned()
}

/// Eight clients at once send requests until this holds, but not for ever; every request gets a
/// response.
fn ask_until(weir: &Weir, times: usize, is_over: impl Fn() -> bool + Sync) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = Client::connect(weir.address);
                for _ in (0..times).take_while(|_| !over.load(Ordering::SeqCst)) {
                    client.get(PAGE);
                    check_honest("verdict0", &client.reply()).expect("nobody is lost");
                    over.fetch_or(is_over(), Ordering::SeqCst);
                }
            });
        }
    });
}

fn rehearsals(server: &Server) -> usize {
    let log = server.log();
    log.requests
        .iter()
        .filter(|(_, request)| request.fields.first("user-agent") == Some("weir-rehearsal"))
        .count()
}

fn a_server_that_dies_when_it_is_pipelined_is_left_alone_until_it_is_cleared(io: Io) {
    let server = Server::start(|link: &mut Link, request: &Request| {
        link.drain()?;
        if link.unanswered() > 1 {
            link.tell("died");
            return Err(link.rst());
        }
        link.honest(request)
    });
    let scratch = Scratch::new();
    let state = scratch.path("pipelining");
    let line = format!(
        "{{\"upstream\":\"app\",\"server\":\"{}\",\"verdict\":\"unfit\",\
            \"doubt\":\"fails-rehearsal\",\"since\":1700000000}}\n",
        server.address
    );
    fs::write(&state, &line).expect("it can be written");
    let config = config(&server, &state);
    let weir = Weir::start(io, 2, &config);
    let said = format!(
        "verdict-restored: not pipelined: it failed two rehearsals before weir was restarted or \
            reloaded; `weir server clear app {0}` allows it again upstream=app server={0}",
        server.address
    );
    eventually("the log says so", || weir.said().contains(&said));
    assert_eq!(trust(&weir), "unfit");
    ask_until(&weir, 100, || false);
    weir.rewrite(&config.replace("connections=2", "connections=3"));
    weir.answer(&["reload"]);
    assert_eq!(trust(&weir), "unfit");
    weir.upgrade();
    ask_until(&weir, 100, || false);
    assert_eq!((trust(&weir), rehearsals(&server)), ("unfit".to_owned(), 0));
    weir.stop();
    assert_eq!(fs::read_to_string(&state).expect("it is there"), line, "it stays what it is");
    // The tests of the machines prove how this comes about.
    let weir = Weir::start(io, 2, &config);
    ask_until(&weir, 100, || false);
    assert_eq!((trust(&weir), rehearsals(&server)), ("unfit".to_owned(), 0));
    let name = server.address.to_string();
    weir.answer(&["server", "clear", "app", &name]);
    eventually("it may earn trust again", || trust(&weir) == "earning");
    ask_until(&weir, 100_000, || server.log().events.iter().any(|event| event == "died"));
    assert!(rehearsals(&server) > 0, "weir tries again, with requests of its own");
    weir.stop();
    assert_eq!(fs::read_to_string(&state).expect("it is there"), "", "cleared for good");
    let log = server.finish();
    assert!(
        log.depths.iter().all(|depth| *depth <= 3),
        "only rehearsals are several: {:?}",
        log.depths
    );
}

fn what_is_found_is_kept(io: Io) {
    let server = Server::start(|link: &mut Link, request: &Request| {
        link.honest(request)?;
        if request.target.starts_with("/twice") {
            // No client has requested that.
            link.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
        }
        Ok(())
    });
    let scratch = Scratch::new();
    let state = scratch.path("pipelining");
    let config = config(&server, &state);
    let weir = Weir::start(io, 2, &config);
    let mut client = Client::connect(weir.address);
    client.get("/twice?n=verdict0");
    check_honest("verdict0", &client.reply()).expect("an answer");
    eventually("it is found", || trust(&weir) == "surplus");
    eventually("it is kept", || {
        fs::read_to_string(&state).is_ok_and(|text| text.contains("\"verdict\":\"surplus\""))
    });
    weir.stop();
    let weir = Weir::start(io, 2, &config);
    let said = "not pipelined: it sent a surplus response before weir was restarted";
    eventually("the log says so", || weir.said().contains(said));
    assert_eq!(trust(&weir), "surplus");
    let name = server.address.to_string();
    weir.answer(&["server", "clear", "app", &name]);
    eventually("it may earn trust again", || trust(&weir) == "earning");
    weir.stop();
    assert_eq!(fs::read_to_string(&state).expect("it is there"), "");
    let weir = Weir::start(io, 2, &config);
    assert_eq!(trust(&weir), "earning");
    weir.stop();
    server.finish();
}
