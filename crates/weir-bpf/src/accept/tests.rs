//! Proves: the kernel takes the program; new connections reach the worker that has time for them,
//! workers that are late or accept nothing are skipped, assignments are counted, and clients that
//! wait at a closed listener are served by another. How: real listeners and clients on loopback,
//! with a load that the test writes; without the right to it the tests say so and end.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use aya::maps::MapError;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_reuseport;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, accept, bind, getsockname, listen, socket_with,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use super::*;

/// Words of a line of the board.
const OPEN_REQUESTS: usize = 3;
const SESSIONS: usize = 4;
const ASSIGNED: usize = 5;
const SERVICE_NS: usize = 6;
const STARVED: usize = 7;
const FLAGS: usize = 8;
const ACCEPTS: u32 = 1;
const DRAINS: u32 = 2;

type Line = [u32; 16];

fn load(workers: u32) -> Option<Accept> {
    load_at(workers, &[])
}

fn load_at(workers: u32, cores: &[Option<u32>]) -> Option<Accept> {
    match Accept::load(workers, cores) {
        Ok(accept) => Some(accept),
        Err(BpfError::NotPermitted) => {
            eprintln!("not tested: it needs CAP_BPF and CAP_NET_ADMIN");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Listeners of one port.
fn listeners(count: u32) -> (Vec<OwnedFd>, SocketAddr) {
    let mut address: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let mut all = Vec::new();
    for _ in 0..count {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).expect("a socket");
        set_socket_reuseport(&socket, true).expect("an option");
        bind(&socket, &address).expect("a port");
        listen(&socket, 512).expect("it listens");
        address = getsockname(&socket).expect("bound").try_into().expect("of IP");
        all.push(socket);
    }
    (all, address)
}

fn named(sockets: &[OwnedFd]) -> Vec<Listener<'_>> {
    (0..)
        .zip(sockets)
        .map(|(worker, socket)| Listener { socket: socket.as_fd(), worker: Some(worker) })
        .collect()
}

struct Board(Array<MapData, Line>);

impl Board {
    fn of(accept: &Accept) -> Board {
        let descriptor = accept.board().try_clone_to_owned().expect("a descriptor");
        let map = MapData::from_fd(descriptor).and_then(|data| Array::try_from(Map::Array(data)));
        Board(map.map_err(|error: MapError| error.to_string()).expect("the board"))
    }

    /// Writes some words of the line of an accepting worker, all others are 0.
    fn write(&mut self, worker: u32, words: &[(usize, u32)]) {
        let mut line = [0; 16];
        line[FLAGS] = ACCEPTS;
        words.iter().for_each(|(at, word)| line[*at] = *word);
        self.0.set(worker, line, 0).expect("written");
    }

    /// Sets the time since which its turn has been running.
    fn write_turn(&mut self, worker: u32, us: u64) {
        let began = now_us() - us;
        self.write(worker, &[(0, began as u32), (1, (began >> 32) as u32)]);
    }

    fn assigned(&self, worker: u32) -> u32 {
        self.0.get(&worker, 0).expect("read")[ASSIGNED]
    }
}

fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000
}

