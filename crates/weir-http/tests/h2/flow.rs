//! Proves: no window is ever overrun in either direction, and the most wanted bytes leave first
//! (RFC 9113 §6.9, RFC 9218 §10). How: scripts.

use std::sync::Arc;

use weir_http::h2::frame::{ACK, END_STREAM, Kind, PADDED};
use weir_http::h2::{Glitch, Limits, WindowPool};

use crate::kit::{GET, POST, Server, data, frame, headers, reset, setting, window};

/// Makes requests with these priorities, each with a response of that many bytes pending; heads
/// have left.
fn waiting(answers: &[(&str, usize)]) -> Server {
    let mut server = Server::new();
    server.feed(&[window(0, 1 << 24), setting(4, 1 << 24)].concat());
    for (at, (priority, bytes)) in answers.iter().enumerate() {
        let stream = 1 + 2 * at as u32;
        server.feed(&headers(stream, END_STREAM, &[GET, &[("priority", *priority)]].concat()));
        server.answer(stream, *bytes);
    }
    server.sent_max(answers.len() * 10 + 9);
    server
}

/// Returns the streams in the order of their DATA frames, when `bytes_max` bytes are written at a
/// time.
fn order(server: &mut Server, bytes_max: usize) -> Vec<u32> {
    let mut order = Vec::new();
    loop {
        let sent = server.sent_max(bytes_max);
        if sent.is_empty() {
            return order;
        }
        let frames = sent.iter().filter_map(|words| words.strip_prefix("data "));
        order.extend(frames.map(|words| words.split(' ').next().unwrap().parse::<u32>().unwrap()));
    }
}

#[test]
fn urgency_first_and_the_oldest_of_the_same() {
    let two = 2 * 16_375;
    let answers = [("u=5", two), ("u=3", two), ("u=3", two), ("u=0", two)];
    for bytes_max in [1, 20_000, 65_536, usize::MAX] {
        let order = order(&mut waiting(&answers), bytes_max);
        assert_eq!(order, [7, 7, 3, 3, 5, 5, 1, 1], "{bytes_max}");
    }
}

#[test]
fn incremental_ones_take_turns() {
    let two = 2 * 16_375;
    let answers = [("i", two), ("i", two), ("i", two)];
    for bytes_max in [1, 20_000, 40_000, usize::MAX] {
        assert_eq!(order(&mut waiting(&answers), bytes_max), [1, 3, 5, 1, 3, 5], "{bytes_max}");
    }
    // The oldest of the others takes turns with them.
    let answers = [("", two), ("i", two), ("", two), ("i", two)];
    assert_eq!(order(&mut waiting(&answers), usize::MAX), [1, 3, 7, 1, 3, 7, 5, 5]);
}

#[test]
fn frames_fit_into_a_record() {
    let mut server = waiting(&[("", 40_000)]);
    assert_eq!(server.sent(), ["data 1 16375", "data 1 16375", "data 1 7250 end", "ended 1"]);
}

#[test]
fn a_write_is_no_longer_than_asked_for_and_a_frame() {
    let mut server = waiting(&[("", 100_000), ("", 100_000)]);
    assert_eq!(server.sent_max(1), ["data 1 16375"]);
    assert_eq!(server.sent_max(32_768), ["data 1 16375", "data 1 16375"]);
    assert_eq!(server.sent_max(0), [""; 0]);
}

#[test]
fn windows_of_the_client_are_kept() {
    let mut server = Server::new();
    server.feed(&headers(1, END_STREAM, GET));
    server.answer(1, 100_000);
    server.feed(&headers(3, END_STREAM, GET));
    server.answer(3, 0);
    let heads = ["headers 1 :status=200", "headers 3 :status=200 end"];
    let all =
        ["data 1 16375", "data 1 16375", "data 1 16375", "data 1 16375", "data 1 35", "ended 3"];
    assert_eq!(
        server.sent(),
        [&heads[..], &all].concat(),
        "65,535 bytes, and what needs no window"
    );
    server.feed(&window(1, 100_000));
    assert!(server.sent().is_empty(), "the connection's window");
    server.feed(&window(0, 7));
    assert_eq!(server.sent(), ["data 1 7"]);
    server.feed(&window(0, 100_000));
    assert_eq!(server.sent(), ["data 1 16375", "data 1 16375", "data 1 1708 end", "ended 1"]);
}

