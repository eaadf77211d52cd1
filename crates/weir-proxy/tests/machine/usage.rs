//! Proves: what clients of the forward proxy do is charged to the right destination and user, and that all of it is told. That all
//! bytes are charged to some destination is looked at when any test of this binary finishes.

use std::sync::Arc;

use weir_proxy::forward::lookup::User;
use weir_proxy::observe::accounting::Use;
use weir_proxy::observe::report::{UsedReport, UsedRow};
use weir_proxy::plan::Plan;

use crate::forward::{ANN, forward, get, resolved, send, verify, with_users, world};
use crate::world::{Do, Door, World};

/// Destinations and users.
fn told(world: &World) -> (UsedReport, UsedReport) {
    let usage = world.nodes[0].engine.report().usage.expect("a forward proxy");
    (usage.destinations, usage.users)
}

fn row<'a>(report: &'a UsedReport, name: &str) -> &'a UsedRow {
    report.rows.iter().find(|row| *row.name == *name).unwrap_or_else(|| panic!("no {name} in {report:?}"))
}

/// Connections, requests, tunnels and refusals.
fn figures(row: &UsedRow) -> (u32, u64, u64, Vec<(&str, u64)>) {
    (row.connections, row.used.requests, row.used.tunnels, row.used.refusals.clone())
}

/// Requests, a tunnel, refusals of all kinds: each counts for its destination and for who asked.
#[test]
fn who_did_what() {
    let mut world = world(with_users());
    world.servers[2].door = Door::Refuses;
    let (client, ann) = (world.client(), Arc::new(User::new("ann")));
    get(&mut world, client, "127.0.0.1:9000", "00000001");
    world.run_for(1000);
    send(&mut world, client, "GET", "http://A.example:9000/v?n=00000002", ANN);
    world.run_for(1000);
    verify(&mut world, Some(&ann));
    world.errands.clear();
    resolved(&mut world, "a.example", &[[127, 0, 0, 1]], 60_000_000);
    for (n, target) in
        ["http://a.example:9000/v?n=", "http://127.0.0.1:9001/v?n=", "http://10.0.0.1/"].iter().enumerate()
    {
        send(&mut world, client, "GET", &format!("{target}{:08}", n + 3), ANN);
        world.run_for(1000);
    }
    send(&mut world, client, "GET", "http://127.0.0.1:9002/", ANN);
    world.run_for(1000);
    send(&mut world, client, "GET", "/", "");
    world.run_for(1000);
    assert_eq!(world.clients[client].statuses(), [407, 200, 200, 200, 403, 502, 400]);
    let (destinations, users) = told(&world);
    assert_eq!(figures(row(&destinations, "a.example:9000")), (1, 2, 0, vec![]));
    assert_eq!(figures(row(&destinations, "127.0.0.1:9001")), (1, 1, 0, vec![]));
    assert_eq!(figures(row(&destinations, "10.0.0.1:80")), (0, 0, 0, vec![("address-not-public", 1)]));
    assert_eq!(figures(row(&destinations, "127.0.0.1:9002")), (0, 1, 0, vec![("connect-failed", 1)]));
    assert_eq!((destinations.rows.len(), &destinations.others), (4, &Use::default()));
    let refused = vec![("address-not-public", 1), ("connect-failed", 1)];
    assert_eq!((figures(row(&users, "ann")), users.rows.len()), ((1, 4, 0, refused), 1));
    let sum = |of: fn(&Use) -> u64| destinations.rows.iter().map(|row| of(&row.used)).sum::<u64>();
    let of_ann = &row(&users, "ann").used;
    assert_eq!((of_ann.bytes_in, of_ann.bytes_out), (sum(|used| used.bytes_in), sum(|used| used.bytes_out)));
    assert!(of_ann.bytes_in > 0 && of_ann.bytes_out > 0);
    world.finish();
}

/// A tunnel is a connection of its destination, and its bytes count whoever moves them.
#[test]
fn tunnels_are_charged() {
    for relayed in [false, true] {
        // What the driver says that it has moved never comes to the client, which lines of the log are compared with.
        let mut world = world(Plan { access_log: None, ..forward() });
        if relayed {
            world.let_relay();
        }
        world.raw = true;
        let client = world.client();
        send(&mut world, client, "CONNECT", "127.0.0.1:9000", "");
        world.run_for(1000);
        assert_eq!(figures(row(&told(&world).0, "127.0.0.1:9000")), (1, 0, 1, vec![]));
        assert_eq!(world.relays.len(), usize::from(relayed));
        if relayed {
            world.moved = (1000, 50_000);
            world.end_relay(client, false);
        } else {
            world.send(client, &[b'x'; 1000]);
            world.say(0, Do::Bytes(vec![b'y'; 50_000]));
            world.run_for(1000);
            world.reset(client);
        }
        world.run_for(1000);
        let destinations = told(&world).0;
        let tunnel = row(&destinations, "127.0.0.1:9000");
        assert_eq!((tunnel.connections, tunnel.used.bytes_out, tunnel.used.bytes_in), (0, 1000, 50_000));
        world.finish();
    }
}

/// A worker without a forward proxy tells nothing of the kind.
#[test]
fn a_reverse_proxy_has_no_destinations() {
    assert_eq!(World::simple(1).nodes[0].engine.report().usage, None);
}