/// Accepts all waiting clients.
fn take(listener: &OwnedFd) -> u32 {
    let mut count = 0;
    loop {
        match accept(listener) {
            Ok(_) => count += 1,
            Err(Errno::AGAIN) => return count,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Connects `count` clients and returns which listener gets how many.
fn connect(to: SocketAddr, sockets: &[OwnedFd], count: u32) -> Vec<u32> {
    let clients: Vec<_> = (0..count).map(|_| TcpStream::connect(to).expect("connected")).collect();
    let taken: Vec<u32> = sockets.iter().map(take).collect();
    assert_eq!(taken.iter().sum::<u32>(), count);
    drop(clients);
    taken
}

#[test]
fn the_less_costly_of_two_gets_all_and_what_is_given_is_counted() {
    let Some(mut accept) = load(2) else { return };
    let (sockets, address) = listeners(2);
    accept.add(&named(&sockets)).expect("they share a port");
    let mut board = Board::of(&accept);
    for (costly, cheap) in [(0, 1), (1, 0)] {
        board.write(costly, &[(OPEN_REQUESTS, 100), (SERVICE_NS, 1_000_000)]);
        board.write(cheap, &[]);
        assert_eq!(connect(address, &sockets, 40)[cheap as usize], 40);
        assert_eq!((board.assigned(cheap), board.assigned(costly)), (40, 0));
        // A busy core is as bad.
        board.write(costly, &[(STARVED, 500)]);
        board.write(cheap, &[]);
        assert_eq!(connect(address, &sockets, 40)[cheap as usize], 40);
    }
}

#[test]
fn of_four_the_most_costly_gets_nothing_and_the_least_costly_the_most() {
    let Some(mut accept) = load(4) else { return };
    let (sockets, address) = listeners(4);
    accept.add(&named(&sockets)).expect("they share a port");
    let mut board = Board::of(&accept);
    for (worker, open) in [(0, 5), (1, 0), (2, 9), (3, 1)] {
        board.write(worker, &[(OPEN_REQUESTS, open), (SERVICE_NS, 100_000_000)]);
    }
    let taken = connect(address, &sockets, 200);
    assert_eq!(taken[2], 0);
    // A half, a third and a sixth of the pairs are theirs.
    assert!(taken[1] > taken[0] && taken[3] > 0, "{taken:?}");
    // When two of the others are late, only this worker remains.
    board.write_turn(0, 10_000_000);
    board.write_turn(3, 10_000_000);
    assert_eq!(connect(address, &sockets, 40), [0, 40, 0, 0]);
}

#[test]
fn those_who_hold_as_many_get_as_many() {
    let Some(mut accept) = load(4) else { return };
    let (sockets, address) = listeners(4);
    accept.add(&named(&sockets)).expect("they share a port");
    let mut board = Board::of(&accept);
    let mut held = [0; 4];
    for _ in 0..400 {
        (0..).zip(held).for_each(|(worker, sessions)| board.write(worker, &[(SESSIONS, sessions)]));
        let taken = connect(address, &sockets, 1);
        held.iter_mut().zip(taken).for_each(|(held, taken)| *held += taken);
    }
    let (most, least) = (held.iter().max(), held.iter().min());
    assert!(most.zip(least).is_some_and(|(most, least)| most * 10 <= least * 12), "{held:?}");
}

#[test]
fn among_equals_it_is_the_one_on_whose_core_packets_arrive() {
    // On loopback connections arrive on the core of the client.
    let mut one = CpuSet::new();
    let allowed = sched_getaffinity(None).expect("every thread has some");
    let core = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).expect("one of them");
    one.set(core);
    sched_setaffinity(None, &one).expect("it is allowed");
    let Some(mut accept) = load_at(2, &[None, u32::try_from(core).ok()]) else { return };
    let (sockets, address) = listeners(2);
    accept.add(&named(&sockets)).expect("they share a port");
    let mut board = Board::of(&accept);
    let hold = |board: &mut Board, near| {
        board.write(0, &[(SESSIONS, 100)]);
        board.write(1, &[(SESSIONS, near), (SERVICE_NS, 1_000_000)]);
    };
    hold(&mut board, 100);
    assert_eq!(connect(address, &sockets, 4), [0, 4]);
    // Above the other worker by more than a sixteenth, or a fifth of the cost, it is not preferred.
    hold(&mut board, 110);
    assert_eq!(connect(address, &sockets, 4), [4, 0]);
    hold(&mut board, 100);
    board.write(1, &[(SESSIONS, 100), (SERVICE_NS, 1_000_000), (OPEN_REQUESTS, 1)]);
    assert_eq!(connect(address, &sockets, 4), [4, 0]);
}

#[test]
fn whoever_is_late_or_takes_nobody_is_passed_over() {
    let Some(mut accept) = load(3) else { return };
    let (sockets, address) = listeners(3);
    accept.add(&named(&sockets)).expect("they share a port");
    let mut board = Board::of(&accept);
    // The remaining worker would be the cheapest.
    for busy in [1, 2] {
        board.write(busy, &[(OPEN_REQUESTS, 100), (SERVICE_NS, 1_000_000)]);
    }
    board.write_turn(0, 10_000_000);
    assert_eq!(connect(address, &sockets, 40)[0], 0);
    board.write(0, &[(FLAGS, ACCEPTS | DRAINS)]);
    assert_eq!(connect(address, &sockets, 40)[0], 0);
    board.write(0, &[(FLAGS, 0)]);
    assert_eq!(connect(address, &sockets, 40)[0], 0);
    board.write(0, &[]);
    assert_eq!(connect(address, &sockets, 40)[0], board.assigned(0));
    assert!(board.assigned(0) > 0);
    // With no worker to choose from the kernel chooses.
    (0..3).for_each(|worker| board.write(worker, &[(FLAGS, DRAINS)]));
    connect(address, &sockets, 40);
    assert_eq!([0, 1, 2].map(|worker| board.assigned(worker)), [0; 3]);
}

#[test]
fn who_waits_at_a_listener_that_is_closed_goes_to_another_one() {
    let Some(mut accept) = load(3) else { return };
    let (mut sockets, address) = listeners(3);
    let group = accept.add(&named(&sockets)).expect("they share a port");
    let mut board = Board::of(&accept);
    board.write(0, &[]);
    let clients: Vec<_> =
        (0..10).map(|_| TcpStream::connect(address).expect("connected")).collect();
    assert_eq!(board.assigned(0), 10);
    board.write(0, &[(FLAGS, DRAINS)]);
    board.write(2, &[]);
    accept.leave(group);
    drop(sockets.remove(0));
    assert_eq!(sockets.iter().map(take).collect::<Vec<_>>(), [0, 10]);
    drop(clients);
}

#[test]
fn each_address_has_its_own_and_places_are_given_again() {
    let Some(mut accept) = load(2) else { return };
    let mut board = Board::of(&accept);
    board.write(1, &[]);
    let (first, to_first) = listeners(2);
    let group = accept.add(&named(&first)).expect("they share a port");
    // Only worker 1 takes clients. All places are assigned in turn, and none is left over.
    for _ in 0..GROUPS_MAX + 1 {
        let (sockets, address) = listeners(2);
        let group = accept.add(&named(&sockets)).expect("there is a place");
        assert_eq!(
            (connect(address, &sockets, 4), connect(to_first, &first, 4)),
            (vec![0, 4], vec![0, 4])
        );
        accept.leave(group);
    }
    let all: Vec<_> = (1..GROUPS_MAX).map(|_| listeners(2)).collect();
    for (sockets, _) in &all {
        accept.add(&named(sockets)).expect("there is a place");
    }
    let (one_more, _) = listeners(2);
    let error = accept.add(&named(&one_more)).expect_err("all places are taken");
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    accept.release(group);
    accept.add(&named(&one_more)).expect("there is a place");
}

#[test]
fn a_successor_has_to_wait_until_they_are_let_go() {
    let (Some(mut old), Some(mut new)) = (load(2), load(2)) else { return };
    let (sockets, address) = listeners(2);
    let group = old.add(&named(&sockets)).expect("they share a port");
    assert_eq!(
        new.add(&named(&sockets)).expect_err("they are the old one's").kind(),
        io::ErrorKind::ResourceBusy
    );
    old.release(group);
    new.add(&named(&sockets)).expect("they are free");
    Board::of(&old).write(0, &[]);
    let mut board = Board::of(&new);
    board.write(1, &[]);
    assert_eq!((connect(address, &sockets, 20), board.assigned(1)), (vec![0, 20], 20));
    // The process with the new program ends. That program remains until another replaces it, and
    // the kernel removes it in its own time.
    drop(new);
    let until_us = now_us() + 60_000_000;
    while let Err(error) = old.add(&named(&sockets)) {
        assert!(error.kind() == io::ErrorKind::ResourceBusy && now_us() < until_us, "{error}");
        std::thread::yield_now();
    }
    assert_eq!(connect(address, &sockets, 20), [20, 0]);
}
