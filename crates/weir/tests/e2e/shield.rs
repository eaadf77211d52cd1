//! Proves: limits of `shield` apply to each client over all workers, connections and protocols. A
//! client over a limit learns when to retry, is reset, or is only counted. Status and metrics show
//! that; another configuration changes limits without a restart. How: the real binary, and clients
//! of different addresses of the loopback network. docs/limits.md.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::kit::http2::Http2Client;
use crate::kit::tls::{certificate, config, connection};
use crate::kit::{
    Client, Honest, Io, Scratch, Server, Weir, app, bounded, eventually, free_port, nonce,
    on_both_drivers, request, status,
};

on_both_drivers!(
    a_client_has_so_many_requests,
    connections_are_reset,
    who_guesses_is_refused,
    to_observe_refuses_nobody,
    limits_change,
    many_ask_more_than_they_may,
    handshakes_are_limited_and_resumed_ones_are_free,
    who_fails_to_shake_hands_is_refused_in_front_of_it,
    what_is_open_counts_in_front_of_the_handshake,
    who_asks_too_much_is_kept_waiting,
    a_full_table_opens_no_limit,
);

/// Returns the address of a client on this machine. The first one waits for weir to start.
fn from(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

fn connect(weir: &Weir, last: u8) -> Client {
    Client::connect_from(from(last), weir.address)
}

/// Returns the status of the response to a GET.
fn get(client: &mut Client, path: &str) -> u16 {
    client.get(&format!("{path}?n={}", nonce()));
    client.reply().status
}

/// Returns the counts of the first limit: passed, refused, observed.
fn counted(weir: &Weir) -> [u64; 3] {
    let limit = &status(weir)["limits"][0];
    ["passed", "refused", "observed"].map(|word| limit[word].as_u64().expect("a count"))
}

fn a_client_has_so_many_requests(io: Io) {
    let server = Server::start(Honest);
    let (h2c, metrics) = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port()))).into();
    let shield = format!(
        "listen \"{h2c}\" {{ protocols \"h2c\" }}\nmetrics \"{metrics}\"\n\
         shield {{\n allow \"127.0.0.9\"\n limit \"login\" count=\"requests\" rate=\"1/h\" burst=4 \
         {{ match path=\"/login\"; }}\n}}\n"
    );
    let weir = Weir::start(io, 2, &(shield + &app(&server, 2, "")));
    // On whichever workers.
    let mut clients: Vec<Client> = (0..6).map(|_| connect(&weir, 2)).collect();
    let statuses: Vec<u16> = clients.iter_mut().map(|client| get(client, "/login")).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
    let top = weir.answer(&["shield", "top", "--limit", "login"]);
    let row: Vec<&str> = top.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert!(row.starts_with(&["127.0.0.2", "login", "100%"]) && row.contains(&"2"), "{top}");
    let all: serde_json::Value =
        serde_json::from_str(&weir.answer(&["shield", "status", "--json"])).expect("JSON");
    assert_eq!(
        (&all["used"], &all["accounts"], &all["limits"][0]["refused"]),
        (&1.into(), &65_536.into(), &2.into())
    );
    assert!(
        weir.answer(&["shield", "status"])
            .starts_with("shield rejects clients over a limit; 1 of ")
    );
    let client = &mut clients[5];
    client.get("/x/..//log%69n");
    let refused = client.reply();
    let again: u32 =
        refused.fields.first("Retry-After").expect("when to come again").parse().expect("seconds");
    assert!(refused.status == 429 && (3000..=3600).contains(&again), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.body.bytes).contains("over-limit"), "{refused:?}");
    assert_eq!(get(client, "/other"), 200, "what the limit is not for");
    let (mut other, mut allowed) = (connect(&weir, 3), connect(&weir, 9));
    assert_eq!(get(&mut other, "/login"), 200);
    assert!((0..9).all(|_| get(&mut allowed, "/login") == 200));
    // Streams are requests of the same client, which has no other requests.
    let mut new = Http2Client::connect(h2c, &[]);
    let asked: Vec<u32> = (0..6)
        .map(|_| {
            let (request, stream) =
                new.request("GET", &format!("/login?n={}", nonce()), &[], false);
            new.send(&request);
            stream
        })
        .collect();
    let answers: Vec<u16> =
        asked.into_iter().flat_map(|stream| new.answer(stream).statuses).collect();
    assert_eq!(answers, [200, 200, 200, 200, 429, 429]);
    assert_eq!(counted(&weir), [9, 5, 0]);
    let shown = weir.answer(&["status"]);
    assert!(shown.contains("LIMIT") && shown.contains("login"), "{shown}");
    let mut scraper = Client::connect(metrics);
    scraper.request("GET", "/metrics", "Connection: close\r\n", b"");
    let text = String::from_utf8_lossy(&scraper.reply().body.bytes).into_owned();
    assert!(text.contains("weir_shield_total{limit=\"login\",outcome=\"refused\"} 5"), "{text}");
    drop((clients, other, allowed, new));
    weir.stop();
    server.finish();
}

