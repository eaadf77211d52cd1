//! Requests that come back, with the real binary: weir recognises its own, by a field for which no
//! server turns compression off (docs/headers.md). How: two weirs that lead to each other,
//! nginx between weir and itself, and nginx as the server.

use std::net::SocketAddr;

use crate::kit::{
    Client, Honest, Io, Nginx, Server, Weir, app, eventually, free_port, nonce, on_both_drivers,
    status,
};

on_both_drivers!(a_loop_ends, what_tells_a_loop_is_chosen, servers_compress_behind_weir);

fn free() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Configures another listener, at this address, whose requests all go to that server.
fn leads(from: SocketAddr, to: SocketAddr, more: &str) -> String {
    format!(
        "via-name \"auto\"\nlisten \"{from}\"\n{more}upstream \"next\" {{ server \"{to}\"; }}\n\
            route {{ proxy \"next\"; }}\n"
    )
}

fn a_loop_ends(io: Io) {
    for field in ["", "client loop-field=\"via\"\n"] {
        let (one, two) = (free(), free());
        let first = Weir::start(io, 1, &leads(one, two, field));
        let second = Weir::start(io, 1, &leads(two, one, field));
        let asked = || {
            let mut client = Client::connect(one);
            client.get("/x");
            client.reply().status
        };
        // The first could not reach the second before it existed.
        eventually("the two have found each other", || asked() == 508);
        let requests = |weir: &Weir| status(weir)["totals"]["requests"].as_u64().expect("a count");
        let before = (requests(&first), requests(&second));
        assert_eq!(asked(), 508, "through two of them");
        let after = (requests(&first), requests(&second));
        assert_eq!((after.0 - before.0, after.1 - before.1), (2, 1), "the second time is the last");
        second.stop();
        first.stop();
        // Another proxy in between passes the field on.
        let own = free();
        let between = Nginx::in_front_of(own);
        let weir = Weir::start(io, 1, &leads(own, between.address, field));
        let mut client = Client::connect(own);
        client.get("/x");
        assert_eq!(client.reply().status, 508, "through nginx");
        drop(client);
        weir.stop();
    }
}

/// Which fields a request has when it arrives, and its response on the way back.
fn what_tells_a_loop_is_chosen(io: Io) {
    for (options, passed, via, back) in [
        ("", vec!["a;x=1", "weir-me"], vec!["1.0 old"], true),
        ("client loop-field=\"via\"\n", vec!["a;x=1"], vec!["1.0 old", "1.1 weir-me"], true),
        ("client loop-field=\"off\"\n", vec!["a;x=1"], vec!["1.0 old"], true),
        ("client via=#false\n", vec!["a;x=1"], vec!["1.0 old"], false),
        (
            "client via=#false loop-field=\"cdn-loop\"\n",
            vec!["a;x=1", "weir-me"],
            vec!["1.0 old"],
            false,
        ),
    ] {
        let rules = weir_check::Rules { via: false, ..weir_check::Rules::default() };
        let server = Server::start_at(([127, 0, 0, 1], 0).into(), Honest, rules);
        let weir =
            Weir::start(io, 1, &format!("via-name \"weir-me\"\n{options}{}", app(&server, 1, "")));
        let (mut client, id) = (Client::connect(weir.address), nonce());
        client.request("GET", &format!("/v?n={id}"), "Via: 1.0 old\r\nCDN-Loop: a;x=1\r\n", b"");
        let reply = client.reply();
        assert_eq!((reply.status, reply.fields.has("via")), (200, back), "{options}");
        for (field, is_known) in [
            ("CDN-Loop: b, WEIR-me;y", true),
            ("Via: 1.1 weir-me", true),
            ("Via: 1.1 weir-m", false),
        ] {
            client.request("GET", &format!("/v?n={id}"), &format!("{field}\r\n"), b"");
            assert_eq!(
                client.reply().status,
                if is_known { 508 } else { 200 },
                "{options} {field}"
            );
        }
        drop(client);
        weir.stop();
        let log = server.finish();
        let seen = &log.requests[0].1.fields;
        assert_eq!((seen.all("cdn-loop"), seen.all("via")), (passed, via), "{options}");
    }
}

/// `gzip_proxied` of nginx is off: it compresses nothing for requests with Via.
fn servers_compress_behind_weir(io: Io) {
    let page = b"<p>the same again</p>\n".repeat(2_000);
    let nginx = Nginx::start(
        &[("page.html", &page)],
        "gzip on; gzip_http_version 1.0; gzip_types text/plain;",
    );
    for (options, is_small) in [("", true), ("client loop-field=\"via\"\n", false)] {
        let upstream = format!(
            "upstream \"app\" {{ server \"{}\"; }}\nroute {{ proxy \"app\"; }}\n",
            nginx.address
        );
        let weir = Weir::start(io, 1, &format!("{options}{upstream}"));
        let mut client = Client::connect(weir.address);
        client.request("GET", "/page.html", "Accept-Encoding: gzip\r\n", b"");
        let reply = client.reply();
        assert_eq!(
            (reply.status, reply.fields.has("content-encoding")),
            (200, is_small),
            "{options}"
        );
        drop(client);
        weir.stop();
    }
}
