//! Proves: operators of a running weir see what it has stored and why a request is answered from
//! the cache or not, and can purge it. Nonsense is refused with a hint at the correct form. A
//! reload begins and ends a cache. How: the real binary, `weir cache` and the admin socket.
//! docs/cache.md

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use weir_check::Request;

use crate::kit::{
    Client, Honest, Io, Link, Scratch, Server, Weir, app, eventually, on_both_drivers, status,
};

on_both_drivers!(
    before_anything_is_stored,
    what_is_stored_is_shown_and_purged,
    how_long_hits_take,
    what_servers_are_asked_for_most,
    requests_that_change_something_purge,
    lines_of_the_access_log_say_it,
    what_would_become_of_a_request,
    what_is_nonsense_is_refused,
    a_reload_begins_and_ends_it,
);

/// A server, and a weir that stores its responses.
fn world(io: Io, cache: &str) -> (Server, Weir) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 2, &configuration(&server, cache));
    (server, weir)
}

fn configuration(server: &Server, cache: &str) -> String {
    app(server, 2, "").replace("{ proxy \"app\" }", &format!("{{ proxy \"app\"; {cache} }}"))
        + "route path=\"/own\" { respond 200 \"hello\" }\nroute path=\"/plain\" { proxy \"app\" }\n"
}