/// Connects and sends a request. None: the connection is reset before that, else it has a response.
fn is_taken(weir: &Weir, last: u8) -> Option<Client> {
    let mut client = connect(weir, last);
    client.ask("GET", false);
    let sent =
        client.try_send(format!("GET /?n={} HTTP/1.1\r\nHost: a\r\n\r\n", nonce()).as_bytes());
    client.try_reply().filter(|reply| sent && reply.status == 200).map(|_| client)
}

fn connections_are_reset(io: Io) {
    let server = Server::start(Honest);
    let shield = "shield { limit \"open\" count=\"open\" max=2; limit \"new\" \
        count=\"connections\" rate=\"1/h\" burst=4; }\n";
    let weir = Weir::start(io, 1, &(shield.to_owned() + &app(&server, 2, "")));
    let first = is_taken(&weir, 2).expect("it may connect");
    let second = is_taken(&weir, 2).expect("it may connect");
    let mut third = connect(&weir, 2).stream();
    let error = third.read(&mut [0]).expect_err("it is reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(is_taken(&weir, 3).is_some(), "another client");
    drop((first, second));
    let open = || status(&weir)["clients"]["connections"].as_u64();
    eventually("they are gone", || open() == Some(0));
    for _ in 0..2 {
        assert!(is_taken(&weir, 2).is_some(), "it is one of two again");
    }
    assert!(is_taken(&weir, 2).is_none(), "the fifth in an hour");
    assert_eq!(counted(&weir)[1], 1);
    weir.stop();
    server.finish();
}

/// Responses of servers and of weir itself count, over all connections; a trusted proxy names the
/// client.
fn who_guesses_is_refused(io: Io) {
    let server = Server::start(Honest);
    let shield = "client { trusted-proxies \"127.0.0.8\" }\n\
                  shield { limit \"guessing\" count=\"answers\" status=\"401,404\" rate=\"1/h\" \
                  burst=3; }\n\
                  route path=\"/none\" { respond 404; }\nroute path=\"/login\" { respond 401; }\n";
    let weir = Weir::start(io, 2, &(shield.to_owned() + &app(&server, 2, "")));
    let (mut one, mut two) = (connect(&weir, 2), connect(&weir, 2));
    assert_eq!(
        [get(&mut one, "/"), get(&mut one, "/none"), get(&mut two, "/login")],
        [200, 404, 401]
    );
    assert_eq!([get(&mut two, "/"), get(&mut two, "/none"), get(&mut one, "/")], [200, 404, 429]);
    assert_eq!(get(&mut connect(&weir, 2), "/"), 429, "on each connection");
    assert_eq!(get(&mut connect(&weir, 3), "/none"), 404, "another client");
    let mut proxy = connect(&weir, 8);
    let mut ask = |who: &str, path: &str| {
        proxy.request(
            "GET",
            &format!("{path}?n={}", nonce()),
            &format!("X-Forwarded-For: {who}\r\n"),
            b"",
        );
        proxy.reply().status
    };
    assert_eq!([(); 4].map(|()| ask("192.0.2.7", "/none")), [404, 404, 404, 429]);
    assert_eq!(
        [ask("192.0.2.8", "/none"), ask("192.0.2.7", "/"), ask("192.0.2.8", "/")],
        [404, 429, 200]
    );
    assert_eq!(counted(&weir), [8, 4, 0]);
    weir.stop();
    server.finish();
}

fn to_observe_refuses_nobody(io: Io) {
    let server = Server::start(Honest);
    let shield = "shield { mode \"observe\"; limit \"rate\" count=\"requests\" rate=\"1/h\" \
        burst=1; limit \"open\" count=\"open\" max=1; }\n";
    let weir = Weir::start(io, 1, &(shield.to_owned() + &app(&server, 2, "")));
    let (mut one, mut other) = (connect(&weir, 2), connect(&weir, 2));
    for _ in 0..15 {
        request(&mut one);
        request(&mut other);
    }
    assert_eq!(counted(&weir), [1, 0, 29]);
    assert_eq!(status(&weir)["limits"][1]["observed"], 1);
    assert!(weir.answer(&["status"]).contains("observes only"));
    drop((one, other));
    weir.stop();
    server.finish();
}

fn limits_change(io: Io) {
    let server = Server::start(Honest);
    let with = |shield: &str| format!("{shield}\n{}", app(&server, 2, ""));
    let limit = |name: &str, burst: u32| {
        format!(
            "shield {{ limit \"{name}\" count=\"requests\" rate=\"1/h\" burst={burst} \
                over=\"503\"; }}"
        )
    };
    let weir = Weir::start(io, 2, &with(""));
    let mut client = connect(&weir, 2);
    let reload = |shield: &str| {
        weir.rewrite(&with(shield));
        weir.answer(&["reload"]);
    };
    assert_eq!([get(&mut client, "/"), get(&mut client, "/")], [200; 2]);
    reload(&limit("rate", 2));
    assert_eq!([(); 3].map(|()| get(&mut client, "/")), [200, 200, 503]);
    reload(&limit("rate", 3));
    assert_eq!([(); 2].map(|()| get(&mut client, "/")), [200, 503], "what it owes is known");
    assert_eq!(counted(&weir), [3, 2, 0], "and what was counted");
    reload(&limit("other", 1));
    assert_eq!([(); 2].map(|()| get(&mut client, "/")), [200, 503]);
    reload("");
    assert_eq!([get(&mut client, "/"), get(&mut client, "/")], [200; 2]);
    weir.rewrite(&with("shield { limit \"a\" count=\"requests\"; }"));
    assert_eq!(weir.ask(&["reload"]).status.code(), Some(78), "a limit without a rate");
    assert_eq!(get(&mut client, "/"), 200);
    drop(client);
    weir.stop();
    server.finish();
}

/// Clients send requests at the same time, each on connections to whatever workers: each gets
/// exactly its burst, and a client within it gets all of it.
fn many_ask_more_than_they_may(io: Io) {
    let server = Server::start(Honest);
    let shield = "shield { limit \"rate\" count=\"requests\" rate=\"1/h\" burst=50; }\n";
    let weir = Weir::start(io, 2, &(shield.to_owned() + &app(&server, 4, "")));
    let running = &weir;
    // It sends requests until it is rejected a few times.
    let ask = move |last: u8| {
        let mut client = connect(running, last);
        (0..30)
            .map(|_| get(&mut client, "/"))
            .scan(0, |refused, status| {
                *refused += usize::from(status == 429);
                (*refused < 5).then_some(status)
            })
            .filter(|status| *status == 200)
            .count()
    };
    let answered: Vec<usize> = std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..8).map(|number| scope.spawn(move || ask(10 + number % 4))).collect();
        clients.into_iter().map(|client| client.join().expect("no panic")).collect()
    });
    let sums: Vec<usize> = (0..4).map(|number| answered[number] + answered[number + 4]).collect();
    assert_eq!(sums, [50; 4], "{answered:?}");
    let mut modest = connect(&weir, 20);
    assert!((0..50).all(|_| get(&mut modest, "/") == 200));
    drop(modest);
    weir.stop();
    server.finish();
}

