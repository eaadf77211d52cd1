//! Proves: each worker gets its share of persistent connections, by eBPF where weir has the right,
//! by classic BPF where it has not. The status says which of them it is, and why.
//! `accept-by "hash"` leaves the choice to the kernel. Reloads and upgrades keep all that, and
//! clients that wait while listeners close are served. How: the real binary with and without the
//! right. docs/workers.md.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;

use crate::kit::{
    Client, Honest, Io, Scratch, Server, Weir, app, eventually, free_port, keep_asking,
    on_both_drivers, request, status,
};

on_both_drivers!(
    kept_connections_are_spread,
    without_the_right_it_is_classic,
    it_can_be_left_to_the_kernel,
    listeners_of_a_reload_are_even_too,
    an_upgrade_stays_even,
    where_there_is_nothing_to_choose,
);

const EBPF: &str = "even by eBPF";
const CLASSIC: &str = "even by classic BPF";

/// Returns way and reason, by listener.
fn ways(weir: &Weir) -> Vec<(String, Option<String>)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let told = status(weir);
    let accepting = told["accepting"].as_array().expect("a list");
    accepting.iter().map(|one| (text(&one["way"]).expect("a way"), text(&one["why"]))).collect()
}

/// Whether this process may have the kernel run programs. If not, the test says so.
fn may_load(weir: &Weir) -> bool {
    match &ways(weir)[0] {
        (way, None) => way == EBPF,
        (way, Some(why)) => {
            assert!(way == CLASSIC && why.contains("CAP_BPF"), "{way}: {why}");
            eprintln!("not tested with eBPF: {why}");
            false
        }
    }
}

/// Connects this many clients that stay, each after one response. Returns them with each worker's
/// count.
fn connect(weir: &Weir, count: usize) -> (Vec<Client>, Vec<u64>) {
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = Client::connect(weir.address);
        request(&mut client);
        clients.push(client);
    }
    let told = status(weir);
    let workers = told["workers"].as_array().expect("a list");
    let counts =
        workers.iter().map(|worker| worker["clients"].as_u64().expect("it answers")).collect();
    (clients, counts)
}

fn kept_connections_are_spread(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 4, &app(&server, 4, ""));
    may_load(&weir);
    let (clients, counts) = connect(&weir, 200);
    // With classic BPF the counts are up to chance, and on a busy machine workers without their
    // cores get fewer.
    assert!(
        counts.iter().all(|count| *count > 0) && counts.iter().sum::<u64>() == 200,
        "{counts:?}"
    );
    drop(clients);
    weir.stop();
    server.finish();
}

fn without_the_right_it_is_classic(io: Io) {
    let server = Server::start(Honest);
    let mut command = Command::new("setpriv");
    // CAP_BPF, CAP_SYS_ADMIN, CAP_NET_ADMIN.
    let without = "-cap_39,-cap_21,-cap_12";
    command.args([&format!("--bounding-set={without}"), &format!("--inh-caps={without}")]);
    command.arg(env!("CARGO_BIN_EXE_weir"));
    let weir = Weir::start_by(io, 2, &app(&server, 2, ""), command);
    let (way, why) = ways(&weir).remove(0);
    assert_eq!(way, CLASSIC, "{why:?}");
    assert!(why.is_some_and(|why| why.contains("no eBPF: ")), "it says why");
    assert!(weir.answer(&["status"]).contains(&format!("accept   {CLASSIC} (no eBPF: ")));
    let (clients, counts) = connect(&weir, 60);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    drop(clients);
    // A successor does not know the order in which the sockets began to listen.
    weir.upgrade();
    eventually("it looks at them", || {
        let (way, why) = ways(&weir).remove(0);
        way == "by hash"
            && why.is_some_and(|why| why.contains("no classic BPF: another process has opened"))
    });
    request(&mut Client::connect(weir.address));
    weir.stop();
    server.finish();
}

fn it_can_be_left_to_the_kernel(io: Io) {
    let server = Server::start(Honest);
    let rest = app(&server, 2, "");
    let weir = Weir::start(io, 2, &format!("accept-by \"hash\"\n{rest}"));
    assert_eq!(ways(&weir), [("by hash".to_owned(), None)]);
    assert!(weir.answer(&["status"]).contains("accept   by hash\n"));
    request(&mut Client::connect(weir.address));
    weir.rewrite(&rest);
    let output = weir.ask(&["reload"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(78) && said.contains("`accept-by` needs a restart"),
        "{said}"
    );
    weir.stop();
    server.finish();
}

fn listeners_of_a_reload_are_even_too(io: Io) {
    let server = Server::start(Honest);
    let rest = app(&server, 2, "");
    let weir = Weir::start(io, 2, &rest);
    let (first, ..) = ways(&weir).remove(0);
    let (over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| keep_asking(weir.address, &over, &done));
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    request(&mut Client::connect(weir.address));
                }
            });
        }
        // Another port each time, more often than there are places in the kernel.
        for _ in 0..20 {
            let port = free_port();
            weir.rewrite(&format!("listen \"127.0.0.1:{port}\"\n{rest}"));
            weir.answer(&["reload"]);
            let ways: Vec<String> = ways(&weir).into_iter().map(|(way, _)| way).collect();
            assert_eq!(ways, [&*first, &*first]);
            request(&mut Client::connect(([127, 0, 0, 1], port).into()));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(status(&weir)["clients"]["answers"]["5xx"], 0);
    weir.stop();
    server.finish();
}

fn an_upgrade_stays_even(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 2, &app(&server, 2, ""));
    if may_load(&weir) {
        let mut before = Client::connect(weir.address);
        request(&mut before);
        weir.upgrade();
        eventually("the old program lets go", || ways(&weir) == [(EBPF.to_owned(), None)]);
        let (clients, counts) = connect(&weir, 60);
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        drop(clients);
    }
    weir.stop();
    server.finish();
}

fn where_there_is_nothing_to_choose(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 1, &app(&server, 1, ""));
    assert_eq!(ways(&weir), [("one worker".to_owned(), None)]);
    assert!(!weir.answer(&["status"]).contains("accept  "));
    weir.stop();
    let scratch = Scratch::new();
    let path = scratch.path("weir.sock");
    let weir =
        Weir::start(io, 2, &format!("listen \"unix:{}\"\n{}", path.display(), app(&server, 2, "")));
    assert_eq!(ways(&weir)[1], ("one socket for all workers".to_owned(), None));
    weir.stop();
    server.finish();
}
