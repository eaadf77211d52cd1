//! What weir promises about many requests at once: order, exactly one response, exactly N
//! connections, trust, and that nothing unsafe is sent twice
//! (docs/connections.md, docs/connections.md#trust-in-a-server, docs/retries.md).

use std::sync::Mutex;
use std::time::Duration;

use crate::kit::{
    Behaviour, Client, Gone, Honest, Io, Link, Random, Server, Weir, all_answered, app, eventually,
    nonce, on_both_drivers, scattered,
};
use weir_check::upstreams::{Closing, Ending, check_honest, closings, honest_answer};
use weir_check::{Reply, Request};

on_both_drivers!(
    ten_thousand_requests_each_get_their_own_answer,
    one_upstream_connection_serves_two_workers,
    connections_are_exactly_so_many,
    e0_depth_is_earned,
    e18_e27_servers_that_close,
    posts_reach_a_dying_server_at_most_once,
    nothing_follows_what_the_rules_mark,
    full_queues_answer_503,
    e20_echo_finds_answers_in_the_wrong_order,
    share_client_keeps_clients_apart,
    a_surplus_ends_pipelining_for_good,
);

/// Responds with as many copies of the nonce as the request says, in a way that the nonce chooses.
struct Varied {
    random: Mutex<Random>,
}

impl Varied {
    fn below(&self, limit: usize) -> usize {
        self.random.lock().expect("no panic").below(limit)
    }
}

/// Returns the body of `/varied?n=NONCE&size=SIZE`.
fn varied_body(nonce: &str, size: usize) -> Vec<u8> {
    nonce.bytes().cycle().take(size).collect()
}

impl Behaviour for Varied {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        if self.below(40) == 0 {
            // The scenario is a slow server; nothing waits for this to pass.
            std::thread::sleep(Duration::from_micros(self.below(5000) as u64));
        }
        let size = request.query("size").and_then(|size| size.parse().ok()).unwrap_or_default();
        let body = varied_body(request.nonce(), size);
        let ending = self.below(300);
        let mut head = format!("HTTP/1.1 200 OK\r\nX-Nonce: {}\r\n", request.nonce());
        if ending == 0 {
            head.push_str("Connection: close\r\n");
        }
        let answer = match (request.method.as_str(), self.below(2)) {
            ("HEAD", _) => format!("{head}Content-Length: {size}\r\n\r\n").into_bytes(),
            (_, 0) => [format!("{head}Content-Length: {size}\r\n\r\n").as_bytes(), &body].concat(),
            _ => chunked(&head, &body, self.below(5000) + 1),
        };
        let cut = self.below(answer.len());
        link.answer(&answer[..cut])?;
        link.write(&answer[cut..])?;
        match ending {
            0 | 1 => {
                link.fin();
                link.until_closed();
                Err(Gone)
            }
            // Unread requests make this a reset too.
            2 | 3 => {
                link.until_acknowledged();
                Err(Gone)
            }
            4 => {
                link.until_acknowledged();
                Err(link.rst())
            }
            _ => Ok(()),
        }
    }
}

fn chunked(head: &str, body: &[u8], chunk: usize) -> Vec<u8> {
    let mut answer = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    for part in body.chunks(chunk) {
        answer.extend(format!("{:x}\r\n", part.len()).as_bytes());
        answer.extend(part);
        answer.extend(b"\r\n");
    }
    answer.extend(b"0\r\n\r\n");
    answer
}

/// One request of the long run.
struct Sent {
    nonce: String,
    method: &'static str,
    size: usize,
}

impl Sent {
    fn random(random: &mut Random) -> Sent {
        let method = ["GET", "GET", "GET", "GET", "GET", "HEAD", "POST", "GET", "PUT", "GET"]
            [random.below(10)];
        let size = match random.below(50) {
            0 => random.below(200_000),
            1..10 => random.below(5000),
            _ => random.below(100),
        };
        Sent { nonce: nonce(), method, size }
    }

    fn send(&self, client: &mut Client) {
        let target = format!("/varied?n={}&size={}", self.nonce, self.size);
        let body: &[u8] = if matches!(self.method, "POST" | "PUT") { b"some body" } else { b"" };
        client.request(self.method, &target, "", body);
    }

