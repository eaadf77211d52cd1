//! Proves: responses leave as they were given, each frame where it belongs, and late calls do no
//! harm. How: scripts.

use weir_http::h2::frame::{END_STREAM, Kind};
use weir_http::h2::{Additions, Code, Glitch, Limits};
use weir_http::{Fields, ReplyContext, ReplyParts, Trailers, http_date, parse_reply};

use crate::kit::{GET, POST, Server, data, frame, headers, reset, setting, us};

fn asked(count: u32) -> Server {
    let mut server = Server::new();
    for at in 0..count {
        assert_eq!(server.feed(&headers(1 + 2 * at, END_STREAM, GET)).len(), 1);
    }
    server
}

#[test]
fn a_whole_answer() {
    let mut server = asked(1);
    let early = ReplyParts::made(103, &[(b"Link", b"</a>")]);
    let input = b"HTTP/1.1 200 Fine\r\nServer: S\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\
                  Content-Length: 5\r\nTE: x\r\nKeep-Alive: 1\r\n\
                  Transfer-Encoding: x\r\nUpgrade: y\r\nX-Folded: a\r\n b\r\n\r\n";
    let input = String::from_utf8(input.to_vec()).unwrap().replace("Transfer-Encoding: x\r\n", "");
    let mut fields = Fields::default();
    let context = ReplyContext::default();
    let head = parse_reply(input.as_bytes(), &weir_http::Limits::default(), context, &mut fields)
        .unwrap()
        .unwrap();
    let parts =
        ReplyParts::received(input.as_bytes(), &head, &fields).with(&[(b"Set-Cookie", b"s=1")]);
    server.mux.set_tag(1, 77);
    assert!(server.mux.interim(1, &early, us()) > 9);
    let additions = Additions { via: us(), date: Some(&http_date(0)), length: Some(5) };
    assert!(server.mux.reply_head(1, &parts, &additions, false) > 9);
    assert_eq!(server.mux.reply_head(1, &parts, &additions, false), 0, "one head");
    assert_eq!(server.mux.interim(1, &early, None), 0, "too late");
    assert!(server.mux.reply_data(1, 3) && server.mux.reply_data(1, 2));
    assert_eq!((server.mux.unsent(1), server.mux.sent(1), server.mux.tag(1)), (5, 0, Some(77)));
    let head = "headers 1 :status=200 server=S x-folded=a b set-cookie=s=1 via=1.1 weir date=Thu, \
                01 Jan 1970 00:00:00 GMT \
                content-length=5";
    assert_eq!(server.sent(), ["headers 1 :status=103 link=</a>", head, "data 1 5"]);
    assert_eq!((server.mux.unsent(1), server.mux.sent(1)), (0, 5));
    server.mux.end(1, Trailers::default());
    assert_eq!(server.sent(), ["data 1 0 end", "ended 1"]);
    assert_eq!((server.mux.open(), server.mux.tag(1)), (0, None));
}

#[test]
fn the_three_ends_of_an_answer() {
    let mut server = asked(3);
    server.answer(1, 0);
    server.answer(3, 9);
    server.mux.reply_head(5, &ReplyParts::made(200, &[]), &Additions::default(), false);
    server.mux.reply_data(5, 4);
    assert!(server.mux.end(5, Trailers::kept(b"X-Sum: 1\r\nGrpc-Status: 0\r\n")) > 0);
    assert!(!server.mux.reply_data(5, 4), "it is complete");
    let heads = ["headers 1 :status=200 end", "headers 3 :status=200", "headers 5 :status=200"];
    let rest = [
        "data 3 9 end",
        "data 5 4",
        "headers 5 x-sum=1 grpc-status=0 end",
        "ended 1",
        "ended 3",
        "ended 5",
    ];
    assert_eq!(server.sent(), [&heads[..], &rest].concat());
}

/// Clients whose END_STREAM is a separate frame send it even after they have their responses. Some
/// treat a reset as a failure.
#[test]
fn an_answer_before_an_end_without_content() {
    let mut server = Server::new();
    let with_length = [POST, &[("content-length", "3")]].concat();
    let streams = || (1..200).step_by(2);
    for stream in streams() {
        server.feed(&[headers(stream, 0, &with_length), data(stream, 0, b"abc")].concat());
    }
    for stream in streams() {
        server.answer(stream, 0);
        assert_eq!(
            server.sent(),
            [format!("headers {stream} :status=200 end"), format!("ended {stream}")]
        );
    }
    for stream in streams() {
        assert_eq!(server.feed(&data(stream, END_STREAM, b"")), [""; 0]);
    }
    assert_eq!(server.sent(), [""; 0]);
}

