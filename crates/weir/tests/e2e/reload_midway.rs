//! Proves: a reload in the middle of a pipelined batch, an upload, a tunnel, a drain, the end of
//! weir or another reload loses none of it and misroutes none: earlier requests are finished where
//! they were routed, later ones follow the configuration in force. How: the real binary with
//! servers that respond on a signal. docs/reload.md.

use std::sync::Barrier;

use crate::kit::{
    Behaviour, Client, Gone, Honest, Io, Link, SWITCH, Server, Weir, eventually, nonce,
    on_both_drivers, pattern, request, status,
};
use weir_check::upstreams::check_honest;
use weir_check::{Body, Request};

on_both_drivers!(
    a_pipelined_batch_is_answered_in_order_by_both,
    an_upload_goes_on_where_it_began,
    a_tunnel_goes_on,
    a_drained_server_stays_drained,
    who_ends_takes_nothing_new_into_force,
    reloads_at_once_are_done_one_after_another,
);

/// Returns one upstream of this server, and the route to it.
fn to(server: &Server) -> String {
    format!(
        "upstream \"app\" {{ server \"{}\" connections=2; }}\nroute {{ proxy \"app\" }}\n",
        server.address
    )
}

/// Responds on a signal, and echoes behind an Upgrade; reports heads whose bodies are still to
/// come.
struct Patient;

impl Behaviour for Patient {
    fn on_request(&self, link: &mut Link, request: &Request) -> Result<(), Gone> {
        if request.fields.has("upgrade") {
            link.upgrade(SWITCH)?;
            link.echo()?;
            return Err(Gone);
        }
        link.await_event("go")?;
        link.honest(request)
    }

    fn on_head(&self, link: &mut Link, _request: &Request) -> Result<(), Gone> {
        link.tell("head");
        Ok(())
    }
}

/// Replaces weir's server with another.
fn replace(weir: &Weir, by: &Server) {
    weir.rewrite(&to(by));
    weir.answer(&["reload"]);
}