    /// The reply belongs to this request. A POST that is overtaken by a close may get a 502
    /// instead.
    fn check(&self, reply: &Reply) {
        if reply.status == 502 && matches!(self.method, "POST" | "PUT") {
            return;
        }
        let size = if self.method == "HEAD" { 0 } else { self.size };
        assert_eq!(reply.status, 200, "{} {}: {:?}", self.method, self.nonce, reply.body.text());
        assert_eq!(reply.fields.all("x-nonce"), [self.nonce.as_str()], "an answer went astray");
        assert!(
            reply.body.bytes == varied_body(&self.nonce, size),
            "body of {} {}",
            self.method,
            self.nonce
        );
    }
}

fn ten_thousand_requests_each_get_their_own_answer(io: Io) {
    let mut random = Random::new();
    let servers: Vec<Server> =
        (0..3).map(|_| Server::start(Varied { random: Mutex::new(random.fork()) })).collect();
    let lines: String = servers
        .iter()
        .map(|it| format!(" server \"{}\" connections-min=5 connections=5\n", it.address))
        .collect();
    let weir =
        Weir::start(io, 2, &format!("upstream \"app\" {{\n{lines}}}\nroute {{ proxy \"app\" }}\n"));
    std::thread::scope(|scope| {
        for _ in 0..20 {
            let (mut random, address) = (random.fork(), weir.address);
            scope.spawn(move || {
                let mut client = Client::connect(address);
                let mut left = 500;
                while left > 0 {
                    let batch: Vec<Sent> = (0..left.min(random.below(24) + 1))
                        .map(|_| Sent::random(&mut random))
                        .collect();
                    batch.iter().for_each(|sent| sent.send(&mut client));
                    batch.iter().for_each(|sent| sent.check(&client.reply()));
                    left -= batch.len();
                }
            });
        }
    });
    weir.stop();
    let logs: Vec<_> = servers.into_iter().map(Server::finish).collect();
    let requests = || logs.iter().flat_map(|log| log.requests.iter().map(|(_, request)| request));
    at_most_once(requests().filter(|it| it.method == "POST"));
    assert!(requests().count() >= 9_000, "nearly all reached a server");
}

/// Checks that no nonce came twice.
fn at_most_once<'a>(requests: impl Iterator<Item = &'a Request>) {
    let mut nonces: Vec<&str> = requests.map(Request::nonce).collect();
    nonces.sort_unstable();
    let twice: Vec<&[&str]> = nonces.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "sent twice: {twice:?}");
}

/// Clients that pipeline; each request gets its own response.
fn crowd(weir: &Weir, clients: usize, batches: usize, batch: usize) {
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut client = Client::connect(weir.address);
                for _ in 0..batches {
                    let nonces: Vec<String> = (0..batch).map(|_| nonce()).collect();
                    nonces.iter().for_each(|nonce| client.get(&format!("/victim?n={nonce}")));
                    nonces.iter().for_each(|nonce| check_honest(nonce, &client.reply()).unwrap());
                }
            });
        }
    });
}

fn one_upstream_connection_serves_two_workers(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 2, &app(&server, 1, ""));
    // Enough connections for the kernel to give some to each worker.
    crowd(&weir, 16, 10, 10);
    weir.stop();
    let log = server.finish();
    assert_eq!((log.accepted, log.requests.len()), (1, 1600));
}

/// Ends its connection behind the response to `/close`.
fn closes_when_asked(link: &mut Link, request: &Request) -> Result<(), Gone> {
    link.honest(request)?;
    if request.target.starts_with("/close") { Err(Gone) } else { Ok(()) }
}

fn connections_are_exactly_so_many(io: Io) {
    for workers in [1, 2] {
        for connections in [1usize, 2, 3, 32] {
            let server = Server::start(closes_when_asked);
            let weir = Weir::start(io, workers, &app(&server, connections as u32, ""));
            server
                .wait("all connections are made from the start", |log| log.accepted == connections);
            crowd(&weir, 8, 3, 5);
            assert_eq!(server.log().accepted, connections, "workers {workers}");
            let mut client = Client::connect(weir.address);
            for closed in 1..=3 {
                let nonce = nonce();
                client.get(&format!("/close?n={nonce}"));
                check_honest(&nonce, &client.reply()).unwrap();
                let all = connections + closed;
                server.wait("a closed connection is replaced", |log| {
                    log.accepted == all && log.open == connections
                });
            }
            crowd(&weir, 8, 3, 5);
            assert_eq!(server.log().accepted, connections + 3, "workers {workers}");
            weir.stop();
            server.finish();
        }
    }
}