/// RFC 9113 §8.1: one RST_STREAM reaches a client that continues its body, and none a client that
/// is about to end it anyway: curl 7.88 discards the response then.
#[test]
fn an_answer_before_the_body() {
    let mut server = Server::new();
    server.feed(&[headers(1, 0, POST), data(1, 0, b"abc")].concat());
    server.answer(1, 2);
    assert_eq!(server.sent(), ["headers 1 :status=200", "data 1 2 end", "ended 1"]);
    assert_eq!(server.feed(&data(1, 0, b"more")), [""; 0]);
    assert_eq!(server.sent(), ["rst 1 no-error"]);
    assert_eq!(server.feed(&[data(1, 0, b"more"), data(1, END_STREAM, b"late")].concat()), [""; 0]);
    server.feed(&headers(3, 0, POST));
    server.answer(3, 0);
    assert_eq!(server.sent(), ["headers 3 :status=200 end", "ended 3"]);
    assert_eq!(server.feed(&data(3, END_STREAM, b"late")), [""; 0]);
    assert_eq!(server.sent(), [""; 0]);
}

#[test]
fn a_large_head_needs_several_frames() {
    let mut server = asked(1);
    let long = "\u{1}".repeat(40_000);
    let parts = [(&b"x"[..], long.as_bytes())];
    let bytes =
        server.mux.reply_head(1, &ReplyParts::made(200, &parts), &Additions::default(), true);
    assert!(bytes > 40_000 + 27, "{bytes}");
    let sent = server.sent();
    assert_eq!(&sent[..2], ["part of headers 1", "part of headers 1"]);
    assert!(
        sent[2].starts_with("headers 1 :status=200 x=")
            && sent[2].len() > 40_000
            && sent.len() == 4
    );
}

/// RFC 7541 §4.2: announced once, in front of the next block, whichever that is.
#[test]
fn the_size_of_the_table_is_confirmed() {
    let mut server = asked(3);
    server.feed(&setting(1, 100));
    server.answer(1, 0);
    let out = raw(&mut server);
    let at =
        out.windows(2).position(|two| two == [0x20, 0x88]).expect("an update, then the status");
    assert!(out[at - 9..at].starts_with(&[0, 0, 2, 1, 5]), "{out:?}");
    server.answer(3, 0);
    server.feed(&setting(1, 100));
    assert!(!raw(&mut server).contains(&0x20), "nothing has changed");
    server.mux.reply_head(5, &ReplyParts::made(200, &[]), &Additions::default(), false);
    server.feed(&setting(1, 4096));
    server.mux.end(5, Trailers::kept(b"A: 1\r\n"));
    let out = raw(&mut server);
    assert!(
        out.windows(3).any(|three| three == [0, 0, 0] || three[1..] == [0x20, 0x00]),
        "in front of the trailers"
    );
    assert_eq!(out.iter().filter(|&&byte| byte == 0x20).count(), 1);
}

/// Returns all bytes that leave, without bodies.
fn raw(server: &mut Server) -> Vec<u8> {
    struct Raw(Vec<u8>);
    impl weir_http::h2::Outgoing for Raw {
        fn frames(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }
        fn body(&mut self, _: u32, _: u64, _: usize) {}
        fn ended(&mut self, _: u32, _: u64) {}
    }
    let mut raw = Raw(Vec::new());
    while server.mux.write_out(7, &mut raw) > 0 {}
    raw.0
}

