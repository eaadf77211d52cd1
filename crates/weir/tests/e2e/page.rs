//! Proves: the live page works in a browser under its own policy. It shows figures of what
//! happened, connections, and a dead server with its reason before the healthy ones.
//!
//! How: headless Chromium, and the JSON beside it. docs/status-metrics.md#the-live-page.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::kit::{
    Client, Honest, Io, Scratch, Server, Weir, app, browse, eventually, free_port, nonce,
    on_both_drivers,
};
use serde_json::Value;

on_both_drivers!(a_browser_shows_what_happens);

const REQUESTS: usize = 321;

/// Returns head and body of a response.
fn get(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: weir\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

fn live(address: SocketAddr) -> Value {
    serde_json::from_str(&get(address, "/live.json").1).expect("JSON")
}

fn a_browser_shows_what_happens(io: Io) {
    let (server, dead) = (Server::start(Honest), free_port());
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let lost = format!(
        "upstream \"lost\" {{ server \"127.0.0.1:{dead}\" }}\n\
            route path=\"/lost\" {{ proxy \"lost\" }}\n"
    );
    let weir = Weir::start(io, 2, &format!("metrics \"{address}\"\n{}{lost}", app(&server, 4, "")));
    let mut client = Client::connect(weir.address);
    for _ in 0..REQUESTS {
        client.get(&format!("/victim?n={}", nonce()));
        assert_eq!(client.reply().status, 200);
    }
    eventually("seconds are there, and the dead server is known", || {
        let live = live(address);
        let sampled = live["samples"]
            .as_array()
            .is_some_and(|all| all.iter().any(|one| one["p99_us"].is_u64()));
        sampled && live["servers"][0]["state"] == "down" && live["servers"][0]["remark"].is_string()
    });
    let told = live(address);
    let [sick, well] = [&told["servers"][0], &told["servers"][1]];
    assert!(sick["upstream"] == "lost" && sick["sick"] == true && well["sick"] == false, "{told}");
    assert!(told["servers_all"] == 2 && told["servers_usable"] == 1, "{told}");
    assert_eq!(well["pipes"].as_array().map(Vec::len), Some(4), "{well}");
    let answers = |pipe: &Value| pipe[5].as_u64().expect("answers");
    assert_eq!(
        well["pipes"].as_array().into_iter().flatten().map(answers).sum::<u64>(),
        REQUESTS as u64
    );

    let (head, _) = get(address, "/");
    assert!(
        head.contains("content-security-policy: default-src 'none'; ") && !head.contains("unsafe"),
        "{head}"
    );
    let dom = browse(&Scratch::new(), &[], &format!("http://{address}/"));
    let body = dom
        .split_once("<body")
        .map_or(&*dom, |(_, body)| body)
        .split("<script>")
        .next()
        .expect("a part");
    for part in [
        "class=\"pill good\">ready<",
        &format!("requests <b>{REQUESTS}</b>"),
        "servers <b>1 of 2</b>",
        ">lost<",
        "down: connect-failed ",
        "class=\"s0\" d=\"M",
        "worker 1",
        &format!(">{}</b>", server.address),
    ] {
        assert!(body.contains(part), "{part} in {body}");
    }
    assert_eq!(body.matches("class=\"track\"").count(), 5, "{body}");
    assert!(
        body.find(">lost<") < body.find(&server.address.to_string()),
        "sick servers first: {body}"
    );
    weir.stop();
    server.finish();
}