fn a_pipelined_batch_is_answered_in_order_by_both(io: Io) {
    let (old, new) = (Server::start(Patient), Server::start(Honest));
    let weir = Weir::start(io, 2, &to(&old));
    let mut client = Client::connect(weir.address);
    let nonces: Vec<String> = (0..8).map(|_| nonce()).collect();
    let (first, second) = nonces.split_at(4);
    let batch = |client: &mut Client, nonces: &[String]| {
        nonces.iter().for_each(|_| client.ask("GET", false));
        let heads =
            nonces.iter().map(|nonce| format!("GET /victim?n={nonce} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client.send(heads.collect::<String>().as_bytes());
    };
    batch(&mut client, first);
    old.wait("one is there", |log| !log.requests.is_empty());
    eventually("all of them were read", || status(&weir)["clients"]["requests"] == 4);
    replace(&weir, &new);
    batch(&mut client, second);
    // Responses wait for those before them.
    new.wait("the second half goes to the new one", |log| log.requests.len() >= 4);
    old.tell("go");
    for nonce in &nonces {
        check_honest(nonce, &client.reply()).unwrap();
    }
    request(&mut client);
    let went = |server: &Server, nonces: &[String]| {
        let log = server.log();
        nonces
            .iter()
            .all(|nonce| log.requests.iter().any(|(_, request)| request.target.contains(nonce)))
    };
    assert!(went(&new, second), "by what is in force");
    weir.stop();
    [old, new].into_iter().for_each(|server| drop(server.finish()));
}

fn an_upload_goes_on_where_it_began(io: Io) {
    let (old, new) = (Server::start(Patient), Server::start(Honest));
    let weir = Weir::start(io, 2, &to(&old));
    let mut client = Client::connect(weir.address);
    let (body, nonce) = (pattern(300_000), nonce());
    client.ask("POST", false);
    client.send(
        format!(
            "POST /victim?n={nonce} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
            body.len()
        )
        .as_bytes(),
    );
    client.send(&body[..100_000]);
    old.wait("its head is there", |log| log.events.iter().any(|event| event == "head"));
    replace(&weir, &new);
    // A new body limit, which it exceeds, comes too late for it.
    weir.rewrite(&format!("client {{ body-limit \"1KiB\"; }}\n{}", to(&new)));
    weir.answer(&["reload"]);
    client.send(&body[100_000..]);
    old.wait("all of it arrives", |log| log.requests.len() == 1);
    assert_eq!(old.log().requests[0].1.body, Body::of(&body));
    old.tell("go");
    check_honest(&nonce, &client.reply()).unwrap();
    request(&mut client);
    client.request("POST", "/victim?n=1", "", &body[..2000]);
    assert_eq!(client.reply().status, 413, "the next one meets it");
    weir.stop();
    [old, new].into_iter().for_each(|server| drop(server.finish()));
}

fn a_tunnel_goes_on(io: Io) {
    let (old, new) = (Server::start(Patient), Server::start(Honest));
    let weir = Weir::start(io, 2, &to(&old));
    let mut tunnel = Client::connect(weir.address);
    tunnel.ask_upgrade();
    tunnel
        .send(b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(tunnel.reply().status, 101);
    tunnel.send(b"half of ");
    replace(&weir, &new);
    for _ in 0..3 {
        // Its upstream is replaced, and then removed.
        weir.rewrite("route { respond 200 text=\"none\"; }\n");
        weir.answer(&["reload"]);
        weir.rewrite(&to(&new));
        weir.answer(&["reload"]);
    }
    tunnel.send(b"a word");
    assert_eq!(tunnel.tunnel(14), b"half of a word");
    request(&mut Client::connect(weir.address));
    drop(tunnel);
    old.wait("it is closed with its client", |log| log.open == 0);
    weir.stop();
    [old, new].into_iter().for_each(|server| drop(server.finish()));
}

/// `drain --wait` waits for requests under way even if the configuration changes meanwhile, and the
/// reload does not bring the server back.
fn a_drained_server_stays_drained(io: Io) {
    let (drained, other) = (Server::start(Patient), Server::start(Honest));
    let [a, b] = [&drained, &other].map(|server| server.address);
    let both = |more: &str| {
        format!(
            "upstream \"app\" {{ {more} server \"{a}\" connections=2; server \"{b}\" \
                connections=2; }}\nroute {{ proxy \"app\" }}\n"
        )
    };
    let weir = Weir::start(io, 2, &both(""));
    weir.answer(&["status", "--wait"]);
    let mut clients: Vec<(Client, String)> =
        (0..8).map(|_| (Client::connect(weir.address), nonce())).collect();
    clients.iter_mut().for_each(|(client, nonce)| client.get(&format!("/victim?n={nonce}")));
    drained.wait("a request is there", |log| !log.requests.is_empty());
    let name = a.to_string();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| weir.answer(&["server", "drain", "app", &name, "--wait"]));
        eventually("it drains", || {
            status(&weir)["upstreams"][0]["servers"][0]["state"] == "draining"
        });
        weir.rewrite(&both("forward-timeout \"7s\";"));
        weir.answer(&["reload"]);
        assert_eq!(
            status(&weir)["upstreams"][0]["servers"][0]["state"],
            "draining",
            "an order outlives a reload"
        );
        assert!(!waiting.is_finished(), "what is under way is not answered yet");
        drained.tell("go");
        waiting.join().expect("drained");
    });
    for (client, nonce) in &mut clients {
        check_honest(nonce, &client.reply()).unwrap();
    }
    let asked = drained.log().requests.len();
    (0..20).for_each(|_| request(&mut clients[0].0));
    assert_eq!(drained.log().requests.len(), asked, "it gets nothing new");
    weir.stop();
    [drained, other].into_iter().for_each(|server| drop(server.finish()));
}

/// A weir that is ending finishes its requests by the previous configuration.
fn who_ends_takes_nothing_new_into_force(io: Io) {
    let (old, new) = (Server::start(Patient), Server::start(Honest));
    let mut weir = Weir::start(io, 2, &to(&old));
    let (mut client, nonce) = (Client::connect(weir.address), nonce());
    client.get(&format!("/victim?n={nonce}"));
    old.wait("a request is there", |log| !log.requests.is_empty());
    weir.signal("TERM");
    eventually("it ends", || weir.said().contains("drain"));
    weir.rewrite(&to(&new));
    let output = weir.ask(&["reload"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && !said.is_empty(), "{said}");
    old.tell("go");
    check_honest(&nonce, &client.reply()).unwrap();
    drop(client);
    assert!(weir.wait().success());
    assert!(new.log().requests.is_empty());
    [old, new].into_iter().for_each(|server| drop(server.finish()));
}

fn reloads_at_once_are_done_one_after_another(io: Io) {
    const AT_ONCE: usize = 8;
    let (server, begin) = (Server::start(Honest), Barrier::new(AT_ONCE));
    let weir = Weir::start(io, 2, &to(&server));
    let mut client = Client::connect(weir.address);
    request(&mut client);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                begin.wait();
                weir.answer(&["reload"]);
            });
        }
        for _ in 0..100 {
            request(&mut client);
        }
    });
    let told = status(&weir);
    assert_eq!(
        (&told["reload"]["generation"], &told["reload"]["ok"]),
        (&(AT_ONCE + 1).into(), &true.into())
    );
    request(&mut client);
    weir.stop();
    server.finish();
}
