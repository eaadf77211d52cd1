//! Proves that the harness and the plain paths work: one response for each request, in order, bytes
//! judged on both sides.

use weir_check::upstreams::check_honest;

use crate::world::{Cut, World};

#[test]
fn answers_come_in_order() {
    let mut world = World::simple(4);
    let client = world.client();
    for n in 0..10 {
        world.get(client, &format!("{n:08}"));
    }
    world.settle();
    assert_eq!(world.clients[client].replies.len(), 10);
    for (n, reply) in world.clients[client].replies.iter().enumerate() {
        check_honest(&format!("{n:08}"), reply).unwrap();
    }
    assert_eq!(world.open_conns().len(), 4);
    world.finish();
}

#[test]
fn every_byte_in_its_own_segment() {
    let mut world = World::simple(1);
    world.cut_upstream = Cut::Each(1);
    let client = world.client();
    world.expect(client, "POST", false, false);
    world.expect(client, "GET", false, false);
    let text = b"POST /p?n=00000001 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n\
        hello\r\n0\r\n\r\n\
        GET /v?n=00000002 HTTP/1.1\r\nHost: a\r\n\r\n";
    world.send_cut(client, text, Cut::Each(1));
    world.settle();
    check_honest("00000001", &world.clients[client].replies[0]).unwrap();
    check_honest("00000002", &world.clients[client].replies[1]).unwrap();
    assert_eq!(world.requests().next().unwrap().body.text(), "hello");
    world.finish();
}
