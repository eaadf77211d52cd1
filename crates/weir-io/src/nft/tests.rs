//! Proves: blocked clients reach no port of the table and others do, on both families, for the
//! given time; allowed clients are never blocked; a full set refuses only the excess; the table
//! belongs to one process, and disappears with its socket. How: threads in separate network
//! namespaces, where this machine lets tests make them; the program `nft` as a second reader, if it
//! is there.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::Command;

use rustix::net::{connect, ipproto};
use rustix::thread::UnshareFlags;
use weir_check::waiting::{Waiting, eventually};

use super::*;

const LONG: Duration = Duration::from_secs(3600);

/// Runs this in a new network namespace. None: this process may make none.
fn in_own_network<T: Send>(body: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let inside = || {
            // SAFETY: only the namespace of this thread changes, in which nothing has been opened.
            if let Err(error) = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) } {
                eprintln!("not tested, no namespace: {error}");
                return None;
            }
            assert!(
                Command::new("ip")
                    .args(["link", "set", "lo", "up"])
                    .status()
                    .is_ok_and(|status| status.success())
            );
            Some(body())
        };
        scope.spawn(inside).join().expect("no panic")
    })
}

fn block(text: &str) -> Network {
    let (address, prefix) = text.split_once('/').expect("a prefix");
    (address.parse().expect("an address"), prefix.parse().expect("a number"))
}

/// Whether a client with this address is let in; it is not, if the packets that it sends are
/// dropped.
fn reaches(nft: &mut Nft, from: IpAddr, to: SocketAddr) -> bool {
    let family = if from.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let client =
        socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK, Some(ipproto::TCP)).unwrap();
    sockopt::set_ip_freebind(&client, true).unwrap();
    bind(&client, &SocketAddr::new(from, 0)).unwrap();
    let before = nft.dropped().unwrap().packets;
    match connect(&client, &to) {
        Ok(()) => return true,
        Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => panic!("{from} to {to}: {error}"),
    }
    let mut waiting = Waiting::begin();
    loop {
        if nft.dropped().unwrap().packets > before {
            return false;
        }
        let mut polled = [rustix::event::PollFd::new(&client, rustix::event::PollFlags::OUT)];
        let brief = rustix::time::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        if rustix::event::poll(&mut polled, Some(&brief)).unwrap() > 0 {
            return true;
        }
        assert!(
            waiting.goes_on(),
            "{from} to {to}: neither dropped nor let in; {}",
            waiting.story()
        );
    }
}

fn listeners() -> [TcpListener; 3] {
    ["0.0.0.0:0", "[::]:0", "0.0.0.0:0"].map(|address| TcpListener::bind(address).unwrap())
}

#[test]
fn who_is_blocked_reaches_no_port_of_the_table() {
    in_own_network(|| {
        let [four, six, other] = listeners();
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let scope = Scope::Ports(vec![port(&four), port(&six)]);
        let mut nft = Nft::open("weir-test", &scope, &[block("127.0.9.0/24")], 100).unwrap();
        assert_eq!(nft.dropped().unwrap(), Dropped::default());
        let to = |listener| SocketAddr::from((Ipv4Addr::LOCALHOST, port(listener)));
        let ours = to(&four);
        let from = |last| IpAddr::from([127, 0, 0, last]);
        assert!(reaches(&mut nft, from(2), ours));
        let blocks = ["127.0.0.2/32", "127.0.8.0/23", "127.0.0.4/32", "127.0.0.5/32"].map(block);
        let failed = nft.add(&blocks.map(|block| (block, LONG)));
        assert!(failed.is_empty(), "{failed:?}");
        assert!(!reaches(&mut nft, from(2), ours) && reaches(&mut nft, from(3), ours));
        assert!(!reaches(&mut nft, [127, 0, 8, 7].into(), ours), "one of a network");
        assert!(reaches(&mut nft, [127, 0, 9, 7].into(), ours), "one that is allowed");
        assert!(reaches(&mut nft, from(2), to(&other)), "another port");
        assert!(nft.remove(&[blocks[0]]).is_empty());
        assert!(reaches(&mut nft, from(2), ours) && !reaches(&mut nft, from(4), ours));
        let failed = nft.remove(&[blocks[0], blocks[2], blocks[1]]);
        let why: Vec<_> = failed.iter().map(|(block, error)| (*block, error.kind())).collect();
        assert_eq!(why, [(blocks[0], ErrorKind::NotFound)], "the others are out");
        assert!(reaches(&mut nft, from(4), ours) && reaches(&mut nft, [127, 0, 8, 7].into(), ours));
        assert!(!reaches(&mut nft, from(5), ours));

        let six = SocketAddr::from((Ipv6Addr::LOCALHOST, port(&six)));
        assert!(reaches(&mut nft, six.ip(), six));
        assert!(nft.add(&[(block("::/64"), LONG)]).is_empty());
        assert!(!reaches(&mut nft, six.ip(), six));
        assert!(nft.remove(&[block("::/64")]).is_empty() && reaches(&mut nft, six.ip(), six));
        assert!(nft.add(&[(block("::/48"), LONG)]).is_empty());
        assert!(!reaches(&mut nft, six.ip(), six));
    });
}

