//! Proves: the program in the kernel reads the load board as the workers write it, and judges as
//! `Line::cost` does; listeners are held only as long as they are needed, and pass to a successor.
//! How: real listeners, whose board the test writes; if this process lacks the right to eBPF, the
//! test says so.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use weir_io::bind_listener;
use weir_io::board::{ACCEPTS, LATE_TURN_US};
use weir_proxy::plan::Plan;

use super::*;

/// As in the program.
const NEGLIGIBLE_NS: u64 = 50_000;

fn listeners(count: usize) -> (Vec<TcpListener>, SocketAddr) {
    let mut address = "127.0.0.1:0".parse().expect("an address");
    let mut all = Vec::new();
    for _ in 0..count {
        let listener = bind_listener(address, 64).expect("a port");
        address = listener.local_addr().expect("bound");
        all.push(listener);
    }
    (all, address)
}

fn port(listeners: &[TcpListener], address: SocketAddr) -> Port {
    let sockets: Vec<OwnedFd> =
        listeners.iter().map(|it| it.try_clone().expect("a descriptor").into()).collect();
    Port::of_own(address.into(), &sockets).expect("descriptors")
}

/// Spreads by eBPF, only by the load of the workers; None: this process may not, which is printed.
fn by_ebpf(workers: usize) -> Option<(Spreading, Arc<Board>)> {
    let (spreading, board) = Spreading::prepare(AcceptBy::Even, workers, false);
    if board.is_none() {
        eprintln!("not tested: {:?}", spreading.lock().means);
    }
    Some((spreading, board?))
}

/// Returns the listener that gets a client.
fn taker(listeners: &[TcpListener], to: SocketAddr) -> usize {
    let _client = TcpStream::connect(to).expect("connected");
    listeners.iter().position(|listener| listener.accept().is_ok()).expect("somebody")
}

#[derive(Debug, Clone)]
struct Told {
    requests: u32,
    service_ns: u32,
    starved: u32,
    assigned: u32,
    turn_us: Option<u64>,
}

fn any_told() -> impl Strategy<Value = Told> {
    let turn_us = proptest::option::of(300u64..4_000);
    let all = (0u32..50, 0u32..200_000, 0u32..1200, 0u32..100, turn_us);
    all.prop_map(|(requests, service_ns, starved, assigned, turn_us)| Told {
        requests,
        service_ns,
        starved,
        assigned,
        turn_us,
    })
}

fn write(board: &Board, told: &[Told], now_us: u64) {
    for (line, told) in board.lines().iter().zip(told) {
        line.open_requests.store(told.requests, Relaxed);
        line.service_ns.store(told.service_ns, Relaxed);
        line.starved_permille.store(told.starved, Relaxed);
        line.assigned.store(told.assigned, Relaxed);
        line.turn_began_us.store(told.turn_us.map_or(0, |us| now_us - us), Relaxed);
        line.flags.store(ACCEPTS, Relaxed);
    }
}

#[test]
fn the_kernel_judges_as_line_cost_does() {
    let Some((spreading, board)) = by_ebpf(2) else { return };
    let (listeners, address) = listeners(2);
    spreading.take(vec![port(&listeners, address)], 2);
    let seen = |told: &[Told; 2]| {
        let before_us = clock_us();
        write(&board, told, before_us);
        let costs = [0, 1].map(|worker| board.line(worker).cost(before_us));
        let taker = taker(&listeners, address);
        let late = board.lines().iter().any(|line| line.is_late(clock_us()));
        (costs, taker, late)
    };
    let config =
        ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(told in proptest::array::uniform2(any_told()))| {
        let (costs, taker, late) = seen(&told);
        // Turns continue during the computation, on a busy machine until they are late.
        prop_assume!(!late);
        let is_longer = told.iter().any(|told| told.turn_us.is_some());
        let longer_ns = if is_longer { LATE_TURN_US * 1_000 } else { 0 };
        if costs[0].abs_diff(costs[1]) > NEGLIGIBLE_NS + longer_ns {
            prop_assert_eq!(taker, usize::from(costs[1] < costs[0]), "{:?}", costs);
        }
    });
}

