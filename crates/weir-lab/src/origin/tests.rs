//! The origin end to end, over real sockets on both drivers: its responses, their order, and when
//! it closes.
//!
//! Where the kernel or a container forbids io_uring, those runs are skipped with a line that says
//! so.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use weir_check::waiting::{Patient, eventually, eventually_or, patient};

use super::*;

mod misbehaving;

/// Runs a test body on each driver that works here.
fn on_both_drivers(body: impl Fn(&OriginHandle)) {
    for io in [IoChoice::Epoll, IoChoice::Uring] {
        let options = OriginOptions { listen: (Ipv4Addr::LOCALHOST, 0).into(), threads: 2, io };
        match spawn(options) {
            Ok(origin) => {
                body(&origin);
                origin.stop().unwrap();
            }
            Err(error) if io == IoChoice::Uring => eprintln!("skipped on io_uring: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

fn connect(origin: &OriginHandle) -> Patient<TcpStream> {
    patient(TcpStream::connect(origin.local_addr()).unwrap())
}

/// Sends, ends the sending direction, and returns all that comes until the origin closes.
fn exchange(origin: &OriginHandle, request: &[u8]) -> String {
    let mut stream = connect(origin);
    stream.write_all(request).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    without_dates(&String::from_utf8(reply).unwrap())
}

fn without_dates(text: &str) -> String {
    text.split_inclusive("\r\n").filter(|line| !line.starts_with("Date: ")).collect()
}

fn head(status: &str, rest: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n{rest}\r\n")
}

/// Waits until the counters fulfil a condition.
fn until(origin: &OriginHandle, what: impl Fn(OriginStats) -> bool) {
    eventually_or(
        "the origin counts so",
        || what(origin.stats()),
        || format!("{:?}", origin.stats()),
    );
}

#[test]
fn every_key_and_combination_is_answered() {
    on_both_drivers(|origin| {
        let get = |target: &str| {
            exchange(origin, format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes())
        };
        assert_eq!(get("/"), head("200 OK", "Content-Length: 3\r\n") + "ok\n");
        assert_eq!(get("/any/path?id=7"), head("200 OK", "Content-Length: 3\r\n") + "ok\n");
        assert_eq!(
            get("/?size=4&status=404"),
            head("404 Not Found", "Content-Length: 4\r\n") + "!\"#$"
        );
        assert_eq!(get("/?size=0"), head("200 OK", "Content-Length: 0\r\n"));
        assert_eq!(get("/?status=204"), "HTTP/1.1 204 No Content\r\n\r\n");
        assert_eq!(
            get("/?size=4&chunked=1"),
            head("200 OK", "Transfer-Encoding: chunked\r\n") + "4\r\n!\"#$\r\n0\r\n\r\n"
        );
        let closing = head("200 OK", "Content-Length: 3\r\nConnection: close\r\n");
        assert_eq!(get("/?close=1&delay=1"), closing + "ok\n");
        assert!(get("/?size=x").starts_with("HTTP/1.1 400 "));
        assert!(get("/page").contains("<title>weir</title>"));
        assert!(get("/__stats").contains("\"connects\":"));
    });
}

#[test]
fn a_browser_gets_the_page_at_the_root() {
    on_both_drivers(|origin| {
        let request = b"GET / HTTP/1.1\r\nHost: a\r\nAccept: text/html,*/*;q=0.8\r\n\r\n";
        let reply = exchange(origin, request);
        assert!(
            reply.contains("Content-Type: text/html") && reply.contains("<title>weir</title>"),
            "{reply}"
        );
    });
}

#[test]
fn head_http10_and_bodies_are_framed_right() {
    on_both_drivers(|origin| {
        let reply = exchange(origin, b"HEAD /?size=5000000000 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(reply, head("200 OK", "Content-Length: 5000000000\r\n"));
        let reply = exchange(origin, b"GET / HTTP/1.0\r\n\r\n");
        assert_eq!(reply, head("200 OK", "Content-Length: 3\r\nConnection: close\r\n") + "ok\n");
        let reply = exchange(
            origin,
            b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n",
        );
        let first = head("200 OK", "Content-Length: 3\r\nConnection: keep-alive\r\n") + "ok\n";
        let second = head("200 OK", "Content-Length: 3\r\nConnection: close\r\n") + "ok\n";
        assert_eq!(reply, first + &second);
        let request =
            b"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\n\
                de\r\n0\r\n\r\n";
        let echoed = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nabcde";
        let expected = head("200 OK", &format!("Content-Length: {}\r\n", echoed.len())) + echoed;
        assert_eq!(exchange(origin, request), expected);
    });
}

#[test]
fn pipelined_requests_are_answered_in_order_whatever_each_asks_for() {
    on_both_drivers(|origin| {
        let mut requests = String::new();
        let mut bodies = Vec::new();
        for number in 0..300u64 {
            let (size, delay) = (number * 37 % 40_000, if number % 50 == 0 { 5 } else { 0 });
            let body = format!("b{number}");
            requests += &format!("GET /?size={size}&delay={delay} HTTP/1.1\r\nHost: a\r\n\r\n");
            requests += &format!(
                "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            bodies.push((size, body));
        }
        let mut stream = connect(origin);
        stream.write_all(requests.as_bytes()).unwrap();
        let mut reader = std::io::BufReader::new(stream);
        for (size, body) in bodies {
            let pattern = read_reply(&mut reader);
            assert_eq!(pattern.len() as u64, size);
            assert!(pattern.iter().enumerate().all(|(at, byte)| *byte == pattern_byte(at as u64)));
            assert!(read_reply(&mut reader).ends_with(format!("\r\n\r\n{body}").as_bytes()));
        }
    });
}

/// Reads one response that has a length; returns its body.
fn read_reply(reader: &mut impl std::io::BufRead) -> Vec<u8> {
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            length = value.trim().parse().unwrap();
        }
        if line == "\r\n" {
            break;
        }
        assert!(!line.is_empty(), "the connection ended");
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    body
}

#[test]
fn one_receive_with_many_requests_is_answered_and_counted_once() {
    on_both_drivers(|origin| {
        let mut stream = connect(origin);
        until(origin, |stats| stats.connects == 1);
        stream.write_all("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(50).as_bytes()).unwrap();
        let mut reader = std::io::BufReader::new(stream);
        for _ in 0..50 {
            assert_eq!(read_reply(&mut reader), b"ok\n");
        }
        until(origin, |stats| stats.requests == 50);
        let stats = origin.stats();
        // One write of 1.3 KB over loopback arrives as one segment.
        assert_eq!((stats.receives, stats.bytes_in, stats.closes), (1, 1350, 0), "{stats:?}");
        assert_eq!(stats.bytes_out % 50, 0);
        drop(reader);
        until(origin, |stats| stats.closes == 1);
    });
}

#[test]
fn a_large_body_is_streamed_to_a_client_that_pauses_and_the_next_request_waits() {
    on_both_drivers(|origin| {
        let mut stream = connect(origin);
        stream
            .write_all(
                b"GET /?size=30000000 HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            )
            .unwrap();
        // The client does not read: the bytes that the origin has handed to the kernel are far
        // fewer than the body.
        until(origin, |stats| stats.bytes_out > 0);
        assert!(origin.stats().bytes_out < 16_000_000);
        let mut reader = std::io::BufReader::new(stream);
        let body = read_reply(&mut reader);
        assert_eq!(body.len(), 30_000_000);
        assert!(body.iter().enumerate().all(|(at, byte)| *byte == pattern_byte(at as u64)));
        assert_eq!(read_reply(&mut reader), b"ok\n");
    });
}

#[test]
fn a_large_request_body_is_summed_and_expectation_is_met() {
    on_both_drivers(|origin| {
        let mut stream = connect(origin);
        let head = "PUT /sum HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\
            Expect: 100-continue\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
        assert!(read_reply(&mut reader).is_empty(), "100 Continue comes before the body");
        stream.write_all(&vec![b'x'; 3_000_000]).unwrap();
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for _ in 0..3_000_000 {
            hash = (hash ^ u64::from(b'x')).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let expected = format!("bytes=3000000 fnv1a={hash:016x}\n");
        assert_eq!(String::from_utf8(read_reply(&mut reader)).unwrap(), expected);
    });
}

#[test]
fn requests_byte_by_byte_are_read_and_bad_ones_refused_behind_good_ones() {
    on_both_drivers(|origin| {
        let mut stream = connect(origin);
        stream.set_nodelay(true).unwrap();
        for byte in b"GET /?size=2 HTTP/1.1\r\nHost: a\r\n\r\n" {
            stream.write_all(&[*byte]).unwrap();
        }
        let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
        assert_eq!(read_reply(&mut reader), b"!\"");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(read_reply(&mut reader), b"ok\n");
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert!(
            rest.starts_with("HTTP/1.1 400 ") && rest.contains("\r\nConnection: close\r\n"),
            "{rest}"
        );
    });
}

#[test]
fn a_taken_port_is_refused_clearly_and_stop_ends_open_connections() {
    let taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let options =
        OriginOptions { listen: taken.local_addr().unwrap(), threads: 1, io: IoChoice::Epoll };
    assert!(spawn(options).is_err());
    on_both_drivers(|origin| {
        let mut stream = connect(origin);
        stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        until(origin, |stats| stats.connects == 1);
    });
}

#[test]
fn with_a_shared_listener_an_idle_thread_takes_new_connections() {
    let path = std::env::temp_dir().join(format!("weir-origin-{}.sock", std::process::id()));
    for (io, what) in [
        (IoChoice::Epoll, "burn"),
        (IoChoice::Epoll, "block"),
        (IoChoice::Uring, "burn"),
        (IoChoice::Uring, "block"),
    ] {
        let options = OriginOptions { listen: (Ipv4Addr::LOCALHOST, 0).into(), threads: 2, io };
        let conduct =
            Conduct { accept: Accept::Shared, unix: Some(path.clone()), ..Conduct::default() };
        let origin = match spawn_with(options, conduct) {
            Ok(origin) => origin,
            Err(error) if io == IoChoice::Uring => {
                return eprintln!("skipped on io_uring: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        let mut busy = connect(&origin);
        busy.write_all(format!("GET /?{what}=1500 HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes())
            .unwrap();
        // Its thread takes no other connection from then on.
        until(&origin, |stats| stats.receives == 1);
        // By a hash half of these would wait for the busy thread; one of 2^16 runs finds none of
        // them.
        for _ in 0..16 {
            assert!(exchange(&origin, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").ends_with("ok\n"));
            let mut unix = UnixStream::connect(&path).unwrap();
            unix.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
            let mut text = String::new();
            unix.read_to_string(&mut text).unwrap();
            assert!(text.ends_with("ok\n"), "{text}");
        }
        busy.set_nonblocking(true).unwrap();
        // Without blocking, since the client's end would wait.
        let silent = (&*busy).read(&mut [0]).unwrap_err();
        assert_eq!(
            silent.kind(),
            io::ErrorKind::WouldBlock,
            "all were answered while one thread was busy"
        );
    }
}

#[test]
fn who_takes_a_connection_answers_there_before_anything_else() {
    const SMALL: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for io in [IoChoice::Epoll, IoChoice::Uring] {
        let options = OriginOptions { listen: (Ipv4Addr::LOCALHOST, 0).into(), threads: 1, io };
        let origin =
            match spawn_with(options, Conduct { accept: Accept::Shared, ..Conduct::default() }) {
                Ok(origin) => origin,
                Err(error) if io == IoChoice::Uring => {
                    return eprintln!("skipped on io_uring: {error}");
                }
                Err(error) => panic!("{error}"),
            };
        let [mut first, mut second] = [connect(&origin), connect(&origin)];
        for stream in [&mut first, &mut second] {
            stream.write_all(SMALL).unwrap();
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        }
        first.write_all(b"GET /?block=1000 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        until(&origin, |stats| stats.receives == 3);
        // Both are there when the thread looks again.
        second.write_all(b"GET /?block=2000 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut new = connect(&origin);
        new.write_all(SMALL).unwrap();
        assert!(new.read(&mut [0; 4096]).unwrap() > 0);
        second.set_nonblocking(true).unwrap();
        let silent = (&*second).read(&mut [0]).unwrap_err();
        assert_eq!(
            silent.kind(),
            io::ErrorKind::WouldBlock,
            "it was answered before the other one"
        );
    }
}

#[test]
fn a_thread_with_one_place_leaves_others_waiting_until_that_is_free() {
    const SMALL: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let path = std::env::temp_dir().join(format!("weir-origin-one-{}.sock", std::process::id()));
    for io in [IoChoice::Epoll, IoChoice::Uring] {
        let options = OriginOptions { listen: (Ipv4Addr::LOCALHOST, 0).into(), threads: 1, io };
        let conduct =
            Conduct { accept: Accept::One, unix: Some(path.clone()), ..Conduct::default() };
        let origin = match spawn_with(options, conduct) {
            Ok(origin) => origin,
            Err(error) if io == IoChoice::Uring => {
                return eprintln!("skipped on io_uring: {error}");
            }
            Err(error) => panic!("{error}"),
        };
        let mut first = connect(&origin);
        first.write_all(SMALL).unwrap();
        assert!(first.read(&mut [0; 4096]).unwrap() > 0);
        let mut second = connect(&origin);
        second.write_all(SMALL).unwrap();
        // A request at the path is answered meanwhile, and so is the first connection.
        let mut unix = UnixStream::connect(&path).unwrap();
        unix.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        unix.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("ok\n"), "{text}");
        first.write_all(SMALL).unwrap();
        assert!(first.read(&mut [0; 4096]).unwrap() > 0);
        assert_eq!((origin.stats().connects, origin.stats().requests), (2, 3), "the second waits");
        // Idle connections end after a while; one closed by its client ends at once.
        match io {
            IoChoice::Epoll => assert_eq!(first.read(&mut [0; 4096]).unwrap(), 0),
            _ => first.shutdown(Shutdown::Both).unwrap(),
        }
        drop(first);
        assert!(second.read(&mut [0; 4096]).unwrap() > 0);
        assert_eq!(origin.stop().unwrap().connects, 3);
    }
}

#[test]
fn delays_are_longer_while_a_server_works_on_more_than_it_has_room_for() {
    on_both_drivers(|origin| {
        let request =
            |delay: u32| format!("GET /?delay={delay}ms&beyond=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        // A request that does not end in this test.
        let mut long = connect(origin);
        long.write_all(request(300_000).as_bytes()).unwrap();
        until(origin, |stats| stats.requests == 1);
        let begin = Instant::now();
        exchange(origin, request(20).as_bytes());
        assert!(
            begin.elapsed() >= Duration::from_millis(80),
            "four times as long, for there are two"
        );
    });
}

#[test]
fn the_log_has_each_request_that_was_answered() {
    let path = std::env::temp_dir().join(format!("weir-origin-log-{}", std::process::id()));
    let options =
        OriginOptions { listen: (Ipv4Addr::LOCALHOST, 0).into(), threads: 2, io: IoChoice::Auto };
    let log = Some(File::options().append(true).create(true).open(&path).unwrap());
    let origin = spawn_with(options, Conduct { log, ..Conduct::default() }).unwrap();
    exchange(
        &origin,
        b"POST /a?id=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhiGET /b HTTP/1.1\r\n\
            Host: a\r\n\r\n",
    );
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "POST /a?id=1 HTTP/1.1\nGET /b HTTP/1.1\n");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_thread_that_fails_is_noticed_and_its_error_is_told() {
    let options =
        OriginOptions { listen: "127.0.0.1:0".parse().unwrap(), threads: 1, io: IoChoice::Epoll };
    let mut origin = spawn(options).unwrap();
    assert!(!origin.has_failed());
    let (sender, ended) = mpsc::channel::<()>();
    origin.joins.push(std::thread::spawn(move || {
        drop(sender);
        Err(io::Error::other("no memory"))
    }));
    assert!(ended.recv().is_err());
    eventually("the end of the thread is noticed", || origin.has_failed());
    assert_eq!(origin.stop().unwrap_err().to_string(), "no memory");
}

#[test]
fn threads_keep_to_their_cores_when_there_is_one_for_each() {
    let all = available_cores();
    assert_eq!(Accept::Spread.cores(all.len()), all);
    assert!(
        Accept::Spread.cores(all.len() + 1).is_empty()
            && Accept::Shared.cores(all.len()).is_empty()
    );
}