/// RFC 9113 §6.9.2: a smaller initial window may make windows negative; nothing leaves until they
/// are positive.
#[test]
fn negative_windows() {
    let mut server = Server::new();
    server.feed(&[window(0, 1 << 20), headers(1, END_STREAM, GET)].concat());
    server.answer(1, 100_000);
    server.sent();
    server.feed(&setting(4, 10));
    assert_eq!(
        (server.sent(), server.count(Glitch::WindowShrunk)),
        (vec!["settings ack".to_owned()], 1)
    );
    server.feed(&window(1, 65_525));
    assert!(server.sent().is_empty(), "now it is 0");
    server.feed(&window(1, 3));
    assert_eq!(server.sent(), ["data 1 3"]);
    server.feed(&setting(4, 12));
    assert_eq!(server.sent(), ["settings ack", "data 1 2"]);
}

/// A frame with the same setting many times costs one walk over the streams: the last value counts.
#[test]
fn a_window_that_is_set_again_and_again_is_set_once() {
    let mut server = Server::new();
    server.feed(&[window(0, 1 << 20), headers(1, END_STREAM, GET)].concat());
    server.answer(1, 100_000);
    server.sent();
    let values = [[0, 4, 0, 0, 0, 10], [0, 4, 0, 1, 0, 0]].concat().repeat(1_000);
    let [_, length @ ..] = (values.len() as u32).to_be_bytes();
    server.feed(&[&length[..], &[4, 0, 0, 0, 0, 0], &values].concat());
    assert_eq!(
        (server.sent(), server.count(Glitch::WindowShrunk)),
        (vec!["settings ack".to_owned(), "data 1 1".to_owned()], 0)
    );
}

#[test]
fn nothing_leaves_without_a_window() {
    let mut server = Server::new();
    server.feed(&[setting(4, 0), headers(1, END_STREAM, GET)].concat());
    server.answer(1, 5);
    assert_eq!(server.sent(), ["settings ack", "headers 1 :status=200"]);
    server.feed(&setting(4, 1));
    assert_eq!(server.sent(), ["settings ack", "data 1 1"]);
}

// ---- what clients send ----

/// DATA frames of 16,384 bytes.
fn pieces(stream: u32, count: usize) -> Vec<u8> {
    data(stream, 0, &[b'x'; 16_384]).repeat(count)
}

#[test]
fn consumed_bytes_are_given_back() {
    let mut server = Server::new();
    server.feed(&headers(1, 0, POST));
    assert_eq!(server.feed(&pieces(1, 1)).len(), 1);
    assert!(server.sent().is_empty(), "half a window is worth a frame");
    server.feed(&pieces(1, 1));
    assert_eq!(server.sent(), ["window 1 32768"]);
    let mut windows = 0;
    for _ in 0..100 {
        assert_eq!(server.feed(&pieces(1, 2)).len(), 2);
        windows += server.sent().iter().filter(|words| words.starts_with("window 0")).count();
    }
    assert_eq!(windows, 6, "the connection's, each half a MiB");
}

#[test]
fn what_is_kept_is_not_given_back() {
    let mut server = Server::new();
    server.consumes = false;
    server.feed(&headers(1, 0, POST));
    assert_eq!(server.feed(&pieces(1, 4)).len(), 4);
    assert!(server.sent().is_empty());
    let over = server.feed(&data(1, 0, b"x"));
    assert_eq!(over, ["reset 1 flow-control-error"]);
    assert_eq!(server.sent(), ["rst 1 flow-control-error"]);
}

/// Uploads that are not consumed don't stop another one; each keeps no more than its own window.
#[test]
fn what_is_kept_of_some_leaves_room_for_others() {
    let mut server = Server::new();
    server.consumes = false;
    for stream in (1..200).step_by(2) {
        server.feed(&headers(stream, 0, POST));
        for _ in 0..4 {
            assert_eq!(server.feed(&pieces(stream, 1)), [format!("data {stream} 16384")]);
            server.sent();
        }
    }
    assert_eq!(server.feed(&data(1, 0, b"x")), ["reset 1 flow-control-error"]);
    assert_eq!(server.feed(&data(199, 0, b"x")), ["reset 199 flow-control-error"]);
}

