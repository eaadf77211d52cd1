//! Proves: the real binary counts what clients and servers do that is strange though legal, where
//! operators look: status, the row of a connection, metrics, the access log. `glitches-limit` ends
//! connections in order. How: a client and a server that do such things, over both drivers.
//! docs/status-glitches.md#glitches

use crate::kit::{
    Client, Ended, Gone, Honest, Io, Link, Server, Weir, app, eventually, nonce, on_both_drivers,
};
use serde_json::Value;
use weir_check::upstreams::{check_honest, honest_answer};
use weir_check::{End, Request};

on_both_drivers!(
    a_client_over_its_limit_is_closed_in_order,
    a_connection_over_its_limit_is_made_anew,
);

fn json(weir: &Weir, arguments: &[&str]) -> Value {
    serde_json::from_str(&weir.answer(&[arguments, &["--json"]].concat())).expect("JSON")
}

fn a_client_over_its_limit_is_closed_in_order(io: Io) {
    let server = Server::start(Honest);
    let log =
        "access-log \"-\" format=\"<$request_uri $status $glitches $ended_by $phase $reason>\"";
    let weir =
        Weir::start(io, 2, &format!("{log}\nclient glitches-limit=5\n{}", app(&server, 2, "")));
    let (mut client, mut other) = (Client::connect(weir.address), Client::connect(weir.address));
    let nonces: Vec<String> = (0..10).map(|_| nonce()).collect();
    // All in one segment: the third request is the one too many, with seven behind it.
    let one =
        |nonce: &String| format!("\r\nGET /v?n={nonce} HTTP/1.1\r\nHost: a\r\nX_y: 1\r\n\r\n");
    nonces.iter().for_each(|_| client.ask("GET", false));
    client.send(nonces.iter().map(one).collect::<String>().as_bytes());
    for (n, nonce) in nonces.iter().take(3).enumerate() {
        let reply = client.reply();
        check_honest(nonce, &reply).unwrap();
        assert_eq!(reply.closes, n == 2);
    }
    assert_eq!(client.end(), Ended { end: End::Clean, reset: false });
    assert!(client.try_reply().is_none());
    drop(client);
    let nonce = nonce();
    other.get(&format!("/v?n={nonce}"));
    check_honest(&nonce, &other.reply()).unwrap();
    let totals = || json(&weir, &["status"])["totals"].clone();
    eventually("the end is counted", || totals()["client_closes"]["glitches"] == 1);
    let glitches = &totals()["client_glitches"];
    assert_eq!(
        (&glitches["leading-line"], &glitches["underscore"]),
        (&3.into(), &3.into()),
        "{glitches}"
    );
    let last = format!("</v?n={} 200 6 weir done glitches>", nonces[2]);
    eventually("the line", || weir.said().contains(&last));
    weir.stop();
    assert_eq!(server.finish().requests.len(), 4, "what came behind was not asked");
}

/// Sends an honest response with a folded line.
fn folded(link: &mut Link, request: &Request) -> Result<(), Gone> {
    let answer = String::from_utf8(honest_answer(request.nonce())).expect("text");
    link.answer(answer.replacen("\r\n", "\r\nX-Folded: a\r\n b\r\n", 1).as_bytes())
}

fn a_connection_over_its_limit_is_made_anew(io: Io) {
    let server = Server::start(folded);
    let weir = Weir::start(io, 1, &app(&server, 1, "glitches-limit 10"));
    weir.answer(&["status", "--wait"]);
    let mut client = Client::connect(weir.address);
    for n in 1..=25u64 {
        let nonce = nonce();
        client.get(&format!("/v?n={nonce}"));
        check_honest(&nonce, &client.reply()).unwrap();
        let status = json(&weir, &["status", "server", "app", &server.address.to_string()]);
        assert_eq!(status["server"]["totals"]["glitches"]["line-fold"], n, "{status}");
        let row = &status["rows"][0];
        // The eleventh is one too many: the next request goes out on a new connection.
        let (on_this, closes) = (n % 11, n / 11);
        assert_eq!(
            (&row["glitches"], &row["closes"]),
            (&on_this.into(), &closes.into()),
            "{n}: {row}"
        );
        assert_eq!(row["closed_why"], if closes > 0 { "glitches".into() } else { Value::Null });
    }
    let shown = weir.answer(&["status", "server", "app", &server.address.to_string()]);
    assert!(shown.contains("line-fold 25") && shown.contains("GLITCHES"), "{shown}");
    weir.stop();
    assert_eq!(server.finish().accepted, 3);
}