/// Responds to `/gate` only when the test says `open`, so that others pile up meanwhile.
fn gated(link: &mut Link, request: &Request) -> Result<(), Gone> {
    if request.target.starts_with("/gate") {
        link.await_event(&format!("open {}", request.nonce()))?;
        let unanswered = request
            .query("unanswered")
            .map_or(1, |unanswered| unanswered.parse().expect("a number"));
        if link.await_unanswered(unanswered)? && unanswered > 1 {
            link.tell("all came together");
        }
    }
    link.honest(request)
}

/// Shuts a gate on the only upstream connection, lets `behind` send requests, opens it, and returns
/// the gate's reply.
fn behind_a_gate(weir: &Weir, server: &Server, unanswered: usize, behind: impl FnOnce()) -> Reply {
    let mut client = Client::connect(weir.address);
    let nonce = nonce();
    client.get(&format!("/gate?n={nonce}&unanswered={unanswered}"));
    server
        .wait("the gate is reached", |log| log.requests.iter().any(|(_, it)| it.nonce() == nonce));
    behind();
    server.tell(&format!("open {nonce}"));
    let reply = client.reply();
    check_honest(&nonce, &reply).unwrap();
    reply
}

fn e0_depth_is_earned(io: Io) {
    let server = Server::start(gated);
    let weir = Weir::start(io, 1, &app(&server, 1, "pipeline depth=64"));
    // One connection, so everything must follow everything else as soon as it may.
    let mut clients = Vec::new();
    behind_a_gate(&weir, &server, 1, || clients = scattered(&weir, 40));
    all_answered(clients);
    assert_eq!(server.log().depths, [1], "pipelined before trust was earned");
    crowd(&weir, 4, 5, 5);
    // Now they come together, except at a sync point, where weir lets the connection run empty
    // first.
    for _ in 0..20 {
        let mut clients = Vec::new();
        behind_a_gate(&weir, &server, 11, || clients = scattered(&weir, 10));
        all_answered(clients);
        if server.log().events.iter().any(|event| event == "all came together") {
            break;
        }
    }
    weir.stop();
    let log = server.finish();
    assert!(log.depths[0] > 10, "never pipelined although trust was earned: {:?}", log.depths);
}

/// Ends each connection after this many responses, in one of the ways of the catalogue.
impl Behaviour for Closes {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        let Closing { answers, how, .. } = self.0;
        let last = link.answers + 1 == answers;
        match (how, last, link.answers >= answers) {
            (Ending::HalfAnswer, _, true) => {
                let answer = honest_answer(request.nonce());
                link.answer(&answer[..20])?;
                Err(Gone)
            }
            (_, true, _) => link.end(request, how),
            _ => link.honest(request),
        }
    }
}

struct Closes(Closing);

fn e18_e27_servers_that_close(io: Io) {
    for row in closings() {
        eprintln!("row {}", row.id);
        let server = Server::start(Closes(row));
        // A reset is a failure and counts against a request; this test is about order and loss, not
        // about giving up.
        let weir = Weir::start(io, 1, &app(&server, 2, "forward-retries 100\n pipeline depth=32"));
        crowd(&weir, 6, 8, 10);
        weir.stop();
        let log = server.finish();
        assert!(log.accepted > 2, "{}: the server closes", row.id);
    }
}

/// Dies at random points of a request: before its response, with or without a FIN.
struct Dying {
    random: Mutex<Random>,
}

impl Behaviour for Dying {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        let point = self.random.lock().expect("no panic").below(40);
        match point {
            0 => Err(Gone),
            1 => Err(link.rst()),
            2 => {
                link.fin();
                link.until_closed();
                Err(Gone)
            }
            3 => link.answer(b"HTTP/1.1 200 OK\r\nX-No").and(Err(Gone)),
            4 => link.honest(request).and(Err(Gone)),
            _ => link.honest(request),
        }
    }

    fn on_head(&self, link: &mut Link, _request: &Request) -> Result<(), Gone> {
        let dies = self.random.lock().expect("no panic").below(10) == 0;
        if dies { Err(link.rst()) } else { Ok(()) }
    }
}

