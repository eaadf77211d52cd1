//! What `concurrency` and `queue-timeout` promise, with real sockets and several workers
//! (docs/connections.md#limit-what-a-server-works-on-at-once).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::kit::{
    Behaviour, Gone, Io, Link, Server, Weir, all_answered, eventually, on_both_drivers, scattered,
    server_status, status,
};
use weir_check::Request;

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

fn a_server_works_on_no_more_at_once_than_configured(io: Io) {
    let counting = Counting::default();
    let most = Arc::clone(&counting.most);
    let server = Server::start(counting);
    let weir = Weir::start(io, 3, &limited(&server, 3, ""));
    let clients = scattered(&weir, 20);
    eventually("three are sent, and the others wait", || {
        let now = server_status(&weir);
        now["in_flight"] == 3 && now["waiting"] == 17
    });
    eventually("the server has them", || most.load(SeqCst) == 3);
    let name = server.address.to_string();
    let shown = weir.answer(&["status", "server", "app", &name]);
    assert!(shown.contains("at most 3 requests at once, as configured"), "{shown}");
    server.tell("open");
    all_answered(clients);
    assert_eq!(most.load(SeqCst), 3);
    // Each of three workers may find three permits when a request gets in line, before others do.
    let waited = &server_status(&weir)["totals"]["concurrency_waits"];
    assert!(waited.as_u64() >= Some(20 - 3 * 3), "{waited}");
    weir.stop();
    server.finish();
}

fn who_waits_too_long_gets_503_or_the_fallback(io: Io) {
    let server = Server::start(Counting::default());
    let weir = Weir::start(io, 2, &limited(&server, 1, "queue-timeout \"100ms\""));
    let first = scattered(&weir, 1);
    server.wait("the first is there", |log| log.requests.len() == 1);
    for (mut client, _) in scattered(&weir, 4) {
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
    all_answered(scattered(&weir, 4));
    assert_eq!(spare.log().requests.len(), 4);
    server.tell("open");
    all_answered(first);
    weir.stop();
    server.finish();
    spare.finish();
}
