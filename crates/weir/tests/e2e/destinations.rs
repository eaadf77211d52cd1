//! Proves: `weir status` shows the destinations of an interception's connections and requests:
//! their number, their bytes both ways, and why some reached no server. This holds also for those
//! that were connected before weir accepted their client. How: the real binary between two networks
//! of the test. Needs root. docs/transparent.md#see-where-connections-lead.

use std::io::ErrorKind;
use std::process::Command;

use serde_json::Value;

use crate::intercept::{Intercept, echoes, in_network_with_programs};
use crate::intercept_first::between;
use crate::kit::{Io, Scratch, eventually, on_both_drivers};
use crate::transparent::{Between, CLIENT, SERVER};
use crate::transparent_http::{client, serve_http, told};

on_both_drivers!(
    connections_are_told_by_destination,
    requests_are_told_by_destination,
    who_was_connected_before_is_told
);

/// Returns what a status says of a destination; null if it says nothing.
pub(crate) fn destination(status: &Value, name: &str) -> Value {
    let rows = status["usage"]["destinations"]["rows"].as_array();
    rows.into_iter().flatten().find(|row| row["name"] == name).cloned().unwrap_or_default()
}

impl Intercept {
    fn destination(&self, name: &str) -> Value {
        destination(&self.status(), name)
    }

    /// Returns what `weir status` shows to people.
    fn shown(&self) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let told = crate::kit::finish(command.arg("status").env("WEIR_ADMIN", self.admin()));
        String::from_utf8_lossy(&told.stdout).into_owned()
    }
}

/// Connections, requests, tunnels.
fn figures(row: &Value) -> [Option<u64>; 3] {
    ["connections", "requests", "tunnels"].map(|name| row[name].as_u64())
}

fn bytes(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or(0)
}

fn names(port: u16) -> [String; 2] {
    [format!("{}:{port}", SERVER[0]), format!("[{}]:{port}", SERVER[1])]
}

fn connections_are_told_by_destination(io: Io) {
    in_network_with_programs("destinations", "connections_are_told_by_destination", io, || {
        let between = between();
        let weir = Intercept::start(io, &[]);
        let of = |name: &str| weir.destination(name);
        for (from, (to, name)) in CLIENT.into_iter().zip(SERVER.into_iter().zip(names(8080))) {
            let (mut stream, said) = between.ask(from, 0, to, 8080).expect("it gets through");
            echoes(&mut stream);
            eventually("it is there", || figures(&of(&name)) == [Some(1), Some(0), Some(1)]);
            let (other, _) = between.ask(from, 0, to, 8080).expect("it gets through");
            eventually("both are there", || figures(&of(&name)) == [Some(2), Some(0), Some(2)]);
            drop((stream, other));
            eventually("they are gone", || figures(&of(&name)) == [Some(0), Some(0), Some(2)]);
            let row = of(&name);
            assert_eq!(bytes(&row, "bytes_out"), 4, "{row}");
            assert!(bytes(&row, "bytes_in") >= said.len() as u64 + 1 + 4, "{row}");
            assert_eq!(row["refusals"], serde_json::json!({}));
        }
        for (from, (to, name)) in CLIENT.into_iter().zip(SERVER.into_iter().zip(names(8443))) {
            let refused = between.ask(from, 0, to, 8443).expect_err("nobody is there");
            assert_eq!(refused.kind(), ErrorKind::ConnectionReset);
            eventually("it is refused", || {
                of(&name)["refusals"] == serde_json::json!({ "connect-failed": 1 })
            });
            assert_eq!(figures(&of(&name)), [Some(0), Some(0), Some(1)]);
        }
        let shown = weir.shown();
        assert!(shown.contains("DESTINATION") && shown.contains("198.18.2.2:8080"), "{shown}");
        assert!(shown.contains("refused: connect-failed 1"), "{shown}");
        weir.end("-TERM");
    });
}

fn requests_are_told_by_destination(io: Io) {
    in_network_with_programs("destinations", "requests_are_told_by_destination", io, || {
        let between = Between::new();
        SERVER.iter().for_each(|host| serve_http(&between, host, 8080));
        let scratch = Scratch::new();
        let log = scratch.path("access.log");
        let weir =
            Intercept::start(io, &["--http", "8080", "--access-log", log.to_str().expect("text")]);
        for (from, (to, name)) in CLIENT.into_iter().zip(SERVER.into_iter().zip(names(8080))) {
            let mut one = client(&between, from, 0, to, 8080);
            for _ in 0..3 {
                assert_eq!(told(&mut one, "/", "elsewhere.example").0, 200);
            }
            eventually("all are told", || {
                figures(&weir.destination(&name)) == [Some(1), Some(3), Some(0)]
            });
            let row = weir.destination(&name);
            assert!(bytes(&row, "bytes_in") > 0 && bytes(&row, "bytes_out") > 0, "{row}");
            drop(one);
            eventually("it is gone", || {
                figures(&weir.destination(&name)) == [Some(0), Some(3), Some(0)]
            });
        }
        weir.end("-TERM");
    });
}

fn who_was_connected_before_is_told(io: Io) {
    in_network_with_programs("destinations", "who_was_connected_before_is_told", io, || {
        let between = between();
        for mode in ["first", "syn"] {
            let weir = Intercept::start(io, &["--connect", mode]);
            for (from, (to, name)) in CLIENT.into_iter().zip(SERVER.into_iter().zip(names(8080))) {
                let (mut stream, _) = between.ask(from, 0, to, 8080).expect("it gets through");
                echoes(&mut stream);
                eventually("it is there", || {
                    figures(&weir.destination(&name)) == [Some(1), Some(0), Some(1)]
                });
                drop(stream);
                eventually("it is gone", || figures(&weir.destination(&name))[0] == Some(0));
                assert_eq!(bytes(&weir.destination(&name), "bytes_out"), 4, "{mode}");
            }
            weir.end("-TERM");
        }
    });
}