/// Starts a TLS listener behind a balancer, and these limits. The balancer names the client.
fn sealed(io: Io, server: &Server, scratch: &Scratch, shield: &str) -> (Weir, SocketAddr) {
    let (address, files) = (
        SocketAddr::from(([127, 0, 0, 1], free_port())),
        certificate(scratch, "ec", &["a.test"], 9),
    );
    let listener = format!(
        "listen \"{address}\" {{ proxy-protocol #true; tls {{ {} }}; }}\n",
        files.row().trim_end()
    );
    let rest = format!(
        "{listener}client {{ trusted-proxies \"127.0.0.1\"; }}\nshield {{ {shield}; }}\n{}",
        app(server, 2, "")
    );
    (Weir::start(io, 1, &rest), address)
}

/// Connects a client.
fn knock(to: SocketAddr, who: &str) -> TcpStream {
    let mut stream = TcpStream::connect(to).expect("the balancer may connect");
    bounded(&stream);
    stream
        .write_all(format!("PROXY TCP4 {who} 198.51.100.1 4711 443\r\n").as_bytes())
        .expect("it is read");
    stream
}

/// Whether a silent client is reset.
fn is_reset(to: SocketAddr, who: &str) -> bool {
    knock(to, who).read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

/// Shakes hands and sends a request. Returns the connection if there is a response.
fn shake(
    to: SocketAddr,
    who: &str,
    config: &Arc<ClientConfig>,
) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut stream = StreamOwned::new(connection(config, "a.test"), knock(to, who));
    stream.write_all(format!("GET /?n={} HTTP/1.1\r\nHost: a\r\n\r\n", nonce()).as_bytes())?;
    let mut first = [0; 15];
    stream.read_exact(&mut first)?;
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    Ok(stream)
}

