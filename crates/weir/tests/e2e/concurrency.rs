//! What `concurrency` and `queue-timeout` promise, with real sockets and several workers
//! (docs/connections.md#limit-what-a-server-works-on-at-once).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::kit::{
    Behaviour, Client, Gone, Io, Link, Server, Weir, eventually, nonce, on_both_drivers, status,
};
use weir_check::Request;
use weir_check::upstreams::check_honest;

on_both_drivers!(
    a_server_works_on_no_more_at_once_than_configured,
    who_waits_too_long_gets_503_or_the_fallback,
);

/// Answers when the test says `open`, and counts what it works on.
#[derive(Default)]
struct Counting {
    now: AtomicUsize,
    most: Arc<AtomicUsize>,
}

impl Behaviour for Counting {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        self.most.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
        let opened = link.await_event("open");
        self.now.fetch_sub(1, SeqCst);
        opened?;
        link.honest(request)
    }
}

/// Returns a configuration whose server works on this many requests.
fn limited(server: &Server, concurrency: u32, more: &str) -> String {
    let address = server.address;
    format!(
        "upstream \"app\" {{\n server \"{address}\" concurrency={concurrency}\n {more}\n}}\n\
            route {{ proxy \"app\" }}\n"
    )
}

fn ask(weir: &Weir, count: usize) -> Vec<(Client, String)> {
    let send = |_| {
        let (mut client, nonce) = (Client::connect(weir.address), nonce());
        client.get(&format!("/victim?n={nonce}"));
        (client, nonce)
    };
    (0..count).map(send).collect()
}

fn of_server(weir: &Weir) -> serde_json::Value {
    status(weir)["upstreams"][0]["servers"][0].clone()
}

fn a_server_works_on_no_more_at_once_than_configured(io: Io) {
    let counting = Counting::default();
    let most = Arc::clone(&counting.most);
    let server = Server::start(counting);
    let weir = Weir::start(io, 3, &limited(&server, 3, ""));
    let clients = ask(&weir, 20);
    eventually("three are sent, and the others wait", || {
        let now = of_server(&weir);
        now["in_flight"] == 3 && now["waiting"] == 17
    });
    eventually("the server has them", || most.load(SeqCst) == 3);
    let name = server.address.to_string();
    let shown = weir.answer(&["status", "server", "app", &name]);
    assert!(shown.contains("at most 3 requests at once, as configured"), "{shown}");
    server.tell("open");
    for (mut client, nonce) in clients {
        check_honest(&nonce, &client.reply()).unwrap();
    }
    assert_eq!(most.load(SeqCst), 3);
    // Each of three workers may find three permits when a request gets in line, before others do.
    let waited = &of_server(&weir)["totals"]["concurrency_waits"];
    assert!(waited.as_u64() >= Some(20 - 3 * 3), "{waited}");
    weir.stop();
    server.finish();
}

fn who_waits_too_long_gets_503_or_the_fallback(io: Io) {
    let server = Server::start(Counting::default());
    let weir = Weir::start(io, 2, &limited(&server, 1, "queue-timeout \"100ms\""));
    let mut clients = ask(&weir, 1);
    server.wait("the first is there", |log| log.requests.len() == 1);
    for (mut client, _) in ask(&weir, 4) {
        let reply = client.reply();
        assert_eq!((reply.status, reply.fields.has("retry-after")), (503, true));
    }
    eventually("it is counted", || status(&weir)["totals"]["refusals"]["queue-timeout"] == 4);
    let spare = Server::start(crate::kit::Honest);
    weir.rewrite(&format!(
        "upstream \"spare\" {{ server \"{}\" }}\n{}",
        spare.address,
        limited(&server, 1, "queue-timeout \"100ms\"; fallback \"spare\"")
    ));
    weir.answer(&["reload"]);
    for (mut client, nonce) in ask(&weir, 4) {
        check_honest(&nonce, &client.reply()).unwrap();
    }
    assert_eq!(spare.log().requests.len(), 4);
    server.tell("open");
    let (mut client, nonce) = clients.remove(0);
    check_honest(&nonce, &client.reply()).unwrap();
    weir.stop();
    server.finish();
    spare.finish();
}