fn posts_reach_a_dying_server_at_most_once(io: Io) {
    let mut random = Random::new();
    let server = Server::start(Dying { random: Mutex::new(random.fork()) });
    let weir = Weir::start(io, 2, &app(&server, 4, "forward-retries 100"));
    let answered = Mutex::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            let (mut random, weir, answered) = (random.fork(), &weir, &answered);
            scope.spawn(move || {
                let mut client = Client::connect(weir.address);
                for _ in 0..30 {
                    let batch: Vec<(&str, String)> = (0..random.below(5) + 1)
                        .map(|_| (["GET", "GET", "POST"][random.below(3)], nonce()))
                        .collect();
                    for (method, nonce) in &batch {
                        let body: &[u8] = if *method == "POST" { b"once" } else { b"" };
                        client.request(method, &format!("/victim?n={nonce}"), "", body);
                    }
                    for (method, nonce) in &batch {
                        let reply = client.reply();
                        match (*method, reply.status) {
                            ("POST", 502) => {}
                            // One request in five meets a death here: four in a row make a suspect
                            // by chance.
                            ("GET", 503) if reply.body.text().contains("suspect") => {}
                            _ => check_honest(nonce, &reply)
                                .unwrap_or_else(|error| panic!("{method}: {error}")),
                        }
                        *answered.lock().expect("no panic") += usize::from(reply.status == 200);
                    }
                }
            });
        }
    });
    weir.stop();
    let log = server.finish();
    let posts = || log.requests.iter().map(|(_, request)| request).filter(|it| it.method == "POST");
    at_most_once(posts());
    assert!(posts().count() > 0 && *answered.lock().expect("no panic") > 0);
}

fn nothing_follows_what_the_rules_mark(io: Io) {
    // Nothing may arrive behind a marked GET before its response; the server checks that.
    let server = Server::start(|link: &mut Link, request: &Request| {
        if request.target.starts_with("/forum") {
            link.drain()?;
            if link.unanswered() > 1 {
                link.fault(&format!("{} unanswered at {}", link.unanswered(), request.target));
            }
        }
        link.honest(request)
    });
    let rules = "pipeline depth=64\n nonidempotent \"GET\" prefix=\"/forum?post\"";
    let weir = Weir::start(io, 1, &app(&server, 1, rules));
    crowd(&weir, 4, 10, 5);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Client::connect(weir.address);
                for _ in 0..10 {
                    let nonces: Vec<String> = (0..6).map(|_| nonce()).collect();
                    for (at, nonce) in nonces.iter().enumerate() {
                        let path = if at % 3 == 1 { "/forum?post&" } else { "/victim?" };
                        client.get(&format!("{path}n={nonce}"));
                    }
                    nonces.iter().for_each(|nonce| check_honest(nonce, &client.reply()).unwrap());
                }
            });
        }
    });
    weir.stop();
    server.finish();
}

fn full_queues_answer_503(io: Io) {
    let server = Server::start(gated);
    let weir = Weir::start(io, 1, &app(&server, 1, "queue-size 4"));
    let mut clients = Vec::new();
    let mut refused = 0;
    behind_a_gate(&weir, &server, 1, || {
        clients = scattered(&weir, 12);
        // The gate and three more requests fill the queue; the others are rejected while it is
        // shut.
        for (client, _) in clients.iter_mut().skip(3) {
            let reply = client.reply();
            assert_eq!(reply.status, 503);
            assert!(reply.fields.has("retry-after"));
            refused += 1;
        }
        clients.truncate(3);
    });
    all_answered(clients);
    assert_eq!(refused, 9);
    weir.stop();
    server.finish();
}

