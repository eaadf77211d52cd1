//! Proves: with `sni` the name in a client's first TLS message selects its upstream, however the
//! message arrives, and the server gets all of it unchanged. A client that asks for no such name
//! gets the default upstream, or is reset; weir neither waits too long nor reads too far
//! (docs/tcp.md). How: messages written by hand, cut anywhere.

use std::sync::Arc;

use weir_proxy::engine::Over;
use weir_proxy::plan::{NamesPlan, Plan, Pool, Serves, TcpPlan};

use crate::world::{Cut, Door, World, access_log, plan};

const SECOND_US: u64 = 1_000_000;
const LINE: &str = "$tls_name $upstream_name $request_length $bytes_sent $ended_by $phase $reason";

/// The last of three servers belongs to another upstream.
fn names(otherwise: Option<u16>) -> Plan {
    let mut plan = plan(3, 1);
    plan.upstreams[0].pool = Pool::Tcp;
    let mut other = plan.upstreams[0].clone();
    "other".clone_into(&mut other.name);
    other.servers = plan.upstreams[0].servers.split_off(2);
    plan.upstreams.push(other);
    let exact = [("a.test".into(), 1)].into_iter().collect();
    let below = [("b.test".into(), 1)].into_iter().collect();
    let names = NamesPlan { exact, below, timeout_us: 5 * SECOND_US };
    plan.tcp =
        vec![Arc::new(TcpPlan { upstream: otherwise, names: Some(names), ..TcpPlan::new(0) })];
    plan.access_log = Some(access_log(LINE));
    plan
}

fn world_of(plan: Plan) -> World {
    let mut world = World::started(plan, 1, 1);
    world.serves = Serves::Tcp(0);
    world.raw = true;
    world
}

fn vector(len_bytes: usize, bytes: &[u8]) -> Vec<u8> {
    let len = (bytes.len() as u32).to_be_bytes();
    [&len[4 - len_bytes..], bytes].concat()
}

/// A first message that asks for this name, with `more` other bytes, in records of `each` bytes.
pub fn hello(name: &str, more: usize, each: usize) -> Vec<u8> {
    let name = vector(2, &[&[0][..], &vector(2, name.as_bytes())].concat());
    let extensions =
        [&[0, 21][..], &vector(2, &vec![0; more]), &[0, 0], &vector(2, &name)].concat();
    let body = [
        &[3, 3][..],
        &[7; 32],
        &vector(1, &[]),
        &vector(2, &[0x13, 1]),
        &vector(1, &[0]),
        &vector(2, &extensions),
    ];
    let message = [&[1][..], &vector(3, &body.concat())].concat();
    message.chunks(each).flat_map(|part| [&[22, 3, 1][..], &vector(2, part)].concat()).collect()
}

#[test]
fn the_name_decides_however_it_comes() {
    for (name, server) in [("A.test", 2), ("x.y.b.test", 2), ("b.test", 0), ("c.test", 0)] {
        for (cut, each) in
            [(Cut::Whole, 10_000), (Cut::Each(1), 100), (Cut::Random, 7), (Cut::Each(600), 10_000)]
        {
            let mut world = world_of(names(Some(0)));
            let client = world.client();
            world.settle();
            assert!(world.conns.is_empty(), "nothing is known yet");
            let said = [hello(name, 900, each), b"and more".to_vec()].concat();
            world.send_cut(client, &said, cut);
            world.settle();
            let (_, conn) = world.relays[0];
            let is_right = if server == 2 {
                world.conns[conn].server == 2
            } else {
                world.conns[conn].server < 2
            };
            assert!(is_right, "{name}: {}", world.conns[conn].server);
            let sent = world.conns[conn].tunnel.len();
            assert!(
                sent >= said.len() - 8 - 600 && said.starts_with(&world.conns[conn].tunnel),
                "{name} {cut:?}"
            );
            // Bytes that are not received yet are left to the relay.
            assert_eq!(sent + world.clients[client].unread(), said.len());
            world.moved = (3, 5);
            world.end_flow(client, Over::Complete);
            world.settle();
            let upstream = if server == 2 { "other" } else { "app" };
            let told = name.to_ascii_lowercase();
            assert_eq!(world.lines, [format!("{told} {upstream} {} 5 none done -", sent + 3)]);
            world.finish();
        }
    }
}

