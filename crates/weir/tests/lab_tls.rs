//! The laboratory over TLS as a user runs it: `weir origin --tls` and `weir demo --tls`, with
//! requests by `weir bomb` and `weir probe`. Proves: a client with the certificate gets responses,
//! one without gets none and says so; both sides count handshakes alike; meaningless options are
//! rejected. How: the real binary on both drivers, certificates made on the spot.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use weir_lab::certificate::{Certificate, KeyKind};

fn weir(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(words).env("WEIR_ADMIN", "off").env_remove("COLUMNS").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(words: &[&str]) -> Output {
    weir(words).output().expect("the binary")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the last line of a program's output.
fn last_json(output: &Output) -> Value {
    let shown = text(&output.stdout);
    let line =
        shown.lines().last().unwrap_or_else(|| panic!("nothing printed: {}", text(&output.stderr)));
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// A file of this test, removed at its end.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn with(name: &str, content: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("weir-lab-tls-{}-{name}", std::process::id()));
        std::fs::write(&path, content).expect("a writable directory");
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A running server.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn origin(words: &[&str]) -> Server {
        let mut child = weir(&["origin", "--listen", "127.0.0.1:0", "--json"])
            .args(words)
            .spawn()
            .expect("the binary");
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().expect("piped")).read_line(&mut line).expect("text");
        let address = line.trim().rsplit(' ').next().and_then(|word| word.parse().ok());
        Server { child, address: address.unwrap_or_else(|| panic!("{line}")) }
    }

    fn url(&self) -> String {
        format!("https://{}/", self.address)
    }

    /// Ends it. Returns its last output.
    fn end(mut self) -> Value {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        let mut stdout = String::new();
        self.child.stdout.take().expect("piped").read_to_string(&mut stdout).expect("text");
        serde_json::from_str(stdout.lines().last().expect("a line")).expect("JSON")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const DRIVERS: [&str; 2] = ["epoll", "auto"];

#[test]
fn an_origin_with_a_certificate_is_asked_by_who_trusts_it() {
    let made =
        Certificate::make(KeyKind::Rsa2048, &["localhost".to_owned()]).expect("a certificate");
    let (certificate, key) =
        (Scratch::with("own.pem", &made.certificate), Scratch::with("own.key", &made.key));
    for io in DRIVERS {
        let origin = Server::origin(&[
            "--tls",
            "--cert",
            certificate.path(),
            "--key",
            key.path(),
            "--io",
            io,
        ]);
        let port = origin.address.port();
        let url = format!("https://localhost:{port}/?size=100000");
        let words = [
            "bomb",
            &url,
            "--cacert",
            certificate.path(),
            "--json",
            "--io",
            io,
            "-c",
            "3",
            "-n",
            "60",
        ];
        let told = run(&words);
        assert_eq!(told.status.code(), Some(0), "{}", text(&told.stderr));
        let summary = last_json(&told);
        let total = &summary["total"];
        assert_eq!(total["requests"]["answered"], 60, "{summary}");
        assert_eq!(total["handshakes"]["full"], total["connections"]["established"], "{summary}");
        let probed = run(&[
            "probe",
            &url,
            "--cacert",
            certificate.path(),
            "--json",
            "-n",
            "5",
            "--pause",
            "0",
        ]);
        let summary = last_json(&probed);
        assert_eq!(
            (&summary["answered"], &summary["latency"]["handshake"]["count"]),
            (&5.into(), &5.into()),
            "{summary}"
        );

        // The name is not that of the certificate, which is not trusted either.
        let other = format!("https://127.0.0.1:{port}/");
        for (words, why) in [
            (vec!["bomb", &other, "--cacert", certificate.path()], "wrong-name"),
            (vec!["bomb", &url], "unknown-ca"),
        ] {
            let told = run(&[&words[..], &["--io", io, "-c", "1", "-n", "5"]].concat());
            let (shown, said) = (text(&told.stdout), text(&told.stderr));
            assert_eq!(told.status.code(), Some(1), "{shown}{said}");
            assert!(
                shown.contains(&format!("failed: {why}"))
                    && said.contains("no connection succeeded"),
                "{shown}{said}"
            );
        }
        let probed = run(&["probe", &url, "-n", "2", "--pause", "0"]);
        assert_eq!(probed.status.code(), Some(1));
        let shown = text(&probed.stdout);
        assert!(
            shown.contains("failed: tls in handshake") && shown.contains("UnknownIssuer"),
            "{shown}"
        );

        let end = origin.end();
        assert_eq!((&end["requests"], &end["resumed"]), (&65.into(), &0.into()), "{end}");
        assert!(end["handshakes_failed"].as_u64().is_some_and(|count| count >= 4), "{end}");
    }
}

#[test]
fn handshakes_are_counted_by_what_became_of_them() {
    for io in DRIVERS {
        let origin = Server::origin(&["--tls", "--io", io]);
        let url = origin.url();
        let each =
            ["bomb", &url, "-k", "--json", "--io", io, "-c", "2", "-n", "40", "--close-every", "1"];
        let summary = last_json(&run(&each));
        let made = summary["total"]["connections"]["established"].as_u64().expect("a number");
        assert!(
            made >= 40 && summary["total"]["handshakes"] == serde_json::json!({ "full": made }),
            "{summary}"
        );
        let more = [
            "--tls-resume",
            "--tls-version",
            "1.3",
            "--tls-suite",
            "TLS_AES_128_GCM_SHA256",
            "--tls-group",
            "X25519",
        ];
        let summary = last_json(&run(&[&each[..], &more].concat()));
        let resumed = summary["total"]["handshakes"]["resumed"].as_u64().expect("some were");
        assert!(resumed >= 30, "{summary}");
        let end = origin.end();
        // A handshake at the end of a run may be complete for one side only.
        assert!(end["resumed"].as_u64().is_some_and(|count| count.abs_diff(resumed) <= 2), "{end}");
    }
}

#[test]
fn the_demo_serves_over_tls() {
    for io in DRIVERS {
        let mut child =
            weir(&["demo", "--tls", "--clients", "0", "--listen", "127.0.0.1:0", "--io", io])
                .spawn()
                .expect("the binary");
        let mut lines = BufReader::new(child.stdout.take().expect("piped"))
            .lines()
            .map(|line| line.expect("text"));
        let line = lines
            .find(|line| line.contains("curl -k --http2 -i https://"))
            .expect("it says how to ask it");
        let address =
            line.rsplit("https://").next().and_then(|rest| rest.trim_end_matches('/').parse().ok());
        let demo = Server { child, address: address.expect("an address") };
        let probed =
            run(&["probe", &demo.url(), "--insecure", "--json", "-n", "4", "--pause", "0"]);
        assert_eq!(last_json(&probed)["answered"], 4, "{}", text(&probed.stderr));
        let words =
            ["bomb", "--http2", "--streams", "3", "-k", "--json", "-c", "2", "-n", "6", "--io", io];
        let asked = last_json(&run(&[&words[..], &[&demo.url()]].concat()));
        assert_eq!(asked["total"]["requests"], serde_json::json!({ "answered": 6 }), "{asked}");
        kill_process(Pid::from_child(&demo.child), Signal::INT).expect("it runs");
        assert!(lines.any(|line| line == "weir demo: 10 requests served"));
    }
}

#[test]
fn what_means_nothing_or_can_not_be_had_is_refused() {
    let nobody =
        TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("it is bound");
    let text_file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let (plain, sealed) = (format!("http://{nobody}/"), format!("https://{nobody}/"));
    for (words, why) in [
        (vec!["bomb", &plain, "--insecure"], "--insecure is for URLs with https://"),
        (vec!["probe", &plain, "--tls-version", "1.2"], "--tls-version is for URLs with https://"),
        (vec!["bomb", &sealed, &plain], "http:// and https://"),
        (vec!["bomb", &sealed, "--proxy", "127.0.0.1:1", "-k"], "needs a tunnel"),
        (vec!["bomb", &sealed, "-k", "--cacert", "/dev/null"], "cannot be used with"),
        (vec!["bomb", &sealed, "--cacert", "/dev/null"], "/dev/null"),
        (vec!["probe", &sealed, "-k", "--tls-suite", "TLS_NULL"], "TLS_AES_128_GCM_SHA256"),
        (vec!["probe", &sealed, "-k", "--tls-group", "x448"], "X25519"),
        (vec!["origin", "--cert", "/dev/null"], "--tls"),
        (vec!["origin", "--tls", "--cert", "/dev/null"], "it is a device"),
        (vec!["origin", "--tls", "--cert", text_file], "Cargo.toml has no certificate in PEM"),
    ] {
        let told = run(&words);
        let said = text(&told.stderr);
        assert!(told.status.code() == Some(2) && said.contains(why), "{words:?}: {said}");
    }
}