#[test]
fn windows_come_back_when_streams_go() {
    let mut server = Server::new();
    server.consumes = false;
    for stream in (1..2000).step_by(2) {
        assert_eq!(server.feed(&[headers(stream, 0, POST), pieces(stream, 3)].concat()).len(), 4);
        match stream % 3 {
            0 => server.mux.reset(stream, weir_http::h2::Code::Cancel),
            1 => server.answer(stream, 1),
            _ => {
                server.mux.ignore_body(stream);
                assert_eq!(server.feed(&pieces(stream, 1)), [""; 0]);
                server.answer(stream, 0);
            }
        }
        server.sent();
        server.feed(&window(0, 1));
    }
}

#[test]
fn padding_counts_and_comes_back() {
    let mut server = Server::new();
    server.feed(&headers(1, 0, POST));
    let padded = data(1, PADDED, &[&[255u8][..], &[0; 255]].concat());
    for _ in 0..127 {
        assert_eq!(server.feed(&padded), [""; 0]);
    }
    assert!(server.sent().is_empty());
    server.feed(&padded);
    assert_eq!(server.sent(), ["window 1 32768"]);
}

/// Until the client has acknowledged our settings it may use the default window, then what was
/// announced.
#[test]
fn announced_windows_count_from_the_acknowledgement() {
    for (window_bytes, moved) in [(16_384u32, 16_384 - 65_535), (200_000, 200_000 - 65_535)] {
        let mut server = Server::silent(Limits { window_bytes, ..Limits::default() });
        server.consumes = false;
        server.feed(
            &[&weir_http::h2::PREFACE[..], &frame(Kind::Settings, 0, 0, &[]), &headers(1, 0, POST)]
                .concat(),
        );
        assert_eq!(
            server.feed(&[pieces(1, 3), data(1, 0, &[b'x'; 16_383])].concat()).len(),
            4,
            "the default"
        );
        server.feed(&frame(Kind::Settings, ACK, 0, &[]));
        let over = server.feed(&data(1, 0, b"x")).join("");
        assert_eq!(over, if moved < 0 { "reset 1 flow-control-error" } else { "data 1 1" });
        server.feed(&headers(3, 0, POST));
        let whole = window_bytes as usize / 16_384;
        assert_eq!(server.feed(&pieces(3, whole)).len(), whole);
        let rest = window_bytes as usize % 16_384 + 1;
        assert_eq!(server.feed(&data(3, 0, &vec![b'x'; rest])), ["reset 3 flow-control-error"]);
    }
}

/// Makes a server whose windows grow out of a pool of this many bytes, with uploads on these
/// streams that are passed on.
fn passing_on(pool: u64, streams: &[u32]) -> Server {
    let growth = Arc::new(WindowPool::new(pool));
    let mut server = Server::with(Limits { growth, ..Limits::default() });
    for stream in streams {
        server.feed(&headers(*stream, 0, POST));
        server.mux.pass_body_on(*stream, 0);
    }
    server
}

#[test]
fn windows_that_are_used_up_at_once_grow() {
    let mut server = passing_on(1 << 28, &[1]);
    assert_eq!(server.feed(&pieces(1, 3)).len(), 3);
    assert_eq!(server.sent(), ["window 1 32768"]);
    server.feed(&pieces(1, 1));
    assert_eq!(
        server.sent(),
        ["window 0 65536", "window 1 98304"],
        "what has come and as much again"
    );
    let mut grown = Vec::new();
    for _ in 0..200 {
        server.feed(&pieces(1, 1));
        // Half a window is given back and no more, or it grows.
        grown.extend(server.sent().into_iter().filter(|words| words.starts_with("window 0")));
    }
    let half = |full: u32| format!("window 0 {}", full / 2);
    let steps =
        ["window 0 131072".to_owned(), "window 0 262144".to_owned(), "window 0 524288".to_owned()];
    assert!(steps.iter().all(|step| grown.contains(step)), "{grown:?}");
    assert_eq!(
        grown.last(),
        Some(&half((1 << 20) + (1 << 20) - 65_536)),
        "the connection's has grown as much"
    );
    assert_eq!(server.limits.growth.left(), (1 << 28) - (1 << 20) + 65_536);
    // An upload that is not passed on, or of which something waits, keeps its window.
    server.feed(&headers(3, 0, POST));
    server.consumes = false;
    for _ in 0..4 {
        server.feed(&pieces(3, 1));
        server.mux.consumed(3, 16_383);
    }
    server.mux.pass_body_on(3, 0);
    for _ in 0..40 {
        server.feed(&pieces(3, 1));
        server.mux.consumed(3, 16_384);
    }
    assert!(
        server
            .sent()
            .iter()
            .filter(|words| words.starts_with("window 3"))
            .all(|words| words.len() <= 14)
    );
    assert_eq!(server.limits.growth.left(), (1 << 28) - (1 << 20) + 65_536);
    // All of the growth is given back with the stream.
    server.mux.reset(1, weir_http::h2::Code::Cancel);
    assert_eq!(server.limits.growth.left(), 1 << 28);
}