/// Responds to the two requests that came behind `/gate` in the wrong order, each with its own
/// identifier.
fn swaps(link: &mut Link, request: &Request) -> Result<(), Gone> {
    let answer = |request: &Request| {
        let text = String::from_utf8(honest_answer(request.nonce())).expect("text");
        let echo = request.fields.first("x-request-id").unwrap_or_default();
        text.replacen("\r\n", &format!("\r\nX-Request-Id: {echo}\r\n"), 1).into_bytes()
    };
    let is_followed = request.target.starts_with("/gate") && link.await_unanswered(3)?;
    link.answer(&answer(request))?;
    if is_followed && let (Some(first), Some(second)) = (link.next_request(), link.next_request()) {
        link.tell("mixed up");
        link.answer(&answer(&second))?;
        link.answer(&answer(&first))?;
    }
    Ok(())
}

fn e20_echo_finds_answers_in_the_wrong_order(io: Io) {
    let server = Server::start(swaps);
    let weir = Weir::start(io, 1, &app(&server, 1, "pipeline depth=16 echo=\"x-request-id\""));
    crowd(&weir, 4, 10, 10);
    let mut client = Client::connect(weir.address);
    let mut refused = 0;
    // If a sync point comes between them, they don't come together.
    eventually("two answers are mixed up", || {
        let nonces = [nonce(), nonce(), nonce()];
        let requests = ["/gate", "/victim", "/victim"].iter().zip(&nonces).map(|(path, nonce)| {
            client.ask("GET", false);
            format!("GET {path}?n={nonce} HTTP/1.1\r\nHost: a\r\n\r\n")
        });
        let bytes: String = requests.collect();
        client.send(bytes.as_bytes());
        for nonce in &nonces {
            let reply = client.reply();
            match reply.status {
                502 => refused += 1,
                _ => check_honest(nonce, &reply).expect("never the answer of another"),
            }
        }
        server.log().events.iter().any(|event| event == "mixed up")
    });
    assert_eq!(refused, 1, "the one that another answer came to; the other one is asked again");
    weir.stop();
    server.finish();
}

fn share_client_keeps_clients_apart(io: Io) {
    // All unanswered requests on a connection belong to one client at any time.
    let server = Server::start(|link: &mut Link, request: &Request| {
        link.drain()?;
        let mut together = vec![request.clone()];
        together.extend(std::iter::from_fn(|| link.next_request()));
        if together.iter().any(|it| it.query("client") != request.query("client")) {
            link.fault("requests of two clients together");
        }
        together.iter().try_for_each(|request| link.honest(request))
    });
    let weir = Weir::start(io, 1, &app(&server, 2, "pipeline depth=64 share=\"client\""));
    std::thread::scope(|scope| {
        for number in 0..6 {
            let weir = &weir;
            scope.spawn(move || {
                let mut client = Client::connect(weir.address);
                for _ in 0..30 {
                    let nonces: Vec<String> = (0..10).map(|_| nonce()).collect();
                    nonces.iter().for_each(|nonce| {
                        client.get(&format!("/victim?n={nonce}&client={number}"))
                    });
                    nonces.iter().for_each(|nonce| check_honest(nonce, &client.reply()).unwrap());
                }
            });
        }
    });
    weir.stop();
    let log = server.finish();
    assert!(
        log.depths.iter().any(|&depth| depth > 1),
        "one client's requests follow each other: {:?}",
        log.depths
    );
}

fn a_surplus_ends_pipelining_for_good(io: Io) {
    // A response too many while the connection is pipelined, seen when no request is outstanding.
    let server = Server::start(|link: &mut Link, request: &Request| {
        link.honest(request)?;
        if request.target.starts_with("/surplus") {
            link.await_event("delivered")?;
            link.write(&honest_answer("5500000f"))?;
            link.until_closed();
            return Err(Gone);
        }
        Ok(())
    });
    let weir = Weir::start(io, 1, &app(&server, 1, "pipeline depth=64"));
    crowd(&weir, 4, 10, 10);
    assert!(server.log().depths[0] > 1, "pipelined at first");
    let (mut client, id) = (Client::connect(weir.address), nonce());
    client.get(&format!("/surplus?n={id}"));
    check_honest(&id, &client.reply()).unwrap();
    server.tell("delivered");
    server.wait("the connection is replaced", |log| log.accepted == 2);
    crowd(&weir, 6, 20, 10);
    weir.stop();
    let log = server.finish();
    assert_eq!(log.depths[1..], [1], "pipelined after a surplus");
}
