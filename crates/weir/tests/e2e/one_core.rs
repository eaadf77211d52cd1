//! Proves: if packets of both directions have the same hash, one core receives both sides of each
//! connection, because weir keeps the client's port; if not, `weir status` says so. How: the real
//! binary between two links of the laboratory. Their packets have only the hash of their addresses
//! and ports, which is the same both ways (`__flow_hash_consistentify` in
//! net/core/flow_dissector.c), and by which the kernel spreads them over cores (RPS,
//! Documentation/networking/scaling.rst). Needs root.
//! docs/workers.md#one-core-for-both-sides-of-a-connection.

use std::fs::File;

use crate::intercept::{Intercept, takes_programs};
use crate::kit::{
    Io, Neighbour, Scratch, Weir, in_own_network_as_root, ip, on_both_drivers, run, status,
};
use crate::lab_link::Running;
use crate::transparent::{Between, CLIENT, SERVER, lead_by_routes, passing};

on_both_drivers!(led_by_routes, taken_by_programs);

/// Each worker compares its first connection, and then one in 64: with two workers at least five of
/// these, and one of the next.
const MANY: usize = 321;
const FEW: usize = 130;

fn in_network(test: &str, io: Io, body: impl FnOnce(&Between)) {
    if let Err(error) = File::options().read(true).write(true).open("/dev/net/tun") {
        return eprintln!("not tested: /dev/net/tun: {error}");
    }
    in_own_network_as_root(&format!("one_core::{}::{test}", io.word()), || {
        let between = Between { clients: Neighbour::apart(), servers: Neighbour::apart() };
        // Packets from a link have no hash, and the router's side towards servers has to be
        // Ethernet.
        let hop = Neighbour::new("ps", "hop");
        let link = |far: &Neighbour, names: &str, net: u8, more: &[&str]| {
            let addresses = [1, 2].map(|host| format!("198.18.{net}.{host}/24")).join(",");
            let link = Running::start(
                far,
                &[&["--names", names, "--addresses", &addresses], more].concat(),
            );
            far.ip("link set lo up");
            far.ip(&format!("route add default via 198.18.{net}.1"));
            link
        };
        let links = [
            link(&between.clients, "pc,c", 1, &[]),
            link(&between.servers, "hs,s", 2, &["--netns-a", &hop.process()]),
        ];
        ip("addr add 198.18.3.1/24 dev ps");
        ip("link set ps up");
        hop.ip("addr add 198.18.3.2/24 dev hop");
        hop.ip("link set hop up");
        hop.ip("route add default via 198.18.3.1");
        ip("route add 198.18.2.0/24 via 198.18.3.2");
        let forward = || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("root may");
        forward();
        hop.inside(forward);
        between.serve(SERVER[0], 8080);
        if spreads(["1", "1"]) {
            body(&between);
        }
        for link in links {
            link.end();
        }
    });
}

/// Has cores of these masks handle packets from clients and from servers; if the kernel cannot,
/// says so.
fn spreads(masks: [&str; 2]) -> bool {
    let tell = |name: &str, mask: &str| {
        format!("echo {mask} > /sys/class/net/{name}/queues/rx-0/rps_cpus")
    };
    // /sys shows the network of the process that mounted it.
    let all = ["mount -t sysfs none /sys".to_owned(), tell("pc", masks[0]), tell("ps", masks[1])]
        .join(" && ");
    let told = run("unshare", &["--mount", "sh", "-c", &all]);
    if !told.status.success() {
        eprintln!(
            "not tested: the kernel does not spread packets here: {}",
            String::from_utf8_lossy(&told.stderr)
        );
    }
    told.status.success()
}

/// Makes connections with their hashes for all cores, then, with at least two cores, with a core
/// for each side. Returns for each how many were compared, and how many of these were received by
/// one core.
fn shares(between: &Between, told: impl Fn() -> [u64; 2]) -> [[u64; 2]; 2] {
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(31);
    let all = format!("{:x}", (1u32 << cores) - 1);
    let mut before = told();
    [([&*all, &*all], MANY), (["1", if cores > 1 { "2" } else { "1" }], FEW)].map(
        |(masks, count)| {
            assert!(spreads(masks), "it could before");
            for _ in 0..count {
                between.ask(CLIENT[0], 0, SERVER[0], 8080).expect("it gets through");
            }
            let now = told();
            let since = [now[0] - before[0], now[1] - before[1]];
            before = now;
            since
        },
    )
}

/// Returns how many connections `weir status` has compared, and how many of them had one core.
fn compared(totals: &serde_json::Value) -> [u64; 2] {
    ["tcp_cores_compared", "tcp_cores_same"].map(|name| totals[name].as_u64().unwrap_or(0))
}

fn judge([[all, same], [apart, not]]: [[u64; 2]; 2]) {
    assert!(all >= 5, "{all} were compared");
    assert_eq!(same, all, "one core for both sides of each");
    assert!(apart >= 1, "{apart} were compared");
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
        assert_eq!(not, 0, "of {apart} with a core for each side");
    }
}

fn led_by_routes(io: Io) {
    in_network("led_by_routes", io, |between| {
        ip("route add local default dev lo table 100");
        lead_by_routes();
        let scratch = Scratch::new();
        let weir = Weir::start(io, 1, &passing(8080, &scratch));
        judge(shares(between, || compared(&status(&weir)["totals"])));
        weir.stop();
    });
}

fn taken_by_programs(io: Io) {
    in_network("taken_by_programs", io, |between| {
        if takes_programs() {
            let intercept = Intercept::start(io, &[]);
            judge(shares(between, || compared(&intercept.totals())));
        }
    });
}