fn handshakes_are_limited_and_resumed_ones_are_free(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let (weir, address) =
        sealed(io, &server, &scratch, "limit \"hands\" count=\"handshakes\" rate=\"1/h\" burst=3");
    let resuming = {
        let mut config = Arc::unwrap_or_clone(config());
        config.resumption = Resumption::in_memory_sessions(8);
        Arc::new(config)
    };
    // A full handshake, and others that resume its session.
    for _ in 0..6 {
        shake(address, "247.0.3.1", &resuming).expect("he may");
    }
    let totals = || status(&weir)["totals"].clone();
    assert_eq!((&totals()["tls_handshakes"], &totals()["tls_resumed"]), (&6.into(), &5.into()));
    assert_eq!(counted(&weir), [1, 0, 0]);
    shake(address, "247.0.3.1", &config()).expect("the second");
    let third = shake(address, "247.0.3.1", &config()).expect("the third");
    assert!(is_reset(address, "247.0.3.1") && shake(address, "247.0.3.1", &resuming).is_err());
    assert!(shake(address, "247.0.3.2", &config()).is_ok(), "another client");
    assert_eq!((counted(&weir), &totals()["tls_handshakes"]), ([4, 2, 0], &9.into()));
    drop(third);
    weir.stop();
    server.finish();
}

fn who_fails_to_shake_hands_is_refused_in_front_of_it(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let limit = "limit \"failed\" count=\"handshakes-failed\" rate=\"1/h\" burst=3 over=\"close\"";
    let (weir, address) = sealed(io, &server, &scratch, limit);
    // No TLS; an unknown version; and a client that leaves in the middle.
    let ends = |bytes: &[u8]| {
        let mut stream = knock(address, "247.0.3.1");
        stream.write_all(bytes).expect("it is read");
        stream
    };
    for bytes in
        [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], b"\x16\x03\x01\x00\x04\x01\x00\x00\x00"]
    {
        let _ = ends(bytes).read_to_end(&mut Vec::new());
    }
    drop(ends(b"\x16\x03\x01\x00\x40"));
    eventually("all are counted", || counted(&weir) == [3, 0, 0]);
    let end = knock(address, "247.0.3.1").read(&mut [0]).expect("he is closed");
    assert_eq!((end, counted(&weir)), (0, [3, 1, 0]));
    shake(address, "247.0.3.2", &config()).expect("another client");
    let mut plain = Client::connect(weir.address);
    assert_eq!(get(&mut plain, "/"), 200);
    assert_eq!(status(&weir)["totals"]["tls_failures"]["left"], 1);
    weir.stop();
    server.finish();
}