/// Returns what `weir` writes to standard error when it refuses with this code.
fn refused(weir: &Weir, arguments: &[&str], code: i32) -> String {
    let output = weir.ask(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

fn json(weir: &Weir, arguments: &[&str]) -> Value {
    serde_json::from_str(&weir.answer(arguments)).expect("JSON")
}

fn before_anything_is_stored(io: Io) {
    let (_server, weir) = world(io, "cache;");
    let told = weir.answer(&["cache", "stats"]);
    assert!(told.starts_with("stored     0B of 268MB, 0 responses\n"), "{told}");
    let all = json(&weir, &["cache", "stats", "--json"]);
    assert_eq!(
        (&all["size_bytes"], &all["answers"], &all["purges"]),
        (&268_435_456.into(), &0.into(), &0.into())
    );
    assert_eq!(status(&weir)["cache"]["size_bytes"], 268_435_456);
    assert_eq!(weir.answer(&["cache", "top"]), "nothing is stored\n");
    for arguments in [
        &["http://A.test:80/page?x=1"][..],
        &["--prefix", "https://a.test/shop/"],
        &["--host", "a.test:8080", "--soft"],
        &["--tag", "product 17"],
        &["--all"],
    ] {
        assert_eq!(weir.answer(&[&["cache", "purge"], arguments].concat()), "");
    }
}

/// A server whose responses may be stored and contain a count of its requests.
fn counting() -> Server {
    let count = AtomicUsize::new(0);
    Server::start(move |link: &mut Link, request: &Request| {
        let content = count.fetch_add(1, Ordering::Relaxed).to_string();
        let lines = format!(
            "Cache-Control: max-age=600\r\nVary: X-By\r\nCache-Groups: \"{}\"\r\n",
            &request.target[1..2]
        );
        let head = format!("HTTP/1.1 200 X\r\n{lines}Content-Length: {}\r\n\r\n", content.len());
        link.answer(format!("{head}{content}").as_bytes())
    })
}

/// Returns the content of a response, and whether it came from the cache.
fn get(weir: &Weir, target: &str) -> (String, bool) {
    let mut client = Client::connect(weir.address);
    client.get(target);
    let reply = client.reply();
    let is_hit = reply.fields.all("cache-status").iter().any(|told| told.contains("; hit"));
    (String::from_utf8_lossy(&reply.body.bytes).into_owned(), is_hit)
}

/// Requests these targets until each is stored.
fn store(weir: &Weir, targets: &[&str]) {
    for target in targets {
        eventually("it is stored", || get(weir, target).1);
    }
}

fn what_is_stored_is_shown_and_purged(io: Io) {
    let server = counting();
    let weir = Weir::start(io, 2, &configuration(&server, "cache { cache-status on; }"));
    let all = ["/a/1", "/a/2", "/b/1"];
    store(&weir, &all);
    let told = weir.answer(&["cache", "explain", "http://a/a/1"]);
    for line in [
        "stored     1 of this key",
        "lifetime   600 s by max-age\n",
        "tags       a\n",
        "fresh      weir serves it from the store\n",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    let other = json(&weir, &["cache", "explain", "--json", "http://a/a/1", "-H", "X-By: 1"]);
    assert_eq!(other["verdict"], "fetch", "{other}");
    let top = weir.answer(&["cache", "top", "--by", "hits"]);
    assert!(all.iter().all(|target| top.contains(&format!("http://a{target} "))), "{top}");
    let stats = json(&weir, &["cache", "stats", "--json"]);
    assert!(stats["answers"] == 3 && stats["requests"]["hit"].as_u64() >= Some(3), "{stats}");
    let cases: [(&[&str], [bool; 3]); 6] = [
        (&["http://A:80/a/1"], [false, true, true]),
        (&["--prefix", "http://a/a/"], [false, false, true]),
        (&["--host", "a"], [false; 3]),
        (&["--host", "b"], [true; 3]),
        (&["--tag", "b"], [true, true, false]),
        (&["--all"], [false; 3]),
    ];
    for (arguments, stays) in cases {
        store(&weir, &all);
        let before = all.map(|target| get(&weir, target).0);
        assert_eq!(weir.answer(&[&["cache", "purge"], arguments].concat()), "");
        let after = all.map(|target| get(&weir, target).0);
        let same: Vec<bool> = before.iter().zip(&after).map(|(one, other)| one == other).collect();
        assert_eq!(same, stays, "{arguments:?}");
    }
    store(&weir, &all);
    assert_eq!(weir.answer(&["cache", "purge", "--soft", "http://a/a/1"]), "");
    let soft = json(&weir, &["cache", "explain", "--json", "http://a/a/1"]);
    assert_eq!(soft["verdict"], "validate", "{soft}");
}

fn how_long_hits_take(io: Io) {
    let server = counting();
    let weir = Weir::start(io, 2, &configuration(&server, "cache { cache-status on; }"));
    let latency = || status(&weir)["cache"]["hit_latency"].clone();
    assert_eq!((&latency()["count"], &latency()["p99_us"]), (&0.into(), &Value::Null));
    assert!(!weir.answer(&["cache", "stats"]).contains("hits take"));
    store(&weir, &["/a/1"]);
    let all = || json(&weir, &["cache", "stats", "--json"]);
    // A finished turn is counted only when the next one begins.
    let counted = || all()["hit_latency"]["count"].as_u64();
    eventually("each hit is counted", || {
        counted() == all()["requests"]["hit"].as_u64() && counted() > Some(0)
    });
    assert!(latency()["max_us"].is_u64(), "{}", latency());
    assert!(weir.answer(&["cache", "stats"]).contains("\nhits take  "));
}

fn what_servers_are_asked_for_most(io: Io) {
    let (_server, weir) = world(io, "cache;");
    assert_eq!(
        weir.answer(&["cache", "top", "--by", "misses"]),
        "weir requested nothing from servers\n"
    );
    for target in ["/x", "/y", "/x", "/x"] {
        get(&weir, target);
    }
    let told = json(&weir, &["cache", "top", "--by", "misses", "--json"]);
    let (first, other) = ("http://a/x", "http://a/y");
    let missed = |url: &str, misses: u64| {
        json!({
            "url": url, "upstream": "app", "misses": misses, "over": 0, "why": "never-usable"
        })
    };
    assert_eq!(told["missed"], json!([missed(first, 3), missed(other, 1)]), "{told}");
    let shown = weir.answer(&["cache", "top", "--by", "misses", "-n", "1"]);
    assert!(
        shown.contains("never-usable") && shown.contains(first) && !shown.contains(other),
        "{shown}"
    );
}

fn requests_that_change_something_purge(io: Io) {
    let server = counting();
    let weir = Weir::start(io, 2, &configuration(&server, "cache { cache-status on; }"));
    store(&weir, &["/a/1", "/b/1"]);
    let before = ["/a/1", "/b/1"].map(|target| get(&weir, target).0);
    let mut client = Client::connect(weir.address);
    client.request("POST", "/a/1", "", b"x");
    assert_eq!(client.reply().status, 200);
    assert_ne!(get(&weir, "/a/1").0, before[0]);
    assert_eq!(get(&weir, "/b/1").0, before[1]);
    assert_eq!(json(&weir, &["cache", "stats", "--json"])["invalidations"], 1);
}

fn lines_of_the_access_log_say_it(io: Io) {
    let (server, scratch) = (counting(), Scratch::new());
    let log = scratch.path("log");
    let text = format!("access-log \"{}\" format=\"$request_uri $cache\"\n", log.display());
    let weir = Weir::start(
        io,
        1,
        &(text + &configuration(&server, "cache { bypass cookie=\"s\"; cache-status on; }")),
    );
    get(&weir, "/a/1");
    store(&weir, &["/a/1"]);
    let mut client = Client::connect(weir.address);
    client.request("GET", "/a/2", "Cookie: s=1\r\n", b"");
    client.reply();
    client.get("/plain/x");
    client.reply();
    let has = |line: &str| {
        std::fs::read_to_string(&log).unwrap_or_default().lines().any(|other| other == line)
    };
    for line in ["/a/1 miss", "/a/1 hit", "/a/2 bypass", "/plain/x -"] {
        eventually(line, || has(line));
    }
}

fn what_would_become_of_a_request(io: Io) {
    let (_server, weir) = world(
        io,
        "cache { bypass cookie=\"session\"; key query-ignore=\"utm_*\" header=\"X-Device\"; }",
    );
    let verdict = |arguments: &[&str]| {
        let told = json(&weir, &[&["cache", "explain", "--json"], arguments].concat());
        let last =
            told["lines"].as_array().and_then(|lines| lines.last()).cloned().unwrap_or_default();
        assert_eq!(told["verdict"], last["name"], "{told}");
        (
            told["verdict"].as_str().unwrap_or_default().to_owned(),
            last["text"].as_str().unwrap_or_default().to_owned(),
        )
    };
    assert_eq!(
        verdict(&["http://a.test/x"]),
        ("fetch".to_owned(), "nothing is stored under this key".to_owned())
    );
    let (word, why) = verdict(&["http://a.test/x", "-H", "Cookie: a=1; session=2"]);
    assert!(word == "bypass" && why.ends_with(": cookie"), "{word} {why}");
    assert_eq!(verdict(&["https://a.test/own"]).0, "uncached");
    assert_eq!(verdict(&["https://a.test/plain/x"]).0, "uncached");
    let (word, why) = verdict(&["http://a.test/x", "-H", "Content-Length: x"]);
    assert!(word == "refused" && why.contains("weir rejects it"), "{word} {why}");
    let told = weir.answer(&[
        "cache",
        "explain",
        "HTTPS://A.test:443?b=1&utm_x=2&a=3",
        "-H",
        "x-device: phone",
    ]);
    assert!(told.contains("key       https://a.test/?b=1&a=3 | app | x-device=phone\n"), "{told}");
}

fn what_is_nonsense_is_refused(io: Io) {
    let (server, weir) = world(io, "cache;");
    for (arguments, why) in [
        (&["purge"][..], "required"),
        (&["purge", "--all", "--tag", "a"], "cannot be used with"),
        (&["purge", "/page"], "not a whole URL"),
        (&["purge", "ftp://a.test/"], "write http:// or https://"),
        (&["purge", "http://"], "is not a host"),
        (&["purge", "http://a b/"], "only ASCII"),
        (&["purge", "http://a.test/#x"], "never sent"),
        (&["purge", "--host", "a.test/x"], "is not a host"),
        (&["explain", "http://a.test/", "-H", "nothing"], "is not a header"),
        (&["explain"], "required"),
        (&["top", "--by", "name"], "possible values"),
    ] {
        let said = refused(&weir, &[&["cache"], arguments].concat(), 2);
        assert!(said.contains(why), "{arguments:?}: {said}");
    }
    assert!(refused(&weir, &["cache", "purge", "--tag", ""], 1).contains("a tag is not empty"));
    let other = Weir::start(io, 1, &app(&server, 2, ""));
    assert!(
        refused(&other, &["cache", "stats"], 1)
            .contains("no route of the configuration has `cache`")
    );
    assert!(refused(&other, &["cache", "purge", "--all"], 1).contains("nothing is stored"));
    assert_eq!(
        json(&other, &["cache", "explain", "--json", "http://a.test/"])["verdict"],
        "uncached"
    );
    assert_eq!(status(&other)["cache"], Value::Null);
}

fn a_reload_begins_and_ends_it(io: Io) {
    let server = Server::start(Honest);
    let weir = Weir::start(io, 2, &configuration(&server, ""));
    refused(&weir, &["cache", "stats"], 1);
    let size = |size: &str| {
        weir.rewrite(&format!(
            "{}cache {{ size \"{size}\"; }}\n",
            configuration(&server, "cache;")
        ));
        assert_eq!(weir.answer(&["reload"]), "");
        json(&weir, &["cache", "stats", "--json"])["size_bytes"].as_u64().expect("a size")
    };
    assert_eq!(size("64MiB"), 64 << 20);
    assert_eq!(size("32MiB"), 32 << 20);
    weir.rewrite(&configuration(&server, ""));
    assert_eq!(weir.answer(&["reload"]), "");
    assert_eq!(status(&weir)["cache"], Value::Null);
}
