//! Proves: on request drivers of network cards drop packets of banned clients, of both families,
//! only to weir's ports, until the ban ends. The program is there from the start, follows reloads,
//! and is removed with weir, however that ends. It is not displaced and displaces no other program.
//! If that is impossible, nftables drops the packets, and when the place becomes free weir takes
//! it. How: the real binary in a network namespace of the test, and clients in another one, behind
//! a pair of virtual interfaces whose driver runs such programs. Needs root. docs/bans.md.

use std::net::{SocketAddr, TcpListener};

use socket2::Socket;

use crate::bans_kernel::{address, knock, knows, lets_in};
use crate::kit::{
    Honest, Io, Neighbour, Server, Weir, app, eventually, free_port, in_own_network_as_root, ip,
    on_both_drivers, run, status,
};

on_both_drivers!(drivers_drop_packets_of_the_banned, nftables_steps_in);

/// The clients' network, joined to the weir network by the interface `near`.
struct Outside(Neighbour);

impl Outside {
    fn new() -> Outside {
        let outside = Neighbour::new("near", "far");
        for line in [
            "addr add 198.18.0.1/24 dev near",
            "addr add fd00:1::1/64 dev near nodad",
            "link set near up",
            "route add 198.18.1.0/24 via 198.18.0.2",
            "-6 route add fd00:2::/48 via fd00:1::2",
        ] {
            ip(line);
        }
        for line in [
            "addr add 198.18.0.2/24 dev far",
            "addr add fd00:1::2/64 dev far nodad",
            "link set far up",
            "route add local 198.18.1.0/24 dev lo",
            "-6 route add local fd00:2::/48 dev lo",
        ] {
            outside.ip(line);
        }
        Outside(outside)
    }

    /// Begins to connect from a client there.
    fn knock(&self, from: &str, to: SocketAddr) -> Socket {
        self.0.inside(|| knock(from, to))
    }

    fn lets_in(&self, weir: &Weir, from: &str, to: SocketAddr) -> bool {
        lets_in(weir, || self.knock(from, to))
    }
}

/// Whether the interface runs a program in its driver.
fn has_program() -> bool {
    let shown = run("ip", &["link", "show", "near"]);
    String::from_utf8_lossy(&shown.stdout).contains(" xdp ")
}

fn ban(more: &str) -> String {
    format!(
        "shield {{ limit \"o\" count=\"open\" max=1000; ban via=\"xdp\" interface=\"near\" \
            {more}; }}\n"
    )
}

fn drivers_drop_packets_of_the_banned(io: Io) {
    let test = format!("bans_xdp::{}::drivers_drop_packets_of_the_banned", io.word());
    in_own_network_as_root(&test, || {
        let (server, outside) = (Server::start(Honest), Outside::new());
        let at = |host: &str| SocketAddr::new(address(host), free_port());
        let (four, six, later) = (at("198.18.0.1"), at("fd00:1::1"), at("198.18.0.1"));
        let other = TcpListener::bind("198.18.0.1:0").expect("a free port");
        let other_at = other.local_addr().expect("it is bound");
        let rest = format!("listen \"{four}\"\nlisten \"{six}\"\n{}", app(&server, 1, ""));
        let weir = Weir::start(io, 1, &format!("{rest}{}", ban("")));
        let said = "the kernel drops packets of banned clients: in the driver of near (XDP)";
        eventually("it is there before anybody is banned", || weir.said().contains(said));
        assert!(has_program());
        eventually("it listens", || {
            outside.lets_in(&weir, "198.18.1.5", four) && outside.lets_in(&weir, "fd00:2::5", six)
        });
        for who in ["198.18.1.5", "198.18.1.64/26", "fd00:2::5"] {
            weir.answer(&["ban", "add", who, "--for", "1h"]);
        }
        knows(&weir, 3);
        for (from, to, is_in) in [
            ("198.18.1.5", four, false),
            ("198.18.1.6", four, true),
            ("198.18.1.64", four, false),
            ("198.18.1.128", four, true),
            ("fd00:2::7", six, false),
            ("fd00:2:0:1::7", six, true),
            ("198.18.1.5", other_at, true),
        ] {
            assert_eq!(outside.lets_in(&weir, from, to), is_in, "{from} to {to}");
        }
        assert!(weir.answer(&["status"]).contains("3 in force (3 in the kernel, xdp)"));
        // Another port, and addresses that are exempt from now on: another program replaces the
        // first.
        weir.rewrite(&format!(
            "listen \"{later}\"\n{rest}{}",
            ban("").replace("limit", "allow \"198.18.1.64/30\"; limit")
        ));
        assert_eq!(weir.answer(&["reload"]), "");
        eventually("the network with him in it is not banned", || {
            status(&weir)["bans"]["in_kernel"] == 2
        });
        assert!(
            !outside.lets_in(&weir, "198.18.1.5", later)
                && outside.lets_in(&weir, "198.18.1.64", later)
        );
        weir.answer(&["ban", "remove", "198.18.1.5"]);
        knows(&weir, 1);
        assert!(outside.lets_in(&weir, "198.18.1.5", four));
        weir.answer(&["ban", "add", "198.18.1.5", "--for", "1s"]);
        eventually("it ends by itself", || outside.lets_in(&weir, "198.18.1.5", four));
        knows(&weir, 1);
        assert_eq!(weir.said().matches(said).count(), 1, "{}", weir.said());
        assert!(has_program());
        // A configuration for nftables gets it.
        weir.rewrite(&rest);
        assert_eq!(weir.answer(&["reload"]), "");
        eventually("it is a table", || {
            status(&weir)["bans"]["kernel_tier"] == "nftables" && !has_program()
        });
        assert!(!outside.lets_in(&weir, "fd00:2::7", six));
        weir.rewrite(&format!("{rest}{}", ban("")));
        assert_eq!(weir.answer(&["reload"]), "");
        eventually("it is a program again", || {
            status(&weir)["bans"]["kernel_tier"] == "xdp" && has_program()
        });
        knows(&weir, 1);
        assert!(!outside.lets_in(&weir, "fd00:2::7", six));
        weir.signal("KILL");
        eventually("nothing is left", || !has_program());
        server.finish();
    });
}