#[test]
fn no_listener_is_kept_open_by_ebpf_and_by_classic_until_it_goes() {
    let (spreading, board) = Spreading::prepare(AcceptBy::Even, 2, true);
    let is_ebpf = board.is_some();
    let (listeners, address) = listeners(2);
    spreading.take(vec![port(&listeners, address)], 2);
    let way = if is_ebpf { "even by eBPF" } else { "even by classic BPF" };
    let shown = spreading.shown();
    assert_eq!(
        (&*shown[0].listener, shown[0].way, shown[0].why.is_none()),
        (&*address.to_string(), way, is_ebpf)
    );
    drop(listeners);
    assert_eq!(TcpStream::connect(address).is_err(), is_ebpf);
    spreading.follow(&[], Vec::new(), 2);
    TcpStream::connect(address).expect_err("nobody listens");
    assert!(spreading.shown().is_empty());
}

#[test]
fn a_listener_that_a_worker_could_not_take_is_spread_by_hash() {
    let spreading = Spreading(Arc::new(Mutex::new(Inner {
        means: Means::Classic("no eBPF: this is a test".to_owned()),
        ports: Vec::new(),
    })));
    let ((kept, kept_at), (new, new_at)) = (listeners(2), listeners(2));
    spreading.take(vec![port(&kept, kept_at)], 2);
    let before = [Some(0), None];
    spreading.follow(&before, vec![port(&new, new_at)], 2);
    drop(new);
    spreading.incomplete(&before);
    let shown = spreading.shown();
    assert_eq!((shown[0].way, shown[1].way), ("even by classic BPF", "by hash"));
    let why = "no eBPF: this is a test; no classic BPF: a worker could not take it";
    assert_eq!(shown[1].why.as_deref(), Some(why));
    TcpStream::connect(new_at).expect_err("it is not kept open");
}

#[test]
fn a_successor_has_them_when_they_are_let_go() {
    let (Some((old, _)), Some((new, board))) = (by_ebpf(2), by_ebpf(2)) else { return };
    let (listeners, address) = listeners(2);
    old.take(vec![port(&listeners, address)], 2);
    new.take(vec![Port { sharing: Sharing::Inherited, ..port(&listeners, address) }], 2);
    let workers = Handle::of_views(&Plan::default(), 2);
    new.look(&workers);
    let shown = new.shown().remove(0);
    assert_eq!(
        (shown.way, shown.why.as_deref()),
        ("by hash", Some("the program of the previous weir is still there"))
    );
    old.let_go();
    assert_eq!(old.shown()[0].way, "by hash");
    new.look(&workers);
    assert_eq!((new.shown()[0].way, &new.shown()[0].why), ("even by eBPF", &None));
    board.line(1).flags.store(ACCEPTS, Relaxed);
    assert_eq!([(); 10].map(|()| taker(&listeners, address)), [1; 10]);
    // A listener that remains over a reload is unchanged.
    new.follow(&[Some(0)], Vec::new(), 2);
    assert_eq!(new.shown()[0].way, "even by eBPF");
    assert_eq!([(); 10].map(|()| taker(&listeners, address)), [1; 10]);
}

#[test]
fn what_can_not_be_spread_says_how_it_is() {
    for (wish, workers, way) in [(AcceptBy::Hash, 2, "by hash"), (AcceptBy::Even, 1, "one worker")]
    {
        let (spreading, board) = Spreading::prepare(wish, workers, true);
        assert!(board.is_none());
        let (listeners, address) = listeners(workers);
        spreading.take(vec![port(&listeners, address)], workers);
        let shown = spreading.shown().remove(0);
        assert_eq!((shown.way, shown.why), (way, None));
    }
    let spreading = Spreading::default();
    let address = Location::Unix(std::path::Path::new("/nowhere").into());
    spreading.take(vec![Port::of_own(address, &[]).expect("nothing is opened")], 2);
    assert_eq!(spreading.shown()[0].way, "one socket for all workers");
}