#[test]
fn calls_for_streams_that_are_gone() {
    let mut server = asked(1);
    server.mux.reply_head(1, &ReplyParts::made(200, &[]), &Additions::default(), false);
    server.mux.reply_data(1, 100);
    assert_eq!(server.feed(&reset(1, Code::Cancel)), ["reset 1 cancel by client"]);
    assert_eq!(server.count(Glitch::ResetEarly), 0, "its answer had begun");
    server.mux.set_tag(1, 5);
    server.mux.consumed(1, 5);
    server.mux.ignore_body(1);
    server.mux.end(1, Trailers::default());
    server.mux.reset(1, Code::Cancel);
    assert_eq!(server.mux.interim(1, &ReplyParts::made(103, &[]), None), 0);
    assert!(!server.mux.reply_data(1, 5));
    assert_eq!((server.mux.unsent(1), server.mux.sent(1), server.mux.tag(1)), (0, 0, None));
    assert_eq!(server.sent(), ["headers 1 :status=200"], "what had been encoded leaves");
}

#[test]
fn a_reset_forgets_what_waits() {
    let mut server = asked(2);
    server.answer(1, 50);
    server.mux.reset(1, Code::InternalError);
    server.answer(3, 5);
    let sent = [
        "headers 1 :status=200",
        "rst 1 internal-error",
        "headers 3 :status=200",
        "data 3 5 end",
        "ended 3",
    ];
    assert_eq!(server.sent(), sent);
}

/// RFC 9113 §6.8: two GOAWAYs, and requests that were on their way in between are answered.
#[test]
fn draining() {
    let mut server = asked(1);
    server.mux.drain(server.now_us);
    server.mux.drain(server.now_us);
    assert_eq!(server.mux.deadline_us(), Some(2_000_000));
    assert_eq!(server.feed(&headers(3, END_STREAM, GET)).len(), 1);
    server.mux.expire(1_999_999);
    assert_eq!(server.sent(), ["goaway 2147483647 no-error"]);
    server.mux.expire(2_000_000);
    assert_eq!(
        (server.sent(), server.mux.deadline_us()),
        (vec!["goaway 3 no-error".to_owned()], None)
    );
    let late = [
        headers(5, 0, POST),
        data(5, END_STREAM, b"abc"),
        reset(5, Code::Cancel),
        frame(Kind::Ping, 0, 0, b"abcdefgh"),
    ];
    assert_eq!(server.feed(&late.concat()), [""; 0]);
    server.answer(1, 0);
    assert_eq!(server.sent(), ["pong abcdefgh", "headers 1 :status=200 end", "ended 1"]);
    assert!(!server.mux.is_finished());
    server.answer(3, 1);
    assert!(!server.mux.is_finished());
    assert_eq!(server.sent(), ["headers 3 :status=200", "data 3 1 end", "ended 3"]);
    assert!(server.mux.is_finished());
}

#[test]
fn a_failure_ends_all() {
    let mut server = asked(2);
    server.answer(1, 500);
    assert_eq!(server.feed(&data(9, 0, b"x")), ["failed protocol-error"]);
    server.mux.reset(3, Code::Cancel);
    server.answer(3, 5);
    assert!(server.mux.blocked().is_none() && !server.mux.is_finished());
    assert_eq!(server.sent(), ["headers 1 :status=200", "goaway 3 protocol-error"]);
    assert!(server.mux.is_finished());
    assert_eq!(
        server.mux.streams().map(|(id, _)| id).collect::<Vec<_>>(),
        [1],
        "for whoever has to clean up"
    );
    server.mux.reset(1, Code::Cancel);
    assert!(server.mux.streams().next().is_none() && server.sent().is_empty());
}

/// RFC 9113 §6.8: requests that were on their way when the GOAWAY left are answered.
#[test]
fn a_connection_has_so_many_requests() {
    let mut server = Server::with(Limits { requests_max: 3, ..Limits::default() });
    for id in [1, 3, 5, 7] {
        assert_eq!(server.feed(&headers(id, END_STREAM, GET)).len(), 1);
        server.answer(id, 0);
    }
    let told = |server: &mut Server| -> Vec<String> {
        server.sent().into_iter().filter(|words| words.starts_with("goaway")).collect()
    };
    assert_eq!(told(&mut server), ["goaway 2147483647 no-error"], "once");
    assert!(!server.mux.is_finished());
    server.now_us = server.mux.deadline_us().expect("a second step");
    server.mux.expire(server.now_us);
    assert_eq!(server.feed(&headers(9, END_STREAM, GET)), [""; 0]);
    assert_eq!(told(&mut server), ["goaway 7 no-error"]);
    assert!(server.mux.is_finished());
}