fn nftables_steps_in(io: Io) {
    let test = format!("bans_xdp::{}::nftables_steps_in", io.word());
    in_own_network_as_root(&test, || {
        let (server, outside) = (Server::start(Honest), Outside::new());
        let at = || SocketAddr::new(address("198.18.0.1"), free_port());
        let weirs = [at(), at()].map(|at| {
            let weir =
                Weir::start(io, 1, &format!("listen \"{at}\"\n{}{}", app(&server, 1, ""), ban("")));
            eventually("it listens", || outside.lets_in(&weir, "198.18.1.6", at));
            eventually("the kernel drops packets", || {
                !status(&weir)["bans"]["kernel_tier"].is_null()
            });
            (weir, at)
        });
        let [(first, _), (second, second_at)] = &weirs;
        assert_eq!(status(first)["bans"]["kernel_tier"], "xdp");
        let told = status(second)["bans"].clone();
        let why = "XDP: near has an XDP program of another owner (`ip link show near`)";
        assert_eq!(
            (&told["kernel_tier"], &told["kernel_problem"]),
            (&"nftables".into(), &why.into()),
            "{told}"
        );
        assert!(second.said().contains(&format!("of nftables ({why})")), "{}", second.said());
        second.answer(&["ban", "add", "198.18.1.5", "--for", "1h"]);
        knows(second, 1);
        assert!(!outside.lets_in(second, "198.18.1.5", *second_at));
        let notice = format!("bans are enforced by nftables: {why}");
        assert!(second.answer(&["status"]).contains(&notice), "{}", second.answer(&["status"]));
        first.signal("KILL");
        eventually("its place is taken", || status(second)["bans"]["kernel_tier"] == "xdp");
        knows(second, 1);
        assert!(status(second)["bans"]["kernel_problem"].is_null());
        assert!(!outside.lets_in(second, "198.18.1.5", *second_at));
        // The program that takes over waits for the place.
        second.upgrade();
        second.answer(&["ban", "add", "198.18.1.5", "--for", "1h"]);
        eventually("it has the place", || {
            status(second)["bans"]["kernel_tier"] == "xdp" && has_program()
        });
        knows(second, 1);
        assert!(!outside.lets_in(second, "198.18.1.5", *second_at));
        // Cards come and go.
        ip("link del near");
        let kind = || status(second)["bans"]["kernel_tier"].clone();
        eventually("nftables steps in", || kind() == "nftables");
        ip("link add near type veth peer name other");
        eventually("it has the new one", || kind() == "xdp" && has_program());
        second.signal("KILL");
        server.finish();
    });
}