#[test]
fn who_asks_for_nothing_that_is_known_is_reset_or_has_what_the_others_have() {
    for said in
        [hello("c.test", 0, 1000), hello("a.test", 17_000, 16_000), b"SSH-2.0-client\r\n".to_vec()]
    {
        let mut world = world_of(names(None));
        let client = world.client();
        world.send(client, &said);
        world.settle();
        assert!(world.clients[client].was_reset && world.conns.is_empty());
        assert!(world.lines[0].ends_with("weir head unknown-name"), "{:?}", world.lines);
        world.finish();
        let mut world = world_of(names(Some(0)));
        let client = world.client();
        world.send(client, &said);
        world.settle();
        let (_, conn) = world.relays[0];
        assert!(world.conns[conn].tunnel == said && world.conns[conn].server < 2);
        world.end_flow(client, Over::Complete);
        world.finish();
    }
}

#[test]
fn nobody_is_waited_for_too_long() {
    let said = hello("a.test", 100, 1000);
    let mut world = world_of(names(Some(0)));
    let silent = world.client();
    let slow = world.client();
    world.send(slow, &said[..50]);
    world.run_for(4 * SECOND_US);
    world.send(slow, &said[50..60]);
    world.run_for(2 * SECOND_US);
    assert!(world.clients[silent].was_reset && world.clients[slow].was_reset);
    assert_eq!(world.lines, ["- - 0 0 weir head hello-timeout"; 2]);
    let ends = world.client();
    world.send(ends, &said[..50]);
    world.half_close(ends);
    let resets = world.client();
    world.settle();
    world.reset(resets);
    world.settle();
    assert!(world.clients[ends].was_reset && world.clients[resets].closed);
    assert!(world.conns.is_empty());
    assert_eq!(world.count(|counters| counters.tcp_closes.get("hello-truncated")), 1);
    assert_eq!(world.count(|counters| counters.tcp_closes.get("client-reset")), 1);
    world.finish();
}

#[test]
fn another_server_gets_the_message_as_well() {
    let mut world = world_of(names(Some(0)));
    world.servers[0].door = Door::Refuses;
    for _ in 0..2 {
        let client = world.client();
        let said = hello("c.test", 100, 1000);
        world.send(client, &said);
        world.settle();
        let (_, conn) = *world.relays.last().expect("it is joined");
        assert_eq!((world.conns[conn].server, &world.conns[conn].tunnel), (1, &said));
        world.end_flow(client, Over::Complete);
    }
    world.finish();
}

#[test]
fn what_comes_in_the_turn_in_which_the_server_is_there_is_not_lost() {
    let said = hello("a.test", 100, 1000);
    let mut world = world_of(names(Some(0)));
    let client = world.client();
    world.send(client, &said);
    world.settle_once();
    assert_eq!((world.conns.len(), world.relays.len()), (1, 0), "the connect is under way");
    world.send_late(client, b"and more");
    world.settle();
    assert_eq!(world.relays, [(client, 0)]);
    assert_eq!(world.conns[0].tunnel, [&said[..], b"and more"].concat());
    world.moved = (3, 5);
    world.end_flow(client, Over::Complete);
    assert_eq!(world.lines, [format!("a.test other {} 5 none done -", said.len() + 8 + 3)]);
    // An abort is passed on as an abort.
    let resets = world.client();
    world.send(resets, &said);
    world.settle_once();
    world.reset(resets);
    world.settle();
    assert!(world.clients[resets].closed && world.conns[1].was_reset && world.relays.len() == 1);
    assert_eq!(world.lines[1], "a.test other 0 0 client connect client-reset");
    world.finish();
}
