//! Proves: an upstream whose servers are gone has a stand-in, with the real binary and real
//! connects that fail, for clients of HTTP/1.1 and HTTP/2, and only while they are gone; a part of
//! a route's requests goes to another upstream. How: servers that are killed and come back, and the
//! requests that each of them has seen.
//! docs/failover.md#fallback-upstream, docs/traffic-splitting.md.

use std::net::SocketAddr;

use crate::kit::http2::Http2Client;
use crate::kit::{
    Client, Honest, Io, Server, Weir, eventually, free_port, nonce, on_both_drivers, status,
};

on_both_drivers!(who_stands_in, a_stand_in_comes_by_reload, a_share_of_requests);

/// Returns two upstreams of a server each; the second is a stand-in for the first with `more`.
fn two(first: SocketAddr, second: SocketAddr, more: &str, route: &str) -> String {
    format!(
        "upstream \"app\" {{ server \"{first}\"; {more} }}\n\
            upstream \"spare\" {{ server \"{second}\"; }}\nroute {{ proxy \"app\"; {route} }}\n"
    )
}

fn get(client: &mut Client) -> u16 {
    client.get(&format!("/v?n={}", nonce()));
    client.reply().status
}

/// Returns the number of requests.
fn count(server: &Server) -> usize {
    server.log().requests.len()
}

fn who_stands_in(io: Io) {
    let (app, spare) = (Server::start(Honest), Server::start(Honest));
    let address = app.address;
    let h2c = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let listen = format!("listen \"{h2c}\" {{ protocols \"h2c\"; }}\n");
    let weir =
        Weir::start(io, 2, &(listen + &two(address, spare.address, "fallback \"spare\"", "")));
    let (mut old, mut new) = (Client::connect(weir.address), Http2Client::connect(h2c, &[]));
    assert_eq!((get(&mut old), count(&app), count(&spare)), (200, 1, 0));
    app.kill();
    for n in 0..4 {
        assert_eq!(get(&mut old), 200, "{n}");
        old.request("POST", &format!("/p?n={}", nonce()), "", &[b'x'; 10_000]);
        assert_eq!(old.reply().status, 200, "{n}");
        let stream = new.get(&format!("/v?n={}", nonce()));
        assert_eq!(new.answer(stream).statuses, [200], "{n}");
    }
    assert_eq!(count(&spare), 12);
    let totals = status(&weir);
    assert!(totals.to_string().contains("\"fallbacks\":12"), "{totals}");
    let app = Server::start_at(address, Honest, weir_check::Rules::default());
    eventually("who is back has its requests", || {
        assert_eq!(get(&mut old), 200);
        count(&app) > 0
    });
    let had = count(&spare);
    for _ in 0..10 {
        assert_eq!(get(&mut old), 200);
    }
    assert_eq!(count(&spare), had, "nobody stands in any more");
    weir.stop();
    app.finish();
    spare.finish();
}

fn a_stand_in_comes_by_reload(io: Io) {
    let (nobody, spare) = (SocketAddr::from(([127, 0, 0, 1], free_port())), Server::start(Honest));
    let retries = "connect-retries 1;";
    let weir = Weir::start(io, 1, &two(nobody, spare.address, retries, ""));
    let mut client = Client::connect(weir.address);
    for (more, expected) in [("fallback \"spare\"", 200), ("", 502), ("fallback \"spare\"", 200)] {
        weir.rewrite(&two(nobody, spare.address, &format!("{retries} {more}"), ""));
        weir.answer(&["reload"]);
        assert_eq!(get(&mut client), expected, "{more}");
    }
    weir.stop();
    spare.finish();
}

fn a_share_of_requests(io: Io) {
    let (app, canary) = (Server::start(Honest), Server::start(Honest));
    let split = "split \"spare\" percent=25";
    let weir = Weir::start(io, 2, &two(app.address, canary.address, "", split));
    let mut clients = [0; 4].map(|_| Client::connect(weir.address));
    for n in 0..200 {
        assert_eq!(get(&mut clients[n % 4]), 200);
    }
    assert!((48..=52).contains(&count(&canary)), "{}", count(&canary));
    // By cookie: a user stays with its upstream, whatever the connection.
    weir.rewrite(&two(
        app.address,
        canary.address,
        "",
        &format!("split-by \"cookie:user\"; {split}"),
    ));
    weir.answer(&["reload"]);
    let before = count(&canary);
    for n in 0..120 {
        let user = n % 30;
        clients[n % 4].request(
            "GET",
            &format!("/v?n={}", nonce()),
            &format!("Cookie: user={user}\r\n"),
            b"",
        );
        assert_eq!(clients[n % 4].reply().status, 200);
    }
    let more = count(&canary) - before;
    assert!(more.is_multiple_of(4) && more > 0 && more < 80, "{more} of 120 requests of 30 users");
    weir.stop();
    app.finish();
    canary.finish();
}