#[test]
fn a_block_ends_by_itself() {
    in_own_network(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut nft = Nft::open("weir-test", &Scope::Host, &[], 100).unwrap();
        assert!(nft.add(&[(block("127.0.0.2/32"), Duration::from_millis(300))]).is_empty());
        let to = listener.local_addr().unwrap();
        eventually("it is not blocked any more", || reaches(&mut nft, [127, 0, 0, 2].into(), to));
    });
}

#[test]
fn a_full_set_refuses_what_is_too_much() {
    in_own_network(|| {
        // Twice as many elements as blocks, because expired ones take room for a while.
        let mut nft = Nft::open("weir-test", &Scope::Host, &[], 1000).unwrap();
        let all: Vec<_> = (0..2100_u32)
            .map(|n| ((Ipv4Addr::from_bits(0x0a00_0000 + n).into(), 32), LONG))
            .collect();
        let failed = nft.add(&all);
        assert_eq!(failed.len(), 100, "{:?}", failed.first());
        assert!(
            failed.iter().all(|(_, error)| error.raw_os_error() == Some(libc::ENFILE)),
            "{:?}",
            failed.first()
        );
        let there: Vec<Network> = all
            .iter()
            .map(|(block, _)| *block)
            .filter(|block| !failed.iter().any(|(other, _)| other == block))
            .collect();
        assert!(nft.remove(&there).is_empty(), "what was taken is there");
    });
}

#[test]
fn the_table_is_its_makers_and_goes_with_it() {
    in_own_network(|| {
        let nft = Nft::open(
            "weir-test",
            &Scope::Ports(vec![80, 443]),
            &[block("10.0.0.0/8"), block("2001:db8::/32")],
            10,
        )
        .unwrap();
        assert!(Nft::open("weir-test", &Scope::Host, &[], 10).is_err(), "its name is taken");
        let list = || Command::new("nft").args(["list", "ruleset"]).output();
        let Ok(listed) = list() else { return eprintln!("not listed: there is no nft") };
        let listed = String::from_utf8_lossy(&listed.stdout)
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        // Versions of the program write this in two ways.
        let listed = listed.replace("== @", "@");
        for part in [
            "type inet_service elements = { 80, 443 }",
            "flags interval elements = { 10.0.0.0/8 }",
            "flags interval elements = { 2001:db8::/32 }",
            "type ipv4_addr size 20 flags timeout gc-interval 10s",
            "type filter hook prerouting priority",
            "meta l4proto != tcp accept tcp dport != @ports accept ip saddr @allow4 accept ip6 \
                saddr @allow6 accept",
            "ip saddr @ban4 counter name \"dropped\" drop ip saddr @net4 counter name \
                \"dropped\" drop",
            "ip6 saddr & ffff:ffff:ffff:ffff:: @ban6 counter name \"dropped\" drop ip6 saddr @net6 \
                counter name \"dropped\" drop",
        ] {
            assert!(listed.contains(part), "{part}\n{listed}");
        }
        assert!(Command::new("nft").args(["flush", "ruleset"]).status().unwrap().success());
        assert!(!list().unwrap().stdout.is_empty(), "a stranger does not take it away");
        drop(nft);
        // The kernel removes it after the close.
        eventually("it goes with its maker", || list().unwrap().stdout.is_empty());
    });
}

#[test]
fn the_last_addresses_have_nothing_behind_them() {
    for (text, expected) in [
        ("255.0.0.0/8", 1),
        ("254.0.0.0/8", 2),
        ("ff00::/8", 1),
        ("2001:db8::/32", 2),
        ("255.255.255.255/32", 1),
    ] {
        assert_eq!(elements(block(text), None).len(), expected, "{text}");
    }
}