fn what_is_open_counts_in_front_of_the_handshake(io: Io) {
    let (server, scratch) = (Server::start(Honest), Scratch::new());
    let limit = "limit \"open\" count=\"open\" max=2";
    let (weir, address) = sealed(io, &server, &scratch, limit);
    let open = shake(address, "247.0.3.1", &config()).expect("the first");
    let silent = knock(address, "247.0.3.1");
    eventually("both are known", || counted(&weir)[0] == 2);
    assert!(is_reset(address, "247.0.3.1"));
    assert!(shake(address, "247.0.3.2", &config()).is_ok(), "another client");
    drop(silent);
    eventually("it is forgotten", || status(&weir)["totals"]["tls_failures"]["left"] == 1);
    let second = shake(address, "247.0.3.1", &config()).expect("one of two again");
    assert!(is_reset(address, "247.0.3.1"));
    drop((open, second));
    eventually("all are gone", || status(&weir)["clients"]["connections"] == 0);
    drop([(); 2].map(|()| shake(address, "247.0.3.1", &config()).expect("he has nothing open")));
    weir.stop();
    server.finish();
}

fn who_asks_too_much_is_kept_waiting(io: Io) {
    let server = Server::start(Honest);
    let shield = "shield { tarpit \"2s\"; tarpit-max 1\n limit \"few\" count=\"requests\" \
        rate=\"1/h\" burst=1 over=\"tarpit\"; }\n";
    let weir = Weir::start(io, 1, &(shield.to_owned() + &app(&server, 1, "")));
    let (mut patient, mut leaver) = (connect(&weir, 2), connect(&weir, 3));
    assert_eq!((get(&mut patient, "/"), get(&mut leaver, "/")), (200, 200));
    let waits = |weir: &Weir| status(weir)["totals"]["tarpitted"].as_u64().expect("a count");
    leaver.get(&format!("/?n={}", nonce()));
    eventually("he waits", || waits(&weir) == 1);
    // There is room for one: another one is reset.
    patient.get(&format!("/?n={}", nonce()));
    assert!(patient.end().reset);
    assert_eq!(status(&weir)["totals"]["tarpit_full"], 1);
    drop(leaver);
    eventually("he is let go when he leaves", || status(&weir)["clients"]["connections"] == 0);
    let mut other = connect(&weir, 2);
    let begun = std::time::Instant::now();
    other.get(&format!("/?n={}", nonce()));
    assert_eq!(other.reply().status, 429);
    assert!(begun.elapsed() >= std::time::Duration::from_secs(2) && !other.end().reset);
    assert_eq!(waits(&weir), 2);
    weir.stop();
    server.finish();
}

/// One client fills the table with values that it has made up: guesses for another value are
/// rejected as before.
fn a_full_table_opens_no_limit(io: Io) {
    let server = Server::start(Honest);
    let shield = "shield {\n table 1024\n limit \"login\" count=\"requests\" by=\"header:x-user\" \
        rate=\"1/h\" burst=4\n}\n";
    let weir = Weir::start(io, 2, &(shield.to_owned() + &app(&server, 8, "")));
    let passed = |client: &mut Client, user: &str, times: usize| {
        for _ in 0..times {
            client.request("GET", &format!("/?n={}", nonce()), &format!("X-User: {user}\r\n"), b"");
        }
        (0..times).filter(|_| client.reply().status == 200).count()
    };
    let mut client = connect(&weir, 1);
    assert_eq!(passed(&mut client, "ann", 20), 4);
    for user in 0..2_000 {
        passed(&mut client, &format!("u{user}"), 6);
    }
    let bob = passed(&mut client, "bob", 20);
    assert!(bob <= 4, "{bob} guesses passed a full table");
    assert!(status(&weir)["limits"][0]["shared"].as_u64().expect("a count") > 0);
    weir.stop();
    server.finish();
}