/// Whatever happens to streams and connections, the growth of a window is given back, and the
/// connection's shrinks as bytes come.
#[test]
fn what_has_grown_comes_back() {
    let used_up = |server: &mut Server, stream: u32| {
        for _ in 0..64 {
            server.feed(&pieces(stream, 1));
            server.sent();
        }
    };
    let full = (1 << 20) - 65_536;
    for end in 0..5 {
        let mut server = passing_on(1 << 21, &[1, 3]);
        used_up(&mut server, 1);
        used_up(&mut server, 3);
        assert_eq!(server.limits.growth.left(), (1 << 21) - 2 * full);
        match end {
            0 => server.mux.reset(1, weir_http::h2::Code::Cancel),
            1 => drop(server.feed(&reset(1, weir_http::h2::Code::Cancel))),
            2 => drop(server.feed(&window(1, 0))),
            3 => {
                server.feed(&data(1, END_STREAM, b""));
                server.answer(1, 0);
                server.sent();
            }
            _ => {
                server.answer(1, 9);
                server.sent();
            }
        }
        assert_eq!(server.limits.growth.left(), (1 << 21) - full, "{end}");
        // The connection's window is smaller by that much again.
        let mut given = 0i64;
        for _ in 0..400 {
            server.feed(&pieces(3, 1));
            for words in server.sent() {
                given += words
                    .strip_prefix("window 0 ")
                    .map_or(0, |bytes| bytes.parse::<i64>().unwrap());
            }
        }
        let came = 400 * 16_384;
        assert!(
            given <= came && given > came - i64::from(full as u32) - (1 << 20),
            "{given} of {came}"
        );
        let pool = Arc::clone(&server.limits.growth);
        drop(server);
        assert_eq!(pool.left(), 1 << 21, "{end}");
    }
}

/// Bytes that the proxy keeps have not been consumed by a server.
#[test]
fn what_may_be_on_its_way_does_not_count() {
    let mut server = passing_on(1 << 28, &[]);
    server.feed(&headers(1, 0, POST));
    server.mux.pass_body_on(1, 131_072);
    let grown = |server: &mut Server, frames: usize| {
        (0..frames).position(|_| {
            server.feed(&pieces(1, 1));
            server
                .sent()
                .iter()
                .any(|words| *words == "window 0 65536" || words == "window 0 131072")
        })
    };
    assert_eq!(grown(&mut server, 100), Some(11), "both together");
    assert_eq!(grown(&mut server, 100), Some(7), "the next window");
    // Something has to wait: the count starts over.
    server.consumes = false;
    assert_eq!(grown(&mut server, 2), None);
    server.mux.consumed(1, 32_768);
    server.consumes = true;
    assert_eq!(grown(&mut server, 23), None);
}

#[test]
fn no_window_grows_out_of_an_empty_pool() {
    let mut server = passing_on(65_535, &[1]);
    for _ in 0..100 {
        server.feed(&pieces(1, 1));
        assert!(!server.sent().contains(&"window 0 65536".to_owned()));
    }
    assert_eq!(server.limits.growth.left(), 65_535);
    // The limit for all streams of a connection: nine have half a MiB, and none has more.
    let streams: Vec<u32> = (0..9).map(|at| 1 + 2 * at).collect();
    let mut server = passing_on(1 << 28, &streams);
    for round in 0..64 {
        for stream in &streams {
            server.feed(&pieces(*stream, 1));
            assert!(server.sent().len() <= 3, "{round}");
        }
    }
    let grown = (1 << 28) - server.limits.growth.left();
    assert_eq!(grown, 9 * ((1 << 19) - 65_536));
    assert!(grown + (1 << 19) > 4 << 20);
}
