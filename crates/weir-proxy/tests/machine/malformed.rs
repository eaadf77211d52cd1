//! Proves: a malformed request of HTTP/2 gets 400 with its cause before its stream ends, counts as
//! a glitch, and harms no other; gRPC gets its errors in its own form (docs/http2.md).
//! How: clients frame by frame, each frame of weir through the judge of streams.

use weir_check::streams::{END_HEADERS, END_STREAM, Seen, frame, header_block, kind};
use weir_proxy::plan::{LimitPlan, Plan, ShieldPlan, Terms};
use weir_proxy::request::route::{Route, RouteTable};
use weir_proxy::shield::limit::Rate;

use crate::world::{World, plan};

const WINDOW: u32 = 65_535;

/// Returns the status of a stream's response, and its text.
fn said(world: &World, client: usize, stream: u32) -> (u16, String) {
    let reply = world
        .stream_reply(client, stream)
        .unwrap_or_else(|| panic!("stream {stream} has an answer"));
    (reply.status, reply.body.text())
}

#[test]
fn a_malformed_request_gets_400_and_its_cause() {
    let mut world = World::simple(2);
    let client = world.http2_client(0, WINDOW);
    let lists: [(&[(&str, &str)], &str); 4] = [
        (&[("te", "gzip")], "connection-field"),
        (&[("host", "b")], "host-differs"),
        (&[("x-a", "a\u{1}b")], "control-byte"),
        (&[("content-length", "3")], "length-differs"),
    ];
    for (number, (fields, cause)) in lists.into_iter().enumerate() {
        let stream = 1 + 4 * number as u32;
        world.open_with(client, stream, ("GET", "/bad"), fields, None);
        world.open(client, stream + 2, &format!("/v?n=0000000{number}"));
        world.settle();
        assert_eq!(said(&world, client, stream), (400, format!("400 Bad Request: {cause}\n")));
        assert_eq!(said(&world, client, stream + 2).0, 200, "others are served");
    }
    // A client with a remaining body hears that it is not needed, and not that it may retry.
    world.open_with(client, 17, ("POST", "/bad"), &[("connection", "close")], Some(b"abc"));
    world.settle();
    assert_eq!((said(&world, client, 17).0, world.streams_reset(client, 0)), (400, vec![17]));
    assert!(world.streams_reset(client, 1).is_empty());
    // Blanks around a value are no fault: the server gets it without them.
    world.open_with(client, 19, ("GET", "/v?n=00000009"), &[("x-a", " b\t")], None);
    world.settle();
    let request =
        world.requests().find(|request| request.nonce() == "00000009").expect("it was asked");
    assert_eq!(request.fields.all("x-a"), ["b"]);
    assert!(
        world.requests().all(|request| request.target != "/bad"),
        "nothing of them is forwarded"
    );
    world.finish();
}

/// Each costs the client as much as a reset: the eleventh is the end of the connection.
#[test]
fn malformed_requests_without_end_end_the_connection() {
    let mut world = World::simple(2);
    let client = world.http2_client(0, WINDOW);
    for number in 0..11 {
        world.open_with(client, 1 + 2 * number, ("GET", "/"), &[("te", "gzip")], None);
        world.settle();
    }
    assert_eq!(world.streams_answered(client).len(), 10);
    let seen = &world.clients[client].frames.as_ref().expect("frames").seen;
    assert_eq!(seen.last(), Some(&Seen::Goaway(21, 11)));
    world.finish();
}

/// A body that is not as declared gets a response, whether a server has its beginning or not, and
/// is never passed on as whole.
#[test]
fn a_body_of_another_length_gets_400() {
    for length in [3, 300_000] {
        let mut world = World::simple(2);
        let client = world.http2_client(0, 1 << 20);
        let said_length = length.to_string();
        let body = vec![b'x'; length - 1];
        world.open_with(
            client,
            1,
            ("POST", "/v?n=00000001"),
            &[("content-length", &said_length)],
            Some(&body),
        );
        world.settle();
        assert_eq!(said(&world, client, 1), (400, "400 Bad Request: length-differs\n".to_owned()));
        assert!(world.streams_reset(client, 1).is_empty());
        world.open(client, 3, "/v?n=00000002");
        world.settle();
        assert_eq!(said(&world, client, 3).0, 200);
        assert!(
            world.requests().all(|request| request.nonce() != "00000001"),
            "no server has all of it"
        );
    }
    // The trailers are malformed.
    let mut world = World::simple(2);
    let client = world.http2_client(0, WINDOW);
    let list =
        [(":method", "POST"), (":scheme", "http"), (":path", "/v?n=00000003"), (":authority", "a")];
    world.clients[client].frames.as_mut().expect("frames").judge.ask(1, "POST");
    world.send(client, &frame(kind::HEADERS, END_HEADERS, 1, &header_block(&list)));
    world.send(client, &frame(kind::DATA, 0, 1, b"abc"));
    world.send(
        client,
        &frame(kind::HEADERS, END_HEADERS | END_STREAM, 1, &header_block(&[("X-Sum", "1")])),
    );
    world.settle();
    assert_eq!(said(&world, client, 1), (400, "400 Bad Request: trailers-invalid\n".to_owned()));
    assert_eq!(world.requests().count(), 0);
    world.finish();
}

/// Sends a gRPC request; returns `grpc-status` of weir's response.
fn grpc(world: &mut World, client: usize, stream: u32, path: &str) -> (String, String) {
    let fields = [("content-type", "application/grpc+proto"), ("te", "trailers")];
    world.open_with(client, stream, ("POST", path), &fields, Some(b"\0\0\0\0\0"));
    world.run_for(70_000_000);
    let reply = world.stream_reply(client, stream).expect("an answer");
    assert_eq!((reply.status, reply.body.text()), (200, String::new()));
    assert_eq!(reply.fields.all("content-type"), ["application/grpc"]);
    assert!(!reply.fields.has("content-length"), "it is a head and nothing else");
    let first = |name: &str| reply.fields.first(name).unwrap_or_default().to_owned();
    (first("grpc-status"), first("grpc-message"))
}

#[test]
fn errors_of_grpc_are_its_own() {
    let mut world = World::simple(2);
    let client = world.http2_client(0, WINDOW);
    let (status, message) = grpc(&mut world, client, 1, "/a.B/C");
    assert_eq!(status, "12");
    assert!(message.contains("does not forward gRPC"), "{message}");
    let (status, message) = grpc(&mut world, client, 3, "/%zz");
    assert_eq!((status.as_str(), message.as_str()), ("13", "400 Bad Request: path"));
    world.finish();

    let only = Route { path: "/x".to_owned(), ..Route::default() };
    let limits =
        vec![LimitPlan::new("two", Terms::Requests(Rate::new(1, 1_000_000_000, 2, false)))];
    let shield = Some(ShieldPlan::new(limits, 1024));
    let routes = RouteTable::new(vec![only]);
    let mut world = World::started(Plan { shield, routes, ..plan(1, 1) }, 1, 1);
    let client = world.http2_client(0, WINDOW);
    let found: Vec<_> =
        (0..3).map(|number| grpc(&mut world, client, 1 + 2 * number, "/a.B/C")).collect();
    let statuses: Vec<_> = found.iter().map(|(status, _)| status.as_str()).collect();
    assert_eq!(statuses, ["12", "12", "14"], "no route, and then over the limit");
    assert_eq!(found[0].1, "404 Not Found: no-route");
    world.finish();
}
